"""OGBench's files: any lengths in any blocks, written and read again, single tasks, and those that do not agree."""

import json

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import export_dataset
from orlog.datasets.formats import benchmarks
from orlog.datasets.formats.benchmarks import find_task
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.shipped import records_folder
from tests.datasets.formats.reading import read_files
from tests.levels import scaled
from tests.tool_environments import run_tool, tool_python


def write(path, lengths, *, seed=0, **more):
    """Write a file whose episodes have these lengths, in steps, and return its arrays."""
    rng = np.random.default_rng(seed)
    count = sum(lengths) + len(lengths)
    ends = np.zeros(count, bool)
    ends[np.cumsum(np.array(lengths) + 1) - 1] = True
    arrays = {
        "observations": rng.normal(size=(count, 3)).astype("f4"),
        "actions": rng.uniform(-1, 1, (count, 2)).astype("f4"),
        "terminals": ends,
        "qpos": rng.normal(size=(count, 4)),
        **more,
    }
    np.savez_compressed(path, allow_pickle=False, **arrays)
    return arrays


def check(dataset, arrays, lengths):
    assert dataset.episode_lengths.tolist() == lengths
    first = 0
    for episode, length in zip(dataset, lengths, strict=True):
        rows = slice(first, first + length)
        np.testing.assert_array_equal(episode.observations, arrays["observations"][first : first + length + 1])
        np.testing.assert_array_equal(episode.actions, arrays["actions"][rows])
        np.testing.assert_array_equal(episode.infos["qpos"], arrays["qpos"][rows])
        assert not episode.terminations.any()
        assert episode.truncations[-1]
        assert not episode.rewards.any()
        first += length + 1


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), block_rows=st.integers(1, 12), seed=st.integers(0, 9)
)
@settings(max_examples=scaled(20), deadline=None)
def test_any_lengths_are_read_in_blocks_of_any_size(tmp_path_factory, lengths, block_rows, seed):
    folder = tmp_path_factory.mktemp("any")
    arrays = write(folder / "maze.npz", lengths, seed=seed)
    row_bytes = sum(values[:1].nbytes for values in arrays.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks, "BLOCK_BYTES", block_rows * row_bytes)
        dataset, found = read_files(formats()["ogbench"], folder / "maze.npz", folder / "store")
    check(dataset, arrays, lengths)
    assert (found.steps, found.truncated) == (sum(lengths), len(lengths))


def test_train_and_validation_files_make_one_dataset_and_come_back(tmp_path):
    write(tmp_path / "cube-v0.npz", [4, 2])
    write(tmp_path / "cube-v0-val.npz", [3], seed=1)
    files = [tmp_path / "cube-v0.npz", tmp_path / "cube-v0-val.npz"]
    orlog.import_dataset(files, "lab/cube-v0")
    dataset = orlog.load_dataset("lab/cube-v0")
    assert [one.metadata["split"] for one in dataset] == ["train", "train", "val"]
    assert "no rewards" in dataset.manifest.description
    assert "no rewards" in dataset.lineage[0].operation
    export_dataset(dataset, tmp_path / "out", to="ogbench")
    for file in files:
        with np.load(file) as first, np.load(tmp_path / "out" / file.name) as second:
            assert set(first.files) == set(second.files)
            ends = first["terminals"]
            for name in first.files:
                assert first[name].dtype == second[name].dtype
                # Beside a final observation there is an action that means nothing.
                kept = slice(None) if name in ("observations", "terminals") else ~ends
                np.testing.assert_array_equal(first[name][kept], second[name][kept])


def test_frames_and_choices_are_read(tmp_path):
    frames = np.arange(5 * 4 * 4 * 6, dtype="u1").reshape(5, 4, 4, 6)
    write(tmp_path / "p.npz", [4], observations=frames, actions=np.arange(5, dtype="i4"))
    dataset, _ = read_files(formats()["ogbench"], tmp_path / "p.npz", tmp_path / "store")
    np.testing.assert_array_equal(dataset[0].observations, frames)
    assert dataset.action_space == gymnasium.spaces.Discrete(8)


