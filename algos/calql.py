"""Calibrated Q-learning (Nakamoto and others 2023, https://arxiv.org/abs/2303.05479).

Conservative Q-learning to start fine-tuning from. The values of the policy's actions are lowered no
further than the return that the data reached from there, so that they do not have to be learned again:

    L_Q(theta) = alpha_cql E_s[ log sum_a exp max(Q(s, a), R) - E_(a ~ D) Q(s, a) ]    (equation 5.1)
                 + E[ ( r + discount (1 - termination) Q_target(s', a') - Q(s, a) )^2 ]
                 R   = discounted return of the data from this step to the end of its episode
                 a'  = the best by Q_target of `sampled_actions` actions of pi(. | s')
    L_pi(phi)  = E_s[ temperature log pi(a | s) - min(Q_1, Q_2)(s, a) ],               a ~ pi

R bounds the actions of the policy, at s and of s', and not the uniform ones. The sum over actions, its
importance sampling, entropy and its temperature are CQL's (`cql.py`). A Lagrange multiplier keeps the
gap between both terms near `target_gap`; with none the weight is fixed. Truncations bootstrap,
terminations do not. Steps of an episode that still runs in fine-tuning have no return yet: R is
-infinity for them, which bounds nothing.

Defaults are the authors' for AntMaze as CORL repeats them (`configs/finetune/cal_ql/antmaze`), whose
rewards are 10 r - 5: policy rate 1e-4, critic rate 3e-4, weight 5, gap 0.8 above -200, 10 sampled
actions. For Adroit they have a weight of 1 and no multiplier.

What differs from the authors' code (nakamotoo/Cal-QL, `JaxCQL/conservative_sac.py`):
- The backup's actions are the proposals at s', not samples of their own.
- Temperature, policy, critics and multiplier step at once, each from the networks before the step.
- The multiplier 1 and the offset -1 of the log standard deviation are fixed. Theirs are trained.
- Policy and critics have the same hidden layers. Theirs: a policy of two, critics of four for AntMaze.
- Layers start as `torch.nn.Linear` does. Theirs: orthogonal.
- R of an episode that fails under a sparse reward is the sum of the steps it has. The authors take
  that of failing for ever, reward / (1 - discount).
- Observations are standardized over the dataset by default. The authors leave them as they are.
- Fine-tuning takes a step in the environment for each update. The authors take whole episodes, and
  then as many updates.

What differs from CORL (`finetune/cal_ql.py`) besides: it stops calibrating when fine-tuning begins, as
its returns of online steps are 0; here they are those of the episodes, as the authors have them.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import conservative
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.networks import Scaling, TwinCritic, bellman_targets, make_generator, make_network
from orlog.algos.optimizers import descend, frozen, update_target
from orlog.algos.settings import ActorCritic, AnyNumber, Count, NotNegative, Positive, Widths
from orlog.loaders.batch import Batch


class CalQLConfig(ActorCritic, frozen=True, kw_only=True):
    """Settings of calibrated Q-learning."""

    hidden: Widths = (256, 256, 256)
    policy_learning_rate: Positive = 1e-4
    conservative_weight: NotNegative = 5.0
    """Factor alpha_cql of the conservative term, >= 0; 0 is soft actor-critic."""
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


class CalQL:
    """Calibrated Q-learning for continuous actions."""

    TITLE = "Cal-QL"
    CONFIG = CalQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "action_dim")

    @staticmethod
    def loader(config: CalQLConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: transitions with the returns of the data."""
        arguments = {"batch_size": config.batch_size, "discount": config.discount}
        return "orlog.loaders.transitions:transitions", {**arguments, "returns_to_go": True}

    def __init__(self, config: CalQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, self.action_dim = self.encoder.width, len(scaling.action_low)
        self.critic = TwinCritic(width, self.action_dim, config.hidden, generator=generator)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy = make_network(width, 2 * self.action_dim, config.hidden, generator=generator)
        self.log_temperature = nn.Parameter(torch.zeros((), device=device))
        self.log_multiplier = nn.Parameter(torch.ones((), device=device), requires_grad=config.target_gap is not None)
        critics = [*self.encoder.parameters(), *self.critic.parameters(), self.log_multiplier]
        policy = [*self.policy.parameters(), self.log_temperature]
        self.optimizer = conservative.make_optimizer(
            critics, config.critic_learning_rate, policy, config.policy_learning_rate
        )

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config, samples = self.config, self.config.sampled_actions
        features = self.encoder(self.encoder.shift(batch.observations))
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        gaussian = conservative.gaussian_of(self.policy(fixed))
        with torch.no_grad():
            next_features = self.encoder(self.encoder.shift(batch.next_observations))
            next_gaussian = conservative.gaussian_of(self.policy(next_features))
            proposals, log_densities = conservative.draw_proposals(gaussian, next_gaussian, samples, self.generator)
            next_actions = proposals[2 * samples :]  # those of pi(. | s')
            next_q = conservative.values_of(self.target_critic, next_features, next_actions)
            # The backup takes the best of the policy's actions, by the smaller of both critics.
            targets = bellman_targets(batch.rewards, batch.terminations, next_q.amin(0).amax(0), config.discount)

        # The data's actions and the proposals pass the critics in one product.
        judged = torch.cat([actions[None], proposals])
        q_all = conservative.values_of(self.critic, features, judged).transpose(1, 2)
        data_q = q_all[:, :, 0]
        bellman_loss = (data_q - targets).square().mean(-1).sum()
        gaps = calibrated_gaps(
            q_all[:, :, 1 : samples + 1],
            q_all[:, :, samples + 1 :],
            -self.action_dim * math.log(2),
            log_densities[samples:].T,
            data_q,
            batch.returns_to_go,
            config.smallest_gap,
        )
        conservative_loss = conservative.weighted_gaps(
            gaps, config.conservative_weight, config.target_gap, self.log_multiplier
        )

        # The policy's own action is a fresh sample with a gradient, judged by frozen critics.
        own_actions, own_log_densities = conservative.draw_actions(*gaussian, 1, self.generator)
        with frozen(self.critic):
            own_q = self.critic(fixed, own_actions[0]).amin(0)
        temperature = self.log_temperature.exp()
        policy_loss = (temperature.detach() * own_log_densities[0] - own_q).mean()
        entropy_error = (own_log_densities.detach() - self.action_dim).mean()
        temperature_loss = -self.log_temperature * entropy_error

        descend(self.optimizer, bellman_loss + conservative_loss + policy_loss + temperature_loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        bounded = q_all[:, :, samples + 1 :].detach() < batch.returns_to_go[:, None]
        return {
            "critic/bellman_loss": bellman_loss.detach(),
            "critic/gap": gaps.detach().mean(),
            "critic/bounded": bounded.float().mean(),
            "critic/mean": data_q.detach().mean(),
            "policy/loss": policy_loss.detach(),
            "policy/entropy": -own_log_densities.detach().mean(),
            "policy/temperature": temperature.detach(),
        }

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the tanh of the policy's mean in the environment's unit."""
        means, _ = conservative.gaussian_of(self.policy(self.encoder(observations)))
        return self.scaling.actions_from_unit(torch.tanh(means))

    @torch.no_grad()
    def explore(self, observations: Observations, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        """Return samples of the policy in the environment's unit."""
        gaussian = conservative.gaussian_of(self.policy(self.encoder(observations)))
        actions, _ = conservative.draw_actions(*gaussian, 1, generator)
        return self.scaling.actions_from_unit(actions[0])
