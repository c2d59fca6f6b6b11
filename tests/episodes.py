"""Episodes that tests make by hand, and datasets of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

import orlog
from orlog.datasets.columns.episode import Episode


def whole_episode(
    observations: Any, actions: Any, rewards: Any = None, *, end: str = "termination", **others: Any
) -> Episode:
    """Return an episode.

    Args:
        observations: One row more than actions.
        actions: A row for each step, or several columns of them.
        rewards: Zeros by default.
        end: What its last step is: a termination, a truncation, or else neither.
        others: Other fields.
    """
    leaf = actions
    while isinstance(leaf, dict | tuple):
        leaf = next(iter(leaf.values() if isinstance(leaf, dict) else leaf))
    is_last = np.arange(len(leaf)) == len(leaf) - 1
    return Episode(
        observations=observations,
        actions=actions,
        rewards=np.zeros(len(leaf)) if rewards is None else rewards,
        terminations=is_last & (end == "termination"),
        truncations=is_last & (end == "truncation"),
        **others,
    )


def record_episodes(
    name: str,
    episodes: Iterable[Episode],
    observation_space: spaces.Space[Any] | None = None,
    action_space: spaces.Space[Any] | None = None,
    **facts: Any,
) -> orlog.Dataset:
    """Record episodes, and open what was recorded."""
    with orlog.DatasetWriter(name, observation_space=observation_space, action_space=action_space, **facts) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return orlog.load_dataset(writer.folder)
