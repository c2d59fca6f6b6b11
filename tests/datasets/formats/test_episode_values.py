"""Values of whole episodes that attributes hold: the task in words, and what users map."""

import json

import h5py
import numpy as np
import pytest
import zarr

from orlog.errors import SchemaError
from tests.datasets.formats.test_conventions import imported, write_libero
from tests.datasets.formats.test_layouts import write_aloha

TASK = "episodes/task"


def write_robocasa(path):
    """Write demonstrations as RoboCasa does, with a task in words for each."""
    words = ["open the left drawer", "open the right drawer", "close it"]
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "OpenDrawer", "type": 1, "env_kwargs": {}})
        for number, said in enumerate(words):
            demo = data.create_group(f"demo_{number + 1}")
            demo.attrs["ep_meta"] = json.dumps(
                {"lang": said, "layout_id": number, "fixtures": {"drawer": {"width": 0.5 * number}}}
            )
            demo.attrs["num_samples"] = 4
            demo.attrs["operator"] = np.bytes_(f"p{number}")
            demo["actions"], demo["dones"] = np.zeros((4, 2)), np.arange(4) == 3
            demo["obs/eef"], demo["score"] = np.zeros((4, 3)), np.float32(number)
            demo["label"] = said
    return words


def texts(dataset, name="task"):
    return [episode.metadata[name] for episode in dataset]


def test_the_task_of_libero_comes_by_itself_and_what_its_file_states_is_told(tmp_path):
    write_libero(tmp_path / "a.hdf5")
    dataset = imported(tmp_path / "a.hdf5")
    assert texts(dataset) == ["turn on the stove"] * 2
    assert dataset.roles[TASK] == "task_words"
    told = dataset.manifest.description
    assert "--flip observation/agentview_rgb --flip observation/eye_in_hand_rgb" in told
    assert "problem_info" not in told.partition("Not read")[2]
    assert "joint_states of a row is in states of the next one" in told
    assert "--shift action=-1 pairs them." in told
    mended = imported(tmp_path / "a.hdf5", "lab/b-v1", flip="observation/*_rgb", shift={"action": -1})
    assert "opengl" not in mended.manifest.description
    assert "was recorded after" not in mended.manifest.description


def test_the_task_of_robocasa_comes_by_itself_and_more_is_mapped(tmp_path):
    words = write_robocasa(tmp_path / "a.hdf5")
    assert texts(imported(tmp_path / "a.hdf5")) == words
    columns = {
        "episodes/layout": "@ep_meta:layout_id",
        "episodes/width": "@ep_meta:fixtures.drawer.width",
        "episodes/operator": "@operator",
        "episodes/score": "score",
        "episodes/instruction": "label",
        "episodes/task": "data@env_args:env_name",
    }
    dataset = imported(tmp_path / "a.hdf5", "lab/b-v1", columns=columns)
    assert dataset.manifest.lineage[0].operation.startswith("read robomimic-hdf5")
    assert dataset.column("episodes/layout").tolist() == [0, 1, 2]
    assert dataset.column("episodes/width").tolist() == [0, 0.5, 1]
    assert dataset.column("episodes/score").tolist() == [0, 1, 2]
    assert texts(dataset, "operator") == ["p0", "p1", "p2"]
    assert texts(dataset, "instruction") == words
    assert texts(dataset) == ["OpenDrawer"] * 3
    assert dataset.roles["episodes/instruction"] == "task_words"


