"""Reads arrays whose meaning a layout says, a row of the table in `layouts.py`, or the user, as `--map` and `--episode`.

An episode is a group whose name fits a pattern (the names of columns begin in it); a whole file (`file`); a row of
arrays [episodes, time, ..] (`row`); the arrays of one number (`#`); the rows with one number in an array of as many rows;
or the rows up to each number of an array of ends. Without any of these, rows end where `terminated` or `truncated` say so.
Groups and files come in the order of the numbers in their names, and all have the arrays of the first one, with rows of
one shape and dtype.

With one row more of observations than of actions the last one is the final observation; otherwise
`episode_cutter.py` says what becomes of the last row. Observations that are PNG or JPEG files become frames.

All files are looked at first, by their headers, flags and ends alone, and then read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.beside_arrays import (
    attributes_read,
    check_names,
    column_of,
    dimension_names,
    in_all,
    of_episodes,
    of_steps,
    reordered,
    values_of_place,
)
from orlog.datasets.formats.conventions import about_pictures
from orlog.datasets.formats.episode_cutter import EpisodeCutter, Rows, ends_of_lengths
from orlog.datasets.formats.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats.flags import FLAGS, UnknownEnds, flags_of, put_success, unknown_ends
from orlog.datasets.formats.flat_rows import as_dtype, kept_dtype, mapped_action_space, unbounded_space
from orlog.datasets.formats.inventory import NUMBER
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.pictures import PictureColumn
from orlog.datasets.formats.pieces import read_pieces
from orlog.datasets.formats.places import ARRAYS, FILE, Place, Places, columns_by_role
from orlog.datasets.formats.roles import Layout, base_role, columns_there
from orlog.datasets.formats.safe_reading import rows_differ
from orlog.errors import IntegrityError, SchemaError

FLOAT64 = np.dtype(np.float64)
BLOCK_BYTES = 2**22
LARGEST_ROW_BYTES = 2**26
FEWEST_STEPS = 8  # of arrays [episodes, time, ..]; fewer are agents, or frames that are stacked
MOST_TOLD = 100
ONE_NUMBER = ("reward", *FLAGS)
About = Callable[[Place], tuple[Mapping[str, Any], int | None]]
"""What is known of the episodes of a place: their values, and the seed of the reset."""
Kind = tuple[np.dtype[Any], tuple[int, ...]]
"""Dtype and shape of a row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayLayout:
    """A layout of arrays: how it is recognized, what an episode is, and what the arrays mean.

    Attributes:
        columns: What `--map` would say; arrays that are not there are left out.
        episode: What `--episode` would say.
        needs: Names by which files are recognized: of arrays (groups too) in the first file. Each may be a pattern, or
            several of which one is enough, with commas between them.
        files: The same for names of files in a folder, where these make the layout.
        places: How the arrays are found.
        about: What else is known of the episodes of a place.
        last_flag: Whether a flag says how an episode ended at its last row alone. All rows of it are kept, as
            `infos/terminated` unless the columns call them otherwise.
        next_follows: Whether each next observation must be the observation of the next row.
        keeps_rest: Whether all other arrays with a row a step become infos.
        beside: Names of arrays outside of episodes that `about` reads; patterns.
        notes: What to know about every import of it.
        without_observations: What to do about files without observations, after a semicolon.
        codes: Codes of the notes about rewards that are not there and about arrays that are left out.
        ends_first: Whether the note about unknown ends stands before that about rewards; versions hold them in this
            order.
    """

    columns: Mapping[str, str]
    episode: str = FILE
    needs: Sequence[str] = ()
    files: Sequence[str] = ()
    places: Places = ARRAYS
    about: About = lambda _place: ({}, None)
    last_flag: bool = False
    next_follows: bool = False
    keeps_rest: bool = False
    beside: Sequence[str] = ()
    notes: Sequence[Note] = ()
    without_observations: str = ""
    codes: tuple[str, str] = ("rewards_no_array", "left_out_unnamed")
    ends_first: bool = False


MAPPED = ArrayLayout(columns={})
"""That of which the user says everything."""


class _File(NamedTuple):
    """A file as `Places` has it, what errors call it, and the rows of each place in it."""

    file: Any
    where: str
    rows: list[int]


