"""Where versions are published: a folder, an S3 bucket, or whatever else fsspec writes.

A target holds small files (manifest, index, signatures), which are written conditionally, and the
objects of versions, which are checked as they are sent. Paths in a target are relative, with
forward slashes.
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import dataclasses
import errno
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orlog.base.files import hash_file, make_folder, sync, sync_all, sync_folders, take_lock
from orlog.errors import (
    IntegrityError,
    ManifestError,
    OrlogError,
    StorageError,
    VersionExistsError,
    clause,
)
from orlog.manifests.index import INDEX_FILE
from orlog.manifests.manifest import StoredObject

BLOCK_BYTES = 2**20
ATTEMPTS = 30
LONGEST_INDEX_WAIT = 60
CLAIM_FILE = ".publishing"
LARGEST_CLAIM = 2**10


@dataclasses.dataclass(frozen=True)
class Change:
    """One change to a small file.

    Attributes:
        path: Where it is.
        data: Its new content; None to remove it.
        tag: State that the file must still be in, as `Target.read` returned it; None for any.
    """

    path: str
    data: bytes | None
    tag: str | None = None


class Target(abc.ABC):
    """A place to publish versions in.

    Attributes:
        url: Its address, without a slash at the end.
        shows_cards: Whether it shows a dataset card to its visitors.
    """

    shows_cards = False

    def __init__(self, url: str) -> None:
        self.url = url

    @abc.abstractmethod
    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        """Return the content of a small file (None if there is none) and a tag of this state."""

    @abc.abstractmethod
    def apply(self, changes: Sequence[Change]) -> bool:
        """Make the changes in order, each atomically; stop and return False at a tag mismatch.

        Folders rely on their locks instead of tags. A target that can makes all changes at once.
        """

    @abc.abstractmethod
    def sole_publisher(
        self, place: str, digest: str, on_wait: Callable[[], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the right to publish a version, shared only with publishers of the same bytes."""

    def closing_changes(self, place: str) -> list[Change]:  # noqa: ARG002
        """Return the changes to make together with adding the manifest, a version's last file."""
        return []

    def sole_index_writer(
        self,
        on_wait: Callable[[], None],  # noqa: ARG002
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the exclusive right to change the index, where that is possible."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def put(self, path: str, item: StoredObject, source: Path) -> None:
        """Write an object, checking its bytes on the way, unless it is there and known to be right."""

    def send_objects(
        self,
        place: str,
        objects: Iterable[StoredObject],
        folder: Path,
        jobs: int,
        progress: Callable[[int, int], None],
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


def apply_changes(
    target: Target, changes_now: Callable[[], Sequence[Change]], what_is_left: str
) -> None:
    """Compute and make changes; start over if another writer got in first.

    Raises StorageError if other writers got in first each time; the message says what is left to do.
    """

    def attempt() -> bool:
        changes = changes_now()
        return not changes or target.apply(changes)

    retried(attempt, f"{target.url}: {what_is_left}")


def retried(attempt: Callable[[], bool], where: str) -> None:
    """Retry with growing pauses while other writers get in first (`attempt` returns False).

    Raises StorageError if no attempt succeeded.
    """
    for number in range(ATTEMPTS):
        if attempt():
            return
        time.sleep(random.uniform(0, min(2.0, 0.02 * 2**number)))  # noqa: S311 (no secret)
    raise StorageError(
        f"{where}: others changed the registry first, {ATTEMPTS} times in a row; run the same "
        "command again."
    )


def checked_blocks(path: Path, item: StoredObject, block_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of an object; raises IntegrityError at the end if they are not right."""
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
            "was not published: run orlog verify, then orlog verify --repair.",
            file=item.path,
            expected=item.sha256,
            found=digest.hexdigest(),
        )


class FolderTarget(Target):
    """A registry in a local folder. Each file is written under a temporary name, then renamed."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"file://{root.as_posix()}")
        self.root = root

    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        """Read a file; its tag is always empty, since locks replace tags here."""
        with target_errors(self.root / path):
            try:
                with (self.root / path).open("rb") as file:
                    data = file.read(largest + 1)
            except FileNotFoundError:
                return None, ""
        check_size(len(data), largest, self.root / path)
        return data, ""

    def apply(self, changes: Sequence[Change]) -> bool:
        """Rename each new file over the old one."""
        for change in changes:
            file = self.root / change.path
            if change.data is not None:
                self._replace(change.path, [change.data])
            with target_errors(file):
                if change.data is None:
                    file.unlink(missing_ok=True)
                sync(file.parent)
        return True

    @contextlib.contextmanager
    def sole_publisher(
        self,
        place: str,
        digest: str,  # noqa: ARG002
        on_wait: Callable[[], None],
    ) -> Iterator[None]:
        """Hold the lock of the version."""
        folder = self.root / place
        with self._locked(folder, on_wait):
            with target_errors(folder):
                make_folder(folder)
            yield

    def sole_index_writer(
        self, on_wait: Callable[[], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the index."""
        return self._locked(self.root / INDEX_FILE, on_wait, longest_wait=LONGEST_INDEX_WAIT)

    def put(self, path: str, item: StoredObject, source: Path) -> None:
        """Hash the file that is there; write another one under a temporary name, then rename it."""
        file = self.root / path
        with target_errors(file):
            is_there = file.is_file() and file.stat().st_size == item.size_bytes
            if is_there and hash_file(file) == item.sha256:
                return
        self._replace(path, checked_blocks(source, item, BLOCK_BYTES))

    def send_objects(
        self,
        place: str,
        objects: Iterable[StoredObject],
        folder: Path,
        jobs: int,
        progress: Callable[[int, int], None],
    ) -> None:
        """Write the objects that are missing, and make files and folders durable."""
        super().send_objects(place, objects, folder, jobs, progress)
        with target_errors(self.root / place):
            sync_folders(self.root / place)
            above = (self.root / place).parents
            sync_all(one for one in above if one == self.root or one.is_relative_to(self.root))

    @contextlib.contextmanager
    def _locked(
        self, path: Path, on_wait: Callable[[], None], *, longest_wait: float | None = None
    ) -> Iterator[None]:
        with target_errors(path):
            lock = take_lock(path, on_wait=on_wait, longest_wait=longest_wait)
        try:
            yield
        finally:
            lock.release()

    def _replace(self, path: str, blocks: Iterable[bytes]) -> None:
        file = self.root / path
        unfinished = file.with_name(f".{file.name}.unfinished")
        with target_errors(file):
            make_folder(file.parent)
            try:
                with unfinished.open("wb") as opened:
                    for block in blocks:
                        opened.write(block)
                    opened.flush()
                    os.fsync(opened.fileno())
                unfinished.replace(file)
            finally:
                unfinished.unlink(missing_ok=True)


class RemoteTarget(Target):
    """A registry written through fsspec, with no guarantees when two publish at the same time."""

    def __init__(self, system: Any, root: str, url: str) -> None:
        super().__init__(url)
        self.system = system
        self.root = root.rstrip("/")

    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        """Read a file; its tag says only whether it is there."""
        with target_errors(f"{self.url}/{path}"):
            try:
                return self._load(path, largest)
            except FileNotFoundError:
                return None, ""

    def apply(self, changes: Sequence[Change]) -> bool:
        """Write one file after the other."""
        for change in changes:
            with target_errors(f"{self.url}/{change.path}"):
                if change.data is None:
                    with contextlib.suppress(FileNotFoundError):
                        self.system.rm_file(f"{self.root}/{change.path}")
                elif not self._write(change.path, change.data, change.tag):
                    return False
        return True

    def put(self, path: str, item: StoredObject, source: Path) -> None:
        """Check a file, then send it: this system stores no checksums, so nothing that is there is believed."""
        for _ in checked_blocks(source, item, BLOCK_BYTES):
            pass
        with target_errors(f"{self.url}/{path}"):
            self.system.put_file(str(source), f"{self.root}/{path}")

    @contextlib.contextmanager
    def sole_publisher(
        self,
        place: str,
        digest: str,
        on_wait: Callable[[], None],  # noqa: ARG002 (nobody waits)
    ) -> Iterator[None]:
        """Claim the version; the claim outlives this process, so a later call can continue.

        Only a publisher of the same bytes can. The claim is removed once the manifest is there,
        which then protects the version.
        """
        (release,) = self.closing_changes(place)
        claim = release.path
        ours = digest.encode()

        def to_claim() -> list[Change]:
            claimed, tag = self.read(claim, LARGEST_CLAIM)
            if claimed is None:
                return [Change(claim, ours, tag)]
            if claimed == ours:
                return []
            raise VersionExistsError(
                f"{self.url}/{place}: another publisher has begun to publish it as "
                f"{claimed.decode(errors='replace')}, this is {digest}; if that one has given up, "
                f"remove {self.url}/{claim} and run the same command again."
            )

        apply_changes(self, to_claim, "nothing was published")
        try:
            yield
        except VersionExistsError:
            self.apply([release])
            raise
        self.apply([release])

    def closing_changes(self, place: str) -> list[Change]:
        """Remove the claim."""
        return [Change(f"{place}/{CLAIM_FILE}", None)]

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
            f"{where}: {reason}; {advice}, then run the same command again, which sends only what is "
            "still missing.",
            errno=number,
        ) from error
