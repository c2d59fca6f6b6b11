"""What `orlog open` was given, and nothing else: datasets with their lists of episodes, folders of runs, reports."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import as_folder, holds_manifest
from orlog.datasets.reading.selection import Selection, episode_column
from orlog.datasets.reading.views import episodes_where
from orlog.datasets.store.version import StoredVersion
from orlog.errors import NotFoundError, OrlogError, SchemaError, VersionExistsError
from orlog.manifests.columns import is_part, offsets_column, values_column

REPORT = "report.html"
RUN_FILE = "run.json"
ENDS = ("no flag", "terminated", "truncated", "terminated and truncated")
EPISODE, END = "episode", "end"
OWN = "episodes/"
MOST_ROWS = 1000
LONGEST_TEXT = 200
LARGEST_EXACT = 2**53  # in JavaScript
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


class Shown:
    """A dataset or view that is open in the page.

    Attributes:
        title: What the user called it.
        dataset: The dataset.
        names: Columns of its list of episodes.
        sortable: Those that the list can be sorted by.
        texts: Those with values of any length.
    """

    def __init__(self, title: str, dataset: Dataset) -> None:
        """Nothing is read yet."""
        self.title, self.dataset = title, dataset
        variable, specs = dataset.schema.variable, dataset.schema.columns()
        own = {name for name in specs if name in dataset.columns and not is_part(name)}
        own = {name.removeprefix(OWN) for name in {*own, *variable} if name.startswith(OWN)}
        self.names = [EPISODE, "returns", "lengths", END, *sorted(own - {"returns", "lengths"})]
        self.texts = [name for name in self.names if OWN + name in variable]
        self.sortable = [
            name
            for name in self.names
            if name in (EPISODE, END)
            or (variable[OWN + name] == "text" if name in self.texts else not specs[OWN + name].shape)
        ]
        # Orders are kept, so that scrolling costs one page.
        self.order = functools.lru_cache(maxsize=4)(self._order)

    @functools.cached_property
    def selection(self) -> Selection:
        """Its episodes as positions in stored versions."""
        return self.dataset.selection()

    def stored(self, episode: int) -> tuple[StoredVersion, int]:
        """Return the version that an episode lies in, and its position there.

        Raises IndexError if there is no such episode.
        """
        count = self.dataset.total_episodes
        if not 0 <= episode < count:
            raise IndexError(f"{self.title}: there is no episode {episode}; it has {count:,}.")
        selection = self.selection
        return selection.versions[int(selection.source[episode])], int(selection.index[episode])

    def rows(self, name: str, episode: int) -> np.ndarray:
        """Return the rows of an episode in a column; offsets start at 0.

        Raises IntegrityError if a file is damaged; NotFoundError if the version was deleted.
        """
        stored, position = self.stored(episode)
        return stored.read_episodes(name, np.array([position]))

    def to_json(self) -> dict[str, Any]:
        """Return what the page knows of it from the start."""
        dataset = self.dataset
        return {
            "title": self.title,
            "name": f"{dataset.name}@{dataset.version}",
            "is_view": dataset.operation is not None,
            "digest": dataset.digest,
            "episodes": dataset.total_episodes,
            "steps": dataset.total_steps,
            "columns": self.names,
            "sortable": self.sortable,
            "texts": self.texts,
        }

    def page(self, order: np.ndarray, first: int, count: int) -> dict[str, Any]:
        """Return rows `first` to `first + count - 1`, at most 1,000, of an order, by column, and what is damaged."""
        positions = order[max(0, first) : max(0, first) + min(max(0, count), MOST_ROWS)]
        columns, errors = self.values_or_errors(positions)
        total = self.dataset.total_episodes
        return {"total": total, "matching": len(order), "columns": columns, "errors": errors}

    def values_or_errors(self, positions: np.ndarray) -> tuple[dict[str, Sequence[Any]], dict[str, str]]:
        """Return values of episodes by column, and why columns cannot be read."""
        columns: dict[str, Sequence[Any]] = {}
        errors: dict[str, str] = {}
        for name in self.names:
            try:
                columns[name] = self._values(name, positions)
            except (OrlogError, OSError, UnicodeDecodeError) as error:
                errors[name] = str(error)
        return columns, errors

    def _values(self, name: str, positions: np.ndarray) -> Sequence[Any]:
        if name == EPISODE:
            return list(positions.tolist())
        if name == END:
            return [ENDS[code] for code in self.ends(positions).tolist()]
        if name == "lengths":
            return list(self.dataset.episode_lengths[positions].tolist())
        column = OWN + name
        if name not in self.texts:
            return [_cell(value) for value in self.dataset.rows(column, positions).tolist()]
        ends = self.selection.read_episodes(offsets_column(column), positions).tolist()
        values = self.selection.read_episodes(values_column(column), positions)
        cut = [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        if self.dataset.schema.variable[column] == "text":
            return [text.tobytes().decode() for text in cut]
        return [_shortened(str(row.tolist())) for row in cut]

    def ends(self, positions: np.ndarray) -> np.ndarray:
        """Return how episodes ended: places in `ENDS`, (n,) int64.

        Raises IntegrityError if a file is damaged.
        """
        dataset = self.dataset
        lasts = dataset.episode_starts[positions] + dataset.episode_lengths[positions] - 1
        codes = dataset.rows("terminations", lasts).astype(np.int64)
        codes += 2 * dataset.rows("truncations", lasts).astype(np.int64)
        return codes

    def _order(self, where: str, by: str, descending: bool) -> np.ndarray:
        """Return the episodes that an expression selects, sorted by a column; what is not a number is last.

        Raises SchemaError if the list cannot be sorted by it; what `episodes_where` raises.
        """
        dataset = self.dataset
        chosen = np.arange(dataset.total_episodes)
        if where:
            chosen = np.flatnonzero(episodes_where(dataset, where))
        if by not in self.sortable:
            raise SchemaError(f"{self.title}: episodes cannot be sorted by {by!r:.100}.")
        if by == EPISODE:
            return chosen[::-1] if descending else chosen
        if by == END:
            values = self.ends(chosen)
        elif by == "lengths":
            values = dataset.episode_lengths[chosen]
        else:
            values = episode_column(dataset, OWN + by)[chosen]
        unknown = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)
        known = np.flatnonzero(~unknown)
        if descending:  # equal values stay in the order of episodes
            order = len(known) - 1 - np.argsort(values[known][::-1], kind="stable")[::-1]
        else:
            order = np.argsort(values[known], kind="stable")
        ordered: np.ndarray = chosen[np.concatenate([known[order], np.flatnonzero(unknown)])]
        return ordered


def save_filtered(shown: Shown, where: str, name: str, folder: Path) -> Path:
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
    is_large = type(value) is int and abs(value) > LARGEST_EXACT
    return _shortened(str(value)) if is_large or isinstance(value, list) else value


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """All that one server shows.

    Attributes:
        datasets: Datasets and views, in the order given.
        runs: Folders with runs.
        reports: Pages of reports.
        folder: Where views are saved: the folder in which orlog was started.
        trust_environment: Consent to environment arguments that come with the data.
    """

    datasets: Sequence[Shown]
    runs: Sequence[Path]
    reports: Sequence[Path]
    folder: Path
    trust_environment: bool = False


def open_all(names: Sequence[str], *, trust_environment: bool = False) -> Opened:
    """Open datasets by name or path, views by their file, folders of runs, and reports.

    With `trust_environment`, environment arguments that come with the data are used to render.

    Raises NotFoundError if something is not here, or a folder holds nothing that can be shown;
    IntegrityError if a file is missing, cut or altered.
    """
    datasets: list[Shown] = []
    runs: list[Path] = []
    reports: list[Path] = []
    for name in names:
        path = as_folder(name)
        if path is not None and path.suffix == ".html" and path.is_file():
            reports.append(path.resolve())
        elif path is None or not path.is_dir() or holds_manifest(path):
            datasets.append(Shown(name, load_dataset(name)))
        elif (path / REPORT).is_file():
            reports.append((path / REPORT).resolve())
        elif any(path.rglob(RUN_FILE)):
            runs.append(path.resolve())
        else:
            raise NotFoundError(
                f"{path}: this folder holds no dataset (manifest.json), no run (run.json) and no report "
                f"({REPORT}); name a folder or a file that orlog wrote."
            )
    return Opened(datasets=datasets, runs=runs, reports=reports, folder=Path.cwd(), trust_environment=trust_environment)
