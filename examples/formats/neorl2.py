"""The Parquet files of NeoRL-2's mirror, for training and validation, become one dataset.

python neorl2.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet

import orlog


def main(folder: Path) -> None:
    """Write files of three and one episodes as they are in the mirror, and import them."""
    rng = np.random.default_rng(0)
    files = []
    for split, episodes in (("train", 3), ("val", 1)):
        rows = [rng.normal(size=(101, 6)).astype("float32") for _ in range(episodes)]
        columns = {
            "observations": [row for one in rows for row in one[:-1]],
            "actions": list(rng.uniform(-1, 1, (100 * episodes, 2)).astype("float32")),
            "rewards": rng.normal(size=100 * episodes).astype("float32"),
            "next_observations": [row for one in rows for row in one[1:]],
            "terminals": np.zeros(100 * episodes, bool),
        }
        files.append(folder / f"DMSD-{split}.parquet")
        pyarrow.parquet.write_table(pa.table(columns), files[-1])

    orlog.import_dataset(files, "lab/dmsd-v0")
    dataset = orlog.load_dataset("lab/dmsd-v0")
    print(len(dataset), "episodes:", *[episode.metadata["split"] for episode in dataset])
    print(dataset.manifest.description)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
