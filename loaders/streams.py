"""Endless streams of batches: batch `b` is a pure function of what is sampled, the seed and `b`.

    key      = SHA-256(kind of sample and its settings, dataset digest, seed)
    item i   = sampler.choose(draws i * draws_per_item, .. of the key's stream)
    batch b  = sampler.gather(items b * batch_size, .., (b + 1) * batch_size - 1)

There is no state to lose: to continue, start at `b`. A rank takes its slice of each batch and a
worker every n-th batch, so the stream is the same for any number of ranks and workers. Infos
(`loaders/infos.py`) are given beside the items, and change nothing of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from orlog.loaders.arguments import as_integer, check_choice
from orlog.loaders.arrays import Arrays
from orlog.loaders.batch import Tensors
from orlog.loaders.cursor import Cursor
from orlog.loaders.draws import draw_uniform
from orlog.loaders.infos import InfoReader

BLOCK = 64  # batches whose items are chosen at once, to share the cost of a generator
_BLOCK_ITEMS = 2**17  # but no more items than this, unless a batch has more

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


@runtime_checkable
class Sampler(Protocol[BatchT_co]):
    """What makes batches of one kind; `loaders/infos.py` says how it gets infos.

    Attributes:
        kind: Name of the kind and its settings; samplers that choose differently must differ in it.
        draws: Number of uniform numbers that choose one item.
        arrays: What is sampled.
    """

    kind: str
    draws: int
    arrays: Arrays

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> torch.Tensor:
        """Return what `gather` needs to know of each item, int64, one row per item."""
        ...

    def gather(self, chosen: torch.Tensor) -> BatchT_co:
        """Return the batch of some items; `chosen` is on the device of the arrays."""
        ...


def _refuse_to_collate(batch: Any, **_how: Any) -> NoReturn:
    raise TypeError(
        f"{type(batch[0]).__name__}: a stream gives whole batches, which a DataLoader would put into batches again; "
        "give it batch_size=None."
    )


default_collate_fn_map[Tensors] = _refuse_to_collate


@runtime_checkable
class BlockSampler(Sampler[BatchT_co], Protocol[BatchT_co]):
    """A sampler that gathers several batches at once, which is faster than one after the other."""

    def gather_many(self, chosen: torch.Tensor, size: int) -> Iterator[BatchT_co]:
        """Yield the batches of `size` items each."""
        ...


class Stream(IterableDataset[BatchT], Generic[BatchT]):
    """What endless streams of batches have in common: a cursor, a repr and states.

    It is a PyTorch `IterableDataset` of whole batches: pass it to a `DataLoader` with
    `batch_size=None`. Iterating starts at batch `start` each time.

    Attributes:
        cursor: Which stream it is, where it starts, and which part of it this process takes.
    """

    def __init__(self, cursor: Cursor, dataset: str, to: str = "torch") -> None:
        """Start a stream; `dataset` is a name for messages, and `to` as in `StreamOptions`."""
        check_choice("to", to, ("torch", "numpy"))
        self.cursor, self._to = cursor, to
        self._dataset_name = dataset
        self._next, self._worker = cursor.start, 0

    def __repr__(self) -> str:
        """Return what is sampled, and by which settings."""
        return self.cursor.summary(self, self._dataset_name)

    @property
    def digest(self) -> str:
        """Digest of the dataset."""
        return self.cursor.digest

    @property
    def batch_size(self) -> int:
        """Items in a batch, of all ranks together."""
        return self.cursor.batch_size

    @property
    def seed(self) -> int:
        """Seed of the stream."""
        return self.cursor.seed

    @property
    def start(self) -> int:
        """First batch of an iteration."""
        return self.cursor.start

    @property
    def rank(self) -> int:
        """Which slice of each batch this process takes."""
        return self.cursor.rank

    @property
    def ranks(self) -> int:
        """Number of slices."""
        return self.cursor.ranks

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iteration is, small and plain; see `load_state_dict`."""
        return self.cursor.state(batch=self._next, worker=self._worker)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit; also on another number of ranks.

        Raises:
            ValueError: it is of another dataset, view, seed, batch size or kind of batch.
        """
        self.cursor.check_state(state)
        batch, worker = state.get("batch"), state.get("worker")
        if type(batch) is not int or type(worker) is not int or not 0 <= worker <= batch:
            raise ValueError(f"this is not the state of a stream: batch {batch!r}, worker {worker!r}.")
        # Worker n starts with the n-th batch after the start.
        self.cursor = dataclasses.replace(self.cursor, start=batch - worker)
        self._next, self._worker = batch, worker

    def _in_form(self, batch: Any) -> Any:
        """Return a batch as it was asked for, with tensors or with arrays."""
        return batch if self._to == "torch" else batch.numpy()

    def _begin(self) -> tuple[int, int]:
        """Begin an iteration; return the number of this worker and how many there are."""
        worker = get_worker_info()
        own, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._next, self._worker = self.start + own, own
        return own, workers


def batch_number(index: object) -> int:
    """Check the number of a batch and return it as a Python int.

    Raises ValueError if it is negative; TypeError if it is no integer.
    """
    number = as_integer("index", index)
    if number < 0:
        raise ValueError(f"batches are numbered from 0, found {number}.")
    return number


class Batches(Stream[BatchT], Generic[BatchT]):
    """An endless stream of batches from arrays, as made by `orlog.transitions` and similar loaders.

    Iterating starts at batch `start` each time; `batch(b)` returns any batch. Pass it to a PyTorch
    `DataLoader` with `batch_size=None`, since it makes whole batches.

    Attributes:
        sampler: What chooses and gathers.
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
        infos: Sequence[str] = (),
        to: str = "torch",
    ) -> None:
        """Start a stream; the arguments are those of `StreamOptions`.

        Raises:
            ValueError: a number is out of range, or the batch size is no multiple of the ranks.
            TypeError: a number is no integer.
            SchemaError: the arrays lack one of the infos.
        """
        cursor = Cursor(
            kind=sampler.kind, digest=digest, batch_size=batch_size, seed=seed, start=start, rank=rank, ranks=ranks
        )
        super().__init__(cursor, sampler.arrays.name, to)
        self.sampler = sampler
        self._infos = InfoReader(sampler.arrays, infos, sampler) if infos else None
        self._key = cursor.key

    @property
    def arrays(self) -> Arrays:
        """The steps in memory."""
        return self.sampler.arrays

    def __iter__(self) -> Iterator[BatchT]:
        """Yield batch `start`, `start + 1`, ... without end; in a worker only its share of them."""
        own, workers = self._begin()
        size = self.batch_size // self.ranks
        start = index = self.start
        together = max(1, min(BLOCK, _BLOCK_ITEMS // self.batch_size))
        while True:
            stop = index + together - index % together
            chosen = self._choose(index, stop - index)
            mine = range(index + (start + own - index) % workers, stop, workers)
            if get_worker_info() is None and isinstance(self.sampler, BlockSampler):
                made = self.sampler.gather_many(chosen, size)
            else:  # a worker sends what it gathers, so it should send no more than a batch
                pieces = torch.split(chosen, size)
                made = map(self.sampler.gather, [pieces[one - index] for one in mine])
            if self._infos is not None:
                made = self._with_infos(made, chosen, size, [one - index for one in mine])
            for one, batch in zip(mine, made, strict=True):
                self._next = one + workers
                yield self._in_form(batch)
            index = stop

    def batch(self, index: int) -> BatchT:
        """Return batch `index`: the same as iterating to it.

        Raises:
            ValueError: it is negative.
            TypeError: it is no integer.
        """
        chosen = self._choose(batch_number(index), 1)
        batch: Any = self.sampler.gather(chosen)
        batch = batch if self._infos is None else self._infos.give(batch, chosen)
        return self._in_form(batch)  # type: ignore[no-any-return]

    def _with_infos(
        self, batches: Iterable[BatchT], chosen: torch.Tensor, size: int, places: list[int]
    ) -> Iterator[BatchT]:
        """Yield batches at some places of a block with their infos."""
        assert self._infos is not None
        if get_worker_info() is None:
            return self._infos.give_many(batches, chosen, size)
        pieces = torch.split(chosen, size)
        return map(self._infos.give, batches, [pieces[one] for one in places])

    def _choose(self, first: int, batches: int) -> torch.Tensor:
        """Return this rank's items of some batches, one after the other."""
        count, draws = batches * self.batch_size, self.sampler.draws
        uniform = draw_uniform(self._key, first * self.batch_size * draws, count * draws)
        if self.ranks > 1:
            uniform = uniform.reshape(batches, self.ranks, -1)[:, self.rank]
        chosen = self.sampler.choose(uniform.reshape(-1, draws))
        device = self.sampler.arrays.rows.device
        if device.type == "cuda":  # from page-locked memory the copy waits for nothing
            return chosen.pin_memory().to(device, non_blocking=True)
        return chosen.to(device)
