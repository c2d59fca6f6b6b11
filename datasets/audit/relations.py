"""Checks of how observations, actions and rewards belong together, by what a sample of the episodes shows.

A ridge regression predicts how observations change from the observation and the action. What it leaves
shows jumps. That it predicts better with the actions of the step before or after shows a shift by a
step; rewards are judged likewise. Copies and the sense of actions follow from distances and correlations.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from orlog.datasets.audit.findings import (
    Check,
    Facts,
    Finding,
    Seen,
    Severity,
    limit,
    looks_at_no_rows,
)
from orlog.datasets.audit.numbers import judged_columns
from orlog.datasets.audit.pieces import Piece, dimension, dimensions, flat, pieces
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import OrlogError, clause
from orlog.manifests.documents import canonical_json
from orlog.manifests.names import counted
from orlog.manifests.spaces import leaf_spaces

MOST_ACTIONS = 64  # values of a discrete action that are distinguished
MOST_FITTED = 2**14  # steps that a prediction is fitted to
MOST_ROWS = 2**12  # that are compared, number by number
KEPT, TAIL = 512, 100  # largest residuals of each number, and those that say how fast they fall
SHIFTS = (-1, 0, 1)
LARGEST = 9.0  # usual squared errors that one counts as, at most: a collision is no evidence
JUDGED_STEPS = 256  # of an episode: enough to be certain, so more would only take time


class Rows(NamedTuple):
    """Numbers at some steps, (numbers, steps) float64 each; of discrete actions one for each choice."""

    now: np.ndarray
    after: np.ndarray
    taken: np.ndarray
    rewards: np.ndarray
    starts: np.ndarray  # whether an episode starts, (1, steps)
    inside: np.ndarray  # whether one step came before and two follow, (1, steps)

    def at(self, steps: Any) -> Rows:
        """Return some steps."""
        return Rows(*(each[:, steps] for each in self))


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
        self.states, self.of_actions = (
            [
                (name, index)
                for name in names
                for index in range(
                    len(self.discrete.get(name, range(math.prod(specs[name].shape))))
                )
            ]
            for names in (self.observations, self.actions)
        )
        is_real = [specs[name].dtype.kind == "f" for name, _ in self.of_actions]
        self.real = np.flatnonzero(is_real)

    def rows(self, piece: Piece) -> Rows:
        """Return the numbers at all steps of a piece."""
        if "rows" not in piece.views:
            states = np.empty((0, piece.steps + len(piece.lengths)))
            states = np.concatenate([states, *map(piece.numbers, self.observations)])
            actions = np.empty((0, piece.steps))
            for name in self.actions:
                values = piece.numbers(name)
                values = values == self.discrete[name] if name in self.discrete else values
                actions = np.concatenate([actions, values])
            now, after = states[:, piece.before], states[:, piece.before + 1]
            # Where a final observation was never recorded, nothing is known to change.
            after[:, ~piece.has_next] = now[:, ~piece.has_next]
            from_start = np.arange(piece.steps) - piece.starts[piece.which]
            inside = (from_start > 0) & (from_start < piece.lengths[piece.which] - 2)
            rewards = piece.columns["rewards"].astype(np.float64)
            starts = piece.step_index == 0
            rows = Rows(now, after, actions, rewards[None], starts[None], inside[None])
            piece.views["rows"] = rows
        known: Rows = piece.views["rows"]
        return known

    def sample(self) -> Rows:
        """Return the numbers at all steps of some episodes, and keep them."""
        kept = self.facts.kept
        if "rows" not in kept:
            parts = [self.rows(piece) for piece in self.facts.sample()]
            joined = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
            kept["rows"] = Rows(*joined)
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


class _Largest:
    """The largest residuals of each number, (numbers, kept) in falling order, with their places."""

    def __init__(self, numbers: int) -> None:
        self.sizes = np.empty((numbers, 0))
        self.places = np.empty((numbers, 0), np.int64)  # episode << 32 | step

    def add(self, sizes: np.ndarray, piece: Piece) -> None:
        """Take in the residuals at all steps of a piece."""
        least = self.sizes[:, KEPT - 1 : KEPT].max(axis=1, initial=0, keepdims=True)
        if piece.steps > KEPT > self.sizes.shape[1]:
            least = np.partition(sizes, -KEPT, axis=1)[:, -KEPT, None]
        rows = np.flatnonzero(((sizes >= least) & (sizes > 0)).any(axis=0))
        places = (piece.episodes[piece.which] << 32) + piece.step_index
        self._take(sizes[:, rows], np.tile(places[rows], (len(sizes), 1)))

    def join(self, other: _Largest) -> None:
        """Take in what another one has of later episodes."""
        self._take(other.sizes, other.places)

    def _take(self, sizes: np.ndarray, places: np.ndarray) -> None:
        sizes = np.concatenate([self.sizes, sizes], axis=1)
        places = np.concatenate([self.places, places], axis=1)
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
    return regress(x, y) if is_fit else None, np.maximum(usual, 1e-300)


def check_jumps(facts: Facts) -> Check:
    """Find changes whose residual of a linear prediction is far beyond the tail of all others."""
    numbers, steps = Numbers(facts), facts.dataset.total_steps
    if not numbers.states:
        return "observations are no real numbers, or have too many dimensions to be judged"
    if steps < limit("fewest steps for jumps"):
        return f"there are fewer than {limit('fewest steps for jumps'):.0f} steps"
    model, usual = facts.once("jumps", lambda: _fit_changes(numbers))
    turning, seen = quaternions(numbers), Seen(facts.dataset)
    largest = seen.part(_Largest(len(numbers.states)))
    while (piece := (yield seen)) is not None:
        rows = numbers.rows(piece)
        changes = rows.after - rows.now
        expected = model.of(np.concatenate([rows.now, rows.taken])) if model else 0.0
        sizes, turns = np.abs(changes - expected), np.abs(changes) / (2 * math.pi)
        # An angle may pass from one end of its range to the other; infinity is found by another check.
        sizes[(abs(turns - 0.95) < 0.06) | (abs(turns * math.pi / 180 - 0.95) < 0.06)] = 0
        sizes[~np.isfinite(sizes)] = 0
        for first in turning:  # another check finds these
            sizes[first : first + 4, flips(rows, first)] = 0
        seen.sums["still"] += np.count_nonzero(changes == 0, axis=1)
        largest.add(sizes, piece)
    moving = np.flatnonzero(seen.sums["still"] <= limit("mostly still") * steps)
    jumps: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
    for number in moving.tolist():
        sizes = largest.sizes[number]
        count = count_outliers(sizes, steps)
        for at in range(count):
            times = float(sizes[at] / usual[number])
            if times > limit("jump size"):
                place = divmod(int(largest.places[number, at]), 2**32)
                jumps.setdefault(place, {})[number] = times, float(sizes[at] / sizes[count])
    many = limit("jumping dimensions") * len(moving)
    strong = {
        place
        for place, sizes_of in jumps.items()
        if len(sizes_of) > many or max(sizes_of.values())[0] >= limit("far jump")
    }
    findings = []
    for places in (strong, jumps.keys() - strong):
        if places:
            ratio, worst = max((jumps[place][at][1], at) for place in places for at in jumps[place])
            text = f"{counted(len(places), 'jump')} inside of episodes, up to {ratio:.3g} times as far from what is "
            text += "expected as any other step"
            at_start = sum(step == 0 for _, step in places)
            is_habit = at_start > limit("jump habit") * facts.dataset.total_episodes
            severity: Severity = "warning" if places is strong and not is_habit else "note"
            if is_habit:
                text += "; most are the first step of an episode"
            elif severity == "note":
                text += (
                    ", in a few dimensions only: by a collision, or where two episodes were joined"
                )
            column = numbers.state(worst)
            findings.append(Finding("jumps", severity, column, text, *min(places), len(places)))
    return findings


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
    known: list[int] = numbers.facts.once("quaternions", lambda: _quaternions(numbers))
    return known


def _quaternions(numbers: Numbers) -> list[int]:
    if len(numbers.states) < 4:
        return []
    rows = numbers.sample().after
    squares = np.lib.stride_tricks.sliding_window_view(rows**2, 4, axis=0).sum(axis=-1)
    unit = (np.abs(squares - 1) <= limit("unit length")).mean(axis=1) >= limit("unit rows")
    moves = (rows != rows[:, :1]).any(axis=1)
    places = [-4]
    for first in np.flatnonzero(unit).tolist():
        is_of_one = numbers.states[first][0] == numbers.states[first + 3][0]
        if is_of_one and first >= places[-1] + 4 and moves[first : first + 4].sum() >= 2:
            places.append(first)
    return places[1:]


def flips(rows: Rows, first: int) -> np.ndarray:
    """Return the steps in which a quaternion turns nearly into minus itself, (steps,) bool."""
    now, after = (each[first : first + 4] for each in (rows.now, rows.after))
    return np.asarray((now * after).sum(axis=0) <= -limit("sign flip"))


def check_quaternions(facts: Facts) -> Check:
    """Find quaternions whose sign flips from one step to the next."""
    numbers, seen = Numbers(facts), Seen(facts.dataset)
    places = quaternions(numbers)
    while (piece := (yield seen)) is not None:
        for first in places:
            seen.note(first, piece, flips(numbers.rows(piece), first) & piece.has_next)
    findings = []
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
    """

    model: Linear
    outputs: np.ndarray
    shown: int
    judged: np.ndarray


