"""Random whole episodes in an endless stream of batches, padded to the longest or packed.

    padded                      packed
    | o0 o1 o2 o3 o4 |          | o0 o1 o2 o3 | o0 o1 |        offsets 0, 4, 6
    | o0 o1 o2  0  0 |          final observations: o4, o2

Packed batches hold no padding; `offsets` are the cumulative lengths that attention over sequences
of different lengths takes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Unpack

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from orlog.datasets.reading.opening import Given
from orlog.loaders.arrays import Arrays, as_arrays, refuse_missing_finals
from orlog.loaders.batch import Tensors, each
from orlog.loaders.choices import AliasTable, Mixture, alias_table, choose_items
from orlog.loaders.streams import Batches, Sampler, StreamOptions, check_choice, takes_stream_options
from orlog.loaders.tensors import Tensor, torch


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class EpisodeBatch(Tensors):
    """Whole episodes, padded with zeros to the longest of the batch, which has `longest` steps.

    The tensors may be strided views of one gathered block.

    Attributes:
        observations: float32 `[batch, longest + 1, obs]`, including the final observation, and
            flattened as `gymnasium.spaces.flatten` does. If the space is not one flat vector of
            floats: `[batch, longest + 1, ...]` by key, or one tensor if it has no keys.
        actions: float32 `[batch, longest, act]`, or integers `[batch, longest, ...]`.
        rewards: In the environment's unit.
        terminations: 1 where the task ended at a step.
        truncations: 1 where the episode was cut after a step.
        mask: True where there is a step.
        lengths: Steps of each episode.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    rewards: Float32[Tensor, "batch longest"]
    terminations: Float32[Tensor, "batch longest"]
    truncations: Float32[Tensor, "batch longest"]
    mask: Bool[Tensor, "batch longest"]
    lengths: Int64[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class PackedEpisodeBatch(Tensors):
    """Whole episodes, one after the other without padding: `steps` in total.

    Attributes:
        observations: float32 `[steps, obs]`, or as in `EpisodeBatch` `[steps, ...]` by key.
        actions: float32 `[steps, act]`, or integers `[steps, ...]`.
        rewards: In the environment's unit.
        terminations: 1 where the task ended at a step.
        truncations: 1 where the episode was cut after a step.
        timesteps: Place of a step in its episode, from 0.
        final_observations: As `observations`, the one after each episode's last step,
            `[batch, ...]`.
        offsets: Episode `i` has the steps `offsets[i]` to `offsets[i + 1] - 1`.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    rewards: Float32[Tensor, " steps"]
    terminations: Float32[Tensor, " steps"]
    truncations: Float32[Tensor, " steps"]
    timesteps: Int64[Tensor, " steps"]
    final_observations: Tensor | dict[str, Tensor]
    offsets: Int64[Tensor, " batch_and_one"]


class EpisodeSampler(Sampler):
    """Chooses episodes and gathers all of their steps."""

    in_blocks = False  # the longest episode of a batch decides its shape

    def __init__(
        self,
        arrays: Arrays,
        *,
        layout: Literal["padded", "packed"] = "padded",
        weighting: Literal["uniform", "steps"] = "uniform",
    ) -> None:
        super().__init__(arrays)
        check_choice("layout", layout, ("padded", "packed"))
        check_choice("weighting", weighting, ("uniform", "steps"))
        self.kind = f"episodes 1 weighting={weighting}"
        self._is_packed = layout == "packed"
        self._by_steps = weighting == "steps"
        self._choice = _choice_of_episodes(arrays)
        device = arrays.rows.device
        self._first_rows = torch.from_numpy(arrays.first_rows).to(device)
        self._lengths = torch.tensor(arrays.lengths, device=device)  # a copy, as they may be read-only

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, " items"]:
        """Return the number of each item's episode."""
        arrays = self.arrays
        if self._by_steps:
            steps = arrays.choose_steps(uniform)
            return torch.from_numpy(arrays.step_table.take(steps) - steps)
        return torch.from_numpy(choose_items(self._choice, len(arrays.lengths), uniform))

    def rows_of(self, chosen: Int64[Tensor, " items"]) -> Int64[Tensor, ...]:
        """Return the rows of the steps of some episodes, padded or one after the other."""
        lengths = self._lengths.index_select(0, chosen)[:, None]
        places = torch.arange(int(lengths.max()), device=lengths.device)
        rows = self._first_rows.index_select(0, chosen)[:, None] + places
        is_step = places < lengths
        return rows[is_step] if self._is_packed else rows.masked_fill_(~is_step, self.arrays.empty_row)

    def gather(self, chosen: Int64[Tensor, " items"]) -> EpisodeBatch | PackedEpisodeBatch:
        """Return some whole episodes."""
        arrays, rows = self.arrays, self.rows_of(chosen)
        first_rows, lengths = self._first_rows.index_select(0, chosen), self._lengths.index_select(0, chosen)
        # Rows of final observations hold zeros in all else, and so does the empty row.
        rewards, terminations, truncations = arrays.rows[:, -3:][rows].unbind(-1)
        if self._is_packed:
            offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
            torch.cumsum(lengths, 0, out=offsets[1:])
            return PackedEpisodeBatch(
                arrays.observations(rows),
                arrays.actions(rows),
                rewards,
                terminations,
                truncations,
                timesteps=rows - torch.repeat_interleave(first_rows, lengths),
                final_observations=arrays.observations(first_rows + lengths),
                offsets=offsets,
            )
        places = torch.arange(rows.shape[1] + 1, device=lengths.device)
        empty = places > lengths[:, None]  # the final observation is kept
        seen = (first_rows[:, None] + places).clip(max=len(arrays.rows) - 1)
        return EpisodeBatch(
            each(
                arrays.observations(seen),
                lambda values: values.masked_fill_(empty.reshape(*empty.shape, *[1] * (values.ndim - 2)), 0),
            ),
            arrays.actions(rows),
            rewards,
            terminations,
            truncations,
            mask=places[:-1] < lengths[:, None],
            lengths=lengths,
        )


def _choice_of_episodes(arrays: Arrays) -> Mixture | AliasTable | None:
    """Return how to choose episodes, following how `arrays.mixture` weights steps."""
    choice = arrays.mixture
    if choice is None:
        return None
    if isinstance(choice, AliasTable):
        first = arrays.lengths.cumsum() - arrays.lengths
        return alias_table(np.add.reduceat(choice.probabilities, first) / arrays.lengths)
    numbers = arrays.step_table.take(choice.steps) - choice.steps
    # The steps of an episode are consecutive, and an episode belongs to one component only.
    is_first = np.diff(numbers, prepend=-1) != 0
    component = np.repeat(np.arange(len(choice.sizes)), choice.sizes)
    sizes = np.bincount(component[is_first], minlength=len(choice.sizes))
    return dataclasses.replace(choice, steps=numbers[is_first], first=sizes.cumsum() - sizes, sizes=sizes)


@takes_stream_options
def episodes(
    data: Given | Arrays,
    batch_size: int = 16,
    *,
    seed: int,
    layout: Literal["padded", "packed"] = "padded",
    weighting: Literal["uniform", "steps"] = "uniform",
    **stream: Unpack[StreamOptions],
) -> Batches[Any]:
    """Return an endless stream of random whole episodes, with replacement.

    Batches are `EpisodeBatch`, or `PackedEpisodeBatch` with `layout="packed"`; both choose the same
    episodes. Components of a weighted mixture (`orlog.combine_datasets`) keep their weights, and
    `weighting` applies inside each component. If steps have weights (`orlog.loaders.weights`),
    those of an episode are averaged ("uniform") or summed ("steps").

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Episodes in a batch.
        layout: "padded" to the longest episode of a batch, or "packed" one after the other.
        weighting: "uniform": all episodes are equally likely; "steps": in proportion to their
            number of steps.

    Raises:
        SchemaError: final observations were never recorded.
        ValueError: an unknown layout or weighting.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    refuse_missing_finals(arrays, "its observations")
    sampler = EpisodeSampler(arrays, layout=layout, weighting=weighting)
    return Batches(sampler, arrays.digest, batch_size=batch_size, seed=seed, **stream)
