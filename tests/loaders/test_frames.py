import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats

from orlog import combine_datasets, transitions
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, Leaf, read_arrays
from orlog.loaders.transitions import FrameSampler

IMAGE = spaces.Box(0, 255, (4, 3, 1), np.uint8)
PARTS = spaces.Dict({"goal": spaces.Discrete(5), "arm": spaces.Box(-9, 9, (2,), np.float32)})
ROBOT = spaces.Dict({"camera": IMAGE, "wrist": IMAGE, **PARTS.spaces})
ACTION = spaces.Discrete(4)


def numbered(lengths):
    """Return episodes of images of two by two points, each holding its row's number."""
    count = sum(lengths) + len(lengths)
    last_rows = np.cumsum(np.array(lengths) + 1) - 1
    rows = torch.arange(4.0 * count).reshape(count, 4)
    rows[last_rows] = 0
    frames = torch.arange(count, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(count, 2, 2, 1)
    return Arrays(
        rows=rows,
        lengths=np.array(lengths),
        obs_dim=0,
        action_dim=1,
        name="tests/small-v1",
        digest="sha256:" + "0" * 64,
        others={"observations": frames.contiguous()},
        observation_leaves={"": Leaf(column="observations")},
    )


def every_step(arrays):
    """Return uniform numbers that choose each step once, where there is no mixture."""
    count = arrays.total_steps
    return ((np.arange(count) + 0.5) / count)[:, None]


def slow_stack(values, step, stack):
    """Return the last observations up to one of an episode, the first repeated before it."""
    return np.stack([np.asarray(values)[max(0, step - back)] for back in range(stack)][::-1])


def robot_episodes(lengths, make):
    rng = np.random.default_rng(2)
    made = []
    for number, length in enumerate(lengths):
        end = ("cut", "termination", "truncation")[number % 3]
        episode = make(PARTS, ACTION, length=length, end=end, rng=rng)
        images = rng.integers(256, size=(2, length + 1, 4, 3, 1), dtype=np.uint8)
        assert isinstance(episode.observations, dict)
        observations = {"camera": images[0], "wrist": images[1], **episode.observations}
        made.append(dataclasses.replace(episode, observations=observations))
    return made


def test_the_stream_without_n_steps_has_the_name_it_always_had():
    arrays = numbered([4, 2])
    assert FrameSampler(arrays, 4).kind == "frames 1 stack=4"
    assert FrameSampler(arrays, 4, n_steps=3).kind == "frames 1 stack=4 n_steps=3"
    batch = transitions(arrays, 8, seed=7, stacks=4).batch(3)
    assert batch.actions[:, 0].tolist() == [8, 20, 8, 12, 20, 8, 12, 8]


def test_observations_and_next_observations_share_their_frames():
    arrays = numbered([5])
    batch = transitions(arrays, 2, stacks=4, seed=0).batch(0)
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.next_observations, torch.Tensor)
    assert batch.observations[0, 1].data_ptr() == batch.next_observations[0, 0].data_ptr()
    storage = batch.observations.untyped_storage()
    assert len(storage) == 2 * 5 * 2 * 2  # five frames an item, not eight


def test_a_single_image_space_and_views(write, make):
    episodes = robot_episodes([3, 1, 5], make)
    images = []
    for episode in episodes:
        assert isinstance(episode.observations, dict)
        images.append(dataclasses.replace(episode, observations=episode.observations["camera"]))
    view = write(images, IMAGE, ACTION)[[2, 0]]
    arrays = read_arrays(view)
    sampler = FrameSampler(arrays, 2)
    batch = sampler.gather(sampler.choose(every_step(arrays)))
    assert isinstance(batch.observations, torch.Tensor)
    places = [(images[index], step) for index in (2, 0) for step in range(len(images[index]))]
    for item, (episode, step) in enumerate(places):
        expected = slow_stack(episode.observations, step, 2)
        np.testing.assert_array_equal(batch.observations[item].numpy(), expected)


def test_steps_are_drawn_as_a_mixture_says(write, make):
    small, large = (write(robot_episodes(lengths, make), ROBOT, ACTION) for lengths in ((2, 3), (9, 8, 7)))
    arrays = read_arrays(combine_datasets([small, large], weights=[0.7, 0.3]))
    sampler = FrameSampler(arrays, 2)
    chosen = sampler.choose(np.random.default_rng(0).random((40_000, sampler.draws)))
    counts = np.bincount(chosen[:, 0].numpy(), minlength=len(arrays.rows))[arrays.step_rows()]
    expected = np.array([0.7 / 5] * 5 + [0.3 / 24] * 24) * 40_000
    assert stats.chisquare(counts, expected).pvalue > 0.001


def test_a_dataset_without_images_is_refused_with_what_it_has(write, make):
    rng = np.random.default_rng(0)
    flat = spaces.Box(-9, 9, (2,), np.float32)
    for space, message in ((flat, "one flat vector"), (PARTS, r"its parts are \['arm', 'goal'\]")):
        dataset = write([make(space, ACTION, length=3, end="cut", rng=rng)], space, ACTION)
        with pytest.raises(SchemaError, match=rf"tests/small-v1.*no observation is an .*{message}"):
            transitions(dataset, stacks=2, seed=0)
