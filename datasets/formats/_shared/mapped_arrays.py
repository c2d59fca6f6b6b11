"""Reads arrays whose meaning is said, by the user or by a known layout, place by place.

`--episode` says what an episode is: a group whose name fits a pattern (with the names of `--map` beginning in
it); a whole file (`file`); a row of arrays [episodes, time, ..] (`row`); the arrays of one number (`#`); the rows with
one number in an array of as many rows; or the rows up to each number of an array of ends. Without it, rows end where
`terminated` or `truncated` say so. Groups and files come in the order of the numbers in their names, and all have the
arrays of the first one, with rows of one shape and dtype.

With one row more of observations than of actions the last one is the final observation; otherwise
`_shared/episode_cutter.py` says what becomes of the last row. Observations that are PNG or JPEG files in rows become frames.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._containers.axis_names import (
    check_names,
    column_of,
    dimension_names,
    in_order,
)
from orlog.datasets.formats._containers.episode_arrays import are_episodes, lengths_by
from orlog.datasets.formats._containers.episode_values import (
    attributes_read,
    in_all,
    of_episodes,
    of_steps,
    values_of_place,
)
from orlog.datasets.formats._containers.pictures import PictureColumn
from orlog.datasets.formats._shared.conventions import about_pictures
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import (
    FLAGS,
    UnknownEnds,
    flags_of,
    put_success,
    unknown_ends,
)
from orlog.datasets.formats._shared.flat_rows import (
    as_dtype,
    kept_dtype,
    mapped_action_space,
    unbounded_space,
)
from orlog.datasets.formats._shared.inventory import NUMBER
from orlog.datasets.formats._shared.pieces import (
    Span,
    check_stream,
    groups_of_jobs,
    read_pieces,
    spans_of,
)
from orlog.datasets.formats._shared.places import ARRAYS, FILE, Place, Places, columns_by_role
from orlog.datasets.formats._shared.roles import Layout, base_role, columns_there
from orlog.errors import IntegrityError, SchemaError

FLOAT64 = np.dtype(np.float64)
BLOCK_BYTES = 2**22
LARGEST_ROW_BYTES = 2**26
MOST_EPISODES = 2**22
MOST_TOLD = 100
About = Callable[[Place], tuple[Mapping[str, Any], int | None]]
"""What is known of the episodes of a place: their values, and the seed of the reset."""


class _Lying(NamedTuple):
    """Where a place lies: the piece with its number, the number in it, and what errors call it; and its rows."""

    piece: tuple[int, Any]
    number: int
    rows: int
    where: str
    job_bytes: int | None


@dataclasses.dataclass
class _Seen:
    """What a first look at all places gave.

    Attributes:
        layout: Which arrays are what.
        lengths: Rows of each episode.
        places: Where each place lies, and its rows.
        kinds: Dtype and shape of a row, by role.
        metadata: Values of each episode, where places have some.
        seeds: Seeds of them, likewise.
        success: Whether each succeeded, where its place states it.
        repeats_flags: Whether the last step alone says how its episode ended.
        has_final: Whether observations have one row more than actions.
        lowest: The lowest action, where actions are single integers.
        highest: The highest one.
        names: What the numbers in a row are called, by array, as the first place says.
        sources: The lists that say it.
        doubts: What to know about places, a sentence each.
    """

    layout: Layout
    lengths: list[int] = dataclasses.field(default_factory=list)
    places: list[_Lying] = dataclasses.field(default_factory=list)
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = dataclasses.field(
        default_factory=dict
    )
    metadata: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    seeds: list[int | None] = dataclasses.field(default_factory=list)
    success: list[bool | None] = dataclasses.field(default_factory=list)
    repeats_flags: bool = False
    has_final: bool = False
    lowest: int = 0
    highest: int = 0
    names: dict[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    sources: set[str] = dataclasses.field(default_factory=set)
    pictures: dict[str, None] = dataclasses.field(default_factory=dict)
    doubts: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """A layout whose arrays are known to mean something.

    Attributes:
        columns: What `--map` would say; arrays that are not there are left out.
        episode: What `--episode` would say.
        places: How the arrays are found.
        about: What else is known of the episodes of a place.
        repeats_flags: Whether `terminated` may be true before the last step, which then alone ends the
            episode; all of them are kept as `infos/terminated`.
        doubts: What to know about every import of it, a sentence each.
    """

    columns: Mapping[str, str]
    episode: str = FILE
    places: Places = ARRAYS
    about: About = lambda _place: ({}, None)
    repeats_flags: bool = False
    doubts: Sequence[str] = ()


NOTHING_KNOWN = Known(columns={})


@contextlib.contextmanager
def open_known(known: Known, asked: Asked) -> Iterator[Opened]:
    """Read files of a known layout; for `Format.open`, by `functools.partial`.

    Raises SchemaError if arrays are missing, or do not fit together; IntegrityError if one is damaged.
    """
    columns = {**asked.options.columns, **known.columns}
    said = dataclasses.replace(asked.options, columns=columns, episode=known.episode)
    with open_mapped(dataclasses.replace(asked, options=said), known) as opened:
        opened.doubts += known.doubts
        yield opened


@contextlib.contextmanager
def open_mapped(asked: Asked, known: Known = NOTHING_KNOWN) -> Iterator[Opened]:
    """Read the arrays that the options name, of which a `known` layout may leave some out."""
    seen = _look(asked, known)
    seen.repeats_flags = known.repeats_flags
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
    opened.lengths = seen.lengths
    seen.metadata, left_out = in_all(seen.metadata)
    opened.doubts += left_out
    opened.doubts += put_success(seen.metadata, seen.success, asked.options, asked.sources[0])
    opened.doubts += seen.doubts
    if "reward" not in layout.columns and not asked.options.reward:
        opened.doubts.append("No array of rewards was named: they are zeros.")
    if not {*FLAGS} & layout.columns.keys():
        names = {*layout.columns, *(f"episodes/{name}" for name in seen.metadata[0])}
        opened.doubts += unknown_ends(asked.options, asked.sources[0], names)
    if layout.left_out:
        opened.doubts.append(f"Left out, not named: {', '.join(layout.left_out)}.")
    for role, arrays in layout.columns.items():
        named = dimension_names(arrays, seen.names)
        is_kept = base_role(role) in ("observation", "action", "infos")
        if is_kept and seen.kinds[role][1] == (len(named),):
            opened.dimension_names[column_of(role)] = named
    opened.reads = [f"*{NUMBER.sub('#', one)}" for one in sorted(seen.sources - {""})]
    opened.reads += attributes_read(of_episodes(asked.options.columns), seen.metadata[0])
    opened.asides = about_pictures(seen.pictures, asked.options)
    opened.steps = _steps(asked, known.places, seen, opened)
    yield opened


def _look(asked: Asked, known: Known) -> _Seen:
    """Return what all places hold, by their headers, flags and ends alone.

    Raises SchemaError if arrays are missing, or those of two places differ.
    """
    seen: _Seen | None = None
    first, more, own = "", set[str](), set[str]()
    for piece, number, place in known.places.find(asked):
        if seen is None:
            columns = of_steps(asked.options.columns)
            options = dataclasses.replace(asked.options, episode="", length="", columns=columns)
            if known.columns:
                options = dataclasses.replace(
                    options, columns=columns_there(options.columns, place.names)
                )
            layout = Layout(place.names, options, place.where, needs_episode=False)
            layout.columns |= _later(place, layout)
            seen, first, own = _Seen(layout), place.where, {*place.names}
        more |= {*place.names, *place.outside} - own
        for names in seen.layout.columns.values():
            for name in names:
                if name not in place.names and name not in place.later.values():
                    raise SchemaError(f"{place.where}: has no array {name!r}, and {first} has.")
        with place.reading(place.where):
            for array in sorted({one for names in seen.layout.columns.values() for one in names}):
                if not seen.places:
                    texts, source = place.names_of(array)
                    seen.names |= {array: texts} if texts else {}
                    seen.sources.add(source)
                elif array in seen.names:
                    check_names(place.names_of(array).texts, seen.names[array], array, place.where)
            rows = _look_at(place, seen, asked.options, first, known.about(place))
        seen.doubts += [one for one in place.doubts if one not in seen.doubts]
        seen.places.append(_Lying(piece, number, rows, place.where, place.job_bytes))
        if len(seen.lengths) > MOST_EPISODES:
            raise SchemaError(f"{place.where}: more than {MOST_EPISODES:,} episodes.")
    if seen is None:
        raise SchemaError(f"{asked.sources[0]}: holds no episode with a step.")
    for role in seen.layout.observations:
        now, after = seen.kinds[role], seen.kinds.get(f"next_{role}")
        if after and now[0] != after[0] and _is_wide(role, now) and _is_wide(role, after):
            seen.kinds |= {role: (FLOAT64, now[1]), f"next_{role}": (FLOAT64, after[1])}
    episode = "" if asked.options.episode == FILE else asked.options.episode  # one may be called so
    read = {episode, *seen.sources, *of_episodes(asked.options.columns).values()}
    left = [one for one in seen.layout.left_out if one not in read]
    seen.layout.left_out = left + sorted(more - seen.sources)[:MOST_TOLD]
    return seen


def _later(place: Place, layout: Layout) -> dict[str, list[str]]:
    """Return what follows each observation, where arrays hold one step more of them than of actions."""
    found = {
        f"next_{role}": [place.later[name] for name in layout.columns[role]]
        for role in layout.observations
        if {*layout.columns[role]} <= place.later.keys()
    }
    return found if len(found) == len(layout.observations) else {}


def _look_at(
    place: Place,
    seen: _Seen,
    options: Options,
    first: str,
    about: tuple[Mapping[str, Any], int | None],
) -> int:
    """Note what a place holds, and return its rows."""
    columns = columns_by_role(place, seen.layout.columns)
    rows = len(columns["action"][0])
    if options.episode == FILE:
        _check_axes(place, columns, seen.layout)
    lengths = _lengths(place, columns, options, rows)
    is_one = options.episode != "" and lengths == [rows]
    finals = {
        len(one) == rows + 1
        for role, several in columns.items()
        for one in several
        if base_role(role) == "observation"
    }
    has_final = is_one and finals == {True}
    if seen.places and has_final != seen.has_final:
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
        kind, before = _kind(role, several), seen.kinds.get(role)
        if before and kind != before and _is_wide(role, kind) and _is_wide(role, before):
            kind, before = (FLOAT64, kind[1]), (FLOAT64, before[1])
        seen.pictures |= {role: None} if isinstance(several[0], PictureColumn) else {}
        if before not in (None, kind):
            raise SchemaError(
                f"{place.where}: {role} has rows of {kind[0]} {kind[1]}, and {first} of {before[0]} {before[1]}."
            )
        seen.kinds[role] = kind
    if seen.kinds["action"] == (np.dtype(np.int64), ()):
        actions = columns["action"][0]
        for start in range(0, rows, BLOCK_BYTES):
            values = np.asarray(actions[start : min(rows, start + BLOCK_BYTES)])
            low, high = int(values.min()), int(values.max())
            is_first = not seen.places and start == 0
            seen.lowest = low if is_first else min(seen.lowest, low)
            seen.highest = high if is_first else max(seen.highest, high)
    metadata, seed = about
    said = of_episodes(options.columns)
    seen.metadata += values_of_place(said, place, len(lengths), metadata)
    seen.seeds += [seed] * len(lengths)
    seen.success += [place.success if len(lengths) == 1 else None] * len(lengths)
    seen.lengths += lengths
    return rows


def _check_axes(place: Place, columns: Mapping[str, list[Any]], layout: Layout) -> None:
    """Refuse a file whose arrays look like [episodes, time, ..] as one episode."""
    action = columns["action"][0]
    observations = [one for role in layout.observations for one in columns[role]]
    if len(columns["action"]) == 1 and are_episodes(observations, action):
        count, steps = action.shape[:2]
        raise SchemaError(
            f"{place.where}: {layout.columns['action'][0]} has the axes {tuple(action.shape)}, and observations begin with "
            f"the same ones. Give episode='row' if these are {count} episodes of {steps} steps; if each row is a step, name "
            "an array of the rows up to which episodes go as episode=."
        )


def _lengths(place: Place, columns: dict[str, list[Any]], options: Options, rows: int) -> list[int]:
    """Return the rows of each episode of a place."""
    episode = options.episode
    if place.lengths:
        return [*place.lengths]
    if episode in place.names and episode != FILE:
        return lengths_by(place.column(episode), rows, f"{place.where}, {episode}")
    if episode:
        return [rows]
    named = [role for role in FLAGS if role in columns]
    if not named:
        raise SchemaError(
            f"{place.where}: nothing says what an episode is; give episode= (a pattern of groups, file, row, or "
            "the name of an array), or name terminated and truncated in columns=."
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
    lengths = np.diff(np.flatnonzero(ends), prepend=-1).tolist()
    if "truncated" in named or options.horizon is None:
        return lengths  # type: ignore[no-any-return]
    most = options.horizon  # nothing else says where a time limit ended an episode
    return [min(most, one - start) for one in lengths for start in range(0, one, most)]


def _kind(role: str, columns: list[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a row of what has a role."""
    shapes = [tuple(one.shape[1:]) for one in columns]
    dtype = np.result_type(*(one.dtype.newbyteorder("=") for one in columns))
    shape = shapes[0] if len(shapes) == 1 else (sum(map(math.prod, shapes)),)
    if role == "action" and dtype.kind in "iu" and shape in ((), (1,)):
        return np.dtype(np.int64), ()
    base = base_role(role)
    if base in FLAGS:  # NaN would be a true one
        return FLOAT64, ()
    if base == "infos":
        return dtype, shape
    if base == "reward":
        return FLOAT64 if dtype.kind in "biu" else dtype, ()
    is_number = dtype.kind in "biu" and base == "action"  # of which policies give fractions
    return FLOAT64 if is_number else kept_dtype(dtype), shape or (1,)


