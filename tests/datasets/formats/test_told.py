"""What an import tells: names that no reader knows, values that nobody wrote, and what to import in place of the files.

To the sound files of every format one name is added at a time, wherever a file can hold one: an array beside
others or one that fits nothing, an attribute, a column, a key, a file in a folder. It is stored, told, or refused.
"""

import functools
import json
import pickle
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import orlog
import orlog.datasets
from orlog import OrlogError
from orlog.datasets.formats.episodes import Options
from orlog.datasets.formats.formats import formats
from orlog.datasets.formats.notes import NOT_IN_LISTED, OF_FINALS, SENTENCES, Note, sentences
from orlog.datasets.formats.rlds.tfrecords import example_bytes, read_records, write_record
from orlog.errors import SchemaError
from tests.command_line import orlog as run_orlog
from tests.datasets.formats.reading import read_files
from tests.fuzz.samples import READERS
from tests.levels import scaled

NEW = "surprise"
MAY_BE_SILENT = (
    "zarr.json: key",  # of the format itself, not of the data; names of attributes are told
    "meta/stats.json: key",  # statistics are computed anew, whatever the file says
    "/d/surprise.npy",  # among the chunks of an array of OG-MARL
    ".zarr/data/",  # among the chunks of an array
    ".zarr/meta/",
)
MOST_GROUPS = 14


def in_hdf5(path):
    with h5py.File(path) as file:
        groups = ["/"]
        file.visititems(lambda name, node: groups.append(name) if isinstance(node, h5py.Group) else None)
        rows = {
            group: next((one.shape[0] for one in file[group].values() if getattr(one, "shape", ())), 3)
            for group in groups
        }

    def put(group, value):
        with h5py.File(path, "a") as file:
            file[group][NEW] = value

    def put_attribute(group):
        with h5py.File(path, "a") as file:
            file[group].attrs[NEW] = 3

    for group in groups[:MOST_GROUPS]:
        yield f"rows in {group}", functools.partial(put, group, np.zeros(rows[group]))
        yield f"two rows in {group}", functools.partial(put, group, np.zeros((2, 2)))
        yield f"attribute of {group}", functools.partial(put_attribute, group)


def in_npz(path):
    with np.load(path) as archive:
        arrays = dict(archive)
    rows = len(next(iter(arrays.values())))

    def save(value):
        with path.open("wb") as file:
            np.savez(file, **{**arrays, NEW: value})

    for label, value in (("rows", np.zeros(rows)), ("two rows", np.zeros((2, 2)))):
        yield label, functools.partial(save, value)


def in_json(path):
    try:
        body = json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError:
        yield from in_lines(path)
        return
    if isinstance(body, dict):
        yield "key", lambda: path.write_text(json.dumps({**body, NEW: NEW}), "utf-8")


def in_lines(path):
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    if lines and isinstance(lines[0], dict):
        texts = [json.dumps({**line, NEW: 1}) for line in lines]
        yield "key", lambda: path.write_text("\n".join(texts), "utf-8")


def in_parquet(path):
    table = pq.read_table(path)
    more = table.append_column(NEW, pa.array(np.zeros(len(table))))
    yield "column", lambda: pq.write_table(more, path)


def in_csv(path):
    first, *lines = path.read_text("utf-8").splitlines()
    text = "\n".join([f"{first},{NEW}", *(f"{line},1" for line in lines)])
    yield "column", lambda: path.write_text(text, "utf-8")


def in_zarr_group(path):
    """An attribute of a group or an array; in version 3 it lies among other things."""
    body = json.loads(path.read_text("utf-8"))
    more = {"attributes": {**body.get("attributes", {}), NEW: 1}}
    text = json.dumps({**body, **more} if path.name == "zarr.json" else {**body, NEW: 1})
    yield "attribute", lambda: path.write_text(text, "utf-8")


def in_arrow(path):
    with pa.OSFile(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file).read_all()
    more = table.append_column(NEW, pa.array([1] * len(table)))

    def write():
        new = pa.ipc.new_file if is_file else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, more.schema) as writer:
            writer.write_table(more)

    yield "column", write


def in_records(path):
    with path.open("rb") as file:
        data = [record for _, record in read_records(file, "")]

    def write():
        with path.open("wb") as file:
            for one in data:  # a message may have its parts in pieces
                write_record(file, one + example_bytes({NEW: np.zeros(1, np.float32)}))

    yield "feature", write


