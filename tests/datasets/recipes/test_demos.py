"""Demonstrations of a Fetch robot, and random play beside them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import orlog
from orlog.datasets.recipes.demos import DATASETS, DemosRecipe
from orlog.manifests.environments import environment_versions, make_environment

pytest.importorskip("gymnasium_robotics", reason="needs Gymnasium-Robotics (orlog[pointmaze])")


def recipe_of(name: str) -> DemosRecipe:
    recipe = DATASETS[name].recipe
    assert isinstance(recipe, DemosRecipe)
    return recipe


def test_demonstrations_come_first_succeed_and_are_the_same_wherever_they_begin() -> None:
    recipe = dataclasses.replace(recipe_of("demos/fetch-mixed-v1"), demonstrations=3)
    episodes = list(recipe.episodes(0, 6))
    assert [one.metadata["demonstration"] for one in episodes] == [True] * 3 + [False] * 3
    assert [one.metadata["success"] for one in episodes[:3]] == [True] * 3
    for one in episodes[3:]:
        held = one.actions.reshape(10, 5, 4)
        assert (held == held[:, :1]).all()
    (alone,) = recipe.episodes(2, 3)
    assert alone.actions.tobytes() == episodes[2].actions.tobytes()
    for key, values in alone.observations.items():
        assert values.tobytes() == episodes[2].observations[key].tobytes()


def test_the_expert_acts_for_a_batch_and_lifts_the_block() -> None:
    recipe = recipe_of("demos/fetch-pick-v1")
    policy = recipe.expert().policy
    for seed in (0, 1):
        with make_environment(recipe.environment_id, {}) as env:
            observation, info = env.reset(seed=seed)
            for _ in range(50):
                (action,) = policy({key: one[None] for key, one in observation.items()})
                assert action.dtype == np.float32
                observation, _, _, _, info = env.step(action)
            assert info["is_success"]


def test_a_dataset_says_which_episodes_are_demonstrations(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = DATASETS["demos/fetch-mixed-v1"]
    recipe = dataclasses.replace(recipe_of("demos/fetch-mixed-v1"), count=4, demonstrations=1)
    monkeypatch.setitem(DATASETS, "demos/tiny-v1", dataclasses.replace(entry, recipe=recipe))
    dataset = orlog.load_dataset(orlog.build_dataset("demos/tiny-v1"))
    assert dataset.roles == {"episodes/demonstration": "demonstration"}
    assert dataset.filter_episodes("demonstration").total_episodes == 1
    assert environment_versions("FetchPickAndPlace-v4").keys() == {
        "gymnasium",
        "gymnasium-robotics",
        "mujoco",
        "numpy",
    }
