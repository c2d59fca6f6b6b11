"""Batches straight from compressed shards, in epochs, for datasets too large to hold anywhere.

    blocks    runs of whole episodes, some MiB each
    group     blocks that are in memory at once: the next ones of a seeded order of all blocks
    epoch     group after group, the steps of each in a seeded order: every step exactly once
    stream    epoch after epoch; batch b is steps b * batch_size to (b + 1) * batch_size - 1 of it

So batch b is a pure function of (digest, seed, settings, b). To resume, or to get any single batch,
only the one or two groups that it lies in are decoded. While batches come from one group, a thread
decodes the next; of a dataset that is read in place, each block as soon as it is here, while the group
after it is on its way.

How well this mixes: with G blocks and T steps in a group of S in all, two neighbors in an episode
meet in a batch of B with probability (B - 1) / (T - 1), where a full shuffle has (B - 1) / (S - 1),
and a batch holds steps of some G (1 - (1 - 1/G)^B) blocks. `StreamedBatches.mixing` has them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from jaxtyping import Int64

from orlog.datasets.columns.values import episode_blocks
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.selection import seeded_order
from orlog.errors import OrlogError, SchemaError
from orlog.loaders.arrays import Arrays, add_infos, arrays_of, missing_finals
from orlog.loaders.batch import joined
from orlog.loaders.filling import Layout, fill_matrix, fill_other, layout_of, not_finite, warn_of_outside
from orlog.loaders.infos import check_names, info_layout
from orlog.loaders.streams import Cursor, Place, Source, Stream, as_integer, stream_key
from orlog.loaders.tensors import Tensor
from orlog.manifests.columns import axis_of

if TYPE_CHECKING:
    from orlog.datasets.download.in_place import Coming

_INFOS = "infos"  # names the matrix of infos, as no column is named

STREAMED = (
    "orlog.loaders.transitions:transitions",
    "orlog.loaders.sequences:sequences",
    "orlog.loaders.windows:windows",
    "orlog.loaders.chunks:action_chunks",
)
"""Loaders whose items need nothing but the episode of the step that is drawn."""
BUFFER_BYTES = 2**28
BLOCK_BYTES = 2**22
MOST_THREADS = 4
LARGE_ROW_BYTES = 512  # chunks hold few rows this large, so blocks need not share chunks


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How far a stream is from a full shuffle.

    Attributes:
        blocks: Blocks of the dataset.
        blocks_in_group: Blocks that are mixed at a time, on average.
        steps_in_group: Their steps, on average.
        blocks_in_batch: Different blocks that the steps of a batch come from, expected.
        neighbors_together: Probability that a step and the next one of its episode share a batch.
        neighbors_together_shuffled: The same for a full shuffle.
    """

    blocks: int
    blocks_in_group: float
    steps_in_group: float
    blocks_in_batch: float
    neighbors_together: float
    neighbors_together_shuffled: float


class _Epoch(NamedTuple):
    """The order of one epoch: the blocks of each group, and the cumulative number of steps up to its end."""

    groups: list[np.ndarray]
    ends: Int64[np.ndarray, " groups"]


class _Group(NamedTuple):
    """Decoded steps in the order in which they are drawn."""

    source: Source
    chosen: Tensor


