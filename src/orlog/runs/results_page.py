"""Results of algorithms on datasets: as tables in the terminal, and as one HTML page without scripts."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.algos.presets import recipe_for
from orlog.algos.training.runs import CURVE_EPISODES
from orlog.base.terminal import say, say_notes, show_table
from orlog.datasets.loading import load_dataset
from orlog.datasets.looking.sparklines import histogram
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.facts import facts_of
from orlog.errors import NotFoundError
from orlog.manifests.names import counted
from orlog.normalize.metrics import HEADINGS as HEADINGS_OF_NUMBERS
from orlog.normalize.statistics import AGGREGATES, BOOTSTRAP_NOTE, Comparison, Estimate, compare_methods
from orlog.normalize.verdicts import VERDICT_NOTE
from orlog.runs.episode_figure import episode_figure
from orlog.runs.pages import HOW_TO_READ, figure, folded, how_to_read, html_table, paragraph, pictures, write_page
from orlog.runs.pictures import bars, series_of
from orlog.runs.references import trained_policy
from orlog.runs.reproducing import Reproduction
from orlog.runs.result_figures import comparison_parts, curve_figure, score_figure, titles_of
from orlog.runs.sweeps import Sweep

HEADINGS = ("algorithm", "return", "score", "95 % interval", "recorded", "verdict", "updates/s")
MOST_EPISODES = 4  # datasets of which an episode is drawn


def result_cells(result: Reproduction) -> list[str]:
    """Return the cells of a result's row in a table, in the order of `HEADINGS`."""
    returns, scores, interval = result.returns, result.scores, result.interval
    recorded = "none"
    if means := result.recorded_scores:
        recorded = f"{sum(means) / len(means):z.1f} ({counted(len(means), 'seed')})"
    word = "nothing recorded" if result.baseline is None else "not compared"
    speeds = sorted(score.updates_per_second for score in result.seeds.values())
    return [
        _title(result),
        f"{returns.mean():z.1f}",
        "none" if scores is None else f"{scores.mean():z.1f}",
        "none" if interval is None else f"{interval[0]:z.1f} to {interval[1]:z.1f}",
        recorded,
        word if result.verdict is None else result.verdict.word,
        f"{speeds[len(speeds) // 2]:z.0f}",
    ]


