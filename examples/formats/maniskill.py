"""Demonstrations of ManiSkill become a dataset with the seeds that its JSON file tells.

python maniskill.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write trajectories as ManiSkill's recorder does, and import them."""
    rng, path = np.random.default_rng(0), folder / "trajectory.state.h5"
    with h5py.File(path, "w") as file:
        for number in range(3):
            group, reached = file.create_group(f"traj_{number}"), np.arange(20) >= 18
            group["obs"] = rng.normal(size=(21, 9)).astype("f4")
            group["actions"] = rng.normal(size=(20, 4)).astype("f4")
            group["success"] = group["terminated"] = reached
            group["truncated"] = np.zeros(20, bool)
    said = [{"episode_id": number, "episode_seed": 100 + number} for number in range(3)]
    told = {"env_info": {"env_id": "PickCube-v1"}, "episodes": said}
    path.with_suffix(".json").write_text(json.dumps(told))
    orlog.import_dataset(path, "lab/pick-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/pick-v1")
    print(len(dataset), "episodes; seeds", [one.seed for one in dataset])


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