def test_what_is_wrong_names_file_and_array(tmp_path):
    path = tmp_path / "bad.npz"
    objects = np.array([{}, {}, {}], object)
    cases = [
        ({"terminals": np.array([0, 0, 0])}, IntegrityError, "is cut off"),
        ({"terminals": np.array([0, 2, 1])}, SchemaError, "expected 0 or 1, found 2 in row 1"),
        ({"terminals": np.array([1, 0, 1])}, SchemaError, "an episode of one row"),
        ({"qpos": np.zeros((2, 4))}, SchemaError, "qpos: expected 3 rows"),
        ({"qpos": np.array(["a", "b", "c"])}, SchemaError, "qpos: expected numbers"),
        ({"actions": np.zeros((3, 2), "i4")}, SchemaError, "actions: expected a row of floats"),
    ]
    for change, error, message in cases:
        write(path, [2], **change)
        with pytest.raises(error, match=rf"bad\.npz.*{message}"):
            read_files(formats()["ogbench"], path, tmp_path / "store")
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, observations=objects, actions=objects, terminals=objects)
    with pytest.raises(SchemaError, match="Python objects, which are not read"):
        read_files(formats()["ogbench"], path, tmp_path / "store")
    write(path, [2])
    write(tmp_path / "other.npz", [2], actions=np.zeros((3, 5), "f4"))
    with pytest.raises(SchemaError, match="not one dataset"):
        read_files(formats()["ogbench"], [path, tmp_path / "other.npz"], tmp_path / "store")


@pytest.mark.thorough
def test_ogbench_reads_what_is_exported(tmp_path):
    write(tmp_path / "cube-v0.npz", [4, 2])
    write(tmp_path / "cube-v0-val.npz", [3], seed=1)
    orlog.import_dataset([tmp_path / "cube-v0.npz", tmp_path / "cube-v0-val.npz"], "lab/cube-v0")
    export_dataset("lab/cube-v0", tmp_path / "out", to="ogbench")
    code = """
    import numpy as np, orlog
    from ogbench.utils import load_dataset

    whole = orlog.load_dataset("lab/cube-v0")
    for ending, episodes in (("", [0, 1]), ("-val", [2])):
        ours = whole.to_dict(episodes=episodes)
        theirs = load_dataset(f"out/cube-v0{ending}.npz", add_info=True)
        for name in ("observations", "next_observations", "actions"):
            assert np.array_equal(theirs[name], ours[name])
        assert np.array_equal(theirs["terminals"], ours["truncations"])
        assert np.array_equal(theirs["qpos"], ours["infos"]["qpos"])
        # Compact: final observations have rows of their own, which are not valid as steps.
        compact = load_dataset(f"out/cube-v0{ending}.npz", compact_dataset=True)
        rows = np.flatnonzero(compact["valids"])
        assert np.array_equal(compact["observations"][rows], ours["observations"])
        assert np.array_equal(compact["observations"][rows + 1], ours["next_observations"])
        assert np.array_equal(compact["actions"][rows], ours["actions"])
        assert np.array_equal(compact["terminals"][rows], ours["truncations"])
    """
    run_tool(tool_python("ogbench==1.2.2", dependencies=False), code, folder=tmp_path)


PLACES = [[0, 0], [35.8, 24.1], [36, 23.4], [0, 0], [35.9, 24], [36, 24]]  # goal: 36, 24, within 0.5
DONE = [False, True, False, False, True]  # of two episodes with three steps and two


def walk(path, *, seed=0):
    """Write an ant's two episodes; the last place of each is beside a final observation."""
    qpos = np.zeros((7, 29))
    qpos[:, :2] = np.array([*PLACES[:3], [36, 24], *PLACES[3:]])
    return write(path, [3, 2], seed=seed, qpos=qpos)


