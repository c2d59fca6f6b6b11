"""What logged steps say of the value of one policy: the terms of each estimator, for off_policy.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float64
from torch import Tensor, nn

from orlog.algos.algorithms import Algorithm
from orlog.algos.discrete import action_count, actions_to_indices, chosen_values
from orlog.algos.fitted_q_evaluation import EvaluatedQ, FQESettings, TargetPolicy, fit_q
from orlog.algos.networks import Critics, Scaling, TwinCritic
from orlog.algos.training.runs import RunRecord
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays.arrays import Arrays, Mixture
from orlog.loaders.arrays.places import load_arrays
from orlog.loaders.transitions import transitions
from orlog.manifests.roles import column_with
from orlog.normalize import value_estimates
from orlog.normalize.value_estimates import Terms

LOG_PROBS = "infos/action_log_probs"
_ROWS = 4096  # observations that pass a network at a time
_WEIGHTED = ("wis", "pdwis", "dr", "wdr")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logged:
    """The steps of a dataset, in memory.

    Attributes:
        arrays: All of its columns that policies and networks see.
        rewards: The rewards.
        ended: Whether the episode terminated at the step.
        log_probs: Log-probabilities of the actions; None if they were not recorded.
        left_out: By estimator that lacks them the reason.
    """

    arrays: Arrays
    rewards: Float64[np.ndarray, " steps"]
    ended: Bool[np.ndarray, " steps"]
    log_probs: Float64[np.ndarray, " steps"] | None
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyValues:
    """What is known of one policy.

    Attributes:
        terms: By estimator.
        fits: The value by each fit of fitted Q evaluation.
        halfway: Their mean after half of the steps.
        beyond_truncations: Mean over episodes of discount^H V(s_H), with H the length of an episode
            that was truncated; 0 for those that terminated.
        effective_episodes: How many equally weighted episodes the weights are worth; None without
            importance sampling.
        left_out: By estimator that says nothing the reason.
    """

    terms: dict[str, Terms]
    fits: Float64[np.ndarray, " fits"]
    halfway: float
    beyond_truncations: float
    effective_episodes: float | None
    left_out: dict[str, str]


def read_logged(dataset: Dataset) -> Logged:
    """Return the steps of a dataset.

    Raises SchemaError if log-probabilities are not one number for each step, or none.
    """
    log_probs, left_out = _recorded_log_probs(dataset)
    arrays = load_arrays(dataset)
    rows = torch.from_numpy(arrays.step_rows())
    rewards, ended = (
        arrays.rows[:, arrays.columns[name]][rows].reshape(-1).numpy()
        for name in ("rewards", "terminations")
    )
    return Logged(
        arrays=arrays,
        rewards=rewards.astype(np.float64),
        ended=ended > 0,
        log_probs=log_probs,
        left_out=left_out,
    )


def fit_policy(
    algorithm: Any,
    record: RunRecord,
    fitted: Logged,
    judged: Logged,
    *,
    discount: float,
    settings: FQESettings,
    seed: int,
    progress: Callable[[int], None],
) -> PolicyValues:
    """Fit Q of a policy to some steps, and return what it and the policy's critic say of others.

    Each of several fits has a seed of its own and a bootstrap resample of the episodes; their mean is the Q
    of `fqe`, `dr` and `wdr`. Q is fitted to `fitted`; values start, and Q is corrected, in `judged`.
    """
    left_out = {**judged.left_out}
    scaling: Scaling = algorithm.scaling
    is_discrete = isinstance(scaling.action_space, spaces.Discrete)
    policy: TargetPolicy = _probabilities(algorithm, scaling) if is_discrete else algorithm.act
    unit = float(np.sqrt(np.square(fitted.rewards).mean())) or 1.0
    arrays = judged.arrays
    first, final, lengths = arrays.first_rows, arrays.final_rows, arrays.lengths
    last = np.cumsum(lengths) - 1
    several: list[EvaluatedQ] = []
    halfway: dict[int, float] = {}
    for fit in range(settings.fits):
        one = EvaluatedQ(settings, scaling, seed=seed + fit, unit=unit)

        def show(now: int, fit: int = fit, one: EvaluatedQ = one) -> None:
            if 2 * now >= settings.steps and fit not in halfway:
                values = _of_rows(arrays, first, lambda seen, _: one.state_values(seen, policy))
                halfway[fit] = float(values.mean())
            progress(fit * settings.steps + now)

        drawn = fitted.arrays
        if settings.fits > 1:
            drawn = _resampled(drawn, np.random.default_rng((seed, 4, fit)))
        fit_q(
            one,
            transitions(drawn, batch_size=settings.batch_size, seed=seed + fit),
            policy,
            settings,
            discount=discount,
            value_range=value_estimates.value_range(fitted.rewards, discount),
            progress=show,
        )
        several.append(one)

    def state_values(rows: np.ndarray) -> np.ndarray:
        def of_all(seen: Any, _: Tensor) -> Tensor:
            return torch.stack([one.state_values(seen, policy) for one in several])

        return _of_rows(arrays, rows, of_all)

    by_fit = state_values(first)
    found = {"fqe": value_estimates.mean_terms(by_fit.mean(0))}
    final_values = state_values(final).mean(0) * ~judged.ended[last]
    beyond = float((discount**lengths * final_values).mean())
    reason = why_no_critic(algorithm, record, discount)
    if reason:
        left_out.setdefault("critic", reason)
    else:
        values = _of_rows(
            arrays, first, lambda seen, _: _critic_values(algorithm, seen, algorithm.act(seen))
        )
        found["critic"] = value_estimates.mean_terms(values / record.reward_scale)

    effective = None
    if judged.log_probs is not None and not is_discrete:
        for name in _WEIGHTED:
            left_out.setdefault(
                name,
                "the policies act without noise, so that in a Box they have one action for each "
                "observation and no density to weigh others by.",
            )
    elif judged.log_probs is not None:
        steps = arrays.step_rows()
        chances = _of_rows(
            arrays,
            steps,
            lambda seen, actions: chosen_values(policy(seen), actions_to_indices(scaling, actions)),
        )
        with np.errstate(divide="ignore"):
            ratios = value_estimates.padded(np.log(chances) - judged.log_probs, lengths)
        rewards = value_estimates.padded(judged.rewards, lengths)
        taken = np.stack([_of_rows(arrays, steps, one.values) for one in several]).mean(0)
        values = state_values(np.arange(len(arrays.rows))).mean(0)
        values[final] = final_values
        logged = (ratios, rewards)
        valued = (
            *logged,
            value_estimates.padded(taken, lengths),
            value_estimates.padded(values, lengths + 1),
            discount,
        )
        found["wis"] = value_estimates.weighted_importance_sampling(*logged, discount)
        found["pdwis"] = value_estimates.weighted_per_decision_importance_sampling(
            *logged, discount
        )
        found["dr"] = value_estimates.doubly_robust(*valued)
        found["wdr"] = value_estimates.weighted_doubly_robust(*valued)
        effective = value_estimates.effective_sample_size(ratios)
    return PolicyValues(
        terms=found,
        fits=by_fit.mean(1),
        halfway=float(np.mean([*halfway.values()])),
        beyond_truncations=beyond,
        effective_episodes=effective,
        left_out=left_out,
    )


def _resampled(arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Return the same steps, from which batches draw those of a bootstrap resample of the episodes.

    In a weighted mixture the episodes of each component are resampled, and weights stay.
    """
    of_step = np.repeat(np.arange(len(arrays.lengths)), arrays.lengths)
    mixture = arrays.mixture
    parts, up_to = [np.arange(arrays.total_steps)], np.ones(1)
    if isinstance(mixture, Mixture):
        parts, up_to = np.split(mixture.steps, mixture.first[1:]), mixture.up_to
    drawn = []
    for steps in parts:
        episodes = np.unique(of_step[steps])
        counts = np.zeros(len(arrays.lengths), np.int64)
        if len(episodes):
            np.add.at(counts, rng.choice(episodes, len(episodes)), 1)
        drawn.append(np.repeat(steps, counts[of_step[steps]]))
    sizes = np.array([len(steps) for steps in drawn])
    chosen = Mixture(
        steps=np.concatenate(drawn), first=sizes.cumsum() - sizes, sizes=sizes, up_to=up_to
    )
    return dataclasses.replace(arrays, mixture=chosen)


