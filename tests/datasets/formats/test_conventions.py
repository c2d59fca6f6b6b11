"""What users mend and name at import, in every format: rows off by one, frames, colors, and values of whole episodes."""

import itertools
import json

import gymnasium
import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import orlog
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.episodes import Opened, Options, Steps
from orlog.datasets.formats.overrides import put_conventions
from orlog.errors import SchemaError
from tests.datasets.formats.test_layouts import write_aloha

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)


def pieces_of(count, cuts, *, missing):
    """Return an episode whose values are the numbers of their rows, in pieces."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < count}), count]
    rows = np.arange(count + 1.0)
    return [
        Steps(
            observations={
                "joint": rows[start + (start > 0) : stop + 1, None],
                "n": (rows[start + (start > 0) : stop + 1],),
            },
            actions=rows[start:stop, None],
            rewards=rows[start:stop],
            infos={"text": [str(int(one)) for one in rows[start:stop]], "force": rows[start:stop]},
            ends=stop == count,
            terminated=stop == count,
            seed=7 if stop == count else None,
            metadata={"final_observation_missing": missing} if stop == count else {},
        )
        for start, stop in itertools.pairwise(bounds)
    ]


def opened_of(pieces):
    schema = Schema(observation_space=BOX, action_space=BOX)
    return Opened(schema=schema, steps=iter(pieces))


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 8), max_size=4),
    action=st.integers(-3, 3),
    force=st.none() | st.integers(-3, 3),
)
def test_a_shift_is_the_same_in_any_pieces_and_stays_within_episodes(counts, cuts, action, force):
    shift = {"action": action} | ({} if force is None else {"infos/force": force})
    counts.append(9)  # one is long enough
    opened = opened_of([one for n in counts for one in pieces_of(n, cuts, missing=True)])
    put_conventions(opened, Options(shift=shift), "a.h5")
    episodes = [[]]
    for piece in opened.steps:
        episodes[-1].append(piece)
        episodes += [[]] if piece.ends else []
    low, high = (
        min(action, force or 0 if force is not None else action),
        max(action, action if force is None else force),
    )
    start, short = max(0, high), max(0, high) - min(0, low)
    left = [count for count in counts if count > short]
    assert episodes.pop() == []
    assert len(episodes) == len(left)
    for count, pieces in zip(left, episodes, strict=True):
        rows = np.arange(start, count + min(0, low))
        observed = np.concatenate([one.observations["joint"] for one in pieces])[:, 0]
        assert observed.tolist() == [*rows, rows[-1] + 1]
        assert np.concatenate([one.observations["n"][0] for one in pieces]).tolist() == observed.tolist()
        assert np.concatenate([one.actions for one in pieces])[:, 0].tolist() == (rows - action).tolist()
        assert np.concatenate([one.rewards for one in pieces]).tolist() == (rows - action).tolist()
        texts = [text for one in pieces for text in one.infos["text"]]
        assert texts == [str(row) for row in rows - action]
        moved = action if force is None else force
        assert np.concatenate([one.infos["force"] for one in pieces]).tolist() == (rows - moved).tolist()
        assert pieces[-1].terminated
        assert pieces[-1].metadata["final_observation_missing"] == (low >= 0)
        assert pieces[-1].seed == (7 if start == 0 else None)


def write_libero(path, lengths=(5, 4)):
    """Write demonstrations as LIBERO's create_dataset.py does: each observation is that after the action of its row."""
    rng = np.random.default_rng(0)
    states = []
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["macros_image_convention"] = "opengl"
        data.attrs["bddl_file_name"] = "libero/bddl_files/turn_on_the_stove.bddl"
        data.attrs["problem_info"] = json.dumps({"problem_name": "libero", "language_instruction": "turn on the stove"})
        data.attrs["env_args"] = json.dumps({"type": 1, "env_name": "Libero", "env_kwargs": {}})
        data.attrs["total"] = sum(lengths)
        for number, count in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = count
            state = rng.normal(size=(count + 1, 12))
            states.append(state)
            demo["states"] = state[:-1]
            demo["actions"] = np.arange(count * 7.0).reshape(count, 7) / 100
            demo["rewards"] = (np.arange(count) == count - 1).astype(np.uint8)
            demo["dones"] = (np.arange(count) == count - 1).astype(np.uint8)
            demo["obs/joint_states"] = state[1:, 1:8]
            frames = rng.integers(0, 255, (count, 4, 6, 3), np.uint8)
            demo["obs/agentview_rgb"] = frames
            demo["obs/eye_in_hand_rgb"] = frames
    return states


def imported(path, name="lab/arm-v1", **options):
    return orlog.load_dataset(orlog.import_dataset(path, name, **options))


