from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlog.datasets import store as store_module
from orlog.datasets.manifest import Column
from orlog.datasets.store import WRITER, ColumnSpec, Store, StoreWriter, list_objects
from orlog.datasets.verify import make_objects
from orlog.errors import IntegrityError, SchemaError

ZARRS = "zarrs.ZarrsCodecPipeline"
DTYPES = [
    np.dtype(kind) for kind in (np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64)
]
FLOAT = np.dtype(np.float64)


@pytest.fixture(params=[ZARRS, WRITER], ids=["zarrs", "zarr-python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the pipeline that decodes."""
    name = str(request.param)
    if name == ZARRS:
        pytest.importorskip("zarrs")
    monkeypatch.setattr(store_module, "READER", name)


def small_chunks(
    patch: pytest.MonkeyPatch, chunk_bytes: int = 64, chunks_per_shard: int = 2
) -> None:
    patch.setattr(store_module, "CHUNK_BYTES", chunk_bytes)
    patch.setattr(store_module, "CHUNKS_PER_SHARD", chunks_per_shard)


def random_rows(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return rows of any bytes at all, not-a-numbers of every kind among them."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)


def write(folder: Path, spec: ColumnSpec, pieces: list[np.ndarray]) -> Column:
    writer = StoreWriter(folder, [spec])
    for piece in pieces:
        writer.append(spec.name, piece)
    (column,) = writer.finish()
    return column


@st.composite
def written_columns(draw: st.DrawFn) -> tuple[ColumnSpec, np.ndarray, list[int]]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    rows = draw(st.integers(0, 60))
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=5)))
    name = draw(st.sampled_from(["rewards", "infos/goal", "observations/a/b"]))
    values = random_rows(dtype, (rows, *shape), draw(st.integers(0, 2**32)))
    return ColumnSpec(name, dtype, shape, "step"), values, cuts


