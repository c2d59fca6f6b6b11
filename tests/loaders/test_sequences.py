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

from orlog import Episode, combine_datasets, sequences
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.sequences import SequenceSampler
from orlog.loaders.statistics import returns_to_go
from tests.levels import scaled
from tests.loaders.test_frames import every_step

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)
CAMERA = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 3, 1), np.uint8),
        "goal": spaces.Discrete(5),
        "position": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
    }
)
PADDINGS = ("right", "left")
STRUCTURES = st.lists(st.integers(1, 9), min_size=1, max_size=7)


def random_episode(length, rng):
    ends = np.zeros((2, length), np.bool_)
    ends[rng.integers(2), -1] = rng.integers(2)
    return Episode(
        observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
        actions=rng.normal(size=(length, 2)).astype(np.float32),
        rewards=rng.normal(size=length).astype(np.float32).astype(np.float64),
        terminations=ends[0],
        truncations=ends[1],
        infos={},
        seed=None,
    )


def pack(episodes):
    """Return the matrix of flat episodes, row by row."""
    rows = []
    for episode in episodes:
        assert isinstance(episode.observations, np.ndarray)
        assert isinstance(episode.actions, np.ndarray)
        for step in range(len(episode)):
            ends = [episode.rewards[step], episode.terminations[step], episode.truncations[step]]
            rows.append([*episode.observations[step], *episode.actions[step], *ends])
        rows.append([*episode.observations[-1], *np.zeros(5)])
    return Arrays(
        rows=torch.tensor(np.array(rows, np.float32)),
        lengths=np.array([len(one) for one in episodes]),
        obs_dim=3,
        action_dim=2,
        digest="sha256:" + "0" * 64,
    )


def slow_window(episode, step, length, padding, discount):
    """Return one window, slot by slot; columns of dicts as `column/key`."""
    columns = {
        "actions": np.asarray(episode.actions),
        "rewards": episode.rewards,
        "terminations": episode.terminations,
        "truncations": episode.truncations,
    }
    observations = episode.observations
    parts = observations if isinstance(observations, dict) else {"": observations}
    for key, values in parts.items():
        columns[f"observations/{key}"] = np.asarray(values)
        columns[f"next_observations/{key}"] = np.asarray(values)[1:]
    window = {name: [] for name in columns}
    window |= {"mask": [], "timesteps": [], "returns_to_go": []}
    begin = step if padding == "right" else step - length + 1
    for place in range(begin, begin + length):
        is_inside = step <= place < len(episode) if padding == "right" else 0 <= place <= step
        for name, values in columns.items():
            window[name].append(values[place] if is_inside else np.zeros_like(values[0]))
        to_go = 0.0
        if is_inside:
            for reward in episode.rewards[place:][::-1]:
                to_go = float(reward) + discount * to_go
        window["returns_to_go"].append(to_go)
        window["timesteps"].append(place if is_inside else 0)
        window["mask"].append(is_inside)
    return {name: np.array(values) for name, values in window.items()}


def flatten(batch):
    """Return the columns of a batch, those of dicts as `column/key`."""
    found = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, dict):
            found |= {f"{field.name}/{key}": tensor for key, tensor in value.items()}
        elif "observations" in field.name:
            found |= {} if value is None else {f"{field.name}/": value}
        else:
            found[field.name] = value
    return found


