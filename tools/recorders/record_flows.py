"""Trains the references of flow policies beside ours, as `record.py` does for those in PyTorch.

pip install jax flax optax distrax ml_collections
git clone https://github.com/seohongpark/fql FQL && git -C FQL checkout 719d04417c
git clone https://github.com/ColinQiyangLi/qc QC && git -C QC checkout 48283b4f66
python -m tools.recorders.record_flows FQL fql ifql
python -m tools.recorders.record_flows QC qcfql
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from orlog.algos.networks import make_generator
from tools.recorders import record, record_jax


def made(agent: Any, ours: Any, changes: dict[str, Any], modules: dict[str, Any]) -> Any:
    """Return an agent of the reference with the settings and the weights of ours."""
    config = agent.get_config()
    hidden = ours.config.hidden
    config.update(actor_hidden_dims=hidden, value_hidden_dims=hidden, **changes)
    (kind,) = (one for name, one in vars(agent).items() if name.endswith("Agent"))
    # QC-FQL's wants an example without a batch.
    shape = () if "horizon_length" in changes else (1,)
    fresh = kind.create(0, jnp.zeros((*shape, 3)), jnp.zeros((*shape, 2)), config)
    params = dict(fresh.network.params)
    for name, networks in modules.items():
        params[f"modules_{name}"] = record_jax.in_flax(params[f"modules_{name}"], networks)
    return fresh.replace(network=fresh.network.replace(params=params))


def transitions(one: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch of transitions as the reference takes it."""
    kept = {name: one[name] for name in ("observations", "actions", "rewards", "next_observations")}
    return {**kept, "masks": 1 - one["terminations"]}


def chunks(one: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch of chunks as the reference takes it, of which it uses the last step's outcome."""
    columns = transitions(one)
    last = {name: columns[name][:, None] for name in ("rewards", "next_observations", "masks")}
    return {**columns, **last, "valid": one["valid"].double()}


def trained(
    agent: Any,
    modules: dict[str, tuple[str, Any]],
    draw: Callable[[], list[Tensor]],
    as_theirs: Callable[[dict[str, Tensor]], dict[str, Tensor]] = transitions,
) -> Any:
    """Return the reference's update, and what gives its parameters under our names.

    `modules` are the reference's names with ours and our networks; `draw` draws what one of our
    updates draws: the reference's random functions return these one after another.
    """
    state = {"agent": agent}

    def update(one: dict[str, Tensor]) -> None:
        batch = {name: jnp.asarray(value.numpy()) for name, value in as_theirs(one).items()}
        drawn = [jnp.asarray(values.numpy()) for values in draw()]

        def take(_key: Any, shape: tuple[int, ...]) -> Any:
            if not drawn:  # for actions that it only logs
                return jnp.zeros(shape)
            assert drawn[0].shape == shape
            return drawn.pop(0)

        jax.random.normal = jax.random.uniform = take
        state["agent"], _ = state["agent"].update(batch)

    def parameters() -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for theirs, (name, networks) in modules.items():
            tree = state["agent"].network.params[f"modules_{theirs}"]
            parts = record_jax.from_flax(tree, networks)
            for prefix, part in zip(("first.", "second."), parts, strict=False):
                prefix = prefix if len(parts) > 1 else ""
                found |= {f"{name}/{prefix}{key}": one for key, one in part.items()}
        return found

    return update, parameters


def fql(agent: Any, ours: Any) -> Any:
    """Run FQL, or QC-FQL if ours has chunks."""
    config = ours.config
    length = getattr(config, "chunk_length", 0)
    twins = (ours.critic.first, ours.critic.second)
    modules = {
        "critic": ("critic", twins),
        "target_critic": ("target_critic", twins),
        "actor_bc_flow": ("flow", [ours.flow]),
        "actor_onestep_flow": ("policy", [ours.policy]),
    }
    changes = {
        "lr": config.learning_rate,
        "tau": config.target_rate,
        "alpha": config.distillation_weight,
        "q_agg": "min" if config.target == "smallest" else "mean",
        "normalize_q_loss": config.normalize_values,
        "flow_steps": config.flow_steps,
        **({"horizon_length": length} if length else {}),
    }
    generator = make_generator(record.SEED, 1)
    shape = (record.BATCH, 2 * max(length, 1))

    def draw() -> list[Tensor]:
        next_noise, noise = (torch.randn(shape, generator=generator) for _ in range(2))
        times = torch.rand((record.BATCH, 1), generator=generator)
        return [next_noise, noise, times, torch.randn(shape, generator=generator)]

    networks = {name: one for name, (_, one) in modules.items()}
    fresh = made(agent, ours, changes, networks)
    return trained(fresh, modules, draw, chunks if length else transitions)


def chunk_table() -> dict[str, np.ndarray]:
    """Return random chunks of three actions; some reach beyond the end of their episode."""
    table, rng = record.make_table(), np.random.default_rng(2)
    del table["next_actions"]
    valid = np.arange(3) < rng.integers(1, 9, record.ROWS)[:, None]
    actions = rng.uniform(-0.95, 0.95, (record.ROWS, 3, 2)) * valid[:, :, None]
    # Reference and ours count the same power of the discount where critics learn: in whole chunks.
    discounts = 0.99 ** valid.sum(1)
    return {**table, "actions": actions, "valid": valid, "discounts": discounts}


def ifql(agent: Any, ours: Any) -> Any:
    config = ours.config
    twins = (ours.critic.first, ours.critic.second)
    modules = {
        "critic": ("critic", twins),
        "target_critic": ("target_critic", twins),
        "value": ("value", [ours.value]),
        "actor_flow": ("policy", [ours.policy]),
    }
    changes = {"lr": config.learning_rate, "tau": config.target_rate, "expectile": config.expectile}
    generator = make_generator(record.SEED, 1)

    def draw() -> list[Tensor]:
        noise = torch.randn((record.BATCH, 2), generator=generator)
        return [noise, torch.rand((record.BATCH, 1), generator=generator)]

    networks = {name: one for name, (_, one) in modules.items()}
    return trained(made(agent, ours, changes, networks), modules, draw)


FQL = {
    "learning_rate": 1e-3,
    "target_rate": 0.05,
    "target": "smallest",
    "distillation_weight": 0.3,
    "normalize_values": True,
    "flow_steps": 4,
}
IFQL = {"learning_rate": 1e-3, "target_rate": 0.05}
QCFQL = {**FQL, "normalize_values": False, "chunk_length": 3}
REFERENCES: dict[str, Any] = {
    "fql": ("agents.fql", FQL, fql, record.make_table),
    "ifql": ("agents.ifql", IFQL, ifql, record.make_table),
    "qcfql": ("agents.acfql", QCFQL, fql, chunk_table),
}

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    sys.path.insert(0, sys.argv[1])
    for asked in sys.argv[2:]:
        module, settings, make, table = REFERENCES[asked]
        with jax.disable_jit():
            record.record_one(asked, importlib.import_module(module), settings, make, table())
