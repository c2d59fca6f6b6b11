"""Values of Minari's files: frames that it stored as JPEG, and numbers that keep what they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.formats._containers.pictures import JPEG_START, opened_picture
from orlog.errors import SchemaError
from orlog.manifests.spaces import space_leaves

HAD_JPEG = "Minari had stored frames as JPEG, which changed them."


def same_numbers(values: np.ndarray, dtype: Any) -> bool:
    """Return whether values keep what they are in the dtype of a space."""
    if np.can_cast(values.dtype, dtype, "same_kind"):
        return True
    return values.dtype.kind in "iub" and np.dtype(dtype).kind in "iub"


def row_bytes(space: Any) -> int:
    """Return the bytes of a row of a space, as far as its parts have a shape."""
    return sum(_leaf_bytes(leaf.space) for leaf in space_leaves(space))


def _leaf_bytes(space: Any) -> int:
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "biuf":
        return 1
    return int(math.prod(space.shape) * np.dtype(space.dtype).itemsize)


def is_jpeg(space: spaces.Box, values: np.ndarray) -> bool:
    """Return whether rows hold JPEG files in place of frames."""
    if space.dtype != np.uint8 or len(space.shape) not in (2, 3) or not len(values):
        return False
    if values.dtype.kind == "O":
        return True
    is_row = values.ndim == 2 and values.dtype == np.uint8 and values.shape[1:] != space.shape
    return is_row and values[0, :2].tobytes() == JPEG_START


def decoded_frames(files: Sequence[Any], shape: tuple[int, ...], where: str) -> np.ndarray:
    """Return decoded frames, a JPEG file each, of the shape that the space says; another one is refused."""
    frames = np.empty((len(files), *shape), np.uint8)
    for number, file in enumerate(files):
        with opened_picture(bytes(file), f"{where}, frame {number}") as image:
            found = (image.height, image.width, *([3] if image.mode == "RGB" else []))
            if found != shape:
                raise SchemaError(f"{where}: expected frames of {shape}, found {found}.")
            frames[number] = np.asarray(image)
    return frames
