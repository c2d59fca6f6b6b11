"""Worlds of several objectives: rewards, weights by seed, and the front that is known. The recipe of objectives: exact probabilities, and a policy for all weights that learns from some."""

import dataclasses

import numpy as np
import pytest

import orlog
from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.objectives import DATASETS, ObjectivesRecipe, best_actions, front, grid, moves, state_number
from orlog.errors import SimulatorError

WORLDS = {"treasure": 2, "gathering": 3}


@pytest.mark.parametrize("world", WORLDS)
def test_moves_are_those_of_the_world_and_rewards_are_weighted(world):
    table, rewards = moves(world)
    rng = np.random.default_rng(0)
    with make_environment(f"orlog/{world.title()}-v0", {}) as env:
        of_grid = grid(WORLDS[world])
        np.testing.assert_allclose(of_grid.sum(1), 1)
        for seed in range(60):
            seen, info = env.reset(seed=seed)
            weights = of_grid[seed % len(of_grid)]
            np.testing.assert_array_equal(info["weights"], weights)
            np.testing.assert_array_equal(seen["weights"], weights.astype(np.float32))
            worth, ended, cut = 1.0, False, False
            while not ended and not cut:
                state, action = state_number(world, seen["state"]), int(rng.integers(4))
                seen, reward, ended, cut, info = env.step(action)
                worth *= 0.95 if world == "gathering" else 1.0
                rows = table.pairs == state * 4 + action
                follows = table.next_states[rows] == state_number(world, seen["state"])
                assert ((table.goes_on[rows] == 0) == ended)[follows].any()
                struck = world == "gathering" and info["objectives"][0] < 0
                expected = rewards[state, action]
                if world == "gathering":  # whose table has means over strikes
                    expected = np.array([-1.0, 0, 0]) if struck else np.maximum(expected, 0)
                np.testing.assert_allclose(info["objectives"], worth * expected)
                assert reward == pytest.approx(float(weights @ info["objectives"]))
        state, info = env.reset(seed=0, options={"weights": of_grid[3]})
        np.testing.assert_array_equal(info["weights"], of_grid[3])
        for wrong in ([1.0] * WORLDS[world], [0.5], [1.5, -0.5, 0.0][: WORLDS[world]]):
            with pytest.raises(ValueError, match=r"weights must be .* numbers >= 0 that sum to 1"):
                env.reset(options={"weights": wrong})
            with pytest.raises(SimulatorError, match=r"weights must be .* numbers >= 0 that sum"):
                make_environment(f"orlog/{world.title()}-v0", {"weights": wrong})
    with make_environment(f"orlog/{world.title()}-v0", {"weights": of_grid[2].tolist()}) as fixed:
        for seeded in (0, 1, None):
            np.testing.assert_array_equal(fixed.reset(seed=seeded)[1]["weights"], of_grid[2])
        _, info = fixed.reset(options={"weights": of_grid[3]})
        np.testing.assert_array_equal(info["weights"], of_grid[3])


@pytest.mark.parametrize("world", WORLDS)
def test_the_front_is_the_known_one(world):
    made = make_environment(f"orlog/{world.title()}-v0", {})
    with made as env:
        known = np.array(env.unwrapped.pareto_front(0.95 if world == "gathering" else 1.0))
    found = np.unique(front(world).round(6), axis=0)
    weights = grid(WORLDS[world])
    # No known point is better for any weights than what the best actions for these come to.
    best = (weights * front(world)).sum(1)
    assert (best >= (known @ weights.T).max(0) - 1e-6).all()
    on_it = [np.abs(known - one).max(1).min() < 1e-5 for one in found]
    assert sum(on_it) >= {"treasure": len(found), "gathering": 3}[world]


@pytest.mark.parametrize("world", WORLDS)
def test_what_the_best_actions_come_to_in_episodes_is_the_front(world):
    best, exact = best_actions(world), front(world)
    with make_environment(f"orlog/{world.title()}-v0", {}) as env:
        for place in (0, len(best) // 2, len(best) - 1):
            totals = []
            for seed in range(1 if world == "treasure" else 150):
                seen, _ = env.reset(seed=seed, options={"weights": grid(WORLDS[world])[place]})
                total, ended, cut = np.zeros(WORLDS[world]), False, False
                while not ended and not cut:
                    action = best[place, state_number(world, seen["state"])]
                    seen, _, ended, cut, info = env.step(action)
                    total += info["objectives"]
                totals.append(total)
            error = 4 * np.std(totals, 0) / len(totals) ** 0.5 + 1e-5
            assert (np.abs(np.mean(totals, 0) - exact[place]) <= error).all(), place


ROLES = {"infos/objectives": "objectives", "observations/weights": "weights"}
RECIPES = {name: entry.recipe for name, entry in DATASETS.items() if isinstance(entry.recipe, ObjectivesRecipe)}


@pytest.mark.parametrize("name", RECIPES)
def test_rewards_of_episodes_are_weighted(name):
    recipe = RECIPES[name]
    episodes = list(recipe.episodes(0, 30))
    best, of_grid = best_actions(recipe.world), grid(episodes[0].infos["objectives"].shape[1])
    for index, one in enumerate(episodes):
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


def test_one_run_is_evaluated_over_all_weights_and_scored_by_hypervolume(monkeypatch, tmp_path):
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


def test_a_dataset_of_one_set_of_weights_is_trained_on_and_scored_with_them(monkeypatch, tmp_path):
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
        "iql", "lab/treasure-37-v1", settings={"hidden": [8]}, steps=9, evaluations=0, out=run.folder, resume=True
    )
    result = orlog.evaluate(run, episodes=3)
    assert result.metrics["episode_weights"].tolist() == [weights] * 3
    np.testing.assert_allclose(result.returns, result.metrics["hypervolume"] @ weights)
