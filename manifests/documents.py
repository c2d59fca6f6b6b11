"""Small JSON files that change: read strictly, replaced in one step, by one process at a time."""

from __future__ import annotations

import contextlib
import json
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from filelock import FileLock

from orlog.errors import (
    FormatVersionError,
    ManifestError,
    StorageError,
)
from orlog.files import sync, write_durably

__all__ = [
    "canonical_json",
    "parse_json",
    "read_json_file",
    "replace_bytes",
    "replace_json_file",
    "sole_writer",
    "write_json",
]

LARGEST_FILE = 2**24
LONGEST_WAIT = 60
_converting = threading.Lock()

Kind = TypeVar("Kind")


def read_json_file(path: Path, kind: type[Kind], *, version: tuple[str, int], repair: str) -> Kind:
    """Return the content of a small JSON file as a msgspec type.

    Args:
        path: The file.
        kind: Type that it must have exactly, the version included.
        version: Key that holds the version of the layout, and the newest that is known.
        repair: What to do about a file that is wrong, for the message.

    Raises:
        ManifestError: the file is missing, too large or malformed.
        FormatVersionError: it was written by a newer orlog.
    """
    key, newest = version
    try:
        body = parse_json(_read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: cannot be read: {error}; {repair}", file=str(path)) from error
    found = body.get(key) if isinstance(body, dict) else None
    if isinstance(found, int) and found > newest:
        raise FormatVersionError(
            f"{path}: {key} {found} is newer than this orlog reads ({newest}); "
            "run: pip install --upgrade orlog"
        )
    try:
        # msgspec (0.22) can crash where two threads are the first to use a type.
        with _converting:
            return msgspec.convert(body, kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ManifestError(f"{path}: {error!s:.1000}; {repair}", file=str(path)) from error


def replace_json_file(path: Path, body: Any) -> None:
    """Write sorted, indented JSON in place of what was there; call it inside `sole_writer`.

    Raises:
        StorageError: the file cannot be written; what was there stays.
    """
    text = json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with _storage_errors(path):
        try:
            write_durably(unfinished, f"{text}\n".encode())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold the only right to change a file, from reading it to replacing it; makes its folder.

    The lock is a file `.NAME.lock` beside it. It stays, since removing it would race.

    Raises:
        StorageError: the folder cannot be written, or another process holds the lock for a minute.
    """
    with _storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        lock.acquire(timeout=LONGEST_WAIT)
    try:
        yield
    finally:
        lock.release()


def _read_text(path: Path) -> str:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe could be waited for without end
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"more than {LARGEST_FILE} bytes")
    return data.decode()


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write: {error.strerror or error}", errno=error.errno
        ) from error


_HALF_CHARACTER = re.compile(r"\\u[dD]")


def canonical_json(body: Any) -> bytes:
    """Return the one JSON text that a digest is taken over."""
    text = json.dumps(
        body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def parse_json(text: str, most_values: int | None = None) -> Any:
    """Return parsed JSON, strictly.

    Args:
        text: The JSON.
        most_values: How many values it may hold about: an empty list takes 3 bytes of text and 64
            of memory.

    Raises:
        ValueError: it is no JSON, repeats a key, or holds NaN, an infinity or half a character.
        RecursionError: it is nested too deeply.
    """
    if most_values is not None and sum(map(text.count, ",[{")) > most_values:
        raise ValueError(f"more than {most_values} values")
    body = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    if _HALF_CHARACTER.search(text):
        canonical_json(body)  # which refuses half of a surrogate pair
    return body


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key is repeated")
    return keys


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def write_json(path: Path, body: object) -> None:
    """Write indented JSON; the file is replaced whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, (json.dumps(body, indent=1, allow_nan=False) + "\n").encode())


def replace_bytes(path: Path, data: bytes) -> None:
    """Put a durable file in the place of another, or leave that one as it is."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        write_durably(unfinished, data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)
