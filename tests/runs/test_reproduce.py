import itertools

import msgspec
import pytest
from typer.testing import CliRunner

from orlog.algos.presets import RECIPES, recipe_for
from orlog.algos.training.runs import TrainOptions, read_metrics, run_folder
from orlog.base.processes import processor_name
from orlog.cli.commands import app
from orlog.datasets.worlds.recipe import catalogue
from orlog.errors import NotFoundError, StoppedError
from orlog.manifests.shipped import recorded_manifest
from orlog.normalize import references as baselines
from orlog.normalize.references import equal_baselines, read_baseline, record_baseline
from orlog.normalize.verdicts import VERDICT_NOTE
from orlog.runs import reproducing
from orlog.runs.jobs import make_jobs, run_jobs
from orlog.runs.reproducing import judge, summarize
from orlog.runs.results_page import HEADINGS, result_cells, write_results_page
from tests.command_line import orlog as run_orlog
from tests.pools import pool_in_this_process
from tests.training import train_run


def few_steps(dataset, folder, *, steps=20):
    jobs = make_jobs("bc", dataset, folder, seeds=(0, 1), episodes=2, options=TrainOptions(steps=steps, evaluations=1))
    run_jobs(jobs, workers=1)
    return summarize(jobs)


@pytest.mark.slow
def test_a_recorded_baseline_is_reproduced_to_the_bit_and_other_steps_are_not_compared(mini, tmp_path, monkeypatch):
    first = few_steps(mini, tmp_path / "first")
    assert first.verdict is None
    assert any("no baseline" in note for note in first.notes)

    monkeypatch.setattr(baselines, "recorded_folder", lambda name: tmp_path / "records" / name)
    path = record_baseline(first.as_baseline())
    assert path.is_file()
    assert read_baseline("bc", mini.name) == first.as_baseline()

    # The first was trained in a process of its own, these here.
    monkeypatch.setattr("orlog.base.jobs.ProcessPool", pool_in_this_process)
    again = few_steps(mini, tmp_path / "again")
    assert str(again.verdict) == "identical: 2 seeds gave the same returns to the bit"
    assert again.verdict.recorded_processor == processor_name()
    assert again.notes == []

    other = few_steps(mini, tmp_path / "other", steps=10)
    assert other.verdict is None
    assert other.not_compared == other.to_json()["not_compared"] == "steps=10, recorded with 20"
    assert result_cells(other)[HEADINGS.index("verdict")] == "not compared"
    assert other.judgement == "BC is not compared: steps=10, recorded with 20."
    config = {**again.baseline.config, "learning_rate": 1.0}
    recorded = msgspec.structs.replace(again.baseline, config=config)
    with monkeypatch.context() as patch:
        patch.setattr(reproducing, "read_baseline", lambda *_: recorded)
        settings = judge(again.seeds)
    assert settings.verdict is None
    assert settings.not_compared == "learning_rate=0.001, recorded with 1.0"
    with pytest.raises(FileExistsError, match="exists already"):
        few_steps(mini, tmp_path / "other")

    page = tmp_path / "page" / "report.html"
    write_results_page(page, [again], [mini], title="<b>", remarks={"a < b": "note"})
    text = page.read_text("utf-8")
    assert "&lt;b&gt;" in text
    assert "a &lt; b" in text
    assert "BC is identical: 2 seeds gave" in text
    assert "64 % with 2 seeds" in text
    assert VERDICT_NOTE in text
    assert result_cells(again)[0] == "BC"


def test_equal_returns_of_another_protocol_are_not_identical(mini, tmp_path, monkeypatch):
    """Policies that never reach the goal return 0 from any start."""
    monkeypatch.setattr("orlog.base.jobs.ProcessPool", pool_in_this_process)
    jobs = make_jobs("bc", mini, tmp_path, seeds=(0,), episodes=2, options=TrainOptions(steps=2, evaluations=0))
    with pytest.raises(ValueError, match="a seed is named twice"):
        make_jobs("bc", mini, tmp_path, seeds=(1, 1), episodes=2, options=TrainOptions(steps=2, evaluations=0))
    run_jobs(jobs, workers=1)
    recorded = summarize(jobs).as_baseline()
    for change in ({}, {"first_seed": 5}, {"max_episode_steps": 7}):
        baseline = msgspec.structs.replace(recorded, protocol=msgspec.structs.replace(recorded.protocol, **change))
        monkeypatch.setattr(reproducing, "read_baseline", lambda *_, one=baseline: one)
        found = summarize(jobs)
        assert (found.verdict.word == "identical") is (not change)
        assert ("the protocol is not that of the baseline." in found.notes) is bool(change)


