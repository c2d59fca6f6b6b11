"""Trains the authors' transitive RL beside ours for 100 updates, and records parameters before and after.

pip install jax flax optax distrax ml_collections
git clone https://github.com/aoberai/trl TRL && git -C TRL checkout adfec6f
PYTHONPATH=src:. python tools/reference/record_trl.py TRL

Their update is run in float64, on the same batches, with small networks that start with our weights, and with the noise
that our algorithm draws. Files hold numbers only; one is of goals that are whole states, and one of goals that are the
first two numbers of states, with `frs`.
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
from orlog.algos.networks import make_generator
from orlog.algos.settings import make_config
from tests.algos import plain

UPDATES, ROWS, BATCH, SEED = 100, 64, 16, 1
FAST = {"hidden": [8, 8], "learning_rate": 1e-3, "target_rate": 0.05, "discount": 0.9, "expectile": 0.8}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "trl": (3, {**FAST, "cloning_weight": 0.3, "distance_weight": 0.7}),
    "trl_parts": (2, {**FAST, "extraction": "frs"}),
}
THEIRS = {
    **{name: f"value_{name}" for name in ("midpoint_observations", "midpoint_actions", "midpoint_offsets")},
    "midpoint_goals": "value_midpoint_goals",
}


def make_table(width: int) -> dict[str, np.ndarray]:
    """Return random states with goals, which are as many of their first numbers, and midpoints."""
    rng = np.random.default_rng(0)
    names = ("observations", "next_observations", "value_goal_observations", "midpoint_observations")
    table = {name: rng.normal(size=(ROWS, 3)) for name in names}
    table["value_goals"] = table["value_goal_observations"][:, :width]
    table["actor_goals"] = rng.normal(size=(ROWS, width))
    table["actions"], table["midpoint_actions"] = (rng.uniform(-0.95, 0.95, (ROWS, 2)) for _ in range(2))
    offsets = rng.integers(1, 7, ROWS)
    table["value_offsets"] = offsets.astype(np.float64)
    table["midpoint_offsets"] = rng.integers(0, offsets).astype(np.float64)
    return {**table, "masks": np.ones(ROWS), "rewards": -np.ones(ROWS)}


def layers_of(tree: Any) -> dict[str, Any]:
    """Return the layers of a network of flax; the last one of a Gaussian policy has a name of its own."""
    while not any(key.startswith("Dense_") for key in tree):
        if "mean_net" in tree:
            count = sum(key.startswith("Dense_") for key in tree["actor_net"])
            return {**tree["actor_net"], f"Dense_{count}": tree["mean_net"]}
        (tree,) = tree.values()
    return dict(tree)


def places_of(network: Any) -> list[tuple[str, str, str]]:
    """Return our name of each tensor, and the names of layer and tensor in flax."""
    found, counts = [], {"Dense": 0, "LayerNorm": 0}
    for index, layer in enumerate(network):
        if isinstance(layer, nn.Linear | nn.LayerNorm):
            kind, weight = ("Dense", "kernel") if isinstance(layer, nn.Linear) else ("LayerNorm", "scale")
            found += [(f"{index}.weight", f"{kind}_{counts[kind]}", weight)]
            found += [(f"{index}.bias", f"{kind}_{counts[kind]}", "bias")]
            counts[kind] += 1
    return found


def put(tree: Any, networks: list[Any]) -> None:
    """Write the values of our networks, one or two side by side, into those of flax."""
    layers = layers_of(tree)
    for ours, layer, theirs in places_of(networks[0]):
        values = [one.state_dict()[ours].numpy() for one in networks]
        stacked = np.stack([one.T if theirs == "kernel" else one for one in values])
        stacked = stacked if len(networks) > 1 else stacked[0]
        assert layers[layer][theirs].shape == stacked.shape
        layers[layer][theirs] = jnp.asarray(stacked)


def get(tree: Any, networks: list[Any]) -> list[dict[str, np.ndarray]]:
    """Return the values of flax under our names, for each network."""
    found: list[dict[str, np.ndarray]] = [{} for _ in networks]
    for ours, layer, theirs in places_of(networks[0]):
        values = np.asarray(layers_of(tree)[layer][theirs])
        for one, part in zip(found, values if len(networks) > 1 else [values], strict=True):
            one[ours] = part.T if theirs == "kernel" else part
    return found


def record(name: str, width: int, settings: dict[str, Any]) -> None:
    """Train both, and record what they started from and where the authors' ended."""
    table = make_table(width)
    ours: Any = make_algorithm("trl", make_config("trl", settings), plain.scaling_of(table), seed=SEED)
    agent = make_theirs(ours, width)
    modules = {name: (getattr(ours, name), f"modules_{name}") for name in ("critic", "target_critic")}
    modules["policy"] = ours.policy, "modules_actor"
    if width < 3:
        modules["goal_critic"] = ours.goal_critic, "modules_oracle_critic"
    twins = {name: [*one.children()] if name != "policy" else [one] for name, (one, _) in modules.items()}
    network = agent.network
    for key, (_, theirs) in modules.items():
        put(network.params[theirs], twins[key])
    # In float64, in which Adam then goes on too.
    params = jax.tree_util.tree_map(lambda one: jnp.asarray(one, jnp.float64), network.params)
    agent = agent.replace(network=network.replace(params=params, opt_state=network.tx.init(params)))

    before = {f"before/{key}": one.numpy().copy() for key, one in plain.tensors_of(ours).items()}
    rows = np.random.default_rng(1).integers(0, ROWS, (UPDATES, BATCH))
    generator = make_generator(SEED, 1)
    for chosen in rows:
        batch = {key: jnp.asarray(column[chosen]) for key, column in table.items()}
        batch["midpoint_goals"] = batch["midpoint_observations"][:, :width]
        batch = {THEIRS.get(key, key): one for key, one in batch.items()}
        if ours.config.extraction == "frs":
            noise, times = torch.randn((BATCH, 2), generator=generator), torch.rand((BATCH, 1), generator=generator)
            jax.random.normal = lambda *_, drawn=noise: jnp.asarray(drawn.numpy())
            jax.random.uniform = lambda *_, drawn=times: jnp.asarray(drawn.numpy())
        agent, _ = agent.update(batch)

    after: dict[str, np.ndarray] = {}
    for key, (_, theirs) in modules.items():
        parts = get(agent.network.params[theirs], twins[key])
        prefixes = [f"{key}/"] if key == "policy" else [f"{key}/first.", f"{key}/second."]
        for prefix, part in zip(prefixes, parts, strict=True):
            after |= {f"after/{prefix}{tensor}": value for tensor, value in part.items()}
    assert after.keys() == {f"after/{key}" for key in plain.tensors_of(ours)}
    numbers: Any = {"settings": np.asarray(json.dumps(settings)), "rows": rows, **table, **before, **after}
    np.savez_compressed(plain.RECORDED / f"{name}.npz", **numbers)
    sys.stdout.write(f"{name}: {plain.difference_from_recorded(type(ours), name):.1e} apart after {UPDATES} updates\n")


def make_theirs(ours: Any, width: int) -> Any:
    """Return the authors' agent with the settings of ours."""
    module, config = importlib.import_module("agents.trl"), ours.config
    theirs = module.get_config()
    theirs.update(
        actor_hidden_dims=config.hidden,
        value_hidden_dims=config.hidden,
        lr=config.learning_rate,
        tau=config.target_rate,
        discount=config.discount,
        expectile=config.expectile,
        lam=config.distance_weight,
        oracle_distill=width < 3,
        pe_type=config.extraction,
        batch_size=BATCH,
    )
    theirs.rpg.alpha = config.cloning_weight
    shapes = {"observations": 3, "actions": 2, "actor_goals": width}
    return module.TRLAgent.create(0, {key: jnp.zeros((1, size)) for key, size in shapes.items()}, theirs)


if __name__ == "__main__":
    of_jax: Any = jax.config
    of_jax.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    sys.path.insert(0, sys.argv[1])
    with jax.disable_jit():
        for case, (width, settings) in CASES.items():
            record(case, width, settings)
