"""Where versions are published: a folder, an S3 bucket, a repository of the Hugging Face Hub, or what else fsspec writes.

A target holds small files (manifest, index, signatures), which are written conditionally, and the
objects of versions, which are checked as they are sent. Paths in a target are relative, with
forward slashes.

A repository of the Hub is written by commits. Commits are few, since the Hub limits how many are made per hour; a
change that depends on what was read names the commit that was read as its parent, and the Hub refuses it once there
is a newer one:

    1. add `.publishing`, which claims the version              one commit
    2. add objects                                              one commit per 200 files or 256 MiB
    3. add manifest.json and its signature, remove the claim    one commit
    4. replace index.json and its signature                     one commit
    5. add the dataset card and its picture                     one commit
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orlog.base.files import absolute_path, make_folder, replace_file, sync, sync_all, sync_folders, take_lock
from orlog.datasets.download.http import missing_backend
from orlog.datasets.store.objects import holds, mismatch
from orlog.errors import ManifestError, NotFoundError, OrlogError, StorageError, VersionExistsError, clause
from orlog.manifests.index import INDEX_FILE
from orlog.manifests.manifest import StoredObject
from orlog.manifests.names import counted, is_url

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

BLOCK_BYTES = 2**20
ATTEMPTS = 30
LONGEST_INDEX_WAIT = 60
CLAIM_FILE = ".publishing"
BATCH_FILES = 200  # of a commit to the Hub
BATCH_BYTES = 2**28
LARGEST_HELD = 2**24
LARGEST_CLAIM = 2**10


@dataclasses.dataclass(frozen=True)
class Change:
    """One change to a small file: its new content, or None to remove it.

    `tag` is the state that the file must still be in, as `Target.read` returned it; None for any.
    """

    path: str
    data: bytes | None
    tag: str | None = None


class Target:
    """A registry written through fsspec, with no guarantees when two publish at the same time.

    Attributes:
        url: Its address, without a slash at the end.
        shows_cards: Whether it shows a dataset card to its visitors.
    """

    shows_cards = False

    def __init__(self, url: str, system: Any, root: str) -> None:
        self.url, self.system, self.root = url, system, root.rstrip("/")

    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        """Return the content of a small file (None if there is none) and a tag of this state."""
        with target_errors(f"{self.url}/{path}"):
            try:
                return self._load(path, largest)
            except FileNotFoundError:
                return None, ""

    def apply(self, changes: Sequence[Change]) -> bool:
        """Make the changes in order, each atomically; stop and return False at a tag mismatch."""
        for change in changes:
            with target_errors(f"{self.url}/{change.path}"):
                if change.data is None:
                    with contextlib.suppress(FileNotFoundError):
                        self.system.rm_file(f"{self.root}/{change.path}")
                elif not self._write(change.path, change.data, change.tag):
                    return False
        return True

    def apply_all(self, changes_now: Callable[[], Sequence[Change]], what_is_left: str) -> None:
        """Compute and make changes; start over while other writers get in first."""

        def attempt() -> bool:
            changes = changes_now()
            return not changes or self.apply(changes)

        _retried(attempt, f"{self.url}: {what_is_left}")

    @contextlib.contextmanager
    def sole_publisher(self, place: str, digest: str, on_wait: Callable[[], None]) -> Iterator[None]:  # noqa: ARG002
        """Claim a version for publishers of the same bytes; the claim outlives this process, so a later call continues.

        It is removed once the manifest is there, which then protects the version.
        """
        (release,) = self.closing_changes(place)

        def to_claim() -> list[Change]:
            claimed, tag = self.read(release.path, LARGEST_CLAIM)
            if claimed is None:
                return [Change(release.path, digest.encode(), tag)]
            if claimed == digest.encode():
                return []
            raise VersionExistsError(
                f"{self.url}/{place}: another publisher has begun to publish it as "
                f"{claimed.decode(errors='replace')}, this is {digest}; if that one has given up, "
                f"remove {self.url}/{release.path} and run the same command again."
            )

        self.apply_all(to_claim, "nothing was published")
        try:
            yield
        except VersionExistsError:
            self.apply([release])
            raise
        self.apply([release])

    def closing_changes(self, place: str) -> list[Change]:
        """Return the changes to make together with adding the manifest, a version's last file: remove the claim."""
        return [Change(f"{place}/{CLAIM_FILE}", None)]

    def sole_index_writer(self, on_wait: Callable[[], None]) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Hold the exclusive right to change the index, where that is possible."""
        return contextlib.nullcontext()

    def put(self, path: str, item: StoredObject, source: Path, **options: Any) -> None:
        """Check a file, then send it: this system stores no checksums, so nothing that is there is believed."""
        for _ in checked_blocks(source, item):
            pass
        with target_errors(f"{self.url}/{path}"):
            self.system.put_file(str(source), f"{self.root}/{path}", **options)

    def send_objects(
        self, place: str, objects: Sequence[StoredObject], folder: Path, jobs: int, progress: Callable[[int, int], None]
    ) -> None:
        """Write the objects of a folder that are not there, and wait until they are durable."""

        def send(item: StoredObject) -> int:
            self.put(f"{place}/{item.path}", item, folder / item.path)
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

    def _write(self, path: str, data: bytes, tag: str | None) -> bool:
        """Write a small file unless its tag differs; here tags only say whether it exists."""
        if tag == "":
            self.system.invalidate_cache()
            if self.system.exists(f"{self.root}/{path}"):
                return False
        self.system.pipe_file(f"{self.root}/{path}", data)
        return True

    def _load(self, path: str, largest: int) -> tuple[bytes, str]:
        """Return the content of a file and the tag of this state of it."""
        self.system.invalidate_cache()
        size = self.system.info(f"{self.root}/{path}")["size"] or 0
        check_size(size, largest, f"{self.url}/{path}")
        return (self.system.cat_file(f"{self.root}/{path}", 0, size) if size else b""), "there"


def open_target(target: str) -> Target:
    """Return the target that a folder or URL names."""
    if not is_url(target):
        return FolderTarget(absolute_path(target))
    scheme = target.partition("://")[0]
    if scheme in ("http", "https"):
        # Without a password and the query of a signed URL.
        place = target.partition("://")[2].partition("?")[0].rpartition("@")[2]
        raise StorageError(
            f"{scheme}://{place}: cannot publish to a web server; publish to the folder or bucket it serves."
        )
    url = target.rstrip("/")
    if not is_url(url):
        raise NotFoundError(f"{target}: names no folder or bucket.")
    import fsspec

    try:
        # A fresh system: a cached one may hold old credentials, servers and listings.
        system, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:
        raise missing_backend(url, error) from error
    except Exception as error:  # each backend of fsspec has its own errors
        raise NotFoundError(f"{target}: cannot be opened: {clause(error)}.") from error
    protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    if "file" in protocols:
        return FolderTarget(Path(root))
    if "s3" in protocols:
        return BucketTarget(url, system, root)
    if "hf" in protocols and not root.startswith("buckets/"):
        return HubTarget(url, system, root)
    return Target(url, system, root)


def _retried(attempt: Callable[[], bool], where: str) -> None:
    """Retry with growing pauses while other writers get in first (`attempt` returns False)."""
    for number in range(ATTEMPTS):
        if attempt():
            return
        time.sleep(random.uniform(0, min(2.0, 0.02 * 2**number)))  # noqa: S311 (no secret)
    raise StorageError(
        f"{where}: others changed the registry first, {ATTEMPTS} times in a row; run the same command again."
    )


def checked_blocks(path: Path, item: StoredObject) -> Iterator[bytes]:
    """Yield the bytes of an object; raises IntegrityError at the end if they are not right."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while size <= item.size_bytes and (block := file.read(BLOCK_BYTES)):
                size += len(block)
                digest.update(block)
                yield block
        problem = f"{size} bytes with sha256 {digest.hexdigest()}"
    except OSError as error:
        problem = error.strerror or str(error)
    if (size, digest.hexdigest()) != (item.size_bytes, item.sha256):
        expected = f"{item.size_bytes} bytes with sha256 {item.sha256}"
        advice = "it was not published: run orlog verify, then orlog verify --repair."
        raise mismatch(str(path), item.path, expected, problem, advice)


