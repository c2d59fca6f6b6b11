"""A recording becomes a dataset that Minari opens, and is read back from Minari's folder.

python minari.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium

import orlog


def main(folder: Path) -> None:
    """Record three episodes, export them, and import them again."""
    env = orlog.record(gymnasium.make("CartPole-v1"), "lab/pole-v1")
    env.action_space.seed(0)
    for seed in range(3):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    env.close()

    orlog.export_dataset("lab/pole-v1", folder / "out", to="minari")
    print("MINARI_DATASETS_PATH=out, and minari.load_dataset('lab/pole-v1') opens it")

    orlog.import_dataset(folder / "out", "lab/again-v1")
    dataset = orlog.load_dataset("lab/again-v1")
    print(len(dataset), "episodes with their seeds:", [episode.seed for episode in dataset])


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
