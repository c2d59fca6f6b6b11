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
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.arrow_files import (
    SIGNATURE,
    array_of,
    check_pyarrow,
    open_parquet,
    reading_arrow,
    table_batches,
)
from orlog.datasets.formats.episodes import Asked, Opened, Options, Steps, read_steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.minari.episodes import FLAGS, Block, EpisodeReader, with_options
from orlog.datasets.formats.minari.metadata import (
    METADATA_FILE,
    READS,
    Metadata,
    find_data,
    numbers_here,
    read_document,
    read_metadata,
)
from orlog.datasets.formats.notes import Note
from orlog.errors import IntegrityError, SchemaError

ENDINGS = ("arrow", "parquet")
COLUMNS = ("observations", "actions", "rewards", *FLAGS)
KNOWN = ("id", "total_steps", "seed", "options")


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    data, where = find_data(asked.files[0]), asked.sources[0]
    metadata = read_metadata(data / METADATA_FILE, where)
    notes: list[Note] = []
    episodes = _episodes(data, metadata, where, asked.options, notes)
    count = sum(episode.steps for episode in episodes)
    if count != metadata.total_steps and not notes:
        raise IntegrityError(
            f"{where}: metadata.json says total_steps {metadata.total_steps:,}, and the episodes hold {count:,}.",
            file=where,
        )
    schema = Schema(
        observation_space=metadata.observation_space,
        action_space=metadata.action_space,
        reward_dtype=np.dtype(episodes[0].reward_dtype),
    )
    reader = _Reader(
        EpisodeReader(schema, [*_in_all("infos", [episode.infos for episode in episodes], notes)]),
        shapes=_in_all("infos", [episode.infos for episode in episodes], []),
        details=[*_in_all("metadata", [episode.details for episode in episodes], notes)],
        has_options=any(episode.options for episode in episodes),
    )
    yield Opened(
        schema=schema,
        steps=read_steps(asked, reader.read, episodes, notes),
        total_steps=metadata.total_steps,
        environment=metadata.environment,
        description=metadata.description,
        behavior_policy=metadata.behavior_policy,
        license=metadata.license,
        notes=notes,
    )


class _Episode(NamedTuple):
    """What is known of an episode before its rows are read; infos and details of other types are None."""

    file: Path
    where: str
    steps: int
    reward_dtype: str
    infos: dict[str, tuple[int, ...] | None]  # the shape of a row of each
    details: dict[str, Any]
    seed: int | None
    options: dict[str, Any]


def _episodes(data: Path, metadata: Metadata, where: str, options: Options, notes: list[Note]) -> list[_Episode]:
    """Return what is known of all episodes; each file is opened, and no row is read."""
    if metadata.data_format not in ENDINGS:
        raise SchemaError(
            f"{where}: metadata.json says the format {metadata.data_format!r:.50}, expected arrow or parquet."
        )
    folders = {path.name for path in data.iterdir() if path.is_dir()}
    count = metadata.total_episodes
    present = [number for number in range(count) if str(number) in folders]
    numbers = numbers_here(present, len(folders), count, where, options, notes)
    ending = f".{metadata.data_format}"
    return [_episode(data / str(number), ending, f"{where}, {number}") for number in numbers]


def _episode(folder: Path, ending: str, where: str) -> _Episode:
    file = folder / f"part-0{ending}"
    if folder.is_symlink() or file.is_symlink():
        raise SchemaError(f"{where}: a link, which is not followed.")
    others = [path.name for path in folder.glob(f"*{ending}")]
    if others != [file.name]:
        raise SchemaError(f"{where}: expected the one file {file.name}, found {others}.")
    body = read_document(folder / METADATA_FILE, where)
    count, seed, options = body.get("total_steps"), body.get("seed"), body.get("options") or {}
    if type(count) is not int or not 0 < count < 2**40:
        raise SchemaError(f"{where}: expected total_steps as a count, found {count!r:.50}.")
    if not (seed is None or type(seed) is int) or not isinstance(options, dict):
        raise SchemaError(
            f"{where}: expected an integer as seed and an object of options, found {seed!r:.50} and {options!r:.50}."
        )
    with reading_arrow(where):
        schema = _schema(file)
        missing = [name for name in COLUMNS if name not in schema.names]
        if missing:
            raise SchemaError(f"{where}: has no column {missing[0]}; found {schema.names}.")
        infos = _info_shapes(schema.field("infos").type) if "infos" in schema.names else {}
        is_single = str(schema.field("rewards").type) == "float"
    details = {name: _plain(value) for name, value in body.items() if name not in KNOWN}
    reward_dtype = "float32" if is_single else "float64"
    return _Episode(file, where, count, reward_dtype, infos, details, seed, options)


