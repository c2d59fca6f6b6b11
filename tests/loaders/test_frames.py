import dataclasses
import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import DataLoader

from orlog import combine_datasets, transitions
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, Leaf, read_arrays
from orlog.loaders.transitions import FrameSampler
from tests.batches import columns
from tests.levels import scaled

IMAGE = spaces.Box(0, 255, (4, 3, 1), np.uint8)
PARTS = spaces.Dict({"goal": spaces.Discrete(5), "arm": spaces.Box(-9, 9, (2,), np.float32)})
ROBOT = spaces.Dict({"camera": IMAGE, "wrist": IMAGE, **PARTS.spaces})
ACTION = spaces.Discrete(4)
STRUCTURES = st.lists(st.integers(1, 7), min_size=1, max_size=6)


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


@settings(deadline=None, max_examples=scaled(80))
@given(structure=STRUCTURES, stack=st.integers(1, 9))
def test_every_stack_is_the_one_of_a_slow_loop(structure, stack):
    arrays = numbered(structure)
    sampler = FrameSampler(arrays, stack, discount=0.9)
    batch = sampler.gather(sampler.choose(every_step(arrays)))
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.next_observations, torch.Tensor)
    item = first = 0
    for length in structure:
        frames = np.arange(first, first + length + 1)  # what the images hold is their row
        for step in range(length):
            for found, place in ((batch.observations, step), (batch.next_observations, step + 1)):
                expected = slow_stack(frames, place, stack)
                assert found[item, :, 0, 0, 0].tolist() == expected.tolist()
            row = arrays.rows[first + step]
            assert batch.actions[item] == row[0]
            assert [batch.rewards[item], batch.terminations[item], batch.truncations[item]] == row[1:].tolist()
            item += 1
        first += length + 1
    assert batch.observations.shape == batch.next_observations.shape == (item, stack, 2, 2, 1)
    assert batch.observations.dtype == torch.uint8
    assert batch.discounts.tolist() == pytest.approx([0.9] * item)


@settings(deadline=None, max_examples=scaled(60))
@given(
    structure=STRUCTURES,
    stack=st.integers(1, 6),
    n_steps=st.integers(1, 9),
    discount=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_every_stack_over_n_steps_is_the_one_of_a_slow_loop(structure, stack, n_steps, discount):
    arrays = numbered(structure)
    sampler = FrameSampler(arrays, stack, n_steps=n_steps, discount=discount)
    batch = sampler.gather(sampler.choose(every_step(arrays)))
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.next_observations, torch.Tensor)
    item = first = 0
    for length in structure:
        frames = np.arange(first, first + length + 1)
        for step in range(length):
            stop = min(step + n_steps, length)
            for found, place in ((batch.observations, step), (batch.next_observations, stop)):
                assert found[item, :, 0, 0, 0].tolist() == slow_stack(frames, place, stack).tolist()
            rows = arrays.rows[first + step : first + stop]
            rewards = sum(discount**ahead * float(row[1]) for ahead, row in enumerate(rows))
            assert batch.rewards[item].item() == pytest.approx(rewards)
            ends = [batch.terminations[item].item(), batch.truncations[item].item()]
            assert ends == rows[-1, 2:].tolist()
            assert batch.discounts[item].item() == pytest.approx(discount ** (stop - step))
            item += 1
        first += length + 1
    assert batch.observations.shape == batch.next_observations.shape == (item, stack, 2, 2, 1)


def test_parts_that_are_not_stacked_are_those_after_n_steps_too(write, make):
    episodes = robot_episodes([3, 1, 5], make)
    sampler = FrameSampler(read_arrays(write(episodes, ROBOT, ACTION)), 2, n_steps=3)
    batch = sampler.gather(sampler.choose(every_step(sampler.arrays)))
    assert isinstance(batch.next_observations, dict)
    places = [(episode, step) for episode in episodes for step in range(len(episode))]
    for item, (episode, step) in enumerate(places):
        assert isinstance(episode.observations, dict)
        stop = min(step + 3, len(episode))
        found = batch.next_observations
        goal, images = episode.observations["goal"], episode.observations["camera"]
        assert found["goal"][item] == np.asarray(goal)[stop]
        np.testing.assert_array_equal(found["camera"][item].numpy(), slow_stack(images, stop, 2))


