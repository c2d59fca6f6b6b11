"""An RLDS dataset as TensorFlow Datasets keeps it, without TensorFlow: exported, and imported again.

python rlds.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium

import orlog


def main(folder: Path) -> None:
    """Record CartPole, export it for `tfds.builder_from_directory`, and import the folder."""
    env = orlog.record(gymnasium.make("CartPole-v1"), "lab/cart-v1")
    env.action_space.seed(0)
    for seed in range(5):
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated
    env.close()

    orlog.export_dataset("lab/cart-v1", folder / "out", to="rlds")
    print(*sorted(file.name for file in folder.glob("out/cart_v1/1.0.0/*")), sep="\n")
    orlog.import_dataset(folder / "out", "lab/again-v1")
    dataset = orlog.load_dataset("lab/again-v1")
    print(len(dataset), "episodes of", dataset.episode_lengths.tolist(), "steps")


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
