"""One call gives all that a transition may come with, as arrays too."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

import orlog
from orlog.loaders.batch import Batch
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


def test_all_of_it_in_one_call_is_what_a_slow_loop_finds(frames):
    stream = orlog.transitions(
        frames,
        64,
        seed=0,
        n_steps=3,
        discount=0.9,
        next_actions=True,
        returns_to_go=True,
        stacks=4,
        weights="infos/w",
        infos=("w",),
    )
    known = {}
    for episode in frames:
        known |= {episode.observations[step].tobytes(): (episode, step) for step in range(len(episode))}
    drawn = set()
    for batch in itertools.islice(stream, 10):
        assert type(batch) is Batch
        assert batch.weights is None
        for item in range(64):
            key = batch.observations[item, -1].numpy().tobytes()
            episode, step = known[key]
            drawn.add(key)
            last = min(step + 3, len(episode))
            for offset in range(4):
                before = max(0, step - 3 + offset)
                after = max(0, last - 3 + offset)
                assert np.array_equal(batch.observations[item, offset], episode.observations[before])
                assert np.array_equal(batch.next_observations[item, offset], episode.observations[after])
            rewards = episode.rewards.astype(np.float32)
            powers = 0.9 ** np.arange(len(episode))
            expected = (rewards[step:last] * powers[: last - step]).sum()
            assert float(batch.rewards[item]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
            to_go = (rewards[step:] * powers[: len(episode) - step]).sum()
            assert float(batch.returns_to_go[item]) == pytest.approx(to_go, rel=1e-5, abs=1e-6)
            assert float(batch.discounts[item]) == pytest.approx(0.9 ** (last - step))
            assert bool(batch.terminations[item]) == (last == len(episode))
            assert bool(batch.has_next_action[item]) == (last < len(episode))
            if last < len(episode):
                assert batch.next_actions[item] == episode.actions[last]
            assert batch.infos["w"][item] == episode.infos["w"][step] > 0
    weights = np.concatenate([episode.infos["w"] for episode in frames])
    assert len(drawn) == (weights > 0).sum()


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


def test_frames_stacked_while_they_are_streamed_are_those_in_memory(frames):
    settings = {"stacks": 3, "n_steps": 2, "next_actions": True}
    stream = orlog.transitions(frames, 24, seed=0, stream=True, **settings)  # an epoch
    whole = orlog.transitions(frames, 200, seed=0, **settings).batch(0)
    found = {whole.observations[item].numpy().tobytes(): whole.next_observations[item] for item in range(200)}
    batch = stream.batch(0)
    assert len(batch.rewards) == sum(LENGTHS)
    for item in range(24):
        expected = found[batch.observations[item].numpy().tobytes()]
        assert torch.equal(batch.next_observations[item], expected)


KINDS = {
    "transitions": orlog.transitions,
    "several steps": lambda ds, n, **more: orlog.transitions(ds, n, n_steps=3, **more),
    "prioritized": lambda ds, n, **more: orlog.transitions(ds, n, prioritized=True, **more),
    "streamed": lambda ds, n, **more: orlog.transitions(ds, n, stream=True, **more),
    "sequences": lambda ds, n, **more: orlog.sequences(ds, n, length=5, **more),
    "windows": orlog.windows,
    "chunks": orlog.action_chunks,
    "episodes": orlog.episodes,
    "goals": orlog.goals,
    "subgoals": orlog.subgoals,
    "preferences": lambda ds, n, **more: orlog.preferences(ds, n, length=5, **more),
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_have_the_values_of_tensors(mini, kind):
    settings = {"seed": 2, "infos": ("behavior_goal",)}
    tensors = next(iter(KINDS[kind](mini, 8, **settings)))
    stream = KINDS[kind](mini, 8, to="numpy", **settings)
    arrays = next(iter(stream))
    assert type(arrays) is type(tensors)
    checked = 0
    for name in type(arrays).__dataclass_fields__:
        ours, theirs = getattr(arrays, name), getattr(tensors, name)
        pairs = [(ours, theirs)] if not isinstance(ours, dict) else [(ours[key], theirs[key]) for key in theirs]
        for one, other in pairs:
            if other is not None and isinstance(other, torch.Tensor):
                assert isinstance(one, np.ndarray)
                np.testing.assert_array_equal(one, other.numpy())
                assert one.dtype == other.numpy().dtype
                checked += 1
    assert checked > 4
    if kind != "prioritized":
        again = stream.batch(0)
        np.testing.assert_array_equal(again.rewards, arrays.rewards)