def test_libero_is_paired_and_turned(tmp_path):
    states = write_libero(tmp_path / "a.hdf5")
    dataset = imported(
        tmp_path / "a.hdf5", shift={"action": -1}, flip="observation/agentview_rgb", bgr="observation/agent*"
    )
    with h5py.File(tmp_path / "a.hdf5") as file:
        for episode, state, number in zip(dataset, states, range(2), strict=True):
            demo = file[f"data/demo_{number}"]
            np.testing.assert_array_equal(episode.actions, demo["actions"][1:])
            np.testing.assert_array_equal(episode.observations["joint_states"], state[1:, 1:8])
            np.testing.assert_array_equal(episode.infos["states"][:, 1:8], state[1:-1, 1:8])
            assert episode.rewards.tolist() == demo["rewards"][1:].tolist()
            assert episode.terminations[-1]
            assert not episode.metadata["final_observation_missing"]
            frames = demo["obs/agentview_rgb"][:][:, ::-1, :, ::-1]
            np.testing.assert_array_equal(episode.observations["agentview_rgb"], frames)
            frames = demo["obs/eye_in_hand_rgb"][:]
            np.testing.assert_array_equal(episode.observations["eye_in_hand_rgb"], frames)
    told = dataset.manifest.description
    assert "(--shift): action, reward, infos/done, infos/states by -1." in told
    assert "1 step in each of 2 episodes" in told
    assert "Frames were turned upside down (--flip): observation/agentview_rgb." in told
    assert "(--bgr): observation/agentview_rgb." in told
    assert "final_observation_missing" not in told
    assert "macros" not in told


def test_rows_without_a_final_observation_lose_one_step_alone(tmp_path):
    lines = [f"{run},{t},{t},{t}" for run in "ab" for t in range(5)]
    (tmp_path / "a.csv").write_text("\n".join(["episode,obs_0,action,reward", *lines]))
    dataset = imported(tmp_path / "a.csv", shift={"action": -1})
    for episode in dataset:
        assert episode.observations[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert episode.rewards.tolist() == [1, 2, 3, 4]
        assert episode.truncations[-1]
        assert not episode.metadata["final_observation_missing"]
    assert "left out, since what followed" not in dataset.manifest.description


def test_rewards_that_are_made_see_what_was_moved(tmp_path):
    write_libero(tmp_path / "a.hdf5")
    (tmp_path / "r.py").write_text("def r(before, actions, after): return actions[:, 0] * 100")
    dataset = imported(tmp_path / "a.hdf5", shift={"action": -1}, reward=f"{tmp_path / 'r.py'}:r")
    assert dataset[0].rewards == pytest.approx([7, 14, 21, 28])
    assert "(--shift): action, reward" in dataset.manifest.description


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shift": {"actions": -1}}, "no column of steps has this name; did you mean action?"),
        ({"shift": {"observation": -1}}, "they are action, reward, infos/done"),
        ({"shift": {"infos/states": -5}}, "no episode is long enough"),
        ({"flip": "observation/agentview"}, "did you mean observation/agentview_rgb?"),
        ({"flip": ["agentview_rgb"]}, "did you mean observation/agentview_rgb?"),
        ({"bgr": "observation/joint_states"}, r"expected frames .*, found rows of shape \(7,\)"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path, options, message):
    write_libero(tmp_path / "a.hdf5")
    with pytest.raises(SchemaError, match=message.replace("?", r"\?")):
        imported(tmp_path / "a.hdf5", **options)


@pytest.mark.parametrize(
    ("shape", "flipped", "swapped"),
    [
        ((2, 4, 6, 3), np.s_[:, ::-1], np.s_[..., ::-1]),
        ((2, 3, 4, 6), np.s_[:, :, ::-1], np.s_[:, ::-1]),
        ((2, 5, 4, 6, 4), np.s_[:, :, ::-1], np.s_[..., [2, 1, 0, 3]]),
        ((2, 4, 6), np.s_[:, ::-1], None),
    ],
)
def test_frames_of_any_order_of_axes(shape, flipped, swapped):
    frames = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    for said, chosen in ((Options(flip=("observation",)), flipped), (Options(bgr=("observation",)), swapped)):
        opened = opened_of([Steps(observations=frames, actions=np.zeros((1, 1)), rewards=np.zeros(1))])
        put_conventions(opened, said, "a.h5")
        if chosen is None:
            with pytest.raises(SchemaError, match="expected frames of 3 or 4 channels"):
                next(opened.steps)
        else:
            np.testing.assert_array_equal(next(opened.steps).observations, frames[chosen])


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
