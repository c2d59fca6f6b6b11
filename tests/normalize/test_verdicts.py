import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import verdicts as drawn
from orlog.manifests.shipped import recorded_manifest
from orlog.normalize.references import read_baseline
from orlog.normalize.verdicts import (
    MARGIN,
    Verdict,
    can_reject,
    compare,
    compare_runs,
    judge,
    look_counts,
    noticed_difference,
    recorded_outcomes,
    unseen_share,
    usual_seeds,
)
from orlog.runs.scores import references_of
from tests.levels import THOROUGH

DRAWS = 5_000
# Eight seeds against eight have ten times as many permutations as all others together.
SIZES = drawn.SIZES if THOROUGH else drawn.SIZES[:-1]
PAIRED = drawn.PAIRED if THOROUGH else drawn.PAIRED[1:-1]
NAME = "pointmaze/umaze-v1"
# Mean scores of seeds 0, 1 and 2 on an Intel machine; the recorded ones come from an AMD machine.
ELSEWHERE = {"bc": (9.7, 3.3, 4.3), "cql": (21.5, 17.5, 8.3), "iql": (25.8, 34.7, 30.0)}
# The same on the recording machine with the vector instructions of older processors.
OLDER = {"bc": (9.4, 2.9, 4.7), "cql": (24.9, 12.3, 6.5), "iql": (24.9, 36.9, 31.7)}
EIGHT = (50.0, 52, 48, 51, 49, 53, 47, 50.5)
IN_DOCS = (24.2, 36.1, 31.4, 32.0, 29.8, 28.8, 33.7, 25.3)
ZEROS = {seed: np.zeros(4) for seed in range(3)}
WIDE = (0.0, 20, 5, 15, 10, 25, -5, 12)


def at_most(share):
    """Return a share and three standard errors of it."""
    return share + 3 * math.sqrt(share * (1 - share) / DRAWS)


def seeds(*means, first=0):
    """Return two episodes a seed with the given mean."""
    return {seed: np.array([mean - 1, mean + 1]) for seed, mean in enumerate(means, first)}


def first_episodes(scores, count):
    return {seed: values[:count] for seed, values in scores.items()}


def recorded_scores(algorithm):
    manifest = recorded_manifest(NAME, "1.0.0")
    baseline = read_baseline(algorithm, NAME)
    references = references_of(manifest)
    return baseline.scores(references)


# What is said: all sentences are in one table, a verdict a line.

