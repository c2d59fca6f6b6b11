import concurrent.futures
import json
import multiprocessing
import pickle
import sys
import tempfile
import tracemalloc
from pathlib import Path

import blake3
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec

from orlog.base.files import list_files
from orlog.datasets.store import zarr_reader, zarr_writer
from orlog.datasets.store.encoding import Encoding
from orlog.datasets.store.zarr_reader import ZarrReader
from orlog.datasets.store.zarr_writer import ZarrWriter
from orlog.errors import IntegrityError
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import DTYPES
from tests.datasets.store.test_shards import random_rows
from tests.levels import scaled
from tests.programs import run_program
from tests.stored_objects import make_objects

ZARR_PYTHON = "zarr.core.codec_pipeline.BatchedCodecPipeline"
COMPRESSIONS = ["none", "lz4", "lz4hc", "zstd"]
FLOAT = np.dtype(np.float64)
REWARDS = ColumnSpec("rewards", FLOAT, ())
SMALL = Encoding(chunk_rows=8, chunks_per_shard=2)


def write(folder, spec, pieces, encoding=None):
    writer = ZarrWriter(folder, {} if encoding is None else {spec.name: encoding})
    writer.add_column(spec)
    for piece in pieces:
        writer.append({spec.name: piece})
    (column,), groups = writer.finish()
    found = [*column.objects, *groups]
    assert sorted(found, key=lambda item: item.path) == make_objects(folder)
    return column


def open_columns(folder, *columns):
    sizes = {item.path: item.size_bytes for column in columns for item in column.objects}
    return ZarrReader(folder, {column.spec: column.rows for column in columns}, sizes)


def read(folder, column):
    return open_columns(folder, column).read(column.spec.name, 0, column.rows)


def read_elsewhere(path, pipeline):
    """Return an array as Zarr reads it."""
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        return np.asarray(zarr.open_array(path, mode="r", zarr_format=3)[...])


@st.composite
def written_columns(draw):
    dtype = np.dtype(draw(st.sampled_from(sorted(DTYPES))))
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    rows = draw(st.integers(0, 60))
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=5)))
    name = draw(st.sampled_from(["rewards", "infos/goal", "observations/a/b", "infos/text@values"]))
    values = random_rows(dtype, (rows, *shape), draw(st.integers(0, 2**32)))
    axes = st.none() | st.integers(1, len(shape)) if dtype == np.uint8 and shape else st.none()
    encoding = Encoding(
        chunk_rows=draw(st.sampled_from([1, 1, 3, 8, 100])),
        chunks_per_shard=draw(st.sampled_from([1, 3, 8])),
        compression=draw(st.sampled_from(COMPRESSIONS)),
        bit_shuffle=draw(st.booleans()),
        difference_axis=draw(axes),
    )
    return ColumnSpec(name, dtype, shape), values, cuts, encoding


@settings(max_examples=scaled(40), deadline=None)
@given(column=written_columns(), threads=st.sampled_from([1, 4]), data=st.data())
def test_reading_any_rows_gives_what_was_written_in_any_pieces(column, threads, data):
    spec, values, cuts, encoding = column
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as temporary:
        patch.setattr(zarr_reader, "THREADS", threads)
        patch.setattr(zarr_writer, "THREADS", threads)
        pieces, whole = Path(temporary, "pieces"), Path(temporary, "whole")
        found = write(pieces, spec, np.split(values, cuts), encoding)
        assert found.blake3 == blake3.blake3(values.tobytes()).hexdigest()
        assert (found.spec, found.rows) == (spec, len(values))
        if spec.dtype.kind == "f":
            assert found.non_finite == np.count_nonzero(~np.isfinite(values))

        # How the rows came does not show in any byte.
        assert write(whole, spec, [values], encoding) == found
        assert make_objects(whole) == make_objects(pieces)

        reader = open_columns(pieces, found)
        for start, stop in [(0, len(values))] + [
            sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2))) for _ in range(3)
        ]:
            part = reader.read(spec.name, start, stop)
            assert (part.dtype, part.shape) == (spec.dtype, values[start:stop].shape)
            assert part.tobytes() == values[start:stop].tobytes()
        places = st.lists(st.integers(0, len(values) - 1), max_size=20) if len(values) else st.just([])
        for _ in range(3):
            rows = np.array(data.draw(places), np.int64)
            part = reader.read_rows(spec.name, rows)
            assert (part.dtype, part.shape) == (spec.dtype, values[rows].shape)
            assert part.tobytes() == values[rows].tobytes()


