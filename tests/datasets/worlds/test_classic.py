import dataclasses
import math

import gymnasium
import numpy as np
import pytest
from scipy import stats

import orlog
from orlog.datasets.worlds.classic import DATASETS, EXPERT, CartPoleRecipe, ClassicRecipe, push

RECIPES = {name: entry.recipe for name, entry in DATASETS.items() if isinstance(entry.recipe, ClassicRecipe)}
PENDULUM = RECIPES["classic/pendulum-mixed-v1"]


@pytest.mark.parametrize("name", RECIPES)
def test_good_controllers_earn_more_than_noisy_ones_and_these_more_than_random_actions(name):
    episodes = list(RECIPES[name].episodes(0, 9))
    means = [np.mean([one.rewards.sum() for one in episodes[start::3]]) for start in range(3)]
    assert means == sorted(means)
    assert [one.metadata["behavior"] for one in episodes[:3]] == ["random", "medium", "expert"]


def test_log_probabilities_of_discrete_actions_are_those_of_the_mixture():
    recipe = RECIPES["classic/acrobot-mixed-v1"]
    probabilities = [np.exp(one.infos["action_log_probs"]) for one in recipe.episodes(0, 3)]
    assert np.allclose(probabilities[0], 1 / 3)
    noise = recipe.medium_noise
    chosen, other = 1 - noise + noise / 3, noise / 3
    is_chosen = np.isclose(probabilities[1], chosen)
    assert np.all(is_chosen | np.isclose(probabilities[1], other))
    count = len(is_chosen)
    assert abs(is_chosen.mean() - chosen) < 4 * math.sqrt(chosen * (1 - chosen) / count)


def test_log_densities_of_continuous_actions_are_those_of_cut_off_gaussians():
    random, medium, expert = PENDULUM.episodes(0, 3)
    assert np.allclose(random.infos["action_log_probs"], -math.log(4))
    policy = PENDULUM.expert().policy
    for episode, noise in ((medium, 1.5), (expert, 0.3)):
        centers = policy(episode.observations[:-1])[:, 0].astype(np.float64)
        gaussian = stats.truncnorm((-2 - centers) / noise, (2 - centers) / noise, centers, noise)
        actions = episode.actions[:, 0].astype(np.float64)
        assert np.allclose(episode.infos["action_log_probs"], gaussian.logpdf(actions), atol=1e-6)
        # Mapped by their own distribution functions, the actions are uniform numbers.
        assert stats.kstest(gaussian.cdf(actions), "uniform").pvalue > 1e-4


def test_a_dataset_keeps_log_probabilities_and_behaviors(monkeypatch):
    entry = DATASETS["classic/pendulum-mixed-v1"]
    tiny = dataclasses.replace(entry, recipe=dataclasses.replace(PENDULUM, count=3))
    monkeypatch.setitem(DATASETS, "classic/tiny-v1", tiny)
    orlog.build_dataset("classic/tiny-v1")
    dataset = orlog.load_dataset("classic/tiny-v1")
    assert dataset.total_steps == 600
    last = dataset[2]
    (made,) = PENDULUM.episodes(2, 3)
    assert np.array_equal(last.infos["action_log_probs"], made.infos["action_log_probs"])
    assert last.metadata == {"behavior": "expert"}


def test_the_controller_is_better_than_random_actions_and_the_expert_balances():
    lengths = [len(one) for one in CartPoleRecipe(steps=2000, seed=3).episodes(0, 10)]
    assert np.mean(lengths[::2]) > 3 * np.mean(lengths[1::2])
    with gymnasium.make("CartPole-v1") as env:
        observation, _ = env.reset(seed=1)
        ends = []
        for _ in range(500):
            observation, _, *end, _ = env.step(push(observation, EXPERT))
            ends.append(end)
        assert ends == [[False, False]] * 499 + [[False, True]]
