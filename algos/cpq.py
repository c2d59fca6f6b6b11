"""Constraints Penalized Q-learning (Xu, Zhan and Zhu 2022, https://arxiv.org/abs/2107.09003).

    l        = cost_limit (1 - discount^T) / (1 - discount) / T                the limit as a discounted cost
    L_E      = E[ |decoded(s, z) - a|^2 + divergence_weight KL(q(z | s, a) || N(0, 1)) ]    an autoencoder of actions
    L_C      = E[ ( c + discount C_target(s', a') - C(s, a) )^2 ] - alpha ( E_(s, o)[ C(s, o) ] - l' )
    L_Q      = E[ ( r + discount 1(C_target(s', a') <= l) Q_target(s', a') - Q(s, a) )^2 ],          a' ~ pi
    L_pi     = -E_(s, a ~ pi)[ 1(C(s, a) <= l) Q(s, a) ]

Costs of actions that the data do not have are raised to l' = `unseen_factor` l: o are those of `sampled_actions`
samples of the policy in each state whose divergence KL(q(z | s, o) || N(0, 1)) is above that of 95 % of the data's
actions in a batch. alpha is a multiplier that grows while their cost is below l', and falls while it is above. Values
follow only actions whose cost is within the limit, so what costs too much is worth nothing. Rewards should be
positive on the whole, since a value of 0 is what an unsafe action has.

Costs are the info `cost` of the dataset's steps, or the column with that role. T, the length of an episode, is the
mean of the data unless `episode_length` is set. Truncations bootstrap, terminations do not.

Defaults are OSRL's for BulletSafetyGym (`manifests/recorded/published/hyperparameters.json`, safe / CPQ), without its
factor 0.1 of rewards. The authors' code is not public. What differs from OSRL (liuzuxin/OSRL at 03a4586,
`osrl/algorithms/cpq.py`):
- The term of unseen actions has a gradient, as in the paper (equation 7). OSRL computes it from the target networks,
  so that it is only a number in the loss.
- Its mean is over the unseen actions. OSRL's is over all samples, where others count as 0.
- Unseen are samples less usual than 95 % of the data's actions. OSRL takes the least usual quarter of the samples,
  although the data may have them all.
- Samples pass through the tanh, as actions do. OSRL takes them before the tanh, where they may lie outside of [-1,
  1].
- `cloning_steps`, `unsafe_weight` and `bounded_costs` are additions, which recorded baselines use. None is on by
  default, which is OSRL's. With `bounded_costs` alpha never falls: a cost counts up to l'. In trials with a cost of
  unseen actions (1.5, seed 100, 2,000 steps with 25 times alpha's step size) alpha came to 58 on
  safety/circle-mixed-v1 and to its bound of 148 on hazard-mixed, in place of 0.14 and 0.11; scores were 56 and 17 in
  place of -2 and 35, costs 0 and 0 in place of 0 and 8. So neither is better on both.
- Of two cost critics the larger counts, in targets and in what is judged. OSRL takes the smaller.
- Nothing follows a termination, of costs either. OSRL bootstraps costs at terminations.
- All losses are computed from the networks before the step; OSRL steps one after another.
- The logarithm of the standard deviation is clipped to [-20, 2] as there. Layers start as `torch.nn.Linear` does.
- Observations are standardized over the dataset by default. OSRL leaves them as they are.
- alpha is trained by gradient ascent as there, and its logarithm stays in [-5, 5].
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import critics
from orlog.algos.encoders import encoder_of
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, frozen, parameters_of, update_target
from orlog.algos.policies import act_tanh, sample_squashed, squashed_log_density, squashed_samples
from orlog.algos.settings import ActorCritic, Count, Natural, NotNegative, Positive
from orlog.loaders.batch import Batch

_LOG_STDS = (-20.0, 2.0)
_LATENT_LOG_STDS = (-4.0, 15.0)
_LOG_ALPHA = 5.0
_UNSEEN = 0.95  # quantile of divergences from which on actions count as unseen


class CPQConfig(ActorCritic, frozen=True, kw_only=True):
    """Settings of Constraints Penalized Q-learning; the critics' rate is the autoencoder's too."""

    cost_limit: NotNegative = 10.0
    """Cost that an episode may have on average."""
    autoencoder_width: Count = 400
    """Width of the two hidden layers of encoder and decoder of actions."""
    policy_learning_rate: Positive = 1e-4
    critic_learning_rate: Positive = 1e-3
    multiplier_learning_rate: Positive = 1e-4
    """Step size of the multiplier of unseen actions."""
    batch_size: Count = 512
    sampled_actions: Count = 10
    """Actions drawn per state, of which the least usual ones are to cost."""
    divergence_weight: NotNegative = 0.5
    """Factor of the divergence in the autoencoder's loss."""
    unseen_factor: NotNegative = 1.5
    """What unseen actions are to cost, in units of the limit."""
    cloning_steps: Natural = 0
    """First steps in which the policy imitates the data instead of following the critics."""
    unsafe_weight: NotNegative = 0.0
    """Factor of the cost of the policy's unsafe actions in its loss; with 0 nothing moves them."""
    bounded_costs: bool = False
    """Whether costs of unseen actions count up to what they are to be, so that the multiplier never falls."""
    episode_length: Positive | None = None
    """Steps of an episode, over which the limit is spread; by default the mean of the data."""

    RECORDED_BEFORE: ClassVar[dict[str, object]] = {"bounded_costs": True}
    """What runs and baselines did whose records do not name the setting."""


