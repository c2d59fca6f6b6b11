"""Arrays of HDF5, npz, npy and Zarr, by the places where they lie together: a group, a file, a folder.

Some places are made of what lies in one: arrays of one number (`states_3`, `actions_3`), and arrays [episodes, time, ..], whose
rows are episodes, one after the other, without what fills them up:

    obs (6, 20, 4)   actions (6, 20, 2)   mask (6, 20)     6 episodes of up to 20 steps
    obs (6, 21, 4)                                         the same, with the final observation of each

A list of names (`dof_names`, an attribute `joint_names`) belongs to the array whose attribute it is. Otherwise the nearest
one counts, in the array's own group or one around it, whose length is the width of the array; `body_names` is only for
arrays whose names begin with `body`. Values of episodes are attributes (the nearest one counts too), keys in those that are
JSON, and arrays with a row for each episode (docs/formats.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import itertools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats.array_files import (
    Hdf5Column,
    LazyColumn,
    NpzColumn,
    PictureColumn,
    begins_a_picture,
    check_stored,
    child,
    datasets_in,
    flag_attribute,
    has_child,
    is_hdf5,
    is_npy_folder,
    is_npz,
    is_zarr,
    numbers,
    open_hdf5,
    open_npy,
    open_npz,
    open_zarr,
    reading,
    reading_npz,
    reading_zarr,
)
from orlog.datasets.formats.arrow_files import ENDINGS
from orlog.datasets.formats.episode_cutter import SUCCESS, outcome_of
from orlog.datasets.formats.episodes import Asked, Options
from orlog.datasets.formats.inventory import MOST_LOOKED_AT
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.roles import alike, base_role, by_numbers, matching, spanned
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import IntegrityError, OrlogError, SchemaError
from orlog.manifests.names import counted, did_you_mean

NAMES = re.compile(r"(?:(.+)_)?names?")
JOINTS = ("joint", "joints", "dof", "dofs", "motor", "actuator")
NO_JOINTS = re.compile(r"pose|quat|rot|eef|(^|_)ee(_|$)|tcp|cart|wrench|reward|image|depth")
LONGEST_NAME = 100
EPISODES, AXIS = "episodes", "episodes/"
TASK = "task"
TASKS = (
    "@language_instruction",
    "@natural_language_instruction",
    "@instruction",
    "@problem_info:language_instruction",  # LIBERO
    "@ep_meta:lang",  # RoboCasa
    "@current_task",  # DROID
    "@task_description",
)
"""Where files keep the task in words."""
AttributesAt = Callable[[str], Mapping[str, Any]]
"""Gives the attributes of the group or array at a path, which are read when they are looked up; none where nothing lies there."""


class AxisNames(NamedTuple):
    """What the numbers in a row of an array are called, and the list that says it, as an import names it."""

    texts: Sequence[str]
    source: str = ""


NO_NAMES = AxisNames(())


def texts_of(value: Any) -> list[str]:
    """Return a list of texts that differ from each other; nothing where it is something else."""
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(values, list):
        return []
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in values]
    if not all(isinstance(text, str) and text.isprintable() and text for text in texts):
        return []
    is_short = max(map(len, texts), default=0) <= LONGEST_NAME
    return texts if is_short and len({*texts}) == len(texts) else []


class Lists:
    """The lists of names in an open file of arrays."""

    def __init__(self, names: Sequence[str], attributes_at: AttributesAt, whole: Callable[[str], Any]) -> None:
        """Take the names of arrays, what gives the attributes at a path, and what reads a small array of texts."""
        self._attributes_at, self._whole = attributes_at, whole
        self._arrays: dict[str, list[str]] = {}
        for path in names:
            group, _, name = path.rpartition("/")
            if NAMES.fullmatch(name):
                self._arrays.setdefault(group, []).append(path)

    def names_of(self, array: str, shape: Sequence[int]) -> AxisNames:
        """Return what the numbers in a row of an array are called; nothing where no list fits it, or several differ.

        `shape` is that of the array, of which the first is rows.
        """
        parts = array.split("/")
        for end in range(len(parts), -1, -1) if len(shape) == 2 else ():
            place = "/".join(parts[:end])
            fitting: dict[tuple[str, ...], str] = {}
            for path, texts in self._lists_at(place, array):
                fitting |= {tuple(texts): path} if len(texts) == shape[1] else {}
            if fitting:
                return AxisNames(*fitting.popitem()) if len(fitting) == 1 else NO_NAMES
        return NO_NAMES

    def _lists_at(self, place: str, array: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the lists of a group that may be about an array, or the attributes of that array."""
        attributes = self._attributes_at(place)
        for name in filter(NAMES.fullmatch, attributes):
            if place == array or _may_name(name, array):
                yield f"{place}@{name}", texts_of(attributes[name])
        for path in self._arrays.get(place, ()):
            if _may_name(path.rpartition("/")[2], array):
                with contextlib.suppress(OrlogError):  # it holds something else
                    yield path, texts_of(self._whole(path))


