"""Trajectories that imitation saved become a dataset; here they are written by hand.

python imitation.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

import orlog


def main(folder: Path) -> None:
    """Write two trajectories as `imitation.data.serialize.save` does, and import them."""
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "obs": [rng.normal(size=(9, 4)).tolist() for _ in range(2)],
            "acts": [rng.integers(0, 2, 8).tolist() for _ in range(2)],
            "rews": [[1.0] * 8] * 2,
            "infos": [['{"TimeLimit.truncated": false}'] * 8] * 2,
            "terminal": [True, False],
        }
    )
    (folder / "demos").mkdir()
    with pa.ipc.new_stream(folder / "demos" / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "demos" / "state.json").write_text(json.dumps(state), "utf-8")

    orlog.import_dataset(folder / "demos", "lab/demos-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/demos-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
