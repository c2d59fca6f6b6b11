"""A LeRobotDataset: what orlog writes with images, and reads again.

python lerobot.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
from gymnasium.spaces import Box, Dict

import orlog


def main(folder: Path) -> None:
    """Record two episodes with a camera, export them to LeRobot, and import them again."""
    spaces = (Dict(state=Box(-1, 1, (4,)), camera=Box(0, 255, (48, 64, 3), np.uint8)), Box(-1, 1, (2,)))
    with orlog.DatasetWriter("lab/arm-v1", observation_space=spaces[0], action_space=spaces[1]) as writer:
        for _ in range(2):
            episode = orlog.Episode(
                observations=[spaces[0].sample() for _ in range(11)],
                actions=[spaces[1].sample() for _ in range(10)],
                rewards=np.ones(10),
                terminations=np.arange(10) == 9,
                truncations=np.zeros(10, bool),
                metadata={"task": "lift the cube"},
            )
            writer.add_episode(episode)
    orlog.export_dataset("lab/arm-v1", folder / "arm", to="lerobot")
    print(pq.read_table(folder / "arm/data/chunk-000/file-000.parquet").column_names)
    orlog.import_dataset(folder / "arm", "lab/arm-v2")
    first = orlog.load_dataset("lab/arm-v2")[0]
    print("episodes to", first.metadata["task"], first.observations["camera"].shape)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