class StreamedBatches(Stream[Any]):
    """An endless stream of epochs of batches: every step of the data is drawn once an epoch.

    `orlog.transitions(.., stream=True)` makes it. It fits what is drawn by a step and lies in its episode.
    Pass it to a `DataLoader` with `batch_size=None`. The stream is the same for any number of
    workers and ranks, but each of them decodes all of it: use one worker if decoding is slow.

    Attributes:
        dataset: What is read.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        sampler_of: Callable[[Arrays], Any],
        *,
        seed: int,
        n_steps: int = 1,
        buffer_bytes: int = BUFFER_BYTES,
        allow_non_finite: bool = False,
        infos: Sequence[str] = (),
        to: str = "torch",
        **place: Unpack[Place],
    ) -> None:
        """Plan a stream; nothing is decoded yet.

        Args:
            dataset: What to read.
            batch_size: Items in a batch. All batches are full: if the size does not divide an epoch, some hold the
                end of one epoch and the start of the next.
            sampler_of: Returns what gathers the items of a group of episodes.
            seed: Seed of the stream.
            n_steps: Steps that an item spans, which are a part of what identifies the stream.
            buffer_bytes: Memory for decoded steps. Half of it is mixed at a time, so more memory mixes better;
                another value gives another stream. A larger episode is held whole, twice. Infos take memory
                beside it.
            allow_non_finite: Take NaN and infinity as they are.
            infos: As in `StreamOptions`, and so are `to`, `start`, `rank` and `ranks`.
            to: As in `StreamOptions`.
            place: Where to start, and which part of each batch to take.

        Raises:
            SchemaError: the dataset is a weighted mixture; of values only while iterating.
            IntegrityError: a file is damaged; also while iterating.
        """
        buffer_bytes = as_integer("buffer_bytes", buffer_bytes, 1)
        # The discount does not affect the draws, so all discounts share the default's key.
        kind = f"stream 1 n_steps={n_steps} discount=0.99 buffer={buffer_bytes}"
        cursor = Cursor(kind=kind, digest=dataset.digest, batch_size=batch_size, seed=seed, **place)
        layout, self._names = layout_of(dataset), check_names(infos)
        warn_of_outside(dataset)
        if dataset.mixture is not None:
            raise SchemaError(
                f"{dataset.name}: a weighted mixture has no epochs to stream; use "
                'orlog.load_arrays(ds, "mmap") with orlog.transitions, or stream its parts.'
            )
        super().__init__(cursor, dataset.name, to)
        self.dataset = dataset
        self._sampler_of = sampler_of
        self._allow_non_finite = allow_non_finite
        self._layout = layout
        self._columns = {name: (layout, name) for name in layout.row_bytes}
        self._held: dict[str, np.ndarray] = {}
        self._hold = self._columns_to_hold(layout, buffer_bytes // 4)
        sizes = layout.row_bytes
        left = buffer_bytes - layout.rows * sum(sizes[name] for name in self._hold)
        # Infos take memory beside the buffer, so that the stream is the same without them.
        self._beside = info_layout(dataset, self._names)
        if self._names:
            self._columns |= {name or _INFOS: (self._beside, name) for name in self._beside.row_bytes}
            self._hold += [name or _INFOS for name in self._columns_to_hold(self._beside, buffer_bytes // 4)]
        # Two groups are in memory: batches come from one while the other is decoded.
        row_bytes = sum(sizes.values())
        self._group_rows = max(1, left // 2 // row_bytes)
        block_rows = max(1, min(BLOCK_BYTES // row_bytes, self._group_rows // 4))
        self._planned: tuple[int, _Epoch] = (-1, _Epoch([], np.empty(0, np.int64)))
        self._edges = episode_blocks(layout.final_rows, block_rows)
        self._block_rows = np.diff(layout.final_rows[self._edges[1:] - 1], prepend=-1)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out decoded data, which a worker process reads again."""
        return {**self.__dict__, "_held": {}}

    def __iter__(self) -> Iterator[Any]:
        """Yield batch `start`, `start + 1`, ... without end; in a worker only its share of them."""
        own, workers = self._begin()
        start = index = self.start
        with concurrent.futures.ThreadPoolExecutor(1, "orlog-stream") as pool, contextlib.closing(_Ahead()) as ahead:
            epoch, number, into = self._find(start * self.batch_size)
            memory, coming_memory = self._new_memory(), self._new_memory()
            group = self._decode(epoch, number, memory, ahead)
            coming = pool.submit(self._decode, *self._after(epoch, number), coming_memory, ahead)
            while True:
                whole = (len(group.chosen) - into) // self.batch_size
                if workers == self.ranks == 1 and whole:  # gathered together
                    chosen = group.chosen[into : into + whole * self.batch_size]
                    for batch in group.source.gather_many(chosen, self.batch_size):
                        self._next = index + 1
                        yield self._in_form(batch)
                        index, into = index + 1, into + self.batch_size
                    continue
                is_ours = (index - start) % workers == own
                pieces, done = [], 0
                while done < self.batch_size:
                    if into == len(group.chosen):
                        epoch, number = self._after(epoch, number)
                        group, into = coming.result(), 0
                        memory, coming_memory = coming_memory, memory
                        coming = pool.submit(self._decode, *self._after(epoch, number), coming_memory, ahead)
                    count = min(self.batch_size - done, len(group.chosen) - into)
                    if is_ours:
                        pieces += self._gather(group, into, done, count)
                    into, done = into + count, done + count
                if is_ours:
                    self._next = index + workers
                    yield self._in_form(joined(pieces))
                index += 1

    def batch(self, index: int) -> Any:
        """Return batch `index`: the same as iterating to it. Decodes all groups that it touches.

        Raises ValueError if it is negative.
        """
        epoch, number, into = self._find(as_integer("index", index, 0) * self.batch_size)
        memory = self._new_memory()
        pieces, done = [], 0
        while done < self.batch_size:
            group = self._decode(epoch, number, memory)
            count = min(self.batch_size - done, len(group.chosen) - into)
            pieces += self._gather(group, into, done, count)
            (epoch, number), into, done = self._after(epoch, number), 0, done + count
        return self._in_form(joined(pieces))

    @property
    def mixing(self) -> Mixing:
        """How well the stream mixes, by the formulas of this module."""
        steps = self.dataset.total_steps
        groups = len(self._epoch(0).groups)
        in_group, blocks = steps / groups, (len(self._edges) - 1) / groups
        return Mixing(
            blocks=len(self._edges) - 1,
            blocks_in_group=blocks,
            steps_in_group=in_group,
            blocks_in_batch=blocks * (1 - (1 - min(1, 1 / blocks)) ** self.batch_size),
            neighbors_together=min(1, (self.batch_size - 1) / max(1, in_group - 1)),
            neighbors_together_shuffled=min(1, (self.batch_size - 1) / max(1, steps - 1)),
        )

    @property
    def texts(self) -> dict[str, tuple[str, ...]]:
        """Distinct texts by column, as `Arrays.texts`; reads these whole columns once."""
        self._read_held()
        return {**self._layout.texts, **self._beside.texts}

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iteration is, small and plain; see `load_state_dict`."""
        epoch = self._next * self.batch_size // self.dataset.total_steps
        return {**super().state_dict(), "epoch": epoch}

    def _find(self, position: int) -> tuple[int, int, int]:
        """Return the epoch, the group, and the position in the group of a step of the stream."""
        epoch, step = divmod(position, self.dataset.total_steps)
        ends = self._epoch(epoch).ends
        number = int(np.searchsorted(ends, step, "right"))
        return epoch, number, step - (int(ends[number - 1]) if number else 0)

    def _after(self, epoch: int, number: int) -> tuple[int, int]:
        """Return epoch and number of the next group."""
        last = number + 1 == len(self._epoch(epoch).groups)
        return (epoch + 1, 0) if last else (epoch, number + 1)

    def _epoch(self, epoch: int) -> _Epoch:
        """Return the order of an epoch: blocks in a seeded order, and as many in a group as memory holds."""
        known, plan = self._planned
        if known != epoch:
            key = stream_key(self.digest, self.seed, f"{self.cursor.kind} blocks {epoch}")
            order = seeded_order(key, len(self._block_rows))
            firsts = []
            held = self._group_rows
            for position, count in enumerate(self._block_rows[order].tolist()):
                if held + count > self._group_rows:
                    firsts.append(position)
                    held = 0
                held += count
            groups = np.split(order, firsts[1:])
            steps = self._block_rows - np.diff(self._edges)
            plan = _Epoch(groups, np.cumsum([steps[some].sum() for some in groups]))
            self._planned = epoch, plan
        return plan

    def _new_memory(self) -> dict[str, np.ndarray]:
        """Return arrays large enough for any group, to be reused by one group after the other.

        Memory is slow on first use: getting the pages for an image may take longer than decoding
        it.
        """
        most = min(self._layout.rows, max(self._group_rows, int(self._block_rows.max())))
        return {name: self._zeros(name, most) for name in self._columns}

    def _ask_for(self, epoch: int, number: int, ahead: _Ahead | None) -> None:
        """Fetch a group of a dataset that is read in place; or let it and the next one come `ahead`.

        What is held whole comes before them.
        """
        grouped = self._stored(name for name in self._columns if name not in self._hold)
        groups = [(epoch, number)] if ahead is None else [(epoch, number), self._after(epoch, number)]
        several = [
            [np.arange(*self._edges[block : block + 2]) for block in self._epoch(at).groups[place]]
            for at, place in groups
        ]
        if ahead is None:
            self.dataset.fetch_ahead(np.concatenate(several[0]), grouped)
            return
        if any(name not in self._held for name in self._hold):
            ahead.fetch(self.dataset, [np.arange(self.dataset.total_episodes)], self._stored(self._hold))
        for blocks in several:
            ahead.fetch(self.dataset, blocks, grouped)

    def _stored(self, names: Iterable[str]) -> set[str]:
        """Return the columns of the dataset that some of `_columns` are read from."""
        stored: set[str] = set()
        for layout, own in (self._columns[name] for name in names):
            stored |= {layout.others[own].name} if own else {*layout.packed}
        return stored

    def _decode(self, epoch: int, number: int, memory: Mapping[str, np.ndarray], ahead: _Ahead | None = None) -> _Group:
        """Read the blocks of a group into memory, and put its steps into their order.

        Of a dataset that is read in place, this group and the next one are fetched `ahead`.
        """
        dataset, layout = self.dataset, self._layout
        if dataset.in_place:
            self._ask_for(epoch, number, ahead)
        self._read_held()
        episodes = [slice(*self._edges[block : block + 2]) for block in self._epoch(epoch).groups[number]]
        ranges = [(int(layout.first_rows[some.start]), int(layout.final_rows[some.stop - 1]) + 1) for some in episodes]
        begins = list(itertools.accumulate((last - first for first, last in ranges), initial=0))
        filled = {name: values[: begins[-1]] for name, values in memory.items()}

        def read_block(block: int) -> None:
            if ahead is not None and ahead.is_over:
                return
            (first, last), begin, end = ranges[block], begins[block], begins[block + 1]
            for name, values in filled.items():
                if name in self._hold:
                    values[begin:end] = self._held[name][first:last]
                    continue
                if axis_of(name) != "observation":  # no step is read there, and another group's may be
                    values[begin + layout.final_rows[episodes[block]] - first] = 0
                self._fill(name, first, last, values[begin:end])

        key = stream_key(self.digest, self.seed, f"{self.cursor.kind} steps {epoch} {number}")
        steps = begins[-1] - sum(some.stop - some.start for some in episodes)
        with concurrent.futures.ThreadPoolExecutor(_threads(), "orlog-decode") as pool:
            ordering = pool.submit(seeded_order, key, steps)
            list(pool.map(read_block, range(len(ranges))))
        order = ordering.result()
        lengths = np.concatenate([(layout.final_rows - layout.first_rows)[some] for some in episodes])
        made = [
            arrays_of(
                part,
                {own: filled[name] for name, (of, own) in self._columns.items() if of is part},
                lengths,
                dataset.name,
                dataset.digest,
            )
            for part in ([layout, self._beside] if self._names else [layout])
        ]
        arrays = add_infos(*made) if self._names else made[0]
        sampler = self._sampler_of(dataclasses.replace(arrays, **self._of_all))
        return _Group(Source(sampler, self._names), sampler.choose(((order + 0.5) / len(order))[:, None]))

    @functools.cached_property
    def _of_all(self) -> dict[str, Any]:
        """What the steps of a group know of the whole dataset."""
        longest = int(self.dataset.episode_lengths.max())
        return {"longest": longest, "missing_finals": missing_finals(self.dataset)}

    def _columns_to_hold(self, layout: Layout, limit_bytes: int) -> list[str]:
        """Return the columns to hold in memory whole: all but images, if that takes little memory.

        A chunk holds the rewards of some 100,000 steps, and would be decoded again for every few
        images.
        """
        sizes = layout.row_bytes
        small = [name for name, size in sizes.items() if size < LARGE_ROW_BYTES]
        has_images = max(self._layout.row_bytes.values()) >= LARGE_ROW_BYTES
        held = small if has_images and layout.rows * sum(sizes[name] for name in small) <= limit_bytes else []
        # The place of a text depends on all rows before it.
        texts = [name for name in layout.tables if name not in held]
        needed = layout.rows * sum(sizes[name] for name in texts)
        if needed > limit_bytes:
            raise ValueError(
                f"{self.dataset.name}: buffer_bytes must be at least {4 * needed}, found "
                f"{4 * limit_bytes}: a quarter of it holds the places of the texts of column "
                f"{', '.join(texts)}; to need less, leave these columns out (select_columns)."
            )
        return held + texts

    def _read_held(self) -> None:
        missing = [name for name in self._hold if name not in self._held]
        if missing:
            self.dataset.fetch_ahead(np.arange(self.dataset.total_episodes), self._stored(missing))
        for name in missing:
            values = self._zeros(name, self._layout.rows)
            layout, own = self._columns[name]
            for first, last in layout.ranges(own, BLOCK_BYTES):
                self._fill(name, first, last, values[first:last])
            self._held[name] = values

    def _zeros(self, name: str, rows: int) -> np.ndarray:
        """Return an array for some rows of the matrix or of another column."""
        layout, own = self._columns[name]
        shape, dtype = layout.forms[own]
        return np.zeros((rows, *shape), dtype)

    def _fill(self, name: str, first: int, last: int, values: np.ndarray) -> None:
        """Read rows of the matrix or of another column into an array of zeros."""
        layout, own = self._columns[name]
        if own:
            fill_other(self.dataset, layout, own, first, last, values)
            return
        place = fill_matrix(self.dataset, layout, first, last, values)
        if place and not self._allow_non_finite:
            raise not_finite(self.dataset, place, "orlog.transitions(.., stream=True, allow_non_finite=True)")

    def _gather(self, group: _Group, into: int, done: int, count: int) -> list[Any]:
        """Return this rank's part of the next `count` steps of a batch that already has `done`."""
        own = self.cursor.own_items
        first, last = max(done, own.start) - done, min(done + count, own.stop) - done
        return [group.source.gather(group.chosen[into + first : into + last])] if first < last else []


