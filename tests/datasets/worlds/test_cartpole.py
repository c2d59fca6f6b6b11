from __future__ import annotations

import gymnasium
import numpy as np

from orlog.datasets.worlds.cartpole import EXPERT, CartPoleRecipe, push

RECIPE = CartPoleRecipe(steps=2000, seed=3)


def test_an_episode_does_not_depend_on_those_made_before_it() -> None:
    lengths = RECIPE.lengths(500)
    together = list(RECIPE.episodes(0, len(lengths)))
    assert [len(episode) for episode in together] == lengths
    assert sum(lengths) == RECIPE.steps
    for index in (len(lengths) - 1, 4, 0):
        (alone,) = RECIPE.episodes(index, index + 1)
        assert np.asarray(alone.actions).tobytes() == np.asarray(together[index].actions).tobytes()
        assert alone.seed == together[index].seed


def test_playing_the_actions_again_gives_the_same_observations() -> None:
    with gymnasium.make("CartPole-v1") as env:
        for episode in RECIPE.episodes(0, 6):
            first, _ = env.reset(seed=episode.seed)
            observations = [first]
            for step, action in enumerate(np.asarray(episode.actions)):
                found, reward, terminated, _, _ = env.step(int(action))
                observations.append(found)
                assert reward == episode.rewards[step]
                assert terminated == episode.terminations[step]
            assert np.array_equal(observations, np.asarray(episode.observations))


def test_the_controller_is_better_than_random_actions_and_the_expert_balances() -> None:
    lengths = RECIPE.lengths(500)
    assert np.mean(lengths[:-1:2]) > 3 * np.mean(lengths[1:-1:2])
    with gymnasium.make("CartPole-v1") as env:
        observation, _ = env.reset(seed=1)
        ends = []
        for _ in range(500):
            observation, _, *end, _ = env.step(push(observation, EXPERT))
            ends.append(end)
        assert ends == [[False, False]] * 499 + [[False, True]]
