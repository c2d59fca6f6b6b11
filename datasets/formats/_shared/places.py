"""Arrays of HDF5, npz and Zarr, by the places where they lie together: a group, a file, a folder."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._containers.axis_names import (
    NO_NAMES,
    AxisNames,
    lists_in_hdf5,
    lists_in_npz,
    lists_in_zarr,
    names_for,
)
from orlog.datasets.formats._containers.episode_values import (
    AttributesAt,
    attributes_in_hdf5,
    whole_in_hdf5,
)
from orlog.datasets.formats._containers.hdf5_files import (
    check_heaps,
    datasets_in,
    flag_attribute,
    is_hdf5,
    numbers,
    open_hdf5,
    reading,
)
from orlog.datasets.formats._containers.npz_files import NpzColumn, is_npz, open_npz, reading_npz
from orlog.datasets.formats._containers.pictures import PictureColumn, begins_a_picture
from orlog.datasets.formats._containers.pointers import MOST_LOOKED_AT
from orlog.datasets.formats._containers.table_files import ENDINGS
from orlog.datasets.formats._containers.zarr_arrays import is_zarr, open_zarr, reading_zarr
from orlog.datasets.formats._shared.episodes import Asked, Options
from orlog.datasets.formats._shared.flags import SUCCESS, outcome_of
from orlog.datasets.formats._shared.roles import base_role, by_numbers
from orlog.datasets.formats._shared.trees import spanned
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.names import did_you_mean

FILE = "file"
LAYOUT = "arrays that --map could name"


class Taken(NamedTuple):
    """Messages of a topic: how many there are, and should be; how many are in rows, at most how many seconds old."""

    messages: int
    expected: int | None
    taken: int
    age: float


@dataclasses.dataclass(frozen=True)
class Place:
    """Arrays that lie together: in one group of a file, or in a whole file.

    Attributes:
        where: What errors call it.
        names: Names of the arrays.
        column: Opens one, to read its rows in order: numbers, or bytes of one length.
        reading: Turns errors of the library that reads it into ours, as a context.
        outside: Names of arrays of the file that lie in no place; told with its first one.
        job_bytes: At least how much of it a job reads, as where what comes before has to be read too; None where
            rows can only be read from the first on.
        taken: Which messages of recordings are in rows, by topic.
        names_of: Returns what the numbers in a row of an array are called; nothing where nothing says it.
        success: Whether an episode that is all of this place succeeded, where its attributes or its path state it.
        path: Where it lies in its file.
        attributes: Gives the attributes at a path of the file.
        whole: Reads a small array that may hold texts, or one value; None where `column` reads it.
    """

    where: str
    names: list[str]
    column: Callable[[str], Any]
    reading: Callable[[str], AbstractContextManager[None]]
    outside: Sequence[str] = ()
    job_bytes: int | None = 0
    taken: Mapping[str, Taken] = dataclasses.field(default_factory=dict)
    names_of: Callable[[str], AxisNames] = lambda _name: NO_NAMES
    success: bool | None = None
    path: str = ""
    attributes: AttributesAt = lambda _path: {}
    whole: Callable[[str], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Places:
    """How the places of files are found; processes of other machines open them likewise.

    Attributes:
        pieces: Lists what can be opened on its own, such as files with what errors call them.
        open: Yields each place of such a piece while that is open.
    """

    pieces: Callable[[Asked], Iterable[Any]]
    open: Callable[[Any, Options], Generator[Place]]

    def find(self, asked: Asked) -> Iterator[tuple[tuple[int, Any], int, Place]]:
        """Yield each place while it is open, with its piece, that one's number, and its own number in it."""
        for numbered in enumerate(self.pieces(asked)):
            for number, place in enumerate(self.open(numbered[1], asked.options)):
                yield numbered, number, place


def columns_by_role(place: Place, names_of: Mapping[str, list[str]]) -> dict[str, list[Any]]:
    """Return the arrays of a place by their roles."""
    found = {}
    for role, names in names_of.items():
        found[role] = [_numbers(place, role, name) for name in names]
    return found