def _schema(file: Path) -> Any:
    import pyarrow as pa

    if file.suffix == ".parquet":
        with open_parquet(file) as table:
            return table.schema_arrow
    with pa.memory_map(str(file)) as source:
        if source.read(len(SIGNATURE)) != SIGNATURE:
            raise pa.ArrowInvalid("not an Arrow file")
        return pa.ipc.read_schema(source)  # a third of the time of opening the file


def _info_shapes(struct: Any, prefix: str = "") -> dict[str, tuple[int, ...] | None]:
    from pyarrow import types

    shapes: dict[str, tuple[int, ...] | None] = {}
    for field in struct:
        path, kind = f"{prefix}{field.name}", field.type
        if types.is_struct(kind):
            shapes |= _info_shapes(kind, f"{path}/")
            continue
        shape: tuple[int, ...] | None = ()
        if types.is_fixed_size_list(kind):
            stated = (field.metadata or {}).get(b"shape", str(kind.list_size).encode())
            sizes = [int(size) for size in stated.split(b",") if size.isdigit()]
            shape = tuple(sizes) if math.prod(sizes) == kind.list_size else (kind.list_size,)
            kind = kind.value_type
        is_number = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
        shapes[path] = shape if is_number or (types.is_string(kind) and shape == ()) else None
    return shapes


def _plain(value: Any) -> Any:
    """Return a number, a text or an array of numbers; None for anything else."""
    if isinstance(value, str | int | float):
        return value
    try:
        array = np.array(value if isinstance(value, list) else None)
    except ValueError:  # lists of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _in_all(kind: str, episodes: Sequence[dict[str, Any]], notes: list[Note]) -> dict[str, Any]:
    """Return what all episodes have, with the value of the first one."""
    names = set().union(*episodes)
    kept = {
        name: episodes[0][name] for name in sorted(names) if all(values.get(name) is not None for values in episodes)
    }
    if len(kept) < len(names):
        notes.append(Note("left_out_not_in_all", sorted(names - kept.keys()), kind=kind))
    return kept


@dataclasses.dataclass
class _Reader:
    """Reads episodes that all have the same columns, in whatever process."""

    episodes: EpisodeReader
    shapes: dict[str, tuple[int, ...]]
    details: Sequence[str]
    has_options: bool

    def read(self, episodes: Iterable[_Episode]) -> Iterator[Steps | Note]:
        """Yield the steps of some episodes, in pieces, and what is to be known of them."""
        for episode in episodes:
            details = {name: episode.details[name] for name in self.details}
            metadata = with_options(details, episode.options if self.has_options else None)
            with reading_arrow(episode.where):
                yield from self.episodes.steps(
                    self._blocks(episode), episode.steps, episode.where, episode.seed, metadata
                )
        if self.episodes.had_jpeg:
            yield Note("had_jpeg")

    def _blocks(self, episode: _Episode) -> Iterator[Block]:
        infos = sum(8 * math.prod(shape) for shape in self.shapes.values())
        stored = episode.file.stat().st_size // (episode.steps + 1)
        start = 0
        rows = self.episodes.block_steps(max(stored, infos))
        for block in _overlapping(table_batches(episode.file, rows)):
            stop = start + block.num_rows - 1
            if stop > episode.steps:
                raise _wrong_count(episode, "more")
            yield start, stop, functools.partial(self._rows, block, episode.where, start)
            start = stop
        if start != episode.steps:
            raise _wrong_count(episode, f"{start + 1}")

    def _rows(self, block: Any, where: str, start: int, path: str) -> np.ndarray:
        """Return rows of a column, without the last one where it means nothing; JPEG files as bytes."""
        from pyarrow import types

        root, *keys = path.split("/")
        if root not in ("observations", "infos"):
            block = block.slice(0, block.num_rows - 1)
        column, place = block.column(root), f"{where}, {root}"
        for key in keys:
            column, place = _part(column, key, place), f"{place}/{key}"
        if types.is_binary(column.type) and not column.null_count:
            files = np.empty(len(column), object)
            files[:] = column.to_pylist()
            return files
        values = array_of(column, path, where, start)
        shape = self.shapes.get("/".join(keys)) if root == "infos" else None
        if shape is None or values.dtype.kind == "O":
            return values
        if values.size != len(values) * math.prod(shape):
            raise SchemaError(f"{place}: expected rows of {shape}, as in the first episode, found {values.shape[1:]}.")
        return values.reshape(len(values), *shape)


def _wrong_count(episode: _Episode, rows: str) -> IntegrityError:
    return IntegrityError(
        f"{episode.where}: total_steps says {episode.steps}, so expected {episode.steps + 1} rows, found {rows}.",
        file=episode.where,
    )


def _part(column: Any, name: str, where: str) -> Any:
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