@dataclasses.dataclass
class _Survey:
    """What a first look at all places gives: names of arrays and `kinds` of rows by role, and values by episode.

    `actions` are the lowest and the highest one where they are single integers, `names` what the numbers in a row are
    called, by array, `sources` the lists that say it, and `pictures` roles whose rows are pictures.
    """

    columns: dict[str, list[str]]
    where: str
    left_out: list[str]
    files: list[_File] = dataclasses.field(default_factory=list)
    lengths: list[int] = dataclasses.field(default_factory=list)
    kinds: dict[str, Kind] = dataclasses.field(default_factory=dict)
    metadata: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    seeds: list[int | None] = dataclasses.field(default_factory=list)
    success: list[bool | None] = dataclasses.field(default_factory=list)
    has_final: bool = False
    actions: tuple[int, int] = (0, 0)
    names: dict[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    sources: set[str] = dataclasses.field(default_factory=set)
    pictures: dict[str, None] = dataclasses.field(default_factory=dict)
    notes: list[Note] = dataclasses.field(default_factory=list)

    @property
    def observations(self) -> list[str]:
        """Roles of observations: `observation`, or those of its parts."""
        return [role for role in self.columns if base_role(role) == "observation"]

    @property
    def used(self) -> set[str]:
        """Names of all arrays that are read."""
        return {name for names in self.columns.values() for name in names}


@contextlib.contextmanager
def open_layout(layout: ArrayLayout, asked: Asked) -> Iterator[Opened]:
    """Read files of a layout; for `Format.open`, by `functools.partial`.

    Raises SchemaError if arrays are missing, or do not fit together; IntegrityError if one is damaged.
    """
    columns = {**asked.options.columns, **layout.columns}
    options = dataclasses.replace(asked.options, columns=columns, episode=layout.episode)
    with open_mapped(dataclasses.replace(asked, options=options), layout) as opened:
        opened.notes += layout.notes
        yield opened


@contextlib.contextmanager
def open_mapped(asked: Asked, layout: ArrayLayout = MAPPED) -> Iterator[Opened]:
    """Read the arrays that the options name, of which a `layout` may leave some out.

    Raises as `open_layout` does.
    """
    survey, options, where = _look(asked, layout), asked.options, asked.sources[0]
    parts = {role.removeprefix("observation/"): unbounded_space(*survey.kinds[role]) for role in survey.observations}
    is_whole = survey.observations == ["observation"]
    rewards = survey.kinds.get("reward", (FLOAT64, ()))[0]
    schema = Schema(
        observation_space=parts["observation"] if is_whole else gymnasium.spaces.Dict(parts),
        action_space=mapped_action_space(survey.kinds["action"], *survey.actions, where),
        reward_dtype=np.dtype(np.float32 if rewards == np.float32 else np.float64),
    )
    opened = Opened(schema=schema, steps=iter(()), total_steps=sum(survey.lengths))
    opened.lengths = survey.lengths
    survey.metadata, opened.notes = in_all(survey.metadata)
    opened.notes += put_success(survey.metadata, survey.success, options, where)
    opened.notes += survey.notes
    no_rewards, left_out = layout.codes
    lacks: list[Note] = []
    if "reward" not in survey.columns and not options.reward:
        lacks.append(Note(no_rewards))
    if not {*FLAGS} & survey.columns.keys():
        names = {*survey.columns, *(f"episodes/{name}" for name in survey.metadata[0])}
        lacks += unknown_ends(options, where, names)
    opened.notes += reversed(lacks) if layout.ends_first else lacks
    opened.notes += [Note(left_out, survey.left_out)] if survey.left_out else []
    for role, arrays in survey.columns.items():
        named = dimension_names(arrays, survey.names)
        is_kept = base_role(role) in ("observation", "action", "infos")
        if is_kept and survey.kinds[role][1] == (len(named),):
            opened.dimension_names[column_of(role)] = named
    opened.reads = [f"*{NUMBER.sub('#', source)}" for source in sorted(survey.sources - {""})]
    opened.reads += attributes_read(of_episodes(options.columns), survey.metadata[0])
    opened.notes += about_pictures(survey.pictures, options)
    opened.steps = _steps(asked, layout, survey, opened)
    yield opened


def _look(asked: Asked, layout: ArrayLayout) -> _Survey:
    """Return what all places hold."""
    survey: _Survey | None = None
    rest: dict[str, Kind] = {}
    more, own, options = set[str](), set[str](), asked.options
    for file in layout.places.files(asked):
        rows: list[int] = []
        for place in layout.places.open(file, options):
            if survey is None:
                survey, own = _survey(place, options, layout), {*place.names}
            elif own != {*place.names}:
                _check_arrays(place, survey, layout)
            more |= {*place.names, *place.outside} - own
            with place.reading(place.where):
                _take_names(place, survey)
                rows.append(_look_at(place, survey, options, layout.about(place)))
                if layout.keeps_rest:
                    rest = _rows_besides(place, survey, rest, rows[-1])
            survey.notes += [note for note in place.notes if note not in survey.notes]
            if len(rows) == 1:
                survey.files.append(_File(place.file or file, place.where, rows))
    if survey is None:
        raise SchemaError(f"{asked.sources[0]}: holds no episode with a step.")
    for role in survey.observations:
        now, after = survey.kinds[role], survey.kinds.get(f"next_{role}")
        if after and now[0] != after[0] and _is_wide(role, now) and _is_wide(role, after):
            survey.kinds |= {role: (FLOAT64, now[1]), f"next_{role}": (FLOAT64, after[1])}
    for name in sorted(rest):
        survey.columns[f"infos/{name}"], survey.kinds[f"infos/{name}"] = [name], rest[name]
    episode = "" if options.episode == FILE else options.episode  # an array may be called so
    read = {episode, *rest, *survey.sources, *of_episodes(options.columns).values()}
    others = [
        name
        for name in sorted(more - survey.sources)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in layout.beside)
    ]
    survey.left_out = [name for name in survey.left_out if name not in read] + others[:MOST_TOLD]
    return survey


