"""Reads what RLlib writes: lines of JSON with a batch of steps each, and Parquet files with a step or an episode a row.

    obs (n, ..)   actions (n, ..)   rewards (n,)   terminateds, truncateds or dones (n,)   [new_obs]   eps_id (n,)
    [action_logp, or the logarithm of action_prob: `infos/action_log_probs`]   [t]

Steps of an episode follow each other, in one line or some, and `eps_id` tells episodes apart. A step that is `done` and not
truncated ended the task. Parquet files with a row for each step have the same columns, and are tables.

A row for each episode (the default of `OfflineSingleAgentEnvRunner`) has one column, `item`: the state of a
`SingleAgentEpisode` as msgpack, whose arrays are dtype, shape and bytes. Where a worker wrote an episode in pieces, they are
joined. With each sample a worker writes a folder, `run-WORKER-NUMBER`, and by default in each all that it wrote before: then
only the last one is read.

Columns that RLlib packed (its default for `obs` and `new_obs` of steps) are pickles and are not read.
https://docs.ray.io/en/latest/rllib/rllib-offline.html
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from orlog.datasets.formats.arrow_files import column_names, open_parquet, reading_arrow
from orlog.datasets.formats.episodes import Asked, Opened, Options
from orlog.datasets.formats.flat_rows import as_dtype
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import ArrayLayout, open_layout
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.npz_files import reading_npz
from orlog.datasets.formats.other_files import MOST_LOOKED_AT
from orlog.datasets.formats.places import Place, Places, files_below, in_order
from orlog.datasets.formats.safe_reading import finite_float, numbers_in
from orlog.datasets.formats.table import TABLE
from orlog.errors import IntegrityError, MissingExtraError, OrlogError, SchemaError

NEEDED = ("obs", "actions", "rewards", "eps_id")
FLAGS = ("terminateds", "truncateds", "dones")
NAMES = (*NEEDED, "new_obs", *FLAGS, "action_logp", "action_prob", "t")
PACKED = ("obs", "actions", "new_obs")
ITEM = "item"
TABLES = (".parquet", ".pq")
ENDINGS = (".json", *TABLES)
RUN = re.compile(r"(run-\d+)-\d+")
FEW = 4  # files, whose names are listed
COLUMNS = {
    "observation": "obs",
    "action": "actions",
    "reward": "rewards",
    "next_observation": "new_obs",
    "truncated": "truncateds",
}
ROWS = {**COLUMNS, "terminated": "terminateds", "infos/action_log_probs": "action_logp"}
UNPACK = """
    import base64, glob, json, pickle
    import lz4.frame, numpy as np, pyarrow.parquet as pq  # pip install lz4
    from orlog.datasets.unpickled import save_rows
    files = {files}
    def unpack(name, value):
        if name == 'eps_id' or not isinstance(value, str): return value
        return pickle.loads(lz4.frame.decompress(base64.b64decode(value)))
    def read(file):
        return map(json.loads, open(file)) if '.json' in file else pq.read_table(file).to_pylist()
    rows = [row for file in files for row in read(file)]
    roles = dict(obs='obs', new_obs='new_obs', actions='actions', rewards='rewards', eps_id='episodes', t='t',
                 action_logp='action_log_probs', dones='terminals', terminateds='terminals')
    join = np.concatenate if isinstance(rows[0]['eps_id'], list) else np.array
    columns = {{role: join([unpack(name, row[name]) for row in rows]) for name, role in roles.items() if name in rows[0]}}
    order = np.lexsort([columns.pop('t', columns['episodes']), columns['episodes']])
    save_rows({{role: values[order] for role, values in columns.items()}})
