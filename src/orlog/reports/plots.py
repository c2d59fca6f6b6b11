"""Pictures of results, as SVG text that a page can hold. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.looking.figures import new_figure
from orlog.experiments.reproducing import Result
from orlog.normalize.intervals import bootstrap_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning_curves(results: Sequence[Result], colors: Mapping[str, str]) -> Figure:
    """Return the score (or return) over gradient steps: each seed thin, their mean thick.

    Args:
        results: One for each algorithm.
        colors: Color of each algorithm.
    """
    figure, (axes,) = new_figure(1, width=7.5, height=3.6)
    for result in results:
        color = colors[result.record.algorithm]
        curves = []
        for points in result.curves.values():
            steps = np.array([step for step, _ in points])
            values = np.array([mean for _, mean in points])
            if result.references is not None:
                values = result.references.normalize(values)
            # With markers, because a curve may have a single point.
            axes.plot(
                steps, values, color=color, linewidth=0.8, alpha=0.5, marker="o", markersize=2
            )
            curves.append((steps, values))
        if curves and len({len(steps) for steps, _ in curves}) == 1:
            axes.plot(
                curves[0][0],
                np.mean([values for _, values in curves], 0),
                color=color,
                linewidth=2.4,
                marker="o",
                markersize=4,
                label=algorithm_title(result.record.algorithm),
            )
    axes.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xlabel("gradient steps")
    axes.set_ylabel(_score_label(results))
    axes.legend(frameon=False)
    return figure


def score_picture(results: Sequence[Result], colors: Mapping[str, str]) -> Figure:
    """Return each algorithm's mean with its interval, each seed, and the recorded baseline.

    Args: `learning_curves`.
    """
    figure, (axes,) = new_figure(1, width=7.5, height=0.9 + 0.75 * len(results))
    names = []
    for row, result in enumerate(reversed(results)):
        color = colors[result.record.algorithm]
        values = result.returns if result.scores is None else result.scores
        interval = bootstrap_interval(values, np.random.default_rng(0))
        if interval is not None:
            axes.plot(interval, [row, row], color=color, linewidth=5, alpha=0.35)
        axes.plot(values.mean(1), [row] * len(values), ".", color=color, markersize=5)
        axes.plot(values.mean(), row, "o", color=color, markersize=9)
        if result.baseline is not None and result.references is not None:
            recorded = np.array(list(result.baseline.scores(result.references).values()))
            axes.plot(
                recorded.mean(),
                row - 0.28,
                "^",
                color="black",
                markersize=6,
                label="recorded baseline" if row == 0 else None,
            )
        names.append(algorithm_title(result.record.algorithm))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.5)
    axes.axvline(0, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xlabel(_score_label(results) + ": mean, 95 % interval, each seed")
    if any(result.baseline for result in results):
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
    return figure


def _score_label(results: Sequence[Result]) -> str:
    known = all(result.references is not None for result in results)
    return "normalized score (0 random, 100 expert)" if known else "return"


def to_svg(figure: Figure) -> str:
    """Return a figure as an `<svg>` element without anything before it."""
    import matplotlib as mpl

    buffer = io.StringIO()
    # The ids inside come from this salt, so that equal pictures are equal files.
    with mpl.rc_context({"svg.hashsalt": "orlog"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
