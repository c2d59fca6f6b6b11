"""Datasets as flat columns with a row for each step, for formats that hold nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.formats._shared.episode_cutter import MISSING
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.manifests.names import counted


def file_stem(dataset: Dataset) -> str:
    """Return what a file of the dataset is called: the last part of its name."""
    return dataset.name.rpartition("/")[2] or "dataset"


def flat_columns(
    dataset: Dataset, progress: Callable[[int, int], None], *, tells_episodes: bool = False
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of each episode, by the names that D4RL has for them.

    These are `observations`, `next_observations`, `actions`, `rewards`,
    `terminals`, `timeouts` and `infos/NAME`. Of a Dict each part is a column, as `observations/NAME`.

    An episode that just stopped has a timeout at its last row, as otherwise nothing would end it, unless the
    files tell episodes apart by something else (`tells_episodes`).
    """
    done = 0
    for episode in dataset:
        count, timeouts = len(episode.rewards), episode.truncations
        if not tells_episodes:
            timeouts = timeouts | ((np.arange(count) == count - 1) & ~episode.terminations)
        observations = {"": episode.observations}
        if isinstance(episode.observations, dict):
            observations = {f"/{part}": values for part, values in episode.observations.items()}
        infos = episode.infos.items()
        yield {
            **{f"observations{part}": values[:-1] for part, values in observations.items()},
            **{f"next_observations{part}": values[1:] for part, values in observations.items()},
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminals": episode.terminations,
            "timeouts": timeouts,
            **{f"infos/{name}": info for name, info in infos if isinstance(info, np.ndarray)},
        }
        done += count
        progress(done, dataset.total_steps)


def stop_losses(dataset: Dataset, becomes: str) -> list[str]:
    """Say that unfinished episodes become something else in files that have no word for it."""
    ends = dataset.column("terminations").astype(bool) | dataset.column("truncations").astype(bool)
    stopped = int(np.count_nonzero(~ends[np.cumsum(dataset.episode_lengths) - 1]))
    return [f"{counted(stopped, 'unfinished episode')} will become {becomes}."] if stopped else []


def flat_losses(
    dataset: Dataset, what: str, *, takes_parts: bool = False, tells_episodes: bool = False
) -> list[str]:
    """Say what flat columns of files such as "D4RL's files" cannot hold; refuse spaces that they have no place for.

    They may hold parts of a Dict of observations, and tell episodes apart by something else than their ends.
    """
    observations, actions = dataset.observation_space, dataset.action_space
    parts: list[Any] = [observations]
    if takes_parts and isinstance(observations, spaces.Dict):
        parts = [*observations.values()]
    for part in parts:
        if not isinstance(part, spaces.Box):
            raise SchemaError(
                f"{dataset.name}: {what} hold observations that are Box, found {part}."
            )
    if not isinstance(actions, spaces.Box | spaces.Discrete):
        raise SchemaError(
            f"{dataset.name}: {what} hold actions that are Box or Discrete, found {actions}."
        )
    extras, variable = dataset.schema.extras, dataset.schema.variable
    lost = [
        name
        for name in extras
        if name.startswith("episodes/") or (name.startswith("infos/") and name in variable)
    ]
    losses = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if f"episodes/{MISSING}" in lost:
        losses.append("Final observations that are not known become zeros.")
    if (dataset.column("episodes/seeds") >= 0).any():
        losses.append("Seeds of episodes are lost.")
    return losses if tells_episodes else [*losses, *stop_losses(dataset, "truncated")]


def demonstration_losses(dataset: Dataset, what: str, *, own: Collection[str]) -> list[str]:
    """Say what recordings of demonstrations cannot hold, which have rows of observations and actions alone.

    `own` are names that the files have for something else than a part of the observations.
    """
    losses = flat_losses(dataset, what, takes_parts=True, tells_episodes=True)
    space = dataset.observation_space
    taken = [part for part in space if part in own] if isinstance(space, spaces.Dict) else []
    if taken:
        raise SchemaError(
            f"{dataset.name}: {what} have another meaning for {taken[0]}; rename this part."
        )
    infos = [name for name in dataset.schema.extras if name.startswith("infos/")]
    infos = [name for name in infos if name not in own and name not in dataset.schema.variable]
    losses += [f"These columns are lost: {', '.join(infos)}."] if infos else []
    return [
        *losses,
        "How episodes ended is lost.",
        "The last observation of each episode is lost, and with it what came of its last action.",
    ]