def _numbers(place: Place, role: str, name: str) -> Any:
    """Return an array, as frames where its rows are files of pictures.

    Raises SchemaError if it holds other bytes.
    """
    column, where = place.column(name), f"{place.where}, {name}"
    is_text = column.dtype.kind == "S"
    may_be = is_text or (column.dtype == np.uint8 and len(column.shape) == 2)
    may_be = (
        may_be and base_role(role).endswith("observation") and not isinstance(column, NpzColumn)
    )
    if may_be and begins_a_picture(column[0:1][0]):
        return PictureColumn(column, where)
    if is_text:
        raise SchemaError(f"{where}: expected numbers or frames, found {column.dtype}.")
    return column


def holds_arrays(path: Path) -> bool:
    """Return whether a file or folder is one that arrays are read from."""
    return is_npz(path) or is_hdf5(path) or is_zarr(path)


def is_table(path: Path) -> bool:
    """Return whether a file is called a table."""
    return path.suffix.lower() in ENDINGS and path.is_file()


def holds_tables(folder: Path) -> bool:
    """Return whether a folder holds tables of one kind, and neither arrays nor a document about a layout."""
    endings = set()
    for path in itertools.islice(folder.rglob("*"), MOST_LOOKED_AT):
        if is_table(path):
            endings.add(path.suffix.lower())
        elif path.suffix.lower() == ".json" or holds_arrays(path):
            return False
    return len(endings) == 1


def files_in(folder: Path, source: str, fits: Callable[[Path], bool]) -> list[tuple[Path, str]]:
    """Return what lies in a folder and fits, and what errors call it.

    Raises SchemaError if a link lies there; IntegrityError if a file ends like those that fit and does not.
    """
    entries = sorted(folder.iterdir())
    for one in entries:
        if one.is_symlink():
            raise SchemaError(f"{source}/{one.name}: a link, which is not followed.")
    fitting = [one for one in entries if fits(one)]
    endings = {one.suffix for one in fitting} - {""}
    for one in entries:
        if one.is_file() and one.suffix in endings and one not in fitting:
            raise IntegrityError(
                f"{source}/{one.name}: not what {one.suffix} files beside it are; "
                "get this file again, or move it to another folder."
            )
    return [(one, f"{source}/{one.name}") for one in fitting]


def files_below(folder: Path, source: str, fits: Callable[[Path], bool]) -> list[tuple[Path, str]]:
    """Return what lies in a folder or in folders inside it and fits, in the order of the numbers in their paths.

    What fits may be a folder, which is not looked into; hidden folders are passed over. Raises as `files_in` does.
    """
    given = files_in(folder, source, fits)
    taken = {one for one, _ in given}
    for inner in folder.iterdir():
        if inner.is_dir() and inner not in taken and not inner.name.startswith("."):
            given += files_below(inner, f"{source}/{inner.name}", fits)
    return in_order(given)


