"""`orlog/FetchFrames-v0`: Gymnasium-Robotics' `FetchPickAndPlace-v4`, whose block is seen in frames alone.

    frame    64 x 64 pixels in color, from above the far side of the table: arm, block, and the goal as a red ball
    arm      ten numbers of the robot itself: place and velocity of the hand, places and velocities of both fingers
    goal     where the block is to be

Actions, rewards, ends, and what a seed draws are those of the world behind it. `info["state"]` has its observation of
25 numbers, the block's among them, after each step.

Frames need EGL or OSMesa where there is no screen. They are drawn from a copy of the simulator's state: the world's
own `render` computes that state anew to show the goal, and so changes what comes after.

Recipes of the `demos/...` datasets: demonstrations of a robot arm that lifts a block to a goal.

    demonstration   a controller of orlog's own for `FetchPickAndPlace-v4` (Gymnasium-Robotics), with Gaussian
                    noise on its actions, which are then cut off at the bounds
    random play     uniform actions, each held for some steps, so that the hand gets about

The first `demonstrations` episodes are demonstrations, what follows is random play; `episodes/demonstration` says which, and
`episodes/success` whether the block was at the goal after the last step.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of noise
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, Watching, for_each, play_episode
from orlog.errors import SimulatorError

SIZE = 64
WORLD = "FetchPickAndPlace-v4"
STATE = 25  # numbers of the world's own observation
_ARM = [*range(3), 9, 10, *range(20, 25)]  # where the world's observation has the robot itself
_CAMERA = {"distance": 0.95, "azimuth": 180.0, "elevation": -45.0, "lookat": np.array([1.3, 0.75, 0.5])}
_GOAL = "target0"  # the red ball


class FetchFrames(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """The environment.

    Attributes:
        inner_observation: The last observation of the world behind it, which has the block's place.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self, *, render_mode: str | None = None) -> None:
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")
        self.render_mode = render_mode
        self.inner_observation: dict[str, np.ndarray] = {}
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
        self.inner_observation, info = self._inner.reset(seed=seed, options=options)
        return self._observed(), info

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Move hand and fingers."""
        self.inner_observation, reward, terminated, truncated, info = self._inner.step(action)
        infos = {**info, "state": self.inner_observation["observation"].copy()}
        return self._observed(), float(reward), terminated, truncated, infos

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
            "arm": self.inner_observation["observation"][_ARM].astype(np.float32),
            "frame": self._frame(),
            "goal": self.inner_observation["desired_goal"].astype(np.float32),
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
        self._drawn.site_xpos[goal] = self.inner_observation["desired_goal"]
        frame: np.ndarray = np.asarray(self._renderer.render("rgb_array")).copy()
        return frame


_LENGTH = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemosRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `demos` dataset.

    Attributes:
        demonstrations: How many of them, the first ones, are demonstrations.
        noise: Standard deviation of the noise on demonstrated actions.
        held: Steps for which random play holds an action.
    """

    count: int
    demonstrations: int
    noise: float = 0.1
    held: int = 5
    seed: int = 0

    name = "demos"
    environment_id = "FetchPickAndPlace-v4"
    infos: ClassVar[tuple[str, ...]] = ()

    @property
    def steps(self) -> int:
        """Steps in the dataset."""
        return self.count * _LENGTH

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        shown = f"{self.demonstrations} demonstrations by a controller with noise of {self.noise:g}"
        if self.demonstrations == self.count:
            return shown
        return f"{shown}, then uniform actions, each held for {self.held} steps"

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode."""
        is_demonstration = index < self.demonstrations
        held = np.zeros(4, np.float32)
        steps = itertools.count()

        def choose(observation: Any) -> tuple[np.ndarray, dict[str, Any]]:
            nonlocal held
            step = next(steps)
            if is_demonstration:
                chosen = pick_and_place(self.seen(env, observation))
                noisy = chosen + self.noise * rng.standard_normal(4)
                return np.clip(noisy, -1, 1).astype(np.float32), {}
            if step % self.held == 0:
                held = rng.uniform(-1, 1, 4).astype(np.float32)
            return held, {}

        made = play_episode(env, reset_seed, choose, infos=(*self.infos, "is_success"))
        infos = {**made.infos}
        success = bool(infos.pop("is_success")[-1])
        metadata = {"demonstration": is_demonstration, "success": success}
        return dataclasses.replace(made, infos=infos, metadata=metadata)

    def seen(self, _env: Any, observation: Any) -> Any:
        """Return what the controller looks at."""
        return observation

    def expert(self) -> Expert:
        """Return the controller without noise."""
        return Expert(name="the controller of demonstrations, without noise", policy=for_each(pick_and_place))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FramesRecipe(DemosRecipe):
    """The same in `orlog/FetchFrames-v0`: the controller sees the block's place, the data frames of it."""

    name = "demos-frames"
    environment_id = "orlog/FetchFrames-v0"
    infos = ("state",)

    def seen(self, env: Any, _observation: Any) -> Any:
        """Return what the world behind the frames tells."""
        return env.unwrapped.inner_observation

    def expert(self) -> Expert:
        """Return the controller without noise, which watches the worlds behind the frames."""
        return Expert(name="the controller of demonstrations, without noise", policy=Watching(_by_the_world))


def _by_the_world(env: gymnasium.Env[Any, Any]) -> np.ndarray:
    world: Any = env.unwrapped
    return pick_and_place(world.inner_observation)


def pick_and_place(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Return what lifts the block to the goal: hand to it from above, fingers closed around it, both to the goal."""
    state = observation["observation"]
    hand, block, opening = state[:3], state[3:6], state[9:11].sum()
    way = block - hand
    if np.linalg.norm(way) < 0.025 and opening < 0.06:  # it holds the block
        move, fingers = 10 * (observation["desired_goal"] - hand), -1.0
    elif np.linalg.norm(way) < 0.02:
        move, fingers = np.zeros(3), -1.0
    elif np.abs(way[:2]).max() < 0.015:
        move, fingers = 10 * way, 1.0
    else:
        move, fingers = 10 * (way + np.array([0, 0, 0.06])), 1.0
    chosen: np.ndarray = np.clip([*move, fingers], -1, 1)
    return chosen


DATASETS = {
    "demos/fetch-pick-v1": CatalogueEntry(
        description=(
            "A Fetch robot lifts a block to a goal: 200 noisy demonstrations by a controller, whose reward is 0 where the "
            "block is at the goal and -1 elsewhere. 10,000 steps."
        ),
        recipe=DemosRecipe(count=200, demonstrations=200, seed=50),
    ),
    "demos/fetch-mixed-v1": CatalogueEntry(
        description=(
            "A Fetch robot lifts a block to a goal: 20 noisy demonstrations by a controller, and 180 episodes of random "
            "play. 10,000 steps."
        ),
        recipe=DemosRecipe(count=200, demonstrations=20, seed=51),
    ),
    "demos/fetch-pick-frames-v1": CatalogueEntry(
        description=(
            "A Fetch robot lifts a block, which is seen in frames of 64 x 64 pixels alone, to a goal: 60 noisy "
            "demonstrations by a controller that sees the state, which infos have. 3,000 steps."
        ),
        recipe=FramesRecipe(count=60, demonstrations=60, seed=52),
    ),
}
