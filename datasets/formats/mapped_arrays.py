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

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.array_files import PictureColumn
from orlog.datasets.formats.episode_cutter import (
    FLAGS,
    EpisodeCutter,
    Rows,
    UnknownEnds,
    ends_of_lengths,
    flags_of,
    put_success,
    unknown_ends,
)
from orlog.datasets.formats.episodes import Asked, Opened, Options, Steps, read_pieces
from orlog.datasets.formats.inventory import NUMBER
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.overrides import about_pictures
from orlog.datasets.formats.places import (
    ARRAYS,
    FILE,
    Place,
    Places,
    attributes_read,
    check_names,
    column_of,
    columns_by_role,
    dimension_names,
    in_all,
    of_episodes,
    of_steps,
    reordered,
    values_of_place,
)
from orlog.datasets.formats.roles import Layout, base_role, columns_there
from orlog.datasets.formats.safe_reading import rows_differ
from orlog.errors import IntegrityError, SchemaError

FLOAT64 = np.dtype(np.float64)
BLOCK_BYTES = 2**22
FEWEST_STEPS = 8  # of arrays [episodes, time, ..]; fewer are agents, or frames that are stacked
MOST_TOLD = 100
FEW_JOINTS, STEPS_PER_JOINT = 10, 1000
MOST_CHOICES = 2**20
MOST_MAPPED_CHOICES = 2**16
MOST_EXACT = 2**53  # float64 holds all integers up to it
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
        says: Which flags the files have, where not those that are among their columns.
        has_joints: Whether an episode ends where a next observation is not the observation that follows, in a few places.
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
    says: Sequence[str] | None = None
    has_joints: bool = False
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
    """Read files of a layout; for `Format.open`, by `functools.partial`."""
    columns = {**asked.options.columns, **layout.columns}
    options = dataclasses.replace(asked.options, columns=columns, episode=layout.episode)
    with open_mapped(dataclasses.replace(asked, options=options), layout) as opened:
        opened.notes += layout.notes
        yield opened


@contextlib.contextmanager
def open_mapped(asked: Asked, layout: ArrayLayout = MAPPED) -> Iterator[Opened]:
    """Read the arrays that the options name, of which a `layout` may leave some out."""
    survey, options, where = _look(asked, layout), asked.options, asked.sources[0]
    rewards = survey.kinds.get("reward", (FLOAT64, ()))[0]
    schema = Schema(
        observation_space=space_of_observations(survey.kinds),
        action_space=mapped_action_space(survey.kinds["action"], *survey.actions, where),
        reward_dtype=np.dtype(np.float32 if rewards == np.float32 else np.float64),
    )
    opened = Opened(schema=schema, steps=iter(()), total_steps=sum(survey.lengths), lengths=survey.lengths)
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
    more, own, options = dict[str, None](), set[str](), asked.options
    for file in layout.places.files(asked):
        rows: list[int] = []
        for place in layout.places.open(file, options):
            if survey is None:
                survey, own = _survey(place, options, layout), {*place.names}
            elif own != {*place.names}:
                _check_arrays(place, survey, layout)
            more |= dict.fromkeys(name for name in (*place.names, *place.outside) if name not in own)
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
        for name in (more if layout.has_joints else sorted(more))  # versions hold them in this order
        if name not in survey.sources and not any(fnmatch.fnmatchcase(name, pattern) for pattern in layout.beside)
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
                raise SchemaError(f"{place.where}, {name}: expected one number a row, found {tuple(column.shape)}.")
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
    return all(len(column.shape) > 2 and tuple(column.shape[:2]) in fitting for column in observations)


def _check_axes(place: Place, columns: Mapping[str, list[Any]], survey: _Survey) -> None:
    """Refuse a file whose arrays look like [episodes, time, ..] as one episode."""
    action = columns["action"][0]
    observations = [column for role in survey.observations for column in columns[role]]
    if len(columns["action"]) == 1 and are_episodes(observations, action):
        count, steps = action.shape[:2]
        raise SchemaError(
            f"{place.where}: {survey.columns['action'][0]} has the axes {tuple(action.shape)}. Give episode='row' if these are "
            f"{count} episodes of {steps} steps, or an array of the rows up to which episodes go as episode=."
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
            raise SchemaError(f"{where}: expected a number for each of {rows} rows, or ends that grow up to {rows}.")
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
    says = {*FLAGS} & survey.kinds.keys() if layout.says is None else layout.says
    unknown = UnknownEnds(asked.options, where, says=says)
    is_by_horizon = any(note.code == "ends_by_horizon" for note in survey.notes)
    unknown.is_cutting = is_by_horizon or (not asked.options.episode and "truncated" not in survey.kinds)
    ends = _Ends(survey.lengths, where, has_joints=layout.has_joints)
    cutter = EpisodeCutter(
        ends,
        where,
        unknown=unknown,
        metadata=lambda episode: survey.metadata[ends.episodes[episode]],
        seed=lambda episode: survey.seeds[ends.episodes[episode]],
    )
    row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in survey.kinds.values())
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
    if ends.joints:
        opened.notes.append(Note("ends_at_joints", places=ends.joints, how=asked.options.ends or "truncated"))


