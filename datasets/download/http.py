"""Reads remote files as streams of bytes: over HTTP through urllib3, all else through fsspec.

Servers are not trusted: redirects, ranges and lengths are checked, and error texts are shortened
and made safe to print. Other kinds of URL (file, memory, s3, ..) need a backend of fsspec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import logging
import os
import random
import re
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from orlog.datasets.download.credentials import authorization, hidden, with_query
from orlog.datasets.download.watchdog import ends_within, find_host
from orlog.errors import MissingExtraError, NotFoundError, TransferError, clause

if TYPE_CHECKING:
    import urllib3

BLOCK_BYTES = 2**20
MOST_REDIRECTS = 5
LARGEST_ERROR_PAGE = 2**16
LONGEST_REASON = 300
LONGEST_ANSWER = 4  # timeouts: for the header of a response, and for each block of its body
MISSING = frozenset({404, 410})
TEMPORARY = frozenset({408, 425, 429})
OVERLOADED = frozenset({429, 503})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}
_logger = logging.getLogger("orlog.download")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a source before giving it up.

    A source is given up once `attempts` requests in a row have failed and nothing new has come from
    it for `idle` seconds; for small files (`read_small`), after `attempts` alone. One that could not be
    reached at all (no network, an unknown host, nothing that listens) is given up after `unreached`
    seconds: nothing that was begun depends on it.

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
        is_final: Asking again would give the same result.
        is_missing: There is no such file.
        is_lie: The server sent another range than it was asked for.
        is_overload: The server wants fewer requests.
        is_unreached: There was no connection.
        wait: Seconds that the server asks to wait; None if it does not say.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_final: bool = False,
        is_missing: bool = False,
        is_lie: bool = False,
        is_overload: bool = False,
        is_unreached: bool = False,
        wait: float | None = None,
    ) -> None:
        # Parts of it come from the server, and it is printed on terminals.
        shown = "".join(letter if letter.isprintable() else "?" for letter in hidden(reason))
        super().__init__(shown[:LONGEST_REASON])
        self.is_final = is_final or is_missing
        self.is_missing = is_missing
        self.is_lie = is_lie
        self.is_overload = is_overload
        self.is_unreached = is_unreached
        self.wait = wait


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """The bytes of a file, read one block at a time.

    Attributes:
        start: Position in the file of the first byte.
        total: Size of the file, if the server says.
        tag: The server's identifier (ETag) for the file's current bytes; empty if it gives none.
        ends_surely: Whether a broken connection can be told from the end of the file.
        is_whole: Whether the server sends the whole file, whatever it was asked for.
        read: Returns at most that many bytes, none at the end; raises `Failure`.
    """

    start: int
    total: int | None
    tag: str = ""
    ends_surely: bool
    is_whole: bool = False
    read: Callable[[int], bytes]


@contextlib.contextmanager
def opened(url: str, start: int, patience: Patience) -> Iterator[Stream]:
    """Open a file at `start`, or at its first byte if the server does not support ranges."""
    with (over_http if is_http(url) else _through_fsspec)(url, start, patience) as stream:
        yield stream


@contextlib.contextmanager
def over_http(
    url: str, start: int, patience: Patience, stop: int | None = None
) -> Iterator[Stream]:
    """Open a file at `start` over HTTP; with `stop`, only the bytes up to it are asked for."""
    response = _request(url, start, patience, stop)

    longest = LONGEST_ANSWER * patience.timeout

    def read(size: int) -> bytes:
        with _http_errors(patience), ends_within(longest, getattr(response, "socket_read", None)):
            return response.read(size)

    try:
        first, total = _place(response, start, stop)
        tag = response.headers.get("ETag", "").strip()
        yield Stream(
            start=first,
            total=total,
            tag="" if tag.startswith("W/") else tag,  # weak: the bytes may differ
            ends_surely=total is not None or response.chunked,
            is_whole=response.status == 200,
            read=read,
        )
    finally:
        # A response that was read to its end has already returned its connection to the pool.
        response.close()


def _request(
    url: str, start: int, patience: Patience, stop: int | None = None
) -> urllib3.BaseHTTPResponse:
    """Return the response with the bytes, redirects followed."""
    last = "" if stop is None else str(stop - 1)
    headers = {
        "User-Agent": "orlog",
        "Accept-Encoding": "identity",
        "Cache-Control": "no-cache",
        **({"Range": f"bytes={start}-{last}"} if start or last else {}),
    }
    seen = [with_query(url)]
    with _http_errors(patience):
        from urllib3 import Timeout

        connect = min(patience.timeout, patience.unreached)
        while True:
            proxy = _proxy_of(seen[-1])
            find_host(urllib.parse.urlsplit(proxy or seen[-1]).hostname or "", connect)
            response = _pool(os.getpid(), proxy).request(
                "GET",
                seen[-1],
                headers={**headers, **authorization(seen[-1])},
                timeout=Timeout(connect=connect, read=patience.timeout),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            if response.status in (200, 206):
                return response
            # Reading the error page lets the connection be used again.
            longest = LONGEST_ANSWER * patience.timeout
            with contextlib.closing(response):
                with ends_within(longest, getattr(response, "socket_read", None)):
                    response.read(LARGEST_ERROR_PAGE)
                seen.append(_redirected(response, seen))


def _redirected(response: urllib3.BaseHTTPResponse, seen: list[str]) -> str:
    """Return the target of a redirect; raise `Failure` for any other response without the bytes."""
    status = response.status
    text = f"{status} {http.client.responses.get(status, '')}".strip()
    location = response.headers.get("Location")
    if status not in REDIRECTS or not location:
        raise Failure(
            text,
            is_final=status < 500 and status not in TEMPORARY and status != 416,
            is_missing=status in MISSING,
            is_lie=status == 416,
            is_overload=status in OVERLOADED,
            wait=0 if status == 416 else _retry_after(response.headers.get("Retry-After")),
        )
    target = urllib.parse.urljoin(seen[-1], location)
    # A server may send elsewhere by a signed URL, or name a password.
    shown = (
        urllib.parse.urlsplit(target)._replace(query="", fragment="").geturl().rpartition("@")[2]
    )
    if target in seen:
        raise Failure(f"{text}: redirects in a circle, through {shown}", is_final=True)
    if len(seen) > MOST_REDIRECTS:
        raise Failure(f"{text}: more than {MOST_REDIRECTS} redirects", is_final=True)
    if not is_http(target) or (seen[-1].startswith("https:") and target.startswith("http:")):
        raise Failure(f"{text}: redirects to {shown}, which is not followed", is_final=True)
    return target


def _place(
    response: urllib3.BaseHTTPResponse, start: int, stop: int | None = None
) -> tuple[int, int | None]:
    """Return where in the file a response begins, and the file's size if the server states it."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise Failure(f"sends Content-Encoding {encoding}, which was not requested", is_final=True)
    length = response.length_remaining
    if response.status == 200:
        return 0, length
    said = response.headers.get("Content-Range", "")
    found = _CONTENT_RANGE.fullmatch(said.strip())
    if found is None or int(found[1]) != start:
        raise Failure(
            f"sent {said or 'no range'} when asked for bytes from {start} on", is_lie=True, wait=0
        )
    if stop is not None and int(found[2]) + 1 != stop:
        raise Failure(f"sent {said} when asked for bytes {start} to {stop - 1}", is_lie=True)
    if length not in (None, int(found[2]) + 1 - start):
        raise Failure(f"sent {length} bytes as {said}", is_lie=True, wait=0)
    return start, None if found[3] == "*" else int(found[3])


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
    pools.pool_classes_by_scheme = _watched_pools()
    return pools


