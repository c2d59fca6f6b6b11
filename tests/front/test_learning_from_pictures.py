"""That algorithms learn from pictures alone, by the recipes of `pixels` with half of the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import orlog


@pytest.mark.thorough
def test_a_policy_that_sees_pictures_catches_more_than_random_actions(tmp_path: Path) -> None:
    name = "pixels/catch-mixed-v1"
    orlog.build_dataset(name)
    run = orlog.train("iql", name, steps=2_500, folder=tmp_path / "run", evaluations=0)
    returns = np.asarray(orlog.evaluate(run, episodes=50).returns)
    assert returns.mean() - 4 * returns.std() / 50**0.5 > 1.2  # what random actions return
