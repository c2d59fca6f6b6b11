"""Episodes of ExoRL, V-D4RL or DreamerV2, a file of npz each, become a dataset.

python episode_npz.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write episodes as their recorders do, each beginning with a reset, and import the folder."""
    rng = np.random.default_rng(0)
    (folder / "buffer").mkdir()
    for number in range(3):
        np.savez(
            folder / "buffer" / f"episode_{number:06d}_20.npz",
            observation=rng.normal(size=(21, 4)).astype("f4"),
            action=rng.normal(size=(21, 2)).astype("f4"),
            reward=rng.normal(size=(21, 1)).astype("f4"),
            discount=np.ones((21, 1), "f4"),
        )
    orlog.import_dataset(folder / "buffer", "lab/episode-npz-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/episode-npz-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
