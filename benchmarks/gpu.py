"""What a GPU does: sampling from its memory, copies to it, and updates of algorithms, beside CORL's.

    python -m benchmarks.gpu                        the current GPU; where there is none, a line says so
    python -m benchmarks.gpu --corl CORL            beside a clone of https://github.com/tinkoff-ai/CORL
    python -m benchmarks.gpu --device cpu --steps 20000 --seconds 0.05    a trial of all of it, without a GPU

Steps have 17 numbers observed and 6 acted, random ones; batches are of 256 unless a row says otherwise. All
take turns in one process, and the clock stops when the device has finished. Peers run in float32, from their
own files at their own defaults; FQL has none there.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import orlog
from benchmarks.update_peers import PEERS, make_peer
from benchmarks.updates import make_run, updater
from orlog.algos.relu_networks import Precision, has_fast_bf16, no_fast_bf16
from orlog.algos.training.data import find_device
from orlog.base.processes import processor_name
from orlog.base.terminal import table
from orlog.loaders.arrays import Arrays
from orlog.loaders.batch import Batch

NAMES = ("bc", "iql", "td3bc", "cql", "fql")
OBSERVED, ACTED, LENGTH = 17, 6, 1000
ROUNDS, WARM = 5, 3

Call = Callable[[], object]


def main() -> None:
    """Measure all and print the table."""
    parser = argparse.ArgumentParser(description="Measure orlog on a GPU.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu for a trial")
    parser.add_argument("--corl", type=Path, help="a clone of CORL")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each figure in each round")
    parser.add_argument("--only", default=",".join(NAMES), help="names of algorithms")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown or options.steps < LENGTH or options.seconds <= 0:
        parser.error(f"--only takes {', '.join(NAMES)}; --steps {LENGTH} or more; --seconds more than 0")
    if not re.fullmatch(r"cpu|auto|cuda(:\d+)?", options.device):
        parser.error(f"--device takes cpu, cuda or cuda:NUMBER, not {options.device}")
    if options.corl is not None and not (options.corl / "algorithms" / "offline").is_dir():
        parser.error(f"--corl: {options.corl} is no clone of CORL")
    try:
        device = find_device(options.device)
    except ValueError as error:
        print(f"nothing was measured: {error}")
        return
    torch.set_num_threads(1)
    told = torch.cuda.get_device_name(device) if device != "cpu" else processor_name()
    print(f"{told}, PyTorch {torch.__version__}, {options.steps:,} steps")
    arrays = random_arrays(options.steps)
    rows = [*sampling(arrays, device, options.seconds)]
    for name in names:
        rows += updates(name, arrays, device, options.corl, options.seconds)
    headings = ["what", "a second", "lowest", "highest", "the first is"]
    console = Console(width=140, highlight=False, markup=False)
    console.print(table(headings, rows, numbers=range(1, 5)))
    if not has_fast_bf16(device):
        print(f"bfloat16 was left out: {no_fast_bf16(device)}")
    if options.corl is None:
        print("CORL was left out: --corl was not given")
    print(f"medians of {ROUNDS} rounds in turns")


def random_arrays(steps: int) -> Arrays:
    """Return random steps in main memory."""
    episodes = steps // LENGTH
    width = OBSERVED + ACTED + 3
    rows = torch.empty(episodes * (LENGTH + 1), width).uniform_(-1, 1)
    rows[:, -2:] = 0  # nothing ends
    rows[LENGTH :: LENGTH + 1, OBSERVED:] = 0
    return Arrays(
        rows=rows, lengths=np.full(episodes, LENGTH), obs_dim=OBSERVED, action_dim=ACTED, digest="sha256:made here"
    )


def sampling(arrays: Arrays, device: str, seconds: float) -> Iterator[list[str]]:
    """Yield the rows of batches that are gathered on the device or copied to it."""
    there = arrays.to(device)
    view = there.transitions
    calls: dict[str, tuple[Call, float]]
    for size in (256, 4096):
        on_device = iter(orlog.transitions(there, size, seed=0))
        from_host = iter(orlog.transitions(arrays, size, seed=0))

        def copied(batches: Iterator[Batch] = from_host) -> object:
            return next(batches).to(device, non_blocking=True)

        def bare(size: int = size) -> object:
            return view.index_select(0, torch.randint(len(view), (size,), device=device))

        calls = {
            f"transitions from the device's memory, batch {size}": (on_device.__next__, size),
            f"bare index_select on the device, batch {size}": (bare, size),
            f"transitions from main memory, copied, batch {size}": (copied, size),
        }
        yield from measured(calls, device, seconds)
    block = torch.empty(2**24)  # 64 MiB
    blocks = {"pageable": block}
    if device != "cpu":
        blocks["page-locked"] = block.pin_memory()
    calls = {}
    for kind, one in blocks.items():
        copy = functools.partial(torch.empty_like(block, device=device).copy_, one)
        calls[f"bytes from {kind} main memory"] = copy, block.nbytes
    yield from measured(calls, device, seconds)


def updates(name: str, arrays: Arrays, device: str, corl: Path | None, seconds: float) -> Iterator[list[str]]:
    """Yield the rows of an algorithm's updates, sampling included."""
    there = arrays.to(device)
    # In CORL the policy follows its critics from the start; so it does here.
    settings = {"cloning_steps": 0} if name == "cql" else {}
    kinds: list[Precision] = ["float32"]
    if has_fast_bf16(device):
        kinds.append("bf16")
    calls: dict[str, tuple[Call, float]] = {}
    for kind in kinds:
        run = make_run(name, settings, there, device)
        calls[f"{name}, updates in {kind}"] = updater(*run, kind), 1
    if device != "cpu":
        run = make_run(name, settings, there, device)
        told = f"{name}, updates in float32, kernel by kernel"
        calls[told] = updater(*run, "float32", one_by_one=True), 1
    if corl is not None and name in PEERS:
        calls[f"{name}, updates of CORL"] = make_peer(corl, name, flat(arrays), 256, device), 1
    yield from measured(calls, device, seconds)


def flat(arrays: Arrays) -> dict[str, np.ndarray]:
    """Return transitions as D4RL's files hold them."""
    rows, steps = arrays.rows.numpy(), arrays.step_rows()
    return {
        "observations": rows[steps, :OBSERVED],
        "next_observations": rows[steps + 1, :OBSERVED],
        "actions": rows[steps, OBSERVED : OBSERVED + ACTED],
        "rewards": rows[steps, -3],
        "terminals": rows[steps, -2],
    }


def measured(calls: dict[str, tuple[Call, float]], device: str, seconds: float) -> Iterator[list[str]]:
    """Yield what each call gives a second, and what the first one is of the others, in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call, _ in calls.values():
        for _ in range(WARM):
            call()
    for _ in range(ROUNDS):
        for name, (call, items) in calls.items():
            wait_for(device)
            started, count = time.perf_counter(), 0
            while time.perf_counter() - started < seconds:
                call()
                count += 1
            wait_for(device)
            found[name].append(count * items / (time.perf_counter() - started))
        print(".", end="", file=sys.stderr, flush=True)
    first = next(iter(found))
    for name, values in found.items():
        ratios = [one / other for one, other in zip(found[first], values, strict=True)]
        beside = "" if name == first else f"{statistics.median(ratios):.2f} x"
        middle = statistics.median(values)
        yield [name, *(f"{one:,.1f}" for one in (middle, min(values), max(values))), beside]


def wait_for(device: str) -> None:
    """Wait until a device has done what it was told."""
    if device != "cpu":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
