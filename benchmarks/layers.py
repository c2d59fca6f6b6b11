"""Layers: writing a column of many steps, reading an info of a layer, weights from a column, opening with five layers.

    python benchmarks/layers.py --steps 100000000 --out benchmarks/results/layers.json

Every figure is a ratio to the same work without a layer, in the same run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import orlog
from orlog.base.processes import processor_name

LENGTH, BLOCK = 1000, 100
BOX = spaces.Box(-1, 1, (1,), np.float32)


def record(name: str, steps: int, info: bool) -> orlog.Dataset:
    """Record episodes of 1,000 steps, a hundred of which are the same; with `info` they have a value a step."""
    rng = np.random.default_rng(0)
    block: dict[str, Any] = {
        "observations": rng.random((LENGTH + 1, 1)).astype("f4"),
        "actions": rng.random((LENGTH, 1)).astype("f4"),
        "rewards": rng.random(LENGTH),
    }
    last = np.arange(LENGTH) == LENGTH - 1
    with orlog.DatasetWriter(name, observation_space=BOX, action_space=BOX) as writer:
        for episode in range(steps // LENGTH):
            infos = {"value": values(episode)} if info else {}
            writer.add_episode(orlog.Episode(**block, terminations=last, truncations=~last & False, infos=infos))
    return orlog.load_dataset(name)


def values(episode: int) -> np.ndarray:
    """Return the values of an episode."""
    return np.random.default_rng(episode).random(LENGTH, np.float32)


def seconds(work: Callable[[], Any]) -> float:
    """Return how long some work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def pairs(work: Callable[[], Any], peer: Callable[[], Any], times: int = 7) -> dict[str, float]:
    """Return the median of the ratios of two works, one after the other, and the seconds of each."""
    both = [(seconds(work), seconds(peer)) for _ in range(times)]
    ratio = statistics.median(ours / theirs for ours, theirs in both)
    return {"ratio": ratio, "seconds": min(ours for ours, _ in both), "without": min(theirs for _, theirs in both)}


def resident() -> int:
    """Return the memory of this process that no file backs, in bytes."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def written(dataset: orlog.Dataset, folder: Path) -> dict[str, Any]:
    """Return how long a column takes that lies in a file, over writing and hashing its bytes; and one by a function."""
    column = np.lib.format.open_memmap(folder / "column.npy", "w+", np.float32, (dataset.total_steps,))
    for episode in range(dataset.total_episodes):
        column[episode * LENGTH : (episode + 1) * LENGTH] = values(episode)
    column.flush()
    most, before = [0], resident()

    def progress(_done: int, _all: int) -> None:
        most[0] = max(most[0], resident() - before)

    def plain() -> None:
        hashed = hashlib.sha256()
        with (folder / "plain").open("wb") as file:
            for start in range(0, len(column), 2**20):
                data = column[start : start + 2**20].tobytes()
                file.write(data)
                hashed.update(data)
            file.flush()
            os.fsync(file.fileno())

    names = iter(f"lab/value{number}-v1" for number in range(99))

    def layer(made: Any) -> None:
        dataset.with_columns("infos/value", made, progress=progress).save_layer(next(names))

    def read() -> None:
        for episode in dataset:
            values(episode.index or 0)

    as_read = {
        "a column of a function, over reading the episodes and calling it": pairs(
            lambda: layer(lambda e: values(e.index or 0)), read, 1
        )
    }
    stored = pairs(lambda: layer(column), plain, 5)
    return {"a column of a file, over its bytes written and hashed": stored | {"memory_bytes": most[0]}, **as_read}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["ORLOG_HOME"] = name
        large = record("lab/large-v1", given.steps, info=False)
        rows: dict[str, Any] = written(large, Path(name))
        plain = record("lab/plain-v1", 1_000_000, info=False)
        base = record("lab/base-v1", 1_000_000, info=True)
        column = np.concatenate([values(episode) for episode in range(plain.total_episodes)])
        for number in range(5):
            plain.with_columns(f"infos/{'value' if not number else f'v{number}'}", column).save_layer(
                f"lab/l{number}-v1"
            )
        layered = plain.with_layers("lab/l0-v1")

        def batches(dataset: orlog.Dataset, **how: Any) -> Callable[[], Any]:
            arrays = orlog.load_arrays(dataset, "ram", infos=("value",))
            stream: Iterator[Any] = iter(orlog.transitions(arrays, 256, seed=0, **how))
            return lambda: [next(stream) for _ in range(2000)]

        rows["batches with an info of a layer, over one of the base"] = pairs(batches(layered), batches(base))
        by_column, in_memory = batches(layered, weights="infos/value"), batches(layered, weights=column)
        rows["batches by weights of a column, over weights in memory"] = pairs(by_column, in_memory)
        names = [f"lab/l{number}-v1" for number in range(5)]
        rows["opening with five layers, over opening without"] = pairs(
            lambda: orlog.load_dataset("lab/plain-v1").with_layers(*names),
            lambda: orlog.load_dataset("lab/plain-v1"),
            21,
        )
    body = {"machine": processor_name(), "steps": given.steps, "rows": rows}
    text = json.dumps(body, indent=1) + "\n"
    print(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
