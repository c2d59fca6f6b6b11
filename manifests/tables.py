"""Published facts with their sources: tables of benchmarks' datasets, references and scores, and settings of algorithms.

`manifests/recorded/tables/*.csv` hold them as they were collected, with the source of each row. They are
edited by hand; `checksums.json` pins each of them, and the files that it came from. In the table of published
scores, `per_seed` has the scores of seeds with blanks between them and - for a missing one, and ` | ` stands between caveats.

`manifests/recorded/published/hyperparameters.json` holds settings by algorithm and implementation: for each the
source (repository, commit and file), what its datasets have in common, and what differs between
them. The algorithms' docstrings and `algos/presets.py` cite it.
"""

from __future__ import annotations

import csv
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from orlog.errors import NotFoundError
from orlog.manifests.documents import parse_json
from orlog.manifests.names import did_you_mean
from orlog.manifests.shipped import records_folder

TABLES = ("atari", "d4rl", "disagreements", "dsrl", "minari", "neorl2", "ogbench", "ogmarl", "published_scores")

Row: TypeAlias = Mapping[str, str]


def table_file(name: str) -> Path:
    """Return the file of a table."""
    return records_folder() / "tables" / f"{name}.csv"


@functools.cache
def read_table(name: str) -> tuple[Row, ...]:
    """Return the rows of a table, each from column to text; a text is empty if it is not known."""
    with table_file(name).open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file, strict=True)
        return tuple(MappingProxyType(dict(zip(header, map(sys.intern, line), strict=True))) for line in lines)


def published_file() -> Path:
    """Return the file of all published settings."""
    return records_folder() / "published" / "hyperparameters.json"


def presets_file(algorithm: str) -> Path:
    """Return the file that says what published names of settings mean in orlog's algorithm."""
    return records_folder() / "published" / "presets" / f"{algorithm}.json"


def published_settings(algorithm: str, implementation: str) -> dict[str, Any]:
    """Return the published settings of an algorithm's implementation, such as ("IQL", "CORL").

    Raises NotFoundError for no such algorithm or implementation; the message names the known ones.
    """
    implementations = _choose(_algorithms(), algorithm, "algorithm")
    settings: dict[str, Any] = _choose(implementations, implementation, f"implementation of {algorithm}")
    return settings


@functools.cache
def _algorithms() -> dict[str, Any]:
    """Return all published settings; the file takes tens of milliseconds to read."""
    document = parse_json(published_file().read_bytes())
    algorithms: dict[str, Any] = document["algorithms"]
    for_goals = document["goal_conditioned"]["algorithms"]
    return algorithms | {name: {"OGBench": settings} for name, settings in for_goals.items()}


def _choose(known: dict[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise NotFoundError(
            f"no {what} is named {name!r} in {published_file().name}"
            f"{did_you_mean(name, list(known)) or '.'} It has: {', '.join(known)}."
        )
    return known[name]
