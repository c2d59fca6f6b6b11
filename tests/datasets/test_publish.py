"""Publishing into folders, memory and a real S3 server on loopback: whole, once, or an error."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import orlog
from orlog.datasets import publish
from orlog.datasets.index import Index, index_from_json
from orlog.datasets.manifest import read_manifest
from orlog.datasets.publish import publish_dataset
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    ManifestError,
    MissingExtraError,
    NotFoundError,
    OrlogError,
    SignatureError,
    StorageError,
    VersionExistsError,
)

MINI = "pointmaze/umaze-mini-v1"
PLACE = f"{MINI}/1.0.0"
KILLS = 45
SOME = "rewards/c.0"

Read = Callable[[str], bytes | None]


def sign(data: bytes, kind: str) -> bytes:
    """Return what a test can check as a signature."""
    return f"{kind} {len(data)} {hash(data)}".encode()


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def index_of(registry: Path) -> Index:
    return index_from_json((registry / "index.json").read_bytes(), "test")


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def variant(built_mini: Path, tmp_path: Path, reseal: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that copies the small dataset with another manifest."""

    def make(folder: str, **changes: Any) -> Path:
        copy = shutil.copytree(built_mini, tmp_path / folder)
        reseal(copy, lambda body: body.update(changes))
        return copy

    return make


@pytest.fixture
def other(variant: Callable[..., Path], replace_object: Callable[..., None]) -> Path:
    """Return the same version with other bytes, and the digest that fits them."""
    folder = variant("other")
    replace_object(folder, SOME, b"other bytes")
    return folder


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """Return the URL of an S3 server on loopback."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a fresh file system for the S3 server, which has an empty bucket `data`."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    system.call_s3("create_bucket", Bucket="data")
    yield system
    system.rm("data", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list that every request to S3 is put in: its method and path."""
    seen: list[tuple[str, str]] = []
    call = publish._Bucket._call

    def record(self: Any, method: str, path: str, **arguments: Any) -> Any:
        seen.append((method, path))
        return call(self, method, path, **arguments)

    monkeypatch.setattr(publish._Bucket, "_call", record)
    return seen


# --- folders ----------------------------------------------------------------------------------


def test_a_folder_becomes_a_registry(built_mini: Path, registry: Path) -> None:
    told: list[tuple[int, int]] = []
    url = publish_dataset(
        built_mini, str(registry), progress=lambda done, total: told.append((done, total))
    )
    manifest = read_manifest(built_mini / "manifest.json")
    assert url == f"file://{registry}/{PLACE}"
    assert tree(registry / PLACE) == tree(built_mini)
    assert set(tree(registry)) == {"index.json", *(f"{PLACE}/{path}" for path in tree(built_mini))}
    assert told[-1] == (manifest.size_bytes, manifest.size_bytes)
    assert len(told) == len(manifest.objects)
    entry = index_of(registry).entry(MINI, "1.0.0")
    assert entry is not None
    assert (entry.digest, entry.size_bytes) == (manifest.digest, manifest.size_bytes)
    assert orlog.load_dataset(url).digest == manifest.digest


def test_again_does_nothing_and_completes_the_index(built_mini: Path, registry: Path) -> None:
    url = publish_dataset(built_mini, registry.as_uri())
    before = {path: path.stat().st_mtime_ns for path in registry.rglob("*") if path.is_file()}
    assert publish_dataset(built_mini, registry.as_uri() + "/") == url
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (registry / "index.json").unlink()
    publish_dataset(built_mini, str(registry))
    assert index_of(registry).serial == 1
    assert (registry / PLACE / "manifest.json").stat().st_mtime_ns == before[
        registry / PLACE / "manifest.json"
    ]


def test_versions_and_datasets_add_up(variant: Callable[..., Path], registry: Path) -> None:
    for number, (name, version) in enumerate(
        [("lab/b-v1", "1.0.0"), ("lab/a-v1", "1.0.0"), ("lab/a-v1", "1.10.0")]
    ):
        publish_dataset(variant(str(number), name=name, version=version), str(registry))
        assert index_of(registry).serial == number + 1
    assert {name: list(one) for name, one in index_of(registry).datasets.items()} == {
        "lab/a-v1": ["1.0.0", "1.10.0"],
        "lab/b-v1": ["1.0.0"],
    }


