"""Statistics of scores, against rliable, SciPy, sums of squares and counts by hand."""

import hashlib
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from orlog.errors import MissingExtraError
from orlog.normalize import statistics
from orlog.normalize.published_scores import published_scores
from orlog.normalize.statistics import (
    AGGREGATES,
    BOOTSTRAP_COVERAGE,
    BOOTSTRAP_NOTE,
    Estimate,
    bootstrap_interval,
    compare_methods,
    compare_sequentially,
    equal_methods,
    expected_online_performance,
    interquartile_mean,
    mean,
    mean_interval,
    mean_ranks,
    median,
    method_digest,
    optimality_gap,
    percentile_interval,
    performance_profile,
    probability_of_improvement,
    score_interval,
    share_interval,
    split_variance,
    stratified_resamples,
    tuning_curves,
    unranked_methods,
    wilson_interval,
)
from tests.levels import scaled
from tests.normalize.rliables import rliable_library, rliable_metrics

SCORES = np.random.default_rng(0).normal(50, 40, (5, 7))
TASKS = ("hopper", "walker", "ant")


def stratified_interval(statistic, *methods, resamples=2000):
    """Return the ends of a statistic's interval, from methods' scores [seeds, tasks]."""
    rng = np.random.default_rng(0)
    drawn = [stratified_resamples([task[:, None] for task in scores.T], rng, resamples=resamples) for scores in methods]
    return [*percentile_interval(statistic(*drawn))]


# Shares.


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_of_one_policys_share_is_wilsons(counts):
    successes, episodes = counts
    expected = stats.binomtest(successes, episodes).proportion_ci(method="wilson")
    share = successes / episodes
    found = share_interval([share], episodes)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= found[0] <= share <= found[1] <= 1
    scores = 100.0 * (np.arange(episodes) < successes)
    of_scores = None if successes in (0, episodes) else pytest.approx([100 * end for end in found])
    assert score_interval([scores]) == of_scores


@given(st.lists(st.integers(0, 30), min_size=2, max_size=8))
def test_over_seeds_wilsons_rule_gets_the_effective_number_of_episodes(counts):
    shares = [count / 30 for count in counts]
    share, episodes = float(np.mean(shares)), 30 * len(counts)
    low, high = share_interval(shares, episodes)
    pooled = wilson_interval(share, episodes)
    assert 0 <= low <= pooled[0] <= share <= pooled[1] <= high <= 1  # never narrower than episodes say
    # By Wilson's rule each end lies as many of its own errors from the share as Student's t says. The error
    # is that of runs that lie so far apart, or of independent episodes if that is larger.
    apart = stats.sem(shares) / math.sqrt(share * (1 - share)) if len({*counts}) > 1 else 0.0
    scale = max(apart, 1 / math.sqrt(episodes)) * stats.t.ppf(0.975, len(shares) - 1)
    for end in {low, high} - {0.0, 1.0}:
        assert abs(share - end) == pytest.approx(scale * math.sqrt(end * (1 - end)), abs=1e-6)
    scores = [np.repeat([100.0, 0.0], [count, 30 - count]) for count in counts]
    known = None if share in (0, 1) else pytest.approx([100 * low, 100 * high])
    assert score_interval(scores) == known
    assert bootstrap_interval(np.array(scores), np.random.default_rng(0)) == known


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_of_shares_hold_the_share_of_the_method(seeds, share):
    rng, held = np.random.default_rng(seeds), 0
    for shares in rng.beta(share * 19, (1 - share) * 19, (500, seeds)):  # seeds spread by 0.11 or 0.07
        low, high = share_interval(rng.binomial(100, shares) / 100, 100 * seeds)
        held += low <= share <= high
    assert held / 500 > 0.93


def test_other_scores_have_students_interval_and_equal_ones_none():
    values = np.array([3.0, 4.0, 8.0, 9.0])
    expected = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected)
    assert score_interval([values]) == mean_interval(values)
    assert score_interval([values, values + 1]) == mean_interval(np.array([6.0, 7.0]))
    assert mean_interval(np.array([1.0])) is mean_interval(np.ones(3)) is None


