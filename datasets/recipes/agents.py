"""Recipes of the `agents/...` datasets: random, medium and expert teams in two worlds of mpe2.

    random    every agent draws its action uniformly
    medium    each agent follows a plan of its own (to the nearest landmark, or straight to the prey), with much noise
    expert    the agents share the work (each its landmark, or the prey's way cut off), with little noise

Noise replaces the action of an agent by a uniformly drawn one with probability `noise`, for each agent by
itself. Every step keeps the log-probability of each agent's action, and their sum. What single agents got
is stored as `orlog.record_parallel` stores it. Every episode depends on (recipe seed, episode index) only:

    episode i:  SeedSequence((seed, i)) -> reset seed, generator of noise
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from orlog.datasets.columns.episode import Episode
from orlog.datasets.environments.agents import COLUMNS, Team, towards
from orlog.datasets.recipes.recipe import CatalogueEntry, Expert, PlayedRecipe

Controller: TypeAlias = Callable[[Mapping[str, np.ndarray]], dict[str, int]]
"""Returns the action of each agent, by name, for what all of them observe."""

STEPS = 25
"""Steps of an episode in both worlds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentsRecipe(PlayedRecipe):
    """Everything that decides the bytes of an `agents` dataset.

    Attributes:
        environment_id: The registered environment that records and scores.
        controller: Name in `CONTROLLERS` of the one that records.
        noise: Probability with which an agent draws its action uniformly.
        expert_controller: Name of the one that is the expert of scores, without noise.
        count: Number of episodes.
        seed: Root of all randomness.
    """

    environment_id: str
    controller: str
    noise: float
    expert_controller: str
    count: int = 1_000
    seed: int = 0

    name = "agents"
    version = 1  # raised whenever the same parameters would give other bytes
    NO_BYTES = frozenset({"expert_controller"})  # it decides scores

    @property
    def steps(self) -> int:
        """Number of steps: no episode ends early."""
        return STEPS * self.count

    @property
    def behavior_policy(self) -> str:
        """Description of the policies that chose the actions."""
        if self.noise == 1:
            return "every agent draws its action uniformly; action_log_probs are exact"
        return (
            f"{self.controller}; with probability {self.noise:g} an agent draws its action uniformly; "
            "action_log_probs are exact"
        )

    def lengths(self, limit: int) -> list[int]:
        """Return the steps of each episode."""
        return [limit] * self.count

    def expert(self) -> Expert:
        """Return the controller of experts, without noise."""
        controller = CONTROLLERS[self.expert_controller]

        def policy(observations: Any) -> Any:
            count = len(next(iter(observations.values())))
            several = [
                controller({agent: values[place] for agent, values in observations.items()})
                for place in range(count)
            ]
            return {agent: np.array([one[agent] for one in several]) for agent in observations}

        return Expert(name=f"{self.expert_controller}, without noise", policy=policy)

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one episode."""
        team: Team = env.unwrapped
        controller = CONTROLLERS[self.controller]
        observation, _ = env.reset(seed=reset_seed)
        seen, acted, rewards, of_agents = [observation], [], [], []
        log_probs: list[dict[str, float]] = []
        ended = terminated = False
        while not ended:
            action, log_prob = _draw(rng, controller(observation), team.action_space, self.noise)
            observation, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            seen.append(observation)
            acted.append(action)
            rewards.append(float(reward))
            log_probs.append(log_prob)
            of_agents.append(team.own)
        last = np.arange(len(acted)) == len(acted) - 1
        infos: dict[str, Any] = {}
        for agent in team.agents:
            columns = zip(*(one[agent] for one in of_agents), strict=True)
            for name, values in zip(COLUMNS, columns, strict=True):
                infos[f"agents/{agent}/{name}"] = np.array(values)
            infos[f"agents/{agent}/action_log_probs"] = np.array([one[agent] for one in log_probs])
        infos["action_log_probs"] = np.array([sum(one.values()) for one in log_probs])
        return Episode(
            observations={agent: np.stack([one[agent] for one in seen]) for agent in team.agents},
            actions={agent: np.array([one[agent] for one in acted]) for agent in team.agents},
            rewards=np.array(rewards),
            terminations=last & terminated,
            truncations=last & (not terminated),
            infos=infos,
            seed=reset_seed,
        )


def _draw(
    rng: np.random.Generator, chosen: Mapping[str, int], space: Any, noise: float
) -> tuple[dict[str, int], dict[str, float]]:
    """Return the action of each agent, and its log-probability."""
    actions, log_probs = {}, {}
    for agent, action in chosen.items():
        choices = int(space[agent].n)
        chance, uniform = rng.random(2).tolist()
        taken = action if chance >= noise else int(choices * uniform)
        actions[agent] = taken
        probability = noise / choices + (1 - noise if taken == action else 0.0)
        log_probs[agent] = math.log(probability)
    return actions, log_probs


def go_to_nearest(observations: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Let each agent go to the landmark that is nearest to itself, whoever else does."""
    actions = {}
    for agent, seen in observations.items():
        landmarks = seen[4:10].reshape(3, 2)
        nearest = landmarks[np.square(landmarks).sum(1).argmin()]
        still = seen[:2] == 0
        if still[0] != still[1]:  # a first push along each axis, so that no number stays at 0
            actions[agent] = towards(np.where(still, nearest, 0))
            continue
        actions[agent] = towards(nearest - 0.3 * seen[:2], 0.03)
    return actions


