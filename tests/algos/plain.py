"""Small algorithms, batches and recorded references that tests of algorithms share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn

from orlog.algos.algorithms import for_teams, takes_goals
from orlog.algos.cql_discrete import CQLDiscrete
from orlog.algos.networks import Scaling
from orlog.loaders.arrays import Arrays, Leaf
from orlog.loaders.batch import Batch, GoalBatch, SequenceBatch
from orlog.loaders.teams import Team

RECORDED = Path(__file__).parent / "recorded"


def small_settings(name, *, width=8, batch_size=32):
    """Return settings that make an algorithm small."""
    more = {}
    if name in ("cpq", "cql_lagrangian"):
        more = {"episode_length": 10.0, "cost_limit": 2.0}
    if name == "cpq":
        more |= {"autoencoder_width": width}
    if name == "dqc":
        more = {"horizon": 3, "policy_chunk": 2}
    if name == "qam":
        more = {"critics": 2, "flow_steps": 3}
    if name == "recap":
        more = {"threshold": 0.5}
    if name in ("dt", "cdt"):
        sizes = {"width": width, "layers": 1, "heads": 2, "length": 5}
        others = {"learning_rate": 1e-3, "warmup_steps": 1, "target_return": 1.0, "return_scale": 1.0}
        if name == "cdt":
            others |= {"cost_scale": 1.0}
        return {**sizes, **others, "batch_size": batch_size}
    return {"hidden": [width, width], "batch_size": batch_size, **more}


def fast_settings(names):
    """Return those settings, of the given names, that let a few updates of small networks show."""
    rates = {"learning_rate": 1e-3, "policy_learning_rate": 1e-3, "critic_learning_rate": 2e-3}
    more = {"temperature_learning_rate": 3e-3, "target_rate": 0.1, "hidden": (4,), "batch_size": 8}
    return {name: one for name, one in {**rates, **more}.items() if name in names}


def goal_maps(scaling):
    """Return mean and deviation of goals, which are whole observations if there are no others."""
    if scaling.goal_mean is None or scaling.goal_std is None:
        return scaling.obs_mean, scaling.obs_std
    return scaling.goal_mean, scaling.goal_std


def act(algorithm, observations):
    """Return the actions for observations, which serve as goals too if the algorithm takes goals."""
    if "text" in algorithm.ACTIONS:
        return algorithm.act(["A room. An exit to the east."] * len(observations))
    if for_teams(type(algorithm)):
        return algorithm.act(torch.stack([observations, observations * -1], 1))[:, 0]
    goals = observations[:, : width_of_goals(algorithm)]
    return algorithm.act(observations, *([goals] if takes_goals(type(algorithm)) else []))


def team_arrays(states, steps, lengths):
    """Return the arrays of two agents, of which one sees the states and one the opposite.

    Each takes part in four steps of five, and ends as the episode does.
    """
    rng = np.random.default_rng(1)
    count = len(states)
    rows = np.concatenate([states, -states, steps[:, 2:]], 1).astype(np.float32)
    acts = torch.from_numpy(rng.random((count, 2)) < 0.8)
    rewards = torch.from_numpy(rng.normal(size=(count, 2)).astype(np.float32))
    final_rows = np.cumsum(lengths + 1) - 1
    acts[final_rows], rewards[final_rows] = False, 0
    flags = torch.from_numpy(steps[:, [3, 4]] > 0)
    others = {
        "agents/*/acts": acts,
        "agents/*/terminations": acts & flags[:, :1],
        "agents/*/truncations": acts & flags[:, 1:],
    }
    leaves = {name: Leaf(column=name) for name in others}
    infos = Arrays(
        rows=rewards,
        lengths=lengths,
        obs_dim=2,
        action_dim=0,
        ends=0,
        others=others,
        observation_leaves={"agents/*/rewards": Leaf(shape=(2,)), **leaves},
    )
    team = Team(
        dataset="tests/team-v1",
        agents=("a", "b"),
        widths=(3, 3),
        action_spaces=(gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(3)),
        legal=(),
        next_legal=(),
        has=frozenset({"acts", "rewards", "terminations", "truncations"}),
    )
    actions = torch.from_numpy(rng.integers(2, 5, (count, 2)))
    return Arrays(
        rows=torch.from_numpy(rows),
        lengths=lengths,
        obs_dim=6,
        action_dim=0,
        others={"actions": actions},
        infos=infos,
        team=team,
    )


def width_of_goals(algorithm):
    """Return how many of the first numbers of an observation a goal has."""
    return len(goal_maps(algorithm.scaling)[0])


def doubles(scaling):
    """Return the same maps in float64."""
    changed = {
        name: getattr(scaling, name).double()
        for name in ("obs_mean", "obs_std", "action_low", "action_high", "goal_mean", "goal_std")
        if getattr(scaling, name) is not None
    }
    return dataclasses.replace(scaling, **changed)


BATCHES = {"timesteps": SequenceBatch, "value_goals": GoalBatch}


def recorded_batches(recorded):
    """Yield the batches that a recorded reference was trained on; what it lacks is 0."""
    kind = next((kind for name, kind in BATCHES.items() if name in recorded), Batch)
    for rows in recorded["rows"]:
        found = {}
        for field in dataclasses.fields(kind):
            if field.name in recorded:
                found[field.name] = torch.from_numpy(recorded[field.name][rows])
            elif field.default is field.default_factory is dataclasses.MISSING:
                found[field.name] = torch.zeros(recorded.get("mask", rows)[: len(rows)].shape)
        if "next_actions" in found:
            found["has_next_action"] = torch.ones(len(rows))
        yield kind(**found)


def toy_scaling(observations=1, *, std=1.0, bound=2.0):
    """Return the maps of a toy problem with one action."""
    return Scaling(
        obs_mean=torch.zeros(observations),
        obs_std=std * torch.ones(observations),
        action_low=-bound * torch.ones(1),
        action_high=bound * torch.ones(1),
    )


UNIT = Scaling(
    obs_mean=torch.zeros(3, dtype=torch.float64),
    obs_std=torch.ones(3, dtype=torch.float64),
    action_low=-torch.ones(2, dtype=torch.float64),
    action_high=torch.ones(2, dtype=torch.float64),
)
"""The maps of the recorded references: none."""

DISCRETE = dataclasses.replace(
    UNIT, action_low=torch.zeros(0), action_high=torch.zeros(0), action_space=gymnasium.spaces.Discrete(3, start=2)
)
"""The same with three discrete actions, counted from 2."""


def scaling_of(recorded):
    """Return the maps of a recorded reference; goals that are parts of states are their first numbers."""
    width = recorded["value_goals"].shape[1] if "value_goals" in recorded else 3
    if width == 3:
        return UNIT
    mean = UNIT.obs_mean[:width]
    return dataclasses.replace(UNIT, goal_mean=mean, goal_std=mean + 1)


def settings(recorded):
    """Return the settings of a recorded reference."""
    found = json.loads(str(recorded["settings"]))
    return {**found, **({"hidden": tuple(found["hidden"])} if "hidden" in found else {})}


def tensors_of(algorithm):
    """Return all parameters in the state of an algorithm, by name."""
    found = {}
    for name, value in vars(algorithm).items():
        if isinstance(value, nn.Module):
            found |= {f"{name}/{key}": one.detach() for key, one in value.named_parameters()}
        elif isinstance(value, nn.Parameter):
            found[name] = value.detach()
    return found


def trained_as_recorded(kind, name):
    """Return an algorithm after the updates of a recorded reference, and that."""
    recorded = np.load(RECORDED / f"{name}.npz")
    before = getattr(kind.CONFIG, "RECORDED_BEFORE", {})
    config = kind.CONFIG(**{**before, **settings(recorded)})
    algorithm = kind(config, DISCRETE if "discrete" in kind.ACTIONS else scaling_of(recorded), seed=1)
    for key, tensor in tensors_of(algorithm).items():
        tensor.copy_(torch.from_numpy(recorded[f"before/{key}"]))
    for batch in recorded_batches(recorded):
        algorithm.update(batch)
    return algorithm, recorded


def difference_from_recorded(kind, name):
    """Return by how much parameters differ from a recorded reference's after the same updates."""
    algorithm, recorded = trained_as_recorded(kind, name)
    return max(
        float(np.abs(tensor.numpy() - recorded[f"after/{key}"]).max()) for key, tensor in tensors_of(algorithm).items()
    )


