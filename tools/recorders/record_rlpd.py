"""Trains RLPD's own code beside ours for 100 updates, as `record.py` does for CORL's.

pip install jax flax optax
python -m tools.recorders.record_rlpd RLPD

The two distributions that it takes from TensorFlow Probability are written out here: a Gaussian with
independent numbers, and its tanh. They draw the noise that ours draws.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from orlog.algos.networks import make_generator
from tools.recorders import record

SETTINGS: dict[str, Any] = {
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "temperature_learning_rate": 1e-3,
    "target_rate": 0.05,
    "critics": 4,
    "smallest_of": 2,
    "updates": 2,
}
NOISE: list[Any] = []
DRAWN: list[Any] = []


class Gaussian:
    """What RLPD uses of tfp's MultivariateNormalDiag."""

    def __init__(self, loc: Any, scale_diag: Any) -> None:
        self.loc, self.scale = loc, scale_diag


class Squashed:
    """What RLPD uses of tfp's TransformedDistribution with a tanh."""

    def __init__(self, distribution: Gaussian, **_: Any) -> None:
        self.inner, self.raw = distribution, distribution.loc

    def sample(self, seed: Any) -> Any:
        del seed
        self.raw = self.inner.loc + self.inner.scale * NOISE.pop(0)
        return jnp.tanh(self.raw)

    def log_prob(self, _actions: Any) -> Any:
        """Return the log density of the last sample, whose raw numbers tfp keeps too."""
        raw = self.raw
        normal = -0.5 * ((raw - self.inner.loc) / self.inner.scale) ** 2
        normal = normal - jnp.log(self.inner.scale) - 0.5 * jnp.log(2 * jnp.pi)
        jacobian = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        return (normal - jacobian).sum(-1)


def stand_in(name: str, **members: Any) -> None:
    module: Any = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def import_learner(path: Path) -> Any:
    """Import RLPD's learner without its environments and data."""
    root = path / "rlpd"
    for name in ("rlpd", "rlpd.agents", "rlpd.agents.sac", "rlpd.data", "rlpd.networks"):
        folder = root.parent / name.replace(".", "/")
        stand_in(name, __path__=[str(folder)])
    distributions = types.SimpleNamespace(
        TransformedDistribution=Squashed, Distribution=object, MultivariateNormalDiag=Gaussian
    )
    substrates = types.SimpleNamespace(
        jax=types.SimpleNamespace(distributions=distributions, bijectors=types.SimpleNamespace(Tanh=object))
    )
    stand_in("tensorflow_probability", substrates=substrates)
    stand_in("gym", Space=object)
    stand_in("rlpd.data.dataset", DatasetDict=dict)
    networks = sys.modules["rlpd.networks"]
    for file, names in (
        ("ensemble", ("Ensemble", "subsample_ensemble")),
        ("mlp", ("MLP", "default_init")),
        ("mlp_resnet", ("MLPResNetV2",)),
        ("state_action_value", ("StateActionValue",)),
    ):
        module = importlib.import_module(f"rlpd.networks.{file}")
        for name in names:
            setattr(networks, name, getattr(module, name))
    return importlib.import_module("rlpd.agents.sac.sac_learner")


class Box:
    """What RLPD uses of a space."""

    def __init__(self, size: int) -> None:
        self.shape = (size,)

    def sample(self) -> np.ndarray:
        return np.zeros(self.shape)


