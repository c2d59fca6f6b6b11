"""Random windows of episodes in an endless stream of batches, for sequence models.

    padding="right": starts at the drawn step    | s  s+1  s+2 | 0  0 |     cut at the episode's end
    padding="left":  ends at the drawn step      | 0  0 | s-2  s-1  s |     cut at its beginning

As in Decision Transformer (Chen et al. 2021, https://arxiv.org/abs/2106.01345), whose own loader
draws the start and pads on the left; here you choose. A window is one contiguous piece of the
matrix in `orlog.loaders.arrays`, so gathering it is one copy; slots outside of the episode
are then set to zero.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, Unpack

import numpy as np
from jaxtyping import Float32, Float64, Int64

from orlog.datasets.reading.opening import Given
from orlog.loaders.arrays import Arrays, as_arrays, refuse_missing_finals
from orlog.loaders.batch import SequenceBatch, each
from orlog.loaders.gathering import gather_rows
from orlog.loaders.statistics import TO_GO, info_sums, returns_to_go, with_sums_to_go
from orlog.loaders.streams import Batches, Sampler, StreamOptions, as_length, check_choice, takes_stream_options
from orlog.loaders.tensors import Tensor, torch
from orlog.loaders.weights import weighted, weights_by_episode


class SequenceSampler(Sampler):
    """Chooses steps and gathers the windows that start or end there."""

    def __init__(
        self,
        arrays: Arrays,
        length: int,
        *,
        padding: Literal["right", "left"] = "right",
        discount: float = 1.0,
        with_next: bool = False,
    ) -> None:
        """Sum the returns-to-go, which takes 4 bytes a step."""
        super().__init__(arrays)
        check_choice("padding", padding, ("right", "left"))
        self.length = length = as_length(length, discount, arrays)
        self.kind = f"sequences 1 length={length} padding={padding}"
        self._is_right = padding == "right"
        self._with_next = with_next
        self._is_plain = arrays.is_flat and arrays.rows.device.type == "cpu"
        self._slots, counts = np.arange(length), np.arange(length + 1)[:, None]
        # Which slots are empty in a window with 0, 1, .., `length` steps.
        self._empty = self._slots >= counts if self._is_right else self._slots < length - counts
        self._returns = returns_to_go(arrays, discount)

    @functools.cached_property
    def _view(self) -> Tensor:
        return self.arrays.windows(self.length + self._with_next)

    @functools.cached_property
    def _returns_view(self) -> Tensor:
        count = len(self._returns) - self.length + 1
        return self._returns.as_strided((count, self.length), (1, 1))

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, "items three"]:
        """Return for each item its first row, its number of steps, and its first slot's timestep.

        Slots that are empty count too: a first row or timestep may be negative.
        """
        arrays = self.arrays
        steps = arrays.choose_steps(uniform)
        rows = arrays.step_table.take(steps)
        episode = rows - steps  # one row more for each episode before
        timesteps = rows - np.take(arrays.first_rows, episode)
        if self._is_right:
            counts = np.minimum(np.take(arrays.lengths, episode) - timesteps, self.length)
        else:
            counts = np.minimum(timesteps + 1, self.length)
            rows = rows - (self.length - 1)
            timesteps = timesteps - (self.length - 1)
        # Stacked so that each of the three is contiguous in memory.
        return torch.from_numpy(np.stack([rows, counts, timesteps]).T)

    def rows_of(self, chosen: Int64[Tensor, "items three"]) -> Int64[Tensor, "items length"]:
        """Return the rows of the slots of some items."""
        first, counts, _ = chosen.unbind(1)
        rows, empty = self._rows_and_empty(first, counts)
        return rows.masked_fill_(empty, self.arrays.empty_row)

    def gather(self, chosen: Int64[Tensor, "items three"]) -> SequenceBatch:
        """Return the windows of some items."""
        columns = self._columns(chosen)
        return self._gather_rows(chosen) if columns is None else SequenceBatch(*columns)

    def _columns(self, chosen: Tensor) -> list[Tensor] | None:
        """Return the fields of a batch: a copy for each window of flat columns in main memory.

        None for other columns, and where a window reaches beyond the matrix, before its first row or after
        its last: that is so rare that a check each time would cost more. Small work is done by NumPy, whose
        calls take half the time of PyTorch's.
        """
        if not self._is_plain:
            return None
        obs, act = self.arrays.obs_dim, self.arrays.action_dim
        rows = chosen[:, 0]
        try:
            block = gather_rows(self._view, rows).reshape(len(rows), -1, obs + act + 3)
            returns = gather_rows(self._returns_view, rows)
        except IndexError:
            return None
        _, counts, timestep = chosen.numpy().T
        empty = self._empty.take(counts, 0)
        returns.numpy()[empty] = 0
        timesteps = timestep[:, None] + self._slots
        timesteps[empty] = 0
        following = []
        if self._with_next:
            # A copy: an episode's final observation lies in a slot that is about to be cleared.
            following.append(block[:, 1:, :obs].clone())
            _clear(following[0], empty)
            block = block[:, :-1]
        _clear(block, empty)
        observations, actions, ends = block.split_with_sizes([obs, act, 3], 2)
        more = [*ends.unbind(2), returns, torch.from_numpy(timesteps), torch.from_numpy(~empty)]
        return [observations, actions, *more, *following]

    def _rows_and_empty(self, first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of each slot, and whether it is empty: then it may lie outside of the matrix."""
        slots = torch.from_numpy(self._slots).to(first.device)
        return first[:, None] + slots, torch.from_numpy(self._empty).to(first.device).index_select(0, counts)

    def _gather_rows(self, chosen: Tensor) -> SequenceBatch:
        """Return windows row by row, of any columns on any device."""
        arrays = self.arrays
        first, counts, timestep = chosen.unbind(1)
        rows, empty = self._rows_and_empty(first, counts)
        rows = rows.clip(0, len(arrays.rows) - 2)  # any row inside: slots outside are cleared

        def cleared(values: Tensor) -> Tensor:
            return values.masked_fill_(empty.reshape(*empty.shape, *[1] * (values.ndim - 2)), 0)

        timesteps, _ = self._rows_and_empty(timestep, counts)
        rewards, terminations, truncations = cleared(arrays.rows[:, -3:][rows]).unbind(2)
        return SequenceBatch(
            each(arrays.observations(rows), cleared),
            cleared(arrays.actions(rows)),
            rewards,
            terminations,
            truncations,
            returns_to_go=cleared(self._returns[rows]),
            timesteps=cleared(timesteps),
            mask=~empty,
            next_observations=each(arrays.observations(rows + 1), cleared) if self._with_next else None,
        )


