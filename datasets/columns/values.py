"""The map between the values of a space and the columns that store them.

`manifests/columns.py` says how columns are named, and what offsets are. The values of a space at
path P are stored as:

    Box, Discrete, MultiDiscrete, MultiBinary    P
    Dict, Tuple                                  the columns of each part at P/key, P/0 (keys are
                                                 escaped: see `manifests/spaces.py`)
    Text                                         P@offsets, P@values (UTF-8 as uint8)
    Sequence                                     P@offsets, the columns of its space at P@values
    Graph                                        sequences at P@nodes, at P@links (int64 pairs) and,
                                                 if it has an edge space, at P@edges
    OneOf                                        P@choice (int64) and, for each option, a sequence
                                                 of 0 or 1 values at P@option0, P@option1, ..

A block is a dict of columns that hold the same whole episodes, so its offsets start at 0; blocks are cut and joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import LAST_OBSERVATION, Columns
from orlog.errors import SchemaError
from orlog.manifests.columns import (
    ColumnSpec,
    axis_of,
    is_offsets,
    offsets_column,
    offsets_of,
    part_column,
    values_column,
)
from orlog.manifests.spaces import named_parts

Block: TypeAlias = dict[str, np.ndarray]
Space: TypeAlias = gymnasium.Space[Any]

INT = np.dtype(np.int64)
_LINKS = spaces.Box(0, np.iinfo(np.int64).max, (2,), np.int64)


def space_columns(space: Space, path: str) -> list[ColumnSpec]:
    """Return every stored column of a space, Dict keys in sorted order; a SchemaError if it cannot be stored."""
    offsets = ColumnSpec(offsets_column(path), INT, ())
    match space:
        case spaces.Dict() | spaces.Tuple():
            parts = {f"{path}/{name}": part for _, name, part in named_parts(space)}
            return [spec for name, part in parts.items() for spec in space_columns(part, name)]
        case spaces.Text():
            return [offsets, ColumnSpec(values_column(path), np.dtype(np.uint8), ())]
        case spaces.Sequence():
            return [offsets, *space_columns(space.feature_space, values_column(path))]
        case spaces.Graph() | spaces.OneOf():
            choice = [ColumnSpec(part_column(path, "choice"), INT, ())]
            return (choice if isinstance(space, spaces.OneOf) else []) + [
                spec for name, part in _sequences(space, path).items() for spec in space_columns(part, name)
            ]
    return [ColumnSpec(path, *_numbers_of(space, path))]


def _sequences(space: spaces.Graph | spaces.OneOf, path: str) -> dict[str, spaces.Sequence]:
    """Return the sequences that a graph or a choice of spaces holds, by column."""
    parts: dict[str, Space | None]
    if isinstance(space, spaces.Graph):
        parts = {"nodes": space.node_space, "links": _LINKS, "edges": space.edge_space}
    else:
        parts = {f"option{index}": part for index, part in enumerate(space.spaces)}
    is_graph = isinstance(space, spaces.Graph)
    return {
        part_column(path, name): spaces.Sequence(part, stack=is_graph)
        for name, part in parts.items()
        if part is not None
    }


def _numbers_of(space: Space, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and row shape of a space of numbers."""
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise SchemaError(f"column {path}: a {type(space).__name__} space cannot be stored.")
    assert space.shape is not None
    return np.dtype(space.dtype), space.shape


def flatten(space: Space, path: str, values: object, rows: int) -> Block:
    """Return the columns that store some values of a space; arrays may share memory with `values`.

    A list of values holds a sample per row, as environments return them, whatever the space. Otherwise they
    are an array (rows, ..) for numbers; a dict of columns for a Dict; a tuple of columns, or a dict of them
    by "0", "1", .., for a Tuple; a tuple with a sample per row for the rest. Numbers have exactly the space's
    dtype, or are Python's int, float or bool where those fit. A Box's bounds are not enforced, as recorded
    data often leave them; everything else is, by a SchemaError. `path` is the column, or how names start.
    """
    match space:
        case spaces.Box():  # tested first, since most spaces are one
            return {path: _flatten_numbers(space, path, values, rows)}
        case spaces.Dict() | spaces.Tuple():
            columns = _columns_of_parts(space, path, values, rows)
            block: Block = {}
            for key, name, part in named_parts(space):
                block |= flatten(part, f"{path}/{name}", columns[str(key)], rows)
            return block
        case spaces.Text():
            return _flatten_text(space, path, _samples(path, values, rows))
        case spaces.Sequence():
            return _flatten_sequence(space, path, _samples(path, values, rows))
        case spaces.Graph():
            return _flatten_graph(space, path, _samples(path, values, rows))
        case spaces.OneOf():
            return _flatten_one_of(space, path, _samples(path, values, rows))
    return {path: _flatten_numbers(space, path, values, rows)}