def test_the_stream_without_n_steps_has_the_name_it_always_had():
    arrays = numbered([4, 2])
    assert FrameSampler(arrays, 4).kind == "frames 1 stack=4"
    assert FrameSampler(arrays, 4, n_steps=3).kind == "frames 1 stack=4 n_steps=3"
    batch = transitions(arrays, 8, seed=7, stacks=4).batch(3)
    assert batch.actions[:, 0].tolist() == [8, 20, 8, 12, 20, 8, 12, 8]


@pytest.mark.parametrize("keys", [None, ["wrist"], ["camera", "arm"], ["goal"]])
def test_images_are_stacked_and_the_rest_is_as_it_is(write, make, keys):
    episodes = robot_episodes([3, 1, 5], make)
    arrays = read_arrays(write(episodes, ROBOT, ACTION))
    sampler = FrameSampler(arrays, 3, keys=keys)
    batch = sampler.gather(sampler.choose(every_step(arrays)))
    assert isinstance(batch.observations, dict)
    assert isinstance(batch.next_observations, dict)
    assert set(batch.observations) == set(batch.next_observations) == set(ROBOT)
    stacked = ["camera", "wrist"] if keys is None else keys
    places = [(episode, step) for episode in episodes for step in range(len(episode))]
    for item, (episode, step) in enumerate(places):
        assert isinstance(episode.observations, dict)
        assert batch.actions[item] == np.asarray(episode.actions)[step]
        assert batch.terminations[item] == episode.terminations[step]
        assert batch.truncations[item] == episode.truncations[step]
        for key, values in episode.observations.items():
            for found, place in ((batch.observations, step), (batch.next_observations, step + 1)):
                expected = slow_stack(values, place, 3 if key in stacked else 1)
                expected = expected if key in stacked else expected[0]
                np.testing.assert_array_equal(found[key][item].numpy(), expected)
    assert batch.observations["camera"].dtype == torch.uint8


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


def test_every_step_is_drawn_as_often_as_any_other():
    arrays = numbered([1, 8, 3, 20, 2])
    chosen = FrameSampler(arrays, 2).choose(np.random.default_rng(0).random((40_000, 1)))
    counts = np.bincount(chosen[:, 0].numpy(), minlength=len(arrays.rows))[arrays.step_rows()]
    assert stats.chisquare(counts).pvalue > 0.001


def test_workers_give_the_stream_of_the_direct_loop():
    stream = transitions(numbered([4, 7, 1]), 5, stacks=3, seed=1)
    direct = list(itertools.islice(stream, 66))
    for workers in (0, 2):
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        for one, other in zip(direct, loader, strict=False):
            for name in columns(one):
                assert torch.equal(getattr(one, name), getattr(other, name))


def test_a_dataset_without_images_is_refused_with_what_it_has(write, make):
    rng = np.random.default_rng(0)
    flat = spaces.Box(-9, 9, (2,), np.float32)
    for space, message in ((flat, "one flat vector"), (PARTS, r"its parts are \['arm', 'goal'\]")):
        dataset = write([make(space, ACTION, length=3, end="cut", rng=rng)], space, ACTION)
        with pytest.raises(SchemaError, match=rf"tests/small-v1.*no observation is an .*{message}"):
            transitions(dataset, stacks=2, seed=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stacks": 0}, "stacks must be >= 1"),
        ({"discount": 2.0}, "discount in"),
        ({"n_steps": 0}, "n_steps must be >= 1"),
        ({"stacked": []}, "stacked is empty"),
        ({"stacked": ["camer"]}, r"found 'camer' in stacked; did you mean camera"),
    ],
)
def test_wrong_settings_are_refused(write, make, wrong, message):
    arrays = read_arrays(write(robot_episodes([3], make), ROBOT, ACTION))
    with pytest.raises(ValueError, match=message):
        transitions(arrays, **{"stacks": 2, "seed": 0, **wrong})
