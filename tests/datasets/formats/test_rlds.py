"""RLDS datasets of TensorFlow Datasets: in the layout it writes, with the habits that others have, and damaged."""

import io
import json
import shutil
from collections.abc import Mapping

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.layouts import FORMATS
from orlog.datasets.formats.notes import sentences
from orlog.datasets.formats.rlds import format as rlds
from orlog.datasets.formats.rlds.tfrecords import example_bytes, read_example, read_records, values_of, write_record
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats import test_d4rl, test_robomimic
from tests.datasets.formats.reading import damaged, read_files, refuses_or_reads
from tests.levels import scaled
from tests.tool_environments import run_tool, tool_python

STEPS = {
    "observation": ("float32", [2]),
    "action": ("float32", [1]),
    "reward": ("float32", []),
    "discount": ("float32", []),
    "is_first": ("bool", []),
    "is_last": ("bool", []),
    "is_terminal": ("bool", []),
}


def tensor(dtype, shape):
    dimensions = {"dimensions": [str(one) for one in shape]} if shape else {}
    return {
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
        "tensor": {"dtype": dtype, "shape": dimensions, "encoding": "none"},
    }


TEXT = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}


def write(folder, episodes, steps=STEPS, metadata=None, **change):
    """Write episodes of named arrays in the layout of TensorFlow Datasets; return the folder.

    `metadata` are features of `episode_metadata`, whose values are those of an episode by the same names.
    """
    if metadata is None:
        metadata = {}
    folder.mkdir(parents=True, exist_ok=True)
    features = {name: tensor(*one) for name, one in steps.items()}
    inner = {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": features}}
    outer = {"pythonClassName": "x.Dataset", "sequence": {"feature": inner, "length": "-1"}}
    whole = {name: TEXT if one == "text" else tensor(*one) for name, one in metadata.items()}
    others = {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": whole}}
    top = {"steps": outer} | ({"episode_metadata": others} if metadata else {})
    tree = {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": top}}
    (folder / "features.json").write_text(json.dumps(tree), "utf-8")
    info = {
        "name": "arm",
        "version": "1.0.0",
        "splits": [{"name": "train", "shardLengths": [str(len(episodes))]}],
        **change,
    }
    (folder / "dataset_info.json").write_text(json.dumps(info), "utf-8")
    with (folder / f"{info['name']}-train.tfrecord-00000-of-00001").open("wb") as file:
        for episode in episodes:
            values = {f"steps/{name}": np.ravel(episode[name]) for name in steps}
            for name in metadata:
                value = episode[name]
                value = [value.encode()] if isinstance(value, str) else np.ravel(value)
                values[f"episode_metadata/{name}"] = value
            write_record(file, example_bytes(values))
    return folder


def rows(count, *, seed=0, terminal=True, **change):
    """Return `count` steps as RLDS says: those after the last action hold nothing."""
    rng = np.random.default_rng(seed)
    last = np.arange(count) == count - 1
    return {
        "observation": rng.normal(size=(count, 2)).astype("f4"),
        "action": np.where(last, 0, rng.normal(size=count)).astype("f4")[:, None],
        "reward": np.where(last, 0, np.arange(count) + 1.0).astype("f4"),
        "discount": np.where(last, 0, 1).astype("f4"),
        "is_first": np.arange(count) == 0,
        "is_last": last,
        "is_terminal": last & terminal,
        **change,
    }


SAMPLE = (rows(4), rows(3, terminal=False))


def read(folder, store):
    return read_files(rlds.FORMAT, folder, store)


def recorded(name="lab/odd-v1"):
    """Record five episodes of everything that RLDS holds, of two splits."""
    rng = np.random.default_rng(0)
    space = spaces.Dict(
        {
            "frame": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "inner": spaces.Dict(
                {"precise": spaces.Box(-np.inf, np.inf, (2, 2), np.float64), "choice": spaces.Discrete(4, start=-2)}
            ),
            "lights": spaces.MultiBinary(3),
            "bytes": spaces.Box(0, 255, (7,), np.uint8),
            "large": spaces.Box(0, 2**64 - 1, (2,), np.uint64),
            "counts": spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32),
        }
    )
    actions = spaces.Box(-9, 9, (3,), np.float32)
    with orlog.DatasetWriter(name, observation_space=space, action_space=actions) as writer:
        for number, steps in enumerate((3, 1, 6, 2, 4)):
            ends = np.arange(steps) == steps - 1
            writer.add_episode(
                orlog.Episode(
                    observations={
                        "frame": rng.integers(0, 256, (steps + 1, 6, 5, 3)).astype("u1"),
                        "inner": {
                            "precise": rng.normal(size=(steps + 1, 2, 2)),
                            "choice": rng.integers(-2, 2, steps + 1),
                        },
                        "lights": rng.integers(0, 2, (steps + 1, 3)).astype("i1"),
                        "bytes": rng.integers(0, 256, (steps + 1, 7)).astype("u1"),
                        "large": rng.integers(0, 2**64, (steps + 1, 2), np.uint64),
                        "counts": rng.integers(-(2**31), 2**31, (steps + 1, 2)).astype("i4"),
                    },
                    actions=rng.normal(size=(steps, 3)).astype("f4"),
                    rewards=rng.normal(size=steps),
                    terminations=ends & (number % 2 == 0),
                    truncations=ends & (number % 2 == 1),
                    infos={
                        "force/left": rng.normal(size=(steps, 2)),
                        "action": np.arange(steps),
                        "said": [f"grün {step}" for step in range(steps)],
                        "points": [rng.normal(size=(step, 2)).astype("f4") for step in range(steps)],
                    },
                    seed=number or None,
                    metadata={"split": "test" if number > 2 else "train", "goal": np.ones(2), "by": "me"},
                )
            )
    return orlog.load_dataset(name)


@pytest.mark.parametrize("block_bytes", [1, 2**24])
def test_what_is_exported_comes_back_in_every_column(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(rlds, "BLOCK_BYTES", block_bytes)
    dataset = recorded()
    said = []
    orlog.export_dataset(dataset, tmp_path / "out", to="rlds", on_losses=said.extend)
    assert not said
    assert choose_format([tmp_path / "out"], None, "lab/x").name == "rlds"
    again, found = read(tmp_path / "out", tmp_path / "store")
    assert not sentences(found.notes)
    assert again.environment == dataset.environment
    assert (again.observation_space, again.action_space) == (dataset.observation_space, dataset.action_space)
    columns = {one.name: one.blake3 for one in dataset.manifest.columns}
    assert {one.name: one.blake3 for one in again.manifest.columns} == columns


def test_steps_become_transitions_as_rlds_defines_them(tmp_path):
    episodes = [rows(4, seed=1), rows(6, seed=2, terminal=False)]
    dataset, found = read(write(tmp_path / "arm/1.0.0", episodes).parent, tmp_path / "store")
    assert dataset.episode_lengths.tolist() == [3, 5]
    assert (found.terminated, found.truncated) == (1, 1)
    assert not sentences(found.notes)
    for ours, theirs in zip(dataset, episodes, strict=True):
        np.testing.assert_array_equal(ours.observations, theirs["observation"])
        np.testing.assert_array_equal(ours.actions, theirs["action"][:-1])
        np.testing.assert_array_equal(ours.rewards, theirs["reward"][:-1])
    assert "infos/discount" not in dataset.columns


def test_a_reward_at_the_last_step_of_a_task_that_ended_is_kept(tmp_path):
    episodes = [rows(4, seed=seed, terminal=seed != 1, reward=np.array([0, 0, 0, 1], "f4")) for seed in range(3)]
    for one in episodes:
        one["action"] = np.ones((4, 1), "f4")
    dataset, found = read(write(tmp_path / "arm", episodes), tmp_path / "store")
    # The action that ended an episode is there, and what followed it is not.
    assert dataset.episode_lengths.tolist() == [4, 3, 4]
    assert [float(one.rewards[-1]) for one in dataset] == [1, 0, 1]
    assert [bool(one.metadata["final_observation_missing"]) for one in dataset] == [True, False, True]
    np.testing.assert_array_equal(dataset[0].observations[:4], episodes[0]["observation"])
    assert not dataset[0].observations[4].any()
    np.testing.assert_array_equal(dataset[1].observations, episodes[1]["observation"])
    assert "2 episodes whose task ended have a reward at their last step" in sentences(found.notes)[0]
    assert "1 episode has an action or a reward at their last step" in sentences(found.notes)[1]


def test_rewards_that_come_with_the_next_observation_are_moved_to_their_action(tmp_path):
    episodes = [rows(4, seed=seed, terminal=seed == 0, reward=np.arange(4, dtype="f4")) for seed in range(2)]
    dataset, found = read(write(tmp_path / "arm", episodes), tmp_path / "store")
    for ours, theirs in zip(dataset, episodes, strict=True):
        np.testing.assert_array_equal(ours.observations, theirs["observation"])
        np.testing.assert_array_equal(ours.actions, theirs["action"][:-1])
        assert ours.rewards.tolist() == [1, 2, 3]
    assert (found.terminated, found.truncated) == (1, 1)
    assert [one[:27] for one in sentences(found.notes)] == ["First steps have no reward,"]


def test_final_observations_that_d4rls_adapter_made_up_are_marked(tmp_path):
    episodes = [rows(4, seed=seed, terminal=seed != 1) for seed in range(3)]
    episodes[0]["observation"][-1] = 0
    dataset, found = read(write(tmp_path / "zeros", episodes), tmp_path / "store0")
    assert [bool(one.metadata["final_observation_missing"]) for one in dataset] == [True, False, False]
    assert any("1 episode that ended has no final observation" in one for one in sentences(found.notes))
    for one in episodes:
        one["observation"][-1] = (1, 2)
    dataset, found = read(write(tmp_path / "same", episodes, name="d4rl_mujoco_hopper"), tmp_path / "store1")
    assert dataset.episode_lengths.tolist() == [3, 2, 3]
    assert [bool(one.metadata["final_observation_missing"]) for one in dataset] == [True, False, True]
    assert "3 episodes have the same last observation" in sentences(found.notes)[0]
    # Elsewhere, episodes may well end in the same place.
    dataset, found = read(write(tmp_path / "other", episodes), tmp_path / "store2")
    assert dataset.episode_lengths.tolist() == [3, 3, 3]
    assert not sentences(found.notes)


def test_what_steps_do_not_say_is_not_made_up(tmp_path):
    few = {name: STEPS[name] for name in ("observation", "action")}
    dataset, found = read(write(tmp_path / "few", [rows(4)], few), tmp_path / "store0")
    assert (found.terminated, found.truncated, len(dataset[0])) == (0, 1, 3)
    assert sentences(found.notes) == [
        "The steps have no reward: rewards are zeros.",
        "The steps have no is_first and no is_last and no is_terminal.",
        "Of 1 episode nothing says the end: taken to be cut off (--ends says it otherwise).",
    ]
    open_end = rows(4, terminal=False, is_last=np.zeros(4, bool), is_first=np.zeros(4, bool))
    _, found = read(write(tmp_path / "open", [rows(3), open_end, rows(1)]), tmp_path / "store1")
    assert (found.terminated, found.truncated, found.episodes) == (1, 0, 2)
    assert [one[:30] for one in sentences(found.notes)] == [
        "1 record ends without is_last:",
        "1 record begins without is_fir",
        "1 record with no action was le",
    ]


def test_discounts_and_terminal_steps_that_say_more_are_kept(tmp_path):
    half = np.array([1, 0.5, 1, 0], "f4")
    done = np.array([False, True, True, True])
    dataset, found = read(write(tmp_path / "arm", [rows(4, discount=half, is_terminal=done)]), tmp_path / "store")
    assert dataset[0].infos["discount"].tolist() == [1, 0.5, 1]
    assert dataset[0].infos["is_terminal"].tolist() == [True, True, True]
    assert any("go on after a step that is_terminal marks" in one for one in sentences(found.notes))
    usual = np.array([1, 1, 0, 0], "f4")
    dataset, found = read(write(tmp_path / "usual", [rows(4, discount=usual)]), tmp_path / "store1")
    assert "infos/discount" not in dataset.columns
    cut = rows(4, discount=usual, terminal=False)
    _, found = read(write(tmp_path / "cut", [cut]), tmp_path / "store2")
    assert "1 episode has a discount of 0 before a last step" in sentences(found.notes)[0]


def test_what_does_not_agree_is_refused(tmp_path):
    folder = tmp_path / "arm"
    number = 0

    def refused(error, message, *episodes, **change):
        nonlocal number
        number += 1
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, episodes or [rows(4)], **change)
        with pytest.raises(error, match=message):
            read(folder, tmp_path / str(number))

    twice = np.array([True, False, True, False])
    refused(SchemaError, "is_first is true at step 2 of 4", rows(4, is_first=twice))
    refused(SchemaError, "is_last is true at step 0 of 4", rows(4, is_last=twice))
    refused(IntegrityError, "steps/reward: it holds more values", rows(4, reward=np.zeros(5, "f4")))
    refused(IntegrityError, "steps/reward: it holds fewer", rows(4, reward=np.zeros(3, "f4")))
    refused(
        IntegrityError,
        "holds 1 records, and dataset_info.json says 3",
        splits=[{"name": "train", "shardLengths": ["3"]}],
    )
    refused(SchemaError, r"at `\$.splits\[0\].name`", splits=[{"name": "../train", "shardLengths": ["1"]}])
    refused(
        SchemaError,
        "expected the name of a file",
        splits=[{"name": "a", "shardLengths": ["1"], "filepathTemplate": "/etc/{SPLIT}"}],
    )
    refused(SchemaError, "there is no file arm-test", splits=[{"name": "test", "shardLengths": ["1"]}])
    refused(SchemaError, "only tfrecord is read", fileFormat="array_record")
    refused(SchemaError, "expected features steps/observation", steps={"reward": STEPS["reward"]})
    write(folder, [rows(4)])
    shard = folder / "arm-train.tfrecord-00000-of-00001"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SchemaError, match="or it is a link"):
        read(folder, tmp_path / "store")
    folder = write(tmp_path / "spaces", [rows(4)])
    actions = {"type": "Discrete", "n": 3, "start": 0}
    body = {"orlog": {"observation_space": actions, "action_space": actions, "environment": None}}
    (folder / "metadata.json").write_text(json.dumps(body), "utf-8")
    with pytest.raises(SchemaError, match="its spaces are not of what features"):
        read(folder, tmp_path / "store")
    (tmp_path / "logs/day").mkdir(parents=True)
    (tmp_path / "logs/day/metadata.riegeli").touch()
    with pytest.raises(SchemaError, match="logs of EnvLogger, which are not read"):
        read(tmp_path / "logs", tmp_path / "store")
    write(tmp_path / "two/1.0.0", [rows(4)])
    write(tmp_path / "two/1.1.0", [rows(4)])
    with pytest.raises(SchemaError, match=r"found 1\.0\.0, 1\.1\.0; import the folder of one version"):
        read(tmp_path / "two", tmp_path / "store")


def test_the_description_of_before_2022_is_read(tmp_path):
    folder = write(tmp_path / "arm", [rows(4)])
    name = "tensorflow_datasets.core.features"
    features = {
        key: {"type": f"{name}.feature.Tensor", "content": {"shape": shape, "dtype": dtype}}
        for key, (dtype, shape) in STEPS.items()
    }
    steps = {"type": f"{name}.features_dict.FeaturesDict", "content": features}
    nested = {"type": f"{name}.dataset_feature.Dataset", "content": {"feature": steps, "length": None}}
    tree = {"type": f"{name}.features_dict.FeaturesDict", "content": {"steps": nested}}
    (folder / "features.json").write_text(json.dumps(tree), "utf-8")
    dataset, _ = read(folder, tmp_path / "store")
    assert dataset.episode_lengths.tolist() == [3]


def test_every_flipped_bit_of_a_file_of_records_is_noticed():
    file = io.BytesIO()
    for data in (b"", b"one", bytes(range(40))):
        write_record(file, data)
    good = file.getvalue()
    assert [stop - start for start, stop in spans(good)] == [0, 3, 40]
    for place in range(8 * len(good)):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(IntegrityError):
            spans(bytes(bad))
    for stop in set(range(1, len(good))) - {16, 35}:  # there a record ends
        with pytest.raises(IntegrityError):
            spans(good[:stop])


def spans(data):
    return [span for span, _ in read_records(io.BytesIO(data), "records")]


def test_damaged_messages_with_right_checksums_are_refused_or_read():
    values = {
        "bytes": [b"", b"text", b"x" * 300],
        "float": np.arange(9, dtype="f4"),
        "int64": np.array([0, -1, 2**62, 300]),
    }
    good = example_bytes(values)

    def read_all(data):
        return {name: values_of(one) for name, one in read_example(data, "x").items()}

    for name, one in read_all(good).items():
        np.testing.assert_array_equal(np.asarray(one), np.asarray(values[name]))
    for data in damaged(good, scaled(4000)):
        refuses_or_reads(lambda one=data: read_all(one))
    tag = b"\x0a"
    for hostile in (
        tag + b"\xff" * 9 + b"\x01",  # 2**64 bytes
        tag + b"\xff" * 30,  # a length without an end
        tag * 1000,  # a message in a message in a message
        b"\x0b" * 100,  # groups, which nothing ends
        tag + b"\x80\x80\x80\x80\x04" + bytes(100),  # 2**30 bytes
    ):
        with pytest.raises(IntegrityError):
            read_all(hostile)


def test_damaged_records_with_right_checksums_are_refused_or_read(tmp_path):
    orlog.export_dataset(recorded(), tmp_path / "out", to="rlds")
    (folder,) = (tmp_path / "out/odd_v1").iterdir()
    shard = folder / "odd_v1-train.tfrecord-00000-of-00001"
    whole = shard.read_bytes()
    start, stop = spans(whole)[0]
    for number, data in enumerate(damaged(whole[start:stop], scaled(40))):
        file = io.BytesIO()
        write_record(file, data)
        shard.write_bytes(file.getvalue() + whole[stop + 4 :])
        store = tmp_path / str(number)
        refuses_or_reads(lambda one=store: read(folder, one))


TENSORFLOW = ("tensorflow-cpu==2.21.0", "tensorflow-datasets==4.9.10")
READ = """
import sys
import numpy as np
import tensorflow_datasets as tfds

def flat(value, path):
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(part, path + "/" + key)
    elif not isinstance(value, tf.RaggedTensor):
        yield path, np.asarray(value, "S") if np.asarray(value).dtype == object else np.asarray(value)

import tensorflow as tf
builder = tfds.builder_from_directory(sys.argv[1])
found = {}
for split in builder.info.splits:
    for number, episode in enumerate(tfds.as_numpy(builder.as_dataset(split=split))):
        for step, values in enumerate(episode.pop("steps")):
            found.update(flat(values, f"{split}/{number}/{step}"))
        found.update(flat(episode, f"{split}/{number}"))
np.savez(sys.argv[2], **found)
print(builder.info.name, builder.info.version, [one.num_examples for one in builder.info.splits.values()])
"""
WRITE = """
import sys
import numpy as np
import tensorflow_datasets as tfds

F = tfds.features
rng = np.random.default_rng(0)
configuration = tfds.rlds.rlds_base.DatasetConfig(
    name="arm",
    overall_description="An arm.",
    observation_info={
        "image": F.Image(shape=(None, None, 3), encoding_format="png"),
        "jpeg": F.Image(shape=(16, 16, 3), encoding_format="jpeg"),
        "state": F.Tensor(shape=(3,), dtype=np.float32),
        "precise": F.Tensor(shape=(2, 2), dtype=np.float64, encoding="zlib"),
        "raw": F.Tensor(shape=(4,), dtype=np.uint8, encoding="bytes"),
        "large": F.Tensor(shape=(2,), dtype=np.uint64),
        "inner": {"flag": np.bool_, "number": F.Scalar(np.float64), "task": F.Text()},
    },
    action_info={"arm": F.Tensor(shape=(2,), dtype=np.float32), "stop": F.ClassLabel(num_classes=3)},
    reward_info=np.float64,
    discount_info=np.float32,
    step_metadata_info={
        "said": F.Text(),
        "tokens": F.Sequence(np.int64),
        "masks": F.Tensor(shape=(None, None), dtype=np.float32, encoding="zlib"),
    },
    episode_metadata_info={"number": np.int64, "file": {"path": F.Text(), "good": np.bool_}, "goal": F.Tensor(shape=(2,), dtype=np.float32)},
)
identity = tfds.core.dataset_info.DatasetIdentity(
    name="arm", version=tfds.core.Version("1.2.3"), data_dir=sys.argv[1], module_name=""
)
info = tfds.rlds.rlds_base.build_info(configuration, identity)
info.set_file_format("tfrecord")
writer = tfds.core.SequentialWriter(info, 2, overwrite=True, file_format="tfrecord")
writer.initialize_splits(["train", "test"], fail_if_exists=True)

def step(number, count, place):
    is_last = place == count
    return {
        "observation": {
            "image": rng.integers(0, 256, (6, 5, 3)).astype("u1"),
            "jpeg": np.full((16, 16, 3), 20 * place, "u1"),
            "state": rng.normal(size=3).astype("f4"),
            "precise": rng.normal(size=(2, 2)),
            "raw": rng.integers(0, 256, 4).astype("u1"),
            "large": np.array([2**63 + place, 5], np.uint64),
            "inner": {"flag": place % 2 == 0, "number": 0.25 * place, "task": "t"},
        },
        "action": {"arm": (rng.normal(size=2) * (not is_last)).astype("f4"), "stop": 0 if is_last else place % 3},
        "reward": 0.0 if is_last else place + 0.5,
        "discount": 1.0,
        "is_first": place == 0,
        "is_last": is_last,
        "is_terminal": is_last and number % 2 == 0,
        "said": f"grün {place}",
        "tokens": list(range(place)),
        "masks": np.ones((place, 2), np.float32),
    }

for number in range(4):
    episode = {
        "steps": [step(number, 3 + number, place) for place in range(4 + number)],
        "number": number,
        "file": {"path": f"/runs/{number}", "good": number > 0},
        "goal": np.array([1, number], np.float32),
    }
    writer.add_examples({"test" if number == 3 else "train": [episode]})
writer.close_all()
"""


def read_by_tensorflow(folder, scratch):
    python = tool_python(*TENSORFLOW, alone=True)
    said = run_tool(python, READ, folder, scratch / "found.npz", folder=scratch)
    with np.load(scratch / "found.npz") as file:
        return dict(file), said.splitlines()[-1]


def flat(value, path):
    if not isinstance(value, Mapping):
        return {path: value}
    found = {}
    for key, part in value.items():
        found |= flat(part, f"{path}/{key}")
    return found


@pytest.mark.thorough
def test_tensorflow_datasets_reads_what_we_export(tmp_path):
    dataset = recorded()
    orlog.export_dataset(dataset, tmp_path / "out", to="rlds")
    theirs, said = read_by_tensorflow(tmp_path / "out/odd_v1/1.0.0", tmp_path)
    assert said == "odd_v1 1.0.0 [3, 2]"
    seen = {}
    for ours in dataset:
        split = ours.metadata["split"]
        number = seen.setdefault(split, 0)
        seen[split] += 1
        start, count = f"{split}/{number}", len(ours)
        assert theirs[f"{start}/by"] == b"me"
        assert theirs[f"{start}/reset_seed"] == (-1 if ours.seed is None else ours.seed)
        np.testing.assert_array_equal(theirs[f"{start}/goal"], ours.metadata["goal"])
        for step in range(count + 1):
            place = f"{start}/{step}"
            for path, values in flat(ours.observations, "observation").items():
                np.testing.assert_array_equal(theirs[f"{place}/{path}"], values[step])
            is_last = step == count
            assert theirs[f"{place}/is_first"] == (step == 0)
            assert theirs[f"{place}/is_last"] == is_last
            assert theirs[f"{place}/is_terminal"] == (is_last and ours.terminations[-1])
            if is_last:
                assert not theirs[f"{place}/action"].any()
                continue
            np.testing.assert_array_equal(theirs[f"{place}/action"], ours.actions[step])
            np.testing.assert_array_equal(theirs[f"{place}/force/left"], ours.infos["force/left"][step])
            assert theirs[f"{place}/reward"] == ours.rewards[step]
            assert theirs[f"{place}/infos/action"] == step
            assert theirs[f"{place}/said"].item().decode() == ours.infos["said"][step]
            np.testing.assert_array_equal(theirs[f"{place}/points"], ours.infos["points"][step])


@pytest.mark.thorough
def test_what_tensorflow_datasets_writes_is_read_as_it_reads_it(tmp_path):
    folder = tmp_path / "arm/1.2.3"
    folder.mkdir(parents=True)
    run_tool(tool_python(*TENSORFLOW, alone=True), WRITE, folder, folder=tmp_path)
    theirs, _ = read_by_tensorflow(folder, tmp_path)
    dataset, found = read(tmp_path / "arm", tmp_path / "store")
    assert (found.terminated, found.truncated, found.steps) == (2, 2, 18)
    assert sentences(found.notes) == [
        "Left out: steps/masks (arrays of any size).",
        "Texts and sequences became infos: steps/observation/inner/task.",
    ]
    for ours in dataset:
        number = int(ours.metadata["number"])
        split = ours.metadata["split"]
        start = f"{split}/{number if split == 'train' else 0}"
        assert theirs[f"{start}/file/path"].item().decode() == ours.metadata["file/path"]
        assert theirs[f"{start}/file/good"] == ours.metadata["file/good"]
        np.testing.assert_array_equal(theirs[f"{start}/goal"], ours.metadata["goal"])
        for step in range(len(ours) + 1):
            place = f"{start}/{step}"
            for path, values in flat(ours.observations, "observation").items():
                one = theirs[f"{place}/{path}"]
                np.testing.assert_allclose(one.astype(float), values[step], atol=path.endswith("jpeg"))
            if step == len(ours):
                assert theirs[f"{place}/is_last"]
                assert theirs[f"{place}/is_terminal"] == ours.terminations[-1]
                continue
            for path, values in flat(ours.actions, "action").items():
                np.testing.assert_array_equal(theirs[f"{place}/{path}"], values[step])
            assert theirs[f"{place}/reward"] == ours.rewards[step]
            assert theirs[f"{place}/said"].item().decode() == ours.infos["said"][step]
            assert ours.infos["observation/inner/task"][step] == "t"
            np.testing.assert_array_equal(theirs[f"{place}/tokens"], ours.infos["tokens"][step])


CONVERT = """
import sys
import h5py
import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.d4rl import dataset_utils as d4rl
from tensorflow_datasets.robomimic import dataset_utils as robomimic

F = tfds.features
file, folder, name = sys.argv[1:]

def tensor(size, kind):
    return F.Tensor(shape=(size,), dtype=kind, encoding="zlib")

if name == "robomimic_ph":
    observation = {"eef_pos": tensor(3, np.float64), "image": F.Image(shape=(8, 8, 3), encoding_format="png")}
    kinds = {"action_info": tensor(2, np.float64), "reward_info": np.float64, "discount_info": np.float64}
    kinds["step_metadata_info"] = {"states": tensor(6, np.float64)}
    with h5py.File(file) as opened:
        episodes = [{"steps": robomimic.build_episode(one)} for one in opened["data"].values()]
else:
    observation = F.Tensor(shape=(3,), dtype=np.float32)
    kinds = {"action_info": F.Tensor(shape=(2,), dtype=np.float32), "reward_info": np.float32}
    kinds["discount_info"] = np.float32
    kinds["step_metadata_info"] = {"infos": {"qpos": tensor(4, np.float64), "step": np.int64}}
    episodes = [episode for _, episode in d4rl.generate_examples(file)]
configuration = tfds.rlds.rlds_base.DatasetConfig(name=name, observation_info=observation, **kinds)
identity = tfds.core.dataset_info.DatasetIdentity(
    name=name, version=tfds.core.Version("1.0.0"), data_dir=folder, module_name=""
)
info = tfds.rlds.rlds_base.build_info(configuration, identity)
info.set_file_format("tfrecord")
writer = tfds.core.SequentialWriter(info, 1000, overwrite=True, file_format="tfrecord")
writer.initialize_splits(["train"], fail_if_exists=True)
writer.add_examples({"train": episodes})
writer.close_all()
"""


def converted(file, name, folder):
    """Read what an adapter of TensorFlow Datasets makes of a file."""
    (folder / name).mkdir(parents=True)
    python = tool_python(*TENSORFLOW, alone=True)
    run_tool(python, CONVERT, file, folder / name, name, folder=folder)
    return read(folder / name, folder / "store")


@pytest.mark.thorough
@pytest.mark.parametrize("has_next", [False, True])
def test_d4rl_by_tensorflow_datasets_is_d4rl_but_for_final_observations(tmp_path, has_next):
    ends = np.arange(12) % 4 == 3
    body = test_d4rl.rows_of(
        list(ends & (np.arange(12) != 7)), list(ends & (np.arange(12) == 7)), next_observations=has_next
    )
    file = test_d4rl.write(tmp_path / "a.hdf5", body)
    right, _ = read_files(formats()["d4rl"], file, tmp_path / "right")
    dataset, found = converted(file, "d4rl_mujoco_small", tmp_path / "tfds")
    # The second episode was cut off: without a final observation, it loses its last step.
    assert dataset.episode_lengths.tolist() == [4, 3, 4]
    assert [bool(one.metadata["final_observation_missing"]) for one in dataset] == [True, False, True]
    assert has_next == any("the same last observation" in one for one in sentences(found.notes))
    for ours, theirs in zip(dataset, right, strict=True):
        count = len(ours)
        np.testing.assert_array_equal(ours.observations[:count], theirs.observations[:count])
        np.testing.assert_array_equal(ours.actions, theirs.actions[:count])
        np.testing.assert_array_equal(ours.rewards, theirs.rewards[:count])
        assert ours.terminations[-1] == theirs.terminations[-1]
        for name in ("qpos", "step"):
            np.testing.assert_array_equal(ours.infos[name], theirs.infos[name][:count])


@pytest.mark.thorough
def test_robomimic_by_tensorflow_datasets_is_robomimic(tmp_path):
    file = tmp_path / "lift.hdf5"
    test_robomimic.write(file)
    right, _ = read_files(FORMATS["robomimic"], file, tmp_path / "right")
    dataset, found = converted(file, "robomimic_ph", tmp_path / "tfds")
    assert not sentences(found.notes)
    by_length = {len(one): one for one in right}
    for ours in dataset:
        theirs = by_length[len(ours)]
        for part in ("eef_pos", "image"):
            np.testing.assert_array_equal(ours.observations[part], theirs.observations[part])
        for name in ("actions", "rewards", "terminations"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_array_equal(ours.infos["states"], theirs.infos["states"])


def test_features_of_other_names_are_what_the_user_says(tmp_path):
    renamed = {"observation": "state", "action": "command", "reward": "r", "is_terminal": "solved"}
    steps = {renamed.get(name, name): one for name, one in STEPS.items()}
    sample = [{renamed.get(name, name): one for name, one in body.items()} for body in SAMPLE]
    write(tmp_path / "arm", sample, steps)
    write(tmp_path / "plain", SAMPLE)
    with pytest.raises(SchemaError, match=r"say which is which: columns={'observation/NAME': 'FEATURE'"):
        read(tmp_path / "arm", tmp_path / "refused")
    said = {"observation": "state", "action": "command", "reward": "r", "terminated": "solved"}
    dataset, _ = read_files(rlds.FORMAT, tmp_path / "arm", tmp_path / "store", Options(columns=said))
    expected, _ = read(tmp_path / "plain", tmp_path / "expected")
    for one, other in zip(dataset, expected, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_array_equal(one.rewards, other.rewards)
        np.testing.assert_array_equal(one.terminations, other.terminations)


def test_what_the_user_does_not_name_is_kept_as_infos(tmp_path):
    write(tmp_path / "arm", SAMPLE)
    said = {"observation": "reward", "action": "action"}
    dataset, _ = read_files(rlds.FORMAT, tmp_path / "arm", tmp_path / "store", Options(columns=said))
    assert "observation" in dataset[0].infos


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_ends_that_nothing_tells_are_as_the_user_says(tmp_path, how):
    steps = {name: one for name, one in STEPS.items() if name != "is_terminal"}
    write(tmp_path / "arm", SAMPLE, steps)
    dataset, found = read_files(rlds.FORMAT, tmp_path / "arm", tmp_path / "store", Options(ends=how))
    for one in dataset:
        assert one.terminations[-1] == (how == "terminated")
        assert one.truncations[-1] == (how == "truncated")
    assert any("2 episodes nothing says" in one for one in sentences(found.notes))
