"""One flipped bit anywhere in an export is noticed when it is imported: by its list of checksums.

Where that list was lost, the checksums of a format itself notice some of them: the table in docs/security.md
says how many, and `python -m tests.datasets.formats.test_flipped_exports` counts them again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import orlog
from orlog.datasets.formats.formats import formats
from orlog.errors import IntegrityError, OrlogError
from tests.command_line import orlog as orlog_command
from tests.datasets.formats.reading import read_files
from tests.episodes import record_episodes, whole_episode
from tests.levels import scaled

FLIPS = 400
MOST_OTHERS = {
    "torchrl": FLIPS,  # plain numbers, which nothing in the files checks
    "rlds": 20,  # records are checked, and the documents that say what is in them are not
}
WRITTEN = [name for name, one in formats().items() if one.write is not None]


@pytest.fixture
def small() -> orlog.Dataset:
    return make_small()


def make_small() -> orlog.Dataset:
    """Record four episodes of Pendulum's spaces."""
    rng = np.random.default_rng(0)
    return record_episodes(
        "lab/pen-v1",
        (
            whole_episode(
                rng.uniform(-1, 1, (21, 3)).astype(np.float32),
                rng.uniform(-2, 2, (20, 1)).astype(np.float32),
                rng.normal(size=20),
                end="truncation",
            )
            for _ in range(4)
        ),
        environment=gymnasium.make("Pendulum-v1"),
    )


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
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path / "out", check=True)
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


@pytest.mark.parametrize("name", WRITTEN)
def test_the_folder_of_an_export_is_imported_as_it_stands(
    name: str, small: orlog.Dataset, tmp_path: Path
) -> None:
    out = orlog.export_dataset(small, tmp_path / "out", to=name, lossy=True)
    said = orlog_command("import", str(out), "lab/back-v1")
    assert said.returncode == 0, said.stderr
    back = orlog.load_dataset("lab/back-v1")
    assert back.total_episodes == 4
    assert back.total_steps in (80, 76)  # without next observations the last steps are left out
    files = [path for path in out.iterdir() if path.name != "SHA256SUMS"]
    if "" not in formats()[name].extensions:  # it is what an import of the file itself gives
        orlog.import_dataset(files, "lab/file-v1")
        found = orlog.load_dataset("lab/file-v1").manifest
        assert found.lineage == back.manifest.lineage


def values_of(name: str, given: Path, folder: Path) -> object:
    """Return what tells the values that files hold from all others: hashes of columns, and spaces."""
    shutil.rmtree(folder, ignore_errors=True)
    dataset, _ = read_files(formats()[name], given, folder)
    schema = dataset.schema
    spaces = str(schema.observation_space), str(schema.action_space)
    return spaces, [(one.name, one.rows, one.blake3) for one in dataset.manifest.columns]


def count_flips(name: str, dataset: orlog.Dataset, folder: Path, count: int) -> Counter[str]:
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
    found: Counter[str] = Counter()
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
def test_flips_without_the_list_are_counted(
    name: str, small: orlog.Dataset, tmp_path: Path
) -> None:
    found = count_flips(name, small, tmp_path, FLIPS)
    assert found.total() == FLIPS
    assert found["other values"] <= MOST_OTHERS.get(name, 0), found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["ORLOG_HOME"] = home
        dataset = make_small()
        for name in sys.argv[1:] or WRITTEN:
            with tempfile.TemporaryDirectory() as folder:
                counted = count_flips(name, dataset, Path(folder), FLIPS)
                sys.stdout.write(f"{name} {dict(counted)}\n")
