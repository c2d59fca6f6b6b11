"""What opening, one episode, verifying and filtering cost on a large dataset.

100 million steps in 200,000 episodes of 100 to 900 steps of 17 + 6 float32 numbers and a reward,
about 9.8 GB of arrays, written episode by episode. Episodes are cut from one block of drifting
gaits and scaled by numbers of their own, so that they compress no better than recorded ones. Each
figure comes from a fresh process; the file cache is as the steps before have left it.

    python -m benchmarks.scale
    python -m benchmarks.scale --steps 1000000 --scratch FOLDER
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import (
    ACTION_SIZE,
    ANSWER,
    OBSERVATION_SIZE,
    ROOT,
    Arrays,
    Figures,
    OtherCores,
    halfcheetah_like,
    machine,
    median_ms,
    report,
    reset_peak,
    resident_mib,
    scratch_folder,
    size_on_disk,
)

NAME = "bench/scale-v0"
MEAN_LENGTH, SHORTEST, LONGEST = 500, 100, 900
BLOCK_EPISODES, BLOCK_LENGTH = 32, 2000
RANDOM_EPISODES = 200
FILTER = "returns > 0 and lengths >= 400"


def main() -> None:
    """Write the dataset, measure in fresh processes, and write the figures."""
    parser = argparse.ArgumentParser(description="Measure orlog on a large dataset.")
    parser.add_argument("--steps", type=int, default=100_000_000)
    parser.add_argument("--scratch", type=Path, help="where the dataset is kept")
    parser.add_argument("--container", default="zarr", choices=("zarr", "hdf5"))
    options = parser.parse_args()
    with scratch_folder(options.scratch) as scratch:
        os.environ["ORLOG_HOME"] = str(scratch / f"scale-{options.container}-{options.steps}")
        with OtherCores() as others:
            found = {step: _in_fresh_process(step, options.container, options.steps) for step in CHILDREN}
    with report("scale") as console:
        for line in _lines(found, options.container):
            console.print(line, soft_wrap=True)
        console.print(machine([others.cores]), soft_wrap=True)


def _in_fresh_process(step: str, container: str, steps: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.scale", "--child", step]
    if step == "write":
        command += [container, str(steps)]
    done = subprocess.run(  # noqa: S603  # our own interpreter and code
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    answer: Figures = json.loads(lines[-1].removeprefix(ANSWER))
    return answer


def _lines(found: dict[str, Figures], container: str) -> Iterator[str]:
    write, opened, verify = found["write"], found["open"], found["verify"]
    one, filtered = found["episodes"], found["filter"]
    raw_gb, stored_gb = write["raw_bytes"] / 1e9, write["bytes"] / 1e9
    yield (
        f"{write['steps']:,.0f} steps, {write['episodes']:,.0f} episodes, {raw_gb:.2f} GB of "
        f"arrays; container {container}, {stored_gb:.2f} GB ({stored_gb / raw_gb:.3f} of raw), "
        f"{write['files']:,.0f} files"
    )
    if write["seconds"]:
        yield (
            f"write, episode by episode   {write['seconds']:,.1f} s, "
            f"{write['steps'] / write['seconds'] / 1e6:.2f} M steps/s, "
            f"{raw_gb / write['seconds'] * 1000:,.0f} MB/s of arrays, of which "
            f"{write['making_s']:,.1f} s to make the episodes; peak memory "
            f"{write['peak_mib']:,.0f} MiB"
        )
    yield (
        f"open                        {opened['first_ms']:,.1f} ms, again {opened['ms']:,.1f} ms; "
        f"resident memory {opened['resident_mib']:,.0f} MiB, of which imports "
        f"{opened['before_mib']:,.0f} MiB"
    )
    yield (
        f"one random episode, ds[i]   median {one['median_ms']:,.2f} ms, most "
        f"{one['most_ms']:,.2f} ms of {RANDOM_EPISODES}; the first {one['first_ms']:,.1f} ms; "
        f"resident memory afterwards {one['resident_mib']:,.0f} MiB"
    )
    yield (
        f"filter_episodes             {filtered['first_ms']:,.1f} ms, again "
        f"{filtered['ms']:,.1f} ms; {FILTER!r} keeps {filtered['kept']:,.0f} episodes"
    )
    yield (
        f"verify_store                {verify['seconds']:,.1f} s, "
        f"{stored_gb / verify['seconds'] * 1000:,.0f} MB/s of files, "
        f"{raw_gb / verify['seconds'] * 1000:,.0f} MB/s of arrays; peak memory "
        f"{verify['peak_mib']:,.0f} MiB, of which imports {verify['before_mib']:,.0f} MiB"
    )


def episode_lengths(steps: int) -> np.ndarray:
    """Return lengths of episodes that add up to `steps`."""
    generator = np.random.default_rng(1)
    drawn = generator.integers(SHORTEST, LONGEST + 1, steps // SHORTEST + 1)
    ends = np.minimum(drawn.cumsum(), steps)
    ends = ends[: int(np.searchsorted(ends, steps)) + 1]
    return np.diff(ends, prepend=0)


def make_episodes(lengths: np.ndarray) -> Iterator[Arrays]:
    """Give episodes cut from one block, each scaled by numbers of its own."""
    generator = np.random.default_rng(2)
    block = halfcheetah_like(BLOCK_EPISODES, BLOCK_LENGTH)
    observations = block["observations"].reshape(BLOCK_EPISODES, -1, OBSERVATION_SIZE)
    actions = block["actions"].reshape(BLOCK_EPISODES, -1, ACTION_SIZE)
    rewards = block["rewards"].reshape(BLOCK_EPISODES, -1)
    for length in lengths.tolist():
        gait = int(generator.integers(BLOCK_EPISODES))
        start = int(generator.integers(BLOCK_LENGTH - length + 1))
        stop = start + length
        observation_scale = generator.uniform(0.5, 1.5, OBSERVATION_SIZE).astype(np.float32)
        action_scale = generator.uniform(0.5, 1, ACTION_SIZE).astype(np.float32)
        reward_scale = np.float32(generator.normal())
        ended = np.arange(length) == length - 1
        terminated = generator.random() < 0.5
        yield {
            "observations": observations[gait, start : stop + 1] * observation_scale,
            "actions": actions[gait, start:stop] * action_scale,
            "rewards": rewards[gait, start:stop] * reward_scale,
            "terminations": ended & terminated,
            "truncations": ended & (not terminated),
        }


# The children: `orlog` is imported here alone, so that what it costs can be told.


def write_child(container: str, steps: str) -> Figures:
    """Write the dataset unless an earlier run left it; return what it took."""
    from gymnasium import spaces

    import orlog
    from orlog.base.terminal import progress_bar
    from orlog.datasets.home.folders import installed_names

    writing: Any = orlog
    lengths = episode_lengths(int(steps))
    row_bytes = (OBSERVATION_SIZE + ACTION_SIZE + 1) * 4 + 2
    figures = {
        "steps": int(lengths.sum()),
        "episodes": len(lengths),
        "raw_bytes": int(lengths.sum()) * row_bytes + len(lengths) * OBSERVATION_SIZE * 4,
        "seconds": 0.0,
        "making_s": 0.0,
    }
    if NAME not in installed_names():
        started = time.perf_counter()
        with (
            progress_bar("writing") as update,
            writing.DatasetWriter(
                NAME,
                version="1.0.0",
                observation_space=spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32),
                action_space=spaces.Box(-1, 1, (ACTION_SIZE,), np.float32),
                reward_dtype=np.float32,
                description="",
                license="CC0-1.0",
                container=container,
            ) as writer,
        ):
            making = time.perf_counter()
            for index, episode in enumerate(make_episodes(lengths)):
                figures["making_s"] += time.perf_counter() - making
                writer.add_episode(writing.Episode(**episode, infos={}, seed=None))
                if index % 1000 == 0:
                    update(index, len(lengths))
                making = time.perf_counter()
        figures["seconds"] = time.perf_counter() - started
        figures["peak_mib"] = resident_mib("VmHWM")
    return figures | size_on_disk(orlog.load_dataset(NAME).folder)


def open_child() -> Figures:
    """Return what opening takes, in time and memory."""
    dataset, first_ms, before_mib = _open()
    return {
        "first_ms": first_ms,
        "before_mib": before_mib,
        "resident_mib": resident_mib(),
        "ms": median_ms(lambda: type(dataset)(dataset.folder)),
    }


def episodes_child() -> Figures:
    """Return what one episode takes."""
    dataset, _, _ = _open()
    rows = np.random.default_rng(3).integers(0, len(dataset), RANDOM_EPISODES + 1).tolist()
    first, *others = [median_ms(functools.partial(dataset.__getitem__, row), 1) for row in rows]
    return {
        "first_ms": first,
        "median_ms": statistics.median(others),
        "most_ms": max(others),
        "resident_mib": resident_mib(),
    }


def filter_child() -> Figures:
    """Return what choosing episodes by their columns takes."""
    dataset, _, _ = _open()
    filtering = functools.partial(dataset.filter_episodes, FILTER)
    first_ms = median_ms(filtering, 1)
    return {"first_ms": first_ms, "ms": median_ms(filtering), "kept": len(filtering())}


def verify_child() -> Figures:
    """Return what checking every byte takes."""
    import orlog

    dataset, _, _ = _open()
    folder = dataset.folder
    del dataset
    _ = orlog.verify_store
    before_mib = reset_peak()
    started = time.perf_counter()
    orlog.verify_store(folder)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "before_mib": before_mib, "peak_mib": resident_mib("VmHWM")}


def _open() -> tuple[Any, float, float]:
    """Return the opened dataset, the time that took in ms, and what was resident before, in MiB."""
    import orlog

    load_dataset = orlog.load_dataset
    before_mib = resident_mib()
    started = time.perf_counter()
    dataset = load_dataset(NAME)
    return dataset, (time.perf_counter() - started) * 1000, before_mib


CHILDREN: dict[str, Callable[..., Figures]] = {
    "write": write_child,
    "open": open_child,
    "episodes": episodes_child,
    "filter": filter_child,
    "verify": verify_child,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(ANSWER + json.dumps(CHILDREN[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
