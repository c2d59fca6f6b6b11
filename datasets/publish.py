"""Puts a stored version into a registry: a folder, an S3 bucket, or whatever fsspec can write.

    1. objects, each checked against the manifest on its way
    2. manifest.json.sig, then manifest.json      from here on readers see the version
    3. index.json.sig, then index.json            from here on it is listed

So nobody ever sees half a version, and what was interrupted is run again to go on. Two publishers
of one version exclude each other before they send anything: by a file lock in a folder, by a file
`.publishing` that only one can make in a bucket. Of two with other bytes one gets an error.
"""

from __future__ import annotations

import abc
import base64
import concurrent.futures
import contextlib
import errno
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock

from orlog.datasets.index import (
    INDEX_FILE,
    LARGEST_INDEX,
    Index,
    index_from_json,
)
from orlog.datasets.json_files import sole_writer
from orlog.datasets.manifest import (
    LARGEST_MANIFEST,
    MANIFEST_FILE,
    Manifest,
    StoredObject,
    manifest_from_text,
    read_manifest,
)
from orlog.datasets.names import is_url
from orlog.datasets.signatures import LARGEST_SIGNATURE, SIGNATURE_SUFFIX
from orlog.datasets.storage import hash_file, sync, sync_all, sync_folders
from orlog.datasets.transport import missing_backend
from orlog.errors import (
    IntegrityError,
    ManifestError,
    NotFoundError,
    OrlogError,
    SignatureError,
    StorageError,
    VersionExistsError,
)

__all__ = ["Sign", "publish_dataset"]

BLOCK_BYTES = 2**20
PART_BYTES = 32 * 2**20
INDEX_ATTEMPTS = 30
CLAIM_FILE = ".publishing"
LARGEST_CLAIM = 2**10

Sign: TypeAlias = Callable[[bytes, str], bytes]
"""Gives the bytes of a `.sig` file for the bytes of a file and its kind, "manifest" or "index"."""


