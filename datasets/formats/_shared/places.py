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

from orlog.datasets.formats._shared.arrow_files import ENDINGS
from orlog.datasets.formats._shared.axis_names import NO_NAMES, AxisNames, Lists
from orlog.datasets.formats._shared.carried_sums import CarriedSums, sums_here
from orlog.datasets.formats._shared.episode_arrays import (
    PaddedColumn,
    spans_of_episodes,
    usual_lengths,
)
from orlog.datasets.formats._shared.episode_values import AttributesAt, of_steps
from orlog.datasets.formats._shared.episodes import Asked, Options
from orlog.datasets.formats._shared.flags import SUCCESS, outcome_of
from orlog.datasets.formats._shared.hdf5_files import (
    Hdf5Column,
    attribute,
    check_heaps,
    check_stored,
    child,
    datasets_in,
    flag_attribute,
    has_child,
    is_hdf5,
    numbers,
    open_hdf5,
    reading,
)
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.npz_files import (
    NpzColumn,
    is_npy_folder,
    is_npz,
    open_npy,
    open_npz,
    reading_npz,
)
from orlog.datasets.formats._shared.other_files import MOST_LOOKED_AT
from orlog.datasets.formats._shared.pictures import PictureColumn, begins_a_picture
from orlog.datasets.formats._shared.roles import alike, base_role, by_numbers, matching, spanned
from orlog.datasets.formats._shared.zarr_arrays import is_zarr, open_zarr, reading_zarr
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.names import did_you_mean

FILE, ROW, NUMBER = "file", "row", "#"
LAYOUT = "arrays that --map could name"
LARGEST_WHOLE = 2**20  # numbers or texts


class Taken(NamedTuple):
    """Messages of a topic: how many there are, and should be; how many are in rows, at most how many seconds old."""

    messages: int
    expected: int
    taken: int
    age: float


def _no_values(name: str) -> Any:
    raise SchemaError(f"{name}: values of episodes are mapped in HDF5, Zarr and npz alone.")


@dataclasses.dataclass(frozen=True)
class Place:
    """Arrays that lie together: in one group of a file, or in a whole file.

    Attributes:
        where: What errors call it.
        names: Names of the arrays.
        column: Opens one, to read its rows in order: numbers, or bytes of one length.
        reading: Turns errors of the library that reads it into ours, as a context.
        outside: Names of arrays of the file that lie in no place; told with its first one.
        taken: Which messages of recordings are in rows, by topic.
        names_of: Returns what the numbers in a row of an array are called; nothing where nothing says it.
        success: Whether an episode that is all of this place succeeded, where its attributes or its path state it.
        path: Where it lies in its file.
        attributes: Gives the attributes at a path of the file.
        whole: Reads a small array, which may hold texts, or one value.
        lengths: The steps of each episode, where the place says it.
        later: Names of the same arrays a step later, where they have one step more than actions.
        notes: What to know about it.
    """

    where: str
    names: list[str]
    column: Callable[[str], Any]
    reading: Callable[[str], AbstractContextManager[None]]
    outside: Sequence[str] = ()
    taken: Mapping[str, Taken] = dataclasses.field(default_factory=dict)
    names_of: Callable[[str], AxisNames] = lambda _name: NO_NAMES
    success: bool | None = None
    path: str = ""
    attributes: AttributesAt = lambda _path: {}
    whole: Callable[[str], Any] = _no_values
    lengths: Sequence[int] = ()
    later: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[Note] = ()


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
    return {
        role: [_numbers(place, role, name) for name in names] for role, names in names_of.items()
    }


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
    for entry in entries:
        if entry.is_symlink():
            raise SchemaError(f"{source}/{entry.name}: a link, which is not followed.")
    fitting = [entry for entry in entries if fits(entry)]
    endings = {entry.suffix for entry in fitting} - {""}
    for entry in entries:
        if entry.is_file() and entry.suffix in endings and entry not in fitting:
            raise IntegrityError(
                f"{source}/{entry.name}: not what {entry.suffix} files beside it are; "
                "get this file again, or move it to another folder."
            )
    return [(entry, f"{source}/{entry.name}") for entry in fitting]


