"""Gets bytes from mirrors: small files, objects into part files that resume, and ranges; one loop for all (`ask`).

    mirror A ─┐  Range: bytes=N-     ┌─────────────┬ ─ ─ ─ ─ ┐
    mirror B ─┴────────────────────▶ │ N bytes held│  asked  │  part, hashed while it grows
                                     └─────────────┴ ─ ─ ─ ─ ┘

The manifest says the size and SHA-256 of every object, so no server is trusted: any mirror may give any range of an
object, and only bytes with the right hash are passed on. Less may be known of other files; without any checksum, all
bytes must come from one mirror, under the same tag (ETag).

    FOLDER/SHA256           objects of a version that are complete and durable on the disk
           SHA256.part      objects that are unfinished or perhaps not yet durable

A transfer that is interrupted at any instant resumes from these files, and all of them are hashed again: an object
may be a link to a version's file that was damaged since.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import logging
import os
import random
import shutil
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from orlog.base.files import link_or_copy, make_folder, storage_errors, sync, sync_all
from orlog.datasets.download.http import (
    BLOCK_BYTES,
    SMALL_BLOCK_BYTES,
    Failure,
    Patience,
    Stream,
    hidden,
    is_http,
    opened,
)
from orlog.datasets.home.folders import stored_objects
from orlog.datasets.home.records import Source
from orlog.datasets.store.objects import find_link, holds
from orlog.errors import IntegrityError, NotFoundError, StorageError, TransferError, clause
from orlog.manifests.manifest import StoredObject

JOBS = 16  # at once: with slow responses, half as many take a fifth longer
ROOM_LEFT = 2**26
WRONG_ANSWERS = 2  # of one mirror, after which it is not asked for these bytes again
SLEEP = 0.25
FIRST_GAP = 0.05  # seconds between requests, once a server wants fewer
SMALLEST_GAP = 0.001
LARGEST_GAP = 1.0  # longer waits are pauses, which end with the first response
_logger = logging.getLogger("orlog.download")

Progress: TypeAlias = Callable[[int, int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")
Problem = TypeVar("Problem", Failure, IntegrityError)


class Limiter:
    """A limit on the total speed of all transfers that share this object, in any thread."""

    def __init__(self, bytes_per_second: float) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"a rate limit is positive; {bytes_per_second} bytes per second is not.")
        self._rate = bytes_per_second
        # So that a wait takes at most about a tenth of a second.
        self.block_bytes = max(1024, min(BLOCK_BYTES, int(bytes_per_second / 10)))
        self._lock = threading.Lock()
        self._paid_until = time.monotonic()

    def take(self, size_bytes: int) -> None:
        """Wait until that many more bytes are allowed."""
        with self._lock:
            now = time.monotonic()
            # Unused time is saved up for a quarter of a second only.
            self._paid_until = max(self._paid_until, now - 0.25) + size_bytes / self._rate
            wait = self._paid_until - now
        if wait > 0:
            time.sleep(wait)


class Mirror:
    """A place that has the objects. Threads share it: when it wants fewer requests (429, 503), all of them wait.

    The gaps between requests double then, and recover slowly with each request that succeeds.

    Attributes:
        url: URL of the folder that the objects' paths start from.
        uses_ranges: Whether to send it range requests; false once it has answered one wrongly.
        moved_at: Time (of `time.monotonic`) at which it last gave something new.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.uses_ranges = True
        self.moved_at = 0.0
        self._free_at = self._failed_at = self._gap = 0.0
        self._lock = threading.Lock()

    def url_of(self, path: str) -> str:
        """Return the URL of an object; fsspec takes paths as they are, HTTP wants them quoted."""
        if not path:
            return self.url
        return f"{self.url}/{urllib.parse.quote(path) if is_http(self.url) else path}"

    def enter(self) -> float:
        """Reserve a request and return 0, or return the seconds after which to try again."""
        with self._lock:
            now = time.monotonic()
            if now >= self._free_at:
                self._free_at = now + self._gap
                return 0.0
            return self._free_at - now

    def hold_off(self, failure: Failure, pause: float, began: float, patience: Patience) -> None:
        """Note the failure of a request that started at `began`; after one too many, all threads wait."""
        with self._lock:
            if began < self._failed_at:  # requests of several threads that fail together are one failure
                return
            self._failed_at = time.monotonic()
            _logger.info("%s: %s; asking again in %.1f seconds", hidden(self.url), failure, pause)
            if failure.kind == "busy":
                self._free_at = max(self._free_at, self._failed_at + pause)
                self._gap = min(max(FIRST_GAP, 2 * self._gap), LARGEST_GAP, patience.longest_wait)

    def works(self) -> None:
        """Note that a request succeeded."""
        with self._lock:
            self._gap = 0.9 * self._gap if self._gap > SMALLEST_GAP else 0.0


