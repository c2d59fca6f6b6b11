"""Trains the authors' code of QAM and DQC beside ours for 100 updates, and records parameters before and after.

    pip install jax flax optax distrax ml_collections tensorflow_probability
    git clone https://github.com/ColinQiyangLi/qam QAM && git -C QAM checkout f93efd2252
    git clone https://github.com/ColinQiyangLi/dqc DQC && git -C DQC checkout df898256a7
    python -m tools.record_updates QAM qam qam_edit qam_distilled
    python -m tools.record_updates DQC dqc dqc_n_steps

Their agents run in float64, on the same batches, with small networks that start with our weights, and with the noise
that ours draw: their random functions return it. Files hold numbers only (`tests/algos/recorded`).
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from orlog.algos.algorithms import make_algorithm
from orlog.algos.networks import make_generator
from orlog.algos.settings import make_config
from tests.algos import plain

UPDATES, ROWS, BATCH, SEED = 100, 64, 16, 1
FAST = {"hidden": [8, 8], "learning_rate": 1e-3, "target_rate": 0.05}
QAM_SETTINGS = {**FAST, "chunk_length": 3, "critics": 3, "flow_steps": 4}
DQC_SETTINGS = {**FAST, "horizon": 3, "flow_steps": 4, "sampled_actions": 2}
RECORDS: dict[str, dict[str, Any]] = {
    "qam": {**QAM_SETTINGS, "inverse_temperature": 3.0, "sampled_actions": 2},
    "qam_edit": {**QAM_SETTINGS, "edit_scale": 0.3},
    "qam_distilled": {**QAM_SETTINGS, "distillation_weight": 2.0, "pessimism": 0.0},
    "dqc": {**DQC_SETTINGS, "policy_chunk": 2, "kappa_d": 0.8},
    "dqc_n_steps": {**DQC_SETTINGS, "chunk_critic": False, "target": "smallest", "distillation": "quantile"},
}


Networks = Mapping[str, nn.Module]
"""Networks by what the names of their parameters begin with; several are an ensemble."""
AGGREGATES = {"mean": "mean", "smallest": "min"}


def places(networks: Networks) -> list[tuple[str, str, str]]:
    """Return where each of our tensors is in flax: our name, its layer and its name there."""
    found, counts = [], {"Dense": 0, "LayerNorm": 0}
    for index, layer in enumerate(next(iter(networks.values())).children()):
        if isinstance(layer, nn.Linear | nn.LayerNorm):
            kind = "Dense" if isinstance(layer, nn.Linear) else "LayerNorm"
            position = f"{kind}_{counts[kind]}"
            counts[kind] += 1
            found.append((f"{index}.weight", position, "kernel" if kind == "Dense" else "scale"))
            found.append((f"{index}.bias", position, "bias"))
    return found


def layers_of(tree: Any) -> Any:
    """Return the dict of layers, which lies below the names of modules."""
    while not any(str(key).startswith("Dense_") for key in tree):
        (tree,) = tree.values()
    return tree


def into_flax(tree: Any, networks: Networks) -> Any:
    """Return flax's parameters with the values of our networks."""
    changed = jax.tree_util.tree_map(lambda leaf: leaf, tree)
    layers = layers_of(changed)
    for ours, layer, theirs in places(networks):
        values = np.stack([network.state_dict()[ours].numpy() for network in networks.values()])
        values = values.swapaxes(-1, -2) if theirs == "kernel" else values
        layers[layer][theirs] = jnp.asarray(values if len(networks) > 1 else values[0])
    return changed


def out_of_flax(tree: Any, networks: Networks) -> dict[str, np.ndarray]:
    """Return the values of flax's parameters under our names."""
    found: dict[str, np.ndarray] = {}
    layers = layers_of(tree)
    for ours, layer, theirs in places(networks):
        values = np.asarray(layers[layer][theirs])
        values = values.swapaxes(-1, -2) if theirs == "kernel" else values
        for name, value in zip(networks, values if len(networks) > 1 else [values], strict=True):
            found[name + ours] = value
    return found


class EditPolicy:
    """QAM's policy of edits, whose means and deviations are one last layer of ours and two of theirs."""

    LAST = ("OutputDenseMean", "OutputDenseLogStd")

    def __init__(self, network: nn.Sequential) -> None:
        self.inner, self.last, self.name = {"policy/": network[:-1]}, network[-1], f"policy/{len(network) - 1}."

    def into(self, tree: Any) -> Any:
        """Return flax's parameters with our values."""
        changed = into_flax({"MLP_0": tree["MLP_0"]}, self.inner)
        weights, biases = (values.detach().numpy().reshape(2, 6, -1) for values in self.last.parameters())
        for name, weight, bias in zip(self.LAST, weights, biases, strict=True):
            changed[name] = {"kernel": jnp.asarray(weight.T), "bias": jnp.asarray(bias[:, 0])}
        return changed

    def out(self, tree: Any) -> dict[str, np.ndarray]:
        """Return the values of flax's parameters under our names."""
        found = out_of_flax({"MLP_0": tree["MLP_0"]}, self.inner)
        found[f"{self.name}weight"] = np.concatenate([np.asarray(tree[name]["kernel"]).T for name in self.LAST])
        found[f"{self.name}bias"] = np.concatenate([np.asarray(tree[name]["bias"]) for name in self.LAST])
        return found