def check_windows(batch, episodes, length, padding, discount):
    """Check that the batch has the window of every step of the episodes, in order."""
    found = flatten(batch)
    places = [(episode, step) for episode in episodes for step in range(len(episode))]
    for index, (episode, step) in enumerate(places):
        expected = slow_window(episode, step, length, padding, discount)
        if batch.next_observations is None:
            expected = {key: value for key, value in expected.items() if "next" not in key}
        assert set(found) == set(expected)
        for name, values in expected.items():
            ours = found[name][index].numpy()
            assert ours.shape[0] == length
            if name == "returns_to_go":
                np.testing.assert_allclose(ours, values, rtol=1e-6, atol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(ours, values.astype(ours.dtype), err_msg=name)


@settings(deadline=None, max_examples=scaled(60))
@given(
    structure=STRUCTURES,
    padding=st.sampled_from(PADDINGS),
    discount=st.sampled_from([1.0, 0.9, 0.0]),
    with_next=st.booleans(),
    data=st.data(),
)
def test_every_window_is_the_one_of_a_slow_loop(structure, padding, discount, with_next, data):
    length = data.draw(st.integers(1, max(structure)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    episodes = [random_episode(steps, rng) for steps in structure]
    arrays = pack(episodes)
    before = arrays.rows.clone()
    sampler = SequenceSampler(arrays, length, padding=padding, discount=discount, with_next=with_next)
    chosen = sampler.choose(every_step(arrays))
    batch = sampler.gather(chosen)
    check_windows(batch, episodes, length, padding, discount)
    # Windows that stick out of the whole matrix are gathered another way, and all beside them: the
    # rest must be the same without them, together and alone.
    first = chosen[:, 0]
    rest = torch.nonzero((first >= 0) & (first + length < len(arrays.rows))).squeeze(1)
    for items in (rest, *torch.split(rest, 1)):
        without = flatten(sampler.gather(chosen[items]))
        for name, values in flatten(batch).items():
            assert torch.equal(without[name], values[items]), name
    assert torch.equal(arrays.rows, before)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_windows_of_images_integers_and_several_keys(write, make, padding, length):
    rng = np.random.default_rng(3)
    action = spaces.Discrete(4)
    episodes = []
    for steps in (3, 1, 5, 2):
        episode = make(
            spaces.Dict({key: CAMERA[key] for key in ("goal", "position")}), action, length=steps, end="cut", rng=rng
        )
        assert isinstance(episode.observations, dict)
        camera = rng.integers(256, size=(steps + 1, 4, 3, 1), dtype=np.uint8)
        episodes.append(dataclasses.replace(episode, observations={"camera": camera, **episode.observations}))
    arrays = read_arrays(write(episodes, CAMERA, action))
    sampler = SequenceSampler(arrays, length, padding=padding, with_next=True)
    batch = sampler.gather(sampler.choose(every_step(arrays)))
    check_windows(batch, episodes, length, padding, 1.0)
    assert isinstance(batch.observations, dict)
    assert batch.observations["camera"].dtype == torch.uint8
    assert batch.observations["camera"].shape == (11, length, 4, 3, 1)
    assert batch.observations["position"].shape == (11, length, 2, 2)
    assert batch.actions.dtype == torch.int64
    assert batch.actions.shape == (11, length)


def test_windows_of_a_view_are_those_of_its_episodes(write, make):
    rng = np.random.default_rng(4)
    whole = [make(OBS, ACTION, length=steps, end="cut", rng=rng) for steps in (4, 2, 6, 3)]
    view = write(whole, OBS, ACTION)[[3, 0, 2, 0]]
    arrays = read_arrays(view)
    for padding in PADDINGS:
        sampler = SequenceSampler(arrays, 4, padding=padding)
        batch = sampler.gather(sampler.choose(every_step(arrays)))
        check_windows(batch, [whole[index] for index in (3, 0, 2, 0)], 4, padding, 1.0)


def test_types_and_shapes_are_as_documented():
    rng = np.random.default_rng(0)
    arrays = pack([random_episode(steps, rng) for steps in (4, 7)])
    batch = sequences(arrays, 6, length=5, seed=0, with_next=True).batch(3)
    for name, (shape, dtype) in {
        "observations": ((6, 5, 3), torch.float32),
        "next_observations": ((6, 5, 3), torch.float32),
        "actions": ((6, 5, 2), torch.float32),
        "rewards": ((6, 5), torch.float32),
        "returns_to_go": ((6, 5), torch.float32),
        "terminations": ((6, 5), torch.float32),
        "truncations": ((6, 5), torch.float32),
        "timesteps": ((6, 5), torch.int64),
        "mask": ((6, 5), torch.bool),
    }.items():
        assert getattr(batch, name).shape == shape, name
        assert getattr(batch, name).dtype == dtype, name
    assert sequences(arrays, 6, length=5, seed=0).batch(0).next_observations is None


def test_not_a_number_beside_a_window_does_not_leak_into_its_padding():
    rng = np.random.default_rng(0)
    arrays = pack([random_episode(steps, rng) for steps in (3, 3, 3)])
    arrays.rows[4:7] = torch.nan  # the second episode
    for padding in PADDINGS:
        sampler = SequenceSampler(arrays, 3, padding=padding, with_next=True)
        batch = sampler.gather(sampler.choose(every_step(arrays)))
        for name, values in flatten(batch).items():
            assert not values[[0, 1, 2, 6, 7, 8]].isnan().any(), name


def test_returns_to_go_are_summed_in_double_precision():
    rng = np.random.default_rng(5)
    rewards = rng.normal(100, 1, size=30_000).astype(np.float32)
    rows = torch.zeros(30_002 + 1, 5)
    rows[:30_000, 2] = torch.from_numpy(rewards)
    rows[30_001, 2] = 3
    arrays = Arrays(rows=rows, lengths=np.array([30_000, 1]), obs_dim=1, action_dim=1)
    exact = rewards[::-1].astype(np.float64).cumsum()[::-1].astype(np.float32)
    np.testing.assert_allclose(returns_to_go(arrays)[:30_000].numpy(), exact, rtol=2e-7)
    assert returns_to_go(arrays)[30_000:].tolist() == [0, 3, 0]


def test_every_step_is_drawn_as_often_as_any_other():
    rng = np.random.default_rng(0)
    structure = [1, 8, 3, 20, 2]
    arrays = pack([random_episode(steps, rng) for steps in structure])
    sampler = SequenceSampler(arrays, 4, padding="right")
    chosen = sampler.choose(rng.random((40_000, 1)))
    counts = np.bincount(chosen[:, 0].numpy(), minlength=len(arrays.rows))[arrays.step_rows()]
    assert counts.sum() == 40_000
    assert stats.chisquare(counts).pvalue > 0.001


def test_a_mixture_keeps_its_weights(write, make):
    rng = np.random.default_rng(6)
    small, large = (
        write([make(OBS, ACTION, length=n, end="cut", rng=rng) for n in lengths], OBS, ACTION)
        for lengths in ((2, 3), (9, 8, 7))
    )
    arrays = read_arrays(combine_datasets([small, large], weights=[0.7, 0.3]))
    sampler = SequenceSampler(arrays, 3)
    chosen = sampler.choose(rng.random((40_000, sampler.draws)))
    counts = np.bincount(chosen[:, 0].numpy(), minlength=len(arrays.rows))[arrays.step_rows()]
    expected = np.array([0.7 / 5] * 5 + [0.3 / 24] * 24) * 40_000
    assert stats.chisquare(counts, expected).pvalue > 0.001


@pytest.mark.parametrize("padding", PADDINGS)
def test_workers_give_the_stream_of_the_direct_loop(padding):
    rng = np.random.default_rng(0)
    arrays = pack([random_episode(steps, rng) for steps in (4, 7, 1)])
    stream = sequences(arrays, 5, length=3, seed=1, padding=padding, with_next=True)
    direct = list(itertools.islice(stream, 70))
    for workers in (0, 2):
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        for one, other in zip(direct, loader, strict=False):
            expected = flatten(one)
            for name, values in flatten(other).items():
                assert torch.equal(values, expected[name]), name


def test_ranks_are_slices_of_the_whole_batch():
    rng = np.random.default_rng(0)
    arrays = pack([random_episode(steps, rng) for steps in (4, 7, 1)])
    whole = flatten(sequences(arrays, 6, length=3, seed=1).batch(9))
    for rank in range(3):
        part = sequences(arrays, 6, length=3, seed=1, rank=rank, ranks=3).batch(9)
        for name, values in flatten(part).items():
            assert torch.equal(values, whole[name][2 * rank : 2 * rank + 2]), name


def test_a_window_longer_than_every_episode_is_refused_with_the_longest():
    rng = np.random.default_rng(0)
    arrays = dataclasses.replace(pack([random_episode(steps, rng) for steps in (4, 7, 1)]), name="tests/small-v1")
    with pytest.raises(ValueError, match=r"tests/small-v1: length 8 is more than the 7 steps"):
        sequences(arrays, 6, length=8, seed=1)
    assert sequences(arrays, 6, length=7, seed=1).batch(0).mask.any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 0}, "length must be >= 1"),
        ({"discount": 1.1}, "discount in"),
        ({"discount": -0.1}, "discount in"),
        ({"discount": float("nan")}, "discount in"),
        ({"padding": "both"}, "'right' or 'left', found 'both'"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    arrays = pack([random_episode(3, np.random.default_rng(0))])
    chosen = {"length": 2, "seed": 0, **wrong}
    with pytest.raises(ValueError, match=message):
        sequences(arrays, 4, **chosen)


def test_a_state_of_another_length_or_padding_is_refused():
    arrays = pack([random_episode(5, np.random.default_rng(0))])
    state = sequences(arrays, 4, length=3, seed=0).state_dict()
    for other in (sequences(arrays, 4, length=2, seed=0), sequences(arrays, 4, length=3, seed=0, padding="left")):
        with pytest.raises(ValueError, match=r"kind is 'sequences 1 length=3 padding=right'"):
            other.load_state_dict(state)
