"""What tests read of batches."""

from __future__ import annotations

import dataclasses
from typing import Any


def columns(batch: Any) -> list[str]:
    """Return the names of the fields of a batch, or of its class, but for infos."""
    return [field.name for field in dataclasses.fields(batch) if field.name != "infos"]
