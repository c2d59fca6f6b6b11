"""The Decision Transformer."""

import numpy as np
import torch
from scipy import stats

from tests.algos.updates import common as plain


class DT(plain.Plain):
    """One layer with two heads; AdamW on clipped gradients, at a rate that grows at first."""

    SETTINGS = plain.chosen(
        length=3,
        width=4,
        layers=1,
        heads=2,
        dropout=0.0,
        longest_episode=3,
        learning_rate=1e-2,
        warmup_steps=4,
        weight_decay=0.1,
        max_gradient_norm=0.1,
        return_scale=0.5,
        batch_size=6,
    )
    UPDATES = 2

    @staticmethod
    def prepare(algorithm):
        """Let normalizations and biases no longer be trivial."""
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for one in algorithm.policy.parameters():
                one.add_(0.3 * torch.randn(one.shape, generator=generator))

    def start(self):
        self.optimizer = self.adam("policy")

    def linear(self, name, x):
        weight, bias = self.of(f"policy/{name}")
        return x @ weight.T + bias

    def norm(self, name, x):
        scale, shift = self.of(f"policy/{name}")
        apart = x - x.mean(-1, keepdims=True)
        root = np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5)
        return apart / root * scale + shift

    def predicted(self, one):
        rows, length, _ = one.s.shape
        layer, time = "layers.layers.0", self.of("policy/times")[0][one.timesteps]
        tokens = np.empty((rows, 3 * length, time.shape[-1]))
        returns = one.returns_to_go[..., None] * self.config.return_scale
        tokens[:, 0::3] = self.linear("returns", returns) + time
        tokens[:, 1::3] = self.linear("observations", one.s) + time
        tokens[:, 2::3] = self.linear("actions", one.a) + time
        tokens = self.transformed(self.norm("norm", tokens), layer)
        return np.tanh(self.linear("head", tokens[:, 1::3]))

    def transformed(self, tokens, layer):
        """Return the vectors of tokens after the one layer and the last normalization."""
        rows, count, _ = tokens.shape
        x = self.linear(f"{layer}.attention_in", self.norm(f"{layer}.attention_norm", tokens))
        query, key, value = np.split(x.reshape(rows, count, 6, -1).swapaxes(1, 2), 3, 1)
        weights = np.tril(np.exp(query @ key.swapaxes(-1, -2) / np.sqrt(key.shape[-1])))
        attended = (weights / weights.sum(-1, keepdims=True)) @ value
        attended = attended.swapaxes(1, 2).reshape(tokens.shape)
        tokens = tokens + self.linear(f"{layer}.attention_out", attended)
        x = self.linear(f"{layer}.hidden", self.norm(f"{layer}.hidden_norm", tokens))
        tokens = tokens + self.linear(f"{layer}.hidden_out", x * stats.norm.cdf(x))
        return self.norm("layers.norm", tokens)

    def acts(self, *_):
        """Act by what came before."""

    def update(self, batch):
        config, one = self.config, plain.in_units(self.scaling, batch)

        def loss():
            return float(((self.predicted(one) - one.a) ** 2)[one.mask].sum() / one.a.size)

        metrics, parameters = {"policy/loss": loss()}, self.optimizer.parameters
        # Keys' biases change nothing, so the rounding of their numerical gradients is taken off.
        found = [np.where(np.abs(g) < 1e-8, 0, g) for g in plain.gradients(loss, parameters)]
        norm = metrics["policy/gradient_norm"] = sum(float((g**2).sum()) for g in found) ** 0.5
        self.count += 1
        self.optimizer.rate = config.learning_rate * min(self.count / config.warmup_steps, 1)
        for value in parameters:
            value *= 1 - self.optimizer.rate * config.weight_decay
        shrunk = min(config.max_gradient_norm / (norm + 1e-6), 1)
        self.optimizer.move([g * shrunk for g in found])
        return metrics
