import dataclasses

import numpy as np
import pytest

from orlog.datasets.worlds.environments import check_installed, make_environment
from orlog.datasets.worlds.pointmaze import PointMazeRecipe
from orlog.datasets.worlds.recipe import catalogue, parts_of
from orlog.errors import MissingExtraError
from orlog.manifests.names import parse_name
from orlog.manifests.shipped import recorded_folder, recorded_manifest, records_folder


@pytest.mark.parametrize("name", catalogue())
def test_an_entry_has_a_plain_name_a_version_and_a_maze_with_a_goal_and_a_start(name):
    entry = catalogue()[name]
    assert parse_name(name).name == name
    assert parse_name(f"{name}@{entry.version}").version == entry.version
    if not isinstance(entry.recipe, PointMazeRecipe):
        return
    maze = entry.recipe.maze
    assert {len(row) for row in maze} == {len(maze[0])}
    border = maze[0] + maze[-1] + "".join(row[0] + row[-1] for row in maze)
    assert set(border) == {"#"}
    cells = "".join(maze)
    assert (cells.count("g") == 1 and "r" in cells) or set(cells) == {"#", "c"}


def test_no_two_entries_hold_the_same_data():
    recipes = [entry.recipe for entry in catalogue().values()]
    assert len(set(recipes)) == len(recipes)


@pytest.mark.parametrize("name", catalogue())
def test_a_recorded_manifest_is_that_of_the_recipe(name):
    entry = catalogue()[name]
    manifest = recorded_manifest(name, entry.version)
    if manifest is None:
        pytest.skip(f"no manifest of {name} is recorded")
    assert (manifest.name, manifest.version) == (name, entry.version)
    assert manifest.total_steps == entry.recipe.steps
    assert (manifest.recipe.name, manifest.recipe.version, manifest.recipe.seed) == (
        entry.recipe.name,
        entry.recipe.version,
        entry.recipe.seed,
    )
    assert manifest.recipe.parameters == entry.recipe.parameters
    assert (manifest.description, manifest.license) == (entry.description, entry.license)
    assert manifest.behavior_policy == entry.recipe.behavior_policy


def leaves(values, path=""):
    """Yield every value of an episode, arrays as their bytes."""
    if dataclasses.is_dataclass(values):
        values = {one.name: getattr(values, one.name) for one in dataclasses.fields(values)}
    if isinstance(values, dict):
        for name, value in values.items():
            yield from leaves(value, f"{path}/{name}")
    elif isinstance(values, np.ndarray):
        yield path, (values.dtype, values.shape, values.tobytes())
    else:
        yield path, values


def row(values, step):
    if isinstance(values, dict):
        return {name: row(value, step) for name, value in values.items()}
    return values[step]


WORLDS = {one.recipe.environment_id + one.recipe.name: name for name, one in catalogue().items()}
SLOW = {"tabular/icu-sepsis-v1": pytest.mark.thorough}


@pytest.mark.parametrize("name", [pytest.param(one, marks=SLOW.get(one, ())) for one in WORLDS.values()])
def test_an_episode_depends_on_its_number_alone_and_its_actions_give_it_again(name):
    recipe = catalogue()[name].recipe
    try:
        check_installed(recipe.environment_id)
    except MissingExtraError as error:
        pytest.skip(str(error))
    part = parts_of(recipe)[-1]
    *_, episode = part.episodes(0, 3)
    (alone,) = part.episodes(2, 3)
    assert dict(leaves(alone)) == dict(leaves(episode))
    if getattr(recipe, "records_elsewhere", False):
        return
    with make_environment(recipe.environment_id, recipe.environment_kwargs) as env:
        seen, _ = env.reset(seed=episode.seed)
        for step in range(len(episode)):
            np.testing.assert_equal(row(episode.observations, step), seen)
            seen, reward, terminated, truncated, _ = env.step(row(episode.actions, step))
            assert reward == episode.rewards[step]
            assert terminated == episode.terminations[step]
            # A recipe may cut episodes before the environment's limit.
            assert truncated <= episode.truncations[step]
        np.testing.assert_equal(row(episode.observations, len(episode)), seen)


def test_records_lie_inside_the_package_and_what_was_not_recorded_is_none():
    assert recorded_folder("pointmaze/umaze-v1") == records_folder() / "pointmaze/umaze-v1"
    assert (records_folder() / "references").is_dir()
    assert recorded_manifest("pointmaze/unknown-v1", "1.0.0") is None
    assert recorded_manifest("pointmaze/umaze-v1", "99.0.0") is None
