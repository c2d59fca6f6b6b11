from __future__ import annotations

import pytest

from orlog.datasets.worlds.pointmaze import PointMazeRecipe
from orlog.datasets.worlds.recipe import catalogue
from orlog.manifests.names import parse_name
from orlog.manifests.shipped import recorded_folder, recorded_manifest, records_folder


@pytest.mark.parametrize("name", catalogue())
def test_an_entry_has_a_plain_name_a_version_and_a_maze_with_a_goal_and_a_start(name: str) -> None:
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


def test_no_two_entries_hold_the_same_data() -> None:
    recipes = [entry.recipe for entry in catalogue().values()]
    assert len(set(recipes)) == len(recipes)


@pytest.mark.parametrize("name", catalogue())
def test_a_recorded_manifest_is_that_of_the_recipe(name: str) -> None:
    entry = catalogue()[name]
    manifest = recorded_manifest(name, entry.version)
    if manifest is None:
        pytest.skip(f"no manifest of {name} is recorded")
    assert (manifest.name, manifest.version) == (name, entry.version)
    assert manifest.total_steps == entry.recipe.steps
    assert manifest.recipe is not None
    assert (manifest.recipe.name, manifest.recipe.version, manifest.recipe.seed) == (
        entry.recipe.name,
        entry.recipe.version,
        entry.recipe.seed,
    )
    assert manifest.recipe.parameters == entry.recipe.parameters
    assert (manifest.description, manifest.license) == (entry.description, entry.license)
    assert manifest.behavior_policy == entry.recipe.behavior_policy


def test_what_was_not_recorded_is_none() -> None:
    assert recorded_manifest("pointmaze/unknown-v1", "1.0.0") is None
    assert recorded_manifest("pointmaze/umaze-v1", "99.0.0") is None


def test_records_lie_inside_the_package() -> None:
    assert recorded_folder("pointmaze/umaze-v1") == records_folder() / "pointmaze/umaze-v1"
    assert (records_folder() / "references").is_dir()
