"""d3rlpy's dumps: those of its layout, written and read again, by d3rlpy itself, and those that do not agree."""

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import SchemaError
from tests.datasets.formats.reading import read_files
from tests.datasets.recorded_samples import record_samples
from tests.tool_environments import run_tool, tool_python

LENGTHS = (4, 2, 5)
ENDED = (True, False, False)
PACKAGES = (  # without gymnasium 1.0, which d3rlpy pins, so that it sees ours
    "d3rlpy==2.8.1",
    "colorama==0.4.6",
    "dataclasses-json==0.6.7",
    "gym==0.26.2",
    "gym-notices==0.1.0",
    "joblib==1.6.0",
    "marshmallow==3.26.2",
    "scikit-learn==1.9.1",
    "structlog==26.1.0",
    "threadpoolctl==3.8.0",
    "typing-inspect==0.9.0",
)


def write(path, **change):
    """Write a dump of d3rlpy's layout; return the arrays of each episode."""
    rng = np.random.default_rng(0)
    episodes = [
        {
            "observations": rng.normal(size=(length, 3)).astype("f4"),
            "actions": rng.uniform(-1, 1, (length, 2)).astype("f4"),
            "rewards": rng.normal(size=(length, 1)).astype("f4"),
            "terminated": np.array(ended),
        }
        for length, ended in zip(LENGTHS, ENDED, strict=True)
    ]
    with h5py.File(path, "w") as file:
        entries = {f"{name}_{number}": values for number, one in enumerate(episodes) for name, values in one.items()}
        entries |= {"columns": list(episodes[0]), "num_episodes": len(LENGTHS), "version": "2.1"}
        for name, values in (entries | change).items():
            if values is not None:
                file[name] = values
    return episodes


def check(dataset, episodes):
    """Compare with what is in a dump: the last row of an episode that did not end gives its end."""
    for ours, theirs in zip(dataset, episodes, strict=True):
        ended = bool(theirs["terminated"])
        count = len(theirs["actions"]) - (not ended)
        final = np.zeros(3) if ended else theirs["observations"][count]
        np.testing.assert_array_equal(ours.observations[:-1], theirs["observations"][:count])
        np.testing.assert_array_equal(ours.observations[-1], final)
        np.testing.assert_array_equal(ours.actions, theirs["actions"][:count])
        np.testing.assert_array_equal(ours.rewards, theirs["rewards"][:count, 0])
        assert ours.terminations.tolist() == [False] * (count - 1) + [ended]
        assert ours.truncations[-1] == (not ended)
        assert bool(ours.metadata["final_observation_missing"]) == ended


def test_episodes_are_read(tmp_path):
    path = tmp_path / "buffer.h5"
    episodes = write(path, values_0=np.zeros(4), columns=["observations", "values"])
    assert choose_format([path], None, "lab/x").name == "d3rlpy-hdf5"
    dataset, found = read_files(formats()["d3rlpy"], path, tmp_path / "store")
    check(dataset, episodes)
    assert "Left out, of no meaning here: values." in sentences(found.notes)
    assert any(doubt.startswith("2 last rows of episodes were left out") for doubt in sentences(found.notes))


