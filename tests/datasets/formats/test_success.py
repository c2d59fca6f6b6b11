"""Success that files state: a column of episodes or steps, which ends and rewards follow where the user says so."""

import json

import h5py
import numpy as np
import pytest

import orlog
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.formats.notes import sentences
from orlog.errors import SchemaError
from tests.command_line import orlog as run
from tests.datasets.formats import test_rlds
from tests.datasets.formats.reading import read_files

LENGTHS = (4, 3, 5)
DONE = (False, False, True)
ISAAC = {"env_name": "Isaac-Stack-Cube-Franka-IK-Rel-Mimic-v0", "type": 2}


def write(path, stated=DONE, attribute="success", environment=ISAAC, **more):
    """Write demonstrations as Isaac Lab does; `more` adds to actions, or is a last one of `dones`."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(environment)
        data.attrs["total"] = sum(LENGTHS)
        for number, (steps, value) in enumerate(zip(LENGTHS, stated, strict=True)):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = steps
            if value is not None:
                demo.attrs[attribute] = value
            demo["actions"] = rng.uniform(-1, 1, (steps, 2)).astype("f4") + more.get("actions", 0)
            demo["obs/eef"] = rng.normal(size=(steps, 3)).astype("f4")
            if "dones" in more:
                demo["dones"] = (np.arange(steps) == steps - 1) * more["dones"]
    return path


def read(path, **said):
    file_format = choose_format([path], None, "lab/a-v1", is_mapped="episode" in said)
    store = path.parent / f"store-{len(list(path.parent.iterdir()))}"
    dataset, found = read_files(file_format, path, store, Options(**said))
    return dataset, " ".join(sentences(found.notes))


def returns_of(dataset):
    return [float(one.rewards.sum()) for one in dataset]


def test_failures_are_not_rewarded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "demos.hdf5")
    given = ("demos.hdf5", "lab/a-v1", "--ends", "terminated", "--reward", "success")
    done = run("import", *given)
    assert done.returncode == 0, done.stderr
    assert "1 succeeded (taken to be ended by the task, as --ends says) and 2 failed" in done.stdout
    dataset = orlog.load_dataset("lab/a-v1")
    assert dataset.column("episodes/success").tolist() == list(DONE)
    assert returns_of(dataset) == [0, 0, 1]
    assert [bool(one.terminations[-1]) for one in dataset] == list(DONE)
    assert [bool(one.truncations[-1]) for one in dataset] == [True, True, False]
    # What ended the task is kept, and of what was cut off the last action is not.
    assert dataset.episode_lengths.tolist() == [3, 2, 5]
    assert dataset[2].rewards.tolist() == [0, 0, 0, 0, 1]
    assert len(dataset.filter_episodes("success")) == 1
    assert run("audit", "lab/a-v1").stdout.count("each of 2 episodes failed") == 1
    write(tmp_path / "failed.hdf5", (False,) * 3)
    assert run("import", "failed.hdf5", "lab/failed-v1").returncode == 0
    audited = run("audit", "lab/failed-v1").stdout
    assert "no episode succeeded: 3 episodes failed" in audited


@pytest.mark.parametrize(
    ("attribute", "kind"), [("success", bool), ("is_success", np.float32), ("successful", lambda one: np.array([one]))]
)
def test_demonstrations_state_success_in_several_spellings(tmp_path, attribute, kind):
    path = write(tmp_path / "a.hdf5", tuple(map(kind, DONE)), attribute)
    dataset, told = read(path, reward="success")
    assert dataset.column("episodes/success").dtype == bool
    assert dataset.column("episodes/success").tolist() == list(DONE)
    assert returns_of(dataset) == [0, 0, 1]
    assert "taken to be cut off (--ends terminated ends those that succeeded)" in told
    assert not any(one.terminations.any() for one in dataset)


@pytest.mark.parametrize(
    ("ends", "expected"), [("terminated", "cct"), ("truncated", "ccc"), ("unknown", "uuu"), ("", "ccc")]
)
def test_ends_follow_success_where_the_user_says_that_the_task_ended_episodes(tmp_path, ends, expected):
    dataset, _ = read(write(tmp_path / "a.hdf5"), ends=ends)
    letters = ["t" if one.terminations[-1] else "uc"[int(one.truncations[-1])] for one in dataset]
    assert "".join(letters) == expected


def test_a_time_limit_that_is_not_reached_does_not_end_what_failed(tmp_path):
    dataset, told = read(write(tmp_path / "a.hdf5"), horizon=6)
    assert [bool(one.terminations[-1]) for one in dataset] == list(DONE)
    assert "1 succeeded (taken to be ended by the task, as the time limit says) and 2" in told


def test_success_that_only_some_state_is_left_out_and_followed_by_nothing(tmp_path):
    path = write(tmp_path / "a.hdf5", (False, None, True))
    dataset, told = read(path)
    assert "episodes/success" not in dataset.columns
    assert "Left out: success, since 1 of 3 episodes do not state their success." in told
    for said in ({"ends": "terminated"}, {"reward": "success"}):
        with pytest.raises(SchemaError, match="1 of 3 episodes do not state their success"):
            read(path, **said)


def test_without_success_rewards_are_at_ends_that_files_or_the_user_state(tmp_path):
    path = write(tmp_path / "a.hdf5", (None,) * 3)
    with pytest.raises(SchemaError, match="nothing states which episodes succeeded"):
        read(path, reward="success")
    dataset, told = read(path, reward="success", ends="terminated")
    assert returns_of(dataset) == [1, 1, 1]
    assert "Nothing states success: the last step of 3 episodes that the task ended" in told
    done = write(tmp_path / "done.hdf5", (None,) * 3, dones=1)
    dataset, told = read(done, reward="success")
    assert returns_of(dataset) == [1, 1, 1]
    assert "Nothing states success: the last step of 3 episodes" in told
    # Robomimic's flags may mean the end of the recording; success says better what was reached.
    dataset, told = read(write(tmp_path / "both.hdf5", dones=1), reward="success")
    assert returns_of(dataset) == [0, 0, 1]
    assert "Nothing states success" not in told


@pytest.mark.parametrize(
    ("name", "rows", "returns"),
    [
        ("success", [2, 8], [1, 0, 1]),
        ("is_success", [0, 8], [1, 0, 1]),
        ("is_episode_successful", [6, 7, 8], [0, 0, 1]),
    ],
)
def test_steps_state_success_too(tmp_path, name, rows, returns):
    """By any step, or the last one; or each step says it of its episode, as in LeRobot's copy of DROID."""
    success = np.zeros(9, bool)
    success[rows] = True
    done = [name == "success", False, True]
    np.savez(tmp_path / "a.npz", o=np.zeros((9, 2)), a=np.zeros((9, 1)), s=success, e=[4, 6, 9])
    said = {"columns": {"observation": "o", "action": "a", f"infos/{name}": "s"}, "episode": "e"}
    dataset, told = read(tmp_path / "a.npz", **said, ends="terminated", reward="success")
    assert [bool(one.terminations[-1]) for one in dataset] == done
    assert returns_of(dataset) == returns
    assert [len(one) for one in dataset.filter_episodes("success")] == [
        len(one) for one, is_done in zip(dataset, done, strict=True) if is_done
    ]
    assert f"{sum(done)} succeeded" in told
    assert "all were taken" not in told


