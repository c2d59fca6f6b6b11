"""Endless streams of batches: batch `b` is a pure function of what is sampled, the seed and `b`.

    key      = SHA-256(kind of sample and its settings, dataset digest, seed)
    draw n   = u(n),   u(n) = (Philox(key, n) >> 11) / 2^53
    item i   = sampler.choose(draws i * draws_per_item, .. of the key's stream)
    batch b  = sampler.gather(items b * batch_size, .., (b + 1) * batch_size - 1)

There is no state to lose: to continue, start at `b`. A rank takes its slice of each batch and a
worker every n-th batch, so the stream is the same for any number of ranks and workers. Infos
(`loaders/infos.py`) are given beside the items, and change nothing of them.

Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is counter-based: any
position is reached without those before it. Only its raw 64-bit words are used, since those are
fixed forever, while the methods of NumPy's Generator may change between versions. The draws deviate
from exact uniformity by less than range / 2^53.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypedDict, TypeVar

import numpy as np
from jaxtyping import Float64, Int64

from orlog.errors import MissingExtraError, wrong_type
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import Tensors
from orlog.loaders.infos import InfoReader
from orlog.loaders.tensors import HAS_TORCH, IterableDataset, Tensor, default_collate_fn_map, get_worker_info, torch
from orlog.manifests.names import did_you_mean

Given = ParamSpec("Given")
Result = TypeVar("Result")
BatchT = TypeVar("BatchT")

BLOCK = 64  # batches whose items are chosen at once, to share the cost of a generator
BLOCK_ITEMS = 2**17  # but no more items than this, unless a batch has more
_WORDS_PER_COUNT = 4  # Philox4x64 makes four words for each value of its counter
# Gathered at once. For larger blocks malloc returns the memory to the system each time, and getting it back page by
# page takes longer than everything else.
_BLOCK_BYTES = 1 << 21
_IDENTITY = ("cursor_version", "kind", "digest", "seed", "batch_size")


# --- arguments that every kind of sampling takes


class Place(TypedDict, total=False):
    """Where a stream starts, and which part of each batch this process takes: see `StreamOptions`."""

    start: int
    rank: int
    ranks: int


class StreamOptions(Place, total=False):
    """Arguments of every kind of sampling, beside those of its own.

        orlog.transitions(data, 256, seed=0, start=1_000, infos=("cost",), rank=1, ranks=2)

    All of them read the steps of a dataset into RAM first (4 bytes a number): for several streams, call
    `orlog.load_arrays` once and pass them its result. Only `orlog.transitions(.., stream=True)` reads as it goes.

    Attributes:
        data: What to sample from: a dataset, its name or folder, or what `orlog.load_arrays` returned.
        batch_size: Items in a batch, of all ranks together.
        seed: Seed of the stream. Batch `b` is a pure function of the data, the settings, the seed and `b`.
        start: First batch, to continue where a run stopped; 0 by default.
        infos: Other columns of the steps to give as `batch.infos`: names such as ("cost",), or
            "episodes/NAME"; see `Tensors`. None by default.
        rank: Which slice of each batch this process takes; by default that of `torch.distributed`, if it is
            initialised, else 0.
        ranks: Number of slices; by default the number of its processes, else 1.
        to: "torch" for batches of tensors, or "numpy" for arrays of the same names and values, without PyTorch.

    Raises:
        MissingExtraError: PyTorch is not installed, and tensors are asked for.
        SchemaError: values that are no numbers of a fixed shape, numbers that are not finite, or final
            observations that were never recorded and are asked for.
        NotFoundError: there is no such info.
        IntegrityError: a file is damaged.
        ValueError: a number is out of range.
        TypeError: a number is no integer, or an argument is of the wrong type.
    """

    infos: Sequence[str]
    to: Literal["torch", "numpy"]


_DEFAULTS = {
    "start": ("int", 0),
    "infos": ("Sequence[str]", ()),
    "rank": ("int | None", None),
    "ranks": ("int | None", None),
    "to": ("Literal['torch', 'numpy']", "torch"),
}


def takes_stream_options(
    function: Callable[Given, Result], more: Mapping[str, tuple[str, Any]] = MappingProxyType({})
) -> Callable[Given, Result]:
    """Show `StreamOptions` in the signature of a function that takes them as `**stream`.

    `more` are further ones by name, each with its type and default. A name that is not there is refused before anything
    is read: the TypeError has the nearest one.
    """
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
        for name, (kind, value) in {**more, **_DEFAULTS}.items()
    ]
    shown = signature.replace(parameters=[*own, *shared])

    @functools.wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        for name in kwargs:
            if name not in shown.parameters:
                hint = did_you_mean(name, shown.parameters) or "."
                if name == "weights":
                    hint = "; give steps with weights in place of the dataset: orlog.loaders.weights.weighted(data, weights)."
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        given = kwargs.get("rank"), kwargs.get("ranks")
        rank, ranks = 0, 1
        if given == (None, None) and torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        kwargs["rank"] = rank if given[0] is None else given[0]
        kwargs["ranks"] = ranks if given[1] is None else given[1]
        return function(*args, **kwargs)

    vars(checked)["__signature__"] = shown
    return checked


def as_integer(name: str, value: object, least: int | None = None) -> int:
    """Return an argument as a Python int; NumPy integers are accepted, True and 2.0 are not."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise wrong_type(name, "an integer", value)
    if least is not None and value < least:
        raise ValueError(f"{name} must be >= {least}, found {value}.")
    return int(value)


