"""Arrays that a script saved with numpy become a dataset.

python npz.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def main(folder: Path) -> None:
    """Save arrays with a row for each step, and import them."""
    rng = np.random.default_rng(0)
    np.savez(
        folder / "runs.npz",
        obs=rng.normal(size=(40, 5)),
        acts=rng.integers(0, 4, 40),
        rews=rng.normal(size=40),
        terminated=np.arange(1, 41) % 8 == 0,
        truncated=np.zeros(40, bool),
    )
    orlog.import_dataset(folder / "runs.npz", "lab/runs-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/runs-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