@pytest.mark.parametrize("block_rows", [1, 2, 3, 100])
def test_an_episode_ends_with_each_step_that_ends_the_task(tmp_path, monkeypatch, block_rows):
    path = tmp_path / "antmaze-large-navigate-v0.npz"
    arrays = walk(path)
    monkeypatch.setattr(benchmarks, "BLOCK_BYTES", block_rows * (8 * 29 + 12 + 8 + 1))
    dataset, found = read_files(formats()["ogbench"], path, tmp_path / "store", Options(task="singletask"))
    rows = [0, 1, 2, 4, 5]  # without those of final observations
    steps = dataset.to_dict()
    np.testing.assert_array_equal(steps["rewards"], np.array(DONE) - np.float32(1))
    np.testing.assert_array_equal(steps["terminations"], DONE)
    np.testing.assert_array_equal(steps["observations"], arrays["observations"][rows])
    after = arrays["observations"][[row + 1 for row in rows]]
    np.testing.assert_array_equal(steps["next_observations"], after)
    assert dataset.episode_lengths.tolist() == [2, 1, 2]
    assert [one.metadata["trajectory"] for one in dataset] == [0, 0, 1]
    assert [bool(one.truncations[-1]) for one in dataset] == [False, True, True]
    assert "task 1 of antmaze-large" in sentences(found.notes)[0]


