"""Implicit Language Q-Learning (Snell and others 2022, https://arxiv.org/abs/2206.11871).

Every token that the agent says is an action. Its state h is all that was told and said before; h' is the state in
which the agent chooses its next token, after what it is told in between. r is the reward of a step, at its last
token.

    L_V    = E[ |tau - 1(u < 0)| u^2 ]                      u = min(Q1', Q2')(h, a) - V(h)
    L_Q    = sum over both Q of E[ (r + gamma (1 - terminated) V(h') - Q(h, a))^2 ]
    L_CQL  = sum over both Q of E[ -log softmax(Q(h, .))(a) ]            pulls up what the data say
    L_beta = E[ -log beta(a | h) ]
    L      = L_beta + L_V + L_Q + conservative_weight L_CQL

    pi(a | h) is proportional to beta(a | h) exp(advantage_weight (min(Q1', Q2')(h, a) - V(h)))

beta is a language model of the data, as that of `bc`. Q1, Q2 and V are heads of the same transformer, each with one
hidden layer of twice the width and ReLU; Q1' and Q2' are Polyak averages of the heads of Q. All losses train the
transformer.

Defaults are those of the authors' code for Wordle (Sea-Snell/Implicit-Language-Q-Learning at 0dc5561,
`config/wordle/train_iql.yaml`: gamma 0.99, tau 0.7, alpha 0.005, weights 1, 1, 1 and 1e-4, batches of 64 x 16 by
accumulation, AdamW at 1e-5 without decay; policies with an advantage weight of 16 take the best token).

What differs from the paper and that code:
- The transformer is small and begins at random, with a learning rate of 1e-4 and batches of 64; theirs is GPT-2.
- There is one transformer, as without their options `seperate_policy` and `seperate_target`, which have a transformer
  of its own for beta and an averaged one for Q'; that takes three times as long.
- Only tokens that the data's agents say have a value and a likelihood; theirs are all of the tokenizer's.
- gamma is 1 inside of what is said, and 0.99 from step to step, so that long commands are no worse than short ones;
  theirs is 0.99 for each token.
- Advantages count in full, as in their configurations for Visual Dialogue and toxicity. That for Wordle has
  `adv_clip: 0`, so that no token gains by its advantage: with it one policy (words/coin-mixed-v1, training seed 100)
  won 32 of 100 games in place of 36.
- L_beta is a mean over what is said. Theirs divides the sum by all tokens of the batch. It trains a transformer of
  its own there, and Adam leaves out such factors; in the one of here beta weighs more beside values, 5 times on
  words/coin-mixed-v1, where 19 % of the tokens are said.
- They search for answers by beams in the paper; here the best token is taken, as in their configuration for Wordle,
  or tokens are drawn (`sampling_temperature`).
- An episode that was cut off keeps the value of what followed; theirs all end.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor, nn
from torch.nn import functional

from orlog.algos import token_policies
from orlog.algos.critics import expectile_loss, target_of
from orlog.algos.networks import Scaling, make_generator, make_network
from orlog.algos.optimizers import descend, update_target
from orlog.algos.settings import Fraction, Inside, NotNegative
from orlog.loaders.batch import TokenBatch


class ILQLConfig(token_policies.TokenSettings, frozen=True, kw_only=True):
    """Settings of Implicit Language Q-Learning."""

    discount: Fraction = 0.99
    """Discount from step to step."""
    expectile: Inside = 0.7
    """Expectile of the value function."""
    target_rate: Fraction = 0.005
    """Rate of the Polyak average of target networks."""
    conservative_weight: NotNegative = 1e-4
    """Weight of what pulls up the values of what the data say."""
    advantage_weight: NotNegative = 16.0
    """Weight of advantages beside the log-likelihoods of the data, when it speaks; 0 speaks as the data do."""
    sampling_temperature: NotNegative = 0.0
    weight_decay: NotNegative = 0.0


def next_places(
    decides: Bool[Tensor, "batch length"],
) -> tuple[Int64[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
    """Return for each place the first one from there on after which the agent speaks, and whether there is one."""
    length = decides.shape[1]
    places = torch.arange(length, device=decides.device).expand(decides.shape)
    following = places.masked_fill(~decides, length).flip(1).cummin(1).values.flip(1)
    return following.clamp(max=length - 1), following < length


def least(critics: nn.ModuleList, hidden: Float32[Tensor, "some width"]) -> Float32[Tensor, "some spoken"]:
    """Return the smaller of both values of each token."""
    smaller: Tensor = torch.minimum(*(critic(hidden) for critic in critics))
    return smaller


class ILQL:
    """Implicit Language Q-Learning."""

    CONFIG = ILQLConfig
    REPLAYS = False
    FROM_DATA = ("tokenizer", "spoken")
    OBSERVATIONS = ("text",)
    ACTIONS = ("text", "discrete")
    CONSTANTS = ("config", "scaling", "words")

    loader = staticmethod(token_policies.token_sequences_of)
    act = token_policies.speak_at_once

    def __init__(self, config: ILQLConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.words = token_policies.Words(config, device)
        generator = make_generator(seed, 0, device)
        width, hidden = config.width, (2 * config.width,)
        self.policy = token_policies.LanguageModel(config, self.words, generator=generator)
        self.value = make_network(width, 1, hidden, generator=generator)
        self.critics = nn.ModuleList(
            make_network(width, len(self.words.spoken), hidden, generator=generator) for _ in range(2)
        )
        self.target_critics = target_of(self.critics)
        self.optimizer = token_policies.decayed(config, self.policy, self.value, self.critics)

    def update(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        config = self.config
        batch = token_policies.trimmed(batch)
        states = self.policy.body(batch.tokens)
        hidden, labels = token_policies.said_after(states, batch, self.words)
        chosen = labels.unsqueeze(1)
        policy_loss = token_policies.cloning_loss(self.policy.head(hidden), labels)

        values = self.value(hidden).squeeze(1)
        with torch.no_grad():
            targets = least(self.target_critics, hidden).gather(1, chosen).squeeze(1)
            returns, is_known = self._returns(states, batch)
        value_loss = expectile_loss(targets - values, config.expectile)

        scores = [critic(hidden) for critic in self.critics]
        known = is_known.sum().clamp(min=1)
        errors = [(returns - score.gather(1, chosen).squeeze(1)).square() for score in scores]
        critic_loss = torch.stack([(error * is_known).sum() / known for error in errors]).sum()
        conservative = torch.stack([functional.cross_entropy(score, labels) for score in scores]).sum()
        loss = policy_loss + value_loss + critic_loss + config.conservative_weight * conservative

        descend(self.optimizer, loss)
        update_target(self.target_critics, self.critics, config.target_rate)
        return {
            "policy/loss": policy_loss.detach(),
            "critic/loss": critic_loss.detach(),
            "critic/conservative_loss": conservative.detach(),
            "value/loss": value_loss.detach(),
            "value/mean": values.detach().mean(),
        }

    def _returns(
        self, states: Float32[Tensor, "batch length width"], batch: TokenBatch
    ) -> tuple[Float32[Tensor, " said"], Bool[Tensor, " said"]]:
        """Return the reward of each token that was said plus the value of the state after it, and where it is known.

        It is not where the sequence ends before what the agent is told next.
        """
        places, is_there = next_places(batch.decides)
        values = self.value(states).squeeze(-1).gather(1, places)
        lasts = batch.is_action & ~batch.decides
        ended = batch.terminations > 0
        discounts = torch.where(lasts, self.config.discount, 1.0) * ~ended
        returns = batch.rewards + discounts * values
        is_said = batch.is_action[:, 1:]
        return returns[:, 1:][is_said], (is_there | ended)[:, 1:][is_said]

    def next_scores(
        self, tokens: Int64[Tensor, "batch length"], last: Int64[Tensor, " batch"]
    ) -> Float32[Tensor, "batch spoken"]:
        """Return the log-likelihoods of what may be said next, and their advantages beside them."""
        hidden = token_policies.of_last(self.policy.body(tokens), last)
        advantages = least(self.target_critics, hidden) - self.value(hidden)
        likelihoods = torch.log_softmax(self.policy.head(hidden), -1)
        scores: Tensor = likelihoods + self.config.advantage_weight * advantages
        return scores

    def actor(self, environments: int) -> token_policies.Speaker:
        """Return what speaks in some environments and remembers their episodes."""
        return token_policies.Speaker(self, environments)
