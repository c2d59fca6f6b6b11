"""Plots of statistics of methods, of tuning and of learning curves. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.looking.figures import check_plots, line_colors, new_figure
from orlog.errors import StorageError
from orlog.normalize.sequential import SequentialComparison
from orlog.normalize.statistics import Comparison
from orlog.runs.result_figures import UNIT, Statistic, statistics_of
from orlog.runs.run_groups import RunGroup
from orlog.runs.tuning_curves import TuneCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".png", ".svg")

_SOURCES = {"seeds": "#0072b2", "checkpoints": "#e69f00", "episodes": "#bbbbbb"}


def _score_label(is_normalized: bool) -> str:
    return "normalized score" if is_normalized else "return"


def estimates_plot(
    statistics: Sequence[Statistic], is_normalized: bool, colors: Mapping[str, str]
) -> Figure:
    """Return statistics beside each other: each value as a line on its 95 % interval, the first at the top."""
    rows = len(statistics[0].estimates)
    width = 3.2 * len(statistics) if len(statistics) > 1 else 6.5
    figure, axes = new_figure(len(statistics), width=width, height=1.2 + 0.4 * rows)
    for index, (one, statistic) in enumerate(zip(axes, statistics, strict=True)):
        for row, (names, estimate) in enumerate(statistic.estimates.items()):
            color = colors[names[0]]
            if estimate.interval is not None:
                one.plot(
                    estimate.interval,
                    [row, row],
                    color=color,
                    linewidth=9,
                    alpha=0.4,
                    solid_capstyle="butt",
                )
            one.plot(estimate.value, row, "|", color=color, markersize=14, markeredgewidth=2)
        labels = [" > ".join(map(algorithm_title, names)) for names in statistic.estimates]
        one.set_yticks(range(rows), [""] * rows if index else labels)
        one.set_ylim(rows - 0.5, -0.5)
        if len(statistic.ends) > 1:
            margin = 0.03 * (statistic.ends[-1] - statistic.ends[0])
            one.set_xlim(statistic.ends[0] - margin, statistic.ends[-1] + margin)
            one.set_xlabel(statistic.title)
            for end in statistic.ends[1:-1]:
                one.axvline(end, color="#999999", linewidth=0.8, linestyle=":")
        else:
            one.set_title(statistic.title)
            one.set_xlabel(_score_label(is_normalized))
    return figure


def profile_plot(comparison: Comparison, is_normalized: bool, colors: Mapping[str, str]) -> Figure:
    """Return the performance profiles with their 95 % bands."""
    figure, (axes,) = new_figure(1, width=6.5, height=3.8)
    for method, one in comparison.profiles.items():
        _draw_line(
            axes, one.thresholds, one.shares, one.band, colors[method], algorithm_title(method)
        )
    axes.set_xlabel(f"{_score_label(is_normalized)} (threshold)")
    axes.set_ylabel("share of runs above it")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False)
    return figure


def _draw_line(
    axes: Axes,
    xs: np.ndarray,
    ys: np.ndarray,
    band: tuple[np.ndarray, np.ndarray] | None,
    color: str,
    label: str,
) -> None:
    few = len(xs) <= 40  # a curve may have a single point
    axes.plot(xs, ys, color=color, label=label, marker="o" if few else "", markersize=3)
    if band is not None:
        axes.fill_between(xs, *band, color=color, alpha=0.2, linewidth=0)


def variance_plot(comparison: Comparison) -> Figure:
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


def comparison_plots(
    comparison: Comparison, is_normalized: bool, colors: Mapping[str, str]
) -> dict[str, Figure]:
    """Return each picture of a comparison that there is something to draw in, by the name of its file.

    `colors` has the color of each method.
    """
    figures = {
        name: estimates_plot(statistics, is_normalized, colors)
        for name, statistics in statistics_of(comparison).items()
    }
    figures["profiles"] = profile_plot(comparison, is_normalized, colors)
    if any(one for of_tasks in comparison.variances.values() for one in of_tasks.values()):
        figures["variance"] = variance_plot(comparison)
    return figures


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
        band = np.array(one.lows), np.array(one.highs)
        _draw_line(axes[place], episodes, np.array(one.means), band, color, one.method)
        axes[place].set_xscale("log")
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


def curves_plot(groups: Sequence[RunGroup], *, success: bool = False) -> Figure:
    """Return the score over gradient steps, beside each other for each dataset.

    With `success` it is the share of successful episodes, where the environment tells.

    A line is the mean over seeds, its band the interval of that mean at 95 %, where there are seeds
    enough; groups without a learning curve are left out.

    Raises ValueError if none has one; MissingExtraError if matplotlib is not installed.
    """
    drawn = [group for group in groups if len(group.curve(success=success)[0])]
    if not drawn and success:
        raise ValueError(
            "no run has a learning curve of successes: the environments do not tell, or the runs were "
            "trained without evaluations, or by an orlog that did not record them."
        )
    if not drawn:
        raise ValueError(
            "no run has a learning curve: they were trained without evaluations, or not far enough."
        )
    datasets = list(dict.fromkeys(group.shown_dataset for group in drawn))
    colors = line_colors(group.label for group in drawn)
    most = max(sum(group.shown_dataset == dataset for group in drawn) for dataset in datasets)
    figure, axes = new_figure(len(datasets), width=6.5, height=3.8 + 0.2 * most, in_row=3)
    for group in drawn:
        one = axes[datasets.index(group.shown_dataset)]
        steps, means, low, high = group.curve(success=success)
        count = sum(bool(run.success_points if success else run.points) for run in group.runs)
        label = f"{group.label} ({count} seed{'s' if count > 1 else ''})"
        _draw_line(one, steps, means, (low, high), colors[group.label], label)
    for one, dataset in zip(axes, datasets, strict=True):
        there = [group for group in drawn if group.shown_dataset == dataset]
        is_normalized = all(run.is_normalized for group in there for run in group.runs)
        one.set_title(dataset)
        one.set_xlabel("gradient steps")
        if success:
            one.set_ylabel("share of successful episodes")
            one.set_ylim(-0.02, 1.02)
        else:
            one.set_ylabel(UNIT if is_normalized else "return")
        # Below the axes, where it covers no curve.
        one.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize="small")
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
