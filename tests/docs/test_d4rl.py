"""D4RL from the name of a dataset to a score, with files of its layouts from a server on this machine.

The layouts are those that Farama-Foundation/D4RL@89141a689b:scripts/generation write, with the columns,
sizes and kinds of numbers that tensorflow/datasets@0a77a814ef:tensorflow_datasets/d4rl/dataset_builder.py
finds in the files. The server has them under the paths of the real one, and the index that ships names it
in place of the real one.
"""

import hashlib
import json
from urllib.parse import urlsplit

import h5py
import msgspec
import numpy as np
import pytest

from orlog import load_dataset
from orlog.datasets import listing
from orlog.datasets.download import sources
from orlog.manifests import shipped
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.index import Index
from tests.command_line import orlog
from tests.servers import FileServer

STEPS = 60
EPISODE = 20


def rows(dataset, steps=STEPS, *, timeouts=True):
    """Return the columns that all of D4RL's files have; `gym_mujoco` and `flow_idm.py` write no others."""
    one = benchmark_environment(dataset)
    rng = np.random.default_rng(0)
    shape, actions = one.observation_shape, one.actions
    body = {
        "observations": rng.normal(size=(steps, *shape)).astype("float32"),
        "actions": rng.uniform(actions.low, actions.high, (steps, actions.size)).astype("float32"),
        "rewards": rng.normal(size=steps).astype("float32"),
        "terminals": np.zeros(steps, bool),
    }
    if timeouts:
        body["timeouts"] = np.arange(steps) % EPISODE == EPISODE - 1
    return body


def infos(**widths):
    return {f"infos/{name}": np.ones((STEPS, width), "float32") for name, width in widths.items()}


def weights(body):
    """Return the policy of `metadata`, of three layers."""
    size = (body["observations"].shape[1], body["actions"].shape[1])
    shapes = {"fc0": (8, size[0]), "fc1": (8, 8), "last_fc": (size[1], 8), "last_fc_log_std": (size[1], 8)}
    layers = {f"metadata/policy/{layer}/weight": np.ones(shape, "float32") for layer, shape in shapes.items()}
    biases = {f"metadata/policy/{layer}/bias": np.ones(shape[0], "float32") for layer, shape in shapes.items()}
    return {"metadata/policy/nonlinearity": np.bytes_("relu"), **layers, **biases}


def locomotion(dataset):
    """`mujoco/collect_data.py`: states, log-probabilities, and the weights of the policy."""
    body = rows(dataset)
    body["next_observations"] = np.roll(body["observations"], -1, axis=0)
    body["infos/action_log_probs"] = np.zeros(STEPS, "float32")
    body["metadata/algorithm"], body["metadata/iteration"] = np.bytes_("SAC"), np.int32(600)
    return {**body, **infos(qpos=6, qvel=6), **weights(body)}


def replay(dataset):
    """`mujoco/convert_buffer.py`: every number a double, and no weights."""
    body = {key: values for key, values in locomotion(dataset).items() if "policy" not in key}
    return {key: values.astype("float64") if values.dtype == np.float32 else values for key, values in body.items()}


def with_goal(dataset):
    """`generate_ant_maze_datasets.py`, `generate_maze2d_datasets.py`: goal and state as infos."""
    reached = np.random.default_rng(2).random(STEPS) < 0.1
    size = 15 if "ant" in dataset else 2
    return {**rows(dataset), "rewards": reached.astype("float32"), **infos(goal=2, qpos=size, qvel=size)}


def maze2d_v0(dataset):
    """The first maze2d files: without timeouts."""
    return {key: values for key, values in with_goal(dataset).items() if key != "timeouts"}


def hand(dataset):
    """`hand_dapg_demos.py`: states, and where the objects are that an episode places."""
    places = {"door": {"door_body_pos": 3}, "hammer": {"board_pos": 3, "target_pos": 3}, "pen": {"desired_orien": 4}}
    return {**rows(dataset), **infos(qpos=30, qvel=30, **places[dataset.split("/")[1].split("-")[0]])}


def hand_cloned(dataset):
    """`hand_dapg_combined.py`: and the weights of the cloned policy, the other way around."""
    body = hand(dataset)
    turned = {key: values.T for key, values in weights(body).items() if "log_std" not in key}
    return {**body, "metadata/algorithm": np.bytes_("BC"), **turned}


def kitchen(dataset):
    """`generate_kitchen_datasets.py`: flags that are floats, and infos that are one column."""
    body = rows(dataset, timeouts=False)
    body["terminals"] = (np.arange(STEPS) % EPISODE == EPISODE - 1).astype("float32")
    return {**body, "infos": np.repeat(np.arange(3), EPISODE)}


def flow(dataset):
    return rows(dataset, 1200, timeouts=False)


