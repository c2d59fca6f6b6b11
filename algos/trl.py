"""Transitive RL (Park and others 2025, https://arxiv.org/abs/2510.22512): values of long ways from those of two parts.

Q(s, a, g) is near discount^d where g is d steps away. It is not learned from the next step's value, but by dividing the
data's way from s to g at one of its states, the midpoint w:

    Q(s, a, g) >= Q(s, a, w) Q(w, a_w, g)                                           (triangle inequality)
    y       = Q_1 Q_2,   Q_1 = discount^k where w is k <= 1 steps after s, else Q_target(s, a, w)
                         Q_2 = discount^k where g is k <= 1 steps after w, else Q_target(w, a_w, g)
    L_Q     = E[ |tau - 1(y < Q)|  (1 + log y / log discount)^-lambda  BCE(Q(s, a, g), y) ],   Q = sigmoid(f(s, a, g))
    BCE(q, y) = -y log q - (1 - y) log(1 - q)

The expectile (tau above 1/2) leans towards the best midpoint. Midpoints are the states of the steps from s, which is one
of them, to the last before g, each as likely. The weight by distance, which passes no gradient, lets the short ways
count most, of which long ones are put together. There are two critics, each with its own y. Rewards, terminations and
truncations play no part.

A policy is drawn from the values in one of two ways, where F is the smaller of the two f, without the sigmoid:

    rpg   L_pi = -E[ F(s, pi(s, g), g) ] / E[ |F(s, pi(s, g), g)| ] - alpha E[ log pi(a | s, g) ]        (as GCIQL's)
    frs   L_v  = E || v(s, g, x_t, t) - (a - z) ||^2,  x_t = (1 - t) z + t a          (flow matching, `flows.py`)
          pi(s, g) = argmax over `sampled_actions` actions of the flow of F(s, ., g), with fresh noise at each step

Goals of L_Q are later states of the episode (geometric distances), and so are those of the policy (uniform distances).
Where goals are parts of states, as in Gymnasium's goal environments, two states with the same part may be far apart, and
two ways that meet in the part are not one way. So L_Q is of whole states as goals, and two other critics, which the
policy follows, learn the values of parts from it ("oracle distillation" in the authors' code):

    L_goal  = E[ BCE(sigmoid(f_goal(s, a, part of g)), Q(s, a, g)) ]                      (no gradient to Q)

All networks have layer normalization, the policy's too. Defaults are those of the authors' first example, their run on
scene-play (aoberai/trl at adfec6f, `README.md` and `hyperparameters.sh`; what these do not name is from `get_config` in
`agents/trl.py`). There, `distance_weight` (lambda), `cloning_weight` (alpha, `rpg.alpha`) and `discount` differ between
datasets, and three runs on far larger data have four layers of 1,024, uniform distances of the values' goals, lambda 0
and, two of them, `frs`. As in their code, all losses come from the networks before the step, and the targets move
towards the critics as they are before the step. `tests/algos/recorded` holds parameters after 100 of its updates.

What differs from the authors' code, besides what `goal_networks.py` lists for all:
- The last state that can be a goal is an episode's final observation. There it is the state of the last step, which
  itself is no item. Distances of the policy's goals are always uniform.
- `frs` compares actions by the smaller value. There, the place of the largest value is sought among those of both
  critics together, and where that is the second critic's, the last of the actions is taken.
- Frames pass the same convolutions in all networks, which only the critics' losses train. Theirs takes vectors only.
- Missing: discrete actions, and goals that are parts of states without L_goal.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float32
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from orlog.algos import goal_networks
from orlog.algos.critics import target_of
from orlog.algos.encoders import Observations
from orlog.algos.flows import ChunkActor, best_flow_actions, flow_errors
from orlog.algos.networks import Scaling, TwinCritic, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, descend_both, parameters_of, update_target
from orlog.algos.settings import Count, Fraction, Inside, NotNegative
from orlog.loaders.batch import GoalBatch


class TRLConfig(goal_networks.GoalSettings, frozen=True, kw_only=True):
    """Settings of transitive RL."""

    discount: Inside = 0.99
    """Value of a goal that is one step away, and discount of the distances to the values' goals."""
    target_rate: Fraction = 0.005
    expectile: Inside = 0.7
    """Expectile tau of the values' loss; 0.5 is the mean over midpoints, 1 would be the maximum."""
    distance_weight: NotNegative = 1.0
    """Power lambda of 1 / (1 + distance) by which a way counts; 0 lets all count alike."""
    extraction: Literal["rpg", "frs"] = "rpg"
    """How a policy is drawn from the values: by their gradient, or as the best of several actions of a flow."""
    cloning_weight: NotNegative = 1.0
    """Weight alpha of the log-likelihood of the data's actions in the loss of `rpg`."""
    sampled_actions: Count = 32
    """Actions of the flow out of which `frs` takes the best."""
    flow_steps: Count = 10
    """Euler steps of `frs` from noise to an action of the flow."""


def values_of_ways(
    logits: Float32[Tensor, "2 batch"], steps: Float32[Tensor, " batch"], discount: float
) -> Float32[Tensor, "2 batch"]:
    """Return the values of ways of so many steps: the critics', but of at most one step what is known."""
    return torch.where(steps <= 1, discount**steps, logits.sigmoid())


def transitive_loss(
    logits: Float32[Tensor, "2 batch"], targets: Float32[Tensor, "2 batch"], config: TRLConfig
) -> Float32[Tensor, ""]:
    """Return L_Q, as a mean over critics and batch; targets are in (0, 1]."""
    expectiles = torch.where(targets >= logits.detach().sigmoid(), config.expectile, 1 - config.expectile)
    distances = targets.log() / math.log(config.discount)
    weights = expectiles * (1 + distances) ** -config.distance_weight
    return binary_cross_entropy_with_logits(logits, targets, weight=weights)


