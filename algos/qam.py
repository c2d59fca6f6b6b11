"""QAM: Q-learning with adjoint matching (Li and Levine 2026, https://arxiv.org/abs/2601.14234).

A flow v_slow imitates the data. A second flow v_fast of the same form is what v_slow becomes where its actions are
weighed by exp(Q / temperature). It learns from paths of noise: the critic's gradient at a path's end is carried back
along v_slow alone (the lean adjoint), and v_fast regresses on it, so that no gradient passes through several steps
of a flow.

    L_slow(theta) = E m_h || v_slow(s, x_t, t) - (A - z) ||^2,   x_t = (1 - t) z + t A               (flow matching)
    x_(t+h)       = x_t + h (2 v_fast(s, x_t, t) - x_t / (t + h)) + sqrt(h) sigma_t e,   x_0, e ~ N(0, 1)
                    h = 1 / flow_steps, sigma_t = sqrt(2 (1 - t + h) / (t + h)); the last step is x + h v_slow(s, x, t)
    g_1           = -beta grad_x Q(s, clip(x_1))
    g_t           = g_(t+h) + h g_(t+h) d/dx [ 2 v_slow(s, x_t, t + h) - x_t / (t + h) ]
    L_fast(omega) = E sum_t || (2 / sigma_t) (v_fast(s, x_t, t) - v_slow(s, x_t, t)) + sigma_t g_t ||^2
    L_Q(phi)      = E[ m_h ( R + discount^h (1 - termination) (mean_i Q_i - rho std_i Q_i)(s_h, A') - Q(s, A) )^2 ]
                    target networks Q_i of `critics` critics, A' of the policy

A is the next `chunk_length` actions, m_h and R as in QC-FQL (`qcfql.py`). The policy carries noise along v_fast
to A, clipped to [-1, 1], and takes the best of `sampled_actions` by the mean of the critics. v_slow in L_fast and
in g is a target network; so are the critics in g.

Two forms refine what the flow gives, each by a setting:

    edit_scale           QAM-E: A + edit_scale * e, e of a tanh-Gaussian policy of (s, A), which seeks high values and
                         an entropy of -1/2 for each number
    distillation_weight  QAM-F: mu(s, z), one network, imitates where v_fast carries z and seeks high values, as in FQL

All losses are computed from the networks before the step; the norm of all gradients together is at most 1, and one
Adam moves all. Critics have layer normalization after each activation, which is GELU. Truncations after a whole chunk
bootstrap, terminations do not. In an episode the policy acts out a chunk before it looks again.

Defaults are the authors' (`get_config` and `experiments/reproduce.py`), who choose `inverse_temperature` (0.1 to 30),
`edit_scale` and `distillation_weight` for each environment, a `chunk_length` of 5 for manipulation and 1 for
locomotion, and a pessimism of 0 for humanoids.

What differs from the paper's equations, as in the authors' code: v_slow is asked at t + h in g, and the path's last
step has no noise.

What differs from the authors' code (ColinQiyangLi/qam at f93efd2, `agents/qam.py`, in JAX): observations, actions,
`hidden`, convolutions of frames, slots after the end of an episode and `orlog finetune`, as `fql` and `qcfql` list.
Missing: n-step sums without chunks, v_fast as a residual of v_slow, and switches of clipping and of target networks.
As in their code, target networks move towards networks as they were before the step. `tests/algos/recorded` holds
parameters after 100 of its updates.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos.critics import target_of
from orlog.algos.encoders import encoder_of
from orlog.algos.flows import flow_actions, flow_errors
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, frozen, parameters_of, update_target
from orlog.algos.policies import sample_squashed
from orlog.algos.qcfql import QCFQL
from orlog.algos.settings import Count, NotNegative, Positive, Valued, Widths
from orlog.loaders.batch import Batch

LOG_STD_BOUNDS = (-20.0, 2.0)


class QAMConfig(Valued, frozen=True, kw_only=True):
    """Settings of Q-learning with adjoint matching."""

    hidden: Widths = (512, 512, 512, 512)
    chunk_length: Count = 5
    """Actions in a chunk, which the policy acts out one after the other."""
    critics: Count = 10
    pessimism: NotNegative = 0.5
    """Standard deviations rho of the target critics that are taken off their mean."""
    inverse_temperature: Positive = 0.3
    """Factor beta of the critics' gradient."""
    sampled_actions: Count = 1
    """Chunks out of which the policy takes the best."""
    flow_steps: Count = 10
    """Steps from noise to a chunk."""
    edit_scale: Positive | None = None
    """Size of the edits of QAM-E."""
    distillation_weight: Positive | None = None
    """Weight of the distance to the flow's chunk in the loss of QAM-F's policy."""

    def __post_init__(self) -> None:
        if self.edit_scale is not None and self.distillation_weight is not None:
            raise ValueError("edit_scale and distillation_weight are two forms of QAM; set one of them.")