def _case(what: str, rows: Rows, steps: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and outputs of a prediction with the actions or rewards of a step before or after.

    Changes follow from the observation and the action; the reward from both observations, the action,
    and their squares.
    """
    now, after = rows.now[:, steps], rows.after[:, steps]
    if what == "actions":
        return np.concatenate([now, rows.taken[:, steps + shift]]), after - now
    around = np.concatenate([now, after, rows.taken[:, steps]])
    return np.concatenate([around, around**2]), rows.rewards[:, steps + shift]


def check_action_alignment(facts: Facts) -> Check:
    """Find actions with which changes of observations are predicted better a step before or after."""
    numbers = Numbers(facts)
    if not numbers.states or not numbers.of_actions:
        return "observations or actions are no numbers, or have too many dimensions to predict one from the other"
    return (yield from _alignment(numbers, "actions"))


def check_reward_alignment(facts: Facts) -> Check:
    """Find rewards that are predicted better by observations and actions a step before or after."""
    numbers = Numbers(facts)
    if not numbers.states:
        return (
            "observations are no real numbers, or have too many dimensions to predict rewards from"
        )
    if facts.once("computed", lambda: _are_computed(facts)):
        return []  # each reward is computed again by another check
    return (yield from _alignment(numbers, "rewards"))


def _alignment(numbers: Numbers, what: str) -> Check:
    """Compare errors of an episode's predictions with those of the steps before and after, by a paired t-test."""
    facts = numbers.facts
    model = facts.once(what, lambda: _fit_shifted(numbers, what))
    if not isinstance(model, _Shifted):
        return [model] if isinstance(model, Finding) else model
    seen, usual = Seen(facts.dataset), np.maximum(model.model.errors, 1e-300)[:, None]
    steps = seen.of_episodes(np.float64)
    sums, better, squares = (seen.of_episodes(np.float64, 3) for _ in range(3))
    while (piece := (yield seen)) is not None:
        rows, count = numbers.rows(piece), len(piece.episodes)
        every = -(-piece.lengths[piece.which] // JUDGED_STEPS)
        inside = np.flatnonzero(rows.inside[0] & (piece.step_index % every == 0))
        errors = np.empty((3, len(inside)))
        for at, shift in enumerate(SHIFTS):
            x, y = _case(what, rows, inside, shift)
            rest = (y[model.outputs] - model.model.of(x)) ** 2 / usual
            errors[at] = np.minimum(rest, LARGEST).sum(axis=0)
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
    return findings


def _fit_shifted(numbers: Numbers, what: str) -> _Shifted | Finding | str:
    """Return the model of a sample; the finding if all of it is shifted; why neither can be judged."""
    sample = numbers.sample()
    steps = np.flatnonzero(sample.inside[0])
    good = np.isfinite(np.concatenate(sample)).all(axis=0)
    steps = _thin(steps[good[steps - 1] & good[steps] & good[steps + 1]], MOST_FITTED)
    cases = [_case(what, sample, steps, shift) for shift in SHIFTS]
    x, y = cases[1]
    if x.shape[1] < max(limit("fewest aligned steps"), 8 * len(x)):
        return f"episodes are too few or too short to judge {what}"
    moving = np.flatnonzero(y.std(axis=1) > 1e-9 * (1 + np.abs(y).max(axis=1)))
    if not len(moving):
        return "observations do not change" if what == "actions" else "rewards do not vary"
    errors = np.array([regress(inputs, outputs[moving]).errors for inputs, outputs in cases])
    if what == "actions":  # beyond what follows from the observation alone
        alone = regress(sample.now[:, steps], y[moving]).errors
        least = limit("explained changes")
    else:
        alone, least = y[moving].var(axis=1), limit("explained rewards")
    explained = 1 - errors / np.maximum(alone, 1e-300)
    number, best = int(explained.max(axis=0).argmax()), int(explained.sum(axis=1).argmax())
    shares = errors[:, number] / np.maximum(errors[1, number], 1e-300)
    shown = int(moving[number])
    if what == "rewards":  # the state that correlates most with them
        rewards, after = (
            _standard(e[:, steps], np.array([0])) for e in (sample.rewards, sample.after)
        )
        shown = int(np.nan_to_num(np.abs(after @ rewards.T)).argmax())
    if explained[best, number] < least:
        return f"what {what} go with is explained too little to judge them"
    if best != 1 and shares[best] <= limit("aligned errors"):
        taken = sample.taken[:, steps]
        # An action that follows from its own observation explains nothing beyond it, and the next one
        # tells what the next observation is.
        free = regress(sample.now[:, steps], taken).errors.sum() / max(
            1e-300, taken.var(axis=1).sum()
        )
        if what == "actions" and free < limit("free actions"):
            return "actions follow from the observations, so what they do cannot be known"
        episodes = np.arange(numbers.facts.dataset.total_episodes)
        return _shift(numbers, what, SHIFTS[best], episodes, shares[best], shown)
    judged = limit("aligned errors") * shares >= 1
    if not judged.any():
        return f"the {what} of the next step fit about as well"
    judged[1] = True
    chosen = explained[1] >= max(least / 2, explained[1].max() / 3)
    return _Shifted(regress(x, y[moving[chosen]]), moving[chosen], shown, judged)


def _shift(
    numbers: Numbers, what: str, shift: int, episodes: np.ndarray, share: float, shown: int
) -> Finding:
    """Return the finding that some episodes fit better with what is stored a step before or after."""
    dataset = numbers.facts.dataset
    count, first = len(episodes), int(episodes[0])
    where = "all episodes" if count == dataset.total_episodes else counted(count, "episode")
    late, other = ("late", "after") if shift > 0 else ("early", "before")
    text = (
        f"{what} of {where} are stored one step too {late}: the {what} of the step {other} fit the observations; "
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
    steps = sample.now.shape[1]
    if steps < limit("fewest rows"):
        return []
    thin = sample.at(_thin(np.arange(steps), MOST_ROWS))
    near = limit("copied action") * np.abs(sample.after - sample.now).mean(axis=1, keepdims=True)
    moves = np.abs(thin.after - thin.now) > np.where(near > 0, near, np.inf)
    moves[moves.mean(axis=1) < limit("moving rows")] = False
    earlier = _thin(np.flatnonzero(~sample.starts[0, 1:]), MOST_ROWS)
    later, firsts = sample.now[:, earlier + 1], np.flatnonzero(sample.starts[0, :-1])
    begins = sample.now[:, firsts]
    same, held = [], []
    for number in numbers.real.tolist():
        hits = (np.abs(thin.taken[number] - thin.now) <= near) & moves
        equal = hits.sum(axis=1) >= np.maximum(1, limit("copied rows") * moves.sum(axis=1))
        same += [(number, state) for state in np.flatnonzero(equal).tolist()]
        values = sample.taken[number]
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
    findings = list(_without_action(numbers, thin))
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


def _without_action(numbers: Numbers, rows: Rows) -> Iterator[Finding]:
    """Numbers of a state that correlate with no action, between numbers that follow one each."""
    actions = rows.taken[numbers.real]
    spread = actions.std(axis=1)
    for name in numbers.observations:
        places = np.array([at for at, (other, _) in enumerate(numbers.states) if other == name])
        states = rows.after[places]
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
    edges = np.append(np.flatnonzero(rows.starts[0]), rows.starts.shape[1])
    taken = np.nan_to_num(_standard(rows.taken[real], edges[:-1]))
    after, change = (
        np.nan_to_num(_standard(e, edges[:-1])) for e in (rows.after, rows.after - rows.now)
    )
    fits = []
    for part in map(slice, edges[:-1], edges[1:]):
        if part.stop - part.start >= limit("stuck steps"):
            both = [np.abs(taken[:, part] @ each[:, part].T) for each in (after, change)]
            fits.append(np.maximum(*both) / (part.stop - part.start))
    fit = np.mean(fits, axis=0) if fits else np.zeros((len(real), len(rows.now)))
    pairs = np.flatnonzero(fit.max(axis=1) >= limit("same sense"))
    taken = rows.taken[real]
    low, high = taken.min(axis=1, keepdims=True), taken.max(axis=1, keepdims=True)
    two = (low < high)[:, 0] & ((taken == low) | (taken == high)).all(axis=1)
    return _Sense(real[pairs], fit[pairs].argmax(axis=1), real[two])


def _standard(values: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Return numbers less their mean in each episode, divided by their spread in it; NaN for a constant."""
    counts = np.diff(firsts, append=values.shape[1])
    mean, square = (np.add.reduceat(e, firsts, axis=1) / counts for e in (values, values**2))
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    return np.asarray(
        (values - np.repeat(mean, counts, axis=1)) / np.repeat(spread, counts, axis=1)
    )


def check_sense(facts: Facts) -> Check:
    """Find episodes whose actions correlate with positions in some and changes in others, or with the other sign."""
    numbers = Numbers(facts)
    if not numbers.states or not len(numbers.real):
        return "observations or actions are no real numbers, or have too many dimensions"
    model: _Sense = facts.once("sense", lambda: _fit_sense(numbers))
    seen = Seen(facts.dataset)
    position, delta = (seen.of_episodes(np.float64, len(model.actions)) for _ in range(2))
    begins = seen.of_episodes(np.float64, len(model.switches))
    while (piece := (yield seen)) is not None:
        rows, begun = numbers.rows(piece), piece.begun
        begins[:, piece.episodes[begun]] = rows.taken[:, piece.starts[begun]][model.switches]
        actions, after = rows.taken[model.actions], rows.after[model.states]
        share = piece.lengths / facts.dataset.episode_lengths[piece.episodes]
        for total, states in ((position, after), (delta, after - rows.now[model.states])):
            both = _standard(actions, piece.starts) * _standard(states, piece.starts)
            correlation = np.add.reduceat(both, piece.starts, axis=1) / piece.lengths
            total[:, piece.episodes] += share * correlation
    long = facts.dataset.episode_lengths >= limit("stuck steps")
    known = np.isfinite(position) & np.isfinite(delta) & long
    findings = []
    for number, values in zip(model.switches.tolist(), begins, strict=True):
        (changes,) = np.nonzero(np.diff(values))
        first = int(changes[0]) + 1 if len(changes) == 1 else 0
        if min(first, len(values) - first) >= limit("episodes before"):
            text = f"begins at {values[0]:g} in the first {counted(first, 'episode')} and at {values[-1]:g} in "
            text += "all after them: perhaps its sense was reversed"
            column, later = numbers.name(numbers.of_actions, [number]), len(values) - first
            findings.append(Finding("sense of actions", "warning", column, text, first, 0, later))
    kinds: dict[tuple[str, bytes], list[int]] = {}
    for index in range(len(model.actions)):
        kind, episodes = _parts(position[index], delta[index], known[index])
        if len(episodes):
            kinds.setdefault((kind, episodes.tobytes()), []).append(index)
    every = counted(facts.dataset.total_episodes, "episode")
    for (kind, key), indices in kinds.items():
        episodes = np.frombuffer(key, np.int64)
        first, count = int(episodes[0]), len(episodes)
        if kind == "kind":
            kinds_of = ["positions", "changes of position"]
            if abs(delta[indices[0], first]) > abs(position[indices[0], first]):
                kinds_of.reverse()
            text = f"{count:,} of {every} have {' as actions, and the others '.join(kinds_of)}"
        else:
            beside = numbers.name(numbers.states, model.states[indices])
            text = f"goes the other way in at least {count:,} of {every}, against {beside}: its sense was reversed"
        column = numbers.name(numbers.of_actions, model.actions[indices])
        findings.append(Finding("sense of actions", "warning", column, text, first, 0, count))
    return findings


def _parts(position: np.ndarray, delta: np.ndarray, known: np.ndarray) -> tuple[str, np.ndarray]:
    """Return what differs between two parts of the episodes, and which are the fewer; none if nothing does."""
    fits, clear, sign = limit("same sense"), limit("clear kind"), limit("clear sign")
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


# Rewards

Formula = Callable[[Piece], "np.ndarray | None"]


def _force(piece: Piece) -> np.ndarray:
    return np.asarray(piece.numbers("actions")[0], float)


def _pendulum(piece: Piece) -> np.ndarray:
    cosine, sine, speed = piece.numbers("observations")[:, piece.before].astype(float)
    cost = np.arctan2(sine, cosine) ** 2 + 0.1 * speed**2 + 0.001 * _force(piece).clip(-2, 2) ** 2
    return np.asarray(-cost)


def _sum_of_parts(piece: Piece) -> np.ndarray | None:
    """Return the sum of the parts of MuJoCo's rewards, if they were recorded with the infos."""
    names = r"infos/reward_(forward|run|ctrl|survive|contact|quadctrl|alive|impact)"
    parts = [flat(piece.columns[name])[:, 0] for name in piece.columns if re.fullmatch(names, name)]
    return np.sum(parts, axis=0, dtype=float) if len(parts) > 1 else None


# Pattern of environment ids -> the reward of each step of a piece, or None if it cannot be computed.
FORMULAS: dict[str, Formula] = {
    r"CartPole-v[01]": lambda piece: np.ones(piece.steps),
    r"MountainCar-v0": lambda piece: -np.ones(piece.steps),
    r"MountainCarContinuous-v0": lambda piece: (
        100.0 * piece.columns["terminations"] - 0.1 * _force(piece) ** 2
    ),
    r"Acrobot-v1": lambda piece: piece.columns["terminations"] - 1.0,
    r"Pendulum-v1": _pendulum,
    r"InvertedPendulum-v5": lambda piece: 1.0 - piece.columns["terminations"],
    r"(Ant|HalfCheetah|Hopper|Humanoid|Swimmer|Walker2d)-v[45]": _sum_of_parts,
}


def check_rewards(facts: Facts) -> Check:
    """Find rewards that differ from what the environment computes from what was recorded."""
    formula = _formula(facts)
    if isinstance(formula, str):
        return formula
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        expected = formula(piece)
        if expected is None:
            return "the parts of the reward were not recorded"
        rewards = piece.columns["rewards"].astype(np.float64)
        known = piece.has_next & np.isfinite(rewards)
        wrong = np.abs(rewards - expected) > limit("reward error") * (1 + np.abs(expected))
        pairs = np.stack([rewards, expected], axis=1)
        seen.note("rewards", piece, wrong & known, values=pairs)
        seen.sums["steps"] += int(known.sum())
    findings = []
    for column, noted in seen.noted.items():
        text = f"{noted.rows:,} of {seen.sums['steps']:,} rewards differ from the environment's: "
        text += f"{noted.value[0]:g}, not {noted.value[1]:g}"
        is_other = noted.rows > limit("other rewards") * seen.sums["steps"]
        if is_other:
            text += "; so many that they were probably computed in another way on purpose"
        severity: Severity = "warning" if is_other else "error"
        findings.append(Finding("rewards", severity, column, text, *noted.place))
    return findings


def _are_computed(facts: Facts) -> bool:
    """Return whether the first rewards can be computed again."""
    formula = _formula(facts)
    first = next(pieces(facts.dataset, facts.missing_finals))
    return not isinstance(formula, str) and formula(first) is not None


def _formula(facts: Facts) -> Formula | str:
    """Return what computes the rewards of a piece, or why nothing does."""
    dataset = facts.dataset
    if dataset.environment is None:
        return "the data name no environment"
    space = dataset.observation_space
    if isinstance(space, gymnasium.spaces.Dict) and all(
        isinstance(space.get(goal), gymnasium.spaces.Box)
        for goal in ("achieved_goal", "desired_goal")
    ):
        return _of_goals(facts)
    for pattern, formula in FORMULAS.items():
        if re.fullmatch(pattern, dataset.environment.id) and not dataset.environment.kwargs:
            return formula
    return f"the reward of {dataset.environment.id} does not follow from what is recorded"


def _of_goals(facts: Facts) -> Formula | str:
    """Return the formula of an environment with goals: its own `compute_reward`."""
    try:
        record = facts.dataset.checked_environment(trust_environment=facts.trust_environment)
        compute = _compute_reward(record.id, canonical_json(record.kwargs))
    except OrlogError as error:
        return f"the environment cannot be made: {clause(error)}"
    if compute is None:
        return f"{record.id} has no compute_reward"

    def of_goals(piece: Piece) -> np.ndarray | None:
        # The goal that counts is the one observed with the result of the step.
        goals = (piece.columns[f"observations/{key}_goal"] for key in ("achieved", "desired"))
        try:
            rewards = np.asarray(compute(*(goal[piece.before + 1] for goal in goals), {}), float)
        except Exception:  # noqa: BLE001 (an environment runs any code and raises anything)
            return None
        return rewards if rewards.shape == (piece.steps,) else None

    return of_goals


@functools.lru_cache(maxsize=8)
def _compute_reward(environment_id: str, kwargs: bytes) -> Callable[..., Any] | None:
    """Return the function of an environment that gives rewards for goals; None if it has none."""
    env = make_environment(environment_id, json.loads(kwargs))
    compute: Callable[..., Any] | None = getattr(env.unwrapped, "compute_reward", None)
    env.close()
    return compute


CHECKS: dict[str, Callable[[Facts], Check]] = {
    "jumps": check_jumps,
    "quaternions": check_quaternions,
    "alignment of actions": check_action_alignment,
    "alignment of rewards": check_reward_alignment,
    "copies": check_copies,
    "sense of actions": check_sense,
    "rewards": check_rewards,
}