@settings(max_examples=25, deadline=None)
@given(
    column=written_columns(),
    chunk_bytes=st.sampled_from([32, 100, 2**20]),
    chunks_per_shard=st.sampled_from([1, 3]),
    pipeline=st.sampled_from([store_module.READER, WRITER]),
    data=st.data(),
)
def test_reading_any_range_gives_what_was_written_in_any_pieces(
    column: tuple[ColumnSpec, np.ndarray, list[int]],
    chunk_bytes: int,
    chunks_per_shard: int,
    pipeline: str,
    data: st.DataObject,
) -> None:
    spec, values, cuts = column
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as temporary:
        small_chunks(patch, chunk_bytes, chunks_per_shard)
        patch.setattr(store_module, "READER", pipeline)
        pieces, whole = Path(temporary, "pieces"), Path(temporary, "whole")
        found = write(pieces, spec, np.split(values, cuts))
        assert found.sha256 == hashlib.sha256(values.tobytes()).hexdigest()
        assert (found.name, found.dtype) == (spec.name, spec.dtype.name)
        assert (found.rows, *found.shape) == values.shape

        # How the rows came does not show in any byte.
        assert write(whole, spec, [values]) == found
        assert make_objects(whole) == make_objects(pieces)

        store = Store(pieces, [found], make_objects(pieces))
        assert store.read(spec.name).tobytes() == values.tobytes()
        for _ in range(3):
            start = data.draw(st.integers(0, len(values)))
            stop = data.draw(st.integers(start, len(values)))
            part = store.read(spec.name, start, stop)
            assert (part.dtype, part.shape) == (spec.dtype, values[start:stop].shape)
            assert part.tobytes() == values[start:stop].tobytes()


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_of_zeros_are_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: np.dtype[Any]
) -> None:
    small_chunks(monkeypatch)
    values = np.zeros((100, 2), dtype)
    column = write(tmp_path / "store", ColumnSpec("zeros", dtype, (2,), "step"), [values])
    objects = make_objects(tmp_path / "store")
    shards = [item.path for item in objects if "/c/" in item.path]
    rows_of_shard = 2 * ColumnSpec("zeros", dtype, (2,), "step").chunk_rows
    assert len(shards) == -(-100 // rows_of_shard)
    assert Store(tmp_path / "store", [column], objects).read("zeros").tobytes() == values.tobytes()


def test_values_are_hashed_and_stored_little_endian(tmp_path: Path) -> None:
    values = np.arange(10, dtype=">i4")
    column = write(tmp_path / "store", ColumnSpec("numbers", np.dtype(">i4"), (), "step"), [values])
    assert column.sha256 == hashlib.sha256(values.astype("<i4").tobytes()).hexdigest()
    store = Store(tmp_path / "store", [column], make_objects(tmp_path / "store"))
    assert store.read("numbers").tolist() == values.tolist()


def test_rows_that_are_not_contiguous_are_written_as_they_look(tmp_path: Path) -> None:
    values = np.arange(60, dtype=np.float64).reshape(3, 20).T[::2]
    column = write(tmp_path / "store", ColumnSpec("rows", FLOAT, (3,), "step"), [values])
    store = Store(tmp_path / "store", [column], make_objects(tmp_path / "store"))
    assert (store.read("rows") == values).all()


def test_rows_may_be_changed_by_the_caller_once_they_are_appended(tmp_path: Path) -> None:
    buffer = np.zeros(5)
    writer = StoreWriter(tmp_path / "store", [ColumnSpec("rewards", FLOAT, (), "step")])
    for number in range(3):
        buffer = np.full(5, float(number))
        writer.append("rewards", buffer)
    columns = writer.finish()
    store = Store(tmp_path / "store", columns, make_objects(tmp_path / "store"))
    assert store.read("rewards").tolist() == [0.0] * 5 + [1.0] * 5 + [2.0] * 5


@pytest.mark.parametrize(
    "rows",
    [np.zeros(3, np.float32), np.zeros((3, 1)), np.zeros(3, np.int64)],
    ids=["float32", "two axes", "int64"],
)
def test_rows_of_another_type_or_shape_are_refused(tmp_path: Path, rows: np.ndarray) -> None:
    writer = StoreWriter(tmp_path / "store", [ColumnSpec("rewards", FLOAT, (), "step")])
    with pytest.raises(SchemaError, match=r"column rewards: expected rows of float64 \(\), found"):
        writer.append("rewards", rows)


def test_a_chunk_holds_the_largest_power_of_two_of_rows_within_its_limit() -> None:
    def rows(*shape: int) -> int:
        return ColumnSpec("x", FLOAT, shape, "step").chunk_rows

    assert rows() == 2**17
    assert rows(3) == 2**15
    assert rows(2**17) == 1
    assert rows(2**30) == 1
    assert rows(0) >= 1


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11), (11, 11)])
def test_rows_outside_a_column_are_an_index_error(tmp_path: Path, start: int, stop: int) -> None:
    column = write(tmp_path / "store", ColumnSpec("r", FLOAT, (), "step"), [np.zeros(10)])
    store = Store(tmp_path / "store", [column], make_objects(tmp_path / "store"))
    with pytest.raises(IndexError, match="of 10"):
        store.read("r", start, stop)
    with pytest.raises(KeyError):
        store.read("unknown")


