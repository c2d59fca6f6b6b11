"""What opens a server and is never shown: queries of signed URLs, and passwords in `.netrc`.

URLs are printed, kept in files beside versions and put into errors. So a query that a user gives with a
URL (`?token=..`) is kept in the memory of this process, by the URL before it, and sent with each request
below that URL. Processes that work for this one are told it in memory too. User and password are not taken from URLs at all: `~/.netrc`, or the file that the environment
variable NETRC names, has them by host.
"""

from __future__ import annotations

import base64
import functools
import netrc
import os
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Shorter queries, such as `v=1`, are only hidden where a `?` comes first: they may be parts of other words.
SHORTEST_SECRET = 8
_LOCAL = ("localhost", "127.0.0.1", "::1")
# Keys of queries that say which file is meant, or in which form. What others say may be a secret.
_PUBLIC = {
    *("dl", "download", "export", "format", "raw"),
    *("file", "filename", "id", "name", "path", "persistentid", "ref", "version", "versionid"),
}
_queries: dict[str, str] = {}


def plain_url(url: str) -> str:
    """Return a URL that a user gives without its query, which is sent with each request below it.

    Raises ValueError if user and password are in it; the message does not repeat them.
    """
    if "://" not in url:
        return url
    if "@" in url.split("/")[2]:
        raise ValueError(
            "leave user and password out of the URL, since URLs are shown and kept; orlog reads them "
            "from ~/.netrc (machine HOST login USER password PASSWORD), or the file that NETRC names."
        )
    if not url.startswith(("http://", "https://")):
        return url
    plain, _, query = url.partition("#")[0].partition("?")
    plain = plain.rstrip("/")
    if query:
        _queries[plain] = query
    return plain


def may_be_signed(url: str) -> bool:
    """Return whether a URL has a query that may open the file, as that of a signed URL does."""
    parts = url.partition("?")[2].replace("?", "&").replace("#", "&").split("&")
    return any(part and part.partition("=")[0].lower() not in _PUBLIC for part in parts)


def with_query(url: str) -> str:
    """Return a URL as it is requested: with the query that was given with it, or with the nearest one above it."""
    above = [start for start in _queries if url == start or url.startswith(f"{start}/")]
    return f"{url}?{_queries[max(above, key=len)]}" if above else url


def bringing_queries(function: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """Return what does the same in another process, to which it brings the queries that were given with URLs.

    It must not be written into a file on the way.
    """
    return functools.partial(_bring, function, dict(_queries))


def _bring(function: Callable[[Item], Result], queries: Mapping[str, str], item: Item) -> Result:
    _queries.update(queries)
    return function(item)


def hidden(text: str) -> str:
    """Return a text without the queries that were given with URLs."""
    for query in sorted(_queries.values(), key=len, reverse=True):
        text = text.replace(f"?{query}", "?..")
        if len(query) >= SHORTEST_SECRET:
            text = text.replace(query, "..")
    return text


def authorization(url: str) -> dict[str, str]:
    """Return the header for a URL with what `.netrc` has for its host; none over plain http elsewhere."""
    parts = urllib.parse.urlsplit(url)
    if parts.hostname is None or (parts.scheme != "https" and parts.hostname not in _LOCAL):
        return {}
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return {}
    return _of_host(parts.hostname, path, changed)


@functools.lru_cache(256)
def _of_host(host: str, path: Path, _changed: int) -> dict[str, str]:
    try:
        found = netrc.netrc(path).authenticators(host)
    except netrc.NetrcParseError as error:
        raise ValueError(f"{path}: line {error.lineno} cannot be read: {error.msg}.") from error
    if found is None:
        return {}
    user, _, password = found
    account = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {account}"}
