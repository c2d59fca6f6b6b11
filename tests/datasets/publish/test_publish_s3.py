"""Publishing into a real S3 server on loopback: whole, once, or an error."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orlog
from orlog.datasets.publish import bucket as s3
from orlog.datasets.publish import targets
from orlog.datasets.publish.publish import Sign, publish_dataset
from orlog.errors import IntegrityError, StorageError, VersionExistsError
from orlog.manifests.index import index_from_json
from orlog.manifests.manifest import read_manifest
from orlog.manifests.signatures import SignedKind
from tests.publishing import MINI, OWN_PLACE, PLACE, SOME, assert_signed, tree

pytest_plugins = ["tests.publishing_fixtures", "tests.s3_fixtures"]

PUBLISH = """
import functools, pathlib, sys
import s3fs
from orlog.manifests import signatures
from orlog.datasets.publish.publish import publish_dataset
from orlog.errors import VersionExistsError
folder, target, key = sys.argv[1:]
sign = functools.partial(signatures.sign, key_file=pathlib.Path(key))
print("ready", flush=True)
sys.stdin.readline()
try:
    publish_dataset(pathlib.Path(folder), target, sign=sign)
except VersionExistsError as error:
    sys.exit(17)
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that every request to S3 is put in: its method and path."""
    seen: list[tuple[str, str]] = []
    call = s3.BucketTarget._call

    def record(self: Any, method: str, path: str, **arguments: Any) -> Any:
        seen.append((method, path))
        return call(self, method, path, **arguments)

    monkeypatch.setattr(s3.BucketTarget, "_call", record)
    return seen


def bucket_tree(bucket: Any) -> dict[str, bytes]:
    bucket.invalidate_cache()
    return {path.removeprefix("data/lab/"): bucket.cat(path) for path in bucket.find("data/lab")}


def test_s3_holds_a_registry(own: Path, other: Path, bucket: Any, sign: Sign) -> None:
    url = publish_dataset(own, "s3://data/lab/", sign=sign)
    assert url == f"s3://data/lab/{OWN_PLACE}"
    held = bucket_tree(bucket)
    assert {
        path.removeprefix(OWN_PLACE + "/"): data
        for path, data in held.items()
        if path.startswith(OWN_PLACE) and not path.endswith(".sig")
    } == tree(own)
    assert_signed(held, sign)
    assert orlog.load_dataset(url).name == MINI
    with pytest.raises(VersionExistsError, match="never changes"):
        publish_dataset(other, "s3://data/lab", sign=sign)
    assert publish_dataset(own, "s3://data/lab", sign=sign) == url
    assert bucket_tree(bucket) == held


def test_s3_never_gets_damaged_bytes(mini_folder: Path, bucket: Any) -> None:
    data = (mini_folder / SOME).read_bytes()
    (mini_folder / SOME).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityError, match=SOME):
        publish_dataset(mini_folder, "s3://data/lab")
    assert not any(path.endswith((SOME, "manifest.json")) for path in bucket_tree(bucket))


def test_s3_goes_on_from_what_it_can_vouch_for(
    built_mini: Path, bucket: Any, calls: list[tuple[str, str]]
) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_dataset(built_mini, "s3://data/lab", jobs=2, progress=stop)
    held = bucket_tree(bucket)
    assert f"{PLACE}/.publishing" in held
    assert f"{PLACE}/manifest.json" not in held
    sent = sorted(path for path in held if not path.endswith(".publishing"))
    altered, unchecked = sent[:2]
    wrong = bytes(len(held[altered]))
    bucket.call_s3(
        "put_object", Bucket="data", Key=f"lab/{altered}", Body=wrong, **s3._checksum(wrong)
    )
    bucket.pipe_file(f"data/lab/{unchecked}", held[unchecked])
    calls.clear()
    publish_dataset(built_mini, "s3://data/lab")
    again = {path for method, path in calls if method == "put_object" and path in sent}
    assert again == {altered, unchecked}
    files = bucket_tree(bucket)
    assert files.pop("index.json")
    assert files == {f"{PLACE}/{path}": data for path, data in tree(built_mini).items()}


def test_large_objects_go_in_parts_and_are_known_again(
    variant: Callable[..., Path],
    replace_object: Callable[..., None],
    bucket: Any,
    calls: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * 2**20)
    folder = variant("large", version="1.0.9")
    data = np.random.default_rng(1).bytes(11 * 2**20)
    replace_object(folder, SOME, data)
    (folder / SOME).write_bytes(data[:-1] + b"\0")
    with pytest.raises(IntegrityError):
        publish_dataset(folder, "s3://data/lab", hashes=False)
    assert f"{OWN_PLACE}/{SOME}" not in bucket_tree(bucket)
    assert ("abort_multipart_upload", f"{OWN_PLACE}/{SOME}") in calls
    (folder / SOME).write_bytes(data)
    publish_dataset(folder, "s3://data/lab", hashes=False)
    assert bucket_tree(bucket)[f"{OWN_PLACE}/{SOME}"] == data
    bucket.rm_file(f"data/lab/{OWN_PLACE}/manifest.json")
    calls.clear()
    publish_dataset(folder, "s3://data/lab", hashes=False)
    assert not any(method == "upload_part" for method, _ in calls)


def test_s3_merges_an_index_that_changed_meanwhile(
    variant: Callable[..., Path], bucket: Any, sign: Sign
) -> None:
    first, *others = (
        variant(f"copy{number}", name=f"lab/d{number}-v1", objects=[]) for number in range(3)
    )

    def overtaken(data: bytes, kind: SignedKind) -> bytes:
        if kind == "index" and others:
            publish_dataset(others.pop(), "s3://data/lab", sign=sign)
        return sign(data, kind)

    publish_dataset(first, "s3://data/lab", sign=overtaken)
    held = bucket_tree(bucket)
    index = index_from_json(held["index.json"], "test")
    assert index.serial == len(index.datasets) == 3
    assert_signed(held, sign)


def test_s3_gives_up_on_an_index_that_never_rests(
    variant: Callable[..., Path], bucket: Any, sign: Sign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "ATTEMPTS", 2)
    folders = [
        variant(f"copy{number}", name=f"lab/d{number}-v1", objects=[]) for number in range(3)
    ]
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def overtaken(data: bytes, kind: SignedKind) -> bytes:
        if kind == "index":
            publish_dataset(folders.pop(), "s3://data/lab", sign=sign)
        return sign(data, kind)

    with pytest.raises(StorageError, match="published but not listed"):
        publish_dataset(folders.pop(0), "s3://data/lab", sign=overtaken)
    assert index_from_json(bucket_tree(bucket)["index.json"], "test").serial == 2


def test_s3_lets_one_publisher_of_a_version_win(own: Path, other: Path, bucket: Any) -> None:
    """The second begins while the first sends; the same bytes may, other bytes may not."""
    refused: list[object] = []

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            publish_dataset(own, "s3://data/lab")
        elif not refused:
            with pytest.raises(VersionExistsError, match="another publisher has begun") as caught:
                publish_dataset(other, "s3://data/lab")
            refused.append(caught)

    publish_dataset(own, "s3://data/lab", progress=meanwhile)
    assert refused
    files = bucket_tree(bucket)
    assert index_from_json(files.pop("index.json"), "test").serial == 1
    assert files == {f"{OWN_PLACE}/{path}": data for path, data in tree(own).items()}


def test_s3_never_overwrites_a_manifest(own: Path, other: Path, bucket: Any) -> None:
    """Even where somebody removed the claim of a publisher who had not given up."""

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            bucket.rm_file(f"data/lab/{OWN_PLACE}/.publishing")
            publish_dataset(other, "s3://data/lab")

    with pytest.raises(VersionExistsError, match="never changes"):
        publish_dataset(own, "s3://data/lab", progress=meanwhile)
    held = bucket_tree(bucket)
    assert (
        held[f"{OWN_PLACE}/manifest.json"]
        == read_manifest(other / "manifest.json").to_json().encode()
    )
    assert index_from_json(held["index.json"], "test").serial == 1


def test_errors_of_s3_are_said(
    built_mini: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match=r"s3://nowhere/lab/.*no such bucket or folder"):
        publish_dataset(built_mini, "s3://nowhere/lab")

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    with monkeypatch.context() as patch:
        patch.setattr(s3.BucketTarget, "_call", denied)
        with pytest.raises(StorageError, match="Access Denied; no permission: check"):
            publish_dataset(built_mini, "s3://data/lab")
    assert bucket_tree(bucket) == {}


# --- processes that publish at the same time --------------------------------------------------


def publish_at_once(folders: list[Path], key_file: Path) -> list[int]:
    """Publish each folder in a process of its own, begun at one moment; return how they ended."""
    command = [sys.executable, "-c", PUBLISH]
    children = [
        subprocess.Popen(
            [*command, str(folder), "s3://data/lab", str(key_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for folder in folders
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
    return [child.returncode for child in children]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_s3_takes_the_same_version_from_all(
    count: int, built_mini: Path, bucket: Any, sign: Sign, key_file: Path
) -> None:
    assert publish_at_once([built_mini] * count, key_file) == [0] * count
    files = bucket_tree(bucket)
    assert_signed(files, sign)
    assert index_from_json(files["index.json"], "test").serial == 1
    assert {path: data for path, data in files.items() if not path.endswith(".sig")} == {
        "index.json": files["index.json"],
        **{f"{PLACE}/{path}": data for path, data in tree(built_mini).items()},
    }


@pytest.mark.thorough
@pytest.mark.slow
def test_s3_takes_one_of_two_with_other_bytes(
    own: Path, other: Path, bucket: Any, sign: Sign, key_file: Path
) -> None:
    folders = [own, other] * 2
    endings = publish_at_once(folders, key_file)
    assert set(endings) == {0, 17}
    (winner,) = {folder for folder, ending in zip(folders, endings, strict=True) if ending == 0}
    files = bucket_tree(bucket)
    assert_signed(files, sign)
    objects = {
        path.removeprefix(f"{OWN_PLACE}/"): data
        for path, data in files.items()
        if path.startswith(OWN_PLACE) and not path.endswith(".sig")
    }
    assert objects == {
        **tree(winner),
        "manifest.json": read_manifest(winner / "manifest.json").to_json().encode(),
    }


@pytest.mark.thorough
@pytest.mark.slow
def test_s3_lists_all_that_come_at_once(
    variant: Callable[..., Path], bucket: Any, sign: Sign, key_file: Path
) -> None:
    versions = [f"2.{number}.0" for number in range(4)]
    folders = [variant(f"copy{version}", version=version, objects=[]) for version in versions]
    assert publish_at_once(folders, key_file) == [0] * len(versions)
    files = bucket_tree(bucket)
    assert_signed(files, sign)
    index = index_from_json(files["index.json"], "test")
    assert index.serial == len(versions)
    assert sorted(index.datasets[MINI]) == versions
    assert not any(path.endswith(".publishing") for path in files)
