"""The agents of a team one by one: each agent's part of an episode as an episode of its own.

    arrays = member_arrays(load_agents(team))        any loader of single agents samples from them

    observation   | what the agent observes, padded | which agent, one-hot | flags of what is legal, if known |
    action        whole numbers from 0, or floats padded with zeros
    reward        the agent's own, or the team's

An agent's part is a run of steps in which it acts, until it ends, so that one who leaves and comes back has
several. The observation after its last step is real. Its end is terminated where the agent was, and else truncated, also
where the agent was simply gone. All parts of the first agent come first, then those of the second.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.teams import Team, TeamArrays
from orlog.loaders.tensors import Tensor, torch
from orlog.manifests.columns import FLAGS

_BLOCK = 2**18


@dataclasses.dataclass(frozen=True, kw_only=True)
class Members:
    """Whose episodes those of member arrays are.

    Attributes:
        team: The team.
        episodes: Number of episodes of each agent, which follow one another.
    """

    team: Team
    episodes: tuple[int, ...]


def member_arrays(arrays: Arrays, *, rewards: Literal["own", "team"] = "own", infos: Sequence[str] = ()) -> Arrays:
    """Return a team's arrays as those of single agents, which take the place of the team's in memory.

    Args:
        arrays: What `load_agents` returned.
        rewards: Whether an agent is rewarded with its own reward or with the team's.
        infos: Columns of steps that batches can give; each agent has those of the whole.
    """
    team: Team = arrays.team
    if arrays.mixture is not None:
        raise SchemaError(
            f"{arrays.name}: a weighted mixture of teams is not sampled agent by agent; combine them without "
            "weights, or use orlog.agent_transitions."
        )
    there = TeamArrays(team, arrays)
    acts = (there.flags("acts") > 0).cpu().numpy()
    ends = np.zeros_like(acts)
    for name in {*FLAGS} & team.has:
        ends |= (there.flags(name) > 0).cpu().numpy()
    runs = [_runs(arrays, acts[:, agent], ends[:, agent]) for agent in range(team.count)]
    lengths = np.concatenate([stops - starts for starts, stops in runs])
    if not len(lengths):
        raise SchemaError(f"{arrays.name}: no agent acts in any step; there is nothing to learn.")
    legal = team.limits_choices
    sizes = [team.width, team.count, max(team.action_widths) if legal else 0]
    obs_dim = sum(sizes)
    action_dim = 0 if team.is_discrete else max(team.action_widths)
    rows = torch.zeros(int((lengths + 1).sum()), obs_dim + action_dim + 3)
    actions = torch.zeros(len(rows), dtype=torch.int64)
    sources = np.empty(len(rows), np.int64)
    first = 0
    for agent, (starts, stops) in enumerate(runs):
        for some in _blocks(starts, stops):
            source = np.concatenate([np.arange(starts[index], stops[index] + 1) for index in some])
            ends = np.cumsum(stops[some] - starts[some] + 1) - 1
            place = slice(first, first + len(source))
            sources[place] = source
            _fill(there, agent, rewards, source, ends, rows[place], actions[place], legal)
            first += len(source)
    final = np.cumsum(lengths + 1) - 1
    return Arrays(
        rows=rows,
        lengths=lengths,
        obs_dim=obs_dim,
        action_dim=action_dim,
        name=arrays.name,
        digest=arrays.digest,
        others={"actions": actions} if team.is_discrete else {},
        infos=_infos(arrays, infos, sources, final, lengths) if infos else None,
        team=Members(team=team, episodes=tuple(len(starts) for starts, _ in runs)),
    )


def legal_place(team: Team) -> slice | None:
    """Return where the observations of member arrays have the flags of what is legal."""
    if not team.limits_choices:
        return None
    first = team.width + team.count
    return slice(first, first + max(team.action_widths))


def separately(
    arrays: Arrays,
    *,
    seed: int,
    start: int = 0,
    loader: str,
    arguments: dict[str, Any],
    infos: Sequence[str] = (),  # noqa: ARG001  # among the arguments, too
) -> Iterator[list[Any]]:
    """Yield a batch for each agent, of its own episodes alone.

    Args:
        arrays: Member arrays.
        seed: Seed of the streams, which differ between agents.
        start: First batch.
        loader: The function that makes the batches of one agent, as `module:function`.
        arguments: Its other arguments.
        infos: See `arguments`.
    """
    module, _, function = loader.partition(":")
    make = getattr(importlib.import_module(module), function)
    streams: list[Iterable[Any]] = [make(member, seed=seed, start=start, **arguments) for member in of_each(arrays)]
    return (AgentBatches(several) for several in zip(*streams, strict=True))


class AgentBatches(list[Any]):
    """A batch for each agent."""

    def to(self, *place: Any, **options: Any) -> AgentBatches:
        """Return the batches on another device."""
        return AgentBatches(batch.to(*place, **options) for batch in self)

    def pin_memory(self) -> AgentBatches:
        """Return the batches in page-locked memory."""
        return AgentBatches(batch.pin_memory() for batch in self)


def of_each(arrays: Arrays) -> list[Arrays]:
    """Return member arrays of each agent alone, views of the same memory."""
    members: Members = arrays.team
    parts, row, episode = [], 0, 0
    for agent, count in zip(members.team.agents, members.episodes, strict=True):
        if not count:
            raise SchemaError(
                f"{arrays.name}: agent {agent} acts in no step, so it has nothing to learn from; share the "
                "parameters: agents=shared."
            )
        lengths = arrays.lengths[episode : episode + count]
        place = slice(row, row + int((lengths + 1).sum()))
        text = f"orlog agent 1\n{arrays.digest}\n{agent}"
        infos = arrays.infos
        own = None if infos is None else _part(infos, place, lengths, infos.digest)
        digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        parts.append(dataclasses.replace(_part(arrays, place, lengths, digest), infos=own))
        row, episode = place.stop, episode + count
    return parts


def _part(arrays: Arrays, place: slice, lengths: np.ndarray, digest: str) -> Arrays:
    others = {name: tensor[place] for name, tensor in arrays.others.items()}
    return dataclasses.replace(
        arrays, rows=arrays.rows[place], lengths=lengths, others=others, digest=digest, team=None
    )


def _runs(arrays: Arrays, acts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each run of steps in which an agent acts, and the row after its last.

    A run is over when the agent ends, also if it acts in the next step again.
    """
    acts = acts.copy()
    acts[arrays.final_rows] = False
    goes_on = acts[:-1] & acts[1:] & ~ends[:-1]
    starts = acts & ~np.concatenate(([False], goes_on))
    stops = acts & ~np.concatenate((goes_on, [False]))
    return np.flatnonzero(starts), np.flatnonzero(stops) + 1