def _survey(place: Place, options: Options, layout: ArrayLayout) -> _Survey:
    """Return which arrays of the first place are what."""
    columns = of_steps(options.columns)
    if layout.columns:
        columns = columns_there(columns, place.names)
        for base in ("observation", "action"):
            if not any(base_role(role) == base for role in columns):
                names = [name for role, name in layout.columns.items() if base_role(role) == base]
                hint = layout.without_observations if base == "observation" else ""
                raise SchemaError(f"{place.where}: has no {' or '.join(names)}{hint or '.'}")
    options = dataclasses.replace(options, episode="", length="", columns=columns)
    roles = Layout(place.names, options, place.where, needs_episode=False)
    later = {
        f"next_{role}": [place.later[name] for name in roles.columns[role]]
        for role in roles.observations
        if {*roles.columns[role]} <= place.later.keys()
    }
    if len(later) == len(roles.observations):
        roles.columns |= later
    return _Survey(columns=roles.columns, where=place.where, left_out=roles.left_out)


def _check_arrays(place: Place, survey: _Survey, layout: ArrayLayout) -> None:
    """Refuse a place that lacks an array of the first one, or of which a known one would be left out."""
    lacking = survey.used - {*place.names, *place.later.values()}
    if lacking:
        raise SchemaError(f"{place.where}: has no array {min(lacking)!r}, and {survey.where} has.")
    for role, name in layout.columns.items():
        if role not in survey.columns and name in place.names:
            raise SchemaError(f"{place.where}: has {name}, and {survey.where} has not.")


def _take_names(place: Place, survey: _Survey) -> None:
    """Note what the numbers in a row are called, by the first place; others have the same names, in any order."""
    for array in sorted(survey.names if survey.lengths else survey.used):
        texts, source = place.names_of(array)
        if survey.lengths:
            check_names(texts, survey.names[array], array, place.where)
        else:
            survey.names |= {array: texts} if texts else {}
            survey.sources.add(source)


