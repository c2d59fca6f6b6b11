"""Reads logs in tables, CSV, Parquet and lines of JSON: a row for each step, columns that the user names.

    orlog import logs.parquet lab/robot-v3 --map observation=obs_* --map action=u --map reward=r --episode run

`observation`, `action`, `next_observation` take one column of numbers or of lists of equal length, or several:
patterns and names with commas between, patterns in the order of the numbers in the names. `reward`,
`terminated`, `truncated` and `infos/NAME` take one column each. `observation/NAME` and `next_observation/NAME` are the
parts of a Dict of observations. All other columns are left out. Where nothing is named, columns that have
these names are taken, as `--to parquet` writes them, or else those with the usual names, such as `obs_0`,
`obs_1` and `terminal` (`USUAL`).

The rows of an episode must follow each other; with `--step` its numbers must grow by one, and with
`--length` it must have that many rows. `--episode file` makes each file one. `--sort` puts rows in the order of episodes and steps, in memory.
Tables are read twice: first to check all of this, then to take the values. Without `next_observation`, what
followed the last row of an episode was not recorded: a row that `terminated` marks keeps its step with a
final observation of zeros (`episodes/final_observation_missing`), any other gives its observation
as the final one.

A folder stands for its tables and those of folders in it, in the order of the numbers in their paths.

`--to parquet` writes `episode`, `step` (numbers from 0), `observation` (a list of numbers, or `observation/NAME` for each
part of a Dict), `next_observation`, `action`, `reward`, `terminated`, `truncated` and `infos/NAME`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.arrow_files import check_pyarrow, column_of, reading_arrow
from orlog.datasets.formats._shared.episode_cutter import EpisodeCutter, ends_of_lengths
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import FLAGS, UnknownEnds, unknown_ends
from orlog.datasets.formats._shared.flat_rows import (
    ROLES,
    as_dtype,
    kept_dtype,
    mapped_action_space,
    unbounded_space,
)
from orlog.datasets.formats._shared.flat_writing import file_stem, flat_columns, flat_losses
from orlog.datasets.formats._shared.hints import Kind, done_names, hint, map_of
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import read_pieces, warn_of_one_process
from orlog.datasets.formats._shared.places import FILE, files_below, holds_tables, is_table
from orlog.datasets.formats._shared.roles import Layout, base_role
from orlog.datasets.formats._shared.table_files import (
    BLOCK_ROWS,
    ENDINGS,
    JSON_LINES,
    arrays_of,
    batches_of,
    check_nesting,
    column_names,
    read_tables,
)
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.neorl2 import is_neorl2
from orlog.datasets.formats.open_bandit import is_open_bandit
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError, SchemaError

LARGEST_SORTED_BYTES = 2**33
LARGEST_TRIED_BYTES = 2**30  # of files that are read from begin to end to find episodes
ROW_GROUP_BYTES = 2**25
KEPT = ("observation", "next_observation", "action")
UNDECIDED = (
    "Say which columns are what, as columns={'observation': 'COLUMNS', 'action': 'COLUMN'}, and what tells episodes apart, "
    "as episode='COLUMN', or episode='file' if each file is one."
)
EPISODES = re.compile(
    r"^(ep|eps|episode|traj|trajectory|run|demo)(_?(id|ids|index|idx|no|number))?$", re.IGNORECASE
)


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    given, asked = asked.files, tables_of(asked)
    table = _Table(asked)
    try:
        layout = _layout(table, asked.options)
    except SchemaError as error:
        if asked.options.columns:
            raise
        raise SchemaError(f"{error}{_example(table, asked, given)}") from error
    checked = _check(table, layout)
    parts: dict[str, gymnasium.Space[Any]] = {
        role.removeprefix("observation/"): unbounded_space(*checked.kinds[role])
        for role in layout.observations
    }
    is_whole = layout.observations == ["observation"]
    schema = Schema(
        observation_space=parts["observation"] if is_whole else gymnasium.spaces.Dict(parts),
        action_space=mapped_action_space(
            checked.kinds["action"], checked.lowest, checked.highest, table.where
        ),
        reward_dtype=np.dtype(np.float64),
    )
    opened = Opened(schema=schema, steps=iter(()), total_steps=checked.rows)
    opened.lengths = checked.lengths.tolist()
    if layout.guessed:
        roles = "; ".join(f"{role} is {', '.join(one)}" for role, one in layout.columns.items())
        opened.notes.append(
            Note("columns_by_name", itertools.chain(*layout.columns.values()), roles=roles)
        )
    if "reward" not in layout.columns and not asked.options.reward:
        opened.notes.append(Note("rewards_no_column"))
    if layout.left_out:
        opened.notes.append(Note("left_out_unnamed", layout.left_out))
    if not {*FLAGS} & layout.columns.keys():
        opened.notes += unknown_ends(asked.options, table.where, {*layout.columns})
    opened.steps = _steps(table, layout, checked, opened.notes, asked)
    yield opened


def tables_of(asked: Asked) -> Asked:
    """Return what is asked with the tables that a folder holds in its place.

    Raises SchemaError if a link lies there.
    """
    if not asked.files[0].is_dir():
        return asked
    given = files_below(asked.files[0], asked.sources[0], is_table)
    return dataclasses.replace(
        asked, files=[file for file, _ in given], sources=[where for _, where in given]
    )


def _recognizes(files: Sequence[Path]) -> bool:
    if is_neorl2(files) or is_open_bandit(files):
        return False
    return not files[0].is_dir() or holds_tables(files[0])


def _layout(table: _Table, options: Options) -> Layout:
    """Return what the columns are; with `--episode file` the number of a file tells episodes apart."""
    if options.episode != FILE or FILE in table.names:
        return Layout(table.names, options, table.where)
    said = dataclasses.replace(options, episode="")
    layout = Layout(table.names, said, table.where, needs_episode=False)
    if layout.episode:
        layout.left_out.append(layout.episode)
    layout.episode = FILE
    return layout


def _example(table: _Table, asked: Asked, given: Sequence[Path]) -> str:
    """Return the columns of a table, and what reads it by what their names are like.

    `given` is what the user gave: the tables, or their folder.
    """
    kinds: dict[str, Kind] = {}
    for name in table.names:
        # Lists of other things and missing values are not shown.
        with contextlib.suppress(OrlogError, StopIteration):
            _, block = next(table.first_blocks([name]))
            if block[name].dtype.kind in "biuf":
                kinds[name] = (1, *block[name].shape[1:]), str(block[name].dtype)
    lines = "".join(f"\n    {name}  {shape[1:]} {kind}" for name, (shape, kind) in kinds.items())
    size = sum(file.stat().st_size for file in asked.files if file.suffix != ".parquet")
    ways = _ways(table, asked.options, kinds) if size < LARGEST_TRIED_BYTES else ()
    return lines + hint(_open, asked, ways, table.names, given, otherwise=UNDECIDED)


def _ways(table: _Table, options: Options, kinds: Mapping[str, Kind]) -> Iterator[Options]:
    """Yield what columns may mean, the likeliest first."""
    episodes = [options.episode or next(filter(EPISODES.search, table.names), "")]
    # A flag of unknown meaning says that there is more than one.
    episodes += [FILE] if table.has_several or not done_names(table.names) else []
    for episode in filter(None, episodes):
        others = {name: kind for name, kind in kinds.items() if name != episode}
        for joins, sort in ((True, False), (False, False), (True, True)):
            columns = map_of(others, joins=joins)
            yield dataclasses.replace(options, columns=columns, episode=episode, sort=sort)


class _Table:
    """Files of equal columns, read in blocks, in their order or sorted.

    Attributes:
        where: What errors call the files.
        names: Names of the columns.
        has_several: Whether there is more than one file.
    """

    def __init__(self, asked: Asked) -> None:
        """Look at the columns of all files.

        Raises SchemaError if they differ; IntegrityError if a file cannot be read.
        """
        self._files, self._sources = asked.files, asked.sources
        self.where = asked.sources[0]
        self.has_several = len(asked.files) > 1
        self.sort_by = [asked.options.episode, asked.options.step] if asked.options.sort else []
        self.sort_by = [name for name in self.sort_by if name]
        self.names: list[str] = []
        self._sorted: Any = None
        for file, where in zip(self._files, self._sources, strict=True):
            if file.suffix.lower() in JSON_LINES:
                check_nesting(file, where)
            with reading_arrow(where):
                names = column_names(file)
            if len(set(names)) != len(names):
                raise SchemaError(f"{where}: two columns have the same name.")
            if self.names and names != self.names:
                raise SchemaError(f"{where}: its columns differ from those of {self.where}.")
            self.names = names

    def blocks(self, columns: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows of some columns, as arrays.

        Raises SchemaError if a value is missing, or is neither number nor text; IntegrityError if a file
        cannot be read.
        """
        if self.sort_by:
            yield from self._sorted_blocks(columns)
            return
        for file, where in zip(self._files, self._sources, strict=True):
            with reading_arrow(where):
                yield from arrays_of(self._batches(file, where, columns), columns, where, 0)

    def values(self, asked: Asked, columns: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows of some columns of the files as `blocks` does, read here or by several processes.

        Raises as it does.
        """
        if self.sort_by:
            if asked.sharing is not None:
                warn_of_one_process(asked, "sort=True puts rows in order in memory")
            yield from self._sorted_blocks(columns)
            return
        files = list(zip(self._files, self._sources, strict=True))
        yield from read_pieces(asked, functools.partial(read_tables, columns), files)

    def _batches(self, file: Path, where: str, columns: Sequence[str]) -> Generator[Any]:
        """Yield rows of some columns of a file; the number of the file is one where it is asked for."""
        import pyarrow as pa

        if FILE in self.names or FILE not in columns:
            yield from batches_of(file, where, columns)
            return
        number, own = self._files.index(file), [name for name in columns if name != FILE]
        for batch in batches_of(file, where, own or self.names[:1]):
            yield batch.append_column(FILE, pa.array(np.full(batch.num_rows, number)))

    def first_blocks(self, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield what errors call each file, and its first rows of some columns; of sorted rows the first.

        Raises as `blocks` does.
        """
        if self.sort_by:
            for block in self._sorted_blocks(columns):
                yield self.where, block
                return
        for file, where in zip(self._files, self._sources, strict=True):
            with (
                reading_arrow(where),
                contextlib.closing(self._batches(file, where, columns)) as batches,
            ):
                for batch in batches:
                    if batch.num_rows:
                        yield (where, {name: column_of(batch, name, where, 0) for name in columns})
                        break

    def _sorted_blocks(self, columns: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        import pyarrow as pa

        if self._sorted is None:
            batches = []
            for file, where in zip(self._files, self._sources, strict=True):
                with reading_arrow(where):
                    batches += list(
                        self._batches(
                            file, where, [*self.names, *({*self.sort_by} & {FILE} - {*self.names})]
                        )
                    )
                if sum(batch.nbytes for batch in batches) > LARGEST_SORTED_BYTES:
                    raise SchemaError(f"{where}: too large to be sorted in memory; sort it before.")
            with reading_arrow(self.where):
                table = pa.Table.from_batches(batches)
                self._sorted = table.sort_by([(name, "ascending") for name in self.sort_by])
        for start in range(0, self._sorted.num_rows, BLOCK_ROWS):
            part = self._sorted.slice(start, BLOCK_ROWS).combine_chunks()
            yield {name: column_of(part, name, self.where, start) for name in columns}


@dataclasses.dataclass
class _Checked:
    """What the first reading of a table gave.

    Attributes:
        rows: Rows of all episodes.
        lengths: Rows of each episode.
        kinds: Dtype and shape of a row of observations and actions.
        lowest: The lowest action, where actions are single integers.
        highest: The highest one.
    """

    rows: int
    lengths: np.ndarray
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    lowest: int = 0
    highest: int = 0

    @property
    def has_choices(self) -> bool:
        """Whether actions are single integers."""
        return "action" in self.kinds and self.kinds["action"][0].kind in "iu"


def _check(table: _Table, layout: Layout) -> _Checked:
    """Read what says where episodes begin, and the kinds of values.

    Raises SchemaError if episodes are mixed, steps are out of order, or a length differs.
    """
    checked = _Checked(0, np.zeros(0, np.int64), {})
    _see_kinds(table, layout, checked)
    wanted = [layout.episode, *filter(None, (layout.step, layout.length))]
    if checked.has_choices:
        wanted += layout.columns["action"]
    names: list[Any] = []  # of episodes, as they come
    lengths: list[int] = []
    said: list[int] = []
    last_step = 0
    for block in table.blocks(list(dict.fromkeys(wanted))):
        episodes = block[layout.episode]
        if episodes.ndim != 1:
            raise SchemaError(
                f"{table.where}, {layout.episode}: expected a number or text that names the episode of each "
                f"row, found rows of shape {episodes.shape[1:]}."
            )
        begins = np.append(not names or episodes[0] != names[-1], episodes[1:] != episodes[:-1])
        if layout.step:
            steps = _whole(block[layout.step], layout.step, table.where, checked.rows)
            before = np.append(last_step, steps[:-1])
            odd = np.flatnonzero((steps != before + 1) & ~begins)
            if len(odd):
                raise SchemaError(
                    f"{table.where}: {layout.step} goes from {before[odd[0]]} to {steps[odd[0]]} at row "
                    f"{checked.rows + odd[0]}, inside episode {episodes[odd[0]]!s:.100}; sort=True puts "
                    "rows in order."
                )
            last_step = int(steps[-1])
        if checked.has_choices:
            choices = _stacked(block, layout.columns["action"], "action", table.where, checked.rows)
            low, high = int(choices.min()), int(choices.max())
            checked.lowest = min(checked.lowest, low) if checked.rows else low
            checked.highest = max(checked.highest, high) if checked.rows else high
        starts = np.flatnonzero(begins)
        if lengths:
            lengths[-1] += int(starts[0]) if len(starts) else len(episodes)
        lengths += np.diff(np.append(starts, len(episodes))).tolist()
        names += episodes[starts].tolist()
        if layout.length:
            counts = _whole(block[layout.length], layout.length, table.where, checked.rows)
            said += counts[starts].tolist()
        checked.rows += len(episodes)
    if not names or not checked.kinds:  # damaged files can have rows in some columns alone
        raise SchemaError(f"{table.where}: holds no rows.")
    checked.lengths = np.array(lengths)
    _check_names(names, checked.lengths, table.where)
    if layout.length:
        odd = np.flatnonzero(np.array(said) != checked.lengths)
        if len(odd):
            raise SchemaError(
                f"{table.where}: {layout.length} of episode {names[odd[0]]!s:.100} says {said[odd[0]]} rows, and "
                f"it has {checked.lengths[odd[0]]}; so it is with {len(odd):,} episodes."
            )
    return checked


def _check_names(names: list[Any], lengths: np.ndarray, where: str) -> None:
    """Refuse an episode whose rows do not follow each other."""
    seen = set()
    for name, start in zip(names, (np.cumsum(lengths) - lengths).tolist(), strict=True):
        if name in seen:
            raise SchemaError(
                f"{where}: episode {name!s:.100} goes on at row {start}, after rows of others; sort=True puts "
                "rows in order."
            )
        seen.add(name)


def _see_kinds(table: _Table, layout: Layout, checked: _Checked) -> None:
    """Note the dtype and shape of observations and actions, by the first rows of each file.

    Raises SchemaError if those of the files have different shapes.
    """
    roles = [one for one in layout.columns if base_role(one) in KEPT]
    columns = [name for role in roles for name in layout.columns[role]]
    for where, block in table.first_blocks(list(dict.fromkeys(columns))):
        for role in roles:
            values = _stacked(block, layout.columns[role], role, where, 0)
            dtype, shape = values.dtype, values.shape[1:]
            is_choice = role == "action" and dtype.kind in "iu" and shape == ()
            if role != "action":
                dtype = kept_dtype(dtype)
            elif dtype.kind in "biu" and not is_choice:
                dtype = np.dtype(np.float64)
            of = role.removeprefix("next_")
            before, its_shape = checked.kinds.get(of, (dtype, shape))
            if shape != its_shape:
                raise SchemaError(
                    f"{where}: {role} has rows of shape {shape}, and those of the first file have {its_shape}."
                )
            dtype = np.result_type(before, dtype)
            checked.kinds[of] = dtype if role == "action" else kept_dtype(dtype), shape


def _steps(
    table: _Table, layout: Layout, checked: _Checked, notes: list[Note], asked: Asked
) -> Iterator[Steps]:
    says = {*FLAGS} & layout.columns.keys()
    unknown = UnknownEnds(asked.options, table.where, says=says)
    cutter = EpisodeCutter(ends_of_lengths(checked.lengths), table.where, unknown=unknown)
    names = [name for found in layout.columns.values() for name in found]
    kinds = {role: checked.kinds.get(role.removeprefix("next_")) for role in layout.columns}
    dtypes = {role: kind[0] for role, kind in kinds.items() if kind} | {"reward": np.dtype(float)}
    if checked.has_choices:
        dtypes["action"] = np.dtype(np.int64)
    first = 0
    for block in table.values(asked, list(dict.fromkeys(names))):
        rows = {
            role: _stacked(block, found, role, table.where, first, dtypes.get(role))
            for role, found in layout.columns.items()
        }
        count = len(rows["action"])
        for role in rows:
            shape = rows[role].shape[1:]
            its_shape = checked.kinds.get(role.removeprefix("next_"), (None, shape))[1]
            if shape != its_shape:
                raise SchemaError(
                    f"{table.where}: {role} changes from shape {its_shape} to {shape} after row {first}."
                )
        rows.setdefault("reward", np.zeros(count))
        yield from cutter.add(rows)
        first += count
    notes += cutter.notes()


def _stacked(
    block: dict[str, np.ndarray],
    names: list[str],
    role: str,
    where: str,
    first: int,
    dtype: np.dtype[Any] | None = None,
) -> np.ndarray:
    """Return the columns of a role as rows, as numbers of a dtype where one is given."""
    if dtype is not None:
        block = {
            name: as_dtype(block[name], dtype, f"{where}, {name}", first)
            if block[name].dtype.kind in "biuf"
            else block[name]
            for name in names
        }
    if role.startswith("infos/") or len(names) == 1:
        values = block[names[0]]
    else:
        parts = [block[name] for name in names]
        if any(part.ndim != 1 for part in parts):
            raise SchemaError(f"{where}: {role} is made of {names}, and some hold lists.")
        values = np.stack(parts, -1) if all(p.dtype.kind in "biuf" for p in parts) else parts[0]
    if values.dtype.kind not in "biuf" and not role.startswith("infos/"):
        raise SchemaError(f"{where}: {role} holds texts at row {first}, expected numbers.")
    if base_role(role) in ("observation", "next_observation") and values.ndim == 1:
        values = values[:, None]
    if role == "action" and values.ndim == 1 and values.dtype.kind == "f":
        values = values[:, None]
    if role in ("reward", "terminated", "truncated") and values.ndim != 1:
        raise SchemaError(f"{where}: {role} holds lists at row {first}, expected one number a row.")
    return values


def _whole(values: np.ndarray, name: str, where: str, first: int) -> np.ndarray:
    """Return numbers as integers.

    Raises SchemaError if they are none.
    """
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
    held: list[Any] = []
    held_bytes = 0
    with contextlib.ExitStack() as stack:
        for number, rows in enumerate(flat_columns(dataset, progress, tells_episodes=True)):
            count = len(rows["rewards"])
            columns = {"episode": np.full(count, number), "step": np.arange(count)}
            columns |= {_column_name(key): values for key, values in rows.items()}
            held.append(pa.table({key: _arrow_column(values) for key, values in columns.items()}))
            held_bytes += held[-1].nbytes
            if number == dataset.total_episodes - 1 or held_bytes >= ROW_GROUP_BYTES:
                table, held, held_bytes = pa.concat_tables(held).combine_chunks(), [], 0
                if writer is None:
                    writer = stack.enter_context(
                        pyarrow.parquet.ParquetWriter(file, table.schema, write_page_checksum=True)
                    )
                writer.write_table(table)


def _column_name(key: str) -> str:
    base, slash, part = key.partition("/")
    return f"{ROLES.get(base, base)}{slash}{part}"


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
