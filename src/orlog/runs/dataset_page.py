"""One self-contained HTML page about a dataset and its results: no scripts, no external links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orlog.algos.algorithms import algorithm_title
from orlog.algos.presets import recipe_for
from orlog.algos.training.options import CURVE_EPISODES
from orlog.base.terminal import say, say_notes, show_table
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.operations import operation_text, operation_words
from orlog.manifests.names import counted, size_text
from orlog.normalize.metrics import HEADINGS as HEADINGS_OF_NUMBERS
from orlog.normalize.statistics import BOOTSTRAP_NOTE
from orlog.normalize.verdicts import VERDICT_NOTE
from orlog.runs.episode_figure import episode_figure
from orlog.runs.pages import (
    HOW_TO_READ,
    figure,
    folded,
    how_to_read,
    html_table,
    paragraph,
    pictures,
    write_page,
)
from orlog.runs.pictures import bars, series_of
from orlog.runs.references import trained_policy
from orlog.runs.reproducing import Result
from orlog.runs.result_figures import curve_figure, score_figure

HEADINGS = ("algorithm", "return", "score", "95 % interval", "recorded", "verdict", "updates/s")


def result_cells(result: Result) -> list[str]:
    """Return the cells of a result's row in a table, in the order of `HEADINGS`."""
    returns, scores, interval = result.returns, result.scores, result.score_interval()
    recorded = "none"
    if result.baseline is not None and result.references is not None:
        means = [scores.mean() for scores in result.baseline.scores(result.references).values()]
        recorded = f"{sum(means) / len(means):z.1f} ({counted(len(means), 'seed')})"
    word = "nothing recorded" if result.baseline is None else "not compared"
    speeds = sorted(result.updates_per_second.values())
    return [
        algorithm_title(result.record.algorithm, result.record.config),
        f"{returns.mean():z.1f}",
        "none" if scores is None else f"{scores.mean():z.1f}",
        "none" if interval is None else f"{interval[0]:z.1f} to {interval[1]:z.1f}",
        recorded,
        word if result.verdict is None else result.verdict.word,
        f"{speeds[len(speeds) // 2]:z.0f}",
    ]


