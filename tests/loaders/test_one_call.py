"""One call gives all that a transition may come with, as arrays too."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.loaders.weights import weighted, weights_by_episode

FRAMES = spaces.Box(0, 255, (4, 5, 3), np.uint8)
LENGTHS = (7, 1, 4, 12)


@pytest.fixture
def frames(home):  # noqa: ARG001
    rng = np.random.default_rng(0)
    with orlog.DatasetWriter("lab/frames-v1", observation_space=FRAMES, action_space=spaces.Discrete(9)) as writer:
        for length in LENGTHS:
            writer.add_steps(
                observations=rng.integers(0, 256, (length + 1, 4, 5, 3), np.uint8),
                actions=rng.integers(0, 9, length),
                rewards=rng.normal(size=length),
                terminations=np.arange(length) == length - 1,
                truncations=np.zeros(length, bool),
                infos={"w": rng.integers(0, 3, length).astype(np.float32)},
            )
            writer.end_episode(metadata={"worth": float(length % 2)})
    return orlog.load_dataset("lab/frames-v1")


@pytest.mark.parametrize("name", ["infos/w", "w", "episodes/worth"])
def test_weights_are_a_column_or_numbers(frames, name):
    column = np.concatenate([episode.infos["w"] for episode in frames])
    if name == "episodes/worth":
        column = weights_by_episode(frames, np.array([n % 2 for n in LENGTHS]), per="step")
    streams = [
        orlog.transitions(frames, 8, seed=1, weights=name),
        orlog.transitions(frames, 8, seed=1, weights=column),
        orlog.transitions(weighted(orlog.load_arrays(frames), column), 8, seed=1),
    ]
    assert len({stream.digest for stream in streams}) == 1
    first, *others = [stream.batch(3).observations for stream in streams]
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stream": True, "weights": "infos/w"}, "stream and weights cannot be given together"),
        ({"stream": True, "prioritized": True}, "stream and prioritized cannot be given together"),
        ({"stacks": 2, "prioritized": True}, "stacks and prioritized cannot be given together"),
        ({"stacked": ["eye"]}, "give stacks"),
        ({"buffer_bytes": 2**20}, "buffer_bytes is for stream=True"),
        ({"to": "jax"}, "to must be"),
    ],
)
def test_what_does_not_go_together_is_refused(frames, arguments, message):
    with pytest.raises(ValueError, match=message):
        next(iter(orlog.transitions(frames, 8, seed=0, **arguments)))