KINDS = {
    ".h5": in_hdf5,
    ".hdf5": in_hdf5,
    ".npz": in_npz,
    ".json": in_json,
    ".jsonl": in_lines,
    ".parquet": in_parquet,
    ".csv": in_csv,
    ".arrow": in_arrow,
    ".zattrs": in_zarr_group,
    "zarr.json": in_zarr_group,
}


def names_in(file):
    """Yield where in a file a name can be added."""
    for kind in dict.fromkeys((file.name, file.suffix)):
        yield from KINDS[kind](file) if kind in KINDS else ()
    if ".tfrecord" in file.name:
        yield from in_records(file)


def is_told(sample, store):
    """Read a sample's files, and return whether the new name was stored, told or refused."""
    try:
        dataset, found = read_files(formats()[sample.format], sample.given, store, sample.options)
    except OrlogError:
        return True
    return NEW in dataset.manifest.to_json() or NEW in " ".join(sentences(found.notes))


def additions(sample):
    """Yield where a name can be added: what to call it, the file, and what adds it."""
    files = sorted(one for one in sample.root.rglob("*") if one.is_file())
    for file in files:
        for label, add in names_in(file):
            yield f"{file.relative_to(sample.root).as_posix()}: {label}", file, add
    for folder in sorted({one.parent for one in files}):
        if any(one == folder or one in folder.parents for one in sample.given):
            file = folder / f"{NEW}.npy"
            label = file.relative_to(sample.root).as_posix()
            yield label, file, functools.partial(file.write_bytes, b"abc")


@pytest.mark.scaled
def test_a_name_that_no_reader_knows_is_stored_or_told(samples, tmp_path):
    silent, tried = [], 0
    for name in READERS:
        every = [(one, *found) for one in samples[name] for found in additions(one)]
        step = max(1, len(every) // scaled(len(every), 6))
        for sample, label, file, add in every[::step]:
            before = file.read_bytes() if file.exists() else None
            add()
            tried += 1
            if not is_told(sample, tmp_path / f"store-{tried}"):
                silent.append(f"{name}, {label}")
            file.unlink()
            if before is not None:
                file.write_bytes(before)
    assert tried > 3 * len(READERS)
    assert [one for one in silent if not any(text in one for text in MAY_BE_SILENT)] == []


def test_files_as_they_are_leave_nothing_to_tell(samples, tmp_path):
    """What a format's own writer makes holds no name that its reader does not know."""
    for name, several in samples.items():
        for number, sample in enumerate(several):
            _, found = read_files(formats()[name], sample.given, tmp_path / f"{name}-{number}", sample.options)
            told = [one for one in sentences(found.notes) if one.startswith("Not read:")]
            assert told == [], name


POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def test_pointers_of_git_lfs_are_named_in_every_format(samples):
    for name, several in samples.items():
        sample = several[0]
        files = [one for one in sorted(sample.root.rglob("*")) if one.is_file()]
        inside = [one for one in files if any(one.is_relative_to(given) for given in sample.given)]
        before = inside[-1].read_bytes()
        inside[-1].write_text(POINTER, "utf-8")
        with pytest.raises(SchemaError, match=r"pointer of Git LFS, .* run: git lfs pull"):
            orlog.import_dataset([*sample.given], "lab/pointer-v1", format=name)
        inside[-1].write_bytes(before)


def test_many_pointers_are_counted(tmp_path):
    for number in range(3):
        (tmp_path / f"episode_{number}.hdf5").write_text(POINTER, "utf-8")
    told = run_orlog("import", str(tmp_path), "lab/pointer-v1")
    assert told.returncode == 1
    assert "and 2 more files are pointers of Git LFS" in told.stderr


@pytest.mark.parametrize("chunks", [None, (2, 3)])
def test_an_array_that_nobody_wrote_is_read_as_hdf5_reads_it_and_told(tmp_path, chunks):
    path = tmp_path / "blank.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", (4, 3), "f4", fillvalue=0.5, chunks=chunks)
        file["actions"] = np.zeros((4, 1), np.float32)
        file["rewards"] = np.ones(4)
        file["terminals"] = np.array([False, False, False, True])
    orlog.import_dataset(path, "lab/blank-v1", format="d4rl", horizon=100)
    ds = orlog.load_dataset("lab/blank-v1")
    assert np.array_equal(ds[0].observations[:3], np.full((3, 3), 0.5, np.float32))
    assert "fill value stands for all values: observations in blank.h5." in ds.manifest.description


