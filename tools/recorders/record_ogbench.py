"""Trains OGBench's references beside ours for 100 updates, as `record.py` does for those in PyTorch.

pip install jax flax optax distrax ml_collections
git clone https://github.com/seohongpark/ogbench OGBENCH && git -C OGBENCH checkout 1d4140997f
python -m tools.recorders.record_ogbench OGBENCH/impls hiql crl qrl
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from orlog.algos.algorithms import make_algorithm
from orlog.algos.settings import make_config
from tests.algos import plain
from tools.recorders import record, record_jax

THEIRS = {"low_goals": "low_actor_goals", "actor_goals": "high_actor_goals"}


def make_table() -> dict[str, np.ndarray]:
    """Return random transitions with goals that are whole observations."""
    rng = np.random.default_rng(0)
    names = ("observations", "next_observations", "value_goals", "actor_goals")
    below = ("low_goals", "subgoals", "subgoal_observations")
    table = {name: rng.normal(size=(record.ROWS, 3)) for name in (*names, *below)}
    table["subgoals"] = table["subgoal_observations"]
    masks = (rng.random(record.ROWS) < 0.7).astype(np.float64)
    table["actions"] = rng.uniform(-0.95, 0.95, (record.ROWS, 2))
    return {**table, "rewards": masks - 1, "masks": masks}


def run(name: str, agent: Any, settings: dict[str, Any], make: Any) -> None:
    """Train both, and record what they started from and where the reference ended."""
    ours = make_algorithm(name, make_config(name, settings), plain.UNIT, seed=record.SEED)
    changes, modules = make(ours)
    config = agent.get_config()
    config.update(actor_hidden_dims=(8, 8), value_hidden_dims=(8, 8), **changes)
    (kind,) = (one for key, one in vars(agent).items() if key.endswith("Agent"))
    theirs = kind.create(0, jnp.zeros((1, 3)), jnp.zeros((1, 2)), config)
    params = theirs.network.params
    for path, (_, networks) in modules.items():
        put(params, path.split("/"), networks)
    network = theirs.network
    # Adam would otherwise go on in the precision of the initial parameters, float32.
    state = network.tx.init(params)
    theirs = theirs.replace(network=network.replace(params=params, opt_state=state))
    table = make_table()
    rows = np.random.default_rng(1).integers(0, record.ROWS, (record.UPDATES, record.BATCH))
    tensors = plain.tensors_of(ours)
    before = {f"before/{key}": one.numpy().copy() for key, one in tensors.items()}
    for chosen in rows:
        batch = {key: jnp.asarray(column[chosen]) for key, column in table.items()}
        batch |= {other: batch[key] for key, other in THEIRS.items()}
        batch["high_actor_targets"] = batch["subgoals"]
        theirs, _ = theirs.update(batch)
    after: dict[str, np.ndarray] = {}
    for path, (prefix, networks) in modules.items():
        parts = get(theirs.network.params, path.split("/"), networks)
        names = prefix if isinstance(prefix, tuple) else (prefix,)
        for one, part in zip(names, parts, strict=True):
            after |= {f"after/{one}{key}": value for key, value in part.items()}
    assert after.keys() == {f"after/{key}" for key in tensors}, after.keys() ^ tensors.keys()
    numbers: Any = {"settings": np.asarray(json.dumps(settings)), "rows": rows}
    numbers |= {**table, **before, **after}
    np.savez_compressed(plain.RECORDED / f"{name}.npz", **numbers)
    difference = plain.difference_from_recorded(type(ours), name)
    sys.stdout.write(f"{name}: {difference:.1e} apart after {record.UPDATES} updates\n")


def put(params: Any, path: list[str], networks: Any) -> None:
    """Write our networks' values, or that of one number, into a part of flax's parameters."""
    for key in path[:-1]:
        params = params[key]
    tree = params[path[-1]]
    if isinstance(networks, nn.Parameter):
        params[path[-1]] = jnp.asarray(networks.detach().numpy())
    elif "actor_net" in tree:
        changed = record_jax.in_flax(as_layers(tree), networks)
        last = list(changed)[-1]
        tree["mean_net"] = changed.pop(last)
        tree["actor_net"] = changed
    else:
        params[path[-1]] = record_jax.in_flax(tree, networks)


def get(params: Any, path: list[str], networks: Any) -> list[dict[str, np.ndarray]]:
    """Return a part of flax's parameters under our names, for each network."""
    for key in path:
        params = params[key]
    if isinstance(networks, nn.Parameter):
        return [{"": np.asarray(params)}]
    return record_jax.from_flax(as_layers(params) if "actor_net" in params else params, networks)


