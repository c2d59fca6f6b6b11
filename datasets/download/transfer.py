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
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from orlog.base.files import hash_file, link_or_copy, make_folder, storage_errors, sync, sync_all
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
from orlog.datasets.store.objects import find_link
from orlog.errors import IntegrityError, NotFoundError, StorageError, TransferError, clause
from orlog.manifests.manifest import StoredObject

JOBS = 16  # at once: with slow responses, half as many take a fifth longer
ROOM_LEFT = 2**26
BATCH_SIZE = 32  # small objects that a thread takes at once
# Syncing takes longer than downloading less, so small objects are synced together.
SMALL_BYTES = 2**16
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
        self._lock = threading.Lock()
        self._paid_until = time.monotonic()

    @property
    def block_bytes(self) -> int:
        """Most bytes to read at once, so that a wait takes at most about a tenth of a second."""
        return max(1024, min(BLOCK_BYTES, int(self._rate / 10)))

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
    """A place that has the objects. Threads share it: one thread's back-off applies to all.

    When a server asks for fewer requests (429, 503), the gaps between them double each time, and recover
    slowly with each request that succeeds.

    Attributes:
        url: URL of the folder that the objects' paths start from.
        uses_ranges: Whether to send it range requests; false once it has answered one wrongly.
        free_at: Time (of `time.monotonic`) before which no request is sent to it.
        moved_at: Time at which it last gave something new.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.uses_ranges = True
        self.free_at = 0.0
        self.moved_at = 0.0
        self._failures = 0
        self._failed_at = 0.0
        self._gap = 0.0
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
            if now >= self.free_at:
                self.free_at = now + self._gap
                return 0.0
            return self.free_at - now

    def hold_off(self, failure: Failure, patience: Patience, began: float) -> None:
        """Set when it may be asked again, after the failure of a request that started at `began`."""
        with self._lock:
            # Requests of several threads that fail together are one failure.
            if began >= self._failed_at:
                self._failures += 1
                self._failed_at = time.monotonic()
                pause = pause_after(failure, self._failures, patience)
                self.free_at = max(self.free_at, self._failed_at + pause)
                where = hidden(self.url)
                _logger.info("%s: %s; asking again in %.1f seconds", where, failure, pause)
                if failure.kind == "busy":
                    gap = max(FIRST_GAP, 2 * self._gap)
                    self._gap = min(gap, LARGEST_GAP, patience.longest_wait)
            if failure.kind == "wrong range":
                self.uses_ranges = False

    def works(self) -> None:
        """Note that a request succeeded, or gave enough to count as a success."""
        with self._lock:
            self._failures = 0
            self._gap = 0.9 * self._gap if self._gap > SMALLEST_GAP else 0.0


def pause_after(failure: Failure, failures: int, patience: Patience) -> float:
    """Return how many seconds to wait after that many failures in a row."""
    # A wait of 0 counts only once: a server that always sends it would be asked without end.
    if failure.wait is not None and (failure.wait > 0 or failures == 1):
        return min(failure.wait, patience.longest_wait)
    wait = min(patience.first_wait * 2.0 ** min(failures - 1, 30), patience.longest_wait)
    return wait * random.uniform(0.5, 1)  # noqa: S311 (clients that failed together come back apart)


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
            mirror = _free_one(left, tries, progress)
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
                if failure.gave_more:
                    mirror.works()
                    own.failures, own.failing_since = 0, None
                if _is_given_up(mirror, own, failure, patience, began):
                    left.remove(mirror)
                else:
                    mirror.hold_off(failure, patience, asked_at)
            else:
                mirror.works()
                return result
        raise _nobody(mirrors, path, tries, what) from problem
    finally:
        if reasons is not None:
            reasons |= {mirror: own.reason for mirror, own in tries.items() if own.reason}


def _alone(error: Problem) -> Problem:
    """Return an error without what led to it: its frames would hold connections open."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _nobody(mirrors: Sequence[Mirror], path: str, tries: Mapping[Mirror, _Tries], what: str) -> TransferError:
    """Return the error that says what each mirror did."""
    attempts = [f"{mirror.url_of(path)}: {tries[mirror].reason}" for mirror in mirrors]
    if what:
        listed = "".join(f"\n  {text}" for text in attempts)
        message = (
            f"{what}: none of {len(mirrors)} mirrors gave it; run the same command again, which goes on from there, "
            f"or name another mirror{listed}"
        )
    else:
        message = f"{'; '.join(attempts)}; check the address and the network, then run the same command again."
    return TransferError(message, attempts=attempts)


def _free_one(left: Sequence[Mirror], tries: Mapping[Mirror, _Tries], progress: Callable[[int], None]) -> Mirror:
    """Wait for a mirror that may be asked; return the first one, with a request reserved."""
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


