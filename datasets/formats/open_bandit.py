"""Reads the Open Bandit Dataset (Saito and others 2021, https://arxiv.org/abs/2008.07146): logged choices in CSV.

    all.csv            [number]  timestamp  item_id  position  click  propensity_score
                       user_feature_0 .. (texts)  user-item_affinity_0 .. (numbers)           one row for each choice
    item_context.csv   [number]  item_id  item_feature_0 (a number)  item_feature_1 .. (texts)

as the folder of a campaign (`random/all`, with `all.csv`, `men.csv` or `women.csv`), or its files. Each row is an
episode of one step that terminates:

    observations  a Dict: `affinity`, numbers; `position`, 0 to the right-most place less one, counted from 0 on
                  the left; `user`, the places of the features' texts in their sorted order
    actions       item_id
    rewards       click
    infos         action_log_probs, the logarithm of propensity_score; timestamp, microseconds since 1970;
                  item_feature_0 .. of the item that was shown, texts by their places as above

What came after a choice was not recorded. st-tech/zr-obp (`obp/dataset/real.py`) reads the same files, puts rows in the
order of time and user features into one-hot columns of which the first is dropped; here rows stay in their order.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats._shared.arrow_files import array_of, check_pyarrow, reading_arrow
from orlog.datasets.formats._shared.episode_cutter import MISSING
from orlog.datasets.formats._shared.episodes import Asked, Opened, Steps
from orlog.datasets.formats._shared.flat_rows import unbounded_space
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.roles import by_numbers
from orlog.datasets.formats.formats import Format
from orlog.errors import SchemaError

ITEMS = "item_context.csv"
NEEDED = ("item_id", "position", "click", "propensity_score")
TIME, USER, AFFINITY, ITEM = "timestamp", "user_feature_", "user-item_affinity_", "item_feature_"
BLOCK_BYTES = 2**22
MOST = 2**20
"""Most items, positions or texts of a feature: a file with more is no such log."""


@dataclasses.dataclass(kw_only=True)
class _Log:
    """What a first reading of the choices found.

    Attributes:
        file: The file.
        where: What errors call it.
        names: Its columns.
        rows: Choices.
        items: 1 above the largest item.
        positions: The largest position.
        texts: The texts of each feature of users, sorted.
    """

    file: Path
    where: str
    names: list[str]
    rows: int = 0
    items: int = 0
    positions: int = 0
    texts: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def named(self, start: str) -> list[str]:
        """Return the columns of a kind, by their numbers."""
        return sorted((one for one in self.names if one.startswith(start)), key=by_numbers)

    def blocks(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield the first row of each block, and its columns."""
        first = 0
        texts = [TIME, *self.named(USER)]
        wanted = [*NEEDED, *self.named(AFFINITY), *(one for one in texts if one in self.names)]
        for batch in _batches(self.file, self.where, wanted, texts):
            columns = {
                name: array_of(column, name, self.where, first)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
            yield first, columns
            first += batch.num_rows


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    log_file, items_file = _files(asked)
    log = _checked(log_file, asked.sources[0])
    users = {one: len(log.texts[one]) for one in log.named(USER)}
    parts: dict[str, spaces.Space[Any]] = {"position": spaces.Discrete(log.positions)}
    if affinities := len(log.named(AFFINITY)):
        parts["affinity"] = unbounded_space(np.dtype(np.float64), (affinities,))
    if users:
        parts["user"] = spaces.MultiDiscrete([*users.values()])
    features = {} if items_file is None else _item_features(items_file, log)
    schema = Schema(
        observation_space=spaces.Dict(parts),
        action_space=spaces.Discrete(max([log.items, *(len(one) for one in features.values())])),
        reward_dtype=np.dtype(np.float64),
    )
    opened = Opened(schema=schema, steps=_steps(log, features), total_steps=log.rows)
    files = [log_file] if items_file is None else [log_file, items_file]
    if unread := [one for file in files for one in _unread(file, asked.sources[0])]:
        opened.notes.append(Note("columns_not_read", unread))
    if items_file is None:
        opened.notes.append(Note("left_out_items", [ITEMS]))
    opened.notes.append(Note("bandit_rows"))
    yield opened


def _files(asked: Asked) -> tuple[Path, Path | None]:
    """Return the file of choices, and that of items if it is there.

    Raises SchemaError unless there is exactly one file of choices.
    """
    given = list(asked.files)
    if len(given) == 1 and given[0].is_dir():
        given = sorted(given[0].glob("*.csv"))
    logs = [one for one in given if one.name != ITEMS]
    if len(logs) != 1:
        raise SchemaError(
            f"{asked.sources[0]}: expected one file of choices beside {ITEMS}, found {len(logs)}; import each "
            "campaign as a dataset of its own."
        )
    return logs[0], next((one for one in given if one.name == ITEMS), None)


def _checked(file: Path, where: str) -> _Log:
    """Read all choices once.

    Raises SchemaError if a number is none of such a log; IntegrityError if the file cannot be read.
    """
    log = _Log(file=file, where=where, names=_names(file, where))
    lacking = [one for one in NEEDED if one not in log.names]
    if lacking:
        raise SchemaError(f"{where}: has no column {lacking[0]}, which Open Bandit's logs have.")
    texts: dict[str, set[str]] = {one: set() for one in log.named(USER)}
    for first, columns in log.blocks():
        for name, lowest, highest in (("item_id", 0, MOST), ("position", 1, MOST), ("click", 0, 1)):
            values = columns[name]
            _refuse(values.dtype.kind not in "iu", values, name, f"{where}, row {first}")
            wrong = (values < lowest) | (values > highest)
            _refuse(wrong, values, name, where, first)
        chances = columns["propensity_score"]
        _refuse(chances.dtype.kind not in "fiu", chances, "propensity_score", where)
        _refuse(~((chances > 0) & (chances <= 1)), chances, "propensity_score", where, first)
        for name, seen in texts.items():
            seen.update(columns[name].tolist())
        log.rows = first + len(chances)
        log.items = max(log.items, int(columns["item_id"].max()) + 1)
        log.positions = max(log.positions, int(columns["position"].max()))
    if not log.rows:
        raise SchemaError(f"{where}: holds no choices.")
    log.texts = {name: np.array(sorted(seen), object) for name, seen in texts.items()}
    return log


def _refuse(wrong: Any, values: np.ndarray, name: str, where: str, first: int = 0) -> None:
    if np.any(wrong):
        row = int(np.argmax(wrong)) if np.ndim(wrong) else 0
        raise SchemaError(
            f"{where}: {name} is {str(values[row])[:40]} at row {first + row}; items count from 0, positions "
            "from 1, clicks are 0 or 1, and a propensity lies in (0, 1]."
        )


def _item_features(file: Path, log: _Log) -> dict[str, np.ndarray]:
    """Return each feature of the items, a row for each item; texts by their places in sorted order.

    Raises SchemaError if an item is missing or there twice; IntegrityError if the file cannot be read.
    """
    where = str(file)
    names = sorted((one for one in _names(file, where) if one.startswith(ITEM)), key=by_numbers)
    pieces: dict[str, list[np.ndarray]] = {one: [] for one in ("item_id", *names)}
    for batch in _batches(file, where, list(pieces), []):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            pieces[name].append(array_of(column, name, where, 0))
    if not pieces["item_id"]:
        raise SchemaError(f"{where}: holds no items.")
    found = {name: np.concatenate(several) for name, several in pieces.items()}
    items = found.pop("item_id")
    order = np.argsort(items, kind="stable")
    if items.dtype.kind not in "iu" or not np.array_equal(items[order], np.arange(len(items))):
        raise SchemaError(f"{where}: item_id must have each number from 0 on once.")
    if len(items) < log.items:
        raise SchemaError(f"{where}: has no item {len(items)}, which {log.where} shows.")
    features = {}
    for name, values in found.items():
        is_text = values.dtype.kind == "O"
        numbers = np.unique(values.astype(str), return_inverse=True)[1] if is_text else values
        features[name] = numbers.astype(np.int64 if is_text else np.float64)[order]
    return features


def _steps(log: _Log, features: dict[str, np.ndarray]) -> Iterator[Steps]:
    affinities, users = log.named(AFFINITY), log.named(USER)
    for _, columns in log.blocks():
        items = columns["item_id"].astype(np.int64)
        observations: dict[str, np.ndarray] = {"position": columns["position"].astype(np.int64) - 1}
        if affinities:
            observations["affinity"] = np.stack([columns[one] for one in affinities], 1).astype(
                np.float64
            )
        if users:
            places = [np.searchsorted(log.texts[one], columns[one]) for one in users]
            observations["user"] = np.stack(places, 1).astype(np.int64)
        infos = {
            "action_log_probs": np.log(columns["propensity_score"].astype(np.float64)),
            **{name: values[items] for name, values in features.items()},
        }
        if TIME in columns:
            infos[TIME] = _microseconds(columns[TIME], log.where)
        rewards = columns["click"].astype(np.float64)
        for row in range(len(items)):
            one = slice(row, row + 1)
            yield Steps(
                observations={
                    name: np.concatenate([values[one], np.zeros_like(values[one])])
                    for name, values in observations.items()
                },
                actions=items[one],
                rewards=rewards[one],
                terminated=True,
                infos={name: values[one] for name, values in infos.items()},
                metadata={MISSING: True},
            )


def _microseconds(texts: np.ndarray, where: str) -> np.ndarray:
    try:
        plain = [one.removesuffix("+00:00").removesuffix(" UTC").strip() for one in texts]
        return np.array(plain, "datetime64[us]").astype(np.int64)
    except ValueError as error:
        raise SchemaError(f"{where}: {TIME} is no time in UTC: {error!s:.80}.") from error


def _names(file: Path, where: str) -> list[str]:
    with reading_arrow(where), _reader(file, None, []) as reader:
        return list(reader.schema.names)


def _unread(file: Path, where: str) -> list[str]:
    """Return the columns of a file that mean nothing here; a first one of numbers of rows has no name."""
    known = ("", TIME, *NEEDED)
    return [
        f"{file.name}:{name}"
        for name in _names(file, where)
        if name not in known and not name.startswith((USER, AFFINITY, ITEM))
    ]


def _batches(file: Path, where: str, columns: list[str], texts: Sequence[str]) -> Iterator[Any]:
    with reading_arrow(where), _reader(file, columns, texts) as reader:
        yield from reader


@contextlib.contextmanager
def _reader(file: Path, columns: list[str] | None, texts: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.csv

    if file.is_symlink():
        raise SchemaError(f"{file}: is a link, which is not followed.")
    read = pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES)
    numbers = [one for one in columns or () if one.startswith(AFFINITY)]
    convert = pyarrow.csv.ConvertOptions(
        include_columns=columns,
        column_types={
            **dict.fromkeys(texts, pa.string()),
            **dict.fromkeys(("item_id", "position", "click"), pa.int64()),
            **dict.fromkeys(("propensity_score", *numbers), pa.float64()),
        },
        strings_can_be_null=False,
    )
    with pyarrow.csv.open_csv(file, read, convert_options=convert) as reader:
        yield reader


def is_open_bandit(files: Sequence[Path]) -> bool:
    """Return whether files, or a folder, hold choices as the Open Bandit Dataset has them."""
    given = list(files)
    try:
        if len(given) == 1 and given[0].is_dir():
            given = [one for one in given[0].iterdir() if one.suffix == ".csv"]
        logs = [one for one in given if one.suffix == ".csv" and one.name != ITEMS]
        if len(logs) != 1 or len(given) - 1 > 1:
            return False
        with logs[0].open("rb") as file:
            names = file.readline(2**16).decode("utf-8", "replace").strip().split(",")
    except OSError:
        return False
    return {*NEEDED} <= {one.strip('"') for one in names}


FORMAT = Format(
    name="open-bandit",
    open=_open,
    recognizes=is_open_bandit,
    extensions=(".csv", ""),
    check=check_pyarrow,
    reads=("./*.csv",),
)