def as_layers(tree: Any) -> dict[str, Any]:
    """Return the layers of a policy, whose last one has a name of its own."""
    return {**tree["actor_net"], f"Dense_{len(tree['actor_net'])}": tree["mean_net"]}


def gcbc(ours: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"lr": ours.config.learning_rate}, {"modules_actor": ("policy/", [ours.policy])}


def gcivl(ours: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config, twins = ours.config, (ours.value.first, ours.value.second)
    return {
        "lr": config.learning_rate,
        "tau": config.target_rate,
        "expectile": config.expectile,
        "alpha": config.inverse_temperature,
        "discount": config.discount,
    }, {
        "modules_value": (("value/first.", "value/second."), twins),
        "modules_target_value": (("target_value/first.", "target_value/second."), twins),
        "modules_actor": ("policy/", [ours.policy]),
    }


def gciql(ours: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config, twins = ours.config, (ours.critic.first, ours.critic.second)
    return {
        "lr": config.learning_rate,
        "tau": config.target_rate,
        "expectile": config.expectile,
        "alpha": config.cloning_weight,
        "discount": config.discount,
    }, {
        "modules_value": ("value/", [ours.value]),
        "modules_critic": (("critic/first.", "critic/second."), twins),
        "modules_target_critic": (("target_critic/first.", "target_critic/second."), twins),
        "modules_actor": ("policy/", [ours.policy]),
    }


def hiql(ours: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config = ours.config
    twins = (ours.value.first, ours.value.second)
    return {
        "lr": config.learning_rate,
        "tau": config.target_rate,
        "expectile": config.expectile,
        "low_alpha": config.low_inverse_temperature,
        "high_alpha": config.high_inverse_temperature,
        "discount": config.discount,
        "rep_dim": config.representation,
    }, {
        "modules_goal_rep": ("representation/", [ours.representation]),
        "modules_value": (("value/first.", "value/second."), twins),
        "modules_target_value": (("target_value/first.", "target_value/second."), twins),
        "modules_low_actor": ("low_policy/", [ours.low_policy]),
        "modules_high_actor": ("high_policy/", [ours.high_policy]),
    }


def crl(ours: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config, critic = ours.config, ours.critic
    return {"lr": config.learning_rate, "alpha": config.cloning_weight, "latent_dim": config.representation}, {
        "modules_critic/phi": (("critic/phi.0.", "critic/phi.1."), list(critic.phi)),
        "modules_critic/psi": (("critic/psi.0.", "critic/psi.1."), list(critic.psi)),
        "modules_actor": ("policy/", [ours.policy]),
    }


def qrl(ours: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config = ours.config
    return {
        "lr": config.learning_rate,
        "alpha": config.cloning_weight,
        "eps": config.local_cost,
        "latent_dim": config.representation,
    }, {
        "modules_value/phi": ("distance/states.", [ours.distance.states]),
        "modules_value/alpha/value": ("distance/mixing", ours.distance.mixing),
        "modules_dynamics": ("model/", [ours.model]),
        "modules_lam/log_value": ("log_multiplier", ours.log_multiplier),
        "modules_actor": ("policy/", [ours.policy]),
    }


PUSHED = {"learning_rate": 1e-3, "target_rate": 0.05, "expectile": 0.8, "discount": 0.9}
REFERENCES: dict[str, tuple[dict[str, Any], Any]] = {
    "gcbc": ({"learning_rate": 1e-3}, gcbc),
    "gcivl": ({**PUSHED, "inverse_temperature": 4.0}, gcivl),
    "gciql": ({**PUSHED, "cloning_weight": 0.2}, gciql),
    "hiql": (
        {
            "learning_rate": 1e-3,
            "target_rate": 0.05,
            "expectile": 0.8,
            "discount": 0.9,
            "low_inverse_temperature": 4.0,
            "high_inverse_temperature": 2.0,
            "representation": 4,
        },
        hiql,
    ),
    "crl": ({"learning_rate": 1e-3, "cloning_weight": 0.3, "representation": 4}, crl),
    "qrl": ({"learning_rate": 1e-3, "cloning_weight": 0.3, "representation": 16}, qrl),
}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    sys.path.insert(0, sys.argv[1])
    for asked in sys.argv[2:] or REFERENCES:
        settings, make = REFERENCES[asked]
        module = importlib.import_module(f"agents.{asked}")
        run(asked, module, {**record.FAST, **settings}, make)