def publish_dataset(
    folder: Path,
    target: str,
    *,
    sign: Sign | None = None,
    jobs: int = 8,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> str:
    """Put one stored version into a registry and return the URL of its folder there.

    What is there already and known to be right is not sent again, so the same call goes on where
    an interrupted one stopped. A version that is published is never changed.

    Args:
        folder: Folder of a stored version, with its manifest.
        target: The registry: a folder, or a URL such as `s3://bucket/prefix` and
            `hf://datasets/USER/REPO`. Exclusive publishing needs a folder, or a bucket with
            conditional writes; elsewhere let only one publish at a time.
        sign: Gives the signature of a file; a registry whose index is signed needs it.
        jobs: Objects that are sent at a time.
        progress: Called with bytes done and bytes in all.

    Raises:
        ManifestError: the manifest in the folder, or the index or manifest of the registry, cannot
            be read as right.
        IntegrityError: an object in the folder is not what the manifest says; it was not published.
        VersionExistsError: the registry has the version with another digest, or another publisher
            of it has begun.
        SignatureError: the registry is signed and no `sign` was given.
        FormatVersionError: the index was written by a newer orlog.
        MissingExtraError: the package that writes such URLs is not installed.
        NotFoundError: nothing writes URLs of that kind.
        StorageError: the registry cannot be read or written, or is full.
    """
    manifest = read_manifest(folder / MANIFEST_FILE)
    registry = _open_registry(target)
    index_signature, _ = registry.read(INDEX_FILE + SIGNATURE_SUFFIX, LARGEST_SIGNATURE)
    if sign is None and index_signature is not None:
        raise SignatureError(
            f"{registry.url}: its index is signed, and without a signature readers would refuse it; "
            "publish with the key"
        )
    _next_index(registry, manifest)  # what it refuses is refused before anything is sent
    _publish_version(registry, manifest, folder, sign, jobs, progress)
    _list_version(registry, manifest, sign, is_signed=index_signature is not None)
    return f"{registry.url}/{manifest.name}/{manifest.version}"


def _publish_version(
    registry: _Registry,
    manifest: Manifest,
    folder: Path,
    sign: Sign | None,
    jobs: int,
    progress: Callable[[int, int], None],
) -> None:
    place = f"{manifest.name}/{manifest.version}"
    path = f"{place}/{MANIFEST_FILE}"
    signature = path + SIGNATURE_SUFFIX
    published = _published(registry, path, manifest)
    if published is None:
        with registry.sole_publisher(place, manifest.digest):
            published = _published(registry, path, manifest)
            if published is None:
                _send_objects(registry, place, manifest.objects, folder, jobs, progress)
                data = manifest.to_json().encode()
                if sign is not None:
                    registry.write(signature, sign(data, "manifest"))
                elif registry.read(signature, LARGEST_SIGNATURE)[0] is not None:
                    registry.remove(signature)  # of other bytes, by one who never finished
                if not registry.write_if(path, data, ""):
                    _published(registry, path, manifest)
    if published is not None:
        progress(manifest.size_bytes, manifest.size_bytes)
        if sign is not None and registry.read(signature, LARGEST_SIGNATURE)[0] is None:
            registry.write(signature, sign(published, "manifest"))


def _published(registry: _Registry, path: str, manifest: Manifest) -> bytes | None:
    """Return the bytes of the version's manifest in the registry, if it is there."""
    data, _ = registry.read(path, LARGEST_MANIFEST)
    if data is None:
        return None
    there = manifest_from_text(data, f"{registry.url}/{path}").digest
    if there != manifest.digest:
        raise VersionExistsError(
            f"{manifest.name}@{manifest.version}: {registry.url} has it as {there}, this is "
            f"{manifest.digest}; a version never changes: publish it under a new version"
        )
    return data


def _send_objects(
    registry: _Registry,
    place: str,
    objects: Iterable[StoredObject],
    folder: Path,
    jobs: int,
    progress: Callable[[int, int], None],
) -> None:
    def send(item: StoredObject) -> int:
        path, source = f"{place}/{item.path}", folder / item.path
        if not registry.holds(path, item, source):
            registry.send(path, item, source)
        return item.size_bytes

    done, total = 0, sum(item.size_bytes for item in objects)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            sent = [pool.submit(send, item) for item in objects]
            for future in concurrent.futures.as_completed(sent):
                done += future.result()
                progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    registry.settle(place)


def _list_version(
    registry: _Registry, manifest: Manifest, sign: Sign | None, *, is_signed: bool
) -> None:
    """Add a version to the index, again for as long as others change it meanwhile."""
    where = f"{registry.url}/{INDEX_FILE}"
    with registry.sole_index_writer():
        for attempt in range(INDEX_ATTEMPTS):
            data, tag, changed = _next_index(registry, manifest)
            if data == changed and (sign is None or is_signed):
                return
            if len(changed) > LARGEST_INDEX:
                raise StorageError(f"{where}: over {LARGEST_INDEX} bytes; begin another registry")
            if sign is not None:
                # Before the index: whoever loses the race for it then comes again and signs last.
                registry.write(INDEX_FILE + SIGNATURE_SUFFIX, sign(changed, "index"))
            if registry.write_if(INDEX_FILE, changed, tag):
                return
            time.sleep(random.uniform(0, min(2.0, 0.02 * 2**attempt)))  # noqa: S311 (no secret)
    raise StorageError(
        f"{where}: others changed it {INDEX_ATTEMPTS} times meanwhile; the version is published but "
        "not listed: run the same command again"
    )


def _next_index(registry: _Registry, manifest: Manifest) -> tuple[bytes | None, str, bytes]:
    """Return the index as it is, its tag, and the index with the version in it."""
    data, tag = registry.read(INDEX_FILE, LARGEST_INDEX)
    if data is None:
        return None, tag, Index().with_version(manifest).to_json()
    old = index_from_json(data, f"{registry.url}/{INDEX_FILE}")
    new = old.with_version(manifest)
    return data, tag, data if new is old else new.to_json()


def _checked_blocks(path: Path, item: StoredObject, block_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of an object; raises at the end, before they count, if they are not right."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while size <= item.size_bytes and (block := file.read(block_bytes)):
                size += len(block)
                digest.update(block)
                yield block
        problem = f"{size} bytes with sha256 {digest.hexdigest()}"
    except OSError as error:
        problem = error.strerror or str(error)
    if (size, digest.hexdigest()) != (item.size_bytes, item.sha256):
        raise IntegrityError(
            f"{path}: expected {item.size_bytes} bytes with sha256 {item.sha256}, found {problem}; it "
            "was not published: run orlog verify, then orlog repair",
            file=item.path,
            expected=item.sha256,
            found=digest.hexdigest(),
        )


class _Registry(abc.ABC):
    """A place that versions are published in; paths are relative to it, with forward slashes."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abc.abstractmethod
    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        """Return the content of a file, None if there is none, and a tag of this state of it."""

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a file in one step."""

    @abc.abstractmethod
    def write_if(self, path: str, data: bytes, tag: str) -> bool:
        """Write a file in one step and return True, unless its tag has changed; "": is not there.

        Folders rely on their locks instead.
        """

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file."""

    @abc.abstractmethod
    def holds(self, path: str, item: StoredObject, source: Path) -> bool:
        """Return whether an object is there with content that is known to be right."""

    @abc.abstractmethod
    def send(self, path: str, item: StoredObject, source: Path) -> None:
        """Write an object whose bytes are checked."""

    @abc.abstractmethod
    def settle(self, place: str) -> None:
        """Wait until everything below a folder is durable."""

    @abc.abstractmethod
    def sole_publisher(self, place: str, digest: str) -> contextlib.AbstractContextManager[None]:
        """Hold the only right to publish a version, together with publishers of the same bytes."""

    @abc.abstractmethod
    def sole_index_writer(self) -> contextlib.AbstractContextManager[None]:
        """Hold the only right to change the index, where that is possible."""


def _open_registry(target: str) -> _Registry:
    if not is_url(target):
        return _Folder(Path(target).expanduser().absolute())
    scheme = target.partition("://")[0]
    if scheme in ("http", "https"):
        raise StorageError(
            f"{target}: a web server cannot be written; publish to the folder or bucket it serves"
        )
    url = target.rstrip("/")
    if not is_url(url):
        raise NotFoundError(f"{target}: names no folder or bucket")
    import fsspec

    try:
        # A fresh one: what is cached may know old credentials, servers and listings.
        system, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:
        raise missing_backend(url, error) from error
    except Exception as error:  # each transport under fsspec has errors of its own
        raise NotFoundError(f"{target}: cannot be opened: {error}") from error
    if "file" in _protocols(system):
        return _Folder(Path(root))
    kind = _Bucket if "s3" in _protocols(system) else _Remote
    return kind(system, root, url)


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


class _Folder(_Registry):
    """A registry in a folder of this machine. Each file is written beside its place and renamed."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"file://{root.as_posix()}")
        self.root = root

    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        with _storage_errors(self.root / path):
            try:
                with (self.root / path).open("rb") as file:
                    data = file.read(largest + 1)
            except FileNotFoundError:
                return None, ""
        _check_size(len(data), largest, self.root / path)
        return data, ""

    def write(self, path: str, data: bytes) -> None:
        self._replace(path, [data])
        with _storage_errors(self.root / path):
            sync((self.root / path).parent)

    def write_if(self, path: str, data: bytes, tag: str) -> bool:  # noqa: ARG002 (a lock is held)
        self.write(path, data)
        return True

    def remove(self, path: str) -> None:
        with _storage_errors(self.root / path):
            (self.root / path).unlink(missing_ok=True)

    def holds(self, path: str, item: StoredObject, source: Path) -> bool:  # noqa: ARG002
        file = self.root / path
        with _storage_errors(file):
            return (
                file.is_file()
                and file.stat().st_size == item.size_bytes
                and hash_file(file) == item.sha256
            )

    def send(self, path: str, item: StoredObject, source: Path) -> None:
        self._replace(path, _checked_blocks(source, item, BLOCK_BYTES))

    def settle(self, place: str) -> None:
        with _storage_errors(self.root / place):
            sync_folders(self.root / place)
            above = (self.root / place).parents
            sync_all(one for one in above if one == self.root or one.is_relative_to(self.root))

    @contextlib.contextmanager
    def sole_publisher(self, place: str, digest: str) -> Iterator[None]:  # noqa: ARG002
        folder = self.root / place
        with _storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder.with_name(f".{folder.name}.lock"))
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def sole_index_writer(self) -> contextlib.AbstractContextManager[None]:
        return sole_writer(self.root / INDEX_FILE)

    def _replace(self, path: str, blocks: Iterable[bytes]) -> None:
        file = self.root / path
        unfinished = file.with_name(f".{file.name}.unfinished")
        with _storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with unfinished.open("wb") as opened:
                    for block in blocks:
                        opened.write(block)
                    opened.flush()
                    os.fsync(opened.fileno())
                unfinished.replace(file)
            finally:
                unfinished.unlink(missing_ok=True)


class _Remote(_Registry):
    """A registry that fsspec writes, without promises about two publishers at once."""

    def __init__(self, system: Any, root: str, url: str) -> None:
        super().__init__(url)
        self.system = system
        self.root = root.rstrip("/")

    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        with _storage_errors(f"{self.url}/{path}"):
            try:
                return self._load(path, largest)
            except FileNotFoundError:
                return None, ""

    def write(self, path: str, data: bytes) -> None:
        with _storage_errors(f"{self.url}/{path}"):
            self.system.pipe_file(f"{self.root}/{path}", data)

    def write_if(self, path: str, data: bytes, tag: str) -> bool:
        if not tag and self.read(path, LARGEST_INDEX)[0] is not None:
            return False
        self.write(path, data)
        return True

    def remove(self, path: str) -> None:
        with _storage_errors(f"{self.url}/{path}"), contextlib.suppress(FileNotFoundError):
            self.system.rm_file(f"{self.root}/{path}")

    def holds(self, path: str, item: StoredObject, source: Path) -> bool:  # noqa: ARG002
        return False

    def send(self, path: str, item: StoredObject, source: Path) -> None:
        for _ in _checked_blocks(source, item, BLOCK_BYTES):
            pass
        with _storage_errors(f"{self.url}/{path}"):
            self.system.put_file(str(source), f"{self.root}/{path}")

    def settle(self, place: str) -> None:
        """Leave it to the store, which has answered."""

    @contextlib.contextmanager
    def sole_publisher(self, place: str, digest: str) -> Iterator[None]:
        """Claim the version; the claim outlives this process, so the same bytes can go on from it.

        It is removed once the manifest is there, which then says the same.
        """
        claim = f"{place}/{CLAIM_FILE}"
        if not self.write_if(claim, digest.encode(), ""):
            claimed, _ = self.read(claim, LARGEST_CLAIM)
            if claimed not in (None, digest.encode()):
                raise VersionExistsError(
                    f"{self.url}/{place}: another publisher has begun to publish it as "
                    f"{(claimed or b'').decode(errors='replace')}, this is {digest}; if that one has "
                    f"given up, remove {self.url}/{claim} and run the same command again"
                )
        try:
            yield
        except VersionExistsError:
            self.remove(claim)
            raise
        self.remove(claim)

    def sole_index_writer(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _load(self, path: str, largest: int) -> tuple[bytes, str]:
        """Return the content of a file and the tag of this state of it."""
        self.system.invalidate_cache()
        size = self.system.info(f"{self.root}/{path}")["size"] or 0
        _check_size(size, largest, f"{self.url}/{path}")
        return (self.system.cat_file(f"{self.root}/{path}", 0, size) if size else b""), "there"


class _Bucket(_Remote):
    """A registry in S3: it checks and keeps the SHA-256 of objects, and writes on conditions."""

    def write_if(self, path: str, data: bytes, tag: str) -> bool:
        condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        with _storage_errors(f"{self.url}/{path}"):
            try:
                self._call("put_object", path, Body=data, **condition)
            except OSError as error:
                if not _is_refused(error):
                    raise
                return False
        return True

    def holds(self, path: str, item: StoredObject, source: Path) -> bool:
        with _storage_errors(f"{self.url}/{path}"):
            try:
                head = self._call("head_object", path, ChecksumMode="ENABLED")
            except FileNotFoundError:
                return False
        if head["ContentLength"] != item.size_bytes or "ChecksumSHA256" not in head:
            return False
        if item.size_bytes <= PART_BYTES:
            return bool(head["ChecksumSHA256"] == _base64(bytes.fromhex(item.sha256)))
        parts = [
            hashlib.sha256(part).digest() for part in _checked_blocks(source, item, PART_BYTES)
        ]
        # S3 has a SHA-256 of the parts' ones, with `-` and their number behind it.
        whole = _base64(hashlib.sha256(b"".join(parts)).digest())
        return bool(head["ChecksumSHA256"].partition("-")[0] == whole)

    def send(self, path: str, item: StoredObject, source: Path) -> None:
        if item.size_bytes > PART_BYTES:
            self._send_parts(path, _checked_blocks(source, item, PART_BYTES))
            return
        data = b"".join(_checked_blocks(source, item, PART_BYTES))
        with _storage_errors(f"{self.url}/{path}"):
            self._call("put_object", path, Body=data, **_checksum(data))

    def _send_parts(self, path: str, blocks: Iterable[bytes]) -> None:
        with _storage_errors(f"{self.url}/{path}"):
            begun = self._call("create_multipart_upload", path, ChecksumAlgorithm="SHA256")
            upload = {"UploadId": begun["UploadId"]}
            parts = []
            try:
                for number, block in enumerate(blocks, 1):
                    checksum = _checksum(block)
                    answer = self._call(
                        "upload_part", path, PartNumber=number, Body=block, **upload, **checksum
                    )
                    part = {"PartNumber": number, "ETag": answer["ETag"]}
                    parts.append({**part, "ChecksumSHA256": checksum["ChecksumSHA256"]})
                self._call(
                    "complete_multipart_upload", path, MultipartUpload={"Parts": parts}, **upload
                )
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to tell
                    self._call("abort_multipart_upload", path, **upload)
                raise

    def _load(self, path: str, largest: int) -> tuple[bytes, str]:
        from fsspec.asyn import sync as wait_for

        answer = self._call("get_object", path)

        async def read() -> bytes:
            async with answer["Body"] as body:
                _check_size(answer["ContentLength"], largest, f"{self.url}/{path}")
                return bytes(await body.read())

        return wait_for(self.system.loop, read), answer["ETag"]

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self.system.split_path(f"{self.root}/{path}")
        return self.system.call_s3(method, Bucket=bucket, Key=key, **arguments)


def _checksum(data: bytes) -> dict[str, str]:
    return {
        "ChecksumAlgorithm": "SHA256",
        "ChecksumSHA256": _base64(hashlib.sha256(data).digest()),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_refused(error: OSError) -> bool:
    """Return whether S3 did not write because a condition did not hold, or was being decided."""
    response = getattr(error.__cause__, "response", None) or {}
    code = response.get("Error", {}).get("Code")
    return code in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")


def _check_size(size: int, largest: int, where: Path | str) -> None:
    if size > largest:
        raise ManifestError(f"{where}: over {largest} bytes is too large for what it should be")


@contextlib.contextmanager
def _storage_errors(where: Path | str) -> Iterator[None]:
    """Turn what goes wrong with a registry into a StorageError that names the file and says why."""
    try:
        yield
    except OrlogError:
        raise
    except Exception as error:  # each transport under fsspec has errors of its own
        number = error.errno if isinstance(error, OSError) else None
        reason = str(error) or type(error).__name__
        if isinstance(error, PermissionError):
            advice = "no permission: check the credentials and who may write there"
        elif isinstance(error, FileNotFoundError):
            advice = "no such bucket or folder: make it first, or check the name"
        elif number in (errno.ENOSPC, errno.EDQUOT):
            advice = "the disk is full: free some space"
        else:
            advice = "see whether it is there and can be reached"
        raise StorageError(
            f"{where}: {reason}; {advice}, then run the same command again, which goes on from what was "
            "sent",
            errno=number,
        ) from error
