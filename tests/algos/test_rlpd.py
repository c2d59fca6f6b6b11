from __future__ import annotations

from pathlib import Path

import pytest

import orlog
from orlog.algos.training.metrics import read_metrics
from orlog.errors import NotFoundError
from tests.pendulum import pendulum

SMALL = {"hidden": (4,), "critics": 3, "updates": 2, "batch_size": 8, "random_steps": 210}


def test_training_starts_with_random_steps_in_the_environment(home: Path, tmp_path: Path) -> None:
    del home
    data = pendulum(episodes=2)
    folder = tmp_path / "run"
    run = orlog.train("rlpd", data, settings=SMALL, steps=5, evaluations=1, folder=folder)
    last = read_metrics(folder)[-1]
    assert last["online/steps"] == 215
    assert len(last["returns"]) == 20
    assert run.record.online is not None
    assert (run.record.online.run, run.record.online.prior) == ("", 0.5)
    assert orlog.evaluate(run, episodes=1).step == 5
    assert orlog.finetune(run, steps=2, evaluations=0, folder=tmp_path / "more").record.steps == 2
    nameless = pendulum("lab/nameless-v1", named=False)
    with pytest.raises(NotFoundError, match="names no environment"):
        orlog.train("rlpd", nameless, steps=1, evaluations=0, folder=tmp_path / "x")
