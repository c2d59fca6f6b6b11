"""Arrays of HDF5, npz, npy and Zarr, by the places where they lie together: a group, a file, a folder.

Some places are made of what lies in one: arrays of one number (`states_3`, `actions_3`), and arrays [episodes, time, ..], whose
rows are episodes, one after the other, without what fills them up:

    obs (6, 20, 4)   actions (6, 20, 2)   mask (6, 20)     6 episodes of up to 20 steps
    obs (6, 21, 4)                                         the same, with the final observation of each
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

from orlog.datasets.formats.arrow_files import ENDINGS
from orlog.datasets.formats.beside_arrays import NO_NAMES, AttributesAt, AxisNames, Lists, of_steps
from orlog.datasets.formats.episodes import Asked, Options
from orlog.datasets.formats.flags import SUCCESS, outcome_of
from orlog.datasets.formats.hdf5_files import (
    Hdf5Column,
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
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.npz_files import (
    LazyColumn,
    NpzColumn,
    is_npy_folder,
    is_npz,
    open_npy,
    open_npz,
    reading_npz,
)
from orlog.datasets.formats.other_files import MOST_LOOKED_AT
from orlog.datasets.formats.pictures import PictureColumn, begins_a_picture
from orlog.datasets.formats.roles import alike, base_role, by_numbers, matching, spanned
from orlog.datasets.formats.zarr_arrays import is_zarr, open_zarr, reading_zarr
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.names import counted, did_you_mean

FILE, ROW, NUMBER = "file", "row", "#"
LAYOUT = "arrays that --map could name"
LARGEST_WHOLE = 2**20  # numbers or texts
LENGTHS = (*("mask", "masks", "valid", "traj_mask"), *("length", "lengths", "episode_lengths", "traj_lengths"))
"""Usual names of arrays that say how long episodes are."""


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
        file: The file that it lies in, with what opens it again sooner; None where nothing does.
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
    file: ArrayFile | None = None


class Listing(NamedTuple):
    """The arrays of an HDF5 file: their paths, sorted, and shape and dtype of those that were checked."""

    names: list[str]
    checked: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


class ArrayFile(NamedTuple):
    """A file of arrays, what errors call it, and its arrays where they are known."""

    path: Path
    where: str
    listing: Listing | None = None


@dataclasses.dataclass(frozen=True)
class Places:
    """How the places of files are found; processes of other machines open them likewise.

    Attributes:
        files: Lists what can be opened on its own, such as files with what errors call them.
        open: Yields each place of such a file while that is open.
    """

    files: Callable[[Asked], Iterable[Any]]
    open: Callable[[Any, Options], Generator[Place]]


def columns_by_role(place: Place, names_of: Mapping[str, list[str]]) -> dict[str, list[Any]]:
    """Return the arrays of a place by their roles."""
    return {role: [_numbers(place, role, name) for name in names] for role, names in names_of.items()}


def _numbers(place: Place, role: str, name: str) -> Any:
    """Return an array, as frames where its rows are files of pictures."""
    column = place.column(name)
    is_text = column.dtype.kind == "S"
    if is_text or (column.dtype == np.uint8 and len(column.shape) == 2):
        where = f"{place.where}, {name}"
        may_be = base_role(role).endswith("observation") and not isinstance(column, NpzColumn)
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


def files_of_arrays(asked: Asked) -> list[ArrayFile]:
    """Return the files, those of a folder and of folders in it too, in the order of the numbers in their paths.

    Raises SchemaError if a folder holds no such file.
    """
    given = list(zip(asked.files, asked.sources, strict=True))
    for file, source in given:
        if file.suffix == ".npy" and not file.is_dir():
            raise SchemaError(f"{source}: is one array; name the folder that holds it and the others: {file.parent}")
    if len(given) == 1 and given[0][0].is_dir() and not holds_arrays(given[0][0]):
        folder, source = given[0]
        given = files_below(folder, source, holds_arrays)
        if not given:
            raise SchemaError(f"{source}: holds no HDF5, no npz, no npy and no Zarr.")
    return [ArrayFile(*each) for each in in_order(given)]


def open_arrays(file: ArrayFile, options: Options) -> Generator[Place]:
    """Yield each place of a file; groups come in the order of the numbers in their names.

    Raises SchemaError if nothing has the name that `--episode` gives; IntegrityError if the file is damaged.
    """
    path, where, _ = file
    if is_zarr(path):
        with open_zarr(path, where) as store:
            lists = Lists(store.names, store.attributes, store.whole)
            whole = Place(
                where,
                store.names,
                store.column,
                reading_zarr,
                names_of=lambda name: lists.names_of(name, store.column(name).shape),
                attributes=store.attributes,
                whole=store.whole,
            )
            yield from _places_in(whole, options)
    elif is_npz(path) or is_npy_folder(path):
        with open_npz(path, where) if is_npz(path) else open_npy(path, where) as archive:
            lists = Lists(archive.names, lambda _path: {}, archive.whole)
            whole = Place(
                where,
                archive.names,
                archive.column,
                reading_npz,
                names_of=lambda name: lists.names_of(name, archive.shape(name)),
                whole=archive.whole,
            )
            yield from _places_in(whole, options)
    else:
        with open_hdf5(path, where) as opened:
            yield from _places_in_hdf5(file, opened, options)


ARRAYS = Places(files_of_arrays, open_arrays)
"""Files of HDF5, npz and Zarr, and folders of npy."""


class _Attributes(Mapping[str, Any]):
    """The attributes of a group or array of HDF5; heaps of texts are looked at before one of them is read."""

    def __init__(self, node: Any, where: str, check: Callable[[], object]) -> None:
        self._node, self._where, self._check = node, where, check
        self._names = list(node.attrs)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if self._node.attrs.get_id(name).dtype.kind == "O":  # texts of any length
            self._check()
        with reading(self._where):
            return self._node.attrs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _places_in_hdf5(file: ArrayFile, opened: Any, options: Options) -> Iterator[Place]:
    h5py, where = import_h5py(), file.where
    size = file.path.stat().st_size
    listing = file.listing
    if listing is None:
        with reading(where):
            listing = Listing(sorted(path for path, _ in datasets_in(opened, where, LAYOUT)), {})
    names, checked = listing
    check = functools.cache(lambda: check_heaps(file.path, opened, where))

    def dataset(path: str) -> Any:
        """Return a dataset as `opened[path]` does, in half the time."""
        return h5py.Dataset(h5py.h5d.open(opened.id, path.encode()), readonly=True)

    def column(path: str) -> Hdf5Column:
        if path in checked:
            return Hdf5Column(dataset(path), *checked[path])
        values = numbers(dataset(path), f"{where}, {path}", size, texts=True)
        checked[path] = values.shape, values.dtype
        return values

    @functools.lru_cache(maxsize=64)
    def attributes_at(path: str) -> Mapping[str, Any]:
        node = opened
        for part in filter(None, path.split("/")):
            if not has_child(node, part):
                return {}
            node = child(node, part, where, "attributes")
        return _Attributes(node, where, check)

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
        file=file._replace(listing=listing),
    )
    for place in _places_in(whole, options):
        success = None
        if place.path or place.where == where:  # not of arrays of one number
            node = opened[place.path] if place.path else opened
            success = flag_attribute(node, SUCCESS, place.where)
        if success is None and place.where == where:
            success = outcome_of(file.path.absolute().as_posix())
        yield dataclasses.replace(place, success=success)


def _places_in(whole: Place, options: Options) -> Iterator[Place]:
    """Yield the places that `--episode` means in a file."""
    if options.episode == ROW and ROW not in whole.names:
        yield _rows_of(whole, options)
        return
    if options.episode == NUMBER and NUMBER not in whole.names:
        parts = _by_number(whole, options)
    elif options.episode in ("", FILE, *whole.names):
        yield whole
        return
    else:
        parts = _groups(whole, options.episode)
    used = {path for paths in parts.values() for path in paths.values()}
    outside = [path for path in whole.names if path not in used]
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


def _by_number(whole: Place, options: Options) -> dict[str, dict[str, str]]:
    """Return the arrays of each number, `states_3` and `actions_3`, by their names in `--map`: `states_#` and `actions_#`."""
    wanted = ",".join(of_steps(options.columns).values()).split(",")
    parts: dict[str, dict[str, str]] = {}
    for name in wanted:
        start, sign, end = name.partition(NUMBER)
        pattern = re.compile(rf"{re.escape(start)}(\d+){re.escape(end)}")
        matches = [match for path in whole.names if sign and (match := pattern.fullmatch(path))]
        for match in matches:
            parts.setdefault(match[1], {})[name] = match[0]
        if not matches:
            raise SchemaError(
                f"{whole.where}: episode='#': no array is called {name} with a number for #"
                + _instead(name, {alike(path) for path in whole.names}, whole)
            )
    for number, paths in parts.items():
        for name in wanted:
            if name not in paths:
                lacks, has = name.replace(NUMBER, number), next(iter(paths.values()))
                raise SchemaError(f"{whole.where}: has {has}, and no {lacks}.")
    return parts


def _groups(whole: Place, pattern: str) -> dict[str, dict[str, str]]:
    """Return the arrays in each group that a pattern means, by their names in it."""
    wanted = pattern.split("/")
    parts: dict[str, dict[str, str]] = {}
    for path in whole.names:
        names = path.split("/")
        for end in range(len(wanted), len(names)):
            if all(map(fnmatch.fnmatchcase, names[end - len(wanted) : end], wanted)):
                parts.setdefault("/".join(names[:end]), {})["/".join(names[end:])] = path
                break
    if not parts:
        groups = {path[:at] for path in whole.names for at in range(len(path)) if path[at] == "/"}
        raise SchemaError(
            f"{whole.where}: episode={pattern!r}: no group and no array has such a name"
            + _instead(pattern, [*groups, *whole.names], whole, sorted(groups, key=by_numbers))
        )
    return parts


def _instead(name: str, others: Iterable[str], whole: Place, groups: Sequence[str] = ()) -> str:
    """Return what an error says of a name that means nothing."""
    its = f"groups are {spanned(groups)}" if groups else f"arrays are {spanned(whole.names)}"
    return did_you_mean(name, others) or f"; its {its}."


def _rows_of(whole: Place, options: Options) -> Place:
    """Return arrays [episodes, time, ..] as the steps of one episode after the other."""
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
    length, notes = options.length, list[Note]()
    if length and length not in names:
        raise SchemaError(f"{where}: length={length!r}: there is no such array{_instead(length, names, whole)}")
    if not length:
        fitting = (axes, axes[:1], (axes[0], 1))
        free = [name for name in shapes if name not in mapped and shapes[name][:2] in fitting]
        usual = [name for name in free if name.rpartition("/")[2].lower() in LENGTHS]
        length = usual[0] if usual else ""
        notes += [Note("lengths_by_name", [length])] if usual else []
    with whole.reading(where):
        lengths = whole.column(length) if length else None
        spans = _spans_of_episodes(lengths, axes, f"{where}, {length}")
    has_steps = spans[:, 1] > spans[:, 0]
    empty = int((~has_steps).sum())
    notes += [Note("rows_without_steps", rows=empty)] if empty else []
    longer = (axes[0], axes[1] + 1)
    later = {name: f"{name}, a step later" for name in shapes if shapes[name][:2] == longer}
    of_later = {after: name for name, after in later.items()}

    def column(name: str) -> Any:
        values = whole.column(of_later.get(name, name))
        if tuple(values.shape[:2]) != (longer if of_later.get(name, name) in later else axes):
            raise SchemaError(
                f"{where}, {name}: expected [{axes[0]}, {axes[1]}, ..] as of {action}, found {tuple(values.shape)}."
            )
        return _padded(values, spans, after=name in of_later)

    def values_of_episodes(name: str) -> Any:
        values = np.asarray(whole.whole(name))
        return values[has_steps] if values.shape[:1] == has_steps.shape else values

    return dataclasses.replace(
        whole,
        names=[name for name in names if name != length or name in mapped],
        column=column,
        names_of=lambda _name: NO_NAMES,
        whole=values_of_episodes,
        lengths=(spans[:, 1] - spans[:, 0])[has_steps].tolist(),
        later=later,
        notes=notes,
    )


def _padded(column: Any, spans: np.ndarray, *, after: bool) -> LazyColumn:
    """Return the steps of an array [episodes, time, ..] as rows.

    `spans` are from which step on, and before which one, each episode lies; `after` is a step later.
    """
    starts, lengths = spans[:, 0] + after, spans[:, 1] - spans[:, 0]
    ends = np.cumsum(lengths)
    held: tuple[int, Any] = (-1, None)

    def read(start: int, stop: int) -> np.ndarray:
        nonlocal held
        values, done = np.empty((stop - start, *column.shape[2:]), column.dtype), start
        while done < stop:
            episode = int(np.searchsorted(ends, done, side="right"))
            if held[0] != episode:
                # What can only be read in order is read up to there.
                begin = held[0] + 1 if isinstance(column, NpzColumn) else episode
                held = episode, np.asarray(column[begin : episode + 1])[-1]
            step = done - int(ends[episode] - lengths[episode])
            count = min(stop - done, int(lengths[episode]) - step)
            first = int(starts[episode]) + step
            values[done - start :][:count] = held[1][first : first + count]
            done += count
        return values

    return LazyColumn((int(ends[-1]), *column.shape[2:]), column.dtype, read)


def _spans_of_episodes(column: Any, axes: Sequence[int], where: str) -> np.ndarray:
    """Return from which step on, and before which one, each episode lies, by its lengths or a mask of its steps.

    Without an array all are as long as the axis of time. Raises SchemaError if it is neither, or no episode has a step.
    """
    count, steps = axes
    values = np.full(count, steps) if column is None else np.asarray(column[0 : len(column)])
    if values.size == count == len(values) and values.dtype.kind in "iu":
        lengths = values.reshape(-1).astype(np.int64)
        odd = np.flatnonzero((lengths < 0) | (lengths > steps))
        if len(odd):
            raise SchemaError(
                f"{where}: says {lengths[odd[0]]} steps of episode {odd[0]}, and its arrays have {steps}."
            )
        starts = np.zeros_like(lengths)
    else:
        is_mask = values.size == count * steps and len(values) == count
        if not is_mask or not np.isin(values, (0, 1)).all():
            raise SchemaError(
                f"{where}: expected the steps of each of {counted(count, 'episode')}, or 0 and 1 for each of {steps} "
                f"steps, found {values.dtype} {values.shape}."
            )
        mask = values.reshape(count, steps) != 0
        begins = (np.diff(mask.astype(np.int8), prepend=0, axis=1) > 0).sum(1)
        if (begins > 1).any():
            raise SchemaError(f"{where}: the steps of episode {np.argmax(begins > 1)} do not follow each other.")
        starts, lengths = np.argmax(mask, axis=1), mask.sum(1)
    if not lengths.any():
        raise SchemaError(f"{where}: says that no episode has a step.")
    return np.stack([starts, starts + lengths], 1)