# The bootstrap.


def test_the_bootstrap_resamples_seeds_and_their_episodes():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(30, 1)) + 2 * rng.normal(size=(30, 10))
    found = bootstrap_interval(scores, rng, resamples=20_000, confidence=0.68269)
    # Drawing a seed, then episodes inside it: the variance of the mean is that of the seeds' means
    # plus the mean of the variances inside a seed over the episodes, all over the seeds.
    variance = (scores.mean(1).var() + scores.var(1).mean() / 10) / 30
    assert (found[1] - found[0]) / 2 == pytest.approx(math.sqrt(variance), rel=0.03)


def test_the_bootstrap_of_one_task_keeps_its_numbers_to_the_bit():
    # Pages and baselines print them.
    scores = np.random.default_rng(7).normal(40, 12, (5, 30))
    assert [bootstrap_interval(scores[:seeds], np.random.default_rng(0), resamples=50) for seeds in (1, 3, 5)] == [
        (32.06553277393826, 37.838209471733855),
        (35.8655791800769, 40.11726828989628),
        (36.2478954298775, 39.886765680967),
    ]


def test_the_stratified_bootstrap_resamples_seeds_by_task_and_their_episodes():
    rng = np.random.default_rng(0)
    spreads = [(3.0, 8.0, 40), (1.0, 20.0, 10), (6.0, 1.0, 1_000)]
    scores = [
        of_seeds * rng.normal(size=(12, 1)) + of_episodes * rng.normal(size=(12, count))
        for of_seeds, of_episodes, count in spreads
    ]
    drawn = stratified_resamples(scores, rng, resamples=20_000)
    assert drawn.shape == (20_000, 12, 3)
    # As for one task, with independent tasks.
    variances = [(task.mean(1).var() + task.var(1).mean() / task.shape[1]) / 12 for task in scores]
    np.testing.assert_allclose(drawn.mean(1).var(0), variances, rtol=0.05)
    assert np.corrcoef(drawn.mean(1).T)[np.triu_indices(3, 1)] == pytest.approx(0, abs=0.03)
    low, high = percentile_interval(mean(drawn), 0.68269)
    assert float(high - low) / 2 == pytest.approx(math.sqrt(sum(variances)) / 3, rel=0.03)
    only_seeds = stratified_resamples([scores[0][:, :1]], rng, resamples=1_000)
    assert {*only_seeds.ravel()} == {*scores[0][:, 0]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [pytest.param(seeds, marks=() if seeds == 3 else pytest.mark.thorough) for seeds in BOOTSTRAP_COVERAGE]
)
def test_the_bootstrap_covers_as_often_as_is_printed_beside_it(seeds):
    """As `benchmarks/intervals.py` measures it, with fewer runs: three standard errors."""
    rng = np.random.default_rng(100 + seeds)
    runs, covered = 400, 0
    for _ in range(runs):
        scores = rng.normal(0, 10, (seeds, 1)) + rng.normal(0, 20, (seeds, 100))
        found = bootstrap_interval(scores, rng, resamples=300)
        covered += found is not None and found[0] <= 0 <= found[1]
    share = BOOTSTRAP_COVERAGE[seeds]
    assert abs(100 * covered / runs - share) < 3 * math.sqrt(share * (100 - share) / runs) + 1
    assert f"{share} % with {seeds} seeds" in BOOTSTRAP_NOTE


# Against rliable.