class QAM(QCFQL):
    """Q-learning with adjoint matching, over chunks of continuous actions."""

    CONFIG = QAMConfig

    def __init__(self, config: QAMConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.seed = config, scaling.to(device), seed
        self.generator, self.acting = make_generator(seed, 1, device), make_generator(seed, 2, device)
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        pair, actions, hidden = self.encoder.width + self.action_dim, self.action_dim, config.hidden
        self.critic = nn.ModuleList(
            make_network(pair, 1, hidden, generator=generator, layer_norm=True, style="gelu")
            for _ in range(config.critics)
        )
        self.slow, self.fast = (
            make_network(pair + 1, actions, hidden, generator=generator, style="gelu") for _ in range(2)
        )
        self.target_critic, self.target_slow = target_of(self.critic), target_of(self.slow)
        trained = parameters_of(self.encoder, self.critic, self.slow, self.fast)
        if self.is_refined:
            numbers = 2 * actions if config.edit_scale else actions  # edits have means and deviations
            self.policy = make_network(pair, numbers, hidden, generator=generator, style="gelu")
            trained += parameters_of(self.policy)
        if config.edit_scale:
            self.log_temperature = nn.Parameter(torch.zeros((), device=device))
            trained.append(self.log_temperature)
        self.optimizer = Adam(trained, config.learning_rate)

    @property
    def is_refined(self) -> bool:
        """Whether a policy refines what the flow gives."""
        return bool(self.config.edit_scale or self.config.distillation_weight)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        features = self.encoder.shifted(batch.observations)
        fixed = features.detach()  # the critics alone train the encoder
        actions, _, whole, discounts = self.taken(batch)

        with torch.no_grad():
            next_features = self.encoder.shifted(batch.next_observations)
            next_q = ensemble_values(
                self.target_critic, next_features, self.unit_actions(next_features, self.generator)
            )
            next_values = next_q.mean(0) - config.pessimism * next_q.std(0, correction=0)
            targets = batch.rewards + discounts * (1 - batch.terminations) * next_values
        q_values = ensemble_values(self.critic, features, actions)
        critic_loss = ((q_values - targets).square() * whole).mean()

        slow_loss = (flow_errors(self.slow, fixed, actions, self.generator).mean(-1) * whole).mean()
        fast_loss = self.matching_loss(fixed)

        self.optimizer.zero_grad()
        (critic_loss + slow_loss + fast_loss).backward()
        metrics = {"critic/loss": critic_loss, "critic/mean": q_values.mean()}
        metrics |= {"slow/loss": slow_loss, "fast/loss": fast_loss}
        if self.is_refined:
            with frozen(self.critic):
                policy_loss = self.edit_loss(fixed) if config.edit_scale else self.distillation_loss(fixed)
                policy_loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            metrics["policy/loss"] = policy_loss

        update_target(self.target_critic, self.critic, config.target_rate)
        update_target(self.target_slow, self.slow, config.target_rate)
        gradients = [parameter.grad for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_div_(gradients, norm.clamp(min=1))
        self.optimizer.step()
        return {name: value.detach() for name, value in metrics.items()}

    def matching_loss(self, features: Float32[Tensor, "batch features"]) -> Float32[Tensor, ""]:
        """Return how far v_fast is from what the critics' gradients, carried back along v_slow, ask for."""
        config, steps = self.config, self.config.flow_steps
        h, count = 1 / steps, len(features)
        points = self.noise(features, self.generator)
        times, path = [step / steps for step in range(steps)], [points]
        sigmas = [(2 * (1 - t + h) / (t + h)) ** 0.5 for t in times]
        with torch.no_grad():
            for t, sigma in zip(times[:-1], sigmas, strict=False):
                drift = 2 * velocities(self.fast, features, points, t) - points / (t + h)
                points = points + h * drift + h**0.5 * sigma * self.noise(features, self.generator)
                path.append(points)
            points = points + h * velocities(self.target_slow, features, points, times[-1])

        points.requires_grad_()
        values = ensemble_values(self.target_critic, features, points.clamp(-1, 1)).mean(0)
        (adjoint,) = torch.autograd.grad(values.sum(), points)
        adjoint, adjoints = -config.inverse_temperature * adjoint, []
        for t, here in zip(times[::-1], path[::-1], strict=True):
            here.requires_grad_()
            drift = 2 * velocities(self.target_slow, features, here, t + h) - here / (t + h)
            (carried,) = torch.autograd.grad(drift, here, adjoint)
            adjoint = adjoint + h * carried
            adjoints.append(adjoint)

        # All steps of all paths at once: fewer, larger products.
        along, ahead = torch.cat(path).detach(), torch.cat(adjoints[::-1])
        starts = torch.arange(steps, device=features.device, dtype=features.dtype) / steps
        at = starts.repeat_interleave(count)[:, None]
        sigma = (2 * (1 - at + h) / (at + h)).sqrt()
        repeated = features.repeat(steps, 1)
        with torch.no_grad():
            base = velocities(self.target_slow, repeated, along, at)
        errors = (velocities(self.fast, repeated, along, at) - base) * 2 / sigma + sigma * ahead
        loss: Tensor = errors.square().sum() / count
        return loss

    def edit_loss(self, features: Float32[Tensor, "batch features"]) -> Float32[Tensor, ""]:
        """Return QAM-E's loss of the policy of edits and of its temperature."""
        carried = self.carried(features, self.generator)
        outputs = self.policy(torch.cat([features, carried], -1))
        edits, log_densities = sample_squashed(outputs, LOG_STD_BOUNDS, self.generator)
        edited = (carried + self.config.edit_scale * edits).clamp(-1, 1)
        temperature, wanted = self.log_temperature.exp(), -0.5 * self.action_dim
        temperature_loss = -temperature * (log_densities.detach().mean() + wanted)
        values = ensemble_values(self.critic, features, edited).mean()
        loss: Tensor = temperature.detach() * log_densities.mean() - values + temperature_loss
        return loss

    def distillation_loss(self, features: Float32[Tensor, "batch features"]) -> Float32[Tensor, ""]:
        """Return QAM-F's loss of the policy."""
        noise = self.noise(features, self.generator)
        carried = flow_actions(self.fast, features, noise, self.config.flow_steps)
        predicted = self.policy(torch.cat([features, noise], -1))
        values = ensemble_values(self.critic, features, predicted.clamp(-1, 1)).mean()
        loss: Tensor = self.config.distillation_weight * (predicted - carried).square().mean() - values
        return loss

    def noise(self, features: Tensor, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        """Return noise for encoded observations."""
        return torch.randn((len(features), self.action_dim), generator=generator, device=features.device)

    def carried(self, features: Tensor, generator: torch.Generator) -> Float32[Tensor, "batch act"]:
        """Return where v_fast carries fresh noise."""
        return flow_actions(self.fast, features, self.noise(features, generator), self.config.flow_steps)

    @torch.no_grad()
    def unit_actions(
        self, features: Float32[Tensor, "batch features"], generator: torch.Generator
    ) -> Float32[Tensor, "batch act"]:
        """Return the best of fresh chunks of the policy in [-1, 1] for encoded observations."""
        config, count = self.config, self.config.sampled_actions
        features = features.repeat_interleave(count, 0)
        actions: Tensor
        if config.distillation_weight:
            actions = self.policy(torch.cat([features, self.noise(features, generator)], -1))
        else:
            actions = self.carried(features, generator)
        if config.edit_scale:
            outputs = self.policy(torch.cat([features, actions], -1))
            actions = actions + config.edit_scale * sample_squashed(outputs, LOG_STD_BOUNDS, generator)[0]
        actions = actions.clamp(-1, 1)
        if count == 1:
            return actions
        best = ensemble_values(self.critic, features, actions).mean(0).view(-1, count).argmax(-1)
        return actions.view(-1, count, self.action_dim).take_along_dim(best[:, None, None], 1).squeeze(1)


def ensemble_values(
    critics: Iterable[nn.Module], features: Float32[Tensor, "batch features"], actions: Float32[Tensor, "batch act"]
) -> Float32[Tensor, "critics batch"]:
    """Return what each critic says of pairs."""
    pairs = torch.cat([features, actions], -1)
    return torch.stack([critic(pairs).squeeze(-1) for critic in critics])


def velocities(
    flow: nn.Module,
    features: Float32[Tensor, "batch features"],
    points: Float32[Tensor, "batch act"],
    times: Float32[Tensor, "batch 1"] | float,
) -> Float32[Tensor, "batch act"]:
    """Return a flow's velocities at points; one time may stand for all."""
    if isinstance(times, float):
        times = torch.full_like(points[:, :1], times)
    velocity: Tensor = flow(torch.cat([features, points, times], -1))
    return velocity