@pytest.mark.parametrize(
    ("dtype", "shape", "compression"),
    [
        *((dtype, (2, 3), "zstd") for dtype in sorted(DTYPES)),
        *(("float32", (), compression) for compression in COMPRESSIONS),
    ],
    ids=str,
)
def test_zarr_itself_writes_the_same_bytes(tmp_path, dtype, shape, compression):
    spec = ColumnSpec("observations/a", np.dtype(dtype), shape)
    values = random_rows(spec.dtype, (41, *shape), 5)
    encoding = Encoding(chunk_rows=8, chunks_per_shard=3, compression=compression)
    write(tmp_path / "ours", spec, [values], encoding)
    metadata = json.loads((tmp_path / "ours" / spec.name / "zarr.json").read_bytes())
    blosc = [BloscCodec(**codec["configuration"]) for codec in sharding(metadata)["codecs"] if codec["name"] == "blosc"]
    with zarr.config.set({"codec_pipeline.path": ZARR_PYTHON}):
        group = zarr.open_group(tmp_path / "theirs", mode="w-", zarr_format=3, attributes={"orlog_format": 1})
        array = group.create_array(
            spec.name,
            shape=values.shape,
            dtype=spec.dtype,
            chunks=(8, *shape),
            shards=(24, *shape),
            chunk_key_encoding={"name": "default", "separator": "."},
            compressors=[*blosc, Crc32cCodec()],
            filters=None,
            config={"write_empty_chunks": True},
        )
        array[...] = values
    ours, theirs = (
        {name: path.read_bytes() for name, path in list_files(tmp_path / side)} for side in ("ours", "theirs")
    )
    assert ours == theirs


@pytest.mark.parametrize("side", [0, 1], ids=["as before", "as Zarr asks"])
def test_rows_without_numbers_are_written_and_read(tmp_path, side):
    column = write(tmp_path / "store", ColumnSpec("r", FLOAT, (0, 2)), [np.zeros((5, 0, 2))])
    assert column.rows == 5
    path = tmp_path / "store/r/zarr.json"
    body = json.loads(path.read_bytes())
    shapes = sharding(body), body["chunk_grid"]["configuration"]
    assert [one["chunk_shape"][1:] for one in shapes] == [[1, 2]] * 2
    assert read_elsewhere(path.parent, ZARR_PYTHON).shape == (5, 0, 2)
    for one in shapes:
        one["chunk_shape"][1] = side
    path.write_text(json.dumps(body))
    reader = open_columns(tmp_path / "store", column)
    assert reader.read("r", 1, 5).shape == (4, 0, 2)
    assert reader.read_rows("r", np.array([3, 3])).shape == (2, 0, 2)


def test_rows_may_be_changed_by_the_caller_once_they_are_appended(tmp_path):
    buffer = np.zeros(10)
    writer = ZarrWriter(tmp_path / "store", {"rewards": SMALL})
    writer.add_column(REWARDS)
    for number in range(5):
        buffer[:] = number
        writer.append({"rewards": buffer})
        buffer[:] = -1
    (column,), _ = writer.finish()
    expected = np.repeat(np.arange(5.0), 10)
    assert column.blake3 == blake3.blake3(expected.tobytes()).hexdigest()
    assert read(tmp_path / "store", column).tolist() == expected.tolist()


def test_writing_goes_on_from_shards_that_are_there(tmp_path):
    values = random_rows(FLOAT, (40,), 0)
    expected = write(tmp_path / "whole", REWARDS, [values], SMALL)
    first = ZarrWriter(tmp_path / "store", {"rewards": SMALL})
    first.add_column(REWARDS)
    first.append({"rewards": values[:35]})
    first.flush()
    first.close()
    second = ZarrWriter(tmp_path / "store", {"rewards": SMALL})
    second.add_column(REWARDS).restore(2, values[32:35])
    second.append({"rewards": values[35:]})
    assert second.finish()[0] == [expected]
    assert make_objects(tmp_path / "store") == make_objects(tmp_path / "whole")
    third = ZarrWriter(tmp_path / "store", {"rewards": SMALL})
    with pytest.raises(IntegrityError, match=r"rewards/c\.2: chunk 1 is missing"):
        third.add_column(REWARDS).restore(4, values[:0])
    third.close()


