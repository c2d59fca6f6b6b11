"""Pictures of a dataset and of results, as SVG text that a page can hold. Needs matplotlib."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orlog.algos.algorithms import algorithm_title
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import MissingExtraError
from orlog.experiments.reproducing import Result
from orlog.normalize.intervals import bootstrap_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, which color-blind readers can tell apart; then brown and gray.
_COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#8c564b",
    "#7f7f7f",
)
TRAJECTORIES = 60


def line_colors(names: Iterable[str]) -> dict[str, str]:
    """Return the color of each thing that is drawn: the first has the first color, and so on."""
    return dict(zip(dict.fromkeys(names), itertools.cycle(_COLORS), strict=False))


def dataset_picture(dataset: Dataset) -> Figure:
    """Return trajectories over the maze (where there is one) and histograms of return and length.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    maze = (dataset.manifest.environment.kwargs if dataset.manifest.environment else {}).get(
        "maze_map"
    )
    figure, axes = new_figure(3 if maze else 2, width=11.5 if maze else 7.5, height=3.6)
    if maze:
        _draw_trajectories(axes[0], dataset, maze)
    _histogram(axes[-2], dataset.column("episodes/returns"), "return of an episode")
    _histogram(axes[-1], dataset.episode_lengths, "length of an episode (steps)")
    return figure


def _draw_trajectories(axes: Axes, dataset: Dataset, maze: list[list[Any]]) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    half_width, half_height = len(maze[0]) / 2, len(maze) / 2
    for row, cells in enumerate(maze):
        for column, cell in enumerate(cells):
            x, y = column - half_width, half_height - row - 1
            if cell == 1:
                axes.add_patch(Rectangle((x, y), 1, 1, color="#3b4252", linewidth=0.5))
            elif cell == "g":
                axes.add_patch(Rectangle((x, y), 1, 1, color="#a3d9a5", linewidth=0))
                axes.text(x + 0.5, y + 0.5, "goal", ha="center", va="center", zorder=5)
    count = min(TRAJECTORIES, dataset.total_episodes)
    chosen = np.linspace(0, dataset.total_episodes - 1, count).astype(int)
    paths = []
    for index in chosen:
        observations = dataset[int(index)].observations
        assert isinstance(observations, dict)
        positions = observations["achieved_goal"]
        assert isinstance(positions, np.ndarray)
        paths.append(positions)
    lines = LineCollection(paths, linewidths=0.8, alpha=0.7, cmap="viridis", rasterized=True)
    lines.set_array(dataset.column("episodes/returns")[chosen])
    axes.add_collection(lines)
    axes.figure.colorbar(lines, ax=axes, label="return", shrink=0.8)
    axes.set_xlim(-half_width, half_width)
    axes.set_ylim(-half_height, half_height)
    axes.set_aspect("equal")
    axes.set_title(f"{count} of {dataset.total_episodes:,} episodes")
    axes.set_xlabel("x (m)")
    axes.set_ylabel("y (m)")


def _histogram(axes: Axes, values: np.ndarray, label: str) -> None:
    low, high = float(values.min()), float(values.max())
    bins = np.linspace(low - 0.5, high + 0.5, 31) if low == high else np.linspace(low, high, 41)
    axes.hist(values, bins=bins.tolist(), color="#1f6fb4")
    axes.set_xlabel(label)
    axes.set_ylabel("episodes")
    axes.set_title(f"mean {values.mean():,.1f}")


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


@contextlib.contextmanager
def own_style() -> Iterator[None]:
    """Draw in matplotlib's own style: equal numbers give equal pictures, whatever the user has set.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_plots()
    from matplotlib import style

    with style.context("default"):
        yield


def check_plots() -> None:
    """Check that pictures can be drawn.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(
            'plots need matplotlib, which is not installed; run: pip install "orlog[plots]"',
            extra="plots",
        )


def new_figure(
    count: int, *, width: float, height: float, in_row: int = 0
) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes side by side; width and height are in inches.

    With `in_row` they are those of each of the axes, and so many stand in a row.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_plots()
    from matplotlib.figure import Figure as NewFigure

    columns = min(count, in_row) or count
    rows = -(-count // columns)
    size = (width * columns, height * rows) if in_row else (width, height)
    figure = NewFigure(figsize=size, layout="constrained", dpi=140)
    every = figure.subplots(rows, columns, squeeze=False).flatten()
    axes = every[:count]
    for one in every[count:]:
        one.remove()
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)
