"""Arrays of HDF5, npz, npy and Zarr, by the places where they lie together: a group, a file, a folder.

Some places are made of what lies in one: arrays of one number (`states_3`, `actions_3`), and arrays [episodes, time, ..], whose
rows are episodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import itertools
import re
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
from orlog.datasets.formats._containers.episode_arrays import (
    PaddedColumn,
    spans_of_episodes,
    usual_lengths,
)
from orlog.datasets.formats._containers.episode_values import (
    AttributesAt,
    attributes_in_hdf5,
    of_steps,
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
from orlog.datasets.formats._containers.npz_files import (
    NpzColumn,
    is_npy_folder,
    is_npz,
    open_npy,
    open_npz,
    reading_npz,
)
from orlog.datasets.formats._containers.pictures import PictureColumn, begins_a_picture
from orlog.datasets.formats._containers.pointers import MOST_LOOKED_AT
from orlog.datasets.formats._containers.table_files import ENDINGS
from orlog.datasets.formats._containers.zarr_arrays import is_zarr, open_zarr, reading_zarr
from orlog.datasets.formats._shared.episodes import Asked, Options
from orlog.datasets.formats._shared.flags import SUCCESS, outcome_of
from orlog.datasets.formats._shared.roles import base_role, by_numbers, matching
from orlog.datasets.formats._shared.trees import spanned
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.names import counted, did_you_mean

FILE, ROW, NUMBER = "file", "row", "#"
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
        lengths: The steps of each episode, where the place says it.
        later: Names of the same arrays a step later, where they have one step more than actions.
        doubts: What to know about it, a sentence each.
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
    lengths: Sequence[int] = ()
    later: Mapping[str, str] = dataclasses.field(default_factory=dict)
    doubts: Sequence[str] = ()


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
    return is_npz(path) or is_hdf5(path) or is_zarr(path) or is_npy_folder(path)


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
    for file, source in given:
        if file.suffix == ".npy" and not file.is_dir():
            raise SchemaError(
                f"{source}: is one array; name the folder that holds it and the others: {file.parent}"
            )
    if len(given) == 1 and given[0][0].is_dir() and not holds_arrays(given[0][0]):
        folder, source = given[0]
        given = files_below(folder, source, holds_arrays)
        if not given:
            raise SchemaError(f"{source}: holds no HDF5, no npz, no npy and no Zarr.")
    return in_order(given)


def open_arrays(given: tuple[Path, str], options: Options) -> Generator[Place]:
    """Yield each place of a file; groups come in the order of the numbers in their names.

    Raises SchemaError if nothing has the name that `--episode` gives; IntegrityError if the file is damaged.
    """
    file, where = given
    if is_zarr(file):
        with open_zarr(file, where) as arrays:
            lists = lists_in_zarr(arrays)

            def names_in_zarr(name: str) -> AxisNames:
                return names_for(name, arrays.column(name).shape, lists) if lists else NO_NAMES

            whole = Place(where, arrays.names, arrays.column, reading_zarr, names_of=names_in_zarr)
            yield from _places_in(
                dataclasses.replace(whole, attributes=arrays.attributes_at), options
            )
    elif is_npz(file) or is_npy_folder(file):
        with open_npz(file, where) if is_npz(file) else open_npy(file, where) as archive:

            def names_in_npz(name: str) -> AxisNames:
                lists = lists_in_npz(file, archive)
                return names_for(name, archive.shape(name), lists) if lists else NO_NAMES

            whole = Place(where, archive.names, archive.column, reading_npz, job_bytes=None)
            yield from _places_in(dataclasses.replace(whole, names_of=names_in_npz), options)
    else:
        with open_hdf5(file, where) as opened:
            with reading(where):
                paths = sorted(path for path, _ in datasets_in(opened, where, LAYOUT))
                size = file.stat().st_size
            around = lists_in_hdf5(opened, file, where)

            def column(path: str) -> Any:
                return numbers(opened[path], f"{where}, {path}", size, texts=True)

            def names_in_hdf5(path: str) -> AxisNames:
                return names_for(path, opened[path].shape, around(path))

            check = functools.cache(lambda: check_heaps(file, opened, where))
            attributes = attributes_in_hdf5(opened, where, check)
            whole = Place(where, paths, column, reading, names_of=names_in_hdf5)
            for place in _places_in(dataclasses.replace(whole, attributes=attributes), options):
                node = opened[place.path] if place.path else opened
                success = None
                if place.path or place.where == where:  # not of arrays of one number
                    success = flag_attribute(node, SUCCESS, place.where)
                if success is None and place.where == where:
                    success = outcome_of(file.absolute().as_posix())

                def read(name: str, node: Any = node, at: str = place.where) -> Any:
                    check()
                    return whole_in_hdf5(node, name, at, size)

                yield dataclasses.replace(place, success=success, whole=read)


ARRAYS = Places(files_of_arrays, open_arrays)
"""Files of HDF5, npz and Zarr, and folders of npy."""


def _places_in(whole: Place, options: Options) -> Iterator[Place]:
    """Yield the places that `--episode` means in a file."""
    if options.episode == NUMBER and NUMBER not in whole.names:
        yield from _numbered(whole, options)
        return
    if options.episode == ROW and ROW not in whole.names:
        yield _rows_of(whole, options)
        return
    groups, outside = _groups(whole.names, options.episode, whole.where)
    for group, names in groups.items():
        if not group:
            yield whole
            return

        start = f"{group}/"
        paths = {name: start + name for name in names}
        yield dataclasses.replace(_part_of(whole, group, paths, outside), path=group)
        outside = []


def _part_of(whole: Place, part: str, paths: Mapping[str, str], outside: Sequence[str]) -> Place:
    """Return some arrays of a place, by their names there, as a place of their own."""

    def names_of(name: str) -> AxisNames:
        texts, source = whole.names_of(paths[name])
        return AxisNames(texts, source.removeprefix(f"{part}/"))

    return dataclasses.replace(
        whole,
        where=f"{whole.where}, {part}",
        names=[*paths],
        column=lambda name: whole.column(paths[name]),
        outside=outside,
        names_of=names_of,
    )


def _numbered(whole: Place, options: Options) -> Iterator[Place]:
    """Yield the arrays of each number: `states_3` and `actions_3`, which `--map` names `states_#` and `actions_#`.

    Raises SchemaError if a name has no `#`, or one has a number that another has not.
    """
    wanted = [one for several in of_steps(options.columns).values() for one in several.split(",")]
    found: dict[str, dict[str, str]] = {}
    for one in wanted:
        start, sign, end = one.partition(NUMBER)
        if not sign:
            raise SchemaError(
                f"{whole.where}: episode='#' takes the arrays of each number, and {one} has no # for it."
            )
        its = re.compile(rf"{re.escape(start)}(\d+){re.escape(end)}")
        fitting = {match[1]: name for name in whole.names if (match := its.fullmatch(name))}
        for number, name in fitting.items():
            found.setdefault(number, {})[one] = name
        if not fitting:
            raise SchemaError(
                f"{whole.where}: no array is called {one} with a number for #"
                + (
                    did_you_mean(one, {re.sub(r"\d+", NUMBER, name) for name in whole.names})
                    or f"; its arrays are {spanned(whole.names)}."
                )
            )
    used = {name for names in found.values() for name in names.values()}
    outside = [name for name in whole.names if name not in used]
    for number in sorted(found, key=by_numbers):
        names = found[number]
        missing = [one for one in wanted if one not in names]
        if missing:
            raise SchemaError(
                f"{whole.where}: has {next(iter(names.values()))}, and no {missing[0].replace(NUMBER, number)}."
            )
        yield _part_of(whole, number, names, outside)
        outside = []


def _rows_of(whole: Place, options: Options) -> Place:
    """Return arrays [episodes, time, ..] as the steps of one episode after the other.

    Raises SchemaError if actions have no such axes, or what says how long episodes are does not fit them.
    """
    names, where = whole.names, whole.where
    (action, *_) = matching(options.columns.get("action", ""), names) or [""]
    with whole.reading(where):
        axes = tuple(whole.column(action).shape[:2]) if action else ()
    if len(axes) != 2:
        raise SchemaError(
            f"{where}: episode='row' needs actions [episodes, time, ..]; name them as columns={{'action': 'ARRAY'}}."
        )
    mapped = {
        one for several in of_steps(options.columns).values() for one in matching(several, names)
    }
    shapes = {}
    for name in names:
        with contextlib.suppress(SchemaError), whole.reading(where):  # texts
            shapes[name] = tuple(whole.column(name).shape)
    said, doubts = options.length, list[str]()
    if not said:
        free = {name: shape for name, shape in shapes.items() if name not in mapped}
        said = usual_lengths(free, axes)
        doubts += [f"The steps of episodes were taken from {said}."] if said else []
    elif said not in names:
        raise SchemaError(
            f"{where}: length={said!r}: there is no such array"
            + (did_you_mean(said, names) or f"; its arrays are {spanned(names)}.")
        )
    with whole.reading(where):
        column_of_lengths = whole.column(said) if said else None
        spans = spans_of_episodes(column_of_lengths, axes, f"{where}, {said}")
    lengths = spans[:, 1] - spans[:, 0]
    empty = int((lengths == 0).sum())
    doubts += [f"{counted(empty, 'row')} of the arrays hold no step."] if empty else []
    later = {
        f"{name}, a step later": name
        for name, shape in shapes.items()
        if shape[:2] == (axes[0], axes[1] + 1)
    }

    def column(name: str) -> Any:
        found = whole.column(later.get(name, name))
        steps = axes[1] + (later.get(name, name) in later.values())
        if tuple(found.shape[:2]) != (axes[0], steps):
            raise SchemaError(
                f"{where}, {name}: expected [{axes[0]}, {axes[1]}, ..] as of {action}, found {tuple(found.shape)}."
            )
        return PaddedColumn(found, spans, after=name in later)

    return dataclasses.replace(
        whole,
        names=[name for name in names if name != said or name in mapped],
        column=column,
        names_of=lambda _name: NO_NAMES,
        lengths=lengths[lengths > 0].tolist(),
        later={name: after for after, name in later.items()},
        doubts=doubts,
    )


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
