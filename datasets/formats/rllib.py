"""Reads the JSON files of RLlib's `JsonWriter`: lines that hold a batch of steps each.

    obs (n, ..)   actions (n, ..)   rewards (n,)   terminateds, truncateds or dones (n,)   [new_obs]   eps_id (n,)
    [action_logp, or the logarithm of action_prob: `infos/action_log_probs`]   [t]

Steps of an episode follow each other, in one line or some, and `eps_id` tells episodes apart. A step that is `done` and not
truncated ended the task.

Parquet (`OfflineSingleAgentEnvRunner`): a row for each step has the same columns, `terminateds` and `truncateds` among them.
A row for each episode (the default) has one column, `item`: the state of a `SingleAgentEpisode` as msgpack, whose arrays are
dtype, shape and bytes. Where a worker wrote an episode in pieces, they are joined. With each sample a worker writes a folder,
`run-WORKER-NUMBER`, and by default in each all that it wrote before: then only the last one is read.

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

from orlog.datasets.formats._shared.arrow_files import reading_arrow, table_batches
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.flat_rows import as_dtype
from orlog.datasets.formats._shared.json_documents import finite_float, numbers_in
from orlog.datasets.formats._shared.mapped_arrays import ArrayLayout, open_layout
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.npz_files import reading_npz
from orlog.datasets.formats._shared.places import Place, Places, files_below, in_order
from orlog.datasets.formats._shared.pointers import MOST_LOOKED_AT
from orlog.datasets.formats._shared.table_files import batches_of, column_names
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.table import TABLE
from orlog.errors import IntegrityError, MissingExtraError, OrlogError, SchemaError

LARGEST_FILE = 2**31
LARGEST_LINE = 2**28
GROUP_BYTES, MOST_ROWS = 2**25, 256  # of episodes that are read at once
NEEDED = ("obs", "actions", "rewards", "eps_id")
NAMES = (
    *NEEDED,
    "new_obs",
    "terminateds",
    "truncateds",
    "dones",
    "action_logp",
    "action_prob",
    "t",
)
Files = list[tuple[Path, str]]
"""Files, and what errors call them."""
RUN = re.compile(r"run-(\d+)-(\d+)")
PACKED = ("obs", "actions", "new_obs")
ITEM = "item"
TABLES = (".parquet", ".pq")
ENDINGS = (".json", *TABLES)
ROWS = {
    "observation": "obs",
    "action": "actions",
    "reward": "rewards",
    "next_observation": "new_obs",
    "terminated": "terminateds",
    "truncated": "truncateds",
    "infos/action_log_probs": "action_logp",
}


def _files(asked: Asked) -> Files:
    """Return the files, those of a folder too, in the order of the numbers in their paths, and what errors call them.

    Raises SchemaError if a folder holds none.
    """
    folder, source = asked.files[0], asked.sources[0]
    if not folder.is_dir():
        return in_order(zip(asked.files, asked.sources, strict=True))
    given = files_below(folder, source, lambda one: one.suffix.lower() in ENDINGS)
    if not given:
        raise SchemaError(f"{source}: holds neither JSON nor Parquet files of RLlib.")
    return given


def _is_ours(path: Path) -> bool:
    """Return whether a file is lines of JSON, or a table, of RLlib."""
    if path.suffix.lower() in TABLES:
        try:
            with reading_arrow(str(path)):
                names = set(column_names(path))
        except (MissingExtraError, OrlogError):
            return False
        return names == {ITEM} or set(NEEDED) <= names
    try:
        with path.open("rb") as file:
            head = file.read(2**16)
    except OSError:
        return False
    return all(f'"{name}"'.encode() in head for name in ("obs", "actions", "eps_id")) or (
        b'"type": "SampleBatch"' in head
    )


def _open_file(given: tuple[Path, str], _options: Options) -> Generator[Place]:
    """Yield a file, whose arrays lie in memory."""
    file, where = given
    arrays = _arrays(file, where)
    yield Place(where, sorted(arrays), arrays.__getitem__, reading_npz)


def _arrays(file: Path, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a file.

    Raises SchemaError if they are packed, differ between lines, or are too large; IntegrityError if it is no JSON.
    """
    if file.is_symlink() or file.stat().st_size > LARGEST_FILE:
        raise SchemaError(f"{where}: a link, or larger than {LARGEST_FILE:,} bytes; split it.")
    pieces: dict[str, list[np.ndarray]] = {}
    with file.open("rb") as lines:
        for number, line in enumerate(iter(functools.partial(lines.readline, LARGEST_LINE), b"")):
            batch = _batch(line, f"{where}, line {number + 1}")
            if pieces and pieces.keys() != batch.keys():
                odd = min(pieces.keys() ^ batch.keys())
                raise SchemaError(f"{where}, line {number + 1}: not all lines have {odd}.")
            for name, values in batch.items():
                pieces.setdefault(name, []).append(values)
    with reading_npz(where):
        found = {name: _joined(several, f"{where}, {name}") for name, several in pieces.items()}
    if not found or not len(found["actions"]):
        raise SchemaError(f"{where}: holds no steps.")
    cut = found.get("truncateds", np.zeros(len(found["actions"]), bool))
    done = found.pop("dones", None)
    ended = found.pop("terminateds", None)
    if ended is not None or done is not None:
        found["terminated"] = ended if ended is not None else done & ~cut
    if "action_prob" in found:
        with np.errstate(divide="ignore", invalid="ignore"):
            found["action_log_probs"] = np.log(found.pop("action_prob"))
    if "action_logp" in found:
        found["action_log_probs"] = found.pop("action_logp")
    return found


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    """Read files of the kind of the first one.

    Raises SchemaError if they are packed, or of different kinds.
    """
    given, notes = _without_repeats(_files(asked))
    first, where = given[0]
    names = []
    if first.suffix.lower() in TABLES:
        with reading_arrow(where):
            names = column_names(first)
    if asked.options.sort and not {*NEEDED} <= {*names}:
        raise SchemaError(f"{where}: sort=True is for Parquet files with a row for each step.")
    asked = dataclasses.replace(
        asked, files=[one for one, _ in given], sources=[source for _, source in given]
    )
    reading: AbstractContextManager[Opened]
    if not names:
        _refuse_packed_lines(asked)
        reading = open_layout(KNOWN, asked)
    elif names == [ITEM]:
        reading = open_layout(EPISODES, asked)
    else:
        assert TABLE.open is not None
        reading = TABLE.open(_as_table(asked))
    with reading as opened:
        opened.notes += notes
        yield opened


