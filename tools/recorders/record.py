"""Trains the references beside ours for 100 updates, and records parameters before and after.

    git clone https://github.com/corl-team/CORL && git -C CORL checkout eeeeef2671
    python -m tools.recorders.record CORL

The reference's own modules and update are run, in float64, on the same batches, with small networks
that start with our weights, and with the noise that our algorithm draws. Files hold numbers only.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orlog.algos.algorithms import make_algorithm
from orlog.algos.networks import make_generator
from orlog.algos.settings import make_config
from tests.algos import plain

UPDATES, ROWS, BATCH, SEED = 100, 64, 16, 1
FAST = {"hidden": [8, 8]}


def main(corl: Path) -> None:
    """Record every reference."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in ("d4rl", "gym", "wandb", "pyrallis"):
        stub: Any = types.ModuleType(name)
        stub.Env, stub.wrap = object, lambda: lambda function: function
        sys.modules[name] = stub
    for name, (file, settings, make) in REFERENCES.items():
        reference = import_file(corl / "algorithms" / "offline" / f"{file}.py")
        record_one(name, reference, settings, make, make_table())


def record_one(
    name: str, reference: Any, settings: dict[str, Any], make: Callable[..., Any], table: dict[str, np.ndarray]
) -> None:
    """Train one reference beside ours on rows of a table, and record it."""
    ours = make_algorithm(name, make_config(name, {**FAST, **settings}), plain.UNIT, seed=SEED)
    rows = np.random.default_rng(1).integers(0, ROWS, (UPDATES, BATCH))
    before = {f"before/{key}": one.numpy().copy() for key, one in plain.tensors_of(ours).items()}
    update, parameters = make(reference, ours)
    for chosen in rows:
        one = {key: torch.from_numpy(column[chosen]) for key, column in table.items()}
        update(one)
    after = {f"after/{key}": np.asarray(one) for key, one in parameters().items()}
    assert after.keys() == {f"after/{key}" for key in plain.tensors_of(ours)}
    text = np.asarray(json.dumps({**FAST, **settings}))
    numbers: Any = {"settings": text, "rows": rows, **table, **before, **after}
    np.savez_compressed(plain.RECORDED / f"{name}.npz", **numbers)
    difference = plain.difference_from_recorded(type(ours), name)
    sys.stdout.write(f"{name}: {difference:.1e} apart after {UPDATES} updates\n")


def import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"reference_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def make_table() -> dict[str, np.ndarray]:
    """Return random transitions; some of them end."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(ROWS, 3)),
        "actions": rng.uniform(-0.95, 0.95, (ROWS, 2)),
        "rewards": rng.normal(size=ROWS),
        "next_observations": rng.normal(size=(ROWS, 3)),
        "terminations": (rng.random(ROWS) < 0.3).astype(np.float64),
        "next_actions": rng.uniform(-0.95, 0.95, (ROWS, 2)),
    }


def columns(one: dict[str, Tensor]) -> list[Tensor]:
    """Return a batch as CORL's files take it: state, action, reward, next state, done."""
    names = ("observations", "actions", "rewards", "next_observations", "terminations")
    return [one[name] if one[name].ndim == 2 else one[name][:, None] for name in names]


def small(ours: nn.Sequential, *more: nn.Module) -> nn.Sequential:
    """Return a plain network of the same sizes and weights."""
    layers = [nn.Linear(one.in_features, one.out_features) if isinstance(one, nn.Linear) else nn.ReLU() for one in ours]
    made = nn.Sequential(*layers)
    made.load_state_dict(ours.state_dict())
    return nn.Sequential(*made, *more)


def named(**modules: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name.replace('__', '/')}{'.' if '__' in name else '/'}{key}": one
        for name, module in modules.items()
        for key, one in module.state_dict().items()
    }


def noise_of(ours: Any) -> Callable[..., Tensor]:
    """Return a function that draws the noise that our algorithm draws."""
    generator = make_generator(SEED, 1)
    assert torch.equal(generator.get_state(), ours.generator.get_state())
    return lambda shape, **_: torch.randn(tuple(shape), generator=generator)


