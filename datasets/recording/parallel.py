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

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Columns
from orlog.datasets.recording.collector import Collector, Recording, start_recording
from orlog.datasets.recording.open_episode import BLANK, LOG_PROBS, Recorded, blank_like
from orlog.errors import SchemaError, wrong_type
from orlog.manifests.columns import can_be_named
from orlog.manifests.roles import MASKS
from orlog.manifests.spaces import map_leaves

_COLUMNS = ("acts", "rewards", "terminations", "truncations")


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
            f"{name}: infos cannot be named {', '.join(sorted(taken))}: these columns of an agent hold "
            "something else."
        )
    if not all(hasattr(env, one) for one in ("possible_agents", "observation_space", "step")):
        raise wrong_type("env", "a parallel environment of PettingZoo", env)
    agents = {str(agent): agent for agent in env.possible_agents}
    for agent in agents:
        if not can_be_named(f"infos/agents/{agent}/acts") or "/" in agent:
            raise SchemaError(
                f"{name}: agent {agent!r} cannot name a column: expected letters, digits, '_', '-' "
                "and '.'."
            )
    blanks = [
        {key: _blank(space(agent)) for key, agent in agents.items()}
        for space in (env.observation_space, env.action_space)
    ]
    at_reset: dict[str, Any] = {}
    collector = start_recording(
        name,
        Recorded(
            observation_space=spaces.Dict(
                {key: env.observation_space(agent) for key, agent in agents.items()}
            ),
            action_space=spaces.Dict(
                {key: env.action_space(agent) for key, agent in agents.items()}
            ),
            infos=[
                f"agents/{key}/{column}"
                for key in agents
                for column in (*_COLUMNS, *infos, *([LOG_PROBS] if action_log_probs else []))
            ],
            action_log_probs=action_log_probs,
            blank=functools.partial(
                _unknown_info,
                name,
                {key: env.action_space(agent) for key, agent in agents.items()},
                at_reset,
            ),
        ),
        None,
        simulated=[env] if state else [],
        append=append,
        options=options,
    )
    return ParallelRecorder(env, collector, agents, blanks, infos, at_reset)


