"""Pairs of segments with the answers of a simulated teacher, for preference-based RL.

    episode   . . [ . . . . ] . . .        a segment: `length` steps of one episode
    episode   [ . . . . ] . .              a pair: two of them, and which one is better

The two are chosen independently, each uniform among all segments that fit into an episode, so they
may overlap or be the same. The teacher compares discounted sums of rewards (Christiano et al.
2017, "Deep reinforcement learning from human preferences") and may answer at random and make
mistakes as in B-Pref (Lee et al. 2021, "B-Pref: Benchmarking preference-based reinforcement
learning"):

    perfect     1 where the second sum is larger, 0 where it is smaller
    rational    1 with probability 1 / (1 + exp(-rational * (second sum - first sum)))
    mistake     the answer is the other one with probability `mistake_probability`
    equal       0.5 where the sums differ by no more than `equal_margin`; this overrides the others
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, Unpack

import numpy as np
from jaxtyping import Float32, Float64, Int64

from orlog.datasets.reading.opening import Given
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import Tensors
from orlog.loaders.choices import AliasTable, Mixture, StepTable, alias_table, choose_items
from orlog.loaders.statistics import finite_returns, sum_rewards
from orlog.loaders.streams import (
    Batches,
    Sampler,
    StreamOptions,
    as_integer,
    canonical_number,
    check_choice,
    takes_stream_options,
)
from orlog.loaders.tensors import Tensor, torch
from orlog.loaders.weights import step_probabilities


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class PreferenceBatch(Tensors):
    """Pairs of segments: index 0 of the second axis is the first segment, 1 the second.

    Attributes:
        observations: States of the steps, flat float32 `[batch, 2, length, obs]`, or as in
            `Batch` with these axes in front.
        actions: float32 `[batch, 2, length, act]`, or integers.
        rewards: In the environment's unit.
        timesteps: Place of each step in its episode, from 0.
        labels: Preference for the second segment: 0, 0.5 or 1; NaN where none was asked for.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    rewards: Float32[Tensor, "batch 2 length"]
    timesteps: Int64[Tensor, "batch 2 length"]
    labels: Float32[Tensor, " batch"]


class PreferenceSampler(Sampler):
    """Chooses pairs of segments and the teacher's answers, and gathers the segments.

    The sums of rewards are computed once, in float64, for every segment.
    """

    def __init__(
        self,
        arrays: Arrays,
        length: int,
        *,
        discount: float = 1.0,
        label: Literal["returns", "none"] = "returns",
        rational: float | None = None,
        mistake_probability: float = 0.0,
        equal_margin: float = 0.0,
    ) -> None:
        """Find the segments that fit, and sum their rewards."""
        super().__init__(arrays)
        check_choice("label", label, ("returns", "none"))
        if not (0 <= discount <= 1 and 0 <= mistake_probability <= 1):
            raise ValueError(
                f"discount and mistake_probability must be in [0, 1], found {discount} and {mistake_probability}."
            )
        if not (0 <= equal_margin < math.inf and 0 <= (rational or 0.0) < math.inf):
            raise ValueError(f"equal_margin and rational must be >= 0, found {equal_margin} and {rational}.")
        length = as_integer("length", length, 1)
        self.kind = f"preferences 1 length={length} label={label}"
        if label == "returns":
            # All settings of the teacher, also the discount: its answers are part of the draws.
            sharpness = None if rational is None else canonical_number(rational)
            self.kind += (
                f" discount={canonical_number(discount)!r} rational={sharpness!r} "
                f"mistake={canonical_number(mistake_probability)!r} "
                f"equal={canonical_number(equal_margin)!r}"
            )
        self.length = length
        counts = _count_segments(arrays, length)
        self._mixture = _fit_mixture(arrays, counts, length)
        self._segments = int(counts.sum())
        self._fitting = np.flatnonzero(counts)
        self._table = StepTable(counts[self._fitting])
        # Segment i of all starts at step i + what was left out in its episode and those before.
        self._left_out = np.cumsum(arrays.lengths - counts) - (arrays.lengths - counts)
        self._numbers = arrays.draws  # uniform numbers that choose one segment
        self.draws = 2 * self._numbers + 2  # two for the teacher
        self._sums = None
        if label == "returns":
            finite_returns(arrays)
            self._sums = sum_rewards(arrays, length, discount, np.float64).numpy()
        self._rational = rational
        self._mistake_probability = mistake_probability
        self._equal_margin = equal_margin
        self._ahead = torch.arange(length, device=arrays.rows.device)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return for each item the rows of both first steps, their timesteps, and twice its label.

        The last is -1 where no label was asked for.
        """
        numbers = self._numbers
        chosen = np.empty((len(uniform), 5), np.int64)
        for segment in range(2):
            own = uniform[:, segment * numbers : (segment + 1) * numbers]
            segments = choose_items(self._mixture, self._segments, own)
            episodes = np.take(self._fitting, self._table.take(segments) - segments)
            rows = segments + np.take(self._left_out, episodes) + episodes
            chosen[:, segment] = rows
            chosen[:, 2 + segment] = rows - np.take(self.arrays.first_rows, episodes)
        chosen[:, 4] = self._answer(chosen[:, 0], chosen[:, 1], uniform[:, -2:])
        return torch.from_numpy(chosen)

    def rows_of(self, chosen: Tensor) -> Int64[Tensor, "items 2 length"]:
        """Return the rows of the segments of some items."""
        return chosen[:, :2][:, :, None] + self._ahead

    def gather(self, chosen: Tensor) -> PreferenceBatch:
        """Return the pairs of segments."""
        arrays, rows = self.arrays, self.rows_of(chosen)
        labels = chosen[:, 4] * (0.5 if self._sums is not None else math.nan)
        return PreferenceBatch(
            observations=arrays.observations(rows),
            actions=arrays.actions(rows),
            rewards=arrays.rows[:, -3][rows],
            timesteps=chosen[:, 2:4][:, :, None] + self._ahead,
            labels=labels.float(),
        )

    def _answer(self, first: np.ndarray, second: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return twice the label of each pair of segments, as the module's docstring describes."""
        if self._sums is None:
            return np.full(len(first), -1)
        difference = np.take(self._sums, second) - np.take(self._sums, first)
        if self._rational is None:
            is_second = difference > 0
        else:
            # Beyond 700 the exponential would overflow, and the answer has long been certain.
            advantage = np.clip(self._rational * difference, -700, 700)
            is_second = uniform[:, 0] < 1 / (1 + np.exp(-advantage))
        is_second = is_second ^ (uniform[:, 1] < self._mistake_probability)
        return np.where(np.abs(difference) <= self._equal_margin, 1, 2 * is_second)


