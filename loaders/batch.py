"""The batch that loaders give and algorithms take."""

from __future__ import annotations

import dataclasses

from jaxtyping import Float32
from torch import Tensor

__all__ = ["Batch"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Transitions as float32 tensors, one row each.

    The tensors may be strided views of one gathered block; call `.contiguous()` where another
    library needs it.

    Attributes:
        observations: Flattened as `gymnasium.spaces.flatten` does (Dict keys in sorted order).
        actions: In the environment's unit.
        rewards: In the environment's unit.
        next_observations: The real next observation, also after the last step of an episode.
        terminations: 1 where the task ended at this step: the next state has value 0.
        truncations: 1 where the episode was cut after this step: the next state keeps its value.
    """

    observations: Float32[Tensor, "batch obs"]
    actions: Float32[Tensor, "batch act"]
    rewards: Float32[Tensor, " batch"]
    next_observations: Float32[Tensor, "batch obs"]
    terminations: Float32[Tensor, " batch"]
    truncations: Float32[Tensor, " batch"]
