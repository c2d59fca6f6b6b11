"""`orlog/FetchFrames-v0`: Gymnasium-Robotics' `FetchPickAndPlace-v4`, whose block is seen in frames alone.

    frame    64 x 64 pixels in color, from above the far side of the table: arm, block, and the goal as a red ball
    arm      ten numbers of the robot itself: place and velocity of the hand, places and velocities of both fingers
    goal     where the block is to be

Actions, rewards, ends, and what a seed draws are those of the world behind it. `info["state"]` has its observation of
25 numbers, the block's among them, after each step.

Frames need EGL or OSMesa where there is no screen. They are drawn from a copy of the simulator's state: the world's
own `render` computes that state anew to show the goal, and so changes what comes after.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.errors import SimulatorError
from orlog.manifests.environments import make_environment

SIZE = 64
WORLD = "FetchPickAndPlace-v4"
STATE = 25
"""Numbers of the world's own observation."""

_ARM = [*range(3), 9, 10, *range(20, 25)]  # where the world's observation has the robot itself
_CAMERA = {
    "distance": 0.95,
    "azimuth": 180.0,
    "elevation": -45.0,
    "lookat": np.array([1.3, 0.75, 0.5]),
}
_GOAL = "target0"  # the red ball


class FetchFrames(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """The environment.

    Attributes:
        told: The last observation of the world behind it, which has the block's place.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self, *, render_mode: str | None = None) -> None:
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")
        self.render_mode = render_mode
        self.told: dict[str, np.ndarray] = {}
        self._inner: Any = make_environment(WORLD, {}).unwrapped
        self._renderer: Any = None
        self._drawn: Any = None  # the copy of the state
        self.action_space = self._inner.action_space
        self.observation_space = spaces.Dict(  # type: ignore[assignment]  # Gymnasium's is of any values
            {
                "arm": spaces.Box(-np.inf, np.inf, (len(_ARM),), np.float32),
                "frame": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
                "goal": spaces.Box(-np.inf, np.inf, (3,), np.float32),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin an episode, as the world does."""
        super().reset(seed=seed)
        self.told, info = self._inner.reset(seed=seed, options=options)
        return self._observed(), info

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Move hand and fingers."""
        self.told, reward, terminated, truncated, info = self._inner.step(action)
        told = {**info, "state": self.told["observation"].copy()}
        return self._observed(), float(reward), terminated, truncated, told

    def render(self) -> Any:
        """Return the frame, if `render_mode` asks for it."""
        return self._frame() if self.render_mode else None

    def close(self) -> None:
        """Close the world and what draws it."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._inner.close()

    def _observed(self) -> dict[str, np.ndarray]:
        return {
            "arm": self.told["observation"][_ARM].astype(np.float32),
            "frame": self._frame(),
            "goal": self.told["desired_goal"].astype(np.float32),
        }

    def _frame(self) -> np.ndarray:
        try:
            return self._draw()
        except Exception as error:  # renderers of any kind
            raise SimulatorError(
                f"{WORLD} renders no frames here: {type(error).__name__}: {error!s:.200}; on Linux without a "
                "display MuJoCo needs EGL (Debian: libegl1 libegl-mesa0 libgl1-mesa-dri) or OSMesa "
                "(MUJOCO_GL=osmesa)."
            ) from error

    def _draw(self) -> np.ndarray:
        import mujoco
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        model = self._inner.model
        if self._renderer is None:
            self._drawn = mujoco.MjData(model)
            self._renderer = MujocoRenderer(model, self._drawn, _CAMERA, SIZE, SIZE)
        kinds = int(mujoco.mjtState.mjSTATE_INTEGRATION)
        state = np.empty(mujoco.mj_stateSize(model, kinds))
        mujoco.mj_getState(model, self._inner.data, state, kinds)
        mujoco.mj_setState(model, self._drawn, state, kinds)
        mujoco.mj_forward(model, self._drawn)
        goal = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, _GOAL)
        self._drawn.site_xpos[goal] = self.told["desired_goal"]
        frame: np.ndarray = np.asarray(self._renderer.render("rgb_array")).copy()
        return frame
