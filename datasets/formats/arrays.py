"""Reads arrays of HDF5, npz, npy and Zarr that the user names, whatever their layout.

`--map` is as for tables (`roles.py`), but an array has as many numbers a row as it likes, and several that
make one observation are put side by side. `mapped_arrays.py` says what an episode is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from orlog.datasets.formats.array_files import is_npy_folder
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import are_episodes, open_mapped
from orlog.datasets.formats.places import (
    ARRAYS,
    FILE,
    NUMBER,
    ROW,
    Place,
    columns_by_role,
    files_of_arrays,
    holds_arrays,
)
from orlog.datasets.formats.roles import USUAL, Kind, base_role, done_names, hint, map_of, tree_of
from orlog.errors import OrlogError, SchemaError

MOST_ARRAYS = 200  # of which a hint is made
UNDECIDED = (
    "Say which array is what, as columns={'observation': 'ARRAY', 'action': 'ARRAY'}, and what an episode is, as episode=: "
    "a pattern of groups, file, row, or the name of an array of ends or of the number of each row's episode."
)
OBJECTS = """
Python objects in an array are a pickle, and reading it runs the program in it. Where you trust the file, and each item is
an episode, convert it yourself:
    import numpy as np; from pathlib import Path
    data, names = np.load({file!r}, allow_pickle=True), {names}
    Path("episodes").mkdir()
    for number, items in enumerate(zip(*(data[name] for name in names))):
        np.savez(f"episodes/{{number}}.npz", **{{name: np.asarray(item) for name, item in zip(names, items)}})
Then: orlog import episodes NAME"""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    with open_mapped(_understood(asked)) as opened:
        if any(is_npy_folder(file.path) for file in files_of_arrays(asked)):
            opened.reads = [*opened.reads, "./*.npy"]
        yield opened


def _understood(asked: Asked) -> Asked:
    """Return what is asked, where `#` in the names of arrays alone says what an episode is."""
    options = asked.options
    if options.length and options.episode != ROW:
        raise SchemaError(f"{asked.sources[0]}: length={options.length!r}: give episode='row' too, or leave it out.")
    if options.episode not in ("", FILE) or NUMBER not in "".join(options.columns.values()):
        return asked
    return dataclasses.replace(asked, options=dataclasses.replace(options, episode=NUMBER))


def _recognizes(files: Sequence[Path]) -> bool:
    if all(map(holds_arrays, files)):
        return True
    return len(files) == 1 and files[0].is_dir() and any(map(holds_arrays, files[0].rglob("*")))


def _describe(files: Sequence[Path]) -> str:
    """Return the arrays of the first file, and what reads them, by what their names are like."""
    if not _recognizes(files):
        return ""
    asked = Asked(files=files, sources=[str(file) for file in files])
    kinds: dict[str, Kind] = {}
    try:
        each = files_of_arrays(asked)
        asked = dataclasses.replace(asked, files=[file.path for file in each], sources=[file.where for file in each])
        with contextlib.closing(ARRAYS.open(each[0], Options())) as places:
            place = next(places)
            with place.reading(place.where):
                tree = tree_of(place.names, lambda name: _kind(place, name, kinds))
                numbered = _numbered(place.names)
                for name in (*numbered.values(), *place.names[:MOST_ARRAYS]):
                    _kind(place, name, kinds)
    except (OrlogError, StopIteration):  # it is damaged
        return ""
    shown = f"\nThe arrays of {place.where}:\n" + "\n".join(f"    {one}" for one in tree.lines)
    objects = [line.split("  ")[0] for line in tree.lines if "Python objects" in line]
    if objects:
        return shown + OBJECTS.format(file=str(each[0].path), names=objects)
    inner = {name: kinds[tree.start + name] for name in tree.names if tree.start + name in kinds}
    of_number = {name: kinds[first] for name, first in numbered.items() if first in kinds}
    ways = _ways(tree.episode, inner, of_number, kinds, has_several=len(each) > 1)
    return shown + hint(_open, asked, ways, tree.names, files, otherwise=UNDECIDED)


def _ways(
    pattern: str,
    inner: Mapping[str, Kind],
    of_number: Mapping[str, Kind],
    kinds: Mapping[str, Kind],
    *,
    has_several: bool,
) -> Iterator[Options]:
    """Yield what arrays may mean, the likeliest first."""
    columns = map_of(inner)
    if pattern and "ARRAY" not in columns.values():
        yield Options(columns=columns, episode=pattern)
        return
    columns = map_of(kinds)
    ids = [name for name in kinds if name.rpartition("/")[2].lower() in USUAL["episode"]]
    ends = [name for name, (shape, _) in kinds.items() if "ends" in name and len(shape) == 1]
    for name in (*ids, *ends):
        yield Options(columns=columns, episode=name)
    numbered = map_of(of_number)
    if "ARRAY" not in numbered.values() and any(len(shape) > 1 for shape, _ in of_number.values()):
        yield Options(columns=numbered)
        return
    if has_several:
        yield Options(columns=columns, episode=FILE)
    yield Options(columns=columns)
    of_role = {role: one.split(",") for role, one in columns.items()}
    seen = [name for role in of_role if base_role(role) == "observation" for name in of_role[role]]
    arrays = {name: SimpleNamespace(shape=shape, dtype=np.dtype(dtype)) for name, (shape, dtype) in kinds.items()}
    (action, *more) = of_role["action"]
    if not more and {*seen, action} <= arrays.keys():
        if are_episodes([arrays[name] for name in seen], arrays[action]):
            yield Options(columns=columns, episode=ROW)
        elif not done_names([*kinds]):
            yield Options(columns=columns, episode=FILE)


def _numbered(names: Sequence[str]) -> dict[str, str]:
    """Return the arrays that are there once for each of the same numbers, by names with `#`: those of the first number."""
    numbered: dict[str, dict[str, str]] = {}
    for name in names:
        if match := re.fullmatch(r"(\D*)(\d+)([^\d/]*)", name):
            numbered.setdefault(NUMBER.join(match.group(1, 3)), {})[match[2]] = name
    sets = Counter(frozenset(one) for one in numbered.values() if len(one) > 1)
    same = next((one for one, count in sets.most_common(1) if count > 1), frozenset())
    first = min(same, key=int, default="")
    return {key: one[first] for key, one in numbered.items() if same and one.keys() == same}


def _kind(place: Place, name: str, kinds: dict[str, Kind]) -> str:
    """Return what an array holds in words, and keep it where --map could name it."""
    if name not in kinds:
        try:
            (column,) = columns_by_role(place, {"observation": [name]})["observation"]
            column[0:1]  # it may be packed by something that is not read
        except OrlogError as error:
            why = str(error).rpartition(f"{name}: ")[2]
            return f"({re.split('[:;] ', why)[0].rstrip('.')})"
        kinds[name] = tuple(column.shape), str(column.dtype)
    return f"{kinds[name][0]} {kinds[name][1]}"


FORMAT = Format(
    name="arrays",
    open=_open,
    recognizes=_recognizes,
    extensions=(".hdf5", ".h5", ".npz", ".npy", ".zarr", ".zip", ""),
    options=("columns", "episode", "length", "horizon", "ends"),
    shares=True,
    only_mapped=True,
    any_layout=True,
    describe=_describe,
    reads=("**",),
)
