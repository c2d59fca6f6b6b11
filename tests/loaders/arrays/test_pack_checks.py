"""A pack is believed only once it was checked, by something that its forger cannot write."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import blake3
import numpy as np
import pytest
from gymnasium import spaces

from orlog.datasets.home import verified as remembered
from orlog.datasets.reading.combining import combine_datasets
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError
from orlog.loaders.arrays import pack_checks, packs
from orlog.loaders.arrays.arrays import read_arrays
from orlog.loaders.arrays.pack_cache import packs_folder
from orlog.loaders.arrays.packs import open_pack, pack_folder
from tests.loaders.arrays.test_packs import ACTIONS, FLAT, assert_equal, episodes_of

Write: TypeAlias = Callable[..., Dataset]

STRUCTURE = [(3, "termination"), (5, "truncation"), (2, "cut")]
SPACE = spaces.Dict({"pixels": spaces.Box(0, 255, (16, 17, 3), np.uint8), "speed": FLAT})


@pytest.fixture(scope="module")
def pictures(write: Write) -> Dataset:
    """Return a dataset of three episodes with images."""
    return write(episodes_of(STRUCTURE, SPACE, ACTIONS["integer"]), SPACE, ACTIONS["integer"])


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as settled at once, as those of a pack that was made long ago are."""
    monkeypatch.setattr(remembered, "SETTLED_NS", -(10**12))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders of packs that are checked from now on."""
    found: list[Path] = []

    def note(source: Any, folder: Path, *arguments: Any, **more: Any) -> Any:
        found.append(folder)
        return pack_checks.find_damage(source, folder, *arguments, **more)

    monkeypatch.setattr(packs, "find_damage", note)
    return found


def share(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a pack in a home that others share, and return it; then use another home."""
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "shared"))
    folder = open_pack(dataset).folder
    (tmp_path / "shared" / "datasets").mkdir()
    monkeypatch.setenv("ORLOG_SHARED", str(tmp_path / "shared"))
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "own"))
    assert pack_folder(dataset) == folder
    return folder


def forge(folder: Path, name: str, change: Callable[[bytearray], object]) -> None:
    """Change a file of a pack, and the record so that it fits."""
    data = bytearray((folder / name).read_bytes())
    change(data)
    (folder / name).write_bytes(data)
    record = json.loads((folder / "pack.json").read_text())
    for one in record["files"]:
        if one["name"] == name:
            one["blake3"] = blake3.blake3(data).hexdigest()
    (folder / "pack.json").write_text(json.dumps(record))


def flip_last(data: bytearray) -> None:
    data[-1] ^= 1


@pytest.mark.usefixtures("settled")
def test_a_pack_is_checked_once_and_again_when_it_changed(
    pictures: Dataset, checks: list[Path]
) -> None:
    folder = open_pack(pictures).folder
    shutil.rmtree(packs_folder().parent / "verified")
    for _ in range(3):
        open_pack(pictures)
    assert checks == [folder]
    os.utime(folder / "rows.f32")
    open_pack(pictures)
    open_pack(pictures)
    assert checks == [folder, folder]


def test_a_pack_that_was_just_made_is_not_remembered_yet(
    pictures: Dataset, checks: list[Path]
) -> None:
    open_pack(pictures)
    assert checks == []
    open_pack(pictures)
    assert len(checks) == 1


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("name", ["rows.f32", "since.u8", "lengths.i64", "other0.u8", "other1.i64"])
def test_a_forged_pack_of_a_shared_home_is_not_believed(
    pictures: Dataset,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = share(pictures, tmp_path, monkeypatch)
    forge(folder, name, flip_last)
    found = open_pack(pictures)
    assert found.folder.parent == tmp_path / "own" / "packs"
    assert_equal(found, read_arrays(pictures))
    (record,) = caplog.records
    assert f"{pictures.name}: the pack in a shared home does not match the dataset" in (
        record.message
    )
    assert name in record.message
    assert folder.exists()


@pytest.mark.usefixtures("settled")
def test_a_mixture_forged_in_a_shared_home_is_not_believed(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [write(episodes_of([(count, "cut")]), FLAT, ACTIONS["floats"]) for count in (7, 8)]
    mixed = combine_datasets(parts, weights=[0.5, 0.5])
    folder = share(mixed, tmp_path, monkeypatch)

    def exchange(data: bytearray) -> None:
        data[:8], data[8:16] = data[8:16], data[:8]

    forge(folder, "mixture.i64", exchange)
    assert_equal(open_pack(mixed), read_arrays(mixed))
    assert pack_folder(mixed).parent == packs_folder()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("is_shared", [True, False])
def test_texts_that_were_exchanged_are_found(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    space = spaces.Dict({"state": FLAT, "task": spaces.Text(9)})
    episodes = episodes_of([(1, "cut")], spaces.Dict({"state": FLAT}))
    episodes[0].observations["task"] = ["open", "close"]
    dataset = write(episodes, space, ACTIONS["floats"])
    folder = share(dataset, tmp_path, monkeypatch) if is_shared else open_pack(dataset).folder
    path = folder / "pack.json"
    path.write_text(path.read_text().replace('"open"', '"shut"'))
    assert open_pack(dataset).texts == {"observations/task": ("open", "close")}


@pytest.mark.usefixtures("settled")
def test_a_shared_pack_is_compared_once_and_not_after_it_changed_back(
    pictures: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: list[Path]
) -> None:
    folder = share(pictures, tmp_path, monkeypatch)
    for _ in range(3):
        assert open_pack(pictures).folder == folder
    assert checks == [folder]
    forge(folder, "rows.f32", flip_last)
    assert open_pack(pictures).folder != folder
    assert checks == [folder, folder]


@pytest.mark.usefixtures("settled")
def test_a_shared_pack_is_not_measured_by_a_damaged_dataset(
    mini: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(mini, tmp_path, monkeypatch)
    shard = max((mini.folder / "infos").rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError, match=f"{mini.name}: .*orlog verify"):
        open_pack(mini)


def test_another_process_opens_what_was_checked_or_the_same_bytes(pictures: Dataset) -> None:
    arrays = open_pack(pictures)
    data = pickle.dumps(arrays)
    path = arrays.folder / "rows.f32"
    os.utime(path)
    assert_equal(pickle.loads(data), arrays)
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(IntegrityError, match=r"rows\.f32: damaged"):
        pickle.loads(data)
    record = arrays.folder / "pack.json"
    record.write_text(record.read_text().replace(pictures.name, "tests/other-v1"))
    with pytest.raises(IntegrityError, match=r"pack\.json: changed since"):
        pickle.loads(data)


def test_a_damaged_pack_that_is_open_elsewhere_is_made_anew(pictures: Dataset) -> None:
    before = open_pack(pictures)
    expected = before.rows.clone()
    path = before.folder / "since.u8"
    path.write_bytes(bytes(path.stat().st_size))
    after = open_pack(pictures)
    assert_equal(after, read_arrays(pictures))
    assert before.rows.equal(expected)