@dataclasses.dataclass
class _Tries:
    """What one mirror did with one question, and why it did not answer it."""

    failures: int = 0
    wrong: int = 0
    failing_since: float | None = None
    again_at: float = 0.0
    reason: str = ""


def ask(
    mirrors: Sequence[Mirror],
    path: str,
    attempt: Callable[[Mirror], Result],
    patience: Patience,
    *,
    what: str = "",
    progress: Callable[[int], None] = lambda _: None,
    reasons: dict[Mirror, str] | None = None,
) -> Result:
    """Return what an attempt gets from the first mirror that gives it.

    One that fails pauses, and the next is asked; one that gives wrong bytes (IntegrityError) is asked after all
    others, and twice in all. Why mirrors did not give it is put into `reasons`.

    Raises TransferError if none is left, caused by the last failure.
    """
    began = time.monotonic()
    left, tries = list(mirrors), {mirror: _Tries() for mirror in mirrors}
    problem: Failure | IntegrityError | None = None
    try:
        while left:
            mirror = _free_mirror(left, tries, progress)
            own, asked_at = tries[mirror], time.monotonic()
            try:
                result = attempt(mirror)
            except IntegrityError as error:
                problem, own.reason = _alone(error), clause(error)
                own.wrong += 1
                left.remove(mirror)
                if own.wrong < WRONG_ANSWERS:
                    left.append(mirror)
            except Failure as failure:
                problem = _alone(failure)
                if _is_given_up(mirror, own, failure, patience, began, asked_at):
                    left.remove(mirror)
            else:
                mirror.works()
                return result
        attempts = [f"{mirror.url_of(path)}: {tries[mirror].reason}" for mirror in mirrors]
        if what:
            message = (
                f"{what}: none of {len(mirrors)} mirrors gave it; run the same command again, which goes on from "
                "there, or name another mirror" + "".join(f"\n  {text}" for text in attempts)
            )
        else:
            message = f"{'; '.join(attempts)}; check the address and the network, then run the same command again."
        raise TransferError(message, attempts=attempts) from problem
    finally:
        if reasons is not None:
            reasons |= {mirror: own.reason for mirror, own in tries.items() if own.reason}


