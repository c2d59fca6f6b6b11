"""npz files of NeoRL-2, Stable-Baselines and scripts, and DSRL's HDF5 files."""

import re

import gymnasium
import h5py
import numpy as np
import pytest

import orlog
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import SchemaError
from tests.datasets.formats.reading import read_files


def flat(steps, ends):
    """Return the columns of episodes that end after these steps, the first by a terminal."""
    rng = np.random.default_rng(steps)
    observations = rng.normal(size=(steps, 3)).astype("f4")
    after = np.concatenate((observations[1:], observations[:1]))
    after[ends] = rng.normal(size=(len(ends), 3))
    done, truncated = np.zeros(steps, bool), np.zeros(steps, bool)
    done[ends[0]], truncated[ends[1:]] = True, True
    return {
        "obs": observations,
        "next_obs": after,
        "action": rng.normal(size=(steps, 2)).astype("f4"),
        "reward": rng.normal(size=(steps, 1)),
        "done": done,
        "truncated": truncated,
    }


def test_neorl_files_are_read_as_one_dataset_with_splits(tmp_path):
    columns = flat(9, [3, 8])
    np.savez(tmp_path / "Fusion-train.npz", **columns, index=[0, 4])
    np.savez(tmp_path / "Fusion-val.npz", **flat(5, [1, 4]), index=[0, 2])
    orlog.import_dataset([tmp_path / "Fusion-train.npz", tmp_path / "Fusion-val.npz"], "lab/fusion-v1")
    dataset = orlog.load_dataset("lab/fusion-v1")
    assert dataset.episode_lengths.tolist() == [4, 5, 2, 3]
    assert [one.metadata["split"] for one in dataset] == ["train", "train", "val", "val"]
    np.testing.assert_array_equal(
        dataset[1].observations, np.concatenate((columns["obs"][4:], columns["next_obs"][-1:]))
    )
    np.testing.assert_array_equal(dataset[1].rewards, columns["reward"][4:, 0])
    ends = [(bool(e.terminations[-1]), bool(e.truncations[-1])) for e in dataset]
    assert ends == [(True, False), (False, True), (True, False), (False, True)]


def test_actions_of_whole_numbers_are_taken_to_be_choices(tmp_path):
    columns = flat(9, [3, 8]) | {"action": np.array([[0], [2], [1]] * 3)}
    np.savez(tmp_path / "a.npz", **columns)
    found = []
    orlog.import_dataset(tmp_path / "a.npz", "lab/a-v1", on_found=found.append)
    assert "taken to be 3, since the largest is 2" in " ".join(sentences(found[0].notes))
    dataset = orlog.load_dataset("lab/a-v1")
    assert dataset.action_space == gymnasium.spaces.Discrete(3)
    np.testing.assert_array_equal(dataset.column("actions"), columns["action"][:, 0])
    np.savez(tmp_path / "c.npz", **columns | {"action": columns["action"] - 1})
    with pytest.raises(SchemaError, match=r"c\.npz, actions: expected discrete actions"):
        orlog.import_dataset(tmp_path / "c.npz", "lab/c-v1")


def test_an_index_that_disagrees_with_the_flags_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **flat(9, [3, 8]), index=[0, 5])
    with pytest.raises(SchemaError, match=r"a\.npz, index: lists 2 .* differ from episode 1"):
        read_files(formats()["npz"], tmp_path / "a.npz", tmp_path / "store")


def test_stable_baselines_files_end_where_the_next_episode_starts(tmp_path):
    columns = flat(6, [2, 5])
    starts = np.array([True, False, False, True, False, False])
    np.savez(
        tmp_path / "expert.npz",
        obs=columns["obs"],
        actions=columns["action"],
        rewards=columns["reward"],
        episode_starts=starts,
        episode_returns=np.zeros(2),
    )
    dataset, found = read_files(formats()["npz"], tmp_path / "expert.npz", tmp_path / "store")
    # What followed the last step of an episode is not in the file.
    assert dataset.episode_lengths.tolist() == [2, 2]
    assert found.truncated == 2
    first = columns["reward"][:3].sum()
    for text in (
        "episode_starts does not say how",
        "2 last steps",
        rf"episode_returns of 2 episodes are not .* of episode 0 it is 0, and they sum up to {first:.6g}",
    ):
        assert any(re.search(text, doubt) for doubt in sentences(found.notes))
    with np.load(tmp_path / "expert.npz") as expert:
        arrays = dict(expert)
    returns = [columns["reward"][:3].sum(), columns["reward"][3:].sum()]
    np.savez(tmp_path / "right.npz", **arrays | {"episode_returns": returns})
    _, found = read_files(formats()["npz"], tmp_path / "right.npz", tmp_path / "right")
    assert "episode_returns" not in " ".join(sentences(found.notes))
    np.savez(tmp_path / "more.npz", **arrays | {"episode_returns": [*returns, 1.0]})
    _, found = read_files(formats()["npz"], tmp_path / "more.npz", tmp_path / "more")
    assert "episode_returns holds 3 numbers, and there are 2 episodes." in sentences(found.notes)


