"""Calibrated Q-learning (Nakamoto and others 2023, https://arxiv.org/abs/2303.05479).

Conservative Q-learning to start fine-tuning from. The values of the policy's actions are lowered no further than the
return that the data reached from there, so that they do not have to be learned again:

    L_Q(theta) = alpha_cql E_s[ log sum_a exp max(Q(s, a), R) - E_(a ~ D) Q(s, a) ]    (equation 5.1)
                 + E[ ( r + discount (1 - termination) Q_target(s', a') - Q(s, a) )^2 ]
                 R   = discounted return of the data from this step to the end of its episode
                 a'  = the best by Q_target of `sampled_actions` actions of pi(. | s')
    L_pi(phi)  = E_s[ temperature log pi(a | s) - min(Q_1, Q_2)(s, a) ],               a ~ pi

R bounds the actions of the policy, at s and of s', and not the uniform ones. The sum over actions, its importance
sampling, entropy and its temperature are CQL's (`cql.py`). A Lagrange multiplier keeps the gap between both terms
near `target_gap`; with none the weight is fixed. Truncations bootstrap, terminations do not. Steps of an episode that
still runs in fine-tuning have no return yet: R is -infinity for them, which bounds nothing.

Defaults are the authors' for AntMaze as CORL repeats them (`configs/finetune/cal_ql/antmaze`), whose rewards are 10 r
- 5. For Adroit they have a weight of 1 and no multiplier.

What differs from the authors' code (nakamotoo/Cal-QL, `JaxCQL/conservative_sac.py`):
- The backup's actions are the proposals at s', not samples of their own.
- Temperature, policy, critics and multiplier step at once, each from the networks before the step.
- The multiplier 1 and the offset -1 of the log standard deviation are fixed. Theirs are trained.
- Policy and critics have the same hidden layers. Theirs: a policy of two, critics of four for AntMaze.
- Layers start as `torch.nn.Linear` does. Theirs: orthogonal.
- R of an episode that fails under a sparse reward is the sum of the steps it has. The authors take that of failing
  for ever, reward / (1 - discount).
- Observations are standardized over the dataset by default. The authors leave them as they are.
- Fine-tuning takes a step in the environment for each update. The authors take whole episodes, and then as many
  updates.

What differs from CORL (`finetune/cal_ql.py`) besides: it stops calibrating when fine-tuning begins, as its returns
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.cql import CQL
from orlog.algos.critics import transitions_of, values_of
from orlog.algos.settings import AnyNumber, Count, NotNegative, NStepActorCritic, Positive, Widths
from orlog.loaders.batch import Batch


class CalQLConfig(NStepActorCritic, frozen=True, kw_only=True):
    """Settings of calibrated Q-learning; the policy's rate is the temperature's, the critics' the multiplier's."""

    hidden: Widths = (256, 256, 256)
    policy_learning_rate: Positive = 1e-4
    conservative_weight: NotNegative = 5.0
    """Factor alpha_cql of the conservative term; 0 is soft actor-critic."""
    sampled_actions: Count = 10
    """Actions drawn per state from each of the three proposals."""
    target_gap: AnyNumber | None = 0.8
    """Gap that the Lagrange multiplier aims at; none keeps the weight fixed."""
    smallest_gap: AnyNumber = -200.0
    """Bound below which the gap of a transition counts no more."""


def calibrated_gaps(
    uniform_q: Float32[Tensor, "2 batch samples"],
    policy_q: Float32[Tensor, "2 batch policy_samples"],
    uniform_log_density: float,
    policy_log_densities: Float32[Tensor, "batch policy_samples"],
    data_q: Float32[Tensor, "2 batch"],
    returns: Float32[Tensor, " batch"],
    smallest: float,
) -> Float32[Tensor, 2]:
    """Return log sum_j exp(max(Q_j, R) - log density_j) minus the data's Q, averaged over the batch.

    Only the values of the policy's actions are bounded by the returns R (equation 5.1).
    """
    bounded = torch.maximum(policy_q, returns[:, None])
    weighted = torch.cat([uniform_q - uniform_log_density, bounded - policy_log_densities], -1)
    gaps = torch.logsumexp(weighted, -1) - data_q
    return gaps.clamp(min=smallest).mean(-1)


class CalQL(CQL):
    """Calibrated Q-learning for continuous actions."""

    TITLE = "Cal-QL"
    CONFIG = CalQLConfig
    MULTIPLIER = 1.0

    @staticmethod
    def loader(config: Any) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: transitions with the returns of the data."""
        path, arguments = transitions_of(config)
        return path, {**arguments, "discount": config.discount, "returns_to_go": True}

    def next_values(self, features: Tensor, actions: Tensor) -> Float32[Tensor, " batch"]:
        """Return the values of next states: of the best of the policy's actions, by the smaller of both critics."""
        return values_of(self.target_critic, features, actions).amin(0).amax(0)

    def gaps(
        self, sampled_q: Tensor, log_densities: Tensor, data_q: Tensor, batch: Batch
    ) -> tuple[Float32[Tensor, 2], dict[str, Tensor]]:
        """Return the calibrated term of each critic, and how many values the returns bound."""
        samples, returns = self.config.sampled_actions, batch.returns_to_go
        policy_q = sampled_q[:, :, samples:]
        gaps = calibrated_gaps(
            sampled_q[:, :, :samples],
            policy_q,
            -len(self.scaling.action_low) * math.log(2),
            log_densities[:, samples:],
            data_q,
            returns,
            self.config.smallest_gap,
        )
        return gaps, {"critic/bounded": (policy_q.detach() < returns[:, None]).float().mean()}
