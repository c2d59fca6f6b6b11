"""Multi-agent batch-constrained Q-learning: discrete BCQ for each agent, mixed into a value of the team.

The methods are Fujimoto, Conti, Ghavamzadeh and Pineau 2019, https://arxiv.org/abs/1910.01708 (discrete BCQ), and
Rashid et al. 2018, https://arxiv.org/abs/1803.11485 (QMIX). OG-MARL (Formanek et al. 2023,
https://arxiv.org/abs/2302.00521) has both together for offline data, as QMIX+BCQ:

    L_G(omega) = -mean_i log G(a_i | o_i)                                     imitates the data
    A(o_i)     = { b legal : G(b | o_i) / max_c G(c | o_i) >= threshold }     what the data may do
    Q_tot(s)   = M(s; Q(o_1, a_1), .., Q(o_n, a_n)),   dM / dQ_i >= 0         the team's value
    L_Q        = 1/2 E[ ( r + discount (1 - termination) Q'_tot(s') - Q_tot(s) )^2 ]
                 Q'_tot from the target networks, at a'_i = argmax of Q(o'_i, b) over b in A(o'_i)

All agents share Q and G, which also see which agent it is. M is a network of the agents' values whose weights,
positive in both layers, and biases are functions of the state. The reward is the mean over the agents that act. An
agent that takes no part counts as a value of 0. The task has ended where all agents that acted were terminated;
truncations bootstrap. The policy takes the largest of Q over A.

Defaults are OG-MARL's (instadeepai/og-marl, `qmix_bcq.yaml`): layers of 64, a mixer of 32 with hypernetworks of 64,
Adam at 3e-4, a threshold of 0.4, targets every 200 updates.

What differs from OG-MARL's code (instadeepai/og-marl at f4eb8f0, `tf2_systems/offline/qmix_bcq.py`):
- Networks see the present observation alone; OG-MARL's remember earlier ones (GRU) and learn from sequences of 20.
- The state is what all agents observe, side by side; OG-MARL takes the `state` that its environments give.
- The policy's actions are among those that the data may do, as in Fujimoto et al.; OG-MARL's only are legal.
- An agent that takes no part is left out of all losses; OG-MARL's data have none. The task ends at once for all;
  where an agent is terminated alone, OG-MARL's error is the mean over agents, each with a target of its own.
- A cut-off step bootstraps from the observation after it. OG-MARL's data have none, so the target is the value of the
  first step of the next episode: in `agents`, where each episode is cut off, that of every 25th step.
- Weights start as `torch.nn.Linear` does, uniform in +-1/sqrt(inputs), biases too. Sonnet draws weights from a normal
  with a deviation of 1/sqrt(inputs), cut off at two, so 1.5 times as wide, and biases are 0. OG-MARL's target
  networks start from numbers of their own, until the first update copies them.
- Observations are standardized over the dataset by default, and batches are single steps.
"""

from __future__ import annotations

import msgspec
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from orlog.algos.critics import bellman_targets, target_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import Adam, descend, parameters_of, update_target
from orlog.algos.policies import action_count, actions_from_indices, actions_to_indices, chosen_values, where_legal
from orlog.algos.settings import Count, Fraction, Positive, Share, Widths
from orlog.loaders.batch import AgentBatch


class MABCQConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of multi-agent batch-constrained Q-learning."""

    hidden: Widths = (64, 64)
    """Widths of the hidden layers of values and of the imitation."""
    mixer_width: Count = 32
    """Width of the mixer's hidden layer."""
    hyper_width: Count = 64
    """Width of the hidden layers of the networks that give the mixer's weights."""
    learning_rate: Positive = 3e-4
    """Step size of Adam."""
    batch_size: Count = 256
    """Steps of the team in a batch."""
    discount: Fraction = 0.99
    """Weight of the next step's value."""
    threshold: Share = 0.4
    """Actions count as those of the data from this share of the likeliest one's probability."""
    target_interval: Count = 200
    """Updates between two copies into the target networks."""


