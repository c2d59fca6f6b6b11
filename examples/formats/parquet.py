"""A dataset becomes a Parquet table for pandas, and the table a dataset again.

python parquet.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
import pandas as pd

import orlog


def main(folder: Path) -> None:
    """Record two episodes, export them, and look at the table."""
    env = orlog.record(gymnasium.make("CartPole-v1"), "lab/pole-v1")
    for seed in range(2):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(seed)
            ended = terminated or truncated
    env.close()

    orlog.export_dataset("lab/pole-v1", folder / "out", to="parquet", lossy=True)
    table = pd.read_parquet(folder / "out" / "pole-v1.parquet")
    print(table.groupby("episode")["reward"].sum())
    orlog.import_dataset(folder / "out" / "pole-v1.parquet", "lab/again-v1")
    print(len(orlog.load_dataset("lab/again-v1")), "episodes")


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
