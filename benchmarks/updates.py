"""Updates per second of each algorithm, sampling included, on one thread, in turns.

At the published sizes (the defaults) and at the recipes of pointmaze/umaze-v1.

    python benchmarks/updates.py
"""

from __future__ import annotations

import itertools
import json
import statistics
import time

import torch

import orlog
from orlog.algos.algorithms import ALGORITHMS, make_algorithm
from orlog.algos.networks import Scaling
from orlog.algos.presets import recipe_for
from orlog.algos.settings import make_config
from orlog.algos.training.loop import train
from orlog.algos.training.runs import code_versions
from orlog.loaders.transitions import Transitions

ROUNDS = 5
SECONDS = 2.0


def main() -> None:
    """Print one JSON object."""
    torch.set_num_threads(1)
    dataset = orlog.load_dataset("pointmaze/umaze-v1")
    packed = orlog.transitions(dataset, 256, seed=0).packed
    mean, std = packed.observation_statistics()
    low, high = torch.full((2,), -1.0), torch.full((2,), 1.0)
    scaling = Scaling(obs_mean=mean, obs_std=std + 1e-3, action_low=low, action_high=high)

    rates: dict[str, list[float]] = {}
    runs = {}
    for name in ALGORITHMS:
        for kind, settings in (
            ("published sizes", {}),
            ("recipe", recipe_for(name, "pointmaze/umaze-v1").settings),
        ):
            config = make_config(name, settings)
            runs[f"{name}, {kind}"] = (
                make_algorithm(name, config, scaling, seed=0),
                Transitions(packed, dataset.digest, batch_size=config.batch_size, seed=0),
            )
    for _ in range(ROUNDS):
        for name, (algorithm, stream) in runs.items():
            rates.setdefault(name, []).append(rate(algorithm, stream))
    print(
        json.dumps(
            {
                "threads": 1,
                "versions": code_versions(),
                "updates_per_s": {
                    name: round(statistics.median(values), 1) for name, values in rates.items()
                },
            },
            indent=1,
        )
    )


def rate(algorithm: object, stream: Transitions) -> float:
    """Return updates per second over a few seconds, after a warm-up of two updates."""
    for _ in train(algorithm, stream, last_step=2, every=2):  # type: ignore[arg-type]  # a protocol
        pass
    started = time.perf_counter()
    for count in itertools.count(1):
        for _ in train(algorithm, stream, last_step=5, every=5):  # type: ignore[arg-type]  # a protocol
            pass
        elapsed = time.perf_counter() - started
        if elapsed > SECONDS:
            return 5 * count / elapsed
    raise AssertionError


if __name__ == "__main__":
    main()