def _may_name(name: str, array: str) -> bool:
    """Return whether a list that lies beside an array may be about it, by their names."""
    match, last = NAMES.fullmatch(name), array.rpartition("/")[2].lower()
    stem = match[1] if match else None
    if stem is None or stem.lower() in JOINTS:
        return any(joint in last for joint in JOINTS) or NO_JOINTS.search(last) is None
    return last.startswith(stem.lower())


def column_of(role: str) -> str:
    """Return the column that a role becomes: `actions`, `observations/arm`, `infos/torque`."""
    base, slash, part = role.partition("/")
    return f"{base if base == 'infos' else base + 's'}{slash}{part}"


def dimension_names(arrays: Sequence[str], names_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of all numbers of the arrays that make a column; nothing unless all have short ones.

    The name of the array stands before them where they would not differ.
    """
    if not all(names_of.get(array) for array in arrays):
        return []
    names = [name for array in arrays for name in names_of[array]]
    if len({*names}) < len(names):
        names = [
            array if array.endswith(f".{name}") else f"{array}.{name}" for array in arrays for name in names_of[array]
        ]
    return texts_of(names)


def check_names(names: Sequence[str], expected: Sequence[str], array: str, where: str) -> None:
    """Refuse an array whose numbers are called otherwise than those of the first file or group; their order may differ."""
    if names and {*names} != {*expected}:
        both = f"holds {', '.join(names)}; before it held {', '.join(expected)}"
        raise SchemaError(f"{where}, {array}: {both}.")


def reordered(column: Any, names: Sequence[str], wanted: Sequence[str]) -> Any:
    """Return an array with its numbers in the order of the names that are wanted; `names` are those that it has."""
    if not names or [*names] == [*wanted]:
        return column
    order = [[*names].index(name) for name in wanted]
    return LazyColumn(column.shape, column.dtype, lambda start, stop: np.asarray(column[start:stop])[:, order])


def of_episodes(columns: Mapping[str, str]) -> dict[str, str]:
    """Return what `--map` says of values of episodes, by their names without `episodes/`."""
    return {role.removeprefix(AXIS): where for role, where in columns.items() if role.startswith(AXIS)}


def of_steps(columns: Mapping[str, str]) -> dict[str, str]:
    """Return what `--map` says of everything else."""
    return {role: where for role, where in columns.items() if not role.startswith(AXIS)}


def values_of_place(
    wanted: Mapping[str, str], place: Any, count: int, known: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the values of so many episodes in a place of arrays (`places.py`), beside those that are known of it."""
    values = {**({} if TASK in wanted else _task(place)), **known}
    values |= {name: _value_at(source, place) for name, source in wanted.items() if "@" in source}
    episodes = [dict(values) for _ in range(count)]
    for name, array in wanted.items():
        if "@" in array:
            continue
        rows = np.asarray(place.whole(array))
        rows = rows[None] if rows.ndim == 0 and count == 1 else rows
        if len(rows) != count:
            raise SchemaError(
                f"{place.where}, {array}: expected a row for each of {count:,} episodes, found {len(rows):,}."
            )
        for episode, row in zip(episodes, rows, strict=True):
            episode[name] = plain(row)
    return [*episodes]


def _task(place: Any) -> dict[str, str]:
    """Return the task in words, where an attribute holds it that is called as others call it."""
    around = [*_around("", place)]
    for source in TASKS:
        if any(_parts(source)[1] in attributes for attributes in around):
            with contextlib.suppress(SchemaError):
                value = _value_at(source, place)
                if isinstance(value, str) and value.strip():
                    return {TASK: value}
    return {}


def _value_at(source: str, place: Any) -> Any:
    """Return the value that `@ATTRIBUTE`, `@ATTRIBUTE:KEY` or `GROUP@ATTRIBUTE` means for an episode."""
    group, name, keys = _parts(source)
    known: dict[str, None] = {}
    for attributes in _around(group, place):
        if name in attributes:
            return _inside(attributes[name], keys, f"{place.where}, {name}")
        known |= dict.fromkeys(attributes)
    instead = did_you_mean(name, known) or f"; there are {', '.join(known) or 'no attributes'}."
    raise SchemaError(f"{place.where}: has no attribute {name!r:.100}{instead}")


def _parts(source: str) -> tuple[str, str, str]:
    """Return group, attribute and keys."""
    group, _, rest = source.partition("@")
    name, _, keys = rest.partition(":")
    return group, name, keys


def _around(group: str, place: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the attributes where an episode may have its own, the nearest first; `group` lies in these."""
    parts = [part for part in place.path.split("/") if part]
    for end in range(len(parts), -1, -1):
        yield place.attributes("/".join(filter(None, (*parts[:end], group))))


def _inside(value: Any, keys: str, where: str) -> Any:
    """Return a value as a number, a text or an array, or what the keys name in a text of JSON."""
    value = plain(value)
    for key in filter(None, keys.split(".")):
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
        if not isinstance(value, dict) or key not in value:
            its = ", ".join(value) if isinstance(value, dict) else ""
            keys = f"; its keys are {', '.join(value)}." if isinstance(value, dict) else "."
            raise SchemaError(f"{where}: expected an object of JSON with the key {key!r:.100}{keys}")
        value = value[key]
    if isinstance(value, dict) or value is None:
        its = "nothing (null)" if value is None else f"an object; name a key: {', '.join(value)}"
        raise SchemaError(f"{where}: holds {its}.")
    return plain(value)


def plain(value: Any) -> Any:
    """Return what a file holds as a bool, a number, a text, or an array of numbers; a list of words as one text."""
    value = np.asarray(value).reshape(-1) if isinstance(value, list | tuple) else value
    if isinstance(value, np.ndarray | np.generic):
        if value.size == 1:
            value = value.reshape(-1)[0]
            value = value.item() if isinstance(value, np.generic) else value
        elif value.dtype.kind in "OSU":
            value = " ".join(str(plain(word)) for word in value.reshape(-1).tolist())
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def attributes_read(wanted: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """Return the attributes that were read, as patterns of `Format.reads`, given the values of an episode."""
    read = [*wanted.values(), *(TASKS if TASK in values and TASK not in wanted else ())]
    return [f"*@{_parts(source)[1]}" for source in read if "@" in source]


def in_all(values: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Note]]:
    """Return the values that all episodes have, and a note about those that only some have."""
    names = {name: None for episode in values for name in episode}
    some = [name for name in names if not all(name in episode for episode in values)]
    if not some:
        return values, []
    kept = [{name: episode[name] for name in episode if name not in some} for episode in values]
    return [*kept], [Note("left_out_of_some", some)]


FILE, ROW, NUMBER = "file", "row", "#"
LAYOUT = "arrays that --map could name"
LENGTHS = (*("mask", "masks", "valid", "traj_mask"), *("length", "lengths", "episode_lengths", "traj_lengths"))
"""Usual names of arrays that say how long episodes are."""


class Taken(NamedTuple):
    """Messages of a topic: how many there are, and should be; how many are in rows, at most how many seconds away.

    Of the others, how many come before the first row and after the last one; how many rows repeat the message of the
    row before, of how many; and the most seconds between two messages that values of some fields lie between.
    """

    messages: int
    expected: int
    taken: int
    age: float
    before: int
    after: int
    repeated: int
    rows: int
    gap: float
    linear: tuple[str, ...]


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


class ArrayFile(NamedTuple):
    """A file of arrays, what errors call it, and of HDF5 its arrays where they are known, and shape and dtype of those checked."""

    path: Path
    where: str
    names: Sequence[str] = ()
    checked: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}


class Places(NamedTuple):
    """How the places of files are found; processes of other machines open them likewise.

    `files` lists what can be opened on its own, such as files with what errors call them; `open` yields each place of
    such a file while that is open.
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
    """Return what lies in a folder and fits, and what errors call it."""
    entries = sorted(folder.iterdir())
    for entry in entries:
        if entry.is_symlink():
            raise SchemaError(f"{source}/{entry.name}: a link, which is not followed.")
    fitting = [entry for entry in entries if fits(entry)]
    endings = {entry.suffix for entry in fitting} - {""}
    for entry in entries:
        if entry.is_file() and entry.suffix in endings and entry not in fitting:
            what = f"not what {entry.suffix} files beside it are; get it again, or move it"
            raise IntegrityError(f"{source}/{entry.name}: {what}.")
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


def given_files(asked: Asked) -> list[tuple[Path, str]]:
    """Return the files that are asked for, and what errors call them."""
    return list(zip(asked.files, asked.sources, strict=True))


def files_of_arrays(asked: Asked) -> list[ArrayFile]:
    """Return the files, those of a folder and of folders in it too, in the order of the numbers in their paths."""
    given = given_files(asked)
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
    """Yield each place of a file; groups come in the order of the numbers in their names."""
    path, where = file.path, file.where
    if not (path.is_dir() or is_npz(path)):
        with open_hdf5(path, where) as opened:
            yield from _places_in_hdf5(file, opened, options)
        return
    opening: Any = open_zarr if is_zarr(path) else open_npz if is_npz(path) else open_npy
    with opening(path, where) as store:
        attributes: Callable[[str], Any] = getattr(store, "attributes", lambda _path: {})
        lists = Lists(store.names, attributes, store.whole)

        def names_of(name: str) -> AxisNames:
            return lists.names_of(name, store.shape(name))

        context = reading_zarr if opening is open_zarr else reading_npz
        whole = Place(
            where, store.names, store.column, context, names_of=names_of, attributes=attributes, whole=store.whole
        )
        yield from _places_in(whole, options)


ARRAYS = Places(files_of_arrays, open_arrays)
"""Files of HDF5, npz and Zarr, and folders of npy."""


def _places_in_hdf5(file: ArrayFile, opened: Any, options: Options) -> Iterator[Place]:
    h5py, where = import_h5py(), file.where
    size = file.path.stat().st_size
    names, checked = list(file.names), dict(file.checked)
    if not names:
        with reading(where):
            names = sorted(path for path, _ in datasets_in(opened, where))

    def dataset(path: str) -> Any:
        """Return a dataset as `opened[path]` does, in half the time."""
        return h5py.Dataset(h5py.h5d.open(opened.id, path.encode()), readonly=True)

    def column(path: str) -> Hdf5Column:
        if path not in checked:
            values = numbers(dataset(path), f"{where}, {path}", size, texts=True)
            checked[path] = values.shape, values.dtype
        return Hdf5Column(dataset(path), *checked[path])

    @functools.lru_cache(maxsize=64)
    def attributes_at(path: str) -> Mapping[str, Any]:
        node = opened
        for part in filter(None, path.split("/")):
            if not has_child(node, part):
                return {}
            node = child(node, part, where, "attributes")
        with reading(where):
            return dict(node.attrs)

    def read_whole(path: str) -> Any:
        node, at = opened, f"{where}, {path}"
        for part in path.split("/"):
            node = child(node, part, where, f"an array {path}")
        if not hasattr(node, "size"):
            raise SchemaError(f"{at}: expected an array with a row for each episode.")
        check_stored(node, at, size)
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
        file=ArrayFile(file.path, where, names, checked),
    )
    for place in _places_in(whole, options):
        success = None
        if place.path or place.where == where:  # not of arrays of one number
            success = flag_attribute(attributes_at(place.path), SUCCESS, place.where)
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
            instead = _instead(name, {alike(path) for path in whole.names}, whole)
            raise SchemaError(f"{whole.where}: episode='#': no array is called {name} with a number for #{instead}")
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
        instead = _instead(pattern, [*groups, *whole.names], whole, sorted(groups, key=by_numbers))
        raise SchemaError(f"{whole.where}: episode={pattern!r}: no group and no array has such a name{instead}")
    return parts


def _instead(name: str, others: Iterable[str], whole: Place, groups: Sequence[str] = ()) -> str:
    """Return what an error says of a name that means nothing."""
    its = f"groups are {spanned(groups)}" if groups else f"arrays are {spanned(whole.names)}"
    return did_you_mean(name, others) or f"; its {its}."


def _rows_of(whole: Place, options: Options) -> Place:
    """Return arrays [episodes, time, ..] as the steps of one episode after the other."""
    names, where = whole.names, whole.where
    mapped = {name for patterns in of_steps(options.columns).values() for name in matching(patterns, names)}
    shapes = {}
    for name in names:
        with contextlib.suppress(SchemaError), whole.reading(where):  # texts
            shapes[name] = tuple(whole.column(name).shape)
    (action, *_) = matching(options.columns.get("action", ""), names) or [""]
    axes = shapes.get(action, ())[:2]
    if len(axes) != 2:
        raise SchemaError(f"{where}: episode='row' needs actions [episodes, time, ..], named in columns=.")
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
            expected = f"[{axes[0]}, {axes[1]}, ..] as of {action}"
            raise SchemaError(f"{where}, {name}: expected {expected}, found {tuple(values.shape)}.")
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
    """Return the steps of an array [episodes, time, ..] as rows."""
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
    """Return from which step on, and before which one, each episode lies, by its lengths or a mask of its steps."""
    count, steps = axes
    values = np.full(count, steps) if column is None else np.asarray(column[0 : len(column)])
    if values.size == count == len(values) and values.dtype.kind in "iu":
        lengths = values.reshape(-1).astype(np.int64)
        odd = np.flatnonzero((lengths < 0) | (lengths > steps))
        if len(odd):
            raise SchemaError(f"{where}: says {lengths[odd[0]]} steps of episode {odd[0]}, and there are {steps}.")
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
