"""Columns that batches give beside their items: infos of steps, and values of their episodes.

    infos=("cost", "sensors/front", "episodes/task")
            |       |                episodes/task         the same value in all steps of an episode
            |       infos/sensors/front
            infos/cost, or else the column that has the role `cost` (docs/families.md)

A name with `*` in place of one part, such as `agents/*/rewards`, is all columns that match, side by
side in the order of that part.

They are kept as observations are, in arrays of their own that have the same rows: floats side by side
in one float32 matrix, all else as stored. The rows of final observations hold zeros, since an info
belongs to a step. A value of an episode takes the memory of one for each of its steps.

A sampler of single steps has their rows as all that it chooses, or as the first column of it. Any other has a method
`rows_of`, which returns the rows of some items in the shape of their rewards: `Arrays.empty_row` in slots without a
step, since that row holds zeros. Nothing else of a sampler knows of infos.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.errors import NotFoundError, SchemaError, wrong_type
from orlog.loaders.batch import TensorsT, with_infos
from orlog.loaders.filling import Layout, Leaf, TextTable, rows_of
from orlog.loaders.gathering import gather_rows
from orlog.loaders.tensors import Tensor, torch
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.names import did_you_mean
from orlog.manifests.roles import ROLES, column_with

_OF_EPISODES = "episodes/"
_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}  # PyTorch lacks the former


class InfoReader:
    """Gathers the infos of what a sampler chose."""

    def __init__(self, infos: Any, names: Sequence[str], rows_of: Callable[[Tensor], Tensor] | None) -> None:
        """Find the infos of some names in arrays of infos; `rows_of` is that of the sampler."""
        self._infos, self._rows_of = infos, rows_of
        self._leaves: dict[str, Leaf] = {name: infos.observation_leaves[name] for name in names}
        places = [leaf.place for leaf in self._leaves.values() if not leaf.column]
        self._first = min((place.start for place in places), default=0)
        self._last = max((place.stop for place in places), default=0)

    def give(self, batch: TensorsT, chosen: Tensor) -> TensorsT:
        """Give a batch that was just made the infos of its items, and return it."""
        rows = self._rows_of(chosen) if self._rows_of else chosen if chosen.ndim == 1 else chosen[:, 0]
        flat = rows.reshape(-1).contiguous()
        packed = gather_rows(self._infos.rows[:, self._first : self._last], flat)
        given = {}
        for name, leaf in self._leaves.items():
            if not leaf.column:
                values = packed[:, leaf.place.start - self._first : leaf.place.stop - self._first]
                given[name] = values.reshape(*rows.shape, *leaf.shape)
                continue
            values = gather_rows(self._infos.others[leaf.column], flat)
            is_kept = values.dtype == torch.bool or (values.dtype == torch.uint8 and values.ndim > 2)
            given[name] = (values if is_kept else values.long()).reshape(*rows.shape, *values.shape[1:])
        return with_infos(batch, given)


def check_names(infos: Sequence[str]) -> tuple[str, ...]:
    """Return the names of infos, each once."""
    if isinstance(infos, str) or not isinstance(infos, Sequence):
        raise wrong_type("infos", 'names such as ("cost",)', infos)
    for name in infos:
        if not isinstance(name, str):
            raise wrong_type("each of infos", "the name of an info", name)
        if infos.count(name) > 1:
            raise ValueError(f"infos: {name!r} is given more than once.")
    return tuple(infos)


def info_layout(dataset: Dataset, names: tuple[str, ...]) -> Layout:
    """Return how infos are laid out in arrays of their own, in which they are the observations."""
    packed: dict[str, slice] = {}
    others: dict[str, ColumnSpec] = {}
    tables: dict[str, TextTable] = {}
    leaves: dict[str, Leaf] = {}
    groups: dict[str, tuple[str, ...]] = {}
    position, known = 0, known_infos(dataset)
    for name in sorted(names):  # so that one pack serves any order
        several = _matching(dataset, name, known) if "*" in name else []
        spec = several[0] if several else _column_of(dataset, name)
        if dataset.schema.variable.get(spec.name) == "array":
            raise SchemaError(
                f"{dataset.name}: each value of column {spec.name} may have another length, so values "
                "are in no batch; leave it out, or record it with one shape."
            )
        if spec.name in dataset.schema.variable:
            spec = ColumnSpec(spec.name, np.dtype(np.int64), ())
            tables[spec.name] = TextTable(spec.name)
        shape = (len(several), *spec.shape) if several else spec.shape
        if spec.dtype.kind != "f":
            dtype = np.dtype(_WIDER.get(str(spec.dtype), spec.dtype))
            column = name if several else spec.name
            others[column] = ColumnSpec(column, dtype, shape)
            if several:
                groups[name] = tuple(part.name for part in several)
            leaves[name] = Leaf(column=column)
            continue
        size = math.prod(spec.shape)
        for part in several or [spec]:
            if part.name not in packed or several:
                packed[part.name] = slice(position, position + size)
                position += size
        leaves[name] = Leaf(first=packed[(several or [spec])[0].name].start, shape=shape)
    return Layout(
        packed=packed,
        others=others,
        tables=tables,
        obs_dim=position,
        action_dim=0,
        observation_leaves=leaves,
        parts={},
        groups=groups,
        **rows_of(dataset),
    )


def _matching(dataset: Dataset, pattern: str, known: Mapping[str, ColumnSpec]) -> list[ColumnSpec]:
    """Return the columns of numbers that a name with `*` means, in the order of what stands for it."""
    expression = re.compile("([^/]+)".join(map(re.escape, pattern.split("*"))))
    matching = {match.groups(): spec for name, spec in known.items() if (match := expression.fullmatch(name))}
    several = [matching[parts] for parts in sorted(matching)]
    for spec in several:
        kind = dataset.schema.variable.get(spec.name)
        if kind is not None or (spec.dtype, spec.shape) != (several[0].dtype, several[0].shape):
            raise SchemaError(
                f"{dataset.name}: columns of {pattern} are given side by side only if they are numbers of one "
                f"kind and shape; {spec.name} holds {kind or f'{spec.dtype} {spec.shape}'}, {several[0].name} "
                f"{several[0].dtype} {several[0].shape}; ask for them one by one."
            )
    return several


def info_column(dataset: Dataset, name: str) -> str:
    """Return the name of the column that batches give as an info. Raises NotFoundError if there is none."""
    return _column_of(dataset, name).name


def _column_of(dataset: Dataset, name: str) -> ColumnSpec:
    """Return the column of an info: the one of that name, or else the first one that has it as its role."""
    known = known_infos(dataset)
    if name in known:
        return known[name]
    column = column_with(dataset.roles, name)
    specs = {spec.name: spec for spec in known.values()}
    if column in specs:
        return specs[column]
    missing = f"{dataset.name}: no info {name!r:.100}"
    there = f" It has: {', '.join(known) or 'none'}."
    if name in ROLES:
        raise NotFoundError(
            f"{missing}, and no column with the role {name} ({ROLES[name].meaning}).{there} If one of them is "
            f"that, say so when the data are made: roles={{'infos/NAME': '{name}'}}, or orlog import --map "
            f"infos/{name}=NAME."
        )
    raise NotFoundError(missing + (did_you_mean(name, known) or ".") + there)


def known_infos(dataset: Dataset) -> Mapping[str, ColumnSpec]:
    """Return the columns that batches may give beside transitions, by the names to ask for."""
    specs = dataset.schema.columns()
    specs |= dataset.schema.extras  # texts by their paths
    return {
        name if name.startswith(_OF_EPISODES) else name.removeprefix("infos/"): spec
        for name, spec in sorted(specs.items(), key=lambda item: item[0].startswith(_OF_EPISODES))
        if name.startswith(("infos/", _OF_EPISODES)) and "@" not in name
    }


def infos_digest(dataset: Dataset, names: tuple[str, ...]) -> str:
    """Return the digest of infos of a dataset, whatever the order of their names."""
    text = f"orlog infos 1\n{dataset.digest}\n{json.dumps(sorted(names))}"
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
