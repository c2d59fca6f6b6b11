"""Updates that are recorded and repeated have the numbers of those that are not, for all algorithms.

A recorder of operations stands in for a CUDA graph; `test_on_a_gpu.py` has the real ones.
"""

import pytest
import torch

from orlog.algos.algorithms import ALGORITHMS, algorithm_forms
from orlog.algos.cql import CQL
from orlog.algos.gciql import GCIQL
from orlog.algos.iql import IQL
from orlog.algos.repeated_updates import FIRST, MOST, Replays, updates_of
from orlog.algos.training.runs import first_difference
from orlog.loaders.batch import Batch
from tests.algos.recorded_operations import record
from tests.algos.test_encoders import pixel_batch, pixel_scaling, small_config

FORMS = [form for name in ALGORITHMS for form in algorithm_forms(name) if getattr(form, "REPLAYS", True)]
STEPS = 10
SETTINGS = {"cloning_steps": 7, "policy_interval": 3, "target_interval": 4, "steps": 20}


def updated(algorithm, batch):
    """Take an update, with rates in float32, as a recording has them."""
    if hasattr(algorithm, "set_rates"):
        algorithm.set_rates()
    for one in vars(algorithm).values():
        if hasattr(one, "keep_rates"):
            one.keep_rates()
    return algorithm.update(batch)


@pytest.mark.parametrize("form", FORMS)
def test_repeated_updates_are_those_one_by_one(form, make, batches_of):
    known = form.CONFIG.__struct_fields__
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    plain, repeated = make(form, **settings), make(form, **settings)
    batches = batches_of(make(form, **settings), STEPS)
    update = Replays(repeated, record)
    recorded = 0
    for step, batch in enumerate(batches):
        expected = updated(plain, batch)
        before = len(update._kept)
        found = update(batch)
        recorded += len(update._kept) - before
        for name, value in expected.items():
            assert torch.equal(found[name], value), (step, name)
        assert found.keys() == expected.keys()
    assert recorded
    assert not first_difference(plain, repeated)


@pytest.mark.parametrize("kind", [IQL, CQL, GCIQL])
def test_frames_that_are_shifted_at_random_are_shifted_anew(kind):
    config = small_config(kind, random_shift=1)
    plain, repeated = (kind(config, pixel_scaling(), seed=0) for _ in range(2))
    update = Replays(repeated, record)
    for _ in range(FIRST + 3):
        given = pixel_batch(kind, config)
        expected = updated(plain, given)
        found = update(given)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert len(update._kept) == 1
    assert not first_difference(plain, repeated)


class Sums:
    """Adds up its batches."""

    REPLAYS = True

    def __init__(self):
        self.total = torch.zeros(())
        self.calls = 0

    def update(self, batch):
        self.calls += 1
        self.total += batch.rewards.sum()
        return {"total": self.total.clone()}


def batch(rows, *, apart=False):
    block = torch.rand(rows, 9)
    columns = [block[:, :3], block[:, 3:5], block[:, 5], block[:, 6:9], block[:, 5], block[:, 4]]
    names = ["observations", "actions", "rewards", "next_observations", "terminations"]
    pieces = [one.clone() if apart else one for one in columns]
    fields = dict(zip([*names, "truncations"], pieces, strict=True))
    return Batch(**fields)


def test_batches_of_other_shapes_and_layouts_have_recordings_of_their_own():
    sums = Sums()
    update = Replays(sums, record)
    expected = 0.0
    kinds = [(8, False), (5, False), (8, True), (0, False)]
    for _ in range(FIRST + 3):
        for rows, apart in kinds:
            given = batch(rows, apart=apart)
            expected += float(given.rewards.sum())
            assert float(update(given)["total"]) == pytest.approx(expected, rel=1e-5)
    assert sums.calls == len(kinds) * (FIRST + 1)
    for rows in range(10, 30):
        for _ in range(FIRST + 1):
            given = batch(rows)
            expected += float(given.rewards.sum())
            assert float(update(given)["total"]) == pytest.approx(expected, rel=1e-5)
    assert len(update._kept) == MOST


def test_only_on_a_gpu_and_your_own_only_where_it_says_so():
    sums = Sums()
    assert updates_of(sums) == sums.update
    sums.total = type("Gpu", (torch.Tensor,), {"device": torch.device("cuda")})()
    assert isinstance(updates_of(sums), Replays)
    sums.__class__ = type("Silent", (Sums,), {"REPLAYS": False})
    assert updates_of(sums) == sums.update
