"""Opens remote files: over HTTP through urllib3, all else (file, memory, s3, ..) through fsspec.

Servers are not trusted: redirects, ranges, lengths and speeds are checked, and error texts are shortened and made safe
to print. Whatever goes wrong with one request becomes a `Failure`; `datasets/download/transfer.py` asks again.

URLs are printed, kept in files beside versions and put into errors. So a query that a user gives with a URL
(`?token=..`) is kept in the memory of this process and sent with each request below that URL; of several URLs that a
user gave, the longest one above a request counts, with its query or without one. Worker processes get the queries in
memory too. User and password are not taken from URLs at all: `~/.netrc`, or the file that the environment variable
NETRC names, has them by host.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import http.client
import io
import netrc
import os
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from orlog.errors import MissingExtraError, clause

if TYPE_CHECKING:
    import urllib3

BLOCK_BYTES = 2**17
SMALL_BLOCK_BYTES = 2**14
MOST_REDIRECTS = 5
LARGEST_ERROR_PAGE = 2**16
LONGEST_REASON = 300
LONGEST_ANSWER = 4  # timeouts, for the header of a response and for each small block of its body
PACKAGES = {**dict.fromkeys(("s3", "s3a", "hf"), "orlog[remote]"), **dict.fromkeys(("gs", "gcs"), "gcsfs")}
Kind = Literal["passing", "final", "missing", "wrong range", "busy", "unreached"]
_KIND_OF_STATUS: dict[int | None, Kind] = {
    **dict.fromkeys((404, 410), "missing"),
    **dict.fromkeys((429, 503), "busy"),
    **dict.fromkeys((408, 425), "passing"),
    416: "wrong range",
}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
Item = TypeVar("Item")
Result = TypeVar("Result")

SHORTEST_SECRET = 8
"""Shorter values are hidden only behind a `?`: they may be parts of other words."""
_PUBLIC = {
    *("dl", "download", "export", "format", "raw"),
    *("file", "filename", "id", "name", "path", "persistentid", "ref", "version", "versionid"),
}
"""Keys of queries that say which file is meant, or in which form. All others may hold a secret."""
_queries: dict[str, str] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a source before giving it up.

    A source is given up once `attempts` requests in a row have failed and nothing new has come from it for `idle`
    seconds. One that could not be reached at all (no network, an unknown host, nothing that listens) is given up after
    `unreached` seconds: nothing that was begun depends on it.

    Attributes:
        timeout: Seconds without a byte, or without a connection, after which a request has failed.
        attempts: Failed requests in a row.
        idle: Seconds without anything new: an object, or 16 KiB of one.
        first_wait: Seconds before the second request; doubled after each failure.
        longest_wait: Most seconds between two requests, whatever the server asks for.
        unreached: Seconds without any connection, in a call to which the source gave nothing yet.
    """

    timeout: float = 30.0
    attempts: int = 6
    idle: float = 120.0
    first_wait: float = 0.5
    longest_wait: float = 60.0
    unreached: float = 3.0


class Failure(Exception):  # noqa: N818 (the result of one request, not an error that users see)
    """Why one request failed.

    Attributes:
        kind: `passing`: asking again may help; `final`: it will not; `missing`: there is no such file; `wrong range`:
            the server sent another range than it was asked for; `busy`: it wants fewer requests; `unreached`: there
            was no connection.
        wait: Seconds that the server asks to wait; None if it does not say.
        gave_more: Whether enough new bytes came for the request to count as a success too.
    """

    def __init__(self, reason: str, kind: Kind = "passing", *, wait: float | None = None) -> None:
        # Parts of it come from the server, and it is printed on terminals.
        shown = "".join(letter if letter.isprintable() else "?" for letter in hidden(reason))
        super().__init__(shown[:LONGEST_REASON])
        self.kind = kind
        self.wait = wait
        self.gave_more = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """The bytes of a file, read one block at a time.

    Attributes:
        start: Position in the file of the first byte.
        total: Size of the file, if the server says.
        tag: The server's identifier (ETag) for the file's current bytes; empty if it gives none.
        ends_surely: Whether a broken connection can be told from the end of the file.
        is_whole: Whether the server sends the whole file, whatever it was asked for.
        read: Returns what comes next, at most that many bytes, none at the end; raises `Failure`.
    """

    start: int
    total: int | None
    tag: str = ""
    ends_surely: bool = True
    is_whole: bool = False
    read: Callable[[int], bytes]


