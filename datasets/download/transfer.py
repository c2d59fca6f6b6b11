"""Downloads objects into part files, which resume where they stopped.

    mirror A ─┐  Range: bytes=N-     ┌─────────────┬ ─ ─ ─ ─ ┐
    mirror B ─┴────────────────────▶ │ N bytes held│  asked  │  part, hashed while it grows
                                     └─────────────┴ ─ ─ ─ ─ ┘

The manifest says the size and SHA-256 of every object, so no server is trusted: any mirror may give
any range of an object, and only bytes with the right hash are passed on. Less may be known of other
files; without any checksum, all bytes must come from one mirror, under the same tag (ETag).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orlog.base.files import make_folder, storage_errors
from orlog.datasets.download.http import BLOCK_BYTES, Failure, Patience, Stream, opened
from orlog.datasets.download.mirrors import Limiter, Mirror, Tries
from orlog.errors import TransferError
from orlog.manifests.manifest import StoredObject

SMALL_BLOCK_BYTES = 2**14
QUICK_BLOCK = 0.1


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
    item: StoredObject | Expected,
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
    if isinstance(item, StoredObject):
        item = Expected(path=item.path, size_bytes=item.size_bytes, sha256=item.sha256)
    with _Part(part, item, progress) as target:
        left = list(mirrors)
        _fill(target, left, reasons, limiter, patience)
        if target.is_full:
            # Any mirror that gave some of the bytes may have given the wrong ones, so now each one
            # has to give all of them. Mirrors that gave none so far are asked first.
            again = sorted(left, key=target.sources.__contains__)
            if not target.is_right and len(target.sources) == 1:
                reasons[next(iter(target.sources))] = f"gave {target.difference}"
            while not target.is_right and again:
                mirror = again.pop(0)
                target.discard()
                _fill(target, [mirror], reasons, limiter, patience)
                if target.is_full:
                    reasons[mirror] = f"gave {target.difference}"
        if target.is_right:
            if durable:
                target.sync()
            failed = [one for one in mirrors if one in reasons and target.sources != {one}]
            return Fetched(
                sha256=target.sha256,
                sources=tuple(one.url_of(item.path) for one in mirrors if one in target.sources),
                failed={one.url_of(item.path): reasons[one] for one in failed},
            )
        if target.is_full:
            target.discard()
    attempts = [f"{one.url_of(item.path)}: {reasons[one]}" for one in mirrors]
    advice = "run the same command again to continue, or name another mirror"
    size = "" if item.size_bytes is None else f" ({item.size_bytes} bytes)"
    raise TransferError(
        f"{item.path or 'the file'}{size}: none of {len(mirrors)} mirrors gave it; {advice}\n"
        + "\n".join(f"  {attempt}" for attempt in attempts),
        attempts=attempts,
    )


class _Part:
    """The file that an object is downloaded into, and the hash of the bytes it holds.

    Attributes:
        item: What is known of the object.
        size: Bytes that it holds.
        total: Bytes that it will hold; None as long as that is unknown.
        sources: Mirrors that its bytes came from.
    """

    def __init__(self, path: Path, item: Expected, progress: Callable[[int], None]) -> None:
        self.item = item
        self.size = 0
        self.total = item.size_bytes
        self.sources: set[Mirror] = set()
        self.progress = progress
        self._path = path
        self._expected = {"sha256": item.sha256, "md5": item.md5}
        self._expected = {name: value for name, value in self._expected.items() if value}
        self._digests = self._no_bytes()
        self._state: tuple[Mirror, str, int | None] | None = None
        with storage_errors(path):
            try:
                self._file = path.open("a+b", buffering=0)
            except FileNotFoundError:
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def is_full(self) -> bool:
        """Whether it has all bytes of the object, right or wrong."""
        return self.size == self.total

    @property
    def is_right(self) -> bool:
        """Whether it has all bytes of the object, and every known checksum matches."""
        return self.is_full and not self.difference

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

    def start_at(self, mirror: Mirror) -> int:
        """Return the position in the file from which to ask a mirror."""
        if not mirror.uses_ranges:
            return 0
        state = self._state
        is_safe = bool(self._expected) or (state is not None and state[0] is mirror and state[1])
        return self.size if is_safe else 0

    def begin(self, mirror: Mirror, stream: Stream) -> None:
        """Check the mirror's response; discard held bytes that may not match.

        Raises Failure if it has another file, or does not start where bytes are needed.
        """
        expected = self.item.size_bytes
        if expected is not None and stream.total not in (None, expected):
            raise Failure(f"has {stream.total} bytes, expected {expected}", is_final=True)
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
            raise Failure(
                "has other bytes than before, so the file is needed from its first byte", wait=0
            )

    def end(self, stream: Stream) -> bool:
        """Return whether a stream that gives no more bytes is at the end of the file."""
        if self.total is None and (self._expected or stream.ends_surely):
            self.total = self.size
        return self.is_full

    def append(self, data: bytes) -> None:
        """Add bytes at its end."""
        self._hash(data)
        rest = memoryview(data)
        with storage_errors(self._path):
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        self.size += len(data)
        self.progress(len(data))

    def discard(self) -> None:
        """Discard all bytes."""
        with storage_errors(self._path):
            self._file.truncate(0)
        self._digests = self._no_bytes()
        self.total = self.item.size_bytes
        size, self.size = self.size, 0
        self.sources.clear()
        self.progress(-size)

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
        """Hash the bytes that an earlier transfer left."""
        with storage_errors(self._path):
            held = os.fstat(self._file.fileno()).st_size
        if not held:
            return
        most = self.total if self._expected else 0  # else damage would go unnoticed
        with storage_errors(self._path):
            if most is not None and held > most:
                self._file.truncate(0)
            self._file.seek(0)
        block = memoryview(bytearray(min(BLOCK_BYTES, held + 1)))
        while self.size != most:
            with storage_errors(self._path):
                read = self._file.readinto(block[: None if most is None else most - self.size])
            if not read:
                break
            self._hash(block[:read])
            self.size += read
            self.progress(read)
        if self.total is None and self._expected and not self.difference:
            self.total = self.size


def _fill(
    target: _Part,
    left: list[Mirror],
    reasons: dict[Mirror, str],
    limiter: Limiter | None,
    patience: Patience,
) -> None:
    """Download until the part is full or no mirror is left; removes failed ones from `left`."""
    tries = Tries(left, reasons, patience)
    furthest = target.size
    while left and not target.is_full:
        mirror = tries.free(target.progress)
        before, began = target.size, time.monotonic()
        try:
            _append_missing(target, mirror, limiter, patience, max(before, furthest))
            mirror.works()
        except Failure as failure:
            # Too few bytes do not count, or a server that gives one each time is asked for days.
            if target.size - max(before, furthest) >= SMALL_BLOCK_BYTES:
                tries.gave(mirror)
            tries.failed(mirror, failure, began)
        finally:
            mirror.leave()
        furthest = max(furthest, target.size)


def _append_missing(
    target: _Part, mirror: Mirror, limiter: Limiter | None, patience: Patience, furthest: int
) -> None:
    """Ask a mirror once for the missing bytes and append them; those past `furthest` are new."""
    start = target.start_at(mirror)
    most = limiter.block_bytes if limiter else BLOCK_BYTES
    # A broken connection loses the current block, so blocks stay small until they arrive quickly.
    size = SMALL_BLOCK_BYTES
    with opened(mirror.url_of(target.item.path), start, patience) as stream:
        target.begin(mirror, stream)
        # A server that does not support ranges sends the held bytes once more.
        skip = target.size - stream.start
        while not target.is_full:
            began = time.monotonic()
            missing = size if target.total is None else target.total - target.size
            block = stream.read(min(size, most, skip or missing))
            if not block:
                if not skip and target.end(stream):
                    break
                if skip and target.total is None:
                    target.discard()
                    raise Failure("has fewer bytes than were here, which are discarded", wait=0)
                total = "" if target.total is None else f" of {target.total}"
                raise Failure(f"ended after {target.size - skip}{total} bytes")
            quick = time.monotonic() - began < QUICK_BLOCK
            size = min(BLOCK_BYTES, 2 * size) if quick else max(SMALL_BLOCK_BYTES, size // 2)
            if limiter:
                limiter.take(len(block))
            if skip:
                skip -= len(block)
            else:
                target.sources.add(mirror)
                target.append(block)
                is_whole = target.size == target.total
                if is_whole or target.size - furthest >= SMALL_BLOCK_BYTES:
                    mirror.moved_at = time.monotonic()
