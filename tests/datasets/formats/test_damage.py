"""Damaged and hostile files of every format: a typed error that names the file, or a read that passes the checks.

A format joins by its sample in `tests/fuzz/samples.py`. Damaged files are read in a child process, so that a crash, a
hang or a large allocation is seen; `tools/fuzzing/fuzz_files.py` looks for more. What becomes of flipped bits of exports
whose list of checksums was lost is counted by `python -m tests.datasets.formats.test_damage`, for docs/security.md.
"""

import os
import shutil
import struct
import sys
import tempfile
import tracemalloc
import zipfile
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import orlog
from orlog import OrlogError
from orlog.datasets.formats import table
from orlog.datasets.formats.episode_cutter import flags_of
from orlog.datasets.formats.episodes import Asked, Options
from orlog.datasets.formats.formats import choose_format, formats
from orlog.datasets.formats.notes import sentences
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats import test_lerobot, test_minari_arrow, test_rlds, test_robomimic
from tests.datasets.formats.reading import Runs, read_files
from tests.datasets.formats.test_contract import record_small
from tests.datasets.formats.test_npz import flat
from tests.fuzz.readers import KEPT, Reader
from tests.fuzz.samples import READERS
from tests.levels import most

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are Linux's")
IN_A_RELEASE, IN_ALL = 10_000, 1_500
"""Damaged files of each format that `make test-release` and `make test-all` read."""
REFUSED = {"FormatVersionError", "IntegrityError", "SchemaError"}
MOST_BYTES = 2**27
FLIPS = 400
MOST_OTHERS = {
    "torchrl": FLIPS,  # plain numbers, which nothing in the files checks
    "rlds": 20,  # records are checked, and the documents that say what is in them are not
}
WRITTEN = [name for name, one in formats().items() if one.write is not None]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Return a process that reads files."""
    with Reader(tmp_path_factory.mktemp("reader")) as made:
        yield made


def check(reader, name, numbers):
    """Read a format's files, damaged as the numbers say."""
    counts, findings = reader.read_damaged(name, numbers)
    sys.stdout.write(f"{name}: {counts}\n")
    assert not findings, "\n".join(f"{name}, damage {one.number}: {one.text}" for one in findings)
    assert sum(counts.values()) == len(numbers)
    assert counts.keys() <= {"right", *REFUSED}


@LINUX
def test_every_format_has_a_sample_that_is_read(reader):
    for name in READERS:
        assert reader.read_sound(name) == [], name


@LINUX
def test_some_damaged_files_are_refused_or_read(reader):
    for name in READERS:
        check(reader, name, range(40))


@LINUX
def test_what_the_fuzzer_kept_is_refused_or_read(reader):
    """Its inputs run code that no sample runs (`tests/fuzz/corpus.zip`)."""
    with zipfile.ZipFile(KEPT) as kept:
        counts = Counter(one.partition("/")[0] for one in kept.namelist())
    assert set(counts) <= set(READERS)
    for name, count in counts.items():
        check(reader, name, range(-count, 0))


@LINUX
@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_thousands_of_damaged_files_of_a_format_are_refused_or_read(reader, name):
    check(reader, name, range(most(IN_A_RELEASE, IN_ALL)))


def test_the_page_on_security_states_these_numbers():
    page = " ".join(Path("docs/security.md").read_text("utf-8").split())
    formats = len(READERS)
    for number, level in ((IN_ALL, "make test-all"), (IN_A_RELEASE, "make test-release")):
        said = f"`{level}` reads {number * formats:,} damaged files ({number:,} in each of {formats} "
        assert said in page


def files_of_hdf5(samples):
    return [
        (sample, path)
        for found in samples.values()
        for sample in found
        for path in (*sample.root.rglob("*.hdf5"), *sample.root.rglob("*.h5"))
    ]


def actions_of(file):
    """Return the path of the first dataset of actions, which every layout has."""
    found = []
    file.visit(lambda name: found.append(name) if "action" in name else None)
    return found[0]


def _external_link(file, name, secret):
    file[name] = h5py.ExternalLink(str(secret), name)


def _soft_link(file, name, _):
    file[f"{name}2"] = np.zeros((4, 2), "f4")
    file[name] = h5py.SoftLink(f"/{name}2")


def _external_storage(file, name, secret):
    file.create_dataset(name, (4, 2), "f4", external=[(str(secret), 0, 32)])


def _virtual(file, name, secret):
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[:] = h5py.VirtualSource(str(secret), name, shape=(4, 2))
    file.create_virtual_dataset(name, layout)


def _plug_in(file, name, _):
    stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    stored.set_chunk((4, 2))
    stored.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())  # Zstandard, which is a plug-in
    space = h5py.h5s.create_simple((4, 2))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, stored)


