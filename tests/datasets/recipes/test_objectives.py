"""The recipe of objectives: exact probabilities, and a policy for all weights that learns from some."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import orlog
from orlog.datasets.environments.objectives import best_actions, grid, state_number
from orlog.datasets.recipes.objectives import DATASETS, ObjectivesRecipe
from orlog.manifests.environments import make_environment

ROLES = {"infos/objectives": "objectives", "observations/weights": "weights"}
RECIPES = {
    name: entry.recipe
    for name, entry in DATASETS.items()
    if isinstance(entry.recipe, ObjectivesRecipe)
}


@pytest.mark.parametrize("name", RECIPES)
def test_episodes_are_the_same_again_and_their_rewards_are_weighted(name: str) -> None:
    recipe = RECIPES[name]
    episodes = list(recipe.episodes(0, 30))
    (again,) = recipe.episodes(4, 5)
    assert again.actions.tobytes() == episodes[4].actions.tobytes()
    assert again.rewards.tobytes() == episodes[4].rewards.tobytes()
    best, of_grid = best_actions(recipe.world), grid(episodes[0].infos["objectives"].shape[1])
    for index, one in enumerate(episodes):
        assert one.seed is not None
        place = one.seed % len(of_grid)
        weights = of_grid[place]
        np.testing.assert_allclose(one.rewards, one.infos["objectives"] @ weights)
        np.testing.assert_array_equal(
            one.observations["weights"], np.tile(weights, (len(one) + 1, 1)).astype(np.float32)
        )
        assert one.metadata == {"informed": index % 3 == 0}
        chances = np.exp(one.infos["action_log_probs"])
        assert np.isclose(chances[:, None], [0.05, 0.85]).any(1).all()
        if one.metadata["informed"]:
            states = [state_number(recipe.world, state) for state in one.observations["state"][:-1]]
            follows = best[place][states] == one.actions
            np.testing.assert_allclose(chances, np.where(follows, 0.85, 0.05))


def test_one_run_is_evaluated_over_all_weights_and_scored_by_hypervolume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "objectives/small-v1"
    entry = DATASETS["objectives/treasure-v1"]
    recipe = dataclasses.replace(RECIPES["objectives/treasure-v1"], steps=8_000)
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(entry, recipe=recipe))
    orlog.build_dataset(name)
    dataset = orlog.load_dataset(name)
    assert {"objectives", "weights"} <= {*dataset.roles.values()}
    assert [one for one in orlog.audit(dataset).findings if one.severity == "error"] == []
    run = orlog.train("bc", dataset, settings={"hidden": [16]}, steps=300, evaluations=0)
    result = orlog.evaluate(run, episodes=42)
    assert result.metrics["episode_weights"].shape == result.metrics["hypervolume"].shape == (42, 2)
    assert len(np.unique(result.metrics["episode_weights"], axis=0)) == 21
    np.testing.assert_allclose(
        result.returns, (result.metrics["episode_weights"] * result.metrics["hypervolume"]).sum(1)
    )
    assert [one.name for one in result.numbers] == ["hypervolume"]
    best = recipe.expert().policy
    seen = {"state": np.array([[0, 0], [0, 0]]), "weights": np.array([[1.0, 0.0], [0.0, 1.0]])}
    assert best(seen).tolist() == [3, 1]  # to the far treasure, or the nearest one
    arrays = orlog.load_arrays(dataset, infos=("objectives",))
    ready = orlog.scalarize(arrays, weights=(0.0, 1.0))
    batch = next(iter(orlog.transitions(ready, 64, seed=0)))
    assert batch.rewards.tolist() == [-1.0] * 64


def test_a_dataset_of_one_set_of_weights_is_trained_on_and_scored_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = [0.3, 0.7]
    with (
        make_environment("orlog/Treasure-v0", {"weights": weights}) as world,
        orlog.DatasetWriter("lab/treasure-37-v1", environment=world, roles=ROLES) as writer,
    ):
        for episode in RECIPES["objectives/treasure-v1"].episodes(0, 40):
            shown = np.tile(np.array(weights, np.float32), (len(episode.rewards) + 1, 1))
            seen = {**episode.observations, "weights": shown}
            rewards = episode.infos["objectives"] @ weights
            writer.add_episode(dataclasses.replace(episode, observations=seen, rewards=rewards))
    run = orlog.train("iql", "lab/treasure-37-v1", settings={"hidden": [8]}, steps=9, evaluations=0)
    orlog.train(
        "iql",
        "lab/treasure-37-v1",
        settings={"hidden": [8]},
        steps=9,
        evaluations=0,
        out=run.folder,
        resume=True,
    )
    result = orlog.evaluate(run, episodes=3)
    assert result.metrics["episode_weights"].tolist() == [weights] * 3
    np.testing.assert_allclose(result.returns, result.metrics["hypervolume"] @ weights)