def _rows_besides(place: Place, survey: _Survey, before: dict[str, Kind], rows: int) -> dict[str, Kind]:
    """Return the other arrays of numbers with a row a step, those of which all places before have the same ones."""
    is_first = place.where == survey.where
    kinds: dict[str, Kind] = {}
    for name in {*place.names} - survey.used if is_first else before.keys() & {*place.names}:
        with contextlib.suppress(SchemaError):  # texts
            column = place.column(name)
            kind = (column.dtype, tuple(column.shape[1:]))
            is_same = len(column) == rows and before.get(name, kind) == kind
            kinds |= {name: kind} if is_same and column.dtype.kind in "biuf" else {}
    return kinds


def _look_at(place: Place, survey: _Survey, options: Options, about: tuple[Mapping[str, Any], int | None]) -> int:
    """Note what a place holds, and return its rows."""
    is_first = not survey.lengths
    columns = columns_by_role(place, survey.columns)
    rows = len(columns["action"][0])
    if options.episode == FILE:
        _check_axes(place, columns, survey)
    lengths = _lengths(place, columns, options, rows)
    finals = {len(column) == rows + 1 for role in survey.observations for column in columns[role]}
    has_final = options.episode != "" and lengths == [rows] and finals == {True}
    if not is_first and has_final != survey.has_final:
        raise SchemaError(f"{place.where}: has {'a' if has_final else 'no'} final observation, unlike {survey.where}.")
    survey.has_final = has_final
    for role, several in columns.items():
        expected = rows + (has_final and base_role(role) == "observation")
        for name, column in zip(survey.columns[role], several, strict=True):
            if len(column) != expected:
                raise SchemaError(f"{place.where}, {name}: expected {expected} rows, found {len(column)}.")
            if role in ONE_NUMBER and tuple(column.shape[1:]) not in ((), (1,)):
                raise SchemaError(
                    f"{place.where}, {name}: expected one number a row, found rows of {tuple(column.shape[1:])}."
                )
        if isinstance(several[0], PictureColumn):
            survey.pictures[role] = None
        kind = _kind(role, several)
        if kind != survey.kinds.setdefault(role, kind):
            survey.kinds[role] = _common_kind(role, kind, survey, place.where)
    if survey.kinds["action"] == (np.dtype(np.int64), ()):
        ends = [] if is_first else [*survey.actions]
        for start in range(0, rows, BLOCK_BYTES):
            values = np.asarray(columns["action"][0][start : min(rows, start + BLOCK_BYTES)])
            ends += [int(values.min()), int(values.max())]
        survey.actions = min(ends), max(ends)
    metadata, seed = about
    wanted = of_episodes(options.columns)
    survey.metadata += values_of_place(wanted, place, len(lengths), metadata)
    survey.seeds += [seed] * len(lengths)
    survey.success += [place.success if len(lengths) == 1 else None] * len(lengths)
    survey.lengths += lengths
    return rows


def are_episodes(observations: Sequence[Any], action: Any) -> bool:
    """Return whether arrays look like [episodes, time, ..]: observations and actions have two axes in common."""
    axes = tuple(action.shape[:2])
    has_steps = len(action.shape) > 2 or (len(axes) == 2 and action.dtype.kind in "iu")
    if not has_steps or axes[0] < 2 or axes[1] < FEWEST_STEPS:
        return False
    fitting = (axes, (axes[0], axes[1] + 1))
    return all(len(one.shape) > 2 and tuple(one.shape[:2]) in fitting for one in observations)


def _check_axes(place: Place, columns: Mapping[str, list[Any]], survey: _Survey) -> None:
    """Refuse a file whose arrays look like [episodes, time, ..] as one episode."""
    action = columns["action"][0]
    observations = [column for role in survey.observations for column in columns[role]]
    if len(columns["action"]) == 1 and are_episodes(observations, action):
        count, steps = action.shape[:2]
        raise SchemaError(
            f"{place.where}: {survey.columns['action'][0]} has the axes {tuple(action.shape)}, and observations begin with "
            f"the same ones. Give episode='row' if these are {count} episodes of {steps} steps; if each row is a step, name "
            "an array of the rows up to which episodes go as episode=."
        )