def test_intervals_are_rliables():
    library, metrics = rliable_library(), rliable_metrics()
    thresholds = np.linspace(-50, 150, 21)

    def every(drawn):
        return np.stack([aggregate(drawn) for aggregate in AGGREGATES.values()], axis=-1)

    np.random.seed(0)  # noqa: NPY002 (rliable draws from numpy's global generator)
    values, intervals = library.get_interval_estimates({"a": SCORES}, every, reps=1500)
    np.testing.assert_allclose(every(SCORES), values["a"])
    low, high = stratified_interval(every, SCORES)
    # An end of two bootstraps of such sizes differs by a tenth of its standard error.
    np.testing.assert_allclose([low, high], intervals["a"], atol=0.08 * (high - low).max())
    shares, bands = library.create_performance_profile({"a": SCORES}, thresholds, reps=300)
    np.testing.assert_allclose(performance_profile(SCORES, thresholds), shares["a"], atol=1e-12)
    ends = stratified_interval(lambda drawn: performance_profile(drawn, thresholds), SCORES, resamples=300)
    # Shares move in steps of one run; the ends of two bootstraps differ by one or two of them.
    np.testing.assert_allclose(ends, bands["a"], atol=2.1 / SCORES.size)
    first, second = SCORES[:, :4], np.random.default_rng(1).normal(40, 40, (6, 4))
    pair, between = library.get_interval_estimates(
        {"a,b": (first, second)}, metrics.probability_of_improvement, reps=600
    )
    assert probability_of_improvement(first, second) == pytest.approx(pair["a,b"])
    ends = stratified_interval(probability_of_improvement, first, second)
    np.testing.assert_allclose(ends, between["a,b"].ravel(), atol=0.03)


def aggregates_by_rliable(scores):
    metrics = rliable_metrics()
    return {
        "IQM": metrics.aggregate_iqm(scores),
        "median": metrics.aggregate_median(scores),
        "mean": metrics.aggregate_mean(scores),
        "optimality gap": metrics.aggregate_optimality_gap(scores, gamma=100),
    }


def test_aggregates_are_rliables():
    published = np.array(
        [
            score.per_seed
            for score in published_scores("d4rl")
            if score.implementation.startswith("d3rlpy")
            and score.per_seed
            and (score.algorithm, score.statistic) == ("IQL", "last")
        ]
    ).T
    assert published.shape == (10, 12)
    for scores in (published, SCORES, SCORES[:, :1], SCORES[:1], SCORES[:1, :1], SCORES[:4, :6]):
        found = {name: float(aggregate(scores)) for name, aggregate in AGGREGATES.items()}
        assert found == pytest.approx(aggregates_by_rliable(scores), rel=1e-12)


def test_the_probability_is_rliables_with_ties_and_other_numbers_of_seeds():
    theirs = rliable_metrics().probability_of_improvement
    rng = np.random.default_rng(0)
    for seeds, others, tasks in ((5, 5, 4), (3, 8, 1), (2, 2, 3), (1, 4, 2)):
        first = np.round(rng.normal(0, 2, (seeds, tasks)))
        second = np.round(rng.normal(0.5, 2, (others, tasks)))
        found = probability_of_improvement(first, second)
        assert float(found) == pytest.approx(theirs(first, second), rel=1e-12)
        assert found + probability_of_improvement(second, first) == pytest.approx(1)


# By hand.


@settings(deadline=None)
@given(values=npst.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e3, 1e3)))
def test_interquartile_mean_drops_a_quarter_on_each_side(values):
    before = values.copy()
    cut = len(values) // 4
    middle = sorted(values.tolist())[cut : len(values) - cut]
    expected = math.fsum(middle) / len(middle)
    for shaped in (values[:, None], values[None, :]):
        assert float(interquartile_mean(shaped)) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    np.testing.assert_array_equal(values, before)


