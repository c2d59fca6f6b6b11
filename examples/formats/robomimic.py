"""Demonstrations in robomimic's layout, with their training and validation masks.

python robomimic.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write four demonstrations, import them, and take those for training."""
    rng = np.random.default_rng(0)
    with h5py.File(folder / "lift.hdf5", "w") as file:
        for number in range(4):
            group = file.create_group(f"data/demo_{number}")
            for part, width in (("eef_pos", 3), ("object", 10)):
                rows = rng.normal(size=(13, width))
                group[f"obs/{part}"], group[f"next_obs/{part}"] = rows[:-1], rows[1:]
            group["actions"] = rng.uniform(-1, 1, (12, 7))
            group["rewards"] = group["dones"] = (np.arange(12) == 11).astype("float64")
            group.attrs["num_samples"] = 12
        file["mask/train"] = np.array([b"demo_0", b"demo_1", b"demo_2"])
        file["mask/valid"] = np.array([b"demo_3"])

    orlog.import_dataset(folder / "lift.hdf5", "lab/lift-v1")
    dataset = orlog.load_dataset("lab/lift-v1")
    training = [number for number, one in enumerate(dataset) if one.metadata["split"] == "train"]
    print(len(dataset), "episodes, for training", training)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
