"""Samples of any spaces: as columns, as samples again, and recorded."""

import numpy as np
from gymnasium import spaces

import orlog

LENGTHS = (3, 1, 4)
"""Steps of the episodes: the last one ended the task, the others were cut off, or one just stops."""


def stacked(space, count):
    """Return samples as columns."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(part, count) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, count) for part in space)
    return np.stack([space.sample() for _ in range(count)])


def rows_of(space, columns, rows):
    """Return samples from columns, in the way their documentation tells."""
    if isinstance(space, spaces.Dict):
        parts = {key: rows_of(part, columns[key], rows) for key, part in space.items()}
        return [{key: parts[key][row] for key in parts} for row in range(rows)]
    if isinstance(space, spaces.Tuple):
        lists = [rows_of(part, columns[key], rows) for key, part in enumerate(space)]
        return [tuple(part[row] for part in lists) for row in range(rows)]
    assert len(columns) == rows
    if isinstance(columns, np.ndarray) and not isinstance(space, spaces.Discrete):
        return [columns[row, ...] for row in range(rows)]
    return list(columns)


def record_samples(name, observations, actions, *, stops=True, infos=("place",)):
    """Record three episodes, of which the second may just stop, with some of the infos here."""
    observations.seed(0)
    actions.seed(0)
    with orlog.DatasetWriter(name, observation_space=observations, action_space=actions) as writer:
        for number, length in enumerate(LENGTHS):
            ends = np.arange(length) == length - 1
            known = {"place": np.arange(2.0 * length).reshape(-1, 2), "said": ["a"] * length}
            writer.add_episode(
                orlog.Episode(
                    observations=stacked(observations, length + 1),
                    actions=stacked(actions, length),
                    rewards=np.arange(length) / 4.0,
                    terminations=ends & (number == 2),
                    truncations=ends & (number == 0 or (number == 1 and not stops)),
                    infos={key: known[key] for key in infos},
                )
            )
    return orlog.load_dataset(name)
