"""What a new audit check and a new aggregate of scores take: a function and one entry of a table."""

import numpy as np
import pytest

import orlog
from orlog.datasets.audit.audit import CHECKS
from orlog.datasets.audit.findings import Finding, Seen
from orlog.normalize.statistics import AGGREGATES, compare_methods
from tests.command_line import orlog as run

MINI = "pointmaze/umaze-mini-v1"


def check_returns_to_zero(facts):
    """Find rewards of exactly zero."""
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        seen.sums["zeros"] += int(np.count_nonzero(piece.columns["rewards"] == 0))
    text = f"{seen.sums['zeros']} rewards are zero."
    return [Finding(check="zeros", severity="note", column="rewards", text=text, episode=0)]


@pytest.mark.usefixtures("mini_folder")
def test_a_check_is_part_of_every_audit(monkeypatch):
    monkeypatch.setitem(CHECKS, "zeros", check_returns_to_zero)
    zeros = int(np.count_nonzero(orlog.load_dataset(MINI).column("rewards") == 0))
    assert zeros > 0
    found = orlog.audit(MINI)
    assert "zeros" in found.checks
    assert [one.text for one in found.findings if one.check == "zeros"] == [f"{zeros} rewards are zero."]
    assert f"{zeros} rewards are zero" in " ".join(run("audit", MINI).stdout.split())


def worst_seed(scores):
    return np.asarray(scores.mean(-1).min(-1))


def test_an_aggregate_is_compared_with_an_interval_like_any_other(monkeypatch):
    monkeypatch.setitem(AGGREGATES, "worst seed", worst_seed)
    rng = np.random.default_rng(0)
    scores = {
        method: {task: rng.normal(level, 5.0, (4, 6)) for task in ("one", "two")}
        for method, level in (("BC", 20.0), ("IQL", 60.0))
    }
    compared = compare_methods(scores, rng, resamples=100, aggregates=[*AGGREGATES])
    for method, by_task in scores.items():
        estimate = compared.aggregates[method]["worst seed"]
        expected = min(np.mean([one.mean(1) for one in by_task.values()], 0))
        assert estimate.value == pytest.approx(expected)
        assert estimate.interval is not None
        assert estimate.interval[0] <= expected <= estimate.interval[1]
