"""Behavior cloning in words: a language model of what the agent says, after what it was told and has said.

    L(pi) = E_(episode) ~ D [ mean over the agent's own tokens of -log pi(token | all tokens before) ]

The policy is a small causal transformer (`token_policies.py`). It says token after token, drawn from its
likelihoods, so that it says what the data say as often as they do. Rewards, terminations and truncations play no part.

Defaults are those of the code of ILQL (Sea-Snell/Implicit-Language-Q-Learning at 0dc5561,
`config/wordle/train_bc.yaml`): AdamW at 1e-4 with a weight decay of 0.01, batches of 64, a temperature of 1.

What differs from that code:
- The transformer is small and begins at random; theirs is GPT-2 of 124 million parameters.
- Only tokens that the data's agents say are scored, by a last layer of its own; theirs scores all, by the embedding.
- There is no dropout.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import descend
from orlog.algos.token_policies import (
    LanguageModel,
    Speaker,
    TokenSettings,
    Words,
    cloning_loss,
    decayed,
    of_last,
    said_after,
    sequences_of,
    trimmed,
)
from orlog.loaders.batch import TokenBatch


class BCTextConfig(TokenSettings, frozen=True, kw_only=True):
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

    @staticmethod
    def loader(config: BCTextConfig) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: token sequences."""
        return "orlog.loaders.token_sequences:token_sequences", sequences_of(config)

    def __init__(self, config: BCTextConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        self.config = config
        self.scaling = scaling.to(device)
        self.words = Words(config, device)
        self.policy = LanguageModel(config, self.words, generator=make_generator(seed, 0, device))
        self.optimizer = decayed(config, self.policy)

    def update(self, batch: TokenBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        batch = trimmed(batch)
        hidden, said = said_after(self.policy.body(batch.tokens), batch, self.words)
        scores = self.policy.head(hidden)
        loss = cloning_loss(scores, said)
        descend(self.optimizer, loss)
        agreement = (scores.argmax(-1) == said).to(scores.dtype).mean()
        return {"policy/loss": loss.detach(), "policy/agreement": agreement}

    def next_scores(
        self, tokens: Int64[Tensor, "batch length"], last: Int64[Tensor, " batch"]
    ) -> Float32[Tensor, "batch spoken"]:
        """Return the log-likelihoods of what may be said next."""
        return torch.log_softmax(self.policy.head(of_last(self.policy.body(tokens), last)), -1)

    def act(self, observations: Any) -> list[str] | Int64[Tensor, " batch"]:
        """Return what is said at the first steps of episodes."""
        one = observations if isinstance(observations, list) else next(iter(observations.values()))
        return self.actor(len(one)).act(observations)

    def actor(self, environments: int) -> Speaker:
        """Return what speaks in some environments and remembers their episodes."""
        return Speaker(self, environments)
