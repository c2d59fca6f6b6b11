"""Off-policy estimates of a policy's value from logged episodes, and how good such estimates are.

The value of a policy is the mean over episodes of sum_t discount^t r_t. Notation: ratio_t is
pi(a_t | s_t) / b(a_t | s_t), of the evaluated policy pi and of the policy b that acted, and the weight
w_t is ratio_0 * .. * ratio_t. Arrays are [episodes, horizon], with zeros after the end of an episode
(`padded`): an ended episode stays where it is with ratio 1 and reward 0, so that its weight stays in
the sums by which others are divided, as in Thomas and Brunskill 2016.

Every estimator here is a sum of quotients of sums over episodes:

    value = sum_k  (sum_i numerator[i, k]) / (sum_i denominator[i, k])

It is returned in this form (`Terms`), so that one bootstrap over episodes serves all of them.

    importance sampling            w_T G                                        / 1
    .. weighted (self-normalized)  w_T G                                        / w_T
    .. per decision                discount^t w_t r_t              for each t   / 1 or w_t
    doubly robust                  V(s_0) / 1, and for each t
                                   discount^t w_t (r_t + discount V(s_t+1) - Q(s_t, a_t))   / 1
    .. weighted                    the same                                     / 1, and w_t

Papers: Precup, Sutton and Singh 2000, "Eligibility traces for off-policy policy evaluation"; Jiang and Li
2016, https://arxiv.org/abs/1511.03722 (equation 10 written out as a sum); Thomas and Brunskill 2016,
https://arxiv.org/abs/1604.00923 (weighted). Without division by weights they are unbiased where the ratios
are right, every action of pi may be taken by b, and Q and V were not fitted to the same episodes; the bias
of weighted ones vanishes as episodes grow in number. Importance sampling estimates the value of a truncated
episode up to its truncation; doubly robust estimates go on with V of the final observation.

How good the estimates of several policies are is measured as in Fu et al. 2021,
https://arxiv.org/abs/2103.16596: absolute error, Spearman's rank correlation and regret@1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

Steps: TypeAlias = Float[np.ndarray, "episodes horizon"]  # a number for each step of each episode
Policies: TypeAlias = Float[np.ndarray, " policies"]

_AT_ONCE = 50  # resamples multiplied at a time


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """An estimate as a sum of quotients of sums over episodes, one column for each quotient."""

    numerators: Float[np.ndarray, "episodes quotients"]
    denominators: Float[np.ndarray, "episodes quotients"]

    @property
    def value(self) -> float:
        """The estimate; NaN where no episode has any weight."""
        return float(self.values(np.ones((1, len(self.numerators))))[0])

    def values(self, counts: Float[np.ndarray, "resamples episodes"]) -> Float[np.ndarray, " resamples"]:
        """Return the estimates for samples that hold each episode so many times."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            quotients = (counts @ self.numerators) / (counts @ self.denominators)
        return np.asarray(quotients.sum(-1))


def padded(
    values: Float[np.ndarray, " steps"], lengths: Int[np.ndarray, " episodes"]
) -> Float[np.ndarray, "episodes horizon"]:
    """Return values of steps, episode after episode, as one row each, with zeros after the end."""
    rows = np.zeros((len(lengths), int(lengths.max())))
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = values
    return rows


def mean_terms(values: Float[np.ndarray, " episodes"]) -> Terms:
    """Return the mean of one number for each episode, such as a return or the value of its start."""
    column = np.asarray(values, np.float64)[:, None]
    return Terms(column, np.ones_like(column))


def importance_sampling(
    log_ratios: Steps, rewards: Steps, discount: float, *, weighted: bool = False, per_decision: bool = False
) -> Terms:
    """Return the mean of returns, each weighted by the ratio of its episode's probabilities.

    For logged bandits (one step each) this is inverse propensity weighting.

    Args:
        log_ratios: log pi(a | s) - log b(a | s), -infinity where pi never takes the action.
        rewards: Rewards.
        discount: Weight of the next step, in (0, 1].
        weighted: Divide by the sum of weights: biased, of bounded variance.
        per_decision: Weight each reward by the ratios up to its step only.
    """
    weights, powers = _weights(log_ratios, weighted), _powers(rewards, discount)
    if per_decision:
        terms = weights * powers * rewards
    else:
        weights = weights[:, -1:]
        terms = weights * (rewards * powers).sum(1, keepdims=True)
    return Terms(terms, weights if weighted else np.ones_like(terms))