class FolderTarget(Target):
    """A registry in a local folder. Each file is written under a temporary name, then renamed; locks replace tags."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"file://{root.as_posix()}", None, "")
        self._root = root

    def _load(self, path: str, largest: int) -> tuple[bytes, str]:
        with (self._root / path).open("rb") as file:
            data = file.read(largest + 1)
        check_size(len(data), largest, self._root / path)
        return data, ""

    def apply(self, changes: Sequence[Change]) -> bool:
        """Rename each new file over the old one."""
        for change in changes:
            file = self._root / change.path
            with target_errors(file):
                if change.data is None:
                    file.unlink(missing_ok=True)
                    sync(file.parent)
                else:
                    make_folder(file.parent)
                    replace_file(file, change.data)
        return True

    @contextlib.contextmanager
    def sole_publisher(self, place: str, digest: str, on_wait: Callable[[], None]) -> Iterator[None]:  # noqa: ARG002
        """Hold the lock of the version."""
        folder = self._root / place
        with self._locked(folder, on_wait):
            with target_errors(folder):
                make_folder(folder)
            yield

    def closing_changes(self, place: str) -> list[Change]:  # noqa: ARG002
        """Return nothing: a lock needs no change."""
        return []

    def sole_index_writer(self, on_wait: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the index."""
        return self._locked(self._root / INDEX_FILE, on_wait, longest_wait=LONGEST_INDEX_WAIT)

    def put(self, path: str, item: StoredObject, source: Path, **_options: Any) -> None:
        """Hash the file that is there; write another one under a temporary name, then rename it."""
        file = self._root / path
        unfinished = file.with_name(f".{file.name}.unfinished")
        with target_errors(file):
            if holds(file, item):
                return
            make_folder(file.parent)
            try:
                with unfinished.open("wb") as opened:
                    for block in checked_blocks(source, item):
                        opened.write(block)
                    opened.flush()
                    os.fsync(opened.fileno())
                unfinished.replace(file)
            finally:
                unfinished.unlink(missing_ok=True)

    def send_objects(
        self, place: str, objects: Sequence[StoredObject], folder: Path, jobs: int, progress: Callable[[int, int], None]
    ) -> None:
        """Write the objects that are missing, and make files and folders durable."""
        super().send_objects(place, objects, folder, jobs, progress)
        with target_errors(self._root / place):
            sync_folders(self._root / place)
            above = (self._root / place).parents
            sync_all(parent for parent in above if parent == self._root or parent.is_relative_to(self._root))

    @contextlib.contextmanager
    def _locked(self, path: Path, on_wait: Callable[[], None], *, longest_wait: float | None = None) -> Iterator[None]:
        with target_errors(path):
            lock = take_lock(path, on_wait=on_wait, longest_wait=longest_wait)
        try:
            yield
        finally:
            lock.release()


