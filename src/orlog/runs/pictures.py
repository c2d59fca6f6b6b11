"""Pictures as SVG text, and self-contained HTML pages of them in the viewer's look: no scripts, no external links.

Pictures name classes of the pages' style sheet and hold no color, so that they follow the reader's theme.
Their width is that of a phone.
"""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from orlog.base.files import make_folder, replace_file, storage_errors
from orlog.datasets.looking.sparklines import Histogram

WIDTH = 360
SERIES = 8  # colors that the style sheet has
MOST_POINTS = 1000
LARGEST = 1e300  # of what is drawn: NaN and infinite numbers are not
_EDGE = 5  # around a map
_LEFT, _RIGHT, _BOTTOM = 44, 352, 176  # where lines are drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dot:
    """A number as a dot: its interval is a bar, the numbers that it is the mean of are rings."""

    name: str
    value: float
    interval: tuple[float, float] | None
    series: int  # number of its color
    each: Sequence[float] = ()
    recorded: tuple[float, tuple[float, float] | None] | None = None  # an earlier number with its interval
    note: str = ""  # shown where the pointer is over it

    @property
    def numbers(self) -> list[float]:
        """All numbers that are drawn."""
        recorded, around = self.recorded or (self.value, None)
        return [self.value, *self.each, *(self.interval or ()), recorded, *(around or ())]


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


def dots(
    rows: Sequence[Dot], label: str, *, digits: int = 1, ends: Sequence[float] = (0,), scale: Sequence[float] = ()
) -> str:
    """Return dots below each other, each under its name, over an axis."""
    low, high = _ends([*ends, *scale, *(number for row in rows for number in row.numbers)])
    unit = (WIDTH - 56) / (high - low)  # the numbers stand on the right
    bottom = sum(46 if row.recorded else 36 for row in rows) + 4

    def at(value: float) -> float:
        return 8 + (value - low) * unit

    drawn = []
    for mark in sorted({*_ticks(low, high), *ends}):
        kind = "axis strong" if mark in ends else "axis"
        drawn.append(_line(at(mark), 0, at(mark), bottom, kind))
        anchor = "start" if at(mark) < 12 else "middle"
        drawn.append(_text(at(mark), bottom + 12, f"{mark:,.3g}", anchor, "faint"))
    top = 0
    for row in rows:
        y = top + 24
        parts = [f"<title>{html.escape(row.note)}</title>"] if row.note else []
        parts += [_text(0, top + 13, row.name), _text(WIDTH, top + 13, f"{row.value:z.{digits}f}", "end")]
        if row.interval is not None:
            parts.append(_line(at(row.interval[0]), y, at(row.interval[1]), y, "interval"))
        parts += [_shape("circle", "seed", cx=at(value), cy=y, r=2) for value in row.each]
        parts.append(_shape("circle", "dot", cx=at(row.value), cy=y, r=4.5))
        if row.recorded is not None:
            value, interval = row.recorded
            if interval is not None:
                parts.append(_line(at(interval[0]), y + 11, at(interval[1]), y + 11, "recorded"))
            diamond = f"M{_number(at(value))} {y + 6}l5 5l-5 5l-5 -5z"
            parts.append(_shape("path", "recorded", d=diamond))
        drawn.append(f'<g class="c{row.series}">{"".join(parts)}</g>')
        top += 46 if row.recorded else 36
    words = ", ".join(
        f"{row.name} {row.value:z.{digits}f}" + (f" (recorded: {row.recorded[0]:z.{digits}f})" if row.recorded else "")
        for row in rows
    )
    return _picture(bottom + 16, f"{label}: {words}", drawn)


