"""Random single choices with the logarithm of the probability with which each was made, for IPS and DR."""

from __future__ import annotations

from typing import Unpack

import torch

from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import Batch
from orlog.loaders.options import StreamOptions, takes_stream_options
from orlog.loaders.streams import Batches
from orlog.loaders.transitions import transitions
from orlog.manifests.names import counted

LOG_PROBS = "action_log_probs"


@takes_stream_options
def logged_choices(
    data: Given | Arrays, batch_size: int = 256, *, seed: int, **stream: Unpack[StreamOptions]
) -> Batches[Batch]:
    """Return the endless stream of `transitions` of episodes with one step each, with their log-probabilities.

    These are in `batch.infos["action_log_probs"]`.

    All arguments are those of `transitions`.

    Raises SchemaError if an episode has several steps, whose later rewards an action is not weighed by, or if
    a log-probability is above 0; NotFoundError if there are none.
    """
    names = tuple(dict.fromkeys([*stream.get("infos", ()), LOG_PROBS]))
    arrays = as_arrays(data, names)
    where = arrays.name or "these arrays"
    longer = arrays.lengths > 1
    if longer.any():
        episode = int(longer.argmax())
        raise SchemaError(
            f"{where}: choices are episodes of one step, and episode {episode} has "
            f"{counted(int(arrays.lengths[episode]), 'step')}; learn from its transitions (cql, iql), or take the "
            "episodes of one step: ds.filter_episodes('lengths == 1')."
        )
    _check_log_probs(arrays, where)
    stream["infos"] = names
    made: Batches[Batch] = transitions(arrays, batch_size, seed=seed, **stream)
    return made


def _check_log_probs(arrays: Arrays, where: str) -> None:
    infos = arrays.infos
    assert infos is not None  # asked for above
    found = infos.leaf(infos.observation_leaves[LOG_PROBS], torch.from_numpy(arrays.step_rows()))
    wrong = ~(found.isfinite() & (found <= 1e-6))
    if wrong.any():
        episode = int(wrong.reshape(len(wrong), -1).any(1).int().argmax())
        raise SchemaError(
            f"{where}: {LOG_PROBS} of episode {episode}, step 0 is {float(found[episode]):g}, which is no "
            "logarithm of a probability; record the data again with action_log_probs."
        )