def test_names_of_old_transitions_of_imitation_are_known(tmp_path):
    columns = flat(6, [2, 5])
    names = {"obs": "obs_old", "action": "act", "next_obs": "obs_new", "reward": "rew", "done": "dones"}
    np.savez(tmp_path / "a.npz", **{new: columns[old] for old, new in names.items()})
    assert choose_format([tmp_path / "a.npz"], None, "lab/x").name == "npz"
    dataset, _ = read_files(formats()["npz"], tmp_path / "a.npz", tmp_path / "store")
    np.testing.assert_array_equal(dataset[0].observations[:3], columns["obs"][:3])
    np.testing.assert_array_equal(dataset[0].observations[3], columns["next_obs"][2])


def test_what_is_missing_twice_or_ambiguous_is_said(tmp_path):
    columns = flat(6, [2, 5])
    path = tmp_path / "a.npz"
    without = {name: values for name, values in columns.items() if name != "action"}
    cases = [
        (without, r"has no actions \(actions, action, acts, act\)"),
        ({**columns, "observations": columns["obs"]}, "has both observations and obs; remove one"),
        ({**columns, "done": columns["done"] + 3}, "terminated is 3.0 at row 0, expected 0 or 1"),
    ]
    for arrays, message in cases:
        np.savez(path, **arrays)
        with pytest.raises(SchemaError, match=message):
            read_files(formats()["npz"], path, tmp_path / "store")
    unknown = {name: columns[name] for name in ("obs", "action", "reward")}
    np.savez(path, **unknown)
    with pytest.raises(SchemaError, match="nothing says where episodes end"):
        read_files(formats()["npz"], path, tmp_path / "store")
    np.savez(path, **unknown, done=columns["done"])
    with pytest.raises(SchemaError, match="horizon="):
        read_files(formats()["npz"], path, tmp_path / "store")
    dataset, _ = read_files(formats()["npz"], path, tmp_path / "store", Options(horizon=3))
    assert dataset.episode_lengths.tolist() == [3, 2]


def test_arrays_stored_column_by_column_are_turned(tmp_path):
    columns = flat(6, [2, 5])
    np.savez(tmp_path / "a.npz", **{**columns, "action": np.asfortranarray(columns["action"])})
    dataset, _ = read_files(formats()["npz"], tmp_path / "a.npz", tmp_path / "store")
    np.testing.assert_array_equal(dataset[0].actions, columns["action"][:3])


def write_dsrl(path, **change):
    columns = flat(9, [3, 8])
    body = {
        "observations": columns["obs"],
        "next_observations": columns["next_obs"],
        "actions": columns["action"],
        "rewards": columns["reward"][:, 0],
        "costs": np.arange(9) % 2.0,
        "terminals": columns["done"].astype("f4"),
        "timeouts": columns["truncated"].astype("f4"),
        **change,
    }
    with h5py.File(path, "w") as file:
        for name, values in body.items():
            file.create_dataset(name, data=values, compression="gzip")
    return body


def test_costs_of_dsrl_are_kept(tmp_path):
    path = tmp_path / "SafetyCarRun-v0-40-651.hdf5"
    body = write_dsrl(path)
    assert choose_format([path], None, "lab/x").name == "dsrl-hdf5"
    dataset, found = read_files(formats()["dsrl"], path, tmp_path / "store")
    assert dataset.episode_lengths.tolist() == [4, 5]
    np.testing.assert_array_equal(dataset.column("infos/cost"), body["costs"])
    assert (dataset.roles, dataset.manifest.roles) == ({"infos/cost": "cost"}, {})
    assert (found.terminated, found.truncated) == (1, 1)


def test_what_is_no_dsrl_file_is_refused(tmp_path):
    path = tmp_path / "a.hdf5"
    write_dsrl(path, costs=np.zeros(8))
    with pytest.raises(SchemaError, match="costs: expected 9 rows"):
        read_files(formats()["dsrl"], path, tmp_path / "store")
