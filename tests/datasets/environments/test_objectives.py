"""Worlds of several objectives: rewards, weights by seed, and the front that is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orlog.datasets.environments.objectives import best_actions, front, grid, moves, state_number
from orlog.errors import SimulatorError
from orlog.manifests.environments import make_environment

WORLDS = {"treasure": 2, "gathering": 3}


@pytest.mark.parametrize("world", WORLDS)
def test_moves_are_those_of_the_world_and_rewards_are_weighted(world: str) -> None:
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
def test_the_front_is_the_known_one(world: str) -> None:
    made: Any = make_environment(f"orlog/{world.title()}-v0", {})
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
def test_what_the_best_actions_come_to_in_episodes_is_the_front(world: str) -> None:
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
