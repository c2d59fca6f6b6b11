"""What operations that derive datasets need of a dataset, and its columns of episodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.selection import Selection
from orlog.errors import IntegrityError, clause
from orlog.manifests.columns import axis_of, offsets_column, values_column
from orlog.manifests.roles import columns_with

Operation: TypeAlias = dict[str, Any]

MOST_EPISODES = 2**26

ROUNDING = 1e-9


class Source(Protocol):
    """What operations need of a dataset; `Dataset` provides it."""

    digest: str
    schema: Schema
    operation: Operation | None
    view_file: Path | None

    @property
    def parents(self) -> tuple[Self, ...]:
        """The datasets that a view was made from."""

    @property
    def name(self) -> str:
        """Name without version."""

    @property
    def version(self) -> str:
        """Content version."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of observations."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of actions."""

    @property
    def roles(self) -> Mapping[str, str]:
        """What columns mean."""

    @property
    def total_episodes(self) -> int:
        """Number of episodes."""

    @property
    def total_steps(self) -> int:
        """Number of steps."""

    @property
    def mixture(self) -> tuple[np.ndarray, tuple[float, ...]] | None:
        """Component of each episode and weight of each component, if steps are weighted."""

    def __iter__(self) -> Iterator[Episode]:
        """Yield every episode in order."""

    def column(self, name: str) -> np.ndarray:
        """Return all rows of a column."""

    def selection(self) -> Selection:
        """Return the episodes as positions in stored versions."""

    @classmethod
    def view(
        cls,
        parents: Sequence[Self],
        operation: Operation,
        digest: str,
        selection: Selection,
        schema: Schema | None = None,
    ) -> Self:
        """Return a view of these datasets."""


SourceT = TypeVar("SourceT", bound=Source)


def success_column(dataset: Source) -> str | None:
    """Return the column that says which episodes succeeded, one of episodes if there is one; None if none does."""
    columns = columns_with(dataset.roles, "success")
    return min(columns, key=lambda one: axis_of(one) != "episode", default=None)


def success_of(dataset: Source, column: str) -> np.ndarray:
    """Return whether each episode succeeded, (E,) bool, by `success_column`.

    One of steps says it by any step of an episode, or where it is called `is_success` by the last one.
    """
    succeeded: np.ndarray = dataset.column(column) > 0
    if axis_of(column) == "step":
        ends = dataset.column("episodes/lengths").cumsum()
        before = np.append(0, succeeded.cumsum())[np.append(0, ends)]
        is_last_alone = column.endswith("/is_success")
        succeeded = succeeded[ends - 1] if is_last_alone else np.diff(before) > 0
    return succeeded


def episode_column(dataset: SourceT, name: str) -> np.ndarray:
    """Return a column of episodes; text as an array of text."""
    if dataset.schema.variable.get(name) != "text":
        return dataset.column(name)
    ends = dataset.column(offsets_column(name)).tolist()
    data = dataset.column(values_column(name)).tobytes()
    pairs = itertools.pairwise([0, *ends])
    try:
        texts = [data[start:end].decode() for start, end in pairs]
    except UnicodeDecodeError as error:
        raise IntegrityError(
            f"{dataset.name}: column {name}: not UTF-8: {clause(error)}."
        ) from error
    # As objects: an array of text would take the longest text's size for each episode.
    column = np.empty(len(texts), object)
    column[:] = texts
    return column
