"""Known layouts: files as their owners write them, against a plain reading of the same files."""

import gzip
import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import h5py
import numcodecs
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from orlog.datasets.formats import array_files, mapped_arrays
from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.layouts import FORMATS
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import Runs, read_files

LENGTHS = [10, 1, 20, 3]
JOINTS = 6


def robot(rows, seed=0):
    """Return the steps of a robot's episode."""
    rng = np.random.default_rng(seed)
    return {
        "img": rng.integers(0, 255, (rows, 6, 4, 3)).astype("f4"),
        "state": rng.normal(size=(rows, 5)).astype("f4"),
        "action": rng.normal(size=(rows, 2)).astype("f4"),
    }


def write_zarr(path, *, lengths=LENGTHS, version=2, compressor="auto", chunks=(7, 4, 4, 2), **how):
    """Let Zarr itself write a replay buffer, and return its arrays."""
    import zarr as library

    root = library.open_group(str(path), mode="w", zarr_format=version)
    data, meta = root.create_group("data"), root.create_group("meta")
    body = robot(sum(lengths))
    body["img"][7:14] = 0  # a chunk of fill values alone is not stored
    for name, values in body.items():
        pieces = tuple(min(a, b) for a, b in zip(values.shape, chunks, strict=False))
        more = {"shards": (4 * pieces[0], *values.shape[1:])} if "shards" in how else {}
        pieces = (pieces[0], *values.shape[1:]) if more else pieces
        array = data.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=pieces, compressors=compressor, **{**how, **more}
        )
        array[:] = values
    ends = meta.create_array("episode_ends", shape=(len(lengths),), dtype="i8")
    ends[:] = np.cumsum(lengths)
    return body


def write_zipped(path):
    """Write a replay buffer in an archive, `a.zarr.zip`."""
    write_zarr(path)
    shutil.make_archive(str(path), "zip", path.parent, path.name)
    shutil.rmtree(path)


def packers():
    return [
        None,
        numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.BITSHUFFLE),
        numcodecs.Zstd(),
        numcodecs.Zlib(),
        numcodecs.GZip(),
        numcodecs.LZ4(),
        numcodecs.BZ2(),
        numcodecs.LZMA(),
    ]


def check_robot(dataset, body):
    """Compare with the rows, of which the last one of each episode has no outcome."""
    lengths = [one for one in LENGTHS if one > 1]
    starts = np.cumsum([0, *LENGTHS])[[0, 2, 3]]
    assert [len(one) for one in dataset] == [one - 1 for one in lengths]
    for one, start, length in zip(dataset, starts, lengths, strict=True):
        for part in ("img", "state"):
            np.testing.assert_array_equal(one.observations[part], body[part][start : start + length])
        np.testing.assert_array_equal(one.actions, body["action"][start : start + length - 1])
        assert one.truncations[-1]
        assert not one.terminations.any()


