"""Endless streams of batches: batch `b` is a pure function of what is sampled, the seed and `b`.

    key      = SHA-256(kind of sample and its settings, dataset digest, seed)
    item i   = sampler.choose(draws i * draws_per_item, .. of the key's stream)
    batch b  = sampler.gather(items b * batch_size, .., (b + 1) * batch_size - 1)

There is no sampler state to lose: going on is starting at `b`. A rank takes its slice of each batch
and a worker every n-th batch, so the stream is the same for any number of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64
from torch.utils.data import IterableDataset, get_worker_info

from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.sampling.arguments import check_integers, check_stream
from orlog.loaders.sampling.draws import draw_uniform, stream_key

__all__ = ["Batches", "Sampler", "check_state", "stream_summary"]

BLOCK = 64  # batches whose items are chosen at once: the cost of a generator is shared by them
_BLOCK_ITEMS = 2**17  # but no more items than this, unless a batch has more

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


@runtime_checkable
class Sampler(Protocol[BatchT_co]):
    """What makes batches of one kind.

    Attributes:
        kind: Name of the kind and its settings: samplers that choose differently differ in it.
        draws: Uniform numbers that the choice of one item takes.
        arrays: What is sampled.
    """

    kind: str
    draws: int
    arrays: Arrays

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> torch.Tensor:
        """Return what `gather` needs of each item, int64, an item in each row."""
        ...

    def gather(self, chosen: torch.Tensor) -> BatchT_co:
        """Return the batch of some items; `chosen` is on the device of the arrays."""
        ...


@runtime_checkable
class BlockSampler(Sampler[BatchT_co], Protocol[BatchT_co]):
    """A sampler that gathers several batches at once for less than one after the other."""

    def gather_many(self, chosen: torch.Tensor, size: int) -> Iterator[BatchT_co]:
        """Yield the batches of `size` items each."""
        ...


def check_state(state: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse a state that is of another stream than ours.

    Raises:
        ValueError: a field differs; the message has both values.
        TypeError: no state at all.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"expected what state_dict gave, found {type(state).__name__}")
    if "cursor_version" not in state:
        raise ValueError(
            "this is no stream's state: expected what its state_dict gave (that of a DataLoader goes "
            "back into the DataLoader)"
        )
    for field in ("cursor_version", "kind", "digest", "seed", "batch_size"):
        if state.get(field) != ours[field]:
            raise ValueError(
                f"this state is of another stream: {field} is {state.get(field)!r} there and "
                f"{ours[field]!r} here"
            )


def stream_summary(stream: Any, name: str, digest: str, kind: str) -> str:
    """Return the `repr` of a stream."""
    return (
        f"{type(stream).__name__}({name}, {digest[:19]}, {kind!r}, "
        f"batch_size={stream.batch_size}, seed={stream.seed})"
    )


class Batches(IterableDataset[BatchT], Generic[BatchT]):
    """An endless stream of batches. `orlog.transitions` and its kin make it.

    Iterating starts at batch `start` each time; `batch(b)` gives any batch. It is a PyTorch
    `IterableDataset` that makes whole batches: give it to a `DataLoader` with `batch_size=None`.

    Attributes:
        sampler: What chooses and gathers.
        digest: Digest of the dataset.
        batch_size: Items in a batch, of all ranks together.
        seed: Seed of the stream.
        start: First batch of an iteration.
        rank: Which slice of each batch this process takes.
        ranks: Number of slices.
    """

    def __init__(
        self,
        sampler: Sampler[BatchT],
        digest: str,
        *,
        batch_size: int,
        seed: int,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Start a stream.

        Raises:
            ValueError: a number is out of range, or the batch size is no multiple of the ranks.
            TypeError: a number is no integer.
        """
        check_stream(batch_size=batch_size, seed=seed, start=start, rank=rank, ranks=ranks)
        self.sampler = sampler
        self.digest = digest
        self.batch_size = int(batch_size)  # not NumPy's, which PyTorch and JSON refuse
        self.seed = int(seed)
        self.start = int(start)
        self.rank = int(rank)
        self.ranks = int(ranks)
        self._next = self.start
        self._worker = 0
        self._key = stream_key(digest, seed, sampler.kind)

    def __repr__(self) -> str:
        """Return what is sampled, and by which settings."""
        return stream_summary(self, self.sampler.arrays.name, self.digest, self.sampler.kind)

    def __iter__(self) -> Iterator[BatchT]:
        """Yield batch `start`, `start + 1`, ... without end; in a worker only its share of them."""
        worker = get_worker_info()
        own, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._next, self._worker = self.start + own, own
        size = self.batch_size // self.ranks
        index = self.start
        together = max(1, min(BLOCK, _BLOCK_ITEMS // self.batch_size))
        while True:
            stop = index + together - index % together
            chosen = self._choose(index, stop - index)
            mine = range(index + (self.start + own - index) % workers, stop, workers)
            if worker is None and isinstance(self.sampler, BlockSampler):
                made = self.sampler.gather_many(chosen, size)
            else:  # a worker sends what it gathers, so it should send no more than a batch
                pieces = torch.split(chosen, size)
                made = map(self.sampler.gather, [pieces[one - index] for one in mine])
            for one, batch in zip(mine, made, strict=True):
                self._next = one + workers
                yield batch
            index = stop

    def batch(self, index: int) -> BatchT:
        """Return batch `index`: the same as iterating to it.

        Raises:
            ValueError: it is negative.
            TypeError: it is no integer.
        """
        check_integers(index=index)
        if index < 0:
            raise ValueError(f"batches are numbered from 0, found {index}")
        return self.sampler.gather(self._choose(int(index), 1))

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iteration is, small and plain; see `load_state_dict`."""
        return {
            "cursor_version": 1,
            "kind": self.sampler.kind,
            "digest": self.digest,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "batch": self._next,
            "worker": self._worker,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bit for bit; also on another number of ranks.

        Raises:
            ValueError: it is of another dataset, view, seed, batch size or kind of sample.
        """
        check_state(state, self.state_dict())
        batch, worker = state.get("batch"), state.get("worker")
        if type(batch) is not int or type(worker) is not int or not 0 <= worker <= batch:
            raise ValueError(f"no state of a stream: batch {batch!r}, worker {worker!r}")
        # A worker's first batch lies as far behind the start as its number says.
        self.start, self._next, self._worker = batch - worker, batch, worker

    def _choose(self, first: int, batches: int) -> torch.Tensor:
        """Return this rank's items of some batches, one after the other."""
        count, draws = batches * self.batch_size, self.sampler.draws
        uniform = draw_uniform(self._key, first * self.batch_size * draws, count * draws)
        if self.ranks > 1:
            uniform = uniform.reshape(batches, self.ranks, -1)[:, self.rank]
        chosen = self.sampler.choose(uniform.reshape(-1, draws))
        return chosen.to(self.sampler.arrays.rows.device)
