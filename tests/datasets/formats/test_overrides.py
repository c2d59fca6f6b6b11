"""What users give in place of what files say: ends of episodes, rewards, environments and bounds."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import orlog
from orlog import OrlogError
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.formats.notes import sentences
from orlog.errors import NotFoundError, SchemaError
from tests.datasets.formats import (
    test_arrays,
    test_d4rl,
    test_imitation,
    test_lerobot,
    test_npz,
    test_rlds,
    test_robomimic,
    test_table,
    test_torchrl,
)
from tests.datasets.formats.reading import read_files
from tests.datasets.formats.test_layouts import write_aloha, write_calvin, write_maniskill, write_rllib, write_zarr

HOW = ("terminated", "truncated", "unknown")
MAPPED = {"observation": "obs/state", "action": "actions"}


def ends_of(dataset):
    return [
        "terminated" if one.terminations[-1] else "truncated" if one.truncations[-1] else "unknown" for one in dataset
    ]


def arrays(root):
    test_arrays.write_groups(root / "a.h5", [3, 5])
    return root / "a.h5", {"columns": MAPPED, "episode": "demo_*"}


def table_logs(root):
    body = test_table.logs([3, 4])
    test_table.write(body, root / "a.csv")
    given = test_table.OPTIONS
    columns = {role: one for role, one in given.columns.items() if role in ("observation", "action")}
    return root / "a.csv", {"columns": columns, "episode": given.episode}


def aloha(root):
    write_aloha(root / "a")
    return root / "a", {}


def zarr(root):
    write_zarr(root / "a.zarr", lengths=[4, 6])
    return root / "a.zarr", {}


@pytest.mark.parametrize("write", [arrays, table_logs, aloha, zarr])
@pytest.mark.parametrize("how", HOW)
def test_unknown_ends_are_what_the_user_says(tmp_path, write, how):
    path, said = write(tmp_path)
    found = {}
    for ends in ("", how):
        options = Options(**said, ends=ends)
        file_format = choose_format([path], None, "lab/a-v1", is_mapped=bool(said))
        found[ends] = read_files(file_format, path, tmp_path / f"store{ends}", options)
    assert set(ends_of(found[""][0])) == {"truncated"}
    dataset, told = found[how]
    assert set(ends_of(dataset)) == {how}
    assert any("--ends says" in one for one in sentences(told.notes))
    for one, before in zip(dataset, found[""][0], strict=True):
        # A last action that ended the task is kept, and what followed it is marked as missing.
        assert len(one) == len(before) + (how == "terminated")
        np.testing.assert_array_equal(one.actions[: len(before)], before.actions)
        assert one.metadata["final_observation_missing"] == (how == "terminated")


def calvin(root):
    write_calvin(root / "a")
    return root / "a", {}


def robomimic(root):
    test_robomimic.write(root / "a.hdf5", everywhere=True, dones=None)
    return root / "a.hdf5", {}


def rlds(root):
    steps = {name: one for name, one in test_rlds.STEPS.items() if name != "is_terminal"}
    test_rlds.write(root / "a", test_rlds.SAMPLE, steps)
    return root / "a", {}


def lerobot(root):
    test_lerobot.write(root / "a", "v2.1")
    info = root / "a" / "meta" / "info.json"
    body = json.loads(info.read_text())
    del body["features"]["next.done"]
    for file in (root / "a" / "data").rglob("*.parquet"):
        pq.write_table(pq.read_table(file).drop(["next.done"]), file)
    info.write_text(json.dumps(body))
    return root / "a", {}


def imitation(root):
    rows = [one | {"terminal": True} for one in test_imitation.trajectories()]
    test_imitation.write(root / "a", [{k: v for k, v in one.items() if k != "infos"} for one in rows])
    return root / "a", {}


def starts(root):
    columns = test_npz.flat(6, [3])
    kept = {name: columns[name] for name in ("obs", "action", "reward")}
    np.savez(root / "a.npz", **kept, episode_starts=np.array([1, 0, 0, 0, 1, 0], bool))
    return root / "a.npz", {}


UNKNOWN = {
    arrays: 5, table_logs: 4, aloha: 7, zarr: 6, calvin: 5, robomimic: 5, rlds: 3, lerobot: 5,
    imitation: max(test_imitation.LENGTHS), starts: 4,
}  # fmt: skip
"""Files that do not say how episodes ended, and the steps of the longest one."""


@pytest.mark.parametrize("write", UNKNOWN)
def test_a_horizon_means_the_same_in_all_formats(tmp_path, write):
    path, said = write(tmp_path)
    file_format = choose_format([path], None, "lab/a-v1", is_mapped=bool(said))
    longest, found = UNKNOWN[write], {}
    for name, more in (
        ("default", {}),
        ("horizon", {"horizon": longest}),
        ("limit", {"time_limit": longest}),
        ("both", {"horizon": longest, "ends": "unknown"}),
    ):
        options = Options(**said, **more)
        dataset, told = read_files(file_format, path, tmp_path / f"store-{name}", options)
        found[name] = ends_of(dataset)
        is_told = f"those of {longest} steps" in " ".join(sentences(told.notes))
        assert is_told == (name in ("horizon", "both") or (name == "limit" and write is imitation))
    assert set(found["default"]) == {"truncated"}
    # A log that is shorter than the environment's time limit may just stop; imitation says that it is over.
    assert found["limit"] == found["horizon" if write is imitation else "default"]
    assert set(found["horizon"]) <= {"truncated", "terminated"}
    is_cut = [one == "truncated" for one in found["horizon"]]
    assert any(is_cut)
    assert len(set(is_cut)) == 2
    if len(found["both"]) == len(is_cut):  # an unknown one of one row has no step
        assert [one == "truncated" for one in found["both"]] == is_cut
        assert set(found["both"]) <= {"truncated", "unknown"}
    shorter = Options(**said, horizon=longest - 1)
    with pytest.raises(SchemaError, match=f"has {longest} steps, more than horizon={longest - 1}"):
        read_files(file_format, path, tmp_path / "store", shorter)


def flagged(root):
    test_arrays.write_groups(root / "a.h5", [3])
    return root / "a.h5", {"columns": MAPPED | {"terminated": "done"}, "episode": "demo_*"}


def rllib(root):
    write_rllib(root / "a.json")
    return root / "a.json", {}


def npz(root):
    np.savez(root / "a.npz", **test_npz.flat(9, [3, 8]))
    return root / "a.npz", {}


def d4rl(root):
    body = test_d4rl.rows_of([False, False, True], [False, True, False], next_observations=True)
    test_d4rl.write(root / "a.hdf5", body)
    return root / "a.hdf5", {}


def records(root):
    test_rlds.write(root / "a", test_rlds.SAMPLE)
    return root / "a", {}


def tensors(root):
    rows = np.arange(sum(test_torchrl.LENGTHS))[:, None]
    flags = {"next/done": (rows == 2) | (rows == 3) | (rows == 7), "next/truncated": rows < 4}
    flags["next/truncated"] &= flags["next/done"]
    test_torchrl.write(root / "a", test_torchrl.arrays(**flags))
    return root / "a", {}


def exported(root):
    dataset, _ = read_files(choose_format([npz(root)[0]], None, "lab/a"), root / "a.npz", root / "made")
    orlog.export_dataset(dataset, root / "a", to="lerobot", lossy=True)
    return root / "a", {}


@pytest.mark.parametrize("write", [flagged, rllib, npz, d4rl, records, tensors, exported])
@pytest.mark.parametrize("said", [{"horizon": 50}, {"ends": "unknown"}])
def test_what_is_said_of_ends_that_all_files_tell_is_refused(tmp_path, write, said):
    path, more = write(tmp_path)
    file_format = choose_format([path], None, "lab/a-v1", is_mapped=bool(more))
    option = next(iter(said))
    with pytest.raises((SchemaError, ValueError), match=f"{option}=?.*out"):
        read_files(file_format, path, tmp_path / "store", Options(**more, **said))
    # The time limit of an environment that is named alone is no such word.
    alone = Options(**more, time_limit=50)
    read_files(file_format, path, tmp_path / "alone", alone)


def test_a_horizon_ends_episodes_of_arrays_where_only_ends_of_the_task_are_flagged(tmp_path):
    done = np.zeros(14, bool)
    done[[5, 13]] = True
    np.savez(tmp_path / "a.npz", o=np.zeros((14, 2)), a=np.arange(14.0), done=done)
    columns = {"observation": "o", "action": "a", "terminated": "done"}
    dataset, _ = read_files(
        choose_format([tmp_path / "a.npz"], None, "lab/a", is_mapped=True),
        tmp_path / "a.npz",
        tmp_path / "store",
        Options(columns=columns, horizon=4),
    )
    assert ends_of(dataset) == ["truncated", "terminated", "truncated", "terminated"]
    # The last row of what was cut off gave the final observation.
    assert dataset.episode_lengths.tolist() == [3, 2, 3, 4]


def read_zarr(root, **said):
    root.mkdir(exist_ok=True)
    body = write_zarr(root / "a.zarr", lengths=[40, 60])
    file_format = choose_format([root / "a.zarr"], None, "lab/a-v1")
    dataset, found = read_files(file_format, root / "a.zarr", root / "store", Options(**said))
    return dataset, body, sentences(found.notes)


def test_constant_rewards(tmp_path):
    dataset, _, doubts = read_zarr(tmp_path, reward="constant=-1")
    assert all((one.rewards == -1).all() for one in dataset)
    assert "Rewards were not read, but made: --reward constant=-1." in doubts
    assert not any("zeros" in one for one in doubts)


def test_rewards_of_success_are_at_the_end_of_the_task(tmp_path):
    dataset, _, _ = read_zarr(tmp_path, reward="success", ends="terminated")
    for one in dataset:
        assert one.rewards[-1] == 1
        assert not one.rewards[:-1].any()


def test_rewards_of_success_are_those_of_the_files_where_they_have_them(tmp_path):
    bodies = write_maniskill(tmp_path)
    path = tmp_path / "demos.h5"
    dataset, _ = read_files(
        choose_format([path], None, "lab/a-v1"), path, tmp_path / "store", Options(reward="success")
    )
    for one, body in zip(dataset, bodies, strict=True):
        np.testing.assert_array_equal(one.rewards, body["reached"].astype(float))


@pytest.mark.parametrize("block_bytes", [300, 2**22])
def test_rewards_of_a_function_see_each_step_and_what_followed(tmp_path, monkeypatch, block_bytes):
    from orlog.datasets.formats import mapped_arrays

    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    (tmp_path / "mine.py").write_text(
        "def reach(observations, actions, next_observations):\n"
        "    moved = next_observations['state'] - observations['state']\n"
        "    return moved[:, 0] + actions[:, 1]\n"
    )
    dataset, body, _ = read_zarr(tmp_path, reward=f"{tmp_path / 'mine.py'}:reach")
    for one, start, stop in zip(dataset, (0, 40), (40, 100), strict=True):
        state, action = body["state"][start:stop], body["action"][start:stop]
        expected = np.diff(state[:, 0]) + action[:-1, 1]
        np.testing.assert_array_equal(one.rewards, expected.astype(np.float64))


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ("sparse", ValueError, "expected constant, constant=NUMBER, success, or FILE.py:function"),
        ("constant=x", ValueError, "expected a number"),
        ("missing.py:f", NotFoundError, "no file missing.py"),
        ("mine.py:g", NotFoundError, "has no function 'g'"),
        ("mine.py:short", SchemaError, r"numbers, one a step, found \(1,\)"),
        ("mine.py:fails", ValueError, "KeyError"),
        ("broken.py:f", ValueError, "SyntaxError when it was run"),
    ],
)
def test_rewards_that_cannot_be_made_are_refused(tmp_path, monkeypatch, said, error, text):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def short(o, a, n): return [0.0]\ndef fails(o, a, n): return o['nothing']\n")
    Path("broken.py").write_text("def f(:")
    with pytest.raises(error, match=text):
        read_zarr(tmp_path, reward=said)


ROWS = 60


def columns():
    """Return 60 steps in three episodes, as of Pendulum."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.uniform(-1, 1, (ROWS, 3)),
        "actions": rng.uniform(-2, 2, (ROWS, 1)),
        "rewards": rng.normal(size=ROWS),
        "terminals": np.zeros(ROWS, bool),
        "timeouts": np.arange(ROWS) % 20 == 19,
    }