"""
Files = list[tuple[Path, str]]
"""Files, and what errors call them."""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    given, notes = _without_repeats(_files(asked))
    first, where = given[0]
    files, sources = zip(*given, strict=True)
    asked = dataclasses.replace(asked, files=files, sources=sources)
    names = column_names(first, where) if first.suffix.lower() in TABLES else []
    if asked.options.sort and not {*NEEDED} <= {*names}:
        raise SchemaError(f"{where}: sort=True is for Parquet files with a row for each step.")
    _refuse_packed(asked)
    reading: AbstractContextManager[Opened]
    if not names:
        reading = open_layout(LINES, asked)
    elif names == [ITEM]:
        reading = open_layout(EPISODES, asked)
    else:
        assert TABLE.open is not None
        columns = {role: name for role, name in ROWS.items() if name in names}
        options = dataclasses.replace(asked.options, columns=columns, episode="eps_id")
        reading = TABLE.open(dataclasses.replace(asked, options=options))
    try:
        with reading as opened:
            opened.notes += notes
            yield opened
    finally:
        _items.cache_clear()


def _files(asked: Asked) -> Files:
    """Return the files, those of a folder too, in the order of the numbers in their paths."""
    folder, source = asked.files[0], asked.sources[0]
    if not folder.is_dir():
        return in_order(zip(asked.files, asked.sources, strict=True))
    given = files_below(folder, source, lambda file: file.suffix.lower() in ENDINGS)
    if not given:
        raise SchemaError(f"{source}: holds neither JSON nor Parquet files of RLlib.")
    return given


def _without_repeats(given: Files) -> tuple[Files, list[Note]]:
    """Return files but those of runs that the worker's next run holds too, and a note about these."""
    runs: dict[Path, Files] = {}
    for file in given:
        if RUN.fullmatch(file[0].parent.name):
            runs.setdefault(file[0].parent, []).append(file)
    repeated = []
    for run, after in itertools.pairwise(runs):
        if RUN.sub(r"\1", str(run)) == RUN.sub(r"\1", str(after)):  # of one worker
            rows, more = _rows_of(runs[run]), _rows_of(runs[after])
            if more.slice(0, rows.num_rows).equals(rows):
                repeated.append(run)
    notes = [Note("left_out_repeated", [run.name for run in repeated])] if repeated else []
    return [file for file in given if file[0].parent not in repeated], notes


def _rows_of(given: Files) -> Any:
    """Return all rows of Parquet files."""
    import pyarrow as pa

    tables = []
    for file, where in given:
        with reading_arrow(where), open_parquet(file) as opened:
            tables.append(opened.read())
    return pa.concat_tables(tables)


def _refuse_packed(asked: Asked) -> None:
    """Refuse packed columns, by the first row or line, with lines that convert them."""
    file, where, row = asked.files[0], asked.sources[0], None
    if file.suffix.lower() in TABLES:
        with reading_arrow(where), open_parquet(file) as table:
            row = {field.name: field.type for field in table.schema_arrow}
            row = {name: "" for name, kind in row.items() if str(kind).endswith(("string", "binary"))}
    else:
        with file.open("rb") as lines, contextlib.suppress(ValueError, RecursionError):
            row = json.loads(lines.readline())
    for name in PACKED:
        if isinstance(row, dict) and isinstance(row.get(name), str):
            files = repr([str(one) for one in asked.files])
            if len(asked.files) > FEW:
                folders = list(dict.fromkeys(str(one.parent) for one in asked.files))
                inner = f"sorted(glob.glob(folder + '/*{file.suffix}'))"
                files = f"[file for folder in {folders} for file in {inner}]"
            raise SchemaError(
                f"{where}, {name}: is packed by RLlib as a pickle, and reading a pickle runs the program in it. Where you "
                f"trust it, convert it yourself:{UNPACK.format(files=files)}Then: orlog import data.npz NAME\n"
                "RLlib writes it plainly with config.offline_data(output_compress_columns=[])."
            )