def test_files_of_d3rlpy_1_are_cut_by_their_flags(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "old.h5"
    observations, actions = rng.normal(size=(9, 3)).astype("f4"), rng.integers(0, 3, 9)
    terminals = np.arange(9) == 3
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"], file["rewards"] = observations, actions, np.ones(9)
        file["terminals"], file["episode_terminals"] = terminals, terminals | (np.arange(9) == 8)
    assert choose_format([path], None, "lab/x").name == "d3rlpy-hdf5"
    dataset, found = read_files(formats()["d3rlpy"], path, tmp_path / "store")
    assert dataset.episode_lengths.tolist() == [4, 4]
    assert dataset.action_space == spaces.Discrete(int(actions.max()) + 1)
    assert (found.terminated, found.truncated) == (1, 1)
    np.testing.assert_array_equal(dataset[1].observations, observations[4:])
    np.testing.assert_array_equal(dataset[1].actions, actions[4:8])


def test_a_flag_of_d3rlpy_1_that_is_nan_cuts_nothing(tmp_path):
    path = tmp_path / "old.h5"
    for name in ("terminals", "episode_terminals"):
        with h5py.File(path, "w") as file:
            file["observations"], file["actions"], file["rewards"] = np.ones((3, 9, 1))
            file["terminals"], file["episode_terminals"] = np.zeros((2, 9))
            file[name][4] = np.nan
        with pytest.raises(SchemaError, match=f"{name}: expected 0 or 1, found nan at row 4"):
            read_files(formats()["d3rlpy"], path, tmp_path / "store")


VECTOR = spaces.Box(-1, 1, (3,), np.float32)
KINDS = {
    "vectors": (VECTOR, spaces.Box(-1, 1, (2,), np.float32)),
    "choices": (VECTOR, spaces.Discrete(4)),
    "frames": (spaces.Box(0, 255, (1, 8, 8), np.uint8), spaces.Discrete(4)),
    "pairs": (spaces.Tuple([VECTOR, VECTOR]), spaces.Box(-1, 1, (2,), np.float32)),
}


def test_what_does_not_agree_is_refused(tmp_path):
    path = tmp_path / "bad.h5"
    changes = [
        ({"num_episodes": "three"}, "num_episodes is None"),
        ({"num_episodes": 99}, "num_episodes is 99, and the file has 15 entries"),
        ({"num_episodes": 4}, "has no terminated_3"),
        ({"rewards_1": np.zeros((3, 1), "f4")}, "episode 1, rewards: expected 2 rows"),
        ({"rewards_0": np.zeros((4, 2), "f4")}, "rewards: expected one number a row"),
        ({"terminated_2": 3}, "terminated_2: expected a flag, found 3"),
        ({"observations_1": np.zeros((2, 4), "f4")}, r"episode 1: observation has rows of"),
        ({"observations_1": None}, "has no observations_1"),
        ({"observations_1": h5py.ExternalLink("other.h5", "/x")}, "a link, which is not followed"),
    ]
    for change, message in changes:
        write(path, **change)
        with pytest.raises(SchemaError, match=message):
            read_files(formats()["d3rlpy"], path, tmp_path / "store")


@pytest.mark.thorough
def test_d3rlpy_has_the_transitions_of_what_is_exported(tmp_path):
    most = {}
    for kind, pair in KINDS.items():
        dataset = record_samples(f"lab/{kind}-v1", *pair, stops=False, infos=())
        orlog.export_dataset(dataset, tmp_path / kind, to="d3rlpy", lossy=True)
        most[kind] = int(dataset.column("actions").max()) + 1
    code = """
    import sys, numpy as np, d3rlpy, orlog

    def row(values, number):
        return tuple(one[number] for one in values) if isinstance(values, tuple) else values[number]

    def same(one, other):
        pairs = zip(one, other) if isinstance(other, tuple) else [(one, other)]
        return all(np.array_equal(*pair) for pair in pairs)

    for kind in sys.argv[1:]:
        with open(f"{kind}/{kind}-v1.h5", "rb") as file:
            loaded = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
        columns = orlog.load_dataset(f"lab/{kind}-v1").to_dict()
        for buffer in (loaded, orlog.load_dataset(f"lab/{kind}-v1").to_d3rlpy()):
            picked = [
                buffer.transition_picker(episode, step)
                for episode in buffer.episodes
                for step in range(episode.transition_count)
            ]
            assert len(picked) == len(columns["rewards"])
            for number, one in enumerate(picked):
                assert same(one.observation, row(columns["observations"], number))
                assert np.array_equal(np.squeeze(one.action), columns["actions"][number])
                assert one.reward[0] == columns["rewards"][number]
                assert bool(one.terminal) == bool(columns["terminations"][number])
                if not one.terminal:
                    assert same(one.next_observation, row(columns["next_observations"], number))
        info, batch = loaded.dataset_info, loaded.sample_transition_batch(8)
        print(kind, info.action_space.name, info.action_size, batch.rewards.shape)
        with open(f"{kind}/dumped.h5", "w+b") as file:
            loaded.dump(file)
    """
    said = run_tool(tool_python(*PACKAGES, dependencies=False), code, *KINDS, folder=tmp_path)
    for kind, (_, actions) in KINDS.items():
        is_choice = isinstance(actions, spaces.Discrete)
        space = f"DISCRETE {most[kind]}" if is_choice else "CONTINUOUS 2"
        assert f"{kind} {space} (8, 1)" in said
        dumped, _ = read_files(formats()["d3rlpy"], tmp_path / kind / "dumped.h5", tmp_path / f"d{kind}")
        ours, _ = read_files(formats()["d3rlpy"], tmp_path / kind / f"{kind}-v1.h5", tmp_path / f"o{kind}")
        assert dumped.manifest.columns == ours.manifest.columns
