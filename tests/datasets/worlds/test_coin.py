"""TextWorld's coin collector in words: houses, commands, and the dataset's recipe."""

import gymnasium
import numpy as np
import pytest

pytest.importorskip("textworld")

from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.recipe import catalogue
from orlog.datasets.worlds.words import CHAIN, PRICE, ROOMS, Coin, CoinRecipe, make_house
from orlog.normalize.rollouts import Count, run_episodes

pytestmark = pytest.mark.slow


def test_a_house_has_all_rooms_and_a_shortest_way_from_each():
    lengths = set()
    for seed in range(8):
        house = make_house(seed)
        assert len(house.exits) == len(house.ways) == ROOMS
        for room in house.exits:
            way, steps = room, 0
            while way != house.coin:
                way, steps = house.exits[way][house.ways[way].removeprefix("go ")], steps + 1
                assert steps < ROOMS
            if room == house.start:
                lengths.add(steps)
            assert all(room in house.exits[one].values() for one in house.exits[room].values())
            assert house.describe(room).startswith("-= ")
            assert ("There is a coin" in house.describe(room)) == (room == house.coin)
            assert all(way in house.describe(room) for way in house.exits[room])
    assert lengths == {CHAIN - 1}
    assert make_house(3).describe("r_0") == make_house(3).describe("r_0")
    assert make_house(3).exits != make_house(4).exits


def test_commands_do_what_they_say_and_others_cost_too():
    env = make_environment("orlog/Coin-v0", {})
    world = env.unwrapped
    first, info = env.reset(seed=0)
    assert first in env.observation_space
    assert info["won"] is False
    assert info["admissible_commands"].splitlines() == world.commands
    answer, reward, terminated, _, _ = env.step("open the door")
    assert answer == f"That is not understood.\n{first}"
    assert (reward, terminated) == (-PRICE, False)
    assert env.step("look")[0] == first
    assert env.step("inventory")[0] == "You carry nothing."
    for _ in range(CHAIN - 1):
        answer, *_ = env.step(world.best_command)
    assert "There is a coin on the floor." in answer
    assert env.step("examine coin")[0] == "The coin is small and shines."
    answer, reward, terminated, truncated, info = env.step("take coin")
    assert (reward, terminated, truncated, info["won"]) == (1 - PRICE, True, False, True)
    again, _ = env.reset(seed=0)
    assert again == first
    for number in range(15):
        _, _, terminated, truncated, _ = env.step("look")
        assert (terminated, truncated) == (False, number == 14)


def test_commands_are_those_that_are_understood_with_their_probabilities():
    recipe = CoinRecipe(random_shares=(0.0, 1.0), count=4, steps=1, seed=3)
    whole = list(recipe.episodes(0, 4))
    assert [len(one.rewards) for one in whole[::2]] == [CHAIN, CHAIN]
    assert all(one.terminations[-1] and one.infos["won"][-1] for one in whole[::2])
    for episode, share in zip(whole, (0.0, 1.0) * 2, strict=True):
        known = [one.split("\n") for one in episode.infos["admissible_commands"]]
        assert all(said in some for said, some in zip(episode.actions, known, strict=True))
        expected = [0.0 if not share else -np.log(len(some)) for some in known]
        np.testing.assert_allclose(episode.infos["action_log_probs"], expected, atol=1e-12)


def test_the_expert_wins_every_game_and_the_random_player_few():
    recipe = catalogue()["words/coin-mixed-v1"].recipe
    environments = gymnasium.vector.SyncVectorEnv([lambda: make_environment("orlog/Coin-v0", {})] * 4)
    wins = [
        run_episodes(
            player.policy,
            environments,
            episodes=12,
            first_seed=0,
            counts=[Count(name="wins", infos=("won",), combine="any")],
        ).metrics["wins"]
        for player in (recipe.expert(), recipe.random_policy())
    ]
    assert wins[0].all()
    assert wins[1].sum() < 6
    assert Coin().observation_space == environments.single_observation_space
