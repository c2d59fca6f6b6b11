"""The report of a sweep: what it holds, and that edited numbers are found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orlog.datasets.reading.dataset import Dataset
from orlog.errors import ManifestError, NotFoundError
from orlog.reproduce import Job
from orlog.stored_results import read_results
from orlog.sweep_report import verify_report, write_reports
from orlog.sweeps import Sweep, plan_sweep, run_sweep
from tests.command_line import orlog


def here(
    function: Callable[[Any], Any],
    jobs: Iterable[Any],
    *,
    workers: int | None,  # noqa: ARG001 (all executors are called alike)
    running: Callable[[Job], None],  # noqa: ARG001
) -> Iterator[tuple[int, Any]]:
    """Run jobs in this process."""
    for index, job in enumerate(jobs):
        yield index, function(job)


@pytest.fixture
def sweep(mini: Dataset) -> Sweep:
    planned = plan_sweep(
        [mini.name], ["bc", "td3bc"], seeds=[0, 1], steps=4, episodes=2, evaluations=2
    )
    run_sweep(planned, executor=here)
    assert planned.failures == []
    return planned


def test_a_report_holds_what_its_numbers_come_from_and_edits_are_found(
    sweep: Sweep, tmp_path: Path
) -> None:
    page = write_reports(sweep, tmp_path / "report", title="Two <algorithms>")
    text = page.read_text("utf-8")
    assert "Two &lt;algorithms&gt;" in text
    assert "4 runs of 2 algorithms on 1 datasets" in text
    assert text.count("<svg") == 6
    assert "<script" not in text
    file = page.with_name("report.json")
    body = json.loads(file.read_text("utf-8"))
    stored = {one.job.seed: one for one in read_results() if one.job.algorithm == "bc"}
    (group,) = [one for one in body["numbers"]["groups"] if one["algorithm"] == "bc"]
    returns = [stored[seed].evaluation.returns for seed in (0, 1)]
    assert group["mean_return"] == pytest.approx(sum(map(sum, returns)) / 4)
    (comparison,) = body["numbers"]["comparisons"]
    (method,) = [one for one in comparison["methods"] if one["method"] == "bc"]
    (scores,) = method["scores"].values()
    by_seed = [one["normalized_score"] for one in group["seeds"]]
    assert scores == pytest.approx(by_seed)

    told = orlog("report", "verify", str(tmp_path / "report"))
    assert told.returncode == 0, told.stderr
    assert "all numbers agree: computed again from 4 results, of which 4 are stored" in " ".join(
        told.stdout.split()
    )
    assert orlog("report", "verify", str(page)).returncode == 0

    def edited(change: Callable[[Any], None]) -> list[str]:
        other = json.loads(file.read_text("utf-8"))
        change(other)
        folder = tmp_path / "edited"
        folder.mkdir(exist_ok=True)
        (folder / "report.json").write_text(json.dumps(other), "utf-8")
        return verify_report(folder).problems

    assert edited(lambda _body: None) == []

    def better(body: Any) -> None:
        body["numbers"]["groups"][0]["normalized_score"] += 1e-4

    (problem,) = edited(better)
    assert problem.startswith("numbers.groups[bc on ")
    assert "normalized_score: the report says" in problem

    def lucky(body: Any) -> None:
        body["evidence"][0]["results"][0]["evaluation"]["returns"][0] += 1

    problems = edited(lucky)
    assert any("mean_return" in one for one in problems)
    assert any("in the results of this home is something else" in one for one in problems)

    def fewer(body: Any) -> None:
        del body["evidence"][0]["results"][1]

    assert any("seeds" in one for one in edited(fewer))

    def other_job(body: Any) -> None:
        body["evidence"][0]["results"][0]["job"]["steps"] = 5

    assert any("its key is not that of its job" in one for one in edited(other_job))

    def no_baseline_here(body: Any) -> None:
        body["evidence"][0]["baseline"] = None

    edited(no_baseline_here)
    page.write_text(text.replace("Scores", "Better scores"), "utf-8")
    (problem,) = verify_report(page).problems
    assert problem == "report.html: its text is not what report.json gives."
    assert orlog("report", "verify", str(page), "--json").returncode == 3


def test_what_is_no_report_is_said(tmp_path: Path, mini: Dataset) -> None:
    with pytest.raises(NotFoundError, match="there is no such report"):
        verify_report(tmp_path)
    (tmp_path / "report.json").write_text('{"report_version": 1}', "utf-8")
    with pytest.raises(ManifestError, match="is no report of a sweep"):
        verify_report(tmp_path / "report.json")
    empty = plan_sweep([mini.name], ["bc"], seeds=[0], steps=4, episodes=2)
    with pytest.raises(NotFoundError, match="nothing to report"):
        write_reports(empty, tmp_path / "empty", title="none")