def test_a_folder_of_many_files_is_one_dataset(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(3):
        walk(folder / f"visual-antmaze-large-play-v0-{number:03}.npz", seed=number)
        walk(folder / f"visual-antmaze-large-play-v0-{number:03}-val.npz", seed=number + 3)
    orlog.import_dataset(folder, "lab/set-v0", task="task2")
    dataset = orlog.load_dataset("lab/set-v0")
    assert [one.metadata["split"] for one in dataset] == ["val", "val", "train", "train"] * 3
    assert [one.metadata["trajectory"] for one in dataset] == [0, 1] * 6
    assert "task 2 of antmaze-large" in dataset.lineage[0].operation


def test_some_files_of_a_larger_set_are_a_dataset_that_the_whole_begins_with(tmp_path):
    folder = tmp_path / "cube-octuple-play-100m-v0"  # as OGBench's server has it
    folder.mkdir()
    qpos = np.zeros((7, 14 + 8 * 7))
    for number in range(12):
        for seed, split in enumerate(("", "-val")):
            path = folder / f"cube-octuple-play-v0-{number:03}{split}.npz"
            write(path, [3, 2], seed=2 * number + seed, qpos=qpos + number)
    orlog.import_dataset(folder, "lab/whole-v1", task="task1")
    orlog.import_dataset(sorted(folder.glob("*-00?*.npz")), "lab/tenth-v1", task="task1")
    whole, tenth = orlog.load_dataset("lab/whole-v1"), orlog.load_dataset("lab/tenth-v1")
    assert (len(whole), len(tenth)) == (48, 40)
    np.testing.assert_array_equal(tenth.to_dict()["observations"], whole.to_dict()["observations"][:100])
    np.testing.assert_array_equal(tenth.to_dict()["rewards"], whole.to_dict()["rewards"][:100])
    assert [one.metadata["split"] for one in whole] == ["val", "val", "train", "train"] * 12


def test_what_is_no_task_is_refused(tmp_path):
    path = tmp_path / "antmaze-large-navigate-v0.npz"
    walk(path)
    for said, message in (
        ("third", "expected task1 to task5, singletask"),
        ("task9", "antmaze-large has the tasks 1 to 5"),
        ("antmaze-huge-singletask-task1-v0", "antmaze-huge is no environment of OGBench"),
        ("puzzle-3x3-play-singletask-v0", "has no button_states, which the rewards"),
    ):
        with pytest.raises(SchemaError, match=message):
            read_files(formats()["ogbench"], path, tmp_path / "store", Options(task=said))
    write(path, [3], qpos=np.zeros((4, 1)))
    with pytest.raises(SchemaError, match=r"v0\.npz, qpos: its rows of \(1,\) are not those of antmaze"):
        read_files(formats()["ogbench"], path, tmp_path / "store", Options(task="task1"))
    named = find_task("antmaze-large-navigate-singletask-task3-v0", "any", "a.npz")
    assert (named.environment, named.number) == ("antmaze-large", 3)


SCORE = """
import sys
import numpy as np, ogbench
from ogbench.relabel_utils import relabel_dataset
import gymnasium

for name in sys.argv[2:]:
    environment = gymnasium.make(name)
    given = np.load(f"{sys.argv[1]}/{name}.npz")
    found = {key: given[key] for key in given.files}
    relabel_dataset(name, environment, found)
    np.savez(f"{sys.argv[1]}/{name}-scored.npz", rewards=found["rewards"], masks=found["masks"])
"""
SOME = (
    "pointmaze-medium-singletask-task3-v0",
    "antmaze-giant-singletask-v0",
    "humanoidmaze-large-singletask-task2-v0",
    "antsoccer-medium-singletask-task5-v0",
    "cube-triple-singletask-task5-v0",
    "scene-singletask-task1-v0",
    "puzzle-4x6-singletask-task4-v0",
)


@pytest.mark.thorough
def test_rewards_are_those_of_the_package(tmp_path):
    rng = np.random.default_rng(0)
    states = {}
    for name in SOME:
        task = find_task(name, name, name)
        goal = task.goal if isinstance(task.goal, dict) else {}
        qpos = rng.normal(size=(4000, 90)) * 0.03
        if not goal:
            first = 15 if "soccer" in name else 0
            qpos[:, first : first + 2] = task.goal + rng.normal(size=(4000, 2)) * 0.6
        for number, cube in enumerate(goal.get("cubes", ())):
            qpos[:, 14 + 7 * number : 17 + 7 * number] += cube
        buttons = goal.get("buttons", [0])
        if "drawer" in goal:
            qpos[:, 23:25] += [goal["drawer"], goal["window"]]
        flipped = rng.random((4000, len(buttons))) < 0.1
        states[name] = {"qpos": qpos.astype("f4"), "button_states": np.array(buttons) ^ flipped}
        np.savez(tmp_path / f"{name}.npz", allow_pickle=False, **states[name])
    python = tool_python("ogbench==1.2.2", "dm_control>=1.0.20")
    run_tool(python, SCORE, tmp_path, *SOME, folder=tmp_path)
    for name in SOME:
        rewards, done = find_task(name, name, name).judge(states[name])
        with np.load(tmp_path / f"{name}-scored.npz") as theirs:
            np.testing.assert_array_equal(rewards, theirs["rewards"])
            np.testing.assert_array_equal(~done, theirs["masks"] == 1)
        assert 0 < done.sum() < len(done)


GOALS = """
import json, sys
import gymnasium, ogbench
import numpy as np

found = {}
for name in sys.argv[1:]:
    environment = gymnasium.make(f"{name}-singletask-v0").unwrapped
    if not hasattr(environment, "task_infos"):
        environment.set_tasks()
    goals = []
    for task in environment.task_infos:
        if "goal_xy" in task:
            goals.append(task["goal_xy"])
        elif "goal_xyzs" in task:
            goals.append({"cubes": task["goal_xyzs"]})
        elif "goal_button_states" in task:
            goals.append({"buttons": task["goal_button_states"]})
        else:
            goal = task["goal"]
            names = ("block_xyzs", "button_states", "drawer_pos", "window_pos")
            places = [goal[one] for one in names]
            goals.append(dict(zip(("cubes", "buttons", "drawer", "window"), places)))
    found[name] = {"default": environment._reward_task_id, "tasks": goals}
print("goals", json.dumps(found, default=np.ndarray.tolist))
"""


@pytest.mark.thorough
def test_goals_of_all_tasks_are_those_of_the_package(tmp_path):
    table = json.loads((records_folder() / "ogbench_tasks.json").read_text("utf-8"))
    python = tool_python("ogbench==1.2.2", "dm_control>=1.0.20")
    printed = run_tool(python, GOALS, *table, folder=tmp_path)
    (line,) = (one for one in printed.splitlines() if one.startswith("goals "))
    assert json.loads(line.removeprefix("goals ")) == table