def share_landmarks(observations: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Give each agent a landmark of its own, so that all ways together are shortest."""
    several = [*observations.values()]
    ways = np.array([seen[4:10].reshape(3, 2) for seen in several])  # agent, landmark, axis
    lengths = np.sqrt(np.square(ways).sum(2))
    orders = itertools.permutations(range(3))
    best = min(orders, key=lambda order: float(lengths[[0, 1, 2], list(order)].sum()))
    return {
        agent: towards(ways[place, best[place]] - 0.3 * seen[:2], 0.03)
        for place, (agent, seen) in enumerate(observations.items())
    }


def run_after(observations: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Let each chaser run straight to where the prey is."""
    return {agent: towards(seen[12:14]) for agent, seen in observations.items()}


def cut_off(observations: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Let the nearest chaser run ahead of the prey, and the others to both sides of its way until they are near."""
    prey = {agent: seen[12:14] for agent, seen in observations.items()}  # relative to the chaser
    order = sorted(observations, key=lambda agent: float(np.square(prey[agent]).sum()))
    actions = {}
    for rank, agent in enumerate(order):
        seen = observations[agent]
        speed = seen[14:16]
        ahead = prey[agent] + 0.2 * speed
        target = ahead
        if rank and float(np.hypot(*ahead)) >= 0.35:
            way = speed / (float(np.hypot(*speed)) + 1e-6)
            side = np.array([-way[1], way[0]]) * (1 if rank == 1 else -1)
            target = ahead + 0.1 * (way + side)
        actions[agent] = towards(target - 0.15 * seen[:2])
    return {agent: actions[agent] for agent in observations}


CONTROLLERS: dict[str, Controller] = {
    "each agent goes to the landmark nearest to it": go_to_nearest,
    "agents share the landmarks by the shortest ways": share_landmarks,
    "each chaser runs straight to the prey": run_after,
    "chasers cut off the prey's way": cut_off,
}


def _entries(task: str, about: str, plan: str, shared: str, seed: int) -> dict[str, CatalogueEntry]:
    """Return the three datasets of a world."""
    found = {}
    levels = {"random": (shared, 1.0), "medium": (plan, 0.4), "expert": (shared, 0.05)}
    for number, (level, (controller, noise)) in enumerate(levels.items()):
        recipe = AgentsRecipe(
            environment_id=f"orlog/{task}-v0",
            controller=controller,
            noise=noise,
            expert_controller=shared,
            seed=seed + number,
        )
        found[f"agents/{task}-{level}-v1"] = CatalogueEntry(
            version="1.0.0",
            description=(
                f"{about}: a {level} team of three, whose members act at once and choose among five "
                f"actions each. With the log-probability of each action. {recipe.steps:,} steps."
            ),
            license="CC0-1.0",
            recipe=recipe,
        )
    return found


DATASETS = {
    **_entries(
        "spread",
        "Agents cover three landmarks without collisions",
        "each agent goes to the landmark nearest to it",
        "agents share the landmarks by the shortest ways",
        60,
    ),
    **_entries(
        "tag",
        "Chasers catch a faster prey among two obstacles",
        "each chaser runs straight to the prey",
        "chasers cut off the prey's way",
        63,
    ),
}
