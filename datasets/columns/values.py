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

A block is a dict of columns that hold the same whole episodes, so its offsets start at 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.blocks import Block, misfit
from orlog.datasets.columns.restored_values import cut, unflatten
from orlog.datasets.columns.stored_spaces import (
    INT,
    Space,
    check_links,
    graph_parts,
    numbers_of,
    space_columns,
)
from orlog.manifests.columns import axis_of, offsets_column, offsets_of, part_column, values_column
from orlog.manifests.spaces import named_parts


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
        case spaces.Sequence(stack=True):
            return _flatten_stacked(space.feature_space, path, _samples(path, values, rows))
        case spaces.Sequence():
            return _flatten_sequence(space.feature_space, path, _samples(path, values, rows))
        case spaces.Graph():
            return _flatten_graph(space, path, _samples(path, values, rows))
        case spaces.OneOf():
            return _flatten_one_of(space, path, _samples(path, values, rows))
    return {path: _flatten_numbers(space, path, values, rows)}


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, list | tuple | Mapping):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str | int | float):
        return f"{type(value).__name__} {value!r:.80}"
    return f"a {type(value).__name__}"


def _row_hint(name: str, rows: int, found: int) -> str:
    if axis_of(name) == "observation" and offsets_of(name) is None and found == rows - 1:
        return (
            "; observations have one row more than actions, the last one being what followed the "
            "last action"
        )
    return ""


def _samples(path: str, values: object, rows: int) -> list[Any] | tuple[Any, ...]:
    """Check that there is a sample per row."""
    if not isinstance(values, list | tuple):
        raise misfit(path, f"a list of {rows} samples", _describe(values))
    if len(values) != rows:
        hint = _row_hint(path, rows, len(values))
        raise misfit(path, f"{rows} rows", f"{len(values)}{hint}")
    return values


def _columns_of_parts(
    space: spaces.Dict | spaces.Tuple, path: str, values: object, rows: int
) -> Mapping[str, object]:
    """Return the values of each part by key, turning a list of samples into columns."""
    if not isinstance(values, list):
        return _by_key(space, path, values)
    samples = [
        _by_key(space, f"{path}, row {row}", sample)
        for row, sample in enumerate(_samples(path, values, rows))
    ]
    keys = [str(key) for key, _, _ in named_parts(space)]
    return {key: [sample[key] for sample in samples] for key in keys}


def _by_key(space: spaces.Dict | spaces.Tuple, path: str, value: object) -> Mapping[str, Any]:
    """Return a Dict's dict, or a Tuple's tuple by "0", "1", .., after checking its keys."""
    keys = [str(key) for key, _, _ in named_parts(space)]
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple):
        value = {str(index): part for index, part in enumerate(value)}
    if not isinstance(value, Mapping):
        kind = "dict" if isinstance(space, spaces.Dict) else "tuple"
        raise misfit(path, f"a {kind} of {keys}", _describe(value))
    if value.keys() != set(keys):
        raise misfit(path, f"the keys {keys}", list(value))
    return value


def _flatten_numbers(space: Space, name: str, values: object, rows: int) -> np.ndarray:
    dtype, shape = numbers_of(space, name)
    if isinstance(values, list | tuple):
        values = _stack(name, _samples(name, values, rows), dtype, shape)
    if not isinstance(values, np.ndarray) or (values.dtype, values.shape) != (
        dtype,
        (rows, *shape),
    ):
        hint = ""
        if isinstance(values, np.ndarray) and values.shape[1:] == shape and values.ndim:
            hint = _row_hint(name, rows, len(values))
        raise misfit(name, f"{dtype} {(rows, *shape)}", _describe(values) + hint)
    _check_range(space, name, values)
    return values


