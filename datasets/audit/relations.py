"""Checks of how observations and actions belong together, by what a sample of the episodes shows.

A ridge regression predicts how observations change from the observation and the action. What it leaves
shows jumps. That it predicts better with the actions of the step before or after shows a shift by a
step; rewards are judged likewise. Copies and the sense of actions follow from distances and correlations.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from orlog.datasets.audit.episodes import rewards_are_computed
from orlog.datasets.audit.findings import Check, Facts, Finding, Seen, Severity, about_episodes, limit, looks_at_no_rows
from orlog.datasets.audit.numbers import judged_columns
from orlog.datasets.audit.pieces import Piece, dimension, dimensions
from orlog.datasets.reading.selection import episode_column
from orlog.manifests.columns import axis_of
from orlog.manifests.names import counted
from orlog.manifests.roles import column_with
from orlog.manifests.spaces import leaf_spaces

MOST_ACTIONS = 64  # values of a discrete action that are distinguished
MOST_FITTED = 2**14  # steps that a prediction is fitted to
MOST_ROWS = 2**12  # that are compared, number by number
KEPT, TAIL = 512, 100  # largest residuals of each number, and those that say how fast they fall
SHIFTS = (-1, 0, 1)
MOST_LATE = 5  # steps by which actions of all episodes may be late
MOST_TASKS = 32  # that are compared with each other
MOST_UNDONE, MOST_PAIRED = 128, 32  # steps of an episode that is odd, and numbers of which two may be exchanged
MOST_PRODUCTS = 24  # numbers of observations whose products explain rewards
LARGEST = 9.0  # usual squared errors that one counts as, at most: a collision is no evidence
JUDGED_STEPS = 256  # of an episode: enough to be certain, so more would only take time
TINY = 1e-300  # in place of zero, where a number divides


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Numbers at some steps, (numbers, rows) float64 each; of discrete actions one for each choice."""

    states: np.ndarray  # with the final observation of each episode
    before: np.ndarray  # the row of `states` before each step, (steps,)
    taken: np.ndarray
    rewards: np.ndarray  # (1, steps)
    starts: np.ndarray  # whether an episode starts, (steps,)
    inside: np.ndarray  # whether one step came before and two follow, (steps,)

    @functools.cached_property
    def now(self) -> np.ndarray:
        """The observations before all steps."""
        return self.observed(slice(None))[0]

    @functools.cached_property
    def after(self) -> np.ndarray:
        """The observations after all steps."""
        return self.observed(slice(None))[1]

    def observed(self, steps: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the observations before and after some steps."""
        return self.states[:, self.before[steps]], self.states[:, self.before[steps] + 1]


class Numbers:
    """Which numbers of observations and actions are judged, as (column, index in its rows)."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.observations = judged_columns(facts, "observations")
        self.actions = judged_columns(facts, "actions", kinds="fiu")
        self.discrete = {
            name: np.arange(leaf.start, leaf.start + leaf.n)[:, None]
            for name, leaf in leaf_spaces(facts.dataset.action_space, "actions")
            if isinstance(leaf, gymnasium.spaces.Discrete) and leaf.n <= MOST_ACTIONS
        }
        specs = facts.dataset.schema.columns()
        sizes = {name: math.prod(specs[name].shape) for name in self.observations + self.actions}
        sizes |= {name: len(choices) for name, choices in self.discrete.items()}
        self.states, self.of_actions = (
            [(name, index) for name in names for index in range(sizes[name])]
            for names in (self.observations, self.actions)
        )
        is_real = [specs[name].dtype.kind == "f" for name, _ in self.of_actions]
        self.real = np.flatnonzero(is_real)

    def rows(self, piece: Piece) -> Rows:
        """Return the numbers at all steps of a piece."""

        def compute() -> Rows:
            states = np.empty((0, piece.steps + len(piece.lengths)))
            states = np.concatenate([states, *map(piece.numbers, self.observations)])
            # Where a final observation was never recorded, nothing is known to change.
            unknown = piece.before[~piece.has_next]
            states[:, unknown + 1] = states[:, unknown]
            taken = np.empty((0, piece.steps))
            for name in self.actions:
                values = piece.numbers(name)
                values = values == self.discrete[name] if name in self.discrete else values
                taken = np.concatenate([taken, values])
            from_start = np.arange(piece.steps) - piece.starts[piece.which]
            inside = (from_start > 0) & (from_start < piece.lengths[piece.which] - 2)
            rewards = piece.columns["rewards"].astype(np.float64)[None]
            return Rows(states, piece.before, taken, rewards, piece.step_index == 0, inside)

        return piece.once("rows", compute)

    def sample(self) -> Rows:
        """Return the numbers at all steps of some episodes, and keep them."""
        kept = self.facts.kept
        if "rows" not in kept:
            parts = [dataclasses.astuple(self.rows(piece)) for piece in self.facts.sampled()]
            states, before, *others = zip(*parts, strict=True)
            ends = np.cumsum([0, *(each.shape[1] for each in states)])
            shifted = [rows + first for rows, first in zip(before, ends, strict=False)]
            kept["rows"] = Rows(*(np.concatenate(each, axis=-1) for each in (states, shifted, *others)))
        rows: Rows = kept["rows"]
        return rows

    def name(self, numbers: list[tuple[str, int]], indices: Any) -> str:
        """Return the names of some numbers, by column."""
        chosen = [numbers[index] for index in np.unique(indices).tolist()]
        return ", ".join(
            dimensions(self.facts.dataset, name, [at for other, at in chosen if other == name])
            for name in dict.fromkeys(name for name, _ in chosen)
        )

    def state(self, number: int) -> str:
        """Return the plain name of a number of the observations."""
        return dimension(self.facts.dataset, *self.states[number])


def _thin(rows: np.ndarray, most: int) -> np.ndarray:
    """Return about so many rows at most, evenly."""
    return rows[:: -(-len(rows) // most) or 1]


class Linear(NamedTuple):
    """A linear prediction: slopes (outputs, inputs), constants (outputs, 1), mean squared errors (outputs,)."""

    slopes: np.ndarray
    constant: np.ndarray
    errors: np.ndarray

    def of(self, inputs: np.ndarray) -> np.ndarray:
        """Return the prediction for inputs, (outputs, rows)."""
        return np.asarray(self.slopes @ inputs + self.constant)


def regress(x: np.ndarray, y: np.ndarray) -> Linear:
    """Return the ridge regression of y, (outputs, rows), on x, (inputs, rows)."""
    mean, spread = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True)
    spread[spread < 1e-9 * (1 + np.abs(mean))] = np.inf  # a constant tells nothing
    z, center = (x - mean) / spread, y.mean(axis=1, keepdims=True)
    gram = z @ z.T + 1e-8 * x.shape[1] * np.eye(len(z))
    slopes = np.linalg.solve(gram, z @ (y - center).T).T / spread.T
    constant = center - slopes @ mean
    return Linear(slopes, constant, ((y - slopes @ x - constant) ** 2).mean(axis=1))


# Jumps


class Largest:
    """The largest residuals of each number, (numbers, kept) in falling order, with their places."""

    def __init__(self, numbers: int) -> None:
        self.sizes = np.empty((numbers, 0))
        self.places = np.empty((numbers, 0), np.int64)  # episode << 32 | step

    @property
    def least(self) -> np.ndarray:
        """The size from which a residual is kept, (numbers, 1)."""
        return np.asarray(self.sizes[:, KEPT - 1 :].max(axis=1, initial=TINY, keepdims=True))

    def join(self, other: Largest) -> None:
        """Take in other residuals, of later steps."""
        sizes = np.concatenate([self.sizes, other.sizes], axis=1)
        places = np.concatenate([self.places, other.places], axis=1)
        order = np.argsort(-sizes, axis=1, kind="stable")[:, :KEPT]
        self.sizes, self.places = (np.take_along_axis(e, order, axis=1) for e in (sizes, places))


def _fit_changes(numbers: Numbers) -> tuple[Linear | None, np.ndarray]:
    """Return what predicts changes, if there are enough steps, and the size of large but usual ones."""
    rows = numbers.sample()
    x, y = np.concatenate([rows.now, rows.taken]), rows.after - rows.now
    good = np.flatnonzero(np.isfinite(x).all(axis=0) & np.isfinite(y).all(axis=0))
    x, y = (each[:, _thin(good, MOST_FITTED)] for each in (x, y))
    is_fit = x.shape[1] >= 4 * (len(x) + 1) and len(y) <= limit("wide rows")
    usual = np.quantile(np.abs(y), limit("usual changes"), axis=1) if y.size else np.zeros(len(y))
    return regress(x, y) if is_fit else None, np.maximum(usual, TINY)


def check_jumps(facts: Facts) -> Check:
    """Find changes whose residual of a linear prediction is far beyond the tail of all others."""
    numbers, steps = Numbers(facts), facts.dataset.total_steps
    if not numbers.states:
        return "observations are no real numbers, or have too many dimensions to be judged"
    if steps < limit("fewest steps for jumps"):
        return f"there are fewer than {limit('fewest steps for jumps'):.0f} steps"
    model, usual = facts.once("jumps", lambda: _fit_changes(numbers))
    turning, seen = facts.once("quaternions", lambda: quaternions(numbers)), Seen(facts.dataset)
    largest = seen.part(Largest(len(numbers.states)))
    while (piece := (yield seen)) is not None:
        rows = numbers.rows(piece)
        changes = np.concatenate([piece.changes(name) for name in numbers.observations])
        seen.sums["still"] += np.count_nonzero(changes == 0, axis=1)
        largest.join(_residuals(rows, piece, model, largest.least, turning))
    is_moving = seen.sums["still"] <= limit("mostly still") * steps
    jumps: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
    for number in np.flatnonzero(is_moving).tolist():
        sizes = largest.sizes[number]
        count = count_outliers(sizes, steps)
        for at in range(count):
            times, ratio = float(sizes[at] / usual[number]), float(sizes[at] / sizes[count])
            if times > limit("jump size") or ratio >= limit("far jump"):
                place = divmod(int(largest.places[number, at]), 2**32)
                jumps.setdefault(place, {})[number] = times, ratio
    # In a few numbers it may be a collision.
    many = limit("jumping dimensions") * is_moving.sum()
    places = [
        place
        for place, sizes_of in jumps.items()
        if len(sizes_of) > many or max(sizes_of.values())[0] >= limit("far jump")
    ]
    if not places:
        return []
    ratio, worst = max((jumps[place][at][1], at) for place in places for at in jumps[place])
    text = f"{counted(len(places), 'jump')} inside of episodes, up to {ratio:.3g} times as far from what is "
    text += "expected as any other step"
    severity: Severity = "warning"
    if sum(step == 0 for _, step in places) > limit("jump habit") * facts.dataset.total_episodes:
        severity, text = "note", f"{text}; most are the first step of an episode"
    column = numbers.state(worst)
    return [Finding("jumps", severity, column, text, *min(places), len(places))]


def _residuals(rows: Rows, piece: Piece, model: Linear | None, least: np.ndarray, turning: list[int]) -> Largest:
    """Return what the model leaves of the changes in a piece, where any of it is large enough to be kept."""
    left = np.diff(rows.states)
    if model:
        left -= (model.slopes[:, : len(left)] @ rows.states)[:, :-1]
    left = left[:, rows.before] if len(piece.lengths) > 1 else left
    if model:
        left -= model.slopes[:, len(left) :] @ rows.taken + model.constant
    sizes = np.abs(left, out=left)
    chosen = np.flatnonzero((sizes >= least).any(axis=0))
    largest, (now, after) = Largest(0), rows.observed(chosen)
    sizes = sizes[:, chosen]
    # An angle may pass from one end of its range to the other; infinity is found by another check.
    for turn in (2 * math.pi, 360.0):
        sizes[np.abs(np.abs(after - now) / turn - 0.95) < 0.06] = 0
    sizes[~np.isfinite(sizes)] = 0
    for first in turning:  # another check finds these
        sizes[first : first + 4, flips(now, after, first)] = 0
    places = piece.places(chosen)
    largest.sizes, largest.places = sizes, np.tile(places, (len(sizes), 1))
    return largest


def count_outliers(sizes: np.ndarray, steps: int) -> int:
    """Return how many of the largest sizes, in falling order, stand apart from the rest.

    For a tail that falls as a power law or faster, k log(r_k / r_k+1) are independent and exponential with
    one mean or a falling one (Rényi 1953, https://doi.org/10.1007/BF02127580): a gap many times as large
    as their mean after it is no chance.
    """
    sizes = sizes[sizes > 0]
    most = min(len(sizes) - 2, KEPT // 2, max(1, int(limit("jump share") * steps)))
    gaps = np.log(sizes[:-1] / sizes[1:])
    outliers, strongest = 0, limit("jump evidence")
    for count in np.flatnonzero(gaps[: max(0, most)] >= math.log(limit("jump ratio"))) + 1:
        after = gaps[count : count + TAIL]
        if len(after) >= 10:
            mean = max(float((np.arange(1, len(after) + 1) * after).mean()), 1e-2)
            if count * gaps[count - 1] / mean > strongest:
                outliers, strongest = int(count), count * gaps[count - 1] / mean
    return outliers


# Quaternions


def quaternions(numbers: Numbers) -> list[int]:
    """Return where four neighboring numbers have length 1 in nearly all rows of the sample, and turn."""
    if len(numbers.states) < 4:
        return []
    rows = numbers.sample().after
    squares = np.lib.stride_tricks.sliding_window_view(rows**2, 4, axis=0).sum(axis=-1)
    unit = (np.abs(squares - 1) <= limit("unit length")).mean(axis=1)
    # Where a few rows have another length, whole numbers may be flags.
    whole = np.lib.stride_tricks.sliding_window_view(rows % 1 == 0, 4, axis=0).any(axis=-1).mean(axis=1)
    unit = (unit >= limit("unit rows")) | ((unit >= limit("usual episodes")) & (whole < 1 - limit("unit rows")))
    moves = (rows != rows[:, :1]).any(axis=1)
    places = [-4]
    for first in np.flatnonzero(unit).tolist():
        is_of_one = numbers.states[first][0] == numbers.states[first + 3][0]
        if is_of_one and first >= places[-1] + 4 and moves[first : first + 4].sum() >= 2:
            places.append(first)
    return places[1:]


def flips(now: np.ndarray, after: np.ndarray, first: int) -> np.ndarray:
    """Return the steps in which a quaternion turns nearly into minus itself, (steps,) bool."""
    part = slice(first, first + 4)
    return np.asarray((now[part] * after[part]).sum(axis=0) <= -limit("sign flip"))


def check_quaternions(facts: Facts) -> Check:
    """Find quaternions whose sign flips from one step to the next, without length 1, or in another order."""
    numbers, seen = Numbers(facts), Seen(facts.dataset)
    places = facts.once("quaternions", lambda: quaternions(numbers))
    sizes = [seen.of_episodes(np.float64, 4) for _ in places]
    while (piece := (yield seen)) is not None:
        rows = numbers.rows(piece)
        for first, size in zip(places, sizes, strict=True):
            seen.note(first, piece, flips(rows.now, rows.after, first) & piece.has_next)
            size[:, piece.episodes] += np.add.reduceat(rows.now[first : first + 4] ** 2, piece.starts, axis=1)
    findings = []
    for first, size in zip(places, sizes, strict=True):
        column, size = numbers.name(numbers.states, range(first, first + 4)), size / facts.dataset.episode_lengths
        usual = np.median(size, axis=1, keepdims=True)
        away, *rolled = (np.abs(size - np.roll(usual, by, axis=0)).sum(axis=0) for by in (0, 1, -1))
        is_other = np.min(rolled, axis=0) <= limit("another order") * away
        lengths = np.abs(size.sum(axis=0) - 1) > limit("unit length")
        for text, odd in (
            ("another order in {}, as xyzw and wxyz", is_other),
            ("not length 1 in {}: no rotation", lengths),
        ):
            if odd.mean() <= 1 - limit("usual episodes"):
                text = f"the parts of this quaternion have {text}"
                findings += about_episodes("quaternions", "warning", column, text, np.flatnonzero(odd), step=0)
    for first, noted in seen.noted.items():
        text = f"the sign of this quaternion flips in {counted(noted.rows, 'step')}: q and -q are the same "
        text += "rotation, but no small change for a network"
        column = numbers.name(numbers.states, range(first, first + 4))
        findings.append(Finding("quaternions", "warning", column, text, *noted.place))
    return findings


# Alignment


class _Shifted(NamedTuple):
    """What predicts changes of observations, or rewards.

    Attributes:
        model: Of the outputs.
        outputs: Indices of what is predicted.
        shown: The number of the observations that shows it best.
        judged: Whether the step before, itself and the one after can be distinguished.
        whole: Of all that changes and is explained, not only where actions count, by what is usual.
        moving: Indices of these.
        has_products: Whether the inputs are products of observations too.
    """

    model: Linear
    outputs: np.ndarray
    shown: int
    judged: np.ndarray
    whole: Linear
    moving: np.ndarray
    has_products: bool

    def misfit(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the mean error at some steps, as a share of usual ones, (steps,)."""
        rest = (y[self.moving] - self.whole.of(x)) ** 2 / np.maximum(self.whole.errors, TINY)[:, None]
        return np.asarray(np.minimum(rest, LARGEST).mean(axis=0))


def _undos(numbers: Numbers) -> Iterator[tuple[str, str, bool, Callable[[np.ndarray], np.ndarray]]]:
    """Yield what may have happened to an episode: a column, what, whether to its actions, and what undoes it."""
    for is_action, of in ((False, numbers.states), (True, numbers.of_actions)):
        count = len(of)
        for first in numbers.real.tolist() if is_action else range(count):
            signs = np.where(np.arange(count) == first, -1.0, 1.0)[:, None]
            name = numbers.name(of, [first])
            yield name, "reversed", is_action, functools.partial(np.multiply, signs)
            for late in () if is_action else (1, 2, 3):
                yield name, f"{counted(late, 'step')} late", False, functools.partial(_earlier, signs < 0, late)
            for second in range(first + 1, count if count <= MOST_PAIRED else 0):
                if of[second][0] == of[first][0]:
                    exchange = np.eye(count)
                    exchange[[first, second]] = exchange[[second, first]]
                    yield (
                        numbers.name(of, [first, second]),
                        "exchanged",
                        is_action,
                        functools.partial(np.matmul, exchange),
                    )


def _earlier(is_chosen: np.ndarray, steps: int, rows: np.ndarray) -> np.ndarray:
    return np.where(is_chosen, np.roll(rows, -steps, axis=1), rows)


def _what_happened(numbers: Numbers, model: _Shifted, rows: Rows, steps: np.ndarray) -> tuple[str, str] | None:
    """Return the column and the cause of errors at consecutive steps of an episode, if undoing it makes them usual."""
    (now, after), taken = rows.observed(steps[:MOST_UNDONE]), rows.taken[:, steps[:MOST_UNDONE]]
    own = model.misfit(np.concatenate([now, taken]), after - now)
    best, cause = model.misfit(np.concatenate([after, taken]), now - after), ("steps", "stored backwards")
    for column, what, is_action, undo in _undos(numbers):
        before, later, done = (now, after, undo(taken)) if is_action else (undo(now), undo(after), taken)
        errors = model.misfit(np.concatenate([before, done]), later - before)
        if errors.sum() < best.sum():
            best, cause = errors, (column, what)
    return cause if _is_usual(own, best) else None


def _in_unit(model: _Shifted, x: np.ndarray, rewards: np.ndarray) -> tuple[str, str] | None:
    """Return the same for rewards, which may be negated or in another unit."""
    factor = float((model.whole.of(x) * rewards).sum() / max(TINY, (rewards**2).sum()))
    is_other = not 0.5 < factor < 2 and _is_usual(model.misfit(x, rewards), model.misfit(x, factor * rewards))
    return ("rewards", "negated" if factor < 0 else "in another unit") if is_other else None


def _is_usual(own: np.ndarray, other: np.ndarray) -> bool:
    """Return whether other errors are usual ones, and surely smaller."""
    gain = own - other
    is_sure = gain.mean() * math.sqrt(len(gain)) >= limit("odd evidence") * gain.std()
    return bool(is_sure and other.mean() <= min(limit("odd episode"), limit("aligned errors") * own.mean()))


def _cases(what: str, rows: Rows, steps: np.ndarray, has_products: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield inputs and outputs of predictions with the actions or rewards of each shift.

    Changes follow from the observation and the action; the reward from both observations, the action,
    and their squares, and where there are few numbers from products, as in the distance of two things.
    """
    now, after = rows.observed(steps)
    if what == "actions":
        for shift in SHIFTS:
            yield np.concatenate([now, rows.taken[:, steps + shift]]), after - now
        return
    around = np.concatenate([now, after, rows.taken[:, steps]])
    first, second = np.triu_indices(len(after) * has_products, 1)
    around = np.concatenate([around, around**2, after[first] * after[second]])
    for shift in SHIFTS:
        yield around, rows.rewards[:, steps + shift]


def check_alignment(what: str, facts: Facts) -> Check:
    """Find actions or rewards of another step, which fit the observations better than those of the step itself.

    Errors of an episode's predictions are compared with those for the steps before and after, by a paired t-test.
    """
    numbers = Numbers(facts)
    if not numbers.states or (what == "actions" and not numbers.of_actions):
        return f"observations or actions are no numbers, or have too many dimensions to judge {what}"
    if what == "rewards" and facts.once("computed", lambda: rewards_are_computed(facts)):
        return []  # each reward is computed again by another check
    model = facts.once(what, lambda: _fit_shifted(numbers, what))
    if not isinstance(model, _Shifted):
        return [model] if isinstance(model, Finding) else model
    seen, usual = Seen(facts.dataset), np.maximum(model.model.errors, TINY)[:, None]
    steps, misfit, causes = seen.of_episodes(np.float64), seen.of_episodes(np.float64), seen.rows["causes"]
    sums, better, squares = (seen.of_episodes(np.float64, 3) for _ in range(3))
    while (piece := (yield seen)) is not None:
        rows, count = numbers.rows(piece), len(piece.episodes)
        every = -(-piece.lengths[piece.which] // JUDGED_STEPS)
        inside = np.flatnonzero(rows.inside & (piece.step_index % every == 0))
        errors = np.empty((3, len(inside)))
        for at, (x, y) in enumerate(_cases(what, rows, inside, model.has_products)):
            rest = (y[model.outputs] - model.model.of(x)) ** 2 / usual
            errors[at] = np.minimum(rest, LARGEST).sum(axis=0)
            odd = np.zeros(count, np.bool_)
            if SHIFTS[at] == 0:
                total = np.bincount(piece.which[inside], model.misfit(x, y), count)
                misfit[piece.episodes] += total
                odd = total > limit("odd episode") * np.bincount(piece.which[inside], minlength=count)
            for index in np.flatnonzero(odd).tolist():
                here = piece.which == index
                if what == "rewards":
                    cause = _in_unit(model, x[:, here[inside]], y[:, here[inside]])
                else:
                    cause = _what_happened(numbers, model, rows, np.flatnonzero(rows.inside & here))
                causes += [np.array([str(piece.episodes[index]), *cause])] if cause else []
        errors[~model.judged] = np.inf
        known = np.isfinite(errors[1])
        errors, which = errors[:, known], piece.which[inside[known]]
        steps[piece.episodes] += np.bincount(which, minlength=count)
        for at in range(3):
            gain = errors[1] - errors[at]
            for total, values in ((sums, errors[at]), (better, gain), (squares, gain**2)):
                total[at, piece.episodes] += np.bincount(which, values, minlength=count)
    findings = []
    for at in (0, 2):
        mean = better[at] / np.maximum(steps, 1)
        spread = np.sqrt(np.maximum(squares[at] / np.maximum(steps, 1) - mean**2, 0))
        is_shifted = mean * np.sqrt(steps) >= limit("aligned evidence") * spread
        is_shifted &= sums[at] <= limit("aligned errors") * sums[1]
        is_shifted &= (sums[1] > 0) & (sums[at] <= sums[2 - at])
        episodes = np.flatnonzero(is_shifted & (steps >= limit("fewest steps to align")))
        if len(episodes):
            share = sums[at, episodes[0]] / sums[1, episodes[0]]
            findings.append(_shift(numbers, what, SHIFTS[at], episodes, share, model.shown))
    shifted = {finding.episode for finding in findings}
    for column, cause in dict.fromkeys((column, cause) for _, column, cause in causes):
        episodes = np.array([int(row[0]) for row in causes if (row[1], row[2]) == (column, cause)])
        text = f"perhaps {cause} in {{}}: so they fit what the others show"
        if not shifted & {*episodes.tolist()}:
            findings += about_episodes("alignment", "warning", column, text, episodes, step=0)
    misfit = np.where(steps >= limit("fewest steps to align"), misfit / np.maximum(steps, 1), 0)
    most = np.sort(misfit)[: math.ceil(limit("usual episodes") * len(misfit))].max(initial=1)
    unlike = misfit >= limit("unlike episode") * most
    is_apart = misfit[unlike].min(initial=np.inf) >= limit("unlike episode") * misfit[~unlike].max(initial=1)
    if what == "actions" and not findings and is_apart:
        text = "{} changes otherwise than the others show: noise, or something else than there"
        findings += about_episodes("alignment", "note", "observations", text, np.flatnonzero(unlike), step=0)
    return findings


def _usual(x: np.ndarray, y: np.ndarray, episodes: np.ndarray) -> tuple[Linear, np.ndarray]:
    """Return the regression on three quarters of the episodes, without those that fit worst, and which rows these are."""
    kinds, model, kept = np.unique(episodes, return_inverse=True)[1], regress(x, y), np.ones(len(episodes), np.bool_)
    for _ in range(3):
        rest = np.minimum((y - model.of(x)) ** 2 / np.maximum(model.errors, TINY)[:, None], LARGEST).mean(axis=0)
        misfit = np.bincount(kinds, rest) / np.bincount(kinds)
        kept = (misfit <= np.quantile(misfit, limit("usual episodes")))[kinds]
        model = regress(x[:, kept], y[:, kept])
    return model, kept


def _fit_shifted(numbers: Numbers, what: str) -> _Shifted | Finding | str:
    """Return the model of a sample; the finding if all of it is shifted; why neither can be judged."""
    sample = numbers.sample()
    steps = np.flatnonzero(sample.inside)
    numbers_of = [sample.now, sample.after, sample.taken, sample.rewards]
    good = np.isfinite(np.concatenate(numbers_of)).all(axis=0)
    steps = _thin(steps[good[steps - 1] & good[steps] & good[steps + 1]], MOST_FITTED)
    has_products = len(sample.now) <= min(MOST_PRODUCTS, math.isqrt(len(steps) // 8))
    cases = [*_cases(what, sample, steps, has_products)]
    if what == "rewards" and len(steps):  # a few in another unit would hide what the others go with
        steps = steps[_usual(*cases[1], sample.starts.cumsum()[steps])[1]]
        cases = [*_cases(what, sample, steps, has_products)]
    x, y = cases[1]
    if x.shape[1] < max(limit("fewest aligned steps"), 8 * len(x)):
        return f"episodes are too few or too short to judge {what}"
    moving = np.flatnonzero(y.std(axis=1) > 1e-9 * (1 + np.abs(y).max(axis=1)))
    if not len(moving):
        return f"{what if what == 'rewards' else 'observations'} do not change"
    if what == "rewards":  # one number, predicted from the same inputs with each shift
        errors = regress(x, np.concatenate([outputs for _, outputs in cases])).errors[:, None]
    else:
        errors = np.array([regress(inputs, outputs[moving]).errors for inputs, outputs in cases])
    (now, after), taken = sample.observed(steps), sample.taken[:, steps]
    if what == "actions":  # beyond what follows from the observation alone
        alone, least = regress(now, y[moving]).errors, limit("explained changes")
    else:
        alone, least = y[moving].var(axis=1), limit("explained rewards")
    explained = 1 - errors / np.maximum(alone, TINY)
    number, best = int(explained.max(axis=0).argmax()), int(explained.sum(axis=1).argmax())
    shares = errors[:, number] / np.maximum(errors[1, number], TINY)
    shown = int(moving[number])
    if what == "rewards":  # the state that correlates most with them
        both = np.corrcoef(np.concatenate([y, after]))[0, 1:]
        shown = int(np.nan_to_num(np.abs(both)).argmax())
    free = regress(now, taken).errors.sum() / max(TINY, taken.var(axis=1).sum())
    if what == "actions":
        late, share = _late(sample, steps, moving)
        if late > 1 and share <= limit("aligned errors" if free >= limit("free actions") else "late actions"):
            return _shift(numbers, what, late, np.arange(numbers.facts.dataset.total_episodes), share, shown)
    if explained[best, number] < least:
        return f"what {what} go with is explained too little to judge them"
    if best != 1 and shares[best] <= limit("aligned errors"):
        # An action that follows from its own observation explains nothing beyond it, and the next one
        # tells what the next observation is.
        if what == "actions" and free < limit("free actions"):
            return "actions follow from the observations, so what they do cannot be known"
        episodes = np.arange(numbers.facts.dataset.total_episodes)
        return _shift(numbers, what, SHIFTS[best], episodes, shares[best], shown)
    judged = limit("aligned errors") * shares >= 1
    if not judged.any():
        return f"the {what} of the next step fit about as well"
    judged[1] = True
    chosen = explained[1] >= max(least / 2, explained[1].max() / 3)
    whole, _ = _usual(x, y[moving], sample.starts.cumsum()[steps])
    known = chosen | (whole.errors <= (1 - limit("explained whole")) * y[moving].var(axis=1))
    floor = 1e-4 * y[moving].var(axis=1)  # what is computed is predicted far better than it is known
    whole = Linear(*(part[known] for part in whole._replace(errors=np.maximum(whole.errors, floor))))
    model = regress(x, y[moving[chosen]])
    return _Shifted(model, moving[chosen], shown, judged, whole, moving[known], has_products)


def _late(sample: Rows, steps: np.ndarray, moving: np.ndarray) -> tuple[int, float]:
    """Return by how many steps actions are late, and the errors of what they explain best as a share of those now."""
    steps, episode = steps[steps < len(sample.starts) - MOST_LATE], sample.starts.cumsum()
    steps = steps[episode[steps + MOST_LATE] == episode[steps]]
    if len(steps) < limit("fewest aligned steps"):
        return 0, 1.0
    now, after = sample.observed(steps)
    change = (after - now)[moving]
    shifted = (np.concatenate([now, sample.taken[:, steps + late]]) for late in range(MOST_LATE + 1))
    errors = np.array([regress(x, change).errors for x in shifted])
    late, number = np.unravel_index((errors / np.maximum(regress(now, change).errors, TINY)).argmin(), errors.shape)
    return int(late), float(errors[late, number] / max(TINY, errors[0, number]))


def _shift(numbers: Numbers, what: str, shift: int, episodes: np.ndarray, share: float, shown: int) -> Finding:
    """Return the finding that some episodes fit better with what is stored a step before or after."""
    dataset = numbers.facts.dataset
    count, first = len(episodes), int(episodes[0])
    where = "all episodes" if count == dataset.total_episodes else counted(count, "episode")
    late, other = ("late", "after") if shift > 0 else ("early", "before")
    several = counted(abs(shift), "step")
    far, which = ("one step", "the step") if abs(shift) == 1 else (several, several)
    text = (
        f"{what} of {where} are stored {far} too {late}: the {what} of {which} {other} fit the observations; "
        f"errors then are {share:.0%} of what they are as stored"
    )
    column = "rewards" if what == "rewards" else dimension(dataset, *numbers.of_actions[0])
    last = int(dataset.episode_lengths[first]) - 1
    beside = numbers.state(shown)
    return Finding("alignment", "warning", column, text, first, 0, count, last, beside)


# Copies and sense


def check_copies(facts: Facts) -> Check:
    """Find actions that are the state of their own row, and observations that hold the action before."""
    numbers = Numbers(facts)
    is_judged = numbers.states and len(numbers.real)
    findings: list[Finding] = facts.once("copies", lambda: _copies(numbers)) if is_judged else []
    yield from looks_at_no_rows(facts)
    return findings


def _copies(numbers: Numbers) -> list[Finding]:
    sample = numbers.sample()
    steps = len(sample.starts)
    if steps < limit("fewest rows"):
        return []
    now, after, taken = sample.now, sample.after, sample.taken
    near = limit("copied action") * np.abs(after - now).mean(axis=1, keepdims=True)
    thin = _thin(np.arange(steps), MOST_ROWS)
    moves = np.abs((after - now)[:, thin]) > np.where(near > 0, near, np.inf)
    moves[moves.mean(axis=1) < limit("moving rows")] = False
    earlier = _thin(np.flatnonzero(~sample.starts[1:]), MOST_ROWS)
    firsts = np.flatnonzero(sample.starts[:-1])
    later, begins = now[:, earlier + 1], now[:, firsts]
    same: list[tuple[int, int]] = []
    held: list[tuple[int, int]] = []
    for number in numbers.real.tolist():
        values = taken[number]
        hits = (np.abs(values[thin] - now[:, thin]) <= near) & moves
        equal = hits.sum(axis=1) >= np.maximum(1, limit("copied rows") * moves.sum(axis=1))
        same += [(number, state) for state in np.flatnonzero(equal).tolist()]
        before = values[earlier]
        if (before != values[earlier + 1]).mean() < limit("moving rows") or len(firsts) < 3:
            continue
        away = np.abs(before - later)
        copies = (away <= 1e-6 * (1 + np.abs(before))).mean(axis=1) >= limit("copied rows")
        follows = ~copies & (away.mean(axis=1) <= limit("following") * before.std())
        # The next state may be the action, but does not begin at 0 or with an action yet to come.
        # That of a robot at rest shows nothing, but where another number follows it, that is the state.
        is_filled = (begins == values[firsts]).all(axis=1)
        is_filled &= follows.any() or (values[firsts] != values[firsts + 1]).all()
        copies &= is_filled | (begins == 0).all(axis=1)
        held += [(number, state) for state in np.flatnonzero(copies).tolist()]
    findings = list(_without_action(numbers, taken[numbers.real][:, thin], after[:, thin]))
    if same:
        actions, states = np.transpose(same)
        text = f"equals {numbers.name(numbers.states, states)} of the same row: it says where the robot is, and not "
        text += "what it shall do; the state of the next row is meant"
        column, count = numbers.name(numbers.of_actions, actions), len(np.unique(actions))
        findings.append(Finding("copies", "warning", column, text, 0, 0, count))
    if held:
        actions, states = np.transpose(held)
        text = f"holds {numbers.name(numbers.of_actions, actions)} of the step before: what imitates the data "
        text += "can repeat it, and learn nothing else"
        column, count = numbers.name(numbers.states, states), len(np.unique(states))
        findings.append(Finding("copies", "note", column, text, 0, 1, count))
    return findings


def _without_action(numbers: Numbers, actions: np.ndarray, after: np.ndarray) -> Iterator[Finding]:
    """Numbers of a state that correlate with no action, between numbers that follow one each."""
    spread = actions.std(axis=1)
    for name in numbers.observations:
        places = np.array([at for at, (other, _) in enumerate(numbers.states) if other == name])
        states = after[places]
        away = np.array([np.abs(each - states).mean(axis=1) for each in actions])
        nearest = away.argmin(axis=1)
        if (away.min(axis=1) > limit("following") * spread).any() or (np.diff(nearest) < 1).any():
            continue
        between = np.setdiff1d(np.arange(nearest[0], nearest[-1]), nearest)
        moves = states.std(axis=1)
        moves = moves > limit("standing still") * np.median(moves[nearest])
        alike = np.corrcoef(actions, states)[: len(actions), len(actions) :]
        between = between[(moves & (np.abs(alike).max(axis=0) < limit("no action")))[between]]
        if 0 < len(between) <= limit("states without action") * len(nearest):
            column = numbers.name(numbers.states, places[between])
            text = "moves, and no action is about it, while the numbers beside it follow one each"
            yield Finding("unused actions", "note", column, text, count=len(between))


class _Sense(NamedTuple):
    """Numbers of actions with the state that each goes best with, and those of two values."""

    actions: np.ndarray
    states: np.ndarray
    switches: np.ndarray


def _fit_sense(numbers: Numbers) -> _Sense:
    rows, real = numbers.sample(), numbers.real
    taken, after, change = rows.taken[real], rows.after, rows.after - rows.now
    fits = [np.zeros((len(real), len(after)))]
    for part in np.split(np.arange(len(rows.starts)), np.flatnonzero(rows.starts)[1:]):
        if len(part) >= limit("stuck steps"):
            both = [np.corrcoef(taken[:, part], each[:, part])[: len(real), len(real) :] for each in (after, change)]
            fits.append(np.abs(np.nan_to_num(both)).max(axis=0))
    fit = np.sum(fits, axis=0) / max(1, len(fits) - 1)
    pairs = np.flatnonzero(fit.max(axis=1) >= limit("same sense"))
    low, high = taken.min(axis=1, keepdims=True), taken.max(axis=1, keepdims=True)
    two = (low < high)[:, 0] & ((taken == low) | (taken == high)).all(axis=1)
    return _Sense(real[pairs], fit[pairs].argmax(axis=1), real[two])


def _standard(values: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Return numbers less their mean in each episode, divided by their spread in it; NaN for a constant."""
    counts = np.diff(firsts, append=values.shape[1])
    mean, square = (np.add.reduceat(e, firsts, axis=1) / counts for e in (values, values**2))
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    mean, spread = (np.repeat(each, counts, axis=1) for each in (mean, spread))
    return np.asarray((values - mean) / spread)


def check_sense(facts: Facts) -> Check:
    """Find episodes whose actions correlate with positions in some and changes in others, or with the other sign."""
    numbers = Numbers(facts)
    if not numbers.states or not len(numbers.real):
        return "observations or actions are no real numbers, or have too many dimensions"
    model = facts.once("sense", lambda: _fit_sense(numbers))
    seen = Seen(facts.dataset)
    position, delta = (seen.of_episodes(np.float64, len(model.actions)) for _ in range(2))
    begins = seen.of_episodes(np.float64, len(model.switches))
    while (piece := (yield seen)) is not None:
        rows, begun = numbers.rows(piece), piece.begun
        begins[:, piece.episodes[begun]] = rows.taken[:, piece.starts[begun]][model.switches]
        if not len(model.actions):
            continue
        states = rows.states[model.states]
        after, now = states[:, piece.before + 1], states[:, piece.before]
        actions = _standard(rows.taken[model.actions], piece.starts)
        share = 1 / facts.dataset.episode_lengths[piece.episodes]
        for total, values in ((position, after), (delta, after - now)):
            both = actions * _standard(values, piece.starts)
            total[:, piece.episodes] += share * np.add.reduceat(both, piece.starts, axis=1)
    findings = list(_reversed_switches(numbers, model, begins))
    long = facts.dataset.episode_lengths >= limit("stuck steps")
    kinds: dict[tuple[str, bytes], list[int]] = {}
    for index in range(len(model.actions)):
        kind, episodes = _parts(position[index], delta[index], long)
        if len(episodes):
            kinds.setdefault((kind, episodes.tobytes()), []).append(index)
    every = counted(facts.dataset.total_episodes, "episode")
    for (kind, key), indices in kinds.items():
        episodes = np.frombuffer(key, np.int64)
        first, count = int(episodes[0]), len(episodes)
        beside = numbers.name(numbers.states, model.states[indices])
        text = f"goes the other way in at least {count:,} of {every}, against {beside}: its sense was reversed"
        if kind == "kind":
            kinds_of = ["positions", "changes of position"]
            if abs(delta[indices[0], first]) > abs(position[indices[0], first]):
                kinds_of.reverse()
            text = f"{count:,} of {every} have {' as actions, and the others '.join(kinds_of)}"
        column = numbers.name(numbers.of_actions, model.actions[indices])
        findings.append(Finding("sense of actions", "warning", column, text, first, 0, count))
    return findings


def _reversed_switches(numbers: Numbers, model: _Sense, begins: np.ndarray) -> Iterator[Finding]:
    """Actions of two values that begin with one in the first episodes and with the other in all later ones."""
    for number, values in zip(model.switches.tolist(), begins, strict=True):
        (changes,) = np.nonzero(np.diff(values))
        first = int(changes[0]) + 1 if len(changes) == 1 else 0
        later = len(values) - first
        if min(first, later) >= limit("episodes before"):
            text = f"begins at {values[0]:g} in the first {counted(first, 'episode')} and at {values[-1]:g} in "
            text += "all after them: perhaps its sense was reversed"
            column = numbers.name(numbers.of_actions, [number])
            yield Finding("sense of actions", "warning", column, text, first, 0, later)


def _parts(position: np.ndarray, delta: np.ndarray, known: np.ndarray) -> tuple[str, np.ndarray]:
    """Return what differs between two parts of the episodes, and which are the fewer; none if nothing does."""
    fits, clear, sign = limit("same sense"), limit("clear kind"), limit("clear sign")
    known = known & np.isfinite(position) & np.isfinite(delta)
    more = np.abs(position) - np.abs(delta)
    is_position = known & (np.abs(position) >= fits) & (more >= clear)
    is_delta = known & (np.abs(delta) >= fits) & (-more >= clear)
    best = position if np.nansum(more) >= 0 else delta
    for kind, part, other in (
        ("kind", is_position, is_delta),
        ("sense", known & (best >= sign), known & (best <= -sign)),
    ):
        fewer = part if part.sum() < other.sum() else other
        agree = (part | other).sum() >= limit("two senses") * max(1, known.sum())
        if agree and fewer.sum() >= 2:
            return kind, np.flatnonzero(fewer)
    return "", np.empty(0, np.int64)


def check_tasks(facts: Facts) -> Check:
    """Find episodes without words, and those that begin and go on as the ones of another task do."""
    column = column_with(facts.dataset.roles, "task_words") or column_with(facts.dataset.roles, "task")
    if column is None or axis_of(column) != "episode":
        return []
    numbers, seen = Numbers(facts), Seen(facts.dataset)
    shown = seen.of_episodes(np.float64, 2 * len(numbers.states))  # the first observation, and the mean
    while (piece := (yield seen)) is not None:
        now, share = numbers.rows(piece).now, 1 / facts.dataset.episode_lengths[piece.episodes]
        shown[: len(now), piece.episodes[piece.begun]] = now[:, piece.starts[piece.begun]]
        shown[len(now) :, piece.episodes] += share * np.add.reduceat(now, piece.starts, axis=1)
    tasks, kinds, counts = np.unique(episode_column(facts.dataset, column), return_inverse=True, return_counts=True)
    empty = kinds == 0 if not str(tasks[0]).strip() else np.zeros(len(kinds), np.bool_)
    text = "{} has no task, though others have"
    findings = about_episodes("tasks", "warning", column, text, np.flatnonzero(empty & ~empty.all()))
    some = np.flatnonzero(counts >= limit("episodes of a kind"))[:MOST_TASKS].tolist()
    middles = {kind: np.median(shown[:, kinds == kind], axis=1, keepdims=True) for kind in some}
    spreads = {kind: np.median(np.abs(shown[:, kinds == kind] - middles[kind]), axis=1) for kind in some}
    for kind, other in itertools.permutations(some, 2):
        apart = middles[other] - middles[kind]
        tells = np.abs(apart[:, 0]) > limit("tasks apart") * (spreads[kind] + spreads[other])
        tells &= spreads[kind] > 0
        away = (shown - middles[kind])[tells] / apart[tells]  # 0 in the middle of the task, and 1 in that of the other
        odd = np.flatnonzero((kinds == kind) & (np.abs(away - 1) < 0.25).all(axis=0) & (tells.sum() > 1))
        if len(odd) <= (1 - limit("usual episodes")) * counts[kind]:
            text = f"{{}} of {str(tasks[kind])!r:.50} is as those of {str(tasks[other])!r:.50} in all that tells both apart"
            findings += about_episodes("tasks", "warning", column, text, odd)
    return findings


CHECKS: dict[str, Callable[[Facts], Check]] = {
    "jumps": check_jumps,
    "quaternions": check_quaternions,
    "alignment of actions": functools.partial(check_alignment, "actions"),
    "alignment of rewards": functools.partial(check_alignment, "rewards"),
    "copies": check_copies,
    "sense of actions": check_sense,
    "tasks": check_tasks,
}