@contextlib.contextmanager
def opened(url: str, patience: Patience, start: int = 0, stop: int | None = None) -> Iterator[Stream]:
    """Open a file at `start`, or at its first byte if the server does not support ranges."""
    with (_over_http if is_http(url) else _through_fsspec)(url, patience, start, stop) as stream:
        yield stream


def is_http(url: str) -> bool:
    """Return whether a URL is read over HTTP."""
    return url.startswith(("http://", "https://"))


def missing_backend(url: str, error: ImportError) -> MissingExtraError:
    """Return the error that says which package a URL needs."""
    package = PACKAGES.get(url.partition("://")[0])
    if package is None:
        return MissingExtraError(f"{url}: {clause(error)}; install that package.")
    return MissingExtraError(f"{url}: {clause(error)}", install=package)


@contextlib.contextmanager
def _failures(url: str, patience: Patience) -> Iterator[None]:
    """Turn errors of sockets, of urllib3 and of fsspec's backends into `Failure`."""
    try:
        yield
    except Failure:
        raise
    except ImportError as error:
        raise missing_backend(url, error) from error
    except Exception as error:  # each backend of fsspec has its own errors
        raise _failure(error, patience) from error


def _guarded(read: Callable[[int], bytes], url: str, patience: Patience) -> Callable[[int], bytes]:
    def guarded(size: int) -> bytes:
        with _failures(url, patience):
            return bytes(read(size))

    return guarded


def _failure(error: Exception, patience: Patience) -> Failure:
    from urllib3 import exceptions

    reason = clause(error) or type(error).__name__
    cause = getattr(error, "original_error", error)  # what went wrong with a proxy
    if isinstance(cause, exceptions.NewConnectionError):
        return Failure(reason.rpartition("): ")[2], "unreached")  # without urllib3's own objects
    if isinstance(cause, exceptions.ConnectTimeoutError):
        seconds = min(patience.timeout, patience.unreached)
        return Failure(f"gave no connection for {seconds:g} seconds", "unreached")
    if isinstance(error, socket.gaierror):
        return Failure(f"failed to resolve its name ({reason})", "unreached")
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        return Failure(f"sent nothing, or too little, for {patience.timeout:g} seconds")
    if isinstance(error, FileNotFoundError):
        return Failure("no such file", "missing")
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return Failure(reason, "final")
    if isinstance(error, ValueError):
        return Failure(f"not an address: {reason}", "final")
    status = getattr(getattr(error, "response", None), "status_code", None)
    return Failure(reason, "final" if status in (401, 403) else _KIND_OF_STATUS.get(status, "passing"))


# Over HTTP.


@contextlib.contextmanager
def _over_http(url: str, patience: Patience, start: int, stop: int | None) -> Iterator[Stream]:
    with _failures(url, patience):
        response = _request(url, patience, start, stop)
    try:
        first, total = _place(response, start, stop)
        tag = response.headers.get("ETag", "").strip()
        yield Stream(
            start=first,
            total=total,
            tag="" if tag.startswith("W/") else tag,  # weak: the bytes may differ
            ends_surely=total is not None or response.chunked,
            is_whole=response.status == 200,
            # One read of a whole range takes half as long as reading it block by block.
            read=_guarded(response.read1 if stop is None else response.read, url, patience),
        )
    finally:
        # A response that was read to its end has already returned its connection to the pool.
        response.close()


