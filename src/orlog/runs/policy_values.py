"""What logged steps say of the value of one policy: the terms of each estimator, for off_policy.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float64
from torch import Tensor, nn

from orlog.algos.fitted_q_evaluation import EvaluatedQ, FQESettings, TargetPolicy, fit_q
from orlog.algos.networks import Critics, TwinCritic
from orlog.algos.policies import action_count, actions_to_indices, chosen_values
from orlog.algos.training.runs import RunRecord
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, Mixture
from orlog.loaders.places import load_arrays
from orlog.loaders.transitions import transitions
from orlog.manifests.roles import column_with
from orlog.normalize import value_estimates
from orlog.normalize.value_estimates import Terms, padded

LOG_PROBS = "infos/action_log_probs"
_ROWS = 4096  # observations that pass a network at a time
_NO_DENSITY = (
    "the policies act without noise, so that in a Box they have one action for each observation and no "
    "density to weigh others by."
)


class Logged(NamedTuple):
    """The columns of a dataset that policies and networks see, and log-probabilities of the actions.

    They are None where they cannot weigh episodes; `unweighted` says why.
    """

    arrays: Arrays
    log_probs: Float64[np.ndarray, " steps"] | None
    unweighted: str

    def column(self, name: str) -> Float64[np.ndarray, " steps"]:
        """Return a number of each step."""
        rows = torch.from_numpy(self.arrays.step_rows())
        values: np.ndarray = self.arrays.rows[:, self.arrays.columns[name]][rows].reshape(-1).numpy()
        return values.astype(np.float64)


class PolicyValues(NamedTuple):
    """What is known of one policy.

    Attributes:
        terms: By estimator.
        left_out: By estimator that says nothing the reason.
        fits: The value by each fit of fitted Q evaluation.
        halfway: Their mean after half of the steps.
        beyond_truncations: Mean over episodes of discount^H V(s_H), with H the length of an episode
            that was truncated; 0 for those that terminated.
        effective_episodes: How many equally weighted episodes the weights are worth; None without weights.
    """

    terms: dict[str, Terms]
    left_out: dict[str, str]
    fits: Float64[np.ndarray, " fits"]
    halfway: float
    beyond_truncations: float
    effective_episodes: float | None


def read_logged(dataset: Dataset) -> Logged:
    """Return the steps of a dataset.

    Raises SchemaError if log-probabilities are not one number for each step, or none.
    """
    log_probs, unweighted = _log_probs(dataset)
    return Logged(load_arrays(dataset), log_probs, unweighted)


def _log_probs(dataset: Dataset) -> tuple[np.ndarray | None, str]:
    """Return the log-probabilities of the actions, or None and why episodes cannot be weighted by them.

    Raises SchemaError if they are not one number for each step, or no log-probabilities.
    """
    column = column_with(dataset.roles, "behavior_log_prob") or LOG_PROBS
    if column not in dataset.columns:
        missing = f"{dataset.name} has no column {LOG_PROBS} (record it with action_log_probs=True)."
        return None, missing
    values = np.asarray(dataset.column(column), np.float64)
    where, advice = (f"{dataset.name}: {column}", "select the columns without it (ds.select_columns).")
    if values.shape != (dataset.total_steps,):
        raise SchemaError(
            f"{where} has the shape {list(values.shape)}, expected one number for each of "
            f"{dataset.total_steps:,} steps; {advice}"
        )
    is_discrete = isinstance(dataset.action_space, spaces.Discrete)
    wrong = ~np.isfinite(values) | (is_discrete & (values > 1e-6))
    if wrong.any():
        step = int(wrong.argmax())
        raise SchemaError(
            f"{where} is {values[step]:g} at step {step:,}, which is no logarithm of a probability that "
            f"an action was taken with; record it again, or {advice}"
        )
    return (values, "") if is_discrete else (None, _NO_DENSITY)


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
    arrays, scaling = judged.arrays, algorithm.scaling
    is_discrete = isinstance(scaling.action_space, spaces.Discrete)
    policy: TargetPolicy = _probabilities(algorithm) if is_discrete else algorithm.act
    fitted_rewards = fitted.column("rewards")
    unit = float(np.sqrt(np.square(fitted_rewards).mean())) or 1.0
    fits: list[EvaluatedQ] = []
    halfway: list[float] = []

    def state_values(rows: np.ndarray, functions: list[EvaluatedQ] = fits) -> np.ndarray:
        """Return V of some rows by each fit."""

        def of_all(seen: Any, _: Tensor) -> Tensor:
            return torch.stack([function.state_values(seen, policy) for function in functions])

        return _of_rows(arrays, rows, of_all)

    for fit in range(settings.fits):
        q_function = EvaluatedQ(settings, scaling, seed=seed + fit, unit=unit)

        def show(now: int, fit: int = fit, q_function: EvaluatedQ = q_function) -> None:
            if 2 * now >= settings.steps and len(halfway) == fit:
                halfway.append(float(state_values(arrays.first_rows, [q_function]).mean()))
            progress(fit * settings.steps + now)

        drawn = fitted.arrays
        if settings.fits > 1:
            drawn = _resampled(drawn, np.random.default_rng((seed, 4, fit)))
        fit_q(
            q_function,
            transitions(drawn, batch_size=settings.batch_size, seed=seed + fit),
            policy,
            settings,
            discount=discount,
            value_range=value_estimates.value_range(fitted_rewards, discount),
            progress=show,
        )
        fits.append(q_function)

    by_fit = state_values(arrays.first_rows)
    terms = {"fqe": value_estimates.mean_terms(by_fit.mean(0))}
    left_out = {}
    if reason := why_no_critic(algorithm, record, discount):
        left_out["critic"] = reason
    else:
        values = _of_rows(arrays, arrays.first_rows, lambda seen, _: _critic_values(algorithm, seen))
        terms["critic"] = value_estimates.mean_terms(values / record.reward_scale)

    lengths, final, effective = arrays.lengths, arrays.final_rows, None
    goes_on = judged.column("terminations")[np.cumsum(lengths) - 1] == 0
    final_values = state_values(final).mean(0) * goes_on
    if judged.log_probs is None:
        left_out |= dict.fromkeys(("wis", "pdwis", "dr", "wdr"), judged.unweighted)
    else:
        steps = arrays.step_rows()
        chances = _of_rows(
            arrays, steps, lambda seen, actions: chosen_values(policy(seen), actions_to_indices(scaling, actions))
        )
        with np.errstate(divide="ignore"):
            ratios = padded(np.log(chances) - judged.log_probs, lengths)
        rewards = padded(judged.column("rewards"), lengths)
        q_values = np.stack([_of_rows(arrays, steps, each.values) for each in fits]).mean(0)
        values = state_values(np.arange(len(arrays.rows))).mean(0)
        values[final] = final_values
        valued = padded(q_values, lengths), padded(values, lengths + 1)
        for prefix, per_decision in (("", False), ("pd", True)):
            terms[f"{prefix}wis"] = value_estimates.importance_sampling(
                ratios, rewards, discount, weighted=True, per_decision=per_decision
            )
        for prefix, weighted in (("", False), ("w", True)):
            terms[f"{prefix}dr"] = value_estimates.doubly_robust(ratios, rewards, *valued, discount, weighted=weighted)
        effective = value_estimates.effective_sample_size(ratios)
    beyond = float((discount**lengths * final_values).mean())
    return PolicyValues(terms, left_out, by_fit.mean(1), float(np.mean(halfway)), beyond, effective)


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
    chosen = Mixture(steps=np.concatenate(drawn), first=sizes.cumsum() - sizes, sizes=sizes, up_to=up_to)
    return dataclasses.replace(arrays, mixture=chosen)


def _of_rows(arrays: Arrays, rows: np.ndarray, function: Callable[[Any, Tensor], Tensor]) -> np.ndarray:
    """Return a function's numbers for the observations and actions of some rows, on the last axis."""
    parts = []
    for start in range(0, len(rows), _ROWS):
        chosen = torch.from_numpy(rows[start : start + _ROWS])
        with torch.no_grad():
            parts.append(function(arrays.observations(chosen), arrays.actions(chosen)).numpy())
    return np.concatenate(parts, -1).astype(np.float64)


