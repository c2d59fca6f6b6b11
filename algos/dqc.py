"""DQC: decoupled Q-chunking (Li, Park and Levine 2025, https://arxiv.org/abs/2512.10926), which reaches goals.

A critic of long chunks of h = `horizon` actions carries values far in one backup. A critic of the first
k = `policy_chunk` of them takes the best of what the long chunks of the data make of them, so that the policy has few
actions to choose at once. Values are chances, sigmoids of networks: discount^n where a goal is n steps away.

    y             = discount^n where the goal g is reached after n < h steps, else discount^h V(s_h, g)
    L_chunk       = E BCE(Q_chunk(s, a_1..a_h, g), y)
    L_Q           = E |kappa_d - 1(Q_chunk < Q)| BCE(Q(s, a_1..a_k, g), Q_chunk(s, a_1..a_h, g))
    L_V           = E |kappa_b - 1(Q_target < V)| |logit V(s, g) - logit Q_target(s, a_1..a_k, g)|
                    Q_target the mean of two target networks, or their smaller one
    L_v           = E || v(s, x_t, t) - (A - z) ||^2,  A = a_1..a_k, x_t = (1 - t) z + t A               (flow matching)
    pi(s, g)      = argmax over `sampled_actions` chunks A of the flow of Q(s, A, g)

`distillation` (L_Q) and `backup` (L_V) say which of the two losses, with `kappa_d` and `kappa_b`: `expectile` weighs
BCE, `quantile` the distance of logits. The flow imitates whatever the goal. The authors' other methods are settings:

    chunk_critic=false                       NS: n-step returns, Q learns from y itself; DQC's table has n = 5 and 25
    chunk_critic=false horizon=1             OS: one step
    chunk_critic=false policy_chunk=horizon  QC: the policy takes whole chunks; QC-NS where it takes a part of them

Goals of values are the state itself, later states of the episode (uniform) and random ones. All losses are computed
from the networks before the step; one Adam then moves all, and the target networks move towards critics as they were
before it. All networks have layer normalization after each activation, which is GELU. Items whose chunk leaves the
episode teach no value; the flow learns from those whose first k actions do not. Terminations and truncations play no
part. In an episode the policy acts out its k actions before it looks again.

Defaults are the authors' (`get_config`), who choose `kappa_b` (0.5 to 0.97), `kappa_d` (0.5 or 0.8) and the mean or the
smaller critic for each environment (`experiments/reproduce.py`), and train on batches of 4096.

What differs from the authors' code (ColinQiyangLi/dqc at df89825, `agents/dqc.py`, in JAX), besides what
`goal_networks.py` lists for all: one setting `hidden` is for policies and critics; random goals are states of all
steps, theirs of those that a whole chunk follows; chances are kept 1e-5 from 0 and 1 before a logit in L_V too. SHARSA and HIQL of its table are other agents. `tests/algos/recorded`
holds parameters after 100 of its updates.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from orlog.algos import goal_networks
from orlog.algos.critics import target_of
from orlog.algos.encoders import Observations
from orlog.algos.flows import ChunkActor, flow_actions, flow_errors
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.settings import Common, Count, Fraction, Goals, Inside, Widths
from orlog.loaders.batch import GoalBatch

Loss = Literal["expectile", "quantile"]
_CLOSEST = 1e-5  # of a chance to 0 and 1, where its logit is taken


class DQCConfig(Common, frozen=True, kw_only=True):
    """Settings of decoupled Q-chunking."""

    hidden: Widths = (1024, 1024, 1024, 1024)
    batch_size: Count = 4096
    discount: Fraction = 0.999
    """Weight of the next step's value."""
    target_rate: Fraction = 0.005
    horizon: Count = 25
    """Steps h of a backup, and actions of the chunks whose critic is distilled."""
    policy_chunk: Count = 1
    """Actions k that the policy acts out one after the other, at most `horizon`."""
    chunk_critic: bool = True
    """Whether a critic of whole chunks is learned and distilled; false learns from returns of `horizon` steps."""
    distillation: Loss = "expectile"
    kappa_d: Inside = 0.5
    """Expectile or quantile of the critic of the policy's chunks."""
    backup: Loss = "quantile"
    kappa_b: Inside = 0.9
    """Expectile or quantile of the values."""
    target: Literal["mean", "smallest"] = "mean"
    """Which of the two critics' values counts."""
    value_goals: Goals = (0.2, 0.5, 0.3)
    """Probability that the values' goal is the state itself, a later one of its episode, or a random one."""
    sampled_actions: Count = 32
    """Chunks of the flow out of which the policy takes the best."""
    flow_steps: Count = 10
    """Euler steps from noise to a chunk of the flow."""

    def __post_init__(self) -> None:
        goal_networks.check_probabilities(self)
        if self.policy_chunk > self.horizon:
            raise ValueError(
                f"policy_chunk must be at most horizon, found {self.policy_chunk} of {self.horizon}; set "
                f"horizon={self.policy_chunk} or more, or a shorter policy_chunk."
            )


