"""Batches of RLlib's JSON writer become a dataset, with the log-probabilities of its actions.

python rllib.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write episodes as RLlib does, without packing them, and import the file."""
    rng = np.random.default_rng(0)
    with (folder / "output-worker-0.json").open("w") as file:
        for number in range(3):
            batch = {
                "obs": rng.normal(size=(20, 4)).tolist(),
                "new_obs": rng.normal(size=(20, 4)).tolist(),
                "actions": rng.integers(0, 2, 20).tolist(),
                "rewards": [1.0] * 20,
                "terminateds": [False] * 19 + [True],
                "truncateds": [False] * 20,
                "action_logp": rng.normal(size=20).tolist(),
                "eps_id": [number] * 20,
            }
            file.write(json.dumps({"type": "SampleBatch", **batch}) + "\n")
    orlog.import_dataset(
        folder / "output-worker-0.json", "lab/rllib-v1", on_found=lambda found: print(*found.notes, sep="\n")
    )
    dataset = orlog.load_dataset("lab/rllib-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