def test_a_version_never_changes(built_mini: Path, other: Path, registry: Path) -> None:
    publish_dataset(built_mini, str(registry))
    before = tree(registry)
    digests = [read_manifest(one / "manifest.json").digest for one in (built_mini, other)]
    with pytest.raises(VersionExistsError, match=f"{digests[0]}.*{digests[1]}.*new version"):
        publish_dataset(other, str(registry))
    shutil.rmtree(registry / PLACE)
    with pytest.raises(VersionExistsError, match=f"{digests[0]}.*{digests[1]}"):
        publish_dataset(other, str(registry))
    assert list(tree(registry)) == ["index.json"]
    assert before["index.json"] == (registry / "index.json").read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["short", "long", "altered", "empty", "missing"],
)
def test_damaged_bytes_are_never_published(
    mini_folder: Path, registry: Path, memory: Any, damage: Callable[[Path], object]
) -> None:
    good = (mini_folder / SOME).read_bytes()
    damage(mini_folder / SOME)
    for target in (str(registry), "memory://registry"):
        with pytest.raises(IntegrityError, match=rf"{SOME}: expected.*run orlog verify") as caught:
            publish_dataset(mini_folder, target)
        assert caught.value.file == SOME
    for path in (*tree(registry), *memory.find("/registry")):
        assert not path.endswith((SOME, "manifest.json", "index.json", "unfinished"))
    (mini_folder / SOME).write_bytes(good)
    publish_dataset(mini_folder, str(registry))
    publish_dataset(mini_folder, "memory://registry")
    assert tree(registry / PLACE) == tree(mini_folder)
    assert memory.cat(f"/registry/{PLACE}/{SOME}") == good


def test_what_is_there_is_believed_only_by_its_content(built_mini: Path, registry: Path) -> None:
    publish_dataset(built_mini, str(registry))
    whole = tree(registry)
    (registry / PLACE / "manifest.json").unlink()
    size = len(whole[f"{PLACE}/{SOME}"])
    (registry / PLACE / SOME).write_bytes(bytes(size))
    kept = registry / PLACE / "actions" / "zarr.json"
    before = kept.stat().st_mtime_ns
    publish_dataset(built_mini, str(registry))
    assert tree(registry) == whole
    assert kept.stat().st_mtime_ns == before


def test_signatures_lie_beside_what_they_sign(
    built_mini: Path, variant: Callable[..., Path], registry: Path
) -> None:
    publish_dataset(built_mini, str(registry), sign=sign)
    files = tree(registry)
    assert files["index.json.sig"] == sign(files["index.json"], "index")
    manifest = files[f"{PLACE}/manifest.json"]
    assert files[f"{PLACE}/manifest.json.sig"] == sign(manifest, "manifest")
    with pytest.raises(SignatureError, match="publish with the key"):
        publish_dataset(variant("next", version="1.1.0"), str(registry))
    assert tree(registry) == files


def test_what_was_published_unsigned_can_be_signed(built_mini: Path, registry: Path) -> None:
    publish_dataset(built_mini, str(registry))
    unsigned = tree(registry)
    publish_dataset(built_mini, str(registry), sign=sign)
    files = tree(registry)
    assert {path: data for path, data in files.items() if path in unsigned} == unsigned
    assert files["index.json.sig"] == sign(files["index.json"], "index")
    manifest = files[f"{PLACE}/manifest.json"]
    assert files[f"{PLACE}/manifest.json.sig"] == sign(manifest, "manifest")


def test_a_signature_of_what_never_came_goes_away(built_mini: Path, registry: Path) -> None:
    (registry / PLACE).mkdir(parents=True)
    (registry / PLACE / "manifest.json.sig").write_bytes(b"of other bytes")
    publish_dataset(built_mini, str(registry))
    assert not (registry / PLACE / "manifest.json.sig").exists()


def test_an_index_that_cannot_be_read_is_left_alone(built_mini: Path, registry: Path) -> None:
    registry.mkdir()
    for text, error in (
        ('{"index_version": 2}', FormatVersionError),
        ("{}", ManifestError),
        ("", ManifestError),
    ):
        (registry / "index.json").write_text(text)
        with pytest.raises(error, match="index"):
            publish_dataset(built_mini, str(registry))
        assert tree(registry) == {"index.json": text.encode()}


