"""Random transitions of several agents that act at once: `(batch, agents, ..)`, with masks.

    ds = orlog.load_dataset("agents/spread-medium-v1")
    batch = next(iter(orlog.agent_transitions(ds, 256, seed=0)))
    batch.observations                (256, agents, obs)      batch.acts     (256, agents)
    batch.actions                     (256, agents)           batch.legal    (256, agents, choices)

An item is a step of the team, and the draws are those of `orlog.transitions`: the same seed chooses the
same steps. An agent that takes no part in a step, because it has not come yet or has left, has `acts`
False there, and zeros in all else but observations, which are real wherever it acts or has just acted.

Agents of unequal spaces are given in one tensor: narrower observations and actions are padded with zeros
behind them, and choices that an agent lacks are never legal. `observation_mask` of the stream says which
numbers are real.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.batch import AgentBatch as AgentBatch
from orlog.loaders.blocks import items_at_once
from orlog.loaders.gathering import Pieces, gather_pieces, gather_rows
from orlog.loaders.places import load_arrays
from orlog.loaders.streams import Batches
from orlog.loaders.teams import Team, TeamArrays, as_flags, check_legal, team_of


class AgentTransitionSampler:
    """Chooses steps of a team and gathers what all agents saw, did and got."""

    kind = "transitions 1"  # the same steps as those of `orlog.transitions`

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self._team = arrays, arrays.team
        self.draws = 1 if arrays.mixture is None else 2
        self._there = TeamArrays(arrays.team, arrays)
        self._view = arrays.transitions
        self._sizes, self._pieces = _places(arrays)
        self._flags = {
            name: self._there.flags(name) for name in ("acts", "terminations", "truncations") if name in arrays.team.has
        }
        # Of two rows that follow one another: who acts now and then.
        acts = self._flags.pop("acts").contiguous()
        count, agents = acts.shape
        self._acts = acts.as_strided((count - 1, 2 * agents), (agents, 1), acts.storage_offset())
        starts = torch.tensor(arrays.team.starts, device=arrays.rows.device)
        self._starts = starts if bool(starts.any()) else None
        kept = arrays.infos.rows.nbytes if arrays.infos is not None else 0
        flags = sum(one[:1].nbytes for one in self._flags.values())
        self._item_bytes = 4 * sum(self._sizes) + kept // len(arrays.rows) + flags
        if "actions" in arrays.others:
            self._item_bytes += arrays.others["actions"][:1].nbytes

    def __reduce__(self) -> tuple[type[AgentTransitionSampler], tuple[Arrays]]:
        """Leave views out of a pickle, since they would carry all rows; they are made again."""
        return AgentTransitionSampler, (self.arrays,)

    def choose(self, uniform: Float64[np.ndarray, "items draws"]) -> Int64[Tensor, " items"]:
        """Return the row of each item's step."""
        return torch.from_numpy(self.arrays.step_table.take(self.arrays.choose_steps(uniform)))

    def gather(self, chosen: Int64[Tensor, " items"]) -> AgentBatch:
        """Return the transitions of some rows."""
        return next(self.gather_many(chosen, max(1, len(chosen))))

    def gather_many(self, chosen: Int64[Tensor, " items"], size: int) -> Iterator[AgentBatch]:
        """Yield the transitions of `size` rows each, views of a few gathered blocks."""
        # The same for all batches where nothing limits what is legal.
        every = None
        if self._team.is_discrete:
            every = self._there.everything.expand(size, -1, -1)
        for rows in torch.split(chosen, items_at_once(size, self._item_bytes)):
            count = len(rows) // size
            several = (
                itertools.repeat(every, count) if one is None else one.view(count, size, *one.shape[1:]).unbind(0)
                for one in self._columns(rows)
            )
            yield from map(AgentBatch, *several)

    def _columns(self, rows: Int64[Tensor, " items"]) -> list[Any]:
        """Return the fields of a batch of some rows."""
        arrays, team, there = self.arrays, self._team, self._there
        if self._pieces is None:
            block = gather_rows(self._view, rows)
        else:
            block = gather_pieces(self._view, rows, self._pieces)
        flat, acted, ends, after = block.split_with_sizes(self._sizes, 1)
        agents = team.count
        flags = {name: gather_rows(one, rows) for name, one in self._flags.items()}
        acts, next_acts = as_flags(gather_rows(self._acts, rows)).chunk(2, 1)
        place = there.rewards
        if place is not None:
            assert arrays.infos is not None
            rewards = gather_rows(arrays.infos.rows[:, place], rows)
        else:
            rewards = ends[:, :1].expand(-1, agents) * acts
        ended = {
            name: as_flags(flags[name]).float() if name in flags else ends[:, [number]] * acts
            for number, name in ((1, "terminations"), (2, "truncations"))
        }
        if team.is_discrete:
            actions = gather_rows(_columns_of(arrays.others["actions"]), rows)
            if self._starts is not None:
                actions = (actions - self._starts) * acts
        else:
            actions = acted.view(len(rows), agents, -1)
        return [
            flat.view(len(rows), agents, -1),
            actions,
            rewards,
            ends[:, 0],
            after.view(len(rows), agents, -1),
            ended["terminations"],
            ended["truncations"],
            acts,
            next_acts,
            *there.legal_now_and_next(rows),
        ]


