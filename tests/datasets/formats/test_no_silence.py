"""Nothing in a file is dropped in silence: a name that no reader knows is stored, told, or refused.

To the sound files of every format one name is added at a time, wherever a file can hold one: an array beside
others or one that fits nothing, an attribute, a column, a key, a file in a folder.
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import mcap.writer
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mcap.reader import make_reader
from rosbags import rosbag1

from orlog.datasets.formats._shared.notes import sentences
from orlog.datasets.formats.formats import formats
from orlog.datasets.formats.rlds.tfrecords import example_bytes, read_records, write_record
from orlog.errors import OrlogError
from tests.datasets.formats import test_bags
from tests.datasets.formats.reading import read_files
from tests.fuzz.samples import READERS, Sample, write_samples
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

Add = Callable[[], object]


def in_hdf5(path: Path) -> Iterator[tuple[str, Add]]:
    with h5py.File(path) as file:
        groups = ["/"]
        file.visititems(
            lambda name, node: groups.append(name) if isinstance(node, h5py.Group) else None
        )
        rows = {
            group: next(
                (one.shape[0] for one in file[group].values() if getattr(one, "shape", ())), 3
            )
            for group in groups
        }

    def put(group: str, value: np.ndarray[Any, Any]) -> None:
        with h5py.File(path, "a") as file:
            file[group][NEW] = value

    def put_attribute(group: str) -> None:
        with h5py.File(path, "a") as file:
            file[group].attrs[NEW] = 3

    for group in groups[:MOST_GROUPS]:
        yield f"rows in {group}", functools.partial(put, group, np.zeros(rows[group]))
        yield f"two rows in {group}", functools.partial(put, group, np.zeros((2, 2)))
        yield f"attribute of {group}", functools.partial(put_attribute, group)


def in_npz(path: Path) -> Iterator[tuple[str, Add]]:
    with np.load(path) as archive:
        arrays = dict(archive)
    rows = len(next(iter(arrays.values())))

    def save(value: np.ndarray[Any, Any]) -> None:
        with path.open("wb") as file:
            np.savez(file, **{**arrays, NEW: value})

    for label, value in (("rows", np.zeros(rows)), ("two rows", np.zeros((2, 2)))):
        yield label, functools.partial(save, value)


def in_json(path: Path) -> Iterator[tuple[str, Add]]:
    try:
        body = json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError:
        yield from in_lines(path)
        return
    if isinstance(body, dict):
        yield "key", lambda: path.write_text(json.dumps({**body, NEW: NEW}), "utf-8")


def in_lines(path: Path) -> Iterator[tuple[str, Add]]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    if lines and isinstance(lines[0], dict):
        texts = [json.dumps({**line, NEW: 1}) for line in lines]
        yield "key", lambda: path.write_text("\n".join(texts), "utf-8")


def in_parquet(path: Path) -> Iterator[tuple[str, Add]]:
    table = pq.read_table(path)
    more = table.append_column(NEW, pa.array(np.zeros(len(table))))
    yield "column", lambda: pq.write_table(more, path)


def in_csv(path: Path) -> Iterator[tuple[str, Add]]:
    first, *lines = path.read_text("utf-8").splitlines()
    text = "\n".join([f"{first},{NEW}", *(f"{line},1" for line in lines)])
    yield "column", lambda: path.write_text(text, "utf-8")


def in_zarr_group(path: Path) -> Iterator[tuple[str, Add]]:
    """An attribute of a group or an array; in version 3 it lies among other things."""
    body = json.loads(path.read_text("utf-8"))
    more = {"attributes": {**body.get("attributes", {}), NEW: 1}}
    text = json.dumps({**body, **more} if path.name == "zarr.json" else {**body, NEW: 1})
    yield "attribute", lambda: path.write_text(text, "utf-8")


def in_zip(path: Path) -> Iterator[tuple[str, Add]]:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    groups = [name for name in files if name.endswith((".zgroup", ".zarray"))]

    def write(name: str, data: bytes) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for one, value in {**files, name: data}.items():
                archive.writestr(one, value)

    for group in groups:
        attributes = f"{group.rpartition('/')[0]}/.zattrs"
        body = {**json.loads(files.get(attributes, b"{}")), NEW: 1}
        yield (
            f"attribute of {group}",
            functools.partial(write, attributes, json.dumps(body).encode()),
        )
    folder = groups[0].partition("/")[0]
    yield "file", functools.partial(write, f"{folder}/{NEW}.npy", b"abc")


def in_arrow(path: Path) -> Iterator[tuple[str, Add]]:
    with pa.OSFile(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file).read_all()
    more = table.append_column(NEW, pa.array([1] * len(table)))

    def write() -> None:
        new = pa.ipc.new_file if is_file else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, new(file, more.schema) as writer:
            writer.write_table(more)

    yield "column", write


def in_records(path: Path) -> Iterator[tuple[str, Add]]:
    with path.open("rb") as file:
        data = [record for _, record in read_records(file, "")]

    def write() -> None:
        with path.open("wb") as file:
            for one in data:  # a message may have its parts in pieces
                write_record(file, one + example_bytes({NEW: np.zeros(1, np.float32)}))

    yield "feature", write


def in_mcap(path: Path) -> Iterator[tuple[str, Add]]:
    with path.open("rb") as file:
        messages = [*make_reader(file).iter_messages()]

    def write(add: Callable[[mcap.writer.Writer], object]) -> None:
        with path.open("wb") as file:
            writer = mcap.writer.Writer(file)
            writer.start()
            channels: dict[str, int] = {}
            for schema, channel, message in messages:
                assert schema is not None
                if channel.topic not in channels:
                    number = writer.register_schema(schema.name, schema.encoding, schema.data)
                    channels[channel.topic] = writer.register_channel(
                        channel.topic, channel.message_encoding, number
                    )
                writer.add_message(
                    channels[channel.topic], message.log_time, message.data, message.publish_time
                )
            add(writer)
            writer.finish()  # type: ignore[no-untyped-call]

    adds: dict[str, Callable[[mcap.writer.Writer], object]] = {
        "attachment": lambda one: one.add_attachment(0, 0, NEW, "text/plain", b"abc"),
        "metadata": lambda one: one.add_metadata(NEW, {"a": "b"}),
        "topic": lambda one: one.register_channel(f"/{NEW}", "json", 0),
    }
    for label, add in adds.items():
        yield label, functools.partial(write, add)


def in_bag(path: Path) -> Iterator[tuple[str, Add]]:
    with rosbag1.Reader(path) as reader:
        messages = [(one.topic, one.msgtype, time, data) for one, time, data in reader.messages()]

    def write() -> None:
        path.unlink()
        with rosbag1.Writer(path) as writer:
            connections: dict[str, Any] = {}
            for topic, kind, time, data in [*messages, (f"/{NEW}", *messages[0][1:])]:
                if topic not in connections:
                    connections[topic] = writer.add_connection(
                        topic, kind, typestore=test_bags.ROS1
                    )
                writer.write(connections[topic], time, data)

    yield "topic", write


KINDS: dict[str, Callable[[Path], Iterator[tuple[str, Add]]]] = {
    ".h5": in_hdf5,
    ".hdf5": in_hdf5,
    ".npz": in_npz,
    ".json": in_json,
    ".jsonl": in_lines,
    ".parquet": in_parquet,
    ".csv": in_csv,
    ".arrow": in_arrow,
    ".zip": in_zip,
    ".mcap": in_mcap,
    ".bag": in_bag,
    ".zattrs": in_zarr_group,
    "zarr.json": in_zarr_group,
}


def names_in(file: Path) -> Iterator[tuple[str, Add]]:
    """Yield where in a file a name can be added."""
    for kind in dict.fromkeys((file.name, file.suffix)):
        yield from KINDS[kind](file) if kind in KINDS else ()
    if ".tfrecord" in file.name:
        yield from in_records(file)


def is_told(sample: Sample, store: Path) -> bool:
    """Read a sample's files, and return whether the new name was stored, told or refused."""
    try:
        dataset, found = read_files(formats()[sample.format], sample.given, store, sample.options)
    except OrlogError:
        return True
    return NEW in dataset.manifest.to_json() or NEW in " ".join(sentences(found.notes))


def additions(sample: Sample) -> Iterator[tuple[str, Path, Add]]:
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


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Sample]]:
    """Write sound files of every format; a test leaves them as they were."""
    return write_samples(tmp_path_factory.mktemp("samples"))


@pytest.mark.scaled
def test_a_name_that_no_reader_knows_is_stored_or_told(
    samples: dict[str, list[Sample]], tmp_path: Path
) -> None:
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


def test_files_as_they_are_leave_nothing_to_tell(
    samples: dict[str, list[Sample]], tmp_path: Path
) -> None:
    """What a format's own writer makes holds no name that its reader does not know."""
    for name, several in samples.items():
        for number, sample in enumerate(several):
            _, found = read_files(
                formats()[name], sample.given, tmp_path / f"{name}-{number}", sample.options
            )
            told = [one for one in sentences(found.notes) if one.startswith("Not read:")]
            assert told == [], name
