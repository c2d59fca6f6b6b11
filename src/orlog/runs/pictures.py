"""Pictures as SVG text: dots with intervals, lines, bars, and paths through a maze.

They name classes of the pages' style sheet and hold no color, so that they follow the reader's theme.
Their width is that of a phone.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from orlog.datasets.looking.sparklines import histogram

WIDTH = 360
SERIES = 8  # colors that the style sheet has
MOST_POINTS = 1000
LARGEST = 1e300  # of what is drawn: NaN and infinite numbers are not
_EDGE = 5  # around a map
_LEFT, _RIGHT, _BOTTOM = 44, 352, 176  # where lines are drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dot:
    """A number as a dot: its interval is a bar, the numbers that it is the mean of are rings.

    `series` is the number of its color. `recorded` is an earlier number with its interval.
    """

    name: str
    value: float
    interval: tuple[float, float] | None
    series: int
    each: Sequence[float] = ()
    recorded: tuple[float, tuple[float, float] | None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points, with a band or none; a thin one stands behind others."""

    xs: Sequence[float]
    ys: Sequence[float]
    series: int
    band: tuple[Sequence[float], Sequence[float]] | None = None
    is_thin: bool = False


def series_of(names: Iterable[str]) -> dict[str, int]:
    """Return the number of each name's color: the first has the first, and so on."""
    return {name: index % SERIES for index, name in enumerate(dict.fromkeys(names))}


def dots(rows: Sequence[Dot], label: str, *, digits: int = 1, ends: Sequence[float] = (0,)) -> str:
    """Return dots below each other, each under its name; `ends` lie within the picture as well."""
    shown = [*ends]
    for row in rows:
        recorded, around = row.recorded or (row.value, None)
        shown += [row.value, *row.each, *(row.interval or ()), recorded, *(around or ())]
    low, high = min(shown), max(shown)
    scale = (WIDTH - 56) / ((high - low) or 1)  # the numbers stand on the right
    tall = [46 if row.recorded else 36 for row in rows]
    bottom = sum(tall) + 4

    def at(value: float) -> str:
        return _number(8 + (value - low) * scale)

    drawn = [_line(at(one), 0, at(one), bottom, "dotted") for one in ends if low <= one <= high]
    top = 0
    for row, height in zip(rows, tall, strict=True):
        y = top + 24
        parts = [
            _text(0, top + 13, row.name),
            _text(WIDTH, top + 13, f"{row.value:z.{digits}f}", "end"),
        ]
        if row.interval is not None:
            parts.append(_line(at(row.interval[0]), y, at(row.interval[1]), y, "interval"))
        parts += [f'<circle class="seed" cx="{at(one)}" cy="{y}" r="2"/>' for one in row.each]
        parts.append(f'<circle class="dot" cx="{at(row.value)}" cy="{y}" r="4.5"/>')
        if row.recorded is not None:
            value, interval = row.recorded
            if interval is not None:
                parts.append(_line(at(interval[0]), y + 11, at(interval[1]), y + 11, "recorded"))
            x = at(value)
            parts.append(f'<path class="recorded" d="M{x} {y + 6}l5 5l-5 5l-5 -5z"/>')
        drawn.append(f'<g class="c{row.series}">{"".join(parts)}</g>')
        top += height
    anchors = {low: "start", high: "end"}  # what stands at an end does not leave the picture
    drawn += [
        _text(8 + (one - low) * scale, bottom + 12, f"{one:,.3g}", anchors.get(one, "middle"))
        for one in (ends if len(ends) > 1 else (low, high))
    ]
    said = ", ".join(
        f"{row.name} {row.value:z.{digits}f}"
        + (f" (recorded: {row.recorded[0]:z.{digits}f})" if row.recorded else "")
        for row in rows
    )
    return _picture(bottom + 16, f"{label}: {said}", drawn)


