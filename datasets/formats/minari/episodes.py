"""Makes steps of the episodes of Minari's files, whatever the file: T + 1 observations for T steps, and T of the rest."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.array_files import JPEG_START, opened_picture
from orlog.datasets.formats.episode_cutter import flags_of
from orlog.datasets.formats.episodes import Steps
from orlog.datasets.formats.mapped_arrays import as_dtype
from orlog.errors import SchemaError
from orlog.manifests.spaces import map_leaves, space_leaves

BLOCK_BYTES = 2**24
FLAGS = ("terminations", "truncations")
# its first step, the step after its last, and what reads its rows of a column: one more of observations and infos
Block = tuple[int, int, Callable[[str], np.ndarray]]


@dataclasses.dataclass
class EpisodeReader:
    """Makes steps of blocks of rows; all episodes have the same columns.

    Attributes:
        schema: Spaces and the dtype of rewards.
        infos: Infos of each step.
        index: What the name of a part of a Tuple begins with, before its number.
        had_jpeg: Whether frames were stored as JPEG.
    """

    schema: Schema
    infos: Sequence[str]
    index: str = ""
    had_jpeg: bool = False

    def block_steps(self, stored_row_bytes: int) -> int:
        """Return how many steps are read at once."""
        frames = row_bytes(self.schema.observation_space) + row_bytes(self.schema.action_space)
        return max(1, BLOCK_BYTES // max(1, stored_row_bytes, frames))

    def steps(
        self, blocks: Iterable[Block], count: int, where: str, seed: int | None, metadata: Mapping[str, Any]
    ) -> Iterator[Steps]:
        """Yield the steps of an episode, a piece a block.

        Infos of the reset, where there are some, become `episodes/reset_info/NAME`.
        Raises SchemaError if values are not what the spaces and counts say.
        """
        resets: dict[str, Any] = {}
        for start, stop, rows in blocks:
            ends, length, skipped = stop == count, stop - start, int(start > 0)
            ended = [_ends(rows(name), name, where, start, length, ends) for name in FLAGS]
            rewards = rows("rewards")
            if rewards.shape != (length,) or rewards.dtype.kind not in "biuf":
                raise SchemaError(
                    f"{where}, rewards: expected one number a step, found {rewards.dtype} {rewards.shape}."
                )
            infos = {name: texts_as_list(rows(f"infos/{name}")) for name in self.infos}
            if not start:
                resets = {f"reset_info/{n}": v[0] for n, v in infos.items() if len(v) > length}
            more = resets | dict(metadata) if ends else {}
            yield Steps(
                # The first row of a later block was the last one of the block before.
                observations=self._values("observation", rows, start, length + 1, where, skipped),
                actions=self._values("action", rows, start, length, where),
                rewards=as_dtype(rewards, self.schema.reward_dtype, f"{where}, rewards", start),
                ends=ends,
                terminated=ended[0],
                truncated=ended[1],
                infos={name: values[len(values) - length :] for name, values in infos.items()},
                seed=seed if ends else None,
                metadata={name: more[name] for name in sorted(more)},
            )

    def _values(
        self, role: str, rows: Callable[[str], np.ndarray], start: int, length: int, where: str, skipped: int = 0
    ) -> Columns:
        """Return rows of the values of a space, of which there must be so many; the first ones may be skipped."""

        def values(keys: tuple[str | int, ...], space: Any) -> Columns:
            parts = [key if isinstance(key, str) else f"{self.index}{key}" for key in keys]
            path = "/".join((f"{role}s", *parts))
            column = rows(path)
            if len(column) != length:
                raise SchemaError(f"{where}, {path}: expected {length} rows, found {len(column)}.")
            return self._leaf(space, column[skipped:], f"{where}, {path}", start + skipped)

        return map_leaves(getattr(self.schema, f"{role}_space"), values)

    def _leaf(self, space: Any, values: np.ndarray, where: str, first: int) -> Columns:
        shape = space.shape or ()
        if isinstance(space, spaces.Text) and values.dtype.kind in "OS":
            return texts_as_list(values)
        if isinstance(space, spaces.Box) and _is_jpeg(space, values):
            self.had_jpeg = True
            return _decoded_frames(values, shape, where)
        if values.dtype.kind not in "biuf" or not _same_numbers(values, space.dtype):
            raise SchemaError(f"{where}: expected {space.dtype}, found {values.dtype}.")
        if values.size != len(values) * math.prod(shape):
            raise SchemaError(f"{where}: expected rows of {shape}, found {values.dtype} {values.shape[1:]}.")
        return as_dtype(values, space.dtype, where, first).reshape(len(values), *shape)


def _ends(values: np.ndarray, name: str, where: str, start: int, length: int, is_last: bool) -> bool:
    """Return whether the last flag of a block is true, which it may be at the end of the episode alone."""
    flags = flags_of(values, name, where, first=start)
    if flags.shape != (length,) or flags[: length - is_last].any():
        raise SchemaError(
            f"{where}, {name}: expected {length} flags, of which only the episode's last one may be true."
        )
    return bool(flags[-1])


def with_options(details: Mapping[str, Any], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values of an episode with the options of its reset as JSON; None if no episode has any."""
    more = {} if options is None else {"options": json.dumps(options, sort_keys=True)}
    return {**details, **more}


def texts_as_list(values: np.ndarray) -> Any:
    """Return rows, texts as a list of them."""
    if values.dtype.kind in "OS":
        return [text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in values]
    return values


def row_bytes(space: Any) -> int:
    """Return the bytes of a row of a space, as far as its parts have a shape."""
    total = 0
    for leaf in space_leaves(space):
        shape, dtype = leaf.space.shape, np.dtype(leaf.space.dtype or object)
        is_number = shape is not None and dtype.kind in "biuf"
        total += math.prod(shape or ()) * dtype.itemsize if is_number else 1
    return total


def _same_numbers(values: np.ndarray, dtype: Any) -> bool:
    if np.can_cast(values.dtype, dtype, "same_kind"):
        return True
    return values.dtype.kind in "iub" and np.dtype(dtype).kind in "iub"


def _is_jpeg(space: spaces.Box, values: np.ndarray) -> bool:
    if space.dtype != np.uint8 or len(space.shape) not in (2, 3) or not len(values):
        return False
    if values.dtype.kind == "O":
        return not isinstance(values[0], str)
    is_row = values.ndim == 2 and values.dtype == np.uint8 and values.shape[1:] != space.shape
    return is_row and values[0, :2].tobytes() == JPEG_START


def _decoded_frames(files: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    frames = np.empty((len(files), *shape), np.uint8)
    for number, file in enumerate(files):
        with opened_picture(bytes(file), f"{where}, frame {number}") as image:
            size = (image.height, image.width, *([3] if image.mode == "RGB" else []))
            if size != shape:
                raise SchemaError(f"{where}: expected frames of {shape}, found {size}.")
            frames[number] = np.asarray(image)
    return frames