def _row_hint(name: str, rows: int, count: int) -> str:
    is_observation = axis_of(name) == "observation" and offsets_of(name) is None
    return LAST_OBSERVATION if is_observation and count == rows - 1 else ""


def _samples(path: str, values: object, rows: int) -> Sequence[Any]:
    """Check that there is a sample per row."""
    if not isinstance(values, list | tuple):
        raise misfit(path, f"a list of {rows} samples", describe(values))
    if len(values) != rows:
        raise misfit(path, f"{rows} rows", f"{len(values)}{_row_hint(path, rows, len(values))}")
    return values


def _columns_of_parts(space: spaces.Dict | spaces.Tuple, path: str, values: object, rows: int) -> Mapping[str, object]:
    """Return the values of each part by key, turning a list of samples into columns."""
    if not isinstance(values, list):
        return _by_key(space, path, values)
    samples = [_by_key(space, f"{path}, row {row}", sample) for row, sample in enumerate(_samples(path, values, rows))]
    return {str(key): [sample[str(key)] for sample in samples] for key, _, _ in named_parts(space)}


def _by_key(space: spaces.Dict | spaces.Tuple, path: str, value: object) -> Mapping[str, Any]:
    """Return a Dict's dict, or a Tuple's tuple by "0", "1", .., after checking its keys."""
    keys = [str(key) for key, _, _ in named_parts(space)]
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple):
        value = {str(index): part for index, part in enumerate(value)}
    if not isinstance(value, Mapping):
        kind = "dict" if isinstance(space, spaces.Dict) else "tuple"
        raise misfit(path, f"a {kind} of {keys}", describe(value))
    if value.keys() != set(keys):
        raise misfit(path, f"the keys {keys}", list(value))
    return value


def _flatten_numbers(space: Space, name: str, values: object, rows: int) -> np.ndarray:
    dtype, shape = _numbers_of(space, name)
    if isinstance(values, list | tuple):
        values = _stack(name, _samples(name, values, rows), dtype, shape)
    if not isinstance(values, np.ndarray) or (values.dtype, values.shape) != (dtype, (rows, *shape)):
        hint = ""
        if isinstance(values, np.ndarray) and values.shape[1:] == shape and values.ndim:
            hint = _row_hint(name, rows, len(values))
        raise misfit(name, f"{dtype} {(rows, *shape)}", describe(values) + hint)
    low: Any
    high: Any
    match space:
        case spaces.Discrete():
            low, high = int(space.start), int(space.start) + int(space.n) - 1
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + (space.nvec - 1)
        case spaces.MultiBinary():
            low, high = 0, 1
        case _:
            return values
    outside = (values < low) | (values > high)
    if outside.any():
        place = np.unravel_index(int(outside.argmax()), outside.shape)
        least, most = (np.broadcast_to(bound, values.shape)[place] for bound in (low, high))
        raise misfit(f"{name}, row {place[0]}", f"{least} to {most}", values[place])
    return values