class TRL:
    """Transitive RL for continuous actions."""

    CONFIG = TRLConfig
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    GOALS = True
    CONSTANTS = ("config", "scaling", "seed")

    @staticmethod
    def loader(config: TRLConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: states with later goals, and midpoints on the way to the values'."""
        path, arguments = goal_networks.states_with_goals(config)
        return path, {**arguments, "midpoints": True, "final_goals": True}

    def __init__(self, config: TRLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling, self.seed = config, scaling.to(device), seed
        generator = make_generator(seed, 0, device)
        self.encoder = goal_networks.GoalEncoder(self.scaling, config, generator)
        width, goal_width, act = self.encoder.width, self.encoder.goal_width, len(scaling.action_low)
        style: dict[str, Any] = {"generator": generator, "layer_norm": True}
        self.critic = TwinCritic(2 * width, act, config.hidden, style="gelu", **style)
        self.target_critic = target_of(self.critic)
        trained = [self.encoder, self.critic]
        if not self.encoder.goals_are_states:
            self.goal_critic = goal_networks.make_goal_critic(self.encoder, act, config.hidden, generator=generator)
            trained.append(self.goal_critic)
        if config.extraction == "frs":
            self.generator, self.acting = make_generator(seed, 1, device), make_generator(seed, 2, device)
            self.policy = make_network(width + goal_width + act + 1, act, config.hidden, style="gelu", **style)
        else:
            self.policy = goal_networks.make_mean_network(width + goal_width, act, config.hidden, **style)
        self.optimizer = Adam(parameters_of(*trained, self.policy), config.learning_rate)

    def update(self, batch: GoalBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        batch = self.encoder.shifted(batch)
        states = self.encoder.states(batch.observations)
        ends = self.encoder.states(batch.value_goal_observations)
        actions = self.scaling.actions_to_unit(batch.actions)

        with torch.no_grad():
            midpoints = self.encoder.states(batch.midpoint_observations)
            midpoint_actions = self.scaling.actions_to_unit(batch.midpoint_actions)
            policy_inputs = torch.cat([states, self.encoder.goals(batch.actor_goals)], -1)  # critics train the encoder
            first = self.target_critic(torch.cat([states, midpoints], -1), actions)
            second = self.target_critic(torch.cat([midpoints, ends], -1), midpoint_actions)
            remaining = batch.value_offsets - batch.midpoint_offsets
            targets = values_of_ways(first, batch.midpoint_offsets, config.discount)
            targets = targets * values_of_ways(second, remaining, config.discount)

        logits = self.critic(torch.cat([states, ends], -1), actions)
        values = logits.detach().sigmoid()
        critic_loss = transitive_loss(logits, targets, config)
        metrics = {"critic/loss": critic_loss.detach(), "critic/mean": values.mean()}
        if not self.encoder.goals_are_states:
            goal_logits = self.goal_critic(torch.cat([states, self.encoder.goals(batch.value_goals)], -1), actions)
            goal_loss = binary_cross_entropy_with_logits(goal_logits, values)
            critic_loss = critic_loss + goal_loss
            metrics["critic/goal_loss"] = goal_loss.detach()

        if config.extraction == "frs":
            policy_loss = flow_errors(self.policy, policy_inputs, actions, self.generator).mean()
            update_target(self.target_critic, self.critic, config.target_rate)
            descend(self.optimizer, critic_loss + policy_loss)  # they share no trained parameter
            return {**metrics, "policy/loss": policy_loss.detach()}

        means = self.policy(policy_inputs)
        own_logits = self._followed(policy_inputs, means.clamp(-1, 1)).amin(0)
        log_likelihoods = goal_networks.log_likelihood(actions, means)
        policy_loss = goal_networks.value_and_cloning_loss(own_logits, log_likelihoods, config.cloning_weight)
        update_target(self.target_critic, self.critic, config.target_rate)
        descend_both(self.optimizer, critic_loss, policy_loss, self.policy)
        log_likelihood = log_likelihoods.detach().mean()
        return {**metrics, "policy/loss": policy_loss.detach(), "policy/log_likelihood": log_likelihood}

    @property
    def _followed(self) -> TwinCritic:
        """The critics of the goals that the policy is given."""
        return self.critic if self.encoder.goals_are_states else self.goal_critic

    def act(self, observations: Observations, goals: Observations) -> Float32[Tensor, "batch act"]:
        """Return the actions for goals, in the environment's unit: with `frs` the best of fresh ones of the flow."""
        return self.plan(observations, goals, self.acting if self.config.extraction == "frs" else None)[:, 0]

    def actor(self, environments: int) -> ChunkActor:
        """Return what acts in an evaluation, always with the same noise."""
        return ChunkActor(self.plan, environments, make_generator(self.seed, 3, self.scaling.obs_mean.device))

    @torch.no_grad()
    def plan(
        self, observations: Observations, goals: Observations, generator: torch.Generator | None
    ) -> Float32[Tensor, "batch 1 act"]:
        """Return the actions for goals, with `frs` for noise of a generator, in the environment's unit."""
        inputs = torch.cat([self.encoder.states(observations), self.encoder.goals(goals)], -1)
        if self.config.extraction == "rpg":
            unit: Tensor = self.policy(inputs).clamp(-1, 1)[:, None]
        else:
            shape = (len(inputs), self.config.sampled_actions, len(self.scaling.action_low))
            noise = torch.randn(shape, generator=generator, device=inputs.device)
            unit = best_flow_actions(self.policy, self._followed, inputs, noise, self.config.flow_steps)
        return self.scaling.actions_from_unit(unit)
