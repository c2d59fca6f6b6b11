"""A replay buffer in Zarr, as Diffusion Policy stores demonstrations, becomes a dataset.

python zarr.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def write(path: Path, values: np.ndarray) -> None:
    """Write an array of Zarr's version 2 in one chunk, as `zarr.save` would."""
    path.mkdir(parents=True)
    described = {
        "zarr_format": 2,
        "shape": values.shape,
        "chunks": values.shape,
        "dtype": values.dtype.str,
        "order": "C",
        "fill_value": 0,
        "compressor": None,
        "filters": None,
    }
    (path / ".zarray").write_text(json.dumps(described))
    (path / ".".join("0" * values.ndim)).write_bytes(values.tobytes())


def main(folder: Path) -> None:
    """Write three episodes, one after the other, and import them."""
    rng, replay = np.random.default_rng(0), folder / "pusht_replay.zarr"
    for group in (replay, replay / "data", replay / "meta"):
        group.mkdir()
        (group / ".zgroup").write_text('{"zarr_format": 2}')
    write(replay / "data" / "img", rng.integers(0, 255, (60, 8, 8, 3)).astype("f4"))
    write(replay / "data" / "state", rng.normal(size=(60, 5)).astype("f4"))
    write(replay / "data" / "action", rng.normal(size=(60, 2)).astype("f4"))
    write(replay / "meta" / "episode_ends", np.array([25, 40, 60]))
    orlog.import_dataset(replay, "lab/pusht-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("lab/pusht-v1")
    print(len(dataset), "episodes;", dataset.observation_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
