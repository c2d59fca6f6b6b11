"""Gives the infos of items, for every kind of sampling: from the rows of their steps.

A sampler of single steps has their rows as all that it chooses, or as the first column of it. Any
other has a method `rows_of`, which returns the rows of some items in the shape of their rewards:

    a tensor     `Arrays.empty_row` in slots without a step, since that row holds zeros
    `Windows`    where the rows of an item follow one another: the first of each, which is faster

Nothing else of a sampler knows of infos.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.blocks import items_at_once
from orlog.loaders.gathering import gather_rows

BatchT = TypeVar("BatchT")
RowsOf: TypeAlias = Callable[[Tensor], "Tensor | Windows"]

_ROW_NUMBER_BYTES = 8  # which each slot takes while it is gathered
_set = object.__setattr__  # batches are frozen; to copy one would take longer than all else


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Items whose rows follow one another.

    Attributes:
        first: Row of the first slot of each item; it may lie outside of the arrays.
        length: Slots of an item.
        steps: How many of its slots have a step, the first ones; None where all have.
        at_end: Whether these are the last slots instead.
        is_ragged: Whether the length is another one in each batch, as the longest of its episodes.
        is_packed: Whether steps are given one after the other, without empty slots between items.
    """

    first: Int64[Tensor, "*items"]
    length: int
    steps: Int64[Tensor, " items"] | None = None
    at_end: bool = False
    is_ragged: bool = False
    is_packed: bool = False

    def gather(self, source: Tensor) -> Tensor:
        """Return the values of the slots, zeros where they have no step.

        In main memory each item is one copy, and NumPy does the small work, in half the time.
        """
        count, *shape = source.shape
        if not source.is_cpu:
            rows = self._rows(count - 1)
            return gather_rows(source, rows.view(-1)).view(*rows.shape, *shape)
        if self.is_ragged:
            return self._gather_one_by_one(source.numpy())
        length, width, first = self.length, math.prod(shape), self.first.view(-1)
        windows = source.as_strided((count - length + 1, length * width), (width, 1))
        inside = first.clamp(0, count - length)
        found = gather_rows(windows, inside).view(-1, length, *shape)
        if self.steps is not None and width:
            self._clear(source, found, inside.numpy())
        return found.view(*self.first.shape, length, *shape)

    def _clear(self, source: Tensor, found: Tensor, inside: np.ndarray) -> None:
        """Set slots without a step to zero, of windows that were read from the rows `inside`."""
        assert self.steps is not None
        first, steps, length = self.first.numpy(), self.steps.numpy(), self.length
        partly = np.flatnonzero(steps < length)
        slot = np.dtype((np.void, found[0, 0].nbytes))  # one value, whatever it consists of
        slots = found.numpy().reshape(*found.shape[:2], -1).view(slot)[..., 0]
        some, places = slots[partly], np.arange(length)
        empty_from = steps[partly, None]
        empty = places < length - empty_from if self.at_end else places >= empty_from
        some[empty] = np.zeros((), slot)
        slots[partly] = some
        for one in partly[first[partly] != inside[partly]].tolist():  # rare: at both ends of all
            taken, begin = int(steps[one]), int(length - steps[one]) if self.at_end else 0
            place = int(first[one]) + begin
            found[one] = 0
            found[one, begin : begin + taken] = source[place : place + taken]

    def _gather_one_by_one(self, values: np.ndarray) -> Tensor:
        """Return the values of a few long items."""
        assert self.steps is not None
        first, steps = self.first.tolist(), self.steps.tolist()
        pieces = [values[one : one + taken] for one, taken in zip(first, steps, strict=True)]
        if self.is_packed:
            return torch.from_numpy(np.concatenate(pieces))
        found = np.zeros((len(pieces), self.length, *values.shape[1:]), values.dtype)
        for slots, piece in zip(found, pieces, strict=True):
            slots[: len(piece)] = piece
        return torch.from_numpy(found)

    def _rows(self, empty_row: int) -> Int64[Tensor, ...]:
        """Return the row of each slot."""
        places = torch.arange(self.length, device=self.first.device)
        rows = self.first.unsqueeze(-1) + places
        if self.steps is None:
            return rows
        steps = self.steps.unsqueeze(-1)
        empty = places < self.length - steps if self.at_end else places >= steps
        return rows[~empty] if self.is_packed else rows.masked_fill_(empty, empty_row)


