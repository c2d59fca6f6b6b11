"""OGBench's files: any lengths in any blocks, written and read again, and those that do not agree."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog import export_dataset
from orlog.datasets.formats import ogbench
from orlog.errors import IntegrityError, SchemaError
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
        patch.setattr(ogbench, "BLOCK_BYTES", block_rows * row_bytes)
        dataset, found = read_files(ogbench.FORMAT, folder / "maze.npz", folder / "store")
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
    dataset, _ = read_files(ogbench.FORMAT, tmp_path / "p.npz", tmp_path / "store")
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
            read_files(ogbench.FORMAT, path, tmp_path / "store")
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, observations=objects, actions=objects, terminals=objects)
    with pytest.raises(SchemaError, match="Python objects, which are not read"):
        read_files(ogbench.FORMAT, path, tmp_path / "store")
    write(path, [2])
    write(tmp_path / "other.npz", [2], actions=np.zeros((3, 5), "f4"))
    with pytest.raises(SchemaError, match="not one dataset"):
        read_files(ogbench.FORMAT, [path, tmp_path / "other.npz"], tmp_path / "store")


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
