"""TorchRL's folders: those of its layout, written and read again, by TorchRL itself, and those that do not agree."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import orlog
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import choose_format
from orlog.datasets.formats.notes import sentences
from orlog.datasets.formats.torchrl import format as torchrl
from orlog.datasets.formats.torchrl.tensors import write_documents
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.datasets.recorded_samples import record_samples
from tests.levels import scaled
from tests.tool_environments import run_tool, tool_python

PACKAGES = ("torchrl==0.14.1", "tensordict==0.14.3")
LENGTHS = (3, 1, 4)


def arrays(**change):
    """Return three episodes as tensors: one cut off, one that just stops, one that ended."""
    rng = np.random.default_rng(0)
    observations = [rng.normal(size=(length + 1, 2)).astype("f4") for length in LENGTHS]
    count = sum(LENGTHS)
    rows = np.arange(count)
    found = {
        "observation": np.concatenate([one[:-1] for one in observations]),
        "action": rng.normal(size=(count, 1)).astype("f4"),
        "collector/traj_ids": np.repeat([7, 8, 9], LENGTHS),
        "next/observation": np.concatenate([one[1:] for one in observations]),
        "next/reward": rng.normal(size=(count, 1)).astype("f4"),
        "next/done": ((rows == 2) | (rows == 7))[:, None],
        "next/terminated": (rows == 7)[:, None],
        "next/truncated": (rows == 2)[:, None],
        "info/speed": rng.normal(size=(count, 1)),
    }
    return {name: one for name, one in (found | change).items() if one is not None}


def write(folder, tensors):
    """Write a folder of TensorDict's layout."""
    files = write_documents(folder, {name: (one.dtype, one.shape) for name, one in tensors.items()})
    for name, path in files.items():
        path.write_bytes(tensors[name].tobytes())


def check(dataset, tensors):
    """Compare with the three episodes, row by row."""
    first = 0
    for episode, length in zip(dataset, LENGTHS, strict=True):
        rows = slice(first, first + length)
        np.testing.assert_array_equal(episode.observations[:-1], tensors["observation"][rows])
        np.testing.assert_array_equal(episode.observations[1:], tensors["next/observation"][rows])
        np.testing.assert_array_equal(episode.actions, tensors["action"][rows])
        np.testing.assert_array_equal(episode.rewards, tensors["next/reward"][rows, 0])
        for flag, name in (("terminations", "terminated"), ("truncations", "truncated")):
            np.testing.assert_array_equal(getattr(episode, flag), tensors[f"next/{name}"][rows].reshape(-1))
        first += length


