"""Vaults of several agents, as OG-MARL has them, become one dataset with a Dict of the agents' values.

python ogmarl.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tensorstore

import orlog


def main(folder: Path) -> None:
    """Write two vaults of ten steps as flashbax does, import both, and take those of good players."""
    rng = np.random.default_rng(0)
    ends = np.tile(np.arange(10)[:, None] % 5 == 4, 2)
    steps = {
        "observations": rng.normal(size=(10, 2, 3)).astype("float32"),
        "actions": rng.integers(0, 4, (10, 2)).astype("int32"),
        "rewards": np.ones((10, 2), "float32"),
        "terminals": ends,
        "truncations": ends & False,
    }
    for uid in ("Good", "Poor"):
        vault = folder / "2m.vlt" / uid
        arrays = {f"{name}.": values[None] for name, values in steps.items()}
        for name, values in {**arrays, "vault_index": np.array([10], "int32")}.items():
            kvstore = {"driver": "ocdbt", "base": f"file://{vault}/", "path": f"{name}/"}
            spec = {"driver": "zarr", "kvstore": kvstore}
            array = tensorstore.open(spec, dtype=values.dtype, shape=values.shape, create=True)
            array.result().write(values).result()
        shapes = {name: str((1, *values.shape)) for name, values in steps.items()}
        said = {"version": 1.2, "structure_shape": shapes}
        (vault / "metadata.json").write_text(json.dumps(said), "utf-8")

    orlog.import_dataset(folder / "2m.vlt", "lab/2m-v0")
    dataset = orlog.load_dataset("lab/2m-v0")
    good = [number for number, one in enumerate(dataset) if one.metadata["split"] == "Good"]
    print(len(dataset), "episodes, by good players", good)
    print(dataset[0])


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
