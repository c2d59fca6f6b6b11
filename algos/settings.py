"""Checks that the settings of an algorithm make sense, as far as several algorithms share them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

__all__ = ["check_settings"]


def check_settings(config: Any) -> None:
    """Refuse settings that no run survives; names decide what is checked.

    Raises:
        ValueError: a number that is not finite, a learning rate or batch size that is not
            positive, a discount or target rate outside (0, 1], or a layer without units.
    """
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, found {value}")
        if name.endswith("learning_rate") and value <= 0:
            raise ValueError(f"{name} must be > 0, found {value}")
        if name in ("discount", "target_rate") and not 0 < value <= 1:
            raise ValueError(f"{name} must lie in (0, 1], found {value}")
        if name in ("batch_size", "steps", "sampled_actions") and value < 1:
            raise ValueError(f"{name} must be >= 1, found {value}")
        if name == "hidden" and (not value or min(value) < 1):
            raise ValueError(f"{name} must name at least one layer of at least one unit: {value}")