def _stack(
    name: str, samples: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> np.ndarray:
    takes_int = shape == () and dtype.kind in "iu"
    integers = range(np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if takes_int else range(0)
    for row, sample in enumerate(samples):
        if not _is_sample(sample, dtype, shape, integers):
            raise misfit(f"{name}, row {row}", f"{dtype} {shape}", _describe(sample))
    if shape and samples:
        return np.stack(samples)
    return np.array(samples, dtype).reshape(len(samples), *shape)


def _is_sample(sample: Any, dtype: np.dtype[Any], shape: tuple[int, ...], integers: range) -> bool:
    if isinstance(sample, np.ndarray | np.generic):
        return bool(sample.dtype == dtype and sample.shape == shape)
    if type(sample) is int:
        return sample in integers
    return shape == () and (
        (type(sample) is bool and dtype.kind == "b")
        or (type(sample) is float and dtype == np.float64)
    )


def _check_range(space: Space, name: str, values: np.ndarray) -> None:
    """Refuse values outside a discrete space."""
    low: Any
    high: Any
    match space:
        case spaces.Box():
            return
        case spaces.Discrete():
            low = int(space.start)
            high = low + int(space.n) - 1
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + (space.nvec - 1)
        case spaces.MultiBinary():
            low, high = 0, 1
        case _:
            return
    outside = (values < low) | (values > high)
    if outside.any():
        place = np.unravel_index(int(outside.argmax()), outside.shape)
        least, most = (np.broadcast_to(bound, values.shape)[place] for bound in (low, high))
        raise misfit(f"{name}, row {place[0]}", f"{least} to {most}", values[place])


def _offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(counts, INT).cumsum(dtype=INT)


def _flatten_text(space: spaces.Text, path: str, texts: Sequence[Any]) -> Block:
    allowed = space.character_set
    for row, text in enumerate(texts):
        where = f"{path}, row {row}"
        if not isinstance(text, str):
            raise misfit(where, "text", _describe(text))
        if not space.min_length <= len(text) <= space.max_length:
            expected = f"{space.min_length} to {space.max_length} characters"
            raise misfit(where, expected, len(text))
        if not allowed.issuperset(text):
            character = next(character for character in text if character not in allowed)
            raise misfit(where, f"characters of {space.characters!r:.80}", f"{character!r}")
    try:
        encoded = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        row = next(row for row, text in enumerate(texts) if text == error.object)
        raise misfit(
            f"{path}, row {row}", "text that UTF-8 can hold", ascii(error.object[error.start])
        ) from error
    return {
        offsets_column(path): _offsets([len(text) for text in encoded]),
        values_column(path): np.frombuffer(b"".join(encoded), np.uint8),
    }


def _flatten_sequence(inner: Space, path: str, entries: Sequence[Any]) -> Block:
    for row, entry in enumerate(entries):
        if not isinstance(entry, list | tuple):
            raise misfit(f"{path}, row {row}", "a tuple of samples", _describe(entry))
    values = list(itertools.chain.from_iterable(entries))
    offsets = _offsets([len(entry) for entry in entries])
    return {
        offsets_column(path): offsets,
        **flatten(inner, values_column(path), values, len(values)),
    }


def _flatten_stacked(inner: Space, path: str, entries: Sequence[Any]) -> Block:
    joined, counts = _join(inner, values_column(path), entries)
    # Stacked values of an empty Dict or Tuple are not counted.
    offsets = _offsets([0] * len(entries) if counts is None else counts)
    total = int(offsets[-1]) if len(offsets) else 0
    return {offsets_column(path): offsets, **flatten(inner, values_column(path), joined, total)}


def _join(space: Space, path: str, entries: Sequence[Any]) -> tuple[Any, list[int] | None]:
    """Join stacked samples, one entry per row, into values to flatten, and count them per row."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            keyed = [
                _by_key(space, f"{path}, row {row}", entry) for row, entry in enumerate(entries)
            ]
            joined, counts = {}, None
            for index, part_name, part in named_parts(space):
                key, name = str(index), f"{path}/{part_name}"
                joined[key], found = _join(part, name, [entry[key] for entry in keyed])
                if counts is not None and found not in (None, counts):
                    raise misfit(
                        name, "as many values in each row as its siblings have", "other numbers"
                    )
                counts = found if counts is None else counts
            return joined, counts
        case spaces.Text() | spaces.Sequence() | spaces.Graph() | spaces.OneOf():
            for row, entry in enumerate(entries):
                if not isinstance(entry, list | tuple):
                    raise misfit(f"{path}, row {row}", "a tuple of samples", _describe(entry))
            return list(itertools.chain.from_iterable(entries)), [len(entry) for entry in entries]
    dtype, shape = numbers_of(space, path)
    for row, entry in enumerate(entries):
        if (
            not isinstance(entry, np.ndarray)
            or entry.ndim == 0
            or (entry.dtype, entry.shape[1:]) != (dtype, shape)
        ):
            raise misfit(f"{path}, row {row}", f"{dtype} rows of shape {shape}", _describe(entry))
    empty = np.empty((0, *shape), dtype)
    return np.concatenate([empty, *entries]), [len(entry) for entry in entries]


def _flatten_graph(space: spaces.Graph, path: str, graphs: Sequence[Any]) -> Block:
    for row, graph in enumerate(graphs):
        _check_graph(space, f"{path}, row {row}", graph)
    stacks = {"nodes": [graph.nodes for graph in graphs]}
    no_links = np.empty((0, 2), INT)
    stacks["links"] = [
        no_links if graph.edge_links is None else graph.edge_links.astype(INT) for graph in graphs
    ]
    if space.edge_space is not None:
        no_edges = _nothing(space.edge_space)
        stacks["edges"] = [no_edges if graph.edges is None else graph.edges for graph in graphs]
    block: Block = {}
    for name, part in graph_parts(space).items():
        block |= _flatten_stacked(part, part_column(path, name), stacks[name])
    check_links(block, path)
    return block


def _check_graph(space: spaces.Graph, where: str, graph: object) -> None:
    if not isinstance(graph, spaces.GraphInstance):
        raise misfit(where, "a GraphInstance", _describe(graph))
    links: Any = graph.edge_links
    if space.edge_space is None and graph.edges is not None:
        raise misfit(where, "None for edges, as there is no edge space", _describe(graph.edges))
    if space.edge_space is not None and (graph.edges is None) != (links is None):
        found = "links without edges" if graph.edges is None else "edges without links"
        raise misfit(where, "edges with links, or None for both", found)
    if links is None:
        return
    if not isinstance(links, np.ndarray) or links.dtype.kind not in "iu" or links.ndim != 2:
        raise misfit(where, "links as integers (.., 2)", _describe(links))


def _nothing(space: Space) -> Any:
    """Return a stack of no samples."""
    columns = {
        spec.name: np.empty((0, *spec.shape), spec.dtype) for spec in space_columns(space, "")
    }
    return cut(space, unflatten(space, "", columns), 0, 0)


def _flatten_one_of(space: spaces.OneOf, path: str, pairs: Sequence[Any]) -> Block:
    options = len(space.spaces)
    for row, pair in enumerate(pairs):
        where = f"{path}, row {row}"
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise misfit(where, "a pair (index, value)", _describe(pair))
        if isinstance(pair[0], bool) or not isinstance(pair[0], int | np.integer):
            raise misfit(where, "an integer as index", _describe(pair[0]))
        if not 0 <= pair[0] < options:
            raise misfit(where, f"an index from 0 to {options - 1}", pair[0])
    choice = np.array([pair[0] for pair in pairs], INT)
    block = {part_column(path, "choice"): choice}
    for index, part in enumerate(space.spaces):
        entries = [(value,) if chosen == index else () for chosen, value in pairs]
        block |= _flatten_sequence(part, part_column(path, f"option{index}"), entries)
    return block