def _alone(error: Problem) -> Problem:
    """Return an error without what led to it: its frames would hold connections open."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _free_mirror(left: Sequence[Mirror], tries: Mapping[Mirror, _Tries], progress: Callable[[int], None]) -> Mirror:
    """Wait for a mirror that may be asked; return the first, with a request reserved."""
    while True:
        wait = SLEEP
        for mirror in left:
            seconds = tries[mirror].again_at - time.monotonic()
            if seconds <= 0:
                seconds = mirror.enter()
            if seconds <= 0:
                return mirror
            wait = min(wait, seconds)
        time.sleep(wait)
        progress(0)


def _is_given_up(
    mirror: Mirror, own: _Tries, failure: Failure, patience: Patience, began: float, asked_at: float
) -> bool:
    """Note why a request failed and when to ask again, and return whether the mirror is asked no more."""
    now = time.monotonic()
    if failure.gave_more:
        own.failures, own.failing_since = 0, None
    own.failures += 1
    tried = "tried once" if own.failures == 1 else f"tried {own.failures} times"
    own.reason = f"{failure} ({tried})"
    if failure.kind in ("final", "missing"):
        return True
    if failure.kind == "wrong range":
        mirror.uses_ranges = False
    own.failing_since = own.failing_since or now
    # While other threads still get data from this mirror, this object may succeed too.
    idle = now - max(mirror.moved_at, own.failing_since)
    if own.failures >= patience.attempts and idle >= patience.idle:
        own.reason += f", nothing new for {idle:.0f} seconds" if patience.idle else ""
        return True
    # A wait of 0 counts only once: a server that always sends it would be asked without end.
    if failure.wait is not None and (failure.wait > 0 or own.failures == 1):
        pause = min(failure.wait, patience.longest_wait)
    else:
        pause = min(patience.first_wait * 2.0 ** min(own.failures - 1, 30), patience.longest_wait)
        pause *= random.uniform(0.5, 1)  # noqa: S311 (clients that failed together come back apart)
    if failure.kind == "unreached" and not mirror.moved_at and now + pause - began > patience.unreached:
        own.reason += "; is this machine online?"
        return True
    mirror.hold_off(failure, pause, asked_at, patience)
    if failure.kind != "busy":  # perhaps only this object fails: others need not wait
        own.again_at = now + pause
    return False


def read_small(url: str, limit: int, *, patience: Patience = Patience()) -> bytes:
    """Return a whole small file, of at most `limit` bytes, unchecked; NotFoundError if the server has none."""
    try:
        return read_first([url], limit, patience=patience)[0]
    except TransferError as error:
        if isinstance(error.__cause__, Failure) and error.__cause__.kind == "missing":
            raise NotFoundError(f"{'; '.join(error.attempts)}; check the address.") from error
        raise


def read_first(urls: Sequence[str], limit: int, *, patience: Patience = Patience()) -> tuple[bytes, str]:
    """Return a small file, and the URL of the first place that gives it."""
    patience = dataclasses.replace(patience, idle=0.0)

    def attempt(mirror: Mirror) -> tuple[bytes, str]:
        data = bytearray()
        with opened(mirror.url, patience) as stream:
            if stream.total is not None and stream.total > limit:
                raise Failure(f"has {stream.total} bytes, more than the {limit} allowed", "final")
            # One byte more than allowed is asked for, so that a longer file is seen.
            while block := stream.read(min(BLOCK_BYTES, limit + 1 - len(data))):
                data += block
                if len(data) > limit:
                    raise Failure(f"has more than the {limit} bytes allowed", "final")
        return bytes(data), mirror.url

    return ask([Mirror(url) for url in urls], "", attempt, patience)


# Whole files, into parts that resume.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of a file: its path below a mirror's URL, empty if that is the file's; its size and checksums."""

    path: str = ""
    size_bytes: int | None = None
    sha256: str = ""
    md5: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fetched:
    """A file that was downloaded: the URLs that gave bytes of it, and why others did not, by URL."""

    sha256: str
    sources: tuple[str, ...]
    failed: Mapping[str, str]


