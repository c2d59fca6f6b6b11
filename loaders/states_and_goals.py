"""States and goals: what goal-conditioned algorithms train on, and what their policies are given.

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
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import GoalBatch
from orlog.loaders.filling import Leaf
from orlog.loaders.goals import GoalMixture, goals
from orlog.loaders.subgoals import subgoals

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
_OBSERVATIONS = ("observations", "next_observations", "subgoal_observations")

Values: TypeAlias = Tensor | dict[str, Tensor]


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
            return {key: one for key, one in observations.items() if key != DESIRED}
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
        states: dict[str, Any] = {name: self.states(one) for name, one in observed.items() if one is not None}
        return dataclasses.replace(batch, **states)


def goal_parts(parts: Mapping[str, Leaf], width: int, name: str) -> GoalParts:
    """Return which parts of observations are states and goals, by where each of their `width` numbers is.

    Raises SchemaError if there is a desired goal, and no achieved goal of its shape.
    """
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

    Raises SchemaError if observations have a desired goal, and no achieved goal of its shape.
    """
    arrays = as_arrays(data, more.get("infos", ()))
    parts = goal_parts({**arrays.parts, **arrays.observation_leaves}, arrays.obs_dim, arrays.name)
    batches = goals(
        arrays,
        batch_size,
        seed=seed,
        value_goals=_mixture(value_goals, geometric=True),
        actor_goals=_mixture(policy_goals, geometric=False),
        discount=discount,
        goal_key=parts.goal_key,
        **more,
    )
    return map(parts.of_states, batches)


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
    """Return the batches of `orlog.subgoals` with states and goals as above.

    Args:
        steps: Steps to a subgoal.
        policy_goals: As in `states_and_goals`, for the upper policy.
        value_goals: As in `states_and_goals`.
        discount: Discount of geometric distances.
        more: Other arguments of `orlog.subgoals`.

    Raises SchemaError if observations have a desired goal, and no achieved goal of its shape.
    """
    arrays = as_arrays(data, more.get("infos", ()))
    parts = goal_parts({**arrays.parts, **arrays.observation_leaves}, arrays.obs_dim, arrays.name)
    batches = subgoals(
        arrays,
        batch_size,
        seed=seed,
        steps=steps,
        value_goals=_mixture(value_goals, geometric=True),
        actor_goals=_mixture(policy_goals, geometric=False),
        discount=discount,
        goal_key=parts.goal_key,
        **more,
    )
    return map(parts.of_states, batches)


def _mixture(probabilities: tuple[float, float, float], *, geometric: bool) -> GoalMixture:
    current, trajectory, random = probabilities
    return GoalMixture(current=current, trajectory=trajectory, random=random, geometric=geometric)