class InfoReader:
    """Gathers the infos of what a sampler chose."""

    def __init__(self, arrays: Arrays, names: Sequence[str], sampler: object = None) -> None:
        """Find the infos of some names, for what a sampler chooses; None chooses single steps.

        Raises SchemaError if the arrays lack one.
        """
        self._rows_of: RowsOf = getattr(sampler, "rows_of", _first_rows)
        infos = as_arrays(arrays, names).infos
        assert infos is not None
        self._infos, self._names = infos, tuple(names)
        self._leaves = [infos.observation_leaves[name] for name in names]
        places = [leaf.place for leaf in self._leaves if not leaf.column]
        self._first = min((place.start for place in places), default=0)
        self._last = max((place.stop for place in places), default=0)
        others = [infos.others[leaf.column] for leaf in self._leaves if leaf.column]
        self._row_bytes = 4 * (self._last - self._first) + sum(one[0].nbytes for one in others)

    def give(self, batch: BatchT, chosen: Tensor) -> BatchT:
        """Give a batch that was just made the infos of its items, and return it."""
        _set(batch, "infos", dict(zip(self._names, self._columns(chosen), strict=True)))
        return batch

    def give_many(self, batches: Iterable[BatchT], chosen: Tensor, size: int) -> Iterator[BatchT]:
        """Give batches of `size` items each theirs, as views of a few gathered blocks."""
        one = self._rows_of(chosen[:1])
        if isinstance(one, Windows) and one.is_ragged:
            yield from map(self.give, batches, torch.split(chosen, size))
            return
        slots = one.length * one.first.numel() if isinstance(one, Windows) else one.numel()
        item_bytes = (_ROW_NUMBER_BYTES + self._row_bytes) * slots
        names, rest = self._names, iter(batches)
        # As `gather_in_blocks`, whose tuples and calls would take as long as the gather.
        for items in torch.split(chosen, items_at_once(size, item_bytes)):
            shape = (len(items) // size, size)
            columns = [one.view(*shape, *one.shape[1:]).unbind(0) for one in self._columns(items)]
            if len(names) == 1:
                name = names[0]
                for value, batch in zip(columns[0], rest):  # noqa: B905  # `rest` goes on
                    _set(batch, "infos", {name: value})
                    yield batch
                continue
            for values, batch in zip(zip(*columns, strict=True), rest):  # noqa: B905
                _set(batch, "infos", dict(zip(names, values, strict=True)))
                yield batch

    def _columns(self, chosen: Tensor) -> Iterator[Tensor]:
        """Yield the values of each info, a row per item."""
        rows = self._rows_of(chosen)
        packed = None
        if self._last > self._first:
            packed = _gather(self._infos.rows[:, self._first : self._last], rows)
        for leaf in self._leaves:
            if not leaf.column:
                assert packed is not None
                values = packed[..., leaf.place.start - self._first : leaf.place.stop - self._first]
                yield values.view(*values.shape[:-1], *leaf.shape)
                continue
            source = self._infos.others[leaf.column]
            values = _gather(source, rows)
            is_image = source.dtype is torch.uint8 and source.ndim > 2
            yield values if is_image or values.dtype is torch.bool else values.long()


def _gather(source: Tensor, rows: Tensor | Windows) -> Tensor:
    if isinstance(rows, Windows):
        return rows.gather(source)
    return gather_rows(source, rows.reshape(-1).contiguous()).view(*rows.shape, *source.shape[1:])


def _first_rows(chosen: Tensor) -> Int64[Tensor, " items"]:
    return chosen if chosen.ndim == 1 else chosen[:, 0]