def import_zarr(root, name):
    """Import a buffer of Zarr, also zipped, and return what its version says of it."""
    shutil.make_archive(str(root / name), "zip", root, f"{name}.zarr")
    told = set()
    for place in (root / f"{name}.zarr", root / f"{name}.zip"):
        orlog.import_dataset(place, f"lab/{name}-{place.suffix[1:]}-v1", format="zarr")
        said = orlog.load_dataset(f"lab/{name}-{place.suffix[1:]}-v1").manifest.description
        told.add(said.replace(f"{name}.zip", f"{name}.zarr"))
    assert len(told) == 1
    return told.pop()


@pytest.mark.parametrize(("version", "is_sharded"), [(2, False), (3, False), (3, True)])
def test_chunks_of_zarr_that_are_not_stored_are_told_by_their_rows(tmp_path, version, is_sharded):
    how = {"shards": (8, 4)} if is_sharded else {}
    root = zarr.open_group(tmp_path / "some.zarr", mode="w", zarr_format=version)
    root.create_array("data/action", data=np.ones((20, 2), np.float32))
    root.create_array("data/never", shape=(20, 2), chunks=(4, 2), dtype="f4", fill_value=0.5)
    some = root.create_array("data/some", shape=(20, 4), chunks=(4, 2), dtype="i4", fill_value=7, **how)
    some[0:4], some[4:8, 0:2], some[12:16], some[16:20] = 1, 1, 1, 1
    root.create_array("meta/episode_ends", data=np.array([9, 20]))
    told = import_zarr(tmp_path, "some")
    assert "Never written, so that Zarr's fill value stands for all values: data/never in some.zarr." in told
    # Of a shard, a copy loses all or nothing.
    rows = "" if is_sharded else "stands for their rows in data/some in some.zarr (7 in rows 4 to 11)."
    assert rows in told
    values = np.concatenate([one.observations["some"] for one in orlog.load_dataset("lab/some-zarr-v1")])
    expected = np.asarray(some[:])
    np.testing.assert_array_equal(values, expected.astype(values.dtype))


def test_arrays_of_zarr_whose_chunks_are_all_there_are_not_told(tmp_path):
    root = zarr.open_group(tmp_path / "whole.zarr", mode="w", zarr_format=3)
    for name in ("action", "state"):
        array = root.create_array(f"data/{name}", shape=(21, 3), chunks=(2, 3), shards=(8, 3), dtype="f4")
        array[:] = 1
    root.create_array("meta/episode_ends", data=np.array([9, 21]))
    assert "fill value" not in import_zarr(tmp_path, "whole")


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (Note("left_out", ["a", "b/c"]), "Left out: a, b/c."),
        (Note("last_rows", rows=1), "1 last row of episodes was left out, since what followed was not recorded."),
        (
            Note("finals_missing", ["episodes/none"], episodes=2000),
            "2,000 episodes that ended have no final observation; zeros stand for it, and episodes/none is true.",
        ),
        (
            Note("ends_by_horizon", horizon=1),
            "The file has no timeouts: episodes were taken to be truncated after 1 step.",
        ),
        (Note("own", sentence="{curly: braces}"), "{curly: braces}"),
    ],
)
def test_a_note_is_a_sentence_where_it_is_shown(note, sentence):
    assert str(note) == sentence
    assert pickle.loads(pickle.dumps(note)) == note
    assert note != Note("left_out", ["z"])


def test_codes_of_notes_are_known_and_used():
    """A code that no module makes a note of is a sentence that nobody reads."""
    folder = Path(orlog.datasets.__path__[0])
    text = "".join(path.read_text("utf-8") for path in folder.rglob("*.py"))
    quoted = {*re.findall(r'"(\w+)"(?!:)', text)}
    assert {*SENTENCES} <= quoted
    assert {*NOT_IN_LISTED, *OF_FINALS} <= {*SENTENCES}
    with pytest.raises(KeyError):
        Note("zork")


@pytest.mark.parametrize("name", ["steps", "file", "episodes", "bonus_rewards", "reward"])
@pytest.mark.parametrize("reward", ["", "constant"])
def test_an_array_that_is_called_as_words_of_sentences_is_noted(tmp_path, name, reward):
    arrays = {"observations": np.zeros((9, 4), "f4"), "actions": np.zeros((9, 2), "f4")}
    flags = {"rewards": np.zeros(9, "f4"), "terminals": np.arange(9) == 4}
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, values in {**arrays, **flags, name: np.zeros(9)}.items():
            file[key] = values
    options = Options(horizon=20, reward=reward)
    _, found = read_files(formats()["d4rl"], tmp_path / "a.hdf5", tmp_path / "store", options)
    assert [note.columns for note in found.notes if note.code == "not_read"] == [(name,)]
    assert any(note.code == "rewards_made" for note in found.notes) == bool(reward)
