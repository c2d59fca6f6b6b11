"""What an audit takes beside reading the columns: rows of numbers, a maze with its rewards, and images.

"read" decodes every column in blocks of whole episodes, as an audit does, and looks at nothing. The two take turns;
the file cache is warm. A ratio compares the two of one turn; the middle one of all turns is printed. In between, both
are divided by the steps. "numbers" are one million steps like HalfCheetah's; "maze" is `pointmaze/umaze-mini-v1`,
whose rewards are computed again; "images" are 20,000 frames of 64 x 64 x 3.

    python -m benchmarks.audit

prints the table and writes it to `benchmarks/results/audit.txt`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

import orlog
from benchmarks.loader_data import equal_episodes, write_version
from benchmarks.recording import machine

RESULTS = Path(__file__).resolve().parent / "results" / "audit.txt"
TURNS = 5
MAZE = "pointmaze/umaze-mini-v1"


def main() -> None:
    """Measure, print and keep the table."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ORLOG_HOME"] = folder
        write_version("numbers", equal_episodes())
        orlog.load_dataset(MAZE, build=True)
        write_images("bench/images-v1")
        lines = [f"{'':8}  {'steps':>9}  read, s per M steps  audit, s per M steps  ratio  findings"]
        lines += [
            measured(label, orlog.load_dataset(name))
            for label, name in (("numbers", "bench/numbers-v0"), ("maze", MAZE), ("images", "bench/images-v1"))
        ]
    text = "\n".join([*lines, "", machine()])
    print(text)
    RESULTS.write_text(text + "\n")


def write_images(name: str) -> None:
    """Write episodes of frames that a random walk shifts."""
    rng = np.random.default_rng(0)
    with orlog.DatasetWriter(
        name,
        observation_space=gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8),
        action_space=gymnasium.spaces.Box(-1, 1, (2,)),
    ) as writer:
        for _ in range(40):
            frames = rng.integers(0, 256, (501, 64, 64, 3), np.uint8)
            writer.add_episode(
                orlog.Episode(
                    observations=frames,
                    actions=rng.uniform(-1, 1, (500, 2)).astype(np.float32),
                    rewards=np.ones(500),
                    terminations=np.zeros(500, bool),
                    truncations=np.arange(500) == 499,
                )
            )


def measured(label: str, dataset: orlog.Dataset) -> str:
    """Return the line of a dataset."""
    found = orlog.audit(dataset)
    turns = [(timed(lambda: read(dataset)), timed(lambda: orlog.audit(dataset))) for _ in range(TURNS)]
    reading, auditing = (statistics.median(one) for one in zip(*turns, strict=True))
    ratio = statistics.median(audit / read for read, audit in turns)
    million = dataset.total_steps / 1e6
    return (
        f"{label:8}  {dataset.total_steps:>9,}  {reading / million:19.2f}  {auditing / million:20.2f}  "
        f"{ratio:5.1f}  {found.summary()}"
    )


def read(dataset: orlog.Dataset) -> None:
    """Read all columns."""
    for _ in dataset.blocks():
        pass


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