class _Ahead:
    """Fetches blocks of a dataset that is read in place before they are needed, in the order in which they will be.

    One thread asks for them, since it may have to wait for what says where they are.

    Attributes:
        is_over: Whether nothing more is needed.
    """

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "orlog-ahead")
        self._requests: list[Coming] = []
        self.is_over = False

    def fetch(self, dataset: Dataset, blocks: Sequence[np.ndarray], columns: set[str]) -> None:
        """Ask for the rows of blocks of episodes in some columns, when what was asked before is asked for."""
        self._pool.submit(self._fetch, dataset, blocks, columns)

    def _fetch(self, dataset: Dataset, blocks: Sequence[np.ndarray], columns: set[str]) -> None:
        self._requests[:] = [request for request in self._requests if not request.done()]
        with contextlib.suppress(OrlogError, OSError):  # whoever reads the rows meets it too
            dataset.fetch_ahead(np.concatenate(blocks), columns, indexes=True)
            for block in blocks:
                if not self.is_over:
                    dataset.fetch_ahead(block, columns, self._requests)

    def close(self) -> None:
        """Take back what was not sent yet."""
        self.is_over = True
        self._pool.shutdown(cancel_futures=True)
        for request in self._requests:
            request.cancel()


def _threads() -> int:
    """Return how many blocks to decode in parallel; codecs release the interpreter's lock."""
    if hasattr(os, "sched_getaffinity"):  # Linux: cores that this process may use
        return min(MOST_THREADS, len(os.sched_getaffinity(0)))
    return min(MOST_THREADS, os.cpu_count() or 1)