def test_success_that_is_mapped_is_followed(tmp_path):
    write_robocasa(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        for number, demo in enumerate(file["data"].values()):
            del demo["dones"]
            demo.attrs["done_well"] = number == 1
    dataset = imported(
        tmp_path / "a.hdf5", columns={"episodes/success": "@done_well"}, reward="success", ends="terminated"
    )
    assert [episode.rewards.sum() for episode in dataset] == [0, 1, 0]
    assert [bool(episode.terminations[-1]) for episode in dataset] == [False, True, False]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("@ep_mta:lang", "demo_1: has no attribute 'ep_mta'; did you mean ep_meta?"),
        ("@ep_meta:language", "the key 'language'; its keys are lang, layout_id, fixtures"),
        ("@ep_meta", "demo_1, ep_meta: has no key"),
        ("@operator:name", "operator: expected an object of JSON with the key 'name'"),
        ("@ep_meta:fixtures", "holds an object; name a key: drawer"),
        ("labels", "has no labels"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, said, message):
    write_robocasa(tmp_path / "a.hdf5")
    if said == "@ep_meta":  # that one demonstration lacks
        with h5py.File(tmp_path / "a.hdf5", "a") as file:
            del file["data/demo_2"].attrs["ep_meta"]
        said, message = "@ep_meta:lang", "demo_2: has no attribute 'ep_meta'"
    with pytest.raises(SchemaError, match=message.replace("?", r"\?")):
        imported(tmp_path / "a.hdf5", columns={TASK: said})


def test_a_task_that_only_some_have_is_left_out_and_told(tmp_path):
    write_robocasa(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["data/demo_2"].attrs["ep_meta"]
    dataset = imported(tmp_path / "a.hdf5")
    assert TASK not in dataset.columns
    assert "since only some episodes have it: task." in dataset.manifest.description


def test_aloha_takes_attributes_of_its_files(tmp_path):
    write_aloha(tmp_path / "a")
    for number in range(3):
        with h5py.File(tmp_path / f"a/episode_{number}.hdf5", "a") as file:
            file.attrs["note"] = f"cup {number}"
    dataset = imported(tmp_path / "a", columns={TASK: "@note"})
    assert dataset.manifest.lineage[0].operation.startswith("read aloha")
    assert texts(dataset) == ["cup 0", "cup 1", "cup 2"]
    assert "--bgr observation/images.top" in dataset.manifest.description
    swapped = imported(tmp_path / "a", "lab/b-v1", bgr="observation/images.top")
    assert "cv2" not in swapped.manifest.description
    (there,) = (one.observations["images.top"] for one in dataset[:1])
    np.testing.assert_array_equal(swapped[0].observations["images.top"], there[..., ::-1])


@pytest.mark.parametrize("said", [{}, {TASK: "@current_task"}, {TASK: "metadata@words"}])
def test_droids_trajectories_and_other_arrays(tmp_path, said):
    (tmp_path / "droid").mkdir()
    for number in range(2):
        with h5py.File(tmp_path / f"droid/{number}.h5", "w") as file:
            file["observation/joints"], file["action/velocity"] = np.zeros((4, 3)), np.zeros((4, 2))
            file.attrs["current_task"] = f"put it away {number}"
            file.create_group("metadata").attrs["words"] = f"put it away {number}"
    dataset = imported(
        tmp_path / "droid",
        episode="file",
        columns={"observation": "observation/joints", "action": "action/velocity", **said},
    )
    assert texts(dataset) == ["put it away 0", "put it away 1"]
    assert "current_task" not in dataset.manifest.description.partition("Not read")[2] or said


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_has_attributes_and_arrays_of_episodes(tmp_path, version):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    group.attrs["info"] = {"words": ["stack", "cups"]}
    data = group.create_group("data")
    data.attrs["robot"] = "arm"
    data["obs"], data["move"] = np.zeros((10, 3)), np.zeros((10, 2))
    group["meta/ends"], group["meta/score"] = np.array([4, 10]), np.array([0.5, 1.5])
    dataset = imported(
        tmp_path / "a.zarr",
        episode="meta/ends",
        columns={
            "observation": "data/obs",
            "action": "data/move",
            TASK: "@info:words",
            "episodes/robot": "data@robot",
            "episodes/score": "meta/score",
        },
    )
    assert texts(dataset) == ["stack cups"] * 2
    assert texts(dataset, "robot") == ["arm"] * 2
    assert dataset.column("episodes/score").tolist() == [0.5, 1.5]
    assert "meta/score" not in dataset.manifest.description


def test_npz_has_arrays_of_episodes_and_no_attributes(tmp_path):
    np.savez(
        tmp_path / "a.npz", o=np.zeros((6, 2)), a=np.zeros((6, 1)), run=np.repeat([0, 1], 3), score=np.array([3, 4])
    )
    columns = {"observation": "o", "action": "a", "episodes/score": "score"}
    dataset = imported(tmp_path / "a.npz", columns=columns, episode="run")
    assert dataset.column("episodes/score").tolist() == [3, 4]
    for said, message in (
        ("@task", "there are no attributes"),
        ("o", "each of 2 episodes, found 6"),
        ("nothing", "has no array .nothing"),
    ):
        with pytest.raises(SchemaError, match=message):
            imported(tmp_path / "a.npz", "lab/b-v1", columns=columns | {TASK: said}, episode="run")
