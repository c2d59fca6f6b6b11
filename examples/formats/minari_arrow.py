"""An episode of 70,000 steps that Minari records in Parquet is read whole, and given back in its HDF5.

python minari_arrow.py
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import minari
import numpy as np
from gymnasium.spaces import Box, Discrete
from minari.data_collector import EpisodeBuffer

import orlog


def main(folder: Path) -> None:
    """Record it, import it, and export the dataset."""
    steps = 70_000
    episode = EpisodeBuffer(
        observations=np.linspace(0, 1, 2 * steps + 2, dtype=np.float32).reshape(-1, 2),
        actions=np.arange(steps) % 3,
        rewards=[1.0] * steps,
        terminations=[False] * (steps - 1) + [True],
        truncations=[False] * steps,
    )
    spaces = {"observation_space": Box(0, 1, (2,)), "action_space": Discrete(3)}
    warnings.simplefilter("ignore")  # Minari asks for an author and more
    minari.create_dataset_from_buffers("lab/long-v0", [episode], data_format="parquet", **spaces)
    theirs = len(next(minari.load_dataset("lab/long-v0").iterate_episodes()))

    orlog.import_dataset(folder / "minari" / "lab" / "long-v0", "lab/long-v0")
    dataset = orlog.load_dataset("lab/long-v0")
    print(len(dataset), "episodes of", dataset.total_steps, "steps; Minari itself reads", theirs)
    orlog.export_dataset(dataset, folder / "out", to="minari")


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        os.environ["MINARI_DATASETS_PATH"] = f"{home}/minari"
        main(Path(home))