def test_statistics_by_hand_keep_leading_axes():
    runs = np.array([[100.0, 1.0, 2.0, -50.0], [3.0, 6.0, 4.0, 5.0]])
    assert interquartile_mean(runs) == 3.5
    scores = np.array([[10.0, 120.0, 30.0], [20.0, 80.0, 50.0]])
    assert mean(scores) == pytest.approx(310 / 6)
    assert median(scores) == 40  # of 15, 100 and 40
    assert optimality_gap(scores) == pytest.approx((90 + 0 + 70 + 80 + 20 + 50) / 6)
    stacked = np.stack([SCORES, SCORES + 1, 2 * SCORES])[:, None]
    for aggregate in AGGREGATES.values():
        found = aggregate(stacked)
        assert found.shape == (3, 1)
        np.testing.assert_allclose(found[:, 0], [aggregate(alone[0]) for alone in stacked])
    first, second = np.array([[1.0], [2.0], [3.0]]), np.array([[2.0], [0.0]])
    above = sum((a > b) + (a == b) / 2 for a, b in itertools.product([1, 2, 3], [2, 0]))
    many = probability_of_improvement(np.stack([first, first - 9]), np.stack([second, second]))
    np.testing.assert_allclose(many, [above / 6, 0])
    ranked = np.array([[90.0, 10.0], [50.0, 10.0], [70.0, 30.0]])
    np.testing.assert_allclose(mean_ranks(ranked), [1.75, 2.75, 1.5])
    np.testing.assert_allclose(mean_ranks(np.stack([ranked, -ranked]))[1], [2.25, 1.25, 2.5])


# Variance.


def nested_anova(scores):
    """Return the variance components of seeds, checkpoints and episodes from sums of squares."""
    seeds, checkpoints, episodes = scores.shape
    of_checkpoints, of_seeds = scores.mean(2, keepdims=True), scores.mean((1, 2), keepdims=True)
    among = checkpoints * episodes * np.square(of_seeds - scores.mean()).sum() / (seeds - 1)
    within = episodes * np.square(of_checkpoints - of_seeds).sum()
    error = np.square(scores - of_checkpoints).sum() / (seeds * checkpoints * (episodes - 1))
    if checkpoints == 1:
        return (among - error) / episodes, 0.0, error
    within /= seeds * (checkpoints - 1)
    return (among - within) / (checkpoints * episodes), (within - error) / episodes, error


def nested_scores(rng, size):
    """Return scores whose seeds vary by 6, checkpoints by 3 and episodes by 12."""
    of_seeds, of_checkpoints = rng.normal(0, 6, (size[0], 1, 1)), rng.normal(0, 3, (*size[:2], 1))
    return 50 + of_seeds + of_checkpoints + rng.normal(0, 12, size)


@pytest.mark.parametrize("size", [(2, 1, 2), (3, 2, 2), (5, 4, 10), (4, 1, 30), (400, 20, 30)])
def test_the_split_is_that_of_sums_of_squares(size):
    scores = nested_scores(np.random.default_rng(0), size)
    found = split_variance(scores)
    of_seeds, of_checkpoints, of_episodes = nested_anova(scores)
    assert found.seeds == pytest.approx(max(0, of_seeds), abs=1e-9)
    assert found.episodes == pytest.approx(of_episodes)
    if size[1] == 1:
        assert found.checkpoints is None
    else:
        assert found.checkpoints == pytest.approx(max(0, of_checkpoints), abs=1e-9)
    if size[0] == 400:
        drawn = {"seeds": 100 * 36 / 189, "checkpoints": 100 * 9 / 189, "episodes": 100 * 144 / 189}
        assert found.shares() == pytest.approx(drawn, rel=0.2)


@pytest.mark.parametrize("scores", [np.zeros((1, 1, 5)), np.zeros((5, 1, 1)), np.full((2, 1, 2), np.nan)])
def test_scores_whose_variance_cannot_be_split_are_refused(scores):
    with pytest.raises(ValueError, match=r"two seeds and two episodes|nan at position 0, 0, 0"):
        split_variance(scores)


# Comparisons.


def draw(means, *, seeds=4, episodes=10, tasks=TASKS):
    rng = np.random.default_rng(0)
    return {
        method: {task: rng.normal(rng.normal(mean, 3, (seeds, 1)), 8, (seeds, episodes)) for task in tasks}
        for method, mean in means.items()
    }