def number_table(results: Sequence[Result]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return headings and rows of what metrics counted, and of what was recorded; no row without any."""
    rows = [
        [
            algorithm_title(one.record.algorithm, one.record.config),
            *number.cells(),
            one.recorded_numbers[number.name].cells()[1]
            if number.name in one.recorded_numbers
            else "",
        ]
        for one in results
        for number in one.numbers
    ]
    return ("algorithm", *HEADINGS_OF_NUMBERS, "recorded"), rows


def verdict_lines(results: Sequence[Result]) -> list[str]:
    """Return each verdict with its reasons, or why scores are not compared with those recorded."""
    lines = []
    for result in results:
        said = f"not compared: {result.not_compared}" if result.not_compared else ""
        if result.verdict is not None:
            said = f"{'the ' if result.verdict.word == 'same' else ''}{result.verdict}"
        if said:
            lines.append(
                f"{algorithm_title(result.record.algorithm, result.record.config)} is {said}."
            )
    return lines


def all_notes(results: Sequence[Result]) -> list[str]:
    """Return what is to be known to read results, each note once."""
    notes = [note for one in results for note in (*one.notes, *one.caveats)]
    if any(result.references is not None for result in results):
        notes.append(BOOTSTRAP_NOTE)
    if any(result.verdict is not None for result in results):
        notes.append(VERDICT_NOTE)
    return [*dict.fromkeys(notes)]


def show_results(results: Sequence[Result], page: Path | None = None) -> None:
    """Print results as a table, their verdicts, and what is to be known to read them.

    Where a `page` is about them, its notes are not printed.
    """
    headings: tuple[str, ...] = HEADINGS
    rows, shift = [result_cells(one) for one in results], 0
    if len({one.record.dataset for one in results}) > 1:
        headings, shift = ("dataset", *HEADINGS), 1
        rows = [[one.record.dataset, *row] for one, row in zip(results, rows, strict=True)]
    show_table(headings, rows, numbers=[column + shift for column in (1, 2, 3, 6)])
    for one in results:
        for line in verdict_lines([one]):
            say(f"{one.record.dataset}: {line}" if shift else line)
    for name in dict.fromkeys(one.record.dataset for one in results):
        counted_headings, numbers = number_table([r for r in results if r.record.dataset == name])
        if numbers:
            say(f"\n{name}: what metrics counted, over the seeds")
            show_table(counted_headings, numbers, numbers=(2, 3, 5))
    if page is None:
        say_notes(all_notes(results))
    else:
        count = counted(len(all_notes(results)), "note")
        say(f"report: {page}\n{count} on these numbers: open How to read this there")


def write_report(
    path: Path,
    dataset: Dataset,
    results: Sequence[Result],
    *,
    title: str,
    remarks: Sequence[str] = (),
) -> None:
    """Write the page: an episode and the scores as pictures first, then tables, and notes that are folded."""
    series = series_of(result.record.algorithm for result in results)
    parts = [pictures([episode_figure(dataset), score_figure(results, series)])]
    parts += [paragraph(remark) for remark in remarks]
    parts += [
        notes_line(results),
        html_table(HEADINGS, [*map(result_cells, results)], {1, 2, 3, 6}),
    ]
    parts += [paragraph(line) for line in verdict_lines(results)]
    parts += counted_parts(results)
    parts += ["<h2>Learning curves</h2>", curve_figure(results, series)]
    parts += ["<h2>The dataset</h2>", paragraph(dataset.manifest.description)]
    spreads = {
        "return of an episode": dataset.column("episodes/returns"),
        "length of an episode (steps)": dataset.episode_lengths,
    }
    parts.append(pictures(figure(bars(values, name), name) for name, values in spreads.items()))
    parts += [_facts(dataset), folded("Settings", [settings_table(results)])]
    episodes = min(CURVE_EPISODES, results[0].returns.shape[1])
    curves = (
        f"Each point of a learning curve is {episodes} episodes run during training; the scores come "
        "from the last checkpoint."
    )
    parts.append(how_to_read([_protocol(results), curves, *all_notes(results)]))
    write_page(path, title, parts)


def counted_parts(results: Sequence[Result]) -> list[str]:
    """Return a table of what metrics counted; nothing where they counted nothing."""
    headings, rows = number_table(results)
    return [html_table(headings, rows, {2, 3, 5})] if rows else []


def notes_line(results: Sequence[Result]) -> str:
    """Return one line below scores, with a link to the notes on them."""
    return f'<p class="note">{counted(len(all_notes(results)), "note")}: {HOW_TO_READ}</p>'


def _protocol(results: Sequence[Result]) -> str:
    first = results[0]
    evaluation = next(iter(first.evaluations.values()))
    protocol = evaluation.protocol
    versions = ", ".join(f"{name} {version}" for name, version in protocol.versions.items())
    text = (
        f"{counted(len(first.evaluations), 'training seed')}, {counted(protocol.episodes, 'episode')} each (reset seeds "
        f"from {protocol.first_seed:,}), {trained_policy(first.record.config)}, in "
        f"{protocol.environment_id} with {versions}. "
    )
    if first.references is not None:
        text += (
            f"Score 0 is a mean return of {first.references.random.mean:z.1f} "
            f"({first.references.random.policy}), 100 is {first.references.expert.mean:z.1f} "
            f"({first.references.expert.policy}). "
        )
    return text.rstrip()


def _facts(dataset: Dataset) -> str:
    manifest = dataset.manifest
    rows = [
        ("name and version", f"{dataset.name}@{dataset.version}"),
        ("digest", dataset.digest),
        ("episodes, steps", f"{dataset.total_episodes:,}, {dataset.total_steps:,}"),
        ("size", f"{size_text(manifest.size_bytes)} in {counted(len(manifest.objects), 'file')}"),
        ("behavior policy", manifest.behavior_policy),
        ("license", manifest.license),
    ]
    if dataset.operation is not None:
        rows.insert(1, ("view", operation_words(operation_text(dataset.operation))))
    return html_table(("", ""), rows, frozenset())


def settings_table(results: Sequence[Result]) -> str:
    """Return the steps, settings and source of each result as a table of HTML."""
    rows = [
        (
            algorithm_title(result.record.algorithm, result.record.config),
            f"{result.record.steps:,}",
            ", ".join(f"{name} = {value}" for name, value in result.record.config.items()),
            result.record.source
            or recipe_for(result.record.algorithm, result.record.dataset).source,
        )
        for result in results
    ]
    return html_table(("algorithm", "steps", "settings", "source"), rows, frozenset({1}))