def in_order(given: Iterable[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Return files in the order of the numbers in their paths: `2/ep0.h5` before `10/ep0.h5`."""
    return sorted(given, key=lambda one: [by_numbers(part) for part in one[0].parts])


def files_of_arrays(asked: Asked) -> list[tuple[Path, str]]:
    """Return the files, those of a folder and of folders in it too, in the order of the numbers in their paths.

    Beside each is what errors call it. Raises SchemaError if a folder holds no such file.
    """
    given = list(zip(asked.files, asked.sources, strict=True))
    if len(given) == 1 and given[0][0].is_dir() and not is_zarr(given[0][0]):
        folder, source = given[0]
        given = files_below(folder, source, holds_arrays)
        if not given:
            raise SchemaError(f"{source}: holds no HDF5, no npz and no Zarr.")
    return in_order(given)


def open_arrays(given: tuple[Path, str], options: Options) -> Generator[Place]:
    """Yield each place of a file; groups come in the order of the numbers in their names.

    Raises SchemaError if nothing has the name that `--episode` gives; IntegrityError if the file is damaged.
    """
    file, where = given
    if is_zarr(file):
        with open_zarr(file, where) as arrays:
            near = [*arrays.names, *arrays.attributes()]

            def names_in_zarr(name: str) -> AxisNames:
                lists = lists_in_zarr(file, arrays.root, near)
                return names_for(name, arrays.column(name).shape, lists) if lists else NO_NAMES

            yield Place(
                where,
                arrays.names,
                arrays.column,
                reading_zarr,
                names_of=names_in_zarr,
                attributes=arrays.attributes_at,
            )
    elif is_npz(file):
        with open_npz(file, where) as archive:

            def names_in_npz(name: str) -> AxisNames:
                lists = lists_in_npz(file, archive)
                return names_for(name, archive.shape(name), lists)

            yield Place(
                where,
                archive.names,
                archive.column,
                reading_npz,
                job_bytes=None,
                names_of=names_in_npz,
            )
    else:
        yield from _groups_of_hdf5(file, where, options.episode)


ARRAYS = Places(files_of_arrays, open_arrays)
"""Files of HDF5, npz and Zarr."""


def _groups_of_hdf5(file: Path, where: str, episode: str) -> Iterator[Place]:
    with open_hdf5(file, where) as opened:
        with reading(where):
            paths = [path for path, _ in datasets_in(opened, where, LAYOUT)]
            size = file.stat().st_size
        around = lists_in_hdf5(opened, file, where)
        check = functools.cache(lambda: check_heaps(file, opened, where))
        attributes = attributes_in_hdf5(opened, where, check)
        groups, outside = _groups(paths, episode, where)
        for group, names in groups.items():
            place = f"{where}, {group}" if group else where
            node = opened[group] if group else opened

            def column(name: str, node: Any = node, place: str = place) -> Any:
                return numbers(node[name], f"{place}, {name}", size, texts=True)

            def names_of(name: str, group: str = group) -> AxisNames:
                path = f"{group}/{name}" if group else name
                texts, source = names_for(path, opened[path].shape, around(path))
                return AxisNames(texts, source.removeprefix(f"{group}/"))

            success = flag_attribute(node, SUCCESS, place)
            if success is None and not group:
                success = outcome_of(file.absolute().as_posix())

            def whole(name: str, node: Any = node, place: str = place) -> Any:
                check()
                return whole_in_hdf5(node, name, place, size)

            yield Place(
                place,
                sorted(names),
                column,
                reading,
                outside=outside,
                names_of=names_of,
                success=success,
                path=group,
                attributes=attributes,
                whole=whole,
            )
            outside = []


def _groups(
    paths: Sequence[str], pattern: str, where: str
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the arrays in each group that a pattern means, and those in none.

    It is only the file itself if the pattern means no groups. Raises SchemaError if it means nothing.
    """
    if pattern in ("", FILE) or pattern in paths:
        return {"": [*paths]}, []
    wanted = pattern.split("/")
    found: dict[str, list[str]] = {}
    outside = []
    for path in paths:
        parts = path.split("/")
        for end in range(len(wanted), len(parts)):
            if all(map(fnmatch.fnmatchcase, parts[end - len(wanted) : end], wanted)):
                found.setdefault("/".join(parts[:end]), []).append("/".join(parts[end:]))
                break
        else:
            outside.append(path)
    if not found:
        groups = sorted(
            {path[:at] for path in paths for at in range(len(path)) if path[at] == "/"},
            key=by_numbers,
        )
        its = f"its groups are {spanned(groups)}" if groups else f"its arrays are {spanned(paths)}"
        raise SchemaError(
            f"{where}: episode={pattern!r}: no group and no array has such a name"
            + (did_you_mean(pattern, [*groups, *paths]) or f"; {its}.")
        )
    return {group: found[group] for group in sorted(found, key=by_numbers)}, outside
