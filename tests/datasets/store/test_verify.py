import errno
import hashlib
import os
import shutil
import threading
from pathlib import Path

import blake3
import numpy as np
import pytest

import orlog
from orlog.base.files import hash_file
from orlog.datasets.store import objects
from orlog.datasets.store.encoding import choose_encoding
from orlog.datasets.store.shards import encode_shard
from orlog.datasets.store.verify import check_values, verify_folder
from orlog.datasets.store.version import StoredVersion
from orlog.errors import StorageError
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

SHARD = "observations/observation/c.0.0"


def problems(folder):
    return [(problem.file, problem.kind) for problem in verify_folder(folder)[1]]


def test_an_error_of_progress_ends_the_verification(mini_folder):
    def stop(size):
        if size:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        verify_folder(mini_folder, progress=stop)
    assert threading.active_count() == before


def test_an_object_that_cannot_be_read_is_named_and_too_many_open_files_are_no_damage(mini_folder, monkeypatch):
    def fail(path, progress):
        if path == mini_folder / SHARD:
            raise OSError(number, os.strerror(number))
        return hash_file(path, progress)

    monkeypatch.setattr(objects, "hash_file", fail)
    number = errno.EIO
    (problem,) = verify_folder(mini_folder)[1]
    assert (problem.file, problem.kind) == (SHARD, "unreadable")
    assert problem.found == f"an error: {os.strerror(errno.EIO)}"
    number = errno.EMFILE
    with pytest.raises(StorageError, match="too many files are open"):
        verify_folder(mini_folder)


def test_a_folder_that_cannot_be_listed_is_named(mini_folder, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if path.rstrip("/").endswith("/actions"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert problems(mini_folder) == [("actions", "unreadable")]


def test_one_flipped_bit_in_any_object_is_reported_as_exactly_that_object(mini_folder):
    rng = np.random.default_rng(3)
    for item in read_manifest(mini_folder / MANIFEST_FILE).objects:
        path = mini_folder / item.path
        whole = path.read_bytes()
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        (problem,) = verify_folder(mini_folder)[1]
        assert (problem.file, problem.kind) == (item.path, "damaged")
        assert problem.expected == f"sha256 {item.sha256}"
        assert problem.found == f"sha256 {hashlib.sha256(data).hexdigest()}"
        assert str(problem).startswith(f"{item.path}: damaged: expected sha256 ")
        path.write_bytes(whole)
    assert problems(mini_folder) == []


def test_values_other_than_those_stated_are_found_by_decoding(mini_folder, replace_object):
    seen = []
    stored = StoredVersion(mini_folder)
    assert check_values(stored, seen.append) == []
    columns = stored.schema.columns()
    assert sum(seen) == sum(stored.read(name).nbytes for name in columns)

    # As a writer would have stored them whose memory or codec was at fault.
    wrong = -stored.read("rewards")
    pieces = encode_shard(wrong, choose_encoding("rewards", wrong.dtype, ()))
    replace_object(mini_folder, "rewards/c.0", b"".join(pieces))
    assert problems(mini_folder) == []
    (problem,) = check_values(StoredVersion(mini_folder))
    (stated,) = (one for one in stored.manifest.columns if one.name == "rewards")
    found = blake3.blake3(wrong.tobytes()).hexdigest()
    assert str(problem) == (f"rewards: other values: expected blake3 {stated.blake3}, found blake3 {found}")


CORNERS = Path(__file__).with_name("frozen") / "format-1-corners"


def add_object(folder, reseal, path, data):
    """Add a file that the manifest lists."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    item = {"path": path, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def change(body):
        body["objects"] = sorted([*body["objects"], item], key=lambda one: one["path"])

    reseal(folder, change)


def drop_group(body):
    body["objects"] = [one for one in body["objects"] if one["path"] != "parts/1/infos/zarr.json"]


WRONG_FLAGS = b"".join(
    encode_shard(
        np.array([0] * 4 + [2], np.uint8).view(np.bool_), choose_encoding("truncations", np.dtype(np.bool_), ())
    )
)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda folder, reseal, _: reseal(folder, lambda body: body.pop("non_finite")),
            ["infos/Wert: other values: expected non_finite 0, found non_finite 2"],
        ),
        (
            lambda folder, reseal, _: reseal(folder, lambda body: body["non_finite"].update(actions=4)),
            ["actions: other values: expected non_finite 4, found non_finite 0"],
        ),
        (
            lambda folder, _, replace: replace(folder, "parts/1/truncations/c.0", WRONG_FLAGS),
            [
                "parts/1/truncations/c.0: other hashes: expected those in chunk_hashes/",
                "parts/1/truncations: other values: expected blake3",
                "parts/1/truncations: other values: expected bool: bytes 0 and 1, found 1 other bytes",
            ],
        ),
        (
            lambda folder, _, replace: replace(
                folder, "chunk_hashes/shards", bytes(len((folder / "chunk_hashes/shards").read_bytes()))
            ),
            ["actions/c.0: other hashes", "actions/c.1: other hashes"],
        ),
        (
            lambda folder, _, replace: replace(folder, "chunk_hashes/chunks", bytes(16)),
            ["actions/c.0: other hashes", "actions/c.1: other hashes"],
        ),
        (
            lambda folder, reseal, _: add_object(folder, reseal, "observations/notes.txt", b"x"),
            ["observations/notes.txt: of no column: expected no such file, found 1 bytes"],
        ),
        (
            lambda folder, reseal, _: reseal(folder, drop_group),
            ["parts/1/infos/zarr.json: missing: expected the file of a group, found no file"],
        ),
    ],
    ids=["uncounted", "counted", "flags", "hashes", "fewer hashes", "stranger", "no group"],
)
def test_what_a_writer_stated_wrongly_is_found_by_values_alone(tmp_path, reseal, replace_object, damage, expected):
    folder = tmp_path / "store"
    shutil.copytree(CORNERS, folder)
    assert check_values(StoredVersion(folder)) == []
    damage(folder, reseal, replace_object)
    assert not any(one.kind != "not in the manifest" for one in orlog.verify_store(folder)[1])
    found = check_values(StoredVersion(folder))
    assert len(found) >= len(expected)
    for problem, text in zip(found, expected, strict=False):
        assert str(problem).startswith(text)


@pytest.mark.parametrize("container", ["zarr", "hdf5"])
def test_values_of_every_part_are_checked_in_both_containers(mini_folder, container):
    first = orlog.load_dataset(mini_folder)
    orlog.save_dataset(first[:3], "lab/parts-v1", version="1.0.0", container=container)
    with orlog.DatasetWriter.append(orlog.load_dataset("lab/parts-v1")) as writer:
        writer.add_episode(first[5])
    folder = orlog.load_dataset("lab/parts-v1").folder
    assert check_values(StoredVersion(folder)) == []
    if container == "zarr":
        path = folder / "parts/1/actions/c.0.0"
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(data)
        (problem,) = check_values(StoredVersion(folder))
        assert (problem.file, problem.kind) == ("parts/1/actions", "damaged")
        assert "c.0.0, chunk 0: damaged: crc32c" in problem.found


def test_a_link_in_place_of_a_folder_condemns_all_below_it(mini_folder, tmp_path):
    shutil.move(mini_folder / "actions", tmp_path / "good")
    (mini_folder / "actions").symlink_to(tmp_path / "good")
    assert problems(mini_folder) == [
        ("actions/c.0.0", "a link"),
        ("actions/zarr.json", "a link"),
        ("actions", "not in the manifest"),
    ]
