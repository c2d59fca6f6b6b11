"""The recipe of bandits: propensities are exact, and estimators hold exact values as often as they say."""

import dataclasses

import numpy as np
import pytest
import torch

import orlog
from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.datasets.worlds.bandits import DATASETS, ITEMS, VISITORS, Shop, ShopRecipe, click_chances, rule_of, visitors
from orlog.errors import NotFoundError, SchemaError
from orlog.loaders.transitions import logged_choices
from orlog.normalize import value_estimates
from tests.levels import scaled

(RECIPE,) = (one.recipe for one in DATASETS.values() if isinstance(one.recipe, ShopRecipe))


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """Return a small dataset of the shop, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    entry = dataclasses.replace(DATASETS["bandits/shop-v1"], recipe=dataclasses.replace(RECIPE, steps=2_000))
    monkeypatch.setitem(DATASETS, "bandits/small-v1", entry)
    orlog.build_dataset("bandits/small-v1")
    return orlog.load_dataset("bandits/small-v1")


def logged(seed, count):
    """Return visitors, items and clicks that the rule logs, many at once."""
    rng = np.random.default_rng(seed)
    seen = rng.integers(VISITORS, size=count)
    sums = rule_of(RECIPE).cumsum(1)[seen]
    shown = (rng.random((count, 1)) > sums[:, :-1]).sum(1)
    clicks = rng.random(count) < click_chances()[seen, shown]
    return seen, shown, clicks.astype(float)


def test_propensities_and_values_are_exact(shop):
    rule, place = rule_of(RECIPE), {one.tobytes(): i for i, one in enumerate(visitors())}
    np.testing.assert_allclose(rule.sum(1), 1)
    for episode in shop[:50]:
        visitor = place[episode.observations[0].tobytes()]
        assert episode.infos["action_log_probs"][0] == np.log(rule[visitor, episode.actions[0]])
        assert episode.observations[1].tobytes() in place
        assert episode.terminations.tolist() == [True]
    best = RECIPE.expert().policy
    assert Shop().policy_value(best) == click_chances().max(1).mean()
    assert best(visitors()).tolist() == click_chances().argmax(1).tolist()
    seen, shown, clicks = logged(0, 200_000)
    counts = np.bincount(seen * ITEMS + shown, minlength=VISITORS * ITEMS).reshape(VISITORS, ITEMS)
    expected = counts.sum(1, keepdims=True) * rule
    assert ((counts - expected) ** 2 / expected).sum() < VISITORS * ITEMS * 1.1
    exact = (rule * click_chances()).sum(1).mean()
    assert clicks.mean() == pytest.approx(exact, abs=4 * clicks.std() / 200_000**0.5)
    audit = orlog.audit(shop)
    # So few choices of so few visitors are like copies of a log to it; all 20,000 are not.
    assert {one.check for one in audit.findings if one.severity != "note"} <= {"duplicates"}


@pytest.mark.thorough
@pytest.mark.parametrize("estimator", ["ips", "wis", "dr", "wdr"])
def test_intervals_hold_the_exact_value_in_about_95_of_100_repetitions(estimator):
    held, repeats = 0, 400
    best = click_chances().argmax(1)
    chances = 0.6 * np.eye(ITEMS)[best] + 0.04  # of the evaluated policy
    exact = (chances * click_chances()).sum(1).mean()
    guess = np.full((VISITORS, ITEMS), 0.2)  # a regression that knows nothing but the mean
    guess[:, ::2] += 0.05
    for seed in range(repeats):
        seen, shown, clicks = logged(seed, 2_000)
        ratios = np.log(chances[seen, shown] / rule_of(RECIPE)[seen, shown])[:, None]
        rewards = clicks[:, None]
        values = np.stack([(chances[seen] * guess[seen]).sum(1), np.zeros(len(seen))], 1)
        valued = (ratios, rewards, guess[seen, shown][:, None], values, 1.0)
        weighed = (ratios, rewards, 1.0)
        weighted = estimator.startswith("w")
        if estimator in ("ips", "wis"):
            terms = value_estimates.importance_sampling(*weighed, weighted=weighted)
        else:
            terms = value_estimates.doubly_robust(*valued, weighted=weighted)
        draws = value_estimates.resampled_values([terms], np.random.default_rng(seed))
        low, high = np.quantile(draws[0], [0.025, 0.975])
        held += low <= exact <= high
    assert 0.92 <= held / repeats <= 0.98, held / repeats


def test_learning_comes_near_the_best_and_estimates_near_the_exact_value(shop):
    train, rest = orlog.split_dataset(shop, [0.6, 0.4], seed=0)
    settings = {"hidden": [32], "learning_rate": 0.01, "batch_size": 256}
    runs = [orlog.train(name, train, settings=settings, steps=scaled(600, 150), evaluations=0) for name in ("bc", "dr")]
    fits = FQESettings(hidden=(32,), learning_rate=0.01, steps=300, fits=2)
    found = orlog.evaluate_off_policy(runs, on=rest, settings=fits)
    cloned, learned = found.policies
    assert learned.value.value > cloned.value.value + 0.05
    for one in found.policies:
        for name, estimate in one.estimates.items():
            assert abs(estimate.value - one.value.value) < 0.12, (name, one)
    result = orlog.evaluate(runs[1], episodes=300)
    (distance,) = result.numbers
    best = click_chances().max(1).mean()
    assert distance.value == pytest.approx(best - learned.value.value, abs=0.1)


def test_what_has_several_steps_or_no_propensities_is_refused(shop):
    batch = next(iter(logged_choices(shop, 16, seed=0)))
    assert batch.infos["action_log_probs"].shape == (16,)
    assert bool((batch.infos["action_log_probs"] <= 0).all())
    with pytest.raises(NotFoundError, match="action_log_probs"):
        logged_choices(shop.select_columns(["observations", "actions", "rewards"]), seed=0)
    arrays = orlog.load_arrays(shop, infos=("action_log_probs",))
    with torch.no_grad():
        arrays.infos.rows[6] = 0.5
    with pytest.raises(SchemaError, match=r"action_log_probs of episode 3, step 0 is 0\.5"):
        logged_choices(arrays, seed=0)
    with orlog.DatasetWriter(
        "lab/longer-v1", observation_space=shop.observation_space, action_space=shop.action_space
    ) as writer:
        writer.add_steps(
            observations=visitors()[:3],
            actions=[0, 1],
            rewards=[0.0, 1.0],
            terminations=[False, True],
            truncations=[False, False],
            infos={"action_log_probs": np.array([-1.0, -1.0])},
        )
        writer.end_episode()
    with pytest.raises(SchemaError, match="choices are episodes of one step, and episode 0 has 2"):
        orlog.train("ips", "lab/longer-v1", evaluations=0, steps=1)
