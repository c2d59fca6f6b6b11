"""What opens a server and is never shown: queries of signed URLs, and passwords in `.netrc`.

URLs are printed, kept in files beside versions and put into errors. So a query that a user gives with a URL
(`?token=..`) is kept in the memory of this process and sent with each request below that URL; of several URLs that a
user gave, the longest one above a request counts, with its query or without one. Worker processes get the queries in
memory too. User and password are not taken from URLs at all: `~/.netrc`, or the file that the environment variable
NETRC names, has them by host.
"""

from __future__ import annotations

import base64
import functools
import netrc
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

SHORTEST_SECRET = 8
"""Shorter values are hidden only behind a `?`: they may be parts of other words."""
_LOCAL = ("localhost", "127.0.0.1", "::1")
_PUBLIC = {
    *("dl", "download", "export", "format", "raw"),
    *("file", "filename", "id", "name", "path", "persistentid", "ref", "version", "versionid"),
}
"""Keys of queries that say which file is meant, or in which form. All others may hold a secret."""
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
    else:  # a URL that is given without a query gets none of a URL above it
        _queries.setdefault(plain, "")
    return plain


def may_be_signed(url: str) -> bool:
    """Return whether a URL has a query that may open the file, as that of a signed URL does."""
    return any(_secret_parts(url.partition("?")[2]))


def with_query(url: str) -> str:
    """Return a URL as it is requested: with its own query, or that of the longest URL above it that a user gave."""
    if "?" in url:
        return url
    above = [start for start in _queries if url == start or url.startswith(f"{start}/")]
    query = _queries[max(above, key=len)] if above else ""
    return f"{url}?{query}" if query else url


def bringing_queries(function: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """Return what does the same in another process, to which it brings the queries that were given with URLs.

    It must not be written into a file on the way.
    """
    return functools.partial(_bring, function, dict(_queries))


def _bring(function: Callable[[Item], Result], queries: Mapping[str, str], item: Item) -> Result:
    _queries.update(queries)
    return function(item)


def hidden(text: str) -> str:
    """Return a text without the secrets in queries that were given with URLs; other words stay as they are."""
    for query in sorted(filter(None, _queries.values()), key=len, reverse=True):
        if not (secrets := list(_secret_parts(query))):
            continue
        text = text.replace(f"?{query}", "?..")
        for part in secrets:
            value = part.partition("=")[2] or part
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(part, "..").replace(value, "..")
    return text


def _secret_parts(query: str) -> Iterator[str]:
    """Yield the parts of a query that may be secrets, such as `token=..`."""
    for part in query.replace("?", "&").replace("#", "&").split("&"):
        if part and part.partition("=")[0].lower() not in _PUBLIC:
            yield part


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
    account = _account(parts.hostname, path, changed)
    coded = base64.b64encode(account.encode()).decode()
    return {"Authorization": f"Basic {coded}"} if account else {}


@functools.lru_cache(256)
def _account(host: str, path: Path, _changed: int) -> str:
    """Return `USER:PASSWORD` for a host; empty if there is none."""
    try:
        account = netrc.netrc(path).authenticators(host)
    except netrc.NetrcParseError as error:
        raise ValueError(f"{path}: line {error.lineno} cannot be read: {error.msg}.") from error
    return f"{account[0]}:{account[2]}" if account else ""