class ParallelRecorder(Recording):
    """A parallel environment that records what happens; `orlog.record_parallel` returns one.

    Attributes:
        env: The environment; what is not defined here is asked of it.
        writer: The writer of the version, which knows its name, folder and totals.
    """

    def __init__(
        self,
        env: Any,
        collector: Collector,
        agents: Mapping[str, Any],
        blanks: Sequence[Mapping[str, Any]],
        infos: Sequence[str],
        at_reset: dict[str, Any],
    ) -> None:
        """Wrap an environment; `record_parallel` has made the rest."""
        self.env = env
        self._collector = collector
        self._agents = agents
        self._infos, self._at_reset = infos, at_reset
        self._blank_observations, self._blank_actions = blanks

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
        collector = self._collector
        collector.end()
        observations, infos = self.env.reset(seed=seed, options=options)
        first = self._of_all(observations, self._blank_observations)
        for key, agent in self._agents.items():
            info = infos.get(agent) or {}
            self._at_reset |= {
                f"agents/{key}/{name}": blank_like([info[name]])
                for name in self._infos
                if name in info
            }
        collector.start(0, first, seed, options)
        collector.running = True
        return observations, infos

    def step(
        self, actions: Mapping[Any, Any], *, action_log_probs: Mapping[Any, float] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any], dict[Any, Any]]:
        """Step the environment and record what happened.

        Raises SchemaError if the episode has ended, or something does not fit; StorageError if the disk is
        full; finished episodes are kept.
        """
        collector = self._collector
        episode = collector.episodes[0]
        collector.check_running()
        acting = [key for key, agent in self._agents.items() if agent in self.env.agents]
        kept = episode.copied_action(self._of_all(actions, self._blank_actions))
        log_probs, log_prob = self._log_probs(action_log_probs, acting)
        state = collector.state(0)
        collector.running = False
        result = self.env.step(actions)
        observations, rewards, terminations, truncations, infos = result
        columns = {**log_probs, **self._info_columns(result, acting)}
        total, terminated, truncated = 0.0, False, False
        for key, agent in self._agents.items():
            acts = key in acting
            got = 0.0, False, False
            if acts:
                reward = float(episode.checked_reward(rewards[agent], agent=agent))
                episode.check_flags(terminations[agent], truncations[agent], agent=agent)
                got = reward, bool(terminations[agent]), bool(truncations[agent])
            columns |= {
                f"agents/{key}/{name}": value
                for name, value in zip(_COLUMNS, (acts, *got), strict=True)
            }
            total += got[0]
            terminated, truncated = terminated or got[1], truncated or got[2]
        ended = not self.env.agents
        seen = self._of_all(observations, self._blank_observations)
        of_all = seen, total, ended and terminated, ended and truncated, columns
        collector.add(0, kept, of_all, state, log_prob, ended=ended)
        collector.running = not ended
        return observations, rewards, terminations, truncations, infos

    def _log_probs(
        self, given: Mapping[Any, float] | None, acting: Sequence[str]
    ) -> tuple[dict[str, float], float | None]:
        """Return the log-probability of each agent's action by column, and their sum."""
        self._collector.check_log_probs(given)
        if given is None:
            return {}, None
        missing = [key for key in acting if self._agents[key] not in given]
        if missing:
            raise SchemaError(
                f"{self._collector.episodes[0].where()}: action_log_probs lacks agent {missing[0]!r}, which acts."
            )
        of_agents = {key: float(given[self._agents[key]]) for key in acting}
        columns = {f"agents/{key}/{LOG_PROBS}": of_agents.get(key, 0.0) for key in self._agents}
        return columns, sum(of_agents.values())

    def _info_columns(self, result: tuple[Any, ...], acting: Sequence[str]) -> dict[str, Any]:
        """Return the chosen infos of all agents by column: of those that act in this step or in the next one.

        Raises SchemaError if an agent that acts lacks one. Flags of what is legal may be missing at its end, as
        all may in the step before it comes.
        """
        *_, terminations, truncations, infos = result
        columns = {}
        for key, agent in self._agents.items():
            acts = key in acting
            info = (infos.get(agent) or {}) if acts or agent in self.env.agents else {}
            ends = not acts or terminations[agent] or truncations[agent]
            for name in self._infos:
                if name not in info and acts and not (ends and name in MASKS):
                    raise SchemaError(
                        f"{self._collector.episodes[0].where()}, agent {key!r}: its info has no {name!r}, only "
                        f"{sorted(info)}; what is recorded must be in the info of every step of an agent."
                    )
                columns[f"agents/{key}/{name}"] = info.get(name, BLANK)
        return columns

    def _of_all(self, values: Mapping[Any, Any], blank: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value of every agent."""
        return {key: values.get(agent, blank[key]) for key, agent in self._agents.items()}


def _unknown_info(
    name: str,
    action_spaces: Mapping[str, gymnasium.Space[Any]],
    at_reset: Mapping[str, Any],
    column: str,
    columns: Mapping[str, Columns],
) -> Any:
    """Return a blank info of an agent that no step has told one yet: as `at_reset` has it, or that of the others.

    Flags of what is legal are as many as its choices, if so they are of the others. Raises SchemaError if the
    others' infos differ in their forms.
    """
    if column in at_reset:
        return at_reset[column]
    _, agent, info = column.split("/", 2)
    others = {key: f"agents/{key}/{info}" for key in action_spaces}
    blanks = {
        key: blank_like(columns[other]) if other in columns else at_reset[other]
        for key, other in others.items()
        if other in columns or other in at_reset
    }
    choices = {key: (getattr(space, "n", 0),) for key, space in action_spaces.items()}
    if info in MASKS and all(np.shape(blank) == choices[key] for key, blank in blanks.items()):
        return np.zeros(choices[agent], np.result_type(*(blanks.values() or [np.int8(0)])))
    if len({(np.shape(blank), np.asarray(blank).dtype) for blank in blanks.values()}) == 1:
        return next(iter(blanks.values()))
    raise SchemaError(
        f"{name}: agent {agent!r} takes no part in the first episode, so its info {info!r} has no known form; let "
        "each agent take part in the first episode, or leave the info out."
    )


def _blank(space: gymnasium.Space[Any]) -> Any:
    """Return the value that stands for none."""
    return map_leaves(space, lambda _, leaf: _blank_leaf(leaf))


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
