"""Real runs whose scores are shared: three seeds of bc, trained and evaluated once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orlog.algos.training.evaluating import evaluate_run
from orlog.datasets.loading import load_dataset
from orlog.runs.making import scored_runs, write_all
from tests.training import train_run


@pytest.fixture(scope="session")
def trained(built_mini: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs; do not write to it."""
    folder = tmp_path_factory.mktemp("trained")
    dataset = load_dataset(built_mini)
    for seed in range(3):
        run = folder / "bc" / f"seed-{seed}"
        train_run("bc", dataset, run, seed=seed, steps=4, evaluations=1, curve_episodes=1)
        evaluate_run(run, dataset=dataset, episodes=3)
    return folder


@pytest.fixture
def runs(trained: Path, mini_folder: Path, tmp_path: Path) -> Path:
    """Return a copy of the runs, in a home that has their dataset."""
    assert mini_folder.is_dir()
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def file(runs: Path, tmp_path: Path) -> Path:
    """Return the file that they make."""
    (path,) = write_all(tmp_path / "results" / "bc.json", scored_runs([runs], tried=2))
    return path
