"""The page of a sweep: its tables and plots, from the numbers of the report."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from orlog.experiments.reproducing import Result
from orlog.experiments.stored_results import StoredResult
from orlog.manifests.names import counted
from orlog.normalize.statistics import Comparison, Estimate
from orlog.reports.dataset_page import (
    all_notes,
    counted_parts,
    notes_line,
    settings_table,
    verdict_lines,
)
from orlog.reports.pages import folded, how_to_read, html_table, page, paragraph, pictures
from orlog.reports.pictures import series_of
from orlog.reports.result_figures import comparison_parts, curve_figure, score_figure, titles_of
from orlog.reports.sweep_record import REPORT_FILE, REPORT_PAGE, Report


def render(
    report: Report,
    results: Sequence[Result],
    comparisons: Sequence[Comparison],
    sha256: str,
    episodes: Sequence[str],
) -> str:
    """Return the page; `episodes` are figures of episodes, which stand beside the scores."""
    stored = [one for evidence in report.evidence for one in evidence.results]
    series = series_of(result.record.algorithm for result in results)
    by_dataset: dict[str, list[Result]] = {}
    for result in results:
        by_dataset.setdefault(result.record.dataset, []).append(result)
    parts = [paragraph(_summary(stored))]
    parts += [paragraph(f"failed: {line}", "error") for line in report.failures]
    parts += [paragraph(line, "note") for line in report.left_out]
    parts.append("<h2>Scores</h2>")
    rest = []
    for name, there in by_dataset.items():
        scores = score_figure(there, series, f"{name}, ")
        begins = re.compile(rf">Episode \d+ of {re.escape(name)}[,:]")
        beside = [one for one in episodes if begins.search(one)]
        if beside:
            parts.append(pictures([*beside, scores]))
        else:
            rest.append(scores)
    parts.append(pictures(rest))
    parts += [notes_line(results), _score_table(results)]
    for one in comparisons:
        parts += comparison_parts(one, series, titles_of(results))
    for name, there in by_dataset.items():
        parts += _dataset_parts(name, there, stored, series)
    parts.append(how_to_read(all_notes(results)))
    parts.append(
        f"<p>All numbers follow from <code>{REPORT_FILE}</code> (SHA-256 <code>{sha256}</code>); "
        f"compute them again with: <code>orlog report verify {REPORT_PAGE}</code></p>"
    )
    return page(report.title, parts)


def _summary(stored: Sequence[StoredResult]) -> str:
    """Return one paragraph on how much was run, on what, and with which versions."""
    datasets = {one.record.dataset for one in stored}
    algorithms = {one.record.algorithm for one in stored}
    processors = sorted({one.evaluation.processor or "an unknown processor" for one in stored})
    versions = sorted(
        {f"{name} {version}" for one in stored for name, version in one.record.versions.items()}
    )
    hours = sum(one.seconds for one in stored) / 3600
    return (
        f"{counted(len(stored), 'run')} of {counted(len(algorithms), 'algorithm')} on {counted(len(datasets), 'dataset')}; "
        f"{hours:z.2f} hours of training on {', '.join(processors)}, with {', '.join(versions)}."
    )


def _score_table(results: Sequence[Result]) -> str:
    """Return a table with a row for each dataset and a column for each algorithm."""
    algorithms = list(dict.fromkeys(result.record.algorithm for result in results))
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        record = result.record
        cells.setdefault(record.dataset, {})[record.algorithm] = _score_cell(result)
    rows = [[name, *(row.get(one, "") for one in algorithms)] for name, row in cells.items()]
    titles = titles_of(results)
    headings = ("dataset", *(titles[one] for one in algorithms))
    return html_table(headings, rows, range(1, len(headings)))


def _score_cell(result: Result) -> str:
    scores, interval = result.scores, result.score_interval()
    if scores is None:
        return f"return {result.returns.mean():z.1f}"
    return str(Estimate(float(scores.mean()), interval))


def _dataset_parts(
    dataset: str,
    results: Sequence[Result],
    stored: Sequence[StoredResult],
    series: Mapping[str, int],
) -> list[str]:
    """Return what there is to see of one dataset."""
    there = [one for one in stored if one.record.dataset == dataset]
    protocol = there[0].job.protocol
    versions = ", ".join(f"{name} {version}" for name, version in protocol.versions.items())
    facts = (
        f"{there[0].record.version}, {there[0].job.digest}. {counted(protocol.episodes, 'episode')} of each seed "
        f"in {protocol.environment_id} with {versions}."
    )
    parts = [f"<h2>{html.escape(dataset)}</h2>", curve_figure(results, series)]
    parts += [paragraph(line) for line in verdict_lines(results)]
    parts += counted_parts(results)
    return [*parts, paragraph(facts, "note"), folded("Settings", [settings_table(results)])]
