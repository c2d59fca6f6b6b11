"""More peers of `benchmarks.updates`: EDAC by its authors, and ReBRAC in plain PyTorch.

EDAC (snu-mllab/EDAC) is run from its sources at their own defaults with `eta` 1. Only their training
loop, which imports environments, is replaced: a batch is drawn as by their buffer, and given to their
`train_from_torch`.

Nobody published ReBRAC in PyTorch, so it is written here as one would for speed: one packed table of
transitions, both critics in batched products, fused Adam, optionally compiled by `torch.compile`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WIDTH = 256


def make_authors_edac(folder: Path, data: Mapping[str, np.ndarray], batch_size: int) -> Callable[[], object]:
    """Return a function that takes one update of the authors' EDAC, sampling included.

    Args:
        folder: A clone of snu-mllab/EDAC.
        data: Transitions as D4RL's Q-learning datasets hold them; actions lie in [-1, 1].
        batch_size: Transitions in a batch.
    """
    if not (folder / "lifelong_rl").is_dir():
        raise SystemExit(f"{folder}: no folder lifelong_rl; give the folder of a clone of EDAC.")
    sys.path.insert(0, str(folder))
    loop: Any = types.ModuleType("lifelong_rl.core.rl_algorithms.torch_rl_algorithm")
    loop.TorchTrainer, loop.np_to_pytorch_batch = _Trainer, None
    sys.modules["lifelong_rl.core.rl_algorithms"] = types.ModuleType("lifelong_rl.core.rl_algorithms")
    sys.modules[loop.__name__] = loop
    networks: Any = importlib.import_module("lifelong_rl.models.networks")
    policies: Any = importlib.import_module("lifelong_rl.policies.models.tanh_gaussian_policy")
    trainers: Any = importlib.import_module("lifelong_rl.trainers.q_learning.sac")
    obs_dim, action_dim = data["observations"].shape[1], data["actions"].shape[1]
    hidden = [WIDTH] * 3
    critics, targets = (networks.ParallelizedEnsembleFlattenMLP(10, hidden, obs_dim + action_dim, 1) for _ in range(2))
    trainer = trainers.SACTrainer(
        None,
        policies.TanhGaussianPolicy(hidden, obs_dim, action_dim),
        critics,
        targets,
        target_entropy=-float(action_dim),
        num_qs=10,
        eta=1.0,
    )
    columns = {
        name: data[name].reshape(len(data["rewards"]), -1)
        for name in ("observations", "next_observations", "actions", "rewards", "terminals")
    }

    def update() -> None:
        rows = np.random.randint(0, len(data["rewards"]), batch_size)  # noqa: NPY002  # as theirs
        batch = {name: torch.from_numpy(values[rows]) for name, values in columns.items()}
        trainer._num_train_steps += 1
        trainer.train_from_torch(batch, rows)

    return update


class _Trainer:
    """What the authors' trainer takes from their training loop."""

    def __init__(self) -> None:
        self._num_train_steps = 0


class _Ensemble(nn.Module):
    """Two critics [rows, inputs] -> [2, rows], layer normalization after each ReLU."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        sizes = (inputs, WIDTH, WIDTH, WIDTH, 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(sizes):
            self.weights.append(nn.Parameter(torch.randn(2, fan_in, fan_out) / fan_in**0.5))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, fan_out)))
        for _ in range(3):
            self.scales.append(nn.Parameter(torch.ones(2, 1, WIDTH)))
            self.shifts.append(nn.Parameter(torch.zeros(2, 1, WIDTH)))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        values = torch.cat([observations, actions], -1).expand(2, -1, -1)
        for index in range(3):
            values = torch.baddbmm(self.biases[index], values, self.weights[index]).relu()
            normal = nn.functional.layer_norm(values, (WIDTH,), eps=1e-6)
            values = normal * self.scales[index] + self.shifts[index]
        return torch.baddbmm(self.biases[3], values, self.weights[3]).squeeze(-1)


def _policy(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, WIDTH, WIDTH):
        layers += [nn.Linear(width, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, outputs), nn.Tanh())


def make_plain_rebrac(data: Mapping[str, np.ndarray], batch_size: int, *, compiled: bool) -> Callable[[], object]:
    """Return a function that takes one update of ReBRAC at its defaults, sampling included.

    Args:
        data: Transitions as D4RL's Q-learning datasets hold them; actions lie in [-1, 1].
        batch_size: Transitions in a batch.
        compiled: Whether `torch.compile` compiles both losses.
    """
    obs_dim, action_dim = data["observations"].shape[1], data["actions"].shape[1]
    names = ("observations", "next_observations", "actions", "next_actions", "rewards", "terminals")
    columns = {**data, "next_actions": np.roll(data["actions"], -1, 0)}
    parts = [columns[name].reshape(len(data["rewards"]), -1) for name in names]
    table = torch.from_numpy(np.concatenate(parts, 1, dtype=np.float32))
    sizes = [part.shape[1] for part in parts]
    critic, target_critic = (_Ensemble(obs_dim + action_dim) for _ in range(2))
    policy, target_policy = (_policy(obs_dim, action_dim) for _ in range(2))
    target_critic.load_state_dict(critic.state_dict())
    target_policy.load_state_dict(policy.state_dict())
    for target in (target_critic, target_policy):
        target.requires_grad_(False)
    pairs: list[tuple[list[Tensor], list[Tensor]]] = [
        (list(target_critic.parameters()), list(critic.parameters())),
        (list(target_policy.parameters()), list(policy.parameters())),
    ]
    critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-3, fused=True)
    policy_optimizer = torch.optim.Adam(policy.parameters(), 1e-3, fused=True)

    def critic_loss(batch: Tensor) -> Tensor:
        states, next_states, actions, data_actions, rewards, terminals = batch.split_with_sizes(sizes, -1)
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(actions)).clamp(-0.5, 0.5)
            next_actions = (target_policy(next_states) + noise).clamp(-1, 1)
            distances = (next_actions - data_actions).square().sum(-1)
            next_values = target_critic(next_states, next_actions).amin(0) - 0.01 * distances
            targets = rewards[:, 0] + 0.99 * (1 - terminals[:, 0]) * next_values
        loss: Tensor = (critic(states, actions) - targets).square().mean(-1).sum()
        return loss

    def policy_loss(batch: Tensor) -> Tensor:
        states, _, actions, *_ = batch.split_with_sizes(sizes, -1)
        own = policy(states)
        values = critic(states, own).amin(0)
        distances = (own - actions).square().sum(-1)
        loss: Tensor = (0.01 * distances - values / values.detach().abs().mean()).mean()
        return loss

    of_critic, of_policy = (torch.compile(one) if compiled else one for one in (critic_loss, policy_loss))
    step = 0

    def update() -> None:
        nonlocal step
        batch = table.index_select(0, torch.randint(len(table), (batch_size,)))
        critic_optimizer.zero_grad()
        of_critic(batch).backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        critic_optimizer.step()
        if step % 2 == 0:
            for targets, online in pairs:
                torch._foreach_lerp_(targets, online, 0.005)
            critic.requires_grad_(False)
            policy_optimizer.zero_grad()
            of_policy(batch).backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            policy_optimizer.step()
            critic.requires_grad_(True)
        step += 1

    return update