def _request(url: str, patience: Patience, start: int, stop: int | None) -> urllib3.BaseHTTPResponse:
    from urllib3 import Timeout

    last = "" if stop is None else str(stop - 1)
    headers = {"User-Agent": "orlog", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
    if start or last:
        headers["Range"] = f"bytes={start}-{last}"
    connect = min(patience.timeout, patience.unreached)
    asked = [with_query(url)]
    while True:
        here = asked[-1]
        parts = urllib.parse.urlsplit(here)
        proxy = _proxy_of(parts.scheme, parts.netloc)
        _look_up(urllib.parse.urlsplit(proxy or here).hostname or "", connect)
        response = _pool(os.getpid(), proxy).request(
            "GET",
            here,
            headers={**headers, **authorization(here)},
            timeout=Timeout(connect=connect, read=patience.timeout),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        if response.status in (200, 206):
            return response
        with contextlib.closing(response):
            response.read(LARGEST_ERROR_PAGE)  # which lets the connection be used again
        asked.append(_redirected(response, asked))


def _redirected(response: urllib3.BaseHTTPResponse, asked: list[str]) -> str:
    """Return the target of a redirect; raise `Failure` for any other response without the bytes."""
    status = response.status
    text = f"{status} {http.client.responses.get(status, '')}".strip()
    location = response.headers.get("Location")
    if status not in (301, 302, 303, 307, 308) or not location:
        kind = _KIND_OF_STATUS.get(status, "passing" if status >= 500 else "final")
        wait = 0 if status == 416 else _retry_after(response.headers.get("Retry-After"))
        raise Failure(text, kind, wait=wait)
    target = urllib.parse.urljoin(asked[-1], location)
    # A server may send elsewhere by a signed URL, or name a password.
    shown = urllib.parse.urlsplit(target)._replace(query="", fragment="").geturl().rpartition("@")[2]
    if len(asked) > MOST_REDIRECTS or target in asked:
        raise Failure(f"{text}: more than {MOST_REDIRECTS} redirects, through {shown}", "final")
    if not is_http(target) or (asked[-1].startswith("https:") and target.startswith("http:")):
        raise Failure(f"{text}: redirects to {shown}, which is not followed", "final")
    return target


def _retry_after(text: str | None) -> float | None:
    import urllib3

    try:
        return None if text is None else float(urllib3.Retry().parse_retry_after(text))
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return None


def _place(response: urllib3.BaseHTTPResponse, start: int, stop: int | None) -> tuple[int, int | None]:
    """Return where in the file a response begins, and the file's size if the server states it."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise Failure(f"sends Content-Encoding {encoding}, which was not requested", "final")
    length = response.length_remaining
    if response.status == 200:
        return 0, length
    stated = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(stated.strip())
    if match is not None and int(match[1]) == start:
        end = int(match[2]) + 1
        if stop in (None, end) and length in (None, end - start):
            return start, None if match[3] == "*" else int(match[3])
    asked = f"bytes from {start} on" if stop is None else f"bytes {start} to {stop - 1}"
    raise Failure(f"sent {stated or 'no range'} when asked for {asked}", "wrong range", wait=0)


@functools.cache
def _pool(process: int, proxy: str | None) -> urllib3.PoolManager:  # noqa: ARG001
    """Return the connection pool of this process: a forked one must not use its parent's."""
    import urllib3

    # More threads than that work too; their connections are closed after each response.
    if proxy is None:
        pools = urllib3.PoolManager(num_pools=32, maxsize=32)
    else:
        account = urllib3.util.parse_url(proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=account) if account else None
        pools = urllib3.ProxyManager(proxy, num_pools=32, maxsize=32, proxy_headers=headers)
    for kind in (urllib3.HTTPConnectionPool, urllib3.HTTPSConnectionPool):
        connection: Any = type("Connection", (kind.ConnectionCls,), {"response_class": _Answer})
        pools.pool_classes_by_scheme[kind.scheme or ""] = type(kind.__name__, (kind,), {"ConnectionCls": connection})
    return pools


class _Answer(http.client.HTTPResponse):
    """An answer that a server may not draw out."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_Deadline(self.fp.detach(), sock))


class _Deadline(io.RawIOBase):
    """Reads a socket, each small block within some timeouts: a socket's own timeout starts again at each byte."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock = raw, sock
        self._timeout = sock.gettimeout() or 30.0
        self._begin_block()

    def _begin_block(self) -> None:
        self._seconds, self._bytes = LONGEST_ANSWER * self._timeout, SMALL_BLOCK_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        began = time.monotonic()
        if self._seconds < self._timeout:
            self._sock.settimeout(max(self._seconds, 0.001))
        count = self._raw.readinto(buffer)
        self._seconds -= time.monotonic() - began
        self._bytes -= count or 0
        if self._bytes <= 0:
            self._begin_block()
        if self._seconds <= 0:
            raise TimeoutError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


@functools.lru_cache(256)
def _proxy_of(scheme: str, host: str) -> str | None:
    """Return the proxy for a host from HTTPS_PROXY and similar variables, which are looked up once: that is slow."""
    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@functools.lru_cache(256)
def _look_up(host: str, seconds: float) -> None:
    """Raise socket.gaierror if a host has no address, or nobody answers in time: that can take minutes."""
    problems: list[OSError] = [socket.gaierror(socket.EAI_AGAIN, f"no answer in {seconds:g} seconds")]

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            problems.clear()
        except OSError as error:
            problems[:] = [error]
        except UnicodeError:  # urllib3 says that it is no address
            problems.clear()

    thread = threading.Thread(target=look_up, name="orlog-lookup", daemon=True)
    thread.start()
    thread.join(seconds)
    for problem in problems[:1]:
        raise problem


# Through fsspec.


@contextlib.contextmanager
def _through_fsspec(url: str, patience: Patience, start: int, stop: int | None) -> Iterator[Stream]:
    import fsspec

    with _failures(url, patience):
        system, path = fsspec.core.url_to_fs(url)
        if stop is not None:
            file, size = io.BytesIO(system.cat_file(path, start=start, end=stop)), None
        else:
            system.invalidate_cache(system._parent(path))  # which may hold an older size
            file = system.open(path, "rb")
            size = getattr(file, "size", None)
            if start and (not isinstance(size, int) or start <= size):
                file.seek(start)
    total = size if isinstance(size, int) else None
    try:
        yield Stream(start=start, total=total, ends_surely=total is not None, read=_guarded(file.read, url, patience))
    finally:
        with contextlib.suppress(Exception):  # it was only read
            file.close()


# What opens a server and is never shown: queries of signed URLs, and passwords in `.netrc`.


def plain_url(url: str) -> str:
    """Return a URL that a user gives without its query, which is sent with each request below it."""
    if "://" not in url:
        return url
    if "@" in url.split("/")[2]:
        raise ValueError(
            "leave user and password out of the URL, since URLs are shown and kept; orlog reads them "
            "from ~/.netrc (machine HOST login USER password PASSWORD), or the file that NETRC names."
        )
    if not is_http(url):
        return url
    plain, _, query = url.partition("#")[0].partition("?")
    plain = plain.rstrip("/")
    if query:
        _queries[plain] = query
    else:  # a URL that is given without a query gets none of a URL above it
        _queries.setdefault(plain, "")
    return plain


def with_query(url: str) -> str:
    """Return a URL as it is requested: with its own query, or that of the longest URL above it that a user gave."""
    if "?" in url:
        return url
    above = [start for start in _queries if url == start or url.startswith(f"{start}/")]
    query = _queries[max(above, key=len)] if above else ""
    return f"{url}?{query}" if query else url


def bringing_queries(function: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """Return what does the same in another process, to which it brings the queries that were given with URLs."""
    return functools.partial(_bring, function, dict(_queries))


def _bring(function: Callable[[Item], Result], queries: Mapping[str, str], item: Item) -> Result:
    _queries.update(queries)
    return function(item)


def hidden(text: str) -> str:
    """Return a text without the secrets in queries that were given with URLs; other words stay as they are."""
    for query in sorted(_queries.values(), key=len, reverse=True):
        if secrets := secret_parts(query):
            text = text.replace(f"?{query}", "?..")
        for part in secrets:
            value = part.partition("=")[2] or part
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(part, "..").replace(value, "..")
    return text


def secret_parts(query: str) -> list[str]:
    """Return the parts of a query that may be secrets, such as `token=..`."""
    parts = query.replace("?", "&").replace("#", "&").split("&")
    return [part for part in parts if part and part.partition("=")[0].lower() not in _PUBLIC]


def authorization(url: str) -> dict[str, str]:
    """Return the header for a URL with what `.netrc` has for its host; none over plain http elsewhere."""
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname or not (parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")):
        return {}
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        account = netrc.netrc(path).authenticators(parts.hostname)
    except OSError:
        return {}
    except netrc.NetrcParseError as error:
        raise ValueError(f"{path}: line {error.lineno} cannot be read: {error.msg}.") from error
    coded = base64.b64encode(f"{account[0]}:{account[2]}".encode()).decode() if account else ""
    return {"Authorization": f"Basic {coded}"} if coded else {}