def _open_lines(given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield a file of lines of JSON, whose arrays lie in memory."""
    file, where = given
    if file.is_symlink():
        raise SchemaError(f"{where}: a link, which is not followed.")
    batches: list[dict[str, np.ndarray]] = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            batches.append(_batch(line, f"{where}, line {number}"))
            if odd := batches[0].keys() ^ batches[-1].keys():
                raise SchemaError(f"{where}, line {number}: not all lines have {min(odd)}.")
    if not any(len(batch["actions"]) for batch in batches):
        raise SchemaError(f"{where}: holds no steps.")
    with reading_npz(where):
        arrays = {name: _joined([batch[name] for batch in batches], f"{where}, {name}") for name in batches[0]}
    if "dones" in arrays:
        arrays["terminated"] = arrays["dones"] & ~arrays.get("truncateds", np.False_)
    if "terminateds" in arrays:
        arrays["terminated"] = arrays["terminateds"]
    if "action_prob" in arrays:
        with np.errstate(divide="ignore", invalid="ignore"):
            arrays["action_log_probs"] = np.log(arrays.pop("action_prob"))
    if "action_logp" in arrays:
        arrays["action_log_probs"] = arrays.pop("action_logp")
    names = sorted(arrays.keys() - {"dones", "terminateds"})
    yield Place(where, names, arrays.__getitem__, reading_npz)


def _batch(line: bytes, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a line."""
    try:
        body = json.loads(line, parse_float=finite_float)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: no JSON: {error}.", file=where) from error
    if not isinstance(body, dict) or any(name not in body for name in NEEDED):
        raise SchemaError(f"{where}: expected a batch of RLlib with {', '.join(NEEDED)}.")
    columns = {}
    for name in [name for name in NAMES if name in body]:
        if isinstance(body[name], str):
            raise SchemaError(f"{where}, {name}: is packed by RLlib as a pickle, and is not read.")
        with reading_npz(f"{where}, {name}"):
            values = numbers_in(body[name], f"{where}, {name}")
            if values.dtype.kind not in "biuf" or not values.ndim:
                raise SchemaError(f"{where}, {name}: expected numbers, a row a step.")
        columns[name] = values.astype(bool) if name in FLAGS else values
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise SchemaError(f"{where}: its columns differ in length: {lengths}.")
    return columns


def _joined(several: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Return the rows of all lines, as numbers that each of them can hold."""
    dtype, starts = np.result_type(*several), np.cumsum([0, *map(len, several)]).tolist()
    parts = zip(several, starts, strict=False)
    return np.concatenate([as_dtype(values, dtype, where, first) for values, first in parts])


class _Buffer(msgspec.Struct):
    """Values of an episode, after some of the piece before it (`lookback`)."""

    data: Any
    lookback: int = 0


class _Piece(msgspec.Struct):
    """An episode, or a piece of one, as `SingleAgentEpisode.get_state` gives it."""

    id_: str
    t_started: int
    observations: _Buffer
    actions: _Buffer
    rewards: _Buffer
    is_terminated: Any
    is_truncated: Any
    extra_model_outputs: dict[str, _Buffer | None] | None = None


class _Lying(NamedTuple):
    """Where a piece lies: its file, a group of rows, the row in it, and what errors call that."""

    file: Path
    group: int
    row: int
    where: str


def _episodes(asked: Asked) -> list[list[_Lying]]:
    """Return where the pieces of each episode lie, in their order; episodes are in that of their first pieces."""
    _items.cache_clear()
    lying: dict[str, list[tuple[int, _Lying]]] = {}
    for file, source in zip(asked.files, asked.sources, strict=True):
        with reading_arrow(source), open_parquet(file) as table:
            groups = table.num_row_groups
        number = 0
        for group in range(groups):
            for row in range(len(_items(file, group, source))):
                place = _Lying(file, group, row, f"{source}, row {number}")
                piece = _piece_at(place)
                lying.setdefault(piece.id_, []).append((piece.t_started, place))
                number += 1
    return [[place for _, place in sorted(several)] for several in lying.values()]


@functools.lru_cache(maxsize=2)
def _items(file: Path, group: int, where: str) -> list[Any]:
    """Return the rows of a group, which is read at once since a row is found by decoding all before it."""
    with reading_arrow(where), open_parquet(file) as table:
        rows: list[Any] = table.read_row_group(group, [ITEM]).column(0).to_pylist()
        return rows


def _piece_at(place: _Lying) -> _Piece:
    source = place.where.rpartition(", row ")[0]
    try:
        return msgspec.msgpack.decode(_items(place.file, place.group, source)[place.row], type=_Piece)
    except (msgspec.MsgspecError, TypeError) as error:
        raise IntegrityError(
            f"{place.where}: cannot be read as an episode of RLlib: {error}.", file=place.where
        ) from error


def _open_episode(lying: Sequence[_Lying], _options: Options) -> Generator[Place]:
    """Yield an episode, whose pieces are joined, unless it has no step."""
    parts: list[dict[str, np.ndarray]] = []
    after = None
    for place in lying:
        piece, where = _piece_at(place), place.where
        if after not in (None, piece.t_started):
            raise SchemaError(
                f"{where}: episode {piece.id_} goes on at step {piece.t_started}, and the piece before it ends "
                f"at step {after}; give all files of the recording."
            )
        with reading_npz(where):
            parts.append(_arrays_of(piece, where))
        after = piece.t_started + len(parts[-1]["rewards"])
    for part in parts[:-1]:  # the next piece begins with its last observation
        part |= {name: part[name][:-1] for name in part if name.split("/")[0] == "obs"}
    with reading_npz(lying[0].where):
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if len(arrays["rewards"]):
        yield Place(lying[0].where, sorted(arrays), arrays.__getitem__, reading_npz)


def _arrays_of(piece: _Piece, where: str) -> dict[str, np.ndarray]:
    """Return the arrays of a piece, those of a Dict of observations as `obs/NAME`."""
    arrays: dict[str, np.ndarray] = {}
    buffers = {"obs": piece.observations, "actions": piece.actions, "rewards": piece.rewards}
    for name, buffer in (*buffers.items(), *(piece.extra_model_outputs or {}).items()):
        if buffer is not None:
            values = _unpacked(buffer.data, name, where)
            arrays |= {key: several[buffer.lookback :] for key, several in values.items()}
    for name, flag in (("terminated", piece.is_terminated), ("truncateds", piece.is_truncated)):
        arrays[name] = np.zeros(len(arrays["rewards"]), bool)
        arrays[name][-1:] = _unpacked(flag, name, where)[name]
    if "action_logp" in arrays:
        arrays["action_log_probs"] = arrays.pop("action_logp")
    return arrays


def _unpacked(value: Any, name: str, where: str) -> dict[str, np.ndarray]:
    """Return what msgpack holds as arrays by their names: an array, a number, or a list or dict of these."""
    if isinstance(value, dict) and b"nd" in value:
        if value.get(b"kind") in (b"O", b"V"):
            raise SchemaError(f"{where}, {name}: holds Python objects, which are not read.")
        array = np.frombuffer(value[b"data"], np.dtype(value[b"type"]))
        return {name: array.reshape(value[b"shape"] if value[b"nd"] else ())}
    if isinstance(value, dict):
        parts = [_unpacked(inner, f"{name}/{key}", where) for key, inner in value.items()]
        return {key: values for part in parts for key, values in part.items()}
    if isinstance(value, list):
        several = [_unpacked(inner, name, where) for inner in value]
        names: Iterable[str] = several[0] if several else [name]
        return {key: np.array([part[key] for part in several]) for key in names}
    return {name: np.asarray(value)}


LINES = ArrayLayout(
    columns={**COLUMNS, "terminated": "terminated", "infos/action_log_probs": "action_log_probs"},
    episode="eps_id",
    places=Places(_files, _open_lines),
)
EPISODES = ArrayLayout(columns={**LINES.columns, "observation/*": "obs/*"}, places=Places(_episodes, _open_episode))


def _recognizes(files: Sequence[Path]) -> bool:
    path = files[0]
    if path.is_dir():
        inside = itertools.islice(path.rglob("*"), MOST_LOOKED_AT)
        path = next((file for file in inside if file.suffix.lower() in ENDINGS), path)
    if path.suffix.lower() in TABLES:
        try:
            names = {*column_names(path, str(path))}
        except (MissingExtraError, OrlogError):
            return False
        return names == {ITEM} or {*NEEDED} <= names
    try:
        with path.open("rb") as file:
            head = file.read(2**16)
    except OSError:
        return False
    return b'"type": "SampleBatch"' in head or all(
        f'"{name}"'.encode() in head for name in ("obs", "actions", "eps_id")
    )


FORMAT = Format(
    name="rllib",
    open=_open,
    recognizes=_recognizes,
    extensions=("", *ENDINGS),
    options=("horizon", "ends", "sort"),
    shares=True,
    reads=("type", ITEM, *NAMES, "./*.json"),
)