def _without_repeats(given: Files) -> tuple[Files, list[Note]]:
    """Return files but those of runs that the worker's next run holds too, and a note about these."""
    runs: dict[Path, Files] = {}
    for one in given:
        runs.setdefault(one[0].parent, []).append(one)
    repeated = []
    for run, after in itertools.pairwise(runs):
        numbers = [RUN.fullmatch(folder.name) for folder in (run, after)]
        if (
            run.parent == after.parent
            and all(numbers)
            and len({one[1] for one in numbers if one}) == 1
        ):
            rows, more = _table_of(runs[run]), _table_of(runs[after])
            if more.slice(0, rows.num_rows).equals(rows):
                repeated.append(run)
    if not repeated:
        return given, []
    note = Note("left_out_repeated", [run.name for run in repeated])
    return [one for one in given if one[0].parent not in repeated], [note]


def _table_of(given: Files) -> Any:
    """Return the rows of Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet

    tables = []
    for file, where in given:
        with reading_arrow(where):
            tables.append(pyarrow.parquet.read_table(file, partitioning=None))
    return pa.concat_tables(tables)


def _as_table(asked: Asked) -> Asked:
    """Return what is asked of a table with a row for each step.

    Raises SchemaError if columns are packed.
    """
    file, where = asked.files[0], asked.sources[0]
    with reading_arrow(where):
        import pyarrow.parquet

        kinds = {one.name: str(one.type) for one in pyarrow.parquet.read_schema(file)}
    for name in PACKED:
        if kinds.get(name) in ("string", "large_string", "binary"):
            raise SchemaError(f"{where}, {name}: {_about_packed([*kinds], asked.files)}")
    columns = {role: name for role, name in ROWS.items() if name in kinds}
    options = dataclasses.replace(asked.options, columns=columns, episode="eps_id")
    return dataclasses.replace(asked, options=options)


def _refuse_packed_lines(asked: Asked) -> None:
    """Refuse lines of JSON with packed columns, by the first line.

    Raises SchemaError.
    """
    body = None
    with asked.files[0].open("rb") as lines, contextlib.suppress(ValueError, RecursionError):
        body = json.loads(lines.readline(LARGEST_LINE))
    for name in PACKED:
        if isinstance(body, dict) and isinstance(body.get(name), str):
            what = _about_packed([*body], asked.files)
            raise SchemaError(f"{asked.sources[0]}, {name}: {what}")


def _about_packed(names: Sequence[str], files: Sequence[Path]) -> str:
    """Return why packed columns are not read, and lines that write them as npz."""
    is_json = files[0].suffix == ".json"
    listed = repr([str(one) for one in files])
    if len(files) > 4:
        folders = list(dict.fromkeys(str(one.parent) for one in files))
        inner = f"sorted(glob.glob(folder + '/*{files[0].suffix}'))"
        listed = f"[file for folder in {folders} for file in {inner}]"
    roles = {"obs": "obs", "new_obs": "new_obs", "actions": "actions", "rewards": "rewards"}
    roles |= {"action_logp": "action_log_probs", "eps_id": "episodes"}
    roles |= {"terminateds" if "terminateds" in names else "dones": "terminals"}
    taken = {name: role for name, role in roles.items() if name in names}
    keys = ["eps_id", "t"] if "t" in names else ["eps_id"]
    if is_json:
        rows = "[json.loads(line) for file in files for line in open(file)]"
        joined = "np.concatenate([unpack(row[name], name) for row in rows])"
    else:
        rows = "[row for file in files for row in pq.read_table(file).to_pylist()]"
        joined = "np.array([unpack(row[name], name) for row in rows])"
    lines = [
        "import base64, glob, json, pickle",
        "import lz4.frame, numpy as np, pyarrow.parquet as pq  # pip install lz4",
        "from orlog.datasets.unpickled import save_rows",
        f"files = {listed}",
        "def unpack(value, name):",
        "    if name == 'eps_id' or not isinstance(value, str): return value",
        "    return pickle.loads(lz4.frame.decompress(base64.b64decode(value)))",
        f"rows = {rows}",
        f"columns = {{name: {joined} for name in {[*taken, *keys[1:]]}}}",
        f"order = np.lexsort([columns[name] for name in {keys[::-1]}])",
        f"save_rows({{role: columns[name][order] for name, role in {taken}.items()}})",
    ]
    program = "".join(f"    {line}\n" for line in lines)
    return (
        "is packed by RLlib as a pickle, and reading a pickle runs the program in it. Where you trust it, "
        f"convert it yourself:\n{program}Then: orlog import data.npz NAME\n"
        "RLlib writes it plainly with config.offline_data(output_compress_columns=[])."
    )


def _joined(several: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Return the rows of all lines, as numbers that each of them can hold."""
    dtype, first, parts = np.result_type(*several), 0, []
    for one in several:
        parts.append(as_dtype(one, dtype, where, first))
        first += len(one)
    return np.concatenate(parts)


