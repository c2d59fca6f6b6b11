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

On two levels, with steps=2 (HIQL: Park et al. 2023, "HIQL: Offline goal-conditioned RL with latent states as actions", as
OGBench draws them), an item at s1 of an episode whose last goal is s4 has

    low goal     s3: `steps` ahead, or the last goal where that comes first
    actor goal   what the upper policy is to reach, chosen as above
    subgoal      what the upper policy should choose on the way there
                 actor goal s2       s2: the goal itself, if it is at most `steps` ahead
                 actor goal s4       s3: `steps` ahead
                 a random state      s3: the low goal, wherever that state is

With `midpoints` (Transitive RL: Park et al. 2025, "Transitive RL: Value learning via divide and conquer") an item at s1
whose value goal is s4 also has one of the states s1, s2 and s3, each as likely: the way to the goal is divided there.
All value goals are then later states, up to the final observation, and every midpoint is the state of a step.

In chunks of length 2 (DQC: Li and others 2025, "Decoupled Q-chunking"), an item at s1 with the value goal s4 has s3 as
its next state; with the value goal s2 it has s2, where the goal is reached.

What goal-conditioned algorithms train on, and what their policies are given, are states and goals:

    Gymnasium's goal environments    observation, achieved_goal, desired_goal
        state    all parts but desired_goal, achieved_goal first
        goals    achieved_goal of steps of the data (hindsight); when a policy acts, desired_goal
    other observations               state and goals are whole observations

A state holds achieved_goal besides `observation`, since in some environments, such as AntMaze, only
achieved_goal says where the robot is. In a vector it comes first: the first numbers of a state are what
it has achieved, in the units of goals. What the data's own policy wanted, desired_goal, is left out.
Observations with frames or integers are dicts, and so are their states.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, Unpack

import numpy as np
from jaxtyping import Float32, Float64

from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError, wrong_type
from orlog.loaders.arrays import Arrays, Leaf, as_arrays, refuse_missing_finals
from orlog.loaders.batch import GoalBatch
from orlog.loaders.gathering import gather_rows
from orlog.loaders.streams import Batches, Sampler, StreamOptions, as_integer, canonical_number, takes_stream_options
from orlog.loaders.tensors import HAS_TORCH, Tensor, torch
from orlog.manifests.names import did_you_mean

GoalReward: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Values: TypeAlias = Tensor | dict[str, Tensor]

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_OBSERVATIONS = (
    *("observations", "next_observations", "subgoal_observations"),
    *("value_goal_observations", "midpoint_observations"),
)
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
        if not all(0 <= share <= 1 for share in kinds) or not math.isclose(sum(kinds), 1):
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
        return tuple(1.0 if math.isclose(total, 1) else total for total in sums)


VALUE_GOALS = GoalMixture(current=0.2, trajectory=0.5, random=0.3, geometric=True)
ACTOR_GOALS = GoalMixture(trajectory=1.0)


