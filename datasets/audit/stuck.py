"""Checks of single dimensions over time: a sensor that freezes, an action that sits on its limits."""

from __future__ import annotations

import math

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece, dimension
from orlog.datasets.audit.roles import kinds_of_episodes
from orlog.datasets.audit.runs import Run, Runs
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.audit.values import judged_columns
from orlog.manifests.columns import axis_of
from orlog.manifests.names import counted

MOST_RUNS = 2**14  # of one number: what rests so often does so by nature
LOOKED_AT = 32  # runs whose surroundings are read again


class _Number:
    """What one dimension of a column has shown so far."""

    def __init__(self) -> None:
        self.still = self.off_limits = 0
        self.low, self.high = np.inf, -np.inf
        self.runs = Runs(limit("stuck steps"))
        self.parts = Runs(limit("stuck steps"))  # but for observations that sit on a limit

    @property
    def rests(self) -> bool:
        """Whether it rests so often that it does so by nature."""
        return max(len(self.runs.found), len(self.parts.found)) > MOST_RUNS

    def add(self, piece: Piece, values: np.ndarray, same: np.ndarray, is_action: bool) -> None:
        """Take in the values of the steps of a piece, and whether each is left as it was."""
        self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
        if self.rests:
            return
        off_limits = same
        if same.any():
            if not is_action:
                off_limits = same & (values != self.low) & (values != self.high)
            self.still += int(np.count_nonzero(same))
            self.off_limits += int(np.count_nonzero(off_limits))
        self.runs.add(piece, same)
        self.parts.add(piece, off_limits)

    def join(self, other: _Number) -> None:
        """Take in what another one has shown in later episodes."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.still += other.still
        self.off_limits += other.off_limits
        if not self.rests:
            self.runs.join(other.runs)
            self.parts.join(other.parts)


def check_stuck(facts: Facts) -> Check:
    """Find steps in which a dimension stays the same that otherwise changes in nearly every one."""
    specs = facts.dataset.schema.columns()
    seen = Seen(facts.dataset)
    columns = {
        name: [seen.part(_Number()) for _ in range(math.prod(specs[name].shape))]
        for name in judged_columns(facts, "observations", "actions")
    }
    last: dict[str, np.ndarray] = {}
    while (piece := (yield seen)) is not None:
        for name, numbers in columns.items():
            values = piece.numbers(name)
            is_action = axis_of(name) != "observation"
            same = _same(piece, name, values, last)
            if not is_action:
                values = values.take(piece.before, axis=1)
            for one, row, still in zip(numbers, values, same, strict=True):
                one.add(piece, row, still, is_action)
    kinds = kinds_of_episodes(facts.dataset)
    return [
        finding
        for name, numbers in columns.items()
        for index, one in enumerate(numbers)
        for finding in _of_number(facts, name, index, one, kinds)
    ]


def _same(piece: Piece, name: str, values: np.ndarray, last: dict[str, np.ndarray]) -> np.ndarray:
    """Return whether each step leaves each dimension as it was, (dimensions, steps).

    An observation is compared with the one after the step, an action with the one before it.
    """
    same = values[:, 1:] == values[:, :-1]
    if axis_of(name) == "observation":
        rows: np.ndarray = same.take(piece.before, axis=1)
        return rows
    before = last[name] == values[:, :1] if piece.first_step else np.zeros((len(same), 1), np.bool_)
    same = np.concatenate([before, same], axis=1)
    same[:, (piece.ends - piece.lengths)[bool(piece.first_step) :]] = False
    last[name] = values[:, -1:].copy()
    return same


def _of_number(
    facts: Facts, name: str, index: int, number: _Number, kinds: np.ndarray | None
) -> list[Finding]:
    """Return the finding about episodes in which a dimension never changes, and about parts of some."""
    if number.rests:
        return []
    lengths = facts.dataset.episode_lengths
    is_action = axis_of(name) != "observation"
    all_whole = [one for one in number.runs.found if one.steps >= lengths[one.episode] - is_action]
    whole = _unlike_their_kind(all_whole, kinds)
    all_parts = [one for one in number.parts.found if one.steps < lengths[one.episode] - is_action]
    parts = _unlike_their_kind(all_parts, kinds)
    steps = facts.dataset.total_steps
    findings = []
    column = dimension(facts.dataset, name, index)
    stuck = int(lengths[[one.episode for one in all_whole]].sum()) if whole else 0
    elsewhere = (number.still - stuck) / max(1, steps - stuck)
    if whole and elsewhere <= limit("hardly still") and stuck <= steps / 2:
        count = len(whole)
        findings.append(
            Finding(
                check="stuck",
                severity="warning",
                column=column,
                text=f"never changes in {count:,} episode{'' if count == 1 else 's'}, though it "
                "changes in nearly every step of the others",
                episode=whole[0].episode,
                step=0,
                last_step=int(lengths[whole[0].episode]) - is_action,
                count=count,
            )
        )
    still = number.parts.steps
    elsewhere = (number.off_limits - still) / max(1, steps - still)
    if not parts or elsewhere > limit("hardly still") or still > steps / 2:
        return findings
    parts = [one._replace(step=one.step - is_action) for one in parts]  # from the row that stays
    frozen = _frozen(facts, name, index, number, parts, elsewhere, len(all_parts))
    if frozen:
        count, longest = len(frozen), max(one.steps for one in frozen)
        first = frozen[0]
        findings.append(
            Finding(
                check="stuck",
                severity="warning",
                column=column,
                text=f"stays the same for {counted(longest, 'step')}"
                + (f" at most, in {counted(count, 'place')}" if count > 1 else "")
                + f", though it changes in nearly every other step: frozen{' or saturated' * is_action}",
                episode=first.episode,
                step=first.step,
                last_step=first.step + first.steps,
                count=count,
            )
        )
    return findings


def _unlike_their_kind(runs: list[Run], kinds: np.ndarray | None) -> list[Run]:
    """Return the runs of episodes whose kind has none in more than half of its episodes.

    Of several worlds in one dataset, a dimension may rest in some by nature. Kinds of few episodes are not judged.
    """
    if kinds is None or not runs:
        return runs
    episodes = np.unique([one.episode for one in runs])
    counts = np.bincount(kinds)
    resting = np.bincount(kinds[episodes], minlength=len(counts))
    judged = (counts >= limit("episodes of a kind")) & (resting < counts / 2)
    return [one for one in runs if judged[kinds[one.episode]]]


def _frozen(
    facts: Facts,
    name: str,
    index: int,
    number: _Number,
    runs: list[Run],
    elsewhere: float,
    of_all_kinds: int,
) -> list[Run]:
    """Return the runs of a dimension that nothing but a frozen sensor explains.

    An observation that is clipped rests on its limit, and what rests by nature starts to move from
    where it rested. A sensor that was frozen leaps to where it should have been; runs that are rare in
    a dimension that hardly ever rests, of whatever kind the episode is, need no leap.
    """
    few = max(limit("fewest episodes"), limit("frozen episodes") * facts.dataset.total_episodes)
    is_rare = of_all_kinds <= few and elsewhere <= limit("hardly frozen")
    if len(runs) > LOOKED_AT:
        runs = [runs[one] for one in np.linspace(0, len(runs) - 1, LOOKED_AT).astype(int)]
    around = {one: _around(facts, name, index, one) for one in runs}
    if axis_of(name) == "observation":
        around = {
            one: found for one, found in around.items() if number.low < found[0] < number.high
        }
    if is_rare:
        return list(around)
    values = [value for value, _ in around.values()]
    leaps = [leap for _, leap in around.values() if not math.isnan(leap)]
    differ = len(set(values)) > len(values) / 2  # what rests by nature often rests in one place
    return list(around) if leaps and differ and np.median(leaps) >= limit("frozen leap") else []


def _around(facts: Facts, name: str, index: int, run: Run) -> tuple[float, float]:
    """Return the value of a run, and how many usual changes the one at its end is (NaN at no end)."""
    dataset = facts.dataset
    more = int(axis_of(name) == "observation")
    start = int(dataset.episode_starts[run.episode]) + more * run.episode
    length = int(dataset.episode_lengths[run.episode]) + more
    first, end = max(0, run.step - 100), min(length, run.step + run.steps + 101)
    rows = dataset.column(name, start + first, start + end)
    values = rows.reshape(len(rows), -1)[:, index].astype(np.float64)
    changes = np.abs(np.diff(values))
    at_end = run.step + run.steps - first
    moving = changes[changes > 0]
    if at_end >= len(changes) or not len(moving):
        return float(values[run.step - first]), math.nan
    return float(values[run.step - first]), float(changes[at_end] / np.median(moving))


def check_saturated_episodes(facts: Facts) -> Check:
    """Find episodes whose actions sit on their own extremes, as nearly no others of the dataset do."""
    specs = facts.dataset.schema.columns()
    names = judged_columns(facts, "actions")
    if not names:
        return "actions are no real numbers, or have too many dimensions to be judged"
    sizes = {name: math.prod(specs[name].shape) for name in names}
    seen = Seen(facts.dataset)
    lows = {n: seen.of_episodes(np.float64, size, fill=np.inf) for n, size in sizes.items()}
    highs = {n: seen.of_episodes(np.float64, size, fill=-np.inf) for n, size in sizes.items()}
    counts = {n: seen.of_episodes(np.int64, 2, size) for n, size in sizes.items()}
    while (piece := (yield seen)) is not None:
        firsts = piece.ends - piece.lengths
        for name in names:
            values = piece.numbers(name)
            for side, (extremes, better) in enumerate(
                ((lows[name], np.minimum), (highs[name], np.maximum))
            ):
                before = extremes[:, piece.episodes]
                here = better.reduceat(values, firsts, axis=1)
                after = better(before, here)
                at = np.add.reduceat(
                    values == np.repeat(after, piece.lengths, axis=1),
                    firsts,
                    axis=1,
                    dtype=np.int64,
                )
                count = counts[name][side]
                count[:, piece.episodes] = (
                    np.where(after == before, count[:, piece.episodes], 0) + at
                )
                extremes[:, piece.episodes] = after
    return [
        finding
        for name in names
        for number in range(sizes[name])
        for finding in _saturated(
            facts, name, number, lows[name][number], highs[name][number], counts[name][:, number]
        )
    ]


def _saturated(
    facts: Facts, name: str, number: int, low: np.ndarray, high: np.ndarray, counts: np.ndarray
) -> list[Finding]:
    lengths = facts.dataset.episode_lengths
    on = np.where(low < high, counts.sum(axis=0), 0)
    share = on / lengths
    is_long = lengths >= limit("stuck steps")
    saturated = is_long & (share >= limit("saturated share")) & (on >= limit("stuck steps"))
    others = is_long & ~saturated
    rare = saturated.sum() <= max(1, limit("saturated episodes") * is_long.sum())
    if not saturated.any() or not rare or others.sum() < limit("fewest episodes"):
        return []
    usual = (on[others].sum() - 2 * others.sum()) / max(1, lengths[others].sum())
    if usual > limit("hardly saturated"):
        # Where controllers saturate, only an episode that nearly always does stands out.
        wholly = is_long & (share >= limit("wholly saturated"))
        if not wholly.any() or share[is_long & ~wholly].max(initial=0) > limit("partly saturated"):
            return []
        saturated = wholly
    found = np.flatnonzero(saturated)
    first = int(found[0])
    count = len(found)
    return [
        Finding(
            check="saturated",
            severity="warning",
            column=dimension(facts.dataset, name, number),
            text=f"{share[first]:.0%} of the values equal the episode's smallest or largest one, "
            f"{low[first]:g} or {high[first]:g}, in {count:,} episode{'' if count == 1 else 's'}, "
            "though hardly any does in the others: clipped",
            episode=first,
            step=0,
            last_step=int(lengths[first]) - 1,
            count=count,
        )
    ]
