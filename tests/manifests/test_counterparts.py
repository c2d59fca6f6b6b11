import json
from collections import Counter

import gymnasium
import pytest

from orlog.datasets.worlds.environments import environment_versions, make_environment
from orlog.errors import NotFoundError
from orlog.manifests.counterparts import benchmark_environment, benchmark_environments, counterpart
from orlog.manifests.shipped import shipped_index
from orlog.manifests.tables import read_table

ENVIRONMENTS = {one.name: one for one in benchmark_environments()}


def test_every_dataset_of_d4rl_has_one_environment():
    counts = Counter(name for one in ENVIRONMENTS.values() for name in one.datasets)
    assert len(counts) == 183
    assert set(counts.values()) == {1}
    assert counts.keys() >= shipped_index("d4rl").foreign.keys()


def test_horizons_and_urls_are_those_of_the_table():
    table = {f"d4rl/{row['dataset_id']}": row for row in read_table("d4rl")}
    index = shipped_index("d4rl").foreign
    assert table.keys() == index.keys()
    for name, row in table.items():
        one = benchmark_environment(name)
        assert one is not None
        # The table leaves out Flow's limits; D4RL registers them.
        assert one.horizon == int(row["max_episode_steps"] or one.horizon)
        assert {entry.url for entry in index[name].values()} == {row["url"]}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_entry_says_what_to_score_in_or_why_not(name):
    one = ENVIRONMENTS[name]
    assert (one.counterpart is None) == bool(one.reason)
    assert (one.counterpart is None) == (not one.differences)
    assert bool(one.actions.choices) != bool(one.actions.size)
    assert one.observation_shape or one.counterpart is None
    assert not one.observation_names or [len(one.observation_names)] == one.observation_shape
    assert one.sources
    assert one.sources[0].startswith("Farama-Foundation/D4RL@89141a689b:d4rl/")
    assert all((text.endswith(".") and text[:1].islower()) or "D4RL" in text for text in one.differences)


# One of each kind; test_all_counterparts_are_made goes through them all.
KINDS = ("hopper", "ant", "maze2d-open-dense-v0", "antmaze-umaze-v2", "pen-longhorizon-v1")


def check(name):
    one = ENVIRONMENTS[name]
    assert one.record is not None
    with make_environment(one.record.id, one.record.kwargs) as env:
        assert env.spec is not None
        assert env.spec.max_episode_steps == one.horizon == one.record.max_episode_steps
        first, _ = env.reset(seed=3)
        again, _ = env.reset(seed=3)
        assert first.tolist() == again.tolist()
        assert env.observation_space.contains(first)
        assert list(first.shape) == one.observation_shape
        assert env.action_space == one.actions.space
    assert "mujoco" in environment_versions(one.record.id)


@pytest.mark.parametrize("name", KINDS)
def test_a_counterpart_is_made(name):
    check(name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, one in ENVIRONMENTS.items() if one.counterpart])
def test_all_counterparts_are_made(name):
    check(name)


def test_an_id_of_orlog_is_registered_when_it_is_used_and_no_other():
    gymnasium.registry.pop("orlog/maze2d-large-v1", None)
    make_environment("orlog/maze2d-large-v1", {}).close()
    assert "orlog/maze2d-large-v1" in gymnasium.registry
    for unknown in ("orlog/maze2d-large-v7", "orlog/os:system-v0", "orlog/hopper-v2"):
        with pytest.raises(NotFoundError, match="not registered"):
            make_environment(unknown, {})
        assert counterpart(unknown) is None


def test_a_name_that_no_benchmark_has_has_no_environment():
    assert benchmark_environment("d4rl/hopper-medium-v2") is ENVIRONMENTS["hopper"]
    assert benchmark_environment("hopper-medium-v2") is None
    assert benchmark_environment("lab/hopper-v1") is None
    assert json.dumps([one.name for one in benchmark_environments()]).isascii()
