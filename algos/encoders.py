"""Encoders: what networks see of observations, one vector of floats for each of a batch.

    vector     a Box of floats or integers          standardized; no weights, nothing is drawn
    frames     a Box of uint8 with 2 to 4 axes      divided by 255, then convolutions
    integers   Discrete, MultiDiscrete              one-hot
               MultiBinary                          0 or 1
    mixture    a Dict or Tuple of these             the features of its parts, side by side

Frames are given as they are stored, uint8, and become floats only here. The axis of their colors is the smallest of
three, the last one if two are equal; of four axes the first one counts stacked frames. Every pixel of a stack becomes
an input channel.

Convolutions end in a flat vector, so that the layers of an algorithm (`hidden`) come right after them:

    nature   Mnih et al. 2015, "Human-level control through deep reinforcement learning": 32 filters
             of 8 x 8 at every 4th pixel, 64 of 4 x 4 at every 2nd, 64 of 3 x 3, ReLU after each.
             With `hidden=[512]` it is that paper's network.
    impala   Espeholt et al. 2018, https://arxiv.org/abs/1802.01561: three stages of 16, 32 and 32
             filters, each a convolution, a maximum over 3 x 3 at every 2nd pixel and two residual
             blocks, and a last ReLU. With `hidden=[256]` it is that paper's network without memory.

An algorithm with critics has one encoder, which their loss alone trains and of which there is no target copy, as in
DrQ-v2 (Yarats et al. 2021, https://arxiv.org/abs/2107.09645); discrete CQL has a target copy, as d3rlpy has. Layers
start as `torch.nn.Conv2d` does. Random shifts (Kostrikov, Yarats and Fergus 2020, https://arxiv.org/abs/2004.13649)
move the frames of a batch in training, each by its own number of pixels in both directions; the pixels at the border
are repeated.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, TypeAlias

import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn

from orlog.algos.networks import Scaling
from orlog.algos.settings import EncoderKind, FrameSettings
from orlog.errors import SchemaError
from orlog.manifests.spaces import leaf_spaces, space_leaves

Observations: TypeAlias = Tensor | dict[str, Tensor]
"""What a batch holds: a tensor, or one for each part of a mixture."""

_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, size, step
_IMPALA = (16, 32, 32)
_SMALLEST = 36  # pixels on a side, so that the last filter of the Nature network fits


class Encoder(nn.Module):
    """The encoder of vectors: it standardizes them, and has neither weights nor state.

    Attributes:
        width: Numbers in an item's features.
    """

    width: int

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        self.width = len(scaling.obs_mean)
        self._scaling = scaling

    def forward(self, observations: Any) -> Float[Tensor, "batch width"]:
        """Return the features of observations, as batches hold them."""
        return self._scaling.observations(observations)

    def shift(self, observations: Any) -> Any:
        """Return observations whose frames are shifted at random, for training; others as they are."""
        return observations

    def shifted(self, observations: Any) -> Float[Tensor, "batch width"]:
        """Return the features of observations for training, whose frames are shifted at random."""
        features: Tensor = self(self.shift(observations))
        return features


class _MixedEncoder(Encoder):
    """The encoder of frames, of integers, and of mixtures; it draws the shifts of frames."""

    def __init__(self, scaling: Scaling, kind: EncoderKind, generator: torch.Generator, random_shift: int) -> None:
        super().__init__(scaling)
        space = scaling.observation_space
        assert space is not None
        self._keys = ["/".join(map(str, leaf.keys)) for leaf in space_leaves(space)]
        self._random_shift = random_shift
        parts: list[_Part] = []
        first = 0
        for name, leaf in leaf_spaces(space, "observations"):
            part = _make_part(name, leaf, scaling, first, kind, generator)
            first += part.width if isinstance(part, _Vector) else 0
            parts.append(part)
        self.parts = nn.ModuleList(parts)
        self.width = sum(part.width for part in parts)
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self._generator = torch.Generator(generator.device).manual_seed(int(seed))

    def forward(self, observations: Any) -> Float[Tensor, "batch width"]:
        given = observations if isinstance(observations, dict) else {"": observations}
        features = [part(given[key]) for key, part in zip(self._keys, self.parts, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, -1)

    def shift(self, observations: Any) -> Any:
        if not self._random_shift:
            return observations
        given = observations if isinstance(observations, dict) else {"": observations}
        shifted = dict(given)
        for key, part in zip(self._keys, self.parts, strict=True):
            if isinstance(part, _Frames):
                shifted[key] = part.shift(given[key], self._random_shift, self._generator)
        return shifted.get("", shifted)

    def get_extra_state(self) -> Tensor:
        return self._generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self._generator.set_state(state.cpu())


class _Part(nn.Module):
    """What turns one part of an observation into `width` features."""

    width: int


class _Vector(_Part):
    """Standardizes numbers, which are those from `first` on among all that are standardized."""

    def __init__(self, leaf: spaces.Box, scaling: Scaling, first: int) -> None:
        super().__init__()
        self.width = math.prod(leaf.shape)
        place = slice(first, first + self.width)
        self._mean, self._std = scaling.obs_mean[place], scaling.obs_std[place]

    def forward(self, values: Tensor) -> Tensor:
        return (values.reshape(len(values), self.width) - self._mean) / self._std


class _Integers(_Part):
    """Gives each integer as one-hot, side by side."""

    def __init__(self, counts: Tensor, starts: Tensor, scaling: Scaling) -> None:
        super().__init__()
        self.width = int(counts.sum())
        offsets = counts.cumsum(0) - counts - starts
        self._offsets, self._dtype = offsets.to(scaling.obs_mean.device), scaling.obs_mean.dtype

    def forward(self, values: Int64[Tensor, "batch ..."]) -> Tensor:
        places = values.reshape(len(values), -1).long() + self._offsets
        empty = torch.zeros(len(values), self.width, dtype=self._dtype, device=places.device)
        return empty.scatter_(1, places, 1)


class _Bits(_Part):
    def __init__(self, leaf: spaces.MultiBinary, scaling: Scaling) -> None:
        super().__init__()
        self.width, self._dtype = math.prod(leaf.shape), scaling.obs_mean.dtype

    def forward(self, values: Tensor) -> Tensor:
        return values.reshape(len(values), self.width).to(self._dtype)


class _Frames(_Part):
    def __init__(self, name: str, leaf: spaces.Box, kind: EncoderKind, generator: torch.Generator) -> None:
        super().__init__()
        self._axes = _picture_axes(name, leaf)
        height, width = (leaf.shape[axis - 1] for axis in self._axes)
        if kind == "nature" and min(height, width) < _SMALLEST:
            raise SchemaError(
                f"{name} holds frames of {height} x {width} pixels, which are too small for the "
                f"Nature encoder (at least {_SMALLEST} x {_SMALLEST}); take the other one: "
                "settings={'encoder': 'impala'}."
            )
        channels = math.prod(leaf.shape) // (height * width)
        make = _nature if kind == "nature" else _impala
        self.layers = make(channels, generator)
        with torch.no_grad():
            frame = torch.zeros(1, channels, height, width, device=generator.device)
            self.width = self.layers(frame).numel()

    def forward(self, frames: UInt8[Tensor, "batch ..."]) -> Tensor:
        pictures = frames.movedim(self._axes, (-2, -1))
        pictures = pictures.reshape(len(frames), -1, *pictures.shape[-2:])
        weight = next(self.layers.parameters())
        features: Tensor = self.layers(pictures.to(weight.dtype) / 255)
        return features.flatten(1)

    def shift(
        self, frames: UInt8[Tensor, "batch ..."], most: int, generator: torch.Generator
    ) -> UInt8[Tensor, "batch ..."]:
        """Return frames moved by up to `most` pixels in both directions."""
        count, device = len(frames), frames.device
        pictures = frames.movedim(self._axes, (1, 2))
        by = torch.randint(-most, most + 1, (2, count, 1), generator=generator, device=device)
        rows, columns = (
            (torch.arange(size, device=device) + offset).clamp(0, size - 1)
            for size, offset in zip(pictures.shape[1:3], by, strict=True)
        )
        items = torch.arange(count, device=device)[:, None, None]
        return pictures[items, rows[:, :, None], columns[:, None, :]].movedim((1, 2), self._axes)


def make_encoder(
    scaling: Scaling, kind: EncoderKind = "nature", *, generator: torch.Generator, random_shift: int = 0
) -> Encoder:
    """Return the encoder of a dataset's observations, on the device of the generator.

    The observation space of the scaling says what to encode; without one, observations are vectors,
    for which nothing is drawn. `random_shift` are the pixels by which `shift` moves frames at most.
    """
    space = scaling.observation_space
    if space is None or all(_is_vector(leaf) for _, leaf in leaf_spaces(space, "observations")):
        return Encoder(scaling)
    return _MixedEncoder(scaling, kind, generator, random_shift)


def encoder_of(config: FrameSettings, scaling: Scaling, generator: torch.Generator) -> Encoder:
    """Return the encoder of a dataset's observations that an algorithm's settings ask for."""
    return make_encoder(scaling, config.encoder, generator=generator, random_shift=config.random_shift)


def encode_windows(
    encoder: Encoder, windows: Observations, mask: Bool[Tensor, "batch length"]
) -> Float[Tensor, "batch length width"]:
    """Return the features of windows of steps, for training; their frames are shifted at random.

    The first slot is filled in each window. Other slots that are empty may have any features.
    """
    if type(encoder) is Encoder:
        return encoder.forward(windows)
    steps = {}
    for key, values in windows.items() if isinstance(windows, dict) else [("", windows)]:
        filled = mask.view(*mask.shape, *[1] * (values.ndim - 2))
        # Zeros would be no value of some spaces of integers.
        steps[key] = torch.where(filled, values, values[:, :1]).flatten(0, 1)
    features: Tensor = encoder(encoder.shift(steps.get("", steps)))
    return features.view(*mask.shape, encoder.width)


def _is_vector(leaf: spaces.Space[Any]) -> bool:
    """Whether loaders give a part as numbers to standardize."""
    return isinstance(leaf, spaces.Box) and not (leaf.dtype == "uint8" and len(leaf.shape) >= 2)


def _make_part(
    name: str, leaf: spaces.Space[Any], scaling: Scaling, first: int, kind: EncoderKind, generator: torch.Generator
) -> _Part:
    """Return the encoder of one part, whose numbers to standardize begin at `first`."""
    match leaf:
        case spaces.Box() if _is_vector(leaf):
            return _Vector(leaf, scaling, first)
        case spaces.Box():
            return _Frames(name, leaf, kind, generator)
        case spaces.Discrete():
            counts, starts = torch.tensor([int(leaf.n)]), torch.tensor([int(leaf.start)])
            return _Integers(counts, starts, scaling)
        case spaces.MultiDiscrete():
            sizes = torch.tensor(leaf.nvec.reshape(-1).tolist())
            return _Integers(sizes, torch.tensor(leaf.start.reshape(-1).tolist()), scaling)
        case spaces.MultiBinary():
            return _Bits(leaf, scaling)
    raise SchemaError(
        f"{name} is {leaf}, which no encoder takes; those of numbers (Box), frames (Box of uint8 "
        "with 2 to 4 axes) and integers (Discrete, MultiDiscrete, MultiBinary) are taken."
    )


def _picture_axes(name: str, leaf: spaces.Box) -> tuple[int, int]:
    """Return which axes of a batch of frames are height and width; its first axis is the batch."""
    shape = leaf.shape
    if len(shape) == 2:
        return 1, 2
    if len(shape) > 4:
        raise SchemaError(
            f"{name} is {leaf}, uint8 with {len(shape)} axes; frames have at most 4: stack, height, width, colors."
        )
    before = len(shape) - 3
    colors = min(range(2, -1, -1), key=lambda axis: shape[before + axis])
    height, width = (axis + before + 1 for axis in range(3) if axis != colors)
    return height, width


def _nature(channels: int, generator: torch.Generator) -> nn.Sequential:
    sizes = [channels, *(filters for filters, _, _ in _NATURE)]
    layers: list[nn.Module] = []
    for (fan_in, fan_out), (_, size, step) in zip(itertools.pairwise(sizes), _NATURE, strict=True):
        layers += [_convolution(fan_in, fan_out, size, generator, stride=step), nn.ReLU()]
    return nn.Sequential(*layers)


def _impala(channels: int, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise([channels, *_IMPALA]):
        layers += [
            _convolution(fan_in, fan_out, 3, generator, padding=1),
            nn.MaxPool2d(3, 2, padding=1),
            _Residual(fan_out, generator),
            _Residual(fan_out, generator),
        ]
    return nn.Sequential(*layers, nn.ReLU())


class _Residual(nn.Module):
    """Two convolutions, each after a ReLU, whose output is added to the input."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            _convolution(channels, channels, 3, generator, padding=1),
            nn.ReLU(),
            _convolution(channels, channels, 3, generator, padding=1),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = inputs + self.layers(inputs)
        return outputs


@torch.no_grad()
def _convolution(fan_in: int, fan_out: int, size: int, generator: torch.Generator, **options: int) -> nn.Conv2d:
    # Conv2d's own initial weights would come from the global generator.
    made: nn.Conv2d = nn.utils.skip_init(  # type: ignore[no-untyped-call]  # torch has no types for it
        nn.Conv2d, fan_in, fan_out, size, device=generator.device, **options
    )
    assert made.bias is not None
    bound = 1 / math.sqrt(fan_in * size * size)
    made.weight.uniform_(-bound, bound, generator=generator)
    made.bias.uniform_(-bound, bound, generator=generator)
    return made
