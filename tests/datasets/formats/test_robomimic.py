"""robomimic's files: those of its layout, written and read again, and those that do not agree."""

import json

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.formats import mapped_arrays
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.formats.layouts import FORMATS
from orlog.datasets.formats.notes import sentences
from orlog.errors import SchemaError
from tests.datasets.formats.reading import read_files
from tests.tool_environments import run_tool, tool_python

PACKAGES = ("robomimic==0.3.0", "termcolor==2.5.0")
LENGTHS = {"demo_0": 4, "demo_2": 3, "demo_10": 5}  # with a gap, and not in the order of text
MASKS = {"train": ["demo_0", "demo_10"], "valid": ["demo_2"], "20_percent": ["demo_10"]}


def write(path, *, everywhere=False, **change):
    """Write a file of robomimic's layout; return its arrays by demonstration."""
    rng = np.random.default_rng(0)
    written = {}
    with h5py.File(path, "w") as file:
        for name, steps in LENGTHS.items():
            eef = rng.normal(size=(steps + 1, 3))
            frames = rng.integers(0, 255, (steps + 1, 8, 8, 3)).astype("u1")
            arrays = {
                "actions": rng.uniform(-1, 1, (steps, 2)),
                "rewards": (np.arange(steps) == steps - 1) * 1.0,
                "dones": (np.arange(steps) == steps - 1) & (name != "demo_2"),
                "states": rng.normal(size=(steps, 6)),
                "obs/eef_pos": eef[:-1],
                "next_obs/eef_pos": eef[1:],
                "obs/image": frames[:-1],
                "next_obs/image": frames[1:],
            } | (change if name == "demo_2" or everywhere else {})
            for key, values in arrays.items():
                if values is not None:
                    file.create_dataset(f"data/{name}/{key}", data=np.asarray(values))
            file[f"data/{name}"].attrs["num_samples"] = steps
            written[name] = arrays
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1})
        for mask, names in MASKS.items():
            file.create_dataset(f"mask/{mask}", data=np.array(names, dtype="S8"))
    return written


