import itertools
import math

import numpy as np
import pytest

from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.pointmaze import PointMazeRecipe, WaypointController, distances_to
from orlog.datasets.worlds.recipe import catalogue

UMAZE = ("#####", "#grr#", "###r#", "#rrr#", "#####")
RECIPE = PointMazeRecipe(steps=1000, maze=UMAZE, seed=3)
LIMIT = 300


def make_maze():
    return make_environment(RECIPE.environment_id, RECIPE.environment_kwargs)


def test_the_steps_are_split_into_episodes_of_the_limit_and_a_rest():
    assert RECIPE.lengths(LIMIT) == [300, 300, 300, 100]
    assert PointMazeRecipe(steps=600, maze=UMAZE).lengths(LIMIT) == [300, 300]
    assert [len(episode) for episode in RECIPE.episodes(2, 4)] == [300, 100]


def test_rewards_are_those_that_the_environment_computes(mini):
    with make_maze() as env:
        for episode in itertools.islice(mini, 0, None, 11):
            achieved = episode.observations["achieved_goal"][1:]
            desired = episode.observations["desired_goal"][1:]
            expected = env.unwrapped.compute_reward(achieved, desired, {})  # of goal environments only
            assert (episode.rewards == expected).all()
            assert ((np.linalg.norm(achieved - desired, axis=1) <= 0.45) == episode.rewards).all()


def test_what_all_episodes_have_in_common(mini):
    assert set(np.unique(mini.column("rewards"))) == {0.0, 1.0}
    assert 0.05 < mini.column("rewards").mean() < 0.5
    values = mini.column("actions")
    assert values.dtype == np.float32
    assert np.abs(values).max() == 1.0
    assert 0.1 < (np.abs(values) < 1).mean() < 0.9
    assert not mini.column("terminations").any()
    last = mini.episode_starts + mini.episode_lengths - 1
    assert mini.column("truncations").nonzero()[0].tolist() == last.tolist()
    assert mini.episode_lengths.tolist() == [LIMIT] * 66 + [20_000 - 66 * LIMIT]


def test_behavior_goals_lie_in_free_cells_and_near_their_centers(mini):
    goals = mini.column("infos/behavior_goal")
    columns, rows = np.floor(goals[:, 0] + 2.5), np.floor(2.5 - goals[:, 1])
    cells = {(int(row), int(column)) for row, column in zip(rows, columns, strict=True)}
    assert sorted(cells) == RECIPE.free_cells() == [(1, 1), (1, 2), (1, 3), (2, 3), (3, 1), (3, 2), (3, 3)]
    centers = np.stack([columns - 2, 2 - rows], 1)
    assert np.abs(goals - centers).max() <= 0.25


def test_a_behavior_goal_is_kept_until_it_is_reached(mini):
    recipe = catalogue()[mini.name].recipe
    reached = recipe.reached
    for episode in itertools.islice(mini, 0, None, 13):
        goals, positions = episode.infos["behavior_goal"], episode.observations["achieved_goal"]
        assert (np.linalg.norm(goals - positions[:-1], axis=1) > reached).all()
        changed = (goals[1:] != goals[:-1]).any(1)
        arrived = np.linalg.norm(goals[:-1] - positions[1:-1], axis=1) <= reached
        assert changed.sum() > 0
        assert (changed == arrived).all()


def test_the_scored_goal_stays_in_its_cell_whatever_the_behavior_goal(mini):
    desired = mini.column("observations/desired_goal")
    assert np.abs(desired - [-1.0, 1.0]).max() <= 0.25
    for episode in itertools.islice(mini, 0, None, 13):
        goals = episode.observations["desired_goal"]
        assert (goals == goals[0]).all()


def test_distances_in_a_maze_are_those_counted_by_hand():
    assert distances_to(UMAZE, (1, 1)) == {(1, 1): 0, (1, 2): 1, (1, 3): 2, (2, 3): 3, (3, 3): 4, (3, 2): 5, (3, 1): 6}
    assert distances_to(("#####", "#r#r#", "#####"), (1, 1)) == {(1, 1): 0}
    # Two ways around a pillar: the shorter one counts.
    ring = ("#####", "#rrr#", "#r#r#", "#rrr#", "#####")
    assert max(distances_to(ring, (1, 1)).values()) == distances_to(ring, (1, 1))[3, 3] == 4


@pytest.mark.parametrize(
    ("position", "goal", "expected"),
    [
        ((-1.0, 1.0), (-1.0, 1.0), (0.0, 0.0)),  # there
        ((-1.0, 1.0), (0.0, 1.0), (1.0, 0.0)),  # one cell to the right
        ((-1.0, 1.0), (-1.0, -1.0), (1.0, 0.0)),  # below, but the way leads to the right
        ((1.0, 1.0), (-1.0, -1.0), (0.0, -1.0)),  # around the corner
        ((1.0, -1.0), (-1.0, -1.0), (-1.0, 0.0)),
        ((0.05, 1.0), (0.0, 1.0), (-0.5, 0.0)),  # near: proportional
    ],
)
def test_the_controller_drives_along_the_shortest_path(position, goal, expected):
    controller = WaypointController(UMAZE)
    assert controller.action(*position, 0.0, 0.0, goal) == pytest.approx(expected)
    assert controller.action(0.0, 1.0, 0.7, -0.2, (0.0, 1.0)) == pytest.approx((-0.7, 0.2))  # it brakes


def test_the_controller_reaches_every_free_cell_from_every_other():
    controller = WaypointController(UMAZE)
    with make_maze() as env:
        for start, end in itertools.permutations(RECIPE.free_cells(), 2):
            found, _ = env.reset(seed=0, options={"reset_cell": np.array(start)})
            goal = (end[1] - 2.0, 2.0 - end[0])
            for _ in range(LIMIT):
                x, y, velocity_x, velocity_y = found["observation"].tolist()
                if math.hypot(goal[0] - x, goal[1] - y) <= 0.1:
                    break
                action = controller.action(x, y, velocity_x, velocity_y, goal)
                found, *_ = env.step(np.array(action, np.float32))
            else:
                pytest.fail(f"{end} not reached from {start}")


def test_pieces_to_stitch_stay_near_their_start_and_lead_everywhere_together():
    recipe = catalogue()["pointmaze/medium-stitch-v1"].recipe
    controller, visited, farthest, possible = WaypointController(recipe.maze), set(), 0, 0
    for episode in recipe.episodes(0, 60):
        assert len(episode) == recipe.episode_steps
        cells = [controller.cell(x, y) for x, y in episode.observations["achieved_goal"].tolist()]
        moves = distances_to(recipe.maze, cells[0])
        farthest = max(farthest, *(moves[cell] for cell in cells))
        possible = max(possible, *moves.values())
        visited.update(cells)
    assert visited == set(recipe.free_cells())
    # A piece never leads to the other end of the maze; noise may push it one cell farther.
    assert farthest <= recipe.goal_moves + 1 < possible


def test_settings_that_came_later_leave_old_records_as_they_were():
    assert set(RECIPE.parameters) == {"steps", "maze", "environment_id", "noise", "reached"}
    pieces = PointMazeRecipe(steps=1000, maze=UMAZE, episode_steps=100, goal_moves=2)
    assert {"episode_steps": 100, "goal_moves": 2}.items() <= pieces.parameters.items()
    assert pieces.lengths(LIMIT) == [100] * 10
