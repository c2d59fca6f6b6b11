"""Reads arrays of HDF5 and npz files that the user names, whatever their layout.

    orlog import my.h5 lab/mine-v1 --episode "demo_*" --map observation=obs/qpos,obs/qvel --map action=actions
    orlog import logs/*.npz lab/mine-v1 --episode file --map observation=obs* --map action=a --horizon 200
    orlog import all.npz lab/mine-v1 --episode episode_ends --map observation=state --map action=action

`--episode` says what an episode is: a group whose name fits a pattern (with the names of `--map` beginning in
it); a whole file (`file`); the rows with one number in an array of as many rows; or the rows up to each number
of an array of ends. Without it, rows end where `terminated` or `truncated` say so. Groups and files come in the order
of the numbers in their names, and all have the arrays of the first one, with rows of one shape and dtype.

`--map` is as for tables (`_shared/roles.py`), but an array has as many numbers a row as it likes, and several that
make one observation are put side by side. With one row more of observations than of actions the last one is
the final observation; otherwise `_shared/episode_cutter.py` says what becomes of the last row. With
`--horizon`, and no flags, an episode of as many steps was cut off, and a shorter one ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats._shared.flat_rows import mapped_action_space, unbounded_space
from orlog.datasets.formats._shared.hdf5_files import (
    datasets_in,
    is_hdf5,
    numbers,
    open_hdf5,
    reading,
)
from orlog.datasets.formats._shared.npz_files import is_npz, open_npz, reading_npz
from orlog.datasets.formats._shared.roles import Layout, base_role, by_numbers, usual
from orlog.datasets.formats.formats import Format
from orlog.errors import OrlogError, SchemaError
from orlog.manifests.names import did_you_mean

FILE = "file"
LAYOUT = "arrays that --map could name"
BLOCK_BYTES = 2**22
LARGEST_ROW_BYTES = 2**26
MOST_EPISODES = 2**22
FLAGS = ("terminated", "truncated")
MOST_SHOWN = 40


@dataclasses.dataclass(frozen=True)
class _Place:
    """Arrays that lie together: in one group of a file, or in a whole file.

    Attributes:
        where: What errors call it.
        names: Names of the arrays.
        column: Opens one, to read its rows in order.
        reading: Turns errors of the library that reads it into ours, as a context.
    """

    where: str
    names: list[str]
    column: Callable[[str], Any]
    reading: Callable[[str], AbstractContextManager[None]]


@dataclasses.dataclass
class _Seen:
    """What a first look at all places gave.

    Attributes:
        layout: Which arrays are what.
        lengths: Rows of each episode.
        rows: Rows of each place.
        kinds: Dtype and shape of a row, by role.
        has_final: Whether observations have one row more than actions.
        ended: Whether each episode was ended by the task, where the horizon says it.
        lowest: The lowest action, where actions are single integers.
        highest: The highest one.
    """

    layout: Layout
    lengths: list[int] = dataclasses.field(default_factory=list)
    rows: list[int] = dataclasses.field(default_factory=list)
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = dataclasses.field(
        default_factory=dict
    )
    has_final: bool = False
    ended: list[bool] = dataclasses.field(default_factory=list)
    lowest: int = 0
    highest: int = 0


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    seen = _look(asked)
    layout = seen.layout
    parts = {
        role.removeprefix("observation/"): unbounded_space(*seen.kinds[role])
        for role in layout.observations
    }
    is_whole = layout.observations == ["observation"]
    dtype = seen.kinds.get("reward", (np.dtype(np.float64), ()))[0]
    schema = Schema(
        observation_space=parts["observation"] if is_whole else gymnasium.spaces.Dict(parts),
        action_space=mapped_action_space(
            seen.kinds["action"], seen.lowest, seen.highest, asked.sources[0]
        ),
        reward_dtype=np.dtype(np.float32 if dtype == np.float32 else np.float64),
    )
    opened = Opened(schema=schema, steps=iter(()), total_steps=sum(seen.lengths))
    if "reward" not in layout.columns:
        opened.doubts.append("No array of rewards was named: they are zeros.")
    if seen.ended:
        opened.doubts.append(
            f"Nothing says how episodes ended: those of {asked.options.horizon:,} steps were taken to be "
            "cut off by the time limit, and shorter ones to be ended by the task."
        )
    elif not {*FLAGS} & layout.columns.keys():
        opened.doubts.append(
            "Nothing says how episodes ended: all were taken to be cut off (--horizon gives the time "
            "limit, --map terminated=.. a flag)."
        )
    if layout.left_out:
        opened.doubts.append(f"Left out, not named: {', '.join(layout.left_out)}.")
    opened.steps = _steps(asked, seen, opened)
    yield opened


def _places(asked: Asked) -> Iterator[_Place]:
    """Yield each place while its file is open."""
    given = list(zip(asked.files, asked.sources, strict=True))
    if len(given) == 1 and given[0][0].is_dir():
        folder, source = given[0]
        inside = [one for one in folder.iterdir() if one.is_file() and not one.is_symlink()]
        given = [(one, f"{source}/{one.name}") for one in inside if is_npz(one) or is_hdf5(one)]
        if not given:
            raise SchemaError(f"{source}: holds no HDF5 and no npz file.")
    for file, where in sorted(given, key=lambda one: by_numbers(one[0].name)):
        if is_npz(file):
            with open_npz(file, where) as archive:
                yield _Place(where, archive.names, archive.column, reading_npz)
            continue
        with open_hdf5(file, where) as opened:
            with reading(where):
                nodes, size = datasets_in(opened, where, LAYOUT), file.stat().st_size
            for group in _groups(nodes, asked.options.episode, where):
                inner = {
                    path.removeprefix(f"{group}/" if group else ""): node
                    for path, node in nodes.items()
                    if not group or path.startswith(f"{group}/")
                }
                place = f"{where}, {group}" if group else where

                def column(name: str, nodes: dict[str, Any] = inner, place: str = place) -> Any:
                    return numbers(nodes[name], f"{place}, {name}", size)  # noqa: B023 (of this file)

                yield _Place(place, sorted(inner), column, reading)


def _groups(nodes: dict[str, Any], pattern: str, where: str) -> list[str]:
    """Return the paths of the groups that a pattern means; only the file itself if it means none.

    Raises SchemaError if it is not a pattern of groups, and no array has that name.
    """
    if pattern in ("", FILE) or pattern in nodes:
        return [""]
    wanted = pattern.split("/")
    found: set[str] = set()
    for path in nodes:
        parts = path.split("/")[:-1]
        for end in range(len(wanted), len(parts) + 1):
            if all(map(fnmatch.fnmatchcase, parts[end - len(wanted) : end], wanted)):
                found.add("/".join(parts[:end]))
                break
    if not found:
        groups = sorted({path.rpartition("/")[0] for path in nodes} - {""})
        raise SchemaError(
            f"{where}: --episode {pattern}: no group and no array has such a name"
            + (did_you_mean(pattern, [*groups, *nodes]) or f"; its arrays are {_some([*nodes])}.")
        )
    return sorted(found, key=by_numbers)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(f"{name:.100}" for name in names[:20]) + more


def _look(asked: Asked) -> _Seen:
    """Return what all places hold, by their headers, flags and ends alone.

    Raises SchemaError if arrays are missing, or those of two places differ.
    """
    seen: _Seen | None = None
    first = ""
    for place in _places(asked):
        if seen is None:
            options = dataclasses.replace(asked.options, episode="")
            layout = Layout(place.names, options, place.where, needs_episode=False)
            seen, first = _Seen(layout), place.where
        for names in seen.layout.columns.values():
            for name in names:
                if name not in place.names:
                    raise SchemaError(f"{place.where}: has no array {name!r}, and {first} has.")
        with place.reading(place.where):
            _look_at(place, seen, asked.options, first)
        if len(seen.lengths) > MOST_EPISODES:
            raise SchemaError(f"{place.where}: more than {MOST_EPISODES:,} episodes.")
    assert seen is not None
    seen.layout.left_out = [one for one in seen.layout.left_out if one != asked.options.episode]
    return seen


def _look_at(place: _Place, seen: _Seen, options: Options, first: str) -> None:
    columns = {
        role: [place.column(name) for name in names] for role, names in seen.layout.columns.items()
    }
    rows = len(columns["action"][0])
    lengths = _lengths(place, columns, options.episode, rows)
    is_one = options.episode != "" and lengths == [rows]
    finals = {
        len(one) == rows + 1
        for role, several in columns.items()
        for one in several
        if base_role(role) == "observation"
    }
    has_final = is_one and finals == {True}
    if seen.rows and has_final != seen.has_final:
        raise SchemaError(
            f"{place.where}: has {'a' if has_final else 'no'} final observation, unlike {first}."
        )
    seen.has_final = has_final
    for role, several in columns.items():
        expected = rows + (has_final and base_role(role) == "observation")
        for name, one in zip(seen.layout.columns[role], several, strict=True):
            if len(one) != expected:
                raise SchemaError(
                    f"{place.where}, {name}: expected {expected} rows, found {len(one)}."
                )
        kind = _kind(role, several)
        if seen.kinds.setdefault(role, kind) != kind:
            raise SchemaError(
                f"{place.where}: {role} has rows of {kind[0]} {kind[1]}, and {first} of "
                f"{seen.kinds[role][0]} {seen.kinds[role][1]}."
            )
    if seen.kinds["action"] == (np.dtype(np.int64), ()):
        actions = columns["action"][0]
        for start in range(0, rows, BLOCK_BYTES):
            values = np.asarray(actions[start : min(rows, start + BLOCK_BYTES)])
            low, high = int(values.min()), int(values.max())
            is_first = not seen.rows and start == 0
            seen.lowest = low if is_first else min(seen.lowest, low)
            seen.highest = high if is_first else max(seen.highest, high)
    if options.horizon is not None and not {*FLAGS} & columns.keys():
        longest = max(lengths)
        if longest > options.horizon:
            raise SchemaError(
                f"{place.where}: an episode has {longest:,} steps, more than --horizon {options.horizon:,}."
            )
        seen.ended += [length < options.horizon for length in lengths]
    seen.rows.append(rows)
    seen.lengths += lengths


def _lengths(place: _Place, columns: dict[str, list[Any]], episode: str, rows: int) -> list[int]:
    """Return the rows of each episode of a place."""
    if episode in place.names:
        values = _small(place, episode)
        if len(values) != rows or rows == 1:
            ends = values.astype(np.int64)
            if not len(ends) or (np.diff(ends, prepend=0) <= 0).any() or ends[-1] != rows:
                raise SchemaError(
                    f"{place.where}, {episode}: expected the number of an episode in each of {rows} rows, or "
                    f"ends that grow up to {rows}."
                )
            return np.diff(ends, prepend=0).tolist()  # type: ignore[no-any-return]
        starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
        again, count = np.unique(values[starts], return_counts=True)
        if (count > 1).any():
            raise SchemaError(
                f"{place.where}, {episode}: the rows of episode {again[count > 1][0]} do not follow each other."
            )
        return np.diff(np.append(starts, rows)).tolist()  # type: ignore[no-any-return]
    if episode:
        return [rows]
    named = [role for role in FLAGS if role in columns]
    if not named:
        raise SchemaError(
            f"{place.where}: nothing says what an episode is; give --episode PATTERN of groups, file, or the "
            "name of an array, or --map terminated=.. and truncated=..."
        )
    ends = np.zeros(rows, bool)
    for role in named:
        (column,) = columns[role]
        if column.shape not in ((rows,), (rows, 1)):
            raise SchemaError(
                f"{place.where}, {role}: expected one flag a row, found {column.shape}."
            )
        ends |= flags_of(np.asarray(column[:rows]).reshape(-1), role, place.where, first=0)
    ends[-1] = True
    return np.diff(np.flatnonzero(ends), prepend=-1).tolist()  # type: ignore[no-any-return]


def _small(place: _Place, name: str) -> np.ndarray:
    """Return a whole array of one whole number a row."""
    column = place.column(name)
    if len(column) > 2**27 or column.shape not in ((len(column),), (len(column), 1)):
        raise SchemaError(
            f"{place.where}, {name}: expected one number a row, found {column.shape}."
        )
    values = np.asarray(column[: len(column)]).reshape(-1)
    if values.dtype.kind not in "iub" and not (np.isfinite(values) & (values % 1 == 0)).all():
        raise SchemaError(f"{place.where}, {name}: expected whole numbers.")
    return values


def _kind(role: str, columns: list[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a row of what has a role."""
    shapes = [tuple(one.shape[1:]) for one in columns]
    dtype = np.result_type(*(one.dtype.newbyteorder("=") for one in columns))
    shape = shapes[0] if len(shapes) == 1 else (sum(map(math.prod, shapes)),)
    if role == "action" and dtype.kind in "iu" and shape in ((), (1,)):
        return np.dtype(np.int64), ()
    base = base_role(role)
    if base in FLAGS:  # NaN would be a true one
        return np.dtype(np.float64), ()
    if base == "reward":
        return dtype, ()
    is_image = dtype == np.uint8 and len(shape) > 1
    if base != "infos" and dtype.kind in "biu" and not is_image:
        dtype = np.dtype(np.float64)
    return dtype, shape if base == "infos" else shape or (1,)


