"""Checks of alignment: actions or rewards that are stored one step too late or too early.

A ridge regression, fitted to a sample of the episodes, predicts the change of each observation from the
observation and the action, and each reward from the observations around it and the action. What an
episode's action or reward of the step before or after fits better than that of the step itself, it
fits by mistake. A whole dataset that is shifted shows in how much of the changes the actions of the
step before, of the step itself and of the step after explain.

Only steps inside of episodes are judged, so that ends and what is lost by shifting do not count.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import gymnasium
import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece, dimension
from orlog.datasets.audit.rewards import computed_rewards
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.audit.values import judged_columns
from orlog.manifests.spaces import leaf_spaces

CHECK = "alignment"
SHIFTS = (-1, 0, 1)
LARGEST = (
    9.0  # squared errors count up to this many times the usual one: a collision is no evidence
)
JUDGED_STEPS = 256  # of an episode in a piece: enough to be certain, so more would only take time
MOST_ACTIONS = 64  # values of a discrete action that are told apart

What = Literal["actions", "rewards"]


def check_action_alignment(facts: Facts) -> Check:
    """Find actions that belong to the step before or after."""
    rows = _Rows(facts)
    if not rows.observations or not rows.actions:
        return "observations or actions are no numbers, or have too many dimensions to predict one from the other"
    model = facts.once("actions", lambda: _fit_changes(facts, rows))
    if isinstance(model, str):
        return model
    if isinstance(model, Finding):
        return [model]
    seen = Seen(facts.dataset)
    evidence = _Evidence(seen)
    while (piece := (yield seen)) is not None:
        inside = rows.inside(piece)
        if len(inside):
            evidence.add(piece, inside, model.errors(rows, piece, inside))
    return evidence.findings(
        facts, "actions", rows.action_name(), rows.observation_name(model.shown)
    )


def check_reward_alignment(facts: Facts) -> Check:
    """Find rewards that belong to the step before or after, where observations predict them."""
    rows = _Rows(facts)
    if not rows.observations:
        return (
            "observations are no real numbers, or have too many dimensions to predict rewards from"
        )
    model = facts.once("rewards", lambda: _fit_rewards(facts, rows))
    if model is None:
        return []  # each reward is computed again by another check
    if isinstance(model, str):
        return model
    if isinstance(model, Finding):
        return [model]
    seen = Seen(facts.dataset)
    evidence = _Evidence(seen)
    while (piece := (yield seen)) is not None:
        inside = rows.inside(piece)
        if not len(inside):
            continue
        expected = model.weights.of(rows.around(piece, inside))[0]
        rewards = piece.columns["rewards"].astype(np.float64)
        errors = np.array([(rewards[inside + shift] - expected) ** 2 for shift in SHIFTS])
        errors = np.minimum(errors / model.usual, LARGEST)
        errors[[not one for one in model.told]] = np.inf
        evidence.add(piece, inside, errors)
    return evidence.findings(facts, "rewards", "rewards", rows.observation_name(model.shown))


class _Rows:
    """Reads what is predicted, and from what, out of pieces."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.observations = judged_columns(facts, "observations")
        self.actions = judged_columns(facts, "actions", kinds="fiu")
        self.discrete = {
            name: np.arange(leaf.start, leaf.start + leaf.n)[:, None]
            for name, leaf in leaf_spaces(facts.dataset.action_space, "actions")
            if isinstance(leaf, gymnasium.spaces.Discrete) and leaf.n <= MOST_ACTIONS
        }

    def inside(self, piece: Piece) -> np.ndarray:
        """Return the steps that have one before them, and two after them, in their episode.

        Of an episode with more than `JUDGED_STEPS`, every second one, or third one, and so on.
        """
        lengths = np.repeat(piece.lengths, piece.lengths)
        steps = np.arange(piece.steps) - np.repeat(piece.ends - piece.lengths, piece.lengths)
        inside = (steps > 0) & (steps < lengths - 2)
        if piece.lengths.max() > JUDGED_STEPS:
            inside &= steps % -(-lengths // JUDGED_STEPS) == 0
        rows: np.ndarray = np.flatnonzero(inside)
        return rows

    def states(self, piece: Piece, rows: np.ndarray) -> np.ndarray:
        """Return rows of all observations, (numbers, rows) float64."""
        parts = [piece.numbers(name).take(rows, axis=1) for name in self.observations]
        return np.concatenate(parts).astype(np.float64)

    def taken(self, piece: Piece, steps: np.ndarray) -> np.ndarray:
        """Return the actions of steps, (numbers, steps) float64; one number for each discrete one."""
        parts = []
        for name in self.actions:
            values = piece.numbers(name).take(steps, axis=1)
            parts.append(values == self.discrete[name] if name in self.discrete else values)
        return np.concatenate(parts).astype(np.float64)

    def around(self, piece: Piece, steps: np.ndarray) -> np.ndarray:
        """Return what rewards are predicted from: both observations, the action, and their squares."""
        before = piece.before[steps]
        parts = [self.states(piece, before), self.states(piece, before + 1)]
        if self.actions:
            parts.append(self.taken(piece, steps))
        values = np.concatenate(parts)
        return np.concatenate([values, values**2])

    def observation_name(self, number: int) -> str:
        """Return the name of a dimension of the observations."""
        return self._name(self.observations, number)

    def action_name(self) -> str:
        """Return the name of the first dimension of the actions."""
        return self._name(self.actions, 0)

    def _name(self, names: list[str], number: int) -> str:
        specs = self.facts.dataset.schema.columns()
        for name in names:
            size = math.prod(specs[name].shape)
            if number < size:
                return dimension(self.facts.dataset, name, number)
            number -= size
        raise AssertionError


@dataclasses.dataclass(frozen=True)
class _Weights:
    """A linear prediction: (outputs, inputs), (outputs, 1)."""

    slopes: np.ndarray
    constant: np.ndarray

    def of(self, inputs: np.ndarray) -> np.ndarray:
        """Return the prediction for inputs, (outputs, rows)."""
        values: np.ndarray = self.slopes @ inputs + self.constant
        return values


def _regress(x: np.ndarray, y: np.ndarray) -> tuple[_Weights, np.ndarray]:
    """Return the weights that predict y, (outputs, rows), from x, and the mean squared errors."""
    mean, spread = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True)
    spread[spread < 1e-9 * (1 + np.abs(mean))] = np.inf  # a constant tells nothing
    z = (x - mean) / spread
    gram = z @ z.T + 1e-10 * x.shape[1] * np.eye(len(z))
    slopes = np.linalg.solve(gram, z @ (y - y.mean(axis=1, keepdims=True)).T).T / spread.T
    weights = _Weights(slopes, y.mean(axis=1, keepdims=True) - slopes @ mean)
    return weights, ((y - weights.of(x)) ** 2).mean(axis=1)


