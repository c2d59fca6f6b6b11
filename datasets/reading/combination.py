"""Combinations of several datasets: which episodes they have, how steps are weighted, and unequal spaces.

A **task** of an episode is what its column of the role `task_words` says, such as `pick place`; where there is none,
the name of its dataset, with the number that a column of the role `task` has. With the weights `tasks` each task
is as likely as any other, and within a task each step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.padding import padded_schema, padded_versions
from orlog.datasets.reading.selection import Selection
from orlog.datasets.reading.source import MOST_EPISODES, ROUNDING, SourceT, episode_column
from orlog.errors import SchemaError
from orlog.manifests.columns import axis_of
from orlog.manifests.roles import columns_with

TASKS = "tasks"
"""The weights with which each task is as likely as any other."""


def combine(parents: list[SourceT], value: Any) -> tuple[Selection, Schema]:
    """Return the episodes of all datasets, one dataset after the other, and their columns."""
    weights, pad = value["weights"], value.get("pad", False)
    if (
        not {"weights"} <= {*value} <= {"weights", "pad"}
        or type(pad) is not bool
        or (weights not in (None, TASKS) and not _are_weights(weights, parents))
    ):
        raise ValueError(
            f"combine takes a weight for each dataset, none negative, which sum to 1, or {TASKS!r}; found "
            f"{value!r:.99}."
        )
    if sum(parent.total_episodes for parent in parents) > MOST_EPISODES:
        raise IndexError(f"more than {MOST_EPISODES} episodes in a view.")
    words = [words_of_episodes(one) for one in parents] if pad or weights == TASKS else []
    schema = parents[0].schema
    if pad:
        schema = padded_schema(parents, words)
    else:
        for parent in parents[1:]:
            _check_alike(parents[0], parent)
    by_identity: dict[str, Any] = {}
    sources, indices = [], []
    replaced = padded_versions(parents, words, schema) if pad else {}
    for parent in parents:
        selection = parent.selection()
        used = [replaced.get(one.identity, one) for one in selection.versions]
        for one in used:
            by_identity.setdefault(one.identity, one)
        place = {identity: number for number, identity in enumerate(by_identity)}
        moved = np.array([place[one.identity] for one in used], np.int64)
        sources.append(moved[selection.source])
        indices.append(selection.index)
    component, shares = (
        _each_task_alike(parents, words) if weights == TASKS else _weighted(parents, weights)
    )
    selection = Selection(
        versions=tuple(by_identity.values()),
        source=np.concatenate(sources),
        index=np.concatenate(indices),
        component=component,
        weights=shares,
    )
    return selection, schema


def words_of_episodes(dataset: SourceT) -> list[str]:
    """Return the task of each episode, in words."""
    count = dataset.total_episodes
    texts, numbers = (
        next((one for one in columns_with(dataset.roles, role) if axis_of(one) == "episode"), None)
        for role in ("task_words", "task")
    )
    if texts is not None:
        return [one or dataset.name for one in episode_column(dataset, texts).tolist()]
    if numbers is not None:
        return [f"{dataset.name} task {one}" for one in dataset.column(numbers).tolist()]
    return [dataset.name] * count


def _each_task_alike(
    parents: list[SourceT], words: list[list[str]]
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return the task of each episode and equal weights of all tasks."""
    for one in parents:
        if one.mixture is not None:
            raise ValueError(
                f"{one.name} is weighted itself, so its tasks cannot count alike; combine what it was combined "
                "from, or give a weight for each dataset."
            )
    number: dict[str, int] = {}
    component = [number.setdefault(one, len(number)) for some in words for one in some]
    return np.array(component, np.int64), (1 / max(1, len(number)),) * len(number)


def _weighted(
    parents: list[SourceT], weights: list[float] | None
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return the component of each episode, and the weights of components; none without weights."""
    components = []
    shares: list[float] = []
    for number, parent in enumerate(parents):
        selection = parent.selection()
        # A mixture inside a mixture keeps its proportions within its own share.
        inner = selection.weights if weights is not None and selection.weights else (1.0,)
        flat = selection.component if len(inner) > 1 else np.zeros_like(selection.component)
        components.append(flat + len(shares))
        shares += [share * (1.0 if weights is None else weights[number]) for share in inner]
    if weights is None:
        return np.zeros(sum(map(len, components)), np.int64), ()
    return np.concatenate(components), tuple(shares)


def _are_weights(weights: Any, parents: list[SourceT]) -> bool:
    return (
        isinstance(weights, list)
        and len(weights) == len(parents)
        and all(type(weight) is float and weight >= 0 for weight in weights)
        and math.isclose(math.fsum(weights), 1, abs_tol=ROUNDING)
    )


def _check_alike(first: SourceT, other: SourceT) -> None:
    """Refuse to combine datasets with different spaces or columns."""
    for kind in ("observation_space", "action_space"):
        expected, found = getattr(first, kind), getattr(other, kind)
        if expected != found:
            raise SchemaError(
                f"{first.name} and {other.name} cannot be combined: {kind} {expected} and {found}; "
                "combine_datasets with pad=True fills up vectors of unequal length."
            )
    expected_columns, found_columns = first.schema.columns(), other.schema.columns()
    for name in sorted({*expected_columns, *found_columns}):
        if expected_columns.get(name) != found_columns.get(name):
            raise SchemaError(
                f"{first.name} and {other.name} cannot be combined: column {name} is "
                f"{expected_columns.get(name, 'missing')} and {found_columns.get(name, 'missing')}; "
                "select_columns leaves out what only one of them has."
            )