@pytest.mark.parametrize("block_bytes", [1, 100, 2**24])
def test_episodes_are_read(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(torchrl, "BLOCK_BYTES", block_bytes)
    tensors = arrays()
    write(tmp_path / "data", tensors)
    (tmp_path / "data" / "other.pickle").write_bytes(b"never read")
    assert choose_format([tmp_path / "data"], None, "lab/x").name == "torchrl-memmap"
    dataset, found = read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store")
    check(dataset, tensors)
    assert (found.terminated, found.truncated) == (1, 1)
    np.testing.assert_array_equal(dataset[2].infos["speed"], tensors["info/speed"][4:])


def test_a_dump_of_a_buffer_is_read_as_far_as_it_is_filled(tmp_path):
    full = {name: np.concatenate((one, one[:2])) for name, one in arrays().items()}
    write(tmp_path / "dump" / "storage", full)
    (tmp_path / "dump" / "storage" / "storage_metadata.json").write_text('{"len": 8}', "utf-8")
    (tmp_path / "dump" / "writer").mkdir()
    (tmp_path / "dump" / "writer" / "metadata.json").write_text('{"cursor": 8}', "utf-8")
    assert choose_format([tmp_path / "dump"], None, "lab/x").name == "torchrl-memmap"
    dataset, _ = read_files(torchrl.FORMAT, tmp_path / "dump", tmp_path / "store")
    check(dataset, full)


def storage(rows, capacity, *, cursor):
    """Return what a storage holds after some steps of episodes of 10, as a ring, and how many rows are filled."""
    row = np.arange(rows)
    state = (1000 * (row // 10) + row % 10 + 1)[:, None].astype("f4")
    ends = (row % 10 == 9)[:, None]
    tensors = {
        "observation": state,
        "action": state,
        "collector/traj_ids": row // 10,
        "next/observation": state + 1,
        "next/reward": state,
        **{f"next/{flag}": ends for flag in ("done", "terminated")},
        "next/truncated": np.zeros_like(ends),
    }
    tensors |= {} if cursor else {"step_count": row % 10, "next/step_count": row % 10 + 1}
    held = {name: np.zeros((capacity, *one.shape[1:]), one.dtype) for name, one in tensors.items()}
    for name, one in tensors.items():
        for place in range(rows):
            held[name][place % capacity] = one[place]
    return held, min(rows, capacity)


@pytest.mark.parametrize("is_dump", [True, False])
@pytest.mark.parametrize(
    ("rows", "capacity", "lengths"),
    [
        (70, 100, [10] * 7),  # some rows are not written
        (65, 100, [10] * 6 + [5]),
        (70, 53, [3, 10, 10, 10, 10, 10]),  # the newest episode lies at both ends of the ring
        (76, 53, [7, 10, 10, 10, 10, 6]),
        (75, 30, [5, 10, 10, 5]),
        (3, 100, [3]),
    ],
)
def test_a_storage_is_read_in_the_order_of_its_time_as_far_as_it_was_written(
    tmp_path, rows, capacity, lengths, is_dump
):
    tensors, filled = storage(rows, capacity, cursor=is_dump)
    write(tmp_path / "data" / ("storage" if is_dump else ""), tensors)
    if is_dump:
        say = {"len": filled}
        (tmp_path / "data/storage/storage_metadata.json").write_text(json.dumps(say), "utf-8")
        (tmp_path / "data" / "writer").mkdir()
        say = {"cursor": rows % capacity, "write_count": rows}
        (tmp_path / "data/writer/metadata.json").write_text(json.dumps(say), "utf-8")
    dataset, found = read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store")
    assert dataset.episode_lengths.tolist() == lengths
    row = np.arange(rows - sum(lengths), rows)
    expected = 1000 * (row // 10) + row % 10 + 1
    assert dataset.column("actions").reshape(-1).tolist() == expected.tolist()
    unwritten = [one for one in sentences(found.notes) if "unwritten" in one]
    assert len(unwritten) == (rows < capacity and not is_dump)
    assert all(f"the last {capacity - rows} rows" in one for one in unwritten)
    ring = [one for one in sentences(found.notes) if "ring" in one]
    assert len(ring) == (rows > capacity)
    assert all(("a rest of" in one) == (is_dump or lengths[0] < 10) for one in ring)
    if rows == 70 and capacity == 53:
        assert "a rest of 3 steps" in ring[0]


@pytest.mark.parametrize(("rows", "capacity"), [(45, 60), (75, 32)])
def test_the_folder_of_a_buffer_of_several_environments_is_read_along_time(tmp_path, rows, capacity):
    held, filled = storage(rows, capacity, cursor=False)
    tensors = {name: np.stack([one, one, one], 1) for name, one in held.items()}
    for lane in range(3):
        tensors["collector/traj_ids"][:filled, lane] *= 3
        tensors["collector/traj_ids"][:filled, lane] += lane
    write(tmp_path / "data", tensors)
    for path in (tmp_path / "data").rglob("meta.json"):
        body = json.loads(path.read_text("utf-8")) | {"shape": [capacity, 3]}
        path.write_text(json.dumps(body), "utf-8")
    dataset, found = read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store")
    lengths = [10] * 4 + [5] if rows < capacity else [7, 10, 10, 5]
    assert dataset.episode_lengths.tolist() == 3 * lengths
    said = f"the last {3 * (capacity - rows)} rows" if rows < capacity else "7 steps and 7 steps and 7"
    assert any(said in one for one in sentences(found.notes))


def test_zeros_that_a_row_leads_to_are_steps(tmp_path):
    tensors = {name: np.zeros_like(one) for name, one in arrays().items()}
    tensors |= {name: np.zeros((8, 1), np.int64) for name in ("observation", "next/observation")}
    tensors["observation"][0] = 1
    write(tmp_path / "data", tensors)
    dataset, found = read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store")
    assert dataset.total_steps == 8
    assert not any("unwritten" in one for one in sentences(found.notes))


def test_what_is_missing_stays_missing(tmp_path):
    ends = arrays()["next/done"] | (np.arange(8) == 3)[:, None]
    zeros = np.where(ends, 0, arrays()["next/observation"]).astype("f4")
    for number, after in enumerate([zeros, None]):  # as TorchRL's downloads, and without it
        tensors = arrays(**{"next/observation": after, "next/done": ends})
        write(tmp_path / f"data{number}", tensors)
        dataset, found = read_files(torchrl.FORMAT, tmp_path / f"data{number}", tmp_path / f"store{number}")
        assert dataset.episode_lengths.tolist() == [2, 4]
        assert [bool(one.metadata["final_observation_missing"]) for one in dataset] == [False, True]
        np.testing.assert_array_equal(dataset[0].observations, tensors["observation"][:3])
        assert any("zeros, as in TorchRL" in one for one in sentences(found.notes)) == (number == 0)
        assert any(one.startswith("2 last rows of episodes were left out") for one in sentences(found.notes))


@pytest.mark.parametrize("one_hot", [False, True])
def test_actions_may_be_choices(tmp_path, one_hot):
    choices = np.array([0, 2, 1, 1, 0, 2, 0, 1])
    write(tmp_path / "data", arrays(action=np.eye(3, dtype=bool)[choices] if one_hot else choices))
    dataset, found = read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store")
    assert dataset.action_space == spaces.Discrete(3)
    np.testing.assert_array_equal(dataset.column("actions"), choices)
    assert "Actions were taken to be a choice among 3." in sentences(found.notes)


KINDS = {
    "vectors-v1": (spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32)),
    "parts-v1": (
        spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "frame": spaces.Box(0, 255, (4, 4, 3), np.uint8)}),
        spaces.Discrete(3),
    ),
}


def test_what_does_not_agree_is_refused(tmp_path):
    follows = arrays()["next/observation"].copy()
    follows[5] += 1
    changes = [
        ({"next/observation": follows}, r"at row 5, .* next/observation is not the observation of the next row"),
        ({"next/observation": follows[:, :1]}, "next/observation: expected float32 of shape"),
        ({"next/reward": None}, "has no tensor next/reward"),
        (dict.fromkeys(("next/done", "next/terminated", "next/truncated")), "expected next/done"),
        ({"observation": None}, "no tensor is also in next"),
        ({"next/reward": np.zeros((8, 2), "f4")}, "next/reward: expected one number a row"),
        ({"next/reward": np.zeros((7, 1), "f4")}, "next/reward: expected 8 rows"),
    ]
    for number, (change, message) in enumerate(changes):
        write(tmp_path / str(number), arrays(**change))
        with pytest.raises(SchemaError, match=message):
            read_files(torchrl.FORMAT, tmp_path / str(number), tmp_path / "store")


def test_files_are_not_trusted(tmp_path):
    folder = tmp_path / "data"
    write(folder, arrays())
    meta = json.loads((folder / "meta.json").read_text("utf-8"))

    def refuses(error, message, **change):
        (folder / "meta.json").write_text(json.dumps(meta | change), "utf-8")
        with pytest.raises(error, match=message):
            read_files(torchrl.FORMAT, folder, tmp_path / "store")

    refuses(SchemaError, "a batch of shape \\(2, 2, 2\\)", shape=[2, 2, 2])
    refuses(
        IntegrityError,
        "takes 96 bytes, and observation.memmap has 64",
        observation=meta["observation"] | {"shape": [8, 3]},
    )
    refuses(IntegrityError, "..%2F..%2Fsecret.memmap' is missing", **{"../../secret": meta["action"]})
    refuses(SchemaError, "has no meta.json", **{"..": {"type": "TensorDict"}})
    (tmp_path / "x.memmap").write_bytes(bytes(32))
    (folder / "x.memmap").symlink_to(tmp_path / "x.memmap")
    refuses(SchemaError, "x.memmap is a link", x=meta["action"])
    (folder / "inner").symlink_to(folder / "next")
    refuses(SchemaError, "a link, which is not followed", inner={"type": "TensorDict"})
    (folder / "meta.json").write_text(json.dumps(meta | {"note": {"type": "NonTensorData"}}), "utf-8")
    _, found = read_files(torchrl.FORMAT, folder, tmp_path / "store")
    assert "Left out, no numbers with a row a step: note." in sentences(found.notes)


@pytest.mark.thorough
def test_torchrl_has_the_transitions_of_what_is_exported(tmp_path):
    for kind, pair in KINDS.items():
        orlog.export_dataset(record_samples(f"lab/{kind}", *pair), tmp_path / kind, to="torchrl")
    code = """
    import sys, numpy as np, torch, orlog
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, SliceSampler, TensorDictReplayBuffer
    from torchrl.envs import GymEnv, SerialEnv

    def same(tensors, values):
        if isinstance(values, dict):
            return all(same(tensors[key], one) for key, one in values.items())
        return np.array_equal(tensors.reshape(np.shape(values)), values)

    for kind in sys.argv[1:]:
        dataset = orlog.load_dataset(f"lab/{kind}")
        columns = dataset.to_dict()
        loaded = TensorDict.load_memmap(kind)
        for tensors in (loaded, dataset.to_torchrl()):
            assert same(tensors["observation"], columns["observations"])
            assert same(tensors["next", "observation"], columns["next_observations"])
            assert same(tensors["action"], columns["actions"])
            assert same(tensors["next", "reward"], columns["rewards"])
            assert same(tensors["next", "terminated"], columns["terminations"])
            assert same(tensors["next", "truncated"], columns["truncations"])
            assert same(tensors["collector", "traj_ids"], columns["episodes"])
        assert same(loaded["info", "place"], columns["infos"]["place"])
        buffer = TensorDictReplayBuffer(
            storage=LazyMemmapStorage(12, scratch_dir=f"{kind}-scratch"),
            sampler=SliceSampler(slice_len=2, traj_key=("collector", "traj_ids"), strict_length=False),
            batch_size=4,
        )
        buffer.extend(loaded)
        sample = buffer.sample()
        assert sample["next", "reward"].shape[1:] == (1,)
        buffer.dumps(f"{kind}-dump")
        loaded.clone().memmap(f"{kind}-again")
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    torch.manual_seed(0)
    rolled = env.rollout(100, break_when_any_done=False)
    rolled.memmap("rolled")
    np.savez("rolled.npz", **{name: rolled["next", name] for name in ("done", "observation")})
    several = SerialEnv(3, lambda: GymEnv("CartPole-v1"))
    several.set_seed(0)
    rolled = several.rollout(40, break_when_any_done=False)
    rolled.memmap("several")
    storage = LazyMemmapStorage(150, ndim=2, scratch_dir="several-scratch")
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    buffer.extend(rolled)
    buffer.dumps("several-dump")
    np.savez("several.npz", **{name: rolled["next", name] for name in ("done", "observation")})
    """
    run_tool(tool_python(*PACKAGES), code, *KINDS, folder=tmp_path)
    for kind in KINDS:
        for place in ("again", "dump"):
            folder = tmp_path / f"{kind}-{place}"
            again, _ = read_files(torchrl.FORMAT, folder, tmp_path / f"store-{kind}-{place}")
            ours = orlog.load_dataset(f"lab/{kind}").manifest.columns
            assert again.manifest.columns == ours
    dataset, _ = read_files(torchrl.FORMAT, tmp_path / "rolled", tmp_path / "store-rolled")
    with np.load(tmp_path / "rolled.npz") as rolled:
        ended = np.flatnonzero(rolled["done"])
        assert len(ended) > 2
        assert len(dataset) == len(ended) + (ended[-1] != 99)
        after = np.concatenate([one.observations[1:] for one in dataset])
        np.testing.assert_array_equal(after, rolled["observation"])
    assert dataset.action_space == spaces.Discrete(2)
    with np.load(tmp_path / "several.npz") as rolled:
        for place in ("several", "several-dump"):
            dataset, _ = read_files(torchrl.FORMAT, tmp_path / place, tmp_path / f"store-{place}")
            after = np.concatenate([one.observations[1:] for one in dataset])
            np.testing.assert_array_equal(after, rolled["observation"].reshape(-1, 4))
            done = rolled["done"][..., 0]
            done[:, -1] = True  # they go on, and nothing follows
            assert len(dataset) == done.sum()


@pytest.mark.parametrize("flag", ["next/done", "next/terminated", "next/truncated"])
def test_a_flag_that_contradicts_the_others_or_what_follows_is_refused(tmp_path, flag):
    tensors = arrays()
    flags = tensors[flag].copy()
    flags[0] = True
    write(tmp_path / "data", tensors | {flag: flags})
    with pytest.raises(SchemaError, match="next/done"):
        read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store")


@pytest.mark.parametrize("is_buffer", [False, True])
@pytest.mark.parametrize("block_bytes", [1, 2**24])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=scaled(200, 12), deadline=None)
def test_batches_of_several_environments_are_read_one_after_another(is_buffer, block_bytes, seed):
    rng = np.random.default_rng(seed)
    environments, steps = int(rng.integers(1, 4)), int(rng.integers(2, 9))
    filled = int(rng.integers(1, steps + 1)) if is_buffer else steps
    cursor = int(rng.integers(0, steps)) if filled == steps else filled
    expected, lanes = [], []
    for _ in range(environments):
        rows = []  # observation, action, next one, terminated
        here = float(rng.normal())
        for _ in range(filled):
            after, ended = float(rng.normal()), bool(rng.random() < 0.3)
            rows.append((here, float(rng.normal()), after, ended))
            here = float(rng.normal()) if ended else after
        start = 0
        for step in range(filled):
            if rows[step][3] or step == filled - 1:
                expected.append(rows[start : step + 1])
                start = step + 1
        if is_buffer and filled == steps:  # a ring, whose oldest row stands after the newest
            rows = rows[steps - cursor :] + rows[: steps - cursor]
        lanes.append(rows + [(0.0, 0.0, 0.0, False)] * (steps - filled))
    table = np.array(lanes)  # environments, steps, 4
    table = table.swapaxes(0, 1) if is_buffer else table
    flags = table[..., 3:] > 0
    tensors = {
        "observation": table[..., :1],
        "action": table[..., 1:2],
        "next/observation": table[..., 2:3],
        "next/reward": table[..., 1:2],
        "next/done": flags,
        "next/terminated": flags,
        "next/truncated": np.zeros_like(flags),
    }
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchrl, "BLOCK_BYTES", block_bytes)
        root = Path(name) / "data"
        folder = root / "storage" if is_buffer else root
        write(folder, tensors)
        for path in folder.rglob("meta.json"):
            body = json.loads(path.read_text("utf-8")) | {"shape": list(table.shape[:2])}
            path.write_text(json.dumps(body), "utf-8")
        if is_buffer:
            (root / "writer").mkdir()
            length = {"len": filled * environments}
            (folder / "storage_metadata.json").write_text(json.dumps(length), "utf-8")
            (root / "writer" / "metadata.json").write_text(json.dumps({"cursor": cursor}), "utf-8")
        dataset, found = read_files(torchrl.FORMAT, root, Path(name) / "store")
        assert len(dataset) == len(expected)
        for episode, rows in zip(dataset, expected, strict=True):
            assert episode.observations[:, 0].tolist() == [rows[0][0], *(one[2] for one in rows)]
            assert episode.actions[:, 0].tolist() == [one[1] for one in rows]
            assert episode.terminations.tolist() == [one[3] for one in rows]
            assert not episode.truncations.any()
        assert any("Rows of" in one for one in sentences(found.notes)) == (environments > 1)


def test_what_is_an_observation_can_be_said(tmp_path):
    tensors = arrays()
    hidden = np.arange(8.0)[:, None]
    write(tmp_path / "data", tensors | {"hidden": hidden, "next/hidden": np.zeros((8, 1))})
    with pytest.raises(SchemaError, match=r"at row 0, .* next/hidden is not the hidden"):
        read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store")
    options = Options(columns={"observation": "observation"})
    dataset, _ = read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store2", options)
    check(dataset, tensors)
    np.testing.assert_array_equal(dataset[1].infos["hidden"], hidden[3:4])
    options = Options(columns={"reward": "hidden"})
    with pytest.raises(SchemaError, match=r"columns=, reward: TorchRL's names say"):
        read_files(torchrl.FORMAT, tmp_path / "data", tmp_path / "store3", options)
