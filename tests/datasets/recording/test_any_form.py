"""Whatever form numbers come in, what is recorded is what an environment gave, step by step."""

import os
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.recording import recorder
from orlog.errors import SchemaError
from tests.levels import scaled

DTYPES = st.sampled_from([np.float64, np.float32, np.int64, np.uint8])
SHAPES = st.sampled_from([(0,), (3,), (2, 2)])


class Scripted(gymnasium.Env[Any, Any]):
    """Gives numbers in many forms, notes them, and changes its arrays in place afterwards."""

    def __init__(self, rng, observed, acted):
        self.inner, self.action_space, self.rng = observed, acted, rng
        self.observation_space = spaces.Dict({"a": observed, "b": spaces.Discrete(9)})
        self.given = []
        self.episodes = []

    def observation(self):
        for old in self.given:
            old[...] = 0
        numbers = any_form(self.rng, self.inner)
        self.given.append(numbers)
        self.episodes[-1]["observations"].append(numbers.copy())
        return {"a": numbers, "b": int(self.rng.integers(9))}

    def reset(self, **_):
        self.episodes.append({name: [] for name in ("observations", "actions", "rewards", "flags")})
        return self.observation(), {}

    def step(self, action):
        chance = self.rng.integers(30)
        if chance == 0:
            raise KeyboardInterrupt
        episode = self.episodes[-1]
        episode["actions"].append(action.copy())
        action[...] = 0
        reward = (float, np.float64, np.float32, int)[self.rng.integers(4)](self.rng.integers(-3, 4))
        flag = (bool, np.bool_)[self.rng.integers(2)]
        flags = flag(chance in (1, 2)), flag(chance in (2, 3))
        episode["rewards"].append(float(reward))
        episode["flags"].append(flags)
        return self.observation(), reward, *flags, {}


def any_form(rng, space):
    """Return numbers of a space, contiguous or not."""
    numbers = rng.integers(0, 100, (2, *space.shape)).astype(space.dtype)
    if rng.integers(4) == 0:
        numbers = np.repeat(numbers, 2, axis=-1)[..., ::2]
    return numbers[0]


@settings(deadline=None, max_examples=scaled(25, 5))
@given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.tuples(SHAPES, SHAPES),
    dtypes=st.tuples(DTYPES, DTYPES),
    block_steps=st.sampled_from([1, 7, 1024]),
)
def test_what_an_environment_gave_is_recorded(seed, shapes, dtypes, block_steps, tmp_path_factory):
    rng = np.random.default_rng(seed)
    boxes = [spaces.Box(0, 100, *one) for one in zip(shapes, dtypes, strict=True)]
    env = Scripted(rng, *boxes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(recorder, "BLOCK_STEPS", block_steps)
        with orlog.record(env, "lab/any-v1") as recorded:
            recorded.reset()
            for _ in range(90):
                if rng.integers(20) == 0:
                    with pytest.raises(SchemaError, match="the action does not fit"):
                        recorded.step("no action")
                try:
                    ended = any(recorded.step(any_form(rng, boxes[1]))[2:4])
                except KeyboardInterrupt:
                    ended = True
                if ended or rng.integers(30) == 0:
                    recorded.reset()
        found = [*orlog.load_dataset("lab/any-v1")]
    expected = [episode for episode in env.episodes if episode["actions"]]
    for episode, noted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(episode.observations["a"], noted["observations"])
        np.testing.assert_array_equal(episode.actions, noted["actions"])
        assert episode.rewards.tolist() == noted["rewards"]
        flags = zip(episode.terminations.tolist(), episode.truncations.tolist(), strict=True)
        assert [*flags] == [(bool(one), bool(other)) for one, other in noted["flags"]]
