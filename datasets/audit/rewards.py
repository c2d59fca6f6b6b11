"""Check that computes rewards again, where an environment allows it without being stepped.

Environments with goals have `compute_reward`, which takes the goals achieved and desired. For some
others the reward follows from what was recorded: the functions in `FORMULAS`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import OrlogError, clause
from orlog.manifests.documents import canonical_json

Formula = Callable[[Piece], "np.ndarray | None"]


def _always(reward: float) -> Formula:
    return lambda piece: np.full(piece.steps, reward)


def _pendulum(piece: Piece) -> np.ndarray:
    cosine, sine, speed = piece.numbers("observations").take(piece.before, axis=1).astype(float)
    torque = np.clip(piece.numbers("actions")[0].astype(float), -2, 2)
    rewards: np.ndarray = -(np.arctan2(sine, cosine) ** 2 + 0.1 * speed**2 + 0.001 * torque**2)
    return rewards


def _acrobot(piece: Piece) -> np.ndarray:
    return np.where(piece.columns["terminations"], 0.0, -1.0)


def _continuous_mountain_car(piece: Piece) -> np.ndarray:
    force = piece.numbers("actions")[0].astype(float)
    rewards: np.ndarray = 100.0 * piece.columns["terminations"] - 0.1 * force**2
    return rewards


def _inverted_pendulum(piece: Piece) -> np.ndarray:
    return np.where(piece.columns["terminations"], 0.0, 1.0)


def _sum_of_parts(piece: Piece) -> np.ndarray | None:
    """Return the sum of the parts of MuJoCo's rewards, if they were recorded with the infos."""
    parts = [
        piece.columns[name].astype(float).reshape(-1)
        for name in piece.columns
        if re.fullmatch(
            r"infos/reward_(forward|run|ctrl|survive|contact|quadctrl|alive|impact)", name
        )
    ]
    return np.sum(parts, axis=0) if len(parts) > 1 else None


# Pattern of environment ids -> the reward of each step of a piece, or None if it cannot be computed.
FORMULAS: dict[str, Formula] = {
    r"CartPole-v[01]": _always(1.0),
    r"MountainCar-v0": _always(-1.0),
    r"MountainCarContinuous-v0": _continuous_mountain_car,
    r"Acrobot-v1": _acrobot,
    r"Pendulum-v1": _pendulum,
    r"InvertedPendulum-v5": _inverted_pendulum,
    r"(Ant|HalfCheetah|Hopper|Humanoid|Swimmer|Walker2d)-v[45]": _sum_of_parts,
}


def check_rewards(facts: Facts) -> Check:
    """Find rewards that differ from what the environment gives."""
    formula = _formula(facts)
    if isinstance(formula, str):
        return formula
    seen = Seen(facts.dataset)
    counts, firsts = seen.counts(), seen.firsts()
    while (piece := (yield seen)) is not None:
        expected = formula(piece)
        if expected is None:
            return "the parts of the reward were not recorded"
        rewards = piece.columns["rewards"].astype(np.float64)
        known = piece.has_next & np.isfinite(rewards)
        error = limit("reward error")
        wrong = np.flatnonzero(
            known & (np.abs(rewards - expected) > error * (1 + np.abs(expected)))
        )
        counts["steps"] += int(known.sum())
        counts["wrong"] += len(wrong)
        if len(wrong):
            row = int(wrong[0])
            firsts.setdefault(
                "wrong", (*piece.place(row), float(rewards[row]), float(expected[row]))
            )
    count, steps = counts["wrong"], counts["steps"]
    if not count:
        return []
    episode, step, reward, value = firsts["wrong"]
    text = (
        f"{count:,} of {steps:,} rewards differ from the environment's: {reward:g}, not {value:g}"
    )
    is_other = count > limit("other rewards") * steps
    if is_other:
        text += "; so many that they were probably computed in another way on purpose"
    return [
        Finding(
            check="rewards",
            severity="warning" if is_other else "error",
            column="rewards",
            text=text,
            episode=episode,
            step=step,
            count=count,
        )
    ]


def computed_rewards(facts: Facts, piece: Piece) -> np.ndarray | None:
    """Return the rewards that the environment gives for a piece; None if they do not follow from it."""
    formula = _formula(facts)
    return None if isinstance(formula, str) else formula(piece)


def _formula(facts: Facts) -> Formula | str:
    """Return what computes the rewards of a piece, or why nothing does."""
    dataset = facts.dataset
    if dataset.environment is None:
        return "the data name no environment"
    if _has_goals(dataset.observation_space):
        return _of_goals(facts)
    for pattern, formula in FORMULAS.items():
        if re.fullmatch(pattern, dataset.environment.id) and not dataset.environment.kwargs:
            return formula
    return f"the reward of {dataset.environment.id} does not follow from what is recorded"


def _has_goals(space: gymnasium.Space[Any]) -> bool:
    if not isinstance(space, gymnasium.spaces.Dict):
        return False
    goals = [space.get(key) for key in ("achieved_goal", "desired_goal")]
    return all(isinstance(goal, gymnasium.spaces.Box) for goal in goals)


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
        achieved, desired = (
            piece.columns[f"observations/{key}"].take(piece.before + 1, axis=0)
            for key in ("achieved_goal", "desired_goal")
        )
        try:
            rewards = np.asarray(compute(achieved, desired, {}), np.float64)
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