def fourrooms():
    """`generate_minigrid_fourroom_data.py`: actions that are choices, kept as floats."""
    rng = np.random.default_rng(4)
    return {
        "observations": rng.integers(0, 9, (STEPS, 7, 7, 3)).astype("float32"),
        "actions": rng.integers(0, 3, STEPS).astype("float32"),
        "rewards": np.zeros(STEPS, "float32"),
        "terminals": np.arange(STEPS) % EPISODE == EPISODE - 1,
        **infos(goal=2, orientation=1, pos=2),
    }


class Upstream:
    """A server with files under the paths that D4RL's server has them, which the index names."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.index = shipped.shipped_index("d4rl")
        self.real = self.index

    def has(self, dataset, body):
        """Let the server have a dataset's file; the index knows its checksum if the real one does."""
        version, entry = "1.0.1", self.real.foreign[dataset]["1.0.1"]
        path = self.folder / urlsplit(entry.url).path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            for key, values in body.items():
                file[key] = values
        data = path.read_bytes()
        url = f"{self.server.url}{urlsplit(entry.url).path}"
        entry = msgspec.structs.replace(entry, url=url)
        if entry.sha256 is not None:
            sha256 = hashlib.sha256(data).hexdigest()
            entry = msgspec.structs.replace(entry, sha256=sha256, size_bytes=len(data))
        self.index = Index(foreign={**self.index.foreign, dataset: {version: entry}})
        return path


@pytest.fixture
def upstream(tmp_path, monkeypatch):
    (tmp_path / "served").mkdir()
    monkeypatch.chdir(tmp_path)
    with FileServer(tmp_path / "served") as server:
        one = Upstream(tmp_path / "served", server)
        for module in (listing, sources, shipped):
            monkeypatch.setattr(module, "shipped_index", lambda _: one.index)
        yield one