def td3bc(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    actor = reference.Actor(3, 2, 1.0)
    actor.net = small(ours.policy, nn.Tanh())
    critics = [reference.Critic(3, 2) for _ in range(2)]
    critics[0].net, critics[1].net = small(ours.critic.first), small(ours.critic.second)
    adam, config = torch.optim.Adam, ours.config
    trainer = reference.TD3_BC(
        1.0,
        actor,
        adam(actor.parameters(), config.policy_learning_rate),
        critics[0],
        adam(critics[0].parameters(), config.critic_learning_rate),
        critics[1],
        adam(critics[1].parameters(), config.critic_learning_rate),
        tau=config.target_rate,
    )
    draw = noise_of(ours)
    reference.torch = types.SimpleNamespace(**{**vars(torch), "randn_like": lambda one: draw(one.shape)})
    return lambda one: trainer.train(columns(one)), lambda: named(
        critic__first=critics[0].net,
        critic__second=critics[1].net,
        target_critic__first=trainer.critic_1_target.net,
        target_critic__second=trainer.critic_2_target.net,
        policy=actor.net,
        target_policy=trainer.actor_target.net,
    )


def awac(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    actor = reference.Actor(3, 2, 8)
    actor._mlp = small(ours.policy)
    actor._log_std = nn.Parameter(torch.zeros(2))
    critics = [reference.Critic(3, 2, 8) for _ in range(2)]
    critics[0]._mlp, critics[1]._mlp = small(ours.critic.first), small(ours.critic.second)
    config = ours.config
    optimizers = [torch.optim.Adam(one.parameters(), config.learning_rate) for one in (actor, *critics)]
    trainer = reference.AdvantageWeightedActorCritic(
        actor,
        optimizers[0],
        critics[0],
        optimizers[1],
        critics[1],
        optimizers[2],
        tau=config.target_rate,
        awac_lambda=config.temperature,
        exp_adv_max=config.max_weight,
    )
    draw = noise_of(ours)
    normal: Any = torch.distributions.normal
    normal._standard_normal = lambda shape, **_: draw(shape)
    return lambda one: trainer.update(columns(one)), lambda: {
        **named(
            critic__first=critics[0]._mlp,
            critic__second=critics[1]._mlp,
            target_critic__first=trainer._target_critic_1._mlp,
            target_critic__second=trainer._target_critic_2._mlp,
            policy=actor._mlp,
        ),
        "log_std": actor._log_std.detach(),
    }


def edac(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Run CORL's EDAC; it draws twice what our algorithm draws once for temperature and policy."""
    config = ours.config
    actor = reference.Actor(3, 2, config.hidden[0])
    critic = reference.VectorizedCritic(3, 2, config.hidden[0], config.critics)
    *hidden, last = (one for one in ours.policy if isinstance(one, nn.Linear))
    with torch.no_grad():
        for layer, one in zip(actor.trunk[::2], hidden, strict=True):
            layer.load_state_dict(one.state_dict())
        for layer, part in ((actor.mu, slice(2)), (actor.log_sigma, slice(2, 4))):
            layer.weight.copy_(last.weight[part])
            layer.bias.copy_(last.bias[part])
        for layer, weight, bias in zip(critic.critic[::2], ours.critic.weights, ours.critic.biases, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    trainer = reference.EDAC(
        actor,
        torch.optim.Adam(actor.parameters(), config.policy_learning_rate),
        critic,
        torch.optim.Adam(critic.parameters(), config.critic_learning_rate),
        tau=config.target_rate,
        eta=config.diversity,
    )
    trainer.log_alpha = torch.zeros(1, requires_grad=True)  # float64, where CORL's is float32
    trainer.alpha_optimizer = torch.optim.Adam([trainer.log_alpha], config.temperature_learning_rate)
    draw = noise_of(ours)
    drawn: list[Tensor] = []

    def noise(shape: Any, **_: Any) -> Tensor:
        drawn.append(drawn[-1] if len(drawn) % 3 == 1 else draw(shape))
        return drawn[-1]

    normal: Any = torch.distributions.normal
    normal._standard_normal = noise

    def parameters() -> dict[str, Any]:
        found: dict[str, Any] = {"log_temperature": trainer.log_alpha.detach()[0]}
        for index, layer in enumerate(actor.trunk):
            found |= {f"policy/{index}.{key}": one for key, one in layer.state_dict().items()}
        for key in ("weight", "bias"):
            both = (getattr(actor.mu, key), getattr(actor.log_sigma, key))
            found[f"policy/{len(actor.trunk)}.{key}"] = torch.cat(both).detach()
        for name, one in (("critic", trainer.critic), ("target_critic", trainer.target_critic)):
            for index, layer in enumerate(one.critic[::2]):
                found[f"{name}/weights.{index}"] = layer.weight.detach()
                found[f"{name}/biases.{index}"] = layer.bias.detach()
        return found

    return lambda one: trainer.update(columns(one)), parameters


def bc(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    actor = reference.Actor(3, 2, 1.0)
    actor.net = small(ours.policy, nn.Tanh())
    optimizer = torch.optim.Adam(actor.parameters(), ours.config.learning_rate)
    trainer = reference.BC(1.0, actor, optimizer)
    return lambda one: trainer.train(columns(one)), lambda: named(policy=actor.net)


def cql(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Run CORL's CQL with the backup's action and the fixed deviation that ours has."""
    config = ours.config
    actor = reference.TanhGaussianPolicy(3, 2, 1.0).double()
    actor.base_network = small(ours.policy)
    critics = [reference.FullyConnectedQFunction(3, 2) for _ in range(2)]
    critics[0].network, critics[1].network = small(ours.critic.first), small(ours.critic.second)
    adam, slow, fast = torch.optim.Adam, config.policy_learning_rate, config.critic_learning_rate
    trainer = reference.ContinuousCQL(
        critics[0],
        adam(critics[0].parameters(), fast),
        critics[1],
        adam(critics[1].parameters(), fast),
        actor,
        adam(actor.base_network.parameters(), slow),
        target_entropy=-2.0,
        policy_lr=slow,
        qf_lr=fast,
        soft_target_update_rate=config.target_rate,
        bc_steps=0,
        cql_n_actions=config.sampled_actions,
        cql_alpha=config.conservative_weight,
    )
    trainer.log_alpha.double()
    trainer.alpha_optimizer = adam(trainer.log_alpha.parameters(), slow)
    generator = make_generator(SEED, 1)
    normal: Any = torch.distributions.normal

    def update(one: dict[str, Tensor]) -> None:
        many = (config.sampled_actions, BATCH, 2)
        here, following = (torch.randn(many, generator=generator) for _ in range(2))
        uniform = torch.empty(many).uniform_(-1, 1, generator=generator)
        fresh = torch.randn((1, BATCH, 2), generator=generator)
        drawn = [fresh[0], following[0], here.transpose(0, 1), following.transpose(0, 1)]
        normal._standard_normal = lambda *_, **__: drawn.pop(0)
        drawing: Any = torch.Tensor.uniform_
        torch.Tensor.uniform_ = lambda *_: uniform.transpose(0, 1)  # type: ignore[method-assign]  # for this update
        trainer.train(columns(one))
        torch.Tensor.uniform_ = drawing  # type: ignore[method-assign]  # as it was

    return update, lambda: {
        **named(
            critic__first=critics[0].network,
            critic__second=critics[1].network,
            target_critic__first=trainer.target_critic_1.network,
            target_critic__second=trainer.target_critic_2.network,
            policy=actor.base_network,
        ),
        "log_temperature": trainer.log_alpha.constant.detach(),
        "log_multiplier": torch.zeros(()),
    }


def iql(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Run CORL's IQL. It takes half of the critics' loss: with half of Adam's eps, the same steps."""
    config = ours.config
    actor = reference.GaussianPolicy(3, 2, 1.0)
    actor.net, actor.log_std = small(ours.policy, nn.Tanh()), nn.Parameter(torch.zeros(2))
    critic, value = reference.TwinQ(3, 2), reference.ValueFunction(3)
    squeeze = reference.Squeeze(-1)
    critic.q1 = small(ours.critic.first, squeeze)
    critic.q2 = small(ours.critic.second, squeeze)
    value.v = small(ours.value, squeeze)
    adam, rate = torch.optim.Adam, config.learning_rate
    trainer = reference.ImplicitQLearning(
        1.0,
        actor,
        adam(actor.parameters(), rate),
        critic,
        adam(critic.parameters(), rate, eps=0.5e-8),
        value,
        adam(value.parameters(), rate),
        iql_tau=config.expectile,
        beta=config.inverse_temperature,
        max_steps=config.steps,
        tau=config.target_rate,
    )
    return lambda one: trainer.train(columns(one)), lambda: {
        **named(
            critic__first=critic.q1,
            critic__second=critic.q2,
            target_critic__first=trainer.q_target.q1,
            target_critic__second=trainer.q_target.q2,
            value=value.v,
            policy=actor.net,
        ),
        "log_std": actor.log_std.detach(),
    }


REFERENCES: dict[str, tuple[str, dict[str, Any], Callable[..., Any]]] = {
    "td3bc": ("td3_bc", {"policy_learning_rate": 1e-3, "critic_learning_rate": 1e-3, "target_rate": 0.05}, td3bc),
    "edac": (
        "edac",
        {
            "hidden": [8, 8, 8],
            "critics": 3,
            "diversity": 2.0,
            "target_rate": 0.05,
            "policy_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
            "temperature_learning_rate": 1e-3,
        },
        edac,
    ),
    "awac": ("awac", {"learning_rate": 1e-3, "temperature": 0.5, "max_weight": 2.0, "target_rate": 0.05}, awac),
    "bc": ("any_percent_bc", {"learning_rate": 1e-3}, bc),
    "cql": (
        "cql",
        {
            "policy_learning_rate": 1e-3,
            "critic_learning_rate": 1e-3,
            "target_rate": 0.05,
            "conservative_weight": 2.0,
            "sampled_actions": 3,
            "cloning_steps": 0,
        },
        cql,
    ),
    "iql": (
        "iql",
        {"learning_rate": 1e-3, "target_rate": 0.05, "expectile": 0.8, "inverse_temperature": 5.0, "steps": UPDATES},
        iql,
    ),
}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
