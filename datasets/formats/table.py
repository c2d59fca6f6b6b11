"""Reads logs in tables, CSV, Parquet and lines of JSON: a row for each step, columns that the user names.

docs/formats.md has the options. Tables are read twice: first to check where episodes begin, then to take the values.
`episode_cutter.py` says what becomes of the last row of an episode. `parquet` writes `episode`, `step` and columns by the
names of roles, which are read again without `--map`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.arrow_files import (
    BLOCK_ROWS,
    ENDINGS,
    arrays_of,
    batches_of,
    check_pyarrow,
    column_names,
    reading_arrow,
)
from orlog.datasets.formats.benchmarks import is_open_bandit
from orlog.datasets.formats.episode_cutter import FLAGS, EpisodeCutter, Rows, UnknownEnds, ends_of_lengths, unknown_ends
from orlog.datasets.formats.episodes import Asked, Opened, Options, Steps, read_pieces, warn_of_one_process
from orlog.datasets.formats.flat_rows import ROLES, file_stem, flat_columns, flat_losses, is_neorl2
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import as_dtype, kept_dtype, mapped_action_space, space_of_observations
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.places import FILE, files_below, holds_tables, is_table
from orlog.datasets.formats.roles import Kind, Layout, base_role, which_is_which
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError, SchemaError

ROW_GROUP_BYTES = 2**25
FLOAT64 = np.dtype(np.float64)
Block = dict[str, np.ndarray]
"""Rows of some columns, by name."""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    given = asked.files
    if given[0].is_dir():
        files, sources = zip(*files_below(given[0], asked.sources[0], is_table), strict=True)
        asked = dataclasses.replace(asked, files=files, sources=sources)
    table, options = _Table(asked), asked.options
    try:
        layout = _layout(table, options)
    except SchemaError as error:
        if options.columns:
            raise
        raise SchemaError(f"{error}{which_is_which(_kinds_there(table))}") from error
    survey = _survey(table, layout)
    schema = Schema(
        observation_space=space_of_observations({role: survey.kinds[role] for role in layout.observations}),
        action_space=mapped_action_space(survey.kinds["action"], survey.lowest, survey.highest, table.where),
        reward_dtype=FLOAT64,
    )
    opened = Opened(schema=schema, steps=iter(()), total_steps=sum(survey.lengths), lengths=survey.lengths)
    if layout.guessed:
        roles = "; ".join(f"{role} is {', '.join(names)}" for role, names in layout.columns.items())
        columns = itertools.chain(*layout.columns.values())
        opened.notes.append(Note("columns_by_name", columns, roles=roles))
    if "reward" not in layout.columns and not options.reward:
        opened.notes.append(Note("rewards_no_column"))
    if layout.left_out:
        opened.notes.append(Note("left_out_unnamed", layout.left_out))
    if not {*FLAGS} & layout.columns.keys():
        opened.notes += unknown_ends(options, table.where, {*layout.columns})
    opened.steps = _steps(table, layout, survey, opened.notes, asked)
    yield opened


def _recognizes(files: Sequence[Path]) -> bool:
    if is_neorl2(files) or is_open_bandit(files):
        return False
    return not files[0].is_dir() or holds_tables(files[0])


def _layout(table: _Table, options: Options) -> Layout:
    """Return what the columns are; with `--episode file` the number of a file tells episodes apart."""
    if options.episode != FILE or FILE in table.names:
        return Layout(table.names, options, table.where)
    without = dataclasses.replace(options, episode="")
    layout = Layout(table.names, without, table.where, needs_episode=False)
    layout.left_out += [layout.episode] if layout.episode else []
    layout.episode = FILE
    return layout


def _kinds_there(table: _Table) -> dict[str, Kind]:
    """Return the shape and dtype of a row of each column, but for lists of other things and missing values."""
    kinds: dict[str, Kind] = {}
    for name in table.names:
        with contextlib.suppress(OrlogError, StopIteration):
            values = next(table.blocks([name], table.parts))[name]
            kinds[name] = values.shape[1:], str(values.dtype)
    return kinds


class _Table:
    """Files of equal columns, read in blocks, in their order or sorted.

    `parts` are the numbers of what is read on its own: each file, or 0 for all of them where they are sorted.
    """

    def __init__(self, asked: Asked) -> None:
        self.files, self.sources, self.where = asked.files, asked.sources, asked.sources[0]
        options = asked.options
        self._sort_by = [column for column in (options.episode, options.step) if options.sort and column]
        self.parts = [0] if self._sort_by else [*range(len(self.files))]
        self.names: list[str] = []
        for file, where in zip(self.files, self.sources, strict=True):
            names = column_names(file, where)
            if self.names and names != self.names:
                raise SchemaError(f"{where}: its columns differ from those of {self.where}.")
            self.names = names

    def blocks(self, columns: Sequence[str], parts: Iterable[int]) -> Generator[Block]:
        """Yield rows of some columns of parts, as arrays."""
        for part in parts:
            where, first = self.sources[part], 0
            with reading_arrow(where):
                batches = self._batches(part, columns)
                if self._sort_by:
                    rows = self._sorted
                    starts = range(0, rows.num_rows, BLOCK_ROWS)
                    batches = (rows.slice(start, BLOCK_ROWS).combine_chunks() for start in starts)
                for batch in batches:
                    if batch.num_rows:
                        yield arrays_of(batch, columns, where, first)
                    first += batch.num_rows

    def _batches(self, number: int, columns: Sequence[str]) -> Generator[Any]:
        """Yield rows of some columns of a file; the number of the file is one where it is asked for."""
        import pyarrow as pa

        file, where = self.files[number], self.sources[number]
        own = [name for name in columns if name != FILE or FILE in self.names]
        for batch in batches_of(file, where, own or self.names[:1]):
            if len(own) < len(columns):
                batch = batch.append_column(FILE, pa.array(np.full(batch.num_rows, number)))
            yield batch

    @functools.cached_property
    def _sorted(self) -> Any:
        """All rows, sorted by episodes and steps."""
        import pyarrow as pa

        batches: list[Any] = []
        columns = list(dict.fromkeys([*self.names, *self._sort_by]))
        for number in range(len(self.sources)):
            batches += self._batches(number, columns)
        order = [(name, "ascending") for name in self._sort_by]
        return pa.Table.from_batches(batches).sort_by(order)


@dataclasses.dataclass
class _Survey:
    """What a first reading gave: kinds of rows by role, rows of each episode, and bounds of actions that are integers."""

    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    lengths: list[int]
    lowest: int = 0
    highest: int = 0


def _survey(table: _Table, layout: Layout) -> _Survey:
    """Read what says where episodes begin, and the kinds of values."""
    survey = _Survey(_kinds(table, layout), [])
    actions = layout.columns["action"] if survey.kinds["action"][0].kind in "iu" else []
    wanted = [layout.episode, *filter(None, (layout.step, layout.length)), *actions]
    names: list[Any] = []  # of episodes, as they come
    lengths, stated = survey.lengths, list[int]()
    last_step = row = 0
    for block in table.blocks(list(dict.fromkeys(wanted)), table.parts):
        episodes, where = block[layout.episode], table.where
        if episodes.ndim != 1:
            raise SchemaError(
                f"{where}, {layout.episode}: expected a number or text a row, found {episodes.shape[1:]}."
            )
        begins = np.append(not names or episodes[0] != names[-1], episodes[1:] != episodes[:-1])
        starts = np.flatnonzero(begins)
        if names:
            lengths[-1] += int(starts[0]) if len(starts) else len(episodes)
        lengths += np.diff(np.append(starts, len(episodes))).tolist()
        names += episodes[starts].tolist()
        if layout.step:
            steps = _whole(block[layout.step], layout.step, where, row)
            before = np.append(last_step, steps[:-1])
            odd = np.flatnonzero((steps != before + 1) & ~begins)
            if len(odd):
                raise SchemaError(
                    f"{where}: {layout.step} goes from {before[odd[0]]} to {steps[odd[0]]} at row {row + odd[0]}, inside "
                    f"episode {episodes[odd[0]]!s:.100}; sort=True puts rows in order."
                )
            last_step = int(steps[-1])
        if actions:
            choices = _stacked(block, actions, "action", where, row)
            ends = [int(choices.min()), int(choices.max())]
            ends += [survey.lowest, survey.highest] if row else []
            survey.lowest, survey.highest = min(ends), max(ends)
        if layout.length:
            stated += _whole(block[layout.length], layout.length, where, row)[starts].tolist()
        row += len(episodes)
    _check_names(names, lengths, table.where)
    odd = np.flatnonzero(np.array(stated) != (lengths if layout.length else stated))
    if len(odd):
        says = f"says {stated[odd[0]]} rows, and it has {lengths[odd[0]]}"
        raise SchemaError(f"{table.where}: {layout.length} of episode {names[odd[0]]!s:.100} {says}.")
    return survey


def _check_names(names: list[Any], lengths: list[int], where: str) -> None:
    """Refuse an episode whose rows do not follow each other."""
    seen, row = set(), 0
    for name, length in zip(names, lengths, strict=True):
        if name in seen:
            what = f"episode {name!s:.100} goes on at row {row}, after rows of others"
            raise SchemaError(f"{where}: {what}; sort=True puts rows in order.")
        seen.add(name)
        row += length


def _kinds(table: _Table, layout: Layout) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the dtype and shape of observations and actions, by the first rows of each part."""
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    roles = [role for role in layout.columns if not _is_single(role)]
    columns = list(dict.fromkeys(name for role in roles for name in layout.columns[role]))
    for part in table.parts:
        with contextlib.closing(table.blocks(columns, [part])) as blocks:
            block = next(blocks, {})
        for role in roles if block else ():
            values = _stacked(block, layout.columns[role], role, table.sources[part], 0)
            shape, of = values.shape[1:], role.removeprefix("next_")
            before, its_shape = kinds.get(of, (values.dtype, shape))
            if shape != its_shape:
                raise SchemaError(f"{table.sources[part]}: {role} has rows of shape {shape}, and before {its_shape}.")
            kinds[of] = (_kept(role, np.result_type(before, _kept(role, values.dtype, shape)), shape), shape)
    if not kinds:
        raise SchemaError(f"{table.where}: holds no rows.")
    return kinds


