"""How often each transition between numbered states is in the data: a table, the same in every batch.

For algorithms that sweep over all states in place of drawing some. A row for each transition that is there,
in the order of (state, action, next state, terminated).
"""

from __future__ import annotations

from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import CountBatch
from orlog.loaders.streams import Batches, Sampler
from orlog.loaders.tensors import Tensor, torch
from orlog.loaders.weights import step_probabilities


class CountSampler(Sampler):
    """Gives the same batch each time; an item is the table as a whole."""

    kind = "counts 1"
    in_blocks = False

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._table = count_transitions(arrays)

    def gather(self, _chosen: Tensor) -> CountBatch:
        """Return the table."""
        return self._table


def count_transitions(arrays: Arrays) -> CountBatch:
    """Return the transitions of some arrays, each once."""
    leaf = arrays.observation_leaves.get("")
    given = None if leaf is None else arrays.others.get(leaf.column)
    taken = arrays.others.get("actions")
    if given is None or taken is None or given.ndim != 1 or taken.ndim != 1:
        raise SchemaError(
            f"{arrays.name or 'these arrays'}: transitions are counted where states and actions are numbered "
            "(Discrete spaces); take orlog.transitions for others."
        )
    rows = torch.from_numpy(arrays.step_rows()).to(given.device)
    packed = arrays.rows[:, arrays.columns["rewards"].start :][rows]
    rewards, terminations = packed[:, 0], packed[:, 1]
    steps = torch.stack([given[rows], taken[rows], given[rows + 1], terminations.to(taken.dtype)])
    distinct, place = torch.unique(steps.long(), dim=1, return_inverse=True)
    weights = torch.from_numpy(step_probabilities(arrays) * arrays.total_steps).to(given.device)

    def summed(values: Tensor) -> Tensor:
        totals = torch.zeros(distinct.shape[1], dtype=torch.float64, device=given.device)
        return totals.index_add_(0, place, values.double())

    counts = summed(weights)
    there = counts > 0  # a mixture may leave steps out
    means = (summed(weights * rewards) / counts)[there]
    return CountBatch(
        observations=distinct[0][there],
        actions=distinct[1][there],
        next_observations=distinct[2][there],
        terminations=distinct[3][there].float(),
        rewards=means.float(),
        counts=counts[there].float(),
    )


def transition_counts(data: Given | Arrays, *, seed: int = 0, start: int = 0) -> Batches[CountBatch]:
    """Return an endless stream of the same batch: every transition once, with its count.

    Args:
        data: What to count; states and actions are Discrete.
        seed: Part of the stream's identity alone, as of other streams.
        start: First batch, as of other streams.

    Raises SchemaError if states or actions are not numbered; ValueError if a number is out of range.
    """
    arrays = as_arrays(data)
    return Batches(CountSampler(arrays), arrays.digest, batch_size=1, seed=seed, start=start)