def fetch_object(
    mirrors: Sequence[Mirror],
    item: Expected,
    part: Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
    limiter: Limiter | None = None,
    patience: Patience = Patience(),
) -> Fetched:
    """Download one object into a file, resuming after the bytes that the file already holds.

    Asks the first mirror that is not pausing. One that fails pauses, and the next continues where it stopped.
    Afterwards the file has exactly the expected bytes, and still needs `sync`. One caller at a time may use a part.
    Bytes that are not known to be wrong stay in it after an error. A file without a known checksum starts again with each call, and
    whenever a mirror does not confirm that its bytes are still the same.

    `progress` gets the bytes that the part grew by: first those that it held already; negative when bytes are
    discarded; zero now and then while waiting. They add up to the object's size. An exception that it raises
    ends the transfer.
    """
    reasons: dict[Mirror, str] = {}
    with storage_errors(part):
        make_folder(part.parent)
        file = part.open("a+b", buffering=0)
    with file:
        target = _Part(file, part, item, progress, limiter)
        if target.size == target.total and target.difference:
            target.discard()
        if target.size != target.total:
            size = "" if item.size_bytes is None else f" ({item.size_bytes} bytes)"
            what = f"{item.path or 'the file'}{size}"

            def attempt(mirror: Mirror) -> None:
                target.receive(mirror, patience)

            ask(mirrors, item.path, attempt, patience, what=what, progress=progress, reasons=reasons)
    return Fetched(
        sha256=target.digests["sha256"].hexdigest(),
        sources=tuple(mirror.url_of(item.path) for mirror in mirrors if mirror in target.sources),
        failed={
            mirror.url_of(item.path): reasons[mirror]
            for mirror in mirrors
            if mirror in reasons and target.sources != {mirror}
        },
    )