def as_steps(name: str, steps: object, discount: float) -> int:
    """Return a number of steps that rewards are summed over, at least 1; also check the discount."""
    steps = as_integer(name, steps)
    if steps < 1 or not 0 <= discount <= 1:
        raise ValueError(f"{name} must be >= 1 and discount in [0, 1], found {steps} and {discount}.")
    return steps


def as_length(length: object, discount: float, arrays: Arrays) -> int:
    """Return the number of steps that a window spans; ValueError if no episode is that long."""
    steps = as_steps("length", length, discount)
    longest = max(arrays.longest, int(arrays.lengths.max()))
    if steps > longest:
        raise ValueError(
            f"{arrays.name or 'this dataset'}: length {steps} is more than the {longest} steps of the "
            f"longest of its {len(arrays.lengths)} episodes; choose at most {longest}."
        )
    return steps


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse an argument that is not one of the known words with a ValueError."""
    if not isinstance(value, str) or value not in known:
        words = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        end = did_you_mean(str(value), known) or "."
        raise ValueError(f"{name} must be {words}, found {value!r}{end}")


def canonical_number(value: float) -> float:
    """Return a setting as a float, the same one for all equal numbers.

    Keys of streams and digests hold the text of a setting, so 1, 1.0, `np.float64(1)` and True must
    become the same text, as must 0.0 and -0.0.
    """
    return float(value) + 0.0


# --- random numbers


def stream_key(digest: str, seed: int, kind: str = "transitions 1") -> int:
    """Return the 128-bit key of the stream of (kind of sample, digest, seed)."""
    text = f"orlog {kind}\n{digest}\n{seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def draw(key: int, first: int, count: int, bound: int) -> Int64[np.ndarray, " count"]:
    """Return draws `first` to `first + count - 1` of a stream, uniform in [0, bound)."""
    return (_words(key, first, count) * (bound * 2.0**-53)).astype(np.int64)


def draw_uniform(key: int, first: int, count: int) -> Float64[np.ndarray, " count"]:
    """Return draws `first` to `first + count - 1` of a stream, uniform in [0, 1)."""
    return _words(key, first, count) * 2.0**-53


def _words(key: int, first: int, count: int) -> np.ndarray:
    """Return the upper 53 bits of words of a stream."""
    skipped = first % _WORDS_PER_COUNT
    generator = np.random.Philox(key=key, counter=first // _WORDS_PER_COUNT)
    words = generator.random_raw(skipped + count)[skipped:]
    return words >> np.uint64(11)


# --- streams


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Which stream it is, where it starts, and which part of it this process takes.

    Streams with the same kind, digest, seed and batch size have the same batches, so these identify the state
    of a stream. Rank and ranks only say which part of each batch a process takes.

    Attributes:
        kind: Kind of batch, with every setting that affects a draw.
        digest: Digest of the dataset.
        batch_size: Items in a batch, of all ranks together.
        seed: Seed of the stream.
        start: First batch of an iteration.
        rank: Which slice of each batch this process takes.
        ranks: Number of slices.
    """

    kind: str
    digest: str
    batch_size: int
    seed: int
    start: int = 0
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        """Check the numbers, and convert them to Python's, since PyTorch and JSON refuse NumPy's."""
        for name in ("batch_size", "seed", "start", "rank", "ranks"):
            object.__setattr__(self, name, as_integer(name, getattr(self, name)))
        if self.batch_size < 1 or self.seed < 0 or self.start < 0:
            raise ValueError(
                f"batch_size must be >= 1, seed and start >= 0, found {self.batch_size}, {self.seed} and {self.start}."
            )
        if not 0 <= self.rank < self.ranks or self.batch_size % self.ranks:
            raise ValueError(
                f"rank {self.rank} of {self.ranks} with batch_size {self.batch_size}: rank must be "
                "from 0 to ranks - 1, and batch_size (of all ranks together) a multiple of ranks."
            )

    @property
    def key(self) -> int:
        """Key of the stream's random numbers."""
        return stream_key(self.digest, self.seed, self.kind)

    @property
    def own_items(self) -> slice:
        """Which items of a batch this process takes."""
        size = self.batch_size // self.ranks
        return slice(self.rank * size, (self.rank + 1) * size)

    def state(self, **place: Any) -> dict[str, Any]:
        """Return a state: which stream it is, and the place in it."""
        return {
            "cursor_version": 1,
            "kind": self.kind,
            "digest": self.digest,
            "seed": self.seed,
            "batch_size": self.batch_size,
            **place,
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of another stream with a ValueError, and what is no state."""
        if not isinstance(state, Mapping):
            raise TypeError(f"expected a state that state_dict returned, found {type(state).__name__}.")
        if "cursor_version" not in state:
            raise ValueError(
                "this is not the state of a stream: expected what its state_dict returned (load the "
                "state of a DataLoader into the DataLoader)."
            )
        ours = self.state()
        for field in _IDENTITY:
            if state.get(field) != ours[field]:
                raise ValueError(
                    f"this state is of another stream: {field} is {state.get(field)!r} there and {ours[field]!r} here."
                )

    def summary(self, stream: object, dataset: str) -> str:
        """Return the `repr` of a stream over a dataset of some name."""
        return (
            f"{type(stream).__name__}({dataset}, {self.digest[:19]}, {self.kind!r}, "
            f"batch_size={self.batch_size}, seed={self.seed})"
        )


class Sampler:
    """What makes batches of one kind; by default an item is a step, chosen by its row.

    A class of another module needs no more than `kind`, `draws`, `arrays`, `choose` and `gather`, and `rows_of` if
    it chooses anything but a row first (`loaders/infos.py`).

    Attributes:
        kind: Name of the kind and its settings; samplers that choose differently must differ in it.
        draws: Number of uniform numbers that choose one item.
        arrays: What is sampled.
        in_blocks: Whether several batches may be gathered as one, and cut into batches then, which is faster.
    """

    kind: str
    in_blocks = True

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.draws = arrays.draws

    def __getstate__(self) -> dict[str, Any]:
        """Leave views out of a pickle, since each would carry all rows; they are made again."""
        return {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(type(self), name, None), functools.cached_property)
        }

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return what `gather` needs to know of each item, int64, one row per item."""
        return torch.from_numpy(self.arrays.step_table.take(self.arrays.choose_steps(uniform)))

    def gather(self, chosen: Tensor) -> Any:
        """Return the batch of some items; `chosen` is on the device of the arrays."""
        raise NotImplementedError


def _refuse_to_collate(batch: Any, **_how: Any) -> NoReturn:
    raise TypeError(
        f"{type(batch[0]).__name__}: a stream gives whole batches, which a DataLoader would put into batches again; "
        "give it batch_size=None."
    )


default_collate_fn_map[Tensors] = _refuse_to_collate


class Stream(IterableDataset[BatchT]):
    """What endless streams of batches have in common: a cursor, a repr and states.

    It is a PyTorch `IterableDataset` of whole batches: pass it to a `DataLoader` with
    `batch_size=None`. Iterating starts at batch `start` each time.

    Attributes:
        cursor: Which stream it is, where it starts, and which part of it this process takes.
    """

    def __init__(self, cursor: Cursor, dataset: str, to: str = "torch") -> None:
        """Start a stream; `dataset` is a name for messages, and `to` as in `StreamOptions`."""
        check_choice("to", to, ("torch", "numpy"))
        if to == "torch" and not HAS_TORCH:
            raise MissingExtraError('tensors need PyTorch; to="numpy" gives arrays without it', install="torch")
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


class Source:
    """A sampler with its infos: gathers batches of what it chose."""

    def __init__(self, sampler: Any, infos: Sequence[str]) -> None:
        self.sampler, self._item_bytes = sampler, 0
        rows_of = getattr(sampler, "rows_of", None)
        self._infos = InfoReader(as_arrays(sampler.arrays, infos).infos, infos, rows_of) if infos else None

    def gather(self, chosen: Tensor) -> Any:
        """Return the batch of some items."""
        batch = self.sampler.gather(chosen)
        return batch if self._infos is None else self._infos.give(batch, chosen)

    def gather_many(self, chosen: Tensor, size: int) -> Iterator[Any]:
        """Yield the batches of `size` items each; where they can be, views of a few gathered blocks."""
        together = size
        if getattr(self.sampler, "in_blocks", False):
            self._item_bytes = self._item_bytes or max(1, self.gather(chosen[:1]).nbytes)
            together = max(1, _BLOCK_BYTES // self._item_bytes // size) * size
        for first in range(0, len(chosen), together):
            block = self.gather(chosen[first : first + together])
            yield from [block] if min(together, len(chosen) - first) == size else block.split(size)


class Batches(Stream[BatchT], Generic[BatchT]):
    """An endless stream of batches from arrays, as made by `orlog.transitions` and similar loaders.

    Iterating starts at batch `start` each time; `batch(b)` returns any batch. Pass it to a PyTorch
    `DataLoader` with `batch_size=None`, since it makes whole batches.

    Attributes:
        sampler: What chooses and gathers.
    """

    def __init__(
        self,
        sampler: Any,
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
        place = Place(start=start, rank=rank, ranks=ranks)
        cursor = Cursor(kind=sampler.kind, digest=digest, batch_size=batch_size, seed=seed, **place)
        super().__init__(cursor, sampler.arrays.name, to)
        self.sampler, self._key = sampler, cursor.key
        self._source = Source(sampler, infos)

    @property
    def arrays(self) -> Arrays:
        """The steps in memory."""
        arrays: Arrays = self.sampler.arrays
        return arrays

    def __iter__(self) -> Iterator[BatchT]:
        """Yield batch `start`, `start + 1`, ... without end; in a worker only its share of them."""
        own, workers = self._begin()
        size = self.batch_size // self.cursor.ranks
        start = index = self.start
        together = max(1, min(BLOCK, BLOCK_ITEMS // self.batch_size))
        while True:
            stop = index + together - index % together
            chosen = self._choose(index, stop - index)
            mine = range(index + (start + own - index) % workers, stop, workers)
            if get_worker_info() is None:
                made = self._source.gather_many(chosen, size)
            else:  # a worker sends what it gathers, so it should send no more than a batch
                made = (self._source.gather(chosen[(number - index) * size :][:size]) for number in mine)
            for number, batch in zip(mine, made, strict=True):
                self._next = number + workers
                yield self._in_form(batch)
            index = stop

    def batch(self, index: int) -> BatchT:
        """Return batch `index`: the same as iterating to it.

        Raises:
            ValueError: it is negative.
            TypeError: it is no integer.
        """
        chosen = self._choose(as_integer("index", index, 0), 1)
        return self._in_form(self._source.gather(chosen))  # type: ignore[no-any-return]

    def _choose(self, first: int, batches: int) -> Tensor:
        """Return this rank's items of some batches, one after the other."""
        count, draws, ranks = batches * self.batch_size, self.sampler.draws, self.cursor.ranks
        uniform = draw_uniform(self._key, first * self.batch_size * draws, count * draws)
        if ranks > 1:
            uniform = uniform.reshape(batches, ranks, -1)[:, self.cursor.rank]
        chosen: Tensor = self.sampler.choose(uniform.reshape(-1, draws))
        device = self.arrays.rows.device
        if device.type == "cuda":  # from page-locked memory the copy waits for nothing
            return chosen.pin_memory().to(device, non_blocking=True)
        return chosen.to(device)
