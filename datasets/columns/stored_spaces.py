"""Which columns store the values of a space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.blocks import misfit
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec, offsets_column, part_column, values_column
from orlog.manifests.spaces import named_parts

Space: TypeAlias = gymnasium.Space[Any]


INT = np.dtype(np.int64)


_LINKS = spaces.Box(0, np.iinfo(np.int64).max, (2,), np.int64)


def space_columns(space: Space, path: str) -> list[ColumnSpec]:
    """Return every stored column of a space, Dict keys in sorted order.

    Raises SchemaError if values of such a space cannot be stored.
    """
    match space:
        case spaces.Dict() | spaces.Tuple():
            return [
                spec
                for _, name, part in named_parts(space)
                for spec in space_columns(part, f"{path}/{name}")
            ]
        case spaces.Text():
            return [_offsets_spec(path), ColumnSpec(values_column(path), np.dtype(np.uint8), ())]
        case spaces.Sequence():
            return [_offsets_spec(path), *space_columns(space.feature_space, values_column(path))]
        case spaces.Graph():
            sequences = graph_parts(space)
        case spaces.OneOf():
            sequences = {f"option{index}": part for index, part in enumerate(space.spaces)}
        case _:
            return [ColumnSpec(path, *numbers_of(space, path))]
    choice = (
        [ColumnSpec(part_column(path, "choice"), INT, ())]
        if isinstance(space, spaces.OneOf)
        else []
    )
    return choice + [
        spec
        for name, part in sequences.items()
        for spec in space_columns(spaces.Sequence(part), part_column(path, name))
    ]


def _offsets_spec(path: str) -> ColumnSpec:
    return ColumnSpec(offsets_column(path), INT, ())


def graph_parts(space: spaces.Graph) -> dict[str, Space]:
    """Return the spaces of a graph's nodes, links and edges, by name; it stacks samples of each."""
    edges = {} if space.edge_space is None else {"edges": space.edge_space}
    return {"nodes": space.node_space, "links": _LINKS, **edges}


def numbers_of(space: Space, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and row shape of a space of numbers."""
    if not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise SchemaError(f"column {path}: a {type(space).__name__} space cannot be stored.")
    assert space.shape is not None
    return np.dtype(space.dtype), space.shape


def check_links(block: Mapping[str, np.ndarray], path: str) -> None:
    """Check that each edge has a link, and each link joins nodes of its graph."""
    node_ends, link_ends = (
        block[offsets_column(part_column(path, "nodes"))],
        block[offsets_column(part_column(path, "links"))],
    )
    edge_ends = block.get(offsets_column(part_column(path, "edges")), link_ends)
    unequal = np.flatnonzero(edge_ends != link_ends)
    if len(unequal):
        raise misfit(f"{path}, row {unequal[0]}", "as many links as edges", "others")
    links = block[values_column(part_column(path, "links"))]
    nodes = np.repeat(np.diff(node_ends, prepend=0), np.diff(link_ends, prepend=0))
    outside = (links < 0) | (links >= nodes[:, None])
    if outside.any():
        link, side = divmod(int(outside.argmax()), 2)
        row = int(np.searchsorted(link_ends, link, side="right"))
        raise misfit(f"{path}, row {row}", f"links to its {nodes[link]} nodes", links[link, side])