SAME, OTHERS = seeds(50, 60), seeds(51, 49.5, 52, first=90)
VERDICTS = {
    "identical": lambda: compare(SAME, SAME),
    "identical in fewer episodes": lambda: compare(first_episodes(SAME, 1), SAME),
    "identical in the seeds in common": lambda: compare({**SAME, 7: np.zeros(2)}, SAME),
    "same": lambda: compare(seeds(50.1, 52.2, 48.1), seeds(*EIGHT)),
    "same, as one of three looks": lambda: compare(seeds(50.1, 52.2, 48.1), seeds(*EIGHT), looks=3),
    "consistent": lambda: compare(OTHERS, seeds(*EIGHT)),
    "consistent, beside few seeds": lambda: compare(seeds(55, 46, 52), seeds(*EIGHT[:3])),
    # Every pair is worse by 8 points, which hides in the spread of the recorded seeds.
    "consistent, without pairs": lambda: compare(seeds(-8, 12.1, -3.1, first=90), seeds(*WIDE)),
    "consistent, and nothing settles it": lambda: compare(seeds(9, 12, 5, first=90), seeds(*WIDE)),
    "not consistent, by pairs": lambda: compare(seeds(-8, 12.1, -3.1), seeds(*WIDE)),
    "not consistent, better": lambda: compare(seeds(80, 81, 82, first=90), seeds(*EIGHT)),
    "not consistent, worse": lambda: compare(seeds(20, 21, 22, first=90), seeds(*EIGHT)),
    "unsettled by one seed": lambda: compare(seeds(51, first=90), seeds(*EIGHT)),
    "unsettled by one seed far off": lambda: compare(seeds(80, first=90), seeds(*EIGHT)),
    "unsettled by three of each": lambda: compare(seeds(80, 81, 82, first=90), seeds(*EIGHT[:3])),
    "unsettled beside one recorded seed": lambda: compare(seeds(80, 81), seeds(*EIGHT[:1])),
    "unsettled beside equal seeds": lambda: compare(ZEROS, ZEROS, same_run=False),
    "other bits": lambda: compare(seeds(51, 60.5), seeds(*EIGHT)),
    "other processor": lambda: compare(seeds(51, 60.5), seeds(*EIGHT), processor="M1", recorded_processor="AMD EPYC"),
    "another cost": lambda: with_other_cost("cpq", "safety/circle-safe-v1"),
    "no cost": lambda: compare_runs(*with_and_without_cost()),
    "contradicted": lambda: compare_runs(*one_point_more(), same_code=True),
    "of the docs": lambda: compare(
        {seed: np.array([score]) for seed, score in enumerate(ELSEWHERE["iql"])},
        {seed: np.array([score]) for seed, score in enumerate(IN_DOCS)},
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_sentences_are_those_of_the_table(name):
    table = Path(__file__).with_name("sentences.txt").read_text("utf-8").splitlines()
    expected = dict(line.split(" | ") for line in table)
    assert expected.keys() == VERDICTS.keys()
    verdict = VERDICTS[name]()
    assert str(verdict) == expected[name]
    assert Verdict(**dataclasses.asdict(verdict)) == verdict
    assert verdict.is_settled == (verdict.word not in ("consistent", "unsettled"))
    if name == "of the docs":
        assert expected[name] in (Path(__file__).parents[2] / "docs" / "scores.md").read_text("utf-8")


def test_of_same_the_pairs_alone_are_looked_at_and_seeds_without_one_are_not_passed_over():
    pairs, recorded = seeds(50.1, 52.2, 48.1, 51.2), seeds(*EIGHT)
    verdict = compare(pairs | seeds(50, 50, first=90), recorded)
    assert (verdict.word, verdict.pairs, verdict.seeds) == ("same", 4, 6)
    assert verdict.unseen_share == pytest.approx(1 - 0.05 ** (1 / 4))
    verdict = compare(pairs | seeds(50, -10, -10, first=90), recorded)
    assert (verdict.word, verdict.pairs) == ("unsettled", 4)


@pytest.mark.parametrize("seeds_that_do_well", [1, 3, 8, 29, 300])
def test_the_share_that_may_fail_unseen_is_the_exact_bound_of_the_binomial(seeds_that_do_well):
    share = unseen_share(seeds_that_do_well)
    exact = stats.binomtest(0, seeds_that_do_well, alternative="less").proportion_ci(0.95).high
    assert share == pytest.approx(exact)
    assert share <= 3 / seeds_that_do_well


# Step 1.


def test_equal_returns_of_the_same_seeds_of_the_same_run_are_identical():
    verdict = compare(SAME, SAME)
    assert (verdict.word, verdict.difference, verdict.interval) == ("identical", 0.0, None)
    assert compare(seeds(50), seeds(50)).word == "identical"
    recorded = {0: np.array([10.0, 20.0]), 1: np.array([90.0, 80.0])}
    assert compare({0: recorded[0]}, recorded).word == "identical"
    longer = {seed: np.append(values, 1.0) for seed, values in recorded.items()}
    assert compare(longer, recorded).word == compare(recorded, longer).word == "identical"
    one_bit = {**SAME, 1: np.nextafter(SAME[1], 100)}
    swapped = {seed: values[::-1] for seed, values in SAME.items()}
    for other in (one_bit, swapped, seeds(50, 60, 70, first=1)):
        assert compare(other, SAME).word != "identical"
    assert compare(ZEROS, ZEROS).word == "identical"
    for new in (ZEROS, {seed + 5: values for seed, values in ZEROS.items()}):
        assert compare(new, ZEROS, same_run=False).word == "unsettled"


# What is counted in episodes, beside their returns.

COUNTED = {  # a baseline with a metric, and what would be noticed of it
    "cost": ("iql", "safety/hazard-mixed-v1", lambda values: 2 * values),
    "hypervolume": ("iql", "objectives/treasure-v1", lambda values: values / 2),
    "success": ("percent_bc", "demos/fetch-mixed-v1", np.logical_not),
    "wins": ("bc", "words/coin-mixed-v1", np.logical_not),
}


def runs_of(algorithm, name):
    baseline, manifest = read_baseline(algorithm, name), recorded_manifest(name)
    references = references_of(manifest)
    return recorded_outcomes(baseline), references


def changed(runs, **by_metric):
    """Return runs whose returns have other last bits, and of which metrics counted something else."""
    return {
        seed: dataclasses.replace(
            run,
            returns=run.returns * (1 + 1e-12),
            metrics={**run.metrics, **{name: change(run.metrics[name]) for name, change in by_metric.items()}},
        )
        for seed, run in runs.items()
    }


def with_other_cost(algorithm, name):
    """Return the verdict on twice the cost, with equal returns: however far seeds spread, it is another."""
    runs, references = runs_of(algorithm, name)
    twice = {seed: dataclasses.replace(run, metrics={"cost": 2 * run.metrics["cost"]}) for seed, run in runs.items()}
    return compare_runs(twice, runs, references.normalize)


def with_and_without_cost():
    runs, references = runs_of("iql", "safety/hazard-mixed-v1")
    without = {seed: dataclasses.replace(run, metrics={}) for seed, run in runs.items()}
    return runs, without, references.normalize


def one_point_more():
    runs, references = runs_of("iql", NAME)
    return ({0: dataclasses.replace(runs[0], returns=runs[0].returns + 1)}, runs, references.normalize)


@pytest.mark.parametrize(("metric", "of"), COUNTED.items())
def test_equal_returns_with_another_cost_success_or_hypervolume_are_not_consistent(metric, of):
    algorithm, name, change = of
    runs, references = runs_of(algorithm, name)
    same = compare_runs(changed(runs), runs, references.normalize)
    assert (same.word, same.of, same.beside) == ("same", "", {metric: "same"})
    found = compare_runs(changed(runs, **{metric: change}), runs, references.normalize)
    assert found.word == "not consistent"
    assert found.of
    assert found.beside == {"return": "same"}
    # Where the returns are equal to the bit it is the same policy, and needs no statistics.
    bits = {
        seed: dataclasses.replace(run, metrics={**run.metrics, metric: change(run.metrics[metric])})
        for seed, run in runs.items()
    }
    assert compare_runs(bits, runs, references.normalize).word == "not consistent"
    assert compare_runs(runs, runs, references.normalize).word == "identical"


def test_what_one_side_has_not_counted_is_said_and_returns_alone_are_judged():
    runs, without, normalize = with_and_without_cost()
    for new in (changed(runs), runs):
        found = compare_runs(new, without, normalize)
        assert found.word == ("same" if new is not runs else "identical")
        assert found.beside == {"cost": "not recorded"}


def test_a_cost_that_is_zero_in_every_seed_shows_nothing_and_hinders_nothing():
    runs, references = runs_of("bc", "safety/circle-safe-v1")
    found = compare_runs(changed(runs), runs, references.normalize)
    assert (found.word, found.beside) == ("same", {"cost": "without spread, as recorded"})
    more = compare_runs(changed(runs, cost=lambda values: values + 30), runs, references.normalize)
    assert (more.word, more.of) == ("unsettled", "cost in % of the limit 20")


def test_other_bits_by_the_same_code_on_the_same_processor_contradict():
    more, runs, normalize = one_point_more()
    for new, word in ((more, "contradicted"), (changed({0: runs[0]}), "contradicted"), (runs, "identical")):
        found = compare_runs(new, runs, normalize, same_code=True)
        assert found.word == word
    elsewhere = compare_runs(more, runs, normalize)
    assert elsewhere.word == "unsettled"  # one seed confirms nothing unless its bits do


# Against calculations that share no line with it.


def test_prediction_and_intervals_are_those_of_scipy():
    rng = np.random.default_rng(0)
    for count, others in ((2, 5), (3, 8), (6, 6), (5, 3), (40, 50)):
        new, recorded = rng.normal(50, 9, count), rng.normal(50, 9, others)
        found = judge(new[None], recorded[None])
        error = recorded.std(ddof=1) * np.sqrt(1 + others / count) / np.sqrt(others)
        low, high = stats.t.interval(0.95, others - 1, loc=0, scale=error)
        assert found.half[0] == pytest.approx(high)
        assert found.half[0] == pytest.approx(-low)
        error = math.hypot(stats.sem(new), stats.sem(recorded))
        half = stats.t.ppf(0.995, min(count, others) - 1) * error
        center = new.mean() - recorded.mean()
        if not found.grouped[0]:
            assert (found.low[0], found.high[0]) == pytest.approx((center - half, center + half))
            welch = stats.ttest_ind(new, recorded, equal_var=False).confidence_interval(0.99)
            assert found.low[0] <= welch.low + 1e-9
            assert found.high[0] >= welch.high - 1e-9
        pairs = min(count, others)
        paired = judge(new[None], recorded[None], pairs=pairs)
        if not paired.grouped[0]:
            expected = stats.ttest_rel(new[:pairs], recorded[:pairs]).confidence_interval(0.99)
            assert (paired.low[0], paired.high[0]) == pytest.approx(tuple(expected))


def test_permutations_are_those_of_scipy():
    rng = np.random.default_rng(1)

    def apart(first, second, axis=-1):
        return np.asarray(np.abs(first.mean(axis) - second.mean(axis)))

    for count, others in ((2, 5), (3, 8), (5, 8)):
        new, recorded = rng.normal(70, 9, count), rng.normal(50, 9, others)
        expected = stats.permutation_test(
            (new, recorded), apart, vectorized=True, n_resamples=np.inf, alternative="greater"
        )
        found = judge(new[None], recorded[None])
        assert not found.inside[0]
        assert found.share[0] == pytest.approx(expected.pvalue)
    # Many seeds are permuted at random, with the observed order among them.
    new, recorded = rng.normal(90, 9, (1, 12)), rng.normal(50, 9, (1, 12))
    assert 0 < judge(new, recorded).share[0] < 0.001


def test_pairs_that_change_groups_count_by_the_exact_bound():
    recorded = np.array([[0.0, 100, 1, 101, 2, 99, 1, 100]])
    new = recorded + np.array([1, 2, 1, 2, 1, 2, 1, 2])
    found = judge(new, recorded, pairs=8)
    assert found.grouped[0]
    never = stats.binomtest(0, 8).proportion_ci(0.95, method="exact").high
    inside = stats.ttest_rel(new[0], recorded[0]).confidence_interval(0.99)
    distance = np.ptp(np.concatenate([new, recorded]))
    assert found.high[0] == pytest.approx(inside.high + never * distance)
    assert found.low[0] == pytest.approx(min(inside.low, 0) - never * distance)
    new[0, 2] = 100
    once = stats.binomtest(1, 8).proportion_ci(0.95, method="exact").high
    stays = np.arange(8) != 2
    inside = stats.ttest_rel(new[0, stays], recorded[0, stays]).confidence_interval(0.99)
    changed = judge(new, recorded, pairs=8)
    assert changed.high[0] == pytest.approx(inside.high + once * distance)


# How often each step is wrong. benchmarks/verdicts.py draws the scores, and prints more of it.

SAME_IN_TRUTH = [drawn.normal, drawn.skewed, drawn.skewed_down, drawn.two_valued, drawn.seldom]
DIFFERENT = [*SAME_IN_TRUTH[:4], drawn.stretched, drawn.oftener]


@pytest.mark.scaled
@pytest.mark.parametrize("scores", DIFFERENT)
@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.98])
def test_algorithms_that_differ_by_the_margin_are_rarely_called_the_same(scores, correlation):
    for sizes, sign in itertools.product(PAIRED, (1, -1)):
        new, recorded = drawn.draw(scores, sizes, correlation=correlation, more=MARGIN, draws=DRAWS)
        sides = (new, recorded) if sign == 1 else (recorded[:, : sizes[0]], recorded.copy())
        if sign == -1:  # the recording is the better one
            sides[1][:, : sizes[0]] = new
        wrong = judge(*sides, pairs=sizes[0]).same.mean()
        assert wrong <= at_most(0.05 if scores is drawn.stretched else 0.01), sizes


