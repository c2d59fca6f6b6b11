"""Conservative Q-learning (Kumar, Zhou, Tucker and Levine 2020, https://arxiv.org/abs/2006.04779).

CQL(H) on soft actor-critic:

    L_Q(theta) = alpha_cql E_s[ log sum_a exp Q(s, a) - E_(a ~ D) Q(s, a) ]            (equation 4)
                 + E[ ( r + discount (1 - termination) Q_target(s', a') - Q(s, a) )^2 ],  a' ~ pi
    L_pi(phi)  = E_s[ temperature log pi(a | s) - min(Q_1, Q_2)(s, a) ],               a ~ pi

The integral over actions is estimated as in the authors' code by importance sampling from three
proposals of `sampled_actions` each: uniform, pi(. | s) and pi(. | s'), all judged at s (the paper's
appendix F has the first two). `min(Q_1, Q_2)` of the target networks makes the backup; entropy is
not backed up. The entropy temperature is tuned to the target entropy -dim(A).

Cost: nearly all of an update goes into the critics' passes over 3 x `sampled_actions` actions per
state. The policy runs once per state and its Gaussian is sampled N times; the authors and CORL run
it on N copies of each state. Proposals carry no gradient.

Defaults are the authors' for Gym (`manifests/recorded/published/hyperparameters.json`, CQL / official d4rl
(mujoco)): three hidden layers of 256, policy rate 1e-4, critic rate 3e-4, weight 5, 10 sampled
actions, no Lagrange multiplier, and a policy that imitates the data for its first 40,000 steps (in
their code one less). With `target_gap` set, the weight is multiplied by a Lagrange multiplier that
keeps the gap near it. Truncations bootstrap, terminations do not.

What differs from the authors' code (aviralkumar2907/CQL, `sac/cql.py`):
- The action of the backup is the first of the proposals at s', not a sample of its own.
- Temperature, policy and critics step at once, each from the networks before the step. The authors
  step the temperature first and use the new one in the policy's loss.
- The log standard deviation is the network's output minus 1, clipped to [-20, 2]. The authors': the
  output itself, clipped to [-5, 2].
- While the policy imitates, the data's actions are clipped to 1 - 1e-5 and means are not. The
  authors clip means to [-9, 9], and 1 - a and 1 + a from below at 1e-6.
- The tanh's Jacobian is exact. The authors add 1e-6 to 1 - tanh^2.
- Lagrange: weight * multiplier * (gap - target_gap), as in Geng's code and CORL. The authors':
  multiplier * (weight * gap - threshold), so their threshold is weight * target_gap. The multiplier
  starts at 1 as theirs (Geng, CORL: at e).
- Layers start as `torch.nn.Linear` does. The authors': weights uniform within 1 / sqrt(width of the
  layer) with biases 0.1, last layers within 3e-3 (policy 1e-3).
- Target critics start as copies. In the authors' scripts they are networks of their own.
- Observations are standardized over the dataset by default, as in CORL but for AntMaze; the presets
  of both do as they do. Actions are mapped from the bounds of the action space to [-1, 1]; the
  authors leave them.
- Missing: CQL(rho) and sums without importance sampling, a temperature of the log-sum-exp, the
  backup of the largest of several actions (`max_q_backup`), the backup of entropy.

What differs from Geng's code (young-geng/CQL, `conservative_sac.py`) and CORL's, which follows it:
- The multiplier 1 and the offset -1 of the log standard deviation are fixed. Theirs are trained.
- Last layers start as all others. Theirs: Xavier with gain 0.01 and bias 0, and in CORL's critics
  orthogonal layers with gain sqrt(2) before a last one with gain 0.01.
- The policy imitates for its first 40,000 steps, as the authors' does. CORL's configurations have
  none, and its loss for them takes the density of the policy's own samples, not of the data.
- Geng clips the data's actions to 0.999. Here and in CORL they are not clipped.
- CORL's weight is 10 and its policy rate 3e-5 on locomotion and maze2d, 1 and 1e-4 on Adroit; on
  AntMaze it takes the Lagrange form, critics of five hidden layers and the backup of the largest.
- Missing besides: bounds of the gap (`cql_clip_diff_min`, `.._max`), target updates in some steps only.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import conservative
from orlog.algos.encoders import Observations, encoder_of
from orlog.algos.gaussians import squashed_log_density
from orlog.algos.networks import Scaling, TwinCritic, bellman_targets, make_generator, make_network
from orlog.algos.optimizers import descend, frozen, update_target
from orlog.algos.settings import ActorCritic, AnyNumber, Count, Natural, NotNegative, Positive, Widths
from orlog.loaders.batch import Batch


class CQLConfig(ActorCritic, frozen=True, kw_only=True):
    """Settings of conservative Q-learning."""

    hidden: Widths = (256, 256, 256)
    policy_learning_rate: Positive = 1e-4
    conservative_weight: NotNegative = 5.0
    """Factor alpha_cql of the conservative term, >= 0; 0 is soft actor-critic."""
    sampled_actions: Count = 10
    """Actions drawn per state from each of the three proposals."""
    target_gap: AnyNumber | None = None
    """Gap that the Lagrange multiplier aims at; none keeps the weight fixed."""
    cloning_steps: Natural = 40_000
    """First steps in which the policy imitates the data instead of following the critics."""


def conservative_gaps(
    sampled_q: Float32[Tensor, "2 batch samples"],
    sampled_log_densities: Float32[Tensor, "batch samples"],
    data_q: Float32[Tensor, "2 batch"],
) -> Float32[Tensor, 2]:
    """Return log sum_j exp(Q_j - log density_j) minus the data's Q, averaged over the batch.

    With action j drawn from the given density, the first part estimates the logarithm of the
    integral of exp Q over actions, plus the logarithm of the number of samples (equation 4 and
    appendix F; the authors' code keeps that constant too).
    """
    log_integral = torch.logsumexp(sampled_q - sampled_log_densities, -1)
    return (log_integral - data_q).mean(-1)


class CQL:
    """Conservative Q-learning for continuous actions."""

    CONFIG = CQLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "action_dim")

    @staticmethod
    def loader(config: CQLConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: transitions."""
        return "orlog.loaders.transitions:transitions", {"batch_size": config.batch_size}

    def __init__(self, config: CQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
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
        self.log_multiplier = nn.Parameter(torch.zeros((), device=device), requires_grad=config.target_gap is not None)
        critics = [*self.encoder.parameters(), *self.critic.parameters(), self.log_multiplier]
        policy = [*self.policy.parameters(), self.log_temperature]
        self.optimizer = conservative.make_optimizer(
            critics, config.critic_learning_rate, policy, config.policy_learning_rate
        )
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether the policy still clones."""
        return self.step < self.config.cloning_steps

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
            next_action = proposals[2 * samples]  # the first of pi(. | s')
            next_q = self.target_critic(next_features, next_action).amin(0)
            targets = bellman_targets(batch.rewards, batch.terminations, next_q, config.discount)

        # The data's actions and the proposals pass the critics in one product.
        judged = torch.cat([actions[None], proposals])
        q_all = conservative.values_of(self.critic, features, judged)
        data_q = q_all[:, 0]
        bellman_loss = (data_q - targets).square().mean(-1).sum()
        gaps = conservative_gaps(q_all[:, 1:].transpose(1, 2), log_densities.T, data_q)
        conservative_loss = conservative.weighted_gaps(
            gaps, config.conservative_weight, config.target_gap, self.log_multiplier
        )

        # The policy's own action is a fresh sample with a gradient, judged by frozen critics.
        own_actions, own_log_densities = conservative.draw_actions(*gaussian, 1, self.generator)
        temperature = self.log_temperature.exp()
        if self.phase():
            policy_value = squashed_log_density(actions, *gaussian)
        else:
            with frozen(self.critic):
                policy_value = self.critic(fixed, own_actions[0]).amin(0)
        policy_loss = (temperature.detach() * own_log_densities[0] - policy_value).mean()
        entropy_error = (own_log_densities.detach() - self.action_dim).mean()
        temperature_loss = -self.log_temperature * entropy_error

        descend(self.optimizer, bellman_loss + conservative_loss + policy_loss + temperature_loss)
        update_target(self.target_critic, self.critic, config.target_rate)
        self.step += 1
        return {
            "critic/bellman_loss": bellman_loss.detach(),
            "critic/gap": gaps.detach().mean(),
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
