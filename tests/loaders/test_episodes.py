import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats
from torch.utils.data import DataLoader

from orlog import combine_datasets, episodes
from orlog.loaders.arrays import Arrays, read_arrays
from orlog.loaders.episodes import EpisodeSampler

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)


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
