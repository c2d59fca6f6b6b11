"""JSON documents, read strictly, and small JSON files, which are replaced in one step."""

from __future__ import annotations

import contextlib
import json
import re
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from orlog.base.files import replace_file, sole_access, storage_errors
from orlog.errors import FormatVersionError, ManifestError, clause

LARGEST_FILE = 2**24
LONGEST_WAIT = 60.0
_HALF_CHARACTER = re.compile(r"\\u[dD]")
_converting = threading.Lock()

Kind = TypeVar("Kind")


def parse_json(data: str | bytes, most_values: int | None = None) -> Any:
    """Return parsed JSON, strictly: no repeated keys, deep nests, NaN, infinities or halves of surrogate pairs.

    Of `most_values` roughly, since an empty list takes 3 bytes of text and 64 of memory.
    """
    text = data.decode() if isinstance(data, bytes) else data
    if most_values is not None and sum(map(text.count, ",[{")) > most_values:
        raise ValueError(f"more than {most_values} values.")
    try:
        body = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        if _HALF_CHARACTER.search(text):
            canonical_json(body)  # refuses half of a surrogate pair
    except RecursionError as error:
        raise ValueError("nested too deeply.") from error
    return body


def refuse_newer(body: object, newest: Mapping[str, int], where: str) -> None:
    """Refuse JSON whose layout is newer than this orlog knows; `newest` maps version keys to those.

    Raises FormatVersionError if it was written by a newer orlog; `where` names it in the message.
    """
    for key, known in newest.items():
        version = body.get(key) if isinstance(body, dict) else None
        if isinstance(version, int) and version > known:
            raise FormatVersionError(
                f"{where}: {key} {version} is newer than this orlog reads ({known}); run: pip install --upgrade orlog"
            )


def convert_json(body: object, kind: type[Kind]) -> Kind:
    """Return parsed JSON as a msgspec type, strictly.

    Raises ValueError if it does not fit the type, or is nested too deeply.
    """
    try:
        # msgspec (0.22) can crash where two threads are the first to use a type.
        with _converting:
            return msgspec.convert(body, kind, strict=True)
    except RecursionError as error:
        raise ValueError("nested too deeply.") from error
    except msgspec.ValidationError as error:
        # The error of a type's own check is clearer than msgspec's, which wraps it.
        cause = error.__cause__
        text = clause(cause if isinstance(cause, ManifestError) else error)
        raise ValueError(f"{text[:1000]}.") from error


def read_small_file(path: Path, largest: int = LARGEST_FILE) -> str:
    """Return the text of a file of at most `largest` bytes.

    Raises OSError if it cannot be read; ValueError if it is not a file, larger, or not UTF-8.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or device could give bytes without end
        raise ValueError("it is not a file.")
    with path.open("rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"too large: more than {largest} bytes.")
    return data.decode()


def read_json_file(
    path: Path,
    kind: type[Kind],
    *,
    version: tuple[str, int],
    repair: str,
    opened: Callable[[Any], Any] = lambda body: body,
) -> Kind:
    """Return the content of a small JSON file as a msgspec type, which it must fit exactly, the version included.

    `version` is the key that holds the version of the layout, and the newest that is known; `repair` says
    what to do about a file that is wrong; `opened` returns what of the parsed JSON is to be converted, and
    its ValueError refuses the file.
    """
    try:
        body = parse_json(read_small_file(path))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: cannot be read: {clause(error)}; {repair}.", file=str(path)) from error
    refuse_newer(body, dict([version]), str(path))
    try:
        return convert_json(opened(body), kind)
    except ValueError as error:
        raise ManifestError(f"{path}: {clause(error)}; {repair}.", file=str(path)) from error


def replace_json_file(path: Path, body: Any) -> None:
    """Replace a file by sorted, indented JSON; call it inside `sole_writer`.

    Raises StorageError if the file cannot be written; the old one stays.
    """
    text = json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with storage_errors(path):
        replace_file(path, f"{text}\n".encode())


def sole_writer(path: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a file from reading it to replacing it; makes its folder.

    Raises StorageError if the folder cannot be written, or another process holds the lock for a minute.
    """
    return sole_access(path, longest_wait=LONGEST_WAIT)


def write_json(path: Path, body: object) -> None:
    """Write indented JSON with its keys in the order given; makes the folder.

    The file is replaced in one step; of several processes that do so at once, the last one wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(body, indent=1, allow_nan=False) + "\n").encode(), alone=False)


def canonical_json(body: Any) -> bytes:
    """Return the canonical JSON text, over which digests are taken."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key is repeated.")
    return keys


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON.")
