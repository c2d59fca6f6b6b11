"""Behavior cloning in words: a language model of what the agent says, after what it was told and has said.

    L(pi) = E_(episode) ~ D [ mean over the agent's own tokens of -log pi(token | all tokens before) ]

The policy is a small causal transformer (`token_policies.py`). It says token after token, drawn from its likelihoods,
so that it says what the data say as often as they do. Rewards, terminations and truncations play no part.

Defaults are those of the code of ILQL (Sea-Snell/Implicit-Language-Q-Learning at 0dc5561,
`config/wordle/train_bc.yaml`): AdamW at 1e-4 with a weight decay of 0.01, batches of 64, a temperature of 1.

What differs from that code:
- The transformer is small and begins at random; theirs is GPT-2 of 124 million parameters.
- Only tokens that the data's agents say are scored, by a last layer of its own; theirs scores all, by the embedding.
- There is no dropout.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from orlog.algos import token_policies
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import descend
from orlog.loaders.batch import TokenBatch


class BCTextConfig(token_policies.TokenSettings, frozen=True, kw_only=True):
    """Settings of behavior cloning in words."""


class BCText:
    """Behavior cloning with a language model."""

    CONFIG = BCTextConfig
    REPLAYS = False
    FROM_DATA = ("tokenizer", "spoken")
    REWARDS = False
    OBSERVATIONS = ("text",)
    ACTIONS = ("text", "discrete")
    CONSTANTS = ("config", "scaling", "words")

    loader = staticmethod(token_policies.token_sequences_of)
    act = token_policies.speak_at_once

    def __init__(self, config: BCTextConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config, self.scaling = config, scaling.to(device)
        self.words = token_policies.Words(config, device)
        self.policy = token_policies.LanguageModel(config, self.words, generator=make_generator(seed, 0, device))
        self.optimizer = token_policies.decayed(config, self.policy)

    def update(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        batch = token_policies.trimmed(batch)
        hidden, labels = token_policies.said_after(self.policy.body(batch.tokens), batch, self.words)
        scores = self.policy.head(hidden)
        loss = token_policies.cloning_loss(scores, labels)
        descend(self.optimizer, loss)
        agreement = (scores.argmax(-1) == labels).to(scores.dtype).mean()
        return {"policy/loss": loss.detach(), "policy/agreement": agreement}

    def next_scores(
        self, tokens: Int64[Tensor, "batch length"], last: Int64[Tensor, " batch"]
    ) -> Float32[Tensor, "batch spoken"]:
        """Return the log-likelihoods of what may be said next."""
        return torch.log_softmax(self.policy.head(token_policies.of_last(self.policy.body(tokens), last)), -1)

    def actor(self, environments: int) -> token_policies.Speaker:
        """Return what speaks in some environments and remembers their episodes."""
        return token_policies.Speaker(self, environments)
