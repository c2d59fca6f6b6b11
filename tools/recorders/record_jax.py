"""Trains ReBRAC's reference beside ours for 100 updates, as `record.py` does for those in PyTorch.

pip install jax flax optax chex tqdm
python -m tools.recorders.record_jax CORL
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from tools.recorders import record

SETTINGS = {
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "policy_penalty": 0.1,
    "critic_penalty": 0.5,
    "target_rate": 0.05,
}


def rebrac(reference: Any, ours: Any) -> Any:
    """Return the reference's update, and what gives its parameters under our names."""
    config, width = ours.config, ours.config.hidden[0]
    layers = len(config.hidden)
    actor_module = reference.DetActor(2, width, layernorm=False, n_hiddens=layers)
    critic_module = reference.EnsembleCritic(width, 2, layernorm=True, n_hiddens=layers)
    optax = reference.optax
    twins = (ours.critic.first, ours.critic.second)
    actor = reference.ActorTrainState.create(
        apply_fn=actor_module.apply,
        params=in_flax(actor_module.init(jax.random.PRNGKey(0), jnp.zeros((1, 3))), [ours.policy]),
        target_params=in_flax(actor_module.init(jax.random.PRNGKey(0), jnp.zeros((1, 3))), [ours.policy]),
        tx=optax.adam(learning_rate=config.policy_learning_rate),
    )
    fresh = critic_module.init(jax.random.PRNGKey(0), jnp.zeros((1, 3)), jnp.zeros((1, 2)))
    critic = reference.CriticTrainState.create(
        apply_fn=critic_module.apply,
        params=in_flax(fresh, twins),
        target_params=in_flax(fresh, twins),
        tx=optax.adam(learning_rate=config.critic_learning_rate),
    )
    draw = record.noise_of(ours)
    state = {"actor": actor, "critic": critic, "step": 0}
    metrics = reference.Metrics.create(
        ["critic_loss", "q_min", "actor_loss", "bc_mse_policy", "bc_mse_random", "action_mse"]
    )
    names = {
        "states": "observations",
        "actions": "actions",
        "rewards": "rewards",
        "next_states": "next_observations",
        "next_actions": "next_actions",
        "dones": "terminations",
    }

    def update(one: dict[str, Tensor]) -> None:
        batch = {theirs: jnp.asarray(one[name].numpy()) for theirs, name in names.items()}
        # It draws the noise of its targets by this function, and nothing else that matters.
        noise = jnp.asarray(draw(one["actions"].shape).numpy())
        jax.random.normal = lambda *_: noise
        key = jax.random.PRNGKey(0)
        arguments = {
            "gamma": config.discount,
            "actor_bc_coef": config.policy_penalty,
            "critic_bc_coef": config.critic_penalty,
            "tau": config.target_rate,
            "policy_noise": config.target_noise,
            "noise_clip": config.noise_clip,
        }
        both = {"key": key, "actor": state["actor"], "critic": state["critic"], "batch": batch}
        if state["step"] % config.policy_interval == 0:
            found = reference.update_td3(**both, metrics=metrics, normalize_q=True, **arguments)
        else:
            found = reference.update_td3_no_targets(**both, metrics=metrics, **arguments)
        _, state["actor"], state["critic"], _ = found
        state["step"] += 1

    def parameters() -> dict[str, np.ndarray]:
        pairs = (("", "params"), ("target_", "target_params"))
        found: dict[str, np.ndarray] = {}
        for prefix, name in pairs:
            actors = from_flax(getattr(state["actor"], name), [ours.policy])
            critics = from_flax(getattr(state["critic"], name), twins)
            found |= {f"{prefix}policy/{key}": one for key, one in actors[0].items()}
            for twin, tensors in zip(("first", "second"), critics, strict=True):
                found |= {f"{prefix}critic/{twin}.{key}": one for key, one in tensors.items()}
        return found

    return update, parameters


def places(networks: Any) -> list[tuple[str, str, str, bool]]:
    """Return where each of our tensors is in flax: its layer, name, and if it is transposed."""
    found, counts = [], {"Dense": 0, "LayerNorm": 0}
    for index, layer in enumerate(networks[0]):
        if isinstance(layer, nn.Linear | nn.LayerNorm):
            kind = "Dense" if isinstance(layer, nn.Linear) else "LayerNorm"
            theirs = "kernel" if kind == "Dense" else "scale"
            position = f"{kind}_{counts[kind]}"
            counts[kind] += 1
            found += [
                (f"{index}.weight", position, theirs, kind == "Dense"),
                (f"{index}.bias", position, "bias", False),
            ]
    return found


def inner(tree: Any) -> Any:
    """Return the dict of layers, which lies below the names of modules."""
    while not any(str(key).startswith("Dense_") for key in tree):
        (tree,) = tree.values()
    return tree


def in_flax(fresh: Any, networks: Any) -> Any:
    """Return flax's parameters with the values of our networks."""
    changed = jax.tree_util.tree_map(lambda one: one, fresh)
    layers = inner(changed)
    for ours, layer, theirs, turned in places(networks):
        values = [one.state_dict()[ours].numpy() for one in networks]
        values = [one.T if turned else one for one in values]
        stacked = np.stack(values) if len(networks) > 1 else values[0]
        assert layers[layer][theirs].shape == stacked.shape
        layers[layer][theirs] = jnp.asarray(stacked)
    return changed


def from_flax(tree: Any, networks: Any) -> list[dict[str, np.ndarray]]:
    """Return the values of flax's parameters under our names, for each network."""
    layers = inner(tree)
    found: list[dict[str, np.ndarray]] = [{} for _ in networks]
    for ours, layer, theirs, turned in places(networks):
        values = np.asarray(layers[layer][theirs])
        for one, part in zip(found, values if len(networks) > 1 else [values], strict=True):
            one[ours] = part.T if turned else part
    return found


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    record.REFERENCES = {"rebrac": ("rebrac", SETTINGS, rebrac)}
    record.main(Path(sys.argv[1]))
