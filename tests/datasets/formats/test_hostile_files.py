"""Files that want to do harm, of every format that could hold such: links, pickles, bombs, claims."""

from __future__ import annotations

import os
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orlog.datasets.formats import npz, table
from orlog.datasets.formats._shared.episodes import Asked, Options
from orlog.datasets.formats.formats import formats
from orlog.errors import IntegrityError, OrlogError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.datasets.formats.test_npz import flat
from tests.fuzz.samples import Sample, write_samples

MOST_BYTES = 2**27


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Sample]]:
    """Return sound files of each format."""
    return write_samples(tmp_path_factory.mktemp("hostile"))


def files_of_hdf5(samples: dict[str, list[Sample]]) -> list[tuple[Sample, Path]]:
    return [
        (sample, path)
        for found in samples.values()
        for sample in found
        for path in (*sample.root.rglob("*.hdf5"), *sample.root.rglob("*.h5"))
    ]


def actions_of(file: h5py.File) -> str:
    """Return the path of the first dataset of actions, which every layout has."""
    found: list[str] = []
    file.visit(lambda name: found.append(name) if "action" in name else None)
    return found[0]


def _external_link(file: h5py.File, name: str, secret: Path) -> None:
    file[name] = h5py.ExternalLink(str(secret), name)


def _soft_link(file: h5py.File, name: str, _: Path) -> None:
    file[f"{name}2"] = np.zeros((4, 2), "f4")
    file[name] = h5py.SoftLink(f"/{name}2")


def _external_storage(file: h5py.File, name: str, secret: Path) -> None:
    file.create_dataset(name, (4, 2), "f4", external=[(str(secret), 0, 32)])


def _virtual(file: h5py.File, name: str, secret: Path) -> None:
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[:] = h5py.VirtualSource(str(secret), name, shape=(4, 2))
    file.create_virtual_dataset(name, layout)


def _plug_in(file: h5py.File, name: str, _: Path) -> None:
    stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    stored.set_chunk((4, 2))
    stored.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())  # Zstandard, which is a plug-in
    space = h5py.h5s.create_simple((4, 2))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, stored)


@pytest.mark.parametrize(
    "change", [_external_link, _soft_link, _external_storage, _virtual, _plug_in]
)
def test_values_of_hdf5_that_lie_elsewhere_are_not_read(
    samples: dict[str, list[Sample]], tmp_path: Path, change: Callable[..., None]
) -> None:
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


@pytest.mark.parametrize(("number", "size"), [(0, 0), (1, 2**64 - 8), (1, 2**63), (1, 2**20)])
def test_heaps_of_texts_that_libhdf5_would_never_end_to_read_are_refused(
    samples: dict[str, list[Sample]], tmp_path: Path, number: int, size: int
) -> None:
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


@pytest.mark.parametrize("packing", [{}, {"compression": "gzip"}, {"shuffle": True}])
def test_chunks_that_are_smaller_than_their_checksums_are_refused(
    samples: dict[str, list[Sample]], tmp_path: Path, packing: dict[str, Any]
) -> None:
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
        with pytest.raises(
            IntegrityError, match=rf"cannot be read as HDF5: its chunk .* claims {size} bytes"
        ):
            read_files(formats()["d4rl"], path, tmp_path / "store", sample.options)


def test_groups_of_hdf5_that_lie_in_groups_again_and_again_are_refused(
    samples: dict[str, list[Sample]], tmp_path: Path
) -> None:
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


def test_links_in_folders_are_not_followed(
    samples: dict[str, list[Sample]], tmp_path: Path
) -> None:
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


def _is_refused(sample: Sample, store: Path) -> bool:
    try:
        read_files(formats()[sample.format], sample.given, store, sample.options)
    except OrlogError:
        return True
    finally:
        shutil.rmtree(store, ignore_errors=True)
    return False


class Runs:
    """What makes a folder where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("made",)


def test_pickles_in_npz_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = flat(4, [1, 3])
    for name in rows:
        np.savez("a.npz", **{**rows, name: np.array([Runs()] * 4, object)})
        with pytest.raises(SchemaError, match=r"a\.npz.*Python objects, which are not read"):
            read_files(npz.FORMAT, Path("a.npz"), tmp_path / "store")
    assert not Path("made").exists()


def test_an_array_that_claims_more_than_it_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **flat(4, [1, 3]))
    data = bytearray(path.read_bytes())
    place = data.index(b"PK\x01\x02")  # the first entry of the directory
    data[place + 24 : place + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"a\.npz, obs: claims 4,294,967,294 bytes"):
        read_files(npz.FORMAT, path, tmp_path / "store")


def test_an_index_beside_starts_of_episodes_must_agree_with_them(tmp_path: Path) -> None:
    rows = flat(4, [1, 3])
    columns = {name: rows[name] for name in ("obs", "action", "reward")}
    starts = np.array([True, False, True, False])
    np.savez(tmp_path / "a.npz", **columns, episode_starts=starts, index=[0, 1])
    with pytest.raises(SchemaError, match=r"a\.npz, index: lists 2 .* differ from episode 1"):
        read_files(npz.FORMAT, tmp_path / "a.npz", tmp_path / "store")


def test_an_array_that_is_packed_in_an_odd_way_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **flat(4, [1, 3]))
    with (
        zipfile.ZipFile(tmp_path / "a.npz") as sound,
        zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_LZMA) as odd,
    ):
        for name in sound.namelist():
            odd.writestr(name, sound.read(name))
    with pytest.raises(SchemaError, match=r"b\.npz.*NumPy does not use"):
        read_files(npz.FORMAT, tmp_path / "b.npz", tmp_path / "store")


def _peak(read: Callable[[], object]) -> int:
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
def test_a_zip_bomb_takes_little_memory(tmp_path: Path) -> None:
    rows = 2**21
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
    with npz.FORMAT.open(Asked(files=[path], sources=["a.npz"])) as opened:  # type: ignore[misc]
        assert _peak(lambda: sum(len(piece.rewards) for piece in opened.steps)) < MOST_BYTES


def test_lists_in_parquet_that_are_far_longer_than_the_file_take_little_memory(
    tmp_path: Path,
) -> None:
    rows, size = 256, 2**18
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * size, "f4")), size)
    columns = {"o": lists, "a": np.zeros(rows), "e": np.zeros(rows, int)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    assert path.stat().st_size < 2**21
    del lists, columns
    asked = Asked(
        files=[path],
        sources=["a.parquet"],
        options=Options(columns={"observation": "o", "action": "a"}, episode="e"),
    )
    before, taken = pa.total_allocated_bytes(), [0]

    def read() -> None:
        with table.TABLE.open(asked) as opened:  # type: ignore[misc]
            taken.extend(pa.total_allocated_bytes() - before for _ in opened.steps)

    assert _peak(read) < MOST_BYTES
    assert max(taken) < MOST_BYTES