def chunk_table() -> dict[str, np.ndarray]:
    """Return random chunks of three actions; some reach beyond the end of their episode."""
    rng = np.random.default_rng(0)
    valid = np.arange(3) < rng.integers(1, 9, ROWS)[:, None]
    return {
        "observations": rng.normal(size=(ROWS, 3)),
        "actions": rng.uniform(-0.95, 0.95, (ROWS, 3, 2)) * valid[:, :, None],
        "rewards": rng.normal(size=ROWS),
        "next_observations": rng.normal(size=(ROWS, 3)),
        "terminations": (rng.random(ROWS) < 0.3).astype(np.float64),
        "valid": valid,
        # Both count the same power of the discount where critics learn: in whole chunks.
        "discounts": 0.99 ** valid.sum(1),
    }


def goal_table() -> dict[str, np.ndarray]:
    """Return random chunks of three actions with goals, of which some are reached; theirs are all whole."""
    rng, table = np.random.default_rng(0), chunk_table()
    table |= {"actions": rng.uniform(-0.95, 0.95, (ROWS, 3, 2)), "valid": np.ones((ROWS, 3), np.bool_)}
    steps = rng.integers(0, 4, ROWS)
    reached = (steps < 3).astype(np.float64)
    table |= {"value_goals": rng.normal(size=(ROWS, 3)), "actor_goals": np.zeros((ROWS, 3)), "masks": 1 - reached}
    return table | {"rewards": 0.999**steps * reached, "discounts": 0.999**steps}