FRAMES_CQL = {
    "hidden": (16,),
    "learning_rate": 1e-3,
    "adam_epsilon": 3e-4,
    "conservative_weight": 0.7,
    "bellman_loss": "huber",
    "target_interval": 3,
    "discount": 0.9,
}


def make_frames_cql():
    """Return discrete CQL on frames, with the weights of its seed in float64."""
    space = gymnasium.spaces.Box(0, 255, (36, 36, 2), np.uint8)
    none = torch.zeros(0)
    scaling = dataclasses.replace(DISCRETE, obs_mean=none, obs_std=none, observation_space=space)
    return CQLDiscrete(CQLDiscrete.CONFIG(**FRAMES_CQL), scaling, seed=1)


def frames_batches():
    """Yield batches of random frames."""
    rng = np.random.default_rng(2)
    for _ in range(10):
        frames, following = (torch.from_numpy(rng.integers(0, 256, (4, 36, 36, 2), np.uint8)) for _ in range(2))
        none = torch.zeros(4)
        yield Batch(
            observations=frames,
            next_observations=following,
            actions=torch.from_numpy(rng.integers(2, 5, 4)),
            rewards=torch.from_numpy(rng.normal(size=4)),
            terminations=torch.from_numpy((rng.random(4) < 0.3).astype(np.float64)),
            truncations=none,
            discounts=none,
        )


def difference_with_frames():
    """Return by how much discrete CQL on frames differs from d3rlpy's after the same updates."""
    recorded = np.load(RECORDED / "cql_discrete_frames.npz")
    algorithm = make_frames_cql()
    for batch in frames_batches():
        algorithm.update(batch)
    found = tensors_of(algorithm)
    assert {f"after/{key}" for key in found} == {*recorded}
    return max(
        float(np.abs(tensor.numpy().reshape(-1)[::97] - recorded[f"after/{key}"]).max())
        for key, tensor in found.items()
    )
