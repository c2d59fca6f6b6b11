"""Play data of CALVIN, a file of npz for each step, become a dataset.

python calvin.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write two episodes as CALVIN lays them out, and import the folder."""
    rng = np.random.default_rng(0)
    (folder / "training").mkdir()
    for number in range(20):
        np.savez(
            folder / "training" / f"episode_{number:07d}.npz",
            rgb_static=rng.integers(0, 255, (8, 8, 3)).astype("u1"),
            robot_obs=rng.normal(size=15),
            scene_obs=rng.normal(size=24),
            actions=rng.normal(size=7),
            rel_actions=rng.normal(size=7),
        )
    np.save(folder / "training" / "ep_start_end_ids.npy", [[0, 11], [12, 19]])
    orlog.import_dataset(folder / "training", "lab/calvin-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/calvin-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