def _batch(line: bytes, where: str) -> dict[str, np.ndarray]:
    """Return the columns of a line."""
    try:
        body = json.loads(line, parse_float=finite_float)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: no JSON: {error}.", file=where) from error
    if not isinstance(body, dict) or any(name not in body for name in NEEDED):
        raise SchemaError(f"{where}: expected a batch of RLlib with {', '.join(NEEDED)}.")
    found = {}
    for name in NAMES:
        if name not in body:
            continue
        if isinstance(body[name], str):
            raise SchemaError(
                f"{where}, {name}: is packed by RLlib as a pickle, which is not read; the first line is not."
            )
        flag = name in ("terminateds", "truncateds", "dones")
        with reading_npz(f"{where}, {name}"):
            values = numbers_in(body[name], f"{where}, {name}")
            if values.dtype.kind not in "biuf" or not values.ndim:
                raise SchemaError(f"{where}, {name}: expected numbers, a row a step.")
        found[name] = values.astype(bool) if flag else values
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) != 1:
        raise SchemaError(f"{where}: its columns differ in length: {lengths}.")
    return found


KNOWN = ArrayLayout(
    columns={
        "observation": "obs",
        "action": "actions",
        "reward": "rewards",
        "next_observation": "new_obs",
        "terminated": "terminated",
        "truncated": "truncateds",
        "infos/action_log_probs": "action_log_probs",
    },
    episode="eps_id",
    places=Places(_files, _open_file),
)


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
    """Where a piece lies: a file, what errors call it, and the row."""

    file: Path
    where: str
    row: int
    size: int