def stream_loader(
    dataset: Dataset,
    loader: str,
    arguments: Mapping[str, Any],
    *,
    seed: int,
    start: int = 0,
    change: Callable[[Arrays], Arrays] = lambda arrays: arrays,
) -> StreamedBatches:
    """Return an endless stream of epochs of what a loader gives: every step of the data is drawn once an epoch.

    Each group of whole episodes is given to the loader as if it were all of the data.

    Args:
        dataset: What to read.
        loader: One of `STREAMED`.
        arguments: Arguments of the loader, with the size of a batch.
        seed: Seed of the stream.
        start: First batch of an iteration.
        change: Changes the steps of a group before they are sampled, such as their rewards.
    """
    module, _, function = loader.partition(":")
    make = getattr(importlib.import_module(module), function)
    rest = dict(arguments)
    size, infos = rest.pop("batch_size"), rest.pop("infos", ())

    def sampler_of(arrays: Arrays) -> Any:
        return make(change(arrays), size, seed=0, rank=0, ranks=1, **rest).sampler

    # A run is one process, also where others of its group train too.
    place: dict[str, Any] = {"start": start, "rank": 0, "ranks": 1}
    return StreamedBatches(dataset, size, sampler_of, seed=seed, buffer_bytes=BUFFER_BYTES, infos=infos, **place)