def test_a_manifest_that_cannot_be_read_is_left_alone(built_mini: Path, registry: Path) -> None:
    path = registry / PLACE / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ManifestError, match=r"file://.*manifest\.json: not the JSON"):
        publish_dataset(built_mini, str(registry))
    assert tree(registry) == {f"{PLACE}/manifest.json": b"{"}


def test_errors_of_the_disk_are_said(
    built_mini: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"No space left.*the disk is full") as caught:
            publish_dataset(built_mini, str(registry))
    assert caught.value.errno == errno.ENOSPC
    assert not any("unfinished" in path for path in tree(registry))
    publish_dataset(built_mini, str(registry))
    registry.rename(registry.with_name("kept"))
    registry.write_bytes(b"a file")
    with pytest.raises(StorageError, match="Not a directory"):
        publish_dataset(built_mini, str(registry))
    with pytest.raises(ManifestError, match="no readable manifest"):
        publish_dataset(registry.with_name("nothing"), str(registry))


def test_targets_that_nothing_writes(built_mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="nothing://here"):
        publish_dataset(built_mini, "nothing://here")
    with pytest.raises(NotFoundError, match="names no folder or bucket"):
        publish_dataset(built_mini, "s3://")
    with pytest.raises(StorageError, match="a web server cannot be written"):
        publish_dataset(built_mini, "https://example.org/data")
    for scheme, package in (("s3", "s3fs"), ("hf", "huggingface_hub")):
        monkeypatch.setitem(sys.modules, package, None)
        known = sys.modules["fsspec.registry"]._registry
        monkeypatch.delitem(known, scheme, raising=False)
        with pytest.raises(MissingExtraError, match=rf'pip install "orlog\[{scheme}\]"') as caught:
            publish_dataset(built_mini, f"{scheme}://datasets/user/data")
        assert caught.value.extra == scheme


# --- killed, and two at once ------------------------------------------------------------------


