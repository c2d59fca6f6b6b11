"""Logged choices, as the Open Bandit Dataset has them, become a dataset.

python open_bandit.py
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import orlog


def main(folder: Path) -> None:
    """Write the folder of a campaign, and import it."""
    rng = np.random.default_rng(0)
    campaign = folder / "random" / "all"
    campaign.mkdir(parents=True)
    with (campaign / "all.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        features = ["user_feature_0", "user-item_affinity_0"]
        rows.writerow(["", "timestamp", "item_id", "position", "click", "propensity_score", *features])
        for row in range(20):
            time = f"2019-11-24 00:00:{row:02}.000000+00:00"
            position, click = rng.integers(1, 4), int(rng.random() < 0.2)
            rows.writerow([row, time, row % 5, position, click, 0.2, "ab"[row % 2], rng.random()])
    with (campaign / "item_context.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["", "item_id", "item_feature_0", "item_feature_1"])
        rows.writerows([item, item, item / 10, "xy"[item % 2]] for item in range(5))
    orlog.import_dataset(campaign, "bandits/logged-v1", on_found=lambda found: print(*found.notes, sep="\n"))
    dataset = orlog.load_dataset("bandits/logged-v1")
    print(len(dataset), "episodes;", dataset.observation_space, dataset.action_space)


if __name__ == "__main__":
    with TemporaryDirectory() as home:  # so that nothing stays behind
        os.environ["ORLOG_HOME"] = home
        main(Path(home))