def _of_rows(
    arrays: Arrays, rows: np.ndarray, function: Callable[[Any, Tensor], Tensor]
) -> np.ndarray:
    """Return a function's numbers for the observations and actions of some rows, on the last axis."""
    found = []
    for start in range(0, len(rows), _ROWS):
        chosen = torch.from_numpy(rows[start : start + _ROWS])
        with torch.no_grad():
            found.append(function(arrays.observations(chosen), arrays.actions(chosen)).numpy())
    return np.concatenate(found, -1).astype(np.float64)


def _probabilities(algorithm: Algorithm, scaling: Scaling) -> TargetPolicy:
    """Return the probabilities of actions of a policy that acts without noise: 1 for one, else 0."""
    count = action_count(scaling)

    def policy(observations: Any) -> Tensor:
        indices = actions_to_indices(scaling, algorithm.act(observations))
        return nn.functional.one_hot(indices, count).to(torch.float32)

    return policy


def why_no_critic(algorithm: Any, record: RunRecord, discount: float) -> str:
    """Return why the trained critic gives no value; empty if it does."""
    trained_with = getattr(algorithm.config, "discount", None)
    if _critic(algorithm) is None:
        return f"{record.algorithm} trains no critic."
    if trained_with is None:
        return f"{record.algorithm} has no setting discount, so that of its critic is not known."
    if trained_with != discount:
        return f"the critic was trained with the discount {trained_with:g}."
    if getattr(algorithm.config, "bellman_loss", "square") == "huber":
        return (
            "the critic was trained with Huber's loss, with which values are no means of returns: far "
            "from 0 they are nearly medians."
        )
    if record.reward_shift:
        return (
            f"the critic was trained on rewards shifted by {record.reward_shift:g}, which cannot be "
            "taken back where episodes end."
        )
    return ""


