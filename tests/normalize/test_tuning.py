import hashlib
import itertools
import math

import numpy as np
import pytest

from orlog.normalize.tuning import expected_online_performance, method_digest, tuning_curves


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


def test_a_bandit_that_explores_finds_the_best_policy_in_the_end():
    rng = np.random.default_rng(0)
    scores = rng.normal([[50.0], [52.0], [45.0]], 5, (3, 200))
    curves = tuning_curves(scores, rng, evaluations=600, trials=50, exploration=100)
    assert curves[:, -1].mean() == pytest.approx(scores.mean(1).max(), abs=0.3)
    assert curves[:, 0].mean() < curves[:, -1].mean()


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
