"""Hindsight goals: transitions with goals that some trajectory reached, and rewards for reaching.

    s0  s1  s2  s3  s4        states of an episode of four steps; s4 is its final observation
        ^^
    an item at s1 may have as its goal
        current      s1
        trajectory   s2 or s3: uniform, or k steps ahead with (1 - discount) * discount^(k - 1) and
                     everything after the last goal at it
        final        s3, the last goal of its episode
        random       the state of any step of the dataset

Value goals and actor goals are chosen separately, each from its own mixture, as in OGBench (Park et
al. 2025, "OGBench: Benchmarking offline goal-conditioned RL"). `trajectory`, `final` and `random`
are also the strategies of hindsight experience replay (Andrychowicz et al. 2017), which calls them
"future", "final" and "random".

The last goal of an episode is the state of its last step, as in OGBench: an item at s3 has s3
itself as its later goal, with mask 0, which teaches V(s3, s3) = 0. A final observation is never the
state of an item, so V(s4, s4) = 0 is never taught: if s4 were a goal, every item's target would
derive from a value that no target fixes. GCIVL, GCIQL and HIQL learn from rewards and masks and
need this fixed value; CRL takes the pair of s3 with itself as a positive one; for GCBC and QRL only
the policy's goals differ.

`final_goals=True` makes s4 the last goal. Use it with `reward`, as in hindsight experience replay:
there the reward is for what a step achieved, so the step to s4 is rewarded for the goal s4.

One thing differs from OGBench's code: because it rounds, its uniform goals take the nearest and the
farthest state half as often as those between; here all are equally likely.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from orlog.datasets.reading.opening import Given
from orlog.errors import wrong_type
from orlog.loaders.arguments import canonical_number
from orlog.loaders.arrays import Arrays, Leaf, as_arrays, refuse_missing_finals
from orlog.loaders.batch import GoalBatch
from orlog.loaders.blocks import gather_in_blocks
from orlog.loaders.gathering import gather_rows
from orlog.loaders.options import StreamOptions, takes_stream_options
from orlog.loaders.streams import Batches
from orlog.manifests.names import did_you_mean

GoalReward: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Values: TypeAlias = Tensor | dict[str, Tensor]

_BELOW_ONE = 1 - 2.0**-53
_BLOCK_ITEMS = 2**14  # chosen at once: few enough that temporary arrays stay in the cache


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoalMixture:
    """The probability of each kind of goal; they sum to 1.

    Attributes:
        current: Probability of the state that the item is at.
        trajectory: Probability of a later state of the same episode; for an item at the episode's
            last goal, of that goal.
        final: Probability of the last goal of the same episode: the state of its last step, or with
            `final_goals` its final observation.
        random: Probability of the state of a random step of the dataset.
        geometric: Whether later states are chosen with geometric distances, not uniformly.
    """

    current: float = 0.0
    trajectory: float = 0.0
    final: float = 0.0
    random: float = 0.0
    geometric: bool = False

    def __post_init__(self) -> None:
        kinds = (self.current, self.trajectory, self.final, self.random)
        if not all(0 <= one <= 1 for one in kinds) or not math.isclose(sum(kinds), 1):
            raise ValueError(
                "the probabilities of a mixture of goals must be in [0, 1] and sum to 1, found "
                f"current {self.current}, trajectory {self.trajectory}, final {self.final} and "
                f"random {self.random}."
            )

    @property
    def up_to(self) -> tuple[float, ...]:
        """Cumulative sums of the probabilities, in the order above."""
        sums = itertools.accumulate((self.current, self.trajectory, self.final, self.random))
        # Not 0.9999999999999999, which would leave a sliver for a kind of probability 0.
        return tuple(1.0 if math.isclose(one, 1) else one for one in sums)


VALUE_GOALS = GoalMixture(current=0.2, trajectory=0.5, random=0.3, geometric=True)
ACTOR_GOALS = GoalMixture(trajectory=1.0)


class GoalSampler:
    """Chooses steps, value goals and actor goals by row, and gathers all three."""

    def __init__(
        self,
        arrays: Arrays,
        *,
        value_goals: GoalMixture = VALUE_GOALS,
        actor_goals: GoalMixture = ACTOR_GOALS,
        discount: float = 0.99,
        negative_rewards: bool = True,
        final_goals: bool = False,
        goal: Leaf | None = None,
        reward: GoalReward | None = None,
    ) -> None:
        """Prepare the choice, by arguments of `goals`; `goal` is the part of an observation that is the goal.

        Raises ValueError for a discount outside (0, 1); TypeError for goals that are no `GoalMixture`.
        """
        for mixture in (value_goals, actor_goals):
            if not isinstance(mixture, GoalMixture):
                raise TypeError(f"value_goals and actor_goals are each a GoalMixture, found {mixture!r:.80}.")
        if not 0 < discount < 1:
            raise ValueError(f"discount must be in (0, 1), found {discount}.")
        discount = canonical_number(discount)
        self.kind = (
            f"goals {1 if final_goals else 2} value=({_describe(value_goals, discount)}) "
            f"actor=({_describe(actor_goals, discount)})"
        )
        self.arrays = arrays
        self._numbers = 1 if arrays.mixture is None else 2  # uniform numbers that choose one step
        self.draws = 3 * self._numbers
        self._value_goals = value_goals
        self._actor_goals = actor_goals
        self._discount = discount
        self._negative_rewards = negative_rewards
        self._not_goals = 0 if final_goals else 1  # rows at the end of an episode
        self._reward = reward
        obs, act = arrays.obs_dim, arrays.action_dim
        self._sizes = [obs, act, 1, 1, 1, obs]
        self._goals = arrays
        if goal is not None:
            # The same rows, read as if the goal were the whole observation.
            self._goals = dataclasses.replace(arrays, observation_leaves={"": goal})
        self._goal = goal

    # Views are left out of a pickle and made again, since each would carry all rows.
    def __getstate__(self) -> dict[str, object]:
        """Return all attributes but the views."""
        return {key: one for key, one in vars(self).items() if key not in ("_view", "_flat_goals")}

    @functools.cached_property
    def _view(self) -> Tensor:
        return self.arrays.transitions

    @functools.cached_property
    def _flat_goals(self) -> Tensor | None:
        """The columns of the matrix that hold goals, if goals are vectors."""
        goal = self._goal
        if not self._goals.observation_leaves:
            return self.arrays.rows[:, : self.arrays.obs_dim]
        if goal is not None and not goal.column and len(goal.shape) == 1:
            return self.arrays.rows[:, goal.place]
        return None

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return the rows of each item's state, value goal and actor goal."""
        # Column by column in memory, so that each can serve as an index.
        chosen = np.empty((3, len(uniform)), np.int64)
        for first in range(0, len(uniform), _BLOCK_ITEMS):
            block = slice(first, first + _BLOCK_ITEMS)
            self._choose_block(uniform[block], chosen[:, block])
        return torch.from_numpy(chosen).T

    def has_random_actor_goal(self, uniform: Float64[np.ndarray, "items draws"]) -> Bool[np.ndarray, " items"]:
        """Return whether `choose` takes each item's actor goal from the whole dataset."""
        is_random: np.ndarray = uniform[:, 2 * self._numbers] >= self._actor_goals.up_to[2]
        return is_random

    def gather_many(self, chosen: Tensor, size: int) -> Iterator[GoalBatch]:
        """Yield the items of `size` rows of `chosen` each, views of a few gathered blocks."""
        if not self.arrays.is_flat or self._flat_goals is None or self._reward is not None:
            yield from map(self.gather, torch.split(chosen, size))
            return
        numbers = self._view.shape[1] + 2 * self._flat_goals.shape[1]
        yield from gather_in_blocks(GoalBatch, self._columns, chosen, size=size, item_bytes=4 * numbers)

    def gather(self, chosen: Tensor) -> GoalBatch:
        """Return the transitions of the first column with the goals of the others."""
        return GoalBatch(*self._columns(chosen))

    def read_goals(self, rows: Tensor) -> Values:
        """Return the states of some rows as goals."""
        if self._flat_goals is not None:
            return gather_rows(self._flat_goals, rows)
        return self._goals.observations(rows)

    def _columns(self, chosen: Tensor) -> tuple[Any, ...]:
        """Return the fields of a batch."""
        rows, value_rows, actor_rows = chosen.unbind(1)
        observations, actions, next_observations, terminations = self._read_steps(rows)
        value_goals = self.read_goals(value_rows)
        if self._reward is None:
            masks = (rows != value_rows).float()
            rewards = -masks if self._negative_rewards else 1 - masks
        else:
            masks = 1 - terminations
            rewards = self._relabel(self._reward, rows, value_goals)
        actor_goals = self.read_goals(actor_rows)
        return (observations, actions, next_observations, value_goals, actor_goals, rewards, masks, terminations)

    def _choose_block(self, uniform: np.ndarray, chosen: np.ndarray) -> None:
        """Fill in the rows of some items."""
        numbers, arrays = self._numbers, self.arrays
        steps = arrays.choose_steps(uniform)
        rows = arrays.step_table.take(steps)
        ahead = np.take(arrays.final_rows, rows - steps) - rows - self._not_goals
        value_numbers, actor_numbers = uniform[:, numbers : 2 * numbers], uniform[:, 2 * numbers :]
        chosen[0] = rows
        chosen[1] = self._choose_goals(self._value_goals, rows, ahead, value_numbers)
        chosen[2] = self._choose_goals(self._actor_goals, rows, ahead, actor_numbers)

    def _choose_goals(
        self, mixture: GoalMixture, rows: np.ndarray, ahead: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        """Return the rows of goals: the first number chooses the kind and, rescaled, within it."""
        kind = np.ascontiguousarray(uniform[:, 0])
        if mixture.trajectory == 1:
            later: np.ndarray = rows + self._distances(mixture, ahead, kind)
            return later
        current, trajectory, final, _ = mixture.up_to
        chosen = rows.copy()
        if trajectory > current:
            here = np.flatnonzero((kind >= current) & (kind < trajectory))
            inside = _rescale(np.take(kind, here), current, trajectory)
            distances = self._distances(mixture, np.take(ahead, here), inside)
            chosen[here] = np.take(rows, here) + distances
        if final > trajectory:
            here = np.flatnonzero((kind >= trajectory) & (kind < final))
            chosen[here] += ahead[here]
        if final < 1:
            here = np.flatnonzero(kind >= final)
            numbers = np.empty((len(here), uniform.shape[1]))
            numbers[:, 0] = _rescale(np.take(kind, here), final, 1)
            numbers[:, 1:] = uniform[here, 1:]
            chosen[here] = self.arrays.step_table.take(self.arrays.choose_steps(numbers))
        return chosen

    def _distances(self, mixture: GoalMixture, ahead: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return the steps to later goals: 1 up to the last goal; 0 for an item that is there."""
        if mixture.geometric:
            steps = np.log(1 - uniform)
            steps *= 1 / math.log(self._discount)
        else:
            steps = uniform * ahead
        distances: np.ndarray = steps.astype(np.int64)
        distances += 1
        np.minimum(distances, ahead, out=distances)
        return distances

    def _read_steps(self, rows: Tensor) -> tuple[Values, Tensor, Values, Tensor]:
        """Return the observations, actions, next observations and terminations of some rows."""
        arrays = self.arrays
        if arrays.is_flat:
            obs, act, _, term, _, next_obs = gather_rows(self._view, rows).split_with_sizes(self._sizes, 1)
            return obs, act, next_obs, term.squeeze(1)
        terminations = arrays.rows[:, arrays.columns["terminations"].start]
        return (
            arrays.observations(rows),
            arrays.actions(rows),
            arrays.observations(rows + 1),
            terminations.index_select(0, rows),
        )

    def _relabel(self, reward: GoalReward, rows: Tensor, wanted: Values) -> Tensor:
        """Return the rewards that `reward` gives for achieved and wanted goals."""
        achieved = self.read_goals(rows + 1)
        if isinstance(achieved, dict) or isinstance(wanted, dict):
            raise TypeError(
                f"{self.arrays.name}: observations are several tensors, but reward takes one; set "
                f"goal_key to one of {', '.join(self.arrays.observation_leaves)}."
            )
        rewards = reward(achieved, wanted)
        if rewards.shape != rows.shape:
            raise ValueError(
                f"reward must return one number for each item, shape {tuple(rows.shape)}, found {tuple(rewards.shape)}."
            )
        return rewards.to(torch.float32)


@takes_stream_options
def goals(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    value_goals: GoalMixture = VALUE_GOALS,
    actor_goals: GoalMixture = ACTOR_GOALS,
    discount: float = 0.99,
    negative_rewards: bool = True,
    final_goals: bool = False,
    goal_key: str | None = None,
    reward: GoalReward | None = None,
    **stream: Unpack[StreamOptions],
) -> Batches[GoalBatch]:
    """Return an endless stream of random transitions with hindsight goals, for goal-conditioned RL.

    Steps are chosen as in `orlog.transitions`, goals as described at the top of this module. The
    defaults are those of GCIVL, GCIQL and HIQL in OGBench (except for HIQL's actor goals).

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Transitions in a batch.
        value_goals: Where goals of the value function, and with them rewards, come from.
        actor_goals: Where goals of the policy come from.
        discount: Discount of geometric distances, in (0, 1): a goal is 1 / (1 - discount) steps
            ahead on average, before it is cut off at the episode's last goal.
        negative_rewards: Whether rewards are -1 and 0 rather than 0 and 1.
        final_goals: Whether an episode's last goal is its final observation instead of the state of
            its last step. No item is ever at a final observation, so no mask is 0 for these goals:
            use it with `reward`.
        goal_key: The part of a Dict observation that is a goal, such as "achieved_goal"; None for
            the whole observation.
        reward: Function that computes the rewards instead: takes what the step achieved (the next
            observation, or the part `goal_key` of it) and the value goals, `[batch, ...]` each, and
            returns `[batch]`.

    Raises:
        SchemaError: final observations were never recorded.
        ValueError: observations have no such key.
        TypeError: `reward` is given, and observations are several tensors.
    """
    if reward is not None and not callable(reward):
        raise wrong_type(
            "reward",
            "a function of the achieved goals and the wanted ones (for rewards of -1 and 0, or of 0 "
            "and 1, leave it out and use negative_rewards)",
            reward,
        )
    arrays = as_arrays(data, stream.get("infos", ()))
    refuse_missing_finals(arrays, "a goal" if final_goals else "a next observation")
    goal = None if goal_key is None else find_goal(arrays, goal_key)
    sampler = GoalSampler(
        arrays,
        value_goals=value_goals,
        actor_goals=actor_goals,
        discount=discount,
        negative_rewards=negative_rewards,
        final_goals=final_goals,
        goal=goal,
        reward=reward,
    )
    return Batches(sampler, arrays.digest, batch_size=batch_size, seed=seed, **stream)


def find_goal(arrays: Arrays, key: str) -> Leaf:
    """Return where a part of the observation is."""
    leaves = {**arrays.parts, **arrays.observation_leaves}
    if key and key in leaves:
        return leaves[key]
    known = [one for one in leaves if one]
    found = f"its parts are {', '.join(known)}" if known else "it has one part: leave goal_key out"
    end = did_you_mean(str(key), known) or "."
    raise ValueError(f"{arrays.name}: no part of the observation is {key!r}, {found}{end}")


def _describe(mixture: GoalMixture, discount: float) -> str:
    """Return the text of all settings that affect the choice of a goal."""
    kinds = (mixture.current, mixture.trajectory, mixture.final, mixture.random)
    is_geometric = mixture.geometric and mixture.trajectory > 0
    later = f"geometric {discount!r}" if is_geometric else "uniform"
    return ", ".join([*(repr(canonical_number(one)) for one in kinds), later])


def _rescale(uniform: np.ndarray, low: float, high: float) -> np.ndarray:
    """Map numbers in [low, high) to [0, 1)."""
    scaled: np.ndarray = np.minimum((uniform - low) * (1 / (high - low)), _BELOW_ONE)
    return scaled