def flipped(path, place, bit):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("chunk_rows", [1, 8])
def test_rows_of_whole_chunks_are_still_read_beside_a_damaged_one(tmp_path, chunk_rows):
    folder = tmp_path / "store"
    values = random_rows(FLOAT, (40,), 1)
    encoding = Encoding(chunk_rows=chunk_rows, chunks_per_shard=16 // chunk_rows)
    column = write(folder, REWARDS, [values], encoding)
    flipped(folder / "rewards/c.1", 0, 0)  # in the first chunk of the shard of rows 16 to 31
    reader = open_columns(folder, column)
    assert reader.read("rewards", 0, 16).tobytes() == values[:16].tobytes()
    assert reader.read("rewards", 24, 40).tobytes() == values[24:].tobytes()
    rows = np.array([39, 0, 24, 15, 0])
    assert reader.read_rows("rewards", rows).tobytes() == values[rows].tobytes()
    for start, stop in ((15, 33), (15, 17), (0, 40)):
        with pytest.raises(IntegrityError, match=r"rewards/c\.1, chunk 0"):
            reader.read("rewards", start, stop)
    with pytest.raises(IntegrityError, match=r"rewards/c\.1, chunk 0"):
        reader.read_rows("rewards", np.array([39, 16]))


def sharding(body):
    return body["codecs"][0]["configuration"]


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


def set_rows(chunk, shard):
    def change(body):
        sharding(body)["chunk_shape"][0] = chunk
        body["chunk_grid"]["configuration"]["chunk_shape"][0] = shard

    return change


HOSTILE = {
    "huge chunks": set_rows(2**40, 2**44),
    "huge shards": set_rows(8, 2**60),
    "chunks without rows": set_rows(0, 0),
    "rows as booleans": set_rows(True, True),
    "deep nesting of rows": set_rows(nested(500), nested(500)),
    "more rows": lambda body: body.update(shape=[2**60]),
    "no checksums": lambda body: sharding(body)["codecs"].pop(),
    "no sharding": lambda body: body.update(codecs=[{"name": "bytes"}]),
    "difference of floats": lambda body: sharding(body)["codecs"].insert(
        0, {"name": "orlog.difference", "configuration": {"axis": 0}}
    ),
    "another index": lambda body: sharding(body).update(index_location="start"),
    "further keys": lambda body: body.update(must_understand=True),
}


def test_metadata_that_are_not_those_of_format_1_are_refused_at_once(tmp_path):
    folder = tmp_path / "store"
    column = write(folder, REWARDS, [np.zeros(40)], SMALL)
    path = folder / "rewards/zarr.json"
    written = path.read_bytes()
    texts = [b"", b"null", b'{"codecs": {"0": 1}}', b"\xff\xfe", b"[" * 100_000]
    for change in HOSTILE.values():
        body = json.loads(written)
        change(body)
        texts.append(json.dumps(body).encode())
    for text in texts:
        path.write_bytes(text)
        tracemalloc.start()
        with pytest.raises(IntegrityError, match="column rewards cannot be opened") as caught:
            open_columns(folder, column).encoding("rewards")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert caught.value.file == "rewards/zarr.json"
        assert len(str(caught.value)) < 1000
        assert peak < 16 * 2**20


@pytest.mark.parametrize("chunk_rows", [1, 5])
def test_frames_are_read_in_any_order_and_across_blocks_of_frames(tmp_path, chunk_rows):
    values = random_rows(np.dtype(np.uint8), (150, 16, 16, 3), 0)
    spec = ColumnSpec("observations/camera", np.dtype(np.uint8), (16, 16, 3))
    encoding = Encoding(chunk_rows=chunk_rows, chunks_per_shard=32, compression="lz4hc", difference_axis=1)
    reader = open_columns(tmp_path, write(tmp_path, spec, [values], encoding))
    for start, stop in ((0, 150), (1, 149), (63, 130), (10, 11), (64, 64)):
        assert (reader.read(spec.name, start, stop) == values[start:stop]).all()
    rows = np.random.default_rng(0).integers(0, 150, 200)
    assert (reader.read_rows(spec.name, rows) == values[rows]).all()


def _read_in_child(reader, results):
    results.put(reader.read("rewards", 3, 150).tobytes())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_reader_is_used_by_several_threads_pickled_and_forked(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_reader, "OPEN_SHARDS", 2)
    values = random_rows(FLOAT, (160,), 0)
    reader = open_columns(tmp_path, write(tmp_path, REWARDS, [values], SMALL))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: reader.read("rewards", 0, 160).tobytes(), range(200))
        assert {*found} == {values.tobytes()}
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    copied = pickle.loads(pickle.dumps(reader))
    children = [context.Process(target=_read_in_child, args=(one, results)) for one in (reader, copied)]
    for child in children:
        child.start()
    assert {results.get(timeout=120) for _ in children} == {values[3:150].tobytes()}
    for child in children:
        child.join(120)


def test_a_reader_that_outlives_its_module_says_nothing(tmp_path):
    write(tmp_path / "c", REWARDS, [np.arange(10.0)])
    program = """
import sys, pathlib, numpy as np
from orlog.datasets.store import zarr_reader
from orlog.manifests.columns import ColumnSpec
folder = pathlib.Path(sys.argv[1])
sizes = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
reader = zarr_reader.ZarrReader(folder, {ColumnSpec("rewards", np.dtype(float), ()): 10}, sizes)
print(reader.read("rewards", 0, 10).sum())
sys.kept = zarr_reader, reader  # what holds modules outlives their names
"""
    done = run_program([sys.executable, "-c", program, str(tmp_path / "c")])
    assert (done.returncode, done.stdout, done.stderr) == (0, "45.0\n", "")