class _Part:
    """The file that an object is downloaded into, and the hashes of the bytes it holds.

    Attributes:
        size: Bytes that it holds.
        total: Bytes that it will hold; None as long as that is unknown.
        sources: Mirrors that its bytes came from.
        digests: Hashes of its bytes, by name.
    """

    def __init__(
        self, file: Any, path: Path, item: Expected, progress: Callable[[int], None], limiter: Limiter | None
    ) -> None:
        """Hash the bytes that an earlier transfer left; too many, or some that nothing proves, are discarded."""
        self._file, self._path, self._progress, self._limiter = file, path, progress, limiter
        self._item = item
        sums = {"sha256": item.sha256, "md5": item.md5}
        self._expected = {name: value for name, value in sums.items() if value}
        self.size, self.total = 0, item.size_bytes
        self.sources: set[Mirror] = set()
        self.digests = self._no_bytes()
        self._state: tuple[Mirror, str, int | None] | None = None
        self._furthest = 0  # bytes that it ever held: what comes again is nothing new
        self._is_mixed_up = False  # after wrong bytes each mirror has to give all of them
        with storage_errors(path):
            held = os.fstat(file.fileno()).st_size
            if not self._expected or (self.total is not None and held > self.total):
                file.truncate(0)
            file.seek(0)
            while block := file.read(BLOCK_BYTES):
                self._count(block)
        if self.size and self.total is None and not self.difference:
            self.total = self.size

    @property
    def difference(self) -> str:
        """How its checksum differs from the expected one; empty if it does not."""
        for name, expected in self._expected.items():
            digest = self.digests[name].hexdigest()
            if digest != expected:
                return f"{name} {digest}, expected {expected}"
        return ""

    def receive(self, mirror: Mirror, patience: Patience) -> None:
        """Ask a mirror once; raise Failure if it is not full then, IntegrityError if it is and was wrong."""
        if self._is_mixed_up and self.sources - {mirror}:
            self.discard()
        self._furthest = furthest = max(self._furthest, self.size)
        try:
            self._append_missing(mirror, patience)
        except Failure as failure:
            # Too few bytes do not count, or a server that gives one each time is asked for days.
            failure.gave_more = self.size - furthest >= SMALL_BLOCK_BYTES
            raise
        if difference := self.difference:
            self._is_mixed_up = True
            self.discard()
            raise IntegrityError(f"gave {difference}")

    def _append_missing(self, mirror: Mirror, patience: Patience) -> None:
        most = self._limiter.block_bytes if self._limiter else BLOCK_BYTES
        state = self._state
        is_safe = bool(self._expected) or (state is not None and state[0] is mirror and bool(state[1]))
        start = self.size if mirror.uses_ranges and is_safe else 0
        with opened(mirror.url_of(self._item.path), patience, start) as stream:
            self._begin(mirror, stream)
            # A server that does not support ranges sends the held bytes once more.
            skip = self.size - stream.start
            while self.size != self.total:
                missing = most if self.total is None else self.total - self.size
                block = stream.read(min(most, skip or missing))
                if not block:
                    self._end(stream, skip)
                    break
                if self._limiter:
                    self._limiter.take(len(block))
                if skip:
                    skip -= len(block)
                    continue
                self.sources.add(mirror)
                with storage_errors(self._path):
                    rest = memoryview(block)
                    while rest:
                        rest = rest[self._file.write(rest) or 0 :]
                self._count(block)
                if self.size - self._furthest >= SMALL_BLOCK_BYTES or self.size == self.total:
                    mirror.moved_at = time.monotonic()

    def _begin(self, mirror: Mirror, stream: Stream) -> None:
        """Check the mirror's response; discard held bytes that may not match."""
        expected = self._item.size_bytes
        if expected is not None and stream.total not in (None, expected):
            raise Failure(f"has {stream.total} bytes, expected {expected}", "final")
        state = (mirror, stream.tag, stream.total)
        if self._expected:
            fits = self.total in (None, stream.total) and self.size <= (stream.total or 0)
            is_same = stream.total is None or fits
        else:
            is_same = bool(stream.tag) and state == self._state
        if self.size and not is_same:
            self.discard()
        self._state = state
        if stream.total is not None or not self._expected:
            self.total = expected if expected is not None else stream.total
        if stream.start > self.size:
            raise Failure("has other bytes than before, so the file is needed from its first byte", wait=0)

    def _end(self, stream: Stream, skip: int) -> None:
        """Take the end of a stream for that of the file, if it is; raise Failure if not."""
        if skip and self.total is None:
            self.discard()
            raise Failure("has fewer bytes than were here, which are discarded", wait=0)
        if not skip and self.total is None and (self._expected or stream.ends_surely):
            self.total = self.size
        if skip or self.size != self.total:
            total = "" if self.total is None else f" of {self.total}"
            raise Failure(f"ended after {self.size - skip}{total} bytes")

    def discard(self) -> None:
        """Discard all bytes."""
        with storage_errors(self._path):
            self._file.truncate(0)
        self.digests = self._no_bytes()
        self.total = self._item.size_bytes
        size, self.size = self.size, 0
        self.sources.clear()
        self._progress(-size)

    def _no_bytes(self) -> dict[str, Any]:
        md5 = {"md5": hashlib.md5(usedforsecurity=False)} if self._item.md5 else {}
        return {"sha256": hashlib.sha256(), **md5}

    def _count(self, data: bytes) -> None:
        for digest in self.digests.values():
            digest.update(data)
        self.size += len(data)
        self._progress(len(data))


# All objects of a version, several at once.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """How objects are downloaded; `progress` (bytes) and `on_objects` are called from one thread at a time."""

    jobs: int = JOBS
    limiter: Limiter | None = None
    progress: Progress = lambda _done, _total: None
    on_objects: Progress = lambda _done, _total: None
    patience: Patience = Patience()


def download_folder(destination: Path) -> Path:
    """Return the folder that holds a version's objects until all of them have arrived."""
    return destination.with_name(f".{destination.name}.download")


