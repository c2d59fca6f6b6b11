"""Updates on a GPU, recorded once and then repeated as a whole.

An update of small networks is hundreds of kernels of a few microseconds each, and starting them one by one takes many
times as long as they do. CUDA can record them and start all of them in one call (a CUDA graph): the same kernels on
the same places in memory, so the numbers are the same to the bit. For that a batch is copied to where the recorded
one lay, rates of learning are read from memory, and what an update decides in Python, such as whether the policy
learns this time, is asked for before (`phase`): each answer has a recording of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from orlog.algos.algorithms import is_own
from orlog.algos.optimizers import Adam
from orlog.loaders.batch import Tensors

Metrics: TypeAlias = dict[str, Tensor]
Record: TypeAlias = Callable[[Callable[[], Metrics], Sequence[torch.Generator]], tuple[Metrics, Callable[[], object]]]
"""Record a call that draws from some generators: return what it returns, and what repeats it."""

FIRST = 2
"""Updates of each kind that are made one by one, before one is recorded: they allocate what stays."""
MOST = 8
"""Recordings that are kept; updates of still other kinds or shapes are made one by one."""


def updates_of(algorithm: Any) -> Callable[[Any], Metrics]:
    """Return what takes an algorithm's updates: `algorithm.update`, or `Replays` on a GPU.

    Updates of orlog's algorithms are recorded there, but for those that say `REPLAYS = False` because they
    wait for the GPU; updates of your own are where it says `REPLAYS = True`.
    """
    kind = type(algorithm)
    is_on_gpu = any(tensor.device.type == "cuda" for tensor in _tensors(algorithm))
    if is_on_gpu and getattr(kind, "REPLAYS", not is_own(kind)):
        return Replays(algorithm)
    update: Callable[[Any], Metrics] = algorithm.update
    return update


def record_on_gpu(
    call: Callable[[], Metrics], generators: Sequence[torch.Generator]
) -> tuple[Metrics, Callable[[], object]]:
    """Record the kernels of a call, none of which runs yet."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        metrics = call()
    return metrics, graph.replay


class Replays:
    """The updates of an algorithm, which are recorded and repeated; call it as `algorithm.update`.

    The tensors of metrics are overwritten by the next call.
    """

    def __init__(self, algorithm: Any, record: Record = record_on_gpu) -> None:
        self._algorithm, self._record = algorithm, record
        self._counts: dict[Hashable, int] = {}
        self._kept: dict[Hashable, tuple[_Own, Metrics, Callable[[], object]]] = {}
        self._generators = [*_generators(algorithm)]
        self._optimizers = [optimizer for optimizer in vars(algorithm).values() if isinstance(optimizer, Adam)]

    def __call__(self, batch: Any) -> Metrics:
        """Take one gradient step and return the metrics of the batch."""
        algorithm = self._algorithm
        if not isinstance(batch, Tensors):
            metrics: Metrics = algorithm.update(batch)
            return metrics
        if hasattr(algorithm, "set_rates"):
            algorithm.set_rates()
        for optimizer in self._optimizers:
            optimizer.keep_rates()
        tensors = _tensors_of(batch)
        pieces = _pieces(tensors)
        form = _form(batch, tensors, pieces)
        key = (algorithm.phase() if hasattr(algorithm, "phase") else None, form)
        if key not in self._kept:
            # in memory of its own as when it is recorded, so that the kernels are the same
            own = _Own(batch, tensors, pieces)
            own.fill(tensors, pieces)
            if not self._is_to_be_recorded(key):
                unrecorded: Metrics = algorithm.update(own.batch)
                return unrecorded
            step = getattr(algorithm, "step", None)
            metrics, repeat = self._record(lambda: algorithm.update(own.batch), self._generators)
            if step is not None:
                algorithm.step = step
            self._kept[key] = own, metrics, repeat
            self._counts.pop(key)
        own, metrics, repeat = self._kept[key]
        own.fill(tensors, pieces)
        repeat()
        if hasattr(algorithm, "step"):
            algorithm.step += 1
        return metrics

    def _is_to_be_recorded(self, key: Hashable) -> bool:
        """Return whether updates of a kind came often enough by now, and there is room."""
        if len(self._kept) >= MOST:
            return False
        if len(self._counts) >= 8 * MOST:  # where each batch has another shape
            self._counts.clear()
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count > FIRST


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Tensors of a batch that are copied at once: those of a block of memory, from its first number on."""

    places: tuple[int, ...]
    first: int
    length: int

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return what is copied: all numbers of the block from the first to the last, or one tensor."""
        tensor = tensors[self.places[0]]
        return tensor.as_strided((self.length,), (1,), self.first) if self.length else tensor


