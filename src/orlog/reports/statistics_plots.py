"""Pictures of the statistics of methods: one for each statistic. Needs matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.looking.figures import check_plots, line_colors, new_figure
from orlog.errors import StorageError
from orlog.normalize.sequential import SequentialComparison
from orlog.normalize.statistics import Comparison, Estimate
from orlog.scoring.tuning_curves import TuneCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".png", ".svg")

_SOURCES = {"seeds": "#0072b2", "checkpoints": "#e69f00", "episodes": "#bbbbbb"}


def _score_label(is_normalized: bool) -> str:
    return "normalized score" if is_normalized else "return"


def _draw_estimates(
    axes: Axes, estimates: Mapping[str, Estimate], colors: Mapping[str, str]
) -> None:
    """Draw each estimate as a line on its interval, the first at the top."""
    for row, (name, one) in enumerate(estimates.items()):
        color = colors[name]
        if one.interval is not None:
            axes.plot(
                one.interval, [row, row], color=color, linewidth=9, alpha=0.4, solid_capstyle="butt"
            )
        axes.plot(one.value, row, "|", color=color, markersize=14, markeredgewidth=2)
    axes.set_yticks(range(len(estimates)), [algorithm_title(name) for name in estimates])
    axes.set_ylim(len(estimates) - 0.5, -0.5)


def aggregate_plot(
    comparison: Comparison, is_normalized: bool, colors: Mapping[str, str]
) -> Figure:
    """Return each aggregate of each method with its 95 % interval."""
    names = list(next(iter(comparison.aggregates.values())))
    height = 1.2 + 0.4 * len(comparison.methods)
    figure, axes = new_figure(len(names), width=3.2 * len(names), height=height)
    for index, (one, name) in enumerate(zip(axes, names, strict=True)):
        values = {method: comparison.aggregates[method][name] for method in comparison.methods}
        _draw_estimates(one, values, colors)
        one.set_title(name)
        one.set_xlabel(_score_label(is_normalized))
        if index:
            one.set_yticklabels([])
    return figure


def profile_plot(comparison: Comparison, is_normalized: bool, colors: Mapping[str, str]) -> Figure:
    """Return the performance profiles with their 95 % bands."""
    figure, (axes,) = new_figure(1, width=6.5, height=3.8)
    for method, one in comparison.profiles.items():
        color = colors[method]
        axes.plot(one.thresholds, one.shares, color=color, label=algorithm_title(method))
        if one.band is not None:
            axes.fill_between(one.thresholds, *one.band, color=color, alpha=0.2, linewidth=0)
    axes.set_xlabel(f"{_score_label(is_normalized)} (threshold)")
    axes.set_ylabel("share of runs above it")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    return figure


def improvement_plot(
    comparison: Comparison,
    is_normalized: bool,  # noqa: ARG001 (all plots are called alike)
    colors: Mapping[str, str],  # noqa: ARG001
) -> Figure:
    """Return the probability of improvement of each pair with its 95 % interval."""
    pairs = {
        f"{algorithm_title(first)} > {algorithm_title(second)}": comparison.improvement[
            first, second
        ]
        for first, second in itertools.combinations(comparison.ranking(), 2)
    }
    figure, (axes,) = new_figure(1, width=6.5, height=1.2 + 0.4 * len(pairs))
    _draw_estimates(axes, pairs, dict.fromkeys(pairs, "#444444"))
    axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability that a run of the first scores above one of the second")
    return figure


def rank_plot(
    comparison: Comparison,
    is_normalized: bool,  # noqa: ARG001 (all plots are called alike)
    colors: Mapping[str, str],
) -> Figure:
    """Return the mean ranks with their 95 % intervals, in the order of the consensus."""
    ranks = comparison.ranks
    ordered = {method: ranks[method] for method in comparison.ranking() if method in ranks}
    figure, (axes,) = new_figure(1, width=6.5, height=1.2 + 0.4 * len(ordered))
    _draw_estimates(axes, ordered, colors)
    axes.set_xlim(0.8, len(ordered) + 0.2)
    axes.set_xlabel("mean rank over tasks (1 is best); from top to bottom: Kemeny's consensus")
    return figure


def variance_plot(
    comparison: Comparison,
    is_normalized: bool,  # noqa: ARG001 (all plots are called alike)
    colors: Mapping[str, str],  # noqa: ARG001
) -> Figure:
    """Return the share of seeds, checkpoints and episodes in the variance, by method and task."""
    shares = {
        f"{algorithm_title(method)}, {task}": one.shares()
        for method, of_tasks in comparison.variances.items()
        for task, one in of_tasks.items()
        if one is not None
    }
    figure, (axes,) = new_figure(1, width=7.5, height=1.4 + 0.3 * len(shares))
    left = np.zeros(len(shares))
    for source, color in _SOURCES.items():
        widths = np.array([one.get(source, 0.0) for one in shares.values()])
        axes.barh(range(len(shares)), widths, left=left, color=color, label=source)
        left += widths
    axes.set_yticks(range(len(shares)), list(shares))
    axes.invert_yaxis()
    axes.set_xlabel("share of the variance of an episode's score (%)")
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


_DECISION_COLORS = {
    "above": "#009e73",
    "below": "#d55e00",
    "not told apart": "#dddddd",
    "needs seeds": "#ffffff",
}


def sequential_plot(decided: SequentialComparison) -> Figure:
    """Return the decision on each pair of methods: the row's method is above or below the column's."""
    check_plots()
    from matplotlib.patches import Rectangle

    methods = list(dict.fromkeys(name for pair in decided.decisions for name in pair))
    figure, (axes,) = new_figure(1, width=2 + 1.2 * len(methods), height=1 + 0.6 * len(methods))
    for (first, second), word in decided.decisions.items():
        row, column = methods.index(first), methods.index(second)
        mirrored = {"above": "below", "below": "above"}.get(word, word)
        for x, y, shown in ((column, row, word), (row, column, mirrored)):
            color = _DECISION_COLORS[shown]
            axes.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor="#999999")
            )
            axes.text(x, y, shown, ha="center", va="center", fontsize=8)
    axes.set_xlim(-0.5, len(methods) - 0.5)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_xticks(range(len(methods)), methods)
    axes.set_yticks(range(len(methods)), methods)
    axes.set_title(f"AdaStop after {decided.groups} groups of seeds")
    return figure


COMPARISON_PLOTS: Mapping[str, Callable[[Comparison, bool, Mapping[str, str]], Figure]] = {
    "aggregates": aggregate_plot,
    "profiles": profile_plot,
    "improvement": improvement_plot,
    "ranks": rank_plot,
    "variance": variance_plot,
}
"""Each picture of a comparison by the name of its file; called with the color of each method."""


def tune_plot(curves: Sequence[TuneCurve]) -> Figure:
    """Return what each method gives after so many episodes, and after so many whole settings."""
    check_plots()
    from matplotlib.ticker import MaxNLocator

    datasets = list(dict.fromkeys(one.dataset for one in curves))
    colors = line_colors(one.method for one in curves)
    figure, axes = new_figure(2 * len(datasets), width=8.5 * len(datasets), height=3.8)
    for one in curves:
        place = 2 * datasets.index(one.dataset)
        color = colors[one.method]
        episodes = np.arange(1, len(one.means) + 1)
        axes[place].semilogx(episodes, one.means, color=color, label=one.method)
        axes[place].fill_between(
            episodes, one.lows, one.highs, color=color, alpha=0.15, linewidth=0
        )
        settings = np.arange(1, len(one.expected_best) + 1)
        axes[place + 1].plot(settings, one.expected_best, "o-", color=color, label=one.method)
        axes[place].set_title(one.dataset)
        axes[place].set_xlabel("episodes of the bandit")
        axes[place].set_ylabel(f"{_score_label(one.is_normalized)} of the policy named best")
        axes[place + 1].xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[place + 1].set_xlabel("settings evaluated in full")
        axes[place + 1].set_ylabel(f"expected {_score_label(one.is_normalized)} of the best")
    axes[0].legend(frameon=False)
    return figure


def check_format(path: Path) -> None:
    """Refuse a file whose name ends in no format of pictures.

    Raises MissingExtraError if matplotlib is not installed; ValueError if the end of the file's name is
    another.
    """
    check_plots()
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"{path}: the name of a plot must end in one of {', '.join(FORMATS)}, which decides "
            "its format."
        )


def save_plot(figure: Figure, path: Path) -> None:
    """Write a picture; the end of the file's name decides its format.

    Raises StorageError if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write the plot: {error.strerror or error}.", errno=error.errno
        ) from error
