"""Brings bytes over: small files whole, and objects into a part that goes on where it stopped.

    mirror A ─┐  Range: bytes=N-     ┌─────────────┬ ─ ─ ─ ─ ┐
    mirror B ─┴────────────────────▶ │ N bytes held│  asked  │  part, hashed while it grows
                                     └─────────────┴ ─ ─ ─ ─ ┘

The manifest says the size and SHA-256 of every object, so no server is trusted: any mirror may give
any stretch of an object, and only bytes with the right hash are handed on. HTTP is spoken through
urllib3, everything else (file, memory, s3, ..) through fsspec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import http.client
import os
import random
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from orlog.datasets.manifest import StoredObject
from orlog.datasets.storage import storage_errors
from orlog.errors import MissingExtraError, NotFoundError, TransferError

if TYPE_CHECKING:
    import urllib3

__all__ = ["Limiter", "Mirror", "Patience", "fetch_object", "missing_backend", "read_small"]

BLOCK_BYTES = 2**20
MOST_REDIRECTS = 5
LARGEST_ERROR_PAGE = 2**16
LONGEST_REASON = 300
MISSING = frozenset({404, 410})
TEMPORARY = frozenset({408, 425, 429})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}
SMALL_BLOCK_BYTES = 2**14
QUICK_BLOCK = 0.1
SLEEP = 0.25
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a source is waited for before it is given up.

    Attributes:
        timeout: Seconds without a byte, or without a connection, after which a request failed.
        attempts: Requests in a row that may fail without progress: 16 KiB, or all that is missing.
        first_wait: Seconds before the second request; they double with each failure.
        longest_wait: Most seconds between two requests, whatever the server asks for.
    """

    timeout: float = 30.0
    attempts: int = 6
    first_wait: float = 0.5
    longest_wait: float = 60.0


class Limiter:
    """A speed that all threads together keep to: give one to every transfer it is to hold for."""

    def __init__(self, bytes_per_second: float) -> None:
        if not bytes_per_second > 0:
            raise ValueError(
                f"a rate limit is positive; {bytes_per_second} bytes per second is not"
            )
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._paid_until = time.monotonic()

    @property
    def block_bytes(self) -> int:
        """Most bytes to read at once, so that no wait is longer than about a tenth of a second."""
        return max(1024, min(BLOCK_BYTES, int(self._rate / 10)))

    def take(self, size_bytes: int) -> None:
        """Wait until that many more bytes are allowed."""
        with self._lock:
            now = time.monotonic()
            # Time that was not used is kept for a quarter of a second only.
            self._paid_until = max(self._paid_until, now - 0.25) + size_bytes / self._rate
            wait = self._paid_until - now
        if wait > 0:
            time.sleep(wait)