class Mixer(nn.Module):
    """QMIX's mixer: the team's value of the agents' values, in each of which it never falls."""

    def __init__(self, state: int, agents: int, width: int, hyper_width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.agents, self.width = agents, width

        def network(outputs: int, *hidden: int) -> nn.Sequential:
            return make_network(state, outputs, hidden, generator=generator)

        self.first_weights = network(agents * width, hyper_width)
        self.first_biases = network(width)
        self.last_weights = network(width, hyper_width)
        self.last_bias = network(1, width)

    def forward(
        self, values: Float[Tensor, "batch agents"], states: Float[Tensor, "batch state"]
    ) -> Float[Tensor, " batch"]:
        """Return the team's value."""
        weights = self.first_weights(states).abs().view(-1, self.agents, self.width)
        mixed = (values.unsqueeze(1) @ weights).squeeze(1) + self.first_biases(states)
        last = self.last_weights(states).abs()
        total: Tensor = (nn.functional.elu(mixed) * last).sum(-1)
        bias: Tensor = self.last_bias(states).squeeze(-1)
        return total + bias


def may_do(
    logits: Float[Tensor, "*batch actions"], legal: Bool[Tensor, "*batch actions"] | None, threshold: float
) -> Bool[Tensor, "*batch actions"]:
    """Return which actions are legal and likely enough in the data: the set A."""
    if legal is not None:
        logits = where_legal(logits, legal)
    likely = torch.softmax(logits, -1)
    return (likely >= threshold * likely.amax(-1, keepdim=True)) & torch.isfinite(logits)


class MABCQ:
    """Multi-agent batch-constrained Q-learning."""

    CONFIG = MABCQConfig
    AGENTS = True
    OBSERVATIONS = ("vector",)
    ACTIONS = ("discrete",)
    CONSTANTS = ("config", "scaling", "which")

    @staticmethod
    def loader(config: MABCQConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: transitions of all agents."""
        return "orlog.loaders.agent_transitions:agent_transitions", {"batch_size": config.batch_size}

    def __init__(self, config: MABCQConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.which = torch.eye(scaling.agents, device=device)
        generator = make_generator(seed, 0, device)
        width, count = len(scaling.obs_mean), action_count(scaling)
        seen = width + scaling.agents
        self.values = make_network(seen, count, config.hidden, generator=generator)
        self.imitation = make_network(seen, count, config.hidden, generator=generator)
        self.mixer = Mixer(width * scaling.agents, scaling.agents, config.mixer_width, config.hyper_width, generator)
        self.target_values = target_of(self.values)
        self.target_mixer = target_of(self.mixer)
        self.optimizer = Adam(parameters_of(self.values, self.mixer, self.imitation), config.learning_rate)
        self.step = 0

    def phase(self) -> bool:
        """Return what decides which operations the next update takes: whether target networks follow."""
        return self.step % self.config.target_interval == 0

    def update(self, batch: AgentBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        acts = batch.acts.float()
        observations, states = self._seen(batch.observations)
        # What is stored of agents that take no part may be no action; their values count as 0 below.
        indices = actions_to_indices(self.scaling, batch.actions)
        actions = torch.where(batch.acts, indices, 0)
        # A cut-off episode goes on behind its end, for those that were not terminated.
        goes_on = (batch.next_acts | (batch.acts & (batch.terminations == 0))).float()
        has_ended = ((batch.terminations > 0) | ~batch.acts).all(-1).float()
        rewards = (batch.rewards * acts).sum(-1) / acts.sum(-1).clamp(min=1)

        with torch.no_grad():
            next_observations, next_states = self._seen(batch.next_observations)
            allowed = may_do(self.imitation(next_observations), batch.next_legal, config.threshold)
            next_choices = self.values(next_observations).masked_fill(~allowed, -torch.inf)
            next_values = chosen_values(self.target_values(next_observations), next_choices.argmax(-1))
            next_total = self.target_mixer(next_values * goes_on, next_states)
            targets = bellman_targets(rewards, has_ended, next_total, config.discount)

        values = chosen_values(self.values(observations), actions)
        total = self.mixer(values * acts, states)
        loss = (targets - total).square().mean() / 2
        logits = self.imitation(observations)
        likelihoods = chosen_values(torch.log_softmax(logits, -1), actions)
        imitation = -(likelihoods * acts).sum() / acts.sum().clamp(min=1)

        # The losses share no trained parameter, so one backward pass gives both gradients.
        descend(self.optimizer, loss + imitation)
        if self.phase():
            update_target(self.target_values, self.values, 1.0)
            update_target(self.target_mixer, self.mixer, 1.0)
        self.step += 1
        return {
            "critic/loss": loss.detach(),
            "critic/mean": total.detach().mean(),
            "imitation/loss": imitation.detach(),
        }

    @torch.no_grad()
    def act(
        self, observations: Float[Tensor, "batch agents obs"], legal: Bool[Tensor, "batch agents actions"] | None = None
    ) -> Int64[Tensor, "batch agents"]:
        """Return the action of each agent."""
        seen, _ = self._seen(observations)
        allowed = may_do(self.imitation(seen), legal, self.config.threshold)
        indices = self.values(seen).masked_fill(~allowed, -torch.inf).argmax(-1)
        return actions_from_indices(self.scaling, indices)

    def _seen(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return what networks of agents see, and the state of the team."""
        scaled = self.scaling.observations(observations)
        which = self.which.expand(len(scaled), -1, -1)
        return torch.cat([scaled, which], -1), scaled.flatten(1)