class GoalSampler(Sampler):
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
        """Prepare the choice, by arguments of `goals`; `goal` is the part of an observation that is the goal."""
        super().__init__(arrays)
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
        self.draws = 3 * arrays.draws
        self.in_blocks = reward is None  # the function takes a batch
        self._value_goals, self.actor_goals = value_goals, actor_goals
        self.value_goals_are_later = final_goals and value_goals.current == value_goals.random == 0
        self._discount = discount
        self._negative_rewards = negative_rewards
        self._not_goals = 0 if final_goals else 1  # rows at the end of an episode
        self._reward = reward
        # The same rows, read as if the goal were the whole observation.
        self._goals = arrays if goal is None else dataclasses.replace(arrays, observation_leaves={"": goal})
        self._goal = goal

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

    def read_goals(self, rows: Tensor) -> Values:
        """Return the states of some rows as goals."""
        if self._flat_goals is not None:
            return gather_rows(self._flat_goals, rows)
        return self._goals.observations(rows)

    def gather(self, chosen: Tensor) -> GoalBatch:
        """Return the transitions of the first column with the goals of the others."""
        arrays = self.arrays
        rows, value_rows, actor_rows = chosen.unbind(1)
        observations: Values
        next_observations: Values
        if arrays.is_flat:
            sizes = [arrays.obs_dim, arrays.action_dim, 1, 1, 1, arrays.obs_dim]
            block = gather_rows(self._view, rows).split_with_sizes(sizes, 1)
            observations, actions, _, ended, _, next_observations = block
            terminations = ended.squeeze(1)
        else:
            observations, next_observations = arrays.observations(rows), arrays.observations(rows + 1)
            actions, terminations = arrays.actions(rows), arrays.rows[:, -2].index_select(0, rows)
        value_goals = self.read_goals(value_rows)
        if self._reward is None:
            masks = (rows != value_rows).float()
            rewards = -masks if self._negative_rewards else 1 - masks
        else:
            masks = 1 - terminations
            rewards = self._relabel(self._reward, rows, value_goals)
        actor_goals = self.read_goals(actor_rows)
        return GoalBatch(
            observations, actions, next_observations, value_goals, actor_goals, rewards, masks, terminations
        )

    def _choose_block(self, uniform: np.ndarray, chosen: np.ndarray) -> None:
        """Fill in the rows of some items."""
        arrays, numbers = self.arrays, self.arrays.draws
        steps = arrays.choose_steps(uniform)
        rows = arrays.step_table.take(steps)
        ahead = np.take(arrays.final_rows, rows - steps) - rows - self._not_goals
        value_numbers, actor_numbers = uniform[:, numbers : 2 * numbers], uniform[:, 2 * numbers :]
        chosen[0] = rows
        chosen[1] = self._choose_goals(self._value_goals, rows, ahead, value_numbers)
        chosen[2] = self._choose_goals(self.actor_goals, rows, ahead, actor_numbers)

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

    def _relabel(self, reward: GoalReward, rows: Tensor, wanted: Values) -> Tensor:
        """Return the rewards that `reward` gives for achieved and wanted goals."""
        achieved = self.read_goals(rows + 1)
        if isinstance(achieved, dict) or isinstance(wanted, dict):
            raise TypeError(
                f"{self.arrays.name}: observations are several tensors, but reward takes one; set "
                f"goal_key to one of {', '.join(self.arrays.observation_leaves)}."
            )
        rewards = reward(achieved, wanted) if HAS_TORCH else torch.from_numpy(reward(achieved, wanted))
        if rewards.shape != rows.shape:
            raise ValueError(
                f"reward must return one number for each item, shape {tuple(rows.shape)}, found {tuple(rewards.shape)}."
            )
        return rewards.float()


class SubgoalSampler(Sampler):
    """Chooses what a `GoalSampler` does, and the goals of the lower policy."""

    def __init__(self, above: GoalSampler, *, steps: int = 25) -> None:
        super().__init__(above.arrays)
        steps = as_integer("steps", steps, 1)
        self.kind = f"subgoals 1 steps={steps} {above.kind}"
        self.draws = above.draws
        self._above, self._steps = above, steps

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return the rows of each item's state, value goal, actor goal, low goal and subgoal."""
        above, arrays = self._above, self.arrays
        chosen = above.choose(uniform)
        rows, actor_rows = chosen[:, 0].numpy(), chosen[:, 2].numpy()
        last_rows = np.take(arrays.final_rows, rows - arrays.choose_steps(uniform)) - 1
        low_rows = np.minimum(rows + self._steps, last_rows)
        # An actor goal that is from the whole dataset may be anywhere.
        is_random = uniform[:, 2 * arrays.draws] >= above.actor_goals.up_to[2]
        subgoal_rows = np.where(is_random, low_rows, np.minimum(low_rows, actor_rows))
        return torch.cat([chosen.T, torch.from_numpy(np.stack([low_rows, subgoal_rows]))]).T

    def gather(self, chosen: Tensor) -> GoalBatch:
        """Return the transitions of the first column with the goals of the others."""
        return dataclasses.replace(
            self._above.gather(chosen[:, :3]),
            low_goals=self._above.read_goals(chosen[:, 3]),
            subgoals=self._above.read_goals(chosen[:, 4]),
            subgoal_observations=self.arrays.observations(chosen[:, 4]),
        )


class MidpointSampler(Sampler):
    """Chooses what a `GoalSampler` does, and a step on the way to each value goal, all of which are later."""

    def __init__(self, above: GoalSampler) -> None:
        super().__init__(above.arrays)
        if not above.value_goals_are_later:
            raise ValueError(
                "midpoints lie on the way to a later goal: with midpoints, value_goals must be a GoalMixture of "
                "trajectory and final alone, and final_goals=True."
            )
        self.kind = f"midpoints 1 {above.kind}"
        self.draws = above.draws + 1
        self.in_blocks = above.in_blocks
        self._above = above

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return the rows of each item's state, value goal, actor goal and midpoint."""
        chosen = self._above.choose(uniform[:, :-1]).T
        rows, value_rows = chosen[0].numpy(), chosen[1].numpy()
        middle_rows = rows + (uniform[:, -1] * (value_rows - rows)).astype(np.int64)
        return torch.cat([chosen, torch.from_numpy(middle_rows)[None]]).T

    def gather(self, chosen: Tensor) -> GoalBatch:
        """Return what a `GoalSampler` does, with the states of value goals and midpoints."""
        arrays = self.arrays
        rows, value_rows, _, middle_rows = chosen.unbind(1)
        return dataclasses.replace(
            self._above.gather(chosen[:, :3]),
            value_goal_observations=arrays.observations(value_rows),
            midpoint_observations=arrays.observations(middle_rows),
            midpoint_actions=arrays.actions(middle_rows),
            value_offsets=(value_rows - rows).float(),
            midpoint_offsets=(middle_rows - rows).float(),
        )


