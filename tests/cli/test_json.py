"""What the commands print for scripts: one JSON document on stdout, words for people on stderr."""

import json
import re
from pathlib import Path

import pytest

from orlog.datasets.home.registries import add_registry
from orlog.datasets.publish.publish import foreign_file_entry, link_foreign_file
from orlog.datasets.worlds.recipe import catalogue
from tests.command_line import orlog as orlog_command
from tests.training import train_run

MINI = "pointmaze/umaze-mini-v1"
PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def run(*arguments):
    """Run a command that must succeed; return what it wrote to stdout and to stderr."""
    ended = orlog_command(*map(str, arguments))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def parsed(*arguments):
    """Return the JSON document that a command prints, with the keys of its row in docs/json.md."""
    out, err = run(*arguments, "--json")
    assert err == ""
    body = json.loads(out)
    command = "cache list" if arguments[0] == "cache" else arguments[0]
    (row,) = re.findall(rf"^\| `{command}` \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert set(body) <= set(re.findall("`([a-z_]+)`", row))
    return body


def test_what_is_listed_says_where_it_would_come_from(mini_folder):
    body = parsed("list")
    assert set(body) == {"folder", "datasets", "unreachable"}
    assert body["folder"] == str(mini_folder.parents[2])
    rows = {one["name"]: one for one in body["datasets"]}
    assert set(rows) == set(catalogue())
    assert (rows[MINI]["state"], rows[MINI]["steps"], rows[MINI]["command"]) == ("here", 20000, None)
    other = rows["pointmaze/umaze-v1"]
    assert (other["state"], other["source"]) == ("not here", "catalogue")
    assert other["command"] == "orlog build pointmaze/umaze-v1"
    (mini_folder / "manifest.json").write_text("{}")
    damaged = parsed("list", "mini")["datasets"]
    assert [(one["name"], one["state"]) for one in damaged] == [(MINI, "damaged")]
    assert "manifest" in damaged[0]["problem"]


def test_all_lists_the_names_of_d4rl_without_a_network():
    rows = parsed("list", "--all")["datasets"]
    names = [one["name"] for one in rows]
    assert names == sorted(set(names))
    from_d4rl = [one for one in rows if one["source"] == "d4rl"]
    assert len(from_d4rl) == 183
    assert all(one["command"] == f"orlog download {one['name']}" for one in from_d4rl)
    assert sum(one["size_bytes"] is None for one in from_d4rl) == 65  # nobody published them
    _, err = run("list", "--all", "hopper-medium-v2")
    assert "to get one: orlog download NAME" in err
    assert "orlog list --all nothing" in run("list", "nothing")[1]


def test_a_registry_that_does_not_answer_is_named_and_the_rest_is_listed(tmp_path):
    (tmp_path / "lab").mkdir()
    for name in ("lab/arm-v1", "d4rl/bullet-hopper-medium-v0"):
        entry = foreign_file_entry(url="https://data.example.org/arm.hdf5", format="d4rl-hdf5")
        link_foreign_file(str(tmp_path / "lab"), f"{name}@1.0.0", entry)
    add_registry("gone", "http://127.0.0.1:9/registry")
    add_registry("lab", str(tmp_path / "lab"))
    out, err = run("list", "--all", "--json")
    body = json.loads(out)
    assert list(body["unreachable"]) == ["gone"]
    assert "the registry gone does not answer" in err
    sources = {one["name"]: one["source"] for one in body["datasets"]}
    # The first registry that has a name is the one that it would come from.
    assert sources["lab/arm-v1"] == sources["d4rl/bullet-hopper-medium-v0"] == "lab"
    assert sources["d4rl/hopper-medium-v1"] == "d4rl"


def test_all_that_is_known_of_a_dataset(mini, tmp_path):
    body = parsed("show", MINI)
    assert (body["name"], body["version"], body["digest"]) == (MINI, "1.0.0", mini.digest)
    assert (body["folder"], body["steps"]) == (str(mini.folder), 20000)
    assert body["columns"][0] == {"name": "actions", "dtype": "float32", "shape": [2], "rows": 20000}
    assert body["environment"]["id"].startswith("PointMaze")
    assert [one["status"] for one in body["versions"]] == ["good"]
    path = mini[:3].save(tmp_path / "three.json")
    view = parsed("show", path)
    assert view["episodes"] == 3
    assert view["digest"] == mini[:3].digest
    assert view["lineage"][0]["digest"] == mini.digest
    elsewhere = parsed("show", "pointmaze/umaze-v1")
    assert elsewhere["folder"] is None
    assert {one["algorithm"] for one in elsewhere["baselines"]} >= {"bc", "cql", "iql"}


def test_a_policy_that_is_evaluated(mini, tmp_path):
    train_run("bc", mini, tmp_path / "run", seed=3, steps=5, evaluations=0)
    body = parsed("evaluate", tmp_path / "run", "--episodes", "2")
    assert (body["algorithm"], body["dataset"], body["seed"]) == ("bc", MINI, 3)
    assert (body["step"], body["steps"], body["digest"]) == (5, 5, mini.digest)
    assert len(body["returns"]) == 2
    assert body["mean_return"] == pytest.approx(sum(body["returns"]) / 2)
    assert isinstance(body["normalized_score"], float)


@pytest.mark.usefixtures("jobs_run_here")
def test_what_was_trained(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ("--steps", "3", "--evaluations", "0", "--json")
    for seeds, folders in ((("--seed", "4"), ["seed-4"]), (("--seeds", "0-1"), ["seed-0", "seed-1"])):
        out, err = run("train", "bc", MINI, *seeds, *few)
        body = json.loads(out)
        assert [Path(one["folder"]).name for one in body["runs"]] == folders
        assert {one["state"] for one in body["runs"]} == {"finished"}
        assert (body["runs"][0]["digest"], body["failures"]) == (mini.digest, [])
        assert "preset" in err
        keys = re.findall(r"^\| `runs` \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)[0]
        assert set(body["runs"][0]) <= set(re.findall("`([a-z_]+)`", keys))
    run("train", "iql", MINI, *few)
    body = json.loads(run("finetune", f"runs/iql/{MINI}/seed-0", *few)[0])
    assert [one["step"] for one in body["runs"]] == [3]


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_run_here")
def test_a_reproduction(mini, tmp_path):
    options = ["--seeds", 2, "--steps", 1000, "--episodes", 8, "--workers", 1, "--out", tmp_path]
    body = parsed("reproduce", "bc", MINI, *options)
    assert [one["seed"] for one in body["seeds"]] == [0, 1]
    assert all(len(one["returns"]) == 8 for one in body["seeds"])
    assert body["digest"] == mini.digest
    assert body["baseline"] is None
    assert body["verdict"] is None
    assert len(body["score_interval"]) == 2
    assert any("no baseline" in note for note in body["notes"])
