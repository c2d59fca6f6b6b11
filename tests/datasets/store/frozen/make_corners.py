"""Writes the frozen store of format 1 with what is rare. Run once; what it wrote must stay readable for ever.

python tests/datasets/store/frozen/make_corners.py FOLDER

It was written before arrays without numbers got chunks of at least 1, so `zarr.json` of `infos/nothing` has a 0.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

import orlog
from orlog.datasets.store import chunk_hashes
from orlog.datasets.store.encoding import Encoding

NAME = "tests/corners-v1"
OBSERVATIONS = spaces.Dict(
    {
        "Key": spaces.Box(-1, 1, (1,), np.float16),
        "key": spaces.Box(np.array([0, -np.inf]), np.array([1e22, 0.1]), dtype=np.float64),
        "bottom burner": spaces.Discrete(3),
        "é": spaces.MultiBinary(2),
        "zarr.json": spaces.Box(0, 2**64 - 1, (), np.uint64),
        "flat": spaces.Box(0, 255, (3, 20, 18), np.uint8),
        "noise": spaces.Box(0, 255, (16, 16), np.uint8),
    }
)
ENCODINGS = {
    "rewards": Encoding(chunk_rows=128, chunks_per_shard=8),
    "actions": Encoding(chunk_rows=500, chunks_per_shard=3, compression="lz4", bit_shuffle=False),
    "infos/count": Encoding(chunk_rows=256, chunks_per_shard=4, compression="none"),
}


def episode(index, steps):
    """Return one episode; every number follows from the index."""
    rows = np.arange(steps + 1)
    noise = np.random.Generator(np.random.Philox(index)).integers(0, 40, (16, 16), np.uint8)
    return orlog.Episode(
        observations={
            "Key": (rows[:, None] % 5 - 2).astype(np.float16),
            "key": np.stack([rows * 1e18, -rows / 3], 1),
            "bottom burner": rows % 3,
            "é": np.stack([rows % 2, np.zeros_like(rows)], 1).astype(np.int8),
            "zarr.json": np.uint64(2**64 - 1) - rows.astype(np.uint64),
            "flat": np.broadcast_to((rows % 7 // 6)[:, None, None, None], (steps + 1, 3, 20, 18)).astype(np.uint8),
            "noise": np.broadcast_to(noise, (steps + 1, 16, 16)) + (rows % 3)[:, None, None].astype(np.uint8),
        },
        actions=np.where(rows[:-1] % 100 == 7, 2.5, 0.1).astype(np.float32),
        rewards=np.full(steps, 0.1, np.float32),
        terminations=rows[:-1] == (steps - 1 if index == 0 else -1),
        truncations=np.zeros(steps, np.bool_),
        infos={
            "nothing": np.zeros((steps, 0, 2), np.float32),
            "empty": [""] * steps,
            "count": np.arange(steps),
            "Wert": np.where(rows[:-1] == 3, np.nan, 1.0),
        },
        seed=2**62 + index,
        metadata={"word": f'"{index}"\n\u2028\U0001f916'},
    )


def write():
    """Write two episodes, and one more as a second part, with hashes of chunks; return the folder."""
    with orlog.DatasetWriter(
        NAME,
        observation_space=OBSERVATIONS,
        action_space=spaces.Box(-1, 1, (), np.float32),
        environment=EnvSpec(
            "CartPole-v1", entry_point="none", kwargs={"a": 1, "b": 1.0, "c": 1e-7, "d": 1e22, "e": -0.0}
        ),
        reward_dtype=np.float32,
        description='Zeile 1\nZeile 2\t"quoted" \\ / \x7f \x01 é \u2028 \U0001f916',
        license="CC0-1.0",
        behavior_policy="a formula",
        roles={"episodes/word": "task_words"},
        encodings=ENCODINGS,
    ) as writer:
        writer.add_episode(episode(0, 2500))
        writer.add_episode(episode(1, 3))
    with orlog.DatasetWriter.append(orlog.load_dataset(NAME), changes="one more episode") as writer:
        writer.add_episode(episode(2, 5))
    return writer.folder


def main(target):
    """Write the store."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["ORLOG_HOME"] = home
        chunk_hashes.LARGE_BYTES = 0  # so hashes of chunks are written
        shutil.copytree(write(), target / "format-1-corners")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