@dataclasses.dataclass(frozen=True)
class _Changes:
    """Predicts those changes of observations that actions explain.

    Attributes:
        numbers: The numbers of the observations that are predicted.
        states: Weights of the observation, (outputs, inputs).
        actions: Weights of the action, (outputs, inputs).
        constant: Of each output, (outputs, 1).
        usual: The mean squared error of each output, (outputs, 1).
        shown: The number of the observations that actions explain best.
    """

    numbers: np.ndarray
    states: np.ndarray
    actions: np.ndarray
    constant: np.ndarray
    usual: np.ndarray
    shown: int

    def errors(self, rows: _Rows, piece: Piece, steps: np.ndarray) -> np.ndarray:
        """Return squared errors with the action of each shift, (shifts, steps)."""
        before = piece.before[steps]
        now = rows.states(piece, before)
        changes = rows.states(piece, before + 1)[self.numbers] - now[self.numbers]
        rest = changes - self.states @ now - self.constant
        errors = [
            (rest - self.actions @ rows.taken(piece, steps + shift)) ** 2 / self.usual
            for shift in SHIFTS
        ]
        return np.array([np.minimum(one, LARGEST).sum(axis=0) for one in errors])


@dataclasses.dataclass(frozen=True)
class _Rewards:
    """Predicts rewards.

    Attributes:
        weights: Of what is around a step.
        usual: The mean squared error.
        told: For each shift, whether the reward of that step is clearly predicted worse.
        shown: The number of the observations that goes best with the rewards.
    """

    weights: _Weights
    usual: float
    told: list[bool]
    shown: int


