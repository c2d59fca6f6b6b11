"""Batches and statistics of data that are read block by block: those of the same data in memory."""

import sys

import numpy as np
import pytest
import torch

import orlog
from orlog.loaders import statistics
from orlog.loaders.streaming import STREAMED, stream_loader
from tests.loaders.streamed import steps as steps

PLACE = {"rank": 0, "ranks": 1}


@pytest.mark.parametrize("loader", STREAMED)
def test_every_step_comes_once_an_epoch_as_its_loader_gives_it(steps, loader, monkeypatch):
    monkeypatch.setattr("orlog.loaders.streaming.BLOCK_BYTES", 2000)
    own = {
        "sequences": {"length": 60},  # as only the longest episode, which few groups have
        "windows": {"observations": (-1, 0), "actions": (0, 1), "rewards": True},
        "action_chunks": {"length": 60},
    }
    arguments = own.get(loader.rpartition(":")[2], {})
    stream = stream_loader(steps, loader, {"batch_size": 7, **arguments}, seed=3)
    stream._group_rows = 150  # instead of the whole dataset
    total = steps.total_steps
    batches = [one for one, _ in zip(stream, range(total), strict=False)]  # 7 epochs
    firsts = torch.cat([_first(one, loader) for one in batches]).numpy().astype(int)
    for epoch in firsts.reshape(7, total):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(total))
    plain = orlog.transitions(steps, 7, seed=3, stream=True)
    plain._group_rows = 150
    np.testing.assert_array_equal(plain.batch(5).rewards.numpy(), firsts[35:42])
    # What a loader gathers of all steps in memory for the same ones.
    module, _, function = loader.partition(":")
    whole = getattr(sys.modules[module], function)(orlog.load_arrays(steps), 7, seed=0, **PLACE, **arguments)
    drawn = ((firsts[35:42] + 0.5) / total)[:, None]
    expected = whole.sampler.gather(whole.sampler.choose(drawn))
    for name in expected.__dataclass_fields__:
        found, wanted = getattr(batches[5], name), getattr(expected, name)
        if wanted is not None and name != "infos":
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def _first(batch, loader):
    """Return the reward of the step of each item."""
    if loader.endswith("action_chunks"):  # sums: the observation is enough to find the step by
        return _of_chunks(batch)
    rewards = batch.rewards
    return rewards if rewards.ndim == 1 else rewards[:, 0]


def _of_chunks(batch):
    """Solve the discounted sum of consecutive numbers for the first of them."""
    counts = batch.valid.sum(1).double()
    powers = 0.99 ** torch.arange(batch.valid.shape[1]).double()
    sums = torch.stack([powers[: int(one)].sum() for one in counts])
    ramps = torch.stack([(powers[: int(one)] * torch.arange(int(one))).sum() for one in counts])
    return ((batch.rewards.double() - ramps) / sums).round()


def assert_statistics(found, expected):
    for part in ("observations", "actions", "rewards", "returns"):
        for number in ("mean", "std", "low", "high"):
            values = getattr(getattr(found, part), number), getattr(getattr(expected, part), number)
            np.testing.assert_array_equal(*values, err_msg=f"{part} {number}")


def test_statistics_are_those_of_all_in_memory(steps, monkeypatch):
    for rows in (65536, 37, 1):
        monkeypatch.setattr(statistics, "_BLOCK_ROWS", rows)
        found, expected = (statistics.stream_statistics(steps), statistics.compute_statistics(orlog.load_arrays(steps)))
        assert_statistics(found, expected)
        path = statistics.statistics_file(steps.digest)
        assert path is not None
        assert_statistics(statistics.load_statistics(orlog.load_arrays(steps)), expected)
        path.unlink()
