"""Worlds of several agents as environments of Gymnasium: `orlog/spread-v0` and `orlog/tag-v0`.

`Team` wraps any parallel environment of PettingZoo, so that it can be made by an id, evaluated, and recorded
like any other. What the agents see and do is a Dict with a part for each, and the reward is their sum:

    observation[AGENT], action[AGENT]      of each of `possible_agents`, less those that the world moves itself
    info["agents"][AGENT]                  what the parallel environment's info says of it, such as an action_mask
    info["agents/AGENT/acts"], ..          after a step: whether it took part, its reward, its two flags, and the above

`orlog.record(env, NAME, infos=env.unwrapped.infos)` records all that `orlog.record_parallel` would. An agent that has left, or has not come yet, observes zeros, and what it is told to do is ignored. An episode ends
when no agent is left: it is terminated if any was terminated in the last step, and else truncated.

    orlog/spread-v0    three agents cover three landmarks, and should not collide: mpe2's simple_spread_v3
    orlog/tag-v0       three chasers catch a faster prey, which flees by a script: mpe2's simple_tag_v3

Recipes of the `agents/...` datasets: random, medium and expert teams in two worlds of mpe2.

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
from types import MappingProxyType
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.worlds.recipe import CatalogueEntry, Expert, PlayedRecipe, play_episode
from orlog.manifests.roles import MASKS

# what each agent has of its own, by the names that `orlog.record_parallel` gives
COLUMNS = ("acts", "rewards", "terminations", "truncations")

# returns the action of an agent that the world moves itself, for its observation
Script: TypeAlias = Callable[[np.ndarray], Any]


class Team(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """A parallel environment of PettingZoo as one of Gymnasium; the module's docstring says how.

    Attributes:
        parallel: The parallel environment.
        agents: Names of the agents that act from outside.
        acting: Those of them that take part in the coming step.
        own: What each agent got in the last step: whether it acted, its reward, and its two flags.
        infos: Names of what is told of single agents after each step, once an episode has begun.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"]}  # noqa: RUF012  # Gymnasium's own name

    def __init__(self, parallel: Any, scripts: Mapping[str, Script] = MappingProxyType({})) -> None:
        self.parallel, self._scripts = parallel, scripts
        self.render_mode = getattr(parallel, "render_mode", None)
        self.agents = [agent for agent in map(str, parallel.possible_agents) if agent not in scripts]
        self.observation_space = spaces.Dict({agent: parallel.observation_space(agent) for agent in self.agents})
        self.action_space = spaces.Dict({agent: parallel.action_space(agent) for agent in self.agents})
        self.acting: list[str] = []
        self.own: dict[str, tuple[bool, float, bool, bool]] = {}
        self.infos = [f"agents/{agent}/{name}" for agent in self.agents for name in COLUMNS]
        self._seen: Mapping[str, Any] = {}
        self._told: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._seen, infos = self.parallel.reset(seed=seed, options=options)
        self.own, self._told = {}, {}
        return self._observation(), self._info(infos)

    def step(self, action: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Let all agents act at once; actions of those that take no part are left out."""
        there = [*self.parallel.agents]
        actions = {who: self._scripts[who](self._seen[who]) if who in self._scripts else action[who] for who in there}
        self._seen, rewards, terminations, truncations, infos = self.parallel.step(actions)
        self.own = {
            agent: (True, float(rewards[agent]), bool(terminations[agent]), bool(truncations[agent]))
            if agent in there
            else (False, 0.0, False, False)
            for agent in self.agents
        }
        total = sum(reward for _, reward, _, _ in self.own.values())
        ended = not any(agent in self.agents for agent in self.parallel.agents)
        terminated = ended and any(has_ended for *_, has_ended, _ in self.own.values())
        info = self._info(infos)
        for agent, values in self.own.items():
            info |= {f"agents/{agent}/{name}": value for name, value in zip(COLUMNS, values, strict=True)}
        return self._observation(), total, terminated, ended and not terminated, info | self._told

    def render(self) -> Any:
        """Return a picture, if the parallel environment was made to draw them."""
        return self.parallel.render()

    def close(self) -> None:
        """Close the parallel environment."""
        self.parallel.close()

    def _observation(self) -> dict[str, Any]:
        self.acting = [agent for agent in self.agents if agent in self.parallel.agents]
        space: Any = self.observation_space
        return {agent: self._seen[agent] if agent in self._seen else _blank(space[agent]) for agent in self.agents}

    def _info(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        given = {agent: dict(infos[agent]) for agent in self.agents if infos.get(agent)}
        # Of agents that have left, what was told last stands in their columns.
        self._told |= {f"agents/{agent}/{name}": value for agent, info in given.items() for name, value in info.items()}
        choices: Any = self.action_space
        # Flags of agents that have not come yet are blank.
        masks = {name: flags for info in given.values() for name, flags in info.items() if name in MASKS}
        for agent, name in itertools.product(self.agents, masks):
            blank = np.zeros(getattr(choices[agent], "n", 0), np.asarray(masks[name]).dtype)
            self._told.setdefault(f"agents/{agent}/{name}", blank)
        self.infos = list(dict.fromkeys([*self.infos, *self._told]))
        return {"agents": given} if given else {}


def _blank(space: spaces.Space[Any]) -> Any:
    """Return what an agent that is not there observes: zeros, or the first value of a space."""
    if isinstance(space, spaces.Dict):
        return {key: _blank(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_blank(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.start
    return np.zeros(space.shape or (), space.dtype)


def spread(render_mode: str | None = None) -> Team:
    """Return `orlog/spread-v0`: three agents and three landmarks, 25 steps."""
    from mpe2 import simple_spread_v3

    return Team(simple_spread_v3.parallel_env(max_cycles=25, render_mode=render_mode))


def tag(render_mode: str | None = None) -> Team:
    """Return `orlog/tag-v0`: three chasers of a scripted prey among two obstacles, 25 steps."""
    from mpe2 import simple_tag_v3

    parallel = simple_tag_v3.parallel_env(max_cycles=25, render_mode=render_mode)
    return Team(parallel, {"agent_0": flee})


def flee(observation: np.ndarray) -> int:
    """Return where the prey runs: away from chasers, the near ones most, and back from the edge.

    It sees its velocity and place, two obstacles and three chasers, these relative to itself.
    """
    place = observation[2:4].astype(np.float64)
    chasers = observation[8:14].reshape(3, 2).astype(np.float64)
    distances = np.square(chasers).sum(1, keepdims=True) + 1e-3
    push = -(chasers / distances).sum(0)
    push -= 4 * np.sign(place) * np.maximum(np.abs(place) - 0.7, 0) ** 2 * 10
    return towards(push)


def towards(direction: np.ndarray, least: float = 0.0) -> int:
    """Return the action that pushes most along a direction: 1 left, 2 right, 3 down, 4 up.

    Where no part of it is longer than `least`, it is 0: no push.
    """
    axis = int(np.abs(direction).argmax())
    if abs(direction[axis]) <= least:
        return 0
    return 1 + 2 * axis + int(direction[axis] > 0)


# returns the action of each agent, by name, for what all of them observe
Controller: TypeAlias = Callable[[Mapping[str, np.ndarray]], dict[str, int]]
STEPS = 25  # steps of an episode in both worlds


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentsRecipe(PlayedRecipe):
    """Everything that decides the bytes of an `agents` dataset.

    Attributes:
        controller: Name in `CONTROLLERS` of the one that records.
        noise: Probability with which an agent draws its action uniformly.
        expert_controller: Name of the one that is the expert of scores, without noise.
    """

    environment_id: str
    controller: str
    noise: float
    expert_controller: str
    count: int = 1_000
    seed: int = 0

    name = "agents"
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

    def expert(self) -> Expert:
        """Return the controller of experts, without noise."""
        controller = CONTROLLERS[self.expert_controller]

        def policy(observations: Any) -> Any:
            count = len(next(iter(observations.values())))
            several = [
                controller({agent: values[place] for agent, values in observations.items()}) for place in range(count)
            ]
            return {agent: np.array([actions[agent] for actions in several]) for agent in observations}

        return Expert(name=f"{self.expert_controller}, without noise", policy=policy)

    def episode(self, env: Any, reset_seed: int, rng: np.random.Generator, _index: int) -> Episode:
        """Return one episode."""
        team: Team = env.unwrapped
        controller = CONTROLLERS[self.controller]

        def choose(observation: Any) -> tuple[dict[str, int], dict[str, float]]:
            action, log_probs = _draw(rng, controller(observation), team.action_space, self.noise)
            known = {f"agents/{agent}/action_log_probs": log_probs[agent] for agent in team.agents}
            return action, {**known, "action_log_probs": sum(log_probs.values())}

        own = [f"agents/{agent}/{name}" for agent in team.agents for name in COLUMNS]
        return play_episode(env, reset_seed, choose, infos=own)


def _draw(
    rng: np.random.Generator, chosen: Mapping[str, int], space: Any, noise: float
) -> tuple[dict[str, int], dict[str, float]]:
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
    entries = {}
    levels = {"random": (shared, 1.0), "medium": (plan, 0.4), "expert": (shared, 0.05)}
    for number, (level, (controller, noise)) in enumerate(levels.items()):
        recipe = AgentsRecipe(
            environment_id=f"orlog/{task}-v0",
            controller=controller,
            noise=noise,
            expert_controller=shared,
            seed=seed + number,
        )
        entries[f"agents/{task}-{level}-v1"] = CatalogueEntry(
            description=(
                f"{about}: a {level} team of three, whose members act at once and choose among five "
                f"actions each. With the log-probability of each action. {recipe.steps:,} steps."
            ),
            recipe=recipe,
        )
    return entries


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