class Mirror:
    """A place that has the objects. Threads share it: who is told to wait makes all of them wait.

    Attributes:
        url: URL of the folder that the objects' paths start from.
        uses_ranges: Whether it is asked for the middle of a file; false once it lied about it.
        free_at: Time (of `time.monotonic`) before which it is not to be asked.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.uses_ranges = True
        self.free_at = 0.0
        self._failures = 0
        self._failed_at = 0.0
        self._lock = threading.Lock()

    def url_of(self, path: str) -> str:
        """Return the URL of an object; fsspec takes paths as they are, HTTP wants them quoted."""
        return f"{self.url}/{urllib.parse.quote(path) if _is_http(self.url) else path}"

    def hold_off(self, failure: _Failure, patience: Patience, *, began: float) -> None:
        """Set when it may be asked again, after a request that began then has failed."""
        with self._lock:
            # Requests of several threads that fail together are one failure.
            if began >= self._failed_at:
                self._failures += 1
                self._failed_at = time.monotonic()
                self.free_at = self._failed_at + _wait(failure, self._failures, patience)
            if failure.is_lie:
                self.uses_ranges = False

    def works(self) -> None:
        """Say that it gave bytes."""
        self._failures = 0


def read_small(url: str, limit: int, *, patience: Patience = Patience()) -> bytes:
    """Return a whole small file: a manifest, an index, a signature.

    Nothing is known of its bytes yet: the caller checks them.

    Args:
        url: URL of the file.
        limit: Most bytes it may have; no more are read.
        patience: How long to try.

    Raises:
        NotFoundError: the server says that there is no such file.
        TransferError: it could not be read, or is larger than the limit.
        MissingExtraError: the package that reads such URLs is not installed.
    """
    for attempt in range(1, patience.attempts + 1):
        try:
            return _read_whole(url, limit, patience)
        except _Failure as failure:
            if failure.is_missing:
                raise NotFoundError(f"{url}: {failure}; check the address") from failure
            if failure.is_final or attempt == patience.attempts:
                raise TransferError(
                    f"{url}: cannot be read: {failure} ({_times(attempt)}); check the address and "
                    "the network, then run the same command again",
                    attempts=[f"{url}: {failure}"],
                ) from failure
            time.sleep(_wait(failure, attempt, patience))
    raise ValueError(f"patience for {patience.attempts} attempts is none at all")


def fetch_object(
    mirrors: Sequence[Mirror],
    item: StoredObject,
    part: Path,
    *,
    progress: Callable[[int], None] = lambda _: None,
    limiter: Limiter | None = None,
    patience: Patience = Patience(),
) -> None:
    """Bring the bytes of one object into a file, going on from what the file already holds.

    The first mirror that may be asked is. One that fails is left alone for a while and the next
    goes on where it stopped. Afterwards the file has exactly the bytes the manifest says and is on
    the disk (its folder still needs `sync`). One caller at a time may use a part.

    Args:
        mirrors: Where to ask, the best first.
        item: The object.
        part: File that it is brought into, made with its folder if it is not there.
        progress: Called with the bytes that the part grew by: first those that it held already,
            less than zero where bytes are discarded, and zero now and then while waiting. They add
            up to the object's size. What it raises ends the transfer.
        limiter: The speed to keep to.
        patience: How long to try each mirror.

    Raises:
        TransferError: no mirror gave the right bytes. Right or not yet known to be wrong, what came
            is left in the part.
        StorageError: the disk is full or cannot be written.
        MissingExtraError: the package that reads such URLs is not installed.
    """
    reasons: dict[Mirror, str] = {}
    with _Part(part, item, progress) as target:
        left = list(mirrors)
        _fill(target, left, reasons, limiter, patience)
        if target.is_full:
            # Wrong bytes may be those of any mirror that gave some, so then each has to give all;
            # who gave none so far is asked first.
            again = sorted(left, key=target.sources.__contains__)
            while not target.is_right and again:
                mirror = again.pop(0)
                target.discard()
                _fill(target, [mirror], reasons, limiter, patience)
                if target.is_full:
                    reasons[mirror] = f"gave sha256 {target.sha256}, expected {item.sha256}"
        if target.is_right:
            target.sync()
            return
        if target.is_full:
            target.discard()
    attempts = [f"{one.url_of(item.path)}: {reasons[one]}" for one in mirrors]
    advice = "run the same command again to go on, or name another mirror"
    raise TransferError(
        f"{item.path} ({item.size_bytes} bytes): none of {len(mirrors)} mirrors gave it; {advice}\n"
        + "\n".join(f"  {attempt}" for attempt in attempts),
        attempts=attempts,
    )


def missing_backend(url: str, error: ImportError) -> MissingExtraError:
    """Return the error that says which package a URL needs."""
    extra = EXTRAS.get(url.partition("://")[0], "")
    advice = f'run: pip install "orlog[{extra}]"' if extra else "install that package"
    return MissingExtraError(f"{url}: {error}; {advice}", extra=extra)


class _Failure(Exception):  # noqa: N818 (what one request came to; it never leaves this module)
    """Why one request did not give what it should.

    Attributes:
        is_final: Asking again would give the same.
        is_missing: There is no such file.
        is_lie: The server answered another range than it was asked for.
        wait: Seconds the server asks to be left alone.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_final: bool = False,
        is_missing: bool = False,
        is_lie: bool = False,
        wait: float | None = None,
    ) -> None:
        # Parts of it come from the server, and it is shown on terminals.
        shown = "".join(letter if letter.isprintable() else "?" for letter in reason)
        super().__init__(shown[:LONGEST_REASON])
        self.is_final = is_final or is_missing
        self.is_missing = is_missing
        self.is_lie = is_lie
        self.wait = wait