def _critic(algorithm: Any) -> nn.Module | None:
    """Return the trained critic of one of orlog's algorithms, if it has one."""
    critic = getattr(algorithm, "critic", getattr(algorithm, "critics", None))
    known = isinstance(critic, TwinCritic | Critics | nn.Sequential | nn.ModuleList)
    return critic if known and hasattr(algorithm, "encoder") else None


def _critic_values(algorithm: Any, observations: Any, actions: Tensor) -> Tensor:
    """Return the least Q(s, a) of the critics of an algorithm."""
    scaling: Scaling = algorithm.scaling
    features = algorithm.encoder(observations)
    critic = _critic(algorithm)
    assert critic is not None
    values: Tensor
    if isinstance(critic, TwinCritic | Critics):
        values = critic(features, scaling.actions_to_unit(actions)).amin(0)
        return values
    networks = list(critic) if isinstance(critic, nn.ModuleList) else [critic]
    indices = actions_to_indices(scaling, actions)
    values = torch.stack([chosen_values(one(features), indices) for one in networks]).amin(0)
    return values


def _recorded_log_probs(dataset: Dataset) -> tuple[np.ndarray | None, dict[str, str]]:
    """Return the log-probabilities of the actions, `[steps]`, or None and which estimators lack them, and why.

    Raises SchemaError if they are not one number for each step, or no log-probabilities.
    """
    column = column_with(dataset.roles, "behavior_log_prob") or LOG_PROBS
    if column not in dataset.columns:
        reason = f"{dataset.name} has no column {LOG_PROBS} (record it with action_log_probs=True)."
        return None, dict.fromkeys(_WEIGHTED, reason)
    found = np.asarray(dataset.column(column), np.float64)
    where = f"{dataset.name}: {column}"
    if found.shape != (dataset.total_steps,):
        raise SchemaError(
            f"{where} has the shape {list(found.shape)}, expected one number for each of "
            f"{dataset.total_steps:,} steps; select the columns without it (ds.select_columns)."
        )
    wrong = ~np.isfinite(found)
    if isinstance(dataset.action_space, spaces.Discrete):
        wrong |= found > 1e-6
    if wrong.any():
        step = int(wrong.argmax())
        raise SchemaError(
            f"{where} is {found[step]:g} at step {step:,}, which is no logarithm of a probability that "
            "an action was taken with; record it again, or select the columns without it "
            "(ds.select_columns)."
        )
    return found, {}
