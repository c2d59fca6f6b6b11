"""Figures of datasets and episodes, and what all figures share. Needs matplotlib."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from orlog.datasets.looking.leaves import as_picture, dimensions_of, frames_of, maze_of, paths_of
from orlog.datasets.looking.sparklines import histogram
from orlog.errors import needing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orlog.datasets.columns.episode import Episode
    from orlog.datasets.reading.dataset import Dataset

# Okabe and Ito's colors, which color-blind readers can tell apart; then brown and gray.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b", "#7f7f7f")
TRAJECTORIES = 60
MOST_LINES, MOST_NAMED = 24, 8  # of one column
FRAMES = 4
BINS = 40


def line_colors(names: Iterable[str]) -> dict[str, str]:
    """Return the color of each thing that is drawn: the first has the first color, and so on."""
    return dict(zip(dict.fromkeys(names), itertools.cycle(_COLORS), strict=False))


def dataset_picture(dataset: Dataset) -> Figure:
    """Return trajectories over the maze (where there is one) and histograms of return and length."""
    maze = maze_of(dataset.manifest.environment)
    figure, axes = new_figure(3 if maze else 2, width=11.5 if maze else 7.5, height=3.6)
    if maze:
        _draw_trajectories(axes[0], dataset, maze)
    _histogram(axes[-2], dataset.column("episodes/returns"), "return of an episode")
    _histogram(axes[-1], dataset.episode_lengths, "length of an episode (steps)")
    return figure


def episode_picture(episode: Episode) -> Figure:
    """Return the course of an episode: rewards and returns-to-go, actions, each column, and frames.

    A column's dimensions share one plot; a dotted line is where the task ended, a dashed one where the
    episode was cut off.

    Raises MissingExtraError if matplotlib is not installed.
    """
    lines: dict[str, list[tuple[str, np.ndarray]]] = {}
    for name, values in dimensions_of(episode):
        column, _, place = name.partition("[")
        lines.setdefault(column, []).append((place.removesuffix("]"), values))
    frames = frames_of(episode)
    count = len(lines) + len(frames)
    figure, axes = new_figure(count, width=4.6, height=2.2, in_row=min(count, 3))
    end = len(episode.rewards)
    for panel, (column, dimensions) in zip(axes, lines.items(), strict=False):
        for place, values in dimensions[:MOST_LINES]:
            panel.plot(np.arange(len(values)), values, linewidth=1, label=place)
        if 1 < len(dimensions) <= MOST_NAMED:
            panel.legend(frameon=False, fontsize="x-small", ncols=2)
        more = len(dimensions) - MOST_LINES
        panel.set_title(column + (f" (and {more} more)" if more > 0 else ""), fontsize="small")
        panel.set_xlabel("step", fontsize="small")
        if episode.terminations[-1:].any():
            panel.axvline(end, color="black", linewidth=0.8, linestyle=":")
        elif episode.truncations[-1:].any():
            panel.axvline(end, color="black", linewidth=0.8, linestyle="--")
    for panel, (column, rows) in zip(axes[len(lines) :], frames.items(), strict=True):
        chosen = np.linspace(0, len(rows) - 1, min(FRAMES, len(rows))).round().astype(int)
        strip = np.concatenate([as_picture(rows[row]) for row in chosen], axis=1)
        panel.imshow(strip, cmap="gray")
        panel.set_title(f"{column}, steps {', '.join(map(str, chosen))}", fontsize="small")
        panel.axis("off")
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
    chosen, paths = paths_of(dataset, TRAJECTORIES)
    lines = LineCollection(paths, linewidths=0.8, alpha=0.7, cmap="viridis", rasterized=True)
    lines.set_array(dataset.column("episodes/returns")[chosen])
    axes.add_collection(lines)
    axes.figure.colorbar(lines, ax=axes, label="return", shrink=0.8)
    axes.set_xlim(-half_width, half_width)
    axes.set_ylim(-half_height, half_height)
    axes.set_aspect("equal")
    axes.set_title(f"{len(paths)} of {dataset.total_episodes:,} episodes")
    axes.set_xlabel("x (m)")
    axes.set_ylabel("y (m)")


def _histogram(axes: Axes, values: np.ndarray, label: str) -> None:
    finite = values[np.isfinite(values)]
    if len(finite):
        drawn = histogram(finite, BINS)
        edges = np.linspace(drawn.low, drawn.high, len(drawn.counts) + 1)
        axes.stairs(drawn.counts, edges, fill=True, color="#1f6fb4")
    axes.set_xlabel(label)
    axes.set_ylabel("episodes")
    axes.set_title(f"mean {values.mean():z,.1f}")


def check_plots() -> None:
    """Check that pictures can be drawn: that matplotlib is installed."""
    with needing("plots need matplotlib", "orlog[plots]"):
        import matplotlib as mpl  # noqa: F401


def new_figure(count: int, *, width: float, height: float, in_row: int = 0) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes side by side; width and height are in inches.

    With `in_row` they are those of each of the axes, and so many stand in a row.
    """
    check_plots()
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A figure that a notebook shows as a picture; others it shows only once pyplot was imported."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    columns = min(count, in_row) or count
    rows = -(-count // columns)
    size = (width * columns, height * rows) if in_row else (width, height)
    figure = ShownFigure(figsize=size, layout="constrained", dpi=140)
    every = figure.subplots(rows, columns, squeeze=False).flatten()
    axes = every[:count]
    for axes_left in every[count:]:
        axes_left.remove()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)
