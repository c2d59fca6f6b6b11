"""Reads Minari's Arrow and Parquet folders: a file for each episode, T + 1 rows for T steps.

    FOLDER/data/metadata.json               spaces, environment, totals
    FOLDER/data/NUMBER/metadata.json        id, total_steps, seed, options
    FOLDER/data/NUMBER/part-0.arrow         or part-0.parquet, with the columns
        observations  infos                 T + 1 rows
        actions  rewards  terminations  truncations     T rows, and one that means nothing

Rows are taken in the order of the file, whatever its batches; Minari 0.5.4 itself takes each batch, of at most
32,768 rows, for an episode. What becomes of infos, options and frames is as for its HDF5 files.
https://minari.farama.org
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns
from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.arrow_files import (
    SIGNATURE,
    array_of,
    check_pyarrow,
    reading_arrow,
    table_batches,
)
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.flags import flags_of
from orlog.datasets.formats._shared.flat_rows import as_dtype
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import read_steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.minari.metadata import (
    METADATA_FILE,
    READS,
    Metadata,
    decoded_frames,
    find_data,
    numbers_here,
    read_document,
    read_metadata,
    row_bytes,
    same_numbers,
)
from orlog.errors import IntegrityError, OrlogError, SchemaError

BLOCK_BYTES = 2**24
ENDINGS = ("arrow", "parquet")
FLAGS = ("terminations", "truncations")
COLUMNS = ("observations", "actions", "rewards", *FLAGS)
KNOWN = ("id", "total_steps", "seed", "options")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    data, where = find_data(asked.files[0]), asked.sources[0]
    metadata = read_metadata(data / METADATA_FILE, where)
    lacks: list[Note] = []
    episodes = _episodes(data, metadata, where, asked.options, lacks)
    schema = Schema(
        observation_space=metadata.observation_space,
        action_space=metadata.action_space,
        reward_dtype=np.dtype(episodes[0].reward_dtype),
    )
    opened = Opened(
        schema=schema,
        steps=iter(()),
        total_steps=metadata.total_steps,
        environment=metadata.environment,
        description=metadata.description,
        behavior_policy=metadata.behavior_policy,
        notes=lacks,
    )
    infos = _kept("infos", [one.infos for one in episodes], opened.notes)
    details = _kept("metadata", [one.details for one in episodes], opened.notes)
    found = sum(one.count for one in episodes)
    if found != metadata.total_steps and not lacks:
        raise IntegrityError(
            f"{where}: metadata.json says total_steps {metadata.total_steps:,}, and the episodes hold "
            f"{found:,}.",
            file=where,
        )
    has_options = any(one.options for one in episodes)
    reader = _Reader(schema, infos, details, has_options)
    opened.steps = read_steps(asked, reader.steps, episodes, opened.notes)
    yield opened


@dataclasses.dataclass(frozen=True, slots=True)
class _Episode:
    """What is known of an episode before its rows are read.

    Attributes:
        file: Its rows.
        where: What errors call it.
        count: Steps.
        reward_dtype: The dtype that rewards have here.
        infos: Shape of a row of each info; None if it is no column of numbers or texts.
        details: More values of the episode; None where one is neither number nor text.
        seed: Seed of the reset.
        options: Options of the reset.
    """

    file: Path
    where: str
    count: int
    reward_dtype: str
    infos: dict[str, tuple[int, ...] | None]
    details: dict[str, Any]
    seed: int | None
    options: dict[str, Any]


def _episodes(
    data: Path, metadata: Metadata, where: str, options: Options, notes: list[Note]
) -> list[_Episode]:
    """Return what is known of all episodes; each file is opened, and no row is read."""
    if metadata.data_format not in ENDINGS:
        raise SchemaError(
            f"{where}: metadata.json says the format {metadata.data_format!r:.50}, expected arrow or "
            "parquet."
        )
    folders = {one.name for one in data.iterdir() if one.is_dir()}
    count = metadata.total_episodes
    has_one = [number for number in range(count) if str(number) in folders]
    numbers = numbers_here(has_one, len(folders), count, where, options, notes)
    ending = f".{metadata.data_format}"
    return [_episode(data / str(one), ending, f"{where}, {one}") for one in numbers]


def _episode(folder: Path, ending: str, where: str) -> _Episode:
    file = folder / f"part-0{ending}"
    if folder.is_symlink() or file.is_symlink():
        raise SchemaError(f"{where}: a link, which is not followed.")
    others = [one.name for one in folder.glob(f"*{ending}")] if folder.is_dir() else []
    if others != [file.name]:
        raise SchemaError(f"{where}: expected the one file {file.name}, found {others}.")
    body = read_document(folder / METADATA_FILE, where)
    count, seed, options = body.get("total_steps"), body.get("seed"), body.get("options") or {}
    if type(count) is not int or not 0 < count < 2**40:
        raise SchemaError(f"{where}: expected total_steps as a count, found {count!r:.50}.")
    if not (seed is None or type(seed) is int) or not isinstance(options, dict):
        raise SchemaError(
            f"{where}: expected an integer as seed and an object of options, found {seed!r:.50} and "
            f"{options!r:.50}."
        )
    with reading_arrow(where):
        schema = _schema(file)
        missing = [name for name in COLUMNS if name not in schema.names]
        if missing:
            raise SchemaError(f"{where}: has no column {missing[0]}; found {schema.names}.")
        infos = _info_shapes(schema.field("infos").type) if "infos" in schema.names else {}
        is_short = str(schema.field("rewards").type) == "float"
    return _Episode(
        file=file,
        where=where,
        count=count,
        reward_dtype="float32" if is_short else "float64",
        infos=infos,
        details={name: _plain(value) for name, value in body.items() if name not in KNOWN},
        seed=seed,
        options=options,
    )


def _info_shapes(struct: Any, prefix: str = "") -> dict[str, tuple[int, ...] | None]:
    """Return the shape of a row of each info, nested ones by their path."""
    from pyarrow import types

    found: dict[str, tuple[int, ...] | None] = {}
    for field in struct:
        path, kind = f"{prefix}{field.name}", field.type
        if types.is_struct(kind):
            found |= _info_shapes(kind, f"{path}/")
            continue
        shape: tuple[int, ...] | None = ()
        if types.is_fixed_size_list(kind):
            said = (field.metadata or {}).get(b"shape", str(kind.list_size).encode())
            sizes = [int(size) for size in said.split(b",") if size.isdigit()]
            shape = tuple(sizes) if math.prod(sizes) == kind.list_size else (kind.list_size,)
            kind = kind.value_type
        is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
        found[path] = shape if is_number or (types.is_string(kind) and shape == ()) else None
    return found


def _plain(value: Any) -> Any:
    """Return a number, a text or an array of numbers; None for anything else."""
    if isinstance(value, str | int | float):
        return value
    try:
        array = np.array(value if isinstance(value, list) else None)
    except ValueError:  # lists of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _kept(kind: str, found: Sequence[dict[str, Any]], notes: list[Note]) -> dict[str, Any]:
    """Return what all episodes have, with the value of the first one."""
    names = set().union(*found)
    kept = {
        name: found[0].get(name)
        for name in sorted(names)
        if all(one.get(name) is not None for one in found)
    }
    if len(kept) < len(names):
        notes.append(Note("left_out_not_in_all", sorted(names - kept.keys()), kind=kind))
    return kept


class _Reader:
    """Reads episodes that all have the same columns."""

    def __init__(
        self,
        schema: Schema,
        infos: dict[str, tuple[int, ...]],
        details: dict[str, Any],
        has_options: bool,
    ) -> None:
        self.schema, self.infos, self.details, self.has_options = (
            schema,
            infos,
            details,
            has_options,
        )
        self._had_jpeg = False

    def row_bytes(self, one: _Episode) -> int:
        """Return about how many bytes a row of an episode takes."""
        spaces_of = (self.schema.observation_space, self.schema.action_space)
        size = sum(map(row_bytes, spaces_of)) + sum(8 * math.prod(s) for s in self.infos.values())
        return max(1, size, one.file.stat().st_size // (one.count + 1))

    def steps(self, episodes: Iterable[_Episode]) -> Iterator[Steps | Note]:
        """Yield the steps of some episodes, in pieces, and what is to be known of them.

        Raises SchemaError if rows are not what the spaces and counts say; IntegrityError if a file cannot be
        read.
        """
        for one in episodes:
            metadata = {name: one.details[name] for name in self.details}
            if self.has_options:
                metadata["options"] = json.dumps(one.options, sort_keys=True)
            with reading_arrow(one.where):
                yield from self._episode(one, metadata)
        if self._had_jpeg:
            yield Note("had_jpeg")

    def _episode(self, one: _Episode, metadata: dict[str, Any]) -> Iterator[Steps]:
        first = 0  # row of the block's first one
        rows = max(1, BLOCK_BYTES // self.row_bytes(one))
        for block in _overlapping(table_batches(one.file, rows)):
            steps = block.num_rows - 1
            if first + steps > one.count:
                raise self._wrong_count(one, "more")
            is_last = first + steps == one.count
            infos = self._infos(block, one, first)
            if first == 0:
                metadata |= {f"reset_info/{name}": values[0] for name, values in infos.items()}
            yield self._piece(block, one, first, infos, metadata if is_last else {}, is_last)
            first += steps
        if first != one.count:
            raise self._wrong_count(one, f"{first + 1}")

    def _piece(
        self,
        block: Any,
        one: _Episode,
        first: int,
        infos: dict[str, Columns],
        metadata: dict[str, Any],
        is_last: bool,
    ) -> Steps:
        """Return the steps between the rows of a block."""
        flags = []
        acted = block.slice(0, block.num_rows - 1)  # beside the last row's observation lies nothing
        for name in FLAGS:
            values = array_of(acted.column(name), name, one.where, first)
            found = flags_of(values, name, one.where, first=first)
            if found.ndim != 1 or found[: len(found) - is_last].any():
                raise SchemaError(
                    f"{one.where}, {name}: expected flags, of which only the last one may be true."
                )
            flags.append(is_last and bool(found[-1]))
        rewards = array_of(acted.column("rewards"), "rewards", one.where, first)
        if rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
            raise SchemaError(
                f"{one.where}, rewards: expected one number a row, found {rewards.dtype} "
                f"{rewards.shape[1:]} from row {first} on."
            )
        seen = block.slice(first > 0)  # the first row was the last one of the block before
        return Steps(
            observations=self._values(
                self.schema.observation_space,
                seen.column("observations"),
                f"{one.where}, observations",
                first + (first > 0),
            ),
            actions=self._values(
                self.schema.action_space, acted.column("actions"), f"{one.where}, actions", first
            ),
            rewards=as_dtype(rewards, self.schema.reward_dtype, f"{one.where}, rewards", first),
            ends=is_last,
            terminated=flags[0],
            truncated=flags[1],
            infos={name: values[1:] for name, values in infos.items()},
            seed=one.seed if is_last else None,
            metadata={name: metadata[name] for name in sorted(metadata)},
        )

    def _infos(self, block: Any, one: _Episode, first: int) -> dict[str, Columns]:
        found: dict[str, Columns] = {}
        for path, shape in self.infos.items():
            column = block.column("infos")
            for name in path.split("/"):
                column = _part(column, name, f"{one.where}, infos")
            values = array_of(column, f"infos/{path}", one.where, first)
            if values.dtype.kind == "O":
                found[path] = values.tolist()
            else:
                if values.size != len(values) * math.prod(shape):
                    raise SchemaError(
                        f"{one.where}, infos/{path}: expected rows of {shape}, as in the first "
                        f"episode, found {values.shape[1:]}."
                    )
                found[path] = values.reshape(len(values), *shape)
        return found

    def _values(self, space: Any, column: Any, where: str, first: int) -> Columns:
        """Return rows of the values of a space; the first one is that row of the file."""
        from pyarrow import types

        if isinstance(space, spaces.Dict | spaces.Tuple):
            parts = space.spaces if isinstance(space, spaces.Dict) else dict(enumerate(space))
            found = {
                key: self._values(part, _part(column, str(key), where), f"{where}/{key}", first)
                for key, part in parts.items()
            }
            return found if isinstance(space, spaces.Dict) else tuple(found.values())
        if types.is_binary(column.type):
            if column.null_count or space.dtype != np.uint8:
                raise SchemaError(f"{where}: expected {space}, found files or nothing.")
            self._had_jpeg = True
            return decoded_frames(column.to_pylist(), space.shape, where)
        values = array_of(column, "the column", where, first)
        if isinstance(space, spaces.Text):
            if values.dtype.kind != "O":
                raise SchemaError(f"{where}: expected texts, found {column.type}.")
            return values.tolist()
        shape = space.shape or ()
        if values.size != len(values) * math.prod(shape) or values.dtype.kind == "O":
            raise SchemaError(f"{where}: expected rows of {shape}, found {column.type}.")
        if not same_numbers(values, space.dtype):
            raise SchemaError(f"{where}: expected {space.dtype}, found {values.dtype}.")
        values = as_dtype(values, space.dtype, where, first)
        return values.reshape(len(values), *shape)

    def _wrong_count(self, one: _Episode, found: str) -> OrlogError:
        return IntegrityError(
            f"{one.where}: total_steps says {one.count}, so expected {one.count + 1} rows, found {found}.",
            file=one.where,
        )


def _part(column: Any, name: str, where: str) -> Any:
    """Return a part of a column that has several."""
    from pyarrow import types

    if not types.is_struct(column.type) or column.type.get_field_index(name) < 0:
        raise SchemaError(f"{where}: expected a part {name}, found {column.type!s:.200}.")
    if column.null_count:
        raise SchemaError(f"{where}: a row has no value.")
    return column.field(name)


def _overlapping(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches that begin with the last row of the one before, and have two rows or more."""
    import pyarrow as pa

    held = None
    for batch in batches:
        if held is not None:
            batch = pa.Table.from_batches([held, batch]).combine_chunks().to_batches()[0]
        if batch.num_rows > 1:
            yield batch
        held = batch.slice(max(0, batch.num_rows - 1))


def _schema(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet

    if file.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as table:
            return table.schema_arrow
    with pa.memory_map(str(file)) as source:
        if source.read(len(SIGNATURE)) != SIGNATURE:
            raise pa.ArrowInvalid("not an Arrow file")
        return pa.ipc.read_schema(source)  # a third of the time of opening the file


def _recognizes(files: Sequence[Path]) -> bool:
    data = find_data(files[0])
    return any((data / "0" / f"part-0.{ending}").is_file() for ending in ENDINGS)


FORMAT = Format(
    name="minari-arrow",
    open=_open,
    recognizes=_recognizes,
    extensions=("",),
    options=("partial",),
    shares=True,
    check=check_pyarrow,
    reads=READS,
)