def plain_npz(folder):
    np.savez(folder / "data.npz", **columns())
    return folder / "data.npz"


def csv(folder):
    rows = columns()
    table = np.column_stack([np.arange(ROWS) // 20, rows["observations"], rows["actions"], rows["rewards"]])
    lines = [",".join(map(repr, row)) for row in table.tolist()]
    (folder / "data.csv").write_text("\n".join(["episode,obs_0,obs_1,obs_2,act,rew", *lines]))
    return folder / "data.csv"


WRITERS = (plain_npz, csv)


def imported(path, name="lab/arm-v1", **options):
    return orlog.load_dataset(orlog.import_dataset(path, name, **options))


@pytest.mark.parametrize("write", WRITERS)
def test_an_environment_gives_spaces_and_is_scored_in(write, tmp_path):
    found = imported(write(tmp_path), environment="Pendulum-v1,g=9.5")
    assert found.environment is not None
    assert (found.environment.id, found.environment.kwargs) == ("Pendulum-v1", {"g": 9.5})
    assert found.environment.max_episode_steps == 200
    made = gymnasium.make("Pendulum-v1")
    space = found.observation_space
    assert isinstance(space, spaces.Box)
    assert isinstance(made.observation_space, spaces.Box)
    np.testing.assert_array_equal(space.low, made.observation_space.low)
    np.testing.assert_array_equal(space.high, made.observation_space.high)
    assert found.action_space == spaces.Box(-2, 2, (1,), np.float64)
    run = orlog.train("bc", found, out=tmp_path / "run", steps=2, evaluations=0)
    assert len(orlog.evaluate(run, episodes=1).returns) == 1  # its arguments are the user's own


@pytest.mark.parametrize("write", WRITERS)
def test_bounds_are_those_that_were_said(write, tmp_path):
    found = imported(write(tmp_path), action_low=-2, action_high=[2.5], observation_low=-1)
    assert found.action_space == spaces.Box(-2, 2.5, (1,), np.float64)
    assert found.observation_space == spaces.Box(-1, np.inf, (3,), np.float64)
    assert found.environment is None
    orlog.train("td3bc", found, out=tmp_path / "run", steps=2, evaluations=0)


def test_a_benchmarks_dataset_is_taken_as_of_its_own_format(tmp_path):
    rows = columns()
    rows["observations"] = np.zeros((ROWS, 11), np.float32)
    rows["actions"] = np.zeros((ROWS, 3), np.float32)
    np.savez(tmp_path / "hop.npz", **rows)
    found = imported(tmp_path / "hop.npz", like="d4rl/hopper-medium-v2")
    assert found.action_space == spaces.Box(-1, 1, (3,), np.float32)
    assert found.environment is not None
    assert found.environment.id == "Hopper-v4"
    assert found.benchmark == "d4rl/hopper-medium-v2"
    assert orlog.references(found).expert.mean > 3000


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"environment": "CartPole-v1"}, SchemaError, "observations: do not fit CartPole-v1"),
        ({"environment": "Hopper-v99"}, NotFoundError, "Hopper-v99"),
        ({"environment": "Pendulum-v1,9"}, ValueError, "ID,NAME=VALUE"),
        ({"like": "d4rl/hopper-medium-v2"}, SchemaError, "do not fit d4rl/hopper-medium-v2"),
        ({"like": "d4rl/hopper-medium-v2", "environment": "Pendulum-v1"}, ValueError, "like"),
        ({"action_low": [-1, -1]}, SchemaError, "action_low: expected one number"),
        ({"action_low": 1, "action_high": -1}, SchemaError, "lower bound is above"),
        ({"action_high": float("nan")}, SchemaError, "lower bound"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_kept(options, kind, message, tmp_path):
    path = plain_npz(tmp_path)
    with pytest.raises(kind, match=message):
        imported(path, **options)
    with pytest.raises(OrlogError):
        orlog.load_dataset("lab/arm-v1")


def test_a_time_limit_of_an_environment_does_not_end_logs_that_are_shorter(tmp_path):
    rows = {name: one for name, one in columns().items() if name in ("observations", "actions")}
    np.savez(tmp_path / "log.npz", run=np.repeat([0, 1], ROWS // 2), **rows)
    mapped = {"observation": "observations", "action": "actions"}
    found = imported(tmp_path / "log.npz", environment="Pendulum-v1", columns=mapped, episode="run")
    assert not found.column("terminations").any()
    assert "--horizon 200 that the task ended shorter ones" in found.manifest.description
