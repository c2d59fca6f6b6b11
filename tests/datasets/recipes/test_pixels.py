from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import orlog
from orlog.datasets.recipes.pixels import DATASETS, PixelsRecipe
from orlog.manifests.environments import make_environment
from orlog.runs.measuring import measure_references

RECIPES = {
    name: entry.recipe for name, entry in DATASETS.items() if isinstance(entry.recipe, PixelsRecipe)
}


@pytest.mark.parametrize("name", RECIPES)
def test_good_controllers_earn_more_than_noisy_ones_and_these_more_than_random_actions(
    name: str,
) -> None:
    episodes = list(RECIPES[name].episodes(0, 12))
    means = [np.mean([one.rewards.sum() for one in episodes[start::3]]) for start in range(3)]
    assert means == sorted(means)
    assert [one.metadata["behavior"] for one in episodes[:3]] == ["random", "medium", "expert"]
    (alone,) = RECIPES[name].episodes(2, 3)
    for column in ("observations", "actions", "rewards"):
        assert getattr(alone, column).tobytes() == getattr(episodes[2], column).tobytes()


@pytest.mark.parametrize("name", RECIPES)
def test_the_expert_watches_the_environments_that_it_acts_in(name: str) -> None:
    recipe = RECIPES[name]
    policy: Any = recipe.expert().policy
    with (
        make_environment(recipe.environment_id, {}) as env,
        make_environment(recipe.environment_id, {}) as other,
    ):
        policy.watch([env, other])
        observations = [one.reset(seed=seed)[0] for seed, one in enumerate((env, other))]
        for _ in range(5):
            actions = policy(np.stack(observations))
            assert actions.dtype == env.action_space.dtype
            chosen = [recipe.chosen(one, None) for one in (env, other)]
            np.testing.assert_array_equal(actions, np.asarray(chosen, actions.dtype))
            for one, action in zip((env, other), actions, strict=True):
                one.step(action)


def test_a_dataset_keeps_log_probabilities_and_its_references_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = DATASETS["pixels/reach-mixed-v1"]
    recipe = dataclasses.replace(RECIPES["pixels/reach-mixed-v1"], count=3, steps=120)
    monkeypatch.setitem(DATASETS, "pixels/tiny-v1", dataclasses.replace(entry, recipe=recipe))
    orlog.build_dataset("pixels/tiny-v1")
    dataset = orlog.load_dataset("pixels/tiny-v1")
    assert dataset.observation_space.shape == (36, 36, 3)
    (made,) = recipe.episodes(2, 3)
    found = dataset[2]
    assert np.array_equal(found.infos["action_log_probs"], made.infos["action_log_probs"])
    assert found.metadata == {"behavior": "expert"}
    references = measure_references(dataset, episodes=4)
    assert references.expert.mean > 20 > references.random.mean
