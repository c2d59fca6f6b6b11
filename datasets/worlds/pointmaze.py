"""Recipes of the `pointmaze/...` datasets: a waypoint controller visits random goals in a maze.

This is the recipe of D4RL's maze2d (Fu et al. 2020, https://arxiv.org/abs/2004.07219, section 5)
in Gymnasium-Robotics' PointMaze. Data are recorded in the environment that scores are measured in:
its goal lies in one fixed cell, and its sparse reward is 1 while the ball is within 0.45 m of that
goal. The behavior policy does not know this goal. It draws its own goals, drives to each along the
shortest path over the cells, and draws the next one on arrival. Its actions thus show where *it*
was going, never where the reward is: imitation alone cannot solve the task, learned values can.

The `stitch` datasets are for goal-conditioned algorithms, after OGBench's (Park et al. 2025,
https://arxiv.org/abs/2410.20092, section 5): the environment draws a start and a goal anywhere in
the maze, while every recorded episode is a short piece that stays within a few cells of its start.
Reaching far goals thus takes parts of several episodes, one after another.

Every episode depends on (recipe seed, episode index) only. Episodes can therefore be made in any
order and by any number of processes, with the same bytes.

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of private goals and action noise
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, for_each, play_episode

Cell = tuple[int, int]

CONTROLLER = "waypoint proportional-derivative controller, action = clip(10 (waypoint - position) - velocity, -1, 1)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointMazeRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `pointmaze` dataset.

    Attributes:
        steps: Steps in the dataset; the last episode is cut (truncated) where they run out.
        maze: Rows of the maze, one character a cell: `#` wall, `g` the goal's cell of the scored
            task, `r` a cell where episodes start, `c` a cell where both may be.
        noise: Standard deviation of the Gaussian noise on each action before it is clipped.
        reached: Distance in meters at which the controller counts its goal as reached.
        episode_steps: Steps after which an episode is cut; None: the environment's limit.
        goal_moves: Most moves over the cells from an episode's start to the goals that the
            controller draws; None: any free cell.
    """

    steps: int
    maze: tuple[str, ...]
    environment_id: str = "PointMaze_UMaze-v3"
    noise: float = 0.5
    reached: float = 0.45
    seed: int = 0
    episode_steps: int | None = None
    goal_moves: int | None = None

    name = "pointmaze"

    @property
    def behavior_policy(self) -> str:
        """Description of the policy that chose the actions."""
        cells = "the free cells"
        if self.goal_moves is not None:
            cells += f" at most {self.goal_moves} moves from the start of the episode"
        return (
            f"{CONTROLLER}, plus Gaussian noise; goals drawn uniformly from {cells}, a new one on "
            "arrival; the goal of the scored task is unknown to it"
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything besides the seed that decides the bytes, as JSON."""
        # Those that came later are left out where they change nothing: old records stay equal.
        later = ("episode_steps", "goal_moves")
        every = super().parameters
        return {name: value for name, value in every.items() if name not in later or value is not None}

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments of `gymnasium.make`: reaching the goal neither ends an episode nor moves it."""
        codes: dict[str, int | str] = {"#": 1, "g": "g", "r": "r", "c": "c"}
        return {
            "maze_map": [[codes[cell] for cell in row] for row in self.maze],
            "continuing_task": True,
            "reset_target": False,
        }

    def free_cells(self) -> list[Cell]:
        """Cells without a wall, row by row."""
        return [
            (row, column) for row, cells in enumerate(self.maze) for column, cell in enumerate(cells) if cell != "#"
        ]

    def lengths(self, limit: int) -> list[int]:
        """Number of steps of each episode when the environment truncates at `limit` steps."""
        limit = min(limit, self.episode_steps or limit)
        whole, rest = divmod(self.steps, limit)
        return [limit] * whole + ([rest] if rest else [])

    def _goal_cells(self, start: Cell) -> list[Cell]:
        """Cells that the controller draws its goals from in an episode with this start."""
        cells = self.free_cells()
        if self.goal_moves is None:
            return cells
        moves = distances_to(self.maze, start)
        return [cell for cell in cells if moves[cell] <= self.goal_moves]

    def expert(self) -> Expert:
        """Return the controller without noise, driving to the goal of the scored task."""
        controller = WaypointController(self.maze)

        def choose(observation: Any) -> tuple[float, float]:
            x, y, velocity_x, velocity_y = observation["observation"].tolist()
            goal_x, goal_y = observation["desired_goal"].tolist()
            return controller.action(x, y, velocity_x, velocity_y, (goal_x, goal_y))

        return Expert(name=f"{CONTROLLER}, to the goal of the scored task", policy=for_each(choose))

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode."""
        length = self.lengths(env.spec.max_episode_steps)[index]
        controller = WaypointController(self.maze)
        half = (len(self.maze[0]) / 2, len(self.maze) / 2)
        noise = iter((rng.standard_normal((length, 2)) * self.noise).tolist())
        cells: list[Cell] = []
        goal = (0.0, 0.0)

        def choose(observation: Any) -> tuple[np.ndarray, dict[str, Any]]:
            nonlocal goal
            x, y, velocity_x, velocity_y = observation["observation"].tolist()
            if not cells:
                cells.extend(self._goal_cells(controller.cell(x, y)))
                goal = _draw_goal(rng, cells, half)
            while math.hypot(goal[0] - x, goal[1] - y) <= self.reached:
                goal = _draw_goal(rng, cells, half)
            force = controller.action(x, y, velocity_x, velocity_y, goal)
            pushed = [min(1.0, max(-1.0, push + added)) for push, added in zip(force, next(noise), strict=True)]
            return np.array(pushed, np.float32), {"behavior_goal": np.array(goal)}

        return play_episode(env, reset_seed, choose, most=length)


def _draw_goal(rng: np.random.Generator, cells: list[Cell], half: tuple[float, float]) -> tuple[float, float]:
    """Draw a point within 0.25 m of the center of a free cell, as the environment draws its own."""
    row, column = cells[int(rng.random() * len(cells))]
    jitter_x, jitter_y = rng.random(2).tolist()
    return (column + 0.5 - half[0] + 0.5 * jitter_x - 0.25, half[1] - row - 0.5 + 0.5 * jitter_y - 0.25)


class WaypointController:
    """Drives to a goal along the shortest path over the cells of a maze of 1 m cells."""

    def __init__(self, maze: tuple[str, ...]) -> None:
        self._maze = maze
        self._half_width = len(maze[0]) / 2
        self._half_height = len(maze) / 2
        self._next_cells: dict[Cell, dict[Cell, Cell]] = {}

    def action(
        self, x: float, y: float, velocity_x: float, velocity_y: float, goal: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the action, before noise, at a position (m) and velocity (m/s)."""
        cell = self.cell(x, y)
        goal_cell = self.cell(*goal)
        target_x, target_y = goal
        if cell != goal_cell:
            row, column = self._towards(goal_cell).get(cell, cell)
            if (row, column) != goal_cell:
                target_x = column + 0.5 - self._half_width
                target_y = self._half_height - row - 0.5
        return (
            min(1.0, max(-1.0, 10.0 * (target_x - x) - velocity_x)),
            min(1.0, max(-1.0, 10.0 * (target_y - y) - velocity_y)),
        )

    def cell(self, x: float, y: float) -> Cell:
        """Return the cell of a position (m)."""
        return math.floor(self._half_height - y), math.floor(x + self._half_width)

    def _towards(self, goal: Cell) -> dict[Cell, Cell]:
        """Map each free cell to its neighbor on a shortest path to the goal's cell."""
        if goal not in self._next_cells:
            distances = distances_to(self._maze, goal)
            self._next_cells[goal] = {
                cell: min(_neighbors(cell), key=lambda near: distances.get(near, math.inf))
                for cell in distances
                if cell != goal
            }
        return self._next_cells[goal]


def distances_to(maze: tuple[str, ...], goal: Cell) -> dict[Cell, int]:
    """Return the number of moves from each reachable free cell to `goal` (breadth first)."""
    distances = {goal: 0}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for near in _neighbors(cell):
            if near not in distances and maze[near[0]][near[1]] != "#":
                distances[near] = distances[cell] + 1
                queue.append(near)
    return distances


def _neighbors(cell: Cell) -> tuple[Cell, ...]:
    row, column = cell
    return (row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)


UMAZE = ("#####", "#grr#", "###r#", "#rrr#", "#####")

# The mazes and goals of D4RL's maze2d (`d4rl/pointmaze/maze_model.py`).
MEDIUM = ("########", "#rr##rr#", "#rr#rrr#", "##rrr###", "#rr#rrr#", "#r#rr#r#", "#rrr#rg#", "########")
LARGE = (
    "############",
    "#rrrr#rrrrr#",
    "#r##r#r#r#r#",
    "#rrrrrr#rrr#",
    "#r####r###r#",
    "#rr#r#rrrrr#",
    "##r#r#r#r###",
    "#rr#rrr#rgr#",
    "############",
)


def _goals_anywhere(maze: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(row.replace("r", "c").replace("g", "c") for row in maze)


DATASETS = {
    "pointmaze/umaze-v1": CatalogueEntry(
        description=(
            "A force-driven ball visits random goals in a U-shaped maze; the scored task is to "
            "reach one fixed cell and stay there. The recipe of D4RL's maze2d-umaze in "
            "Gymnasium-Robotics: 1 million steps."
        ),
        recipe=PointMazeRecipe(steps=1_000_000, maze=UMAZE),
    ),
    "pointmaze/umaze-mini-v1": CatalogueEntry(
        description=(
            "20,000 steps made as pointmaze/umaze-v1 is, with another seed: for tests and first "
            "steps. Too small to learn the task from."
        ),
        recipe=PointMazeRecipe(steps=20_000, maze=UMAZE, seed=1),
    ),
    "pointmaze/medium-v1": CatalogueEntry(
        description=(
            "A force-driven ball visits random goals in a maze of 26 cells; the scored task is to "
            "reach one fixed cell and stay there. The recipe of D4RL's maze2d-medium in "
            "Gymnasium-Robotics: 1 million steps."
        ),
        recipe=PointMazeRecipe(steps=1_000_000, maze=MEDIUM, environment_id="PointMaze_Medium-v3", seed=2),
    ),
    "pointmaze/large-v1": CatalogueEntry(
        description=(
            "A force-driven ball visits random goals in a maze of 46 cells; the scored task is to "
            "reach one fixed cell and stay there. The recipe of D4RL's maze2d-large in "
            "Gymnasium-Robotics: 1 million steps."
        ),
        recipe=PointMazeRecipe(steps=1_000_000, maze=LARGE, environment_id="PointMaze_Large-v3", seed=3),
    ),
    "pointmaze/medium-stitch-v1": CatalogueEntry(
        description=(
            "For goal-conditioned algorithms: a force-driven ball in a maze of 26 cells, 5,000 "
            "episodes of 100 steps, none of which leads far; the scored task is to reach a goal "
            "anywhere in the maze and stay there. After OGBench's pointmaze-medium-stitch."
        ),
        recipe=PointMazeRecipe(
            steps=500_000,
            maze=_goals_anywhere(MEDIUM),
            environment_id="PointMaze_Medium-v3",
            seed=4,
            episode_steps=100,
            goal_moves=3,
        ),
    ),
    "pointmaze/umaze-stitch-v1": CatalogueEntry(
        description=(
            "For goal-conditioned algorithms: a force-driven ball in a U of 7 cells, 4,000 episodes "
            "of 50 steps, none of which leads from one end to the other; the scored task is to "
            "reach a goal anywhere in the maze and stay there."
        ),
        recipe=PointMazeRecipe(steps=200_000, maze=_goals_anywhere(UMAZE), seed=5, episode_steps=50, goal_moves=2),
    ),
    "pointmaze/large-stitch-v1": CatalogueEntry(
        description=(
            "For goal-conditioned algorithms: a force-driven ball in a maze of 46 cells, 5,000 "
            "episodes of 100 steps, none of which leads far; the scored task is to reach a goal "
            "anywhere in the maze and stay there. After OGBench's pointmaze-large-stitch."
        ),
        recipe=PointMazeRecipe(
            steps=500_000,
            maze=_goals_anywhere(LARGE),
            environment_id="PointMaze_Large-v3",
            seed=6,
            episode_steps=100,
            goal_moves=4,
        ),
    ),
    "pointmaze/large-goals-v1": CatalogueEntry(
        description=(
            "For goal-conditioned algorithms: a force-driven ball visits random goals in a maze of "
            "46 cells, 625 episodes of 800 steps that lead all over it; the scored task is to reach "
            "a goal anywhere in the maze and stay there. 500,000 steps."
        ),
        recipe=PointMazeRecipe(steps=500_000, maze=_goals_anywhere(LARGE), environment_id="PointMaze_Large-v3", seed=7),
    ),
}
