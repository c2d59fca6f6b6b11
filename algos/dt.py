"""Decision Transformer (Chen and others 2021, https://arxiv.org/abs/2106.01345).

    sequence  R_1, s_1, a_1, .., R_K, s_K, a_K      returns-to-go, observations and actions of K steps
              each one embedded linearly, plus a learned embedding of its step in the episode
    L(theta)  = E[ mean over the steps of |pi_theta(R_1, s_1, a_1, .., R_t, s_t) - a_t|^2 ]

A causal transformer reads the sequence, and its output at s_t is the action a_t. Nothing is learned from rewards but
what return followed which actions. To act, the first return-to-go is `target_return`, a return to ask for; each
reward is subtracted from it (section 3, "Evaluation"). What it predicts depends on the last K steps of the episode,
so it is a policy with memory.

Defaults are those of the authors' code for Gym, apart from the two that are taken from the data
(`manifests/recorded/published/hyperparameters.json`, DT / official gym and CORL).

What differs from the authors' code (kzl/decision-transformer), as in CORL:
- Layers are normalized first (`x + attention(norm(x))`) with a normalization at the end, as in GPT-2, and have
  dropout after the embedding. Hidden layers have GELU, the authors' have ReLU.
- Windows start at the drawn step and are padded at their end; the authors' are padded in front. To act at the first
  steps of an episode, the sequence is as short as the episode.
- The mean of the loss is over all slots, empty ones included, whose loss is 0.

What differs from CORL (`dt.py`):
- Dropout draws its masks from a generator of the algorithm, so that a resumed run is the same.
- Empty slots are not hidden from attention: they lie after all steps, which do not look ahead.
- There is one target return, not several to choose the best score from.
- Steps after `longest_episode` have the embedding of the last one. CORL ends such episodes.
- Deviations of observations have 1e-3 added, not 1e-6.
- Frames pass convolutions, which the loss trains too (`encoders.py`).
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float32, Int64
from msgspec import Meta
from torch import Tensor, nn

from orlog.algos.encoders import Observations, encode_windows, encoder_of
from orlog.algos.networks import Scaling, make_generator
from orlog.algos.optimizers import parameters_of
from orlog.algos.settings import AnyNumber, Count, FrameSettings, NotNegative, Positive
from orlog.algos.transformer import DecisionTransformer, make_dropout
from orlog.loaders.batch import SequenceBatch


class DTConfig(FrameSettings, frozen=True, kw_only=True):
    """Settings of Decision Transformer."""

    length: Count = 20
    """Steps that it sees at once."""
    width: Count = 128
    """Width of the embedding; hidden layers are four times as wide."""
    layers: Count = 3
    """Layers of attention."""
    heads: Count = 1
    """Heads of attention, a divisor of `width`."""
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Fraction that dropout sets to 0."""
    longest_episode: Count = 1000
    """Steps of an episode that have an embedding of their own."""
    target_return: AnyNumber | None = None
    """Return of an episode to ask for; by default the mean of the dataset's best tenth."""
    return_scale: Positive | None = None
    """Factor of returns in the network; by default 1 / the dataset's largest absolute return."""
    learning_rate: Positive = 1e-4
    """Step size of AdamW after the warm-up."""
    warmup_steps: Count = 10_000
    """Gradient steps over which the learning rate rises."""
    weight_decay: NotNegative = 1e-4
    """Weight decay of AdamW."""
    max_gradient_norm: Positive = 0.25
    """Norm at which the gradient of all parameters is clipped."""
    batch_size: Count = 64
    """Windows in a batch."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, found {self.width} and {self.heads}.")


def clipped_step(self: Any, loss: Tensor) -> Tensor:
    """Take a step with a rate that rises at first and a clipped gradient, whose norm is returned."""
    config, group = self.config, self.optimizer.param_groups[0]
    group["lr"] = config.learning_rate * min((self.step + 1) / config.warmup_steps, 1.0)
    self.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    norm = nn.utils.clip_grad_norm_(group["params"], config.max_gradient_norm)
    self.optimizer.step()
    self.step += 1
    return norm.detach()


def act_at_once(self: Any, observations: Any) -> Any:
    """Return the actions of the first steps of episodes, in the environment's unit."""
    rows = next(iter(observations.values())) if isinstance(observations, dict) else observations
    return self.actor(len(rows)).act(observations)