@pytest.mark.parametrize("name", catalogue())
def test_every_dataset_of_the_catalogue_has_a_recorded_manifest(name):
    manifest = recorded_manifest(name, catalogue()[name].version)
    assert manifest.name == name
    assert manifest.total_steps == catalogue()[name].recipe.steps


@pytest.mark.parametrize("algorithm", ["bc", "cql", "iql"])
def test_recorded_baselines_belong_to_the_recorded_data_and_the_recipes(algorithm):
    name = "pointmaze/umaze-v1"
    baseline = read_baseline(algorithm, name)
    manifest = recorded_manifest(name, catalogue()[name].version)
    recipe = recipe_for(algorithm, name)
    assert baseline.digest == manifest.digest
    assert baseline.steps == recipe.steps
    assert {key: baseline.config[key] for key in recipe.settings} == dict(recipe.settings)
    assert len(baseline.returns) >= 5


def test_recorded_baselines_say_how_many_settings_were_tried_and_on_which_seeds():
    scored = set()
    for (algorithm, name), recipe in RECIPES.items():
        baseline = read_baseline(algorithm, name)
        if baseline is None or not recipe.settings_tried:
            continue
        assert baseline.settings_tried == recipe.settings_tried, (algorithm, name)
        assert tuple(baseline.tuning_seeds) == recipe.tuning_seeds
        if {*map(str, recipe.tuning_seeds)} & {*baseline.returns}:
            scored.add((algorithm, name.partition("/")[0]))
    assert scored <= {("qrl", "pointmaze"), ("qrl", "ogbench-local")}  # recorded before that was the rule
    shown = run_orlog("show", "tabular/taxi-v1").stdout
    assert "settings tried" in shown


def test_a_baseline_whose_returns_another_method_shares_is_no_evidence():
    shared = read_baseline("bc", "demos/fetch-mixed-v1")
    alone = read_baseline("percent_bc", "demos/fetch-mixed-v1")
    assert equal_baselines(shared) == ["chunked_flow"]
    assert equal_baselines(alone) == []


def test_without_recipe_and_baseline_nothing_starts_unless_steps_are_given(mini, tmp_path, monkeypatch):
    monkeypatch.setattr("orlog.runs.jobs.RECIPES", {})
    monkeypatch.setattr(baselines, "recorded_folder", lambda name: tmp_path / "records" / name)
    words = ["reproduce", "bc", mini.name, "--seeds", "2", "--out", str(tmp_path / "runs")]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, NotFoundError)
    assert "neither a recipe nor a baseline of bc" in str(refused.exception)
    assert "steps=" in str(refused.exception)
    assert not (tmp_path / "runs").exists()
    jobs = make_jobs("bc", mini, tmp_path / "runs", seeds=(0,), episodes=1, options=TrainOptions(steps=3))
    assert [job.steps for job in jobs] == [3]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("jobs_run_here")
def test_a_reproduction_that_was_cut_short_goes_on(mini, tmp_path):
    folder = run_folder(tmp_path, "bc", mini, 0)
    steps = itertools.count()
    asked = {"seed": 0, "steps": 20, "curve_episodes": 2}  # as a reproduction of two episodes asks
    with pytest.raises(StoppedError):
        train_run("bc", mini, folder, **asked, stop=lambda: next(steps) == 7)
    words = ["reproduce", "bc", mini.name, "--seeds", "1", "--steps", "20", "--episodes", "2"]
    words += ["--workers", "1", "--out", str(tmp_path)]
    refused = CliRunner().invoke(app, words)
    assert "continue from it with resume=True" in str(refused.exception)
    found = CliRunner().invoke(app, [*words, "--resume"], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    assert [line["step"] for line in read_metrics(folder)] == list(range(1, 21))
    (whole,) = make_jobs("bc", mini, tmp_path / "whole", seeds=(0,), episodes=2, options=TrainOptions(steps=20))
    train_run("bc", mini, whole.folder, **asked)
    name = "checkpoint.safetensors"
    assert (folder / name).read_bytes() == (whole.folder / name).read_bytes()
