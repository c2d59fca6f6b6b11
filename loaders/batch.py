"""The batches that loaders yield and algorithms take."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from jaxtyping import Bool, Float32, Int64

from orlog.datasets.columns.episode import fields_summary
from orlog.loaders.tensors import Tensor, torch

# Not Self, which jaxtyping's runtime checks of shapes do not support.
TensorsT = TypeVar("TensorsT", bound="Tensors")


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Tensors:
    """Base of all batches: its methods apply to every tensor of a batch, as `.to(device)` does.

    Attributes:
        infos: Other columns of the same steps, by the names that were asked for with `infos`:
            `[batch, ...]`, or `[batch, length, ...]` where rewards are; zeros in slots without a
            step. float32; uint8 images as stored; int64 for integers; bool; texts as int64 places
            in `Arrays.texts`.
    """

    infos: dict[str, Tensor] = dataclasses.field(default_factory=dict, hash=False, kw_only=True)

    def __repr__(self) -> str:
        """Return its fields, shapes and dtypes in place of values, those that are there; infos last."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        infos = values.pop("infos")
        values = {name: value for name, value in values.items() if value is not None}
        return fields_summary(type(self).__name__, values | ({"infos": infos} if infos else {}))

    def to(  # noqa: PYI019
        self: TensorsT, device: torch.device | str, *, non_blocking: bool = False
    ) -> TensorsT:
        """Return the batch on another device; `non_blocking` as in PyTorch, for pinned memory."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: TensorsT) -> TensorsT:  # noqa: PYI019
        """Return the batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        return self.map(lambda tensor: tensor.pin_memory())

    def numpy(self: TensorsT) -> TensorsT:  # noqa: PYI019
        """Return the batch with NumPy arrays in place of tensors; those of the CPU share their memory."""
        return self.map(lambda tensor: tensor.numpy(force=True))

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        tensors = [tensor for value in values for tensor in (value.values() if isinstance(value, dict) else [value])]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def split(self: TensorsT, size: int) -> Iterator[TensorsT]:  # noqa: PYI019
        """Yield batches of `size` items each, views of this one, which has a multiple of them."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "infos"]
        while getattr(self, names[-1]) is None:  # what was not asked for is None by default
            names.pop()
        # By position: by name would take longer than all else.
        batches = map(type(self), *(_cut(getattr(self, name), size) for name in names))
        if not self.infos:
            return batches
        return itertools.starmap(with_infos, zip(batches, _cut(self.infos, size), strict=False))

    def map(self: TensorsT, change: Callable[[Tensor], Any]) -> TensorsT:  # noqa: PYI019
        """Return the batch with a function applied to each tensor, also inside dicts."""
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, dict):
                changed[field.name] = {key: change(tensor) for key, tensor in value.items()}
            elif isinstance(value, Tensor):
                changed[field.name] = change(value)
        return dataclasses.replace(self, **changed)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Batch(Tensors):
    """Transitions as tensors, one row each; what was not asked for is None.

    The value of an item is `rewards + discounts * (1 - terminations) * V(next_observations)`. The tensors may be
    strided views of one gathered block; call `.contiguous()` where another library needs it.

    Attributes:
        observations: float32 `[batch, obs]`, flattened as `gymnasium.spaces.flatten` does (Dict keys in sorted
            order). Where the space is not one flat vector of floats, a dict with a tensor for each of its keys,
            or one tensor if it has none: float32, uint8 images as stored, or integers, `[batch, ...]`.
        actions: In the environment's unit: float32 `[batch, act]`, or int64 `[batch]` or `[batch, parts]`. Of
            chunks `[batch, length, ...]`, zeros after the end of the episode.
        rewards: In the environment's unit. Over several steps their discounted sum.
        terminations: 1 where the task ended at this step, or at the last of several: the next state has value 0.
        truncations: 1 where the episode was cut after it: the next state keeps its value.
        next_observations: The real next observation, also after the last step of an episode.
        discounts: The discount to the power of the number of steps; None for flat vectors and single steps.
        next_actions: The action of the step after, at `next_observations`; zeros after the last step of an episode.
        has_next_action: 1 where there is one, 0 after the last step of an episode.
        returns_to_go: Discounted sum of the rewards from this step to the end of its episode.
        valid: Of chunks, True where a slot holds a step of the episode, `[batch, length]`; the first always does.
        steps: Of prioritized transitions, the number of each step in the dataset, int64, for `update`.
        weights: Of prioritized transitions, the importance weight of each, in (0, 1].
    """

    observations: Any
    actions: Tensor
    rewards: Float32[Tensor, " batch"]
    terminations: Float32[Tensor, " batch"]
    truncations: Float32[Tensor, " batch"]
    next_observations: Any
    discounts: Any = None
    next_actions: Any = None
    has_next_action: Any = None
    returns_to_go: Any = None
    valid: Any = None
    steps: Any = None
    weights: Any = None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class GoalBatch(Tensors):
    """Transitions with goals, one row each; what was not asked for is None.

    The value of an item is `rewards + discount * masks * V(next_observations, value_goals)`, of chunks with `discounts`.
    Observations and goals are as in `Batch`; those of `states_and_goals` are states.

    Attributes:
        observations: The state of the item.
        actions: In the environment's unit, as in `Batch`.
        next_observations: The real next observation, also after the last step of an episode.
        value_goals: Goals for the value function: observations, or the part `goal_key` of them.
        actor_goals: Goals for the policy; with subgoals for the upper one.
        rewards: For `value_goals`: 0 where the item's state is the goal itself and -1 elsewhere,
            or 1 and 0; with `reward`, what that function returned.
        masks: 0 where the item's state is the value goal itself and 1 elsewhere; with `reward` 0
            where the task ended at this step.
        terminations: 1 where the environment's own task ended at this step.
        low_goals: Goals for the lower policy: what the data reached some steps later.
        subgoals: What the upper policy should propose on the way to `actor_goals`.
        subgoal_observations: The observations that `subgoals` are of.
        value_goal_observations: The observations that `value_goals` are of.
        midpoint_observations: The state of a step between the item's, which it may be, and the value goal.
        midpoint_actions: The action of that step.
        value_offsets: Steps from the item to its value goal, at least 1.
        midpoint_offsets: Steps from the item to its midpoint, fewer than those to the goal.
        discounts: Of chunks, the discount to the power of the steps to `next_observations`.
        valid: Of chunks, True where the state after a slot is of the episode, `[batch, length]`; the other slots
            of `actions` hold zeros.
    """

    observations: Any
    actions: Tensor
    next_observations: Any
    value_goals: Any
    actor_goals: Any
    rewards: Float32[Tensor, " batch"]
    masks: Float32[Tensor, " batch"]
    terminations: Float32[Tensor, " batch"]
    low_goals: Any = None
    subgoals: Any = None
    subgoal_observations: Any = None
    value_goal_observations: Any = None
    midpoint_observations: Any = None
    midpoint_actions: Any = None
    value_offsets: Any = None
    midpoint_offsets: Any = None
    discounts: Any = None
    valid: Any = None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
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
    legal: Bool[Tensor, "batch agents choices"] | None = None
    next_legal: Bool[Tensor, "batch agents choices"] | None = None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
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
    terminations: Float32[Tensor, "batch length"]
    truncations: Float32[Tensor, "batch length"]
    returns_to_go: Float32[Tensor, "batch length"]
    timesteps: Int64[Tensor, "batch length"]
    mask: Bool[Tensor, "batch length"]
    next_observations: Tensor | dict[str, Tensor] | None = None


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
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


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
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


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
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


def with_infos(batch: TensorsT, infos: dict[str, Tensor]) -> TensorsT:
    """Give a batch that was just made its infos, and return it; to copy it would take longer than all else."""
    object.__setattr__(batch, "infos", infos)
    return batch


def each(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a tensor changed by a function, or each tensor of a dict."""
    return {key: change(tensor) for key, tensor in values.items()} if isinstance(values, dict) else change(values)


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
            values[field.name] = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        else:
            values[field.name] = torch.cat(parts)
    return type(pieces[0])(**values)


def _cut(value: Any, size: int) -> Iterable[Any]:
    """Return the parts of a field that belong to `size` items each."""
    if value is None:
        return itertools.repeat(None)
    if isinstance(value, dict):
        parts = [_cut(part, size) for part in value.values()]
        return (dict(zip(value, some, strict=True)) for some in zip(*parts, strict=True))
    return tuple(value.reshape(len(value) // size, size, *value.shape[1:]).unbind(0))