class DT:
    """Decision Transformer for continuous actions."""

    CONFIG = DTConfig
    REPLAYS = False
    FROM_DATA = ("target_return", "return_scale")
    OBSERVATIONS = ("vector", "structured")
    ACTIONS = ("continuous",)
    CONSTANTS = ("config", "scaling", "return_scale", "target_return")
    act = act_at_once

    @staticmethod
    def loader(config: DTConfig) -> tuple[str, dict[str, int]]:
        """Return the loader of its batches: windows of steps."""
        return "orlog.loaders.sequences:sequences", {"batch_size": config.batch_size, "length": config.length}

    def __init__(self, config: DTConfig, scaling: Scaling, *, seed: int, device: str = "cpu") -> None:
        if config.target_return is None or config.return_scale is None:
            raise ValueError("target_return and return_scale must be set where no data set them.")
        self.config, self.scaling = config, scaling.to(device)
        self.target_return, self.return_scale = config.target_return, config.return_scale
        generator = make_generator(seed, 0, device)
        self.encoder = encoder_of(config, self.scaling, generator)
        self.policy = DecisionTransformer(
            self.encoder.width,
            len(scaling.action_low),
            config.width,
            layers=config.layers,
            heads=config.heads,
            timesteps=config.longest_episode + config.length,
            generator=generator,
        )
        self.optimizer = torch.optim.AdamW(
            parameters_of(self.encoder, self.policy), config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.generator = make_generator(seed, 1, device)
        self.step = 0

    def update(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch (0-dimensional tensors)."""
        actions = self.scaling.actions_to_unit(batch.actions)
        predicted = self.policy(
            batch.returns_to_go * self.return_scale,
            encode_windows(self.encoder, batch.observations, batch.mask),
            actions,
            batch.timesteps,
            make_dropout(self.config.dropout, generator=self.generator),
        )
        loss = ((predicted - actions).square() * batch.mask.unsqueeze(-1)).mean()
        return {"policy/gradient_norm": clipped_step(self, loss), "policy/loss": loss.detach()}

    def actor(self, environments: int) -> DTActor:
        """Return what acts in some environments and remembers their episodes."""
        return DTActor(self, environments)


class DTActor:
    """Acts in several environments, each with a window of its own: the last steps of its episode."""

    algorithm: Any

    def __init__(self, algorithm: Any, environments: int) -> None:
        self.algorithm = algorithm
        length, scaling = algorithm.config.length, algorithm.scaling
        like = scaling.obs_mean
        self.features = like.new_zeros(environments, length, algorithm.encoder.width)
        self.actions = like.new_zeros(environments, length, len(scaling.action_low))
        self.steps = torch.zeros(environments, dtype=torch.int64, device=like.device)
        self.to_go = like.new_tensor([self.targets()] * environments)
        self.wishes = like.new_zeros(environments, length, self.to_go.shape[1])

    def targets(self) -> list[float]:
        """Return what is asked for at the beginning of an episode."""
        return [self.algorithm.target_return]

    def scales(self) -> list[float]:
        """Return the factor of each number that is asked for."""
        return [self.algorithm.return_scale]

    def actions_of(self, timesteps: Int64[Tensor, "batch length"]) -> Float32[Tensor, "batch length act"]:
        """Return the action of each step of the windows, in [-1, 1]."""
        policy: DecisionTransformer = self.algorithm.policy
        actions: Tensor = policy(self.wishes[..., 0], self.features, self.actions, timesteps)
        return actions

    def begin(self, which: Bool[Tensor, " environments"]) -> None:
        """Forget the episodes of some environments."""
        self.steps[which] = 0
        self.to_go[which] = self.to_go.new_tensor(self.targets())

    @torch.no_grad()
    def act(self, observations: Observations) -> Float32[Tensor, "batch act"]:
        """Return the actions in the environment's unit."""
        algorithm, length = self.algorithm, self.algorithm.config.length
        full = self.steps >= length
        for window in (self.features, self.actions, self.wishes):
            window[full] = window[full].roll(-1, 1)
        rows = torch.arange(len(full), device=full.device)
        slot = self.steps.clamp(max=length - 1)
        self.features[rows, slot] = algorithm.encoder(observations)
        self.wishes[rows, slot] = self.to_go * self.to_go.new_tensor(self.scales())
        # Slots after this one may hold anything, since the transformer does not look ahead.
        timesteps = (self.steps - slot)[:, None] + torch.arange(length, device=slot.device)
        unit = self.actions_of(timesteps)[rows, slot]
        self.actions[rows, slot] = unit
        self.steps += 1
        actions: Tensor = algorithm.scaling.actions_from_unit(unit)
        return actions

    def reward(self, rewards: Float32[Tensor, " batch"]) -> None:
        """Subtract rewards from the returns that are still to come."""
        self.to_go[:, 0] -= rewards
