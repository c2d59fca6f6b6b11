"""OGBench's files for training and validation, with the rewards of one of their tasks.

python ogbench.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write two short walks towards the goal of task 1 (at 20 m, 20 m), and import them."""
    rng = np.random.default_rng(0)
    files = []
    for ending in ("", "-val"):
        places = np.linspace(0, 20, 101)[:, None] + rng.normal(0, 0.1, (101, 2))
        files.append(folder / f"pointmaze-medium-navigate-v0{ending}.npz")
        np.savez_compressed(
            files[-1],
            observations=places.astype("float32"),
            actions=rng.uniform(-1, 1, (101, 2)).astype("float32"),
            terminals=np.arange(101) == 100,
            qpos=places.astype("float32"),
        )

    orlog.import_dataset(files, "lab/maze-v0", task="task1")
    dataset = orlog.load_dataset("lab/maze-v0")
    print(len(dataset), "episodes of", dataset.episode_lengths.tolist(), "steps")
    print("splits:", *[episode.metadata["split"] for episode in dataset])
    print(dataset.manifest.description)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
