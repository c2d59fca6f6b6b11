"""Published settings of algorithms, with where each was read.

`manifests/published/hyperparameters.json` holds them by algorithm and implementation: of each the
source (repository, commit and file), what is common to its datasets, and what differs per dataset. The
algorithms' docstrings and `algos/presets.py` cite it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orlog.errors import NotFoundError
from orlog.manifests.documents import parse_json
from orlog.manifests.names import did_you_mean
from orlog.manifests.shipped import records_folder

__all__ = ["published_file", "published_settings"]


def published_file() -> Path:
    """Return the file of all published settings."""
    return records_folder() / "published" / "hyperparameters.json"


def published_settings(algorithm: str, implementation: str) -> dict[str, Any]:
    """Return what an implementation of an algorithm was published with, such as ("IQL", "CORL").

    Raises:
        NotFoundError: no such algorithm or implementation; the message names those there are.
    """
    algorithms = parse_json(published_file().read_bytes())["algorithms"]
    found = _choose(algorithms, algorithm, "algorithm")
    settings: dict[str, Any] = _choose(found, implementation, f"implementation of {algorithm}")
    return settings


def _choose(known: dict[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise NotFoundError(
            f"no {what} is named {name!r} in {published_file().name}"
            f"{did_you_mean(name, list(known))}; there are {', '.join(known)}"
        )
    return known[name]
