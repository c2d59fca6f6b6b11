"""`orlog.record_parallel`: a parallel environment of PettingZoo, whose agents are recorded together.

An episode is one run of all agents. Its observation and action spaces are a Dict of the agents' own:

    observations[AGENT], actions[AGENT]      of each of `possible_agents`
    rewards                                  the sum over the agents
    terminations, truncations                at the last step: whether any agent left so in it
    infos["agents/AGENT/acts"]               whether the agent took part in a step; and what it got:
    infos["agents/AGENT/rewards"], infos["agents/AGENT/terminations"], infos["agents/AGENT/truncations"]
    infos["agents/AGENT/NAME"]               what its info says of NAME, on request
    infos["agents/AGENT/action_log_probs"]   the log-probability of its action, on request
    infos["action_log_probs"]                their sum: that of all actions together

Where an agent takes no part, its action, reward, flags and infos are blank (zeros, no text, or a Discrete's
first value), in the form that its own have. Row t of its observations is real if it acts in step t or t - 1, and
blank otherwise. Row t of its infos is what step t said of it: also in the step before it comes, if it said anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.schema import Schema
from orlog.datasets.recording.open_episode import LOG_PROBS, InfoLists, OpenEpisode, Recorded
from orlog.datasets.recording.recorder import Recording, start_version
from orlog.errors import SchemaError, wrong_type
from orlog.manifests.columns import can_be_named
from orlog.manifests.roles import MASKS
from orlog.manifests.spaces import map_leaves

_COLUMNS = ("acts", "rewards", "terminations", "truncations")
_BLANK = object()
"""Stands for an info that an agent does not have, until `_Blanks` knows the form of its others."""


def record_parallel(
    env: Any,
    name: str,
    *,
    infos: Sequence[str] = (),
    action_log_probs: bool = False,
    state: bool = False,
    append: bool = False,
    **options: Any,
) -> ParallelRecorder:
    """Wrap a parallel environment of PettingZoo; stepping it records a dataset, `close()` ends it.

    The module's docstring says how agents are stored. Agents may leave early and join late. `infos` are
    names in the info of every agent that acts; flags of legal choices, such as an `action_mask`, may be missing
    when it ends. With `action_log_probs`, give those of all agents that act:
    `env.step(actions, action_log_probs={agent: ..})`. With `state`, `Dataset.restore` puts the simulator's
    state back at steps in which all agents act. The environment's id is not recorded, since PettingZoo has
    none: `recover_environment` is not for these datasets, and algorithms that need plain arrays refuse them.
    Everything else, including the errors, is as in `record`.
    """
    if isinstance(infos, str):
        raise wrong_type("infos", "a list of names", infos)
    taken = {*_COLUMNS, LOG_PROBS} & {*infos}
    if taken:
        raise SchemaError(
            f"{name}: infos cannot be named {', '.join(sorted(taken))}: these columns of an agent hold something else."
        )
    if not all(hasattr(env, needed) for needed in ("possible_agents", "observation_space", "step")):
        raise wrong_type("env", "a parallel environment of PettingZoo", env)
    agents = {str(agent): agent for agent in env.possible_agents}
    for agent in agents:
        if not can_be_named(f"infos/agents/{agent}/acts") or "/" in agent:
            raise SchemaError(
                f"{name}: agent {agent!r} cannot name a column: expected letters, digits, '_', '-' and '.'."
            )
    blanks = _Blanks(name, env, agents, infos)
    columns = [*_COLUMNS, *infos, *([LOG_PROBS] if action_log_probs else [])]
    recorded = Recorded(
        observation_space=blanks.observation_space,
        action_space=blanks.action_space,
        infos=[f"agents/{key}/{column}" for key in agents for column in columns],
        action_log_probs=action_log_probs,
        fill_infos=blanks.fill_infos,
    )
    episodes = start_version(name, recorded, None, [env if state else None], append, options)
    return ParallelRecorder(env, episodes[0], infos, blanks)


class ParallelRecorder(Recording):
    """A parallel environment that records what happens; `orlog.record_parallel` returns one.

    Attributes:
        env: The environment; what is not defined here is asked of it.
        writer: The writer of the version, which knows its name, folder and totals.
    """

    def __init__(self, env: Any, episode: OpenEpisode, infos: Sequence[str], blanks: _Blanks) -> None:
        """Wrap an environment; `record_parallel` has made the rest."""
        self.env = env
        self._hold([episode])
        self._agents, self._infos, self._blanks = blanks.agents, infos, blanks

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment."""
        if name == "env":  # not there yet
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Reset the environment and start an episode; a running one ends as it is.

        Raises SchemaError if an observation does not fit its space, the options cannot be kept as JSON, or
        the environment has no state that can be recorded.
        """
        self._end_episodes(self._episodes)
        observations, infos = self.env.reset(seed=seed, options=options)
        self._blanks.note_reset(infos)
        self._episodes[0].start(self._of_all(observations, self._blanks.observations), seed, options)
        self._is_running = True
        return observations, infos

    def step(
        self, actions: Mapping[Any, Any], *, action_log_probs: Mapping[Any, float] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any]]:
        """Step the environment and record what happened.

        Raises SchemaError if the episode has ended, or something does not fit; StorageError if the disk is
        full; finished episodes are kept.
        """
        self._check_running()
        (episode,) = self._episodes
        acting = {key: agent for key, agent in self._agents.items() if agent in self.env.agents}
        log_probs: dict[str, float] = {}
        if action_log_probs is not None:
            missing = [key for key, agent in acting.items() if agent not in action_log_probs]
            if missing:
                raise SchemaError(f"{episode.where()}: action_log_probs lacks agent {missing[0]!r}, which acts.")
            log_probs = {key: float(action_log_probs[agent]) for key, agent in acting.items()}
        together = None if action_log_probs is None else sum(log_probs.values())
        episode.before(self._of_all(actions, self._blanks.actions), together)
        self._is_running = False
        result = self.env.step(actions)
        observations, rewards, terminations, truncations, infos = result
        columns: dict[str, Any] = {}
        total, terminated, truncated = 0.0, False, False
        for key, agent in self._agents.items():
            own = (False, 0.0, False, False)
            if key in acting:
                reward = float(episode.checked_reward(rewards[agent], agent=agent))
                episode.check_flags(terminations[agent], truncations[agent], agent=agent)
                own = (True, reward, bool(terminations[agent]), bool(truncations[agent]))
                total += reward
                terminated |= own[2]
                truncated |= own[3]
            info = (infos.get(agent) or {}) if own[0] or agent in self.env.agents else {}
            for name in self._infos:
                # Flags of what is legal may be missing at its end, and all in the step before it comes.
                if name not in info and own[0] and not (any(own[2:]) and name in MASKS):
                    raise SchemaError(
                        f"{episode.where()}, agent {key!r}: its info has no {name!r}, only {sorted(info)}; what is "
                        "recorded must be in the info of every step of an agent."
                    )
            values = dict(zip(_COLUMNS, own, strict=True)) | {name: info.get(name, _BLANK) for name in self._infos}
            values[LOG_PROBS] = log_probs.get(key, 0.0)
            columns |= {f"agents/{key}/{column}": value for column, value in values.items()}
        ended = not self.env.agents
        seen = self._of_all(observations, self._blanks.observations)
        episode.after((seen, total, ended and terminated, ended and truncated, columns))
        self._is_running = not episode.keep(ends=ended)
        return observations, rewards, terminations, truncations, infos

    def _of_all(self, values: Mapping[Any, Any], blanks: Mapping[str, Any]) -> dict[str, Any]:
        return {key: values.get(agent, blanks[key]) for key, agent in self._agents.items()}


class _Blanks:
    """What stands for the values of agents that take no part; `observations` and `actions` are blank ones of each."""

    def __init__(self, name: str, env: Any, agents: Mapping[str, Any], infos: Sequence[str]) -> None:
        self._name, self.agents, self._infos = name, agents, infos
        self.observation_space = spaces.Dict({key: env.observation_space(agent) for key, agent in agents.items()})
        self.action_space = spaces.Dict({key: env.action_space(agent) for key, agent in agents.items()})
        self.observations, self.actions = (
            {key: map_leaves(part, lambda _, leaf: _blank_leaf(leaf)) for key, part in space.items()}
            for space in (self.observation_space, self.action_space)
        )
        self._at_reset: dict[str, Any] = {}

    def note_reset(self, infos: Mapping[Any, Any]) -> None:
        """Note the form of what a reset tells agents."""
        for key, agent in self.agents.items():
            info = infos.get(agent) or {}
            self._at_reset |= {
                f"agents/{key}/{name}": _blank_like([info[name]]) for name in self._infos if name in info
            }

    def fill_infos(self, infos: InfoLists, schema: Schema) -> InfoLists:
        """Put blanks where agents have no info: in the form of earlier episodes, else of its other values."""
        known = {name: [value for value in values if value is not _BLANK] for name, values in infos.items()}
        filled: InfoLists = {}
        for name, values in infos.items():
            filled[name] = values
            if len(known[name]) < len(values):
                blank = self._blank_info(name, known, schema)
                filled[name] = [blank if value is _BLANK else value for value in values]
        return filled

    def _blank_info(self, column: str, known: InfoLists, schema: Schema) -> Any:
        """Return a blank info of an agent.

        It has the form of earlier episodes, of what the agent was told, or of what other agents were told. Flags of
        what is legal are as many as the agent's choices, if so they are of the others. Raises SchemaError if the
        others' infos differ in their forms.
        """
        spec = schema.extras.get(f"infos/{column}")
        if spec is not None:
            kind = schema.variable.get(f"infos/{column}")
            array = np.zeros((0, *spec.shape) if kind else spec.shape, spec.dtype)
            return "" if kind == "text" else array[()]
        _, agent, info = column.split("/", 2)
        blanks = {}
        for key in self.agents:
            other = f"agents/{key}/{info}"
            if known[other] or other in self._at_reset:
                blanks[key] = _blank_like(known[other]) if known[other] else self._at_reset[other]
        if agent in blanks:
            return blanks[agent]
        choices = {key: (getattr(space, "n", 0),) for key, space in self.action_space.items()}
        if info in MASKS and all(np.shape(blank) == choices[key] for key, blank in blanks.items()):
            return np.zeros(choices[agent], np.result_type(*(blanks.values() or [np.int8(0)])))
        if len({(np.shape(blank), np.asarray(blank).dtype) for blank in blanks.values()}) == 1:
            return next(iter(blanks.values()))
        raise SchemaError(
            f"{self._name}: agent {agent!r} takes no part in the first episode, so its info {info!r} has no known "
            "form; let each agent take part in the first episode, or leave the info out."
        )


def _blank_like(values: Sequence[Any]) -> Any:
    """Return a value of the form of some others that stands for none."""
    first = values[0]
    if isinstance(first, str):
        return ""
    blank = np.zeros_like(first)
    if blank.ndim and len({np.shape(value) for value in values}) > 1:
        return blank[:0]
    return blank[()]


def _blank_leaf(space: gymnasium.Space[Any]) -> Any:
    match space:
        case spaces.Box() | spaces.MultiBinary():
            return np.zeros(space.shape, space.dtype)
        case spaces.Discrete(start=start):
            return int(start)
        case spaces.MultiDiscrete(start=start):
            return start.astype(space.dtype)
    raise SchemaError(
        f"a {type(space).__name__} space of an agent cannot be recorded: it has no value that stands "
        "for none where the agent takes no part."
    )
