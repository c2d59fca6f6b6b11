from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from orlog.datasets import store as store_module
from orlog.datasets.manifest import Column
from orlog.datasets.shards import check_chunks
from orlog.datasets.store import ColumnSpec, Store, StoreWriter
from orlog.datasets.verify import make_objects
from orlog.errors import IntegrityError

CHUNKS = 4
FLOAT = np.dtype(np.float64)


def written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int = 26
) -> tuple[Path, np.ndarray, list[Column]]:
    """Write one column of 8 rows to a chunk and 4 chunks to a shard; return its first shard."""
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 64)
    monkeypatch.setattr(store_module, "CHUNKS_PER_SHARD", CHUNKS)
    values = np.random.default_rng(0).standard_normal(rows)
    writer = StoreWriter(folder, [ColumnSpec("rewards", FLOAT, (), "step")])
    writer.append("rewards", values)
    columns = writer.finish()
    return folder / "rewards/c/0", values, columns


def check(path: Path, first: int = 0, last: int = CHUNKS) -> None:
    check_chunks(path, CHUNKS, first, last, name="rewards/c/0")


def index_of(path: Path) -> list[tuple[int, int]]:
    index = np.frombuffer(path.read_bytes()[-CHUNKS * 16 - 4 : -4], "<u8").reshape(CHUNKS, 2)
    return [(int(offset), int(length)) for offset, length in index]


def test_a_whole_shard_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(written(tmp_path / "store", monkeypatch)[0])


def test_every_flipped_bit_of_a_shard_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = written(tmp_path / "store", monkeypatch)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(IntegrityError, match="rewards/c/0"):
                check(path)


def test_a_shard_cut_anywhere_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, _ = written(tmp_path / "store", monkeypatch)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(IntegrityError, match="rewards/c/0"):
            check(path)


def test_the_message_names_the_damaged_chunk_and_both_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = written(tmp_path / "store", monkeypatch)
    data = bytearray(path.read_bytes())
    offset, _ = index_of(path)[2]
    data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        IntegrityError, match=r"rewards/c/0, chunk 2: damaged: crc32c expected"
    ) as caught:
        check(path)
    assert caught.value.file == "rewards/c/0"
    assert len(caught.value.expected) == len(caught.value.found) == 8
    assert caught.value.expected != caught.value.found


def test_only_the_chunks_that_are_asked_for_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = written(tmp_path / "store", monkeypatch)
    data = bytearray(path.read_bytes())
    data[index_of(path)[2][0]] ^= 1
    path.write_bytes(data)
    check(path, 0, 2)
    check(path, 3, 4)
    with pytest.raises(IntegrityError, match="chunk 2"):
        check(path, 1, 3)


@pytest.mark.parametrize(
    "entry",
    [(2**64 - 1, 2**64 - 1), (2**63, 100), (0, 2**40), (0, 0), (0, 3)],
    ids=["never written", "far offset", "long", "empty", "shorter than its sum"],
)
def test_an_index_that_points_nowhere_is_refused_though_its_sum_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: tuple[int, int]
) -> None:
    path, _, _ = written(tmp_path / "store", monkeypatch)
    index = index_of(path)
    index[1] = entry
    raw = np.array(index, "<u8").tobytes()
    data = path.read_bytes()[: -CHUNKS * 16 - 4]
    path.write_bytes(data + raw + google_crc32c.value(raw).to_bytes(4, "little"))
    with pytest.raises(IntegrityError, match="chunk 1"):
        check(path)


def test_zarrs_alone_returns_wrong_numbers_and_the_check_before_it_does_not_let_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarrs")
    monkeypatch.setattr(store_module, "READER", "zarrs.ZarrsCodecPipeline")
    path, values, columns = written(tmp_path / "store", monkeypatch)
    folder, whole = tmp_path / "store", path.read_bytes()
    objects = make_objects(folder)
    places = np.random.default_rng(0).integers(0, index_of(path)[3][0], 200)
    unnoticed = 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match="rewards/c/0"):
            Store(folder, columns, objects).read("rewards")
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "check_chunks", lambda *_, **__: None)
            try:
                found = Store(folder, columns, objects).read("rewards")
            except (IntegrityError, IndexError):
                continue
            unnoticed += found.tobytes() != values.tobytes()
    if not unnoticed:
        pytest.skip("the installed zarrs checks these sums itself")