class DQC:
    """The authors' DQC beside ours."""

    table = staticmethod(goal_table)

    def __init__(self, agents: Any, ours: Any) -> None:
        self.config = config = ours.config
        twins = {f"/{twin}.": getattr(ours.critic, twin) for twin in ("first", "second")}
        self.modules: dict[str, Networks] = {
            "action_critic": {f"critic{name}": network for name, network in twins.items()},
            "target_action_critic": {f"target_critic{name}": network for name, network in twins.items()},
            "value": {"value/": ours.value},
            "actor_bc": {"flow/": ours.flow},
        }
        if config.chunk_critic:
            names = ("first", "second")
            self.modules["chunk_critic"] = {f"chunk_critic/{one}.": getattr(ours.chunk_critic, one) for one in names}
        theirs = agents.get_config()
        theirs.update(
            lr=config.learning_rate, tau=config.target_rate, discount=config.discount, q_agg=AGGREGATES[config.target],
            flow_steps=config.flow_steps, use_chunk_critic=config.chunk_critic, backup_horizon=config.horizon,
            policy_chunk_size=config.policy_chunk, distill_method=config.distillation, kappa_d=config.kappa_d,
            implicit_backup_type=config.backup, kappa_b=config.kappa_b, best_of_n=config.sampled_actions,
            actor_hidden_dims=config.hidden, value_hidden_dims=config.hidden,
        )  # fmt: skip
        columns = {"observations": 3, "actions": 2, "high_value_goals": 3, "high_value_action_chunks": 6}
        self.agent = agents.DQCAgent.create(0, {name: jnp.zeros((1, size)) for name, size in columns.items()}, theirs)

    def draw(self, normal: Callable[..., Tensor], uniform: Callable[..., Tensor]) -> list[Tensor]:
        """Return what an update of ours draws."""
        return [normal(BATCH, 2 * self.config.policy_chunk), uniform(BATCH, 1)]

    def batch(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return a batch as the authors' code takes it."""
        given = {f"high_value_{name}": rows[name] for name in ("next_observations", "rewards", "masks")}
        return given | {
            "observations": rows["observations"],
            "actions": jnp.zeros((BATCH, 2)),
            "high_value_goals": rows["value_goals"],
            "high_value_action_chunks": rows["actions"].reshape(BATCH, -1),
            "high_value_backup_horizon": jnp.round(jnp.log(rows["discounts"]) / np.log(self.config.discount)),
            "valids": jnp.ones((BATCH, 2 * self.config.horizon)),
        }


class QAM:
    """The authors' QAM beside ours."""

    table = staticmethod(chunk_table)

    def __init__(self, agents: Any, ours: Any) -> None:
        self.config = config = ours.config
        self.modules: dict[str, Networks | EditPolicy] = {
            "critic": {f"critic/{index}.": network for index, network in enumerate(ours.critic)},
            "target_critic": {f"target_critic/{index}.": network for index, network in enumerate(ours.critic)},
            "actor_fast": {"fast/": ours.fast},
            "actor_slow": {"slow/": ours.slow},
            "target_actor_slow": {"target_slow/": ours.slow},
        }
        if config.distillation_weight:
            self.modules["one_step_actor"] = {"policy/": ours.policy}
        if config.edit_scale:
            self.modules["edit_actor"] = EditPolicy(ours.policy)
        theirs = agents.get_config()
        theirs.update(
            lr=config.learning_rate, tau=config.target_rate, discount=config.discount, num_qs=config.critics,
            rho=config.pessimism, inv_temp=config.inverse_temperature, fql_alpha=config.distillation_weight or 0.0,
            edit_scale=config.edit_scale or 0.0, flow_steps=config.flow_steps, best_of_n=config.sampled_actions,
            horizon_length=config.chunk_length, action_chunking=True, actor_hidden_dims=config.hidden,
            value_hidden_dims=config.hidden,
        )  # fmt: skip
        self.agent = agents.QAMAgent.create(0, jnp.zeros(3), jnp.zeros(2), theirs)

    def draw(self, normal: Callable[..., Tensor], uniform: Callable[..., Tensor]) -> list[Tensor]:
        """Return what an update of ours draws."""
        config = self.config
        drawn = [normal(BATCH * config.sampled_actions, 6), *([normal(BATCH, 6)] if config.edit_scale else [])]
        drawn += [normal(BATCH, 6), uniform(BATCH, 1)]
        drawn += [normal(BATCH, 6) for _ in range(config.flow_steps)]
        drawn.append(torch.zeros(BATCH, 6))  # the last step has no noise
        more = 2 if config.edit_scale else 1 if config.distillation_weight else 0
        return drawn + [normal(BATCH, 6) for _ in range(more)]

    def batch(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return a batch as the authors' code takes it, of which it uses the last step's outcome."""
        last = {name: rows[name][:, None] for name in ("rewards", "next_observations")}
        masks, valid = 1 - rows["terminations"][:, None], rows["valid"].astype(float)
        return {name: rows[name] for name in ("observations", "actions")} | last | {"masks": masks, "valid": valid}


def repeated(drawn: list[Tensor], function: Callable[[], Any]) -> Any:
    """Call a function whose random numbers are these."""
    numbers = [jnp.asarray(values.numpy()) for values in drawn]

    def take(*positional: Any, **named: Any) -> Any:
        shape, values = named["shape"] if "shape" in named else positional[1], numbers.pop(0)
        # TensorFlow Probability draws an event's numbers one after the other, each for the whole batch.
        return (values if values.shape[-1] == shape[-1] else values.T).reshape(shape)

    jax.random.normal = jax.random.uniform = take
    result = function()
    assert not numbers
    return result


def record(name: str) -> None:
    """Train the authors' code beside ours on rows of a table, and record it."""
    algorithm, settings = name.split("_")[0], RECORDS[name]
    ours = make_algorithm(algorithm, make_config(algorithm, settings), plain.UNIT, seed=SEED)
    before = {f"before/{key}": tensor.numpy().copy() for key, tensor in plain.tensors_of(ours).items()}
    generator = make_generator(SEED, 1)
    theirs: Any = {"qam": QAM, "dqc": DQC}[algorithm](importlib.import_module(f"agents.{algorithm}"), ours)
    agent, table = theirs.agent, theirs.table()
    params = dict(agent.network.params)
    for module, networks in theirs.modules.items():
        tree = params[f"modules_{module}"]
        params[f"modules_{module}"] = (
            networks.into(tree) if isinstance(networks, EditPolicy) else into_flax(tree, networks)
        )
    agent = agent.replace(network=agent.network.replace(params=params))

    rows = np.random.default_rng(1).integers(0, ROWS, (UPDATES, BATCH))
    for chosen in rows:
        batch = theirs.batch({key: jnp.asarray(column[chosen]) for key, column in table.items()})
        drawn = theirs.draw(*(functools.partial(draw, generator=generator) for draw in (torch.randn, torch.rand)))
        agent, _ = repeated(drawn, functools.partial(agent.update, batch))

    after: dict[str, np.ndarray] = {}
    for module, networks in theirs.modules.items():
        tree = agent.network.params[f"modules_{module}"]
        found = networks.out(tree) if isinstance(networks, EditPolicy) else out_of_flax(tree, networks)
        after |= {f"after/{key}": values for key, values in found.items()}
    if "modules_edit_alpha" in agent.network.params:
        after["after/log_temperature"] = np.asarray(agent.network.params["modules_edit_alpha"]["log_value"])
    assert after.keys() == {f"after/{key}" for key in plain.tensors_of(ours)}
    numbers: Any = {"settings": np.asarray(json.dumps(settings)), "rows": rows, **table, **before, **after}
    np.savez_compressed(plain.RECORDED / f"{name}.npz", **numbers)
    difference = plain.difference_from_recorded(type(ours), name)
    sys.stdout.write(f"{name}: {difference:.1e} apart after {UPDATES} updates\n")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    sys.path.insert(0, sys.argv[1])
    with jax.disable_jit():
        for asked in sys.argv[2:]:
            record(asked)