def lines(
    curves: Sequence[Line], label: str, across: str, place: tuple[float, float] | None = None
) -> str:
    """Return lines over what `across` says; `place` is a range of it that is marked."""
    left, right = _ends(value for one in curves for value in one.xs)
    drawn_ys = [values for one in curves for values in (one.ys, *(one.band or ()))]
    low, high = _ends(value for values in drawn_ys for value in values)

    def across_at(value: float) -> str:
        return _number(_LEFT + (value - left) / (right - left) * (_RIGHT - _LEFT))

    def up_at(value: float) -> str:
        return _number(_BOTTOM - (value - low) / (high - low) * (_BOTTOM - 10))

    def points(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
        pairs = zip(xs, ys, strict=True)
        return [f"{across_at(x)} {up_at(y)}" for x, y in pairs if abs(y) < LARGEST]

    drawn = []
    if place is not None:
        first, last = (max(left, min(right, value)) for value in place)
        width = float(across_at(last)) - float(across_at(first))
        drawn.append(
            f'<rect class="place" x="{across_at(first)}" y="4" width="{_number(width)}" height="172"/>'
        )
    for value in _ticks(low, high):
        drawn.append(_line(str(_LEFT), up_at(value), str(_RIGHT), up_at(value), "axis"))
        drawn.append(_text(_LEFT - 4, float(up_at(value)) + 4, f"{value:,.7g}", "end"))
    drawn += [
        _text(float(across_at(value)), _BOTTOM + 14, f"{value:,.7g}", "middle")
        for value in _ticks(left, right)
    ]
    drawn.append(_text(_RIGHT, _BOTTOM + 29, across, "end"))
    for one in curves:
        inner = ""
        if one.band is not None:
            around = points(one.xs, one.band[0]) + points(one.xs, one.band[1])[::-1]
            inner = f'<path class="band" d="M{"L".join(around)}z"/>'
        there = points(one.xs, one.ys)
        thin = " thin" if one.is_thin else ""
        if there:
            inner += f'<path class="curve{thin}" d="M{"L".join(there)}"/>'
        if len(there) <= 40 and not one.is_thin:  # also because a curve may have a single point
            inner += "".join(
                '<circle class="dot" cx="{}" cy="{}" r="2.5"/>'.format(*point.split())
                for point in there
            )
        drawn.append(f'<g class="c{one.series}">{inner}</g>')
    return _picture(_BOTTOM + 34, label, drawn)


def bars(values: np.ndarray, label: str) -> str:
    """Return how numbers are spread, as bars."""
    values = values[np.abs(values) < LARGEST]
    if not len(values):
        return ""
    spread = histogram(values, 30)
    counts, (low, high) = spread.counts, spread[-2:]
    step = WIDTH / len(counts)
    drawn = [
        f'<rect class="bar-fill" x="{_number(index * step)}" y="{_number(100 - tall)}" '
        f'width="{_number(step - 1)}" height="{_number(tall)}"/>'
        for index, tall in enumerate(counts / counts.max() * 80)
    ]
    drawn += [_line("0", 100, str(WIDTH), 100, "axis"), _text(0, 12, f"tallest: {counts.max():,}")]
    drawn += [_text(0, 114, f"{low:,.4g}"), _text(WIDTH, 114, f"{high:,.4g}", "end")]
    return _picture(118, f"{label}: {low:,.4g} to {high:,.4g}", drawn)


def path_map(places: np.ndarray, label: str, end: str, maze: list[list[Any]] | None = None) -> str:
    """Return places (steps, 2) as a path, in meters over the maze where there is one.

    Its end is filled where the task ended (`terminated`), a frame where it was cut off, or nothing.
    """
    places = np.asarray(places, np.float64)
    places = places[(np.abs(places) < LARGEST).all(1)]
    places = places[np.unique(np.linspace(0, len(places) - 1, MOST_POINTS).astype(int))]
    (left, right), (low, high) = _ends(places[:, 0].tolist()), _ends(places[:, 1].tolist())
    if maze:
        right, high = len(maze[0]) / 2, len(maze) / 2
        left, low = -right, -high
    scale = (WIDTH - 2 * _EDGE) / max(right - left, high - low)
    up = float(_number((high - low) * scale + 2 * _EDGE))

    def at(x: float, y: float) -> tuple[str, str]:
        return _number(WIDTH / 2 + (x - (left + right) / 2) * scale), _number(
            up - _EDGE - (y - low) * scale
        )

    drawn = []
    for row, cells in enumerate(maze or []):
        for column, cell in enumerate(cells):
            if cell in (1, "g"):
                x, y = at(left + column, high - row)
                kind, side = "wall" if cell == 1 else "goal", _number(scale)
                drawn.append(
                    f'<rect class="{kind}" x="{x}" y="{y}" width="{side}" height="{side}"/>'
                )
    points = [at(x, y) for x, y in places.tolist()]
    drawn.append(f'<path class="curve c0" d="M{"L".join(map(" ".join, points))}"/>')
    (x, y), (last_x, last_y) = points[0], points[-1]
    drawn.append(f'<circle class="recorded" cx="{x}" cy="{y}" r="4"/>')
    if end:
        kind = "end" if end == "terminated" else "recorded"
        x, y = _number(float(last_x) - 4), _number(float(last_y) - 4)
        drawn.append(f'<rect class="{kind}" x="{x}" y="{y}" width="8" height="8"/>')
    return _picture(up, label, drawn)


def _picture(height: float, label: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg class="picture" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        f'role="img" aria-label="{html.escape(label)}">{"".join(drawn)}</svg>'
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
    return f"<text {place}>{html.escape(words)}</text>"


def _line(x1: str, y1: object, x2: str, y2: object, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _number(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"


def _ends(numbers: Iterable[float]) -> tuple[float, float]:
    values = [value for value in numbers if abs(value) < LARGEST]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    half = max(0.5, abs(low) * 1e-6)  # of equal numbers
    return (low, high) if high - low > 1 / LARGEST else (low - half, high + half)


def _ticks(low: float, high: float) -> list[float]:
    """Return about four round numbers between two."""
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 4)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
