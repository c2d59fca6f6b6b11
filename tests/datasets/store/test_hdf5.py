import dataclasses
import multiprocessing
import pickle
import shutil

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from orlog import Dataset, DatasetWriter
from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import concatenate_blocks
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.store.hdf5 import Hdf5Reader, write_hdf5
from orlog.errors import IntegrityError, StorageError
from tests.datasets.store import test_version
from tests.small_disks import files_limited_to


def an_episode(steps, seed):
    """Return an episode that also has numbers of 16 bits, flags, and infos without any value."""
    rng = np.random.default_rng(seed)
    episode = test_version.an_episode(steps, seed)
    episode.observations["half"] = rng.random((steps + 1, 2)).astype(np.float16)
    infos = {"contact": rng.random(steps) < 0.5, "never": [np.zeros((0, 2), np.bool_)] * steps}
    return dataclasses.replace(episode, infos=episode.infos | infos)


OBSERVATION = spaces.Dict(test_version.OBSERVATION.spaces | {"half": spaces.Box(-1, 1, (2,), np.float16)})
ACTION = test_version.ACTION
LENGTHS = (3, 1, 6)


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


@pytest.mark.parametrize(("name", "chunk"), [("observations/camera", 1), ("rewards", 0), ("infos/said@values", 0)])
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
        reader.read_rows(name, np.array([count - 1, 0]))
    assert len(reader.read("episodes/lengths", 0, 3)) == 3


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


def test_a_truncated_file_and_a_link_in_its_place_are_refused(part):
    folder, rows = part
    path = folder / "data.h5"
    data = path.read_bytes()
    for kept in (0.0, 0.01, 0.5, 0.999):
        path.unlink()
        path.write_bytes(data[: int(kept * len(data))])
        with pytest.raises(IntegrityError, match=r"data\.h5: cannot be opened: "):
            Hdf5Reader(folder, rows)
    path.unlink()
    (folder / "elsewhere.h5").write_bytes(data)
    path.symlink_to("elsewhere.h5")
    with pytest.raises(IntegrityError, match="found a link"):
        Hdf5Reader(folder, rows)


def virtual_dataset(file, folder):
    layout = h5py.VirtualLayout((10,), "<f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "rewards", (10,))
    file.create_virtual_dataset("rewards", layout)


def stored(dtype="<f8", **options):
    return lambda file, _: file.create_dataset("rewards", (10,), dtype, **options)


def linked(link):
    return lambda file, folder: file.__setitem__("rewards", link(folder))


GOOD = {"chunks": (10,), "shuffle": True, "compression": "gzip", "fletcher32": True}


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (linked(lambda _: h5py.SoftLink("/episodes/returns")), "'rewards' is a link"),
        (linked(lambda folder: h5py.ExternalLink(str(folder / "other.h5"), "/rewards")), "'rewards' is a link"),
        (
            lambda file, folder: stored(external=[(str(folder / "other.h5"), 0, 80)])(file, folder),
            "values lie outside of the file",
        ),
        (virtual_dataset, "values lie outside of the file"),
        (stored("<f4"), r"expected float64 \(10,\), found float32"),
        (stored(**{**GOOD, "fletcher32": False}), "expected the filters"),
        (stored(**{**GOOD, "compression": "lzf"}), "expected the filters"),
        (stored(**{**GOOD, "chunks": (5,)}), "expected 2 chunks, found 0"),
        (lambda file, _: file.create_group("rewards"), "expected a dataset"),
        (lambda *_: None, ""),
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


def read_in_child(reader, answer):
    answer.put(reader.read("observations/camera", 0, 13).tobytes())


def test_a_fork_reads_beside_its_parent_and_a_full_disk_is_a_storage_error(original, part, tmp_path):
    reader = pickle.loads(pickle.dumps(Hdf5Reader(*part)))
    before = reader.read("observations/camera", 0, 13).tobytes()
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=read_in_child, args=(reader, answer))
    child.start()
    assert answer.get(timeout=120) == before == reader.read("observations/camera", 0, 13).tobytes()
    child.join()
    root, written = original
    size = (root / "hdf5/data.h5").stat().st_size
    for limit in (100, size // 3, size * 2 // 3):
        with files_limited_to(limit), pytest.raises(StorageError, match="cannot write"):
            write_hdf5(root / "zarr", tmp_path / "full", written)


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
        assert dataset[number].infos["said"] == expected.infos["said"]
        assert dataset[number].metadata == expected.metadata