def _stack(name: str, samples: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    takes_int = shape == () and dtype.kind in "iu"
    integers = range(np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if takes_int else range(0)
    plain = {np.dtype(np.bool_): bool, np.dtype(np.float64): float}.get(dtype)
    for row, sample in enumerate(samples):
        if isinstance(sample, np.ndarray | np.generic):
            fits = sample.dtype == dtype and sample.shape == shape
        elif type(sample) is int:
            fits = sample in integers
        else:
            fits = shape == () and type(sample) is plain
        if not fits:
            raise misfit(f"{name}, row {row}", f"{dtype} {shape}", describe(sample))
    if shape and samples:
        return np.stack(samples)
    return np.array(samples, dtype).reshape(len(samples), *shape)


def _ends(counts: Sequence[int]) -> np.ndarray:
    return np.asarray(counts, INT).cumsum(dtype=INT)


def _flatten_text(space: spaces.Text, path: str, texts: Sequence[Any]) -> Block:
    allowed, encoded = space.character_set, []
    for row, text in enumerate(texts):
        where = f"{path}, row {row}"
        if not isinstance(text, str):
            raise misfit(where, "text", describe(text))
        if not space.min_length <= len(text) <= space.max_length:
            expected = f"{space.min_length} to {space.max_length} characters"
            raise misfit(where, expected, len(text))
        if not allowed.issuperset(text):
            character = next(character for character in text if character not in allowed)
            raise misfit(where, f"characters of {space.characters!r:.80}", f"{character!r}")
        try:
            encoded.append(text.encode())
        except UnicodeEncodeError as error:
            raise misfit(where, "text that UTF-8 can hold", ascii(text[error.start])) from error
    return {
        offsets_column(path): _ends([len(text) for text in encoded]),
        values_column(path): np.frombuffer(b"".join(encoded), np.uint8),
    }


def _flatten_sequence(space: spaces.Sequence, path: str, entries: Sequence[Any]) -> Block:
    inner, name = space.feature_space, values_column(path)
    joined, counts = _join(inner, name, entries) if space.stack else _chain(path, entries)
    # Stacked values of an empty Dict or Tuple are not counted.
    ends = _ends([0] * len(entries) if counts is None else counts)
    total = int(ends[-1]) if len(ends) else 0
    return {offsets_column(path): ends, **flatten(inner, name, joined, total)}


def _chain(path: str, entries: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return the samples of all rows one after the other, and how many each row has."""
    for row, entry in enumerate(entries):
        if not isinstance(entry, list | tuple):
            raise misfit(f"{path}, row {row}", "a tuple of samples", describe(entry))
    return list(itertools.chain.from_iterable(entries)), [len(entry) for entry in entries]


def _join(space: Space, path: str, entries: Sequence[Any]) -> tuple[Any, list[int] | None]:
    """Join stacked samples, one entry per row, into values to flatten, and count them per row."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            keyed = [_by_key(space, f"{path}, row {row}", entry) for row, entry in enumerate(entries)]
            joined, counts = {}, None
            for index, part_name, part in named_parts(space):
                key, name = str(index), f"{path}/{part_name}"
                joined[key], others = _join(part, name, [entry[key] for entry in keyed])
                if counts is not None and others not in (None, counts):
                    expected = "as many values in each row as its siblings have"
                    raise misfit(name, expected, "other numbers")
                counts = others if counts is None else counts
            return joined, counts
        case spaces.Text() | spaces.Sequence() | spaces.Graph() | spaces.OneOf():
            return _chain(path, entries)
    dtype, shape = _numbers_of(space, path)
    for row, entry in enumerate(entries):
        is_array = isinstance(entry, np.ndarray) and entry.ndim > 0
        if not is_array or (entry.dtype, entry.shape[1:]) != (dtype, shape):
            raise misfit(f"{path}, row {row}", f"{dtype} rows of shape {shape}", describe(entry))
    empty = np.empty((0, *shape), dtype)
    return np.concatenate([empty, *entries]), [len(entry) for entry in entries]


def _flatten_graph(space: spaces.Graph, path: str, graphs: Sequence[Any]) -> Block:
    for row, graph in enumerate(graphs):
        where = f"{path}, row {row}"
        if not isinstance(graph, spaces.GraphInstance):
            raise misfit(where, "a GraphInstance", describe(graph))
        links: Any = graph.edge_links
        if space.edge_space is None and graph.edges is not None:
            raise misfit(where, "None for edges, as there is no edge space", describe(graph.edges))
        if space.edge_space is not None and (graph.edges is None) != (links is None):
            lacking = "links without edges" if graph.edges is None else "edges without links"
            raise misfit(where, "edges with links, or None for both", lacking)
        is_pairs = isinstance(links, np.ndarray) and links.dtype.kind in "iu" and links.ndim == 2
        if links is not None and not is_pairs:
            raise misfit(where, "links as integers (.., 2)", describe(links))
    no_links = np.empty((0, 2), INT)
    entries = {
        "nodes": [graph.nodes for graph in graphs],
        "links": [no_links if graph.edge_links is None else graph.edge_links.astype(INT) for graph in graphs],
    }
    if space.edge_space is not None:
        specs = space_columns(space.edge_space, "")
        nothing = {spec.name: np.empty((0, *spec.shape), spec.dtype) for spec in specs}
        no_edges = _cut(space.edge_space, unflatten(space.edge_space, "", nothing), 0, 0)
        entries["edges"] = [no_edges if graph.edges is None else graph.edges for graph in graphs]
    block: Block = {}
    for name, part in _sequences(space, path).items():
        block |= _flatten_sequence(part, name, entries[name.rpartition("@")[2]])
    _check_links(block, path)
    return block


def _check_links(block: Mapping[str, np.ndarray], path: str) -> None:
    """Check that each edge has a link, and each link joins nodes of its graph."""
    nodes, link, edge = (part_column(path, name) for name in ("nodes", "links", "edges"))
    node_ends, link_ends = block[offsets_column(nodes)], block[offsets_column(link)]
    unequal = np.flatnonzero(block.get(offsets_column(edge), link_ends) != link_ends)
    if len(unequal):
        raise misfit(f"{path}, row {unequal[0]}", "as many links as edges", "others")
    links = block[values_column(link)]
    counts = np.repeat(np.diff(node_ends, prepend=0), np.diff(link_ends, prepend=0))
    outside = (links < 0) | (links >= counts[:, None])
    if outside.any():
        place = divmod(int(outside.argmax()), 2)
        row = int(np.searchsorted(link_ends, place[0], side="right"))
        raise misfit(f"{path}, row {row}", f"links to its {counts[place[0]]} nodes", links[place])


def _flatten_one_of(space: spaces.OneOf, path: str, pairs: Sequence[Any]) -> Block:
    options = len(space.spaces)
    for row, pair in enumerate(pairs):
        where = f"{path}, row {row}"
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise misfit(where, "a pair (index, value)", describe(pair))
        if isinstance(pair[0], bool) or not isinstance(pair[0], int | np.integer):
            raise misfit(where, "an integer as index", describe(pair[0]))
        if not 0 <= pair[0] < options:
            raise misfit(where, f"an index from 0 to {options - 1}", pair[0])
    block = {part_column(path, "choice"): np.array([pair[0] for pair in pairs], INT)}
    for index, (name, part) in enumerate(_sequences(space, path).items()):
        entries = [(value,) if chosen == index else () for chosen, value in pairs]
        block |= _flatten_sequence(part, name, entries)
    return block


def unflatten(space: Space, path: str, block: Mapping[str, np.ndarray], rows: int | None = None) -> Columns:
    """Return the values of a space that the columns of a block store, without copying numbers.

    Numbers give an array, a Dict gives a dict of columns, a Tuple gives a tuple of columns. Other
    spaces give a list with a sample per row, in the form of the space's own `sample`. A graph
    without edges has None for them. `rows` is the number of rows, if it is known.

    Raises SchemaError if offsets, choices or links do not fit the columns they count; UnicodeDecodeError if a
    text is not UTF-8.
    """
    match space:
        case spaces.Dict() | spaces.Tuple():
            columns = {key: unflatten(part, f"{path}/{name}", block, rows) for key, name, part in named_parts(space)}
            return columns if isinstance(space, spaces.Dict) else tuple(columns.values())
        case spaces.Text():
            ranges, total = _ranges(block, path, rows)
            data = _column(block, values_column(path), total).tobytes()
            return [data[start:stop].decode() for start, stop in ranges]
        case spaces.Sequence():
            ranges, total = _ranges(block, path, rows)
            inner = space.feature_space
            columns = unflatten(inner, values_column(path), block, total)
            if space.stack:
                return [_cut(inner, columns, start, stop) for start, stop in ranges]
            samples = _split(inner, columns, total)
            return [tuple(samples[start:stop]) for start, stop in ranges]
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


def _ranges(block: Mapping[str, np.ndarray], path: str, rows: int | None) -> tuple[list[tuple[int, int]], int]:
    """Return where the values of each row start and stop, and their total number."""
    name = offsets_column(path)
    bounds = [0, *_column(block, name, rows).tolist()]
    ranges = list(itertools.pairwise(bounds))
    if any(start > stop for start, stop in ranges):
        raise misfit(name, "offsets that never decrease", "others")
    return ranges, bounds[-1]


def _cut(space: Space, columns: Any, start: int, stop: int) -> Any:
    """Return some rows of columns, stacked as Gymnasium does."""
    match space:
        case spaces.Dict():
            return {key: _cut(part, columns[key], start, stop) for key, part in space.items()}
        case spaces.Tuple():
            return tuple(_cut(part, columns[key], start, stop) for key, part in enumerate(space))
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
    return [columns[row, ...] for row in range(rows)]  # without dimensions they stay arrays


def _unflatten_graph(space: spaces.Graph, path: str, block: Mapping[str, np.ndarray], rows: int | None) -> list[Any]:
    rows = len(block[offsets_column(part_column(path, "nodes"))]) if rows is None else rows
    nodes, all_links, *others = (unflatten(part, name, block, rows) for name, part in _sequences(space, path).items())
    _check_links(block, path)
    links = [each.astype(np.int32) if len(each) else None for each in all_links]
    edges = others[0] if others else [None] * rows
    return [
        spaces.GraphInstance(node, None if link is None else edge, link)
        for node, edge, link in zip(nodes, edges, links, strict=True)
    ]


def _unflatten_one_of(space: spaces.OneOf, path: str, block: Mapping[str, np.ndarray], rows: int | None) -> list[Any]:
    name = part_column(path, "choice")
    choice = _column(block, name, rows)
    values: list[Any] = [None] * len(choice)
    if ((choice < 0) | (choice >= len(space.spaces))).any():
        raise misfit(name, f"0 to {len(space.spaces) - 1}", "other numbers")
    for index, (option, part) in enumerate(_sequences(space, path).items()):
        for row, entry in enumerate(unflatten(part, option, block, len(choice))):
            if len(entry) != (choice[row] == index):
                expected = "one value where the option is chosen, else none"
                raise misfit(f"{option}, row {row}", expected, len(entry))
            if entry:
                values[row] = entry[0]
    return list(zip(choice, values, strict=True))


def episode_blocks(ends: np.ndarray, rows: int) -> np.ndarray:
    """Return the first episode of each block of whole episodes, then the number of episodes.

    `ends` is the row after each episode's last one; a block spans `rows`, unless an episode is longer.
    """
    return np.flatnonzero(np.diff(ends // rows, prepend=-1, append=np.iinfo(np.int64).max))


def slice_block(block: Mapping[str, np.ndarray], lengths: np.ndarray, first: int, last: int) -> Block:
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
    """Return one block that holds the episodes of all, in order; all have the same columns."""
    joined = {}
    for name in blocks[0]:
        pieces = [block[name] for block in blocks]
        if is_offsets(name):
            counts = [piece[-1] if len(piece) else 0 for piece in pieces]
            starts = itertools.accumulate(counts, initial=0)
            pieces = [piece + start for piece, start in zip(pieces, starts, strict=False)]
        joined[name] = np.concatenate(pieces)
    return joined


def misfit(name: str, expected: object, actual: object) -> SchemaError:
    """Return the error for a column that differs from what is expected."""
    return SchemaError(f"column {name}: expected {expected}, found {actual}.")


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


def metres_of(depth: Any, parameters: Any, library: Any) -> Any:
    """Return maps of depth in metres, float32; the parameters have as many axes, and the library is NumPy or PyTorch."""
    low, high, shift, is_log, largest = (parameters[number] for number in range(5))
    share = library.asarray(depth, dtype=library.float32) / largest
    base = library.where(is_log != 0, low + shift, 1.0)  # not used where depth is linear, whose sum may be 0
    metres = library.where(is_log != 0, base * ((high + shift) / base) ** share - shift, low + (high - low) * share)
    return library.asarray(metres, dtype=library.float32)
