"""Conservative Q-learning (Kumar, Zhou, Tucker and Levine 2020, https://arxiv.org/abs/2006.04779).

CQL(H) on soft actor-critic:

    L_Q(theta) = alpha_cql E_s[ log sum_a exp Q(s, a) - E_(a ~ D) Q(s, a) ]            (equation 4)
                 + E[ ( r + discount (1 - termination) Q_target(s', a') - Q(s, a) )^2 ],  a' ~ pi
    L_pi(phi)  = E_s[ temperature log pi(a | s) - min(Q_1, Q_2)(s, a) ],               a ~ pi

The integral over actions is estimated as in the authors' code by importance sampling from three proposals of
`sampled_actions` each: uniform, pi(. | s) and pi(. | s'), all judged at s (the paper's appendix F has the first two).
`min(Q_1, Q_2)` of the target networks makes the backup; entropy is not backed up. The entropy temperature is tuned to
the target entropy -dim(A).

Cost: nearly all of an update goes into the critics' passes over 3 x `sampled_actions` actions per state. The policy
runs once per state and its Gaussian is sampled N times; the authors and CORL run it on N copies of each state.
Proposals carry no gradient.

Defaults are the authors' for Gym (`manifests/recorded/published/hyperparameters.json`, CQL / official d4rl (mujoco)),
with no Lagrange multiplier, and a policy that imitates the data for its first 40,000 steps (in their code one less).
With `target_gap` set, the weight is multiplied by a Lagrange multiplier that keeps the gap near it. Truncations
bootstrap, terminations do not.

What differs from the authors' code (aviralkumar2907/CQL, `sac/cql.py`):
- The action of the backup is the first of the proposals at s', not a sample of its own.
- Temperature, policy and critics step at once, each from the networks before the step. The authors step the
  temperature first and use the new one in the policy's loss.
- The log standard deviation is the network's output minus 1, clipped to [-20, 2]. The authors': not shifted, [-5, 2].
- While the policy imitates, the data's actions are clipped to 1 - 1e-5 and means are not. The authors clip means to
  [-9, 9], and 1 - a and 1 + a from below at 1e-6.
- The tanh's Jacobian is exact. The authors add 1e-6 to 1 - tanh^2.
- Lagrange: weight * multiplier * (gap - target_gap), as in Geng's code and CORL. The authors': multiplier * (weight *
  gap - threshold), so their threshold is weight * target_gap. The multiplier starts at 1 as theirs (Geng, CORL: at
  e).
- Layers start as `torch.nn.Linear` does. The authors': weights uniform within 1 / sqrt(width of the layer) with
  biases 0.1, last layers within 3e-3 (policy 1e-3).
- Target critics start as copies. In the authors' scripts they are networks of their own.
- Observations are standardized over the dataset by default, as in CORL but for AntMaze; the presets of both do as
  they do. Actions are mapped from the bounds of the action space to [-1, 1]; the authors leave them.
- Missing: CQL(rho) and sums without importance sampling, a temperature of the log-sum-exp, the backup of the largest
  of several actions (`max_q_backup`), the backup of entropy.

What differs from Geng's code (young-geng/CQL, `conservative_sac.py`) and CORL's, which follows it:
- The multiplier 1 and the offset -1 of the log standard deviation are fixed. Theirs are trained.
- Last layers start as all others. Theirs: Xavier with gain 0.01 and bias 0, and in CORL's critics orthogonal layers
  with gain sqrt(2) before a last one with gain 0.01.
- The policy imitates for its first 40,000 steps, as the authors' does. CORL's configurations have none, and its loss
  for them takes the density of the policy's own samples, not of the data.
- Geng clips the data's actions to 0.999. Here and in CORL they are not clipped.
- CORL's weight is 10 and its policy rate 3e-5 on locomotion and maze2d, 1 and 1e-4 on Adroit; on AntMaze it takes the
  Lagrange form, critics of five hidden layers and the backup of the largest.
- Missing besides: bounds of the gap (`cql_clip_diff_min`, `.._max`), target updates in some steps only.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import critics
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import descend, frozen, parameters_of, update_target
from orlog.algos.policies import act_tanh, squashed_log_density
from orlog.algos.settings import AnyNumber, Count, Natural, NotNegative, NStepActorCritic, Positive, Widths
from orlog.loaders.batch import Batch


class CQLConfig(NStepActorCritic, frozen=True, kw_only=True):
    """Settings of conservative Q-learning; the policy's rate is the temperature's, the critics' the multiplier's."""

    hidden: Widths = (256, 256, 256)
    policy_learning_rate: Positive = 1e-4
    conservative_weight: NotNegative = 5.0
    """Factor alpha_cql of the conservative term; 0 is soft actor-critic."""
    sampled_actions: Count = 10
    """Actions drawn per state from each of the three proposals."""
    target_gap: AnyNumber | None = None
    """Gap that the Lagrange multiplier aims at; none keeps the weight fixed."""
    cloning_steps: Natural = 40_000
    """First steps in which the policy imitates the data instead of following the critics."""


class CQL:
    """Conservative Q-learning for continuous actions."""

    CONFIG: Any = CQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    MULTIPLIER = 0.0  # the logarithm at the start
    loader = staticmethod(critics.transitions_of)
    act = act_tanh
    explore = critics.explore_softly

    def __init__(self, config: Any, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.critic = TwinCritic(width, action_dim, config.hidden, generator=generator)
        self.target_critic = critics.target_of(self.critic)
        self.policy = make_network(width, 2 * action_dim, config.hidden, generator=generator)
        self.log_temperature = nn.Parameter(torch.zeros((), device=device))
        self.log_multiplier = nn.Parameter(
            torch.full((), self.MULTIPLIER, device=device), requires_grad=config.target_gap is not None
        )
        self.optimizer = critics.critics_and_policy_optimizer(
            config,
            [*parameters_of(self.encoder, self.critic), self.log_multiplier],
            [*self.policy.parameters(), self.log_temperature],
        )
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether the policy still clones."""
        return bool(self.step < getattr(self.config, "cloning_steps", 0))

    def next_values(self, features: Tensor, actions: Tensor) -> Float32[Tensor, " batch"]:
        """Return the values of next states: of the first of the policy's actions there."""
        values: Tensor = self.target_critic(features, actions[0]).amin(0)
        return values

    def gaps(
        self, sampled_q: Tensor, log_densities: Tensor, data_q: Tensor, batch: Batch
    ) -> tuple[Float32[Tensor, 2], dict[str, Tensor]]:
        """Return the conservative term of each critic, and metrics of it."""
        del batch
        return critics.conservative_gaps(sampled_q, log_densities, data_q), {}

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config, samples = self.config, self.config.sampled_actions
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions = self.scaling.actions_to_unit(batch.actions)

        gaussian = critics.gaussian_of(self.policy(fixed))
        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_gaussian = critics.gaussian_of(self.policy(next_features))
            proposals, log_densities = critics.draw_proposals(gaussian, next_gaussian, samples, self.generator)
            next_q = self.next_values(next_features, proposals[2 * samples :])  # those of pi(. | s')
            targets = critics.bellman_targets(
                batch.rewards, batch.terminations, next_q, critics.discounts_of(config, batch)
            )

        # The data's actions and the proposals pass the critics in one product.
        q_all = critics.values_of(self.critic, features, torch.cat([actions[None], proposals])).transpose(1, 2)
        data_q = q_all[:, :, 0]
        bellman_loss = critics.squared_errors(data_q, targets)
        gaps, metrics = self.gaps(q_all[:, :, 1:], log_densities.T, data_q, batch)
        conservative_loss = critics.weighted_gaps(
            gaps, config.conservative_weight, config.target_gap, self.log_multiplier
        )

        # The policy's own action is a fresh sample with a gradient, judged by frozen critics.
        own_actions, own_log_densities = critics.draw_actions(*gaussian, 1, self.generator)
        temperature = self.log_temperature.exp()
        if self.phase():
            policy_value = squashed_log_density(actions, *gaussian)
        else:
            with frozen(self.critic):
                policy_value = self.critic(fixed, own_actions[0]).amin(0)
        policy_loss = (temperature.detach() * own_log_densities[0] - policy_value).mean()
        entropy_loss = critics.temperature_loss(self.log_temperature, own_log_densities, -actions.shape[-1])

        descend(self.optimizer, bellman_loss + conservative_loss + policy_loss + entropy_loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        self.step += 1
        return {
            "critic/bellman_loss": bellman_loss.detach(),
            "critic/gap": gaps.detach().mean(),
            **metrics,
            "critic/mean": data_q.detach().mean(),
            "policy/loss": policy_loss.detach(),
            "policy/entropy": -own_log_densities.detach().mean(),
            "policy/temperature": temperature.detach(),
        }