def test_a_comparison_has_every_statistic_of_the_same_scores():
    scores = draw({"bc": 20, "iql": 60, "cql": 40})
    found = compare_methods(scores, np.random.default_rng(0), resamples=300)
    runs = {method: np.stack([of_tasks[task].mean(1) for task in TASKS], 1) for method, of_tasks in scores.items()}
    assert found.methods == ["bc", "iql", "cql"]
    assert found.tasks == list(TASKS)
    for method in runs:
        np.testing.assert_array_equal(found.runs[method], runs[method])
        assert list(found.aggregates[method]) == list(AGGREGATES)
        for name, estimate in found.aggregates[method].items():
            assert estimate.value == AGGREGATES[name](runs[method])
            assert estimate.interval[0] < estimate.value < estimate.interval[1]
        profile = found.profiles[method]
        assert (profile.band[0] <= profile.shares).all()
        assert (profile.shares <= profile.band[1]).all()
        for task in TASKS:
            assert found.variances[method][task] == split_variance(scores[method][task][:, None])
    assert found.ranking() == ["iql", "cql", "bc"]
    means = np.array([of_seeds.mean(0) for of_seeds in runs.values()])
    assert [rank.value for rank in found.ranks.values()] == mean_ranks(means).tolist()
    assert found.ranks["iql"] == Estimate(1.0, None)  # the best in every resample
    for (first, second), estimate in found.improvement.items():
        assert estimate.value == probability_of_improvement(runs[first], runs[second])
    assert str(Estimate(51.26, (48.04, 55.0))) == "51.3 (48.0 to 55.0)"
    assert str(found.ranks["iql"]) == "1.00"
    again = compare_methods(scores, np.random.default_rng(0), resamples=300)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert body == json.loads(json.dumps(again.to_json()))
    assert [method["seeds"] for method in body["methods"]] == [4, 4, 4]
    assert body["improvement"][0].keys() == {"above", "below", "value", "interval"}


def test_few_seeds_episodes_tasks_and_methods_have_what_they_can_show():
    one_seed = {**draw({"bc": 20}), **draw({"iql": 60}, seeds=1)}
    found = compare_methods(one_seed, np.random.default_rng(0), resamples=50)
    assert found.aggregates["bc"]["IQM"].interval is not None
    assert found.aggregates["iql"]["IQM"].interval is None
    assert found.improvement[("bc", "iql")] == Estimate(0.0, None)
    assert found.profiles["iql"].band is None
    assert found.variances["iql"]["ant"] is None
    means = compare_methods(draw({"bc": 20}, episodes=1), np.random.default_rng(0), resamples=50)
    assert means.aggregates["bc"]["mean"].interval is not None
    assert means.variances["bc"]["ant"] is None
    assert (means.ranks, means.improvement) == ({}, {})
    assert means.ranking() == ["bc"]
    equal = compare_methods({"bc": {"ant": np.ones((3, 4))}}, np.random.default_rng(0))
    assert equal.aggregates["bc"]["IQM"] == Estimate(1.0, None)


def test_who_has_too_few_seeds_or_episodes_is_not_ranked_and_copies_are_named():
    scores = draw({"bc": 20, "iql": 60})
    scores["best"] = {task: of_seeds[:2] + 90 for task, of_seeds in scores["iql"].items()}
    scores["chosen"] = {task: np.sort(of_seeds)[:, -5:] for task, of_seeds in scores["iql"].items()}
    scores["copy"] = {task: of_seeds[::-1] for task, of_seeds in scores["iql"].items()}
    assert unranked_methods(scores, {}) == {"best": "2 of at least 3 seeds", "chosen": "5 of 10 episodes of each seed"}
    assert {*unranked_methods(draw({"bc": 20}), dict.fromkeys(TASKS, 20))} == {"bc"}
    many = draw({"bc": 20, "mine": 30}, episodes=120)
    many["mine"] = {task: of_seeds[:, :100] for task, of_seeds in many["mine"].items()}
    assert unranked_methods(many, {}) == {}  # nobody is pushed out by more than is usual
    assert equal_methods(scores) == {"copy": "iql"}
    assert equal_methods({name: {"ant": np.zeros((3, 5))} for name in ("bc", "iql")}) == {}
    del scores["chosen"]
    found = compare_methods(scores, np.random.default_rng(0), resamples=50, unranked={"best"})
    assert list(found.ranks) == ["bc", "iql", "copy"]
    assert found.ranking()[-1] == "best"
    body = found.to_json()
    assert [method["mean_rank"] is None for method in body["methods"]] == [False, False, True, False]