Group = list[list[_Lying]]
"""Where the pieces of some episodes lie."""


def _groups(asked: Asked) -> list[Group]:
    """Return where the pieces of each episode lie, in their order; episodes are in that of their first pieces.

    A group is read at once, since a row of a table is found by decoding all before it.
    """
    lying: dict[str, list[tuple[int, _Lying]]] = {}
    for file, where in zip(asked.files, asked.sources, strict=True):
        rows = (row for batch in batches_of(file, where, [ITEM]) for row in batch.column(0))
        for number, row in enumerate(rows):
            with reading_arrow(where):
                data = row.as_py()
            if not isinstance(data, bytes):
                raise SchemaError(f"{where}, row {number}: expected the bytes of an episode.")
            piece = _decoded(data, f"{where}, row {number}")
            place = piece.t_started, _Lying(file, where, number, len(data))
            lying.setdefault(piece.id_, []).append(place)
    groups: list[Group] = []
    left = 0
    for several in lying.values():
        if left <= 0:
            groups.append([])
            left = GROUP_BYTES
        groups[-1].append([place for _, place in sorted(several)])
        left -= sum(place.size for _, place in several)
    return groups


def _read_group(group: Group) -> dict[tuple[Path, int], bytes]:
    """Return the rows of a group by their files and numbers."""
    wanted: dict[tuple[Path, str], set[int]] = {}
    for lying in itertools.chain.from_iterable(group):
        wanted.setdefault((lying.file, lying.where), set()).add(lying.row)
    largest = max(lying.size for lying in itertools.chain.from_iterable(group))
    held = {}
    for (file, where), rows in wanted.items():
        first, at_once = min(rows), max(1, min(MOST_ROWS, GROUP_BYTES // max(1, largest)))
        with reading_arrow(where):
            batches = table_batches(file, at_once, first, max(rows) + 1)
            values = (value for batch in batches for value in batch.column(ITEM))
            for number, value in enumerate(values, first):
                if number in rows:
                    held[file, number] = value.as_py()
    return held


def _open_group(group: Group, _options: Options) -> Generator[Place]:
    """Yield the episodes of a group, but those without steps."""
    held = _read_group(group)
    for lying in group:
        joined = _episode_of(lying, held)
        if len(joined["rewards"]):
            where = f"{lying[0].where}, row {lying[0].row}"
            yield Place(where, sorted(joined), joined.__getitem__, reading_npz)


def _decoded(data: bytes, where: str) -> _Piece:
    try:
        return msgspec.msgpack.decode(data, type=_Piece)
    except (msgspec.MsgspecError, TypeError) as error:
        raise IntegrityError(
            f"{where}: cannot be read as an episode of RLlib: {error}.", file=where
        ) from error


def _episode_of(lying: list[_Lying], held: dict[tuple[Path, int], bytes]) -> dict[str, np.ndarray]:
    """Return the arrays of an episode, whose pieces are joined.

    Raises SchemaError if steps between two pieces are not there.
    """
    parts: list[dict[str, np.ndarray]] = []
    after = None
    for file, source, row, _ in lying:
        own = f"{source}, row {row}"
        piece = _decoded(held.pop((file, row)), own)
        if after not in (None, piece.t_started):
            raise SchemaError(
                f"{own}: episode {piece.id_} goes on at step {piece.t_started}, and the piece before it ends "
                f"at step {after}; give all files of the recording."
            )
        with reading_npz(own):
            arrays = _arrays_of(piece, own)
        after = piece.t_started + len(arrays["rewards"])
        if parts:  # it begins with the last observation of the piece before it
            parts[-1] = {
                name: values[:-1] if name.split("/")[0] == "obs" else values
                for name, values in parts[-1].items()
            }
        parts.append(arrays)
    with reading_npz(lying[0].where):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _arrays_of(piece: _Piece, where: str) -> dict[str, np.ndarray]:
    """Return the arrays of a piece, those of a Dict of observations as `obs/NAME`."""
    found: dict[str, np.ndarray] = {}
    buffers = {"obs": piece.observations, "actions": piece.actions, "rewards": piece.rewards}
    for name, buffer in (*buffers.items(), *(piece.extra_model_outputs or {}).items()):
        if buffer is not None:
            values = _unpacked(buffer.data, name, where)
            found |= {key: several[buffer.lookback :] for key, several in values.items()}
    rows = len(found["rewards"])
    for name, flag in (("terminated", piece.is_terminated), ("truncated", piece.is_truncated)):
        found[name] = np.zeros(rows, bool)
        found[name][-1:] = _unpacked(flag, name, where)[name]
    if "action_logp" in found:
        found["action_log_probs"] = found.pop("action_logp")
    return found


def _unpacked(value: Any, name: str, where: str) -> dict[str, np.ndarray]:
    """Return what msgpack holds as arrays by their names: an array, a number, or a list or dict of these.

    Raises SchemaError if an array holds Python objects, which are pickles.
    """
    if isinstance(value, dict) and b"nd" in value:
        if value.get(b"kind") in (b"O", b"V"):
            raise SchemaError(f"{where}, {name}: holds Python objects, which are not read.")
        array = np.frombuffer(value[b"data"], np.dtype(value[b"type"]))
        return {name: array.reshape(value[b"shape"] if value[b"nd"] else ())}
    if isinstance(value, dict):
        found: dict[str, np.ndarray] = {}
        for key, inner in value.items():
            found |= _unpacked(inner, f"{name}/{key}", where)
        return found
    if isinstance(value, list):
        several = [_unpacked(one, name, where) for one in value]
        names: Iterable[str] = several[0] if several else [name]
        return {key: np.array([one[key] for one in several]) for key in names}
    return {name: np.asarray(value)}


EPISODES = ArrayLayout(
    columns={**KNOWN.columns, "observation/*": "obs/*", "truncated": "truncated"},
    places=Places(_groups, _open_group),
)


def _recognizes(files: Sequence[Path]) -> bool:
    if not files[0].is_dir():
        return _is_ours(files[0])
    inside = itertools.islice(files[0].rglob("*"), MOST_LOOKED_AT)
    return _is_ours(next((one for one in inside if one.suffix.lower() in ENDINGS), files[0]))


FORMAT = Format(
    name="rllib",
    open=_open,
    recognizes=_recognizes,
    extensions=("", *ENDINGS),
    options=("horizon", "ends", "sort"),
    shares=True,
    reads=("type", ITEM, *NAMES, "./*.json"),
)
