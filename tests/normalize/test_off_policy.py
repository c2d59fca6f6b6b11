import numpy as np
import pytest
from scipy import stats

from orlog.normalize.value_estimates import (
    absolute_error,
    doubly_robust,
    effective_sample_size,
    importance_sampling,
    padded,
    rank_correlation,
    regret,
    resampled_values,
    spread_of_fits,
    value_range,
)
from tests.frozen_lake import frozen_lake

HORIZON = 12


@pytest.fixture(scope="module")
def lake():
    return frozen_lake()


@pytest.fixture(scope="module")
def policies(lake):
    """Return the evaluated policy, and the one that acts, which takes the best action less often."""
    return 0.6 * lake.best() + 0.4 / 4, 0.3 * lake.best() + 0.7 / 4


def values_of(lake, logged, target, error=0.0):
    """Return Q of the logged actions and V of the states, wrong by a factor 1 + error."""
    q_table, table = lake.until(target, HORIZON)
    steps = np.arange(HORIZON)
    q_values = q_table[steps, logged.states[:, :-1], logged.actions] * logged.alive * (1 + error)
    state_values = table[np.arange(HORIZON + 1), logged.states] * (1 + error)
    state_values[:, 1:] *= ~lake.ends[logged.states[:, 1:]]
    return q_values, state_values


def test_errors_of_a_mean_of_fits_follow_students_t():
    values = np.array([[1.0, 2.0, 4.0, 5.0, 3.0]])
    both = np.concatenate([values, values + 10.0])
    found = spread_of_fits(both, np.random.default_rng(0), resamples=40_000)
    expected = stats.t.ppf(0.975, 4) * values.std(ddof=1) * np.sqrt(1 + 1 / 5)
    assert np.quantile(found[0], [0.025, 0.975]) == pytest.approx([-expected, expected], rel=0.05)
    assert found[1] == pytest.approx(found[0])  # what fits have in common does not change the order
    assert not spread_of_fits(values[:, :1], np.random.default_rng(0)).any()


def test_weights_too_large_for_a_number_give_no_finite_estimate_and_no_warning():
    logs, rewards = np.full((3, 800), np.log(4.0)), np.ones((3, 800))
    rewards[:, -1] = 0
    zeros = np.zeros((3, 801))
    assert not np.isfinite(doubly_robust(logs, rewards, zeros[:, 1:], zeros, 1.0).value)
    weighted = doubly_robust(logs, rewards, zeros[:, 1:], zeros, 1.0, weighted=True)
    assert weighted.value == pytest.approx(799)


def test_each_estimator_is_its_formula():
    rng = np.random.default_rng(0)
    logs, rewards = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    q_values, values = rng.normal(size=(3, 2)), rng.normal(size=(3, 3))
    discount, count = 0.9, 3
    ratio = np.exp(logs)
    weights = np.stack([ratio[:, 0], ratio[:, 0] * ratio[:, 1]], 1)
    returns = rewards[:, 0] + discount * rewards[:, 1]
    shares = weights / weights.sum(0)
    assert importance_sampling(logs, rewards, discount).value == pytest.approx((weights[:, 1] * returns).sum() / count)
    whole = importance_sampling(logs, rewards, discount, weighted=True)
    assert whole.value == pytest.approx((shares[:, 1] * returns).sum())
    each = importance_sampling(logs, rewards, discount, weighted=True, per_decision=True)
    expected = (shares * rewards * [1, discount]).sum()
    assert each.value == pytest.approx(expected)

    # Jiang and Li 2016, equation 10, from the last step to the first.
    robust = values[:, 2]
    for step in (1, 0):
        gained = rewards[:, step] + discount * robust - q_values[:, step]
        robust = values[:, step] + ratio[:, step] * gained
    found = doubly_robust(logs, rewards, q_values, values, discount)
    assert found.value == pytest.approx(robust.mean())

    # Thomas and Brunskill 2016, section 4: the control variate next to weighted rewards.
    before = np.concatenate([np.full((3, 1), 1 / count), shares], 1)
    total = 0.0
    for step in range(2):
        own = shares[:, step] * (rewards[:, step] - q_values[:, step])
        total += discount**step * (own + before[:, step] * values[:, step]).sum()
    total += discount**2 * (before[:, 2] * values[:, 2]).sum()
    found = doubly_robust(logs, rewards, q_values, values, discount, weighted=True)
    assert found.value == pytest.approx(total)
    assert effective_sample_size(logs) == pytest.approx(1 / np.square(shares[:, 1]).sum())