def _is_given_up(mirror: Mirror, own: _Tries, failure: Failure, patience: Patience, began: float) -> bool:
    """Note why a request failed, and return whether the mirror is asked no more."""
    now = time.monotonic()
    own.failures += 1
    tried = "tried once" if own.failures == 1 else f"tried {own.failures} times"
    own.reason = f"{failure} ({tried})"
    if failure.is_final:
        return True
    own.failing_since = own.failing_since or now
    # While other threads still get data from this mirror, this object may succeed too.
    idle = now - max(mirror.moved_at, own.failing_since)
    if own.failures >= patience.attempts and idle >= patience.idle:
        own.reason += f", nothing new for {idle:.0f} seconds" if patience.idle else ""
        return True
    pause = pause_after(failure, own.failures, patience)
    is_lost = failure.kind == "unreached" and not mirror.moved_at
    if is_lost and now + pause - began > patience.unreached:
        own.reason += "; is this machine online?"
        return True
    if failure.kind != "busy":  # perhaps only this object fails: others need not wait
        own.again_at = now + pause
    return False


def read_small(url: str, limit: int, *, patience: Patience = Patience()) -> bytes:
    """Return a whole small file, of at most `limit` bytes: a manifest, an index, a signature.

    Its bytes are not checked: the caller does that. Patience ends with its `attempts`.

    Raises NotFoundError if the server says that there is none; TransferError if it cannot be read.
    """
    try:
        return read_first([url], limit, patience=patience)[0]
    except TransferError as error:
        if isinstance(error.__cause__, Failure) and error.__cause__.kind == "missing":
            raise NotFoundError(f"{'; '.join(error.attempts)}; check the address.") from error
        raise


def read_first(urls: Sequence[str], limit: int, *, patience: Patience = Patience()) -> tuple[bytes, str]:
    """Return a small file, as `read_small` does, and the URL of the first place that gives it.

    Raises TransferError if none does.
    """
    patience = dataclasses.replace(patience, idle=0.0)

    def attempt(mirror: Mirror) -> tuple[bytes, str]:
        data = bytearray()
        with opened(mirror.url, patience) as stream:
            if stream.total is not None and stream.total > limit:
                raise Failure(f"has {stream.total} bytes, more than the {limit} allowed", "final")
            # One byte more than allowed is asked for, so that a longer file is seen.
            while block := stream.read_some(min(BLOCK_BYTES, limit + 1 - len(data))):
                data += block
                if len(data) > limit:
                    raise Failure(f"has more than the {limit} bytes allowed", "final")
        return bytes(data), mirror.url

    return ask([Mirror(url) for url in urls], "", attempt, patience)


