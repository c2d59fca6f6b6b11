"""What names files hold, so that an import can name those that it did not read.

A name is that of an array, `obs/qpos`, of an attribute of a group, `data@env_args`, or of a key of a JSON file; in a folder
the path of the file comes first, `meta/info.json:fps`, and `./` and the path alone is a file that is not looked into. Numbers in
names are written `#`, so that the names of one episode stand for those of all.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orlog.datasets.formats.arrow_files import arrow_names
from orlog.datasets.formats.hdf5_files import is_hdf5, links_in, open_hdf5
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.npz_files import is_npz, open_npz
from orlog.datasets.formats.zarr_arrays import is_zarr, open_zarr
from orlog.datasets.store.hdf5 import import_h5py

ATTRIBUTE, INSIDE, FILE = "@", ":", "./"
BESIDE = ("./*SHA#SUMS",)
LARGEST_DOCUMENT = 2**22
MOST_NAMES = 100_000
MOST_ALIKE = 200  # files of one name but for its numbers that are looked into
MOST_TOLD = 30
NUMBER = re.compile(r"(?<!\.hdf)(?<!\.h)(?<!\.mp)(?<!\.db)\d+")


def not_read(files: Sequence[Path], known: Sequence[str], notes: Sequence[Note], columns: Iterable[str]) -> list[Note]:
    """Return a note about the names in files, or one folder, that a reader does not know, or nothing.

    Known patterns are read, or say nothing. One that ends in `*` stands for names that are stored, as part of
    one of the `columns`; one that ends in `**` for any. Only a pattern with an `@` means attributes, and one
    that begins with `./` files that are not looked into. Names of other notes are not noted again.
    """
    if not known:
        return []
    words = {word for note in notes for name in note.columns for word in _spellings(name)}
    for name in columns:
        part = name.partition("/")[2]  # the axis alone, as `episodes`, is no name of a file's
        words |= {name, part, *re.split(r"[/.@]", part or name)} - {""}
    words = {NUMBER.sub("#", word) for word in words}
    counts = Counter(itertools.islice(_names(files), MOST_NAMES))
    left = {
        name: count
        for name, count in sorted(counts.items())
        if not words & _spellings(name) and not _is_known(name, (*known, *BESIDE), words)
    }
    shown = [f"{name[:100]} ({count})" if count > 1 else name[:100] for name, count in left.items()]
    names = ", ".join(shown[:MOST_TOLD])
    names += f" and {len(shown) - MOST_TOLD} more" if len(shown) > MOST_TOLD else ""
    return [Note("not_read", left, names=names)] if left else []


def holds(folder: Path, file: Path, patterns: Sequence[str]) -> bool:
    """Return whether a file in a folder is one that a format reads there, whose patterns are those of `not_read`."""
    where = file.absolute().relative_to(folder).as_posix()
    for name in _names([file]):
        path = f"{FILE}{where}" if name.startswith(FILE) else f"{where}{INSIDE}{name}"
        path = NUMBER.sub("#", path)
        inner = path if path.startswith(FILE) else name
        if any(fnmatch.fnmatchcase(path if INSIDE in one else inner, one) for one in patterns):
            return True
    return not patterns


def _spellings(name: str) -> set[str]:
    """Return how a name may stand in what was told: whole, in its file, or alone."""
    inner = name.rpartition(INSIDE)[2]
    return {name, inner, inner.rpartition("/")[2], inner.rpartition(ATTRIBUTE)[2]}


def _is_known(name: str, patterns: Sequence[str], words: set[str]) -> bool:
    inner = name if name.startswith(FILE) else name.rpartition(INSIDE)[2]
    for pattern in patterns:
        of_kind = all((sign in inner) == (sign in pattern) for sign in (ATTRIBUTE, FILE))
        if of_kind and fnmatch.fnmatchcase(name if INSIDE in pattern else inner, pattern):
            is_open = pattern.endswith("*") and not pattern.endswith("**")
            if not is_open or pattern.startswith(FILE) or _spellings(name) & words:
                return True
    return False


def _names(files: Sequence[Path]) -> Iterator[str]:
    """Yield the names in all files, each as often as it is there, but for their numbers."""
    seen = Counter[str]()
    for path, where in _each(files):
        kind = NUMBER.sub("#", where)
        seen[kind] += 1
        if seen[kind] > MOST_ALIKE:
            continue
        names = None
        with contextlib.suppress(Exception):  # one of a library: what is damaged, its reader tells
            names = _inside(path)
        start = f"{where}{INSIDE}" if names is not None and where else ""
        for name in [f"{FILE}{where or path.name}"] if names is None else names:
            yield NUMBER.sub("#", start + name)


def _each(files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each file, and its path in the folder; nothing for the path of a file that was given itself."""
    for file in files:
        if not file.is_dir() or is_zarr(file):
            yield file, ""
            continue
        for path in sorted(file.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path, path.relative_to(file).as_posix()


def _inside(path: Path) -> list[str] | None:
    """Return the names in a file; None for one that is not looked into."""
    ending = path.suffix.lower()
    if is_zarr(path):
        with open_zarr(path, str(path)) as store:
            return store.inventory()
    if is_hdf5(path):
        with open_hdf5(path, str(path)) as file:
            return list(_hdf5_names(file.id, ""))
    if ending == ".npz" and is_npz(path):
        with open_npz(path, str(path)) as archive:
            return archive.names
    if ending == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    if ending == ".arrow":
        return arrow_names(path)
    if ending in (".json", ".jsonl", ".ndjson"):
        with path.open("rb") as stream:
            return _json_names(stream.read(LARGEST_DOCUMENT))
    return None


def _json_names(data: bytes) -> list[str] | None:
    """Return the keys of a document, or of the lines of one; of a large file those at its begin."""
    try:
        bodies = [json.loads(data)]
    except ValueError:
        bodies = [json.loads(line) for line in data.splitlines()[:-1] if line.strip()]
    if not bodies or not all(isinstance(body, dict) for body in bodies):
        return None
    return sorted({str(key) for body in bodies for key in body})


def _hdf5_names(node: Any, path: str) -> Iterator[str]:
    """Yield the names of arrays and attributes at an identifier of HDF5; links are named themselves."""
    h5py = import_h5py()
    attributes: list[bytes] = []
    h5py.h5a.iterate(node, attributes.append)
    for attribute in attributes:
        yield f"{path}{ATTRIBUTE}{attribute.decode(errors='backslashreplace')}"
    if not isinstance(node, h5py.h5g.GroupID):
        yield path
        return
    for name, is_link in links_in(node):
        inner = f"{path}/{name}" if path else name
        if is_link:
            yield inner
        else:
            yield from _hdf5_names(h5py.h5o.open(node, name.encode()), inner)