def _steps(asked: Asked, seen: _Seen, opened: Opened) -> Iterator[Steps]:
    cutter = EpisodeCutter(ends_of_lengths(seen.lengths), asked.sources[0])
    row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in seen.kinds.values())
    if row_bytes > LARGEST_ROW_BYTES:
        raise SchemaError(f"{asked.sources[0]}: {row_bytes:,} bytes per step are too many.")
    last_rows, first = np.cumsum(seen.lengths) - 1, 0
    for place, rows in zip(_places(asked), seen.rows, strict=True):
        for block in _blocks(place, seen, rows, max(1, BLOCK_BYTES // row_bytes), opened):
            count = len(block["reward"])
            if seen.ended:
                ends = np.searchsorted(last_rows, (first, first + count))
                block["terminated"] = np.zeros(count, bool)
                block["terminated"][last_rows[slice(*ends)] - first] = seen.ended[slice(*ends)]
            yield from cutter.add(block)
            first += count
    opened.doubts += cutter.doubts()


def _blocks(place: _Place, seen: _Seen, rows: int, most: int, opened: Opened) -> Iterator[Rows]:
    """Yield the rows of a place."""
    with place.reading(place.where):
        columns = {
            role: [place.column(name) for name in names]
            for role, names in seen.layout.columns.items()
        }
    held: Rows = {}  # the observation after the last row so far
    for start in range(0, rows, most):
        stop = min(rows, start + most)
        block: Rows = {"reward": np.zeros(stop - start)}
        with place.reading(place.where):
            for role, several in columns.items():
                if seen.has_final and base_role(role) == "observation":
                    read = _read(several, slice(start + (role in held), stop + 1), seen.kinds[role])
                    found = np.concatenate((held[role], read)) if role in held else read
                    held[role] = found[-1:]
                    block[role], block[f"next_{role}"] = found[:-1], found[1:]
                else:
                    block[role] = _read(several, slice(start, stop), seen.kinds[role])
        block["reward"] = block["reward"].astype(opened.schema.reward_dtype)
        yield block


def _read(
    columns: list[Any], rows: slice, kind: tuple[np.dtype[Any], tuple[int, ...]]
) -> np.ndarray:
    (dtype, shape), count = kind, rows.stop - rows.start
    parts = [np.asarray(one[rows]) for one in columns]
    values = (
        parts[0] if len(parts) == 1 else np.concatenate([p.reshape(count, -1) for p in parts], 1)
    )
    return values.reshape(count, *shape).astype(dtype, copy=False)


def _recognizes(files: Sequence[Path]) -> bool:
    inside = [*files[0].iterdir()] if len(files) == 1 and files[0].is_dir() else files
    found = [is_npz(one) or is_hdf5(one) for one in inside if one.is_file()]
    return any(found) if inside is not files else all(found)


def _describe(files: Sequence[Path]) -> str:
    """Return the arrays of the first file, and a `--map` by their usual names."""
    if not _recognizes(files):
        return ""
    places = _places(Asked(files=files, sources=[str(file) for file in files]))
    try:
        place = next(places)
        with place.reading(place.where):
            shown = {name: place.column(name) for name in place.names[:MOST_SHOWN]}
    except (OrlogError, StopIteration):  # it is damaged, or holds other things than numbers
        return ""
    lines = [f"    {name}  {tuple(one.shape)} {one.dtype}" for name, one in shown.items()]
    if len(place.names) > MOST_SHOWN:
        lines.append(f"    and {len(place.names) - MOST_SHOWN:,} more")
    # Groups whose paths differ in a number alone are episodes: `data/demo_*`.
    parts = [re.fullmatch(r"(.*?[^/\d]?)\d+/(.+)", name) for name in shown]
    heads = {part[1] for part in parts if part is not None}
    pattern = f"{heads.pop()}*" if len(heads) == 1 and None not in parts else ""
    inner = [
        part[2] if part is not None and pattern else name
        for name, part in zip(shown, parts, strict=True)
    ]
    by_last = {name.rpartition("/")[2]: name for name in reversed(inner)}
    guessed = {role: [by_last[n] for n in found] for role, found in usual(sorted(by_last)).items()}
    ends = [name for name, one in shown.items() if "ends" in name and len(one.shape) == 1]
    numbered = guessed.get("episode", ends)
    words = [f'--episode "{pattern}"' if pattern else "--episode ARRAY|PATTERN|file"]
    if numbered and not pattern:
        words = [f"--episode {numbered[0]}"]
    words += [
        f"--map {role}={','.join(guessed.get(role, ['ARRAY']))}"
        for role in ("observation", "action", "reward", *FLAGS)
        if role in guessed or role in ("observation", "action")
    ]
    return (
        f"\nThe arrays of {place.where}:\n"
        + "\n".join(lines)
        + "\nSay what they mean, for example: "
        f"orlog import {shlex.quote(str(files[0]))} NAME {' '.join(words)}"
    )


FORMAT = Format(
    name="arrays",
    open=_open,
    recognizes=_recognizes,
    extensions=(".hdf5", ".h5", ".npz", ""),
    options=("columns", "episode", "horizon"),
    only_mapped=True,
    describe=_describe,
)
