"""The hypervolume is that of a slow count of cells, and groups episodes by their weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orlog.normalize.metrics.hypervolume import hypervolume, known_hypervolume, points_of, summarize
from orlog.normalize.metrics.metrics import Played


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_volume_is_that_of_counted_cells(objectives: int) -> None:
    rng = np.random.default_rng(objectives)
    for _ in range(10):
        points = rng.integers(-1, 6, (5, objectives)).astype(float)
        cells = sum(
            bool((points >= np.array(cell) + 1).all(1).any())
            for cell in itertools.product(range(6), repeat=objectives)
        )
        assert hypervolume(points, np.zeros(objectives)) == cells


def played(weights: np.ndarray, gained: np.ndarray, dataset: str = "lab/two-v1") -> Played:
    metrics = {"episode_weights": weights, "hypervolume": gained}
    return Played(returns=gained.sum(1), metrics=metrics, dataset=dataset)


def test_episodes_of_the_same_weights_are_one_point() -> None:
    weights = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    run = played(weights, np.array([[4.0, 0.0], [1.0, 3.0], [2.0, 2.0]]))
    assert points_of(run).tolist() == [[1, 3], [3, 1]]
    (one,) = summarize([run])
    assert (one.name, one.value, one.note) == ("hypervolume", 5.0, "")
    (both,) = summarize([run, played(weights, np.array([[4.0, 2], [1.0, 3.0], [2.0, 2.0]]))])
    assert both.value == (5 + 7) / 2
    assert both.interval is not None
    bare = Played(returns=np.zeros(1), metrics={"hypervolume": np.ones((1, 2))})
    assert summarize([bare]) == []
    with pytest.raises(ValueError, match="lab/two-v1: an episode has 2 objectives and 3 weights"):
        points_of(played(np.ones((1, 3)) / 3, np.ones((1, 2))))


def test_that_of_a_known_front_is_said_beside() -> None:
    assert known_hypervolume("lab/two-v1") is None
    whole = known_hypervolume("objectives/treasure-v1")
    assert whole is not None
    points = [(0.7, 24), (8.2, 22), (11.5, 20), (14.0, 18), (15.1, 17), (19.6, 12), (22.4, 8)]
    points = [(round(x, 3), y) for x, y in [*points, (23.7, 6)]]
    by_hand, before = 0.0, 0.0
    for width, height in points:
        by_hand, before = by_hand + (width - before) * height, width
    assert whole == pytest.approx(by_hand, rel=1e-6)
    weights = np.array([[1.0, 0.0]])
    (one,) = summarize([played(weights, np.array([[23.7, -19.0]]), "objectives/treasure-v1")])
    assert one.value == pytest.approx(23.7 * 6)
    assert f"{whole:.3f} is that of the known front" in str(one)
