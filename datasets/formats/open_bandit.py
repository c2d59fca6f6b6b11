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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.formats.arrow_files import array_of, check_pyarrow, reading_arrow
from orlog.datasets.formats.episode_cutter import MISSING
from orlog.datasets.formats.episodes import Asked, Opened, Steps
from orlog.datasets.formats.formats import Format
from orlog.datasets.formats.mapped_arrays import unbounded_space
from orlog.datasets.formats.notes import Note
from orlog.datasets.formats.roles import by_numbers
from orlog.errors import SchemaError

ITEMS = "item_context.csv"
ID, POSITION, CLICK, CHANCE = NEEDED = ("item_id", "position", "click", "propensity_score")
TIME, USER, AFFINITY, ITEM = "timestamp", "user_feature_", "user-item_affinity_", "item_feature_"
BLOCK_BYTES = 2**22
MOST = 2**20
"""Most items, positions or texts of a feature: a file with more is no such log."""
Block = dict[str, np.ndarray]
"""Rows of some columns, by name."""


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    log_file, items_file = _files(asked)
    log = _Log(log_file, asked.sources[0])
    parts: dict[str, spaces.Space[Any]] = {"position": spaces.Discrete(log.positions)}
    if log.affinities:
        parts["affinity"] = unbounded_space(np.dtype(np.float64), (len(log.affinities),))
    if log.texts:
        parts["user"] = spaces.MultiDiscrete([len(texts) for texts in log.texts.values()])
    features = {} if items_file is None else _item_features(items_file, log)
    items = max([log.items, *(len(values) for values in features.values())])
    schema = Schema(
        observation_space=spaces.Dict(parts), action_space=spaces.Discrete(items), reward_dtype=np.dtype(np.float64)
    )
    opened = Opened(schema=schema, steps=_steps(log, features), total_steps=log.rows)
    unread = [
        f"{file.name}:{name}"
        for file in filter(None, (log_file, items_file))
        for name in _names(file, asked.sources[0])
        # A first column of the numbers of rows has no name.
        if name not in ("", TIME, *NEEDED) and not name.startswith((USER, AFFINITY, ITEM))
    ]
    opened.notes += [Note("columns_not_read", unread)] if unread else []
    opened.notes += [Note("left_out_items", [ITEMS])] if items_file is None else []
    opened.notes.append(Note("bandit_rows"))
    yield opened


def _files(asked: Asked) -> tuple[Path, Path | None]:
    """Return the file of choices, and that of items if it is there."""
    given = list(asked.files)
    if given[0].is_dir():
        given = sorted(given[0].glob("*.csv"))
    logs = [file for file in given if file.name != ITEMS]
    if len(logs) != 1:
        raise SchemaError(f"{asked.sources[0]}: expected one file of choices beside {ITEMS}, found {len(logs)}.")
    return logs[0], next((file for file in given if file.name == ITEMS), None)


class _Log:
    """The choices, all of which are read once to see what there is.

    Attributes:
        where: What errors call the file.
        affinities: Columns of affinities.
        texts: The texts of each feature of users, sorted.
        rows: Choices.
        items: 1 above the largest item.
        positions: The largest position.
    """

    def __init__(self, file: Path, where: str) -> None:
        """Read all choices."""
        self._file, self.where = file, where
        names = sorted(_names(file, where), key=by_numbers)
        for needed in NEEDED:
            if needed not in names:
                raise SchemaError(f"{where}: has no column {needed}, which Open Bandit's logs have.")
        self.affinities = [name for name in names if name.startswith(AFFINITY)]
        self._texts = [name for name in names if name.startswith(USER) or name == TIME]
        seen: dict[str, set[str]] = {name: set() for name in self._texts if name != TIME}
        self.rows = self.items = self.positions = 0
        for block in self.blocks():
            _check(block, where, self.rows)
            for name, texts in seen.items():
                texts.update(block[name].tolist())
            self.rows += len(block[CLICK])
            self.items = max(self.items, int(block[ID].max()) + 1)
            self.positions = max(self.positions, int(block[POSITION].max()))
        if not self.rows:
            raise SchemaError(f"{where}: holds no choices.")
        self.texts = {name: np.array(sorted(texts), object) for name, texts in seen.items()}

    def blocks(self) -> Iterator[Block]:
        """Yield the columns that mean something, in blocks of rows."""
        columns = [*NEEDED, *self.affinities, *self._texts]
        yield from _blocks(self._file, self.where, columns, self._texts)


def _check(block: Block, where: str, first: int) -> None:
    """Refuse numbers that are none of such a log; `first` is the row of the first one."""
    for name, lowest, highest in ((ID, 0, MOST), (POSITION, 1, MOST), (CLICK, 0, 1), (CHANCE, 0, 1)):
        values = block[name]
        wrong = ~((values >= lowest) & (values <= highest)) | ((name == CHANCE) & (values == 0))
        if wrong.any():
            row = int(wrong.argmax())
            raise SchemaError(f"{where}: {name} is {values[row]} at row {first + row}, expected {lowest} to {highest}.")


