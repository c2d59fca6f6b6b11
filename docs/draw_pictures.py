"""Draws the pictures of the pages: datasets of this machine, and recorded baselines with their intervals.

`python docs/draw_pictures.py classic/pendulum-mixed-v1 ..` draws datasets that are here for their own pages; without
a name, the pictures of README.md and the guide are drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import orlog
from orlog.algos.algorithms import algorithm_title
from orlog.datasets.looking.card_picture import card_picture
from orlog.datasets.looking.figures import dataset_picture
from orlog.datasets.looking.leaves import first_frames
from orlog.datasets.publish.card import dataset_card
from orlog.manifests.shipped import recorded_manifest
from orlog.normalize.references import read_baselines
from orlog.normalize.statistics import bootstrap_interval
from orlog.runs.scores import references_of

FRAMES = 3  # in the picture of a dataset of frames
IMAGES = Path(__file__).with_name("images")
SCORED = ("mujoco/hopper-medium-v1", "mujoco/hopper-medium-expert-v1", "pointmaze/medium-stitch-v1")


def scores_picture() -> Figure:
    """Return recorded scores: each seed as a faint dot, the mean with its 95 % interval."""
    figure = Figure(figsize=(11.5, 2.9), layout="constrained")
    for place, name in zip(figure.subplots(1, len(SCORED)), SCORED, strict=True):
        _draw_scores(place, name)
    return figure


def _draw_scores(place: Any, name: str) -> None:
    manifest = recorded_manifest(name)
    assert manifest is not None, name
    references = references_of(manifest)
    assert references is not None, name
    baselines = read_baselines(name)
    for row, baseline in enumerate(baselines):
        scores = np.array([*baseline.scores(references).values()])
        between = bootstrap_interval(scores, np.random.default_rng(0))
        seeds = scores.reshape(len(scores), -1).mean(1)
        place.plot(seeds, np.full(len(seeds), row), "o", color="0.75", markersize=4)
        if between is not None:
            place.plot(between, (row, row), color="tab:blue", linewidth=2)
        place.plot(seeds.mean(), row, "o", color="tab:blue", markersize=6)
    titles = [algorithm_title(baseline.algorithm) for baseline in baselines]
    place.set_yticks(range(len(titles)), titles)
    place.invert_yaxis()
    place.set_xlim(min(0, place.get_xlim()[0]), max(102, place.get_xlim()[1]))
    place.axvline(0, color="0.7", linewidth=0.8)
    place.set_title(name, fontsize=10)
    place.set_xlabel("normalized score: 0 random, 100 expert")
    place.grid(axis="x", color="0.92")
    place.spines[["top", "right"]].set_visible(False)


def write_dataset_picture(name: str) -> None:
    """Draw the picture of a suite's dataset: returns, lengths, ranges of numbers, and a few frames."""
    dataset, recorded = orlog.load_dataset(name), recorded_manifest(name)
    assert recorded is not None, name
    assert recorded.digest == dataset.manifest.digest, f"{name} is not the recorded data here"
    frames = first_frames(dataset, FRAMES)
    picture = dataset_card(dataset, None, name).picture
    if frames:  # a card has more of them, in a file too large for this repository
        returns = dataset.column("episodes/returns")
        picture = card_picture(returns, dataset.episode_lengths, [], frames)
    path = IMAGES / "datasets" / f"{name.replace('/', '-')}.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(picture, "utf-8")


def write_pictures() -> None:
    """Draw the pictures of README.md and the guide."""
    pictures = {
        "pointmaze-umaze-v1": dataset_picture(orlog.load_dataset("pointmaze/umaze-v1")),
        "scores": scores_picture(),
    }
    for name, picture in pictures.items():
        picture.savefig(IMAGES / f"{name}.png", dpi=110, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    for given in sys.argv[1:]:
        write_dataset_picture(given)
    if not sys.argv[1:]:
        write_pictures()
