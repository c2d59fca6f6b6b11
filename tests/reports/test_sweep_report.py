"""The report of a sweep: what it holds, and that edited numbers are found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from orlog.algos.training.options import TrainOptions
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import ManifestError, NotFoundError
from orlog.experiments.jobs import Job
from orlog.experiments.reproducing import Result
from orlog.experiments.result_folders import result_folder
from orlog.experiments.stored_results import JobIdentity, key_of, read_results
from orlog.experiments.sweeps import Sweep, plan_sweep, run_sweep
from orlog.manifests.documents import convert_json
from orlog.normalize.statistics import compare_methods
from orlog.reports import sweep_report
from orlog.reports.episode_figure import FIGURE
from orlog.reports.pictures import series_of
from orlog.reports.result_figures import (
    comparison_figures,
    comparison_parts,
    curve_figure,
    score_figure,
    titles_of,
)
from orlog.reports.sweep_page import _score_table
from orlog.reports.sweep_report import evidence_of, verify_report, write_reports
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
        [mini.name],
        ["bc", "td3bc"],
        seeds=[0, 1],
        episodes=2,
        options=TrainOptions(steps=4, evaluations=2),
    )
    run_sweep(planned, executor=here)
    assert planned.failures == []
    return planned


@pytest.fixture
def small(mini: Dataset) -> Sweep:
    planned = plan_sweep(
        [mini.name], ["bc"], seeds=[0, 1], episodes=1, options=TrainOptions(steps=1, evaluations=1)
    )
    run_sweep(planned, executor=here)
    return planned


def test_a_report_holds_what_its_numbers_come_from_and_edits_are_found(
    sweep: Sweep, tmp_path: Path
) -> None:
    page = write_reports(sweep, evidence_of(sweep), tmp_path / "report", title="Two <algorithms>")
    text = page.read_text("utf-8")
    assert "Two &lt;algorithms&gt;" in text
    assert "4 runs of 2 algorithms on 1 dataset" in text
    # a map, scores, four aggregates, a profile, ranks, improvement, and curves
    assert text.count("<svg") == text.count('aria-label="') - text.count('role="region"') == 10
    assert text.index("<svg") < text.index("<table")
    assert "<details><summary>How to read this</summary>" in text
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

    def twice(body: Any) -> None:
        body["evidence"].append(body["evidence"][0])

    assert any(" is in the report more than once." in one for one in edited(twice))

    def long_key(body: Any) -> None:
        body["evidence"][0]["results"][0]["key"] = "a" * 5000

    assert any("its key is not that of its job" in one for one in edited(long_key))

    def other_references(body: Any) -> None:
        for one in body["evidence"]:
            measured = one["references"]["random"]
            measured["returns"] = [value - 300 for value in measured["returns"]]
            measured["mean"] -= 300

    assert any(
        "its reference returns are not those of this orlog." in one
        for one in edited(other_references)
    )


@pytest.mark.parametrize(
    "name",
    ["result.json", "evaluation.json", "metrics.jsonl", "run.json", "checkpoint.safetensors"],
)
def test_one_changed_digit_in_any_result_of_a_report_is_found(
    small: Sweep, tmp_path: Path, name: str
) -> None:
    evidence = evidence_of(small)
    page = write_reports(small, evidence, tmp_path, title="Small")
    assert orlog("report", "verify", str(page)).returncode == 0
    path = result_folder(evidence[0].results[1].key) / name
    data = path.read_bytes()
    at = data.rindex(b"1") if path.suffix != ".safetensors" else len(data) - 1
    path.write_bytes(data[:at] + b"2" + data[at + 1 :])
    found = orlog("report", "verify", str(page))
    assert found.returncode == 3
    assert "seed 1" in found.stdout
    assert name in found.stdout


def test_edits_of_runs_are_found_in_a_home_without_the_results(
    small: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_reports(small, evidence_of(small), tmp_path / "report", title="One").with_name(
        "report.json"
    )
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "empty"))

    def edited(change: Callable[[Any], None]) -> list[str]:
        body = json.loads(file.read_text("utf-8"))
        change(body["evidence"][0]["results"][1])
        (tmp_path / "report.json").write_text(json.dumps(body), "utf-8")
        found = verify_report(tmp_path)
        assert found.stored == 0
        return found.problems

    assert edited(lambda _result: None) == []

    def other_settings(result: Any) -> None:
        result["record"]["config"]["learning_rate"] *= 2

    assert any("are not those of its job" in one for one in edited(other_settings))

    def other_versions(result: Any) -> None:
        result["job"]["versions"]["torch"] = result["record"]["versions"]["torch"] = "9"
        result["key"] = key_of(convert_json(result["job"], JobIdentity))

    (problem,) = edited(other_versions)
    assert "seed 1: its data, settings, code or versions are not those of the other" in problem

    monkeypatch.setattr(sweep_report, "_known_references", lambda _result: [])
    (note,) = verify_report(file).notes
    assert note.endswith("are not known here, so they were not compared.")


def test_an_algorithm_is_drawn_in_one_color_whichever_others_are_there(sweep: Sweep) -> None:
    results = [one.result() for one in evidence_of(sweep)]
    series = series_of(one.record.algorithm for one in results)
    assert series == {"bc": 0, "td3bc": 1}
    scores = {"td3bc": {"a": np.array([[1.0], [2.0]])}}
    drawn = [draw(results[1:], series) for draw in (score_figure, curve_figure)]
    for figure in [
        *drawn,
        *comparison_figures(compare_methods(scores, np.random.default_rng(0)), series)[:3],
    ]:
        assert '<g class="c1">' in figure
        assert '<g class="c0">' not in figure


def test_a_method_is_called_by_what_it_was_run_with(sweep: Sweep) -> None:
    def with_percent(result: Result, percent: float) -> Result:
        config = {**result.record.config, "percent": percent}
        record = msgspec.structs.replace(result.record, algorithm="percent_bc", config=config)
        return dataclasses.replace(result, record=record)

    results = [one.result() for one in evidence_of(sweep)]
    one, other = with_percent(results[0], 25.0), with_percent(results[1], 100.0)
    assert titles_of([one]) == {"percent_bc": "BC-25%"}
    assert titles_of([one, other, one]) == {"percent_bc": "BC-25% or BC-100%"}
    assert "<th>BC-25%</th>" in _score_table([one]).replace(' class="number"', "")
    scores = {"percent_bc": {"a": np.array([[1.0], [2.0]])}}
    comparison = compare_methods(scores, np.random.default_rng(0))
    page = "".join(comparison_parts(comparison, {"percent_bc": 0}, titles_of([one])))
    assert "BC-25%" in page
    assert "BC-10%" not in page
    assert "BC-10%" not in curve_figure([one], {"percent_bc": 0})


def test_the_text_and_the_pictures_of_a_page_are_compared(
    small: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = write_reports(small, evidence_of(small), tmp_path, title="One")
    text = page.read_text("utf-8")
    verified = verify_report(page)
    assert (verified.problems, verified.notes) == ([], [])
    changed = "report.html: it is not the page that this orlog draws from report.json."
    other = "report.html: the pictures of episodes are not what the datasets give."
    (episode,) = FIGURE.findall(text)
    edits = [
        ("Scores", "Better scores", [changed]),
        ('class="dot" cx="', 'class="dot" cx="1', [changed]),
        (f"{episode}\n", "", [changed, other]),
        (episode, episode * 2, [changed, other]),
        (episode, episode.replace('d="M', 'd="M1 1L'), [other]),
        (episode, episode.replace("<svg ", '<svg onload="1" '), [changed, other]),
        (episode, episode.replace("its path", "score 99.9, its path"), [changed, other]),
    ]
    for old, new, problems in edits:
        page.write_text(text.replace(old, new, 1), "utf-8")
        assert verify_report(page).problems == problems, new
    assert orlog("report", "verify", str(page)).returncode == 3

    with monkeypatch.context() as patched:
        patched.setattr(sweep_report, "episode_figure", lambda _dataset: "")  # nothing to draw
        bare = write_reports(small, evidence_of(small), tmp_path / "bare", title="One")
        assert verify_report(bare).problems == []

    page.write_text(text, "utf-8")
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "empty"))
    verified = verify_report(page)
    assert verified.problems == []
    assert any("the pictures of episodes were not compared" in one for one in verified.notes)
    page.write_text(text.replace(episode, episode + "<p>score 99.9</p>", 1), "utf-8")
    assert verify_report(page).problems == [changed]

    page.write_bytes("é".encode("latin-1"))
    with pytest.raises(ManifestError, match=r"report\.html: is no page of a report"):
        verify_report(page)
    page.unlink()
    with pytest.raises(NotFoundError, match=r"report\.html: there is no such page"):
        verify_report(page)


def test_what_is_no_report_is_said(tmp_path: Path, mini: Dataset) -> None:
    with pytest.raises(NotFoundError, match="there is no such report"):
        verify_report(tmp_path)
    (tmp_path / "report.json").write_text('{"report_version": 1}', "utf-8")
    with pytest.raises(ManifestError, match="is no report of a sweep"):
        verify_report(tmp_path / "report.json")
    empty = plan_sweep([mini.name], ["bc"], seeds=[0], episodes=2, options=TrainOptions(steps=4))
    with pytest.raises(NotFoundError, match="nothing to report"):
        write_reports(empty, evidence_of(empty), tmp_path / "empty", title="none")
    nothing = {"report_version": 1, "title": "", "left_out": [], "failures": [], "numbers": {}}
    file = tmp_path / "report.json"
    file.write_text(json.dumps({**nothing, "evidence": []}), "utf-8")
    with pytest.raises(ManifestError, match="holds no results, so there is nothing to compute"):
        verify_report(file)
