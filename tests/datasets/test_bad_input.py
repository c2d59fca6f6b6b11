"""What once went wrong, across the modules of the room; each test states what should be true."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import gymnasium
import numpy as np
import pytest
import zarr
from gymnasium import spaces

import orlog
from orlog.datasets import store as store_module
from orlog.datasets.environments import make_environment
from orlog.datasets.episode import Episode
from orlog.datasets.home import (
    datasets_folder,
    installed_names,
    installed_versions,
    unfinished_folder,
)
from orlog.datasets.manifest import StoredObject, read_manifest
from orlog.datasets.processes import process_pool
from orlog.datasets.spaces import space_from_json, space_to_json
from orlog.datasets.store import WRITER, ColumnSpec, Store, StoreWriter
from orlog.datasets.verify import make_objects
from orlog.datasets.writing import write_episodes
from orlog.errors import (
    IntegrityError,
    ManifestError,
    NotFoundError,
    SchemaError,
    WorkerDiedError,
)

MINI = "pointmaze/umaze-mini-v1"


def reseal(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = folder / "manifest.json"
    body = json.loads(path.read_text("utf-8"))
    change(body)
    body.pop("digest")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    path.write_text(json.dumps({"digest": digest, **body}), "utf-8")
    return path


def replace_text(folder: Path, old: str, new: str) -> Path:
    path = folder / "manifest.json"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    return path


# --- home.publish: a kill between its two renames loses the dataset that was there


REPLACE = """
import os, signal, sys
from pathlib import Path
from orlog.datasets.home import publish, unfinished_folder

destination = Path(sys.argv[1])
renames = 0

def hook(event, arguments):
    global renames
    if event == "os.rename":
        renames += 1
        if renames == 2:
            os.kill(os.getpid(), signal.SIGKILL)

with unfinished_folder(destination) as folder:
    (folder / "store").mkdir()
    (folder / "store/manifest.json").write_text("new")
    sys.addaudithook(hook)
    publish(folder / "store", destination)
"""


def kill_while_replacing(destination: Path) -> None:
    destination.mkdir(parents=True)
    (destination / "manifest.json").write_text("old")
    done = subprocess.run([sys.executable, "-c", REPLACE, destination], check=False)
    # A replacement by one single rename (renameat2) may never come to a second one.
    assert done.returncode in (0, -signal.SIGKILL)


def test_a_kill_while_replacing_leaves_the_old_or_the_new(home: Path) -> None:
    destination = home / "datasets/b/x-v1/1.0.0"
    kill_while_replacing(destination)
    assert (destination / "manifest.json").read_text() in ("old", "new")


def test_what_a_kill_while_replacing_moved_away_is_not_deleted_by_the_next_writer(
    home: Path,
) -> None:
    destination = home / "datasets/b/x-v1/1.0.0"
    kill_while_replacing(destination)
    with unfinished_folder(destination):
        pass
    assert (destination / "manifest.json").is_file()
    assert {path.name for path in destination.parent.iterdir()} <= {"1.0.0", ".1.0.0.lock"}


# --- dataset: a name opens whatever lies in its folder


def test_another_dataset_in_the_folder_of_a_name_is_not_opened_by_that_name(
    mini_folder: Path,
) -> None:
    shutil.copytree(mini_folder, datasets_folder() / "pointmaze/umaze-v1/1.0.0")
    with pytest.raises(IntegrityError, match="umaze-mini-v1"):
        orlog.load_dataset("pointmaze/umaze-v1@1.0.0")
    shutil.copytree(mini_folder, mini_folder.with_name("2.0.0"))
    with pytest.raises(IntegrityError, match=r"1\.0\.0"):
        orlog.load_dataset(f"{MINI}@2.0.0")


# --- dataset._check_objects: only the last part of a path is checked for links


@pytest.mark.parametrize("name", ["actions", "observations", "rewards/c"])
def test_a_link_in_place_of_a_folder_is_refused_at_once(
    mini_folder: Path, tmp_path: Path, name: str
) -> None:
    shutil.move(mini_folder / name, tmp_path / "outside")
    (mini_folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError):
        orlog.load_dataset(mini_folder)


# --- store._pipeline: zarr's configuration is of the process, and stays changed


def test_reading_in_threads_leaves_the_configuration_of_zarr_alone(mini_folder: Path) -> None:
    pytest.importorskip("zarrs")
    dataset = orlog.load_dataset(mini_folder)
    expected = dataset.column("rewards").tobytes()
    start = threading.Barrier(8)
    found: list[bytes] = []

    def read() -> None:
        start.wait(20)
        found.extend(dataset.column("rewards").tobytes() for _ in range(25))

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with zarr.config.set({"codec_pipeline.path": WRITER}):
            for _ in range(5):
                threads = [threading.Thread(target=read) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert zarr.config.get("codec_pipeline.path") == WRITER
    finally:
        sys.setswitchinterval(interval_s)
    assert set(found) == {expected}
    assert len(found) == 1000


def test_what_other_threads_read_does_not_show_in_the_bytes_that_are_written(
    mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarrs")
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 2**14)
    values = np.random.default_rng(0).standard_normal(30_000)
    done = threading.Event()
    orlog.load_dataset(mini_folder)  # once alone: see the next test

    def write(folder: Path) -> list[StoredObject]:
        writer = StoreWriter(folder, [ColumnSpec("r", np.dtype("f8"), (), "step")])
        writer.append("r", values)
        writer.finish()
        return make_objects(folder)

    def read() -> None:
        while not done.is_set():
            orlog.load_dataset(mini_folder)

    expected = write(tmp_path / "alone")
    threads = [threading.Thread(target=read) for _ in range(4)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for number in range(30):
            assert write(tmp_path / str(number)) == expected
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval_s)


# --- manifest.manifest_from_json: msgspec looks at the types at first use, and crashes if two
# threads do so at once; to build the decoder when the module is imported would be enough


FIRST_READ = """
import sys, threading
from pathlib import Path
from orlog.datasets.manifest import read_manifest

