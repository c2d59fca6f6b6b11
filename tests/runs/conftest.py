"""Real runs whose scores are shared: three seeds of bc, trained and evaluated once."""

import shutil
from pathlib import Path

import pytest

from orlog import load_dataset
from orlog.algos.training.evaluating import evaluate_run
from orlog.runs.comparing import scored_runs, write_all
from tests.training import train_run


@pytest.fixture(scope="session")
def trained(built_mini, tmp_path_factory):
    """Return a folder of runs; do not write to it."""
    folder = tmp_path_factory.mktemp("trained")
    dataset = load_dataset(built_mini)
    for seed in range(3):
        run = folder / "bc" / f"seed-{seed}"
        train_run("bc", dataset, run, seed=seed, steps=4, evaluations=1, curve_episodes=1)
        evaluate_run(run, dataset=dataset, episodes=3)
    return folder


@pytest.fixture
def runs(trained, mini_folder, tmp_path):
    """Return a copy of the runs, in a home that has their dataset."""
    assert mini_folder.is_dir()
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def file(runs, tmp_path):
    """Return the file that they make."""
    (path,) = write_all(tmp_path / "results" / "bc.json", scored_runs([runs], tried=2))
    return path