def _fit_changes(facts: Facts, rows: _Rows) -> _Changes | Finding | str:
    """Return the model of changes; the finding if all actions are shifted; why neither can be told."""
    now, changes = [], []
    taken: list[list[np.ndarray]] = [[], [], []]
    for piece in facts.sample():
        steps = rows.inside(piece)
        if not len(steps):
            continue
        before = piece.before[steps]
        now.append(rows.states(piece, before))
        changes.append(rows.states(piece, before + 1) - now[-1])
        actions = rows.taken(piece, np.arange(piece.steps))
        for one, shift in zip(taken, SHIFTS, strict=True):
            one.append(actions[:, steps + shift])
    if not now:
        return "episodes are too short to tell what the actions do"
    o, y = (np.concatenate(one, axis=1) for one in (now, changes))
    u = [np.concatenate(one, axis=1) for one in taken]
    good = np.isfinite(np.concatenate([o, y, *u])).all(axis=0)
    o, y, u = o[:, good], y[:, good], [one[:, good] for one in u]
    if o.shape[1] < max(limit("fewest aligned steps"), 8 * (len(o) + len(u[0]))):
        return "there are too few steps to tell what the actions do"
    moving = y.std(axis=1) > 1e-9 * (1 + np.abs(o).max(axis=1))
    if not moving.any():
        return "observations do not change"
    y = y[moving]
    _, alone = _regress(o, y)
    fits = [_regress(np.concatenate([o, one]), y) for one in u]
    gains = [np.maximum(0, 1 - errors / np.maximum(alone, 1e-300)) for _, errors in fits]
    shown = np.flatnonzero(moving)[int(np.max(gains, axis=0).argmax())]
    best = int(np.argmax([one.sum() for one in gains]))
    if (
        best != 1
        and gains[best].max() >= limit("explained changes by shifted actions")
        and gains[best].sum() >= limit("shifted gain") * gains[1].sum()
    ):
        # An action that follows from its own observation explains nothing beyond it, and the next one
        # tells what the next observation is.
        free = _regress(o, u[1])[1].sum() / max(1e-300, u[1].var(axis=1).sum())
        if free < limit("free actions"):
            return "actions follow from the observations, so what they do cannot be told"
        return _shifted_dataset(facts, rows, best, gains, int(shown))
    gain = gains[1]
    if gain.max() < limit("explained changes"):
        return "actions explain too little of how observations change"
    chosen = gain >= max(limit("explained changes") / 2, gain.max() / 3)
    numbers = np.flatnonzero(moving)[chosen]
    weights, usual = fits[1]
    slopes = weights.slopes[chosen]
    return _Changes(
        numbers,
        slopes[:, : len(o)],
        slopes[:, len(o) :],
        weights.constant[chosen],
        np.maximum(usual[chosen], 1e-300)[:, None],
        int(np.flatnonzero(moving)[int(gain.argmax())]),
    )


def _shifted_dataset(
    facts: Facts, rows: _Rows, best: int, gains: list[np.ndarray], shown: int
) -> Finding:
    number = int(gains[best].argmax())
    name = rows.observation_name(shown)
    return _finding(
        facts,
        "actions",
        rows.action_name(),
        SHIFTS[best],
        np.arange(facts.dataset.total_episodes),
        f"they explain {gains[best][number]:.0%} of the changes of {name}, and those of the step itself "
        f"{gains[1][number]:.0%}",
        name,
    )


def _fit_rewards(facts: Facts, rows: _Rows) -> _Rewards | Finding | str | None:
    """Return the model of rewards; a finding if all are shifted; why neither can be told.

    None: rewards are computed again, exactly.
    """
    inputs: list[np.ndarray] = []
    given: list[list[np.ndarray]] = [[], [], []]
    for piece in facts.sample():
        if not inputs and computed_rewards(facts, piece) is not None:
            return None
        steps = rows.inside(piece)
        if not len(steps):
            continue
        inputs.append(rows.around(piece, steps))
        rewards = piece.columns["rewards"].astype(np.float64)
        for one, shift in zip(given, SHIFTS, strict=True):
            one.append(rewards[steps + shift])
    if not inputs:
        return "episodes are too short to predict rewards"
    x, y = np.concatenate(inputs, axis=1), np.array([np.concatenate(one) for one in given])
    good = np.isfinite(x).all(axis=0) & np.isfinite(y).all(axis=0)
    x, y = x[:, good], y[:, good]
    if x.shape[1] < max(limit("fewest aligned steps"), 4 * len(x)):
        return "there are too few steps to predict rewards"
    spread = y.var(axis=1)
    if spread.min() <= 1e-12 * (1 + np.abs(y).max()) ** 2:
        return "rewards do not vary, so none can be told from the next one"
    weights, errors = _regress(x, y)
    unexplained = errors / spread
    states = sum(math.prod(facts.dataset.schema.columns()[n].shape) for n in rows.observations)
    change = x[states : 2 * states]
    with np.errstate(invalid="ignore"):
        fits = np.abs(np.nan_to_num([np.corrcoef(one, y[1])[0, 1] for one in change]))
    shown = int(fits.argmax())
    best = int(unexplained.argmin())
    if unexplained[best] > limit("unexplained rewards"):
        return "observations and actions do not predict the rewards well enough"
    if best != 1 and unexplained[best] <= limit("shifted rewards") * unexplained[1]:
        return _finding(
            facts,
            "rewards",
            "rewards",
            SHIFTS[best],
            np.arange(facts.dataset.total_episodes),
            f"observations and actions leave {unexplained[best]:.2%} of those rewards unexplained, and "
            f"{unexplained[1]:.2%} of the ones of the step itself",
            rows.observation_name(shown),
        )
    told = [bool(unexplained[1] <= limit("shifted rewards") * one) for one in unexplained]
    told[1] = True
    if unexplained[1] > limit("unexplained rewards") or not (told[0] or told[2]):
        return "observations and actions predict the reward of the next step about as well"
    own = _Weights(weights.slopes[1:2], weights.constant[1:2])
    return _Rewards(own, max(float(errors[1]), 1e-300), told, shown)