@pytest.mark.parametrize("compressor", packers(), ids=lambda one: getattr(one, "codec_id", "none"))
@pytest.mark.parametrize("order", ["C", "F"])
def test_replay_buffers_of_version_2(tmp_path, compressor, order):
    body = write_zarr(tmp_path / "a.zarr", compressor=compressor, order=order)
    dataset, found = read_files(FORMATS["zarr"], tmp_path / "a.zarr", tmp_path / "store")
    check_robot(dataset, body)
    assert any("whole episode" in one for one in sentences(found.notes))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"shards": True},
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"fill_value": float("nan")},
        {"compressor": [{"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}]},
        {"compressor": [{"name": "blosc", "configuration": {"typesize": 4, "cname": "zstd"}}]},
        {"serializer": {"name": "bytes", "configuration": {"endian": "big"}}},
    ],
    ids=str,
)
def test_replay_buffers_of_version_3(tmp_path, how):
    body = write_zarr(tmp_path / "a.zarr", version=3, **how)
    dataset, _ = read_files(FORMATS["zarr"], tmp_path / "a.zarr", tmp_path / "store")
    check_robot(dataset, body)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("block_bytes", [200, 2**22])
def test_replay_buffers_in_archives(tmp_path, version, block_bytes, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    body = write_zarr(tmp_path / "pusht" / "a.zarr", version=version)
    shutil.make_archive(str(tmp_path / "a.zarr"), "zip", tmp_path, "pusht")
    assert choose_format([tmp_path / "a.zarr.zip"], None, "lab/a-v1") is FORMATS["zarr"]
    dataset, _ = read_files(FORMATS["zarr"], tmp_path / "a.zarr.zip", tmp_path / "store")
    check_robot(dataset, body)


def _change(path, **changes):
    described = path / ".zarray"
    described.write_text(json.dumps({**json.loads(described.read_text()), **changes}))


def _link(path):
    (path / "outside").symlink_to("/etc/hostname")


def _cut(path):
    chunk = next(one for one in sorted(path.iterdir()) if one.name[0].isdigit())
    chunk.write_bytes(chunk.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("damage", "expected", "text"),
    [
        (lambda one: _change(one, dtype="|O"), SchemaError, "expected numbers"),
        (
            lambda one: _change(one, filters=[{"id": "pickle", "protocol": 5}]),
            SchemaError,
            "the codec 'pickle', which is not read",
        ),
        (
            lambda one: _change(one, compressor={"id": "imagecodecs_jpegxl"}),
            SchemaError,
            "save this array again with Blosc",
        ),
        (lambda one: _change(one, chunks=[2**40, 2]), IntegrityError, "cannot be read as Zarr"),
        (lambda one: _change(one, chunks=[0, 2]), SchemaError, "do not fit"),
        (lambda one: _change(one, shape=[2**41, 2]), SchemaError, "expected"),
        (lambda one: _change(one, shape="x"), IntegrityError, "cannot be read as Zarr"),
        (lambda one: _change(one, order="X"), IntegrityError, "Expected one of"),
        (_link, SchemaError, "a link"),
        (_cut, IntegrityError, "chunk"),
    ],
)
def test_arrays_of_zarr_that_lie_are_refused(tmp_path, damage, expected, text):
    write_zarr(tmp_path / "a.zarr")
    damage(tmp_path / "a.zarr" / "data" / "action")
    with pytest.raises(expected, match=text):
        read_files(FORMATS["zarr"], tmp_path / "a.zarr", tmp_path / "store")


def test_pickles_in_zarr_are_not_run(tmp_path, monkeypatch):
    """Also not where they could be the names of numbers."""
    monkeypatch.chdir(tmp_path)
    write_zarr(Path("a.zarr"))
    names = Path("a.zarr/names")
    names.mkdir()
    body = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<U9", "fill_value": ""}
    body |= {"order": "C", "compressor": None, "filters": [{"id": "pickle", "protocol": 5}]}
    (names / ".zarray").write_text(json.dumps(body))
    (names / "0").write_bytes(pickle.dumps(Runs()))
    read_files(FORMATS["zarr"], Path("a.zarr"), tmp_path / "store")
    assert not Path("made").exists()


def test_headers_of_blosc_that_lie_are_refused(tmp_path):
    """Blosc itself would read beyond a chunk."""
    for version in (2, 3):
        codec = [{"name": "blosc", "configuration": {"typesize": 4, "cname": "lz4"}}]
        path = tmp_path / f"{version}.zarr"
        write_zarr(path, compressor=codec if version == 3 else numcodecs.Blosc("lz4"), version=version)
        for chunk in (one for one in (path / "data" / "state").rglob("*") if one.is_file()):
            data = chunk.read_bytes()
            if not chunk.name.startswith((".z", "zarr")):
                chunk.write_bytes(data[:12] + (2**31 - 1).to_bytes(4, "little") + data[16:])
        with pytest.raises(IntegrityError, match=r"the chunk at row 0: .* header lies"):
            read_files(FORMATS["zarr"], path, tmp_path / f"store-{version}")


def test_an_array_of_zarr_that_is_not_there_is_not_filled_without_end(tmp_path, monkeypatch):
    write_zarr(tmp_path / "a.zarr")
    monkeypatch.setattr(array_files, "LARGEST_FILL", 100)
    with pytest.raises(SchemaError, match="do not hold the shape"):
        read_files(FORMATS["zarr"], tmp_path / "a.zarr", tmp_path / "store")


def test_an_archive_that_holds_a_file_twice_is_refused(tmp_path):
    write_zarr(tmp_path / "a.zarr")
    shutil.make_archive(str(tmp_path / "a.zarr"), "zip", tmp_path, "a.zarr")
    with zipfile.ZipFile(tmp_path / "a.zarr.zip", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.zarr/data/action/.zarray", "{}")
    with pytest.raises(SchemaError, match="holds a file twice"):
        read_files(FORMATS["zarr"], tmp_path / "a.zarr.zip", tmp_path / "store")


def jpegs(frames):
    files = []
    for frame in frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "JPEG")
        files.append(file.getvalue())
    return files


def decoded(files):
    return np.stack([np.asarray(Image.open(io.BytesIO(one))) for one in files])


def write_aloha(folder, *, packed="rows", lengths=(5, 6, 7)):
    """Write a file for each episode, and return what is in them."""
    folder.mkdir(parents=True)
    bodies = []
    for number, rows in enumerate(lengths):
        rng = np.random.default_rng(number)
        frames = rng.integers(0, 255, (rows, 16, 12, 3)).astype("u1")
        body = {
            "qpos": rng.normal(size=(rows, JOINTS)),
            "qvel": rng.normal(size=(rows, JOINTS)),
            "action": rng.normal(size=(rows, JOINTS)),
            "base_action": rng.normal(size=(rows, 2)),
            "top": frames,
        }
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"] = False
            for part in ("qpos", "qvel"):
                file[f"observations/{part}"] = body[part]
            file["action"], file["base_action"] = body["action"], body["base_action"]
            if packed == "no":
                file["observations/images/top"] = frames
            else:
                files = jpegs(frames)
                body["top"] = decoded(files)
                width = max(map(len, files))
                if packed == "texts":
                    file["observations/images/top"] = np.array(files, f"S{width}")
                else:
                    file.attrs["compress"] = True
                    padded = [np.frombuffer(one.ljust(width, b"\0"), np.uint8) for one in files]
                    file["observations/images/top"] = np.stack(padded)
                    file["compress_len"] = np.array([[len(one) for one in files]], "f4")
        bodies.append(body)
    return bodies


@pytest.mark.parametrize("packed", ["no", "rows", "texts"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_recordings_of_aloha(tmp_path, packed, as_folder):
    bodies = write_aloha(tmp_path / "episodes", packed=packed)
    files = [tmp_path / "episodes"] if as_folder else [*(tmp_path / "episodes").iterdir()]
    assert choose_format(files, None, "lab/a-v1") is FORMATS["aloha"]
    dataset, found = read_files(FORMATS["aloha"], files, tmp_path / "store")
    for one, body in zip(dataset, bodies, strict=True):
        for part, name in (("qpos", "qpos"), ("qvel", "qvel"), ("images.top", "top")):
            np.testing.assert_array_equal(one.observations[part], body[name])
        np.testing.assert_array_equal(one.actions, body["action"][:-1])
        np.testing.assert_array_equal(one.infos["base_action"], body["base_action"][:-1])
    assert any("3 last rows" in one for one in sentences(found.notes))
    assert any("compress_len" in one for one in sentences(found.notes)) == (packed == "rows")


def test_a_picture_of_another_size_or_none_is_named_by_its_row(tmp_path):
    write_aloha(tmp_path / "episodes")
    with h5py.File(tmp_path / "episodes" / "episode_1.hdf5", "a") as file:
        file["observations/images/top"][2] = 0
    with pytest.raises(IntegrityError, match=r"episode_1.hdf5, observations/images/top, row 2"):
        read_files(FORMATS["aloha"], tmp_path / "episodes", tmp_path / "store")


def write_maniskill(root, *, parts=True, rewards=True, described=True):
    """Write demonstrations as ManiSkill's `RecordEpisode` does, and return what is in them."""
    bodies, episodes = [], []
    with h5py.File(root / "demos.h5", "w") as file:
        for number in range(3):
            rng, rows = np.random.default_rng(number), 5 + number
            reached = (np.arange(rows) >= rows - 2) & (number != 1)
            body = {
                "qpos": rng.normal(size=(rows + 1, 9)).astype("f4"),
                "tcp": rng.normal(size=(rows + 1, 7)).astype("f4"),
                "actions": rng.normal(size=(rows, 4)).astype("f4"),
                "rewards": rng.normal(size=rows).astype("f4"),
                "reached": reached,
            }
            group = file.create_group(f"traj_{number + 8}")  # 10 comes after 9
            if parts:
                group["obs/agent/qpos"], group["obs/extra/tcp"] = body["qpos"], body["tcp"]
            else:
                group["obs"] = body["qpos"]
            group["actions"], group["success"], group["terminated"] = (body["actions"], reached, reached)
            group["truncated"] = np.zeros(rows, bool)
            group["env_states/actors/cube"] = rng.normal(size=(rows + 1, 13))
            if rewards:
                group["rewards"] = body["rewards"]
            said = {"episode_id": number + 8, "episode_seed": 100 + number, "elapsed_steps": rows}
            episodes.append({**said, "control_mode": "pd_joint_pos", "reset_kwargs": {"options": {}}})
            bodies.append(body)
    if described:
        told = {"env_info": {"env_id": "PickCube-v1", "env_kwargs": {}}, "episodes": episodes}
        (root / "demos.json").write_text(json.dumps(told))
    return bodies


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("rewards", [False, True])
def test_demonstrations_of_maniskill(tmp_path, described, parts, rewards):
    bodies = write_maniskill(tmp_path, parts=parts, rewards=rewards, described=described)
    files = [tmp_path / "demos.h5"]
    assert choose_format(files, None, "lab/a-v1") is FORMATS["maniskill"]
    dataset, found = read_files(FORMATS["maniskill"], files, tmp_path / "store")
    for number, (one, body) in enumerate(zip(dataset, bodies, strict=True)):
        if parts:
            np.testing.assert_array_equal(one.observations["agent.qpos"], body["qpos"])
            np.testing.assert_array_equal(one.observations["extra.tcp"], body["tcp"])
        else:
            np.testing.assert_array_equal(one.observations, body["qpos"])
        np.testing.assert_array_equal(one.actions, body["actions"])
        if rewards:
            np.testing.assert_array_equal(one.rewards, body["rewards"])
        np.testing.assert_array_equal(one.infos["success"], body["reached"])
        np.testing.assert_array_equal(one.infos["terminated"], body["reached"])
        expected = np.zeros(len(one), bool)
        expected[-1] = body["reached"][-1]
        np.testing.assert_array_equal(one.terminations, expected)
        assert one.seed == (100 + number if described else None)
        if described:
            assert one.metadata["control_mode"] == "pd_joint_pos"
    assert any("env_states/actors/cube" in one for one in sentences(found.notes))
    assert ("PickCube-v1" in dataset.manifest.description) == described


def test_what_demonstrations_lack_is_said(tmp_path):
    write_maniskill(tmp_path)
    told = json.loads((tmp_path / "demos.json").read_text())
    told["episodes"] = told["episodes"][:2]
    (tmp_path / "demos.json").write_text(json.dumps(told))
    with pytest.raises(SchemaError, match="traj_10: the JSON file"):
        read_files(FORMATS["maniskill"], tmp_path / "demos.h5", tmp_path / "store")
    with h5py.File(tmp_path / "demos.h5", "a") as file:
        del file["traj_8/obs"]
    with pytest.raises(SchemaError, match=r"has no obs or obs/.*, only states.*replay_trajectory"):
        read_files(FORMATS["maniskill"], tmp_path / "demos.h5", tmp_path / "store")


def write_episode_npz(folder, *, kind="exorl"):
    """Write a file for each episode as `dm_control`'s recorders do, and return what is in them."""
    folder.mkdir(parents=True)
    bodies = []
    for number, rows in enumerate((5, 4, 7)):
        rng = np.random.default_rng(number)
        ended = number == 1
        body = {
            "observation": rng.normal(size=(rows + 1, 3)).astype("f4"),
            "action": rng.normal(size=(rows + 1, 2)).astype("f4"),
            "reward": rng.normal(size=(rows + 1, 1)).astype("f4"),
            "discount": np.where(np.arange(rows + 1) == rows, 1.0 - ended, 1)[:, None].astype("f4"),
            "physics": rng.normal(size=(rows + 1, 4)),
        }
        if kind == "dreamer":
            body["image"] = rng.integers(0, 255, (rows + 1, 4, 4, 3)).astype("u1")
            body["is_first"] = np.arange(rows + 1) == 0
            body["is_terminal"] = (np.arange(rows + 1) == rows) & ended
            del body["physics"]
        np.savez_compressed(folder / f"episode_{number + 9}_{rows}.npz", **body)
        bodies.append(body)
    return bodies


@pytest.mark.parametrize("kind", ["exorl", "dreamer"])
@pytest.mark.parametrize("block_bytes", [50, 2**22])
def test_episodes_whose_rows_begin_with_a_reset(tmp_path, kind, block_bytes, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "BLOCK_BYTES", block_bytes)
    bodies = write_episode_npz(tmp_path / "episodes", kind=kind)
    assert choose_format([tmp_path / "episodes"], None, "lab/a-v1") is FORMATS["episode_npz"]
    dataset, _ = read_files(FORMATS["episode_npz"], tmp_path / "episodes", tmp_path / "store")
    for number, (one, body) in enumerate(zip(dataset, bodies, strict=True)):
        if kind == "dreamer":
            for part in ("observation", "image"):
                np.testing.assert_array_equal(one.observations[part], body[part])
        else:
            np.testing.assert_array_equal(one.observations, body["observation"])
            np.testing.assert_array_equal(one.infos["physics"], body["physics"][:-1])
        np.testing.assert_array_equal(one.actions, body["action"][1:])
        np.testing.assert_array_equal(one.rewards, body["reward"][1:, 0])
        assert one.terminations[-1] == (number == 1)
        assert one.truncations[-1] == (number != 1)


def write_dqn_replay(folder, *, checkpoints=2):
    """Write logs as Dopamine's replay buffer does, and return what is in them."""
    folder.mkdir(parents=True)
    bodies = []
    for number in range(checkpoints):
        rng, rows = np.random.default_rng(number), 20
        body = {
            "observation": rng.integers(0, 255, (rows, 6, 5)).astype("u1"),
            "action": rng.integers(0, 4, rows).astype("i4"),
            "reward": rng.integers(-1, 2, rows).astype("f4"),
            "terminal": np.isin(np.arange(rows), (4, 11)).astype("u1"),
        }
        for name, values in body.items():
            with gzip.open(folder / f"$store$_{name}_ckpt.{number + 9}.gz", "wb") as file:
                np.save(file, values)
        with gzip.open(folder / f"add_count_ckpt.{number + 9}.gz", "wb") as file:
            np.save(file, np.array(rows))
        bodies.append(body)
    return bodies


def test_logs_of_dqn(tmp_path):
    bodies = write_dqn_replay(tmp_path / "logs")
    assert choose_format([tmp_path / "logs"], None, "lab/a-v1") is FORMATS["dqn_replay"]
    dataset, found = read_files(FORMATS["dqn_replay"], tmp_path / "logs", tmp_path / "store")
    episodes = iter(dataset)
    for body in bodies:
        for start, stop in ((0, 5), (5, 12), (12, 20)):
            one, ended = next(episodes), stop < 20
            steps = slice(start, stop if ended else stop - 1)
            np.testing.assert_array_equal(one.observations[:-1], body["observation"][steps])
            np.testing.assert_array_equal(one.actions, body["action"][steps])
            np.testing.assert_array_equal(one.rewards, body["reward"][steps])
            assert one.terminations[-1] == ended
            assert one.metadata["final_observation_missing"] == ended
    assert next(episodes, None) is None
    assert dataset.action_space == spaces.Discrete(4)
    assert any("add_count" in one for one in sentences(found.notes))


def write_calvin(folder):
    """Write a file for each step, two episodes with a gap between them, and return all rows."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = {
        "rgb_static": rng.integers(0, 255, (9, 6, 6, 3)).astype("u1"),
        "robot_obs": rng.normal(size=(9, 15)),
        "scene_obs": rng.normal(size=(9, 24)),
        "actions": rng.normal(size=(9, 7)),
        "rel_actions": rng.normal(size=(9, 7)),
    }
    for number in range(9):
        shift = 100 * (number >= 4)
        np.savez(
            folder / f"episode_{number + shift:07d}.npz", **{name: values[number] for name, values in rows.items()}
        )
    np.save(folder / "ep_start_end_ids.npy", [[0, 3], [104, 108]])
    return rows


def test_episodes_of_calvin(tmp_path):
    rows = write_calvin(tmp_path / "training")
    assert choose_format([tmp_path / "training"], None, "lab/a-v1") is FORMATS["calvin"]
    dataset, _ = read_files(FORMATS["calvin"], tmp_path / "training", tmp_path / "store")
    for one, start, stop in zip(dataset, (0, 4), (4, 9), strict=True):
        for part in ("rgb_static", "robot_obs", "scene_obs"):
            np.testing.assert_array_equal(one.observations[part], rows[part][start:stop])
        np.testing.assert_array_equal(one.actions, rows["rel_actions"][start : stop - 1])
        np.testing.assert_array_equal(one.infos["actions"], rows["actions"][start : stop - 1])
    (tmp_path / "training" / "episode_0000002.npz").unlink()
    with pytest.raises(SchemaError, match=r"episode_0000002.npz is missing"):
        read_files(FORMATS["calvin"], tmp_path / "training", tmp_path / "other")
    write_calvin(tmp_path / "long")
    np.save(tmp_path / "long" / "ep_start_end_ids.npy", [[0, 2**60]])
    with pytest.raises(SchemaError, match=r"episode_0000004.npz is missing"):
        read_files(FORMATS["calvin"], tmp_path / "long", tmp_path / "other")


def write_rllib(path, *, kind="new", per_line=4):
    """Write steps of three episodes as RLlib's `JsonWriter` does, and return them."""
    rng, rows = np.random.default_rng(0), 12
    number = np.repeat([7, 9, 8], (5, 4, 3))
    last = np.append(number[1:] != number[:-1], True)
    body = {
        "obs": rng.normal(size=(rows, 3)),
        "actions": rng.integers(0, 3, rows),
        "rewards": rng.normal(size=rows),
        "eps_id": number,
        "new_obs": rng.normal(size=(rows, 3)),
    }
    inner = ~last
    body["new_obs"][inner] = body["obs"][1:][inner[:-1]]
    if kind == "new":
        body |= {"terminateds": last & (number != 9), "truncateds": last & (number == 9)}
        body["action_logp"] = rng.normal(size=rows)
    else:
        body |= {"dones": last & (number != 9), "action_prob": rng.uniform(0.1, 1, rows)}
    with path.open("w") as file:
        for start in range(0, rows, per_line):
            batch = {name: one[start : start + per_line].tolist() for name, one in body.items()}
            file.write(json.dumps({"type": "SampleBatch", **batch, "t": [0] * len(batch["obs"])}))
            file.write("\n")
    return body


@pytest.mark.parametrize("kind", ["new", "old"])
@pytest.mark.parametrize("per_line", [1, 4, 12])
def test_batches_of_rllib(tmp_path, kind, per_line):
    body = write_rllib(tmp_path / "output.json", kind=kind, per_line=per_line)
    files = [tmp_path / "output.json"]
    assert choose_format(files, None, "lab/a-v1") is formats()["rllib"]
    dataset, _ = read_files(formats()["rllib"], files, tmp_path / "store")
    for one, start, stop in zip(dataset, (0, 5, 9), (5, 9, 12), strict=True):
        steps = slice(start, stop)
        np.testing.assert_array_equal(one.observations[:-1], body["obs"][steps])
        np.testing.assert_array_equal(one.observations[-1], body["new_obs"][stop - 1])
        np.testing.assert_array_equal(one.actions, body["actions"][steps])
        np.testing.assert_array_equal(one.rewards, body["rewards"][steps])
        said = body["action_logp"] if kind == "new" else np.log(body["action_prob"])
        np.testing.assert_array_equal(one.infos["action_log_probs"], said[steps])
        assert one.terminations[-1] == (start != 5)
        assert one.truncations[-1] == (start == 5)


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        ('{"obs": "BCJNGGhAA", "actions": [1], "rewards": [0], "eps_id": [1]}', SchemaError, "pickle"),
        ('{"obs": [[1]], "actions": [1, 2], "rewards": [0], "eps_id": [1]}', SchemaError, "length"),
        ('{"obs": [[1]], "actions": [1]}', SchemaError, "expected a batch of RLlib"),
        ('{"obs": [[1], [1, 2]], "actions": [1', IntegrityError, "no JSON"),
        ('{"obs": [["x"]], "actions": [1], "rewards": [0], "eps_id": [1]}', SchemaError, "numbers"),
        ("[" * 100_000, IntegrityError, "no JSON"),
    ],
)
def test_lines_that_are_no_batches_are_refused(tmp_path, line, error, text):
    (tmp_path / "output.json").write_text(line)
    with pytest.raises(error, match=text):
        read_files(formats()["rllib"], tmp_path / "output.json", tmp_path / "store")