@takes_stream_options
def preferences(
    data: Given | Arrays,
    batch_size: int = 64,
    *,
    seed: int,
    length: int,
    discount: float = 1.0,
    label: Literal["returns", "none"] = "returns",
    rational: float | None = None,
    mistake_probability: float = 0.0,
    equal_margin: float = 0.0,
    **stream: Unpack[StreamOptions],
) -> Batches[PreferenceBatch]:
    """Return an endless stream of labeled pairs of segments, for learning rewards or policies.

    In a weighted mixture of datasets, the weights decide which component a segment is from.

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Pairs in a batch.
        length: Steps of a segment.
        discount: Discount of the sums that the teacher compares, in [0, 1]; a segment's first
            reward has weight 1.
        label: "returns" for the teacher's answers; "none" where labels come from elsewhere.
        rational: How sharply the teacher distinguishes sums: its answers follow the model of
            Bradley and Terry, and are the more random the smaller this is. None for a perfect
            teacher.
        mistake_probability: Probability that an answer is flipped, in [0, 1].
        equal_margin: Difference of sums up to which two segments are equally good.

    Raises:
        ValueError: no episode is long enough.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    sampler = PreferenceSampler(
        arrays,
        length,
        discount=discount,
        label=label,
        rational=rational,
        mistake_probability=mistake_probability,
        equal_margin=equal_margin,
    )
    return Batches(sampler, arrays.digest, batch_size=batch_size, seed=seed, **stream)


def _count_segments(arrays: Arrays, length: int) -> Int64[np.ndarray, " episodes"]:
    """Return the number of steps of each episode that a segment of this length can start at."""
    longest = int(arrays.lengths.max())
    if length > longest:
        raise ValueError(
            f"{arrays.name}: no segment of {length} steps fits: the longest episode (number "
            f"{int(arrays.lengths.argmax())}) has {longest}; choose a length up to that."
        )
    counts: np.ndarray = np.maximum(arrays.lengths - length + 1, 0)
    return counts


def _fit_mixture(arrays: Arrays, counts: Int64[np.ndarray, " episodes"], length: int) -> Mixture | AliasTable | None:
    """Return how segments are weighted: as the mixture weights the steps that they start at."""
    mixture = arrays.mixture
    if mixture is None:
        return None
    timesteps = np.arange(arrays.total_steps) - np.repeat(np.cumsum(arrays.lengths) - arrays.lengths, arrays.lengths)
    fits = timesteps < np.repeat(counts, arrays.lengths)
    if isinstance(mixture, AliasTable):
        probabilities = step_probabilities(arrays)[fits]
        if not probabilities.any():
            raise ValueError(
                f"{arrays.name}: no step of positive weight starts a segment of {length} steps; "
                "choose a smaller length."
            )
        return alias_table(probabilities)
    component = np.repeat(np.arange(len(mixture.sizes)), mixture.sizes)
    kept = fits[mixture.steps]
    sizes = np.bincount(component[kept], minlength=len(mixture.sizes))
    empty = np.flatnonzero((sizes == 0) & (np.diff(mixture.up_to, prepend=0) > 1e-12))
    if len(empty):
        raise ValueError(
            f"{arrays.name}: component {empty[0]} of the mixture has no episode of {length} steps; "
            "leave it out, or choose a smaller length."
        )
    numbers = fits.cumsum() - 1  # index of a step among those that fit
    return Mixture(steps=numbers[mixture.steps[kept]], first=sizes.cumsum() - sizes, sizes=sizes, up_to=mixture.up_to)
