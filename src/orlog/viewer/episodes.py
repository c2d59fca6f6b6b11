"""The list of episodes: pages of columns, in any order, of those that meet an expression."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.reading.operations import episodes_where
from orlog.datasets.reading.source import episode_column
from orlog.errors import NotFoundError, OrlogError, SchemaError, VersionExistsError
from orlog.manifests.columns import is_part, offsets_column, values_column
from orlog.viewer.opened import Shown

ENDS = ("no flag", "terminated", "truncated", "terminated and truncated")
EPISODE, END = "episode", "end"
MOST_ROWS = 1000
LONGEST_TEXT = 200
LARGEST_EXACT = 2**53
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


class EpisodeList:
    """The episodes of a dataset as a table. Orders are kept, so that scrolling costs one page."""

    def __init__(self, shown: Shown) -> None:
        self.shown = shown
        dataset, schema = shown.dataset, shown.dataset.schema
        specs = {name: spec for name, spec in schema.columns().items() if not is_part(name)}
        own = [name for name in specs if name.startswith("episodes/")]
        own += [name for name in schema.variable if name.startswith("episodes/")]
        first = ["returns", "lengths"]
        names = [
            name.removeprefix("episodes/")
            for name in own
            if name in dataset.columns or name in schema.variable
        ]
        self.names = [EPISODE, *first, END, *sorted(name for name in names if name not in first)]
        self.sortable = [
            name
            for name in self.names
            if name in (EPISODE, END)
            or schema.variable.get(f"episodes/{name}") == "text"
            or (f"episodes/{name}" in specs and specs[f"episodes/{name}"].shape == ())
        ]
        self.texts = [name for name in self.names if f"episodes/{name}" in schema.variable]
        self._order = functools.lru_cache(maxsize=4)(self._find_order)

    def page(
        self, *, where: str, by: str, descending: bool, first: int, count: int
    ) -> dict[str, Any]:
        """Return rows `first` to `first + count - 1`, at most 1,000, of the episodes that `where` selects, by column.

        They are sorted by a column; what is not a number is always last. Returned are `matching` and `total`
        episodes, `columns` with a list of values by name, and `errors` with the columns that cannot be read.
        """
        order = self._order(where.strip(), by, descending)
        positions = order[max(0, first) : max(0, first) + min(max(0, count), MOST_ROWS)]
        columns: dict[str, Sequence[Any]] = {}
        errors: dict[str, str] = {}
        for name in self.names:
            try:
                columns[name] = self.values(name, positions)
            except (OrlogError, OSError, UnicodeDecodeError) as error:
                errors[name] = str(error)
        return {
            "total": self.shown.dataset.total_episodes,
            "matching": len(order),
            "first": first,
            "columns": columns,
            "errors": errors,
        }

    def row_of(self, episode: int, *, where: str, by: str, descending: bool) -> int | None:
        """Return the row of an episode in the list; None if it does not meet the expression."""
        found = np.flatnonzero(self._order(where.strip(), by, descending) == episode)
        return int(found[0]) if len(found) else None

    def values(self, name: str, positions: np.ndarray) -> list[Any]:
        """Return what the list shows of a column, for episodes by their positions.

        Raises IntegrityError if a file is damaged.
        """
        dataset = self.shown.dataset
        if name == EPISODE:
            return list(positions.tolist())
        if name == END:
            return [ENDS[code] for code in self.ends(positions).tolist()]
        if name == "lengths":
            return list(dataset.episode_lengths[positions].tolist())
        column = f"episodes/{name}"
        kind = dataset.schema.variable.get(column)
        if kind is None:
            found = dataset.rows(column, positions)
            return [_cell(one) for one in found.tolist()]
        ends = self.shown.selection.read(offsets_column(column), positions).tolist()
        values = self.shown.selection.read(values_column(column), positions)
        cut = [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        if kind == "text":
            return [one.tobytes().decode() for one in cut]
        return [_shortened(str(one.tolist())) for one in cut]

    def ends(self, positions: np.ndarray) -> np.ndarray:
        """Return how episodes ended: places in `ENDS`, (n,) int64.

        Raises IntegrityError if a file is damaged.
        """
        dataset = self.shown.dataset
        lasts = dataset.episode_starts[positions] + dataset.episode_lengths[positions] - 1
        codes = dataset.rows("terminations", lasts).astype(np.int64)
        codes += 2 * dataset.rows("truncations", lasts).astype(np.int64)
        return codes

    def _find_order(self, where: str, by: str, descending: bool) -> np.ndarray:
        dataset = self.shown.dataset
        chosen = np.arange(dataset.total_episodes)
        if where:
            chosen = np.flatnonzero(episodes_where(dataset, where))
        if by not in self.sortable:
            raise SchemaError(f"{self.shown.title}: episodes cannot be sorted by {by!r:.100}.")
        if by == EPISODE:
            return chosen[::-1] if descending else chosen
        if by == END:
            values = self.ends(chosen)
        elif by == "lengths":
            values = dataset.episode_lengths[chosen]
        else:
            values = episode_column(dataset, f"episodes/{by}")[chosen]
        last = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)
        known, unknown = np.flatnonzero(~last), np.flatnonzero(last)
        if descending:  # equal values stay in the order of episodes
            order = len(known) - 1 - np.argsort(values[known][::-1], kind="stable")[::-1]
        else:
            order = np.argsort(values[known], kind="stable")
        found: np.ndarray = chosen[np.concatenate([known[order], unknown])]
        return found


def save_filtered(shown: Shown, *, where: str, name: str, folder: Path) -> Path:
    """Save the episodes that meet an expression, which is not empty, as a view: a new file `NAME.json` in a folder.

    The name has letters, digits, `_`, `.` and `-`; a file that is there is never replaced.
    """
    if not where.strip():
        raise ValueError("a view needs an expression: write one into the filter first.")
    stem = name.removesuffix(".json")
    if _FILE_NAME.fullmatch(stem) is None:
        raise ValueError(
            f"{name!r:.100} is no name for a view: use at most 80 letters, digits, '_', '.' and '-', and "
            "begin with a letter or a digit."
        )
    path = folder / f"{stem}.json"
    if path.exists() or path.is_symlink():
        raise VersionExistsError(f"{path.name} exists in {folder}; choose another name.")
    view = shown.dataset.filter_episodes(where)
    if not view.total_episodes:
        raise NotFoundError("no episode meets the expression, so there is nothing to save.")
    return view.save(path)


def _cell(value: Any) -> Any:
    """Return a value for the page: rows and numbers that JavaScript would round as text."""
    is_exact = not isinstance(value, list) and not (
        type(value) is int and abs(value) > LARGEST_EXACT
    )
    return value if is_exact else _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