@functools.cache
def _watched_pools() -> dict[str, type[Any]]:
    """Return connection pools that time out when a server sends its header too slowly."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    def watched(kind: type[Any]) -> type[Any]:
        def getresponse(self: Any) -> Any:
            waited, response = self.sock, None
            try:
                with ends_within(LONGEST_ANSWER * (waited.gettimeout() or LONGEST_ANSWER), waited):
                    response = kind.getresponse(self)
            except TimeoutError:
                if response is not None:
                    response.close()
                raise
            response.socket_read = waited
            return response

        return type(kind.__name__, (kind,), {"getresponse": getresponse})

    kinds = ((HTTPConnectionPool, HTTPConnection), (HTTPSConnectionPool, HTTPSConnection))
    return {
        pool.scheme or "": type(pool.__name__, (pool,), {"ConnectionCls": watched(connection)})
        for pool, connection in kinds
    }


def _proxy_of(url: str) -> str | None:
    """Return the proxy for a URL from HTTPS_PROXY and similar variables."""
    parts = urllib.parse.urlsplit(url)
    names = (f"{parts.scheme}_proxy", "no_proxy", "REQUEST_METHOD")
    settings = tuple(os.environ.get(name) for one in names for name in (one, one.upper()))
    return _find_proxy(parts.scheme, parts.netloc, settings)


@functools.lru_cache(256)
def _find_proxy(scheme: str, host: str, _settings: tuple[str | None, ...]) -> str | None:
    """Return the proxy for a host, looked up once as long as the settings stay the same.

    The lookup scans the whole environment, which takes as long as a small request.
    """
    proxy = urllib.request.getproxies().get(scheme)
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@contextlib.contextmanager
def _http_errors(patience: Patience) -> Iterator[None]:
    from urllib3 import exceptions as errors

    try:
        yield
    except (errors.NewConnectionError, errors.ProxyError) as error:
        cause = getattr(error, "original_error", error)
        is_unreached = isinstance(
            cause, errors.ConnectTimeoutError
        )  # of which a new connection's is one
        reason = clause(error).partition("): ")[2] or clause(error)  # without urllib3's own objects
        raise Failure(reason, is_unreached=is_unreached) from error
    except errors.ConnectTimeoutError as error:
        seconds = min(patience.timeout, patience.unreached)
        reason = f"gave no connection for {seconds:g} seconds"
        raise Failure(reason, is_unreached=True) from error
    except errors.TimeoutError as error:
        raise Failure(f"sent nothing for {patience.timeout:g} seconds") from error
    except ValueError as error:
        raise Failure(f"not an address: {clause(error)}", is_final=True) from error
    except socket.gaierror as error:
        raise Failure(f"failed to resolve its name ({clause(error)})", is_unreached=True) from error
    except (errors.HTTPError, http.client.HTTPException, OSError) as error:
        raise Failure(clause(error) or type(error).__name__) from error


@contextlib.contextmanager
def _through_fsspec(url: str, start: int, _: Patience) -> Iterator[Stream]:
    import fsspec

    with fsspec_errors(url):
        system, path = fsspec.core.url_to_fs(url)
        file = system.open(path, "rb")

    def read(size: int) -> bytes:
        with fsspec_errors(url):
            return bytes(file.read(size))

    try:
        size = getattr(file, "size", None)
        total = size if isinstance(size, int) else None
        if start and (total is None or start <= total):
            with fsspec_errors(url):
                file.seek(start)
        yield Stream(start=start, total=total, ends_surely=total is not None, read=read)
    finally:
        with contextlib.suppress(Exception):  # it was only read
            file.close()


def _forget_listing(url: str) -> None:
    """Drop a cached size, which some backends keep: an index changes."""
    import fsspec

    with fsspec_errors(url):
        system, path = fsspec.core.url_to_fs(url)
        system.invalidate_cache(system._parent(path))


@contextlib.contextmanager
def fsspec_errors(url: str) -> Iterator[None]:
    """Turn the errors of fsspec's backends into `Failure`."""
    try:
        yield
    except ImportError as error:
        raise missing_backend(url, error) from error
    except FileNotFoundError as error:
        raise Failure("no such file", is_missing=True) from error
    except (PermissionError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        raise Failure(clause(error) or type(error).__name__, is_final=True) from error
    except Exception as error:  # each backend of fsspec has its own errors
        status = getattr(getattr(error, "response", None), "status_code", None)
        is_missing, is_final = status in MISSING, status in (401, 403)
        reason = clause(error) or type(error).__name__
        raise Failure(
            reason, is_final=is_final, is_missing=is_missing, is_overload=status in OVERLOADED
        ) from error


def read_small(url: str, limit: int, *, patience: Patience = Patience()) -> bytes:
    """Return a whole small file, of at most `limit` bytes: a manifest, an index, a signature.

    Its bytes are not checked: the caller does that. NotFoundError means that the server says there is none.
    """
    began = time.monotonic()
    for attempt in range(1, patience.attempts + 1):
        try:
            return _read_whole(url, limit, patience)
        except Failure as failure:
            if failure.is_missing:
                raise NotFoundError(f"{url}: {failure}; check the address.") from failure
            pause = pause_after(failure, attempt, patience)
            is_over = attempt == patience.attempts or is_out_of_reach(
                failure, began, pause, patience
            )
            if failure.is_final or is_over:
                raise TransferError(
                    f"{url}: cannot be read: {failure} ({times(attempt)}); check the address and "
                    "the network, then run the same command again.",
                    attempts=[f"{url}: {failure}"],
                ) from failure
            tell_failure(url, failure, pause)
            time.sleep(pause)
    raise ValueError(f"patience needs at least 1 attempt, found {patience.attempts}.")


def _read_whole(url: str, limit: int, patience: Patience) -> bytes:
    data = bytearray()
    if not is_http(url):
        _forget_listing(url)
    with opened(url, 0, patience) as stream:
        if stream.total is not None and stream.total > limit:
            raise Failure(f"has {stream.total} bytes, more than the {limit} allowed", is_final=True)
        # One byte more than allowed is asked for, so that a longer file is seen.
        while block := stream.read(min(BLOCK_BYTES, limit + 1 - len(data))):
            data += block
            if len(data) > limit:
                raise Failure(f"has more than the {limit} bytes allowed", is_final=True)
    return bytes(data)


def missing_backend(url: str, error: ImportError) -> MissingExtraError:
    """Return the error that says which package a URL needs."""
    extra = EXTRAS.get(url.partition("://")[0])
    if extra is None:
        return MissingExtraError(f"{url}: {clause(error)}; install that package.")
    return MissingExtraError(f"{url}: {clause(error)}", install=f"orlog[{extra}]")


def is_http(url: str) -> bool:
    """Return whether a URL is read over HTTP."""
    return url.startswith(("http://", "https://"))


def pause_after(failure: Failure, failures: int, patience: Patience) -> float:
    """Return how many seconds to wait after that many failures in a row."""
    # A wait of 0 counts only once: a server that always sends it would be asked without end.
    if failure.wait is not None and (failure.wait > 0 or failures == 1):
        return min(failure.wait, patience.longest_wait)
    longest = min(patience.longest_wait, patience.first_wait * 2.0 ** min(failures - 1, 30))
    # Clients that failed together should not retry together.
    return longest * random.uniform(0.5, 1)  # noqa: S311


def is_out_of_reach(failure: Failure, began: float, pause: float, patience: Patience) -> bool:
    """Return whether a source that gave nothing since `began` is given up, rather than asked again after a pause."""
    return failure.is_unreached and time.monotonic() + pause - began > patience.unreached


def tell_failure(url: str, failure: Failure, pause: float) -> None:
    """Log that a request failed, and when the next one follows; the command line shows it."""
    _logger.info("%s: %s; asking again in %.1f seconds", hidden(url), failure, pause)


def times(count: int) -> str:
    """Return how often something was tried, in words."""
    return "tried once" if count == 1 else f"tried {count} times"


def _retry_after(text: str | None) -> float | None:
    """Return the seconds that a Retry-After (number or date) asks for; None if unreadable."""
    import urllib3

    try:
        return None if text is None else float(urllib3.Retry().parse_retry_after(text))
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return None
