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

from orlog import combine_datasets, episodes
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.episodes import EpisodeBatch, EpisodeSampler, PackedEpisodeBatch
from tests.batches import columns
from tests.levels import scaled

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)
STRUCTURES = st.lists(st.integers(1, 9), min_size=1, max_size=7)


def random_arrays(lengths, seed):
    """Return random rows; those of final observations end in zeros, as they do in a dataset."""
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(sum(lengths) + len(lengths), 8)).astype(np.float32))
    last_rows = np.cumsum(np.array(lengths) + 1) - 1
    rows[last_rows, 3:] = 0
    return Arrays(rows=rows, lengths=np.array(lengths), obs_dim=3, action_dim=2, digest="sha256:" + "0" * 64)


def rows_of(arrays, lengths, episode):
    """Return the rows of an episode, with that of its final observation."""
    first = sum(lengths[:episode]) + episode
    return arrays.rows[first : first + lengths[episode] + 1]


@settings(deadline=None, max_examples=scaled(60))
@given(structure=STRUCTURES, seed=st.integers(0, 2**32), data=st.data())
def test_padded_episodes_are_those_of_a_slow_loop(structure, seed, data):
    arrays = random_arrays(structure, seed)
    chosen = data.draw(st.lists(st.integers(0, len(structure) - 1), min_size=1, max_size=6))
    batch = EpisodeSampler(arrays).gather(torch.tensor(chosen))
    assert isinstance(batch, EpisodeBatch)
    assert isinstance(batch.observations, torch.Tensor)
    longest = max(structure[episode] for episode in chosen)
    assert batch.observations.shape == (len(chosen), longest + 1, 3)
    assert batch.actions.shape == (len(chosen), longest, 2)
    for item, episode in enumerate(chosen):
        rows = rows_of(arrays, structure, episode)
        steps = structure[episode]
        expected = torch.zeros(longest + 1, 8)
        expected[: steps + 1] = rows
        assert torch.equal(batch.observations[item], expected[:, :3])
        assert torch.equal(batch.actions[item], expected[:-1, 3:5])
        assert torch.equal(batch.rewards[item], expected[:-1, 5])
        assert torch.equal(batch.terminations[item], expected[:-1, 6])
        assert torch.equal(batch.truncations[item], expected[:-1, 7])
        assert batch.mask[item].tolist() == [step < steps for step in range(longest)]
        assert batch.lengths[item] == steps
    assert batch.mask.dtype == torch.bool
    assert batch.lengths.dtype == torch.int64


@settings(deadline=None, max_examples=scaled(60))
@given(structure=STRUCTURES, seed=st.integers(0, 2**32), data=st.data())
def test_packed_episodes_are_those_of_a_slow_loop(structure, seed, data):
    arrays = random_arrays(structure, seed)
    chosen = data.draw(st.lists(st.integers(0, len(structure) - 1), min_size=1, max_size=6))
    batch = EpisodeSampler(arrays, layout="packed").gather(torch.tensor(chosen))
    assert isinstance(batch, PackedEpisodeBatch)
    assert isinstance(batch.observations, torch.Tensor)
    assert isinstance(batch.final_observations, torch.Tensor)
    assert batch.offsets.tolist() == [0, *np.cumsum([structure[one] for one in chosen])]
    assert len(batch.rewards) == batch.offsets[-1]
    for item, episode in enumerate(chosen):
        rows = rows_of(arrays, structure, episode)
        place = slice(int(batch.offsets[item]), int(batch.offsets[item + 1]))
        assert torch.equal(batch.observations[place], rows[:-1, :3])
        assert torch.equal(batch.actions[place], rows[:-1, 3:5])
        assert torch.equal(batch.rewards[place], rows[:-1, 5])
        assert torch.equal(batch.terminations[place], rows[:-1, 6])
        assert torch.equal(batch.truncations[place], rows[:-1, 7])
        assert batch.timesteps[place].tolist() == list(range(structure[episode]))
        assert torch.equal(batch.final_observations[item], rows[-1, :3])
    assert batch.offsets.dtype == batch.timesteps.dtype == torch.int64


def test_episodes_of_images_and_integers_by_key(write, make):
    rng = np.random.default_rng(3)
    plain = spaces.Dict({"goal": spaces.Discrete(5), "position": OBS})
    space = spaces.Dict({"camera": spaces.Box(0, 255, (4, 3), np.uint8), **plain.spaces})
    action = spaces.Discrete(4)
    written = []
    for steps in (3, 1, 5):
        episode = make(plain, action, length=steps, end="cut", rng=rng)
        camera = rng.integers(256, size=(steps + 1, 4, 3), dtype=np.uint8)
        assert isinstance(episode.observations, dict)
        written.append(dataclasses.replace(episode, observations={"camera": camera, **episode.observations}))
    arrays = read_arrays(write(written, space, action))
    padded = EpisodeSampler(arrays).gather(torch.tensor([2, 0]))
    packed = EpisodeSampler(arrays, layout="packed").gather(torch.tensor([2, 0]))
    assert isinstance(padded, EpisodeBatch)
    assert isinstance(packed, PackedEpisodeBatch)
    assert isinstance(padded.observations, dict)
    assert isinstance(packed.observations, dict)
    assert isinstance(packed.final_observations, dict)
    for item, episode in enumerate([written[2], written[0]]):
        steps = len(episode)
        place = slice(int(packed.offsets[item]), int(packed.offsets[item + 1]))
        assert isinstance(episode.observations, dict)
        for key, values in episode.observations.items():
            expected = np.asarray(values)
            found = padded.observations[key][item].numpy()
            np.testing.assert_array_equal(found[: steps + 1], expected)
            assert not found[steps + 1 :].any()
            np.testing.assert_array_equal(packed.observations[key][place].numpy(), expected[:-1])
            np.testing.assert_array_equal(packed.final_observations[key][item], expected[-1])
        actions = np.asarray(episode.actions)
        np.testing.assert_array_equal(padded.actions[item, :steps].numpy(), actions)
        assert not padded.actions[item, steps:].any()
        np.testing.assert_array_equal(packed.actions[place].numpy(), actions)
    assert padded.observations["camera"].dtype == torch.uint8
    assert padded.actions.dtype == torch.int64


