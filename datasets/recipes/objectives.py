"""Recipes of the `objectives/...` datasets: rewards of several objectives, weighted anew in each episode.

The weights of an episode are of the world's grid, by its reset seed. In every `informed`-th episode the behavior follows
the policy that is best for these weights, in the others the one that is best for weights of the grid that it draws; all
with uniform actions in a share `noise` of the steps. So what the data do in a state depends only a little on the
weights, and their rewards do entirely.

Infos are `objectives`, the reward of each; and `action_log_probs`, exact for the policy of the episode, whose metadata has
`informed`. Observations hold the weights, which have the role `weights`.

Every episode depends on (recipe seed, episode index) only.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.environments.objectives import best_actions, front, grid, state_number
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, PlayedRecipe

ACTIONS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectivesRecipe(PlayedRecipe):
    """Everything that decides the bytes of an `objectives` dataset.

    Attributes:
        world: `treasure` or `gathering`.
        informed: One episode of so many follows the weights that it has.
        noise: Share of uniform actions.
        steps: Steps in the dataset; the last episode is cut (truncated) where they run out.
        seed: Root of all randomness.
    """

    world: str
    informed: int
    noise: float
    steps: int
    seed: int = 0

    name = "objectives"
    version = 1  # raised whenever the same parameters would give other bytes

    @property
    def environment_id(self) -> str:
        """The world that records and scores."""
        return f"orlog/{self.world.title()}-v0"

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        return (
            f"one episode of {self.informed} follows the best policy for its weights, the others that for weights "
            f"that are drawn; uniform actions in {self.noise:.0%} of the steps; action_log_probs are exact for "
            "the policy of the episode"
        )

    def lengths(self, limit: int) -> list[int]:
        """Most steps of each episode; more than there will be, since how long one lasts is found by playing."""
        return [limit] * self.steps

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode."""
        best = best_actions(self.world)
        is_informed = index % self.informed == 0
        followed = reset_seed % len(best) if is_informed else int(rng.integers(len(best)))
        seen, _ = env.reset(seed=reset_seed)
        observations, actions, log_probs, rewards, objectives = [seen], [], [], [], []
        terminated = truncated = False
        while not terminated and not truncated:
            chosen = int(best[followed, state_number(self.world, seen["state"])])
            chance, uniform = rng.random(2).tolist()
            action = chosen if chance >= self.noise else int(ACTIONS * uniform)
            share = self.noise / ACTIONS + (1 - self.noise if action == chosen else 0.0)
            seen, reward, terminated, truncated, info = env.step(action)
            observations.append(seen)
            actions.append(action)
            log_probs.append(math.log(share))
            rewards.append(reward)
            objectives.append(info["objectives"])
        ends = np.arange(len(actions)) == len(actions) - 1
        return Episode(
            observations={name: np.stack([one[name] for one in observations]) for name in seen},
            actions=np.array(actions),
            rewards=np.array(rewards),
            terminations=ends & terminated,
            truncations=ends & truncated,
            infos={"action_log_probs": np.array(log_probs), "objectives": np.stack(objectives)},
            seed=reset_seed,
            metadata={"informed": is_informed},
        )

    def expert(self) -> Expert:
        """Return the policy that is best for the weights that it sees, of the nearest place of the grid."""
        best = best_actions(self.world)
        of_grid = grid(front(self.world).shape[1])

        def policy(seen: Any) -> np.ndarray:
            apart = np.square(np.asarray(seen["weights"])[:, None] - of_grid[None]).sum(-1)
            states = [state_number(self.world, one) for one in seen["state"]]
            return np.asarray(best[apart.argmin(1), states])

        return Expert(
            name="the best policy for the weights, from the table of moves", policy=policy
        )


def _entry(task: str, recipe: ObjectivesRecipe) -> CatalogueEntry:
    """Return the entry of a world's dataset."""
    return CatalogueEntry(
        version="1.0.0",
        description=(
            f"{task}, with other weights in each episode, of which the data follow some; the reward of each objective "
            f"is an info. {recipe.steps:,} steps."
        ),
        license="CC0-1.0",
        recipe=recipe,
        roles={"infos/objectives": "objectives", "observations/weights": "weights"},
    )


DATASETS = {
    "objectives/treasure-v1": _entry(
        "A submarine weighs treasures against time",
        ObjectivesRecipe(world="treasure", informed=3, noise=0.2, steps=60_000, seed=80),
    ),
    "objectives/gathering-v1": _entry(
        "Gold and a gem are brought home past enemies",
        ObjectivesRecipe(world="gathering", informed=3, noise=0.2, steps=60_000, seed=81),
    ),
}
