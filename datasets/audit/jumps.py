"""Check for jumps: changes inside an episode that the rest of the data never make.

A linear model of the change of an observation, given the observation and the action, is fitted to a
sample of the steps. What it does not explain is small in smooth dynamics, however fast they move, so
a seam of two episodes, a teleport or a glitch of a sensor stands out. So may a rare collision: what
is no larger than usual changes is left out. For each number the largest
residuals r1 >= r2 >= .. are kept. If the tail of a distribution falls as a power law or faster, then
k log(r_k / r_k+1) are independent and exponential with the same mean, or with a falling one
(Renyi 1953, https://doi.org/10.1007/BF02127580). The k largest are jumps if their gap to the rest is
large by itself, and so large that chance explains it with a probability of exp(-8) at most.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece, dimension
from orlog.datasets.audit.quaternions import flips, quaternions
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.audit.values import judged_columns

KEPT = 1024  # largest residuals of each number
TAIL = 100  # residuals after the gap that say how fast the tail falls


def check_jumps(facts: Facts) -> Check:
    """Find changes of observations that the rest of the data never make."""
    names = judged_columns(facts, "observations")
    if not names:
        return "observations are no real numbers, or have too many dimensions to be judged"
    if facts.dataset.total_steps < limit("fewest steps for jumps"):
        return f"there are fewer than {limit('fewest steps for jumps'):.0f} steps"
    model: _Model = facts.once("jumps", lambda: _fit(facts, names))
    seen = Seen(facts.dataset)
    largest = [seen.part(_Largest()) for _ in range(model.outputs)]
    counts = seen.counts()
    turning = quaternions(facts)
    while (piece := (yield seen)) is not None:
        changes, residuals = model.residuals(piece)
        for name, places in turning.items():  # another check finds these
            for first in places:
                start = model.numbers[name].start + first
                residuals[start : start + 4, flips(piece, name, first)] = np.nan
        counts["still"] += np.count_nonzero(changes == 0, axis=1)
        counts["steps"] += piece.steps
        for number, one in enumerate(largest):
            one.add(piece, residuals[number], changes[number])
    still, steps = counts["still"], counts["steps"]
    moving = [one for one in range(model.outputs) if still[one] <= limit("mostly still") * steps]
    jumps: dict[tuple[int, int], dict[int, _Jump]] = {}
    for number in moving:
        for place, jump in _jumps(largest[number], float(model.usual[number]), steps).items():
            jumps.setdefault(place, {})[number] = jump
    return _findings(facts, model, jumps, len(moving))


class _Jump(NamedTuple):
    """One dimension that jumps: the change, how many usual changes and how often the rest's largest."""

    change: float
    usuals: float
    ratio: float


def _jumps(largest: _Largest, usual: float, steps: int) -> dict[tuple[int, int], _Jump]:
    """Return the jumps of one dimension by episode and step."""
    count = count_outliers(largest.sizes, steps)
    sizes = largest.sizes[:count].tolist()
    return {
        (int(largest.episodes[row]), int(largest.steps[row])): _Jump(
            float(largest.changes[row]),
            size / max(usual, 1e-300),
            size / float(largest.sizes[count]),
        )
        for row, size in enumerate(sizes)
        if size > limit("jump size") * usual and not _is_turn(float(largest.changes[row]))
    }


def _findings(
    facts: Facts, model: _Model, jumps: dict[tuple[int, int], dict[int, _Jump]], moving: int
) -> list[Finding]:
    """Return one finding for the jumps that no collision explains, and one for the others."""
    strong = {place for place, found in jumps.items() if _is_strong(place, found, jumps, moving)}
    findings = []
    for places in (strong, jumps.keys() - strong):
        if not places:
            continue
        first = min(places)
        worst, ratio = max(
            ((number, jump.ratio) for place in places for number, jump in jumps[place].items()),
            key=lambda one: one[1],
        )
        text = (
            f"{len(places):,} jump{'' if len(places) == 1 else 's'} inside of episodes, up to {ratio:.3g} "
            "times as far from what is expected as any other step"
        )
        at_start = sum(step == 0 for _, step in places)
        is_habit = at_start > limit("jump habit") * facts.dataset.total_episodes
        if is_habit:
            text += "; most are the first step of an episode"
        elif places is not strong:
            text += ", in a few dimensions only: by a collision, or where two episodes were joined"
        findings.append(
            Finding(
                check="jumps",
                severity="warning" if places is strong and not is_habit else "note",
                column=model.dimension(facts, worst),
                text=text,
                episode=first[0],
                step=first[1],
                count=len(places),
            )
        )
    return findings


def _is_strong(
    place: tuple[int, int],
    found: dict[int, _Jump],
    jumps: dict[tuple[int, int], dict[int, _Jump]],
    moving: int,
) -> bool:
    """Return whether a jump is more than a collision: far, in most dimensions, or undone at once."""
    following = jumps.get((place[0], place[1] + 1), {})
    before = jumps.get((place[0], place[1] - 1), {})
    is_undone = any(
        number in other and jump.change * other[number].change < 0
        for number, jump in found.items()
        for other in (before, following)
    )
    return (
        is_undone
        or len(found) > limit("jumping dimensions") * moving
        or max(jump.usuals for jump in found.values()) >= limit("far jump")
    )