def fetch_objects(
    source: Source,
    objects: Iterable[StoredObject],
    folder: Path,
    options: TransferOptions,
    *,
    damaged: Path | None = None,
    also_here: Mapping[str, Path] | None = None,
) -> None:
    """Download the objects that a folder lacks, each to a file named by its SHA-256; what arrived stays on errors.

    Objects that another version on this machine has are linked or copied, if their bytes are right: of any
    but the folder `damaged`, and of the local files in `also_here`, by SHA-256.
    """
    items = {item.sha256: item for item in objects}
    with storage_errors(folder):
        make_folder(folder)
        for sha256, item in items.items():
            if (folder / sha256).is_file() and not holds(folder / sha256, item):
                (folder / sha256).unlink()
        wanted = items.keys() - _file_sizes(folder).keys()
        here: dict[str, Path] = {}
        for other, item in stored_objects() if wanted else ():
            if item.sha256 in wanted and other != damaged and find_link(other, item.path) is None:
                here[item.sha256] = other / item.path
        here |= also_here or {}
        for sha256 in wanted & here.keys():
            with contextlib.suppress(FileNotFoundError):  # a version may be removed meanwhile
                if holds(here[sha256], items[sha256]):
                    link_or_copy(here[sha256], folder / sha256)
        held = _file_sizes(folder)
    missing = [item for item in items.values() if item.sha256 not in held]
    check_room(folder, sum(item.size_bytes - held.get(f"{item.sha256}.part", 0) for item in missing))
    total = sum(item.size_bytes for item in items.values())
    done = total - sum(item.size_bytes for item in missing)
    progress = TransferProgress(options, total, done, objects=len(items), objects_done=len(items) - len(missing))
    mirrors = [Mirror(url) for url in source.mirrors]

    def fetch(item: StoredObject) -> None:
        fetch_object(
            mirrors,
            Expected(path=item.path, size_bytes=item.size_bytes, sha256=item.sha256),
            folder / f"{item.sha256}.part",
            progress=progress.add,
            limiter=options.limiter,
            patience=options.patience,
        )
        progress.finish_object()

    missing.sort(key=lambda item: -item.size_bytes)
    fetch_at_once(fetch, missing, options.jobs, progress)
    parts = {folder / f"{item.sha256}.part": folder / item.sha256 for item in missing}
    with storage_errors(folder):
        sync_all(parts)  # one wait for the disk covers many
        for part, path in parts.items():
            part.rename(path)
        sync(folder)


def fetch_at_once(
    fetch: Callable[[Item], Result], items: Sequence[Item], jobs: int, progress: TransferProgress
) -> list[Result]:
    """Return what `fetch` gives for each item, several at once; the first error ends the others."""
    with concurrent.futures.ThreadPoolExecutor(jobs, "orlog-download") as pool:
        waiting = [pool.submit(fetch, item) for item in items]
        try:
            for done in concurrent.futures.as_completed(waiting):
                done.result()
        except BaseException:
            progress.is_stopped = True
            pool.shutdown(cancel_futures=True)
            raise
        return [done.result() for done in waiting]


class TransferProgress:
    """Adds up what threads download; once it `is_stopped`, the next call of `add` ends each transfer."""

    def __init__(self, options: TransferOptions, total: int, done: int, *, objects: int, objects_done: int) -> None:
        self._lock = threading.Lock()
        self._options = options
        self._total, self._done = total, done
        self._objects, self._objects_done = objects, objects_done
        self.is_stopped = False
        options.on_objects(objects_done, objects)
        options.progress(done, total)

    def add(self, count: int) -> None:
        """Count bytes."""
        with self._lock:
            if self.is_stopped:
                raise _StoppedError
            self._done += count
            self._options.progress(self._done, max(self._done, self._total))

    def finish_object(self) -> None:
        """Count an object."""
        with self._lock:
            self._objects_done += 1
            self._options.on_objects(self._objects_done, self._objects)


class _StoppedError(Exception):
    """Another transfer has failed; this one ends."""


def check_room(folder: Path, needed: int) -> None:
    """Refuse to download so many more bytes into a folder that is there, before it starts, if they cannot fit."""
    with storage_errors(folder):
        free = shutil.disk_usage(folder).free
    if needed and needed + min(needed, ROOM_LEFT) > free:
        raise StorageError(
            f"{folder.parent}: {needed:,} bytes must still be downloaded, but {free:,} are free; free some "
            "space or set ORLOG_HOME to another disk, then run the same command again."
        )


def _file_sizes(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}