ONES = np.ones((2, 2))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "no method to compare"),
        ({"bc": {}}, "bc has no task"),
        ({"bc": {"ant": ONES}, "iql": {"ant": ONES, "hopper": ONES}}, "bc has none; compare methods"),
        ({"bc": {"ant": ONES, "hopper": np.ones((3, 2))}}, "bc has 3 seeds on hopper and 2 on ant"),
        ({"bc": {"ant": np.ones(3)}}, r"bc on ant: scores must be an array \[seeds, episodes\]"),
        ({"bc": {"ant": np.ones((0, 3))}}, r"that is not empty, found shape \(0, 3\)"),
        ({"bc": {"ant": ONES * [1, np.nan]}}, r"bc on ant \[seed, episode\]: nan at position 0, 1"),
    ],
)
def test_bad_input_is_one_line(scores, message):
    with pytest.raises(ValueError, match=message):
        compare_methods(scores, np.random.default_rng(0))


# Tuning.


def best_of(scores, count):
    """Return the mean of the best of so many, over all choices without replacement."""
    return float(np.mean([max(chosen) for chosen in itertools.combinations(scores, count)]))


def one_trial(scores, policies, evaluations, seed):
    """Run the bandit of unifloral's description, one evaluation after the other."""
    rng = np.random.default_rng(seed)
    arms = rng.choice(len(scores), policies, replace=False).tolist()
    seen = {arm: [] for arm in arms}
    curve = []
    for number in range(1, evaluations + 1):
        bound = {
            arm: math.inf if not one else sum(one) / len(one) + math.sqrt(2 * math.log(number) / len(one))
            for arm, one in seen.items()
        }
        highest = max(bound.values())
        arm = rng.choice([arm for arm in arms if bound[arm] == highest])
        seen[arm].append(float(rng.choice(scores[arm])))
        best = max((arm for arm in arms if seen[arm]), key=lambda arm: np.mean(seen[arm]))
        curve.append(float(scores[best].mean()))
    return curve


def test_without_noise_a_bandit_names_the_best_policy_that_it_has_seen():
    scores = np.array([[-3.0], [10.0], [40.0], [55.0], [90.0]])
    curves = tuning_curves(scores, np.random.default_rng(0), evaluations=9, policies=4, trials=20_000)
    assert curves.shape == (20_000, 9)
    expected = [best_of(scores[:, 0], min(number, 4)) for number in range(1, 10)]
    np.testing.assert_allclose(curves.mean(0), expected, atol=1)
    assert (np.diff(curves, axis=1) >= 0).all()
    # All policies, if there are fewer than a trial takes.
    all_five = tuning_curves(scores, np.random.default_rng(0), evaluations=5, trials=10)
    assert (all_five[:, -1] == 90).all()


def test_the_bandit_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    scores = rng.normal(rng.normal(40, 10, (6, 1)), 15, (6, 50))
    scores[0] = -20  # whose mean is below that of a policy which was never run
    ours = tuning_curves(scores, rng, evaluations=25, policies=4, trials=4000)
    plain = np.array([one_trial(scores, 4, 25, seed) for seed in range(600)])
    error = np.hypot(plain.std(0) / math.sqrt(len(plain)), ours.std(0) / math.sqrt(len(ours)))
    assert (np.abs(ours.mean(0) - plain.mean(0)) < 4 * error).all()


def test_the_expected_best_is_that_of_every_draw():
    scores = np.array([30.0, -5.0, 80.0, 30.0])
    expected = [np.mean([max(draw) for draw in itertools.product(scores, repeat=budget)]) for budget in range(1, 5)]
    np.testing.assert_allclose(expected_online_performance(scores), expected, rtol=1e-12)
    assert expected_online_performance(np.array([7.0])).tolist() == [7]