@pytest.mark.scaled
@pytest.mark.parametrize("scores", DIFFERENT)
@pytest.mark.parametrize("wider", [0.5, 1.0, 3.0])
def test_without_pairs_and_with_unequal_spreads_too(scores, wider):
    for sizes in SIZES[3:]:
        new, recorded = drawn.draw(scores, sizes, more=MARGIN, wider=wider, spread=1.0, draws=DRAWS)
        assert judge(new, recorded).same.mean() <= at_most(0.05), sizes


def test_a_group_that_the_recording_shows_is_never_forgotten():
    # A tenth of the seeds scores 100. Where no recorded one does, nothing can show it.
    new, recorded = drawn.draw(drawn.seldom, (5, 8), correlation=0.98, more=MARGIN, draws=DRAWS)
    found = judge(new, recorded, pairs=5)
    shown = recorded.max(1) > 50
    assert found.same[shown].mean() <= at_most(0.01)
    assert found.same[~shown].mean() > 0.2


@pytest.mark.scaled
@pytest.mark.parametrize("scores", SAME_IN_TRUTH)
@pytest.mark.parametrize(("paired", "correlation"), [(False, 0.0), (True, 0.0), (True, 0.9)])
def test_equal_algorithms_are_rarely_called_not_consistent(scores, paired, correlation):
    for sizes in SIZES:
        new, recorded = drawn.draw(scores, sizes, correlation=correlation, draws=DRAWS)
        found = judge(new, recorded, pairs=min(sizes) if paired else 0)
        assert found.not_consistent.mean() <= at_most(0.05), sizes
        assert not (found.same & found.not_consistent).any()


