"""Trains CORL's Cal-QL beside ours for 100 updates, as `record.py` does for those of its other files.

python -m tools.recorders.record_calql CORL
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orlog.algos.networks import make_generator
from tools.recorders import record

SETTINGS: dict[str, Any] = {
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "target_rate": 0.05,
    "conservative_weight": 2.0,
    "sampled_actions": 3,
    "target_gap": 0.8,
    "smallest_gap": 0.5,
}


def calql(reference: Any, ours: Any) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Run CORL's Cal-QL with the backup's actions and the fixed deviation that ours has.

    It takes half of the multiplier's loss: with half of Adam's eps, the same steps.
    """
    config = ours.config
    actor = reference.TanhGaussianPolicy(3, 2, 1.0).double()
    actor.base_network = record.small(ours.policy)
    critics = [reference.FullyConnectedQFunction(3, 2) for _ in range(2)]
    critics[0].network = record.small(ours.critic.first)
    critics[1].network = record.small(ours.critic.second)
    adam, slow, fast = torch.optim.Adam, config.policy_learning_rate, config.critic_learning_rate
    trainer = reference.CalQL(
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
        cql_lagrange=True,
        cql_target_action_gap=config.target_gap,
        cql_max_target_backup=True,
        cql_clip_diff_min=config.smallest_gap,
    )
    for scalar in (trainer.log_alpha, trainer.log_alpha_prime):
        scalar.double()
    trainer.alpha_optimizer = adam(trainer.log_alpha.parameters(), slow)
    trainer.alpha_prime_optimizer = adam(trainer.log_alpha_prime.parameters(), fast, eps=0.5e-8)
    generator = make_generator(record.SEED, 1)
    normal: Any = torch.distributions.normal

    def update(one: dict[str, Tensor]) -> None:
        many = (config.sampled_actions, record.BATCH, 2)
        here, following = (torch.randn(many, generator=generator) for _ in range(2))
        uniform = torch.empty(many).uniform_(-1, 1, generator=generator)
        fresh = torch.randn((1, record.BATCH, 2), generator=generator)
        after = following.transpose(0, 1)
        drawn = [fresh[0], after, here.transpose(0, 1), after]
        normal._standard_normal = lambda *_, **__: drawn.pop(0)
        drawing: Any = torch.Tensor.uniform_
        torch.Tensor.uniform_ = lambda *_: uniform.transpose(0, 1)  # type: ignore[method-assign]  # for this update
        trainer.train([*record.columns(one), one["returns_to_go"][:, None]])
        torch.Tensor.uniform_ = drawing  # type: ignore[method-assign]  # as it was

    return update, lambda: {
        **record.named(
            critic__first=critics[0].network,
            critic__second=critics[1].network,
            target_critic__first=trainer.target_critic_1.network,
            target_critic__second=trainer.target_critic_2.network,
            policy=actor.base_network,
        ),
        "log_temperature": trainer.log_alpha.constant.detach(),
        "log_multiplier": trainer.log_alpha_prime.constant.detach(),
    }


def table() -> dict[str, np.ndarray]:
    """Return the transitions of `record.py`, with returns near the values of the critics."""
    returns = np.random.default_rng(2).normal(size=record.ROWS)
    return {**TABLE(), "returns_to_go": returns}


TABLE = record.make_table

if __name__ == "__main__":
    record.make_table = table
    record.REFERENCES = {"calql": ("../finetune/cal_ql", SETTINGS, calql)}
    record.main(Path(sys.argv[1]))
