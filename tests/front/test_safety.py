"""The family safety from its commands: limits that are kept, and what is said where there is none."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import orlog
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import NotFoundError, SchemaError
from tests.command_line import orlog as run

SMALL = {"hidden": [8], "batch_size": 16}
ALGORITHMS = {
    "cpq": {**SMALL, "autoencoder_width": 8, "sampled_actions": 2},
    "cql_lagrangian": {**SMALL, "sampled_actions": 2},
    "percent_bc": {**SMALL, "percent": 100},
    "cdt": {"length": 3, "width": 8, "heads": 2, "layers": 1, "batch_size": 8},
}


def test_the_lines_of_the_family(home, tmp_path):
    del home
    assert run("build", "safety/hazard-mixed-v1").returncode == 0
    listed = json.loads(run("list", "--family", "safety", "--json").stdout)["datasets"]
    assert {one["name"] for one in listed} >= {
        f"safety/{task}-{behavior}-v1" for task in ("hazard", "circle") for behavior in ("safe", "mixed", "reckless")
    }
    words = ("train", "cpq", "safety/hazard-mixed-v1", "--cost-limit", "20")
    small = ("--steps", "20", "--evaluations", "0", "--hidden", "[8]")
    trained = run(*words, *small, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    folder = "runs/cpq/safety/hazard-mixed-v1/seed-0"
    found = run("evaluate", folder, "--episodes", "4", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    for limit in (10, 20, 40):
        assert f"normalized cost at {limit}" in found.stdout
    data = orlog.load_dataset("safety/hazard-mixed-v1")
    assert data.roles["infos/cost"] == "cost"
    assert list(orlog.audit(data).findings) == []
    for name, settings in ALGORITHMS.items():
        made = orlog.train(
            name, data, steps=3, evaluations=0, out=tmp_path / name, settings={**settings, "cost_limit": 30.0}
        )
        result = orlog.evaluate(made, episodes=3)
        assert "normalized cost at 30" in [one.name for one in result.numbers]


@pytest.mark.parametrize("name", ["percent_bc", "cdt"])
def test_a_limit_that_no_episode_keeps(name, home, tmp_path):
    del home
    data = costly([1.0, 2.0])
    settings = {**ALGORITHMS[name], "cost_limit": 2.0}
    with pytest.raises(ValueError, match=r"no episode has a cost of at most 2; the least is 4"):
        orlog.train(name, data, steps=1, evaluations=0, out=tmp_path / "x", settings=settings)


def test_costs_of_the_wrong_length_name_column_and_dataset(home):
    del home
    with (
        pytest.raises(SchemaError, match=r"lab/costly-v1.*cost"),
        orlog.DatasetWriter("lab/costly-v1", observation_space=BOX, action_space=BOX) as writer,
    ):
        add(writer, np.ones(3))


BOX = spaces.Box(-1, 1, (1,), np.float32)


def add(writer, costs):
    writer.add_steps(
        observations=np.zeros((5, 1), np.float32),
        actions=np.zeros((4, 1), np.float32),
        rewards=np.ones(4),
        terminations=np.arange(4) == 3,
        truncations=np.zeros(4, bool),
        infos={"cost": costs},
    )
    writer.end_episode()


def costly(costs):
    """Return data whose episodes of 4 steps have these costs in each step."""
    with orlog.DatasetWriter("lab/costly-v1", observation_space=BOX, action_space=BOX) as writer:
        for one in costs:
            add(writer, np.array([one] * 4))
    return orlog.load_dataset("lab/costly-v1")


def test_a_cost_limit_where_there_are_no_costs(mini_folder, tmp_path):
    for name, settings in ALGORITHMS.items():
        with pytest.raises(NotFoundError, match=r"no info 'cost', and no column with the role cost"):
            orlog.train(
                name,
                mini_folder,
                steps=1,
                evaluations=0,
                out=tmp_path / name,
                settings={**settings, "cost_limit": 20.0},
            )
    refused = run("train", "iql", str(mini_folder), "--cost-limit", "20")
    assert refused.returncode == 2
    assert "No such option: --cost-limit" in refused.stderr


@pytest.mark.parametrize("environment_id", ["orlog/Hazard-v0", "orlog/Circle-v0"])
def test_worlds_pass_gymnasiums_check(environment_id):
    check_env(make_environment(environment_id, {}).unwrapped, skip_render_check=True)
