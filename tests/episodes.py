"""Episodes that tests make by hand, and datasets of them."""

import numpy as np

import orlog
from orlog import Episode


def whole_episode(observations, actions, rewards=None, *, end="termination", **others):
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


def record_episodes(name, episodes, observation_space=None, action_space=None, **facts):
    """Record episodes, and open what was recorded."""
    with orlog.DatasetWriter(name, observation_space=observation_space, action_space=action_space, **facts) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return orlog.load_dataset(writer.folder)
