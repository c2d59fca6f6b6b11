"""The page of a sweep: what it shows, in which colors, and under which names."""

import dataclasses

import msgspec
import numpy as np
import pytest

from orlog.algos.training.runs import TrainOptions, read_run
from orlog.errors import NotFoundError
from orlog.normalize.statistics import compare_methods
from orlog.runs.pictures import series_of
from orlog.runs.results import finished_results
from orlog.runs.results_page import (
    comparison_parts,
    curve_figure,
    score_figure,
    score_table,
    titles_of,
    write_sweep_page,
)
from orlog.runs.sweeps import plan_sweep, run_sweep


def here(
    function,
    jobs,
    *,
    workers,  # noqa: ARG001 (all executors are called alike)
    running,  # noqa: ARG001
):
    """Run jobs in this process."""
    for index, job in enumerate(jobs):
        yield index, function(job)


def test_a_page_shows_what_was_run_each_algorithm_in_its_color_and_under_the_name_of_its_settings(mini, tmp_path):
    options = TrainOptions(steps=4, evaluations=2)
    sweep = plan_sweep([mini.name], ["bc", "td3bc"], seeds=[0, 1], episodes=2, options=options)
    run_sweep(sweep, executor=here)
    assert sweep.failures == []
    results = sweep.results()
    stored = [read_run(folder).algorithm for folder in finished_results()]
    assert sorted(stored) == ["bc", "bc", "td3bc", "td3bc"]
    (bc,) = [one for one in results if one.record.algorithm == "bc"]
    assert bc.returns.shape == (2, 2)
    assert all(len(one.curve) == 2 and one.updates_per_second > 0 for one in bc.seeds.values())

    page = tmp_path / "report" / "report.html"
    write_sweep_page(sweep, results, page, title="Two <algorithms>")
    text = page.read_text("utf-8")
    assert "Two &lt;algorithms&gt;" in text
    assert "4 runs of 2 algorithms on 1 dataset" in text
    # a map, scores, four aggregates, a profile, ranks, improvement, curves, and two histograms
    assert text.count("<svg") == text.count('aria-label="') - text.count('role="region"') == 12
    assert text.index("<svg") < text.index("<table")
    assert "<details><summary>How to read this</summary>" in text
    assert "<script" not in text

    series = series_of(one.record.algorithm for one in results)
    assert series == {"bc": 0, "td3bc": 1}
    scores = {"td3bc": {"a": np.array([[1.0], [2.0]])}}
    drawn = [draw(results[1:], series) for draw in (score_figure, curve_figure)]
    comparison = compare_methods(scores, np.random.default_rng(0))
    for figure in [*drawn, comparison_parts(comparison, series)[2]]:
        assert '<g class="c1">' in figure
        assert '<g class="c0">' not in figure

    def with_percent(result, percent):
        config = {**result.record.config, "percent": percent}
        record = msgspec.structs.replace(result.record, algorithm="percent_bc", config=config)
        run = dataclasses.replace(result.first.run, record=record)
        return dataclasses.replace(result, seeds={0: dataclasses.replace(result.first, run=run)})

    one, other = with_percent(results[0], 25.0), with_percent(results[1], 100.0)
    assert titles_of([one]) == {"percent_bc": "BC-25%"}
    assert titles_of([one, other, one]) == {"percent_bc": "BC-25% or BC-100%"}
    assert "BC-25%</th>" in score_table([one])
    scores = {"percent_bc": {"a": np.array([[1.0], [2.0]])}}
    comparison = compare_methods(scores, np.random.default_rng(0))
    page = "".join(comparison_parts(comparison, {"percent_bc": 0}, titles_of([one])))
    assert "BC-25%" in page
    assert "BC-10%" not in page
    assert "BC-10%" not in curve_figure([one], {"percent_bc": 0})


def test_a_sweep_of_which_nothing_is_done_has_no_page(mini, tmp_path):
    empty = plan_sweep([mini.name], ["bc"], seeds=[0], episodes=2, options=TrainOptions(steps=4))
    with pytest.raises(NotFoundError, match="nothing to report"):
        write_sweep_page(empty, empty.results(), tmp_path / "empty.html", title="none")
