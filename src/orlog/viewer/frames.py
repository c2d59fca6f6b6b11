"""Frames of an episode as PNG files, by index: images to the exact pixel, depth in shades of gray."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, TypeAlias

import numpy as np

from orlog.base.png import png_bytes
from orlog.datasets.columns.schema import Schema
from orlog.errors import NotFoundError
from orlog.manifests.columns import is_part
from orlog.manifests.names import counted
from orlog.viewer.opened import Shown

SMALLEST_SIDE = 16  # of what counts as an image, as for its encoding
SAMPLED = 8
Layout: TypeAlias = Literal["flat", "last", "first"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frames:
    """How the rows of a column are shown as images.

    Attributes:
        layout: Where the channels are: nowhere, on the last axis or on the first.
        channels: How many there are.
        height: Pixels.
        width: Pixels.
        is_depth: Whether the values are not colors, so that they are scaled to shades of gray.
    """

    layout: Layout
    channels: int
    height: int
    width: int
    is_depth: bool

    @property
    def note(self) -> str:
        """What to know of the picture; empty if it is the stored image."""
        if self.is_depth:
            return "values as shades of gray"
        if self.channels in (1, 3):
            return ""
        if self.layout == "first":
            return f"the newest of {self.channels} stacked images"
        return f"the first {self.shown} of {counted(self.channels, 'channel')}"

    @property
    def shown(self) -> int:
        """Number of channels of the picture: 3 are red, green and blue."""
        return 3 if self.channels == 3 or (self.channels > 3 and self.layout == "last") else 1


def frame_columns(schema: Schema) -> dict[str, Frames]:
    """Return the columns of steps and observations whose rows are images or depth."""
    found = {}
    for name, spec in schema.columns().items():
        if is_part(name) or name.startswith("episodes/"):
            continue
        frames = _as_frames(spec.shape, spec.dtype)
        if frames is not None:
            found[name] = frames
    return found


def _as_frames(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Frames | None:
    if dtype.kind not in "fiu" or len(shape) not in (2, 3):
        return None
    is_depth = dtype != np.uint8
    layout: Layout = "flat"
    channels, sides = 1, shape
    if len(shape) == 3:
        layout = "last" if shape[2] <= shape[0] else "first"
        channels, sides = (
            (shape[2], shape[:2]) if layout == "last" else (shape[0], (shape[1], shape[2]))
        )
    if min(sides) < SMALLEST_SIDE or (is_depth and channels != 1):
        return None
    return Frames(
        layout=layout, channels=channels, height=sides[0], width=sides[1], is_depth=is_depth
    )


def frame_png(shown: Shown, name: str, episode: int, step: int) -> bytes:
    """Return the frame at one row of an episode, the one at a position, as a PNG file."""
    frames = frame_columns(shown.dataset.schema).get(name)
    if frames is None:
        raise NotFoundError(f"{shown.title}: {name!r:.100} is no column of images.")
    row = _read(shown, name, episode, np.array([step]))[0]
    if frames.is_depth:
        low, high = depth_range(shown, name, episode)
        scaled = (row.astype(np.float64) - low) / ((high - low) or 1.0)
        row = np.nan_to_num(scaled * 255, nan=0, posinf=255, neginf=0).clip(0, 255).astype(np.uint8)
    if frames.layout == "flat":
        row = row[..., None]
    elif frames.layout == "first":
        row = np.moveaxis(row, 0, -1)
    is_stack = frames.layout == "first" and frames.shown == 1
    return png_bytes(row[..., -1:] if is_stack else row[..., : frames.shown])


@functools.lru_cache(maxsize=64)
def depth_range(shown: Shown, name: str, episode: int) -> tuple[float, float]:
    """Return the values that are black and white: the smallest and largest of a few frames."""
    stored, position = shown.stored(episode)
    steps = np.unique(np.linspace(0, int(stored.lengths[position]) - 1, SAMPLED).astype(np.int64))
    values = _read(shown, name, episode, steps)
    values = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)


def _read(shown: Shown, name: str, episode: int, steps: np.ndarray) -> np.ndarray:
    stored, position = shown.stored(episode)
    first = int(stored.first_rows(name, np.array([position]))[0])
    count = stored.count_rows(name, np.array([position]))
    if not (steps.min() >= 0 and steps.max() < count):
        raise IndexError(
            f"{shown.title}, episode {episode}: {name} has {counted(count, 'frame')}, found number {steps.max()}."
        )
    return stored.read_rows(name, first + steps)