def lines(
    curves: Sequence[Line],
    label: str,
    across: str,
    place: tuple[float, float] | None = None,
    scale: Sequence[float] = (),
) -> str:
    """Return lines over what `across` says; `place` is a range of it that is marked."""
    left, right = _ends(value for curve in curves for value in curve.xs)
    drawn_ys = [values for curve in curves for values in (curve.ys, *(curve.band or ()))]
    low, high = _ends([*scale, *(value for values in drawn_ys for value in values)])

    def across_at(value: float) -> float:
        return _LEFT + (value - left) / (right - left) * (_RIGHT - _LEFT)

    def up_at(value: float) -> float:
        return _BOTTOM - (value - low) / (high - low) * (_BOTTOM - 10)

    def points(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
        pairs = zip(xs, ys, strict=True)
        return [(across_at(x), up_at(y)) for x, y in pairs if abs(y) < LARGEST]

    drawn = []
    if place is not None:
        first, last = (across_at(max(left, min(right, value))) for value in place)
        drawn.append(_shape("rect", "place", x=first, y=4, width=last - first, height=172))
    for value in _ticks(low, high):
        drawn.append(_line(_LEFT, up_at(value), _RIGHT, up_at(value), "axis"))
        drawn.append(_text(_LEFT - 4, up_at(value) + 4, f"{value:,.7g}", "end"))
    drawn += [_text(across_at(value), _BOTTOM + 14, f"{value:,.7g}", "middle") for value in _ticks(left, right)]
    drawn.append(_text(_RIGHT, _BOTTOM + 29, across, "end"))
    for curve in curves:
        inner = ""
        if curve.band is not None:
            around = points(curve.xs, curve.band[0]) + points(curve.xs, curve.band[1])[::-1]
            inner = _shape("path", "band", d=f"{_path(around)}z")
        there = points(curve.xs, curve.ys)
        if there:
            inner += _shape("path", "curve thin" if curve.is_thin else "curve", d=_path(there))
        if len(there) <= 40 and not curve.is_thin:  # also because a curve may have a single point
            inner += "".join(_shape("circle", "dot", cx=x, cy=y, r=2.5) for x, y in there)
        drawn.append(f'<g class="c{curve.series}">{inner}</g>')
    return _picture(_BOTTOM + 34, label, drawn)


def bars(spread: Histogram, label: str) -> str:
    """Return how numbers are spread, as bars."""
    step = WIDTH / len(spread.counts)
    width = (spread.high - spread.low) / len(spread.counts)
    drawn = []
    for index, count in enumerate(spread.counts.tolist()):
        tall = count / max(1, spread.counts.max()) * 80
        first, last = spread.low + index * width, spread.low + (index + 1) * width
        if spread.whole:
            first, last = first + 0.5, last - 0.5
        words = f"{first:,.5g}" if spread.whole == 1 else f"{first:,.5g} to {last:,.5g}"
        bar = _shape("rect", "bar-fill", x=index * step, y=100 - tall, width=step - 1, height=tall)
        drawn.append(f"{bar.removesuffix('/>')}><title>{count:,}: {words}</title></rect>")
    drawn += [
        _line(0, 100, WIDTH, 100, "axis"),
        _text(0, 12, f"tallest: {spread.counts.max():,}", kind="faint"),
        _text(0, 114, f"{spread.least:,.4g}"),
    ]
    if spread.most > spread.least:
        drawn.append(_text(WIDTH, 114, f"{spread.most:,.4g}", "end"))
    return _picture(118, f"{label}: {spread.least:,.4g} to {spread.most:,.4g}", drawn)


def path_map(places: np.ndarray, label: str, end: str, maze: list[list[Any]] | None = None) -> str:
    """Return places (steps, 2) as a path, in meters over the maze where there is one."""
    places = np.asarray(places, np.float64)
    places = places[(np.abs(places) < LARGEST).all(1)]
    places = places[np.unique(np.linspace(0, len(places) - 1, MOST_POINTS).astype(int))]
    (left, right), (low, high) = _ends(places[:, 0].tolist()), _ends(places[:, 1].tolist())
    if maze:
        right, high = len(maze[0]) / 2, len(maze) / 2
        left, low = -right, -high
    scale = (WIDTH - 2 * _EDGE) / max(right - left, high - low)
    up = (high - low) * scale + 2 * _EDGE

    def at(x: float, y: float) -> tuple[float, float]:
        return WIDTH / 2 + (x - (left + right) / 2) * scale, up - _EDGE - (y - low) * scale

    drawn = []
    for row, cells in enumerate(maze or []):
        for column, cell in enumerate(cells):
            if cell in (1, "g"):
                x, y = at(left + column, high - row)
                kind = "wall" if cell == 1 else "goal"
                drawn.append(_shape("rect", kind, x=x, y=y, width=scale, height=scale))
    points = [at(x, y) for x, y in places.tolist()]
    drawn.append(_shape("path", "curve c0", d=_path(points)))
    (x, y), (last_x, last_y) = points[0], points[-1]
    drawn.append(_shape("circle", "recorded", cx=x, cy=y, r=4))
    if end:
        kind = "end" if end == "terminated" else "recorded"
        drawn.append(_shape("rect", kind, x=last_x - 4, y=last_y - 4, width=8, height=8))
    return _picture(up, label, drawn)


def _picture(height: float, label: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg class="picture" viewBox="0 0 {WIDTH} {_number(height)}" width="{WIDTH}" '
        f'height="{_number(height)}" role="img" aria-label="{html.escape(label)}">{"".join(drawn)}</svg>'
    )


def _shape(name: str, kind: str, **attributes: float | str) -> str:
    words = "".join(
        f' {key}="{value if isinstance(value, str) else _number(value)}"' for key, value in attributes.items()
    )
    return f'<{name} class="{kind}"{words}/>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return _shape("line", kind, x1=x1, y1=y1, x2=x2, y2=y2)


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    place = f'class="{kind}" x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
    return f"<text {place}>{html.escape(words)}</text>"


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def _number(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"


def _ends(numbers: Iterable[float]) -> tuple[float, float]:
    values = [value for value in numbers if abs(value) < LARGEST]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    half = max(0.5, abs(low) * 1e-6)  # of equal numbers
    return (low, high) if high - low > 1 / LARGEST else (low - half, high + half)


def _ticks(low: float, high: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 4)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


# Pages.

_STYLE = Path(__file__).parents[1] / "viewer" / "page" / "shared.css"
HOW_TO_READ = '<a href="#how-to-read">How to read this</a>'
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title><style>
{style}</style></head>
<body><main class="sheet">
<h1>{name}</h1>
{body}
</main></body></html>
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return the text of a page; its parts are HTML, the title is text and its heading too."""
    style = _STYLE.read_text("utf-8")
    return PAGE.format(name=html.escape(title), style=style, body="\n".join(parts))


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page, and the folder that it is to lie in."""
    with storage_errors(path):
        make_folder(path.parent)
        replace_file(path, page(title, parts).encode())


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of a text; its kind is a class of the style sheet."""
    return f'<p class="{kind}">{html.escape(text)}</p>'


def html_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    links: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a table of texts; the columns in `numbers` are aligned to the right."""

    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(cell(tag, *pair) for pair in enumerate(cells))}</tr>\n"

    def cell(tag: str, index: int, text: str) -> str:
        kind = "number" if index in numbers else "long" if len(text) > 24 else ""
        kind = "breaks" if re.search(r"\S{25}", text) else kind
        inner = html.escape(text)
        if text in links:
            inner = f'<a href="{html.escape(links[text])}">{inner}</a>'
        return f'<{tag} class="{kind}">{inner}</{tag}>'

    label = html.escape(", ".join(filter(None, headings)) or "facts")
    body = "".join(row("td", cells) for cells in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table>\n'
        f"<thead>{row('th', headings)}</thead>\n<tbody>{body}</tbody></table></div>"
    )


def pictures(figures: Iterable[str]) -> str:
    """Return figures side by side, as far as there is room; without any, nothing."""
    there = "\n".join(filter(None, figures))
    return there and f'<div class="pictures">{there}</div>'


def figure(picture: str, caption: str, series: Mapping[str, int] | None = None, kind: str = "") -> str:
    """Return a picture, or pictures, with a text below; `series` has the number of each line by its name."""
    named = "".join(
        f'<span><i class="swatch c{number}"></i>{html.escape(name)}</span> ' for name, number in (series or {}).items()
    )
    words = f"<figcaption>{named}{html.escape(caption)}</figcaption>"
    return f'<figure class="{kind}">{picture}{words}</figure>'


def folded(summary: str, parts: Sequence[str], name: str = "") -> str:
    """Return parts that are shown after a click; a link to `name` opens them."""
    inner = "\n".join(parts)
    mark = name and f' id="{name}"'
    return f"<details><summary>{html.escape(summary)}</summary><div{mark}>{inner}</div></details>"


def how_to_read(notes: Iterable[str]) -> str:
    """Return the folded notes of a page."""
    return folded("How to read this", [paragraph(note) for note in notes], "how-to-read")