def test_two_numbers_share_the_error_rate():
    for scores in (drawn.normal, drawn.skewed, drawn.two_valued):
        found = judge(*drawn.draw(scores, (5, 3), draws=2 * DRAWS), looks=2).not_consistent
        wrong = found[:DRAWS] | found[DRAWS:]
        assert wrong.mean() <= at_most(0.05), scores


@pytest.mark.scaled
def test_the_prediction_interval_holds_what_it_says_for_normal_scores():
    for sizes in SIZES:
        new, recorded = drawn.draw(drawn.normal, sizes, draws=DRAWS)
        outside = (~judge(new, recorded).inside).mean()
        assert 0.1 - at_most(0.05) <= outside <= at_most(0.05), sizes


@pytest.mark.scaled
@pytest.mark.parametrize("sizes", [size for size in SIZES if size != (3, 3)])
def test_the_difference_that_is_said_to_be_noticed_is_noticed(sizes):
    found = drawn.noticed(sizes, draws=DRAWS).mean()
    assert 1.6 - at_most(0.8) <= found <= 0.87


@pytest.mark.scaled
@pytest.mark.parametrize("scores", [*SAME_IN_TRUTH[:4], drawn.stretched, drawn.oftener])
def test_looking_again_as_seeds_are_added_keeps_the_error_rates(scores):
    assert [look_counts(3, 8), look_counts(1, 4), look_counts(5, 5)] == [[3, 6, 8], [1, 2, 4], [5]]
    most = 8 if THOROUGH else 5
    for correlation in (0.0, 0.9):
        same, _ = drawn.wrong_in_looks(scores, 2, most, correlation=correlation, more=MARGIN, draws=DRAWS)
        _, not_consistent = drawn.wrong_in_looks(scores, 2, most, correlation=correlation, more=0, draws=DRAWS)
        assert same.mean() <= at_most(0.05)
        assert not_consistent.mean() <= at_most(0.05)


