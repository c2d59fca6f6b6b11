"""Blocks, which are columns that hold the same whole episodes: cutting and joining them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from orlog.errors import SchemaError
from orlog.manifests.columns import axis_of, is_offsets, offsets_of

Block: TypeAlias = dict[str, np.ndarray]


def episode_blocks(ends: np.ndarray, rows: int) -> np.ndarray:
    """Return the first episode of each block of whole episodes, then the number of episodes.

    `ends` is the row after each episode's last one; a block spans `rows`, unless an episode is longer.
    """
    return np.flatnonzero(np.diff(ends // rows, prepend=-1, append=np.iinfo(np.int64).max))


def slice_block(
    block: Mapping[str, np.ndarray], lengths: np.ndarray, first: int, last: int
) -> Block:
    """Return episodes `first` to `last - 1` of a block, whose episodes have these `lengths`, as a block of their own.

    Columns other than offsets are views.
    """
    start = int(lengths[:first].sum())
    stop = start + int(lengths[first:last].sum())
    rows: dict[str, tuple[int, int]] = {
        "step": (start, stop),
        "observation": (start + first, stop + last),
        "episode": (first, last),
    }

    def rows_of(name: str) -> tuple[int, int]:
        counter = offsets_of(name)
        if counter is None:
            return rows[axis_of(name)]
        if counter not in rows:
            begin, end = (int(block[counter][row - 1]) if row else 0 for row in rows_of(counter))
            rows[counter] = begin, end
        return rows[counter]

    sliced = {}
    for name, values in block.items():
        begin, end = rows_of(name)
        sliced[name] = values[begin:end]
        if is_offsets(name) and begin:
            sliced[name] = sliced[name] - values[begin - 1]
    return sliced


def concatenate_blocks(blocks: Sequence[Mapping[str, np.ndarray]]) -> Block:
    """Return one block that holds the episodes of all, in order.

    Raises ValueError if there is no block; SchemaError if the blocks have different columns.
    """
    if not blocks:
        raise ValueError("expected at least one block.")
    if any(block.keys() != blocks[0].keys() for block in blocks):
        raise SchemaError("blocks of different columns cannot be concatenated.")
    return {name: _concatenate(name, [block[name] for block in blocks]) for name in blocks[0]}


def _concatenate(name: str, pieces: list[np.ndarray]) -> np.ndarray:
    types = {f"{piece.dtype} rows of shape {piece.shape[1:]}" for piece in pieces}
    if len(types) > 1:
        raise misfit(name, "rows of one type", " and ".join(sorted(types)))
    if is_offsets(name):
        counts = [piece[-1] if len(piece) else 0 for piece in pieces]
        starts = itertools.accumulate(counts, initial=0)
        pieces = [piece + start for piece, start in zip(pieces, starts, strict=False)]
    return np.concatenate(pieces)


def misfit(name: str, expected: object, found: object) -> SchemaError:
    """Return the error for a column that differs from what is expected."""
    return SchemaError(f"column {name}: expected {expected}, found {found}.")


def describe(value: object) -> str:
    """Return what a value is, for messages: its dtype and shape, its type and length, or itself."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} of {len(value)} {type(value[0]).__name__}"
    if isinstance(value, list | tuple | Mapping):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str | int | float):
        return f"{type(value).__name__} {value!r:.80}"
    return f"a {type(value).__name__}"