class _Part:
    """The file that an object grows in, and the hash of what it holds.

    Attributes:
        item: The object.
        size: Bytes that it holds.
        sources: Mirrors that bytes of it came from.
    """

    def __init__(self, path: Path, item: StoredObject, progress: Callable[[int], None]) -> None:
        self.item = item
        self.size = 0
        self.sources: set[Mirror] = set()
        self.progress = progress
        self._path = path
        self._digest = hashlib.sha256()
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)

    def __enter__(self) -> Self:
        try:
            self._take_in()
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
        return self.size == self.item.size_bytes

    @property
    def is_right(self) -> bool:
        """Whether it has the bytes that the manifest says."""
        return self.is_full and self.sha256 == self.item.sha256

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of what it holds."""
        return self._digest.hexdigest()

    def append(self, data: bytes) -> None:
        """Add bytes at its end."""
        self._digest.update(data)
        rest = memoryview(data)
        with storage_errors(self._path):
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        self.size += len(data)
        self.progress(len(data))

    def discard(self) -> None:
        """Throw away what it holds."""
        with storage_errors(self._path):
            self._file.truncate(0)
        self._digest = hashlib.sha256()
        size, self.size = self.size, 0
        self.sources.clear()
        self.progress(-size)

    def sync(self) -> None:
        """Wait until it is on the disk."""
        with storage_errors(self._path):
            os.fsync(self._file.fileno())

    def _take_in(self) -> None:
        """Hash what was there before."""
        with storage_errors(self._path):
            if os.fstat(self._file.fileno()).st_size > self.item.size_bytes:
                self._file.truncate(0)
            self._file.seek(0)
        block = memoryview(bytearray(BLOCK_BYTES))
        while not self.is_full:
            with storage_errors(self._path):
                read = self._file.readinto(block[: self.item.size_bytes - self.size])
            if not read:
                return
            self._digest.update(block[:read])
            self.size += read
            self.progress(read)


def _fill(
    target: _Part,
    left: list[Mirror],
    reasons: dict[Mirror, str],
    limiter: Limiter | None,
    patience: Patience,
) -> None:
    """Fetch until the part is full or no mirror is left; who is given up is taken out of `left`."""
    idle = dict.fromkeys(left, 0)
    while left and not target.is_full:
        mirror = _free_mirror(left, target.progress)
        before, began = target.size, time.monotonic()
        try:
            _go_on(target, mirror, limiter, patience)
            mirror.works()
        except _Failure as failure:
            # A few bytes are none, or a server that gives one each time could be asked for days.
            if target.size - before >= SMALL_BLOCK_BYTES:
                mirror.works()
                idle[mirror] = 0
            idle[mirror] += 1
            reasons[mirror] = f"{failure} ({_times(idle[mirror])})"
            if failure.is_final or idle[mirror] >= patience.attempts:
                left.remove(mirror)
            if not failure.is_final:
                mirror.hold_off(failure, patience, began=began)


def _free_mirror(mirrors: list[Mirror], progress: Callable[[int], None]) -> Mirror:
    """Return the first mirror that may be asked now, or wait for the one that soonest may."""
    while True:
        now = time.monotonic()
        best = min(mirrors, key=lambda mirror: max(mirror.free_at, now))
        if best.free_at <= now:
            return best
        time.sleep(min(SLEEP, best.free_at - now))
        progress(0)


def _go_on(target: _Part, mirror: Mirror, limiter: Limiter | None, patience: Patience) -> None:
    """Ask a mirror once for what is missing, and append what it gives."""
    total = target.item.size_bytes
    start = target.size if mirror.uses_ranges else 0
    most = limiter.block_bytes if limiter else BLOCK_BYTES
    # A block is lost if the connection breaks in it, so they are small until they come quickly.
    size = SMALL_BLOCK_BYTES
    with _opened(mirror.url_of(target.item.path), start, patience) as stream:
        if stream.total not in (None, total):
            raise _Failure(f"has {stream.total} bytes, expected {total}", is_final=True)
        # A server that does not know ranges gives what is here once more.
        skip = target.size - stream.start
        while not target.is_full:
            began = time.monotonic()
            block = stream.read(min(size, most, skip or total - target.size))
            if not block:
                raise _Failure(f"ended after {target.size - skip} of {total} bytes")
            quick = time.monotonic() - began < QUICK_BLOCK
            size = min(BLOCK_BYTES, 2 * size) if quick else max(SMALL_BLOCK_BYTES, size // 2)
            if limiter:
                limiter.take(len(block))
            if skip:
                skip -= len(block)
            else:
                target.sources.add(mirror)
                target.append(block)


def _read_whole(url: str, limit: int, patience: Patience) -> bytes:
    data = bytearray()
    with _opened(url, 0, patience) as stream:
        if stream.total is not None and stream.total > limit:
            raise _Failure(f"has {stream.total} bytes; {limit} are allowed", is_final=True)
        # One byte more than allowed is asked for, so that a longer file is seen.
        while block := stream.read(min(BLOCK_BYTES, limit + 1 - len(data))):
            data += block
            if len(data) > limit:
                raise _Failure(f"has more than the {limit} bytes allowed", is_final=True)
    return bytes(data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Stream:
    """Bytes of a file as they come.

    Attributes:
        start: Place in the file of the first byte.
        total: Size of the file, if the server says.
        read: Returns at most that many bytes, none at the end; raises `_Failure`.
    """

    start: int
    total: int | None
    read: Callable[[int], bytes]


@contextlib.contextmanager
def _opened(url: str, start: int, patience: Patience) -> Iterator[_Stream]:
    """Open a file from `start` on, or from its first byte where the server knows no ranges."""
    with (_over_http if _is_http(url) else _through_fsspec)(url, start, patience) as stream:
        yield stream


@contextlib.contextmanager
def _over_http(url: str, start: int, patience: Patience) -> Iterator[_Stream]:
    response = _request(url, start, patience)

    def read(size: int) -> bytes:
        with _http_errors(patience):
            return response.read(size)

    try:
        first, total = _place(response, start)
        yield _Stream(start=first, total=total, read=read)
    finally:
        # A response that was read to its end has given its connection back before.
        response.close()


def _request(url: str, start: int, patience: Patience) -> urllib3.BaseHTTPResponse:
    """Return the answer with the bytes, redirects followed."""
    headers = {
        "User-Agent": "orlog",
        "Accept-Encoding": "identity",
        "Cache-Control": "no-cache",
        **({"Range": f"bytes={start}-"} if start else {}),
    }
    seen = [url]
    with _http_errors(patience):
        while True:
            response = _pool(os.getpid(), _proxy_of(seen[-1])).request(
                "GET",
                seen[-1],
                headers=headers,
                timeout=patience.timeout,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            if response.status in (200, 206):
                return response
            # The connection can be used again once the page that tells the error was read.
            with contextlib.closing(response):
                response.read(LARGEST_ERROR_PAGE)
                seen.append(_redirected(response, seen))


def _redirected(response: urllib3.BaseHTTPResponse, seen: list[str]) -> str:
    """Return where an answer without the bytes points to."""
    status = response.status
    text = f"{status} {http.client.responses.get(status, '')}".strip()
    location = response.headers.get("Location")
    if status not in REDIRECTS or not location:
        raise _Failure(
            text,
            is_final=status < 500 and status not in TEMPORARY and status != 416,
            is_missing=status in MISSING,
            is_lie=status == 416,
            wait=0 if status == 416 else _retry_after(response.headers.get("Retry-After")),
        )
    target = urllib.parse.urljoin(seen[-1], location)
    if target in seen:
        raise _Failure(f"{text}: redirects in a circle, by {target}", is_final=True)
    if len(seen) > MOST_REDIRECTS:
        raise _Failure(f"{text}: more than {MOST_REDIRECTS} redirects", is_final=True)
    if not _is_http(target) or (seen[-1].startswith("https:") and target.startswith("http:")):
        raise _Failure(f"{text}: redirects to {target}, which is not followed", is_final=True)
    return target


def _place(response: urllib3.BaseHTTPResponse, start: int) -> tuple[int, int | None]:
    """Return where in the file an answer begins, and the file's size if it is said."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise _Failure(f"sends Content-Encoding {encoding}, which was not asked for", is_final=True)
    length = response.length_remaining
    if response.status == 200:
        return 0, length
    said = response.headers.get("Content-Range", "")
    found = _CONTENT_RANGE.fullmatch(said.strip())
    if found is None or int(found[1]) != start:
        raise _Failure(
            f"asked for bytes from {start} on, sent {said or 'no range'}", is_lie=True, wait=0
        )
    if length not in (None, int(found[2]) + 1 - start):
        raise _Failure(f"sent {length} bytes as {said}", is_lie=True, wait=0)
    return start, None if found[3] == "*" else int(found[3])


