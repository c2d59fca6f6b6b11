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
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.manifests.roles import MASKS

COLUMNS = ("acts", "rewards", "terminations", "truncations")
"""What each agent has of its own, by the names that `orlog.record_parallel` gives."""

Script: TypeAlias = Callable[[np.ndarray], Any]
"""Returns the action of an agent that the world moves itself, for its observation."""


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
        self.agents = [one for one in map(str, parallel.possible_agents) if one not in scripts]
        self.observation_space = spaces.Dict(
            {one: parallel.observation_space(one) for one in self.agents}
        )
        self.action_space = spaces.Dict({one: parallel.action_space(one) for one in self.agents})
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

    def step(
        self, action: Mapping[str, Any]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Let all agents act at once; actions of those that take no part are left out."""
        there = [*self.parallel.agents]
        actions = {
            one: self._scripts[one](self._seen[one]) if one in self._scripts else action[one]
            for one in there
        }
        self._seen, rewards, terminations, truncations, infos = self.parallel.step(actions)
        self.own = {
            one: (True, float(rewards[one]), bool(terminations[one]), bool(truncations[one]))
            if one in there
            else (False, 0.0, False, False)
            for one in self.agents
        }
        total = sum(reward for _, reward, _, _ in self.own.values())
        ended = not any(one in self.agents for one in self.parallel.agents)
        terminated = ended and any(one for *_, one, _ in self.own.values())
        info = self._info(infos)
        for agent, values in self.own.items():
            info |= {
                f"agents/{agent}/{name}": value for name, value in zip(COLUMNS, values, strict=True)
            }
        return self._observation(), total, terminated, ended and not terminated, info | self._told

    def render(self) -> Any:
        """Return a picture, if the parallel environment was made to draw them."""
        return self.parallel.render()

    def close(self) -> None:
        """Close the parallel environment."""
        self.parallel.close()

    def _observation(self) -> dict[str, Any]:
        self.acting = [one for one in self.agents if one in self.parallel.agents]
        space: Any = self.observation_space
        return {
            one: self._seen[one] if one in self._seen else _blank(space[one]) for one in self.agents
        }

    def _info(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        told = {one: dict(infos[one]) for one in self.agents if infos.get(one)}
        # Of agents that have left, what was told last stands in their columns.
        self._told |= {
            f"agents/{agent}/{name}": value
            for agent, one in told.items()
            for name, value in one.items()
        }
        choices: Any = self.action_space
        # Flags of agents that have not come yet are blank.
        masks = {
            name: flags for one in told.values() for name, flags in one.items() if name in MASKS
        }
        for agent, name in itertools.product(self.agents, masks):
            blank = np.zeros(getattr(choices[agent], "n", 0), np.asarray(masks[name]).dtype)
            self._told.setdefault(f"agents/{agent}/{name}", blank)
        self.infos = list(dict.fromkeys([*self.infos, *self._told]))
        return {"agents": told} if told else {}


def _blank(space: spaces.Space[Any]) -> Any:
    """Return what an agent that is not there observes: zeros, or the first value of a space."""
    if isinstance(space, spaces.Dict):
        return {key: _blank(one) for key, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_blank(one) for one in space.spaces)
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