def count_outliers(sizes: np.ndarray, steps: int) -> int:
    """Return how many of the largest sizes, in falling order, are jumps among so many steps."""
    most = min(len(sizes) - 2, KEPT // 2, max(1, int(limit("jump share") * steps)))
    if most < 1 or sizes[1] <= 0:
        return 0
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = np.log(sizes[:-1] / sizes[1:])
    gaps = np.nan_to_num(gaps, nan=0.0, posinf=0.0)
    found, strongest = 0, limit("jump evidence")
    for count in np.flatnonzero(gaps[:most] >= math.log(limit("jump ratio"))) + 1:
        after = gaps[count : count + TAIL]
        if len(after) < 10:
            continue
        mean = max(float((np.arange(1, len(after) + 1) * after).mean()), 1e-2)
        evidence = count * gaps[count - 1] / mean
        if evidence > strongest:
            found, strongest = int(count), evidence
    return found


def _is_turn(change: float) -> bool:
    """Return whether a change is that of an angle that passes from one end of its range to the other."""
    return any(0.9 * turn <= abs(change) <= 1.01 * turn for turn in (2 * math.pi, 360.0))


class _Largest:
    """The largest residuals of one dimension, in falling order, with their places and changes."""

    def __init__(self) -> None:
        self.sizes = np.empty(0)
        self.changes = np.empty(0)
        self.episodes = np.empty(0, np.int64)
        self.steps = np.empty(0, np.int64)

    def add(self, piece: Piece, residuals: np.ndarray, changes: np.ndarray) -> None:
        """Take in the residuals and changes of the steps of a piece; NaN is left out."""
        least = self.sizes[-1] if len(self.sizes) == KEPT else -1.0
        rows = np.flatnonzero(residuals > least)
        if not len(rows):
            return
        if len(rows) > KEPT:
            rows = rows[np.argpartition(residuals[rows], -KEPT)[-KEPT:]]
        self._take(residuals[rows], changes[rows], *piece.places(rows))

    def join(self, other: _Largest) -> None:
        """Take in what another one has of later episodes."""
        self._take(other.sizes, other.changes, other.episodes, other.steps)

    def _take(
        self, sizes: np.ndarray, changes: np.ndarray, episodes: np.ndarray, steps: np.ndarray
    ) -> None:
        sizes = np.concatenate([self.sizes, sizes])
        kept = np.argsort(-sizes, kind="stable")[:KEPT]
        self.sizes = sizes[kept]
        self.changes = np.concatenate([self.changes, changes])[kept]
        self.episodes = np.concatenate([self.episodes, episodes])[kept]
        self.steps = np.concatenate([self.steps, steps])[kept]


@dataclasses.dataclass(frozen=True)
class _Model:
    """A linear model of changes.

    Attributes:
        numbers: For each column, the outputs that are its numbers.
        actions: Columns of actions that it takes too.
        weights: (outputs, inputs + 1), the last for the constant; None: no change is expected.
        usual: Size of a large but usual change of each output, (outputs,).
    """

    numbers: dict[str, range]
    actions: list[str]
    weights: np.ndarray | None
    usual: np.ndarray

    @property
    def outputs(self) -> int:
        """Number of dimensions that change."""
        return sum(len(one) for one in self.numbers.values())

    def dimension(self, facts: Facts, number: int) -> str:
        """Return the name of an output: a column with the index of one of its dimensions."""
        name = next(name for name, numbers in self.numbers.items() if number in numbers)
        return dimension(facts.dataset, name, number - self.numbers[name].start)

    def residuals(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """Return changes, and sizes of what is not expected of them, (outputs, steps) each."""
        with np.errstate(invalid="ignore", over="ignore"):
            changes = np.concatenate([piece.changes(name) for name in self.numbers])
            changes[:, ~piece.has_next] = np.nan
            if self.weights is None:
                return changes, np.abs(changes)
            expected = self.weights[:, :-1] @ self.inputs(piece) + self.weights[:, -1:]
            return changes, np.abs(changes - expected)

    def inputs(self, piece: Piece) -> np.ndarray:
        """Return observations and actions, (inputs, steps) float64."""
        before = [piece.numbers(name).take(piece.before, axis=1) for name in self.numbers]
        taken = [piece.numbers(name) for name in self.actions]
        return np.concatenate([*before, *taken]).astype(np.float64, copy=False)


def _fit(facts: Facts, names: list[str]) -> _Model:
    """Return the model fitted to some episodes that lie evenly in the data."""
    dataset = facts.dataset
    specs = dataset.schema.columns()
    counts = [math.prod(specs[name].shape) for name in names]
    starts = np.cumsum([0, *counts]).tolist()
    numbers = {
        name: range(start, start + count)
        for name, start, count in zip(names, starts, counts, strict=False)
    }
    actions = judged_columns(facts, "actions", kinds="fiu")
    model = _Model(numbers, actions, None, np.zeros(starts[-1]))
    inputs, outputs = [], []
    for piece in facts.sample():
        changes, _ = model.residuals(piece)
        given = model.inputs(piece)
        good = np.isfinite(changes).all(axis=0) & np.isfinite(given).all(axis=0)
        inputs.append(given[:, good])
        outputs.append(changes[:, good])
    x, y = np.concatenate(inputs, axis=1), np.concatenate(outputs, axis=1)
    usual = np.quantile(np.abs(y), limit("usual changes"), axis=1) if y.size else model.usual
    if x.shape[1] < 4 * (x.shape[0] + 1) or model.outputs > limit("wide rows"):
        return dataclasses.replace(model, usual=usual)
    mean, spread = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True)
    spread[spread < 1e-12 * (1 + np.abs(mean))] = np.inf  # a constant tells nothing
    x = (x - mean) / spread
    gram = x @ x.T + 1e-6 * x.shape[1] * np.eye(len(x))
    slopes = np.linalg.solve(gram, x @ (y - y.mean(axis=1, keepdims=True)).T).T / spread.T
    constant = y.mean(axis=1, keepdims=True) - slopes @ mean
    return _Model(numbers, actions, np.concatenate([slopes, constant], axis=1), usual)