def _probabilities(algorithm: Any) -> TargetPolicy:
    """Return the probabilities of actions of a policy that acts without noise: 1 for one, else 0."""
    count = action_count(algorithm.scaling)

    def policy(observations: Any) -> Tensor:
        indices = actions_to_indices(algorithm.scaling, algorithm.act(observations))
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


def _critic(algorithm: Any) -> Any:
    """Return the trained critic of one of orlog's algorithms, if it has one."""
    critic = getattr(algorithm, "critic", getattr(algorithm, "critics", None))
    known = isinstance(critic, TwinCritic | Critics | nn.Sequential | nn.ModuleList)
    return critic if known and hasattr(algorithm, "encoder") else None


def _critic_values(algorithm: Any, observations: Any) -> Tensor:
    """Return the least Q(s, a) of the critics of an algorithm, for the actions of its policy."""
    critic, features = _critic(algorithm), algorithm.encoder(observations)
    actions = algorithm.act(observations)
    if isinstance(critic, TwinCritic | Critics):
        values = critic(features, algorithm.scaling.actions_to_unit(actions))
    else:
        indices = actions_to_indices(algorithm.scaling, actions)
        networks = critic if isinstance(critic, nn.ModuleList) else [critic]
        values = torch.stack([chosen_values(network(features), indices) for network in networks])
    least: Tensor = values.amin(0)
    return least