@pytest.mark.parametrize("block_bytes", [1, 2**24])
def test_demonstrations_are_read_by_their_numbers(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "lift.hdf5"
    written = write(path)
    assert choose_format([path], None, "lab/x").name == "robomimic-hdf5"
    dataset, found = read_files(FORMATS["robomimic"], path, tmp_path / "store")
    assert (found.terminated, found.truncated) == (2, 1)
    assert "Lift" in dataset.manifest.description
    for episode, (name, steps) in zip(dataset, LENGTHS.items(), strict=True):
        arrays = written[name]
        for part, values in episode.observations.items():
            np.testing.assert_array_equal(values[:steps], arrays[f"obs/{part}"])
            np.testing.assert_array_equal(values[1:], arrays[f"next_obs/{part}"])
        np.testing.assert_array_equal(episode.actions, arrays["actions"])
        np.testing.assert_array_equal(episode.rewards, arrays["rewards"])
        np.testing.assert_array_equal(episode.infos["states"], arrays["states"])
        assert episode.metadata["split"] == ("valid" if name == "demo_2" else "train")
        assert bool(episode.metadata["mask/20_percent"]) == (name == "demo_10")


NO_NEXT = {"next_obs/eef_pos": None, "next_obs/image": None}


@pytest.mark.parametrize("block_bytes", [1, 2**24])
def test_without_next_observations_the_last_step_of_what_was_cut_off_is_left_out(tmp_path, monkeypatch, block_bytes):
    """As LIBERO writes them."""
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "libero.hdf5"
    written = write(path, everywhere=True, **NO_NEXT)
    assert choose_format([path], None, "lab/x").name == "robomimic-hdf5"
    dataset, found = read_files(FORMATS["robomimic"], path, tmp_path / "store")
    assert (found.terminated, found.truncated) == (2, 1)
    assert [len(episode) for episode in dataset] == [4, 2, 5]
    for episode, (name, steps) in zip(dataset, LENGTHS.items(), strict=True):
        arrays, is_cut = written[name], name == "demo_2"
        for part, values in episode.observations.items():
            expected = arrays[f"obs/{part}"]
            final = expected[-1:] if is_cut else np.zeros_like(expected[:1])
            body = expected[:-1] if is_cut else expected
            np.testing.assert_array_equal(values, np.concatenate((body, final)))
        np.testing.assert_array_equal(episode.actions, arrays["actions"][: steps - is_cut])
        np.testing.assert_array_equal(episode.infos["done"], arrays["dones"][: steps - is_cut])
        assert bool(episode.metadata["final_observation_missing"]) != is_cut
    said = " ".join(sentences(found.notes))
    assert "1 last row of episodes was left out" in said
    assert "2 episodes that ended have no final observation" in said


def test_without_rewards_and_flags_demonstrations_are_cut_off_and_have_zeros(tmp_path):
    """As Isaac Lab writes them."""
    path = tmp_path / "isaac.hdf5"
    write(path, everywhere=True, rewards=None, dones=None, states=None)
    with h5py.File(path, "a") as file:
        file["data/demo_0/states/robot/root"] = np.zeros((4, 7))
    dataset, found = read_files(FORMATS["robomimic"], path, tmp_path / "store")
    assert (found.terminated, found.truncated, found.steps) == (0, 3, sum(LENGTHS.values()))
    assert not dataset.column("rewards").any()
    assert sentences(found.notes) == [
        "Nothing says how episodes ended: all were taken to be cut off (--ends says it otherwise).",
        "No rewards: they are zeros.",
        "Left out, not a row for each step: states/robot/root.",
    ]


def test_all_arrays_with_a_row_a_step_are_kept(tmp_path):
    """As Isaac Lab and MimicGen write them beside the observations, and LIBERO."""
    path, kept = tmp_path / "isaac.hdf5", {}
    write(path, everywhere=True, states=None)
    rng = np.random.default_rng(1)
    with h5py.File(path, "a") as file:
        for name, steps in LENGTHS.items():
            kept[name] = {
                "robot_states": rng.normal(size=(steps, 9)),
                "states/articulation/robot/joint_position": rng.normal(size=(steps, 7)).astype("f4"),
                "datagen_info/eef_pose": rng.normal(size=(steps, 4, 4)),
                "src_demo_labels": rng.integers(0, 3, (steps, 1)),
            }
            for key, values in kept[name].items():
                file[f"data/{name}/{key}"] = values
            file[f"data/{name}/initial_state/robot/root"] = np.zeros((1, 7))
            file[f"data/{name}/src_demo_inds"] = np.arange(4)  # as many as the first one has steps
            file[f"data/{name}/names"] = ["a"] * steps
    dataset, found = read_files(FORMATS["robomimic"], path, tmp_path / "store")
    for episode, (name, arrays) in zip(dataset, kept.items(), strict=True):
        for key, values in arrays.items():
            np.testing.assert_array_equal(episode.infos[key], values, err_msg=name)
    assert [one for one in sentences(found.notes) if not one.startswith("robomimic's dones")] == [
        "Left out, not a row for each step: initial_state/robot/root, names, src_demo_inds."
    ]
    orlog.export_dataset(dataset, tmp_path / "out", to="robomimic")
    again, _ = read_files(FORMATS["robomimic"], next((tmp_path / "out").glob("*.hdf5")), tmp_path / "again")
    for key in kept["demo_0"]:
        np.testing.assert_array_equal(again[2].infos[key], dataset[2].infos[key])


def test_what_does_not_agree_is_refused(tmp_path):
    path = tmp_path / "bad.hdf5"
    for change, message in (
        ({"next_obs/eef_pos": np.zeros((3, 3))}, "that of step 0 is not the observation of step 1"),
        ({"rewards": np.zeros(2)}, "demo_2, rewards: expected 3 rows, found 2"),
        ({"dones": None}, "demo_2: has no array 'dones', and .*demo_0 has"),
        ({"dones": [0, 0, np.nan]}, "demo_2: infos/done has rows of float64"),
        ({"rewards": np.zeros((3, 2))}, r"demo_2, rewards: expected one number .* \(3, 2\)"),
        ({"actions": np.zeros((4, 2))}, "demo_2: num_samples says 3, and actions holds 4"),
        ({"actions": np.zeros((3, 2, 1))}, r"demo_2: action has rows of float64 \(2, 1\), and .*demo_0 of"),
        ({"obs/eef_pos": np.zeros((3, 5))}, r"demo_2: observation/eef_pos has rows of float64 \(5,\), and .*demo_0 of"),
    ):
        write(path, **change)
        with pytest.raises(SchemaError, match=message):
            read_files(FORMATS["robomimic"], path, tmp_path / "store")
    for key in ("rewards", "dones", "states"):
        write(path)
        with h5py.File(path, "a") as file:
            del file[f"data/demo_0/{key}"]
        with pytest.raises(SchemaError, match=f"demo_2: has {key}, and .*demo_0 has not"):
            read_files(FORMATS["robomimic"], path, tmp_path / "store")
    write(path)
    with h5py.File(path, "a") as file:
        del file["mask/train"]
        file["mask/train"] = np.dtype("S8")  # a type that has a name, and no values
    with pytest.raises(SchemaError, match="mask/train: expected names of demonstrations"):
        read_files(FORMATS["robomimic"], path, tmp_path / "store")


@pytest.mark.thorough
def test_robomimic_reads_what_is_exported(tmp_path):
    write(tmp_path / "lift.hdf5")
    orlog.import_dataset(tmp_path / "lift.hdf5", "lab/lift-v1")
    orlog.export_dataset("lab/lift-v1", tmp_path / "out", to="robomimic")
    code = """
    import numpy as np, orlog
    import robomimic.utils.obs_utils as kinds
    from robomimic.utils.dataset import SequenceDataset

    path = "out/lift-v1.hdf5"
    kinds.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": ["eef_pos"], "rgb": ["image"]}})
    for split in (None, "train", "valid"):
        episodes = [
            one
            for one in orlog.load_dataset("lab/lift-v1")
            if split in (None, one.metadata["split"])
        ]
        steps = [(one, step) for one in episodes for step in range(len(one.rewards))]
        dataset = SequenceDataset(
            path, ("eef_pos", "image"), ("actions", "rewards", "dones"), filter_by_attribute=split
        )
        assert len(dataset) == len(steps) and len(episodes) == dataset.n_demos
        for row, (episode, step) in enumerate(steps):
            found = dataset[row]
            for part, values in episode.observations.items():
                assert np.array_equal(found["obs"][part][0], values[step])
                assert np.array_equal(found["next_obs"][part][0], values[step + 1])
            assert np.array_equal(found["actions"][0], episode.actions[step])
            assert np.array_equal(found["rewards"][0], episode.rewards[step])
            assert found["dones"][0] == episode.infos["done"][step]
    """
    run_tool(tool_python(*PACKAGES, dependencies=False), code, folder=tmp_path)


def test_groups_of_observations_are_parts_too(tmp_path):
    path = tmp_path / "a.hdf5"
    arrays = write(path)
    with h5py.File(path, "a") as file:
        for name, steps in LENGTHS.items():
            for group in ("obs", "next_obs"):
                rows = np.arange(steps + 1.0)[:, None]
                file[f"data/{name}/{group}/policy/joints"] = rows[group == "next_obs" :][:steps]
    dataset, _ = read_files(FORMATS["robomimic"], path, tmp_path / "store")
    assert isinstance(dataset.observation_space, spaces.Dict)
    assert [*dataset.observation_space] == ["eef_pos", "image", "policy.joints"]
    np.testing.assert_array_equal(dataset[0].observations["policy.joints"][:, 0], np.arange(5.0))
    np.testing.assert_array_equal(dataset[0].observations["eef_pos"][:-1], arrays["demo_0"]["obs/eef_pos"])


def test_parts_that_would_have_one_name_are_refused(tmp_path):
    write(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        for name, steps in LENGTHS.items():
            for part in ("arm/q", "arm.q"):
                file[f"data/{name}/obs/{part}"] = np.zeros((steps, 2))
    with pytest.raises(SchemaError, match=r"obs/arm.q and obs/arm.q would both become"):
        read_files(FORMATS["robomimic"], tmp_path / "a.hdf5", tmp_path / "store")