# Whole files, into parts that resume.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of a file before it is downloaded.

    Attributes:
        path: Its path below the URL of a mirror; empty if that is the URL of the file itself.
        size_bytes: Its size; None if it is not known.
        sha256: Hex SHA-256 of its bytes; empty if it is not known.
        md5: Hex MD5 of its bytes; empty if it is not known.
    """

    path: str = ""
    size_bytes: int | None = None
    sha256: str = ""
    md5: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fetched:
    """A file that was downloaded.

    Attributes:
        sha256: Hex SHA-256 of its bytes.
        sources: URLs that gave its bytes; empty if all of them were here.
        failed: Why a mirror did not give all of them, by URL; not for one that gave all in the end.
    """

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
    durable: bool = True,
) -> Fetched:
    """Download one object into a file, resuming after the bytes that the file already holds.

    Asks the first mirror that is not pausing. One that fails pauses, and the next continues where it stopped.
    Afterwards the file has exactly the expected bytes and is durable on the disk (its folder still needs
    `sync`; without `durable`, so does the file). One caller at a time may use a part. Bytes that are not
    known to be wrong stay in it after an error.

    A file without a known checksum starts again with each call, and whenever a mirror does not confirm that
    its bytes are still the same.

    `progress` gets the bytes that the part grew by: first those that it held already; negative when bytes are
    discarded; zero now and then while waiting. They add up to the object's size. An exception that it raises
    ends the transfer.
    """
    reasons: dict[Mirror, str] = {}
    size = "" if item.size_bytes is None else f" ({item.size_bytes} bytes)"
    with _Part(part, item, progress, limiter) as target:
        if target.is_full and target.difference:
            target.discard()
        if not target.is_full:

            def attempt(mirror: Mirror) -> None:
                target.receive(mirror, patience)

            what = f"{item.path or 'the file'}{size}"
            ask(mirrors, item.path, attempt, patience, what=what, progress=progress, reasons=reasons)
        if durable:
            target.sync()
        failed = [one for one in mirrors if one in reasons and target.sources != {one}]
        return Fetched(
            sha256=target.sha256,
            sources=tuple(one.url_of(item.path) for one in mirrors if one in target.sources),
            failed={one.url_of(item.path): reasons[one] for one in failed},
        )


class _Part:
    """The file that an object is downloaded into, and the hash of the bytes it holds.

    Attributes:
        item: What is known of the object.
        size: Bytes that it holds.
        total: Bytes that it will hold; None as long as that is unknown.
        sources: Mirrors that its bytes came from.
    """

    def __init__(self, path: Path, item: Expected, progress: Callable[[int], None], limiter: Limiter | None) -> None:
        self.item = item
        self.size = 0
        self.total = item.size_bytes
        self.sources: set[Mirror] = set()
        self._path, self._progress, self._limiter = path, progress, limiter
        self._expected = {"sha256": item.sha256, "md5": item.md5}
        self._expected = {name: value for name, value in self._expected.items() if value}
        self._digests = self._no_bytes()
        self._state: tuple[Mirror, str, int | None] | None = None
        self._furthest = 0  # bytes that it ever held: what comes again is nothing new
        self._is_mixed_up = False  # after wrong bytes each mirror has to give all of them
        with storage_errors(path):
            make_folder(path.parent)
            self._file = path.open("a+b", buffering=0)

    def __enter__(self) -> Self:
        try:
            self._hash_held_bytes()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def is_full(self) -> bool:
        """Whether it has all bytes of the object, right or wrong."""
        return self.size == self.total

    @property
    def difference(self) -> str:
        """How its checksum differs from the expected one; empty if it does not."""
        for name, expected in self._expected.items():
            found = self._digests[name].hexdigest()
            if found != expected:
                return f"{name} {found}, expected {expected}"
        return ""

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes it holds."""
        return str(self._digests["sha256"].hexdigest())

    def receive(self, mirror: Mirror, patience: Patience) -> None:
        """Ask a mirror once for the missing bytes, until it is full and right.

        Raises Failure if it is not full then; IntegrityError if it is and was wrong.
        """
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
        """Ask a mirror once for the missing bytes and append them."""
        most = self._limiter.block_bytes if self._limiter else BLOCK_BYTES
        with opened(mirror.url_of(self.item.path), patience, self._start_at(mirror)) as stream:
            self._begin(mirror, stream)
            # A server that does not support ranges sends the held bytes once more.
            skip = self.size - stream.start
            while not self.is_full:
                missing = most if self.total is None else self.total - self.size
                block = stream.read_some(min(most, skip or missing))
                if not block:
                    self._end(stream, skip)
                    break
                if self._limiter:
                    self._limiter.take(len(block))
                if skip:
                    skip -= len(block)
                    continue
                self.sources.add(mirror)
                self._append(block)
                new_bytes = self.size - self._furthest
                if new_bytes >= SMALL_BLOCK_BYTES or self.size == self.total:
                    mirror.moved_at = time.monotonic()

    def _start_at(self, mirror: Mirror) -> int:
        """Return the position in the file from which to ask a mirror."""
        if not mirror.uses_ranges:
            return 0
        state = self._state
        is_safe = bool(self._expected) or (state is not None and state[0] is mirror and state[1])
        return self.size if is_safe else 0

    def _begin(self, mirror: Mirror, stream: Stream) -> None:
        """Check the mirror's response; discard held bytes that may not match.

        Raises Failure if it has another file, or does not start where bytes are needed.
        """
        expected = self.item.size_bytes
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
        if skip or not self.is_full:
            total = "" if self.total is None else f" of {self.total}"
            raise Failure(f"ended after {self.size - skip}{total} bytes")

    def _append(self, data: bytes) -> None:
        """Add bytes at its end."""
        self._hash(data)
        rest = memoryview(data)
        with storage_errors(self._path):
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        self.size += len(data)
        self._progress(len(data))

    def discard(self) -> None:
        """Discard all bytes."""
        with storage_errors(self._path):
            self._file.truncate(0)
        self._digests = self._no_bytes()
        self.total = self.item.size_bytes
        size, self.size = self.size, 0
        self.sources.clear()
        self._progress(-size)

    def sync(self) -> None:
        """Wait until it is on the disk."""
        with storage_errors(self._path):
            os.fsync(self._file.fileno())

    def _no_bytes(self) -> dict[str, Any]:
        """Return fresh hashes."""
        md5 = {"md5": hashlib.md5(usedforsecurity=False)} if self.item.md5 else {}
        return {"sha256": hashlib.sha256(), **md5}

    def _hash(self, data: bytes | memoryview) -> None:
        for digest in self._digests.values():
            digest.update(data)

    def _hash_held_bytes(self) -> None:
        """Hash the bytes that an earlier transfer left; too many, or some that nothing proves, are discarded."""
        with storage_errors(self._path):
            held = os.fstat(self._file.fileno()).st_size
            if held > (held if self.total is None else self.total) or not self._expected:
                self._file.truncate(0)
                return
            self._file.seek(0)
            while block := self._file.read(BLOCK_BYTES):
                self._hash(block)
                self.size += len(block)
                self._progress(len(block))
        if self.size and self.total is None and not self.difference:
            self.total = self.size


