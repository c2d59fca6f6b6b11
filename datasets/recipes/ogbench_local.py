"""Recipes of the `ogbench-local/...` datasets: OGBench's oracles record OGBench's data again.

OGBench (Park et al. 2025, https://arxiv.org/abs/2410.20092) publishes data for goal-conditioned
algorithms, which policies without any task record: a ball that visits one goal after another
(`navigate`), a robot arm that moves a cube from place to place (`play`). Where these policies are
oracles that need no training, the package `ogbench` has them, and the data are made here as
`generate_locomaze.py` and `generate_manipspace.py` of its repository make them. They are not the
published files: other random numbers, other versions of MuJoCo.

`desired_goal` is where the oracle was going, and changes during an episode; the reward is 1 in steps
that end there. Policies are scored on the five tasks of OGBench's evaluation
(`orlog.datasets.environments.ogbench`).

Every episode depends on (recipe seed, episode index) only. OGBench draws from NumPy's global
generator, which is seeded for each episode.

    episode i:  SeedSequence((seed, i)) -> reset seed, seed of NumPy's generator
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.environments import ogbench
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, parameters_of
from orlog.manifests.environments import check_installed


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OGBenchRecipe:
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

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""
        return parameters_of(self)

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`: none."""
        return {}

    def lengths(self, limit: int) -> list[int]:  # noqa: ARG002 (episodes of the data are longer)
        """Number of steps of each episode."""
        whole, rest = divmod(self.steps, self.episode_steps)
        return [self.episode_steps] * whole + ([rest] if rest else [])

    def episodes(self, first: int, last: int) -> Iterator[Episode]:
        """Yield episodes `first` to `last - 1`.

        Raises MissingExtraError if ogbench is not installed.
        """
        check_installed(self.environment_id)
        lengths = self.lengths(0)
        env = self._environment()
        try:
            for index in range(first, last):
                reset_seed, stream = np.random.SeedSequence((self.seed, index)).generate_state(2)
                with ogbench.numpy_seed(int(stream)):
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
        """Return an episode of this length."""
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
        return ogbench.maze(self.maze, terminate_at_goal=False)

    def _episode(self, env: Any, reset_seed: int, length: int) -> Episode:
        free = [(int(row), int(column)) for row, column in np.argwhere(env.maze_map == 0)]
        ends = [cell for cell in free if not _is_hallway(env.maze_map, *cell)]
        start, goal = _draw(free), _draw(ends)
        env.action_space.seed(reset_seed)
        task = {"init_ij": start, "goal_ij": goal}
        observation, _ = env.reset(seed=reset_seed, options={"task_info": task})
        noise = np.random.normal(0, self.noise, (length, 2))  # noqa: NPY002
        ways: dict[Any, np.ndarray] = {}
        record = _Record(ogbench.PLACE, observation, env.cur_goal_xy)
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
        return ogbench.cube(mode="data_collection", terminate_at_goal=False)

    def _episode(self, env: Any, reset_seed: int, length: int) -> Episode:
        from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

        oracle = CubePlanOracle(env=env, noise=self.noise, noise_smoothing=0.5)
        observation, info = env.reset(seed=reset_seed)
        oracle.reset(observation, info)
        target = _in_units_of_observations(info)
        record = _Record(ogbench.CUBE, observation, target)
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
        self._observations = [ogbench.goal_observation(observation, achieved, goal)]
        self._actions: list[np.ndarray] = []
        self._rewards: list[float] = []

    def add(self, action: np.ndarray, reward: float, observation: np.ndarray, goal: Any) -> None:
        """Add a step: its action and reward, and the observation and goal after it."""
        self._actions.append(action)
        self._rewards.append(float(reward))
        self._observations.append(ogbench.goal_observation(observation, self._achieved, goal))

    def episode(self, reset_seed: int) -> Episode:
        """Return the episode, truncated at its last step."""
        truncations = np.zeros(len(self._actions), np.bool_)
        truncations[-1] = True
        return Episode(
            observations={
                name: np.array([one[name] for one in self._observations])
                for name in self._observations[0]
            },
            actions=np.array(self._actions),
            rewards=np.array(self._rewards),
            terminations=np.zeros(len(self._actions), np.bool_),
            truncations=truncations,
            seed=reset_seed,
        )


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
        version="1.0.0",
        description=(
            "For goal-conditioned algorithms: a ball visits random goals in OGBench's medium maze, "
            "1,000 episodes of 1,000 steps; the scored tasks are OGBench's five. Made as OGBench's "
            "pointmaze-medium-navigate, by its oracle."
        ),
        license="CC0-1.0",
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
        version="1.0.0",
        description=(
            "For goal-conditioned algorithms: a robot arm carries a cube from place to place, 200 "
            "episodes of 1,000 steps; the scored tasks are OGBench's five, with the cube's place as "
            "the goal. Made as OGBench's cube-single-play, by its oracle, and a fifth as long."
        ),
        license="CC0-1.0",
        recipe=PlayRecipe(
            environment_id="orlog/ogbench-cube-single-v1",
            steps=200_000,
            episode_steps=1_000,
            noise=0.1,
            seed=31,
        ),
    ),
}
