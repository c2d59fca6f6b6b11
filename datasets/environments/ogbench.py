"""OGBench's environments as Gymnasium's goal environments: the five tasks of its evaluation, in turn.

OGBench (Park et al. 2025, https://arxiv.org/abs/2410.20092) hands out the goal of an episode in the
info of its reset; here it is a part of observations, all in float32:

    observation     OGBench's own
    achieved_goal   what counts for the goal: the ball's place, or the cube's in OGBench's units
    desired_goal    where it shall be: OGBench's goals with `use_oracle_rep=True`

As in OGBench's evaluation of goals, reaching the goal pays 1 and ends the episode: a mean return is a
success rate. An episode that is reset with seed s has task s % 5 + 1, so five in a row have all tasks.

OGBench draws from NumPy's global generator, and in manipulation from an action space that is new at
each access and has no seed. Here the seed of a reset decides all of it.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

PLACE = slice(0, 2)
"""Where an observation of a point maze has the ball's place."""

CUBE = slice(19, 22)
"""Where an observation of cube-single has the cube's place."""


class GoalTasks(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """An environment of OGBench as the module's docstring says.

    Attributes:
        inner: OGBench's environment, made with `use_oracle_rep=True`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own attribute)

    def __init__(self, inner: Any, achieved: slice) -> None:
        """Make it of OGBench's environment and the place of the achieved goal in observations."""
        self.inner = inner
        self._achieved = achieved
        self._goal = np.zeros(achieved.stop - achieved.start)
        (width,) = inner.observation_space.shape
        widths = {"achieved_goal": len(self._goal), "desired_goal": len(self._goal)}
        self.observation_space = Dict(  # type: ignore[assignment] # Gymnasium's is of any values
            {
                name: Box(-np.inf, np.inf, (size,), np.float32)
                for name, size in {**widths, "observation": width}.items()
            }
        )
        (actions,) = inner.action_space.shape
        self.action_space = Box(-1.0, 1.0, (actions,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin an episode of the seed's task, or of `options["task_id"]`, 1 to 5."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        task = (options or {}).get("task_id", seed % self.inner.num_tasks + 1)
        self.inner.action_space.seed(seed)
        with numpy_seed(seed):
            observation, info = self.inner.reset(seed=seed, options={"task_id": task})
        self._goal = info["goal"]
        return goal_observation(observation, self._achieved, self._goal), {"task_id": task}

    def step(
        self, action: np.ndarray
    ) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Act; the info says whether the goal is reached (`success`)."""
        observation, reward, terminated, truncated, info = self.inner.step(action)
        found = goal_observation(observation, self._achieved, self._goal)
        return found, float(reward), terminated, truncated, {"success": bool(info["success"])}

    def close(self) -> None:
        """Close OGBench's environment."""
        self.inner.close()


def goal_observation(
    observation: np.ndarray, achieved: slice, desired: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the parts of an observation in a goal environment, float32."""
    whole = observation.astype(np.float32)
    return {
        "achieved_goal": whole[achieved],
        "desired_goal": np.asarray(desired, np.float32),
        "observation": whole,
    }


@contextlib.contextmanager
def numpy_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator inside, and put its state back afterwards."""
    state = np.random.get_state()  # noqa: NPY002 (what OGBench draws from)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def maze(maze_type: str, **arguments: Any) -> Any:
    """Return OGBench's point maze of a type, such as `medium`."""
    from ogbench.locomaze.maze import make_maze_env

    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    env = make_maze_env("point", "maze", maze_type=maze_type, use_oracle_rep=True, **arguments)
    _remove_leftover(Path(env.fullpath), free)
    return env


def _remove_leftover(path: Path, first: int) -> None:
    """Remove the file that OGBench passes a maze to MuJoCo in, and close it: it leaves both.

    `first` is the lowest descriptor that was free before it was opened.
    """
    written = path.stat()
    for descriptor in range(first, first + 16):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), written):
                os.close(descriptor)
    path.unlink()


def medium_maze_tasks() -> GoalTasks:
    """Return the tasks of the medium point maze."""
    return GoalTasks(maze("medium"), PLACE)


def cube(**arguments: Any) -> Any:
    """Return OGBench's environment of one cube, with an action space that stays and can be seeded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dm_control warns where there is no display
        from ogbench.manipspace.envs.cube_env import CubeEnv

    class Cube(CubeEnv):  # type: ignore[misc] # without types
        actions = Box(-1.0, 1.0, (5,), np.float32)

        @property
        def action_space(self) -> Box:
            return self.actions

    return Cube(env_type="single", use_oracle_rep=True, **arguments)


def cube_tasks() -> GoalTasks:
    """Return the tasks of one cube."""
    return GoalTasks(cube(), CUBE)
