"""What an import says where files are not what was meant: pointers, parts of a folder, blanks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import orlog
from orlog.datasets.formats._shared import hdf5_files
from orlog.errors import SchemaError
from tests.command_line import orlog as run_orlog
from tests.datasets.formats import test_lerobot
from tests.fuzz.samples import Sample, write_samples

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Sample]]:
    """Write sound files of every format."""
    return write_samples(tmp_path_factory.mktemp("samples"))


def test_pointers_of_git_lfs_are_named_in_every_format(samples: dict[str, list[Sample]]) -> None:
    for name, several in samples.items():
        sample = several[0]
        files = [one for one in sorted(sample.root.rglob("*")) if one.is_file()]
        inside = [one for one in files if any(one.is_relative_to(given) for given in sample.given)]
        before = inside[-1].read_bytes()
        inside[-1].write_text(POINTER, "utf-8")
        with pytest.raises(SchemaError, match=r"pointer of Git LFS, .* run: git lfs pull"):
            orlog.import_dataset([*sample.given], "lab/pointer-v1", format=name)
        inside[-1].write_bytes(before)


def test_many_pointers_are_counted(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"episode_{number}.hdf5").write_text(POINTER, "utf-8")
    told = run_orlog("import", str(tmp_path), "lab/pointer-v1")
    assert told.returncode == 1
    assert "and 2 more files are pointers of Git LFS" in told.stderr


def test_a_shard_given_alone_names_the_folder_to_import(samples: dict[str, list[Sample]]) -> None:
    (sample, *_) = samples["rlds"]
    shard = next(sample.root.rglob("*.tfrecord*"))
    told = run_orlog("import", str(shard), "lab/shard-v1")
    (line,) = re.findall(r"run: orlog (import .* lab/shard-v1)", told.stderr)
    assert run_orlog(*line.split()).returncode == 0


@pytest.mark.parametrize("chunks", [None, (2, 3)])
def test_an_array_that_nobody_wrote_is_read_as_hdf5_reads_it_and_told(
    tmp_path: Path, chunks: tuple[int, int] | None
) -> None:
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


def test_a_table_of_a_dataset_given_alone_names_the_folder_to_import(tmp_path: Path) -> None:
    test_lerobot.write(tmp_path / "arm", "v2.1")
    for table in ("data/chunk-000/episode_000001.parquet", "meta/episodes.jsonl"):
        told = run_orlog("import", str(tmp_path / "arm" / table), "lab/arm-v1")
        assert f"run: orlog import {tmp_path / 'arm'} lab/arm-v1" in " ".join(told.stderr.split())


def test_a_dataset_in_a_folder_beside_has_nothing_to_do_with_a_file(
    tmp_path: Path, samples: dict[str, list[Sample]]
) -> None:
    for name in ("rlds", "lerobot", "zarr", "minari"):
        shutil.copytree(samples[name][0].given[0], tmp_path / f"other-{name}")
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["arm/sensed"] = np.zeros((3, 2))
    (tmp_path / "nothing" / "in").mkdir(parents=True)
    (tmp_path / "other-lerobot" / "notes.txt").write_text("mine")
    for given, expected in (
        ("mine.h5", "arm/sensed (3, 2) float64"),
        ("nothing", "nothing is an empty folder"),
        ("other-lerobot/notes.txt", "look like no known format"),
    ):
        told = " ".join(run_orlog("import", str(tmp_path / given), "lab/x-v1").stderr.split())
        assert expected in told
        assert "The folder around it" not in told


def import_zarr(root: Path, name: str) -> str:
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
def test_chunks_of_zarr_that_are_not_stored_are_told_by_their_rows(
    tmp_path: Path, version: Any, is_sharded: bool
) -> None:
    how: dict[str, Any] = {"shards": (8, 4)} if is_sharded else {}
    root = zarr.open_group(tmp_path / "some.zarr", mode="w", zarr_format=version)
    root.create_array("data/action", data=np.ones((20, 2), np.float32))
    root.create_array("data/never", shape=(20, 2), chunks=(4, 2), dtype="f4", fill_value=0.5)
    some = root.create_array(
        "data/some", shape=(20, 4), chunks=(4, 2), dtype="i4", fill_value=7, **how
    )
    some[0:4], some[4:8, 0:2], some[12:16], some[16:20] = 1, 1, 1, 1
    root.create_array("meta/episode_ends", data=np.array([9, 20]))
    told = import_zarr(tmp_path, "some")
    assert (
        "Never written, so that Zarr's fill value stands for all values: data/never in some.zarr."
        in told
    )
    # Of a shard, a copy loses all or nothing.
    rows = (
        "" if is_sharded else "stands for their rows in data/some in some.zarr (7 in rows 4 to 11)."
    )
    assert rows in told
    values = np.concatenate(
        [one.observations["some"] for one in orlog.load_dataset("lab/some-zarr-v1")]
    )
    expected = np.asarray(some[:])
    np.testing.assert_array_equal(values, expected.astype(values.dtype))


def test_arrays_of_zarr_whose_chunks_are_all_there_are_not_told(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "whole.zarr", mode="w", zarr_format=3)
    for name in ("action", "state"):
        array = root.create_array(
            f"data/{name}", shape=(21, 3), chunks=(2, 3), shards=(8, 3), dtype="f4"
        )
        array[:] = 1
    root.create_array("meta/episode_ends", data=np.array([9, 21]))
    assert "fill value" not in import_zarr(tmp_path, "whole")


def test_what_nobody_wrote_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5_files, "LARGEST_UNWRITTEN", 64)
    path = tmp_path / "bomb.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", (40, 3), "f4")
        file["actions"] = np.zeros((40, 1), np.float32)
        file["rewards"], file["terminals"] = np.zeros(40), np.arange(40) == 39
    with pytest.raises(SchemaError, match="does not hold the shape"):
        orlog.import_dataset(path, "lab/bomb-v1", format="d4rl")


def test_a_file_of_thousands_of_groups_is_read(tmp_path: Path) -> None:
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as file:
        for number in range(1_300):
            for name in ("obs", "act", "rew", "more"):
                file[f"data/demo_{number}/{name}"] = np.full(
                    (3, 1) if name in "obsact" else 3, number
                )
    columns = {"observation": "obs", "action": "act", "reward": "rew"}
    orlog.import_dataset(path, "lab/many-v1", columns=columns, episode="demo_*")
    ds = orlog.load_dataset("lab/many-v1")
    assert ds.total_episodes == 1_300
    assert ds[1_299].rewards.tolist() == [1_299, 1_299]