class BucketTarget(Target):
    """A registry in S3, which writes conditionally, and keeps what is known of an object beside it."""

    def put(self, path: str, item: StoredObject, source: Path, **options: Any) -> None:
        """Send a file with its SHA-256, unless an object is there that was sent so."""
        with target_errors(f"{self.url}/{path}"):
            try:
                head = self._call("head_object", path)
            except FileNotFoundError:
                head = {"ContentLength": -1}
        if (head["ContentLength"], head.get("Metadata", {}).get("sha256")) != (item.size_bytes, item.sha256):
            super().put(path, item, source, Metadata={"sha256": item.sha256}, **options)

    def _write(self, path: str, data: bytes, tag: str | None) -> bool:
        condition = {} if tag is None else {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        try:
            self._call("put_object", path, Body=data, **condition)
        except OSError as error:
            # Its condition failed, or another write was under way.
            response = getattr(error.__cause__, "response", None) or {}
            code = response.get("Error", {}).get("Code")
            if code not in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"):
                raise
            return False
        return True

    def _load(self, path: str, largest: int) -> tuple[bytes, str]:
        from fsspec.asyn import sync as wait_for

        answer = self._call("get_object", path)

        async def read() -> bytes:
            async with answer["Body"] as body:
                check_size(answer["ContentLength"], largest, f"{self.url}/{path}")
                return bytes(await body.read())

        return wait_for(self.system.loop, read), answer["ETag"]

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self.system.split_path(f"{self.root}/{path}")
        return self.system.call_s3(method, Bucket=bucket, Key=key, **arguments)


class HubTarget(Target):
    """A registry in a repository of the Hub; a file's tag is the commit it was read from."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        super().__init__(url, system, root)
        from huggingface_hub import HfApi

        with _hub_errors(url):
            where = system.resolve_path(root)
        self._folder = where.path_in_repo
        kind = "" if where.repo_type == "model" else f"{where.repo_type}s/"
        self._repository_root = f"{kind}{where.repo_id}"
        self._api = HfApi(endpoint=system.endpoint, token=system.token)
        self._repository = {"repo_id": where.repo_id, "repo_type": where.repo_type}
        self._branch = where.revision
        # The Hub shows the README.md of the repository itself, not one in a folder.
        self.shows_cards = where.repo_type == "dataset" and not self._folder

    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        """Read a file as it is in the newest commit."""
        from huggingface_hub.errors import EntryNotFoundError

        with _hub_errors(f"{self.url}/{path}"):
            newest = str(self._api.repo_info(revision=self._branch, **self._repository).sha)
            try:
                # Without blocks, so that the file is not looked up in cached listings.
                where = f"{self._repository_root}/{self._path(path)}"
                with self.system.open(where, "rb", block_size=0, revision=newest) as file:
                    data = file.read(largest + 1)
            except (FileNotFoundError, EntryNotFoundError):
                return None, newest
        check_size(len(data), largest, f"{self.url}/{path}")
        return data, newest

    def apply(self, changes: Sequence[Change]) -> bool:
        """Make all changes in one commit."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        tags = {change.tag for change in changes} - {None}
        if len(tags) > 1:  # the repository changed between two reads
            return False
        operations: list[CommitOperationAdd | CommitOperationDelete] = []
        with _hub_errors(f"{self.url}/{changes[-1].path}"):
            for change in changes:
                path = self._path(change.path)
                if change.data is not None:
                    operations.append(CommitOperationAdd(path, change.data))
                elif self._api.get_paths_info(paths=[path], revision=self._branch, **self._repository):
                    operations.append(CommitOperationDelete(path))
            names = ", ".join(change.path for change in changes)
            return not operations or self._commit(operations, names, parent=next(iter(tags), None))

    def send_objects(
        self, place: str, objects: Sequence[StoredObject], folder: Path, jobs: int, progress: Callable[[int, int], None]
    ) -> None:
        """Commit the objects that are missing, then check that the Hub has all of them."""
        missing = self._missing(place, objects, folder)
        total = sum(item.size_bytes for item in objects)
        done = total - sum(item.size_bytes for item in missing)
        progress(done, total)
        for batch in _batches(missing):
            where = f"{self.url}/{place}"
            with _hub_errors(where):
                _retried(functools.partial(self._send, place, batch, folder, jobs), where)
            done += sum(item.size_bytes for item in batch)
            progress(done, total)
        lost = self._missing(place, missing, folder) if missing else []
        if lost:
            raise StorageError(
                f"{self.url}/{place}: {lost[0].path} was sent, and the Hub does not have it as it was "
                "sent; if a .gitignore of the repository names it, change that, then run the same "
                "command again."
            )

    def _send(self, place: str, batch: Sequence[StoredObject], folder: Path, jobs: int) -> bool:
        from huggingface_hub import CommitOperationAdd

        operations = []
        for item in batch:
            # A large file could change before it is sent; the Hub then notices, since it compares the SHA-256.
            held = [block for block in checked_blocks(folder / item.path, item) if item.size_bytes <= LARGEST_HELD]
            content = b"".join(held) if item.size_bytes <= LARGEST_HELD else folder / item.path
            operations.append(CommitOperationAdd(self._path(f"{place}/{item.path}"), content))
        return self._commit(operations, f"{place}: {counted(len(batch), 'file')}", jobs=jobs)

    def _commit(self, operations: Sequence[Any], message: str, *, parent: str | None = None, jobs: int = 1) -> bool:
        """Commit; return False if another commit got in first."""
        from huggingface_hub.errors import HfHubHTTPError

        try:
            with _no_bars():
                self._api.create_commit(
                    operations=operations,
                    commit_message=f"orlog publish: {message}",
                    revision=self._branch,
                    parent_commit=parent,
                    num_threads=jobs,
                    **self._repository,
                )
        except HfHubHTTPError as error:
            if error.response.status_code not in (409, 412):
                raise
            return False
        return True

    def _missing(self, place: str, objects: Iterable[StoredObject], folder: Path) -> list[StoredObject]:
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        with _hub_errors(f"{self.url}/{place}"):
            try:
                listed = self._api.list_repo_tree(
                    path_in_repo=self._path(place), recursive=True, revision=self._branch, **self._repository
                )
                held = {entry.path: entry for entry in listed if isinstance(entry, RepoFile)}
            except EntryNotFoundError:
                held = {}
        return [
            item
            for item in objects
            if not _is_same(held.get(self._path(f"{place}/{item.path}")), item, folder / item.path)
        ]

    def _path(self, path: str) -> str:
        return f"{self._folder}/{path}" if self._folder else path


def _is_same(held: RepoFile | None, item: StoredObject, source: Path) -> bool:
    """Return whether a file on the Hub has the bytes of an object, by the Hub's checksum."""
    if held is None or held.size != item.size_bytes:
        return False
    if held.lfs is not None:
        return bool(held.lfs.sha256 == item.sha256)
    digest = hashlib.sha1(b"blob %d\0" % item.size_bytes, usedforsecurity=False)
    for block in checked_blocks(source, item):
        digest.update(block)
    return bool(held.blob_id == digest.hexdigest())


def _batches(objects: Iterable[StoredObject]) -> Iterator[list[StoredObject]]:
    batch: list[StoredObject] = []
    size = 0
    for item in objects:
        if batch and (len(batch) == BATCH_FILES or size + item.size_bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.size_bytes
    if batch:
        yield batch


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextlib.contextmanager
def _hub_errors(where: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    advice = "make it first, or give a token with access to it (hf auth login, or HF_TOKEN)"
    with target_errors(where):
        try:
            yield
        except RepositoryNotFoundError as error:
            raise NotFoundError(f"{where}: there is no such repository; {advice}.") from error
        except FileNotFoundError as error:
            raise NotFoundError(f"{where}: {clause(error)}; {advice}.") from error
        except HfHubHTTPError as error:
            if error.response.status_code in (401, 403):
                raise PermissionError(f"the Hub refuses the token (HTTP {error.response.status_code}).") from error
            raise


def check_size(size: int, largest: int, where: Path | str) -> None:
    """Refuse a small file that is too large for what it should be."""
    if size > largest:
        raise ManifestError(f"{where}: expected at most {largest} bytes, found {size}.")


@contextlib.contextmanager
def target_errors(where: Path | str) -> Iterator[None]:
    """Turn errors of a registry into a StorageError that names the file and the reason."""
    try:
        yield
    except OrlogError:
        raise
    except Exception as error:  # each backend of fsspec has its own errors
        number = error.errno if isinstance(error, OSError) else None
        reason = clause(error) or type(error).__name__
        if isinstance(error, PermissionError):
            advice = "no permission: check the credentials and who may write to it"
        elif isinstance(error, FileNotFoundError):
            advice = "no such bucket or folder: make it first, or check the name"
        elif number in (errno.ENOSPC, errno.EDQUOT):
            advice = "the disk is full: free some space"
        else:
            advice = "check that it exists and can be reached"
        raise StorageError(
            f"{where}: {reason}; {advice}, then run the same command again, which sends only what is still missing.",
            errno=number,
        ) from error