class _Evidence:
    """For each episode, how much better the steps before and after fit than the step itself."""

    def __init__(self, seen: Seen) -> None:
        self.steps = seen.of_episodes(np.float64)
        self.sums = seen.of_episodes(np.float64, 3)  # of the errors with each shift
        self.better = seen.of_episodes(
            np.float64, 3
        )  # of how much smaller they are than without one
        self.squares = seen.of_episodes(np.float64, 3)

    def add(self, piece: Piece, steps: np.ndarray, errors: np.ndarray) -> None:
        """Take in the errors of some steps of a piece, (shifts, steps)."""
        known = np.isfinite(errors[1])
        errors, steps = errors[:, known], steps[known]
        which = np.searchsorted(piece.ends, steps, "right")
        better = errors[1] - errors
        count = len(piece.episodes)
        self.steps[piece.episodes] += np.bincount(which, minlength=count)
        for shift in range(3):
            for total, values in (
                (self.sums, errors[shift]),
                (self.better, better[shift]),
                (self.squares, better[shift] ** 2),
            ):
                total[shift, piece.episodes] += np.bincount(which, values, minlength=count)

    def shifted(self, shift: int) -> np.ndarray:
        """Return the episodes that fit better with a shift (0: before, 2: after)."""
        steps = np.maximum(self.steps, 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self.better[shift] / steps
            spread = np.sqrt(np.maximum(self.squares[shift] / steps - mean**2, 0))
            certain = mean * np.sqrt(steps) >= limit("aligned evidence") * spread
            found = certain & (self.sums[shift] <= limit("aligned errors") * self.sums[1])
            found &= (self.sums[1] > 0) & (self.sums[shift] <= self.sums[2 - shift])
        episodes: np.ndarray = np.flatnonzero(
            found & (self.steps >= limit("fewest steps to align"))
        )
        return episodes

    def findings(self, facts: Facts, what: What, column: str, beside: str) -> list[Finding]:
        """Return one finding for each direction."""
        findings = []
        for shift in (0, 2):
            episodes = self.shifted(shift)
            if len(episodes):
                first = episodes[0]
                share = self.sums[shift, first] / self.sums[1, first]
                text = (
                    f"the first one's errors then are {share:.0%} of what they are as it is stored"
                )
                findings.append(
                    _finding(facts, what, column, SHIFTS[shift], episodes, text, beside)
                )
        return findings


def _finding(
    facts: Facts, what: What, column: str, shift: int, episodes: np.ndarray, why: str, beside: str
) -> Finding:
    """Return the finding that some episodes fit better with what is stored a step before or after."""
    count = len(episodes)
    where = (
        "all episodes"
        if count == facts.dataset.total_episodes
        else f"{count:,} episode{'s' * (count > 1)}"
    )
    late = "one step too late" if shift > 0 else "one step too early"
    other = "after" if shift > 0 else "before"
    return Finding(
        check=CHECK,
        severity="warning",
        column=column,
        text=f"{what} of {where} are stored {late}: the {what} of the step {other} fit the observations; {why}",
        episode=int(episodes[0]),
        step=0,
        last_step=int(facts.dataset.episode_lengths[episodes[0]]) - 1,
        count=count,
        beside=beside,
    )
