"""What an episode holds, taken apart for the eye: a line for each dimension, frames, and texts."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from orlog.manifests.columns import is_part
from orlog.manifests.manifest import EnvironmentRecord

if TYPE_CHECKING:
    from orlog.datasets.columns.episode import Episode
    from orlog.datasets.reading.dataset import Dataset

LEAST_SIDE = 8  # of a frame
MOST_CELLS = 256  # of a side of a maze
PNG_COLORS = {1: 0, 3: 2, 4: 6}  # channels, and PNG's number of their meaning
MOST_CHANNELS = 16  # an array whose smallest side is longer is no image


def leaves_of(episode: Episode) -> Iterator[tuple[str, Any]]:
    """Yield the columns of an episode by name: arrays with a row a step, or lists of texts or arrays.

    Returns-to-go (undiscounted) stand beside the rewards; flags are left out.
    """
    yield "rewards", episode.rewards
    yield "returns-to-go", np.cumsum(episode.rewards[::-1])[::-1]
    yield from _parts("actions", episode.actions)
    yield from _parts("observations", episode.observations)
    for name, column in episode.infos.items():
        yield from _parts(f"infos/{name}", column)


def _parts(name: str, column: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(column, dict):
        for key, part in column.items():
            yield from _parts(f"{name}/{key}", part)
    elif isinstance(column, tuple):
        for index, part in enumerate(column):
            yield from _parts(f"{name}/{index}", part)
    else:
        yield name, column


def dimensions_of(
    episode: Episode, names: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the numbers (rows,) of each dimension of each column of numbers, but frames.

    A dimension is named by its place, or as `names` says of a column, such as `Dataset.dimension_names`.
    """
    for name, column in leaves_of(episode):
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
            continue
        if is_frame(column.dtype, column.shape[1:]):
            continue
        if column.ndim == 1:
            yield name, column
            continue
        flat = column.reshape(len(column), -1)
        for index in range(flat.shape[1]):
            place = ", ".join(map(str, np.unravel_index(index, column.shape[1:])))
            yield f"{name}[{names[name][index] if name in names else place}]", flat[:, index]


def is_frame(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether rows of a column are pictures: bytes or depths of two sides, with channels or not."""
    sides = sorted(shape[-3:])
    if len(shape) < 2 or sides[-2] < LEAST_SIDE:
        return False
    if len(sides) == 2 or (len(shape) == 3 and sides[0] == 1):
        return dtype == np.uint8 or (dtype.kind in "iuf" and math.prod(sides) >= LEAST_SIDE**3)
    return dtype == np.uint8 and sides[0] <= MOST_CHANNELS


def frames_of(episode: Episode) -> dict[str, np.ndarray]:
    """Return the columns of pictures by name, (rows, ..) as they are stored."""
    return {
        name: column
        for name, column in leaves_of(episode)
        if isinstance(column, np.ndarray) and is_frame(column.dtype, column.shape[1:])
    }


def texts_of(episode: Episode) -> dict[str, list[str]]:
    """Return the columns of texts by name, a text a row."""
    return {
        name: column
        for name, column in leaves_of(episode)
        if isinstance(column, list) and column and all(isinstance(text, str) for text in column)
    }


def as_picture(frame: np.ndarray, ends: tuple[float, float] | None = None) -> np.ndarray:
    """Return a frame as (height, width, 1 or 3) bytes.

    Channels may come first or last: of three or more the first three are red, green and blue; of a stack of
    images, which is what more than three channels in front are, the newest is taken. What is not bytes, such as
    depth, is spread from its least to its most, or between `ends`.
    """
    if frame.ndim == 2:
        frame = frame[..., None]
    sides = frame.shape[-3:]
    axis = int(np.argmin(sides))
    frame = np.moveaxis(frame.reshape(-1, *sides)[-1], axis, -1)
    if axis == 0 and sides[0] != 3:
        frame = frame[..., -1:]
    frame = frame[..., : 3 if frame.shape[-1] >= 3 else 1]
    if frame.dtype == np.uint8:
        return frame
    values = frame.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = ends or (finite.min(initial=np.inf), finite.max(initial=-np.inf))
    with np.errstate(invalid="ignore"):
        scaled = (values - low) * (255 / (high - low) if high > low else 0)
    return np.nan_to_num(scaled, nan=0, posinf=255, neginf=0).clip(0, 255).astype(np.uint8)


def png_bytes(pixels: np.ndarray) -> bytes:
    """Return an image, uint8 [height, width, 1, 3 or 4], as a PNG file that is not compressed."""
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, PNG_COLORS[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def first_frames(dataset: Dataset, count: int) -> list[np.ndarray]:
    """Return frames of the episode with the highest return, from its first to its last, by `as_picture`.

    They are those of the first column of images among the observations; none if there is no such column.
    """
    specs = dataset.schema.columns()
    for name in dataset.columns:
        if name.partition("/")[0] != "observations" or is_part(name) or not dataset.total_steps:
            continue
        spec = specs[name]
        if not is_frame(spec.dtype, spec.shape):
            continue
        best = int(np.nan_to_num(dataset.column("episodes/returns"), nan=-np.inf).argmax())
        first = int(dataset.episode_starts[best]) + best  # each episode has one row more than steps
        last = first + int(dataset.episode_lengths[best]) - 1
        rows = np.unique(np.linspace(first, last, count).round().astype(np.int64)).tolist()
        return [as_picture(dataset.column(name, row, row + 1)[0]) for row in rows]
    return []


def paths_of(dataset: Dataset, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return episodes of a maze, evenly spread, and the places (steps + 1, 2) of each."""
    count = min(count, dataset.total_episodes)
    chosen = np.linspace(0, dataset.total_episodes - 1, count).astype(np.int64)
    return chosen, [dataset[index].observations["achieved_goal"] for index in chosen.tolist()]


def maze_of(environment: EnvironmentRecord | None) -> list[list[Any]] | None:
    """Return the map of the maze that data were recorded in, if there is one: rows of cells, 1 is a wall."""
    maze = (environment.kwargs if environment else {}).get("maze_map")
    is_map = (
        isinstance(maze, list)
        and 0 < len(maze) <= MOST_CELLS
        and all(isinstance(row, list) and 0 < len(row) == len(maze[0]) <= MOST_CELLS for row in maze)
    )
    return maze if is_map else None
