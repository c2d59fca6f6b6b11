"""A dataset goes to d3rlpy, which keeps no observation after the last step, and comes back.

python d3rlpy.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium

import orlog


def main(folder: Path) -> None:
    """Record two episodes, write them for d3rlpy, and read them again."""
    env = orlog.record(gymnasium.make("CartPole-v1"), "lab/pole-v1")
    for _ in range(2):
        env.reset()
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    env.close()
    orlog.export_dataset(
        "lab/pole-v1", folder / "out", to="d3rlpy", lossy=True, on_losses=lambda said: print(*said, sep="\n")
    )
    # In d3rlpy: ReplayBuffer.load(open("out/pole-v1.h5", "rb"), InfiniteBuffer())
    orlog.import_dataset(
        folder / "out" / "pole-v1.h5",
        "lab/again-v1",
        on_found=lambda found: print(found.episodes, "episodes came back:", *found.notes),
    )


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
