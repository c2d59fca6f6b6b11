"""Pictures of datasets as SVG, for cards and notebooks: histograms of returns and lengths, ranges of numbers, frames.

Drawn by hand, so that publishing needs no package for pictures and equal data have equal pictures.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from orlog.datasets.looking.leaves import first_frames, png_bytes
from orlog.datasets.looking.sparklines import histogram
from orlog.manifests.names import counted, size_text

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset

BINS = 30
WIDTH, HEIGHT, MARGIN = 280, 180, 40  # of one panel, in pixels
FRAME = 64  # pixels of the longer side of a frame
NOTEBOOK_FRAMES = 6
BLUE, GRAY = "#1f6fb4", "#9a9a9a"


def card_picture(
    returns: np.ndarray,
    lengths: np.ndarray,
    ranges: Sequence[tuple[str, float, float, float, float]],
    frames: Sequence[np.ndarray] = (),
) -> str:
    """Return the picture as the text of an SVG file: returns and lengths of episodes, and frames of one of them.

    `ranges` are name, smallest value, mean, standard deviation and largest value of some numbers; frames are
    uint8 [height, width, 1 or 3].
    """
    panels = [_histogram(returns, "return of an episode"), _histogram(lengths, "steps of an episode")]
    if ranges:
        panels.append(_ranges(ranges))
    # A wider place for the names of the last panel.
    width = WIDTH * len(panels) + (90 if ranges else 0)
    height = max(HEIGHT, 50 + 14 * len(ranges)) + 16
    body = "\n".join(
        f'<g transform="translate({WIDTH * index + 10}, 24)">{panel}</g>' for index, panel in enumerate(panels)
    )
    if frames:
        body += f'\n<g transform="translate(10, {height + 14})">{_strip(frames)}</g>'
        height += FRAME + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#333333">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def notebook_html(dataset: Dataset, text: str) -> str:
    """Return a dataset as a notebook shows it: HTML without scripts or links; `text` is what `repr` says."""
    manifest = dataset.manifest
    environment = manifest.environment
    facts = {
        "episodes": f"{dataset.total_episodes:,}",
        "steps": f"{dataset.total_steps:,}",
        "size": size_text(manifest.size_bytes),
        "observations": str(manifest.spaces[0]),
        "actions": str(manifest.spaces[1]),
        "environment": "" if environment is None else environment.id,
        "behavior policy": manifest.behavior_policy,
        "license": manifest.license,
    }
    rows = "".join(
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(value[:300])}</td></tr>'
        for name, value in facts.items()
        if value
    )
    picture = ""
    if dataset.total_episodes:
        frames = first_frames(dataset, NOTEBOOK_FRAMES)
        picture = card_picture(dataset.column("episodes/returns"), dataset.episode_lengths, [], frames)
    return f"<div><code>{html.escape(text)}</code><table>{rows}</table>{picture}</div>"


def _histogram(values: np.ndarray, title: str) -> str:
    values = values[np.isfinite(values)]
    if not len(values):
        return _text(0, 0, f"{title}: no finite value")
    drawn = histogram(values, BINS)
    counts, (low, high) = drawn.counts, drawn[-2:]
    width, height = (WIDTH - 30) / len(counts), HEIGHT - MARGIN
    bars = [
        f'<rect x="{index * width:.1f}" y="{height - bar:.1f}" width="{width - 1:.1f}" height="{bar:.1f}" '
        f'fill="{BLUE}"/>'
        for index, bar in enumerate((counts / counts.max() * height).tolist())
    ]
    right = WIDTH - 30
    return "".join(
        [
            *bars,
            f'<line x1="0" y1="{height}" x2="{right}" y2="{height}" stroke="{GRAY}"/>',
            _text(0, -8, f"{title}; tallest bar: {counted(int(counts.max()), 'episode')}"),
            _text(0, height + 14, f"{low:,.5g}"),
            _text(right, height + 14, f"{high:,.5g}", anchor="end"),
        ]
    )


def _ranges(ranges: Sequence[tuple[str, float, float, float, float]]) -> str:
    """Draw each range as a thin line, and a standard deviation around the mean as a thick one."""
    low = min(bounds[1] for bounds in ranges)
    high = max(bounds[4] for bounds in ranges)
    scale = (WIDTH - 30) / ((high - low) or 1.0)
    parts = [_text(100, -8, "range; thick: mean and standard deviation")]
    for row, (name, smallest, mean, deviation, largest) in enumerate(ranges):
        y, label = 8 + 14 * row, name.removeprefix("observations/")
        ends = [smallest, largest, max(smallest, mean - deviation), min(largest, mean + deviation)]
        left, right, inner, outer = (100 + (value - low) * scale for value in ends)
        parts += [
            _text(92, y + 4, label if len(label) <= 18 else f"..{label[-16:]}", anchor="end"),
            f'<line x1="{left:.1f}" y1="{y}" x2="{right:.1f}" y2="{y}" stroke="{GRAY}"/>',
            f'<line x1="{inner:.1f}" y1="{y}" x2="{outer:.1f}" y2="{y}" stroke="{BLUE}" stroke-width="6"/>',
        ]
    bottom = 8 + 14 * len(ranges) + 6
    parts += [_text(100, bottom + 6, f"{low:,.5g}"), _text(100 + WIDTH - 30, bottom + 6, f"{high:,.5g}", anchor="end")]
    return "".join(parts)


def _strip(frames: Sequence[np.ndarray]) -> str:
    parts = [_text(0, -4, "frames of the episode with the highest return, from first to last")]
    for index, frame in enumerate(frames):
        every = -(-max(frame.shape[:2]) // FRAME)
        data = base64.b64encode(png_bytes(frame[::every, ::every])).decode()
        parts.append(
            f'<image x="{index * (FRAME + 3)}" y="4" width="{FRAME}" height="{FRAME}" '
            f'style="image-rendering: pixelated" href="data:image/png;base64,{data}"/>'
        )
    return "".join(parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