class Autoencoder(nn.Module):
    """Actions of states -> a Gaussian of latent numbers -> actions; twice as many as the action has."""

    def __init__(self, obs_dim: int, action_dim: int, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        hidden, latent = (width, width), 2 * action_dim
        self.encoder = make_network(obs_dim + action_dim, 2 * latent, hidden, generator=generator)
        self.decoder = make_network(obs_dim + latent, action_dim, hidden, generator=generator)

    def encode(
        self, features: Float32[Tensor, "*batch obs"], actions: Float32[Tensor, "*batch act"]
    ) -> tuple[Float32[Tensor, "*batch latent"], Float32[Tensor, "*batch latent"]]:
        """Return means and log standard deviations of the latent numbers."""
        means, log_stds = self.encoder(torch.cat([features, actions], -1)).chunk(2, -1)
        return means, log_stds.clamp(*_LATENT_LOG_STDS)

    def decode(
        self, features: Float32[Tensor, "batch obs"], latent: Float32[Tensor, "batch latent"]
    ) -> Float32[Tensor, "batch act"]:
        """Return actions in [-1, 1]."""
        return torch.tanh(self.decoder(torch.cat([features, latent], -1)))


def divergences(
    means: Float32[Tensor, "*batch latent"], log_stds: Float32[Tensor, "*batch latent"]
) -> Float32[Tensor, "*batch"]:
    """Return KL(N(mean, std^2) || N(0, 1)), the mean over latent numbers."""
    return 0.5 * (means.square() + torch.exp(2 * log_stds) - 1 - 2 * log_stds).mean(-1)


class CPQ:
    """Constraints Penalized Q-learning for continuous actions."""

    CONFIG = CPQConfig
    FROM_DATA = ("episode_length",)
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "limit")
    loader = staticmethod(critics.transitions_with_costs)
    act = act_tanh

    def __init__(self, config: CPQConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.limit = config, scaling.to(device), critics.discounted_limit(config)
        self.generator = make_generator(seed, 1, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        width, action_dim = self.encoder.width, len(scaling.action_low)
        self.autoencoder = Autoencoder(width, action_dim, config.autoencoder_width, generator=generator)
        self.critic, self.cost_critic = (
            TwinCritic(width, action_dim, config.hidden, generator=generator) for _ in range(2)
        )
        self.target_critic, self.target_cost_critic = (
            critics.target_of(self.critic),
            critics.target_of(self.cost_critic),
        )
        self.policy = make_network(width, 2 * action_dim, config.hidden, generator=generator)
        self.log_multiplier = nn.Parameter(torch.zeros((), device=device), requires_grad=False)
        trained = parameters_of(self.encoder, self.autoencoder, self.critic, self.cost_critic)
        self.optimizer = Adam(trained, config.critic_learning_rate)
        self.policy_optimizer = Adam(self.policy.parameters(), config.policy_learning_rate)
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether the policy still clones."""
        return self.step < self.config.cloning_steps

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config, limit = self.config, self.limit
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()
        actions = self.scaling.actions_to_unit(batch.actions)
        means, log_stds = self.policy(fixed).chunk(2, -1)
        log_stds = log_stds.clamp(*_LOG_STDS)

        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_actions, _ = sample_squashed(self.policy(next_features), _LOG_STDS, self.generator)
            next_costs = self.target_cost_critic(next_features, next_actions).amax(0)
            next_q = (next_costs <= limit) * self.target_critic(next_features, next_actions).amin(0)
            targets = critics.bellman_targets(batch.rewards, batch.terminations, next_q, config.discount)
            cost_targets = critics.bellman_targets(
                critics.costs_of(batch), batch.terminations, next_costs, config.discount
            )
            shape = (config.sampled_actions, *means.shape)
            noise = torch.randn(shape, generator=self.generator, device=means.device)
            sampled, _ = squashed_samples(means, log_stds, noise)
            many = fixed.expand(config.sampled_actions, -1, -1)
            unusual = divergences(*self.autoencoder.encode(many, sampled))

        latent, latent_log_stds = self.autoencoder.encode(fixed, actions)
        drawn = torch.randn(latent.shape, generator=self.generator, device=latent.device)
        decoded = self.autoencoder.decode(fixed, latent + latent_log_stds.exp() * drawn)
        usual = divergences(latent, latent_log_stds)
        autoencoder_loss = (decoded - actions).square().mean() + (config.divergence_weight * usual.mean())
        unseen = unusual > torch.quantile(usual.detach(), _UNSEEN)

        q_values = self.critic(features, actions)
        critic_loss = critics.squared_errors(q_values, targets)
        costs = self.cost_critic(features, actions)
        judged = self.cost_critic(many.flatten(0, 1), sampled.flatten(0, 1)).amax(0)
        lowest = config.unseen_factor * limit
        judged = judged.clamp(max=lowest) if config.bounded_costs else judged
        unseen_cost = (judged * unseen.flatten()).sum() / unseen.sum().clamp(min=1)
        multiplier = self.log_multiplier.exp()
        gap = unseen_cost - lowest
        cost_loss = critics.squared_errors(costs, cost_targets) - multiplier * gap

        noise = torch.randn((1, *means.shape), generator=self.generator, device=means.device)
        own = squashed_samples(means, log_stds, noise)[0][0]
        with frozen(self.critic), frozen(self.cost_critic):
            own_costs = self.cost_critic(fixed, own).amax(0)
            is_safe = own_costs.detach() <= limit
            worth = torch.where(is_safe, self.critic(fixed, own).amin(0), -config.unsafe_weight * own_costs)
        if self.phase():
            worth = squashed_log_density(actions, means, log_stds)
        policy_loss = -worth.mean()

        # The policy first: its loss passes through the critics as they are before their step.
        descend(self.policy_optimizer, policy_loss)
        descend(self.optimizer, autoencoder_loss + critic_loss + cost_loss)
        rate = config.multiplier_learning_rate
        self.log_multiplier.sub_(rate * multiplier * gap.detach()).clamp_(-_LOG_ALPHA, _LOG_ALPHA)
        update_target(self.target_critic, self.critic, config.target_rate)
        update_target(self.target_cost_critic, self.cost_critic, config.target_rate)
        self.step += 1
        return {
            "critic/loss": critic_loss.detach(),
            "critic/mean": q_values.detach().mean(),
            "cost/mean": costs.detach().mean(),
            "cost/unseen": unseen_cost.detach(),
            "cost/multiplier": multiplier.detach(),
            "policy/loss": policy_loss.detach(),
            "policy/safe": is_safe.float().mean(),
            "policy/unseen": unseen.float().mean(),
            "policy/decoded": (decoded - actions).square().mean().detach(),
            "policy/usual": usual.mean().detach(),
        }
