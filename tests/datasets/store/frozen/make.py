"""Writes the frozen stores of format 1. Run once; what it wrote must stay readable for ever.

python tests/datasets/frozen/make.py FOLDER
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from gymnasium import spaces

import orlog

NAME = "tests/frozen-v1"
OBSERVATIONS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (16, 17, 3), np.uint8),
        "state": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "mode": spaces.Discrete(4, start=-1),
        "buttons": spaces.MultiBinary((2, 2)),
        "word": spaces.Text(8, min_length=0, charset="abé"),
        "marks": spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64), stack=True),
        "graph": spaces.Graph(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)),
        "either": spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32)]),
    }
)
ACTIONS = spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 4], start=[0, 1])])


def observation(row):
    """Return one observation; every number follows from the row."""
    nodes = np.full((1 + row % 2, 2), row / 64, np.float32)
    return {
        "image": ((np.arange(16 * 17 * 3) * (row + 3)) % 251).astype(np.uint8).reshape(16, 17, 3),
        "state": np.array([row / 4, -row, np.inf if row == 12 else 0], np.float32),
        "mode": np.int64(row % 4 - 1),
        "buttons": np.array([[row & 1, 0], [1, row >> 1 & 1]], np.int8),
        "word": "abé"[: row % 4] * 2,
        "marks": np.full((row % 3, 2), row / 128),
        "graph": spaces.GraphInstance(nodes, np.array([row % 3]), np.array([[0, row % 2]], np.int32)),
        "either": (np.int64(0), np.int64(row % 2)) if row % 2 else (np.int64(1), np.array([row / 32], np.float32)),
    }


def episode(index):
    """Return one episode; every number follows from the index."""
    steps = 2 + index
    first = 10 * index
    ends = np.zeros((2, steps), bool)
    ends[index % 2, -1] = True
    return orlog.Episode(
        observations=[observation(first + row) for row in range(steps + 1)],
        actions=(
            np.arange(2 * steps, dtype=np.float32).reshape(steps, 2) / 16,
            np.stack([np.arange(steps) % 3, np.arange(steps) % 4 + 1], 1),
        ),
        rewards=np.arange(steps, dtype=np.float32) * (index + 1),
        terminations=ends[0],
        truncations=ends[1],
        infos={
            "cost": np.arange(steps, dtype=np.float16),
            "instruction": [f"Schritt {step} - zurück"[: 3 * step] for step in range(steps)],
            "scan": [np.arange(step, dtype=np.int16) for step in range(steps)],
        },
        seed=None if index == 1 else index,
        metadata={"task": f"task {index}", "success": index % 2 == 0, "goal": np.arange(2.0) + index},
    )


def write(container):
    """Write three episodes, and two more as a second part; return the folder of the version."""
    with orlog.DatasetWriter(
        NAME,
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        reward_dtype=np.float32,
        description="Every space, in two parts.",
        license="CC0-1.0",
        behavior_policy="a formula",
        container=container,  # one of the two
    ) as writer:
        for index in range(3):
            writer.add_episode(episode(index))
    with orlog.DatasetWriter.append(orlog.load_dataset(NAME), changes="two more episodes") as writer:
        for index in range(3, 5):
            writer.add_episode(episode(index))
    return writer.folder


def main(target):
    """Write both containers."""
    for container in ("zarr", "hdf5"):
        with tempfile.TemporaryDirectory() as home:
            os.environ["ORLOG_HOME"] = home
            shutil.copytree(write(container), target / f"format-1-{container}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