def _blocks(starts: np.ndarray, stops: np.ndarray) -> Iterator[np.ndarray]:
    """Yield runs of about so many rows that they can be gathered at once."""
    if len(starts):
        block = np.cumsum(stops - starts + 1) // _BLOCK
        yield from np.split(np.arange(len(starts)), np.flatnonzero(np.diff(block)) + 1)


def _fill(
    there: TeamArrays,
    agent: int,
    rewards: str,
    source: np.ndarray,
    ends: np.ndarray,
    rows: Tensor,
    actions: Tensor,
    legal: bool,
) -> None:
    """Fill the rows of some runs of an agent, of which the last ones are `ends`."""
    team, arrays = there.team, there.arrays
    chosen = torch.from_numpy(source)
    width = team.width
    rows[:, :width] = there.own_observations(chosen, agent)
    rows[:, width + agent] = 1
    obs_dim = rows.shape[1] - 3 - (0 if team.is_discrete else max(team.action_widths))
    if legal:
        flags = there.legal(chosen)
        assert flags is not None
        rows[:, width + team.count : obs_dim] = flags[:, agent].float()
    done = there.own_actions(chosen, agent)
    if team.is_discrete:
        actions[:] = done
        actions[ends] = 0
    else:
        rows[:, obs_dim:-3] = done
    place = there.rewards
    if rewards == "own" and place is not None:
        assert arrays.infos is not None
        rows[:, -3] = arrays.infos.rows[:, place.start + agent].index_select(0, chosen)
    else:
        rows[:, -3] = arrays.rows[:, -3].index_select(0, chosen)
    last = chosen[ends - 1]
    if "terminations" in team.has:
        terminated = there.flags("terminations")[:, agent].index_select(0, last) > 0
    else:
        terminated = arrays.rows[:, -2].index_select(0, last) > 0
    rows[:, -2:] = 0
    rows[ends - 1, -2] = terminated.float()
    rows[ends - 1, -1] = (~terminated).float()
    rows[ends, obs_dim:] = 0


def _infos(arrays: Arrays, names: Sequence[str], sources: np.ndarray, final: np.ndarray, lengths: np.ndarray) -> Arrays:
    """Return the infos of the whole at the rows of single agents; zeros at final observations."""
    assert arrays.infos is not None
    there, chosen = arrays.infos, torch.from_numpy(sources)
    leaves, others, packed, width = {}, {}, [], 0
    for name in names:
        leaf = there.observation_leaves[name]
        if leaf.column:
            others[leaf.column] = there.others[leaf.column].index_select(0, chosen)
            others[leaf.column][final] = 0
        else:
            packed.append(there.rows[:, leaf.place].index_select(0, chosen))
            leaf = dataclasses.replace(leaf, first=width)
            width += packed[-1].shape[1]
        leaves[name] = leaf
    rows = torch.cat([torch.zeros(len(sources), 0), *packed], 1)
    rows[final] = 0
    return Arrays(
        rows=rows,
        lengths=lengths,
        obs_dim=width,
        action_dim=0,
        ends=0,
        name=there.name,
        digest=there.digest,
        others=others,
        texts=there.texts,
        observation_leaves=leaves,
    )