def test_success_that_the_user_names_goes_before_that_of_the_file(tmp_path):
    path = write(tmp_path / "a.hdf5", (True, None, True))
    with h5py.File(path, "a") as file:
        for number, done in enumerate(DONE):
            file[f"data/demo_{number}"].attrs["done_well"] = done
    columns = {"episodes/success": "@done_well"}
    dataset, told = read(path, columns=columns, ends="terminated", reward="success")
    assert dataset.column("episodes/success").astype(bool).tolist() == list(DONE)
    assert returns_of(dataset) == [0, 0, 1]
    assert "1 succeeded" in told


MAPPED = {"columns": {"observation": "obs/eef", "action": "actions"}, "ends": "terminated", "reward": "success"}


def test_groups_of_any_layout_state_success_by_an_attribute(tmp_path):
    dataset, told = read(write(tmp_path / "a.hdf5"), **MAPPED, episode="demo_*")
    assert dataset.column("episodes/success").tolist() == list(DONE)
    assert returns_of(dataset) == [0, 0, 1]
    assert "1 succeeded" in told


@pytest.mark.parametrize("has_attributes", [True, False])
def test_recordings_of_droid_state_success_by_attributes_and_folders(tmp_path, has_attributes):
    files = []
    for number, done in enumerate(DONE):
        folder = tmp_path / ("success" if done else "failure") / f"2023-07-0{number + 1}" / "Tue_1"
        folder.mkdir(parents=True)
        files.append(folder / "trajectory.h5")
        with h5py.File(files[-1], "w") as file:
            if has_attributes:
                file.attrs.update({"success": done, "failure": not done})
            file["action/joint_position"] = np.zeros((LENGTHS[number], 7))
            file["observation/robot_state/joint_positions"] = np.zeros((LENGTHS[number], 7))
    columns = {"observation": "observation/robot_state/*", "action": "action/*"}
    options = Options(**MAPPED | {"columns": columns, "episode": "file"})
    file_format = choose_format(files, None, "lab/a-v1", is_mapped=True)
    dataset, _ = read_files(file_format, files, tmp_path / "store", options)
    assert dataset.column("episodes/success").tolist() == list(DONE)
    assert returns_of(dataset) == [0, 0, 1]