def _places(arrays: Arrays) -> tuple[list[int], Pieces | None]:
    """Return the numbers of observations, actions, ends and next observations in a gathered row.

    And where they come from, if some agents have fewer numbers than others.
    """
    team = arrays.team
    act = 0 if team.is_discrete else team.count * max(team.action_widths)
    sizes = [team.count * team.width, act, 3, team.count * team.width]
    if sizes[:2] == [arrays.obs_dim, arrays.action_dim]:
        return sizes, None
    own = [] if team.is_discrete else [*team.action_widths]
    places = []
    first = place = 0
    for widths in (team.widths, own, [3], team.widths):
        for width in widths:
            places.append((first, width, place))
            first, place = first + width, place + max(widths)
    return sizes, Pieces(tuple(places), sum(sizes))


def _columns_of(values: Tensor) -> Tensor:
    return values if values.ndim > 1 else values.unsqueeze(1)


class AgentTransitions(Batches[AgentBatch]):
    """An endless stream of `AgentBatch`; `agent_transitions` makes it.

    Attributes:
        agents: Names of the agents, in the order of the batches.
        observation_mask: Which numbers of each agent's observation are real; the others are padding.
    """

    def __init__(self, arrays: Arrays, **place: Any) -> None:
        super().__init__(AgentTransitionSampler(arrays), arrays.digest, **place)
        self.agents: tuple[str, ...] = arrays.team.agents
        widths = torch.tensor(arrays.team.widths)
        self.observation_mask: Bool[Tensor, "agents obs"] = torch.arange(int(widths.max())) < widths[:, None]


def load_agents(dataset: Given, where: str = "auto", *, infos: Sequence[str] = ()) -> Arrays:
    """Return the arrays of a dataset of several agents, to sample from with `agent_transitions`.

    Args:
        dataset: What to read.
        where: `ram`, `mmap`, `gpu` or `auto`, as in `orlog.load_arrays`.
        infos: Other columns that batches can then give, as in `orlog.load_arrays`.

    Raises:
        SchemaError: it has no agents, an agent whose spaces no batch can hold beside the others', or steps
            in which an agent acts though nothing is legal for it; and as `orlog.load_arrays`.
        NotFoundError: there is no such info.
    """
    found = as_dataset(dataset, "dataset")
    team: Team = team_of(found)
    names = tuple(dict.fromkeys([*team.infos, *infos]))
    arrays = dataclasses.replace(load_arrays(found, where, infos=names), team=team)
    check_legal(team, arrays)
    return arrays


def agent_transitions(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    start: int = 0,
    infos: Sequence[str] = (),
    rank: int = 0,
    ranks: int = 1,
) -> AgentTransitions:
    """Return an endless stream of random transitions of several agents, with replacement.

    Every step of the team is as likely as any other, and chosen as `orlog.transitions` would. The module's
    docstring says how agents that leave, and unequal spaces, are given.

    Args:
        data: A dataset of several agents, as `orlog.record_parallel` stores them, or what `load_agents`
            returned.
        batch_size: Steps of the team in a batch, of all ranks together.
        seed: Seed of the stream.
        start: First batch, to continue where a run stopped.
        infos: Other columns of the steps to give as `batch.infos`, such as ("state",); see `Tensors`.
        rank: Which slice of each batch this process takes.
        ranks: Number of slices.

    Raises:
        SchemaError: as `load_agents`, or arrays that were loaded otherwise.
        NotFoundError: there is no such info.
        IntegrityError: a file is damaged.
        ValueError: a number is out of range.
        TypeError: a number is no integer.
    """
    arrays = data if isinstance(data, Arrays) else load_agents(data, "ram", infos=infos)
    if arrays.team is None:
        raise SchemaError(
            f"{arrays.name or 'these arrays'}: loaded without what is known of single agents; load them with "
            "orlog.loaders.agent_transitions.load_agents(ds), or give the dataset itself."
        )
    return AgentTransitions(arrays, batch_size=batch_size, seed=seed, start=start, infos=infos, rank=rank, ranks=ranks)
