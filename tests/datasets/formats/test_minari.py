"""Minari's files: those that minari writes, those that we write for it, and those that do not agree."""

import json
import shutil
import warnings

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

import orlog
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.formats.minari import episodes as minari_episodes
from orlog.datasets.formats.minari.format import HDF5
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files

ODD = spaces.Dict(
    {
        "arm": spaces.Box(-1, 1, (2,), np.float32),
        "frame": spaces.Box(0, 255, (40, 33, 3), np.uint8),
        "pair": spaces.Tuple([spaces.Discrete(5, start=-1), spaces.MultiBinary(3)]),
        "task": spaces.Text(12),
    }
)
ACTIONS = spaces.MultiDiscrete([3, 4])


def buffer(number):
    """Return an episode that ends, or the first one, which is cut off sooner."""
    ODD.seed(number)
    steps = 4 if number else 2
    samples = [ODD.sample() for _ in range(steps + 1)]
    ends = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        id=number,
        seed=number,
        options={"level": {"height": number}},
        observations={
            "arm": np.stack([one["arm"] for one in samples]),
            "frame": np.stack([one["frame"] for one in samples]),
            "pair": tuple(np.stack([one["pair"][part] for one in samples]) for part in (0, 1)),
            "task": [one["task"] for one in samples],
        },
        actions=np.stack([ACTIONS.sample() for _ in range(steps)]),
        rewards=list(np.arange(steps) / 8),
        terminations=list(ends & bool(number)),
        truncations=list(ends & (number == 0)),
        infos={"place": np.arange(2.0 * steps + 2).reshape(-1, 2), "inner": {"count": np.arange(steps + 1)}},
    )


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Write four episodes by minari itself; return the dataset's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it wants an author, a link to the code ..
        minari.create_dataset_from_buffers(
            "lab/odd-v3",
            [buffer(number) for number in range(4)],
            observation_space=ODD,
            action_space=ACTIONS,
            description="Odd.",
            algorithm_name="random",
        )
    return tmp_path / "minari" / "lab" / "odd-v3"