def _is_wide(role: str, kind: tuple[np.dtype[Any], tuple[int, ...]]) -> bool:
    """Whether observations become float64 where those of another place are no such integers."""
    dtype, shape = kind
    is_image = dtype == np.uint8 and len(shape) > 1
    is_observation = base_role(role) in ("observation", "next_observation")
    return is_observation and not is_image and (dtype == FLOAT64 or dtype.kind in "iu")


def _steps(asked: Asked, places: Places, seen: _Seen, opened: Opened) -> Iterator[Steps]:
    unknown = UnknownEnds(asked.options, asked.sources[0], says={*FLAGS} & seen.kinds.keys())
    unknown.is_cutting = not asked.options.episode and "truncated" not in seen.kinds
    cutter = EpisodeCutter(
        ends_of_lengths(seen.lengths),
        asked.sources[0],
        unknown=unknown,
        metadata=seen.metadata.__getitem__,
        seed=seen.seeds.__getitem__,
    )
    row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in seen.kinds.values())
    if row_bytes > LARGEST_ROW_BYTES:
        raise SchemaError(f"{asked.sources[0]}: {row_bytes:,} bytes per step are too many.")
    last_rows, first = np.cumsum(seen.lengths) - 1, 0
    most = max(1, BLOCK_BYTES // row_bytes)
    reader = _Reader(seen.layout.columns, seen.kinds, seen.has_final, most, seen.names)
    for block in _all_blocks(asked, places, seen, reader, max(1, row_bytes)):
        block["reward"] = block["reward"].astype(opened.schema.reward_dtype)
        count = len(block["reward"])
        ends = slice(*np.searchsorted(last_rows, (first, first + count)))
        last = last_rows[ends] - first
        if seen.repeats_flags:
            for flag in {*FLAGS} & block.keys():
                block[f"infos/{flag}"] = block[flag]
                block[flag] = np.zeros_like(block[flag])
                block[flag][last] = block[f"infos/{flag}"][last]
        yield from cutter.add(block)
        first += count
    opened.doubts += cutter.doubts()


class _Reader(NamedTuple):
    """What is to be known to read rows of a place, a block of at most so many rows at a time."""

    columns: Mapping[str, list[str]]
    kinds: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    has_final: bool
    most: int
    names: Mapping[str, Sequence[str]]


def _all_blocks(
    asked: Asked, places: Places, seen: _Seen, reader: _Reader, row_bytes: int
) -> Iterator[Rows]:
    """Yield the rows of all places in their order, read here or by several processes."""
    spans: list[Span] = []
    for place in seen.places:
        if place.job_bytes is None:
            check_stream(asked, place.rows * row_bytes, place.where)
        at_least = place.rows * row_bytes if place.job_bytes is None else place.job_bytes
        spans += spans_of(asked, [(place, place.rows)], row_bytes, at_least)
    jobs = groups_of_jobs(asked, spans, lambda one: (one.stop - one.start) * row_bytes)
    read = functools.partial(_read_spans, places, asked.options, reader)
    yield from read_pieces(asked, read, jobs)


def _read_spans(
    places: Places, options: Options, reader: _Reader, spans: Iterable[Span]
) -> Iterator[Rows]:
    """Yield rows in blocks."""
    for _, some in itertools.groupby(spans, lambda one: one.of.piece[0]):
        wanted = deque(some)
        where, (_, piece) = wanted[0].of.where, wanted[0].of.piece
        with contextlib.closing(places.open(piece, options)) as found:
            for number, place in enumerate(found):
                while wanted and wanted[0].of.number == number:
                    span = wanted.popleft()
                    yield from _blocks(place, reader, span.start, span.stop)
                if not wanted:
                    break
        if wanted:
            raise IntegrityError(f"{where}: changed while it was read.", file=where)


def _blocks(place: Place, reader: _Reader, first: int, last: int) -> Iterator[Rows]:
    """Yield some rows of a place."""
    with place.reading(place.where):
        columns = {
            role: [
                in_order(column, place.names_of(name).texts, reader.names[name])
                if name in reader.names
                else column
                for name, column in zip(reader.columns[role], several, strict=True)
            ]
            for role, several in columns_by_role(place, reader.columns).items()
        }
    held: Rows = {}  # the observation after the last row so far
    for start in range(first, last, reader.most):
        stop = min(last, start + reader.most)
        block: Rows = {"reward": np.zeros(stop - start)}
        with place.reading(place.where):
            for role, several in columns.items():
                named = {
                    f"{place.where}, {one}": column
                    for one, column in zip(reader.columns[role], several, strict=True)
                }
                if reader.has_final and base_role(role) == "observation":
                    after = slice(start + (role in held), stop + 1)
                    read = _read(named, after, reader.kinds[role])
                    found = np.concatenate((held[role], read)) if role in held else read
                    held[role] = found[-1:]
                    block[role], block[f"next_{role}"] = found[:-1], found[1:]
                else:
                    block[role] = _read(named, slice(start, stop), reader.kinds[role])
        yield block


def _read(
    columns: Mapping[str, Any], rows: slice, kind: tuple[np.dtype[Any], tuple[int, ...]]
) -> np.ndarray:
    (dtype, shape), count = kind, rows.stop - rows.start
    parts = [
        as_dtype(np.asarray(one[rows]), dtype, where, rows.start) for where, one in columns.items()
    ]
    values = (
        parts[0] if len(parts) == 1 else np.concatenate([p.reshape(count, -1) for p in parts], 1)
    )
    return values.reshape(count, *shape)
