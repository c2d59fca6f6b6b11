"""A layout of one's own is a row of a table: which names it has, what an episode is, and what the arrays mean.

python my_layout.py
orlog import my.h5 lab/mine-v1 --format ./my_layout.py
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

import orlog
from orlog.datasets.formats.layouts import ArrayLayout, layout_format

FORMAT = layout_format(
    ArrayLayout(
        needs=("trial_*/command",),
        episode="trial_*",
        columns={
            "observation/*": "sensors/*",
            "action": "command",
            "reward": "score",
            "terminated": "fell",
            "infos/battery": "battery",
        },
        last_flag=True,
    ),
    name="my-robot",
    extensions=(".h5",),
    options=("horizon", "ends"),
)


def main(folder: Path) -> None:
    """Write a file as a robot's recorder would, and import it."""
    rng = np.random.default_rng(0)
    with h5py.File(folder / "my.h5", "w") as file:
        for number in range(3):
            trial = file.create_group(f"trial_{number}")
            trial["sensors/joints"] = rng.normal(size=(20, 6))
            trial["sensors/camera"] = rng.integers(0, 255, (20, 8, 8, 3)).astype("u1")
            trial["command"] = rng.normal(size=(20, 6))
            trial["score"] = rng.normal(size=20)
            trial["fell"] = np.arange(20) > 17 + number
    orlog.import_dataset(folder / "my.h5", "lab/mine-v1", format=__file__, on_found=lambda found: print(*found.notes))
    dataset = orlog.load_dataset("lab/mine-v1")
    ended = sum(bool(episode.terminations[-1]) for episode in dataset)
    print(len(dataset), "episodes,", ended, "of which ended;", dataset.observation_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