class GoalChunkSampler(Sampler):
    """Chooses what a `GoalSampler` does, and looks `length` steps ahead of each item, or up to its value goal."""

    def __init__(self, above: GoalSampler, *, length: int, discount: float) -> None:
        arrays = above.arrays
        super().__init__(arrays)
        self._length = as_integer("horizon", length, 1)
        longest = int(arrays.lengths.max())
        if self._length >= longest:
            raise ValueError(
                f"{arrays.name}: a horizon of {length} steps needs episodes of more, and the longest of its "
                f"{len(arrays.lengths)} episodes has {longest}; choose at most {longest - 1}."
            )
        self.kind = f"goal chunks 1 length={self._length} {above.kind}"
        self.draws = above.draws
        self._above, self._discount = above, discount
        self._slots = torch.arange(self._length, device=arrays.rows.device)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return the rows of each item's state, value goal, actor goal, next state and last state."""
        chosen = self._above.choose(uniform)
        rows, value_rows = chosen[:, 0].numpy(), chosen[:, 1].numpy()
        last_rows = np.take(self.arrays.final_rows, rows - self.arrays.choose_steps(uniform)) - 1
        next_rows = np.minimum(rows + self._length, last_rows)
        next_rows = np.where((value_rows >= rows) & (value_rows < next_rows), value_rows, next_rows)
        return torch.cat([chosen.T, torch.from_numpy(np.stack([next_rows, last_rows]))]).T

    def gather(self, chosen: Tensor) -> GoalBatch:
        """Return the chunks that begin at the first column, with the goals of the others."""
        rows, value_rows, _, next_rows, last_rows = chosen.unbind(1)
        slots = rows[:, None] + self._slots
        valid = slots < last_rows[:, None]
        actions = self.arrays.actions(torch.minimum(slots, last_rows[:, None]))
        empty = ~valid.reshape(*valid.shape, *[1] * (actions.ndim - 2))
        steps = next_rows - rows
        reached = ((next_rows == value_rows) & (steps < self._length)).float()
        discounts = torch.pow(torch.tensor(self._discount, dtype=torch.float64), steps).float()
        return dataclasses.replace(
            self._above.gather(chosen[:, :3]),
            actions=actions.masked_fill_(empty, 0),
            next_observations=self.arrays.observations(next_rows),
            rewards=reached * discounts,
            masks=1 - reached,
            discounts=discounts,
            valid=valid,
        )


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
    midpoints: bool = False,
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
            use it with `reward` or `midpoints`.
        midpoints: Whether batches also have the states of value goals, midpoints on the way there, and how many
            steps ahead both are. Needs `final_goals`, and `value_goals` that are all later.
        goal_key: The part of a Dict observation that is a goal, such as "achieved_goal"; None for
            the whole observation.
        reward: Function that computes the rewards instead: takes what the step achieved (the next
            observation, or the part `goal_key` of it) and the value goals, `[batch, ...]` each, and
            returns `[batch]`.

    Raises:
        SchemaError: final observations were never recorded.
        ValueError: observations have no such key; midpoints are asked for on the way to goals that need not be later.
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
    settings: dict[str, Any] = {"value_goals": value_goals, "actor_goals": actor_goals, "discount": discount}
    settings |= {"negative_rewards": negative_rewards, "final_goals": final_goals, "goal": goal, "reward": reward}
    sampler = GoalSampler(arrays, **settings)
    chosen = MidpointSampler(sampler) if midpoints else sampler
    return Batches(chosen, arrays.digest, batch_size=batch_size, seed=seed, **stream)


