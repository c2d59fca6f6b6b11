"""Small gray frames drawn with NumPy: shapes with smooth edges, and stacks of the last frames.

Coordinates are in pixels: x to the right, y downwards, (0, 0) is the corner at the upper left. A pixel is
as bright as the share of it that a shape covers. That is exact for boxes; for round shapes it is the
distance of the pixel's center to the edge, plus one half, within 0 and 1. Only sums, products and square
roots are used, whose results are the same on every processor.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from jaxtyping import Float64, UInt8

SIZE = 36
"""Pixels on each side: the fewest that the Nature convolutions take, and that they cover exactly."""

FRAMES = 3
"""Frames in an observation, so that speeds and changes of speed can be seen."""

STACK = spaces.Box(0, 255, (SIZE, SIZE, FRAMES), np.uint8)
"""The space of observations: the last frames as channels, the newest last."""

Coverage = Float64[np.ndarray, "36 36"]
"""The share of each pixel that a shape covers, by row and column."""

_CENTERS = np.arange(SIZE) + 0.5


def box(x: float, y: float, width: float, height: float) -> Coverage:
    """Return an upright box around a center."""
    return np.outer(_covered(y, height), _covered(x, width))


def _covered(center: float, length: float) -> Float64[np.ndarray, " 36"]:
    ends = np.minimum(_CENTERS + 0.5, center + length / 2)
    starts = np.maximum(_CENTERS - 0.5, center - length / 2)
    covered: Float64[np.ndarray, " 36"] = np.maximum(ends - starts, 0.0)
    return covered


def disc(x: float, y: float, radius: float) -> Coverage:
    """Return a filled circle."""
    return _edge((_CENTERS - x)[None, :], (_CENTERS - y)[:, None], radius)


def _edge(to_x: np.ndarray, to_y: np.ndarray, radius: float) -> Coverage:
    outside = np.sqrt(to_x * to_x + to_y * to_y) - radius
    covered: Coverage = np.minimum(np.maximum(0.5 - outside, 0.0), 1.0)
    return covered


def picture(*shapes: tuple[float, Coverage]) -> UInt8[np.ndarray, "36 36"]:
    """Return a frame of shapes, each with its brightness from 0 to 255; the brightest one is seen."""
    seen = np.zeros((SIZE, SIZE))
    for brightness, coverage in shapes:
        np.maximum(seen, brightness * coverage, out=seen)
    return np.rint(seen).astype(np.uint8)


def next_stack(
    stack: UInt8[np.ndarray, "36 36 3"] | None, newest: UInt8[np.ndarray, "36 36"]
) -> UInt8[np.ndarray, "36 36 3"]:
    """Return a stack with another frame; the first one of an episode fills the whole stack."""
    if stack is None:
        return np.stack([newest] * FRAMES, axis=-1)
    return np.concatenate([stack[:, :, 1:], newest[:, :, None]], axis=-1)
