import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.datasets.worlds.environments import make_environment
from orlog.normalize.metrics import counts_for
from orlog.normalize.rollouts import run_episodes
from tests.levels import scaled

COUNTS = counts_for({})


class Countdown(gymnasium.Env[np.ndarray, np.ndarray]):
    """An episode of 1 to 9 steps, drawn at reset; a step's reward depends on draw and action."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.left = int(self.np_random.integers(1, 10))
        self.truncates = bool(self.np_random.random() < 0.5)
        return self._observe(), {}

    def step(self, action):
        assert self.left > 0
        self.left -= 1
        reward = self.value * float(action[0]) + 1
        done = self.left == 0
        return self._observe(), reward, done and not self.truncates, done and self.truncates, {}

    def _observe(self):
        self.value = float(self.np_random.normal())
        return np.array([self.left, self.value])


def policy(observations):
    return np.asarray(3 * observations[:, 1:] - observations[:, :1])


class Remembering:
    """A policy whose action depends on the steps and rewards of its episode, which it checks."""

    def start(self, environments):
        self.first = np.full(environments, np.nan)  # nothing has begun yet
        self.steps, self.total = np.zeros(environments), np.zeros(environments)

    def begin(self, which):
        self.first[which] = np.nan
        self.steps[which] = self.total[which] = 0

    def __call__(self, observations):
        left = observations[:, 0]
        self.first = np.where(np.isnan(self.first), left, self.first)
        assert (left == self.first - self.steps).all()
        self.steps += 1
        return np.asarray((self.total + self.steps)[:, None] - observations[:, 1:])

    def reward(self, rewards):
        self.total += rewards


NUMBERS = (bool, float, np.bool_, np.float32)
OTHERS = (lambda _: "yes", lambda _: [1], lambda _: np.ones(2), lambda _: None)


@pytest.mark.parametrize("kind", [*NUMBERS, *OTHERS])
def test_what_is_no_yes_or_no_is_no_success(kind):
    class Env(Countdown):
        def step(self, action):
            *others, _ = super().step(action)
            return *others, {"success": kind(1)}

    found = run_episodes(policy, SyncVectorEnv([Env] * 3), episodes=4, first_seed=0, counts=COUNTS)
    counted = {name: values.tolist() for name, values in found.metrics.items()}
    assert counted == ({"success": [True] * 4} if kind in NUMBERS else {})
    plain = SyncVectorEnv([Countdown] * 3)
    returns = run_episodes(policy, plain, episodes=4, first_seed=0).returns
    assert found.returns.tolist() == returns.tolist()


def one_by_one(env, episodes, first_seed, policy=policy):
    returns = []
    for seed in range(first_seed, first_seed + episodes):
        observation, _ = env.reset(seed=seed)
        if isinstance(policy, Remembering):
            policy.start(1)
        total, done = 0.0, False
        while not done:
            observation, reward, termination, truncation, _ = env.step(policy(observation[None])[0])
            total += float(reward)
            if isinstance(policy, Remembering):
                policy.reward(np.array([reward]))
            done = termination or truncation
        returns.append(total)
    return returns


@settings(deadline=None, max_examples=scaled(40))
@given(episodes=st.integers(1, 12), side_by_side=st.integers(1, 7), first_seed=st.integers(0, 2**31))
def test_returns_are_those_of_one_environment_after_another(episodes, side_by_side, first_seed):
    environments = SyncVectorEnv([Countdown] * side_by_side)
    expected = one_by_one(Countdown(), episodes, first_seed)
    done = []
    for _ in range(2):  # used again, they give the same
        found = run_episodes(
            policy, environments, episodes=episodes, first_seed=first_seed, counts=COUNTS, progress=done.append
        )
        returns = found.returns
        assert found.metrics == {}
        assert returns.dtype == np.float64
        assert returns.tolist() == expected
    rounds = [min(episodes, end) for end in range(side_by_side, episodes + side_by_side, side_by_side)]
    assert done == rounds * 2


@settings(deadline=None, max_examples=scaled(40))
@given(episodes=st.integers(1, 12), side_by_side=st.integers(1, 7), first_seed=st.integers(0, 2**31))
def test_a_policy_with_memory_remembers_each_episode_and_no_other(episodes, side_by_side, first_seed):
    environments = SyncVectorEnv([Countdown] * side_by_side)
    expected = one_by_one(Countdown(), episodes, first_seed, Remembering())
    remembering = Remembering()
    for _ in range(2):
        found = run_episodes(remembering, environments, episodes=episodes, first_seed=first_seed)
        assert found.returns.tolist() == expected


def test_point_maze_gives_the_same_returns_twice():
    kwargs = {"reward_type": "dense", "max_episode_steps": 25}

    def make():
        return make_environment("PointMaze_UMaze-v3", kwargs)

    def towards_the_goal(observations):
        error = observations["desired_goal"] - observations["achieved_goal"]
        return np.asarray(error.clip(-1, 1), np.float32)

    def returns(envs):
        found = run_episodes(towards_the_goal, envs, episodes=5, first_seed=3, counts=COUNTS)
        assert found.metrics["success"].shape == (5,)
        return list(found.returns.tolist())

    environments = SyncVectorEnv([make] * 3)
    first = returns(environments)
    assert returns(environments) == first
    environments.close()
    fewer = SyncVectorEnv([make] * 2)
    assert returns(fewer) == first
    fewer.close()
    assert len(set(first)) == 5