def test_the_range_of_settings_is_part_of_the_method():
    grid = [{"beta": beta, "hidden": [64, 64]} for beta in (3.0, 10.0)]
    text = (
        '{"method":"iql","method_version":1,"settings":[{"beta":10.0,"hidden":[64,64]},'
        '{"beta":3.0,"hidden":[64,64]}],"steps":100}'
    )
    expected = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert method_digest("iql", grid, steps=100) == expected
    assert method_digest("iql", [*grid[::-1], grid[0]], steps=100) == expected
    others = [
        method_digest("cql", grid, steps=100),
        method_digest("iql", grid[:1], steps=100),
        method_digest("iql", grid, steps=200),
        method_digest("iql", [grid[0], {"beta": 11.0, "hidden": [64, 64]}], steps=100),
    ]
    assert len({expected, *others}) == 5


def test_scores_that_are_not_finite_are_refused():
    scores = np.array([[1.0, 2.0], [3.0, np.nan]])
    with pytest.raises(ValueError, match="nan at position 1, 1"):
        tuning_curves(scores, np.random.default_rng(0))
    with pytest.raises(ValueError, match="nan at position 1;"):
        expected_online_performance(scores[1])


# Sequential comparisons.


@pytest.fixture
def adastop():
    try:
        statistics._comparator()
    except MissingExtraError:
        pytest.skip("adastop is not installed")


@pytest.mark.usefixtures("adastop")
def test_a_large_difference_is_decided_by_the_first_group_and_others_need_more():
    rng = np.random.default_rng(0)
    scores = {"bc": rng.normal(20, 3, 5), "iql": rng.normal(60, 3, 5), "cql": rng.normal(20, 3, 7)}
    found = compare_sequentially(scores)
    assert found.decisions == {("bc", "iql"): "below", ("bc", "cql"): "needs seeds", ("iql", "cql"): "above"}
    assert (found.groups, found.missing) == (1, {"bc": 5, "cql": 3})
    more = {**scores, "bc": rng.normal(20, 3, 25), "cql": rng.normal(20, 3, 25)}
    end = compare_sequentially({**more, "iql": scores["iql"]})
    assert end.decisions[("bc", "cql")] == "not told apart"
    assert end.decisions[("bc", "iql")] == "below"
    assert (end.groups, end.missing) == (5, {})
    assert end == compare_sequentially({**more, "iql": scores["iql"]})
    # Too few seeds for one group decide nothing.
    found = compare_sequentially({"a": np.arange(5.0), "b": np.arange(3.0)})
    assert found.decisions == {("a", "b"): "needs seeds"}
    assert (found.groups, found.missing) == (0, {"b": 2})


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.usefixtures("adastop")
def test_equal_methods_are_called_different_in_no_more_than_the_error_rate():
    """adastop itself, asked for 5 %, errs in about 9 %; if no longer, ask it for the whole rate."""
    runs = scaled(3000, 150)
    ours = theirs = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        scores = {name: rng.normal(size=4) for name in "ab"}
        found = compare_sequentially(scores, group=4, groups=1)
        ours += found.decisions != {("a", "b"): "not told apart"}
        test = statistics._comparator()(n=4, K=1, alpha=0.05, seed=0)
        test.partial_compare(scores, verbose=False)
        theirs += test.decisions != {"[0 1]": "equal"}
    error = 3 * np.sqrt(0.05 * 0.95 / runs)
    assert ours / runs <= 0.05 + error
    assert theirs / runs > 0.05


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ({"a": np.arange(5.0)}, {}, "found 1 methods, 5 groups of 5 and 0.05"),
        ({"a": np.arange(5.0), "b": np.arange(5.0)}, {"group": 1}, "groups of at least two"),
        ({"a": np.arange(5.0), "b": np.arange(5.0)}, {"error_rate": 1.0}, "between 0 and 1"),
        ({"a": np.arange(5.0), "b": np.array([np.nan])}, {}, "b: nan at position 0"),
    ],
)
def test_bad_input_of_a_sequential_comparison_is_one_line(scores, options, message):
    with pytest.raises(ValueError, match=message):
        compare_sequentially(scores, **options)  # numbers of any kind
