"""Tables of published facts about benchmarks: datasets, references, scores.

`manifests/recorded/tables/*.csv` hold them as they were collected, with the source of each row. They are
edited by hand; `checksums.json` pins each of them, and the files that it came from. In the table of published
scores, `per_seed` has the scores of seeds with blanks between them and - for a missing one, and ` | ` stands between caveats.
"""

from __future__ import annotations

import csv
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from orlog.manifests.shipped import records_folder

TABLES = (
    "atari",
    "d4rl",
    "disagreements",
    "dsrl",
    "minari",
    "neorl2",
    "ogbench",
    "ogmarl",
    "published_scores",
)

Row: TypeAlias = Mapping[str, str]


def table_file(name: str) -> Path:
    """Return the file of a table."""
    return records_folder() / "tables" / f"{name}.csv"


@functools.cache
def read_table(name: str) -> tuple[Row, ...]:
    """Return the rows of a table, each from column to text; a text is empty if it is not known."""
    with table_file(name).open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file, strict=True)
        return tuple(
            MappingProxyType(dict(zip(header, map(sys.intern, line), strict=True)))
            for line in lines
        )