def test_unbiased_estimators_have_the_exact_value_as_their_mean(lake, policies):
    target, behavior = policies
    exact = lake.until(target, HORIZON)[1][0, 0]
    logged = lake.play(behavior, 10_000, HORIZON, np.random.default_rng(1))
    ratios = logged.ratios(target, behavior)
    wrong = values_of(lake, logged, target, error=2.0)
    errors = {}
    for name, terms in {
        "whole": importance_sampling(ratios, logged.rewards, lake.discount),
        "per decision": doubly_robust(ratios, logged.rewards, 0 * wrong[0], 0 * wrong[1], lake.discount),
        "wrong Q": doubly_robust(ratios, logged.rewards, *wrong, lake.discount),
        "exact Q": doubly_robust(ratios, logged.rewards, *values_of(lake, logged, target), lake.discount),
    }.items():
        episodes = terms.numerators.sum(1)
        errors[name] = episodes.std() / len(episodes) ** 0.5
        assert abs(terms.value - exact) < 4 * errors[name], name
    # Theorem 1 of Jiang and Li: the exact Q leaves the least variance, and a bad one can add some.
    assert errors["exact Q"] < 0.9 * errors["per decision"]
    assert errors["per decision"] < 1.001 * errors["whole"]
    assert errors["exact Q"] < errors["wrong Q"]

    behavior_value = lake.until(behavior, HORIZON)[1][0, 0]
    assert abs(behavior_value - exact) > 6 * errors["whole"]


@pytest.mark.thorough
def test_weighted_estimators_come_to_the_exact_value_and_are_biased_with_one_episode(lake, policies):
    target, behavior = policies
    exact = lake.until(target, HORIZON)[1][0, 0]
    rng = np.random.default_rng(2)
    logged = lake.play(behavior, 10_000, HORIZON, rng)
    ratios, rewards = logged.ratios(target, behavior), logged.rewards
    found = [
        importance_sampling(ratios, rewards, lake.discount, weighted=True),
        importance_sampling(ratios, rewards, lake.discount, weighted=True, per_decision=True),
        doubly_robust(ratios, rewards, *values_of(lake, logged, target, error=-0.5), lake.discount, weighted=True),
    ]

    for terms, draws in zip(found, resampled_values(found, rng, resamples=100), strict=True):
        assert abs(terms.value - exact) < 4 * draws.std()

    # With one episode the weight cancels: the mean is the value of the policy that acted.
    single = np.array(
        [importance_sampling(ratios[[one]], rewards[[one]], lake.discount, weighted=True).value for one in range(3000)]
    )
    acted = lake.until(behavior, HORIZON)[1][0, 0]
    error = single.std() / len(single) ** 0.5
    assert abs(single.mean() - acted) < 4 * error
    assert abs(single.mean() - exact) > 4 * error


def test_a_policy_that_no_episode_follows_has_no_weighted_estimate():
    logs, rewards = np.array([[0.0, -np.inf], [-np.inf, 0.0]]), np.ones((2, 2))
    assert np.isnan(importance_sampling(logs, rewards, 1.0, weighted=True).value)
    assert importance_sampling(logs, rewards, 1.0).value == 0
    assert effective_sample_size(logs) == 0


def test_an_ended_episode_keeps_its_weight():
    logs = padded(np.log([2.0, 1.0, 1.0]), np.array([1, 2]))
    rewards = padded(np.array([1.0, 0.0, 3.0]), np.array([1, 2]))
    assert rewards.tolist() == [[1, 0], [0, 3]]
    found = importance_sampling(logs, rewards, 1.0, weighted=True, per_decision=True)
    assert found.value == pytest.approx(2 / 3 + 3 / 3)


def test_the_quality_of_estimates_by_hand_and_by_scipy():
    estimates, values = np.array([1.0, 5.0, 2.0, 2.0]), np.array([2.0, 4.0, 6.0, 1.0])
    assert absolute_error(estimates, values) == pytest.approx((1 + 1 + 4 + 1) / 4)
    assert regret(estimates, values) == 6 - 4
    assert regret(values, values) == 0
    assert regret(np.zeros(4), values) == 6 - 13 / 4
    assert rank_correlation(estimates, values) == pytest.approx(stats.spearmanr(estimates, values).statistic)
    assert rank_correlation(values, values) == 1
    assert np.isnan(rank_correlation(np.zeros(4), values))


def test_values_lie_between_one_reward_and_a_sum_without_end():
    assert value_range(np.array([1.0, 1.0]), 0.75) == (1.0, 4.0)
    assert value_range(np.array([-2.0, 0.0, 3.0]), 0.5) == (-4.0, 6.0)
    assert value_range(np.array([-2.0, -1.0]), 1.0) == (-np.inf, -1.0)