@functools.cache
def _pool(process: int, proxy: str | None) -> urllib3.PoolManager:  # noqa: ARG001
    """Return the connections of this process: one that forked off must not use its parent's."""
    import urllib3

    # More threads than that are served too; their connections are closed after each answer.
    if proxy is None:
        return urllib3.PoolManager(num_pools=32, maxsize=32)
    account = urllib3.util.parse_url(proxy).auth
    headers = urllib3.make_headers(proxy_basic_auth=account) if account else None
    return urllib3.ProxyManager(proxy, num_pools=32, maxsize=32, proxy_headers=headers)


def _proxy_of(url: str) -> str | None:
    """Return the proxy that HTTPS_PROXY and the like name for a URL."""
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@contextlib.contextmanager
def _http_errors(patience: Patience) -> Iterator[None]:
    try:
        from urllib3 import exceptions as errors
    except ImportError as error:
        raise MissingExtraError(
            'http and https need urllib3; run: pip install "orlog[remote]"', extra="remote"
        ) from error
    try:
        yield
    except errors.TimeoutError as error:
        raise _Failure(f"sent nothing for {patience.timeout:g} seconds") from error
    except ValueError as error:
        raise _Failure(f"not an address: {error}", is_final=True) from error
    except (errors.HTTPError, http.client.HTTPException, OSError) as error:
        raise _Failure(str(error) or type(error).__name__) from error


