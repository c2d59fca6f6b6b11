"""A file as D4RL has them becomes a dataset, and the dataset such a file again.

python d4rl.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write a file of three episodes, import it, and export the dataset."""
    rng = np.random.default_rng(0)
    ends = np.arange(1, 31) % 10 == 0
    with h5py.File(folder / "walker.hdf5", "w") as file:
        observations = rng.normal(size=(31, 4)).astype("float32")
        file["observations"], file["next_observations"] = observations[:-1], observations[1:]
        file["actions"] = rng.uniform(-1, 1, (30, 2)).astype("float32")
        file["rewards"] = rng.normal(size=30).astype("float32")
        file["terminals"] = ends & (np.arange(30) < 10)
        file["timeouts"] = ends & (np.arange(30) >= 10)

    orlog.import_dataset(folder / "walker.hdf5", "lab/walker-v1")
    dataset = orlog.load_dataset("lab/walker-v1")
    ended = sum(bool(episode.terminations[-1]) for episode in dataset)
    print(len(dataset), "episodes, of which", ended, "ended and the others were cut off")

    orlog.export_dataset("lab/walker-v1", folder / "out", to="d4rl")
    print("written again:", *[path.name for path in (folder / "out").iterdir()])


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
