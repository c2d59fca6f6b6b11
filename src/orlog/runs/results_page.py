"""Results of algorithms on datasets, as tables in the terminal and as HTML pages; and the page of an audit."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.algos.presets import recipe_for
from orlog.algos.training.runs import CURVE_EPISODES
from orlog.base.terminal import say, say_notes, show_table
from orlog.datasets.audit.findings import SEVERITIES, THRESHOLDS, Audit, Finding, place_text
from orlog.datasets.loading import load_dataset
from orlog.datasets.looking.leaves import as_picture, dimensions_of, frames_of, maze_of, png_bytes
from orlog.datasets.looking.sparklines import histogram
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.facts import facts_of
from orlog.errors import NotFoundError, OrlogError
from orlog.manifests.names import counted
from orlog.normalize.metrics import HEADINGS as HEADINGS_OF_NUMBERS
from orlog.normalize.statistics import (
    AGGREGATES,
    BOOTSTRAP_NOTE,
    Comparison,
    Estimate,
    bootstrap_interval,
    compare_methods,
    mean_interval,
)
from orlog.normalize.verdicts import VERDICT_NOTE
from orlog.runs.pictures import (
    HOW_TO_READ,
    MOST_POINTS,
    Dot,
    Line,
    bars,
    dots,
    figure,
    folded,
    how_to_read,
    html_table,
    lines,
    paragraph,
    path_map,
    pictures,
    series_of,
    write_page,
)
from orlog.runs.plots import UNIT, Statistic, statistics_of
from orlog.runs.reproducing import Reproduction
from orlog.runs.scores import trained_policy
from orlog.runs.sweeps import Sweep

HEADINGS = ("algorithm", "return", "score", "95 % interval", "recorded", "verdict", "updates/s")
MOST_EPISODES = 4  # datasets of which an episode is drawn
# Parts of observations whose first two numbers are a place, the likeliest first.
PLACES = ("achieved_goal", "position", "xy", "observation")
ENDS = {"terminated": "; it ends at ■, terminated", "truncated": "; it ends at □, cut off", "": ""}
MOST_PLOTS = 12
AROUND = 40  # steps before and after a place of a finding


def result_cells(result: Reproduction) -> list[str]:
    """Return the cells of a result's row in a table, in the order of `HEADINGS`."""
    returns, scores, interval = result.returns, result.scores, result.interval
    recorded = "none"
    if means := result.recorded_scores:
        recorded = f"{sum(means) / len(means):z.1f} ({counted(len(means), 'seed')})"
    word = "nothing recorded" if result.baseline is None else "not compared"
    speeds = sorted(score.updates_per_second for score in result.seeds.values())
    return [
        result.title,
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
            cells = [result.title, *number.cells()]
            rows.append([*cells, "" if recorded is None else recorded.cells()[1]])
    return ("algorithm", *HEADINGS_OF_NUMBERS, "recorded"), rows


def all_notes(results: Sequence[Reproduction]) -> list[str]:
    """Return what is to be known to read results, each note once."""
    notes = [note for result in results for note in (*result.notes, *result.caveats)]
    if any(result.references is not None for result in results):
        notes.append(BOOTSTRAP_NOTE)
    if any(result.verdict is not None for result in results):
        notes.append(VERDICT_NOTE)
    return [*dict.fromkeys(notes)]


def show_results(results: Sequence[Reproduction], page: Path | None = None) -> None:
    """Print scores as a line or a table, a line for each verdict, and where to read what they mean."""
    by_dataset = _by_dataset(results)
    prefix = "{}: " if len(by_dataset) > 1 else ""
    if len(results) == 1:
        say(results[0])
    else:
        rows = [[result.record.dataset, *result_cells(result)] for result in results]
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
        say_notes(dict.fromkeys(note for result in results for note in result.notes))
        caveats = dict.fromkeys(note for result in results for note in result.caveats)
        say(f"note: {' '.join([*caveats, 'More: docs/scores.md'])}")
    else:
        count = counted(len(all_notes(results)), "note")
        say(f"report: {page}, with {count} on these numbers under How to read this")


def write_sweep_page(sweep: Sweep, results: Sequence[Reproduction], path: Path, *, title: str) -> None:
    """Write the page about a sweep that was run; `results` are those of the sweep."""
    remarks = {f"failed: {failure.what}: {failure.message}": "error" for failure in sweep.failures}
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
    """Write a page about results: episodes and scores as pictures first, then tables, then folded notes."""
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
    headings, numbers = number_table(results)
    spreads = {
        "return of an episode": dataset.column("episodes/returns"),
        "length of an episode (steps)": dataset.episode_lengths,
    }
    settings = [
        (
            result.title,
            f"{result.record.steps:,}",
            ", ".join(f"{name} = {value}" for name, value in result.record.config.items()),
            result.record.source or recipe_for(result.record.algorithm, result.record.dataset).source,
        )
        for result in results
    ]
    return [
        html_table(HEADINGS, [*map(result_cells, results)], {1, 2, 3, 6}),
        *(paragraph(result.judgement) for result in results if result.judgement),
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


def _by_dataset(results: Iterable[Reproduction]) -> dict[str, list[Reproduction]]:
    by_dataset: dict[str, list[Reproduction]] = {}
    for result in results:
        by_dataset.setdefault(result.record.dataset, []).append(result)
    return by_dataset


def _summary(results: Sequence[Reproduction]) -> str:
    records = [result.record for result in results]
    scores = [score for result in results for score in result.seeds.values()]
    processors = sorted({score.evaluation.processor or "an unknown processor" for score in scores})
    versions = sorted({f"{name} {version}" for record in records for name, version in record.versions.items()})
    seconds = sum(score.record.steps / score.updates_per_second for score in scores)
    algorithms, datasets = ({*some} for some in zip(*((r.algorithm, r.dataset) for r in records), strict=True))
    return (
        f"{counted(len(scores), 'run')} of {counted(len(algorithms), 'algorithm')} on "
        f"{counted(len(datasets), 'dataset')}; {seconds / 3600:z.2f} hours of training "
        f"on {', '.join(processors)}, with {', '.join(versions)}."
    )


def _protocol(results: Sequence[Reproduction]) -> str:
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
        scores = {result.record.algorithm: result.scores for result in there if result.scores is not None}
        if len(scores) > 1:
            methods = together.setdefault(tuple(scores), {algorithm: {} for algorithm in scores})
            for algorithm, values in scores.items():
                methods[algorithm][name] = values
    rng = np.random.default_rng
    return [compare_methods(methods, rng(0), aggregates=tuple(AGGREGATES)) for methods in together.values()]


# Figures.


def titles_of(results: Iterable[Reproduction]) -> dict[str, str]:
    """Return how people write each algorithm, by what it was run with; with several settings, all such names."""
    titles: dict[str, dict[str, None]] = {}
    for result in results:
        titles.setdefault(result.record.algorithm, {})[result.title] = None
    return {algorithm: " or ".join(names) for algorithm, names in titles.items()}


def _unit(results: Sequence[Reproduction]) -> str:
    return UNIT if all(result.references is not None for result in results) else "return"


def score_figure(results: Sequence[Reproduction], series: Mapping[str, int], what: str = "") -> str:
    """Return each algorithm's mean with its interval, each seed, and the recorded mean with its own."""
    rows = []
    for result in results:
        values = result.returns if result.scores is None else result.scores
        recorded = None
        if result.recorded_scores:
            means = np.array(result.recorded_scores)
            recorded = (float(means.mean()), mean_interval(means))
        rows.append(
            Dot(
                name=result.title,
                value=float(values.mean()),
                interval=bootstrap_interval(values, np.random.default_rng(0)),
                each=values.mean(1).tolist(),
                recorded=recorded,
                series=series[result.record.algorithm],
            )
        )
    unit = _unit(results)
    recorded_words = ", ◇ the recorded mean with its own" if any(row.recorded for row in rows) else ""
    caption = f"{what}{unit}: ● mean with its 95 % interval, ○ each seed{recorded_words}."
    return figure(dots(rows, f"{what}{unit}", ends=(0, 100) if unit == UNIT else (0,)), caption)


def curve_figure(results: Sequence[Reproduction], series: Mapping[str, int]) -> str:
    """Return the score (or return) over gradient steps: each seed thin, their mean thick; then a table."""
    seeds, means, rows = [], [], []
    for result in results:
        color, anchors = series[result.record.algorithm], result.references
        curves = []
        for score in result.seeds.values():
            values = np.array([mean for _, mean in score.curve])
            ys = values if anchors is None else anchors.normalize(values)
            curves.append(([float(step) for step, _ in score.curve], ys))
        seeds += [Line(xs=xs, ys=ys.tolist(), series=color, is_thin=True) for xs, ys in curves]
        if curves and len({len(xs) for xs, _ in curves}) == 1:
            xs, mean = curves[0][0], np.mean([ys for _, ys in curves], 0)
            means.append(Line(xs=xs, ys=mean.tolist(), series=color))
            points = (f"{x:z,.0f}: {y:z.1f}" for x, y in zip(xs, mean, strict=True))
            rows.append((result.title, ", ".join(points)))
    if not any(line.xs for line in seeds):
        return ""
    unit = _unit(results)
    picture = lines([*seeds, *means], f"{unit} over gradient steps", "gradient steps")
    named = {result.title: series[result.record.algorithm] for result in results}
    table = html_table(("algorithm", "gradient steps: mean"), rows)
    return figure(picture, f"{unit}. Thin: each seed. Thick: their mean.", named) + folded(
        "The means as a table", [table]
    )


def comparison_parts(
    comparison: Comparison, series: Mapping[str, int], titles: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return the aggregates, profiles, ranks and probabilities of improvement over common datasets, and a table."""
    titles = {method: algorithm_title(method) for method in comparison.methods} | dict(titles)
    statistics, ranks = statistics_of(comparison), comparison.ranks

    def picture(statistic: Statistic, title: str) -> str:
        rows = [
            Dot(
                name=" > ".join(titles[method] for method in names),
                value=estimate.value,
                interval=estimate.interval,
                series=series[names[0]],
            )
            for names, estimate in statistic.estimates.items()
        ]
        ends = statistic.ends
        return figure(dots(rows, title, digits=min(2, len(ends)), ends=ends), title)

    curves = [
        Line(
            xs=profile.thresholds.tolist(),
            ys=profile.shares.tolist(),
            series=series[method],
            band=None if profile.band is None else (profile.band[0].tolist(), profile.band[1].tolist()),
        )
        for method, profile in comparison.profiles.items()
    ]
    title = "share of runs above a normalized score, with its 95 % band"
    named = {titles[method]: series[method] for method in comparison.methods}
    figures = [
        *(picture(statistic, f"{statistic.title}, with its 95 % interval") for statistic in statistics["aggregates"]),
        figure(lines(curves, title, "normalized score"), title, named),
        *(picture(statistic, statistic.title) for statistic in statistics.get("ranks", ())),
        *(picture(statistic, statistic.title) for statistic in statistics.get("improvement", ())),
    ]
    names = list(next(iter(comparison.aggregates.values())))
    rows = [
        [
            titles[method],
            str(len(comparison.runs[method])),
            *(str(comparison.aggregates[method][name]) for name in names),
            *([str(ranks.get(method, ""))] if ranks else []),
        ]
        for method in comparison.ranking()
    ]
    headings = ["algorithm", "seeds", *names, *(["mean rank"] if ranks else [])]
    return [
        f"<h2>Over {counted(len(comparison.tasks), 'dataset')}</h2>",
        paragraph(", ".join(comparison.tasks)),
        pictures(figures),
        html_table(headings, rows, range(1, len(headings))),
    ]


def episode_figure(dataset: Dataset, index: int | None = None) -> str:
    """Return a figure of an episode, the one with the highest return if none is named."""
    which = f"Episode {index} of {dataset.name}"
    try:
        if index is None and dataset.total_episodes:
            returns = dataset.column("episodes/returns")
            index = int(np.nan_to_num(returns, nan=-np.inf).argmax())
            which = f"Episode {index} of {dataset.name}, which has the highest return"
        if index is None:
            return ""
        episode = dataset[index]
    except (OrlogError, OSError):
        return ""
    end = "terminated" if episode.terminations[-1:].any() else ""
    end = end or ("truncated" if episode.truncations[-1:].any() else "")
    known = {name: values for name, values in dimensions_of(episode) if name.startswith("obs")}
    roots = [*(f"observations/{part}" for part in PLACES), "observations"]
    roots += [name[:-3] for name in known if name.endswith("[1]")]
    for root in roots:
        x, y = known.get(f"{root}[0]"), known.get(f"{root}[1]")
        if x is None or y is None or not (np.isfinite(x) & np.isfinite(y)).any():
            continue
        maze = maze_of(dataset.environment) if root == "observations/achieved_goal" else None
        what = f"{root}[0] across, {root}[1] up" if maze is None else "its path in the maze"
        picture = path_map(np.stack([x, y], 1), f"{which}: {what}", end, maze)
        return figure(picture, f"{which}: {what}. It starts at ○{ENDS[end]}.", kind="frame")
    for name, rows in frames_of(episode).items():
        data = base64.b64encode(png_bytes(as_picture(rows[0]))).decode()
        picture = f'<img src="data:image/png;base64,{data}" alt="first frame of an episode">'
        return figure(picture, f"{which}: the first frame of {name}.", kind="frame")
    return ""


# The page of an audit.

NOTES = (
    "An error means that the data are wrong, a warning that they probably are, a note that something is so.",
    f"A picture shows {AROUND} steps before and after the first place of a finding, which is shaded.",
    f"The first {MOST_PLOTS} places are drawn, as far as their columns hold numbers.",
)
TO_LOOK = (
    '<p class="note">To look at an episode: <code>orlog open {name}</code>; each finding of its audit leads to its '
    "step. The address of the first place below ends in <code>#/0/episodes/{episode}?step={step}</code>.</p>"
)


def write_audit_page(audit: Audit, path: Path, dataset: Dataset | None = None) -> None:
    """Write the page about an audit, with a plot of each of the first places if the dataset is given."""
    name = f"{audit.name}@{audit.version}" if audit.version else audit.name
    size = f"{counted(audit.episodes, 'episode')}, {counted(audit.steps, 'step')}"
    parts = [paragraph(f"{size}: {audit.summary()}.")]
    named = [finding for finding in audit.findings if finding.episode is not None and finding.step is not None]
    drawn: dict[str, str] = {}  # several findings may be at one place
    if dataset is not None:
        for finding in named[:MOST_PLOTS]:
            drawn[place_text(finding)] = drawn.get(place_text(finding), "") + _figure(finding, dataset)
        first = episode_figure(dataset, named[0].episode if named else None)
        divisions = [f'<div id="{_anchor(at)}">{picture}</div>' for at, picture in drawn.items() if picture]
        parts.append(pictures([first, *divisions]))
        if named:
            place = {"episode": named[0].episode, "step": named[0].step}
            parts.append(TO_LOOK.format(name=html.escape(name), **place))
    links = {at: f"#{_anchor(at)}" for at, picture in drawn.items() if picture}
    parts.append(f'<p class="note">{HOW_TO_READ}</p>')
    for severity, meaning in SEVERITIES.items():
        if rows := [
            (finding.check, finding.column, finding.text, place_text(finding), f"{finding.count:,}")
            for finding in audit.of(severity)
        ]:
            parts.append(f"<h2>{severity.capitalize()}s: {meaning}</h2>")
            headings = ("check", "column", "finding", "first at", "count")
            parts.append(html_table(headings, rows, {4}, links))
    parts += ["<h2>What was checked</h2>", paragraph(f"{', '.join(audit.checks)}.")]
    if audit.not_checked:
        parts.append(html_table(("not checked", "why"), [*audit.not_checked.items()]))
    thresholds = [(name, f"{threshold.value:,.7g}", threshold.meaning) for name, threshold in THRESHOLDS.items()]
    parts.append(folded("Thresholds", [html_table(("name", "value", "meaning"), thresholds, {1})]))
    parts += [how_to_read(NOTES), f"<p><code>{html.escape(audit.digest)}</code></p>"]
    write_page(path, f"Audit of {name}", parts)


def _figure(finding: Finding, dataset: Dataset) -> str:
    """Return a finding's columns around its place, one above the other; empty where they are no numbers."""
    assert finding.episode is not None
    assert finding.step is not None
    try:
        episode = dataset[finding.episode]
    except (OrlogError, OSError):
        return ""  # not on this machine, or damaged
    known = {"terminations": episode.terminations, "truncations": episode.truncations}
    known |= dict(dimensions_of(episode))
    last = finding.step if finding.last_step is None else finding.last_step
    first = max(0, finding.step - AROUND)
    stop = min(last + AROUND + 1, first + MOST_POINTS)
    drawn = ""
    for series, name in enumerate(filter(None, (finding.column, finding.beside))):
        values = known.get(name.replace("][", ", "), known.get(f"{name}[0]"))
        if values is not None:
            ys = values[first:stop].astype(np.float64).tolist()
            curve = Line(xs=[*range(first, first + len(ys))], ys=ys, series=series)
            place = (finding.step - 0.5, last + 0.5)
            drawn += lines([curve], name, f"{name} over steps of episode {finding.episode}", place)
    text = f"{finding.check}, {finding.column}, {place_text(finding)}: {finding.text}"
    return drawn and figure(drawn, text)


def _anchor(place: str) -> str:
    return place.replace(",", "").replace(" ", "-")
