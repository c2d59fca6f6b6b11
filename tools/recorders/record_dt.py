"""Trains CORL's Decision Transformer beside ours, as `record.py` does for algorithms of transitions.

git clone https://github.com/corl-team/CORL && git -C CORL checkout eeeeef2671
python -m tools.recorders.record_dt CORL

Dropout is 0, since the two draw it in different orders.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from orlog.algos.dt import DT, DTConfig
from tests.algos import plain
from tests.algos.test_dt import difference_from_recorded
from tools.recorders.record import BATCH, ROWS, SEED, UPDATES, import_file

SETTINGS: dict[str, Any] = {
    "length": 4,
    "width": 8,
    "layers": 2,
    "heads": 2,
    "dropout": 0.0,
    "longest_episode": 12,
    "target_return": 3.0,
    "return_scale": 0.5,
    "learning_rate": 1e-3,
    "warmup_steps": 10,
    "weight_decay": 1e-2,
    "max_gradient_norm": 0.25,
    "batch_size": BATCH,
}
NAMES = {
    "emb_norm": "norm",
    "out_norm": "layers.norm",
    "timestep_emb.weight": "times",
    "state_emb": "observations",
    "action_emb": "actions",
    "return_emb": "returns",
    "action_head.0": "head",
    "blocks": "layers.layers",
    "norm1": "attention_norm",
    "norm2": "hidden_norm",
    "attention.in_proj_": "attention_in.",
    "attention.out_proj": "attention_out",
    "mlp.0": "hidden",
    "mlp.2": "hidden_out",
}


def main(corl: Path) -> None:
    """Record it."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in ("d4rl", "gym", "wandb", "pyrallis"):
        stub: Any = types.ModuleType(name)
        stub.Env, stub.wrap = object, lambda: lambda function: function
        sys.modules[name] = stub
    reference = import_file(corl / "algorithms" / "offline" / "dt.py")
    config = DTConfig(**SETTINGS)
    ours = DT(config, plain.UNIT, seed=SEED)
    before = {f"before/{key}": one.numpy().copy() for key, one in plain.tensors_of(ours).items()}
    theirs = reference.DecisionTransformer(
        3,
        2,
        seq_len=config.length,
        episode_len=config.longest_episode,
        embedding_dim=config.width,
        num_layers=config.layers,
        num_heads=config.heads,
    )
    theirs.load_state_dict(
        {
            key: ours.policy.state_dict()[our_name(key)] if "causal_mask" not in key else one
            for key, one in theirs.state_dict().items()
        }
    )
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: min((steps + 1) / config.warmup_steps, 1))
    table = make_windows(config.length)
    rows = np.random.default_rng(1).integers(0, ROWS, (UPDATES, BATCH))
    for chosen in rows:
        one = {key: torch.from_numpy(column[chosen]) for key, column in table.items()}
        mask = one["mask"].double()
        predicted = theirs(
            states=one["observations"],
            actions=one["actions"],
            returns_to_go=one["returns_to_go"] * SETTINGS["return_scale"],
            time_steps=one["timesteps"],
            padding_mask=~one["mask"],
        )
        loss = nn.functional.mse_loss(predicted, one["actions"], reduction="none")
        loss = (loss * mask.unsqueeze(-1)).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        nn.utils.clip_grad_norm_(theirs.parameters(), config.max_gradient_norm)
        optimizer.step()
        schedule.step()
    after = {
        f"after/policy/{our_name(key)}": one.numpy()
        for key, one in theirs.state_dict().items()
        if "causal_mask" not in key
    }
    assert after.keys() == {f"after/{key}" for key in plain.tensors_of(ours)}
    text = np.asarray(json.dumps(SETTINGS))
    acted = {f"rollout/{key}": one for key, one in rollout(reference, theirs, config).items()}
    numbers: Any = {"settings": text, "rows": rows, **table, **before, **after, **acted}
    np.savez_compressed(plain.RECORDED / "dt.npz", **numbers)
    sys.stdout.write(f"dt: {difference_from_recorded():.1e} apart after {UPDATES} updates\n")


def our_name(name: str) -> str:
    """Return our name of one of CORL's parameters."""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def make_windows(length: int) -> dict[str, np.ndarray]:
    """Return random windows; half of them are padded at their end."""
    rng = np.random.default_rng(0)
    steps = rng.integers(1, length + 1, ROWS) * (rng.random(ROWS) < 0.5)
    mask = np.arange(length) < np.where(steps, steps, length)[:, None]
    filled = mask[..., None]
    return {
        "observations": rng.normal(size=(ROWS, length, 3)) * filled,
        "actions": rng.uniform(-0.95, 0.95, (ROWS, length, 2)) * filled,
        "returns_to_go": rng.normal(size=(ROWS, length)) * mask,
        "timesteps": rng.integers(0, 12, ROWS)[:, None] + np.arange(length),
        "mask": mask,
    }


def rollout(reference: Any, model: Any, config: DTConfig) -> dict[str, np.ndarray]:
    """Return what CORL's rollout does in an environment whose steps are random and recorded."""
    rng = np.random.default_rng(2)
    states, rewards = rng.normal(size=(12, 3)), rng.normal(size=12)
    actions: list[np.ndarray] = []
    assert config.target_return is not None
    assert config.return_scale is not None
    scale = config.return_scale

    def step(action: np.ndarray) -> tuple[np.ndarray, float, bool, None]:
        actions.append(action.copy())
        count = len(actions)
        return states[count % 12], rewards[count - 1] * scale, count == 12, None

    environment = types.SimpleNamespace(reset=lambda: states[0], step=step)
    # Its memory is float32 otherwise.
    reference.torch = types.SimpleNamespace(**{**vars(torch), "float": torch.float64})
    model.eval()
    reference.eval_rollout(model, environment, config.target_return * scale)
    return {"observations": states, "rewards": rewards, "actions": np.array(actions)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
