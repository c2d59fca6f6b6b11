"""A new kind of batch is one file: a module outside orlog that orlog's frame runs unchanged."""

import importlib
import itertools
import sys

import pytest
import torch
from torch.utils.data import DataLoader

import orlog
from orlog.loaders.streams import Batches
from orlog.loaders.weights import weighted

SOURCE = '''
"""Pairs of steps of one dataset: each step, and another one that is chosen apart from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import Tensors
from orlog.loaders.streams import Batches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PairBatch(Tensors):
    observations: torch.Tensor
    others: torch.Tensor


class PairSampler:
    def __init__(self, arrays: Arrays, noise: float) -> None:
        self.kind = f"pairs 1 noise={noise!r}"
        self.arrays = arrays
        self._numbers = 1 if arrays.mixture is None else 2
        self.draws = 2 * self._numbers

    def choose(self, uniform: np.ndarray) -> torch.Tensor:
        steps = np.stack([
            self.arrays.choose_steps(uniform[:, : self._numbers]),
            self.arrays.choose_steps(uniform[:, self._numbers :]),
        ])
        return torch.from_numpy(self.arrays.step_table.take(steps)).T

    def gather(self, chosen: torch.Tensor) -> PairBatch:
        first, second = chosen.unbind(1)
        return PairBatch(
            observations=self.arrays.observations(first.contiguous()),
            others=self.arrays.observations(second.contiguous()),
        )


def pairs(data, batch_size=4, *, seed, start=0, noise=0.0, infos=(), rank=0, ranks=1):
    arrays = as_arrays(data, infos)
    place = {"batch_size": batch_size, "seed": seed, "start": start, "rank": rank, "ranks": ranks}
    place["infos"] = infos
    return Batches(PairSampler(arrays, noise), arrays.digest, **place)
'''


@pytest.fixture(scope="module")
def pairs_module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    (folder / "pair_batches.py").write_text(SOURCE, "utf-8")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("pair_batches")
    sys.path.remove(str(folder))
    del sys.modules["pair_batches"]


@pytest.fixture(scope="module")
def arrays(built_mini):
    return orlog.load_arrays(orlog.load_dataset(built_mini))


def numbers(batches, count):
    """Return the next batches as lists of numbers."""
    return [[one.observations.tolist(), one.others.tolist()] for one in itertools.islice(batches, count)]


def test_it_is_a_stream_and_any_batch_of_it_can_be_asked_for(pairs_module, arrays):
    stream = pairs_module.pairs(arrays, seed=0)
    assert isinstance(stream, Batches)
    found = numbers(iter(stream), 5)
    assert found == numbers(iter([stream.batch(one) for one in range(5)]), 5)
    assert found != numbers(iter(pairs_module.pairs(arrays, seed=1)), 5)
    assert numbers(iter(pairs_module.pairs(arrays, seed=0, start=2)), 3) == found[2:]
    assert "'pairs 1 noise=0.0', batch_size=4, seed=0" in repr(stream)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_give_the_same_batches(pairs_module, arrays, workers):
    stream = pairs_module.pairs(arrays, seed=0)
    loader = DataLoader(stream, batch_size=None, num_workers=workers)
    assert numbers(iter(loader), 5) == numbers(iter(stream), 5)


def test_a_state_continues_it_and_is_refused_by_other_settings(pairs_module, arrays):
    stream = pairs_module.pairs(arrays, seed=0)
    batches = iter(stream)
    numbers(batches, 3)
    state = stream.state_dict()
    assert state["kind"] == "pairs 1 noise=0.0"
    resumed = pairs_module.pairs(arrays, seed=0, rank=0, ranks=1)
    resumed.load_state_dict(state)
    assert numbers(iter(resumed), 2) == numbers(batches, 2)
    with pytest.raises(ValueError, match="another stream: kind"):
        pairs_module.pairs(arrays, seed=0, noise=0.5).load_state_dict(state)


def test_names_mixtures_and_weights_work_as_with_every_kind(pairs_module, built_mini, arrays):
    by_path = pairs_module.pairs(built_mini, seed=0)
    assert numbers(iter(by_path), 2) == numbers(iter(pairs_module.pairs(arrays, seed=0)), 2)
    first = weighted(arrays, torch.eye(1, arrays.total_steps)[0].numpy())
    batch = pairs_module.pairs(first, seed=0).batch(0)
    assert torch.equal(batch.observations, arrays.rows[:1, : arrays.obs_dim].expand(4, -1))
