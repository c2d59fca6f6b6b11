"""Hindsight goals on two levels: for a policy that chooses subgoals, and one that reaches them.

    s0  s1  s2  s3  s4  s5        an episode of five steps; s4 is its last goal (`loaders/goals.py`)
        ^^
    an item at s1, with steps=2:
        low goal     s3: `steps` ahead, or the last goal where that comes first
        actor goal   what the upper policy is to reach, chosen as in `loaders/goals.py`
        subgoal      what the upper policy should choose on the way there
                     actor goal s2       s2: the goal itself, if it is at most `steps` ahead
                     actor goal s4       s3: `steps` ahead
                     a random state      s3: the low goal, wherever that state is

These are HIQL's (Park et al. 2023, "HIQL: Offline goal-conditioned RL with latent states as
actions") as OGBench draws them. As in `loaders/goals.py`, uniform goals differ: OGBench rounds, and
takes the nearest and the farthest state half as often as those between.
"""

from __future__ import annotations

import dataclasses
from typing import Unpack

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from orlog.datasets.reading.opening import Given
from orlog.loaders.arguments import as_integer
from orlog.loaders.arrays import Arrays, as_arrays, refuse_missing_finals
from orlog.loaders.batch import GoalBatch
from orlog.loaders.goals import ACTOR_GOALS, VALUE_GOALS, GoalMixture, GoalSampler, find_goal
from orlog.loaders.options import StreamOptions, takes_stream_options
from orlog.loaders.streams import Batches


class SubgoalSampler:
    """Chooses what a `GoalSampler` does, and the goals of the lower policy."""

    def __init__(self, above: GoalSampler, *, steps: int = 25) -> None:
        """Prepare the choice; `above` chooses steps, value goals and the upper policy's goals.

        Raises ValueError if `steps` is less than 1; TypeError if `steps` is no integer.
        """
        steps = as_integer("steps", steps)
        if steps < 1:
            raise ValueError(f"steps must be >= 1, found {steps}.")
        self.kind = f"subgoals 1 steps={steps} {above.kind}"
        self.draws, self.arrays = above.draws, above.arrays
        self._above, self._steps = above, steps

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Tensor:
        """Return the rows of each item's state, value goal, actor goal, low goal and subgoal."""
        chosen = self._above.choose(uniform)
        rows, actor_rows = chosen[:, 0].numpy(), chosen[:, 2].numpy()
        episodes = rows - self.arrays.choose_steps(uniform)
        last_rows = np.take(self.arrays.final_rows, episodes) - 1
        low_rows = np.minimum(rows + self._steps, last_rows)
        nearer = np.minimum(low_rows, actor_rows)
        subgoal_rows = np.where(self._above.has_random_actor_goal(uniform), low_rows, nearer)
        return torch.cat([chosen.T, torch.from_numpy(np.stack([low_rows, subgoal_rows]))]).T

    def gather(self, chosen: Tensor) -> GoalBatch:
        """Return the transitions of the first column with the goals of the others."""
        batch = self._above.gather(chosen[:, :3])
        return dataclasses.replace(
            batch,
            low_goals=self._above.read_goals(chosen[:, 3]),
            subgoals=self._above.read_goals(chosen[:, 4]),
            subgoal_observations=self.arrays.observations(chosen[:, 4]),
        )


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
    OGBench.

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