def _lengths(place: Place, columns: dict[str, list[Any]], options: Options, rows: int) -> list[int]:
    """Return the rows of each episode of a place."""
    episode = options.episode
    if place.lengths:
        return [*place.lengths]
    if episode in place.names and episode != FILE:
        return _lengths_by(place.column(episode), rows, f"{place.where}, {episode}")
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
        values = np.asarray(columns[role][0][:rows]).reshape(-1)
        if len(values) != rows:
            raise SchemaError(f"{place.where}, {role}: expected one flag a row.")
        ends |= flags_of(values, role, place.where, first=0)
    ends[-1] = True
    lengths: list[int] = np.diff(np.flatnonzero(ends), prepend=-1).tolist()
    if "truncated" in named or options.horizon is None:
        return lengths
    most = options.horizon  # nothing else says where a time limit ended an episode
    return [min(most, length - start) for length in lengths for start in range(0, length, most)]


def _lengths_by(column: Any, rows: int, where: str) -> list[int]:
    """Return the rows of each episode by an array with the number of an episode in each row, or of ends that grow."""
    if column.shape not in ((len(column),), (len(column), 1)):
        raise SchemaError(f"{where}: expected one number a row, found {column.shape}.")
    values = np.asarray(column[: len(column)]).reshape(-1)
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values % 1 == 0)).all():
        raise SchemaError(f"{where}: expected whole numbers.")
    if len(values) != rows or rows == 1:
        ends = values.astype(np.int64)
        if not len(ends) or (np.diff(ends, prepend=0) <= 0).any() or ends[-1] != rows:
            raise SchemaError(
                f"{where}: expected the number of an episode in each of {rows} rows, or ends that grow up to {rows}."
            )
    else:
        ends = np.flatnonzero(np.append(values[1:] != values[:-1], True)) + 1
        numbers, times = np.unique(values[ends - 1], return_counts=True)
        if (times > 1).any():
            again = numbers[times > 1][0]
            raise SchemaError(f"{where}: the rows of episode {again} do not follow each other.")
    lengths: list[int] = np.diff(ends, prepend=0).tolist()
    return lengths


def _kind(role: str, columns: list[Any]) -> Kind:
    """Return dtype and shape of a row of what has a role."""
    shape = tuple(columns[0].shape[1:])
    if len(columns) > 1:
        shape = (sum(math.prod(column.shape[1:]) for column in columns),)
    dtype = np.result_type(*(column.dtype.newbyteorder("=") for column in columns))
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


def _common_kind(role: str, kind: Kind, survey: _Survey, where: str) -> Kind:
    """Return the dtype and shape of rows of all places so far; refuse what does not fit those before."""
    before = survey.kinds[role]
    if kind[1] == before[1] and _is_wide(role, kind) and _is_wide(role, before):
        return FLOAT64, kind[1]
    raise SchemaError(
        f"{where}: {role} has rows of {kind[0]} {kind[1]}, and {survey.where} of {before[0]} {before[1]}."
    )


def _is_wide(role: str, kind: Kind) -> bool:
    """Whether observations become float64 where those of another place are no such integers."""
    dtype, shape = kind
    is_image = dtype == np.uint8 and len(shape) > 1
    is_observation = base_role(role) in ("observation", "next_observation")
    return is_observation and not is_image and (dtype == FLOAT64 or dtype.kind in "iu")