@contextlib.contextmanager
def _through_fsspec(url: str, start: int, _: Patience) -> Iterator[_Stream]:
    import fsspec

    with _fsspec_errors(url):
        system, path = fsspec.core.url_to_fs(url)
        file = system.open(path, "rb")

    def read(size: int) -> bytes:
        with _fsspec_errors(url):
            return bytes(file.read(size))

    try:
        size = getattr(file, "size", None)
        total = size if isinstance(size, int) else None
        if start and (total is None or start <= total):
            with _fsspec_errors(url):
                file.seek(start)
        yield _Stream(start=start, total=total, read=read)
    finally:
        with contextlib.suppress(Exception):  # it was only read
            file.close()


@contextlib.contextmanager
def _fsspec_errors(url: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise missing_backend(url, error) from error
    except FileNotFoundError as error:
        raise _Failure("no such file", is_missing=True) from error
    except (PermissionError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        raise _Failure(str(error) or type(error).__name__, is_final=True) from error
    except Exception as error:  # each backend under fsspec has errors of its own
        raise _Failure(str(error) or type(error).__name__) from error


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _wait(failure: _Failure, failures: int, patience: Patience) -> float:
    """Return how many seconds to wait after that many failures in a row."""
    if failure.wait is not None:
        return min(failure.wait, patience.longest_wait)
    longest = min(patience.longest_wait, patience.first_wait * 2.0 ** min(failures - 1, 30))
    # Machines that failed together should not come back together.
    return longest * random.uniform(0.5, 1)  # noqa: S311


def _retry_after(text: str | None) -> float | None:
    """Return the seconds that a Retry-After asks for, as a number or a date; none if unreadable."""
    import urllib3

    try:
        return None if text is None else float(urllib3.Retry().parse_retry_after(text))
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return None


def _times(count: int) -> str:
    return "tried once" if count == 1 else f"tried {count} times"
