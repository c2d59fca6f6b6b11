"""BabyAI in a room with three objects: what is told, what its bot does, and the dataset's recipe."""

import numpy as np
import pytest

pytest.importorskip("minigrid")

from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.recipe import catalogue
from orlog.datasets.worlds.words import MOTIONS, OBJECTS, STEPS, GoToRecipe, in_words

pytestmark = pytest.mark.slow

WALL, KEY, BALL, BOX = 2, 5, 6, 7
RED, GREEN, BLUE = 0, 1, 2


def test_the_grid_is_told_from_the_nearest_to_the_farthest():
    image = np.zeros((7, 7, 2), np.uint8)
    assert in_words(image) == "Nothing."
    image[3, 1], image[3, 2], image[4, 2] = (WALL, 5), (WALL, 5), (WALL, 5)
    image[1, 5], image[3, 5], image[3, 6], image[5, 6] = ((BALL, RED), (KEY, BLUE), (BOX, GREEN), (BALL, RED))
    assert in_words(image) == (
        "A green box in hand. A blue key 1 ahead. A red ball 2 right. A red ball 1 ahead, 2 left. A wall 4 ahead."
    )


def test_the_bot_wins_by_facing_the_object_of_the_mission_and_seeds_decide_rooms():
    env = make_environment("orlog/GoTo-v0", {})
    world = env.unwrapped
    missions = set()
    for seed in range(12):
        told, info = env.reset(seed=seed)
        again, _ = env.reset(seed=seed)
        assert told["seen"] == again["seen"]
        assert np.array_equal(told["image"], again["image"])
        assert info == {"won": False}
        missions.add(told["mission"])
        terminated, steps, reward = False, 0, float(0)
        while not terminated:
            assert told in env.observation_space
            assert told["seen"] == in_words(told["image"])
            assert world.best_action == world.best_action  # asking twice changes nothing
            told, gained, terminated, truncated, info = env.step(world.best_action)
            reward, steps = float(gained), steps + 1
            assert not truncated or terminated
        assert reward == pytest.approx(1 - 0.9 * steps / STEPS)
        assert info["won"] is True
        assert told["mission"].removeprefix("go to the ") in told["seen"]
        assert world.best_action == 0  # none is needed any more
    assert missions == {f"go to the {color} {kind}" for color, kind in OBJECTS}


def test_the_bot_begins_anew_where_it_did_not_see_the_steps_before():
    env = make_environment("orlog/GoTo-v0", {})
    world = env.unwrapped
    for seed in range(6):
        env.reset(seed=seed)
        assert world.best_action < MOTIONS
        over = any(any(env.step(0)[2:4]) for _ in range(3))
        won = False
        while not over:
            _, _, over, _, info = env.step(world.best_action)
            won = info["won"]
        assert won


def test_probabilities_are_those_of_the_shares():
    recipe = GoToRecipe(random_shares=(0.0, 0.5, 1.0), count=6, steps=1, seed=3)
    whole = list(recipe.episodes(0, 6))
    for episode, share in zip(whole, (0.0, 0.5, 1.0) * 2, strict=True):
        chances = set(np.exp(episode.infos["action_log_probs"]).round(6).tolist())
        known = {0.0: {1.0}, 0.5: {round(2 / 3, 6), round(1 / 6, 6)}, 1.0: {round(1 / 7, 6)}}[share]
        assert chances <= known
        assert episode.infos["won"][-1] == episode.terminations[-1] == (episode.rewards[-1] > 0)
    assert all(one.infos["won"][-1] for one in whole[::3])


def test_scored_games_are_in_no_data():
    recipe = catalogue()["words/goto-mixed-v1"].recipe
    seeds = {int(np.random.SeedSequence((recipe.seed, index)).generate_state(2)[0]) for index in range(recipe.count)}
    assert not seeds & {*range(1_000_000, 1_000_100), *range(3_000_000, 3_000_100)}
