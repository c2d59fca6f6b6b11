"""Trains d3rlpy's discrete algorithms beside ours for 100 updates, and records where both end.

    pip install d3rlpy==2.8.1                        (into an environment with this project's torch)
    python -m tools.recorders.record_d3rlpy

d3rlpy's own modules and update are run, in float64, on the same batches, with small networks that
start with our weights. Files hold numbers only. Of networks with convolutions, whose weights our
seed gives, every 97th number is kept.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.torch_utility import TorchMiniBatch

from orlog.algos.bc_discrete import BCDiscrete
from orlog.algos.cql_discrete import CQLDiscrete
from tests.algos import plain

UPDATES, ROWS, BATCH = 100, 64, 16
CQL_SETTINGS: dict[str, Any] = {
    "bellman_loss": "huber",
    "hidden": [8, 8],
    "learning_rate": 1e-3,
    "adam_epsilon": 3e-4,
    "conservative_weight": 0.7,
    "target_interval": 7,
    "discount": 0.9,
}
BC_SETTINGS: dict[str, Any] = {"hidden": [8, 8], "log_penalty": 0.5}


def main() -> None:
    """Record every reference."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    kinds: list[tuple[type[Any], str, dict[str, Any]]] = [
        (BCDiscrete, "bc_discrete", BC_SETTINGS),
        (CQLDiscrete, "cql_discrete", CQL_SETTINGS),
    ]
    for kind, name, settings in kinds:
        table = make_table()
        rows = np.random.default_rng(1).integers(0, ROWS, (UPDATES, BATCH))
        fields = {"settings": np.asarray(json.dumps(settings)), "rows": rows, **table}
        config = plain.settings(fields)
        ours = kind(kind.CONFIG(**config), plain.DISCRETE, seed=1)
        before = {key: one.numpy().copy() for key, one in plain.tensors_of(ours).items()}
        impl, networks = make_reference(name, config, (3,), 3)
        start(networks, ours)
        for step, batch in enumerate(plain.recorded_discrete_batches(fields)):
            impl.inner_update(mini_batch(batch, batch.observations, batch.next_observations), step)
        after = {key: one.numpy() for key, one in tensors_of(networks).items()}
        assert after.keys() == before.keys()
        numbers: Any = {
            **fields,
            **{f"before/{key}": one for key, one in before.items()},
            **{f"after/{key}": one for key, one in after.items()},
        }
        np.savez_compressed(plain.RECORDED / f"{name}.npz", **numbers)
        report(name, plain.difference_from_recorded(kind, name))
    record_frames()


def record_frames() -> None:
    """Record CQL with d3rlpy's convolutions."""
    ours = plain.make_frames_cql()
    impl, networks = make_reference("cql_discrete", plain.FRAMES_CQL, (2, 36, 36), 3)
    start(networks, ours)
    for step, batch in enumerate(plain.frames_batches()):
        both: Any = (batch.observations, batch.next_observations)
        frames, following = (one.movedim(-1, 1).double() / 255 for one in both)
        impl.inner_update(mini_batch(batch, frames, following), step)
    after: Any = {f"after/{key}": one.numpy().reshape(-1)[::97] for key, one in tensors_of(networks).items()}
    np.savez_compressed(plain.RECORDED / "cql_discrete_frames.npz", **after)
    report("cql_discrete_frames", plain.difference_with_frames())


def make_table() -> dict[str, np.ndarray]:
    """Return random transitions; some of them end."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(ROWS, 3)),
        "actions": rng.integers(2, 5, ROWS),
        "rewards": rng.normal(size=ROWS),
        "next_observations": rng.normal(size=(ROWS, 3)),
        "terminations": (rng.random(ROWS) < 0.3).astype(np.float64),
    }


def make_reference(name: str, config: Any, shape: tuple[int, ...], actions: int) -> tuple[Any, dict[str, Any]]:
    """Return d3rlpy's implementation, and its networks by our names."""
    hidden = list(config["hidden"])
    encoder: Any = d3rlpy.models.VectorEncoderFactory(hidden_units=hidden)
    if len(shape) == 3:
        encoder = d3rlpy.models.PixelEncoderFactory(feature_size=hidden[0])
    if name == "bc_discrete":
        made = d3rlpy.algos.DiscreteBCConfig(encoder_factory=encoder, beta=config["log_penalty"]).create(device="cpu:0")
        made.create_impl(shape, actions)
        return made.impl, {"policy": made.impl.modules.imitator}
    made = d3rlpy.algos.DiscreteCQLConfig(
        encoder_factory=encoder,
        learning_rate=config["learning_rate"],
        optim_factory=d3rlpy.optimizers.AdamFactory(eps=config["adam_epsilon"]),
        gamma=config["discount"],
        alpha=config["conservative_weight"],
        target_update_interval=config["target_interval"],
    ).create(device="cpu:0")
    made.create_impl(shape, actions)
    modules = made.impl.modules
    return made.impl, {"critic": modules.q_funcs[0], "target_critic": modules.targ_q_funcs[0]}


def start(networks: dict[str, Any], ours: Any) -> None:
    """Give the reference our weights."""
    values = list(plain.tensors_of(ours).values())
    of_reference = list(tensors_of(networks).items())
    names = list(plain.tensors_of(ours))
    assert sorted(names) == sorted(key for key, _ in of_reference)
    by_name = dict(zip(names, values, strict=True))
    for key, tensor in of_reference:
        tensor.copy_(by_name[key])


def tensors_of(networks: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameters of d3rlpy's networks by our names."""
    found = {}
    for name, module in networks.items():
        encoder = module._encoder
        if hasattr(encoder, "_cnn_layers"):
            # Its dropout layers shift the places of the convolutions in the list.
            convolutions = [one for one in encoder._cnn_layers if isinstance(one, torch.nn.Conv2d)]
            where = name.replace("critic", "encoder")
            for place, layer in enumerate(convolutions):
                for key, one in layer.named_parameters():
                    found[f"{where}/parts.0.layers.{2 * place}.{key}"] = one.detach()
            layers = encoder._last_layers
        else:
            layers = encoder._layers
        linear = [one for one in layers if isinstance(one, torch.nn.Linear)]
        for place, one_layer in enumerate([*linear, module._fc]):
            for key, one in one_layer.named_parameters():
                found[f"{name}/{2 * place}.{key}"] = one.detach()
    return found


def mini_batch(batch: Any, observations: Any, following: Any) -> TorchMiniBatch:
    """Return a batch as d3rlpy takes it, with actions from 0."""
    rows = len(batch.rewards)
    return TorchMiniBatch(
        observations=observations,
        actions=batch.actions[:, None] - 2,
        rewards=batch.rewards[:, None],
        next_observations=following,
        next_actions=torch.zeros(rows, 1),
        returns_to_go=torch.zeros(rows, 1),
        terminals=batch.terminations[:, None],
        intervals=torch.ones(rows, 1),
        device="cpu:0",
    )


def report(name: str, difference: float) -> None:
    sys.stdout.write(f"{name}: {difference:.1e} apart\n")


if __name__ == "__main__":
    main()
