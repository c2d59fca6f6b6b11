"""Plots of statistics of methods, of tuning and of learning curves, for papers. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.base.files import storage_errors
from orlog.datasets.looking.figures import check_plots, line_colors, new_figure
from orlog.normalize.statistics import Comparison, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNIT = "normalized score (0 random, 100 expert)"
FORMATS = (".pdf", ".png", ".svg")
SOURCES = {"seeds": "#0072b2", "checkpoints": "#e69f00", "episodes": "#bbbbbb"}


class Statistic(NamedTuple):
    """A statistic of methods, to be drawn."""

    title: str
    estimates: dict[tuple[str, ...], Estimate]  # by one method, or two that are compared, in the order to draw
    ends: tuple[float, ...] = (0,)  # numbers that lie within the picture as well


class Curve(NamedTuple):
    """A learning curve: the mean over the seeds of a setting, with the interval of that mean at 95 %."""

    dataset: str
    label: str  # algorithm and settings
    title: str  # the same with the number of seeds
    steps: np.ndarray
    means: np.ndarray
    band: tuple[np.ndarray, np.ndarray]
    is_normalized: bool


def statistics_of(comparison: Comparison) -> dict[str, list[Statistic]]:
    """Return the aggregates, ranks and probabilities of improvement of a comparison, as far as it has them."""
    ranking, ranks = comparison.ranking(), comparison.ranks
    names = next(iter(comparison.aggregates.values()))
    pairs = itertools.combinations(ranking, 2)
    statistics = {
        "aggregates": [
            Statistic(name, {(method,): comparison.aggregates[method][name] for method in comparison.methods})
            for name in names
        ],
        "ranks": [
            Statistic(
                "mean rank over datasets (1 is best)",
                {(method,): ranks[method] for method in ranking if method in ranks},
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
    return {name: some for name, some in statistics.items() if some[0].estimates}


def comparison_plots(comparison: Comparison, is_normalized: bool, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return each picture of a comparison that there is something to draw in, by the name of its file."""
    score = "normalized score" if is_normalized else "return"
    figures = {name: _estimates(statistics, score, colors) for name, statistics in statistics_of(comparison).items()}
    figures["profiles"], (axes,) = new_figure(1, width=6.5, height=3.8)
    for method, profile in comparison.profiles.items():
        _draw_line(axes, profile.thresholds, profile.shares, profile.band, colors[method], algorithm_title(method))
    axes.set(xlabel=f"{score} (threshold)", ylabel="share of runs above it", ylim=(0, 1))
    axes.legend(frameon=False)
    shares = {
        f"{algorithm_title(method)}, {task}": split.shares()
        for method, of_tasks in comparison.variances.items()
        for task, split in of_tasks.items()
        if split is not None
    }
    if shares:
        figures["variance"] = _shares(shares)
    return figures


def _estimates(statistics: Sequence[Statistic], score: str, colors: Mapping[str, str]) -> Figure:
    """Return statistics beside each other: each value as a line on its 95 % interval, the first at the top."""
    rows = len(statistics[0].estimates)
    width = 3.2 * len(statistics) if len(statistics) > 1 else 6.5
    figure, axes = new_figure(len(statistics), width=width, height=1.2 + 0.4 * rows)
    for panel, statistic in zip(axes, statistics, strict=True):
        for row, (names, estimate) in enumerate(statistic.estimates.items()):
            color = colors[names[0]]
            if estimate.interval is not None:
                panel.plot(estimate.interval, [row, row], color=color, linewidth=9, alpha=0.4, solid_capstyle="butt")
            panel.plot(estimate.value, row, "|", color=color, markersize=14, markeredgewidth=2)
        labels = [" > ".join(map(algorithm_title, names)) for names in statistic.estimates]
        panel.set_yticks(range(rows), labels if panel is axes[0] else [""] * rows)
        panel.set_ylim(rows - 0.5, -0.5)
        if len(statistic.ends) > 1:
            first, *middle, last = statistic.ends
            margin = 0.03 * (last - first)
            panel.set(xlim=(first - margin, last + margin), xlabel=statistic.title)
            for end in middle:
                panel.axvline(end, color="#999999", linewidth=0.8, linestyle=":")
        else:
            panel.set(title=statistic.title, xlabel=score)
    return figure


