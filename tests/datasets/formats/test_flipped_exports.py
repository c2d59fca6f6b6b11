"""One flipped bit anywhere in an export is noticed when it is imported: by its list of checksums."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest

import orlog
from orlog.datasets.formats.formats import formats
from orlog.errors import IntegrityError, OrlogError
from tests.levels import scaled

WRITTEN = [name for name, one in formats().items() if one.write is not None]


@pytest.fixture
def small() -> orlog.Dataset:
    rng = np.random.default_rng(0)
    with orlog.DatasetWriter("lab/pen-v1", environment=gymnasium.make("Pendulum-v1")) as writer:
        for _ in range(4):
            writer.add_episode(
                orlog.Episode(
                    observations=rng.uniform(-1, 1, (21, 3)).astype(np.float32),
                    actions=rng.uniform(-2, 2, (20, 1)).astype(np.float32),
                    rewards=rng.normal(size=20),
                    terminations=np.zeros(20, bool),
                    truncations=np.arange(20) == 19,
                )
            )
    return orlog.load_dataset("lab/pen-v1")


@pytest.mark.scaled
@pytest.mark.parametrize("name", WRITTEN)
def test_no_flipped_bit_of_an_export_is_imported(
    name: str, small: orlog.Dataset, tmp_path: Path
) -> None:
    orlog.export_dataset(small, tmp_path / "out", to=name, lossy=True)
    files = sorted(
        path
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.name != "SHA256SUMS" and path.stat().st_size
    )
    assert files
    rng = np.random.default_rng(1)
    for number in range(scaled(40)):
        path = files[number % len(files)]
        good = path.read_bytes()
        data = bytearray(good)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        # A folder of several files is imported whole, the only file of one by itself.
        given = path if len(files) == 1 else tmp_path / "out"
        with pytest.raises(IntegrityError, match="SHA256SUMS"):
            orlog.import_dataset(given, "lab/back-v1", format=name, dry_run=True)
        path.write_bytes(good)


@pytest.mark.parametrize("name", ["minari", "lerobot"])
def test_the_list_of_checksums_is_found_above_what_is_imported(
    name: str, small: orlog.Dataset, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    orlog.export_dataset(small, out, to=name, lossy=True)
    inner = next(out.rglob("data")).parent
    assert (name == "lerobot") == (inner / "SHA256SUMS").exists()
    orlog.import_dataset(inner, "lab/back-v1", format=name, dry_run=True)
    file = max(inner.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(IntegrityError, match="SHA256SUMS"):
        orlog.import_dataset(inner, "lab/back-v1", format=name, dry_run=True)


@pytest.mark.parametrize("column", ["timeouts", "infos/qpos", "rewards"])
def test_a_column_that_vanished_from_an_exported_hdf5_file_is_missed(
    column: str, small: orlog.Dataset, tmp_path: Path
) -> None:
    with orlog.DatasetWriter("lab/more-v1", environment=gymnasium.make("Pendulum-v1")) as writer:
        for episode in small:
            writer.add_episode(dataclasses.replace(episode, infos={"qpos": np.zeros((20, 2))}))
    orlog.export_dataset("lab/more-v1", tmp_path / "out", to="d4rl")
    (file,) = (tmp_path / "out").glob("*.hdf5")
    (tmp_path / "out" / "SHA256SUMS").unlink()
    orlog.import_dataset(file, "lab/back-v1", format="d4rl", dry_run=True)
    with h5py.File(file, "a") as opened:
        del opened[column]
    with pytest.raises(OrlogError, match=column.rpartition("/")[2]):
        orlog.import_dataset(file, "lab/back-v1", format="d4rl", dry_run=True)
