"""A log in a Parquet table, whose columns are named on the way in.

python table.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import orlog


def main(folder: Path) -> None:
    """Write a table with a row for each step, and import it."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(24, 3)), columns=["obs_0", "obs_1", "u"])
    table["reward"] = rng.normal(size=24)
    table["run"] = np.repeat(["a", "b", "c"], 8)
    table["t"] = np.tile(np.arange(8), 3)
    table["crashed"] = (table["run"] == "b") & (table["t"] == 7)
    table.to_parquet(folder / "logs.parquet")

    orlog.import_dataset(
        folder / "logs.parquet",
        "lab/robot-v3",
        columns={"observation": "obs_*", "action": "u", "reward": "reward", "terminated": "crashed"},
        episode="run",
        step="t",
        on_found=lambda found: print(*found.notes, sep="\n"),
    )
    print(len(orlog.load_dataset("lab/robot-v3")), "episodes")


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
