"""Gymnasium's Ant-v4 with the 111 numbers that D4RL's datasets hold.

D4RL's ant is gym's Ant-v2: 13 positions, 14 velocities and 84 contact forces. The forces are zeros:
MuJoCo 2.0 and later compute none unless they are asked for, and mujoco-py never asked
(Farama-Foundation/D4RL#143, openai/gym#1541). So their cost is 0 too, as in Ant-v4.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.mujoco.ant_v4 import AntEnv
from gymnasium.spaces import Box

FORCES = 84


class Ant(gymnasium.ObservationWrapper[np.ndarray, np.ndarray, np.ndarray]):
    """Ant-v4, whose observations are followed by 84 zeros."""

    def __init__(self, render_mode: str | None = None) -> None:
        """Make Ant-v4."""
        make: Any = AntEnv
        super().__init__(make() if render_mode is None else make(render_mode=render_mode))
        self.observation_space = Box(-np.inf, np.inf, (27 + FORCES,), np.float64)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the observation with forces of zero."""
        return np.concatenate([observation, np.zeros(FORCES)])
