"""The logs of DQN on Atari, as Dopamine writes them, become a dataset.

python dqn_replay.py
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write a checkpoint of a replay buffer, and import its folder."""
    rng = np.random.default_rng(0)
    (folder / "logs").mkdir()
    arrays = {
        "observation": rng.integers(0, 255, (60, 8, 8)).astype("u1"),
        "action": rng.integers(0, 4, 60).astype("i4"),
        "reward": rng.integers(-1, 2, 60).astype("f4"),
        "terminal": (np.arange(60) % 20 == 19).astype("u1"),
    }
    for name, values in arrays.items():
        with gzip.open(folder / "logs" / f"$store$_{name}_ckpt.0.gz", "wb") as file:
            np.save(file, values)
    orlog.import_dataset(folder / "logs", "lab/dqn-replay-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/dqn-replay-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