@pytest.mark.parametrize("change", [_external_link, _soft_link, _external_storage, _virtual, _plug_in])
def test_values_of_hdf5_that_lie_elsewhere_are_not_read(samples, tmp_path, change):
    for sample, path in files_of_hdf5(samples):
        sound = path.read_bytes()
        secret = tmp_path / "secret.hdf5"
        secret.write_bytes(sound)
        with h5py.File(path, "a") as file:
            name = actions_of(file)
            del file[name]
            change(file, name, secret)
        with pytest.raises(SchemaError, match="action"):
            read_files(formats()[sample.format], sample.given, tmp_path / "store", sample.options)
        path.write_bytes(sound)
        shutil.rmtree(tmp_path / "store", ignore_errors=True)


@pytest.mark.parametrize("packing", [{}, {"compression": "gzip"}, {"shuffle": True}])
def test_chunks_that_are_smaller_than_their_checksums_are_refused(samples, tmp_path, packing):
    """libhdf5 2.0.0 takes the checksum's four bytes off any size, and then reads far beyond."""
    sample = next(one for one in samples["d4rl"] if one.root.name == "d4rl-written")
    path = Path(shutil.copy(sample.given[0], tmp_path / "chunks.hdf5"))
    with h5py.File(path, "a") as file:
        rewards = file["rewards"][:]
        del file["rewards"]
        file.create_dataset("rewards", data=rewards, fletcher32=True, **packing)
        stored = file["rewards"].id.get_chunk_info(0)
    index = struct.pack("<IIQ", stored.size, 0, 0)
    data = path.read_bytes()
    assert data.count(index) >= 1
    for size in (0, 3):
        path.write_bytes(data.replace(index, struct.pack("<IIQ", size, 0, 0)))
        with pytest.raises(IntegrityError, match=rf"cannot be read as HDF5: its chunk .* claims {size} bytes"):
            read_files(formats()["d4rl"], path, tmp_path / "store", sample.options)


def test_groups_of_hdf5_that_lie_in_groups_again_and_again_are_refused(samples, tmp_path):
    """A group that lies in itself; and forty, each twice in the one before."""
    sample = samples["minari"][0]
    path = next(sample.root.rglob("*.hdf5"))
    sound = path.read_bytes()
    for count in (1, 40):
        with h5py.File(path, "a") as file:
            group = file["episode_0"].create_group("infos/again")
            for _ in range(count):
                inner = group if count == 1 else file.create_group(None)
                group["a"] = group["b"] = inner
                group = inner
        with pytest.raises(SchemaError, match="infos: its groups lie more than 32 deep"):
            read_files(formats()["minari"], sample.given, tmp_path / "store", sample.options)
        path.write_bytes(sound)


def test_links_in_folders_are_not_followed(samples, tmp_path):
    """Each file and each folder in turn lies elsewhere, behind a link."""
    for found in samples.values():
        for sample in found:
            if not sample.given[0].is_dir():
                continue
            for path in sorted(sample.given[0].rglob("*")):
                away = tmp_path / "away"
                path.rename(away)
                path.symlink_to(away)
                is_refused = _is_refused(sample, tmp_path / "store")
                path.unlink()
                # A file that nobody needs may be anything.
                assert is_refused or not _is_refused(sample, tmp_path / "store"), path
                away.rename(path)


def _is_refused(sample, store):
    try:
        read_files(formats()[sample.format], sample.given, store, sample.options)
    except OrlogError:
        return True
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return False


def rewritten(path, **change):
    """Write npz with an array changed, or left out where it is None."""
    arrays = {**flat(4, [1, 3]), **change}
    np.savez(path, **{name: one for name, one in arrays.items() if one is not None})
    return path


def with_pickle(path):
    rewritten(path, reward=np.array([Runs()] * 4, object))


def with_claim(path):
    """The first entry of the archive's directory claims 4 GB."""
    np.savez_compressed(path, **flat(4, [1, 3]))
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(data)


def with_other_index(path):
    starts = {"episode_starts": np.array([True, False, True, False]), "index": np.array([0, 1])}
    rewritten(path, next_obs=None, done=None, truncated=None, **starts)


def with_odd_packing(path):
    sound = rewritten(path.with_name("sound.npz"))
    with zipfile.ZipFile(sound) as one, zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as odd:
        for name in one.namelist():
            odd.writestr(name, one.read(name))


