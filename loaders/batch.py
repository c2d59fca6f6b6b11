"""The batches that loaders yield and algorithms take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from orlog.datasets.columns.episode import fields_summary

# Not Self, which jaxtyping's runtime checks of shapes do not support.
TensorsT = TypeVar("TensorsT", bound="Tensors")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tensors:
    """Base of all batches: its methods apply to every tensor of a batch, as `.to(device)` does.

    Attributes:
        infos: Other columns of the same steps, by the names that were asked for with `infos`:
            `[batch, ...]`, or `[batch, length, ...]` where rewards are; zeros in slots without a
            step. float32; uint8 images as stored; int64 for integers; bool; texts as int64 places
            in `Arrays.texts`.
    """

    infos: dict[str, Tensor] = dataclasses.field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """Return its fields, shapes and dtypes in place of values; infos last, if there are any."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        infos = values.pop("infos")
        return fields_summary(type(self).__name__, values | ({"infos": infos} if infos else {}))

    def to(  # noqa: PYI019
        self: TensorsT, device: torch.device | str, *, non_blocking: bool = False
    ) -> TensorsT:
        """Return the batch on another device; `non_blocking` as in PyTorch, for pinned memory."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: TensorsT) -> TensorsT:  # noqa: PYI019
        """Return the batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        return self.map(lambda tensor: tensor.pin_memory())

    def map(self: TensorsT, change: Callable[[Tensor], Tensor]) -> TensorsT:  # noqa: PYI019
        """Return the batch with a function applied to each tensor, also inside dicts."""
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, dict):
                changed[field.name] = {key: change(one) for key, one in value.items()}
            elif isinstance(value, Tensor):
                changed[field.name] = change(value)
        return dataclasses.replace(self, **changed)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Batch(Tensors):
    """Transitions as float32 tensors, one row each.

    The tensors may be strided views of one gathered block; call `.contiguous()` where another
    library needs it.

    Attributes:
        observations: Flattened as `gymnasium.spaces.flatten` does (Dict keys in sorted order).
        actions: In the environment's unit.
        rewards: In the environment's unit.
        next_observations: The real next observation, also after the last step of an episode.
        terminations: 1 where the task ended at this step: the next state has value 0.
        truncations: 1 where the episode was cut after this step: the next state keeps its value.
    """

    observations: Float32[Tensor, "batch obs"]
    actions: Float32[Tensor, "batch act"]
    rewards: Float32[Tensor, " batch"]
    next_observations: Float32[Tensor, "batch obs"]
    terminations: Float32[Tensor, " batch"]
    truncations: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NStepBatch(Batch):
    """Transitions over several steps: `n`, or as many as the episode has left.

    The value of an item is `rewards + discounts * (1 - terminations) * V(next_observations)`.

    Attributes:
        rewards: Discounted sum of the rewards of the steps.
        next_observations: The observation after the last of the steps.
        terminations: 1 where the task ended at the last of the steps.
        truncations: 1 where the episode was cut after the last of the steps.
        discounts: The discount to the power of the number of steps.
    """

    discounts: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NextActionBatch(Batch):
    """Transitions with the action that the data took next.

    Attributes:
        next_actions: The action of the next step; zeros after the last step of an episode.
        has_next_action: 1 where there is one, 0 after the last step of an episode.
    """

    next_actions: Float32[Tensor, "batch act"]
    has_next_action: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReturnBatch(Batch):
    """Transitions with the return that the data reached from there.

    Attributes:
        returns_to_go: Discounted sum of the rewards from this step to the end of its episode.
    """

    returns_to_go: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChunkBatch(Tensors):
    """Chunks of consecutive actions of one episode each, and what came of them.

    Attributes:
        observations: The one before the first action: float32 `[batch, obs]`, flattened as
            `gymnasium.spaces.flatten` does; where the space is not one flat vector of floats,
            `[batch, ...]` by key, or one tensor where it has no keys.
        actions: float32 `[batch, length, act]`, or integers `[batch, length, ...]`; zeros after the
            end of the episode.
        valid: True where a slot holds a step of the episode; the first always does.
        rewards: Discounted sum of the rewards of the valid slots.
        next_observations: As `observations`, the real one after the last valid slot.
        terminations: 1 where the task ended at the last valid slot: the next state has value 0.
        truncations: 1 where the episode was cut after the last valid slot.
        discounts: The discount to the power of the number of valid slots.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    valid: Bool[Tensor, "batch length"]
    rewards: Float32[Tensor, " batch"]
    next_observations: Tensor | dict[str, Tensor]
    terminations: Float32[Tensor, " batch"]
    truncations: Float32[Tensor, " batch"]
    discounts: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StructuredBatch(Tensors):
    """Transitions whose observations or actions are not one flat vector of floats.

    Attributes:
        observations: A dict with a tensor for each key of the observation space, or one tensor if
            it has no keys: float32, uint8 images as stored, or integers, `[batch, ...]`.
        actions: float32 `[batch, act]`, or int64 `[batch]` or `[batch, parts]`.
        rewards: As in `Batch`, `[batch]`; so are `terminations` and `truncations`.
        next_observations: As `observations`.
        terminations: See `Batch`.
        truncations: See `Batch`.
        discounts: As in `NStepBatch`.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    rewards: Float32[Tensor, " batch"]
    next_observations: Tensor | dict[str, Tensor]
    terminations: Float32[Tensor, " batch"]
    truncations: Float32[Tensor, " batch"]
    discounts: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StructuredNextActionBatch(StructuredBatch):
    """Transitions whose observations are not flat vectors, with the action that the data took next.

    Attributes:
        next_actions: As in `NextActionBatch`.
        has_next_action: As in `NextActionBatch`.
    """

    next_actions: Tensor
    has_next_action: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StructuredReturnBatch(StructuredBatch):
    """Transitions whose observations are not flat vectors, with the return that the data reached.

    Attributes:
        returns_to_go: As in `ReturnBatch`.
    """

    returns_to_go: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GoalBatch(Tensors):
    """Transitions with goals, one row each.

    The value of an item is `rewards + discount * masks * V(next_observations, value_goals)`.
    Observations and goals are flat float32 `[batch, obs]`, or as in `StructuredBatch`.

    Attributes:
        observations: The state of the item.
        actions: In the environment's unit, as in `Batch` or `StructuredBatch`.
        next_observations: The real next observation, also after the last step of an episode.
        value_goals: Goals for the value function: observations, or the part `goal_key` of them.
        actor_goals: Goals for the policy.
        rewards: For `value_goals`: 0 where the item's state is the goal itself and -1 elsewhere,
            or 1 and 0; with `reward`, what that function returned.
        masks: 0 where the item's state is the value goal itself and 1 elsewhere; with `reward` 0
            where the task ended at this step.
        terminations: 1 where the environment's own task ended at this step.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    next_observations: Tensor | dict[str, Tensor]
    value_goals: Tensor | dict[str, Tensor]
    actor_goals: Tensor | dict[str, Tensor]
    rewards: Float32[Tensor, " batch"]
    masks: Float32[Tensor, " batch"]
    terminations: Float32[Tensor, " batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StateGoalBatch(GoalBatch):
    """A `GoalBatch` whose observations are states (`orlog.loaders.states_and_goals`), all vectors."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StateSubgoalBatch(StateGoalBatch):
    """A `SubgoalBatch` whose observations are states, all vectors."""

    low_goals: Tensor | dict[str, Tensor]
    subgoals: Tensor | dict[str, Tensor]
    subgoal_observations: Tensor | dict[str, Tensor]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AgentBatch(Tensors):
    """Transitions of a team, one row each; agents in the order of `agents` of the stream.

    Attributes:
        observations: What each agent observes, flattened as `gymnasium.spaces.flatten` does.
        actions: What each agent did: float32 `[batch, agents, act]` in the environment's unit, or int64
            `[batch, agents]`, the number of its choice from 0, as in `legal`.
        rewards: Each agent's own reward; the team's, where agents have none of their own.
        team_rewards: The reward of the whole.
        next_observations: What each agent observes after the step.
        terminations: 1 where the task ended for an agent at this step.
        truncations: 1 where an agent was cut off after this step.
        acts: True where an agent takes part in the step; nothing should be learned where it does not.
        next_acts: True where it takes part in the step after, too.
        legal: True where a choice may be taken in the step; all that an agent has, where nothing says it.
            None where actions are not whole numbers.
        next_legal: The same of the step after.
    """

    observations: Float32[Tensor, "batch agents obs"]
    actions: Tensor
    rewards: Float32[Tensor, "batch agents"]
    team_rewards: Float32[Tensor, " batch"]
    next_observations: Float32[Tensor, "batch agents obs"]
    terminations: Float32[Tensor, "batch agents"]
    truncations: Float32[Tensor, "batch agents"]
    acts: Bool[Tensor, "batch agents"]
    next_acts: Bool[Tensor, "batch agents"]
    legal: Bool[Tensor, "batch agents choices"] | None
    next_legal: Bool[Tensor, "batch agents choices"] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SequenceBatch(Tensors):
    """Windows of consecutive steps of one episode each; slots outside of it hold zeros everywhere.

    The tensors may be strided views of one gathered block; call `.contiguous()` where another
    library needs it.

    Attributes:
        observations: float32 `[batch, length, obs]`, flattened as `gymnasium.spaces.flatten` does;
            where the space is not one flat vector of floats, `[batch, length, ...]` by key, or one
            tensor where it has no keys.
        actions: float32 `[batch, length, act]`, or integers `[batch, length, ...]`.
        rewards: In the environment's unit.
        returns_to_go: Discounted sum of the rewards from a step (inclusive) to the end of its
            episode.
        terminations: 1 where the task ended at a step.
        truncations: 1 where the episode was cut after a step.
        timesteps: Place of a step in its episode, from 0.
        mask: True where a slot holds a step.
        next_observations: As `observations`, the real ones that followed; None unless asked for.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    rewards: Float32[Tensor, "batch length"]
    returns_to_go: Float32[Tensor, "batch length"]
    terminations: Float32[Tensor, "batch length"]
    truncations: Float32[Tensor, "batch length"]
    timesteps: Int64[Tensor, "batch length"]
    mask: Bool[Tensor, "batch length"]
    next_observations: Tensor | dict[str, Tensor] | None = None


def joined(pieces: Sequence[TensorsT]) -> TensorsT:
    """Return batches of one kind as one, the items of each after those of the one before."""
    if len(pieces) == 1:
        return pieces[0]
    values: dict[str, Any] = {}
    for field in dataclasses.fields(pieces[0]):
        parts = [getattr(piece, field.name) for piece in pieces]
        if parts[0] is None:
            values[field.name] = None
        elif isinstance(parts[0], dict):
            values[field.name] = {key: torch.cat([one[key] for one in parts]) for key in parts[0]}
        else:
            values[field.name] = torch.cat(parts)
    return type(pieces[0])(**values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TokenBatch(Tensors):
    """Stretches of episodes as tokens, padded with zeros at their end.

    Attributes:
        tokens: Numbers of the tokenizer's tokens.
        valid: True where there is a token.
        is_action: True where the token is the agent's own: what it says, and the mark that ends it.
        decides: True where the next token is for the agent to choose: at the mark before what it says, and at all
            that it says but the last mark. There is one more after the final observation of an episode.
        rewards: The reward of a step at the mark that ends what the agent said in it, else 0.
        returns_to_go: Discounted sum of the rewards from the step of the token (inclusive) to the end of its
            episode; 0 at final observations.
        terminations: 1 at the last mark of an episode where the task ended.
        timesteps: Place of the token's step in its episode, from 0.
    """

    tokens: Int64[Tensor, "batch length"]
    valid: Bool[Tensor, "batch length"]
    is_action: Bool[Tensor, "batch length"]
    decides: Bool[Tensor, "batch length"]
    rewards: Float32[Tensor, "batch length"]
    returns_to_go: Float32[Tensor, "batch length"]
    terminations: Float32[Tensor, "batch length"]
    timesteps: Int64[Tensor, "batch length"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WindowBatch(Tensors):
    """Observations and actions at some steps before and after those that were drawn.

    Infos are those of the steps of `actions`, zeros where there is none.

    Attributes:
        observations: float32 `[batch, observations, obs]`, flattened as `gymnasium.spaces.flatten` does,
            in the order of the offsets; where the space is not one flat vector of floats,
            `[batch, observations, ...]` by key, or one tensor where it has no keys.
        actions: float32 `[batch, actions, act]`, or integers `[batch, actions, ...]`.
        observations_valid: True where the episode has such an observation, the final one included.
        valid: True where the episode has such a step.
        rewards: Of the steps of `actions`, 0 where there is none; None unless asked for.
    """

    observations: Tensor | dict[str, Tensor]
    actions: Tensor
    observations_valid: Bool[Tensor, "batch observations"]
    valid: Bool[Tensor, "batch actions"]
    rewards: Float32[Tensor, "batch actions"] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CountBatch(Tensors):
    """Every transition of the data once, with how often it is there.

    Attributes:
        observations: The state, a number of its space.
        actions: The action, a number of its space.
        next_observations: The state that followed.
        terminations: 1 where the task ended with it. The same transition without an end is another row.
        rewards: Mean reward.
        counts: How many steps there are of it; in a weighted mixture as many as its weight is worth.
    """

    observations: Int64[Tensor, " rows"]
    actions: Int64[Tensor, " rows"]
    next_observations: Int64[Tensor, " rows"]
    terminations: Float32[Tensor, " rows"]
    rewards: Float32[Tensor, " rows"]
    counts: Float32[Tensor, " rows"]