def _shares(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    figure, (axes,) = new_figure(1, width=7.5, height=1.4 + 0.3 * len(shares))
    left = np.zeros(len(shares))
    for source, color in SOURCES.items():
        widths = np.array([parts.get(source, 0.0) for parts in shares.values()])
        axes.barh(range(len(shares)), widths, left=left, color=color, label=source)
        left += widths
    axes.set_yticks(range(len(shares)), list(shares))
    axes.invert_yaxis()
    axes.set_xlabel("share of the variance of an episode's score (%)")
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def tune_plot(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Return what each method gives after so many episodes, and after so many whole settings (`tune_curves`)."""
    check_plots()
    from matplotlib.ticker import MaxNLocator

    datasets = list(dict.fromkeys(curve["dataset"] for curve in curves))
    colors = line_colors(curve["method"] for curve in curves)
    figure, axes = new_figure(2 * len(datasets), width=8.5 * len(datasets), height=3.8)
    for curve in curves:
        left, right = axes[2 * datasets.index(curve["dataset"]) :][:2]
        method, means, best = curve["method"], np.array(curve["means"]), curve["expected_best"]
        score = "normalized score" if curve["is_normalized"] else "return"
        band = np.array(curve["lows"]), np.array(curve["highs"])
        _draw_line(left, np.arange(1, len(means) + 1), means, band, colors[method], method)
        left.set(title=curve["dataset"], xlabel="episodes of the bandit", xscale="log")
        left.set(ylabel=f"{score} of the policy named best")
        right.plot(range(1, len(best) + 1), best, "o-", color=colors[method], label=method)
        right.set(xlabel="settings evaluated in full", ylabel=f"expected {score} of the best")
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(frameon=False)
    return figure


def curves_plot(curves: Sequence[Curve], *, success: bool = False) -> Figure:
    """Return learning curves over gradient steps, beside each other for each dataset."""
    if not curves:
        raise ValueError(
            "no run has a learning curve of successes: the environments do not tell, or there were no evaluations."
            if success
            else "no run has a learning curve: they were trained without evaluations, or not far enough."
        )
    colors = line_colors(curve.label for curve in curves)
    drawn: dict[str, list[Curve]] = {}
    for curve in curves:
        drawn.setdefault(curve.dataset, []).append(curve)
    most = max(map(len, drawn.values()))
    figure, axes = new_figure(len(drawn), width=6.5, height=3.8 + 0.2 * most, in_row=3)
    for panel, (dataset, there) in zip(axes, drawn.items(), strict=True):
        for curve in there:
            _draw_line(panel, curve.steps, curve.means, curve.band, colors[curve.label], curve.title)
        unit = UNIT if all(curve.is_normalized for curve in there) else "return"
        panel.set(title=dataset, xlabel="gradient steps", ylabel=unit)
        if success:
            panel.set(ylabel="share of successful episodes", ylim=(-0.02, 1.02))
        # Below the axes, where it covers no curve.
        panel.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize="small")
    return figure


def _draw_line(
    axes: Axes, xs: np.ndarray, ys: np.ndarray, band: tuple[np.ndarray, np.ndarray] | None, color: str, label: str
) -> None:
    few = len(xs) <= 40  # a curve may have a single point
    axes.plot(xs, ys, color=color, label=label, marker="o" if few else "", markersize=3)
    if band is not None:
        axes.fill_between(xs, *band, color=color, alpha=0.2, linewidth=0)


def check_format(path: Path) -> None:
    """Refuse a file whose name ends in no format of pictures."""
    check_plots()
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"{path}: the name of a plot must end in one of {', '.join(FORMATS)}, which decides its format."
        )


def save_plot(figure: Figure, path: Path) -> None:
    """Write a picture; the end of the file's name decides its format."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