def with_array_twice(path):
    rewritten(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("reward.npy", archive.read("reward.npy"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("write", "text"),
    [
        (with_pickle, "Python objects, which are not read"),
        (with_claim, "obs: claims 4,294,967,294 bytes"),
        (with_other_index, "index: lists 2"),
        (with_odd_packing, "NumPy does not use"),
        (with_array_twice, "reward"),
    ],
)
def test_npz_that_is_no_plain_npz_is_refused(tmp_path, monkeypatch, write, text):
    monkeypatch.chdir(tmp_path)
    write(Path("a.npz"))
    with pytest.raises((IntegrityError, SchemaError), match=rf"a\.npz.*{text}"):
        read_files(formats()["npz"], Path("a.npz"), tmp_path / "store")
    assert not Path("made").exists()


def _peak(read):
    """Return the most memory that NumPy and Python held while files were read or refused."""
    tracemalloc.start()
    try:
        read()
    except OrlogError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.slow
def test_a_zip_bomb_takes_little_memory(tmp_path):
    rows = 2**20
    columns = {
        "obs": np.zeros((rows, 16), "f4"),
        "next_obs": np.zeros((rows, 16), "f4"),
        "action": np.zeros((rows, 2), "f4"),
        "reward": np.zeros(rows),
        "done": np.zeros(rows, bool),
        "truncated": np.arange(rows) % 1000 == 999,
    }
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **columns)
    assert path.stat().st_size < 2**20
    del columns
    with formats()["npz"].open(Asked(files=[path], sources=["a.npz"])) as opened:
        assert _peak(lambda: sum(len(piece.rewards) for piece in opened.steps)) < MOST_BYTES


def test_lists_in_parquet_that_are_far_longer_than_the_file_take_little_memory(tmp_path):
    rows, size = 128, 2**18
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * size, "f4")), size)
    columns = {"o": lists, "a": np.zeros(rows), "e": np.zeros(rows, int)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    assert path.stat().st_size < 2**21
    del lists, columns
    asked = Asked(
        files=[path], sources=["a.parquet"], options=Options(columns={"observation": "o", "action": "a"}, episode="e")
    )
    before, taken = pa.total_allocated_bytes(), [0]

    def read():
        with table.TABLE.open(asked) as opened:
            taken.extend(pa.total_allocated_bytes() - before for _ in opened.steps)

    assert _peak(read) < MOST_BYTES
    assert max(taken) < MOST_BYTES


@pytest.mark.parametrize(("text", "is_read"), [("1e999", False), ("inf", True)])
def test_a_number_too_large_is_refused(tmp_path, text, is_read):
    file = tmp_path / "steps.csv"
    file.write_text(
        f"observation,action,reward,terminated,episode\n0.5,0.5,1.5,0,0\n0.5,0.5,{text},0,0\n0.5,0.5,2,1,0\n"
    )
    columns = {name: name for name in ("observation", "action", "reward", "terminated")}
    options = Options(columns=columns, episode="episode")
    if is_read:
        read_files(table.TABLE, file, tmp_path / "store", options)
    else:
        with pytest.raises(SchemaError, match="1e999"):
            read_files(table.TABLE, file, tmp_path / "store", options)


def test_a_flag_that_is_nan_is_no_end():
    with pytest.raises(SchemaError, match="row 7"):
        flags_of(np.array([0, 1, np.nan]), "done", "file", first=5)


def lose_demonstration(root):
    test_robomimic.write(root / "a.hdf5")
    with h5py.File(root / "a.hdf5", "a") as file:
        file["data"].attrs["total"] = 12
        del file["data/demo_2"]
    return root / "a.hdf5"


def lose_group(root):
    made = test_minari_arrow.odd(root / "minari", "hdf5", episodes=3) / "data"
    with h5py.File(made / "main_data.hdf5", "a") as file:
        del file["episode_1"]
    return made


def lose_folder(root):
    made = test_minari_arrow.odd(root / "minari", "arrow", episodes=3) / "data"
    shutil.rmtree(made / "1")
    return made


def lose_table(root):
    test_lerobot.write(root / "arm", "v2.1")
    (root / "arm/data/chunk-000/episode_000002.parquet").unlink()
    return root / "arm"


def lose_rows(root):
    """The last episode is cut in the middle."""
    test_lerobot.write(root / "arm")
    path = root / "arm/data/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(path)[:8], path)
    return root / "arm"


def lose_records(root):
    splits = [{"name": "train", "shardLengths": ["2", "3"]}]
    test_rlds.write(root / "arm", test_rlds.SAMPLE, splits=splits)
    file = root / "arm" / "arm-train.tfrecord-00000-of-00001"
    file.rename(root / "arm" / "arm-train.tfrecord-00000-of-00002")
    return root / "arm"


@pytest.mark.parametrize(
    ("lose", "lengths"),
    [
        (lose_demonstration, [4, 5]),
        (lose_group, None),
        (lose_folder, None),
        (lose_table, [3]),
        (lose_rows, [3]),
        (lose_records, [3, 2]),
    ],
)
def test_what_is_shorter_than_its_index_is_read_in_part_if_asked(tmp_path, lose, lengths):
    given = lose(tmp_path)
    file_format = choose_format([given], None, "lab/x")
    with pytest.raises(OrlogError):
        read_files(file_format, given, tmp_path / "whole")
    dataset, found = read_files(file_format, given, tmp_path / "part", Options(partial=True))
    if lengths is None:
        assert len(dataset) == 2
    else:
        assert dataset.episode_lengths.tolist() == lengths
    assert any("Read in part, as asked for: " in one for one in sentences(found.notes))
    assert "Read in part, as asked for: " in dataset.manifest.description


def test_what_is_whole_is_read_whole_though_a_part_would_do(tmp_path):
    test_robomimic.write(tmp_path / "a.hdf5")
    file_format = choose_format([tmp_path / "a.hdf5"], None, "lab/x")
    whole, _ = read_files(file_format, tmp_path / "a.hdf5", tmp_path / "whole")
    part, found = read_files(file_format, tmp_path / "a.hdf5", tmp_path / "part", Options(partial=True))
    assert part.digest == whole.digest
    assert not any("in part" in one for one in sentences(found.notes))


def values_of(name, given, folder):
    """Return what tells the values that files hold from all others: hashes of columns, and spaces."""
    shutil.rmtree(folder, ignore_errors=True)
    dataset, _ = read_files(formats()[name], given, folder)
    schema = dataset.schema
    spaces = str(schema.observation_space), str(schema.action_space)
    return spaces, [(one.name, one.rows, one.blake3) for one in dataset.manifest.columns]


def count_flips(name, dataset, folder, count):
    """Flip bits of an export without its list of checksums, and count what becomes of them.

    Places are drawn evenly from the bytes of all files.
    """
    out = orlog.export_dataset(dataset, folder / "out", to=name, lossy=True)
    (out / "SHA256SUMS").unlink()
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.stat().st_size)
    given = files[0] if len(files) == 1 else out
    sound = values_of(name, given, folder / "store")
    ends = np.cumsum([path.stat().st_size for path in files])
    rng = np.random.default_rng(2)
    found = Counter()
    for _ in range(count):
        place = int(rng.integers(ends[-1]))
        number = int(np.searchsorted(ends, place, "right"))
        path, good = files[number], files[number].read_bytes()
        data = bytearray(good)
        data[place - int(ends[number])] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            is_same = values_of(name, given, folder / "store") == sound
            found["the same values" if is_same else "other values"] += 1
        except OrlogError:
            found["refused"] += 1
        path.write_bytes(good)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRITTEN)