def _steps(asked: Asked, layout: ArrayLayout, survey: _Survey, opened: Opened) -> Iterator[Steps]:
    where = asked.sources[0]
    unknown = UnknownEnds(asked.options, where, says={*FLAGS} & survey.kinds.keys())
    unknown.is_cutting = not asked.options.episode and "truncated" not in survey.kinds
    cutter = EpisodeCutter(
        ends_of_lengths(survey.lengths),
        where,
        unknown=unknown,
        metadata=survey.metadata.__getitem__,
        seed=survey.seeds.__getitem__,
    )
    row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in survey.kinds.values())
    if row_bytes > LARGEST_ROW_BYTES:
        raise SchemaError(f"{where}: {row_bytes:,} bytes per step are too many.")
    reader = _Reader(
        columns=survey.columns,
        kinds=survey.kinds,
        has_final=survey.has_final,
        last_flag=layout.last_flag,
        next_follows=layout.next_follows,
        most=max(1, BLOCK_BYTES // row_bytes),
        names=survey.names,
    )
    read = functools.partial(_read_files, layout.places, asked.options, reader)
    for block in read_pieces(asked, read, survey.files):
        block["reward"] = block["reward"].astype(opened.schema.reward_dtype, copy=False)
        yield from cutter.add(block)
    opened.notes += cutter.notes()


def _read_files(places: Places, options: Options, reader: _Reader, files: Iterable[_File]) -> Iterator[Rows]:
    """Yield rows in blocks."""
    for file, where, rows in files:
        with contextlib.closing(places.open(file, options)) as opened:
            for place, count in itertools.zip_longest(opened, rows):
                if place is None or count is None:
                    raise IntegrityError(f"{where}: changed while it was read.", file=where)
                yield from reader.blocks(place, count)


class _Reader(NamedTuple):
    """What reads rows of places, a block of at most so many at a time; the rest is as in `_Survey` and `ArrayLayout`."""

    columns: Mapping[str, list[str]]
    kinds: Mapping[str, Kind]
    has_final: bool
    last_flag: bool
    next_follows: bool
    most: int
    names: Mapping[str, Sequence[str]]

    def blocks(self, place: Place, rows: int) -> Iterator[Rows]:
        """Yield the rows of a place."""
        with place.reading(place.where):
            columns = {
                role: {
                    f"{place.where}, {name}": reordered(column, place.names_of(name).texts, self.names[name])
                    if name in self.names
                    else column
                    for name, column in zip(self.columns[role], several, strict=True)
                }
                for role, several in columns_by_role(place, self.columns).items()
            }
        held: Rows = {}  # the observation after the last row so far
        for start in range(0, rows, self.most):
            stop = min(rows, start + self.most)
            block: Rows = {"reward": np.zeros(stop - start)}
            with place.reading(place.where):
                for role, named in columns.items():
                    kind = self.kinds[role]
                    if self.has_final and base_role(role) == "observation":
                        values = _read(named, slice(start + (role in held), stop + 1), kind)
                        values = np.concatenate((held[role], values)) if role in held else values
                        held[role] = values[-1:]
                        block[role], block[f"next_{role}"] = values[:-1], values[1:]
                    else:
                        block[role] = _read(named, slice(start, stop), kind)
            if self.next_follows:
                self._check_next(block, columns, start, held)
            if self.last_flag:
                self._take_last(block, place.where, start, rows)
            yield block

    def _check_next(self, block: Rows, columns: Mapping[str, Mapping[str, Any]], start: int, held: Rows) -> None:
        """Refuse next observations that are not the observations of the next rows."""
        for role in [role for role in block if f"next_{role}" in block]:
            after = block[f"next_{role}"]
            expected = np.concatenate((held.get(role, block[role][:1]), after[:-1]))
            held[role] = after[-1:]
            odd = np.flatnonzero(rows_differ(expected, block[role]))
            if len(odd):
                step = start + int(odd[0])
                raise SchemaError(
                    f"{next(iter(columns[f'next_{role}']))}: that of step {step - 1} is not the observation of step "
                    f"{step}; so it is in {len(odd)} places."
                )

    def _take_last(self, block: Rows, where: str, start: int, rows: int) -> None:
        """Let flags count at the last row of a place alone, and keep all of them."""
        for flag in {*FLAGS} & block.keys():
            values, names = block[flag], self.columns[flag]
            if not any(other == names for role, other in self.columns.items() if role != flag):
                block[f"infos/{flag}"] = values
            flags = flags_of(values, names[0], where, first=start)
            block[flag] = flags & (np.arange(start, start + len(flags)) == rows - 1)


def _read(columns: Mapping[str, Any], rows: slice, kind: Kind) -> np.ndarray:
    """Return rows of several arrays side by side; `columns` are by what errors call them."""
    (dtype, shape), count = kind, rows.stop - rows.start
    parts = [as_dtype(np.asarray(column[rows]), dtype, where, rows.start) for where, column in columns.items()]
    if len(parts) == 1:
        return parts[0].reshape(count, *shape)
    return np.concatenate([part.reshape(count, -1) for part in parts], 1).reshape(count, *shape)