def _kept(role: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.dtype[Any]:
    """Return the dtype that observations or actions are kept in: single integers are choices, others no actions."""
    if role != "action":
        return kept_dtype(dtype)
    is_choice = dtype.kind in "iu" and shape == ()
    return FLOAT64 if dtype.kind in "biu" and not is_choice else dtype


def _steps(table: _Table, layout: Layout, survey: _Survey, notes: list[Note], asked: Asked) -> Iterator[Steps]:
    unknown = UnknownEnds(asked.options, table.where, says={*FLAGS} & layout.columns.keys())
    cutter = EpisodeCutter(ends_of_lengths(survey.lengths), table.where, unknown=unknown)
    kinds = {role: survey.kinds.get(role.removeprefix("next_")) for role in layout.columns}
    dtypes = {role: kind[0] for role, kind in kinds.items() if kind} | {"reward": FLOAT64}
    if dtypes["action"].kind in "iu":
        dtypes["action"] = np.dtype(np.int64)
    columns = list(dict.fromkeys(itertools.chain(*layout.columns.values())))
    if asked.options.sort and asked.sharing is not None:
        warn_of_one_process(asked, "sort=True puts rows in order in memory")
        asked = dataclasses.replace(asked, sharing=None)
    first = 0
    for block in read_pieces(asked, functools.partial(table.blocks, columns), table.parts):
        rows: Rows = {}
        for role, names in layout.columns.items():
            values = _stacked(block, names, role, table.where, first, dtypes.get(role))
            kind = kinds[role]
            if kind and values.shape[1:] != kind[1]:
                change = f"changes from shape {kind[1]} to {values.shape[1:]}"
                raise SchemaError(f"{table.where}: {role} {change} after row {first}.")
            rows[role] = values
        rows.setdefault("reward", np.zeros(len(rows["action"])))
        yield from cutter.add(rows)
        first += len(rows["action"])
    notes += cutter.notes()


def _is_single(role: str) -> bool:
    """Whether a role is not that of observations or actions, which may be several columns side by side."""
    return base_role(role) not in ("observation", "next_observation", "action")


def _stacked(
    block: Block, names: Sequence[str], role: str, where: str, first: int, dtype: np.dtype[Any] | None = None
) -> np.ndarray:
    """Return the columns of a role as rows, as numbers of a dtype where one is given."""
    parts = [block[name] for name in names]
    if role.startswith("infos/"):
        return parts[0]
    if any(part.dtype.kind not in "biuf" for part in parts):
        raise SchemaError(f"{where}: {role} holds texts at row {first}, expected numbers.")
    if dtype is not None:
        parts = [as_dtype(part, dtype, f"{where}, {name}", first) for name, part in zip(names, parts, strict=True)]
    if len(parts) > 1 and any(part.ndim != 1 for part in parts):
        raise SchemaError(f"{where}: {role} is made of {names}, and some hold lists.")
    values = parts[0] if len(parts) == 1 else np.stack(parts, -1)
    if _is_single(role) and values.ndim != 1:
        raise SchemaError(f"{where}: {role} holds lists at row {first}, expected one number a row.")
    is_column = role != "action" or values.dtype.kind == "f"
    return values[:, None] if values.ndim == 1 and is_column and not _is_single(role) else values


def _whole(values: np.ndarray, name: str, where: str, first: int) -> np.ndarray:
    """Return numbers as integers."""
    if (
        values.dtype.kind not in "biuf"
        or values.ndim != 1
        or (values != np.floor(values)).any()
        or (abs(values.astype(np.float64)) >= 2.0**63).any()
    ):
        raise SchemaError(f"{where}: {name} holds other things than integers after row {first}.")
    return values.astype(np.int64)


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.parquet`."""
    import pyarrow as pa
    import pyarrow.parquet

    file, writer = folder / f"{file_stem(dataset)}.parquet", None
    held, held_bytes = list[Any](), 0
    with contextlib.ExitStack() as stack:
        for number, rows in enumerate(flat_columns(dataset, progress, tells_episodes=True)):
            count = len(rows["rewards"])
            columns = {"episode": np.full(count, number), "step": np.arange(count)}
            for key, values in rows.items():
                base, slash, part = key.partition("/")
                columns[f"{ROLES.get(base, base)}{slash}{part}"] = values
            held.append(pa.table({key: _arrow_column(values) for key, values in columns.items()}))
            held_bytes += held[-1].nbytes
            if number == dataset.total_episodes - 1 or held_bytes >= ROW_GROUP_BYTES:
                table, held, held_bytes = pa.concat_tables(held).combine_chunks(), [], 0
                if writer is None:
                    writer = stack.enter_context(
                        pyarrow.parquet.ParquetWriter(file, table.schema, write_page_checksum=True)
                    )
                writer.write_table(table)


def _arrow_column(values: np.ndarray) -> Any:
    """Return numbers, or lists of them, as a column of Arrow."""
    import pyarrow as pa

    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


TABLE = Format(
    name="table",
    open=_open,
    recognizes=_recognizes,
    extensions=("", *ENDINGS),
    any_layout=True,
    options=("columns", "episode", "step", "length", "sort", "horizon", "ends"),
    shares=True,
    check=check_pyarrow,
    reads=("**", *(f"./*{ending}" for ending in ENDINGS)),
)
PARQUET = dataclasses.replace(
    TABLE,
    name="parquet",
    recognizes=lambda _files: False,  # `table` does
    extensions=(".parquet", ".pq"),
    any_layout=False,
    write=_write,
    losses=lambda dataset: flat_losses(dataset, "tables", takes_parts=True, tells_episodes=True),
)
FORMATS = {"table": TABLE, "parquet": PARQUET}