def test_flips_without_the_list_are_counted(name, tmp_path):
    found = count_flips(name, record_small(), tmp_path, FLIPS)
    assert found.total() == FLIPS
    assert found["other values"] <= MOST_OTHERS.get(name, 0), found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["ORLOG_HOME"] = home
        dataset = record_small()
        for name in sys.argv[1:] or WRITTEN:
            with tempfile.TemporaryDirectory() as folder:
                counted = count_flips(name, dataset, Path(folder), FLIPS)
                sys.stdout.write(f"{name} {dict(counted)}\n")


@pytest.mark.parametrize(("number", "size"), [(0, 0), (1, 2**64 - 8), (1, 2**63), (1, 2**20)])
def test_heaps_of_texts_that_libhdf5_would_never_end_to_read_are_refused(samples, tmp_path, number, size):
    for name in ("minari", "robomimic"):
        sample = samples[name][0]
        path = next(path for path in sample.root.rglob("*.hdf5") if b"GCOL" in path.read_bytes())
        sound = path.read_bytes()
        damaged = bytearray(sound)
        struct.pack_into("<HHIQ", damaged, sound.index(b"GCOL") + 16, number, 1, 0, size)
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=rf"heap of texts .* claims {size} bytes\."):
            read_files(formats()[name], sample.given, tmp_path / "store", sample.options)
        path.write_bytes(sound)


def test_names_of_hdf5_whose_free_blocks_lead_around_are_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["actions"] = np.zeros((4, 2))
    data = bytearray(path.read_bytes())
    heap = data.index(b"HEAP\x00\x00\x00\x00")
    size, _, first = struct.unpack_from("<QQQ", data, heap + 8)
    assert size >= 64
    block = size - 32
    struct.pack_into("<QQQ", data, heap + 8, size, block, first)
    struct.pack_into("<QQ", data, first + block, block, 32)  # the next free block is itself
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"free blocks of its heap of names.*in a circle"):
        orlog.import_dataset(path, "lab/a-v1", columns={"action": "actions"}, episode="file")