class _Own:
    """A batch whose memory stays, into which others of the same form are copied."""

    def __init__(self, like: Tensors, tensors: Sequence[Tensor], pieces: Sequence[_Piece]) -> None:
        self._blocks, made = [], {}
        for piece in pieces:
            block = torch.empty_like(piece.of(tensors), memory_format=torch.preserve_format)
            self._blocks.append(block)
            for place in piece.places:
                tensor = tensors[place]
                first = tensor.storage_offset() - piece.first
                made[place] = block.as_strided(tensor.shape, tensor.stride(), first) if piece.length else block
        following = iter(range(len(tensors)))
        self.batch = like.map(lambda _: made[next(following)])

    def fill(self, tensors: Sequence[Tensor], pieces: Sequence[_Piece]) -> None:
        for block, piece in zip(self._blocks, pieces, strict=True):
            block.copy_(piece.of(tensors))


def _tensors_of(batch: Tensors) -> list[Tensor]:
    """Return the tensors of a batch in the order of `map`."""
    taken: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        taken.append(tensor)
        return tensor

    batch.map(take)
    return taken


def _pieces(tensors: Sequence[Tensor]) -> list[_Piece]:
    """Return what is copied of a batch: loaders give views of a few blocks, nearly without gaps."""
    blocks: dict[Hashable, list[int]] = {}
    for place, tensor in enumerate(tensors):
        block = tensor.untyped_storage().data_ptr(), tensor.dtype, bool(tensor.numel())
        blocks.setdefault(block, []).append(place)
    pieces = []
    for places in blocks.values():
        its = [tensors[place] for place in places]
        first = min(int(tensor.storage_offset()) for tensor in its)
        length = max(_end(tensor) for tensor in its) - first
        if 0 < length <= 2 * sum(tensor.numel() for tensor in its):
            pieces.append(_Piece(tuple(places), first, length))
        else:
            pieces += [_Piece((place,), 0, 0) for place in places]
    return pieces


def _end(tensor: Tensor) -> int:
    """Return the place in its memory after a tensor's last number."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset()) + 1 + sum((count - 1) * step for count, step in sizes)


def _form(batch: Tensors, tensors: Sequence[Tensor], pieces: Sequence[_Piece]) -> Hashable:
    """Return what batches have in common that one recording serves."""
    parts: list[Hashable] = [type(batch).__name__]
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, dict):
            parts.append(tuple(value))
        elif not isinstance(value, Tensor):
            parts.append(value)
    for piece in pieces:
        its = [tensors[place] for place in piece.places]
        starts = [tensor.storage_offset() - piece.first if piece.length else 0 for tensor in its]
        layouts = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in its]
        parts.append((piece.places, piece.length, *zip(starts, layouts, strict=True)))
    return tuple(parts)


def _held(algorithm: Any) -> Iterator[Any]:
    for value in vars(algorithm).values():
        yield value
        for module in value.modules() if isinstance(value, nn.Module) else ():
            yield from vars(module).values()


def _generators(algorithm: Any) -> Iterator[torch.Generator]:
    for value in _held(algorithm):
        if isinstance(value, torch.Generator):
            yield value


def _tensors(algorithm: Any) -> Iterator[Tensor]:
    for value in _held(algorithm):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module):
            yield from value.parameters()
