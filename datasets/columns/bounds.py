"""Numbers outside the bounds of their Box: counted when they are written, or refused.

Infinities and NaN are not counted here, but in a manifest's `non_finite`. Boxes inside Sequence,
Graph and OneOf spaces are not checked.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np

from orlog.errors import SchemaError
from orlog.manifests.manifest import Outside
from orlog.manifests.spaces import leaf_spaces

_LONG_ROW = 1024
_BLOCK_NUMBERS = 2**16  # so that all steps of a count find a block in the CPU's cache


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """The smallest and the largest number allowed for each element of a column's row.

    Attributes:
        low: Shape of a row, or a scalar if all elements have the same bounds.
        high: Shape of `low`.
    """

    low: np.ndarray
    high: np.ndarray

    @functools.cached_property
    def are_finite(self) -> bool:
        """Whether only finite numbers lie inside."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def __str__(self) -> str:
        """Return the bounds as text; where elements differ, the range of each bound."""
        if self.low.ndim == 0:
            return f"[{self.low:g}, {self.high:g}]"
        low, high = (
            f"from {bound.min():g} to {bound.max():g}" if bound.min() < bound.max() else f"{bound.min():g}"
            for bound in (self.low, self.high)
        )
        return f"the bounds of its own element (lower bounds {low}, upper bounds {high})"


def bounds_of(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> dict[str, Bounds]:
    """Return the bounds of columns by name, except those that allow all finite numbers."""
    bounds = {}
    roots = {"observations": observation_space, "actions": action_space}
    leaves = (pair for root, space in roots.items() for pair in leaf_spaces(space, root))
    for name, leaf in leaves:
        if not isinstance(leaf, gymnasium.spaces.Box) or leaf.dtype.kind == "b":
            continue
        low, high = leaf.low, leaf.high
        kind: Any = np.finfo if leaf.dtype.kind == "f" else np.iinfo
        limits = kind(leaf.dtype)
        if (low > limits.min).any() or (high < limits.max).any():
            if (low == low.flat[0]).all() and (high == high.flat[0]).all():
                low, high = low.reshape(-1)[0], high.reshape(-1)[0]
            bounds[name] = Bounds(np.asarray(low), np.asarray(high))
    return bounds


def lies_inside(values: np.ndarray, bounds: Bounds) -> bool:
    """Return whether all numbers lie inside; NaN does not. Much quicker than counting those outside."""
    if values.size == 0:
        return True
    with np.errstate(invalid="ignore"):
        return bool(
            np.all(_reduced(np.maximum, values, bounds) <= bounds.high.reshape(-1))
            and np.all(_reduced(np.minimum, values, bounds) >= bounds.low.reshape(-1))
        )


def _reduced(ufunc: np.ufunc, values: np.ndarray, bounds: Bounds) -> Any:
    """Return the extreme of all numbers, or of each column of a matrix if elements differ."""
    if bounds.low.ndim == 0:
        return ufunc.reduce(values, None)
    values = values.reshape(len(values), -1)
    # NumPy takes one row after another, which is slow for short rows: long ones are made of them.
    each = max(1, _LONG_ROW // values.shape[1])
    whole = len(values) // each * each
    parts = [values[whole:]]
    if whole:
        long = ufunc.reduce(values[:whole].reshape(-1, each * values.shape[1]))
        parts.append(long.reshape(each, -1))
    return ufunc.reduce(np.concatenate(parts))


def count_outside(values: np.ndarray, bounds: Bounds) -> Outside | None:
    """Return how many finite numbers lie outside, and the extremes of these; None if none does."""
    count, extremes = 0, []
    rows = max(1, _BLOCK_NUMBERS // max(1, math.prod(values.shape[1:])))
    for first in range(0, len(values), rows):
        block = values[first : first + rows]
        if lies_inside(block, bounds):
            continue
        with np.errstate(invalid="ignore"):
            outside = (block < bounds.low) | (block > bounds.high)
        numbers = block.reshape(-1)[np.flatnonzero(outside)]  # quicker than by the mask itself
        numbers = numbers[np.isfinite(numbers)]
        if numbers.size:
            count += numbers.size
            extremes += [float(numbers.min()), float(numbers.max())]
    if not count:
        return None
    return Outside(numbers=count, lowest=min(extremes), highest=max(extremes))


def merge_outside(counts: Iterable[Mapping[str, Outside]]) -> dict[str, Outside]:
    """Return the combined counts of several parts, by column."""
    by_column: dict[str, list[Outside]] = {}
    for name, part in (pair for count in counts for pair in count.items()):
        by_column.setdefault(name, []).append(part)
    return {
        name: Outside(
            numbers=sum(part.numbers for part in parts),
            lowest=min(part.lowest for part in parts),
            highest=max(part.highest for part in parts),
        )
        for name, parts in by_column.items()
    }


def refuse_outside(
    block: Mapping[str, np.ndarray], bounds: Mapping[str, Bounds], where: str, first_rows: Mapping[str, int]
) -> None:
    """Refuse rows of an episode with a number outside its bounds, and name the first one; NaN is not outside.

    `first_rows` has the index in the episode of a column's first row here, 0 by default.
    """
    for name, limits in bounds.items():
        values = block[name]
        outside = (values < limits.low) | (values > limits.high)
        if not outside.any():
            continue
        place = np.unravel_index(int(outside.argmax()), outside.shape)
        low, high = (np.broadcast_to(limit, values.shape)[place] for limit in (limits.low, limits.high))
        value = values[place]
        bound = f"less than {low:g}" if value < low else f"more than {high:g}"
        number = "".join(f"[{index}]" for index in place[1:])
        raise SchemaError(
            f"{where}, step {first_rows.get(name, 0) + int(place[0])}, column {name}{number}: "
            f"{value:g} is {bound}, the bound of its Box; clip it before it is recorded, give the "
            "space wider bounds, or leave out strict=True."
        )


def describe_outside(outside: Outside, bounds: Bounds | None) -> str:
    """Return how many numbers lie outside which bounds, in words."""
    text = f"{outside.numbers:,} from {outside.lowest:g} to {outside.highest:g}"
    if bounds is None:
        return text
    each = "" if bounds.low.ndim == 0 else " each"
    return f"{text},{each} outside of {bounds}"
