"""`Dataset.restore`: a recorded state of a simulator is put back, and the environment goes on."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import NotFoundError, SchemaError

NAME = "lab/states-v1"


def make(environment_id):
    return make_environment(environment_id, {}, max_episode_steps=30)


def record(environment_id, *, state=True):
    with orlog.record(make(environment_id), NAME, state=state) as env:
        env.action_space.seed(0)
        for episode in range(2):
            env.reset(seed=5 if episode == 0 else None)
            ended = False
            while not ended:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                ended = bool(terminated or truncated)
    return orlog.load_dataset(NAME)


@pytest.mark.parametrize(
    "environment_id", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "Hopper-v5", "PointMaze_UMaze-v3"]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_environment_goes_on_as_it_was_recorded(environment_id):
    ds = record(environment_id)
    env = make(environment_id)
    for number, episode in enumerate(ds):
        start = len(episode) // 2
        observation = ds.restore(env, number, start)
        check(observation, episode.observations, start)
        for step in range(start, len(episode)):
            observation, reward, terminated, truncated, _ = env.step(episode.actions[step])
            check(observation, episode.observations, step + 1)
            assert reward == episode.rewards[step]
            assert (terminated, truncated) == (episode.terminations[step], episode.truncations[step])


def check(observation, recorded, row):
    if isinstance(recorded, dict):
        for key, values in recorded.items():
            np.testing.assert_array_equal(observation[key], values[row])
    else:
        np.testing.assert_array_equal(observation, recorded[row])


def test_what_is_restored_can_be_recorded_from_the_middle():
    ds = record("CartPole-v1")
    with orlog.record(make("CartPole-v1"), "lab/middle-v1") as env:
        ds.restore(env, 1, 3)
        env.step(int(ds[1].actions[3]))
    found = orlog.load_dataset("lab/middle-v1")[0]
    np.testing.assert_array_equal(found.observations, ds[1].observations[3:5])
    assert found.seed is None


def test_what_cannot_be_restored_is_refused_with_the_reason():
    ds = record("CartPole-v1", state=False)
    with pytest.raises(NotFoundError, match=r"no state of a simulator was recorded; .*state=True"):
        ds.restore(make("CartPole-v1"), 0, 0)
    with pytest.raises(NotFoundError, match=r"episode 0: has \d+ steps, none of them number 99"):
        ds.restore(make("CartPole-v1"), 0, 99)


def test_an_environment_without_a_state_is_refused():
    class Blind(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **_):
            return 0, {}

    with (
        orlog.record(Blind(), "lab/blind-v1", state=True) as env,
        pytest.raises(SchemaError, match=r"Blind: no state .* get_state\(\)"),
    ):
        env.reset()
    with pytest.raises(SchemaError, match=r"Blind: no state"):
        record("CartPole-v1").restore(Blind(), 0, 0)


class Counter(gymnasium.Env[Any, Any]):
    """An environment of someone's own, with the two methods."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)

    def get_state(self):
        return np.array([self.count])

    def set_state(self, state):
        self.count = int(state[0])

    def reset(self, **_):
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += action
        return self.count, 0.0, False, self.count == 3, {}


def test_an_environment_of_ones_own_gives_its_state_by_two_methods():
    with orlog.record(Counter(), NAME, state=True) as env:
        env.reset()
        for _ in range(3):
            env.step(1)
    again = Counter()
    assert orlog.load_dataset(NAME).restore(again, 0, -1) == 2
    assert again.step(1)[0] == 3
