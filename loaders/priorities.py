"""Prioritized sampling: steps are drawn by priorities, which training updates.

    batches = orlog.transitions(ds, 256, seed=0, prioritized=True)
    for batch in batches:
        errors = learner.update(batch)                       # losses times batch.weights
        batches.update(batch.steps, errors.abs() + 1e-6)

Schaul et al. 2016, "Prioritized Experience Replay", the proportional variant: P(i) = p_i^a / sum of
p^a, and importance weights (N P(i))^-b over the largest of the batch. Unlike all other streams this
one has a state: batch b is a pure function of (dataset digest, seed, b) and the priorities at that
time, so its `state_dict` holds the priorities, 8 bytes a step. Updates affect only the process that
makes them: iterate in the training process, not in the workers of a `DataLoader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from jaxtyping import Float64, Int64

from orlog.loaders.batch import Batch
from orlog.loaders.streams import (
    BLOCK,
    BLOCK_ITEMS,
    Cursor,
    Place,
    Source,
    canonical_number,
    check_choice,
    draw_uniform,
)
from orlog.loaders.tensors import Tensor, torch

if TYPE_CHECKING:
    from orlog.loaders.transitions import TransitionSampler

_FANOUT = 16
_TOP = 4096
_set = object.__setattr__  # batches are frozen; to copy one takes longer
_LARGEST = 1e100  # sums of larger priorities could become infinite


class Priorities(TypedDict, total=False):
    """How steps are drawn by priorities.

    Attributes:
        exponent: Power that priorities are raised to (the paper's alpha), 0.6 by default; 0 is uniform.
        beta: How much importance weights correct, in [0, 1], 0.4 by default; see `PrioritizedTransitions.beta`.
        stratified: Take one item from each of `batch_size` equal parts of all priorities, as the paper does and
            by default, instead of every item from the whole: the same chances, less variance.
    """

    exponent: float
    beta: float
    stratified: bool


class SumTree:
    """Numbers >= 0 that are drawn in proportion to their size; draws and changes take O(log).

        top                          sums of up to 4096 groups, with running sums over all
        levels[1]   rows of 16       running sums of 16 sums of the level below
        levels[0]   rows of 16       running sums of 16 numbers

    Sums are recomputed from their parts, never by adding differences, so they are a pure function
    of the numbers and do not drift. Takes 17 bytes a number.
    """

    def __init__(self, values: Float64[np.ndarray, " values"]) -> None:
        """Take a copy of some numbers."""
        self._count = len(values)
        self._parts = [_rows_of(values)]
        self._levels = [np.cumsum(self._parts[0], axis=1)]
        while len(self._levels[-1]) > _TOP:
            self._parts.append(_rows_of(self._levels[-1][:, -1]))
            self._levels.append(np.cumsum(self._parts[-1], axis=1))
        self._top = self._levels[-1][:, -1].copy()

    @property
    def values(self) -> Float64[np.ndarray, " values"]:
        """The numbers; a view, not to be written to."""
        return self._parts[0].reshape(-1)[: self._count]

    @property
    def total(self) -> float:
        """Their sum."""
        return float(np.cumsum(self._top)[-1])

    def choose(self, shares: Float64[np.ndarray, " items"]) -> Int64[np.ndarray, " items"]:
        """Return where each share in [0, 1) of the total lies; a number of 0 is never chosen."""
        before = np.concatenate([[0.0], np.cumsum(self._top)])
        if not before[-1] > 0:
            raise ValueError(f"the sum of all priorities must be positive, found {before[-1]}.")
        # If rounding gives the whole sum, the last part that is not 0 is chosen.
        rest = np.minimum(shares * before[-1], np.nextafter(before[-1], 0))
        node: np.ndarray = np.searchsorted(before[1:], rest, "right")
        rest -= np.take(before, node)
        items = np.arange(len(shares))
        for level in reversed(self._levels):
            up_to = np.take(level, node, axis=0)
            rest = np.minimum(rest, np.nextafter(up_to[:, -1], 0))
            child = (up_to > rest[:, None]).argmax(axis=1)
            rest -= np.where(child > 0, up_to[items, child - 1], 0)
            node = node * _FANOUT + child
        return node

    def update(self, places: Int64[np.ndarray, " items"], values: Float64[np.ndarray, " items"]) -> None:
        """Change some numbers; if a place occurs twice, the last value counts."""
        self._parts[0].reshape(-1)[places] = values
        nodes = places // _FANOUT
        for height, (parts, level) in enumerate(zip(self._parts, self._levels, strict=True)):
            up_to = np.cumsum(np.take(parts, nodes, axis=0), axis=1)
            level[nodes] = up_to
            above = self._top if height + 1 == len(self._parts) else self._parts[height + 1]
            above.reshape(-1)[nodes] = up_to[:, -1]
            nodes = nodes // _FANOUT


class PrioritizedTransitions:
    """An endless stream of random transitions by priority. `orlog.transitions(.., prioritized=True)` makes it.

    Iterating continues where the last iteration stopped.

    Attributes:
        beta: How much importance weights correct, from 0 (not) to 1 (fully); change it during
            training, as the paper does from 0.4 to 1.
        cursor: Which stream it is, and where it starts.
        digest: Digest of the dataset.
        batch_size: Items in a batch, of all ranks together.
        seed: Seed of the stream.
    """

    def __init__(
        self,
        sampler: TransitionSampler,
        *,
        batch_size: int,
        seed: int,
        exponent: float = 0.6,
        beta: float = 0.4,
        stratified: bool = True,
        infos: Sequence[str] = (),
        to: str = "torch",
        **place: Unpack[Place],
    ) -> None:
        """Begin with equal priorities; see `Priorities`.

        Raises ValueError if a number is out of range, or the dataset is a weighted mixture.
        """
        arrays = sampler.arrays
        if not 0 <= exponent <= 2 or not 0 <= beta <= 1:
            raise ValueError(f"exponent must be in [0, 2] and beta in [0, 1], found {exponent} and {beta}.")
        if arrays.mixture is not None:
            raise ValueError(
                f"{arrays.name}: its steps have weights already, which priorities would replace; "
                "pass the parts without weights, or set priorities to the weights with update()."
            )
        check_choice("to", to, ("torch", "numpy"))
        self.beta, self._to = beta, to
        self._arrays = arrays
        self._sampler = sampler
        self._source = Source(sampler, infos)
        self._exponent = exponent
        self._stratified = bool(stratified)
        self.cursor = Cursor(
            kind=(
                f"priorities 1 exponent={canonical_number(exponent)!r} "
                f"stratified={self._stratified} n_steps={sampler.n_steps}"
            ),
            digest=arrays.digest,
            batch_size=batch_size,
            seed=seed,
            **place,
        )
        self.digest, self.batch_size, self.seed = (arrays.digest, self.cursor.batch_size, self.cursor.seed)
        self._next = self.cursor.start
        self._slice = self.cursor.own_items
        self._key = self.cursor.key
        self._drawn: tuple[int, np.ndarray] = (-1, np.empty(0))
        self._tree = SumTree(np.ones(arrays.total_steps))

    def __repr__(self) -> str:
        """Return what is sampled, and by which settings."""
        return self.cursor.summary(self, self._arrays.name)

    @property
    def priorities(self) -> Float64[np.ndarray, " steps"]:
        """Priority of each step to the power of the exponent; a view, not to be written to."""
        return self._tree.values

    def __iter__(self) -> Iterator[Batch]:
        """Return the stream itself."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch, by the current priorities."""
        shares = self._uniform(self._next)
        if self._stratified:  # one item from each of as many equal parts of the total
            shares = (np.arange(self.batch_size) + shares) / self.batch_size
        chosen = self._tree.choose(shares)
        priorities = np.take(self._tree.values, chosen)
        # (N P)^-beta divided by the batch's largest: N and the total cancel out.
        weights = (priorities.min() / priorities) ** self.beta
        self._next += 1
        steps = chosen[self._slice]
        device = self._arrays.rows.device
        items = self._sampler.items_of(steps).to(device)
        batch: Batch = self._source.gather(items)
        own = torch.from_numpy(weights[self._slice].astype(np.float32)).to(device)
        _set(batch, "steps", torch.from_numpy(steps).to(device))
        _set(batch, "weights", own)
        return batch if self._to == "torch" else batch.numpy()

    def update(self, steps: Tensor | np.ndarray, priorities: Tensor | np.ndarray) -> None:
        """Set priorities of some steps, such as |TD error| + 1e-6; of a step given twice, the last.

        With several ranks, each must make the updates of all ranks, in the same order
        (`all_gather`).

        Raises ValueError for a priority outside (0, 1e100), or not one priority for each step; IndexError if
        there is no such step.
        """
        places = _plain(steps)
        values = _plain(priorities).astype(np.float64)
        if places.ndim != 1 or places.shape != values.shape or places.dtype.kind not in "iu":
            raise ValueError(
                f"expected a priority for each step, found steps {places.dtype} {places.shape} and "
                f"priorities {values.shape}."
            )
        if not len(places):
            return
        count = self._arrays.total_steps
        if places.min() < 0 or places.max() >= count:
            raise IndexError(
                f"{self._arrays.name}: steps are 0 to {count - 1}, found {places.min()} to {places.max()}."
            )
        wrong = ~((values > 0) & (values < _LARGEST))
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(
                f"priorities must be > 0 and below {_LARGEST:g}, found {values[at]} for step "
                f"{places[at]}; add a small number to errors that can be 0."
            )
        self._tree.update(places.astype(np.int64), self._scaled(values))

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is, and its priorities: a float64 tensor, 8 bytes a step."""
        priorities = torch.from_numpy(self._tree.values.copy())
        return self.cursor.state(batch=self._next, beta=self.beta, priorities=priorities)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken, bit for bit; also on another number of ranks.

        Raises ValueError if the state is of another dataset, view, seed, batch size or kind of sample, or
        does not hold priorities for this number of steps.
        """
        self.cursor.check_state(state)
        batch, beta, kept = state.get("batch"), state.get("beta"), state.get("priorities")
        values = np.asarray(_plain(kept), np.float64)
        if type(batch) is not int or batch < 0 or not isinstance(beta, float | int):
            raise ValueError(f"this is not the state of a stream: batch {batch!r}, beta {beta!r}.")
        if values.shape != self._tree.values.shape or not ((values > 0) & (values < _LARGEST**2)).all():
            raise ValueError(
                f"this is not the state of a stream: expected {len(self._tree.values)} positive "
                f"priorities, found shape {values.shape}."
            )
        self._next, self.beta, self._tree = batch, beta, SumTree(values)

    def _uniform(self, batch: int) -> Float64[np.ndarray, " batch"]:
        """Return the uniform numbers of a batch: those of its position in the stream."""
        together = max(1, min(BLOCK, BLOCK_ITEMS // self.batch_size))
        block, place = divmod(batch, together)
        if self._drawn[0] != block:
            count = together * self.batch_size
            drawn = draw_uniform(self._key, block * count, count)
            self._drawn = (block, drawn.reshape(together, self.batch_size))
        numbers: np.ndarray = self._drawn[1][place]
        return numbers

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        # A priority whose power rounds to 0 could never be drawn again.
        scaled: np.ndarray = np.maximum(values**self._exponent, np.finfo(np.float64).tiny)
        return scaled


def _plain(values: Any) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    # NumPy has no bfloat16, which training under autocast produces.
    plain: np.ndarray = (values.float() if values.dtype is torch.bfloat16 else values).numpy()
    return plain


def _rows_of(values: np.ndarray) -> Float64[np.ndarray, "rows 16"]:
    """Return numbers as rows of sixteen, the last one filled up with zeros."""
    rows = np.zeros((-(-len(values) // _FANOUT), _FANOUT))
    rows.reshape(-1)[: len(values)] = values
    return rows