def flipped(path: Path, place: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.usefixtures("reader")
def test_one_flipped_bit_anywhere_stops_reading_and_names_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    folder = tmp_path / "store"
    values = random_rows(FLOAT, (40,), 0)
    column = write(folder, ColumnSpec("rewards", FLOAT, (), "step"), [values])
    objects = make_objects(folder)
    rng = np.random.default_rng(2)
    for shard in sorted((folder / "rewards/c").iterdir()):
        whole = shard.read_bytes()
        index_starts = len(whole) - 2 * 16 - 4
        for place in [
            *rng.integers(0, index_starts, 25),
            *rng.integers(index_starts, len(whole), 10),
        ]:
            flipped(shard, int(place), int(rng.integers(8)))
            with pytest.raises(IntegrityError) as caught:
                Store(folder, [column], objects).read("rewards")
            assert caught.value.file == f"rewards/c/{shard.name}"
            assert f"rewards/c/{shard.name}" in str(caught.value)
            assert f"orlog verify {folder}" in str(caught.value)
            shard.write_bytes(whole)
    assert Store(folder, [column], objects).read("rewards").tobytes() == values.tobytes()


@pytest.mark.usefixtures("reader")
def test_rows_of_whole_chunks_are_still_read_beside_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    folder = tmp_path / "store"
    values = random_rows(FLOAT, (40,), 1)
    column = write(folder, ColumnSpec("rewards", FLOAT, (), "step"), [values])
    objects = make_objects(folder)
    flipped(folder / "rewards/c/1", 0, 0)  # in a chunk of the shard of rows 16 to 31
    store = Store(folder, [column], objects)
    assert store.read("rewards", 0, 16).tobytes() == values[:16].tobytes()
    assert store.read("rewards", 32, 40).tobytes() == values[32:].tobytes()
    with pytest.raises(IntegrityError, match="rewards/c/1"):
        store.read("rewards", 15, 33)


def test_a_shard_that_is_cut_or_removed_after_opening_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    column = write(folder, ColumnSpec("rewards", FLOAT, (), "step"), [np.zeros(10)])
    store = Store(folder, [column], make_objects(folder))
    assert store.read("rewards").sum() == 0
    shard = folder / "rewards/c/0"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=rf"expected {size} bytes, found {size - 1} bytes"):
        store.read("rewards")
    shard.unlink()
    with pytest.raises(IntegrityError, match=rf"rewards/c/0: expected {size} bytes, found no file"):
        store.read("rewards")


def test_a_shard_that_the_manifest_does_not_list_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    column = write(folder, ColumnSpec("rewards", FLOAT, (), "step"), [np.zeros(10)])
    objects = [item for item in make_objects(folder) if item.path != "rewards/c/0"]
    with pytest.raises(IntegrityError, match="not in the manifest"):
        Store(folder, [column], objects).read("rewards")


def test_a_column_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    column = write(folder, ColumnSpec("rewards", FLOAT, (), "step"), [np.zeros(10)])
    for other in (
        Column(name="rewards", dtype="int64", shape=[], rows=10, sha256=column.sha256),
        Column(name="rewards", dtype="float64", shape=[1], rows=10, sha256=column.sha256),
        Column(name="rewards", dtype="float64", shape=[], rows=9, sha256=column.sha256),
    ):
        with pytest.raises(IntegrityError, match="does not belong to this store") as caught:
            Store(folder, [other], make_objects(folder)).read("rewards")
        assert caught.value.file == "rewards/zarr.json"


def test_a_column_without_its_metadata_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    column = write(folder, ColumnSpec("rewards", FLOAT, (), "step"), [np.zeros(10)])
    (folder / "rewards/zarr.json").unlink()
    with pytest.raises(IntegrityError, match="column rewards cannot be opened") as caught:
        Store(folder, [column], make_objects(folder)).read("rewards")
    assert caught.value.file == "rewards/zarr.json"


def test_a_store_is_never_written_over_another(tmp_path: Path) -> None:
    spec = ColumnSpec("rewards", FLOAT, (), "step")
    write(tmp_path / "store", spec, [np.zeros(10)])
    before = make_objects(tmp_path / "store")
    with pytest.raises(OSError, match="already contains data"):
        StoreWriter(tmp_path / "store", [spec])
    assert make_objects(tmp_path / "store") == before


def test_everything_but_folders_is_an_object(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    (folder / "a/b").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a/b/file").write_text("x")
    (folder / ".hidden").write_text("x")
    (folder / "link").symlink_to(folder / "a")
    (folder / "broken").symlink_to(folder / "nowhere")
    assert [path for path, _ in list_objects(folder)] == [".hidden", "a/b/file", "broken", "link"]
