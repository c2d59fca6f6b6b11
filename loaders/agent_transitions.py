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
import functools
from collections.abc import Sequence
from typing import Any

from jaxtyping import Bool, Int64

from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.batch import AgentBatch as AgentBatch
from orlog.loaders.gathering import gather_rows
from orlog.loaders.places import load_arrays
from orlog.loaders.streams import Batches, Sampler
from orlog.loaders.teams import TeamArrays, as_flags, check_legal, pad, team_of
from orlog.loaders.tensors import Tensor, torch
from orlog.manifests.columns import FLAGS


class AgentTransitionSampler(Sampler):
    """Chooses steps of a team and gathers what all agents saw, did and got."""

    kind = "transitions 1"  # the same steps as those of `orlog.transitions`

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        team = self._team = arrays.team
        self._there = TeamArrays(team, arrays)
        self._ends = {name: self._there.flags(name) for name in FLAGS if name in team.has}
        self._sizes = [arrays.obs_dim, arrays.action_dim, 3, arrays.obs_dim]
        starts = torch.tensor(team.starts, device=arrays.rows.device)
        self._starts = starts if bool(starts.any()) else None

    @functools.cached_property
    def _view(self) -> Tensor:
        return self.arrays.transitions

    @functools.cached_property
    def _acts(self) -> Tensor:
        """Who acts in a row and in the next one, side by side."""
        acts = self._there.flags("acts").contiguous()
        count, agents = acts.shape
        return acts.as_strided((count - 1, 2 * agents), (agents, 1), acts.storage_offset())

    def gather(self, chosen: Int64[Tensor, " items"]) -> AgentBatch:
        """Return the transitions of some rows."""
        arrays, team, there, rows = self.arrays, self._team, self._there, chosen
        seen, acted, ends, after = gather_rows(self._view, rows).split_with_sizes(self._sizes, 1)
        acts, next_acts = as_flags(gather_rows(self._acts, rows)).chunk(2, 1)
        rewards = ends[:, :1].expand(-1, team.count) * acts
        if there.rewards is not None:
            rewards = gather_rows(arrays.infos.rows[:, there.rewards], rows)  # type: ignore[union-attr]
        terminations, truncations = (
            as_flags(gather_rows(self._ends[name], rows)).float() if name in self._ends else ends[:, [number]] * acts
            for number, name in ((1, "terminations"), (2, "truncations"))
        )
        if team.is_discrete:
            actions = arrays.others["actions"]
            actions = gather_rows(actions if actions.ndim > 1 else actions.unsqueeze(1), rows)
            if self._starts is not None:
                actions = (actions - self._starts) * acts
        else:
            actions = _by_agent(acted, team.action_widths)
        legal, next_legal = there.legal(rows), there.legal(rows + 1)
        if team.is_discrete and legal is None:  # the same for all where nothing limits what is legal
            legal = next_legal = there.everything.expand(len(rows), -1, -1)
        return AgentBatch(
            _by_agent(seen, team.widths),
            actions,
            rewards,
            ends[:, 0],
            _by_agent(after, team.widths),
            terminations,
            truncations,
            acts,
            next_acts,
            legal,
            next_legal,
        )


def _by_agent(values: Tensor, widths: Sequence[int]) -> Tensor:
    """Return what agents have side by side as `[rows, agents, numbers]`, padded with zeros to the widest."""
    if min(widths) == max(widths):
        return values.view(len(values), len(widths), -1)
    return torch.stack([pad(part, max(widths)) for part in values.split_with_sizes([*widths], 1)], 1)


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
    dataset = as_dataset(dataset, "dataset")
    team = team_of(dataset)
    names = tuple(dict.fromkeys([*team.infos, *infos]))
    arrays = dataclasses.replace(load_arrays(dataset, where, infos=names), team=team)
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