def _clear(block: Float32[Tensor, "items slots numbers"], empty: np.ndarray) -> None:
    """Set the numbers of empty slots to zero, a slot as one value of many bytes."""
    slot = np.dtype((np.void, block.shape[2] * block.itemsize))
    block.numpy().view(slot)[:, :, 0][empty] = np.zeros((), slot)


@takes_stream_options
def sequences(
    data: Given | Arrays,
    batch_size: int = 64,
    *,
    length: int,
    seed: int,
    padding: Literal["right", "left"] = "right",
    discount: float = 1.0,
    with_next: bool = False,
    **stream: Unpack[StreamOptions],
) -> Batches[SequenceBatch]:
    """Return an endless stream of random windows of `length` steps, with replacement.

    Every step is drawn as often as any other, or as a mixture weights it
    (`orlog.combine_datasets`), and its window starts there (`padding="right"`) or ends there
    (`"left"`). A window never leaves its episode: slots outside hold zeros and are False in `mask`.

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Windows in a batch.
        length: Steps in a window.
        padding: On which side a window is filled up.
        discount: Discount of a step in `returns_to_go`.
        with_next: Also return `next_observations`, which takes one more copy.

    Raises:
        ValueError: no episode is that long.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    if with_next:
        refuse_missing_finals(arrays, "a next observation")
    sampler = SequenceSampler(arrays, length, padding=padding, discount=discount, with_next=with_next)
    return Batches(sampler, arrays.digest, batch_size=batch_size, seed=seed, **stream)


@takes_stream_options
def windows_with_sums(
    data: Given | Arrays,
    batch_size: int = 64,
    *,
    length: int,
    seed: int,
    to_go: Sequence[str] = (),
    cheaper: tuple[str, float] | None = None,
    **stream: Unpack[StreamOptions],
) -> Batches[SequenceBatch]:
    """Return windows of steps with infos, and with what is still to come of some of them.

    All other arguments, and errors, are those of `orlog.sequences`.

    Args:
        data: What to sample from.
        batch_size: Windows in a batch.
        length: Steps of a window.
        seed: Seed of the stream.
        to_go: Infos of which the sum from each step on is given, as `NAME_to_go`.
        cheaper: An info and a number: the chance of an episode grows with how far its sum of the info stays
            below the number, and those that reach it are left out, as OSRL draws for CDT. None draws all
            steps alike.
        stream: `start`, `infos`, `rank` and `ranks`.
    """
    infos = stream.get("infos", ())
    summed = [*to_go, *(() if cheaper is None else cheaper[:1])]
    arrays = as_arrays(data, tuple(dict.fromkeys([*infos, *summed])))
    if cheaper is not None:
        name, most = cheaper
        sums = info_sums(arrays, name)
        left = np.maximum(most - sums, 0)
        if not left.any():
            raise ValueError(f"{arrays.name}: no episode has a {name} below {most:g}; the least is {sums.min():g}.")
        arrays = weighted(arrays, weights_by_episode(arrays, left, per="episode"))
    stream["infos"] = (*infos, *(f"{info}{TO_GO}" for info in to_go))
    return sequences(with_sums_to_go(arrays, to_go), batch_size, length=length, seed=seed, **stream)
