"""Updates beside authors' code in JAX, each side with its own sampling, in turns on one core.

    pip install jax flax optax distrax ml_collections tensorflow_probability
    git clone https://github.com/seohongpark/fql FQL && git -C FQL checkout 719d044
    git clone https://github.com/ColinQiyangLi/qc QC && git -C QC checkout 48283b4
    git clone https://github.com/ColinQiyangLi/qam QAM && git -C QAM checkout f93efd2
    git clone https://github.com/ColinQiyangLi/dqc DQC && git -C DQC checkout df89825
    git clone https://github.com/aoberai/trl TRL && git -C TRL checkout adfec6f
    git clone https://github.com/seohongpark/ogbench OGBENCH && git -C OGBENCH checkout 1d41409
    python -m benchmarks.jax_peers fql FQL    # also qcfql QC, qam QAM, dqc DQC, trl TRL; --authors for their sizes
    python -m benchmarks.jax_peers gciql OGBENCH/impls

`gciql` is one agent, theirs, on batches of `orlog.goals` and on its own: the ratio says what the loaders cost, and the
difference is the largest of all metrics of 20 updates on equal rows. The others are our algorithms beside theirs, in
float32. Times are those of all threads of the process, which has one core, so what others compute counts less; data
are like HalfCheetah's (17 numbers observed, 6 acted), 200 episodes of 1,000 steps.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

import orlog
from benchmarks.store import halfcheetah_like
from benchmarks.updates import EPISODES, LENGTH, Call, make_run, measure_pair, pack, timer, transitions_of, updater
from orlog.algos.training.data import keep_freed_memory
from orlog.base.processes import processor_name
from orlog.loaders.arrays import Arrays

COMPARED = 20  # updates on equal rows
SMALL = {"hidden": (128, 128), "batch_size": 256}
# Name of ours: module and class of theirs, its dataset, the size that they publish, settings of ours and of theirs.
PEERS: dict[str, tuple[str, str, str, tuple[int, ...], int, dict[str, Any], dict[str, Any]]] = {
    "fql": ("fql", "FQLAgent", "", (512,) * 4, 256, {}, {}),
    "qcfql": ("acfql", "ACFQLAgent", "", (512,) * 4, 256, {}, {"horizon_length": 5}),
    "qam": ("qam", "QAMAgent", "", (512,) * 4, 256, {}, {"horizon_length": 5, "action_chunking": True}),
    "dqc": ("dqc", "DQCAgent", "CGCDataset", (1024,) * 4, 4096, {}, {}),
    "trl": ("trl", "TRLAgent", "GCDataset", (1024,) * 4, 1024, {"extraction": "frs"}, {"lam": 1.0, "discount": 0.99}),
    "gciql": ("gciql", "GCIQLAgent", "GCDataset", (512,) * 3, 1024, {}, {}),
}
Batch = Mapping[str, Any]


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("clone", type=Path, help="the folder that has the authors' folder `agents`")
    parser.add_argument("--authors", action="store_true", help="networks and batches of the size that they publish")
    options = parser.parse_args()
    sys.path.insert(0, str(options.clone))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before XLA counts its threads
    torch.set_num_threads(1)
    keep_freed_memory()
    np.random.seed(0)  # noqa: NPY002  # theirs draw from it
    hidden, batch_size = PEERS[options.name][3:5]
    size: dict[str, Any] = {"hidden": hidden, "batch_size": batch_size} if options.authors else SMALL

    columns = halfcheetah_like(EPISODES, LENGTH)
    packed, data = pack(columns), transitions_of(columns)
    # Theirs end episodes at `terminals` and tell terminations by `masks`.
    data |= {"terminals": columns["truncations"].astype(np.float32), "masks": 1 - data["terminals"]}
    agent, dataset, sample = make_theirs(options.name, size, data)
    report: dict[str, Any] = {"name": options.name, **size}
    if options.name == "gciql":
        batches = goal_batches(packed, size["batch_size"])
        report["largest difference"] = largest_difference(agent, dataset, data, batches)
        ours = update_of(agent, functools.partial(next, batches))
        report["sampling"] = in_turns(functools.partial(next, batches), sample)
    else:
        run = make_run(options.name, size | PEERS[options.name][5], packed)
        ours = updater(*run, "float32")
    report |= in_turns(ours, update_of(agent, sample))
    report |= {"processor": processor_name(), "load average": round(os.getloadavg()[0], 1)}
    print(json.dumps(report | {"jax": jax.__version__, "torch": torch.__version__}))


def in_turns(ours: Call, theirs: Call) -> dict[str, float]:
    """Return the milliseconds of all threads, and how many times as long theirs takes."""
    return measure_pair({side: timer(call, time.process_time) for side, call in (("orlog", ours), ("authors", theirs))})


def make_theirs(name: str, size: dict[str, Any], data: dict[str, np.ndarray]) -> tuple[Any, Any, Callable[[], Batch]]:
    """Return their agent, their dataset and what draws a batch, as in their programs."""
    module, agent, kind, *_, changed = PEERS[name]
    agents, datasets = importlib.import_module(f"agents.{module}"), importlib.import_module("utils.datasets")
    config = agents.get_config()
    config.update(changed, batch_size=size["batch_size"])
    config.actor_hidden_dims = config.value_hidden_dims = size["hidden"]
    dataset = datasets.Dataset.create(**data)
    dataset = getattr(datasets, kind)(dataset, config) if kind else dataset
    is_chunked = "horizon_length" in config
    first = dataset.sample(() if is_chunked else 1)
    examples = (first,) if name in ("dqc", "trl") else (first["observations"], first["actions"])
    draw = functools.partial(dataset.sample, size["batch_size"])
    if is_chunked:
        length, discount = config.horizon_length, config.discount
        draw = functools.partial(dataset.sample_sequence, size["batch_size"], sequence_length=length, discount=discount)
    return getattr(agents, agent).create(0, *examples, config), dataset, draw


def update_of(agent: Any, sample: Callable[[], Batch]) -> Call:
    """Return a function that takes one update of their agent and waits for it."""

    def update() -> None:
        nonlocal agent
        agent, metrics = agent.update(sample())
        jax.block_until_ready(metrics)  # type: ignore[no-untyped-call]  # jax has no types for it

    return update


def goal_batches(packed: Arrays, batch_size: int) -> Iterator[Batch]:
    """Yield batches of `orlog.goals` as GCIQL takes them."""
    names = ("observations", "actions", "rewards", "masks", "next_observations", "value_goals", "actor_goals")
    for batch in orlog.goals(packed, batch_size, seed=0, to="numpy"):
        yield {name: getattr(batch, name) for name in names}


def largest_difference(agent: Any, dataset: Any, data: Mapping[str, np.ndarray], batches: Iterator[Batch]) -> float:
    """Return how far metrics are apart, relative to 1 or more, where their dataset is asked for the rows of ours."""
    places = {state.tobytes(): place for place, state in enumerate(data["observations"])}
    largest = 0.0
    for _, batch in zip(range(COMPARED), batches, strict=False):
        states = (batch[name] for name in ("observations", "value_goals", "actor_goals"))
        rows, *goals = (np.array([places[state.tobytes()] for state in several]) for several in states)
        dataset.sample_goals = functools.partial(lambda chosen, *_: next(chosen), iter(goals))
        theirs = agent.update(dataset.sample(len(rows), rows))[1]
        agent, ours = agent.update(batch)
        apart = (abs(float(ours[name]) - float(value)) / max(1, abs(float(value))) for name, value in theirs.items())
        largest = max(largest, *apart)
    del dataset.sample_goals  # draws again
    return largest


if __name__ == "__main__":
    main()