def files_below(folder: Path, source: str, fits: Callable[[Path], bool]) -> list[tuple[Path, str]]:
    """Return what lies in a folder or in folders inside it and fits, in the order of the numbers in their paths.

    What fits may be a folder, which is not looked into; hidden folders are passed over. Raises as `files_in` does.
    """
    given = files_in(folder, source, fits)
    taken = {file for file, _ in given}
    for inner in folder.iterdir():
        if inner.is_dir() and inner not in taken and not inner.name.startswith("."):
            given += files_below(inner, f"{source}/{inner.name}", fits)
    return in_order(given)


def in_order(given: Iterable[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Return files in the order of the numbers in their paths: `2/ep0.h5` before `10/ep0.h5`."""
    return sorted(given, key=lambda file: [by_numbers(part) for part in file[0].parts])


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
            lists = Lists(arrays.names, arrays.attributes_at, arrays.whole)
            whole = Place(
                where,
                arrays.names,
                arrays.column,
                reading_zarr,
                names_of=lambda name: lists.names_of(name, arrays.column(name).shape),
                attributes=arrays.attributes_at,
                whole=arrays.whole,
            )
            yield from _places_in(whole, options)
    elif is_npz(file) or is_npy_folder(file):
        with open_npz(file, where) if is_npz(file) else open_npy(file, where) as archive:
            read = functools.partial(_whole_in_npz, file, where)
            lists = Lists(archive.names, lambda _path: {}, read)
            whole = Place(
                where,
                archive.names,
                archive.column,
                reading_npz,
                names_of=lambda name: lists.names_of(name, archive.shape(name)),
                whole=read,
            )
            yield from _places_in(whole, options)
    else:
        yield from _places_in_hdf5(file, where, options)


def _whole_in_npz(file: Path, where: str, name: str) -> Any:
    """Return an array of a file or folder, which may hold texts; arrays of objects are pickles, and not read."""
    with reading_npz(where):
        if file.is_dir():
            return np.load(file / f"{name}.npy", allow_pickle=False)
        with np.load(file, allow_pickle=False) as arrays:
            return arrays[name]


class _Listing(NamedTuple):
    """A file that was listed last, since it is opened twice: to look at it, and to read it.

    Attributes:
        key: Another one for each version of a file.
        names: The paths of all arrays, sorted.
        sums: What was told of the checksums of those that were checked.
        checked: Their shapes and dtypes, by path.
    """

    key: object
    names: list[str]
    sums: CarriedSums | None
    checked: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


_latest: list[_Listing] = []


def _listed(opened: Any, where: str, key: object) -> _Listing:
    """Return the arrays in an open file."""
    if not _latest or _latest[0].key != key:
        names = sorted(path for path, _ in datasets_in(opened, where, LAYOUT))
        _latest[:] = [_Listing(key, names, sums_here(), {})]
    elif _latest[0].sums is not sums_here():  # another import, which is told of checksums too
        _latest[:] = [_Listing(key, _latest[0].names, sums_here(), {})]
    return _latest[0]


def _places_in_hdf5(file: Path, where: str, options: Options) -> Generator[Place]:
    h5py = import_h5py()
    with open_hdf5(file, where) as opened:
        status = file.stat()
        size = status.st_size
        with reading(where):
            listed = _listed(opened, where, (file, where, size, status.st_mtime_ns))
            names = [*listed.names]
        check = functools.cache(lambda: check_heaps(file, opened, where))

        def dataset(path: str) -> Any:
            """Return a dataset as `opened[path]` does, in half the time."""
            return h5py.Dataset(h5py.h5d.open(opened.id, path.encode()), readonly=True)

        def column(path: str) -> Hdf5Column:
            if path not in listed.checked:
                found: Hdf5Column = numbers(dataset(path), f"{where}, {path}", size, texts=True)
                listed.checked[path] = found.shape, found.dtype
                return found
            return Hdf5Column(dataset(path), *listed.checked[path])

        def read_attribute(node: Any, name: str) -> Any:
            if node.attrs.get_id(name).dtype.kind == "O":  # texts of any length
                check()
            with reading(where):
                return attribute(node, name, where)

        @functools.lru_cache(maxsize=64)
        def node_at(path: str) -> Any:
            group, _, name = path.rpartition("/")
            node = node_at(group) if path else opened
            is_inside = bool(path) and has_child(node, name)
            return child(node, name, where, "attributes") if is_inside else None if path else node

        @functools.lru_cache(maxsize=64)
        def attributes_at(path: str) -> Mapping[str, Callable[[], Any]]:
            node = node_at(path)
            attributes = () if node is None else node.attrs
            return {name: functools.partial(read_attribute, node, name) for name in attributes}

        def read_whole(path: str) -> Any:
            node, at = opened, f"{where}, {path}"
            for part in path.split("/"):
                node = child(node, part, where, f"an array {path}")
            if getattr(node, "size", None) is None or node.size > LARGEST_WHOLE:
                raise SchemaError(f"{at}: expected an array with a row for each episode.")
            if node.dtype.kind != "O":
                check_stored(node, at, size)
            elif node.chunks is not None or node.is_virtual or node.external:
                raise SchemaError(f"{at}: texts that are stored in chunks are not read.")
            else:
                check()
            with reading(where):
                return node[()]

        lists = Lists(names, attributes_at, read_whole)
        whole = Place(
            where,
            names,
            column,
            reading,
            names_of=lambda path: lists.names_of(path, dataset(path).shape),
            attributes=attributes_at,
            whole=read_whole,
        )
        for place in _places_in(whole, options):
            success = None
            if place.path or place.where == where:  # not of arrays of one number
                node = opened[place.path] if place.path else opened
                success = flag_attribute(node, SUCCESS, place.where)
            if success is None and place.where == where:
                success = outcome_of(file.absolute().as_posix())
            yield dataclasses.replace(place, success=success)


ARRAYS = Places(files_of_arrays, open_arrays)
"""Files of HDF5, npz and Zarr, and folders of npy."""


def _places_in(whole: Place, options: Options) -> Iterator[Place]:
    """Yield the places that `--episode` means in a file.

    Raises SchemaError if it means nothing there.
    """
    if options.episode == ROW and ROW not in whole.names:
        yield _rows_of(whole, options)
        return
    if options.episode == NUMBER and NUMBER not in whole.names:
        parts, outside = _by_number(whole, options)
    elif options.episode in ("", FILE, *whole.names):
        yield whole
        return
    else:
        parts, outside = _groups(whole, options.episode)
    for part in sorted(parts, key=by_numbers):
        yield _part_of(whole, part, parts[part], outside)
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
        whole=lambda name: whole.whole(paths.get(name, f"{part}/{name}")),
        path=part if f"{part}/" in next(iter(paths.values())) else "",  # or a number
    )


Parts = tuple[dict[str, dict[str, str]], list[str]]
"""The arrays of each place, by their names in it and in the file, and those that are in none."""


def _by_number(whole: Place, options: Options) -> Parts:
    """Return the arrays of each number: `states_3` and `actions_3`, which `--map` names `states_#` and `actions_#`."""
    wanted = ",".join(of_steps(options.columns).values()).split(",")
    parts: dict[str, dict[str, str]] = {}
    for name in wanted:
        start, sign, end = name.partition(NUMBER)
        its = re.compile(rf"{re.escape(start)}(\d+){re.escape(end)}")
        fitting = {
            match[1]: path for path in whole.names if sign and (match := its.fullmatch(path))
        }
        for number, path in fitting.items():
            parts.setdefault(number, {})[name] = path
        if not fitting:
            raise SchemaError(
                f"{whole.where}: episode='#': no array is called {name} with a number for #"
                + _instead(name, {alike(path) for path in whole.names}, whole)
            )
    for number, paths in parts.items():
        for name in wanted:
            if name not in paths:
                lacks, has = name.replace(NUMBER, number), next(iter(paths.values()))
                raise SchemaError(f"{whole.where}: has {has}, and no {lacks}.")
    used = {path for paths in parts.values() for path in paths.values()}
    return parts, [path for path in whole.names if path not in used]


def _groups(whole: Place, pattern: str) -> Parts:
    """Return the arrays in each group that a pattern means."""
    wanted = pattern.split("/")
    parts: dict[str, dict[str, str]] = {}
    outside = []
    for path in whole.names:
        names = path.split("/")
        for end in range(len(wanted), len(names)):
            if all(map(fnmatch.fnmatchcase, names[end - len(wanted) : end], wanted)):
                parts.setdefault("/".join(names[:end]), {})["/".join(names[end:])] = path
                break
        else:
            outside.append(path)
    if not parts:
        groups = {path[:at] for path in whole.names for at in range(len(path)) if path[at] == "/"}
        raise SchemaError(
            f"{whole.where}: episode={pattern!r}: no group and no array has such a name"
            + _instead(pattern, [*groups, *whole.names], whole, sorted(groups, key=by_numbers))
        )
    return parts, outside


def _instead(name: str, others: Iterable[str], whole: Place, groups: Sequence[str] = ()) -> str:
    """Return what to say of a name that means nothing."""
    its = f"groups are {spanned(groups)}" if groups else f"arrays are {spanned(whole.names)}"
    return did_you_mean(name, others) or f"; its {its}."


def _rows_of(whole: Place, options: Options) -> Place:
    """Return arrays [episodes, time, ..] as the steps of one episode after the other.

    Raises SchemaError if actions have no such axes, or what says how long episodes are does not fit them.
    """
    names, where = whole.names, whole.where
    mapped = {name for one in of_steps(options.columns).values() for name in matching(one, names)}
    shapes = {}
    for name in names:
        with contextlib.suppress(SchemaError), whole.reading(where):  # texts
            shapes[name] = tuple(whole.column(name).shape)
    (action, *_) = matching(options.columns.get("action", ""), names) or [""]
    axes = shapes.get(action, ())[:2]
    if len(axes) != 2:
        raise SchemaError(
            f"{where}: episode='row' needs actions [episodes, time, ..]; name them as columns={{'action': 'ARRAY'}}."
        )
    said, notes = options.length, list[Note]()
    if not said:
        free = {name: shape for name, shape in shapes.items() if name not in mapped}
        said = usual_lengths(free, axes)
        notes += [Note("lengths_by_name", [said])] if said else []
    elif said not in names:
        raise SchemaError(
            f"{where}: length={said!r}: there is no such array{_instead(said, names, whole)}"
        )
    with whole.reading(where):
        lengths = whole.column(said) if said else None
        spans = spans_of_episodes(lengths, axes, f"{where}, {said}")
    has_steps = spans[:, 1] > spans[:, 0]
    empty = int((~has_steps).sum())
    notes += [Note("rows_without_steps", rows=empty)] if empty else []
    later = {
        name: f"{name}, a step later"
        for name, shape in shapes.items()
        if shape[:2] == (axes[0], axes[1] + 1)
    }
    of_later = {after: name for name, after in later.items()}

    def column(name: str) -> Any:
        values = whole.column(of_later.get(name, name))
        steps = axes[1] + (of_later.get(name, name) in later)
        if tuple(values.shape[:2]) != (axes[0], steps):
            raise SchemaError(
                f"{where}, {name}: expected [{axes[0]}, {axes[1]}, ..] as of {action}, found {tuple(values.shape)}."
            )
        return PaddedColumn(values, spans, after=name in of_later)

    def values_of_episodes(name: str) -> Any:
        values = np.asarray(whole.whole(name))
        return values[has_steps] if values.shape[:1] == has_steps.shape else values

    return dataclasses.replace(
        whole,
        names=[name for name in names if name != said or name in mapped],
        column=column,
        names_of=lambda _name: NO_NAMES,
        whole=values_of_episodes,
        lengths=(spans[:, 1] - spans[:, 0])[has_steps].tolist(),
        later=later,
        notes=notes,
    )
