"""The cursor of a stream of batches: what identifies the stream, and what its state holds.

    state   {"cursor_version": 1, "kind": .., "digest": .., "seed": .., "batch_size": ..,   which stream
             "batch": .., ..}                                                     which batch is next

Streams with the same kind, digest, seed and batch size have the same batches. Rank and ranks only
say which part of each batch a process takes, so they are not part of a state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from orlog.loaders.arguments import as_integer
from orlog.loaders.draws import stream_key

_IDENTITY = ("cursor_version", "kind", "digest", "seed", "batch_size")
_INTEGERS = ("batch_size", "seed", "start", "rank", "ranks")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Which stream it is, where it starts, and which part of it this process takes.

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
        """Check the numbers, and convert them to Python's, since PyTorch and JSON refuse NumPy's.

        Raises TypeError if a number is no integer; ValueError if a number is out of range, or the batch size
        is no multiple of the ranks.
        """
        for name in _INTEGERS:
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
        """Refuse a state of another stream.

        Raises ValueError if a field differs; the message has both values; TypeError if it is no state at all.
        """
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
