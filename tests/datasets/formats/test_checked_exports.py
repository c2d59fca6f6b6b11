"""Exports carry checksums, and an import checks them; files that contradict themselves are refused."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.formats import npz, table
from orlog.datasets.formats._shared.episodes import Found, Options
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats.formats import formats
from orlog.errors import IntegrityError, SchemaError
from tests.datasets.formats.reading import read_files
from tests.episodes import record_episodes, whole_episode

FORMATS = ("d4rl", "npz", "parquet", "d3rlpy", "robomimic", "torchrl", "minari")


def export(folder: Path, to: str) -> Path:
    """Export a small dataset."""
    box = spaces.Box(-1, 1, (8,), np.float32)
    rng = np.random.default_rng(0)
    record_episodes(
        "lab/sums-v1",
        (
            whole_episode(
                rng.uniform(-1, 1, (51, 8)).astype(np.float32),
                rng.uniform(-1, 1, (50, 8)).astype(np.float32),
                rng.uniform(size=50),
            )
            for _ in range(3)
        ),
        box,
        box,
    )
    return orlog.export_dataset("lab/sums-v1", folder, to=to, lossy=True)


@pytest.mark.parametrize("to", ["parquet", "d3rlpy", "robomimic", "d4rl"])
def test_a_changed_value_is_noticed_without_the_list(tmp_path: Path, to: str) -> None:
    out = export(tmp_path / "out", to)
    (out / "SHA256SUMS").unlink()
    (file,) = out.iterdir()
    good = bytearray(file.read_bytes())
    if file.suffix == ".parquet":
        place = len(good) // 2
    else:
        with h5py.File(file) as data:
            found: list[h5py.Dataset] = []
            data.visititems(
                lambda name, node: (
                    found.append(node) if "observations" in name or "/obs/" in name else None
                )
            )
            nodes = [node for node in found if isinstance(node, h5py.Dataset)]
            place = nodes[0].id.get_chunk_info(0).byte_offset + 9
    good[place] ^= 1
    file.write_bytes(good)
    with pytest.raises(IntegrityError):
        orlog.import_dataset(file, "lab/bad-v1", dry_run=True)


def test_a_list_of_strangers_opens_no_path(tmp_path: Path) -> None:
    out = export(tmp_path / "out", "npz")
    (out / "SHA256SUMS").write_bytes(b"\xff\n" + b"0" * 64 + b"  ../../etc/passwd\nnonsense\n")
    orlog.import_dataset(next(out.glob("*.npz")), "lab/stranger-v1", dry_run=True)


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    out = export(tmp_path / "out", "torchrl")
    shutil.move(str(next(out.rglob("*.memmap"))), tmp_path / "lost")
    with pytest.raises(IntegrityError):
        orlog.import_dataset(out, "lab/bad-v1", format="torchrl", dry_run=True)


def test_a_lost_demonstration_is_noticed(tmp_path: Path) -> None:
    out = export(tmp_path / "out", "robomimic")
    (file,) = out.glob("*.hdf5")
    with h5py.File(file, "a") as data:
        del data["data/demo_1"]
    with pytest.raises(SchemaError, match="total"):
        read_files(formats()["robomimic"], file, tmp_path / "store")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    out = export(tmp_path / "out", "npz")
    (file,) = out.glob("*.npz")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("rewards.npy", archive.read("rewards.npy"))
    with pytest.raises(SchemaError, match="rewards"):
        read_files(npz.FORMAT, file, tmp_path / "store")


@pytest.mark.parametrize(("text", "is_read"), [("1e999", False), ("inf", True)])
def test_a_number_too_large_is_refused(tmp_path: Path, text: str, is_read: bool) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(
        f"observation,action,reward,terminated,episode\n0.5,0.5,1.5,0,0\n0.5,0.5,{text},0,0\n0.5,0.5,2,1,0\n"
    )
    columns = {name: name for name in ("observation", "action", "reward", "terminated")}
    options = Options(columns=columns, episode="episode")
    if is_read:
        read_files(table.TABLE, file, tmp_path / "store", options)
    else:
        with pytest.raises(SchemaError, match="1e999"):
            read_files(table.TABLE, file, tmp_path / "store", options)


def test_a_flag_that_is_nan_is_no_end() -> None:
    with pytest.raises(SchemaError, match="row 7"):
        flags_of(np.array([0, 1, np.nan]), "done", "file", first=5)


def test_an_import_says_what_is_not_finite_and_whether_checksums_were_compared(
    tmp_path: Path,
) -> None:
    rewards = np.arange(10.0)
    rewards[[3, 4]] = np.nan, np.inf
    np.savez(
        tmp_path / "a.npz",
        observations=np.zeros((10, 2)),
        actions=np.zeros((10, 1)),
        rewards=rewards,
        terminals=np.zeros(10, bool),
        timeouts=np.arange(10) % 5 == 4,
    )
    said: list[Found] = []
    options: Any = {"dry_run": True, "on_found": said.append}
    orlog.import_dataset(tmp_path / "a.npz", "lab/a-v1", **options)
    sha256 = hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{sha256}  a.npz\n")
    orlog.import_dataset(tmp_path / "a.npz", "lab/a-v1", **options)
    assert [one.has_checksums for one in said] == [False, True]
    assert said[0].non_finite["rewards"] == 1  # the other was the last step of an episode


def add(path: Path, text: str) -> None:
    """Add some text to a file."""
    path.write_text(path.read_text("utf-8") + text, "utf-8")


@pytest.mark.parametrize("inside", ["", "lab", "lab/sums-v1", "lab/sums-v1/data"])
def test_a_list_above_a_part_of_an_export_is_compared(tmp_path: Path, inside: str) -> None:
    out = export(tmp_path / "out", "minari")
    options: Any = {"dry_run": True, "format": "minari"}
    said: list[Found] = []
    orlog.import_dataset(out / inside, "lab/back-v1", on_found=said.append, **options)
    assert said[0].has_checksums
    document = out / "lab/sums-v1/data/metadata.json"
    good = document.read_text("utf-8")
    document.write_text(good.replace('"description": ""', '"description": "?"'), "utf-8")
    with pytest.raises(
        IntegrityError, match=r"SHA256SUMS: lab/sums-v1/data/metadata.json: not the"
    ):
        orlog.import_dataset(out / inside, "lab/back-v1", **options)
    document.write_text(good, "utf-8")
    add(out / "SHA256SUMS", f"{'0' * 64}  lab/sums-v1/data/lost.hdf5\n")
    with pytest.raises(IntegrityError, match=r"lab/sums-v1/data/lost.hdf5: not the .* or missing"):
        orlog.import_dataset(out / inside, "lab/back-v1", **options)


def test_the_list_above_a_folder_counts_for_what_is_in_it_alone(tmp_path: Path) -> None:
    out = export(tmp_path / "all" / "arm", "lerobot")
    own, above = out / "SHA256SUMS", tmp_path / "all" / "SHA256SUMS"
    lines = [line.split("  ") for line in own.read_text("utf-8").splitlines()]
    own.unlink()
    above.write_text(
        f"{'0' * 64}  other.hdf5\n{'0' * 64}  armour/a.hdf5\n"
        + "".join(f"{sha256}  ./arm/{name}\n" for sha256, name in lines),
        "utf-8",
    )
    said: list[Found] = []
    options: Any = {"dry_run": True, "format": "lerobot", "on_found": said.append}
    orlog.import_dataset(out, "lab/back-v1", **options)
    add(out / "meta" / "info.json", " ")
    with pytest.raises(IntegrityError, match=r"arm/meta/info.json: not the bytes"):
        orlog.import_dataset(out, "lab/back-v1", **options)
    above.rename(tmp_path / "list")
    above.symlink_to(tmp_path / "list")  # a link is not followed, so nothing is compared
    orlog.import_dataset(out, "lab/back-v1", **options)
    assert [one.has_checksums for one in said] == [True, False]


@pytest.mark.parametrize("to", ["d3rlpy", "robomimic", "minari"])
def test_checksums_of_many_short_arrays_take_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    box = spaces.Box(-1, 1, (8,), np.float32)
    record_episodes(
        "lab/short-v1",
        (
            whole_episode(np.zeros((6, 8), np.float32), np.zeros((5, 8), np.float32))
            for _ in range(100)
        ),
        box,
        box,
    )

    def exported() -> int:
        out = orlog.export_dataset("lab/short-v1", tmp_path / "out", to=to, lossy=True)
        (size,) = (one.stat().st_size for one in out.rglob("*.h*5"))
        shutil.rmtree(out)
        return size

    checked = exported()
    create = h5py.Group.create_dataset

    def plain(*given: Any, **options: Any) -> Any:
        return create(*given, **{**options, "fletcher32": None, "chunks": None})

    monkeypatch.setattr(h5py.Group, "create_dataset", plain)
    assert checked < 1.1 * exported()
