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

Recipes of the `ogbench-local/...` datasets: OGBench's oracles record OGBench's data again.

OGBench (Park et al. 2025, https://arxiv.org/abs/2410.20092) publishes data for goal-conditioned
algorithms, which policies without any task record: a ball that visits one goal after another
(`navigate`), a robot arm that moves a cube from place to place (`play`). Where these policies are
oracles that need no training, the package `ogbench` has them, and the data are made here as
`generate_locomaze.py` and `generate_manipspace.py` of its repository make them. They are not the
published files: other random numbers, other versions of MuJoCo.

`desired_goal` is where the oracle was going, and changes during an episode; the reward is 1 in steps
that end there. Policies are scored on the five tasks of OGBench's evaluation
(`orlog.datasets.worlds.ogbench`).

Every episode depends on (recipe seed, episode index) only. OGBench draws from NumPy's global
generator, which is seeded for each episode.

    episode i:  SeedSequence((seed, i)) -> reset seed, seed of NumPy's generator
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.environments import check_installed
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, finished_episode

PLACE = slice(0, 2)  # where an observation of a point maze has the ball's place
CUBE = slice(19, 22)  # where an observation of cube-single has the cube's place


class GoalTasks(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """An environment of OGBench as the module's docstring says.

    Attributes:
        inner: OGBench's environment, made with `use_oracle_rep=True`.
        only_scores: Recipes record in another environment, so that the seeds of their episodes do not reset this one.
    """

    only_scores = True
    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own attribute)

    def __init__(self, inner: Any, achieved: slice) -> None:
        self.inner = inner
        self._achieved = achieved
        self._goal = np.zeros(achieved.stop - achieved.start)
        (width,) = inner.observation_space.shape
        widths = {"achieved_goal": len(self._goal), "desired_goal": len(self._goal)}
        self.observation_space = Dict(  # type: ignore[assignment] # Gymnasium's is of any values
            {name: Box(-np.inf, np.inf, (size,), np.float32) for name, size in {**widths, "observation": width}.items()}
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

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Act; the info says whether the goal is reached (`success`)."""
        observation, reward, terminated, truncated, info = self.inner.step(action)
        seen = goal_observation(observation, self._achieved, self._goal)
        return seen, float(reward), terminated, truncated, {"success": bool(info["success"])}

    def close(self) -> None:
        """Close OGBench's environment."""
        self.inner.close()


def goal_observation(observation: np.ndarray, achieved: slice, desired: np.ndarray) -> dict[str, np.ndarray]:
    """Return the parts of an observation in a goal environment, float32."""
    whole = observation.astype(np.float32)
    return {"achieved_goal": whole[achieved], "desired_goal": np.asarray(desired, np.float32), "observation": whole}


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OGBenchRecipe(PlayedRecipe):
    """What decides the bytes of each of these datasets.

    Attributes:
        environment_id: The registered environment that scores.
        steps: Steps in the dataset.
        episode_steps: Steps of an episode.
        noise: Noise of the oracle, as the class says.
        seed: Root of all randomness.
    """

    environment_id: str
    steps: int
    episode_steps: int
    noise: float
    seed: int

    records_elsewhere = True
    version = 1  # raised whenever the same parameters would give other bytes

    def lengths(self, limit: int) -> list[int]:  # noqa: ARG002 (episodes of the data are longer)
        whole, rest = divmod(self.steps, self.episode_steps)
        return [self.episode_steps] * whole + ([rest] if rest else [])

    def episodes(self, first: int, last: int) -> Iterator[Episode]:
        """Yield episodes `first` to `last - 1`."""
        check_installed(self.environment_id)
        lengths = self.lengths(0)
        env = self._environment()
        try:
            for index in range(first, last):
                reset_seed, stream = np.random.SeedSequence((self.seed, index)).generate_state(2)
                with numpy_seed(int(stream)):
                    episode = self._episode(env, int(reset_seed), lengths[index])
                yield episode
        finally:
            env.close()

    def expert(self) -> Expert | None:
        """Return None: scores of 0 and 100 are OGBench's, no goal reached and all of them."""
        return None

    def _environment(self) -> Any:
        """Return what records: OGBench's environment, whose episodes go on at goals."""
        raise NotImplementedError

    def _episode(self, env: Any, reset_seed: int, length: int) -> Episode:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class NavigateRecipe(_OGBenchRecipe):
    """A ball visits random goals; `noise` is the standard deviation of noise on its actions.

    Attributes:
        maze: OGBench's name of the maze.
    """

    maze: str

    name = "ogbench-navigate"

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""
        return (
            "OGBench's oracle of point mazes, full speed towards the next cell on the shortest way, "
            f"plus Gaussian noise of {self.noise:g}, clipped; goals drawn uniformly from the ends, "
            "corners and crossings of the maze, a new one on arrival"
        )

    def _environment(self) -> Any:
        return maze(self.maze, terminate_at_goal=False)

    def _episode(self, env: Any, reset_seed: int, length: int) -> Episode:
        free = [(int(row), int(column)) for row, column in np.argwhere(env.maze_map == 0)]
        ends = [cell for cell in free if not _is_hallway(env.maze_map, *cell)]
        start, goal = _draw(free), _draw(ends)
        env.action_space.seed(reset_seed)
        task = {"init_ij": start, "goal_ij": goal}
        observation, _ = env.reset(seed=reset_seed, options={"task_info": task})
        noise = np.random.normal(0, self.noise, (length, 2))  # noqa: NPY002
        ways: dict[Any, np.ndarray] = {}
        record = _Record(PLACE, observation, env.cur_goal_xy)
        for step in range(length):
            place, wanted = env.get_xy(), env.cur_goal_xy
            cells = (env.xy_to_ij(place), env.xy_to_ij(wanted))
            if cells not in ways:
                ways[cells] = env.get_oracle_subgoal(place, wanted)[0]
            direction = ways[cells] - place
            direction = direction / (np.linalg.norm(direction) + 1e-6)
            action = np.clip(direction + noise[step], -1, 1).astype(np.float32)
            observation, reward, _, _, info = env.step(action)
            if info["success"]:
                env.set_goal(goal_xy=env.add_noise(env.ij_to_xy(_draw(ends))))
            record.add(action, reward, observation, env.cur_goal_xy)
        return record.episode(reset_seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayRecipe(_OGBenchRecipe):
    """A robot arm moves a cube to random places; `noise` is that of its plans."""

    name = "ogbench-play"

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""
        return (
            "OGBench's plan oracle of the cube: picks it up, carries it to a place drawn uniformly "
            f"from the table and leaves, along a plan with smoothed Gaussian noise of {self.noise:g}; "
            "then to the next place"
        )

    def _environment(self) -> Any:
        return cube(mode="data_collection", terminate_at_goal=False)

    def _episode(self, env: Any, reset_seed: int, length: int) -> Episode:
        from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

        oracle = CubePlanOracle(env=env, noise=self.noise, noise_smoothing=0.5)
        observation, info = env.reset(seed=reset_seed)
        oracle.reset(observation, info)
        target = _in_units_of_observations(info)
        record = _Record(CUBE, observation, target)
        for _ in range(length):
            action = np.clip(oracle.select_action(observation, info), -1, 1).astype(np.float32)
            observation, reward, _, _, info = env.step(action)
            if oracle.done:
                planned = env.set_new_target(p_stack=0.0)
                oracle.reset(*planned)
                target = _in_units_of_observations(planned[1])
            record.add(action, reward, observation, target)
        return record.episode(reset_seed)


class _Record:
    """Collects the steps of an episode."""

    def __init__(self, achieved: slice, observation: np.ndarray, goal: Any) -> None:
        self._achieved = achieved
        self._observations = [goal_observation(observation, achieved, goal)]
        self._actions: list[np.ndarray] = []
        self._rewards: list[float] = []

    def add(self, action: np.ndarray, reward: float, observation: np.ndarray, goal: Any) -> None:
        self._actions.append(action)
        self._rewards.append(float(reward))
        self._observations.append(goal_observation(observation, self._achieved, goal))

    def episode(self, reset_seed: int) -> Episode:
        return finished_episode(self._observations, self._actions, self._rewards, (False, True), seed=reset_seed)


def _draw(cells: list[tuple[int, int]]) -> tuple[int, int]:
    return cells[np.random.randint(len(cells))]  # noqa: NPY002


def _is_hallway(walls: np.ndarray, row: int, column: int) -> bool:
    """Return whether a free cell leads straight on between two walls."""
    above, below = walls[row - 1, column], walls[row + 1, column]
    left, right = walls[row, column - 1], walls[row, column + 1]
    return bool(above == below and left == right and above != left)


def _in_units_of_observations(info: dict[str, Any]) -> np.ndarray:
    """Return the place where the cube shall be, in the units that observations give it in."""
    place: np.ndarray = (info["privileged/target_block_pos"] - [0.425, 0.0, 0.0]) * 10.0
    return place


DATASETS = {
    "ogbench-local/pointmaze-medium-navigate-v1": CatalogueEntry(
        description=(
            "For goal-conditioned algorithms: a ball visits random goals in OGBench's medium maze, "
            "1,000 episodes of 1,000 steps; the scored tasks are OGBench's five. Made as OGBench's "
            "pointmaze-medium-navigate, by its oracle."
        ),
        recipe=NavigateRecipe(
            environment_id="orlog/ogbench-pointmaze-medium-v1",
            maze="medium",
            steps=1_000_000,
            episode_steps=1_000,
            noise=0.5,
            seed=30,
        ),
    ),
    "ogbench-local/cube-single-play-v1": CatalogueEntry(
        description=(
            "For goal-conditioned algorithms: a robot arm carries a cube from place to place, 200 "
            "episodes of 1,000 steps; the scored tasks are OGBench's five, with the cube's place as "
            "the goal. Made as OGBench's cube-single-play, by its oracle, and a fifth as long."
        ),
        recipe=PlayRecipe(
            environment_id="orlog/ogbench-cube-single-v1", steps=200_000, episode_steps=1_000, noise=0.1, seed=31
        ),
    ),
}