def rlpd(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Return the reference's update, and what gives its parameters under our names."""
    config = ours.config
    agent = reference.SACLearner.create(
        0,
        Box(3),
        Box(2),
        actor_lr=config.policy_learning_rate,
        critic_lr=config.critic_learning_rate,
        temp_lr=config.temperature_learning_rate,
        hidden_dims=config.hidden,
        discount=config.discount,
        tau=config.target_rate,
        num_qs=config.critics,
        num_min_qs=config.smallest_of,
        critic_layer_norm=True,
    )
    freeze = flax.core.freeze
    critic = freeze(critics_in_flax(flax.core.unfreeze(agent.critic.params), ours.critic))
    policy = freeze(policy_in_flax(flax.core.unfreeze(agent.actor.params), ours.policy))
    temperature = freeze(jax.tree_util.tree_map(jnp.float64, flax.core.unfreeze(agent.temp.params)))
    state = {
        "agent": agent.replace(
            critic=agent.critic.replace(params=critic, opt_state=agent.critic.tx.init(critic)),
            target_critic=agent.target_critic.replace(params=critic),
            actor=agent.actor.replace(params=policy, opt_state=agent.actor.tx.init(policy)),
            temp=agent.temp.replace(params=temperature, opt_state=agent.temp.tx.init(temperature)),
        )
    }
    generator = make_generator(record.SEED, 1)
    jax.random.choice = lambda *_, **__: DRAWN.pop(0)
    rows = record.BATCH // config.updates

    def update(one: dict[str, Tensor]) -> None:
        parts = [slice(index, None, config.updates) for index in range(config.updates)]
        batch = {name: jnp.asarray(torch.cat([column[part] for part in parts]).numpy()) for name, column in one.items()}
        batch["masks"] = 1 - batch.pop("terminations")
        for _ in parts:
            NOISE.append(jnp.asarray(torch.randn((rows, 2), generator=generator).numpy()))
            drawn = torch.randperm(config.critics, generator=generator)
            DRAWN.append(jnp.asarray(drawn[: config.smallest_of].numpy()))
        NOISE.append(jnp.asarray(torch.randn((rows, 2), generator=generator).numpy()))
        whole = reference.SACLearner.update.__wrapped__
        state["agent"], _ = whole(state["agent"], batch, config.updates)

    def parameters() -> dict[str, Any]:
        agent = state["agent"]
        found = {"log_temperature": np.asarray(agent.temp.params["log_temp"])}
        for name, one in (("critic", agent.critic), ("target_critic", agent.target_critic)):
            found |= {f"{name}/{key}": value for key, value in critics_of(one.params).items()}
        return found | policy_of(agent.actor.params)

    return update, parameters


def layers_of(params: Any) -> tuple[dict[str, Any], Any]:
    """Return the layers of the critics: hidden ones with their norms, and the last."""
    (ensemble,) = params.values()
    last = ensemble["Dense_0"]
    (hidden,) = (one for name, one in ensemble.items() if name != "Dense_0")
    return hidden, last


def critics_in_flax(params: Any, critic: Any) -> Any:
    """Return RLPD's parameters of critics with the values of ours."""
    hidden, last = layers_of(params)
    count = len(critic.weights) - 1
    for index in range(count + 1):
        layer = last if index == count else hidden[f"Dense_{index}"]
        layer["kernel"] = jnp.asarray(critic.weights[index].detach().numpy())
        layer["bias"] = jnp.asarray(critic.biases[index].detach().numpy()[:, 0])
        if index < count:
            norm = hidden[f"LayerNorm_{index}"]
            norm["scale"] = jnp.asarray(critic.scales[index].detach().numpy()[:, 0])
            norm["bias"] = jnp.asarray(critic.shifts[index].detach().numpy()[:, 0])
    return params


def critics_of(params: Any) -> dict[str, np.ndarray]:
    """Return the values of RLPD's critics under our names."""
    hidden, last = layers_of(params)
    count = sum(name.startswith("Dense") for name in hidden)
    found = {}
    for index in range(count + 1):
        layer = last if index == count else hidden[f"Dense_{index}"]
        found[f"weights.{index}"] = np.asarray(layer["kernel"])
        found[f"biases.{index}"] = np.asarray(layer["bias"])[:, None]
        if index < count:
            norm = hidden[f"LayerNorm_{index}"]
            found[f"scales.{index}"] = np.asarray(norm["scale"])[:, None]
            found[f"shifts.{index}"] = np.asarray(norm["bias"])[:, None]
    return found


def policy_in_flax(params: Any, policy: Any) -> Any:
    """Return RLPD's parameters of the policy with the values of ours."""
    *hidden, last = (one for one in policy if isinstance(one, torch.nn.Linear))
    for index, layer in enumerate(hidden):
        params["MLP_0"][f"Dense_{index}"] = {
            "kernel": jnp.asarray(layer.weight.detach().numpy().T),
            "bias": jnp.asarray(layer.bias.detach().numpy()),
        }
    for name, part in (("OutputDenseMean", slice(2)), ("OutputDenseLogStd", slice(2, 4))):
        params[name] = {
            "kernel": jnp.asarray(last.weight.detach().numpy()[part].T),
            "bias": jnp.asarray(last.bias.detach().numpy()[part]),
        }
    return params


def policy_of(params: Any) -> dict[str, np.ndarray]:
    """Return the values of RLPD's policy under our names."""
    found, count = {}, len(params["MLP_0"])
    for index in range(count):
        layer = params["MLP_0"][f"Dense_{index}"]
        found[f"policy/{2 * index}.weight"] = np.asarray(layer["kernel"]).T
        found[f"policy/{2 * index}.bias"] = np.asarray(layer["bias"])
    both = [params["OutputDenseMean"], params["OutputDenseLogStd"]]
    found[f"policy/{2 * count}.weight"] = np.concatenate([np.asarray(x["kernel"]).T for x in both])
    found[f"policy/{2 * count}.bias"] = np.concatenate([np.asarray(x["bias"]) for x in both])
    return found


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    LEARNER = import_learner(Path(sys.argv[1]))
    record.import_file = lambda path: LEARNER  # noqa: ARG005 (it is imported already)
    record.REFERENCES = {"rlpd": ("sac_learner", SETTINGS, rlpd)}
    record.main(Path(sys.argv[1]))