class DQC:
    """Decoupled Q-chunking for continuous actions."""

    CONFIG = DQCConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True
    CONSTANTS = ("config", "scaling", "seed")

    @staticmethod
    def loader(config: DQCConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: states with goals and chunks of actions."""
        return "orlog.loaders.goals:states_and_goal_chunks", {
            "batch_size": config.batch_size,
            "length": config.horizon,
            "value_goals": config.value_goals,
            "discount": config.discount,
        }

    def __init__(self, config: DQCConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.seed = config, scaling.to(device), seed
        self.generator, self.acting = make_generator(seed, 1, device), make_generator(seed, 2, device)
        generator, act = make_generator(seed, 0, device), len(scaling.action_low)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        style: dict[str, Any] = {"generator": generator, "layer_norm": True, "style": "gelu"}
        states, taken = self.encoder.width, act * config.policy_chunk
        self.critic = goal_networks.make_goal_critic(self.encoder, taken, config.hidden, generator=generator)
        self.target_critic = target_of(self.critic)
        self.value = make_network(states + self.encoder.goal_width, 1, config.hidden, **style)
        self.flow = make_network(states + taken + 1, taken, config.hidden, **style)
        networks: list[nn.Module] = [self.encoder, self.critic, self.value, self.flow]
        if config.chunk_critic:
            whole = act * config.horizon
            self.chunk_critic = goal_networks.make_goal_critic(self.encoder, whole, config.hidden, generator=generator)
            networks.append(self.chunk_critic)
        self.optimizer = Adam(parameters_of(*networks), config.learning_rate)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        batch = self.encoder.shifted(batch)
        states, goals = self.encoder.states(batch.observations), self.encoder.goals(batch.value_goals)
        pairs = torch.cat([states, goals], -1)
        fixed = pairs.detach()  # the critics alone train the encoder
        valid = batch.valid.to(batch.rewards.dtype)
        chunks = self.scaling.actions_to_unit(batch.actions) * valid[:, :, None]
        taken, chunks = chunks[:, : config.policy_chunk].flatten(1), chunks.flatten(1)
        whole = valid[:, -1]

        with torch.no_grad():
            next_pairs = torch.cat([self.encoder.states(batch.next_observations), goals], -1)
            next_values = self.value(next_pairs).squeeze(-1).sigmoid()
            targets = (batch.rewards + batch.discounts * batch.masks * next_values).clamp(0, 1)
            own = self.target_critic(fixed, taken).sigmoid()
            own = own.mean(0) if config.target == "mean" else own.amin(0)
        metrics, chunk_loss = {}, torch.zeros((), device=states.device)
        if config.chunk_critic:
            logits = self.chunk_critic(pairs, chunks)
            chunk_loss = (cross_entropies(logits, targets) * whole).mean()
            targets = logits.detach().sigmoid()
            metrics["chunk_critic/loss"] = chunk_loss
        q_logits = self.critic(pairs, taken)
        critic_loss = (one_sided_errors(q_logits, targets, config.kappa_d, config.distillation) * whole).mean()
        value_logits = self.value(fixed).squeeze(-1)
        value_loss = (one_sided_errors(value_logits, own, config.kappa_b, config.backup) * whole).mean()

        errors = flow_errors(self.flow, states.detach(), taken, self.generator).mean(-1)
        flow_loss = (errors * valid[:, config.policy_chunk - 1]).mean()

        update_target(self.target_critic, self.critic, config.target_rate)
        # The losses share no trained parameter but the encoder's, so one backward pass gives all gradients.
        descend(self.optimizer, chunk_loss + critic_loss + value_loss + flow_loss)
        metrics |= {"critic/loss": critic_loss, "critic/mean": q_logits.sigmoid().mean()}
        metrics |= {"value/loss": value_loss, "value/mean": value_logits.sigmoid().mean(), "flow/loss": flow_loss}
        return {name: value.detach() for name, value in metrics.items()}

    def act(self, observations: Observations, goals: Observations) -> Float32[Tensor, "batch act"]:
        """Return the first actions of the best of fresh chunks, in the environment's unit."""
        return self.plan(observations, goals, self.acting)[:, 0]

    def actor(self, environments: int) -> ChunkActor:
        """Return what acts in an evaluation, always with the same noise."""
        return ChunkActor(self.plan, environments, make_generator(self.seed, 3, self.scaling.obs_mean.device))

    @torch.no_grad()
    def plan(
        self, observations: Observations, goals: Observations, generator: torch.Generator
    ) -> Float32[Tensor, "batch length act"]:
        """Return the best of fresh chunks for goals, in the environment's unit."""
        config, act = self.config, len(self.scaling.action_low)
        count, taken = config.sampled_actions, act * config.policy_chunk
        states = self.encoder.states(observations)
        pairs = torch.cat([states, self.encoder.goals(goals)], -1).repeat_interleave(count, 0)
        noise = torch.randn((len(pairs), taken), generator=generator, device=pairs.device)
        unit = flow_actions(self.flow, pairs[:, : states.shape[1]], noise, config.flow_steps)
        q_values = self.critic(pairs, unit)
        q_values = q_values.mean(0) if config.target == "mean" else q_values.amin(0)
        best = q_values.view(-1, count).argmax(-1)[:, None, None]
        chosen = unit.view(-1, count, taken).take_along_dim(best, 1)
        return self.scaling.actions_from_unit(chosen.view(len(states), config.policy_chunk, act))


def cross_entropies(
    logits: Float32[Tensor, "*networks batch"], chances: Float32[Tensor, "*networks batch"]
) -> Float32[Tensor, "*networks batch"]:
    """Return the binary cross-entropy of logits with chances."""
    return nn.functional.binary_cross_entropy_with_logits(logits, chances.expand_as(logits), reduction="none")


def one_sided_errors(
    logits: Float32[Tensor, "*networks batch"], chances: Float32[Tensor, "*networks batch"], kappa: float, kind: Loss
) -> Float32[Tensor, "*networks batch"]:
    """Return errors with the weight kappa where chances are at least those of the logits, else 1 - kappa."""
    weights = torch.where(chances >= logits.detach().sigmoid(), kappa, 1 - kappa)
    if kind == "expectile":
        return weights * cross_entropies(logits, chances)
    return weights * (logits - chances.clamp(_CLOSEST, 1 - _CLOSEST).logit()).abs()
