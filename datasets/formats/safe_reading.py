"""Files of others, which are not trusted: errors of libraries, JSON, bytes of rows, and `SHA256SUMS` beside them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orlog.base.files import hash_file, sync, write_durably
from orlog.errors import IntegrityError, OrlogError, SchemaError

SUMS_FILE = "SHA256SUMS"
FOLDERS_ABOVE = 3  # as of NAMESPACE/NAME/data in an export to Minari
HEX = frozenset("0123456789abcdef")
LARGEST_DOCUMENT = 2**26  # of those beside downloaded data, which are read whole


@contextlib.contextmanager
def reading(where: str, kind: str = "") -> Iterator[None]:
    """Raise an IntegrityError that names the file for any error of a library, such as `kind` "HDF5"."""
    try:
        yield
    except OrlogError:
        raise
    except Exception as error:  # libraries raise errors of all kinds about damage
        text = str(error.args[0] if error.args else error).partition("\n")[0]
        text = text[:200] or type(error).__name__
        what = f" as {kind}" if kind else ""
        raise IntegrityError(f"{where}: cannot be read{what}: {text}.", file=where) from error


def read_json_object(file: Path, where: str, *, missing: str, name: str = "") -> dict[str, Any]:
    """Return the object that a file of JSON holds; errors call the dataset `where`, and the file `name`.

    `missing` is what an error says where the file is not there, is a link, or too large.
    """
    name = name or file.name
    if not file.is_file() or file.is_symlink() or file.stat().st_size > LARGEST_DOCUMENT:
        raise SchemaError(f"{where}: {missing}")
    try:
        body = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: {name} is no JSON: {error}.", file=where) from error
    if not isinstance(body, dict):
        raise SchemaError(f"{where}: {name} holds no object.")
    return body


def finite_float(text: str) -> float:
    """Return a number of JSON, for `parse_float` of `json.loads`."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is larger than any number of 64 bits")
    return number


def numbers_in(value: Any, where: str) -> np.ndarray:
    """Return nested lists as an array; what is neither number nor text stays an object."""
    array = np.array(value)
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and (abs(array) >= 2.0**53).any()):
        for row, item in enumerate(value if isinstance(value, list) else [value]):
            for number in np.array(item, object).reshape(-1):
                if isinstance(number, int) and (abs(number) >= 2**64 or float(number) != number):
                    shown = number if abs(number) < 2**64 else "an integer of more than 64 bits"
                    raise SchemaError(f"{where}: holds {shown} at row {row}, which float64 does not hold exactly.")
    return array


def rows_differ(rows: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return for each of n rows, of one dtype and shape, whether its bytes differ from the other's, (n,) bool."""
    if not rows.size:
        return np.zeros(len(rows), bool)
    row_bytes = rows.dtype.itemsize * math.prod(rows.shape[1:])
    # Whole words take a fraction of the time of bytes.
    word: Any = next(f"u{size}" for size in (8, 4, 2, 1) if row_bytes % size == 0)
    first, second = (np.ascontiguousarray(part).reshape(-1).view(word) for part in (rows, other))
    # Few words differ where rows should be equal: finding those takes a fraction of looking through each row.
    odd = np.flatnonzero(first != second)
    differ = np.zeros(len(rows), bool)
    differ[odd // (row_bytes // first.itemsize)] = True
    return differ


def write_sums(folder: Path) -> None:
    """Write the SHA-256 of each file of a folder beside them, durably."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )
    lines = [f"{hash_file(folder / name)}  {name}\n" for name in names if "\n" not in name]
    write_durably(folder / SUMS_FILE, "".join(lines).encode())
    sync(folder)


def check_sums(folder: Path, sums: Mapping[str, str], *, all_of_it: bool) -> bool:
    """Compare files with the `SHA256SUMS` of their folder; return whether it lists any of them.

    Where it lists none of them, the lists of the next folders above are asked: a part of an export may be
    imported, such as `ID/data` of Minari's. Only names of `sums` are looked for, so that no path of a list is
    ever opened: the SHA-256 of each file by its path, with slashes, in the folder itself and not through a
    link. If they are `all_of_it`, each file that a list has there must be among them.
    """
    start = ""  # of the files' names in the list
    for place in (folder, *folder.parents[:FOLDERS_ABOVE]):
        named = {start + name: sha256 for name, sha256 in sums.items()}
        if place == folder:
            named.pop(SUMS_FILE, None)
        if _is_listed(place, named, start if all_of_it else None):
            return True
        start = f"{place.name}/{start}"
    return False


def _is_listed(folder: Path, sums: Mapping[str, str], whole: str | None) -> bool:
    """Compare files with the list of one folder, if there is one; return whether it lists any of them."""
    path = folder / SUMS_FILE
    if path.is_symlink() or not path.is_file():
        return False
    listed: dict[str, str] = {}
    for line in path.read_bytes().decode("utf-8", "replace").splitlines():
        sha256, name = line[:64].lower(), line[66:].removeprefix("./")
        if len(sha256) == 64 and HEX.issuperset(sha256) and line[64:66] in ("  ", " *"):
            listed[name] = sha256
    wrong = [name for name, digest in sums.items() if listed.get(name, digest) != digest]
    if whole is not None:
        wrong += [name for name in listed if name.startswith(whole) and name not in sums]
    if wrong:
        shown = ", ".join(repr(name)[1:-1] for name in wrong[:5])
        more = f" and {len(wrong) - 5:,} more" if len(wrong) > 5 else ""
        raise IntegrityError(
            f"{path}: {shown}{more}: not the bytes that were written, or missing. Nothing was kept. Export or "
            f"copy the files again; if you changed them on purpose, remove {SUMS_FILE}.",
            file=str(folder / wrong[0]),
        )
    return any(name in listed for name in sums)
