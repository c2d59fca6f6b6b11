"""Checks of single dimensions and texts: not finite, out of bounds or space, constant, stuck, on a bound, unused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.audit.findings import Check, Facts, Finding, Severity
from orlog.datasets.audit.pieces import Piece, dimension, plain_columns
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.columns.bounds import Bounds, bounds_of, describe_outside, lies_inside
from orlog.manifests.columns import axis_of, offsets_column, offsets_of, values_column
from orlog.manifests.manifest import Outside
from orlog.manifests.names import counted
from orlog.manifests.spaces import leaf_spaces


def judged_columns(facts: Facts, *roots: str, kinds: str = "f") -> list[str]:
    """Return the columns under some roots whose rows are few numbers of some kinds of dtype."""
    specs = facts.dataset.schema.columns()
    return [
        name
        for name in plain_columns(facts.dataset, *roots)
        if specs[name].dtype.kind in kinds
        and 0 < math.prod(specs[name].shape) <= limit("wide rows")
    ]


def check_finite(facts: Facts) -> Check:
    """Find NaN and infinity in every column."""
    seen = Seen(facts.dataset)
    counts, firsts = seen.counts(), seen.firsts()
    while (piece := (yield seen)) is not None:
        for name, values in piece.columns.items():
            # A sum shows quickly whether there may be any; one that overflows is looked at too.
            with np.errstate(over="ignore", invalid="ignore"):
                if values.dtype.kind != "f" or np.isfinite(values.sum()):
                    continue
            bad = ~np.isfinite(values[: piece.counted(name)])
            if bad.any():
                row = int(bad.reshape(len(bad), -1).any(axis=1).argmax())
                firsts.setdefault(name, _place(piece, name, row))
                counts[name] += int(bad.sum())
    found = {**_of_episodes(facts), **{name: (counts[name], *firsts[name]) for name in firsts}}
    return [
        Finding(
            check="finite",
            severity="warning" if name.startswith(("infos/", "episodes/")) else "error",
            column=name,
            text=f"{count:,} number{_s(count)} {'is' if count == 1 else 'are'} infinite or NaN",
            episode=episode,
            step=step,
            count=count,
        )
        for name, (count, episode, step) in found.items()
    ]


def _of_episodes(facts: Facts) -> dict[str, tuple[int, int, None]]:
    """Return how many episodes have no finite number in a column of episodes, and the first of them."""
    found = {}
    for name in plain_columns(facts.dataset, "episodes"):
        values = facts.dataset.column(name)
        if values.dtype.kind == "f" and name != "episodes/returns":  # which follow from rewards
            rows = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
            if len(rows):
                found[name] = len(rows), int(rows[0]), None
    return found


def _place(piece: Piece, name: str, row: int) -> tuple[int, int]:
    """Return the episode and step of a row; a value of variable length has those of its row."""
    offsets = offsets_of(name)
    while offsets is not None:
        row = int(np.searchsorted(piece.columns[offsets], row, "right"))
        name = offsets
        offsets = offsets_of(name)
    return piece.place(row, of_observations=axis_of(name) == "observation")


def check_bounds(facts: Facts) -> Check:
    """Find observations and actions outside the bounds of their Box."""
    bounds = bounds_of(facts.dataset.observation_space, facts.dataset.action_space)
    bounds = {name: one for name, one in bounds.items() if name in facts.dataset.columns}
    seen = Seen(facts.dataset)
    found = {name: seen.part(_Outside()) for name in bounds}
    firsts = seen.firsts()
    while (piece := (yield seen)) is not None:
        for name, one in bounds.items():
            values = piece.columns[name]
            if not lies_inside(values, one):
                _note_outside(piece, name, one, found[name], firsts)
    return [
        Finding(
            check="bounds",
            severity="warning",
            column=name,
            text=describe_outside(found[name].described(), bounds[name]),
            episode=episode,
            step=step,
            count=found[name].numbers,
        )
        for name, (episode, step) in firsts.items()
    ]


@dataclasses.dataclass
class _Outside:
    """How many numbers lie outside of bounds, and how far."""

    numbers: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

    def join(self, other: _Outside) -> None:
        self.numbers += other.numbers
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)

    def described(self) -> Outside:
        return Outside(numbers=self.numbers, lowest=self.lowest, highest=self.highest)


def _note_outside(
    piece: Piece, name: str, bounds: Bounds, found: _Outside, firsts: dict[str, tuple[int, int]]
) -> None:
    values = piece.columns[name][: piece.counted(name)]
    with np.errstate(invalid="ignore"):
        outside = ((values < bounds.low) | (values > bounds.high)) & np.isfinite(values)
    if not outside.any():
        return
    row = int(outside.reshape(len(outside), -1).any(axis=1).argmax())
    firsts.setdefault(name, _place(piece, name, row))
    far = values[outside]
    found.join(_Outside(int(outside.sum()), float(far.min()), float(far.max())))


class _Extremes:
    """Smallest and largest value of each dimension of a column, and how many values equal them."""

    def __init__(self, numbers: int) -> None:
        self.low = np.full(numbers, np.inf)
        self.high = np.full(numbers, -np.inf)
        self.at_low = np.zeros(numbers, np.int64)
        self.at_high = np.zeros(numbers, np.int64)
        self.still = np.zeros(numbers, np.int64)
        self.rows = 0

    def add(self, values: np.ndarray) -> None:
        """Take in values, (dimensions, rows)."""
        self.rows += values.shape[1]
        low, high = values.min(axis=1), values.max(axis=1)
        at_low = np.count_nonzero(values == low[:, None], axis=1)
        at_high = np.count_nonzero(values == high[:, None], axis=1)
        self.at_low = np.where(low < self.low, 0, self.at_low) + np.where(
            low <= self.low, at_low, np.count_nonzero(values == self.low[:, None], axis=1)
        )
        self.at_high = np.where(high > self.high, 0, self.at_high) + np.where(
            high >= self.high, at_high, np.count_nonzero(values == self.high[:, None], axis=1)
        )
        self.low, self.high = np.fmin(self.low, low), np.fmax(self.high, high)
        self.still += np.count_nonzero(values[:, 1:] == values[:, :-1], axis=1)

    def join(self, other: _Extremes) -> None:
        """Take in what another one has."""
        low, high = np.fmin(self.low, other.low), np.fmax(self.high, other.high)
        self.at_low = self.at_low * (self.low == low) + other.at_low * (other.low == low)
        self.at_high = self.at_high * (self.high == high) + other.at_high * (other.high == high)
        self.low, self.high = low, high
        self.still += other.still
        self.rows += other.rows


def check_ranges(facts: Facts) -> Check:
    """Find observations and actions that never change, or often sit on an extreme value."""
    dataset = facts.dataset
    names = judged_columns(facts, "observations", "actions", kinds="fiu")
    sizes = {name: math.prod(dataset.schema.columns()[name].shape) for name in names}
    seen = Seen(dataset)
    extremes = {name: seen.part(_Extremes(size)) for name, size in sizes.items()}
    while (piece := (yield seen)) is not None:
        for name, one in extremes.items():
            one.add(piece.numbers(name)[:, : piece.counted(name)])
    actions = dict(leaf_spaces(dataset.action_space, "actions"))
    bounds = bounds_of(dataset.observation_space, dataset.action_space)
    findings: list[Finding] = []
    for name, one in extremes.items():
        if one.rows < limit("fewest rows"):
            continue
        constant = one.low == one.high
        findings += _constant(facts, name, one, constant)
        if name not in actions:
            findings += _clipped(facts, name, one, constant)
        elif isinstance(actions[name], gymnasium.spaces.Box) and name in bounds:
            findings += _on_bounds(facts, name, one, constant, bounds)
    return findings


def _constant(
    facts: Facts, name: str, extremes: _Extremes, constant: np.ndarray
) -> Iterator[Finding]:
    is_action = name.startswith("actions")
    severity: Severity = "warning" if is_action else "note"
    for run in _runs(np.flatnonzero(constant)):
        value = extremes.low[run[0]] + 0.0  # no minus zero
        same = np.all(extremes.low[run] == value)
        yield Finding(
            check="unused actions" if is_action else "constant",
            severity=severity,
            column=_dimensions(facts, name, run),
            text=f"always {f'{value:g}' if same else 'the same'} in {counted(extremes.rows, 'row')}"
            + (": this action was never used" if is_action else ""),
            count=len(run),
        )


def _clipped(
    facts: Facts, name: str, extremes: _Extremes, constant: np.ndarray
) -> Iterator[Finding]:
    if facts.dataset.schema.columns()[name].dtype.kind != "f":
        return
    # A number with two values, or that rarely changes, sits on its extremes by nature.
    at_extremes = extremes.at_low + extremes.at_high
    between = extremes.rows - at_extremes
    moves = ~constant & (between >= limit("observations between") * extremes.rows)
    moves &= extremes.still - at_extremes <= limit("mostly still") * between
    most = limit("observations on an extreme") * extremes.rows
    for kind, at, value in (
        ("smallest", extremes.at_low, extremes.low),
        ("largest", extremes.at_high, extremes.high),
    ):
        for run in _runs(np.flatnonzero(moves & (at > most))):
            each = "" if np.all(value[run] == value[run[0]]) else " and others"
            yield Finding(
                check="saturated",
                severity="note",
                column=_dimensions(facts, name, run),
                text=f"{at[run].sum() / extremes.rows / len(run):.1%} of the values equal the {kind} "
                f"one, {value[run[0]]:g}{each}: clipped, or a sensor at its limit",
                count=int(at[run].sum()),
            )


def _on_bounds(
    facts: Facts, name: str, extremes: _Extremes, constant: np.ndarray, bounds: Mapping[str, Bounds]
) -> Iterator[Finding]:
    low, high = (
        np.broadcast_to(one, facts.dataset.schema.columns()[name].shape).reshape(-1)
        for one in (bounds[name].low, bounds[name].high)
    )
    on = np.where(extremes.low == low, extremes.at_low, 0)
    on = on + np.where(extremes.high == high, extremes.at_high, 0)
    for run in _runs(
        np.flatnonzero(~constant & (on > limit("actions on a bound") * extremes.rows))
    ):
        yield Finding(
            check="saturated",
            severity="note",
            column=_dimensions(facts, name, run),
            text=f"{on[run].sum() / extremes.rows / len(run):.1%} of the values lie on a bound of "
            "the Box: policies that squash actions with tanh never reach it",
            count=int(on[run].sum()),
        )


def check_unused_actions(facts: Facts) -> Check:
    """Find discrete actions that were never taken."""
    seen = Seen(facts.dataset)
    counts = seen.counts()
    for name, leaf in leaf_spaces(facts.dataset.action_space, "actions"):
        if isinstance(leaf, gymnasium.spaces.Discrete) and leaf.n <= 2**16:
            counts[name] = np.zeros(int(leaf.n), np.int64)
    starts = {
        name: int(leaf.start)
        for name, leaf in leaf_spaces(facts.dataset.action_space, "actions")
        if isinstance(leaf, gymnasium.spaces.Discrete)
    }
    if not counts:
        return []
    while (piece := (yield seen)) is not None:
        for name, count in counts.items():
            taken = piece.columns[name].astype(np.int64) - starts[name]
            count += np.bincount(taken, minlength=len(count))[: len(count)]
    return [
        Finding(
            check="unused actions",
            severity="warning",
            column=name,
            text=f"{len(unused)} of {len(count)} actions were never taken in {counted(count.sum(), 'step')}: "
            f"{_listed(unused + starts[name])}",
            count=len(unused),
        )
        for name, count in counts.items()
        if len(unused := np.flatnonzero(count == 0))
        and count.sum() >= limit("fewest rows") * len(count)
    ]


def _runs(indices: np.ndarray) -> list[np.ndarray]:
    """Return indices in groups of neighbors."""
    if not len(indices):
        return []
    return np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)


def _dimensions(facts: Facts, name: str, run: np.ndarray) -> str:
    """Return the name of some neighboring dimensions: `observations[3]` or `observations[3] to [7]`."""
    first = dimension(facts.dataset, name, int(run[0]))
    if len(run) == 1:
        return first
    last = dimension(facts.dataset, name, int(run[-1])).removeprefix(name)
    return f"{first} to {last}"


def _listed(values: np.ndarray) -> str:
    shown = ", ".join(map(str, values[:10].tolist()))
    return f"{shown}, .." if len(values) > 10 else shown


def _s(count: int) -> str:
    return "" if count == 1 else "s"


@dataclasses.dataclass
class _Texts:
    """A column of texts, and what was found in it.

    Attributes:
        name: Its name.
        space: What it may hold.
        count: Texts that are outside.
        first: Episode, step and text of the first one.
    """

    name: str
    space: spaces.Text
    count: int = 0
    first: tuple[int, int, str] = (0, 0, "")

    def look(self, piece: Piece) -> None:
        """Look at the texts of a piece."""
        ends = piece.columns[offsets_column(self.name)]
        values = piece.columns[values_column(self.name)]
        sizes = np.diff(ends, prepend=0)
        known = np.zeros(256, np.bool_)
        known[[ord(one) for one in self.space.character_set if ord(one) < 128]] = True
        # Bytes of other characters, or of those that take several bytes, are looked at in their text.
        odd = np.searchsorted(ends, np.flatnonzero(~known[values]), "right")
        unlikely = (sizes < self.space.min_length) | (sizes > self.space.max_length)
        rows = np.union1d(odd, np.flatnonzero(unlikely))
        for row in rows.tolist():
            text = values[ends[row] - sizes[row] : ends[row]].tobytes().decode(errors="replace")
            if text in self.space:
                continue
            if not self.count:
                is_observation = self.name.startswith("observations")
                self.first = (*piece.place(row, of_observations=is_observation), text)
            self.count += 1

    def join(self, other: _Texts) -> None:
        """Take in what another one found in later episodes."""
        if not self.count:
            self.first = other.first
        self.count += other.count


def check_texts(facts: Facts) -> Check:
    """Find texts of observations and actions that their space does not have."""
    dataset = facts.dataset
    roots = (dataset.observation_space, "observations"), (dataset.action_space, "actions")
    seen = Seen(dataset)
    columns = [
        seen.part(_Texts(name, leaf))
        for space, root in roots
        for name, leaf in leaf_spaces(space, root)
        if isinstance(leaf, spaces.Text)
    ]
    while (piece := (yield seen)) is not None:
        for column in columns:
            column.look(piece)
    return [
        Finding(
            check="texts",
            severity="error",
            column=one.name,
            text=f"outside its space, {one.space!s:.60}: {counted(one.count, 'text')}, first {one.first[2]!r:.60}",
            episode=one.first[0],
            step=one.first[1],
            count=one.count,
        )
        for one in columns
        if one.count
    ]
