"""Figures of results for pages: scores beside the recorded ones, learning curves, and comparisons."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.manifests.names import counted
from orlog.normalize.statistics import Comparison, Estimate, bootstrap_interval, mean_interval
from orlog.runs.pages import figure, folded, html_table, paragraph, pictures
from orlog.runs.pictures import Dot, Line, dots, lines

if TYPE_CHECKING:
    from orlog.runs.reproducing import Reproduction

UNIT = "normalized score (0 random, 100 expert)"


def titles_of(results: Iterable[Reproduction]) -> dict[str, str]:
    """Return how people write each algorithm, by what it was run with; with several settings, all such names."""
    titles: dict[str, dict[str, None]] = {}
    for result in results:
        titles.setdefault(result.record.algorithm, {})[_title(result)] = None
    return {algorithm: " or ".join(names) for algorithm, names in titles.items()}


def _title(result: Reproduction) -> str:
    return algorithm_title(result.record.algorithm, result.record.config)


def _unit(results: Sequence[Reproduction]) -> str:
    return UNIT if all(result.references is not None for result in results) else "return"


def score_figure(results: Sequence[Reproduction], series: Mapping[str, int], what: str = "") -> str:
    """Return each algorithm's mean with its interval, each seed, and the recorded mean with its own.

    `series` has the number of each algorithm's color; `what`, which the results are on, begins the caption.
    """
    rows = []
    for result in results:
        values = result.returns if result.scores is None else result.scores
        recorded = None
        if result.recorded_scores:
            means = np.array(result.recorded_scores)
            recorded = (float(means.mean()), mean_interval(means))
        rows.append(
            Dot(
                name=_title(result),
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
    """Return the score (or return) over gradient steps: each seed thin, their mean thick; then a table.

    Args: `score_figure`.
    """
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
            rows.append((_title(result), ", ".join(points)))
    if not any(line.xs for line in seeds):
        return ""
    unit = _unit(results)
    picture = lines([*seeds, *means], f"{unit} over gradient steps", "gradient steps")
    named = {_title(result): series[result.record.algorithm] for result in results}
    table = html_table(("algorithm", "gradient steps: mean"), rows)
    return figure(picture, f"{unit}. Thin: each seed. Thick: their mean.", named) + folded(
        "The means as a table", [table]
    )


class Statistic(NamedTuple):
    """A statistic of methods, to be drawn.

    Attributes:
        title: What it is.
        estimates: Its values by the names of one method, or of two that are compared, in the order to draw.
        ends: Numbers that lie within the picture as well.
    """

    title: str
    estimates: dict[tuple[str, ...], Estimate]
    ends: tuple[float, ...] = (0,)


def statistics_of(comparison: Comparison) -> dict[str, list[Statistic]]:
    """Return the aggregates, ranks and probabilities of improvement of a comparison, as far as it has them."""
    ranking, ranks = comparison.ranking(), comparison.ranks
    names = next(iter(comparison.aggregates.values()))
    pairs = itertools.combinations(ranking, 2)
    found = {
        "aggregates": [
            Statistic(name, {(one,): comparison.aggregates[one][name] for one in comparison.methods}) for name in names
        ],
        "ranks": [
            Statistic(
                "mean rank over datasets (1 is best); from top to bottom: Kemeny's consensus",
                {(one,): ranks[one] for one in ranking if one in ranks},
                (1, len(ranks)),
            )
        ],
        "improvement": [
            Statistic(
                "probability that a run of the first scores above one of the second",
                {pair: comparison.improvement[pair] for pair in pairs},
                (0, 0.5, 1),
            )
        ],
    }
    return {name: some for name, some in found.items() if some[0].estimates}


def comparison_parts(
    comparison: Comparison, series: Mapping[str, int], titles: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return the aggregates, profiles, ranks and probabilities of improvement over common datasets, and a table.

    `titles` has names of methods for people, where these are not those of the algorithms.
    """
    titles = {one: algorithm_title(one) for one in comparison.methods} | dict(titles)
    statistics, ranks = statistics_of(comparison), comparison.ranks

    def picture(statistic: Statistic, title: str) -> str:
        rows = [
            Dot(
                name=" > ".join(titles[one] for one in names),
                value=one.value,
                interval=one.interval,
                series=series[names[0]],
            )
            for names, one in statistic.estimates.items()
        ]
        ends = statistic.ends
        return figure(dots(rows, title, digits=min(2, len(ends)), ends=ends), title)

    curves = [
        Line(
            xs=one.thresholds.tolist(),
            ys=one.shares.tolist(),
            series=series[method],
            band=None if one.band is None else (one.band[0].tolist(), one.band[1].tolist()),
        )
        for method, one in comparison.profiles.items()
    ]
    title = "share of runs above a normalized score, with its 95 % band"
    named = {titles[one]: series[one] for one in comparison.methods}
    figures = [
        *(picture(one, f"{one.title}, with its 95 % interval") for one in statistics["aggregates"]),
        figure(lines(curves, title, "normalized score"), title, named),
        *(picture(one, one.title) for one in statistics.get("ranks", ())),
        *(picture(one, one.title) for one in statistics.get("improvement", ())),
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