@pytest.mark.parametrize(
    ("difference", "spread", "word"), [(-0.4, 1.73, "same"), (1.0, 2.0, "same"), (14.0, 3.0, "not")]
)
def test_the_number_of_seeds_that_would_settle_it_does(difference, spread, word):
    """The differences stay as they are: then as many seeds settle four of five comparisons."""
    recorded = np.array(WIDE)
    pattern = spread * np.array([1.0, -1.0]) / math.sqrt(2)
    new = recorded[:2] + difference + pattern
    verdict = compare(seeds(*new), seeds(*recorded))
    assert verdict.word == "consistent"
    total = 2 + verdict.more_seeds
    rng = np.random.default_rng(3)

    def settled(total):
        more = recorded[:total] + difference + rng.normal(0, spread, (DRAWS, total))
        found = judge(more, np.tile(recorded, (DRAWS, 1)), pairs=total)
        return float((found.same if word == "same" else found.not_consistent).mean())

    assert settled(total) >= 0.78
    if total > 3:
        assert settled(total - 1) < 0.82


def test_a_difference_beyond_doubt_needs_only_seeds_enough_for_a_permutation():
    verdict = compare(seeds(80, first=90), seeds(*EIGHT))
    assert verdict.more_seeds == 1
    assert compare(seeds(80, 81, first=90), seeds(*EIGHT)).word == "not consistent"
    assert noticed_difference(1, np.array(EIGHT)) is None
    assert noticed_difference(3, np.array(EIGHT[:3])) is None