def number_table(results: Sequence[Reproduction]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return headings and rows of what metrics counted, and of what was recorded; no row without any."""
    rows = []
    for result in results:
        for number in result.numbers:
            recorded = result.recorded_numbers.get(number.name)
            cells = [_title(result), *number.cells()]
            rows.append([*cells, "" if recorded is None else recorded.cells()[1]])
    return ("algorithm", *HEADINGS_OF_NUMBERS, "recorded"), rows


def all_notes(results: Sequence[Reproduction]) -> list[str]:
    """Return what is to be known to read results, each note once."""
    notes = [note for one in results for note in (*one.notes, *one.caveats)]
    if any(result.references is not None for result in results):
        notes.append(BOOTSTRAP_NOTE)
    if any(result.verdict is not None for result in results):
        notes.append(VERDICT_NOTE)
    return [*dict.fromkeys(notes)]


def show_results(results: Sequence[Reproduction], page: Path | None = None) -> None:
    """Print scores as a line or a table, a line for each verdict, and where to read what they mean.

    That is the `page` about them, if there is one.
    """
    by_dataset = _by_dataset(results)
    prefix = "{}: " if len(by_dataset) > 1 else ""
    if len(results) == 1:
        say(results[0])
    else:
        rows = [[one.record.dataset, *result_cells(one)] for one in results]
        shift = 0 if prefix else 1
        numbers = [column - shift for column in (2, 3, 4, 7)]
        show_table(("dataset", *HEADINGS)[shift:], [row[shift:] for row in rows], numbers=numbers)
    for result in results:
        if result.judgement:
            say(prefix.format(result.record.dataset) + result.judgement)
    for name, there in by_dataset.items():
        counted_headings, rows = number_table(there)
        if rows:
            say(f"\n{name}: what metrics counted, over the seeds")
            show_table(counted_headings, rows, numbers=(2, 3, 5))
    if page is None:
        say_notes(dict.fromkeys(note for one in results for note in one.notes))
        caveats = dict.fromkeys(note for one in results for note in one.caveats)
        say(f"note: {' '.join([*caveats, 'More: docs/scores.md'])}")
    else:
        count = counted(len(all_notes(results)), "note")
        say(f"report: {page}, with {count} on these numbers under How to read this")


def write_sweep_page(sweep: Sweep, results: Sequence[Reproduction], path: Path, *, title: str) -> None:
    """Write the page about a sweep that was run; `results` are those of the sweep.

    Errors: `write_results_page`.
    """
    remarks = {f"failed: {one.what}: {one.message}": "error" for one in sweep.failures}
    remarks |= dict.fromkeys(sweep.left_out, "note")
    datasets = map(load_dataset, {job.dataset for job in sweep.jobs})
    write_results_page(path, results, datasets, title=title, remarks=remarks)


def write_results_page(
    path: Path,
    results: Sequence[Reproduction],
    datasets: Iterable[Dataset],
    *,
    title: str,
    remarks: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a page about results: episodes and scores as pictures first, then tables, then folded notes.

    `datasets` are those of the results; `remarks` are paragraphs with their classes in the style sheet.

    Raises NotFoundError if there are no results; StorageError if the file cannot be written.
    """
    if not results:
        raise NotFoundError("no job of the sweep is done, so there is nothing to report.")
    series = series_of(result.record.algorithm for result in results)
    by_digest = {dataset.digest: dataset for dataset in datasets}
    by_dataset = _by_dataset(results)
    is_single = len(by_dataset) == 1
    parts = [paragraph(_summary(results)), *(paragraph(*remark) for remark in remarks.items())]
    without_episode = []
    for number, (name, there) in enumerate(by_dataset.items()):
        scores = score_figure(there, series, "" if is_single else f"{name}, ")
        dataset = by_digest[there[0].record.digest]
        episode = episode_figure(dataset) if number < MOST_EPISODES else ""
        if episode:
            parts.append(pictures([episode, scores]))
        else:
            without_episode.append(scores)
    notes = counted(len(all_notes(results)), "note")
    parts += [pictures(without_episode), f'<p class="note">{notes}: {HOW_TO_READ}</p>']
    if not is_single:
        parts.append(score_table(results))
    for comparison in _comparisons(results):
        parts += comparison_parts(comparison, series, titles_of(results))
    for name, there in by_dataset.items():
        parts.append(f"<h2>{html.escape(name)}</h2>")
        parts += _dataset_parts(by_digest[there[0].record.digest], there, series)
    episodes = min(CURVE_EPISODES, *(result.returns.shape[1] for result in results))
    curves = (
        f"Each point of a learning curve is {episodes} episodes run during training; the scores come "
        "from the last checkpoint."
    )
    parts.append(how_to_read([curves, *all_notes(results)]))
    write_page(path, title, parts)


def score_table(results: Sequence[Reproduction]) -> str:
    """Return a table with a row for each dataset and a column for each algorithm."""
    titles = titles_of(results)
    rows = []
    for name, there in _by_dataset(results).items():
        cells = {}
        for result in there:
            scores, word = result.scores, f"return {result.returns.mean():z.1f}"
            if scores is not None:
                word = str(Estimate(float(scores.mean()), result.interval))
            cells[result.record.algorithm] = word
        rows.append([name, *(cells.get(algorithm, "") for algorithm in titles)])
    return html_table(("dataset", *titles.values()), rows, range(1, len(titles) + 1))


def _dataset_parts(dataset: Dataset, results: Sequence[Reproduction], series: Mapping[str, int]) -> list[str]:
    """Return what there is to see of one dataset and the results on it."""
    headings, numbers = number_table(results)
    spreads = {
        "return of an episode": dataset.column("episodes/returns"),
        "length of an episode (steps)": dataset.episode_lengths,
    }
    settings = [
        (
            _title(one),
            f"{one.record.steps:,}",
            ", ".join(f"{name} = {value}" for name, value in one.record.config.items()),
            one.record.source or recipe_for(one.record.algorithm, one.record.dataset).source,
        )
        for one in results
    ]
    return [
        html_table(HEADINGS, [*map(result_cells, results)], {1, 2, 3, 6}),
        *(paragraph(one.judgement) for one in results if one.judgement),
        *([html_table(headings, numbers, {2, 3, 5})] if numbers else []),
        curve_figure(results, series),
        paragraph(_protocol(results), "note"),
        pictures(
            figure(bars(histogram(finite, 30), name), name)
            for name, values in spreads.items()
            if len(finite := values[np.isfinite(values)])
        ),
        folded("The dataset", [html_table(("", ""), [*facts_of(dataset.manifest, dataset)])]),
        folded("Settings", [html_table(("algorithm", "steps", "settings", "source"), settings)]),
    ]


def _title(result: Reproduction) -> str:
    return algorithm_title(result.record.algorithm, result.record.config)


def _by_dataset(results: Iterable[Reproduction]) -> dict[str, list[Reproduction]]:
    by_dataset: dict[str, list[Reproduction]] = {}
    for result in results:
        by_dataset.setdefault(result.record.dataset, []).append(result)
    return by_dataset


def _summary(results: Sequence[Reproduction]) -> str:
    """Return one paragraph on how much was run, on what, and with which versions."""
    records = [result.record for result in results]
    scores = [score for result in results for score in result.seeds.values()]
    processors = sorted({one.evaluation.processor or "an unknown processor" for one in scores})
    versions = sorted({f"{name} {version}" for one in records for name, version in one.versions.items()})
    seconds = sum(score.record.steps / score.updates_per_second for score in scores)
    algorithms, datasets = ({*some} for some in zip(*((r.algorithm, r.dataset) for r in records), strict=True))
    return (
        f"{counted(len(scores), 'run')} of {counted(len(algorithms), 'algorithm')} on "
        f"{counted(len(datasets), 'dataset')}; {seconds / 3600:z.2f} hours of training "
        f"on {', '.join(processors)}, with {', '.join(versions)}."
    )


def _protocol(results: Sequence[Reproduction]) -> str:
    """Return how the policies of one dataset were scored."""
    first = results[0]
    protocol = first.first.protocol
    versions = ", ".join(f"{name} {version}" for name, version in protocol.versions.items())
    text = (
        f"{counted(len(first.seeds), 'training seed')}, {counted(protocol.episodes, 'episode')} each (reset seeds "
        f"from {protocol.first_seed:,}), {trained_policy(first.record.config)}, in "
        f"{protocol.environment_id} with {versions}."
    )
    if first.references is None:
        return text
    low, high = first.references.random, first.references.expert
    return (
        f"{text} Score 0 is a mean return of {low.mean:z.1f} ({low.policy}), 100 is {high.mean:z.1f} ({high.policy})."
    )


def _comparisons(results: Sequence[Reproduction]) -> list[Comparison]:
    """Return a comparison over the datasets that each set of two or more algorithms has in common."""
    together: dict[tuple[str, ...], dict[str, dict[str, np.ndarray]]] = {}
    for name, there in _by_dataset(results).items():
        scores = {one.record.algorithm: one.scores for one in there if one.scores is not None}
        if len(scores) > 1:
            methods = together.setdefault(tuple(scores), {algorithm: {} for algorithm in scores})
            for algorithm, values in scores.items():
                methods[algorithm][name] = values
    rng = np.random.default_rng
    return [compare_methods(methods, rng(0), aggregates=tuple(AGGREGATES)) for methods in together.values()]