def doubly_robust(
    log_ratios: Steps,
    rewards: Steps,
    q_values: Steps,
    state_values: Float[np.ndarray, "episodes horizon+1"],
    discount: float,
    *,
    weighted: bool = False,
) -> Terms:
    """Return the value that a Q function gives to the starts, corrected by weighted errors of it.

    Unbiased for right ratios, whatever Q; with the exact Q of a deterministic environment its
    variance is that of the starts alone.

    Args:
        log_ratios: log pi(a | s) - log b(a | s), -infinity where pi never takes the action.
        rewards: Rewards.
        q_values: Q(s_t, a_t) of pi; zeros after the end.
        state_values: V(s_t), the mean of Q under pi; in the place after an episode's last step 0 if it
            ended there, and V of the final observation if it was truncated.
        discount: Weight of the next step, in (0, 1].
        weighted: Take weighted means over the errors of each step.
    """
    weights, starts = _weights(log_ratios, weighted), state_values[:, :1]
    errors = rewards + discount * state_values[:, 1:] - q_values
    with np.errstate(over="ignore", invalid="ignore"):  # infinite weights give no finite estimate
        terms = np.concatenate([starts, weights * (_powers(rewards, discount) * errors)], 1)
    divisors = weights if weighted else np.ones_like(weights)
    return Terms(terms, np.concatenate([np.ones_like(starts), divisors], 1))


def value_range(rewards: Float[np.ndarray, " steps"], discount: float) -> tuple[float, float]:
    """Return the lowest and the highest value that rewards between the recorded ones can add up to.

    An episode has one step or any number of them, so the bounds are those of one reward and of
    reward / (1 - discount); infinite with discount 1 unless all rewards have one sign.
    """
    lowest, highest = float(rewards.min()), float(rewards.max())
    factor = 1 / (1 - discount) if discount < 1 else np.inf
    low = lowest * factor if lowest < 0 else lowest
    high = highest * factor if highest > 0 else highest
    return low, high


def effective_sample_size(log_ratios: Steps) -> float:
    """Return (sum w)^2 / sum w^2 of whole episodes: how many equally weighted ones count as much.

    0 where no episode has any weight.
    """
    weights = _weights(log_ratios, relative=True)[:, -1]
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def resampled_values(
    terms: Sequence[Terms], rng: np.random.Generator, *, resamples: int = 1000
) -> Float[np.ndarray, "estimates resamples"]:
    """Return estimates of the same episodes from bootstrap resamples of these, the same ones for all."""
    episodes = len(terms[0].numerators)
    estimates = np.empty((len(terms), resamples))
    for start in range(0, resamples, _AT_ONCE):
        drawn = rng.integers(episodes, size=(min(_AT_ONCE, resamples - start), episodes))
        counts = np.stack([np.bincount(row, minlength=episodes) for row in drawn]).astype(float)
        for index, of_estimate in enumerate(terms):
            estimates[index, start : start + len(counts)] = of_estimate.values(counts)
    return estimates


def spread_of_fits(
    values: Float[np.ndarray, "policies fits"], rng: np.random.Generator, *, resamples: int = 1000
) -> Float[np.ndarray, "policies resamples"]:
    """Return random errors of the mean of several fits, as large as the fits lie apart; 0 with a single fit.

    Each fit saw a resample of the data, so that fits differ by the data's randomness s_d^2 and by that of
    fitting s_f^2. The error of their mean has the variance s_d^2 + (s_d^2 + s_f^2) / fits, at most s^2 (1 + 1
    / fits) with the variance s^2 of the fits, and the errors follow Student's t with fits - 1 degrees of
    freedom. What fits have in common for several policies, such as the resample, stays so.
    """
    fits = values.shape[1]
    if fits == 1:
        return np.zeros((len(values), resamples))
    apart = values - values.mean(1, keepdims=True)
    mixed = rng.normal(size=(fits, resamples)) / np.sqrt(rng.chisquare(fits - 1, resamples))
    return np.asarray(apart @ mixed * np.sqrt(1 + 1 / fits))


def absolute_error(estimates: Policies, values: Policies) -> float:
    """Return the mean over policies of |estimate - value|."""
    return float(np.abs(estimates - values).mean())


def rank_correlation(estimates: Policies, values: Policies) -> float:
    """Return Spearman's rank correlation, -1 to 1; NaN if all estimates or all values are equal.

    Equal numbers share the mean of their ranks.
    """
    first, second = (_ranks(numbers) - (len(numbers) + 1) / 2 for numbers in (estimates, values))
    norm = float(np.square(first).sum() * np.square(second).sum()) ** 0.5
    return float((first * second).sum()) / norm if norm else float("nan")


def regret(estimates: Policies, values: Policies) -> float:
    """Return regret@1: the best value minus that of the policy that the estimates put first.

    It has the unit of values, and is >= 0; of policies with equal estimates the mean counts.
    """
    return float(values.max() - values[estimates == estimates.max()].mean())


def _ranks(numbers: Policies) -> np.ndarray:
    _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return ranks


def _weights(log_ratios: np.ndarray, relative: bool) -> np.ndarray:
    """Return the weights of each step; relative ones are over the largest of that step, and cannot overflow."""
    logarithms = np.cumsum(log_ratios, 1)
    if relative:
        largest = logarithms.max(0)
        logarithms = logarithms - np.where(np.isfinite(largest), largest, 0)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(logarithms))


def _powers(rewards: np.ndarray, discount: float) -> np.ndarray:
    return np.asarray(discount ** np.arange(rewards.shape[1]))
