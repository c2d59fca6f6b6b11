"""The page of a sweep: episodes and scores of each dataset, comparisons over datasets, learning curves."""

from __future__ import annotations

import functools
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from orlog.datasets.loading import load_dataset
from orlog.errors import NotFoundError
from orlog.manifests.names import counted
from orlog.normalize.statistics import AGGREGATES, Comparison, Estimate, compare_methods
from orlog.runs.dataset_page import (
    all_notes,
    counted_parts,
    notes_line,
    settings_table,
    verdict_lines,
)
from orlog.runs.episode_figure import episode_figure
from orlog.runs.pages import folded, how_to_read, html_table, paragraph, pictures, write_page
from orlog.runs.pictures import series_of
from orlog.runs.references import references_of_dataset
from orlog.runs.reproducing import Result, judge, recorded_baseline
from orlog.runs.result_figures import comparison_parts, curve_figure, score_figure, titles_of
from orlog.runs.sweeps import Sweep

MOST_EPISODES = 4


def results_of(sweep: Sweep) -> list[Result]:
    """Return the result of each algorithm on each dataset, without those of which no seed is stored.

    Errors: `Sweep.stored`, `judge`.
    """
    load = functools.cache(load_dataset)  # algorithms share datasets
    results = []
    for group in sweep.groups:
        seeds = {stored.job.seed: stored for stored in sweep.stored(group)}
        if not seeds:
            continue
        record = next(iter(seeds.values())).record
        results.append(
            judge(
                record,
                {seed: stored.evaluation for seed, stored in seeds.items()},
                {seed: stored.folder for seed, stored in seeds.items()},
                references=references_of_dataset(load(group.dataset)),
                baseline=recorded_baseline(record.algorithm, record.dataset),
            )
        )
    return results


def write_sweep_page(sweep: Sweep, results: Sequence[Result], path: Path, *, title: str) -> None:
    """Write the page about a sweep that was run; `results` are `results_of(sweep)`.

    Raises NotFoundError if there are none; StorageError if the file cannot be written.
    """
    if not results:
        raise NotFoundError("no job of the sweep is done, so there is nothing to report.")
    series = series_of(result.record.algorithm for result in results)
    by_dataset: dict[str, list[Result]] = {}
    for result in results:
        by_dataset.setdefault(result.record.dataset, []).append(result)
    places = {group.dataset for group in sweep.groups}
    datasets = {dataset.digest: dataset for dataset in map(load_dataset, places)}
    parts = [paragraph(_summary(results))]
    parts += [paragraph(f"failed: {one.what}: {one.message}", "error") for one in sweep.failures]
    parts += [paragraph(line, "note") for line in sweep.left_out]
    parts.append("<h2>Scores</h2>")
    without_episode = []
    for number, (name, there) in enumerate(by_dataset.items()):
        scores = score_figure(there, series, f"{name}, ")
        dataset = datasets[there[0].record.digest]
        episode = episode_figure(dataset) if number < MOST_EPISODES else ""
        if episode:
            parts.append(pictures([episode, scores]))
        else:
            without_episode.append(scores)
    parts += [pictures(without_episode), notes_line(results), _score_table(results)]
    for comparison in _comparisons(results):
        parts += comparison_parts(comparison, series, titles_of(results))
    for name, there in by_dataset.items():
        parts += _dataset_parts(name, there, series)
    parts.append(how_to_read(all_notes(results)))
    write_page(path, title, parts)


def _summary(results: Sequence[Result]) -> str:
    """Return one paragraph on how much was run, on what, and with which versions."""
    records = [result.record for result in results]
    evaluations = [one for result in results for one in result.evaluations.values()]
    processors = sorted({one.processor or "an unknown processor" for one in evaluations})
    versions = sorted(
        {f"{name} {version}" for one in records for name, version in one.versions.items()}
    )
    seconds = sum(
        result.record.steps / speed
        for result in results
        for speed in result.updates_per_second.values()
    )
    return (
        f"{counted(len(evaluations), 'run')} of {counted(len({one.algorithm for one in records}), 'algorithm')} on "
        f"{counted(len({one.dataset for one in records}), 'dataset')}; {seconds / 3600:z.2f} hours of training "
        f"on {', '.join(processors)}, with {', '.join(versions)}."
    )


def _score_table(results: Sequence[Result]) -> str:
    """Return a table with a row for each dataset and a column for each algorithm."""
    titles = titles_of(results)
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        record = result.record
        cells.setdefault(record.dataset, {})[record.algorithm] = _score_cell(result)
    rows = [[name, *(row.get(one, "") for one in titles)] for name, row in cells.items()]
    return html_table(("dataset", *titles.values()), rows, range(1, len(titles) + 1))


def _score_cell(result: Result) -> str:
    scores, interval = result.scores, result.score_interval()
    if scores is None:
        return f"return {result.returns.mean():z.1f}"
    return str(Estimate(float(scores.mean()), interval))


def _comparisons(results: Sequence[Result]) -> list[Comparison]:
    """Return a comparison over the datasets that each set of two or more algorithms has in common."""
    by_dataset: dict[str, dict[str, np.ndarray]] = {}
    for result in results:
        if result.scores is not None:
            scores = by_dataset.setdefault(result.record.dataset, {})
            scores[result.record.algorithm] = result.scores
    together: dict[tuple[str, ...], list[str]] = {}
    for dataset, scores in by_dataset.items():
        if len(scores) > 1:
            together.setdefault(tuple(scores), []).append(dataset)
    return [
        compare_methods(
            {
                algorithm: {dataset: by_dataset[dataset][algorithm] for dataset in datasets}
                for algorithm in algorithms
            },
            np.random.default_rng(0),
            aggregates=tuple(AGGREGATES),
        )
        for algorithms, datasets in together.items()
    ]


def _dataset_parts(dataset: str, results: Sequence[Result], series: Mapping[str, int]) -> list[str]:
    """Return what there is to see of one dataset."""
    record = results[0].record
    protocol = next(iter(results[0].evaluations.values())).protocol
    versions = ", ".join(f"{name} {version}" for name, version in protocol.versions.items())
    facts = (
        f"{record.version}, {record.digest}. {counted(protocol.episodes, 'episode')} of each seed "
        f"in {protocol.environment_id} with {versions}."
    )
    parts = [f"<h2>{html.escape(dataset)}</h2>", curve_figure(results, series)]
    parts += [paragraph(line) for line in verdict_lines(results)]
    parts += counted_parts(results)
    return [*parts, paragraph(facts, "note"), folded("Settings", [settings_table(results)])]
