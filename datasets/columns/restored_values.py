"""The way back: the columns that store values of a space become these values again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.blocks import misfit
from orlog.datasets.columns.episode import Columns
from orlog.datasets.columns.stored_spaces import INT, Space, check_links, graph_parts
from orlog.manifests.columns import offsets_column, part_column, values_column
from orlog.manifests.spaces import named_parts


def unflatten(space: Space, path: str, block: Mapping[str, np.ndarray]) -> Columns:
    """Return the values of a space that the columns of a block store, without copying numbers.

    Numbers give an array, a Dict gives a dict of columns, a Tuple gives a tuple of columns. Other
    spaces give a list with a sample per row, in the form of the space's own `sample`. A graph
    without edges has None for them.

    Raises KeyError if the block lacks a column; SchemaError if offsets, choices or links do not fit the
    columns they count; UnicodeDecodeError if a text is not UTF-8.
    """
    return _unflatten(space, path, block, None)


def _unflatten(
    space: Space, path: str, block: Mapping[str, np.ndarray], rows: int | None
) -> Columns:
    """Do as `unflatten`; `rows` is the number of rows if known, else None."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            columns = {
                key: _unflatten(part, f"{path}/{name}", block, rows)
                for key, name, part in named_parts(space)
            }
            return columns if isinstance(space, spaces.Dict) else tuple(columns.values())
        case spaces.Text():
            ranges, total = _ranges(block, path, rows)
            data = _column(block, values_column(path), total).tobytes()
            return [data[start:stop].decode() for start, stop in ranges]
        case spaces.Sequence():
            return _unflatten_sequence(space.feature_space, path, block, rows, stack=space.stack)
        case spaces.Graph():
            return _unflatten_graph(space, path, block, rows)
        case spaces.OneOf():
            return _unflatten_one_of(space, path, block, rows)
    return _column(block, path, rows)


def _column(block: Mapping[str, np.ndarray], name: str, rows: int | None) -> np.ndarray:
    values = block[name]
    if rows is not None and len(values) != rows:
        raise misfit(name, f"{rows} rows", len(values))
    return values


def _ranges(
    block: Mapping[str, np.ndarray], path: str, rows: int | None
) -> tuple[list[tuple[int, int]], int]:
    """Return where the values of each row start and stop, and their total number."""
    name = offsets_column(path)
    ends = _column(block, name, rows)
    starts = np.concatenate([np.zeros(1, INT), ends[:-1]])[: len(ends)]
    if (starts > ends).any():
        raise misfit(
            name, "offsets that never decrease", f"a decrease at row {(starts > ends).argmax()}"
        )
    total = int(ends[-1]) if len(ends) else 0
    return list(zip(starts.tolist(), ends.tolist(), strict=True)), total


def _unflatten_sequence(
    inner: Space, path: str, block: Mapping[str, np.ndarray], rows: int | None, *, stack: bool
) -> list[Any]:
    ranges, total = _ranges(block, path, rows)
    columns = _unflatten(inner, values_column(path), block, total)
    if stack:
        return [cut(inner, columns, start, stop) for start, stop in ranges]
    samples = _split(inner, columns, total)
    return [tuple(samples[start:stop]) for start, stop in ranges]


def cut(space: Space, columns: Any, start: int, stop: int) -> Any:
    """Return some rows of columns, stacked as Gymnasium does."""
    match space:
        case spaces.Dict():
            return {key: cut(part, columns[key], start, stop) for key, part in space.items()}
        case spaces.Tuple():
            return tuple(cut(part, columns[key], start, stop) for key, part in enumerate(space))
    return tuple(columns[start:stop]) if isinstance(columns, list) else columns[start:stop]


def _split(space: Space, columns: Any, rows: int) -> list[Any]:
    """Return a sample per row of columns."""
    match space:
        case spaces.Dict():
            split = {key: _split(part, columns[key], rows) for key, part in space.items()}
            return [{key: split[key][row] for key in split} for row in range(rows)]
        case spaces.Tuple():
            lists = [_split(part, columns[key], rows) for key, part in enumerate(space)]
            return [tuple(samples[row] for samples in lists) for row in range(rows)]
        case spaces.Discrete():
            return list(columns)
    if isinstance(columns, list):
        return columns
    return [
        columns[row, ...] for row in range(rows)
    ]  # `...`: a row without dimensions stays an array


def _unflatten_graph(
    space: spaces.Graph, path: str, block: Mapping[str, np.ndarray], rows: int | None
) -> list[Any]:
    rows = len(block[offsets_column(part_column(path, "nodes"))]) if rows is None else rows
    stacks = {
        name: _unflatten_sequence(part, part_column(path, name), block, rows, stack=True)
        for name, part in graph_parts(space).items()
    }
    check_links(block, path)
    links = [stack.astype(np.int32) if len(stack) else None for stack in stacks["links"]]
    edges = stacks.get("edges", [None] * len(links))
    return [
        spaces.GraphInstance(nodes, None if link is None else edge, link)
        for nodes, edge, link in zip(stacks["nodes"], edges, links, strict=True)
    ]


def _unflatten_one_of(
    space: spaces.OneOf, path: str, block: Mapping[str, np.ndarray], rows: int | None
) -> list[Any]:
    name = part_column(path, "choice")
    choice = _column(block, name, rows)
    values: list[Any] = [None] * len(choice)
    if ((choice < 0) | (choice >= len(space.spaces))).any():
        raise misfit(name, f"0 to {len(space.spaces) - 1}", "other numbers")
    for index, part in enumerate(space.spaces):
        option = part_column(path, f"option{index}")
        entries = _unflatten_sequence(part, option, block, len(choice), stack=False)
        for row, entry in enumerate(entries):
            if len(entry) != (choice[row] == index):
                raise misfit(
                    f"{option}, row {row}",
                    "one value where the option is chosen, else none",
                    len(entry),
                )
            if entry:
                values[row] = entry[0]
    return list(zip(choice, values, strict=True))