DROID = "gs://xembodiment_data/r2d2/r2d2-data-full/ILIAD/{}/2023-04-2{}/Thu/trajectory.h5"
NO_FLAGS = {name: one for name, one in test_rlds.STEPS.items() if name not in ("is_last", "is_terminal")}


@pytest.mark.parametrize(
    ("metadata", "steps"),
    [
        ({"file_path": "text"}, {}),
        ({"recording_folderpath": "text", "file_path": "text"}, {}),
        ({"success": ("bool", [])}, {}),
        ({"is_success": ("float32", [])}, {}),
        ({}, {"success": ("bool", [])}),
    ],
)
def test_records_state_success_in_metadata_paths_or_steps(tmp_path, metadata, steps):
    episodes = [
        test_rlds.rows(
            length + 1,
            file_path=DROID.format("success" if done else "failure", number),
            recording_folderpath="recordings/MP4",
            is_success=np.float32(done),
            success=(np.arange(length + 1) == length) & done if steps else np.array(done),
        )
        for number, (length, done) in enumerate(zip(LENGTHS, DONE, strict=True))
    ]
    folder = test_rlds.write(tmp_path / "a", episodes, NO_FLAGS | steps, metadata)
    dataset, told = read(folder, ends="terminated", reward="success")
    if metadata:
        assert dataset.column("episodes/success").astype(bool).tolist() == list(DONE)
    assert [bool(one.terminations[-1]) for one in dataset] == list(DONE)
    assert "1 succeeded" in told
    # With flags of ends, the file says these, and success is apart from them.
    flagged = test_rlds.write(tmp_path / "b", episodes, test_rlds.STEPS | steps, metadata)
    dataset, told = read(flagged, reward="success")
    assert all(one.terminations[-1] for one in dataset)
    if metadata:
        assert returns_of(dataset) == [0, 0, 1]
        assert len(dataset.filter_episodes("success")) == 1


def test_records_that_state_neither_success_nor_ends_are_refused(tmp_path):
    folder = test_rlds.write(tmp_path / "a", test_rlds.SAMPLE, NO_FLAGS)
    with pytest.raises(SchemaError, match="nothing states which episodes succeeded"):
        read(folder, reward="success")


