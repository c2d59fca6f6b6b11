import os
import pickle
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from orlog import Dataset, DatasetWriter
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import concatenate_blocks
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.store.hdf5 import Hdf5Reader, write_hdf5
from orlog.errors import IntegrityError
from tests.episodes import whole_episode

OBSERVATION = spaces.Dict(
    {
        "cameras": spaces.Dict(
            {
                "color": spaces.Box(0, 255, (32, 32, 3), np.uint8),
                "first": spaces.Box(0, 255, (3, 32, 32), np.uint8),
                "gray": spaces.Box(0, 255, (96, 96), np.uint8),
            }
        ),
        "half": spaces.Box(-1, 1, (2,), np.float16),
        "task": spaces.Text(20, min_length=0),
    }
)
ACTION = spaces.Tuple([spaces.MultiBinary(3), spaces.Box(-1, 1, (2,), np.float32)])
LENGTHS = (3, 1, 6)


def an_episode(steps, seed):
    rng = np.random.default_rng(seed)

    def frames(*shape):
        return rng.integers(0, 256, (steps + 1, *shape), np.uint8)

    return whole_episode(
        {
            "cameras": {"color": frames(32, 32, 3), "first": frames(3, 32, 32), "gray": frames(96, 96)},
            "half": rng.random((steps + 1, 2)).astype(np.float16),
            "task": [("stack", "sort", "")[index % 3] for index in range(steps + 1)],
        },
        (rng.integers(0, 2, (steps, 3)).astype(np.int8), rng.random((steps, 2)).astype(np.float32)),
        rng.standard_normal(steps),
        infos={
            "boxes": [rng.random((index % 3, 4)) for index in range(steps)],
            "contact": rng.random(steps) < 0.5,
            "never": [np.zeros((0, 2), np.bool_)] * steps,
            "note": [f"Schritt schöner {index}" for index in range(steps)],
        },
        seed=seed,
        metadata={"operator": "Zoë", "score": 0.5},
    )


def write_part(folder):
    writer = EpisodeWriter(folder, Schema(observation_space=OBSERVATION, action_space=ACTION), "lab/arm-v1@1.0.0")
    for number, steps in enumerate(LENGTHS):
        writer.add_episode(an_episode(steps, number))
    return writer.finish()


