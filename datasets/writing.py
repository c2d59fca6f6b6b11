"""Writes episodes into a store, and refuses what does not fit before it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.episode import Columns, Episode
from orlog.datasets.manifest import Column
from orlog.datasets.spaces import leaf_spaces
from orlog.datasets.store import Axis, ColumnSpec, StoreWriter
from orlog.errors import SchemaError

__all__ = ["column_specs", "write_episodes"]

INT = np.dtype(np.int64)
FLOAT = np.dtype(np.float64)
BOOL = np.dtype(np.bool_)


def column_specs(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    infos: dict[str, tuple[np.dtype[Any], tuple[int, ...]]],
) -> list[ColumnSpec]:
    """Return every column of a dataset with these spaces; `infos` gives dtype and row shape."""

    def leaves(space: gymnasium.Space[Any], path: str, axis: Axis) -> Iterator[ColumnSpec]:
        for name, leaf in leaf_spaces(space, path):
            assert leaf.shape is not None
            assert leaf.dtype is not None
            yield ColumnSpec(name, np.dtype(leaf.dtype), leaf.shape, axis)

    return [
        *leaves(observation_space, "observations", "observation"),
        *leaves(action_space, "actions", "step"),
        ColumnSpec("rewards", FLOAT, (), "step"),
        ColumnSpec("terminations", BOOL, (), "step"),
        ColumnSpec("truncations", BOOL, (), "step"),
        *(ColumnSpec(f"infos/{name}", *infos[name], "step") for name in sorted(infos)),
        ColumnSpec("episodes/lengths", INT, (), "episode"),
        ColumnSpec("episodes/seeds", INT, (), "episode"),
        ColumnSpec("episodes/returns", FLOAT, (), "episode"),
    ]


def write_episodes(
    folder: Path,
    episodes: Iterable[Episode],
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> tuple[list[Column], int, int]:
    """Write all episodes into a new store; return its columns, number of episodes and of steps.

    An unknown seed is written as -1.

    Raises:
        SchemaError: an episode does not fit; the message names episode, column, expected, found.
        StorageError: the disk is full.
    """
    writer: StoreWriter | None = None
    specs: dict[str, ColumnSpec] = {}
    index = steps = 0
    for index, episode in enumerate(episodes, 1):
        _check_seed(index - 1, episode.seed)
        rows = _rows(episode)
        if writer is None:
            infos = {name: (value.dtype, value.shape[1:]) for name, value in episode.infos.items()}
            specs = {
                spec.name: spec for spec in column_specs(observation_space, action_space, infos)
            }
            writer = StoreWriter(folder, list(specs.values()))
        _check(index - 1, episode, rows, specs)
        for name, values in rows.items():
            writer.append(name, values)
        steps += len(episode)
    if writer is None:
        raise SchemaError("a dataset needs at least one episode")
    return writer.finish(), index, steps


def _rows(episode: Episode) -> dict[str, np.ndarray]:
    return {
        **dict(_leaves(episode.observations, "observations")),
        **dict(_leaves(episode.actions, "actions")),
        "rewards": episode.rewards,
        "terminations": episode.terminations,
        "truncations": episode.truncations,
        **{f"infos/{name}": values for name, values in episode.infos.items()},
        "episodes/lengths": np.array([len(episode)], INT),
        "episodes/seeds": np.array([-1 if episode.seed is None else episode.seed], INT),
        "episodes/returns": np.array([episode.rewards.sum(dtype=FLOAT)], FLOAT),
    }


def _leaves(columns: Columns, path: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(columns, dict):
        for key, value in columns.items():
            yield from _leaves(value, f"{path}/{key}")
    else:
        yield path, columns


def _check_seed(index: int, seed: int | None) -> None:
    if seed is not None and not 0 <= seed < 2**63:
        raise SchemaError(f"episode {index}: a seed lies in [0, 2^63), found {seed}")


def _check(
    index: int, episode: Episode, rows: dict[str, np.ndarray], specs: dict[str, ColumnSpec]
) -> None:
    where = f"episode {index}"
    if rows.keys() != specs.keys():
        raise SchemaError(f"{where}: expected the columns {sorted(specs)}, found {sorted(rows)}")
    if len(episode) == 0:
        raise SchemaError(f"{where}: has no steps")
    expected_rows = {"step": len(episode), "observation": len(episode) + 1, "episode": 1}
    for name, values in rows.items():
        spec = specs[name]
        expected = (spec.dtype, (expected_rows[spec.axis], *spec.shape))
        if (values.dtype, values.shape) != expected:
            raise SchemaError(
                f"{where}, column {name}: expected {expected[0]} {expected[1]}, found "
                f"{values.dtype} {values.shape}"
                + (
                    "; observations have one row more than actions, the last one being what "
                    "followed the last action"
                    if spec.axis == "observation" and values.shape[:1] == (len(episode),)
                    else ""
                )
            )
    for name in ("terminations", "truncations"):
        if rows[name][:-1].any():
            step = int(rows[name].argmax())
            raise SchemaError(
                f"{where}, column {name}: true at step {step} of {len(episode)}: an episode ends "
                "there"
            )