def test_padding_holds_no_number_of_another_episode():
    structure = [2, 5, 3]
    arrays = random_arrays(structure, 0)
    arrays.rows[3:9] = torch.nan  # the second episode
    batch = EpisodeSampler(arrays).gather(torch.tensor([0, 2]))
    for name in columns(batch):
        assert not getattr(batch, name).isnan().any(), name


@pytest.mark.parametrize("weighting", ["uniform", "steps"])
def test_episodes_are_as_likely_as_asked(weighting):
    structure = [1, 8, 3, 20, 2]
    sampler = EpisodeSampler(random_arrays(structure, 0), weighting=weighting)
    chosen = sampler.choose(np.random.default_rng(1).random((40_000, 1)))
    weights = np.ones(5) if weighting == "uniform" else np.array(structure)
    counts = np.bincount(chosen.numpy(), minlength=5)
    assert stats.chisquare(counts, 40_000 * weights / weights.sum()).pvalue > 0.001


@pytest.mark.parametrize("weighting", ["uniform", "steps"])
def test_a_mixture_keeps_its_weights(write, make, weighting):
    rng = np.random.default_rng(6)
    small, large = (
        write([make(OBS, ACTION, length=n, end="cut", rng=rng) for n in lengths], OBS, ACTION)
        for lengths in ((2, 3), (9, 8, 7))
    )
    arrays = read_arrays(combine_datasets([small, large, small], weights=[0.5, 0.3, 0.2]))
    sampler = EpisodeSampler(arrays, weighting=weighting)
    chosen = sampler.choose(rng.random((40_000, sampler.draws)))
    inside = {
        "uniform": [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2],
        "steps": [2 / 5, 3 / 5, 9 / 24, 8 / 24, 7 / 24, 2 / 5, 3 / 5],
    }[weighting]
    expected = np.array(inside) * [0.5, 0.5, 0.3, 0.3, 0.3, 0.2, 0.2] * 40_000
    assert stats.chisquare(np.bincount(chosen.numpy()), expected).pvalue > 0.001


def test_a_view_has_its_own_episodes(write, make):
    rng = np.random.default_rng(7)
    written = [make(OBS, ACTION, length=n, end="cut", rng=rng) for n in (4, 2, 6)]
    view = write(written, OBS, ACTION)[[2, 0]]
    batch = EpisodeSampler(read_arrays(view)).gather(torch.tensor([0, 1]))
    assert isinstance(batch.observations, torch.Tensor)
    assert batch.observations.shape == (2, 7, 3)
    np.testing.assert_array_equal(batch.observations[0], np.asarray(written[2].observations))
    np.testing.assert_array_equal(batch.observations[1, :5], np.asarray(written[0].observations))


def test_both_layouts_choose_the_same_episodes():
    arrays = random_arrays([1, 8, 3], 0)
    padded = episodes(arrays, 4, seed=2)
    packed = episodes(arrays, 4, seed=2, layout="packed")
    for one, other in itertools.islice(zip(padded, packed, strict=False), 70):
        assert torch.equal(one.rewards[one.mask], other.rewards)
        assert one.lengths.tolist() == other.offsets.diff().tolist()
    packed.load_state_dict(padded.state_dict())


def test_a_loader_that_would_put_batches_into_batches_says_what_to_give():
    stream = episodes(random_arrays([4, 7, 1], 0), 5, seed=1)
    for size in (1, 32):
        with pytest.raises(TypeError, match=r"EpisodeBatch: a stream gives whole batches.*batch_size=None"):
            next(iter(DataLoader(stream, batch_size=size)))


def test_workers_give_the_stream_of_the_direct_loop():
    stream = episodes(random_arrays([4, 7, 1], 0), 5, seed=1)
    direct = list(itertools.islice(stream, 66))
    for workers in (0, 2):
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        for one, other in zip(direct, loader, strict=False):
            for name in columns(EpisodeBatch):
                assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layout": "nested"}, "'padded' or 'packed', found 'nested'"),
        ({"weighting": "returns"}, "'uniform' or 'steps', found 'returns'"),
    ],
)
def test_other_names_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        episodes(random_arrays([2], 0), seed=0, **wrong)
