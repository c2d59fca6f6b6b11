"""Checks of single dimensions and texts: not finite, out of bounds or space, constant, stuck, on a bound, unused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece, dimensions, plain_columns
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

    def add(self, values: np.ndarray, starts: np.ndarray | None = None) -> None:
        """Take in values, (dimensions, rows).

        Given where episodes start, only rows in which some dimension moved count as values at an extreme.
        """
        self.rows += values.shape[1]
        same = values[:, 1:] == values[:, :-1]
        self.still += np.count_nonzero(same, axis=1)
        low, high = values.min(axis=1), values.max(axis=1)
        if starts is not None and len(values) > 1:
            moved = np.append(False, ~same.all(axis=0))
            moved[starts] = False
            values = values[:, moved]
        self.low, self.high = np.fmin(low, before := self.low), np.fmax(high, above := self.high)
        for at, value, old in ((self.at_low, self.low, before), (self.at_high, self.high, above)):
            at[value != old] = 0
            at += np.count_nonzero(values == value[:, None], axis=1)

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
    actions = dict(leaf_spaces(dataset.action_space, "actions"))
    seen = Seen(dataset)
    extremes = {name: seen.part(_Extremes(size)) for name, size in sizes.items()}
    while (piece := (yield seen)) is not None:
        for name, one in extremes.items():
            values = piece.numbers(name)[:, : piece.counted(name)]
            one.add(values, None if name in actions else piece.before[piece.ends - piece.lengths])
    bounds = bounds_of(dataset.observation_space, dataset.action_space)
    findings: list[Finding] = []
    for name, one in extremes.items():
        if one.rows < limit("fewest rows"):
            continue
        constant = one.low == one.high
        findings += _constant(facts, name, one, constant, extremes)
        if name not in actions:
            findings += _clipped(facts, name, one, constant)
        elif isinstance(actions[name], gymnasium.spaces.Box) and name in bounds:
            findings += _on_bounds(facts, name, one, constant, bounds)
    return findings


def _constant(
    facts: Facts,
    name: str,
    extremes: _Extremes,
    constant: np.ndarray,
    of_columns: Mapping[str, _Extremes],
) -> Iterator[Finding]:
    numbers = np.flatnonzero(constant)
    if not len(numbers):
        return
    value = extremes.low[numbers[0]] + 0.0  # no minus zero
    same = np.all(extremes.low[numbers] == value)
    text = f"always {f'{value:g}' if same else 'the same'} in {counted(extremes.rows, 'row')}"
    is_unused = name.startswith("actions") and same and value == 0
    if is_unused:
        moving = _moving_states(facts, name, numbers, of_columns)
        text += f": never used, though {moving} move" if moving else ": this action was never used"
    yield Finding(
        check="unused actions" if name.startswith("actions") else "constant",
        severity="warning" if is_unused else "note",
        column=dimensions(facts.dataset, name, numbers),
        text=text,
        count=len(numbers),
    )


def _moving_states(
    facts: Facts, name: str, numbers: np.ndarray, of_columns: Mapping[str, _Extremes]
) -> str:
    """Return which numbers of the observations belong to those of an action and move; nothing if none do.

    They have the same names, or the same places in a column that has numbers for all other actions too.
    """
    names = facts.dataset.dimension_names
    for column, extremes in of_columns.items():
        if not column.startswith("observations"):
            continue
        moves = extremes.low < extremes.high
        if name in names and column in names:
            wanted = {str(names[name][one]) for one in numbers.tolist()}
            places = [one for one, text in enumerate(names[column]) if str(text) in wanted]
        else:
            fits = (
                len(moves) >= len(of_columns[name].low) and moves[: len(of_columns[name].low)].all()
            )
            places = numbers.tolist() if fits else []
        places = [one for one in places if moves[one]]
        if places:
            return dimensions(facts.dataset, column, places)
    return ""


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
        run = np.flatnonzero(moves & (at > most))
        if len(run):
            each = "" if np.all(value[run] == value[run[0]]) else " and others"
            yield Finding(
                check="saturated",
                severity="note",
                column=dimensions(facts.dataset, name, run),
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
    run = np.flatnonzero(~constant & (on > limit("actions on a bound") * extremes.rows))
    if len(run):
        yield Finding(
            check="saturated",
            severity="note",
            column=dimensions(facts.dataset, name, run),
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


def check_saturated_episodes(facts: Facts) -> Check:
    """Find episodes whose actions sit on their own extremes, as nearly no others of the dataset do."""
    specs = facts.dataset.schema.columns()
    names = judged_columns(facts, "actions")
    if not names:
        return "actions are no real numbers, or have too many dimensions to be judged"
    sizes = {name: math.prod(specs[name].shape) for name in names}
    seen = Seen(facts.dataset)
    # The largest values of each number, and the largest of minus it.
    tops = {n: seen.of_episodes(np.float64, 2, size, fill=-np.inf) for n, size in sizes.items()}
    counts = {n: seen.of_episodes(np.int64, 2, size) for n, size in sizes.items()}
    while (piece := (yield seen)) is not None:
        firsts = piece.ends - piece.lengths
        for name in names:
            values = piece.numbers(name)
            moves = np.append(True, (values[:, 1:] != values[:, :-1]).any(axis=0))
            moves[firsts] = True
            for side, sign in enumerate((1, -1)):
                before = tops[name][side][:, piece.episodes]
                after = np.maximum(before, np.maximum.reduceat(sign * values, firsts, axis=1))
                on = (sign * values == np.repeat(after, piece.lengths, axis=1)) & moves
                at = np.add.reduceat(on, firsts, axis=1, dtype=np.int64)
                count = counts[name][side]
                count[:, piece.episodes] = at + count[:, piece.episodes] * (after == before)
                tops[name][side][:, piece.episodes] = after
    findings = []
    for name in names:
        episodes = {
            number: episodes_on
            for number in range(sizes[name])
            if len(episodes_on := _saturated(facts, tops[name][:, number], counts[name][:, number]))
        }
        if episodes:
            number, some = next(iter(episodes.items()))
            first, count = int(some[0]), len(np.unique(np.concatenate([*episodes.values()])))
            share = counts[name][:, number, first].sum() / facts.dataset.episode_lengths[first]
            high, low = tops[name][:, number, first] * (1, -1)
            findings.append(
                Finding(
                    check="saturated",
                    severity="warning",
                    column=dimensions(facts.dataset, name, [*episodes]),
                    text=f"{share:.0%} of the values equal the episode's smallest or largest one, {low:g} or {high:g}, "
                    f"in {counted(count, 'episode')}, though hardly any does in the others: clipped",
                    episode=first,
                    step=0,
                    last_step=int(facts.dataset.episode_lengths[first]) - 1,
                    count=count,
                )
            )
    return findings


def _saturated(facts: Facts, tops: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the episodes in which a number is saturated, of its largest value and minus its smallest."""
    lengths = facts.dataset.episode_lengths
    on = np.where(-tops[1] < tops[0], counts.sum(axis=0), 0)
    share = on / lengths
    is_long = lengths >= limit("stuck steps")
    saturated = is_long & (share >= limit("saturated share")) & (on >= limit("stuck steps"))
    others = is_long & ~saturated
    rare = saturated.sum() <= max(1, limit("saturated episodes") * is_long.sum())
    if not saturated.any() or not rare or others.sum() < limit("fewest episodes"):
        return np.empty(0, np.int64)
    usual = (on[others].sum() - 2 * others.sum()) / max(1, lengths[others].sum())
    if usual > limit("hardly saturated"):
        # Where controllers saturate, only an episode that nearly always does stands out.
        saturated = is_long & (share >= limit("wholly saturated"))
        if share[is_long & ~saturated].max(initial=0) > limit("partly saturated"):
            return np.empty(0, np.int64)
    episodes: np.ndarray = np.flatnonzero(saturated)
    return episodes