# All objects of a version, several at once.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """How objects are downloaded.

    Attributes:
        jobs: Objects that are transferred at once.
        limiter: Bounds the rate of all transfers together.
        progress: Called with bytes done and bytes in all, from one thread at a time.
        on_objects: Called with objects done and objects in all, from one thread at a time.
        patience: How long each mirror is tried.
    """

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
            if (folder / sha256).is_file() and not _is_right(folder / sha256, item):
                (folder / sha256).unlink()
        wanted = items.keys() - _file_sizes(folder).keys()
        here: dict[str, Path] = {}
        for other, item in stored_objects() if wanted else ():
            is_candidate = item.sha256 in wanted and other != damaged
            if is_candidate and find_link(other, item.path) is None:
                here[item.sha256] = other / item.path
        here |= also_here or {}
        for sha256 in wanted & here.keys():
            with contextlib.suppress(FileNotFoundError):  # a version may be removed meanwhile
                if _is_right(here[sha256], items[sha256]):
                    link_or_copy(here[sha256], folder / sha256)
        held = _file_sizes(folder)
    missing = [item for item in items.values() if item.sha256 not in held]
    rest = sum(item.size_bytes - held.get(f"{item.sha256}.part", 0) for item in missing)
    check_room(folder, rest)
    total = sum(item.size_bytes for item in items.values())
    progress = TransferProgress(
        options,
        total=total,
        done=total - sum(item.size_bytes for item in missing),
        objects=len(items),
        objects_done=len(items) - len(missing),
    )
    mirrors = [Mirror(url) for url in source.mirrors]

    def fetch(item: StoredObject) -> None:
        part = folder / f"{item.sha256}.part"
        is_small = item.size_bytes < SMALL_BYTES
        fetch_object(
            mirrors,
            Expected(path=item.path, size_bytes=item.size_bytes, sha256=item.sha256),
            part,
            progress=progress.add,
            limiter=options.limiter,
            patience=options.patience,
            durable=not is_small,
        )
        if not is_small:
            with storage_errors(part):
                part.rename(folder / item.sha256)
        progress.finish_object()

    def fetch_each(batch: Sequence[StoredObject]) -> None:
        for item in batch:
            fetch(item)

    small = [item for item in missing if item.size_bytes < SMALL_BYTES]
    large = [item for item in missing if item.size_bytes >= SMALL_BYTES]
    large.sort(key=lambda item: -item.size_bytes)
    count = max(1, min(BATCH_SIZE, len(small) // (4 * options.jobs)))
    batches = [small[start : start + count] for start in range(0, len(small), count)]
    fetch_at_once(fetch_each, [[item] for item in large] + batches, options.jobs, progress)
    with storage_errors(folder):
        sync_all([folder / f"{item.sha256}.part" for item in small])
        for item in small:
            (folder / f"{item.sha256}.part").rename(folder / item.sha256)
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
            progress.stop()
            pool.shutdown(cancel_futures=True)
            raise
        return [done.result() for done in waiting]


class TransferProgress:
    """Adds up what threads download; stops them when one has failed."""

    def __init__(self, options: TransferOptions, *, total: int, done: int, objects: int, objects_done: int) -> None:
        self._lock = threading.Lock()
        self._options = options
        self._total, self._done = total, done
        self._objects, self._objects_done = objects, objects_done
        self._is_stopped = False
        options.on_objects(self._objects_done, self._objects)
        options.progress(self._done, self._total)

    def add(self, count: int) -> None:
        """Count bytes."""
        with self._lock:
            if self._is_stopped:
                raise _StoppedError
            self._done += count
            self._options.progress(self._done, max(self._done, self._total))

    def finish_object(self) -> None:
        """Count an object."""
        with self._lock:
            self._objects_done += 1
            self._options.on_objects(self._objects_done, self._objects)

    def stop(self) -> None:
        """Make the next call of `add` in each thread raise, which ends its transfer."""
        with self._lock:
            self._is_stopped = True


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
    """Return the size of each file in a folder, by name."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}


def _is_right(path: Path, item: StoredObject) -> bool:
    is_alike = path.is_file() and path.stat().st_size == item.size_bytes
    return is_alike and hash_file(path) == item.sha256