def in_child(work: Callable[[], object], instant: int = 0) -> int:
    """Start a fork that does the work, killed at one of its accesses to files; return its id.

    It ends with 0, with 17 where the version exists, or with the signal. No disk loses power here,
    so none is waited for.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no thread of ours runs here
        child = os.fork()
    if child:
        return child
    signal.alarm(30)  # whatever hangs is not waited for
    left = instant
    checked_blocks = publish._checked_blocks

    def access() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and "registry" in str(
            arguments[0]
        ):
            access()

    def blocks_one_by_one(*arguments: Any) -> Iterator[bytes]:
        for block in checked_blocks(*arguments):
            yield block
            access()

    os.fsync = lambda _: access()  # type: ignore[assignment]
    publish._checked_blocks = blocks_one_by_one  # type: ignore[assignment]
    publish.BLOCK_BYTES = 2**14  # more than a file's buffer, so half a file gets to the disk
    sys.addaudithook(hook)
    try:
        work()
    except VersionExistsError:
        os._exit(17)
    except BaseException as error:  # noqa: BLE001 (nothing may leave the child)
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    if instant < 0:
        os.write(-instant, b"%d" % (instant - left))
    os._exit(0)


def ending(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_instant_it_goes_on_and_nobody_sees_a_half(
    built_mini: Path, tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> str:
        return publish_dataset(built_mini, str(registry), sign=sign, jobs=1)

    read_end, write_end = os.pipe()
    assert ending(in_child(work, -write_end)) == 0
    instants = int(os.read(read_end, 100))
    os.close(read_end)
    os.close(write_end)
    whole = tree(registry)
    shutil.rmtree(registry)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    rng = np.random.default_rng(7)
    last = range(instants - 24, instants + 1)
    chosen = sorted({*rng.choice(instants - 25, KILLS - 20, replace=False) + 1, *last})
    assert len(chosen) >= KILLS
    seen = {"nothing": 0, "version": 0, "listed": 0, "half": 0}
    for instant in chosen:
        assert ending(in_child(work, int(instant))) == -signal.SIGKILL
        there = tree(registry)
        if f"{PLACE}/manifest.json" in there:
            seen["version"] += 1
            assert {path: there[path] for path in whole if path.startswith(PLACE)} == {
                path: data for path, data in whole.items() if path.startswith(PLACE)
            }
        else:
            seen["nothing"] += 1
            monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "reader"))
            with pytest.raises(OrlogError):
                orlog.load_dataset(f"file://{registry}/{PLACE}")
        seen["half"] += any(path.endswith(".unfinished") and there[path] for path in there)
        if "index.json" in there:
            seen["listed"] += 1
            assert there["index.json"] == whole["index.json"]
            assert f"{PLACE}/manifest.json" in there
        work()
        assert tree(registry) == whole
        shutil.rmtree(registry)
    assert min(seen.values()) > 0, seen


def test_of_two_with_other_bytes_one_wins(built_mini: Path, other: Path, registry: Path) -> None:
    wholes = {}
    for folder in (built_mini, other):
        publish_dataset(folder, str(registry))
        wholes[folder] = tree(registry)
        shutil.rmtree(registry)
    for turn in range(6):
        folders = (built_mini, other) if turn % 2 else (other, built_mini)
        children = [
            in_child(lambda folder=folder: publish_dataset(folder, str(registry)))  # type: ignore[misc]
            for folder in folders
        ]
        endings = [ending(child) for child in children]
        assert sorted(endings) == [0, 17]
        assert tree(registry) == wholes[folders[endings.index(0)]]
        shutil.rmtree(registry)


def test_all_that_publish_at_once_are_listed(variant: Callable[..., Path], registry: Path) -> None:
    folders = [variant(f"copy{number}", name=f"lab/d{number}-v1") for number in range(4)]
    children = [
        in_child(lambda folder=folder: publish_dataset(folder, str(registry)))  # type: ignore[misc]
        for folder in [*folders, *folders]
    ]
    assert {ending(child) for child in children} == {0}
    assert index_of(registry).serial == 4
    assert sorted(index_of(registry).datasets) == [f"lab/d{number}-v1" for number in range(4)]


# --- memory, and S3 ---------------------------------------------------------------------------


def test_memory_holds_a_registry(built_mini: Path, other: Path, memory: Any) -> None:
    url = publish_dataset(built_mini, "memory://registry", sign=sign)
    assert url == f"memory://registry/{PLACE}"
    held = {path.removeprefix("/registry/"): memory.cat(path) for path in memory.find("/registry")}
    assert {
        path.removeprefix(PLACE + "/"): data
        for path, data in held.items()
        if path.startswith(PLACE) and not path.endswith(".sig")
    } == tree(built_mini)
    assert held["index.json.sig"] == sign(held["index.json"], "index")
    assert orlog.load_dataset(url).name == MINI
    with pytest.raises(VersionExistsError):
        publish_dataset(other, "memory://registry", sign=sign)


def bucket_tree(bucket: Any) -> dict[str, bytes]:
    bucket.invalidate_cache()
    return {path.removeprefix("data/lab/"): bucket.cat(path) for path in bucket.find("data/lab")}


def test_s3_holds_a_registry(built_mini: Path, other: Path, bucket: Any) -> None:
    url = publish_dataset(built_mini, "s3://data/lab/", sign=sign)
    assert url == f"s3://data/lab/{PLACE}"
    held = bucket_tree(bucket)
    assert {
        path.removeprefix(PLACE + "/"): data
        for path, data in held.items()
        if path.startswith(PLACE) and not path.endswith(".sig")
    } == tree(built_mini)
    assert held["index.json.sig"] == sign(held["index.json"], "index")
    assert orlog.load_dataset(url).name == MINI
    with pytest.raises(VersionExistsError, match="never changes"):
        publish_dataset(other, "s3://data/lab", sign=sign)
    assert publish_dataset(built_mini, "s3://data/lab", sign=sign) == url
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
    publish._open_registry("s3://data/lab").write_if(f"{PLACE}/x", b"", "")
    bucket.call_s3(
        "put_object", Bucket="data", Key=f"lab/{altered}", Body=wrong, **publish._checksum(wrong)
    )
    bucket.pipe_file(f"data/lab/{unchecked}", held[unchecked])
    bucket.rm_file(f"data/lab/{PLACE}/x")
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
    monkeypatch.setattr(publish, "PART_BYTES", 5 * 2**20)
    folder = variant("large")
    data = np.random.default_rng(1).bytes(11 * 2**20)
    replace_object(folder, SOME, data)
    (folder / SOME).write_bytes(data[:-1] + b"\0")
    with pytest.raises(IntegrityError):
        publish_dataset(folder, "s3://data/lab")
    assert f"{PLACE}/{SOME}" not in bucket_tree(bucket)
    assert ("abort_multipart_upload", f"{PLACE}/{SOME}") in calls
    (folder / SOME).write_bytes(data)
    publish_dataset(folder, "s3://data/lab")
    assert bucket_tree(bucket)[f"{PLACE}/{SOME}"] == data
    bucket.rm_file(f"data/lab/{PLACE}/manifest.json")
    calls.clear()
    publish_dataset(folder, "s3://data/lab")
    assert not any(method == "upload_part" for method, _ in calls)


def test_s3_merges_an_index_that_changed_meanwhile(
    variant: Callable[..., Path], bucket: Any
) -> None:
    first, *others = (
        variant(f"copy{number}", name=f"lab/d{number}-v1", objects=[]) for number in range(3)
    )

    def overtaken(data: bytes, kind: str) -> bytes:
        if kind == "index" and others:
            publish_dataset(others.pop(), "s3://data/lab", sign=sign)
        return sign(data, kind)

    publish_dataset(first, "s3://data/lab", sign=overtaken)
    held = bucket_tree(bucket)
    index = index_from_json(held["index.json"], "test")
    assert index.serial == len(index.datasets) == 3
    assert held["index.json.sig"] == sign(held["index.json"], "index")


def test_s3_gives_up_on_an_index_that_never_rests(
    variant: Callable[..., Path], bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "INDEX_ATTEMPTS", 2)
    folders = [
        variant(f"copy{number}", name=f"lab/d{number}-v1", objects=[]) for number in range(3)
    ]
    monkeypatch.setattr(time, "sleep", lambda _: None)

    def overtaken(data: bytes, kind: str) -> bytes:
        if kind == "index":
            publish_dataset(folders.pop(), "s3://data/lab", sign=sign)
        return sign(data, kind)

    with pytest.raises(StorageError, match="published but not listed"):
        publish_dataset(folders.pop(0), "s3://data/lab", sign=overtaken)
    assert index_from_json(bucket_tree(bucket)["index.json"], "test").serial == 2


def test_s3_lets_one_publisher_of_a_version_win(built_mini: Path, other: Path, bucket: Any) -> None:
    """The second begins while the first sends; the same bytes may, other bytes may not."""
    refused: list[object] = []

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            publish_dataset(built_mini, "s3://data/lab")
        elif not refused:
            with pytest.raises(VersionExistsError, match="another publisher has begun") as caught:
                publish_dataset(other, "s3://data/lab")
            refused.append(caught)

    publish_dataset(built_mini, "s3://data/lab", progress=meanwhile)
    assert refused
    files = bucket_tree(bucket)
    assert index_from_json(files.pop("index.json"), "test").serial == 1
    assert files == {f"{PLACE}/{path}": data for path, data in tree(built_mini).items()}


def test_s3_never_overwrites_a_manifest(built_mini: Path, other: Path, bucket: Any) -> None:
    """Even where somebody removed the claim of a publisher who had not given up."""

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            bucket.rm_file(f"data/lab/{PLACE}/.publishing")
            publish_dataset(other, "s3://data/lab")

    with pytest.raises(VersionExistsError, match="never changes"):
        publish_dataset(built_mini, "s3://data/lab", progress=meanwhile)
    held = bucket_tree(bucket)
    assert (
        held[f"{PLACE}/manifest.json"] == read_manifest(other / "manifest.json").to_json().encode()
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
        patch.setattr(publish._Bucket, "_call", denied)
        with pytest.raises(StorageError, match="Access Denied; no permission: check"):
            publish_dataset(built_mini, "s3://data/lab")
    assert bucket_tree(bucket) == {}