start = threading.Barrier(8)

def read():
    start.wait(20)
    read_manifest(Path(sys.argv[1]))

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_manifest_may_be_read_by_several_threads(built_mini: Path) -> None:
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_READ, built_mini / "manifest.json"],
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")


# --- store.Store.read: errors of the decoders that are not caught


@pytest.mark.parametrize(
    ("pipeline", "place", "bit"),
    [("zarrs.ZarrsCodecPipeline", 3, 0), (WRITER, 7, 7)],
    ids=["zarrs raises IndexError", "numcodecs raises SystemError"],
)
def test_a_chunk_that_cannot_be_decoded_is_an_integrity_error_though_its_sum_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline: str, place: int, bit: int
) -> None:
    if pipeline != WRITER:
        pytest.importorskip("zarrs")
    monkeypatch.setattr(store_module, "READER", pipeline)
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 64)
    monkeypatch.setattr(store_module, "CHUNKS_PER_SHARD", 4)
    folder = tmp_path / "store"
    writer = StoreWriter(folder, [ColumnSpec("r", np.dtype("f8"), (), "step")])
    writer.append("r", np.random.default_rng(0).standard_normal(26))
    columns = writer.finish()
    path = folder / "r/c/0"
    data = bytearray(path.read_bytes())
    offset, length = np.frombuffer(data[-4 * 16 - 4 : -4], "<u8")[:2].tolist()
    data[offset + place] ^= 1 << bit
    end = offset + length - 4
    data[end : end + 4] = google_crc32c.value(bytes(data[offset:end])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        Store(folder, columns, make_objects(folder)).read("r")


# --- manifest.read_manifest: what is malformed raises something else than ManifestError


def test_a_number_that_overflows_to_infinity_is_a_manifest_error(mini_folder: Path) -> None:
    path = replace_text(mini_folder, '"noise": 0.5', '"noise": 1e999')
    with pytest.raises(ManifestError):
        read_manifest(path)


def test_half_of_a_surrogate_pair_is_a_manifest_error(mini_folder: Path) -> None:
    path = replace_text(mini_folder, '"description": "', '"description": "\\ud800')
    with pytest.raises(ManifestError):
        read_manifest(path)


def test_bounds_nested_too_deeply_are_a_manifest_error(mini_folder: Path) -> None:
    path = replace_text(mini_folder, '"low": -1.0', '"low": ' + "[" * 900 + "]" * 900)
    with pytest.raises(ManifestError):
        read_manifest(path)


def test_a_dict_space_that_is_a_list_is_a_schema_error() -> None:
    with pytest.raises(SchemaError):
        space_from_json({"type": "Dict", "spaces": []})


def test_a_folder_in_place_of_the_manifest_is_a_manifest_error(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ManifestError):
        orlog.verify_store(tmp_path)


@pytest.mark.parametrize("column", ["infos/extra", "episodes/extra"])
@pytest.mark.parametrize("dtype", ["garbage", "object", "str", "f8", "datetime64[s]"])
def test_a_dtype_that_is_not_the_name_of_a_number_is_a_manifest_error(
    mini_folder: Path, column: str, dtype: str
) -> None:
    like = "infos/behavior_goal" if column.startswith("infos") else "episodes/returns"
    shutil.copytree(mini_folder / like, mini_folder / column)

    def change(body: dict[str, Any]) -> None:
        (found,) = (item for item in body["columns"] if item["name"] == like)
        body["columns"].append({**found, "name": column, "dtype": dtype})
        body["columns"].sort(key=lambda item: item["name"])
        for item in list(body["objects"]):
            if item["path"].startswith(f"{like}/"):
                body["objects"].append({**item, "path": item["path"].replace(like, column)})
        body["objects"].sort(key=lambda item: item["path"])

    reseal(mini_folder, change)
    with pytest.raises(ManifestError):
        orlog.load_dataset(mini_folder)


def test_a_checksum_with_a_line_break_behind_it_is_refused(mini_folder: Path) -> None:
    def change(body: dict[str, Any]) -> None:
        body["objects"][0]["sha256"] += "\n"

    with pytest.raises(ManifestError):
        read_manifest(reseal(mini_folder, change))


# --- spaces: values that are not what the JSON should hold are bent until they fit


@pytest.mark.parametrize(
    "data",
    [
        {"type": "Discrete", "n": 1.5, "start": 0},
        {"type": "Discrete", "n": "5", "start": 0},
        {"type": "MultiDiscrete", "nvec": [2.5], "start": [0], "dtype": "int64"},
        {"type": "Box", "shape": "12", "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [1.5], "dtype": "float32", "low": 0, "high": 1},
    ],
    ids=str,
)
def test_a_space_with_values_of_the_wrong_type_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        space_from_json(data)


@pytest.mark.parametrize(
    "space",
    [spaces.Dict({1: spaces.Discrete(2)}), spaces.Dict({"zarr.json": spaces.Discrete(2)})],  # type: ignore[dict-item] # what a user may do
)
def test_keys_that_would_not_come_back_or_clash_with_files_are_refused(
    space: gymnasium.Space[Any],
) -> None:
    with pytest.raises(SchemaError):
        space_to_json(space)


# --- home.installed_versions: a stray folder breaks every load by name


@pytest.mark.parametrize("stray", ["1.", "1..0", "²"])
def test_a_stray_folder_does_not_hide_the_versions_beside_it(mini_folder: Path, stray: str) -> None:
    shutil.copytree(mini_folder, mini_folder.with_name(stray))
    assert installed_versions(MINI) == ["1.0.0"]
    assert orlog.load_dataset(MINI).folder == mini_folder


def test_a_stray_manifest_in_the_root_does_not_hide_the_names_below_it(
    mini_folder: Path,
) -> None:
    shutil.copy(mini_folder / "manifest.json", datasets_folder())
    assert installed_names() == [MINI]


# --- environments.make_environment: every maze leaves a file in the folder for temporary files


def test_an_environment_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    make_environment("PointMaze_UMaze-v3", {}).close()
    assert list(folder.iterdir()) == []


# --- store.StoreWriter: a full disk while the arrays are made is a bare OSError


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from orlog.datasets.store import ColumnSpec, StoreWriter
from orlog.errors import StorageError

resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
try:
    StoreWriter(Path(sys.argv[1]), [ColumnSpec("rewards", np.dtype("f8"), (), "step")])
except StorageError as error:
    print("good", error)
"""


def test_a_disk_that_is_full_from_the_start_is_a_storage_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "store"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("good")


# --- dataset: names as paths


def test_a_path_too_long_for_a_file_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        orlog.load_dataset("/" + "x" * 5000)


# --- what a store cannot hold, and processes that die


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_a_column_cannot_hold_is_refused(tmp_path: Path, seed: int) -> None:
    box = spaces.Box(-1, 1, (1,), np.float32)
    zeros = np.zeros((3, 1), np.float32)
    episode = Episode(
        observations=zeros,
        actions=zeros[:2],
        rewards=np.zeros(2),
        terminations=np.zeros(2, np.bool_),
        truncations=np.zeros(2, np.bool_),
        infos={},
        seed=seed,
    )
    with pytest.raises(SchemaError, match=f"episode 0: a seed .* found {seed}"):
        write_episodes(tmp_path / "store", [episode], box, box)


def test_a_space_too_large_for_any_row_is_refused_before_it_is_made() -> None:
    data = {"type": "Box", "shape": [2**13, 2**13], "dtype": "float32", "low": 0, "high": 1}
    with pytest.raises(SchemaError, match="absurdly large"):
        space_from_json(data)


def test_a_killed_worker_is_a_clear_error() -> None:
    with pytest.raises(WorkerDiedError, match="--workers 1"), process_pool(1) as pool:
        pool.submit(os._exit, 1).result()