class _Ends:
    """Says where episodes end: where the first look found it, and at `joints`, where observations do not follow each other.

    `episodes` are the numbers, in the first look, of those that ended so far.
    """

    def __init__(self, lengths: Sequence[int], where: str, *, has_joints: bool) -> None:
        self._known, self._last_rows = ends_of_lengths(lengths), np.cumsum(lengths) - 1
        self._where, self._has_joints = where, has_joints
        self.joints, self.episodes = 0, list[int]()

    def __call__(self, rows: Rows, first: int) -> np.ndarray:
        ends = self._known(rows, first)
        if self._has_joints and "next_observation" in rows:
            # As where files were joined.
            torn = np.flatnonzero(rows_differ(rows["next_observation"][:-1], rows["observation"][1:]) & ~ends[:-1])
            ends[torn] = True
            self.joints += len(torn)
            if self.joints > max(FEW_JOINTS, int(self._last_rows[-1]) // STEPS_PER_JOINT):
                step = first + int(torn[0])
                raise SchemaError(
                    f"{self._where}, next_observations: that of step {step} is not the observation of step {step + 1}, as in "
                    f"{self.joints - len(torn)} earlier places where no flag ends an episode; so these are not next observations."
                )
        self.episodes += np.searchsorted(self._last_rows, first + np.flatnonzero(ends)).tolist()
        return ends


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
                name = next(iter(columns[f"next_{role}"]))
                raise SchemaError(f"{name}: that of step {step - 1} is not the observation of step {step}.")

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


def count_choices(actions: Any, where: str) -> int:
    """Return how many actions there are to choose from, by the largest number; 0 if they are no choices.

    All rows are read, by slices. A number that is negative, or too large for a choice, is refused.
    """
    if actions.dtype.kind not in "iu" or tuple(actions.shape[1:]) not in ((), (1,)):
        return 0
    most, block = 0, BLOCK_BYTES // 8
    for start in range(0, actions.shape[0], block):
        values = np.asarray(actions[start : min(actions.shape[0], start + block)])
        odd = (values < 0) | (values >= MOST_CHOICES)
        if odd.any():
            place = int(odd.reshape(-1).argmax())
            raise SchemaError(
                f"{where}, actions: expected discrete actions from 0 to {MOST_CHOICES - 1}, found "
                f"{values.reshape(-1)[place]} at step {start + place}."
            )
        most = max(most, int(values.max()) + 1)
    return most


def count_from_zero(opened: Opened, code: str, where: str) -> list[Note]:
    """Let discrete actions of a layout of arrays begin with 0, and return the note of a code about how many there are."""
    space = opened.schema.action_space
    if not isinstance(space, Discrete):
        return []
    if space.start < 0:
        raise SchemaError(f"{where}, actions: expected discrete actions from 0 on, found {space.start}.")
    count = int(space.start + space.n)
    opened.schema = dataclasses.replace(opened.schema, action_space=Discrete(count))
    return [Note(code, count=count, largest=count - 1)]


def kept_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which observations are kept: floats, and integers of up to 16 bits, as they are.

    Wider integers and flags become float64, since loaders take no integer that float32 would round.
    """
    is_kept = dtype.kind not in "biu" or (dtype.kind != "b" and dtype.itemsize <= 2)
    return dtype if is_kept else np.dtype(np.float64)


def as_dtype(values: np.ndarray, dtype: np.dtype[Any], where: str, first: int = 0) -> np.ndarray:
    """Return numbers in another dtype, none of them an integer that would change; `first` is their first row in errors."""
    if values.dtype == dtype or values.dtype.kind not in "iu":
        return values.astype(dtype, copy=False)
    with np.errstate(over="ignore"):
        converted = values.astype(dtype)
    wrong = converted != values
    if dtype.kind == "f" and values.dtype.itemsize == 8:  # which were rounded to be compared
        wrong |= (values > MOST_EXACT) | (values < -MOST_EXACT)
    if wrong.any():
        place = np.unravel_index(int(wrong.argmax()), wrong.shape)
        misfit = f"{values[place]} at row {first + int(place[0])}, which {dtype} does not hold exactly"
        raise SchemaError(f"{where}: holds {misfit}; leave it out, or map it as infos/NAME.")
    return converted


def unbounded_space(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Space[Any]:
    """Return the space of numbers of a file that tells no bounds."""
    kind: Any = dtype.type
    if dtype.kind in ("b", "u"):
        return Box(0, 1 if dtype.kind == "b" else np.iinfo(dtype).max, shape, kind)
    return Box(-np.inf, np.inf, shape, kind)


def space_of_observations(kinds: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> Space[Any]:
    """Return the space of `observation`, or a Dict of `observation/NAME`, by dtype and shape of a row."""
    parts = {role: unbounded_space(*kind) for role, kind in kinds.items() if role.split("/")[0] == "observation"}
    return parts.get("observation") or Dict({role.removeprefix("observation/"): space for role, space in parts.items()})


def mapped_action_space(
    kind: tuple[np.dtype[Any], tuple[int, ...]], lowest: int, highest: int, where: str
) -> Space[Any]:
    """Return as many choices as there are single integers, else a Box without bounds."""
    dtype, shape = kind
    if dtype.kind not in "iu" or shape:
        return unbounded_space(dtype, shape)
    count = highest - lowest + 1
    if count > MOST_MAPPED_CHOICES or highest >= 2**63:
        raise SchemaError(f"{where}: actions from {lowest} to {highest} are no choices; store quantities as floats.")
    return Discrete(count, start=lowest)