@takes_stream_options
def subgoals(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    steps: int = 25,
    value_goals: GoalMixture = VALUE_GOALS,
    actor_goals: GoalMixture = ACTOR_GOALS,
    discount: float = 0.99,
    negative_rewards: bool = True,
    goal_key: str | None = None,
    **stream: Unpack[StreamOptions],
) -> Batches[GoalBatch]:
    """Return an endless stream of random transitions with hindsight goals on two levels, for HIQL.

    Transitions, value goals and rewards are those of `orlog.goals`; the defaults are HIQL's in
    OGBench. The top of this module says which goals there are.

    `StreamOptions` describes the arguments, and what is raised, that all kinds of sampling share.

    Args:
        batch_size: Transitions in a batch.
        steps: Distance of the lower policy's goals and of subgoals, at least 1.
        value_goals: As in `orlog.goals`.
        actor_goals: Where goals of the upper policy come from.
        discount: As in `orlog.goals`.
        negative_rewards: As in `orlog.goals`.
        goal_key: As in `orlog.goals`.

    Raises:
        SchemaError: final observations were never recorded.
        ValueError: observations have no such key.
    """
    arrays = as_arrays(data, stream.get("infos", ()))
    refuse_missing_finals(arrays, "a next observation")
    above = GoalSampler(
        arrays,
        value_goals=value_goals,
        actor_goals=actor_goals,
        discount=discount,
        negative_rewards=negative_rewards,
        goal=None if goal_key is None else find_goal(arrays, goal_key),
    )
    return Batches(SubgoalSampler(above, steps=steps), arrays.digest, batch_size=batch_size, seed=seed, **stream)


def find_goal(arrays: Arrays, key: str) -> Leaf:
    """Return where a part of the observation is."""
    leaves = {**arrays.parts, **arrays.observation_leaves}
    if key and key in leaves:
        return leaves[key]
    known = [part for part in leaves if part]
    there = f"its parts are {', '.join(known)}" if known else "it has one part: leave goal_key out"
    end = did_you_mean(str(key), known) or "."
    raise ValueError(f"{arrays.name}: no part of the observation is {key!r}, {there}{end}")


def _describe(mixture: GoalMixture, discount: float) -> str:
    """Return the text of all settings that affect the choice of a goal."""
    kinds = (mixture.current, mixture.trajectory, mixture.final, mixture.random)
    is_geometric = mixture.geometric and mixture.trajectory > 0
    later = f"geometric {discount!r}" if is_geometric else "uniform"
    return ", ".join([*(repr(canonical_number(share)) for share in kinds), later])


def _rescale(uniform: np.ndarray, low: float, high: float) -> np.ndarray:
    """Map numbers in [low, high) to [0, 1)."""
    scaled: np.ndarray = np.minimum((uniform - low) * (1 / (high - low)), _BELOW_ONE)
    return scaled


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoalParts:
    """Which parts of an observation are the state and which are goals.

    Places are those of numbers, among all numbers of an observation; frames and integers have none.

    Attributes:
        state: Places of the state, in this order.
        achieved: Places of the goal that the observation reaches.
        desired: Places of the goal that it asks for; None if it does not ask for any.
        goal_key: The part of observations that holds reached goals; None for all of it.
    """

    state: tuple[slice, ...]
    achieved: slice
    desired: slice | None
    goal_key: str | None

    def numbers(self, values: Float32[Tensor, "*batch obs"]) -> Float32[Tensor, "*batch state"]:
        """Return those of an observation's numbers that are of the state."""
        pieces = [values[..., place] for place in self.state]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)

    def states(self, observations: Values) -> Values:
        """Return the states of observations."""
        if self.goal_key is None:
            return observations
        if isinstance(observations, dict):
            return {key: value for key, value in observations.items() if key != DESIRED}
        return self.numbers(observations)

    def wanted(self, observations: Values) -> Tensor:
        """Return the goals that observations ask for."""
        if isinstance(observations, dict):
            return observations[DESIRED]
        assert self.desired is not None
        return observations[:, self.desired]

    def of_states(self, batch: GoalBatch) -> GoalBatch:
        """Return a batch as one of states."""
        observed = {name: getattr(batch, name) for name in _OBSERVATIONS}
        states: dict[str, Any] = {name: self.states(values) for name, values in observed.items() if values is not None}
        return dataclasses.replace(batch, **states)


