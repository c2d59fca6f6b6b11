"""`orlog.record_vector`: the episodes of a vector environment, in every autoreset mode."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import orlog
from orlog.errors import SchemaError

NAME = "lab/many-v1"


class Counting(gymnasium.Env[Any, Any]):
    """Counts steps; episode k of environment n lasts n + 2 steps and says which one it is."""

    observation_space = spaces.Dict({"step": spaces.Box(0, 99, (2,), np.int64), "word": spaces.Discrete(9)})
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, number):
        self.number, self.episode = number, -1

    def observation(self):
        return {"step": np.array([self.episode, self.steps]), "word": self.number}

    def reset(self, *, seed=None, **_):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self.observation(), {"place": -1.0}

    def step(self, action):
        self.steps += 1
        ended = self.steps == self.number + 2
        odd = bool(self.episode % 2)
        info = {"place": 10.0 * self.number + self.steps}
        return self.observation(), float(action[0]), ended and odd, ended and not odd, info


def make(mode, kind=SyncVectorEnv, count=3):
    return kind([functools.partial(Counting, number) for number in range(count)], autoreset_mode=mode)


def check_episodes(ds, *, whole):
    """Check that each whole episode is what its environment did by itself."""
    episodes = [episode for episode in ds if episode.terminations[-1] or episode.truncations[-1]]
    assert len(episodes) == whole
    for episode in ds:
        number = int(episode.observations["word"][0])
        which = int(episode.observations["step"][0, 0])
        steps = len(episode)
        assert (episode.observations["word"] == number).all()
        assert episode.observations["step"].tolist() == [[which, row] for row in range(steps + 1)]
        assert episode.infos["place"].tolist() == [10.0 * number + row + 1 for row in range(steps)]
        np.testing.assert_array_equal(episode.rewards, episode.actions[:, 0])
        assert episode.seed == (7 + number if which == 0 else None)
        if episode.terminations[-1] or episode.truncations[-1]:
            assert steps == number + 2
            assert episode.terminations[-1] == bool(which % 2)
        else:
            assert steps < number + 2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_autoreset_mode_gives_the_episodes_of_each_environment(mode):
    rng = np.random.default_rng(0)
    with orlog.record_vector(make(mode), NAME, infos=["place"]) as envs:
        envs.reset(seed=7)
        ended = np.zeros(3, np.bool_)
        for _ in range(20):
            if mode is AutoresetMode.DISABLED and ended.any():
                envs.reset(options={"reset_mask": ended})
            actions = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
            _, _, terminations, truncations, _ = envs.step(actions)
            ended = terminations | truncations
    lengths = [2, 3, 4]
    steps_of_a_round = [one + (mode is AutoresetMode.NEXT_STEP) for one in lengths]
    whole = sum((20 + (mode is AutoresetMode.NEXT_STEP)) // one for one in steps_of_a_round)
    check_episodes(orlog.load_dataset(NAME), whole=whole)


def test_environments_in_processes_of_their_own():
    envs = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    with orlog.record_vector(envs, NAME) as recorder:
        recorder.reset(seed=3)
        given = []
        for step in range(40):
            actions = np.array([step % 2, (step // 2) % 2])
            given.append((actions, *recorder.step(actions)[:4]))
    ds = orlog.load_dataset(NAME)
    assert ds.environment is not None
    assert ds.environment.id == "CartPole-v1"
    assert sorted(episode.seed for episode in ds if episode.seed is not None) == [3, 4]
    for episode in ds:
        if episode.seed is None:
            continue
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=episode.seed)
        for step, action in enumerate(episode.actions):
            np.testing.assert_array_equal(episode.observations[step], observation)
            observation, *_ = env.step(action)
        np.testing.assert_array_equal(episode.observations[-1], observation)


def test_vector_environments_without_single_ones_and_their_states():
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(SchemaError, match="state=True needs a SyncVectorEnv"):
        orlog.record_vector(envs, NAME, state=True)
    with orlog.record_vector(envs, NAME) as recorder:
        recorder.reset(seed=0)
        for _ in range(30):
            recorder.step(np.array([0, 1]))
    ds = orlog.load_dataset(NAME)
    assert ds.environment is not None
    assert (ds.environment.id, dict(ds.environment.kwargs)) == ("CartPole-v1", {})
    assert all(episode.terminations[-1] for episode in ds if len(episode) > 12)


def test_states_log_probabilities_and_options():
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    with orlog.record_vector(envs, NAME, state=True, action_log_probs=True) as recorder:
        recorder.reset(seed=[5, 9], options={"low": -0.01, "high": 0.01})
        for step in range(15):
            recorder.step(np.array([1, 1]), action_log_probs=np.array([-0.5, -step]))
    ds = orlog.load_dataset(NAME)
    first = ds[0]
    assert first.seed == 5
    assert first.metadata["options"] == '{"low": -0.01, "high": 0.01}'
    assert (first.infos["action_log_probs"] == -0.5).all()
    env = gymnasium.make("CartPole-v1")
    ds.restore(env, 0, 3)
    np.testing.assert_array_equal(env.step(1)[0], first.observations[4])


def test_what_is_refused():
    with orlog.record_vector(make(AutoresetMode.DISABLED, count=1), NAME) as envs:
        with pytest.raises(SchemaError, match=r"call reset\(\) first"):
            envs.step(np.zeros((1, 1), np.float32))
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(np.zeros((1, 1), np.float32))
        with pytest.raises(SchemaError, match=r"environments \[0\] have ended; reset them"):
            envs.step(np.zeros((1, 1), np.float32))
    assert [len(episode) for episode in orlog.load_dataset(NAME)] == [2]


class Broken(SyncVectorEnv):
    """Gives another value in place of one of those that its third step returns."""

    steps = 0

    def __init__(self, place, value, mode):
        self.place, self.value = place, value
        makers = [functools.partial(Counting, number) for number in (3, 4)]
        super().__init__(makers, autoreset_mode=mode)

    def step(self, actions):
        self.steps += 1
        result = [*super().step(actions)]
        if self.steps == 3:
            result[self.place] = self.value
        return tuple(result)


def record_broken(place, value, mode, said):
    """Check that the third step is refused, and that those before it are recorded without an end."""
    envs = orlog.record_vector(Broken(place, value, mode), NAME)
    envs.reset(seed=0)
    for _ in range(2):
        envs.step(np.zeros((2, 1), np.float32))
    with pytest.raises(SchemaError, match=said):
        envs.step(np.zeros((2, 1), np.float32))
    envs.close()
    episodes = [*orlog.load_dataset(NAME)]
    assert [len(episode) for episode in episodes] == [2, 2]
    assert not any(np.any([one.terminations, one.truncations]) for one in episodes)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("place", [2, 3])
def test_a_flag_that_is_nan_is_no_end_and_names_environment_and_step(mode, place):
    said = r"environment 1, step 2 of its episode: .* is nan"
    record_broken(place, np.array([0.0, np.nan]), mode, said)


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        (np.zeros((2, 2)), r"environment 0, step 2 of its episode: the reward is float64\[2\]"),
        ([0.5, None], "environment 1, step 2 of its episode: the reward is None"),
        (np.zeros(3), r"step 2 of its episode: expected rewards of 2 .* found float64\[3\]"),
        (0.5, "step 2 of its episode: expected rewards of 2 environments, found 0.5"),
    ],
)
def test_a_reward_of_a_wrong_shape_names_environment_and_step(rewards, said):
    record_broken(1, rewards, AutoresetMode.NEXT_STEP, said)
