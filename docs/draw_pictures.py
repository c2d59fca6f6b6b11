"""Draws the picture of the README from the dataset on this machine."""

from __future__ import annotations

from pathlib import Path

import orlog
from orlog.datasets.looking.figures import dataset_picture

if __name__ == "__main__":
    folder = Path(__file__).with_name("images")
    picture = dataset_picture(orlog.load_dataset("pointmaze/umaze-v1"))
    picture.savefig(
        folder / "pointmaze-umaze-v1.png", dpi=110, bbox_inches="tight", metadata={"Software": None}
    )