# Another processor: the recorded seeds with the differences that were measured.


@pytest.mark.parametrize(("algorithm", "scores"), [*ELSEWHERE.items(), *OLDER.items()])
def test_another_processor_ends_in_same_or_consistent(algorithm, scores):
    recorded = recorded_scores(algorithm)
    means = np.array([scores.mean() for scores in recorded.values()])
    differences = scores - means[:3]
    rng = np.random.default_rng(0)
    drawn_differences = rng.normal(differences.mean(), differences.std(ddof=1), (DRAWS, 3))
    found = judge(means[:3] + drawn_differences, np.tile(means, (DRAWS, 1)), pairs=3)
    assert found.not_consistent.mean() < 0.01
    assert (found.same | found.inside).mean() > 0.99


# Few seeds, no spread, and input that makes no sense.


def test_seeds_in_common_are_paired_where_they_are_at_least_half():
    for new, pairs in ((seeds(51, 52, 49), 3), (seeds(51, 52, first=6), 2), (seeds(51, first=7), 0)):
        assert compare(new, seeds(*EIGHT)).pairs == pairs
    assert compare(seeds(51, 52, 49, 50, first=6), seeds(*EIGHT)).pairs == 2
    assert compare(seeds(51, 52, 49, 50, 50, first=6), seeds(*EIGHT)).pairs == 0
    shuffled = compare({1: seeds(52.2)[0], 0: seeds(50.1)[0], 2: seeds(48.1)[0]}, seeds(*EIGHT))
    assert shuffled == compare(seeds(50.1, 52.2, 48.1), seeds(*EIGHT))


@pytest.mark.parametrize("other", [30.0, np.nextafter(30.0, 31), 30.1, 99.9])
def test_seeds_that_score_the_same_never_make_an_interval_without_width(other):
    new = {seed: np.full(2, other) for seed in range(5)}
    recorded = {seed: np.full(2, 30.0) for seed in range(9, 12)}
    verdict = compare(new, recorded)
    assert verdict.interval is None
    assert verdict.difference == pytest.approx(other - 30)
    assert verdict.word == ("not consistent" if other > 40 else "unsettled")
    # Where one side's seeds differ, that spread is all there is to go by.
    spread = compare({**new, 99: np.full(2, other + 1)}, recorded)
    if not spread.interval:
        assert spread.word in ("unsettled", "not consistent")
    else:
        assert spread.interval[0] < spread.interval[1]
    # Pairs that all differ by the same are apart by that.
    verdict = compare(seeds(*np.add(EIGHT[:3], 1)), seeds(*EIGHT))
    assert (verdict.word, verdict.interval) == ("same", (1, 1))


@pytest.mark.parametrize("seeds_of_both", [3, 5, 8])
def test_normal_scores_seldom_count_as_two_groups(seeds_of_both):
    scores = np.random.default_rng(0).normal(50, 10, (4000, seeds_of_both))
    assert 0.02 < judge(scores, scores).grouped.mean() < 0.06
    apart = np.where(np.arange(seeds_of_both) == 0, 5.0, 95.0) + scores / 50
    assert judge(apart, apart).grouped.all()


def test_the_usual_number_of_seeds_can_reject():
    assert [usual_seeds(count) for count in (1, 2, 3, 5, 8)] == [3, 5, 4, 3, 3]
    assert [usual_seeds(count, 2) for count in (3, 5, 8)] == [5, 3, 3]
    for count in (2, 3, 5, 8):
        assert can_reject(usual_seeds(count), count, 1)


@pytest.mark.parametrize(
    ("new", "recorded", "place"),
    [
        ({}, seeds(1), "the new scores have no seed"),
        (seeds(1), {}, "the recorded scores have no seed"),
        ({**seeds(1, 2), 2: np.zeros(5)}, seeds(1), "seed 2 of the new scores has 5 episodes"),
        (seeds(1), {0: np.array([1.0, np.nan])}, "seed 0 of the recorded scores: 1 of 2 are NaN"),
        ({4: np.zeros(0)}, seeds(1), "seed 4 of the new scores has no episodes"),
    ],
)
def test_bad_input_is_refused_with_its_place(new, recorded, place):
    with pytest.raises(ValueError, match=place):
        compare(new, recorded)
