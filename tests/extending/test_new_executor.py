"""An executor is one file: put into the package's folder, it runs jobs by its name."""

import importlib
import os
import sys

import pytest

from orlog.algos.training.runs import TrainOptions
from orlog.runs.jobs import make_jobs, run_jobs
from orlog.runs.reproducing import summarize

SOURCE = '''
"""Runs jobs in this process, the last one first."""

processes = []


def execute(function, jobs, *, workers, running):
    import os

    for index, job in reversed([*enumerate(jobs)]):
        running(job)
        processes.append((os.getpid(), workers))
        yield index, function(job)
'''


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Return the name of an executor whose file is in a folder that was added to the package's."""
    package = importlib.import_module("orlog.executors")
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "here.py").write_text(SOURCE, "utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "orlog.executors.here", raising=False)
    return "here"


def two_jobs(mini, folder):
    return make_jobs("bc", mini, folder, seeds=(0, 1), episodes=1, options=TrainOptions(steps=2, evaluations=0))


def test_a_file_runs_jobs_by_its_name(added, mini, tmp_path):
    jobs = two_jobs(mini, tmp_path / "runs")
    seen = []
    run_jobs(jobs, workers=3, executor=added, progress=lambda job, step: seen.append((job.seed, step)))
    assert seen == [(1, 0), (1, 2), (0, 0), (0, 2)]
    assert list(summarize(jobs).seeds) == [0, 1]
    module = importlib.import_module(f"orlog.executors.{added}")
    assert module.processes == [(os.getpid(), 3)] * 2


def test_an_unknown_executor_lists_what_there_is(added, mini, tmp_path):
    with pytest.raises(ValueError, match=f"no executor 'cloud'; choose one of: {added}, processes"):
        run_jobs(two_jobs(mini, tmp_path), workers=1, executor="cloud")
