"""What recording costs: HalfCheetah alone, with `orlog.record`, and with Minari's DataCollector.

The tools take turns, an episode of 1,000 steps each, in one process; all are given the same actions.
The time is that of the processor, all threads of the process included. A ratio compares an episode
with that of the environment alone in the same turn, so that what else the machine does meets both;
`median` is that of all turns, `mean` compares their sums. `quick` compares the quickest quarter of the
episodes of each, which other work on the machine has slowed down least. `end` is what ends the dataset:
`close()` and `create_dataset`. The process stays on one core.

    pip install -e . "minari[hdf5,create]==0.5.4" "mujoco==3.3.0"
    python -m benchmarks.recording

prints the table and writes it to `benchmarks/results/recording.txt`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import orlog

RESULTS = Path(__file__).resolve().parent / "results" / "recording.txt"
ENVIRONMENT, STEPS, TURNS = "HalfCheetah-v5", 1000, 120
ALONE, MINARI = "alone", "Minari DataCollector"
INFOS = ("x_position", "x_velocity", "reward_forward", "reward_ctrl")


def main() -> None:
    """Measure, print and keep the table."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ORLOG_HOME"] = f"{folder}/orlog"
        os.environ["MINARI_DATASETS_PATH"] = f"{folder}/minari"
        text = table(*measure())
    print(text)
    RESULTS.write_text(text + "\n")


def measure() -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each tool's episodes, and of ending its dataset."""
    minari = importlib.import_module("minari")
    envs = {
        ALONE: make(),
        "orlog.record": orlog.record(make(), "bench/plain-v1"),
        "orlog.record, 4 infos": orlog.record(make(), "bench/infos-v1", infos=INFOS),
        "orlog.record, state": orlog.record(make(), "bench/state-v1", state=True),
        MINARI: minari.DataCollector(make()),
    }
    ends: dict[str, Callable[[], object]] = {name: env.close for name, env in envs.items()}
    ends[MINARI] = lambda: envs[MINARI].create_dataset("bench/minari-v1")
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in envs}
    names = list(envs)
    for turn in range(TURNS + 1):
        actions = list(rng.uniform(-1, 1, (STEPS, 6)).astype(np.float32))
        # Each tool is first in some turns, as the first one may find the caches cold.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            spent = run_episode(envs[name], actions, turn)
            if turn > 0:
                seconds[name].append(spent)
    return seconds, {name: timed(end) for name, end in ends.items()}


def make() -> gymnasium.Env[Any, Any]:
    """Return the environment."""
    return gymnasium.make(ENVIRONMENT)


def run_episode(env: gymnasium.Env[Any, Any], actions: list[np.ndarray], seed: int) -> float:
    """Return the seconds of the processor that an episode takes from its reset to its last step."""
    start = time.process_time()
    env.reset(seed=seed)
    for action in actions:
        env.step(action)
    return time.process_time() - start


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of the processor that a call takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def table(seconds: dict[str, list[float]], ends: dict[str, float]) -> str:
    """Return the table."""
    alone = seconds[ALONE]
    lines = [
        f"{ENVIRONMENT}, {TURNS} episodes of {STEPS:,} steps for each tool, which take turns",
        "",
        f"{'':22}  us a step  cost, quick  cost, median  cost, mean  us added  end s  cost with end",
    ]
    for name, spent in seconds.items():
        ratios = [one / other for one, other in zip(spent, alone, strict=True)]
        added = [one - other for one, other in zip(spent, alone, strict=True)]
        whole = (sum(spent) + ends[name]) / sum(alone)
        lines.append(
            f"{name:22}  {statistics.median(spent) / STEPS * 1e6:9.2f}  "
            f"{quick(spent) / quick(alone) - 1:11.1%}  "
            f"{statistics.median(ratios) - 1:12.1%}  {sum(spent) / sum(alone) - 1:10.1%}  "
            f"{statistics.median(added) / STEPS * 1e6:8.2f}  {ends[name]:5.2f}  {whole - 1:13.1%}"
        )
    plain, minari = (
        statistics.median(one - other for one, other in zip(seconds[name], alone, strict=True))
        for name in ("orlog.record", MINARI)
    )
    versions = " ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("gymnasium", "minari", "mujoco", "numpy")
    )
    lines += ["", f"orlog.record adds {plain / minari:.3f} of what {MINARI} adds"]
    return "\n".join([*lines, versions, machine()])


def quick(seconds: list[float]) -> float:
    """Return the time within which the quickest quarter of the episodes ended."""
    return statistics.quantiles(seconds, n=4)[0]


def machine() -> str:
    """Return the processor, the system and its load."""
    cpus = Path("/proc/cpuinfo")
    found = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
    name = found[0].partition(":")[2].strip() if found else platform.processor()
    return (
        f"{os.cpu_count()} cores of {name}, Python {platform.python_version()}; load at the end "
        f"{os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
