"""A causal transformer: each token becomes a vector that depends on this and the earlier tokens.

Layers are those of GPT-2, normalized before attention and before the two linear layers. Initial weights and dropout's
masks are drawn from generators that are passed in, never from a global one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn
from torch.nn import functional

Drop: TypeAlias = Callable[[Tensor], Tensor]
"""Sets some numbers to 0 and makes the others larger."""


class CausalTransformer(nn.Module):
    """Layers of attention and a last normalization."""

    def __init__(self, width: int, layers: int, heads: int, *, generator: torch.Generator) -> None:
        """Draw the initial weights on the generator's device; `width` must be a multiple of `heads`."""
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, heads, generator) for _ in range(layers))
        self.norm = nn.LayerNorm(width, device=generator.device)

    def forward(
        self,
        tokens: Float32[Tensor, "batch tokens width"],
        drop: Drop | None = None,
        bias: Float32[Tensor, "heads tokens tokens"] | None = None,
    ) -> Float32[Tensor, "batch tokens width"]:
        """Return a vector for each token; `drop` is applied to attention and to what layers add.

        `bias` is added to the scores of attention, as `recency` gives it; then there is no dropout of attention.
        """
        for layer in self.layers:
            tokens = layer(tokens, drop, bias)
        vectors: Tensor = self.norm(tokens)
        return vectors


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, device=generator.device)
        self.attention_in = make_linear(width, 3 * width, generator=generator)
        # As `torch.nn.MultiheadAttention` starts, which the published code uses.
        bound = (6 / (4 * width)) ** 0.5
        nn.init.uniform_(self.attention_in.weight, -bound, bound, generator)
        self.attention_out = make_linear(width, width, generator=generator)
        self.hidden_norm = nn.LayerNorm(width, device=generator.device)
        self.hidden = make_linear(width, 4 * width, generator=generator)
        self.hidden_out = make_linear(4 * width, width, generator=generator)

    def forward(self, tokens: Tensor, drop: Drop | None, bias: Tensor | None) -> Tensor:
        attended = self.attention_out(self._attend(self.attention_norm(tokens), drop, bias))
        tokens = tokens + (attended if drop is None else drop(attended))
        hidden = functional.gelu(self.hidden(self.hidden_norm(tokens)))
        added = self.hidden_out(hidden)
        return tokens + (added if drop is None else drop(added))

    def _attend(self, tokens: Tensor, drop: Drop | None, bias: Tensor | None) -> Tensor:
        split = self.attention_in(tokens).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in split)
        if bias is not None:
            attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        elif drop is None:
            attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:  # PyTorch's would draw its dropout from the global generator
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            ahead = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
            attended = drop(scores.masked_fill(ahead, -torch.inf).softmax(-1)) @ value
        return attended.transpose(1, 2).flatten(-2)


def recency(heads: int, tokens: int, device: torch.device | str = "cpu") -> Float32[Tensor, "heads tokens tokens"]:
    """Return what is added to scores of attention, so that later tokens count more: ALiBi.

    That is minus the distance times a slope, 2^(-8/heads), 2^(-16/heads), .. of the heads (Press and others 2022,
    https://arxiv.org/abs/2108.12409), and minus infinity for tokens ahead. It stands in place of embedded places.
    """
    places = torch.arange(tokens, device=device, dtype=torch.float32)
    distances = places.unsqueeze(1) - places
    slopes = 2 ** (-8 / heads * torch.arange(1, heads + 1, device=device))
    return (-slopes.view(-1, 1, 1) * distances).masked_fill(distances < 0, -torch.inf)


def make_linear(inputs: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer as GPT-2 starts it: weights with a deviation of 0.02, biases 0."""
    linear: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]  # torch has no types for it
        nn.Linear, inputs, outputs, device=generator.device
    )
    nn.init.normal_(linear.weight, 0, 0.02, generator)
    nn.init.zeros_(linear.bias)
    return linear


def make_dropout(fraction: float, *, generator: torch.Generator) -> Drop | None:
    """Return dropout of a fraction of numbers, drawn on the generator's device; None for none."""
    if not fraction:
        return None

    def drop(values: Tensor) -> Tensor:
        drawn = torch.rand(values.shape, generator=generator, device=values.device)
        return values * ((drawn >= fraction) / (1 - fraction))

    return drop


class DecisionTransformer(nn.Module):
    """Returns-to-go, observations and actions of windows -> the action of each step, in [-1, 1].

    A subclass may ask for more numbers than the return (`WISHES`), each a token of its own after it, and have more
    outputs for each number of an action (`OUTPUTS`), which it reads from `features`.
    """

    WISHES, OUTPUTS = 1, 1

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        width: int,
        *,
        layers: int,
        heads: int,
        timesteps: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        device = generator.device
        times = torch.empty(timesteps, width, device=device)
        self.times = nn.Parameter(times.normal_(0, 0.02, generator=generator))
        self.returns = make_linear(1, width, generator=generator)
        self.observations = make_linear(obs_dim, width, generator=generator)
        self.actions = make_linear(action_dim, width, generator=generator)
        self.norm = nn.LayerNorm(width, device=device)
        self.layers = CausalTransformer(width, layers, heads, generator=generator)
        self.head = make_linear(width, self.OUTPUTS * action_dim, generator=generator)
        self.other_wishes = nn.ModuleList(make_linear(1, width, generator=generator) for _ in range(self.WISHES - 1))

    def features(
        self,
        wishes: Float32[Tensor, "batch length wishes"],
        observations: Float32[Tensor, "batch length obs"],
        actions: Float32[Tensor, "batch length act"],
        timesteps: Int64[Tensor, "batch length"],
        drop: Drop | None = None,
    ) -> Float32[Tensor, "batch length tokens width"]:
        """Return a vector for each token: of wishes, observation and action, which depends on those up to it."""
        first, *others = wishes.chunk(self.WISHES, -1)
        parts = (
            self.returns(first),
            *(layer(wish) for layer, wish in zip(self.other_wishes, others, strict=True)),
            self.observations(observations),
            self.actions(actions),
        )
        times = self.times[timesteps.clamp(max=len(self.times) - 1)]
        values = (torch.stack(parts, 2) + times.unsqueeze(2)).flatten(1, 2)
        values = self.norm(values)
        values = self.layers(values if drop is None else drop(values), drop)
        vectors: Tensor = values.unflatten(1, (-1, len(parts)))
        return vectors

    def forward(
        self,
        returns: Float32[Tensor, "batch length"],
        observations: Float32[Tensor, "batch length obs"],
        actions: Float32[Tensor, "batch length act"],
        timesteps: Int64[Tensor, "batch length"],
        drop: Drop | None = None,
    ) -> Float32[Tensor, "batch length act"]:
        """Return the actions; each depends on what is up to its step, and not on its own action."""
        wishes = returns.unsqueeze(-1)
        features = self.features(wishes, observations, actions, timesteps, drop)
        return torch.tanh(self.head(features[:, :, 1]))
