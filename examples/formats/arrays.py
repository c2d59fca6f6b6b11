"""HDF5 files of a layout of one's own, an episode each, become a dataset by saying what their arrays mean.

python arrays.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write files as a robot's recorder would, and import them."""
    rng = np.random.default_rng(0)
    for number in range(3):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file["observations/qpos"] = rng.normal(size=(20, 14))
            file["observations/images/top"] = rng.integers(0, 255, (20, 8, 8, 3)).astype("u1")
            file["action"] = rng.normal(size=(20, 14))
    orlog.import_dataset(
        sorted(folder.glob("*.hdf5")),
        "lab/aloha-v1",
        episode="file",
        columns={
            "observation/qpos": "observations/qpos",
            "observation/top": "observations/images/top",
            "action": "action",
        },
        on_found=lambda found: print(*found.notes, sep="\n"),
    )
    dataset = orlog.load_dataset("lab/aloha-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
