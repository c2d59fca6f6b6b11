"""A file as DSRL has them: rewards and costs.

python dsrl.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write a file of two episodes with costs, and import it."""
    rng = np.random.default_rng(0)
    with h5py.File(folder / "car.hdf5", "w") as file:
        observations = rng.normal(size=(21, 3)).astype("float32")
        file["observations"], file["next_observations"] = observations[:-1], observations[1:]
        file["actions"] = rng.uniform(-1, 1, (20, 2)).astype("float32")
        file["rewards"] = rng.normal(size=20).astype("float32")
        file["costs"] = (rng.random(20) < 0.2).astype("float32")
        file["terminals"] = np.zeros(20, bool)
        file["timeouts"] = np.arange(1, 21) % 10 == 0

    orlog.import_dataset(folder / "car.hdf5", "lab/car-v1")
    dataset = orlog.load_dataset("lab/car-v1")
    costs = [float(episode.infos["cost"].sum()) for episode in dataset]
    print(len(dataset), "episodes, whose costs add up to", costs)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
