"""The page of a sweep: its tables and plots, from the numbers of the report."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.looking.figures import line_colors, own_style
from orlog.experiments.reproducing import Result
from orlog.experiments.stored_results import StoredResult
from orlog.manifests.names import counted
from orlog.normalize.comparison import Comparison
from orlog.reports.dataset_page import reading_notes, settings_table, verdict_lines
from orlog.reports.pages import html_table, page
from orlog.reports.plots import learning_curves, score_picture, to_svg
from orlog.reports.statistics_plots import COMPARISON_PLOTS
from orlog.reports.sweep_record import REPORT_FILE, REPORT_PAGE, Report


def render(
    report: Report, results: Sequence[Result], comparisons: Sequence[Comparison], sha256: str
) -> str:
    """Return the page.

    Raises MissingExtraError if matplotlib is not installed.
    """
    with own_style():
        return page(report.title, _parts(report, results, comparisons, sha256))


def _parts(
    report: Report, results: Sequence[Result], comparisons: Sequence[Comparison], sha256: str
) -> list[str]:
    """Return the parts of the page."""
    stored = [one for evidence in report.evidence for one in evidence.results]
    parts = [f"<h1>{html.escape(report.title)}</h1>", f"<p>{html.escape(_summary(stored))}</p>"]
    parts += [_note(f"failed: {line}") for line in report.failures]
    parts += [_note(line) for line in report.left_out]
    parts += ["<h2>Scores</h2>", _score_table(results)]
    parts += [f"<p>{html.escape(note)}</p>" for note in reading_notes(results)]
    colors = line_colors(result.record.algorithm for result in results)
    for one in comparisons:
        parts += _comparison_parts(one, colors)
    for dataset in dict.fromkeys(result.record.dataset for result in results):
        there = [result for result in results if result.record.dataset == dataset]
        parts += _dataset_parts(dataset, there, stored, colors)
    parts.append(
        f"<p>All numbers follow from <code>{REPORT_FILE}</code> (SHA-256 <code>{sha256}</code>); "
        f"compute them again with: <code>orlog report verify {REPORT_PAGE}</code></p>"
    )
    return parts


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


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
        f"{hours:.2f} hours of training on {', '.join(processors)}, with {', '.join(versions)}."
    )


def _score_table(results: Sequence[Result]) -> str:
    """Return a table with a row for each dataset and a column for each algorithm."""
    algorithms = list(dict.fromkeys(result.record.algorithm for result in results))
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        record = result.record
        cells.setdefault(record.dataset, {})[record.algorithm] = _score_cell(result)
    rows = [[name, *(row.get(one, "") for one in algorithms)] for name, row in cells.items()]
    headings = ("dataset", *(algorithm_title(one) for one in algorithms))
    return html_table(headings, rows, range(1, len(headings)))


def _score_cell(result: Result) -> str:
    scores, interval = result.scores, result.score_interval()
    if scores is None:
        return f"return {result.returns.mean():.1f}"
    between = "" if interval is None else f" ({interval[0]:.1f} to {interval[1]:.1f})"
    return f"{scores.mean():.1f}{between}"


def _comparison_parts(comparison: Comparison, colors: Mapping[str, str]) -> list[str]:
    """Return the aggregates, ranks and pictures over the datasets that algorithms have in common."""
    ranks = comparison.ranks
    names = list(next(iter(comparison.aggregates.values())))
    rows = [
        [
            algorithm_title(method),
            str(len(comparison.runs[method])),
            *(str(comparison.aggregates[method][name]) for name in names),
            *([str(ranks[method])] if ranks else []),
        ]
        for method in comparison.ranking()
    ]
    headings = ["algorithm", "seeds", *names, *(["mean rank"] if ranks else [])]
    parts = [
        f"<h2>Over {counted(len(comparison.tasks), 'dataset')}</h2>",
        f"<p>{html.escape(', '.join(comparison.tasks))}</p>",
        html_table(headings, rows, range(1, len(headings))),
    ]
    wanted = ("aggregates", "profiles", "ranks", "improvement")
    return parts + [
        to_svg(draw(comparison, True, colors))
        for name, draw in COMPARISON_PLOTS.items()
        if name in wanted
    ]


def _dataset_parts(
    dataset: str,
    results: Sequence[Result],
    stored: Sequence[StoredResult],
    colors: Mapping[str, str],
) -> list[str]:
    """Return what there is to see of one dataset."""
    there = [one for one in stored if one.record.dataset == dataset]
    protocol = there[0].job.protocol
    versions = ", ".join(f"{name} {version}" for name, version in protocol.versions.items())
    facts = (
        f"{there[0].record.version}, {there[0].job.digest}. {counted(protocol.episodes, 'episode')} of each seed "
        f"in {protocol.environment_id} with {versions}."
    )
    parts = [f"<h2>{html.escape(dataset)}</h2>", f"<p>{html.escape(facts)}</p>"]
    parts += [f"<p>{html.escape(line)}</p>" for line in verdict_lines(results)]
    notes = dict.fromkeys(note for result in results for note in (*result.notes, *result.caveats))
    parts += [_note(note) for note in notes]
    parts += [to_svg(score_picture(results, colors)), to_svg(learning_curves(results, colors))]
    return [*parts, settings_table(results)]