ROBOSUITE = {"env_name": "Lift", "type": 1}
OSC = {"type": "OSC_POSE", "input_max": 1, "input_min": -1, "control_delta": True}
PARTS = {"type": "BASIC", "body_parts": {"right": OSC | {"input_type": "delta"}}}


@pytest.mark.parametrize(
    ("environment", "is_bounded"),
    [
        (ROBOSUITE, True),
        (ROBOSUITE | {"env_kwargs": {"controller_configs": OSC}}, True),
        (ROBOSUITE | {"env_kwargs": {"controller_configs": [PARTS]}}, True),
        (ROBOSUITE | {"env_kwargs": {"controller_configs": OSC | {"control_delta": False}}}, False),
        (ROBOSUITE | {"env_kwargs": {"controller_configs": OSC | {"input_max": 0.5}}}, False),
        (ROBOSUITE | {"env_kwargs": {"controller_configs": OSC | {"input_min": [-2, -1]}}}, False),
        (ROBOSUITE | {"env_kwargs": {"body_parts": {"left": OSC | {"input_type": "absolute"}}}}, False),
        (ISAAC, False),
        (["type", 1], False),
    ],
)
def test_actions_are_bounded_where_the_environment_of_the_file_says_it(tmp_path, environment, is_bounded):
    dataset, told = read(write(tmp_path / "a.hdf5", environment=environment))
    space = dataset.action_space
    assert bool(np.isfinite(space.low).all() and (space.high == 1).all()) == is_bounded
    assert "bounds" not in told
    dataset, told = read(write(tmp_path / "b.hdf5", environment=environment, actions=1.5))
    space = dataset.action_space
    assert np.isinf(space.high).all()
    assert ("No bounds of actions were taken from env_args" in told) == is_bounded
    assert not [one for one in orlog.audit(dataset).findings if one.check == "bounds"]
    with pytest.raises(SchemaError, match="--bounds action=-1:3"):
        orlog.train("bc", dataset, steps=1, evaluations=0)


@pytest.mark.parametrize("stated", [("True", "False", "false"), (b"success", b"failure", "FAILED"), (1.0, 0, "no")])
def test_success_in_words_is_read(stated, tmp_path):
    dataset, _ = read(write(tmp_path / "a.hdf5", stated), ends="terminated", reward="success")
    assert dataset.column("episodes/success").tolist() == [True, False, False]
    assert returns_of(dataset) == [1, 0, 0]


def test_words_of_success_that_the_user_maps_are_followed(tmp_path):
    said = {"columns": {"episodes/success": "@done"}, "ends": "terminated", "reward": "success"}
    path = write(tmp_path / "a.hdf5", ("True", "False", "no"), attribute="done")
    dataset, _ = read(path, **said)
    assert returns_of(dataset) == [1, 0, 0]
    with pytest.raises(SchemaError, match="success is perhaps, expected true or false"):
        read(write(tmp_path / "b.hdf5", ("True", "perhaps", "no"), attribute="done"), **said)


@pytest.mark.parametrize("odd", [0.4, "maybe", -1])
def test_success_that_is_neither_true_nor_false_is_refused(odd, tmp_path):
    with pytest.raises(SchemaError, match=r"the attribute success is .*, expected 1 or 0"):
        read(write(tmp_path / "a.hdf5", (odd, 1, 0)))


def test_shares_of_success_in_steps_are_no_rewards(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "a.npz",
        observations=rng.normal(size=(6, 2)),
        actions=rng.normal(size=(6, 1)),
        rewards=np.zeros(6),
        terminals=np.zeros(6, bool),
        timeouts=np.arange(6) % 3 == 2,
        success=np.array([0, 0.4, 1, 0, 0, 0.2]),
    )
    dataset, _ = read(tmp_path / "a.npz")
    assert dataset.column("infos/success")[1] == 0.4
    with pytest.raises(SchemaError, match=r"success is 0\.4, and rewards or ends"):
        read(tmp_path / "a.npz", reward="success")