def same(ours, theirs):
    """Compare values of a space, of which frames were changed by JPEG in both alike."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def check(dataset, theirs):
    assert dataset.total_episodes == theirs.total_episodes
    for ours, other in zip(dataset, theirs, strict=True):
        same(ours.observations, other.observations)
        same(ours.actions, other.actions)
        for name in ("rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(other, name))


@pytest.mark.parametrize("block_bytes", [1, 2**24])
def test_what_minari_records_is_read_as_minari_reads_it(recorded, tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(minari_episodes, "BLOCK_BYTES", block_bytes)
    theirs = minari.load_dataset("lab/odd-v3")
    dataset, found = read_files(HDF5, recorded, tmp_path / "store")
    assert (dataset.observation_space, dataset.action_space) == (ODD, ACTIONS)
    check(dataset, theirs)
    last = dataset[3]
    assert last.seed == 3
    assert json.loads(last.metadata["options"]) == {"level": {"height": 3}}
    np.testing.assert_array_equal(last.infos["inner/count"], [1, 2, 3, 4])
    assert last.metadata["reset_info/inner/count"] == 0
    assert (found.terminated, found.truncated) == (3, 1)
    assert any("JPEG" in doubt for doubt in sentences(found.notes))
    assert (dataset.manifest.behavior_policy, dataset.manifest.description[:4]) == ("random", "Odd.")


def test_what_we_export_is_what_minari_reads_and_comes_back(recorded, tmp_path, monkeypatch):
    orlog.import_dataset(recorded, "lab/odd-v3", license="CC-BY-4.0")
    dataset = orlog.load_dataset("lab/odd-v3")
    orlog.export_dataset(dataset, tmp_path / "out", to="minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    theirs = minari.load_dataset("lab/odd-v3")
    check(dataset, theirs)
    assert [one["seed"] for one in theirs.storage.get_episode_metadata(range(4))] == [0, 1, 2, 3]
    orlog.import_dataset(tmp_path / "out" / "lab" / "odd-v3", "lab/again-v3")
    again = orlog.load_dataset("lab/again-v3")
    assert theirs.storage.metadata["license"] == again.manifest.license == "CC-BY-4.0"
    assert again.manifest.description == dataset.manifest.description
    columns = {one.name: one.blake3 for one in dataset.manifest.columns}
    assert {one.name: one.blake3 for one in again.manifest.columns} == columns


def test_a_view_of_an_environment_is_exported_with_it(tmp_path, monkeypatch):
    env = gymnasium.make("CartPole-v1")
    with orlog.DatasetWriter("lab/cart-v1", environment=env) as writer:
        for seed in range(3):
            observations, done = [env.reset(seed=seed)[0]], False
            actions, rewards = [], []
            while not done:
                actions.append(0)
                after, reward, done, _, _ = env.step(0)
                observations.append(after)
                rewards.append(float(reward))
            ends = np.arange(len(rewards)) == len(rewards) - 1
            writer.add_episode(
                orlog.Episode(
                    observations=np.array(observations),
                    actions=np.array(actions),
                    rewards=np.array(rewards),
                    terminations=ends,
                    truncations=~ends & False,
                    seed=seed,
                )
            )
    view = orlog.load_dataset("lab/cart-v1")[1:]
    orlog.export_dataset(view, tmp_path / "out", to="minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    theirs = minari.load_dataset("lab/cart-v1")
    check(view, theirs)
    assert theirs.recover_environment().spec.id == "CartPole-v1"
    dataset, _ = read_files(HDF5, tmp_path / "out" / "lab" / "cart-v1", tmp_path / "store")
    assert (dataset.environment.id, dataset.environment.max_episode_steps) == ("CartPole-v1", 500)


def test_what_does_not_agree_is_refused(recorded, tmp_path):
    main, said = recorded / "data" / "main_data.hdf5", recorded / "data" / "metadata.json"
    good, body = main.read_bytes(), json.loads(said.read_text("utf-8"))

    def refused(error, message):
        with pytest.raises(error, match=message):
            read_files(HDF5, recorded, tmp_path / "store")
        main.write_bytes(good)
        said.write_text(json.dumps(body), "utf-8")

    assert choose_format([recorded], None, "lab/x").name == "minari-hdf5"
    said.write_text(json.dumps({**body, "total_episodes": 5}), "utf-8")
    refused(SchemaError, "holds 4 episodes, and metadata.json says 5")
    said.write_text(json.dumps({**body, "total_steps": body["total_steps"] + 1}), "utf-8")
    refused(IntegrityError, f"metadata.json says total_steps {body['total_steps'] + 1}, and the epi")
    said.write_text(json.dumps({**body, "observation_space": '{"type": "Grid"}'}), "utf-8")
    refused(SchemaError, "no space that Minari writes")
    said.write_text("{", "utf-8")
    refused(IntegrityError, "metadata.json is no JSON")
    with h5py.File(main, "r+") as file:
        del file["episode_1/rewards"]
        file["episode_1/rewards"] = np.zeros(3)
    refused(IntegrityError, "episode_1: total_steps says 4, and rewards holds 3")
    with h5py.File(main, "r+") as file:
        del file["episode_2/rewards"]
        file["episode_2/rewards"] = np.zeros((4, 2))
    refused(SchemaError, r"episode_2, rewards: expected one number a step, found float64 \(4, 2\)")
    with h5py.File(main, "r+") as file:
        del file["episode_2/truncations"]
        file["episode_2/truncations"] = np.array([0, 0, 0, np.nan])
    refused(SchemaError, "episode_2, truncations: expected 0 or 1, found nan at row 3")
    with h5py.File(main, "r+") as file:
        file["episode_2"].attrs["total_steps"] = 3
    refused(IntegrityError, r"episode_2: total_steps says 3, and rewards holds 4")
    with h5py.File(main, "r+") as file:
        del file["episode_3"]
        file["episode_3"] = h5py.ExternalLink("other.hdf5", "/")
    refused(SchemaError, "episode_3: a link, which is not followed")


def test_the_only_dataset_below_a_folder_is_imported(recorded, tmp_path):
    orlog.import_dataset(tmp_path / "minari", "lab/again-v1")
    assert len(orlog.load_dataset("lab/again-v1")) == 4
    shutil.copytree(recorded, recorded.with_name("two-v0"))
    with pytest.raises(ValueError, match="no known format"):
        orlog.import_dataset(tmp_path / "minari", "lab/both-v1")
