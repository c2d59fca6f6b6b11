"""Compares algorithms over tasks by the scores of single seeds that others published.

pip install orlog
python compare_published.py
"""

from __future__ import annotations

import numpy as np

import orlog
from orlog.normalize.statistics import compare_methods

BODIES, DATA = ("halfcheetah", "hopper", "walker2d"), ("medium", "medium-replay")
TASKS = [f"d4rl/{body}-{data}-v0" for body in BODIES for data in DATA]


def seeds_of(algorithm: str, task: str) -> np.ndarray:
    """Return the score of each seed in d3rlpy's benchmark, after the last epoch: [seeds, 1]."""
    (found,) = (
        one
        for one in orlog.baselines(task, algorithm=algorithm)
        if one.implementation.startswith("d3rlpy") and one.protocol.startswith("last")
    )
    return np.array(found.per_seed)[:, None]  # one number, the mean of a seed's episodes


def main() -> None:
    """Run the example."""
    scores = {name: {task: seeds_of(name, task) for task in TASKS} for name in ("awac", "cql", "iql", "td3_bc")}
    found = compare_methods(scores, np.random.default_rng(0))
    for method in found.ranking():
        of_method = found.aggregates[method]
        print(f"{method:7} IQM {of_method['IQM']}, mean rank {found.ranks[method]}")
    first, second = found.ranking()[:2]
    chance = found.improvement[first, second]
    print(f"a run of {first} scores above one of {second} with probability {chance}")


if __name__ == "__main__":
    main()
