"""Recordings of ALOHA, a file an episode, become a dataset of arms and cameras.

python aloha.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write files as ALOHA's recorder does, and import the folder."""
    rng = np.random.default_rng(0)
    (folder / "episodes").mkdir()
    for number in range(3):
        with h5py.File(folder / "episodes" / f"episode_{number}.hdf5", "w") as file:
            file["observations/qpos"] = rng.normal(size=(20, 14))
            file["observations/qvel"] = rng.normal(size=(20, 14))
            file["observations/images/top"] = rng.integers(0, 255, (20, 8, 8, 3)).astype("u1")
            file["action"] = rng.normal(size=(20, 14))
    orlog.import_dataset(folder / "episodes", "lab/arms-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/arms-v1")
    print(len(dataset), "episodes;", dataset.observation_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
