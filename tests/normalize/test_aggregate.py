from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from orlog.manifests.tables import read_table
from orlog.normalize.aggregate import AGGREGATES, interquartile_mean, mean, median, optimality_gap
from tests.normalize.rliables import rliable_metrics

SCORES = np.random.default_rng(0).normal(50, 40, (5, 7))
VALUES = npst.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e3, 1e3))


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (mean, "aggregate_mean"),
        (median, "aggregate_median"),
        (interquartile_mean, "aggregate_iqm"),
        (lambda scores: optimality_gap(scores, target=60), "aggregate_optimality_gap"),
    ],
)
def test_aggregates_are_rliables(ours: Callable[[np.ndarray], np.ndarray], name: str) -> None:
    theirs = getattr(rliable_metrics(), name)
    for scores in (SCORES, SCORES[:, :1], SCORES[:1], SCORES[:1, :1], SCORES[:4, :6]):
        arguments = {"gamma": 60} if name.endswith("gap") else {}
        assert float(ours(scores)) == pytest.approx(float(theirs(scores, **arguments)), rel=1e-12)


def test_aggregates_of_published_seeds_are_rliables() -> None:
    rows = [
        row
        for row in read_table("per_seed_scores")
        if row["implementation"].startswith("d3rlpy")
        and (row["algorithm"], row["protocol"]) == ("IQL", "last")
    ]
    tasks = sorted({row["dataset"] for row in rows})
    scores = np.array(
        [[float(row["score"]) for row in rows if row["dataset"] == task] for task in tasks]
    ).T
    assert scores.shape == (10, 12)
    metrics = rliable_metrics()
    expected = {
        "IQM": metrics.aggregate_iqm(scores),
        "median": metrics.aggregate_median(scores),
        "mean": metrics.aggregate_mean(scores),
        "optimality gap": metrics.aggregate_optimality_gap(scores, gamma=100),
    }
    assert {name: float(one(scores)) for name, one in AGGREGATES.items()} == pytest.approx(expected)


@settings(deadline=None)
@given(values=VALUES)
def test_interquartile_mean_drops_a_quarter_on_each_side(values: np.ndarray) -> None:
    before = values.copy()
    cut = len(values) // 4
    middle = sorted(values.tolist())[cut : len(values) - cut]
    expected = math.fsum(middle) / len(middle)
    for shaped in (values[:, None], values[None, :]):
        assert float(interquartile_mean(shaped)) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    np.testing.assert_array_equal(values, before)


def test_aggregates_by_hand() -> None:
    runs = np.array([100.0, 1.0, 2.0, -50.0, 3.0, 6.0, 4.0, 5.0])
    assert interquartile_mean(runs.reshape(2, 4)) == 3.5
    scores = np.array([[10.0, 120.0, 30.0], [20.0, 80.0, 50.0]])
    assert mean(scores) == pytest.approx(310 / 6)
    assert median(scores) == 40  # of 15, 100 and 40
    assert optimality_gap(scores) == pytest.approx((90 + 0 + 70 + 80 + 20 + 50) / 6)


@pytest.mark.parametrize("name", AGGREGATES)
def test_leading_axes_are_kept(name: str) -> None:
    aggregate = AGGREGATES[name]
    stacked = np.stack([SCORES, SCORES + 1, 2 * SCORES])[:, None]
    found = aggregate(stacked)
    assert found.shape == (3, 1)
    expected = [aggregate(one[0]) for one in stacked]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-12)
