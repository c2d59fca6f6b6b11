"""Environments of frames, dicts, integers and goals, and random episodes of them."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from tests.episodes import whole_episode

SIZE = 12
FRAMES = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
PLACE = spaces.Box(0, SIZE, (2,), np.float32)
MIXED = spaces.Dict(count=spaces.Discrete(5), eye=FRAMES, speed=spaces.Box(-1, 1, (2,), np.float32))


class Dot(gymnasium.Env):
    """A dot starts left or right of the middle; each step into the middle's direction earns 1."""

    def __init__(self, *, continuous, mixed=False, goal=""):
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2, start=1)
        self.observation_space = MIXED if mixed else FRAMES
        self._mixed, self._goal = mixed, goal
        if goal:
            space = FRAMES if goal == "frame" else PLACE
            self.observation_space = spaces.Dict(achieved_goal=space, desired_goal=space, observation=FRAMES)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._place = int(self.np_random.choice([2, 9]))
        self._steps = 0
        return self._seen(), {}

    def step(self, action):
        goes_right = action == 2 if isinstance(self.action_space, spaces.Discrete) else action[0] > 0
        reward = float(bool(goes_right) == (self._place < SIZE / 2))
        self._steps += 1
        return self._seen(), reward, self._steps == 4, False, {}

    def _seen(self):
        frame = np.zeros(FRAMES.shape, np.uint8)
        frame[4:8, self._place - 1 : self._place + 2] = 255
        if self._goal:
            goal = frame if self._goal == "frame" else np.array([self._place, 0], np.float32)
            return {"achieved_goal": goal, "desired_goal": goal, "observation": frame}
        if not self._mixed:
            return frame
        return {"count": np.int64(self._steps), "eye": frame, "speed": np.zeros(2, np.float32)}


ENVIRONMENTS = {
    "orlog-tests/Dot-v0": {"continuous": False},
    "orlog-tests/PushedDot-v0": {"continuous": True},
    "orlog-tests/MixedDot-v0": {"continuous": True, "mixed": True},
    "orlog-tests/PlaceDot-v0": {"continuous": True, "goal": "place"},
    "orlog-tests/FrameDot-v0": {"continuous": True, "goal": "frame"},
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Register the environments while the tests of a module run."""
    for name, arguments in ENVIRONMENTS.items():
        gymnasium.register(name, entry_point=lambda **given: Dot(**given), kwargs=arguments, max_episode_steps=10)
    yield
    for name in ENVIRONMENTS:
        del gymnasium.registry[name]


def record(environment, name, *, paid=True, episodes=60):
    """Return recorded episodes of random actions."""
    with gymnasium.make(environment) as env, orlog.DatasetWriter(name, environment=env) as writer:
        env.action_space.seed(0)
        for episode in range(episodes):
            observation, _ = env.reset(seed=episode)
            rows, actions, rewards = [observation], [], []
            for _ in range(4):
                actions.append(env.action_space.sample())
                observation, reward, *_ = env.step(actions[-1])
                rows.append(observation)
                rewards.append(reward)
            is_dict = isinstance(observation, dict)
            seen = {key: np.stack([row[key] for row in rows]) for key in observation} if is_dict else np.stack(rows)
            writer.add_episode(whole_episode(seen, np.stack(actions), paid * np.array(rewards, np.float64)))
    return orlog.load_dataset(name)