def _item_features(file: Path, log: _Log) -> dict[str, np.ndarray]:
    """Return each feature of the items, a row for each item; texts by their places in sorted order."""
    where = str(file)
    names = sorted((name for name in _names(file, where) if name.startswith(ITEM)), key=by_numbers)
    blocks = [*_blocks(file, where, [ID, *names], [])]
    if not blocks:
        raise SchemaError(f"{where}: holds no items.")
    items, *columns = (np.concatenate([block[name] for block in blocks]) for name in (ID, *names))
    order = np.argsort(items, kind="stable")
    if not np.array_equal(items[order], np.arange(len(items))):
        raise SchemaError(f"{where}: item_id must have each number from 0 on once.")
    if len(items) < log.items:
        raise SchemaError(f"{where}: has no item {len(items)}, which {log.where} shows.")
    features = {}
    for name, values in zip(names, columns, strict=True):
        is_text = values.dtype.kind == "O"
        numbers = np.unique(values.astype(str), return_inverse=True)[1] if is_text else values
        features[name] = numbers.astype(np.int64 if is_text else np.float64)[order]
    return features


def _steps(log: _Log, features: dict[str, np.ndarray]) -> Iterator[Steps]:
    for block in log.blocks():
        items, rewards = block[ID].astype(np.int64), block[CLICK].astype(np.float64)
        observations: Block = {"position": block[POSITION].astype(np.int64) - 1}
        if log.affinities:
            affinities = np.stack([block[name] for name in log.affinities], 1)
            observations["affinity"] = affinities.astype(np.float64)
        if log.texts:
            places = [np.searchsorted(texts, block[name]) for name, texts in log.texts.items()]
            observations["user"] = np.stack(places, 1).astype(np.int64)
        infos = {"action_log_probs": np.log(block[CHANCE].astype(np.float64))}
        infos |= {name: values[items] for name, values in features.items()}
        if TIME in block:
            infos[TIME] = _microseconds(block[TIME], log.where)
        for number in range(len(items)):
            row = slice(number, number + 1)
            yield Steps(
                observations={
                    name: np.concatenate([values[row], np.zeros_like(values[row])])
                    for name, values in observations.items()
                },
                actions=items[row],
                rewards=rewards[row],
                terminated=True,
                infos={name: values[row] for name, values in infos.items()},
                metadata={MISSING: True},
            )


def _microseconds(texts: np.ndarray, where: str) -> np.ndarray:
    try:
        plain = [text.removesuffix("+00:00").removesuffix(" UTC").strip() for text in texts]
        return np.array(plain, "datetime64[us]").astype(np.int64)
    except ValueError as error:
        raise SchemaError(f"{where}: {TIME} is no time in UTC: {error!s:.80}.") from error


def _names(file: Path, where: str) -> list[str]:
    with reading_arrow(where), _reader(file, None, []) as reader:
        return list(reader.schema.names)


def _blocks(file: Path, where: str, columns: list[str], texts: Sequence[str]) -> Iterator[Block]:
    """Yield rows of some columns, of which some hold texts whatever they look like."""
    first = 0
    with reading_arrow(where), _reader(file, columns, texts) as reader:
        for batch in reader:
            yield {name: array_of(batch.column(name), name, where, first) for name in columns}
            first += batch.num_rows


def _reader(file: Path, columns: list[str] | None, texts: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    if file.is_symlink():
        raise SchemaError(f"{file}: is a link, which is not followed.")
    affinities = [name for name in columns or () if name.startswith(AFFINITY)]
    convert = pyarrow.csv.ConvertOptions(
        include_columns=columns,
        column_types={
            **dict.fromkeys(texts, pa.string()),
            **dict.fromkeys((ID, POSITION, CLICK), pa.int64()),
            **dict.fromkeys((CHANCE, *affinities), pa.float64()),
        },
        strings_can_be_null=False,
    )
    read = pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES)
    return pyarrow.csv.open_csv(file, read, convert_options=convert)


def is_open_bandit(files: Sequence[Path]) -> bool:
    """Return whether files, or a folder, hold choices as the Open Bandit Dataset has them."""
    given = list(files)
    try:
        if given[0].is_dir():
            given = [file for file in given[0].iterdir() if file.suffix == ".csv"]
        logs = [file for file in given if file.suffix == ".csv" and file.name != ITEMS]
        if len(logs) != 1 or len(given) > 2:
            return False
        with logs[0].open("rb") as opened:
            names = opened.readline(2**16).decode("utf-8", "replace").strip().split(",")
    except OSError:
        return False
    return {*NEEDED} <= {name.strip('"') for name in names}


FORMAT = Format(
    name="open-bandit",
    open=_open,
    recognizes=is_open_bandit,
    extensions=(".csv", ""),
    check=check_pyarrow,
    reads=("./*.csv",),
)
