"""The peers of `benchmarks.updates`: CORL's updates, from its own files, at their own defaults.

CORL is run from its sources, with stand-ins for the packages of environments and logging that it
imports. Nothing of it is changed: an update is its `sample` and its `train`, as in its loops.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch


def make_peer(
    corl: Path, name: str, data: Mapping[str, np.ndarray], batch_size: int, device: str = "cpu"
) -> Callable[[], object]:
    """Return a function that takes one update of CORL's algorithm, sampling included.

    Args:
        corl: A clone of CORL.
        name: Our name of the algorithm, a key of `PEERS`.
        data: Transitions as D4RL's Q-learning datasets hold them; actions lie in [-1, 1].
        batch_size: Transitions in a batch.
        device: Where its networks and its buffer are.
    """
    file, make = PEERS[name]
    source = _import(corl / "algorithms" / "offline" / f"{file}.py")
    if device != "cpu":  # what has a device is told it, networks are made there
        parts = {"ReplayBuffer", "ImplicitQLearning", "BC", "TD3_BC", "ContinuousCQL"}
        found = {key: value for key, value in vars(source).items() if key in parts}
        for key, value in found.items():
            setattr(source, key, functools.partial(value, device=device))
    obs_dim, action_dim = data["observations"].shape[1], data["actions"].shape[1]
    buffer = source.ReplayBuffer(obs_dim, action_dim, len(data["rewards"]))
    with contextlib.redirect_stdout(sys.stderr):  # it prints the size
        buffer.load_d4rl_dataset(data)
    with torch.device(device):
        update = make(source, obs_dim, action_dim)
    return lambda: update([part.to(device) for part in buffer.sample(batch_size)])


def _import(path: Path) -> Any:
    for name in ("d4rl", "gym", "wandb", "pyrallis", "tqdm"):
        if importlib.util.find_spec(name) is None:
            stub: Any = types.ModuleType(name)
            stub.Env, stub.trange, stub.wrap = object, range, lambda: lambda function: function
            stub.__spec__ = importlib.util.spec_from_loader(name, None)
            sys.modules[name] = stub
    spec = importlib.util.spec_from_file_location(f"corl_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: no such file; give the folder of a clone of CORL.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def _adam(module: Any, rate: float = 3e-4) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), rate)


def _iql(source: Any, obs: int, act: int) -> Any:
    critic, value = source.TwinQ(obs, act), source.ValueFunction(obs)
    actor = source.GaussianPolicy(obs, act, 1.0)
    return source.ImplicitQLearning(1.0, actor, _adam(actor), critic, _adam(critic), value, _adam(value)).train


def _bc(source: Any, obs: int, act: int) -> Any:
    actor = source.Actor(obs, act, 1.0)
    return source.BC(1.0, actor, _adam(actor)).train


def _td3bc(source: Any, obs: int, act: int) -> Any:
    actor = source.Actor(obs, act, 1.0)
    first, second = source.Critic(obs, act), source.Critic(obs, act)
    return source.TD3_BC(1.0, actor, _adam(actor), first, _adam(first), second, _adam(second)).train


def _awac(source: Any, obs: int, act: int) -> Any:
    actor = source.Actor(obs, act, 256)
    first, second = source.Critic(obs, act, 256), source.Critic(obs, act, 256)
    return source.AdvantageWeightedActorCritic(actor, _adam(actor), first, _adam(first), second, _adam(second)).update


def _cql(source: Any, obs: int, act: int) -> Any:
    actor = source.TanhGaussianPolicy(obs, act, 1.0, orthogonal_init=True)
    first, second = (source.FullyConnectedQFunction(obs, act, orthogonal_init=True) for _ in range(2))
    return source.ContinuousCQL(
        first,
        _adam(first),
        second,
        _adam(second),
        actor,
        _adam(actor, 3e-5),
        target_entropy=-float(act),
        policy_lr=3e-5,
        bc_steps=0,
        cql_alpha=10.0,
    ).train


def _edac(source: Any, obs: int, act: int) -> Any:
    actor, critic = source.Actor(obs, act, 256), source.VectorizedCritic(obs, act, 256, 10)
    return source.EDAC(actor, _adam(actor), critic, _adam(critic)).update


PEERS: dict[str, tuple[str, Callable[[Any, int, int], Any]]] = {
    "iql": ("iql", _iql),
    "td3bc": ("td3_bc", _td3bc),
    "bc": ("any_percent_bc", _bc),
    "cql": ("cql", _cql),
    "awac": ("awac", _awac),
    "edac": ("edac", _edac),
}
"""By our names: CORL's file, and a function that makes its update."""