def goal_parts(parts: Mapping[str, Leaf], width: int, name: str) -> GoalParts:
    """Return which parts of observations are states and goals, by where each of their `width` numbers is."""
    places = {key: slice(0) if leaf.column else leaf.place for key, leaf in parts.items()}
    achieved, desired = places.get(ACHIEVED), places.get(DESIRED)
    if desired is not None and achieved is None:
        raise SchemaError(
            f"{name}: observations have {DESIRED} but no {ACHIEVED}, so no goal is known to have "
            f"been reached; record {ACHIEVED} too, as Gymnasium's goal environments do."
        )
    if achieved is None:
        whole = slice(0, width)
        return GoalParts(state=(whole,), achieved=whole, desired=None, goal_key=None)
    if desired is not None and parts[DESIRED].shape != parts[ACHIEVED].shape:
        raise SchemaError(
            f"{name}: {DESIRED} must have the shape of {ACHIEVED}, found {parts[DESIRED].shape} and "
            f"{parts[ACHIEVED].shape}; record both in the same units."
        )
    of_state = {key: place for key, place in places.items() if key != DESIRED}
    if not any(leaf.column for leaf in parts.values()):  # one vector, which begins with this part
        of_state = {ACHIEVED: achieved, **of_state}
    return GoalParts(state=tuple(of_state.values()), achieved=achieved, desired=desired, goal_key=ACHIEVED)


def states_and_goals(
    data: Given | Arrays,
    batch_size: int,
    *,
    seed: int,
    policy_goals: tuple[float, float, float],
    value_goals: tuple[float, float, float] = (0.0, 1.0, 0.0),
    discount: float = 0.99,
    **more: Any,
) -> Iterable[GoalBatch]:
    """Return the batches of `orlog.goals`, without end, with states and goals as above.

    Args:
        policy_goals: Probability that a goal of the policy is the state itself, a later one of its
            episode (uniform distances), or a random one.
        value_goals: The same for goals of the values (geometric distances).
        discount: Discount of geometric distances.
        more: Other arguments of `orlog.goals`.
    """
    more |= {"seed": seed, "discount": discount}
    return _of_states(goals, data, batch_size, policy_goals, value_goals, more)


def states_and_subgoals(
    data: Given | Arrays,
    batch_size: int,
    *,
    seed: int,
    steps: int,
    policy_goals: tuple[float, float, float],
    value_goals: tuple[float, float, float],
    discount: float = 0.99,
    **more: Any,
) -> Iterable[GoalBatch]:
    """Return the batches of `orlog.subgoals` with states and goals as above, with the arguments of `states_and_goals`.

    `steps` are those to a subgoal, and `policy_goals` are those of the upper policy.
    """
    more |= {"seed": seed, "discount": discount, "steps": steps}
    return _of_states(subgoals, data, batch_size, policy_goals, value_goals, more)


def states_and_goal_chunks(
    data: Given | Arrays,
    batch_size: int,
    *,
    seed: int,
    length: int,
    value_goals: tuple[float, float, float],
    discount: float = 0.99,
    **more: Any,
) -> Iterable[GoalBatch]:
    """Return random chunks of `length` actions, without end, with states and value goals as above.

    `next_observations` is the state `length` steps ahead, with a reward of 0; or the value goal where that comes
    before, with a reward of `discount` to the power of the steps to it and a mask of 0. Where the episode ends before,
    the last slot of `valid` is False, and the item teaches no value. Later states are uniform among those of the
    episode. Raises ValueError if no episode is longer than `length`.
    """

    def chunks(arrays: Arrays, batch_size: int, *, actor_goals: GoalMixture, **stream: Any) -> Batches[GoalBatch]:
        refuse_missing_finals(arrays, "a next observation")
        key, mixture = stream.pop("goal_key"), stream.pop("value_goals")
        above = GoalSampler(
            arrays,
            value_goals=dataclasses.replace(mixture, geometric=False),
            actor_goals=actor_goals,
            discount=discount,
            goal=None if key is None else find_goal(arrays, key),
        )
        sampler = GoalChunkSampler(above, length=length, discount=discount)
        return Batches(sampler, arrays.digest, batch_size=batch_size, **stream)

    return _of_states(chunks, data, batch_size, (0.0, 1.0, 0.0), value_goals, more | {"seed": seed})


def _of_states(
    kind: Callable[..., Batches[GoalBatch]],
    data: Given | Arrays,
    batch_size: int,
    policy_goals: tuple[float, float, float],
    value_goals: tuple[float, float, float],
    more: dict[str, Any],
) -> Iterable[GoalBatch]:
    arrays = as_arrays(data, more.get("infos", ()))
    parts = goal_parts({**arrays.parts, **arrays.observation_leaves}, arrays.obs_dim, arrays.name)
    current, trajectory, random = value_goals
    more["value_goals"] = GoalMixture(current=current, trajectory=trajectory, random=random, geometric=True)
    current, trajectory, random = policy_goals
    more["actor_goals"] = GoalMixture(current=current, trajectory=trajectory, random=random)
    return map(parts.of_states, kind(arrays, batch_size, goal_key=parts.goal_key, **more))