def run(*arguments):
    ended = orlog(*arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def download(upstream, dataset, body):
    upstream.has(dataset, body)
    run("download", dataset)
    return load_dataset(dataset)


def test_the_lines_of_the_readme(upstream):
    """With `--steps` and `--episodes`, since a million steps take hours."""
    upstream.has("d4rl/hopper-medium-v2", locomotion("d4rl/hopper-medium-v2"))
    run("download", "d4rl/hopper-medium-v2")
    said = run("train", "iql", "d4rl/hopper-medium-v2", "--steps", "20")
    assert "orlog evaluate runs/iql/d4rl/hopper-medium-v2/seed-0" in said
    said = run("evaluate", "runs/iql/d4rl/hopper-medium-v2/seed-0", "--episodes", "2")
    assert "note: returns were measured in Hopper-v4 (" in said
    assert "measured in mujoco-py and gym of 2020" in said
    one = benchmark_environment("d4rl/hopper-medium-v2")
    for text in one.differences:
        assert text in said
    scored = run("evaluate", "runs/iql/d4rl/hopper-medium-v2/seed-0", "--episodes", "2", "--json")
    body = json.loads(scored[scored.index("{") :])
    # D4RL's references of hopper: -20.272305 and 3234.3.
    expected = 100 * (np.mean(body["returns"]) + 20.272305) / (3234.3 + 20.272305)
    assert body["normalized_score"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("dataset", "layout"),
    [
        ("d4rl/walker2d-medium-v0", rows),
        ("d4rl/ant-expert-v2", locomotion),
        pytest.param("d4rl/halfcheetah-medium-replay-v1", replay, marks=pytest.mark.thorough),
        ("d4rl/antmaze-umaze-v2", with_goal),
        ("d4rl/maze2d-open-dense-v0", maze2d_v0),
        pytest.param("d4rl/pen-human-v1", hand, marks=pytest.mark.thorough),
        ("d4rl/door-cloned-v1", hand_cloned),
        pytest.param("d4rl/kitchen-mixed-v0", kitchen, marks=pytest.mark.thorough),
    ],
)
def test_each_layout_is_downloaded_trained_and_scored(upstream, dataset, layout):
    body = layout(dataset)
    here = download(upstream, dataset, body)
    one = benchmark_environment(dataset)
    assert here.manifest.benchmark == dataset
    assert here.environment == one.record is not None
    assert here.action_space.low.tolist() == [-1] * one.actions.size
    told = {key for key in body if key.startswith("infos")}
    columns = {name for name in here.columns if name.startswith("infos/")}
    assert columns == {key if "/" in key else "infos/infos" for key in told}
    assert not any("metadata" in name for name in here.columns)
    np.testing.assert_array_equal(here[0].actions[:5], body["actions"][:5])
    run("train", "bc", dataset, "--steps", "20", "--evaluations", "0")
    scored = run("evaluate", f"runs/bc/{dataset}/seed-0", "--episodes", "1", "--json")
    result = json.loads(scored[scored.index("{") :])
    assert result["protocol"]["max_episode_steps"] == one.horizon
    assert "mujoco" in result["protocol"]["versions"]
    assert result["normalized_score"] is not None


@pytest.mark.parametrize(
    ("dataset", "layout"),
    [
        ("d4rl/bullet-hopper-medium-v0", rows),
        pytest.param("d4rl/bullet-maze2d-umaze-v0", with_goal, marks=pytest.mark.thorough),
        ("d4rl/flow-merge-random-v0", flow),
        pytest.param("d4rl/carla-lane-v0", flow, marks=pytest.mark.thorough),
    ],
)
def test_what_cannot_be_scored_is_trained(upstream, dataset, layout):
    body = layout(dataset)
    here = download(upstream, dataset, body)
    one = benchmark_environment(dataset)
    assert (here.environment, here.benchmark) == (None, dataset)
    assert "checksum" in here.manifest.description
    refused = orlog("train", "bc", dataset, "--steps", "20")
    assert refused.returncode == 1
    assert one.reason in refused.stderr
    run("train", "bc", dataset, "--steps", "20", "--evaluations", "0")
    ended = orlog("evaluate", f"runs/bc/{dataset}/seed-0")
    assert ended.returncode != 0
    assert one.reason in ended.stderr
    assert "Traceback" not in ended.stderr


def test_choices_are_kept_as_choices(upstream):
    dataset = "d4rl/minigrid-fourrooms-v0"
    body = fourrooms()
    here = download(upstream, dataset, body)
    assert str(here.action_space) == "Discrete(7)"
    np.testing.assert_array_equal(here[0].actions, body["actions"][: len(here[0].actions)])
    run("train", "bc", dataset, "--steps", "20", "--evaluations", "0")
    ended = orlog("train", "td3bc", dataset, "--steps", "20")
    assert ended.returncode != 0
    assert "takes" in ended.stderr
    assert "Discrete(7)" in ended.stderr
    other = "d4rl/minigrid-fourrooms-random-v0"
    upstream.has(other, {**body, "actions": body["actions"] + 0.5})
    ended = orlog("download", other)
    assert "actions: expected a number from 0 to 6, found" in ended.stderr
    upstream.has(other, {**body, "actions": body["actions"][:, None]})
    run("download", other)
    np.testing.assert_array_equal(load_dataset(other)[0].actions, here[0].actions)


def test_a_dataset_without_a_checksum_is_trusted_at_first_and_says_so(upstream):
    """65 of D4RL's files have no published checksum; 8 names share a file that has one."""
    upstream.has("d4rl/maze2d-umaze-v0", maze2d_v0("d4rl/maze2d-umaze-v0"))
    said = run("download", "d4rl/maze2d-umaze-v0")
    assert "upstream publishes no checksum: first download trusted" in said
    long, short = "d4rl/door-human-longhorizon-v1", "d4rl/door-human-v1"
    assert upstream.real.foreign[long]["1.0.1"].sha256 is not None
    assert upstream.real.foreign[long]["1.0.1"].sha256 == upstream.real.foreign[short]["1.0.1"].sha256


def test_a_file_of_ones_own_is_imported_like_one_of_d4rl(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name, body):
        with h5py.File(tmp_path / name, "w") as file:
            for key, values in body.items():
                file[key] = values
        return tmp_path / name

    like = "d4rl/hopper-medium-v2"
    mine = write("my_hopper.hdf5", locomotion(like))
    arguments = ["import", str(mine), "lab/hopper-v1", "--format", "d4rl"]
    run(*arguments, "--like", like)
    here = load_dataset("lab/hopper-v1")
    assert here.benchmark == like
    assert here.environment is not None
    assert here.environment.id == "Hopper-v4"
    assert str(here.action_space) == "Box(-1.0, 1.0, (3,), float32)"
    run("train", "bc", "lab/hopper-v1", "--steps", "20", "--evaluations", "0")
    scored = run("evaluate", "runs/bc/lab/hopper-v1/seed-0", "--episodes", "2", "--json")
    body = json.loads(scored[scored.index("{") :])
    expected = 100 * (np.mean(body["returns"]) + 20.272305) / (3234.3 + 20.272305)
    assert body["normalized_score"] == pytest.approx(expected, rel=1e-9)
    arguments[2] = "lab/hopper-v2"
    ended = orlog(*arguments, "--like", "d4rl/walker2d-medium-v2")
    assert ended.returncode == 1
    assert (
        "observations of 11 and actions of 3 do not fit d4rl/walker2d-medium-v2 (environment "
        "walker2d), which has observations of 17 and actions of 6."
    ) in ended.stderr
    # Without timeouts, the benchmark's horizon ends episodes.
    plain = rows(like, 1200, timeouts=False)
    plain["terminals"][500] = True
    write("my_hopper.hdf5", plain)
    run(*arguments, "--like", like)
    assert load_dataset("lab/hopper-v2").episode_lengths.tolist() == [501, 698]
