"""Recipes of the `tasks/...` datasets: noisy demonstrations of many tasks, one policy's observations for all.

Meta-World's scripted policies act, and Gaussian noise is added to their actions, which are then cut off at the
bounds. Episodes take turns with the tasks; each task takes turns with the recipe's amounts of noise. Every episode
keeps the number of its task, the task in words, its noise and whether it succeeded.

    episode i:  SeedSequence((seed, i)) -> reset seed, lowered to one that plays task i % tasks; generator of noise
                noises[(i // tasks) % noises]
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, PlayedRecipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class TasksRecipe(PlayedRecipe):
    """Everything that decides the bytes of a `tasks` dataset.

    Attributes:
        environment_id: The registered environment that records and scores; it decides which tasks there are.
        count: Number of episodes.
        length: Steps of each episode.
        noises: Standard deviations of the noise.
        seed: Root of all randomness.
    """

    environment_id: str
    count: int
    length: int = 200
    noises: tuple[float, ...] = (0.1, 0.2, 0.4)
    seed: int = 0

    name = "tasks"
    version = 1  # raised whenever the same parameters would give other bytes

    @property
    def steps(self) -> int:
        """Steps in the dataset."""
        return self.count * self.length

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        noises = ", ".join(f"{one:g}" for one in self.noises)
        return f"Meta-World's scripted policy of each task, with noise of {noises} in turn"

    def lengths(self, limit: int) -> list[int]:
        """Steps of each episode: all of them last to the limit."""
        return [limit] * self.count

    def episode(self, env: Any, drawn: int, rng: np.random.Generator, index: int) -> Episode:
        """Return one episode, whose seed is the next drawn one of its task."""
        from orlog.datasets.environments.metaworld import scripted_actions

        tasks: list[str] = env.get_wrapper_attr("tasks")
        noise = self.noises[index // len(tasks) % len(self.noises)]
        seed = drawn - drawn % len(tasks) + index % len(tasks)
        observation, info = env.reset(seed=seed)
        observations, actions, rewards = [observation], [], []
        succeeded, truncated = False, False
        while not truncated:
            (chosen,) = scripted_actions(observation[None], tasks)
            action = np.clip(chosen + noise * rng.standard_normal(4), -1, 1).astype(np.float32)
            observation, reward, _, truncated, info = env.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(float(reward))
            succeeded |= info["success"]
        return Episode(
            observations=np.array(observations),
            actions=np.array(actions),
            rewards=np.array(rewards),
            terminations=np.zeros(len(actions), np.bool_),
            truncations=np.arange(len(actions)) == len(actions) - 1,
            seed=seed,
            metadata={
                "task": info["task"],
                "instruction": info["instruction"],
                "noise": noise,
                "success": succeeded,
            },
        )

    def expert(self) -> Expert:
        """Return the scripted policies without noise."""
        return Expert(name="Meta-World's scripted policies, without noise", policy=self._act)

    def _act(self, observations: np.ndarray) -> np.ndarray:
        from orlog.datasets.environments.metaworld import STATE, scripted_actions, tasks_of

        benchmark = f"MT{observations.shape[1] - STATE}"
        return scripted_actions(observations, tasks_of(benchmark))


def _demonstrations(which: str, recipe: TasksRecipe) -> CatalogueEntry:
    """Return the entry of a benchmark's demonstrations."""
    return CatalogueEntry(
        version="1.0.0",
        description=(
            f"The {which} of Meta-World, which one policy is to play: noisy demonstrations by its scripted "
            f"policies, with number and words of each task. {recipe.steps:,} steps."
        ),
        license="CC0-1.0",
        recipe=recipe,
    )


DATASETS = {
    "tasks/mt10-v1": _demonstrations(
        "ten tasks of MT10",
        TasksRecipe(environment_id="orlog/metaworld-mt10-v0", count=300, seed=40),
    ),
    "tasks/mt50-v1": _demonstrations(
        "fifty tasks of MT50",
        TasksRecipe(environment_id="orlog/metaworld-mt50-v0", count=300, seed=41),
    ),
}