def rows_of(written):
    return {spec: written.part.columns[name].rows for name, spec in written.schema.columns().items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a part in both containers, folders `zarr` and `hdf5`; do not write to it."""
    root = tmp_path_factory.mktemp("part")
    written = write_part(root / "zarr")
    write_hdf5(root / "zarr", root / "hdf5", written)
    return root, written


@pytest.fixture
def part(original, tmp_path):
    """Return a copy of the HDF5 container, to be damaged at will, and what it holds."""
    root, written = original
    shutil.copytree(root / "hdf5", tmp_path / "hdf5")
    return tmp_path / "hdf5", rows_of(written)


def expected_block():
    schema = Schema(observation_space=OBSERVATION, action_space=ACTION)
    episodes = [an_episode(steps, number) for number, steps in enumerate(LENGTHS)]
    schema = schema.with_extras(episodes[0].infos, episodes[0].metadata, "")

    return concatenate_blocks([schema.block_of(episode, "") for episode in episodes])


def test_every_column_reads_back(part):
    folder, rows = part
    reader = Hdf5Reader(folder, rows)
    expected = expected_block()
    assert {spec.name for spec in rows} == expected.keys()
    for spec, count in rows.items():
        values = reader.read(spec.name, 0, count)
        assert values.dtype == spec.dtype
        np.testing.assert_array_equal(values, expected[spec.name])
        assert reader.read(spec.name, count, count).shape == (0, *spec.shape)
    assert reader.read("infos/contact", 2, 7).tolist() == expected["infos/contact"][2:7].tolist()


def flip_chunk(path, name, chunk):
    with h5py.File(path) as file:
        info = file[name].id.get_chunk_info(chunk)
    data = bytearray(path.read_bytes())
    data[info.byte_offset + info.size // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "chunk"), [("observations/cameras/gray", 7), ("rewards", 0), ("infos/note@values", 0)]
)
def test_a_damaged_chunk_is_named(part, name, chunk):
    folder, rows = part
    flip_chunk(folder / "data.h5", name, chunk)
    reader = Hdf5Reader(folder, rows)
    count = next(count for spec, count in rows.items() if spec.name == name)
    message = f"data.h5, column {name}, chunk {chunk}: damaged: "
    with pytest.raises(IntegrityError, match=message) as caught:
        reader.read(name, 0, count)
    assert caught.value.file == "data.h5"
    with pytest.raises(IntegrityError, match=message):
        reader.read_rows(name, np.array([chunk, 0]))
    assert len(reader.read("actions/1", 0, 10)) == 10


def test_no_flipped_byte_changes_a_value(part):
    folder, rows = part
    path = folder / "data.h5"
    good = path.read_bytes()
    expected = expected_block()
    found = {"refused": 0, "unharmed": 0}
    for place in np.random.default_rng(0).integers(0, len(good), 300).tolist():
        damaged = bytearray(good)
        damaged[place] ^= 0x01
        # A new file each time: HDF5 keeps what it knows of one that it has open.
        path.unlink()
        path.write_bytes(damaged)
        try:
            reader = Hdf5Reader(folder, rows)
            for spec, count in rows.items():
                np.testing.assert_array_equal(reader.read(spec.name, 0, count), expected[spec.name], err_msg=str(place))
            found["unharmed"] += 1
        except IntegrityError:
            found["refused"] += 1
    assert found["refused"] > 250


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(part, kept):
    folder, rows = part
    data = (folder / "data.h5").read_bytes()
    (folder / "data.h5").write_bytes(data[: int(kept * len(data))])
    with pytest.raises(IntegrityError, match=r"data\.h5: cannot be opened: "):
        Hdf5Reader(folder, rows)


def test_a_link_in_place_of_the_file_is_refused(part):
    folder, rows = part
    (folder / "data.h5").rename(folder / "elsewhere.h5")
    (folder / "data.h5").symlink_to("elsewhere.h5")
    with pytest.raises(IntegrityError, match="found a link"):
        Hdf5Reader(folder, rows)


def soft_link(file, _):
    file["rewards"] = h5py.SoftLink("/episodes/returns")


def external_link(file, folder):
    file["rewards"] = h5py.ExternalLink(str(folder / "other.h5"), "/rewards")


def external_storage(file, folder):
    (folder / "secret").write_bytes(bytes(80))
    file.create_dataset("rewards", (10,), "<f8", external=[(str(folder / "secret"), 0, 80)])


def virtual_dataset(file, folder):
    layout = h5py.VirtualLayout((10,), "<f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "rewards", (10,))
    file.create_virtual_dataset("rewards", layout)


def other_dtype(file, _):
    file.create_dataset("rewards", (10,), "<f4")


def no_sum(file, _):
    file.create_dataset("rewards", (10,), "<f8", chunks=(10,), shuffle=True, compression="gzip")


def other_filter(file, _):
    file.create_dataset("rewards", (10,), "<f8", chunks=(10,), shuffle=True, compression="lzf", fletcher32=True)


def never_written(file, _):
    file.create_dataset("rewards", (10,), "<f8", chunks=(5,), shuffle=True, compression="gzip", fletcher32=True)


def group(file, _):
    file.create_group("rewards")


def nothing(_file, _):
    pass


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (soft_link, "'rewards' is a link"),
        (external_link, "'rewards' is a link"),
        (external_storage, "values lie outside of the file"),
        (virtual_dataset, "values lie outside of the file"),
        (other_dtype, r"expected float64 \(10,\), found float32"),
        (no_sum, "expected the filters"),
        (other_filter, "expected the filters"),
        (never_written, "expected 2 chunks, found 0"),
        (group, "expected a dataset"),
        (nothing, ""),
    ],
)
def test_what_the_format_does_not_write_is_refused(part, put, message):
    folder, rows = part
    shutil.copy(folder / "data.h5", folder / "other.h5")
    with h5py.File(folder / "data.h5", "r+") as file:
        del file["rewards"]
        put(file, folder)
    with pytest.raises(IntegrityError, match=rf"data\.h5, column rewards: .*{message}"):
        Hdf5Reader(folder, rows)


def test_a_linked_group_is_refused(part):
    folder, rows = part
    shutil.copy(folder / "data.h5", folder / "other.h5")
    with h5py.File(folder / "data.h5", "r+") as file:
        del file["episodes"]
        file["episodes"] = h5py.ExternalLink(str(folder / "other.h5"), "/episodes")
    with pytest.raises(IntegrityError, match="'episodes' is a link"):
        Hdf5Reader(folder, rows)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_reads_beside_its_parent(part):
    folder, rows = part
    # In a process of its own, which no other test's threads can trouble.
    script = """
import os, pickle, sys
reader = pickle.load(open(sys.argv[1], "rb"))
before = reader.read("observations/cameras/color", 0, 13).tobytes()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        same = all(reader.read("observations/cameras/color", 0, 13).tobytes() == before
                   for _ in range(50))
        os._exit(0 if same else 1)
    children.append(child)
for _ in range(50):
    assert reader.read("observations/cameras/color", 0, 13).tobytes() == before
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
    pickled = folder / "reader"
    pickled.write_bytes(pickle.dumps(Hdf5Reader(folder, rows)))
    subprocess.run([sys.executable, "-c", script, str(pickled)], check=True)


def test_a_full_disk_is_a_storage_error(original, tmp_path):
    script = """
import pickle, resource, sys
from pathlib import Path
from orlog.datasets.store.hdf5 import write_hdf5
from orlog.errors import StorageError
root, target, written = pickle.load(open(sys.argv[1], "rb"))
for limit in (100, 20_000, 60_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_hdf5(root / "zarr", target, written)
    except StorageError as error:
        print(error)
    else:
        sys.exit(1)
"""
    root, written = original
    (tmp_path / "arguments").write_bytes(pickle.dumps((root, tmp_path / "full", written)))
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, str(tmp_path / "arguments")], check=True, capture_output=True, text=True
    )
    assert done.stdout.count(": cannot write: ") == 3


def test_a_recording_in_one_file_is_appended_to_by_another():
    with DatasetWriter("lab/arm-v1", observation_space=OBSERVATION, action_space=ACTION, container="hdf5") as writer:
        for number in range(2):
            writer.add_episode(an_episode(LENGTHS[number], number))
    base = Dataset(writer.folder)
    with DatasetWriter.append(base) as appended:
        appended.add_episode(an_episode(LENGTHS[2], 2))
    dataset = Dataset(appended.folder)
    assert [item.path for item in dataset.manifest.objects] == ["data.h5", "parts/1/data.h5"]
    assert (writer.folder / "data.h5").samefile(appended.folder / "data.h5")
    for name, values in expected_block().items():
        np.testing.assert_array_equal(dataset.column(name), values)
    for number, steps in enumerate(LENGTHS):
        expected = an_episode(steps, number)
        assert dataset[number].infos["note"] == expected.infos["note"]
        assert dataset[number].metadata == expected.metadata
