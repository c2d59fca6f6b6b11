"""orlog's loaders beside plain gathers and their peers, with the goal of each figure.

One million steps like HalfCheetah's (17 observations, 6 actions) in equal episodes for transitions
and in episodes of 20 to 400 steps for sequences; frames of random bytes for images. All give torch
tensors, on one thread, choice of items included. Tools take turns in rounds, each in a process of
its own, and those of orlog and the plain gathers take turns within one.

    python -m benchmarks.loaders --peers-python PEERS --d3rlpy-python D3RLPY --lerobot-python LEROBOT --corl CORL

PEERS, D3RLPY and LEROBOT are environments as `benchmarks.store` tells; CORL is a checkout of
https://github.com/tinkoff-ai/CORL (6afec90). A peer that is not given is left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loader_data import dialogues, make_data, tokenizer
from benchmarks.loader_peers import (
    AROUND,
    AROUND_ITEM,
    BATCHES,
    IMAGES,
    LENGTHS,
    PEERS,
    SEQUENCES,
    SLOTS,
    STACKS,
    TRANSITIONS,
    WINDOWS,
    Call,
    load_steps,
    rates,
    slots,
)
from benchmarks.loader_streams import CODEC, HDF5, IN_ORDER, PAIRS, STREAMS, make_streams, streams_child
from benchmarks.store import ANSWER, ROOT, OtherCores, load_arrays, machine, report, scratch_folder, wait_until_quiet

BARE = "bare packed index_select"
MAPPED = "np.memmap"
FIRST, MEMORY = "first batch, ms", "bytes in memory, of the columns' bytes"
OURS = "orlog"
TOUCHED_BYTES = 2**28
SHOWN = ("orlog", "torch", "numpy", "numcodecs", "h5py")  # packages whose versions are told


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """What a figure of orlog is compared with.

    Attributes:
        item: What is measured.
        tool: With whose figure of the same item orlog's is compared; empty for the figure itself.
        other: With which other item of orlog it is compared.
        least: The goal: a ratio, or the figure itself.
        is_most: Whether the goal is not to be passed.
    """

    item: str
    tool: str = ""
    other: str = ""
    least: float
    is_most: bool = False


PLAIN = TRANSITIONS[256]
N_STEP, GOALS = "3-step transitions, batch 256", "goals, batch 256"
SPEAKING, LENGTH = 32, 512
TOKENS = f"tokens of sequences of {LENGTH}, batch {SPEAKING}"
LOADER = {size: f"DataLoader(num_workers=0), transitions, batch {size}" for size in BATCHES}
LOADER_SEQUENCES = "DataLoader(num_workers=0), sequences, length 20"
LOADER_ALONE = "DataLoader(num_workers=0), batches of six numbers"
# A transition has 43 numbers, a window as many as its observations and actions, and a mask of bytes.
BYTES = 4 * 43 / (4 * (17 * AROUND[0] + 6 * AROUND[1]) + sum(AROUND))
MAP = {size: f"memory map, transitions, batch {size}" for size in BATCHES}
TABLE = (
    *(Goal(item=TRANSITIONS[size], tool=BARE, least=0.9) for size in BATCHES),
    Goal(item=TRANSITIONS[256], tool="CORL", least=6.5),
    Goal(item=TRANSITIONS[256], tool="TorchRL", least=8),
    Goal(item=TRANSITIONS[256], tool="d3rlpy", least=100),
    Goal(item=TRANSITIONS[4096], tool="CORL", least=9),
    Goal(item=TRANSITIONS[4096], tool="TorchRL", least=9),
    Goal(item=TRANSITIONS[4096], tool="d3rlpy", least=100),
    Goal(item=MEMORY, least=1.1, is_most=True),
    Goal(item=SEQUENCES[20], least=1.2e6),
    Goal(item=SEQUENCES[20], tool="CORL", least=50),
    Goal(item=SEQUENCES[20], tool="TorchRL", least=5),
    Goal(item=SEQUENCES[20], tool="d3rlpy", least=14),
    Goal(item=SEQUENCES[64], least=0.8e6),
    Goal(item=SEQUENCES[64], tool="CORL", least=40),
    Goal(item=SEQUENCES[64], tool="TorchRL", least=5),
    Goal(item=SEQUENCES[64], tool="d3rlpy", least=14),
    Goal(item=AROUND_ITEM, other=PLAIN, least=0.5 * BYTES),
    Goal(item=AROUND_ITEM, tool="TorchRL", least=5),
    Goal(item=AROUND_ITEM, tool="LeRobot", least=1),
    Goal(item=TOKENS, least=2e6),
    Goal(item=N_STEP, other=PLAIN, least=0.6),
    Goal(item=GOALS, other=PLAIN, least=0.6),
    Goal(item=GOALS, tool=BARE, other=PLAIN, least=0.6),
    Goal(item=GOALS, tool=BARE, least=1.0),  # of as many rows: of a step, and of two goals
    *(Goal(item=MAP[size], other=TRANSITIONS[size], least=0.7) for size in BATCHES),
    *(Goal(item=STACKS[kind], tool=MAPPED, least=0.8) for kind in STACKS),
    *(Goal(item=STACKS[kind], tool="TorchRL", least=4) for kind in STACKS),
    *(Goal(item=STREAMS[kind], tool=HDF5, least=3) for kind in STREAMS),
    *(Goal(item=STREAMS[kind], tool=PAIRS, least=3) for kind in STREAMS),
    *(Goal(item=STREAMS[kind], tool=CODEC, least=0.5) for kind in STREAMS),
    *(Goal(item=IN_ORDER[kind], tool=CODEC, least=0.75) for kind in STREAMS),
    *(Goal(item=LOADER[size], other=TRANSITIONS[size], least=0.8) for size in BATCHES),
    Goal(item=LOADER_SEQUENCES, other=SEQUENCES[20], least=0.8),
    Goal(item=FIRST, least=150, is_most=True),
)


def main() -> None:
    """Measure all and print the table, or be one of the processes that measure."""
    if sys.argv[1:2] == ["--child"]:
        CHILDREN[sys.argv[2]](Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description="Measure orlog's loaders beside their peers.")
    parser.add_argument("--peers-python", default="", metavar="PATH", help="has TorchRL")
    parser.add_argument("--d3rlpy-python", default="", metavar="PATH")
    parser.add_argument("--lerobot-python", default="", metavar="PATH")
    parser.add_argument("--corl", default="", metavar="FOLDER", help="CORL's sources")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="where generated data is kept")
    parser.add_argument("--wait", type=float, default=15, help="seconds to wait for a quiet CPU")
    options = parser.parse_args()
    with scratch_folder(options.scratch) as scratch:
        make_data(scratch)
        make_streams(scratch)
        found, versions, missing, others = measure_in_rounds(options, scratch)
    medians = {key: statistics.median(values) for key, values in found.items()}
    with report("loaders") as console:
        from orlog.base.terminal import table

        headings = ["figure", "orlog", "beside", "its figure", "orlog is", "goal", "met"]
        console.print(table(headings, compare(medians), numbers=range(3, 6)))
        console.print("\nitems or windows per second unless a row says otherwise; one thread")
        alone = medians.get((OURS, LOADER_ALONE), math.nan)
        console.print(f"{LOADER_ALONE}: {1e6 / alone:.1f} us each, which PyTorch takes for any batch")
        for name, why in missing.items():
            console.print(f"left out: {name}: {why}")
        told = " ".join(f"{package} {version}" for package, version in sorted(versions.items()))
        console.print(f"medians of {options.rounds} rounds of 5 repeats; {told}")
        console.print(f"spread of rounds: {spread(found):.0%} on average")
        console.print(machine(others))


def compare(medians: dict[tuple[str, str], float]) -> list[list[str]]:
    """Return the rows of the table."""
    rows = []
    for goal in TABLE:
        ours = medians.get((OURS, goal.item))
        other = medians.get((goal.tool or OURS, goal.other or goal.item))
        if ours is None or other is None:
            continue
        is_ratio = bool(goal.tool or goal.other)
        value = ours / other if is_ratio else ours
        is_met = value <= goal.least if goal.is_most else value >= goal.least
        rows.append(
            [
                goal.item,
                figure(ours),
                goal.tool or goal.other,
                figure(other) if is_ratio else "",
                f"{value:.2f} x" if is_ratio else "",
                ("<= " if goal.is_most else ">= ") + (f"{goal.least:g} x" if is_ratio else figure(goal.least)),
                "yes" if is_met else "NO",
            ]
        )
    return rows


def figure(value: float) -> str:
    """Return a figure in few characters."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} k" if value >= 1e4 else f"{value:.4g}"


def spread(found: dict[tuple[str, str], list[float]]) -> float:
    """Return how far the rounds of a figure lie apart, relative to its median, on average."""
    return statistics.mean((max(values) - min(values)) / statistics.median(values) for values in found.values())


def measure_in_rounds(
    options: argparse.Namespace, scratch: Path
) -> tuple[dict[tuple[str, str], list[float]], dict[str, str], dict[str, str], list[float]]:
    """Return figures by tool and item, versions, why tools are missing, and the noise."""
    from orlog.base.terminal import progress_bar

    peer = [sys.executable, "-m", "benchmarks.loader_peers"]
    commands = {
        child: [sys.executable, "-m", "benchmarks.loaders", "--child", child, str(scratch)] for child in CHILDREN
    }
    if options.corl:
        commands["CORL"] = [*peer, "CORL", str(scratch), str(Path(options.corl).absolute())]
    pythons = options.peers_python, options.d3rlpy_python, options.lerobot_python
    for name, python in zip(("TorchRL", "d3rlpy", "LeRobot"), pythons, strict=True):
        if python:
            commands[name] = [python, *peer[1:], name, str(scratch)]
    missing = {name: "was not given" for name in PEERS if name not in commands}
    found: dict[tuple[str, str], list[float]] = {}
    versions: dict[str, str] = {}
    noise = []
    with progress_bar("measuring") as update:
        for turn in range(options.rounds):
            for place, (name, command) in enumerate(commands.items()):
                update(turn * len(commands) + place, options.rounds * len(commands))
                wait_until_quiet(options.wait)
                with OtherCores() as others:
                    answer = ask(command, scratch)
                noise.append(others.cores)
                if "error" in answer:
                    missing[name] = answer["error"]
                    continue
                if name in PEERS:
                    versions[name] = answer["version"]
                    answer["rates"] = {f"{name}/{item}": r for item, r in answer["rates"].items()}
                missing |= answer.get("missing", {})
                for key, rate in answer["rates"].items():
                    tool, _, item = key.partition("/")
                    found.setdefault((tool, item), []).append(rate)
    versions |= {one: importlib.metadata.version(one) for one in SHOWN}
    return found, versions, missing, noise


def ask(command: list[str], scratch: Path) -> dict[str, Any]:
    """Return what a child found."""
    done = subprocess.run(  # noqa: S603  # interpreters that the user named
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "ORLOG_HOME": str(scratch / "home")},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if done.returncode != 0 or not lines:
        return {"error": (done.stderr.strip() or "no answer").splitlines()[-1]}
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(ANSWER))
    return answer


# What orlog and plain gathers are asked for, in processes of their own.


def memory_child(folder: Path) -> None:
    """Measure everything of numbers in memory and in mapped files."""
    import torch
    from torch.utils.data import DataLoader

    import orlog

    torch.set_num_threads(1)
    missing: dict[str, str] = {}
    calls: dict[str, tuple[Call, int]] = {}
    dataset = orlog.load_dataset("bench/equal-v0")
    arrays = _load(dataset)
    steps = load_steps(folder / "equal.npz")
    packed = torch.from_numpy(
        np.concatenate(
            [
                steps["observations"],
                steps["actions"],
                steps["rewards"][:, None],
                steps["next_observations"],
                steps["terminals"].astype(np.float32)[:, None],
            ],
            1,
        )
    )
    sizes = [17, 6, 1, 17, 1]

    def bare(size: int) -> object:
        index = torch.randint(0, len(packed), (size,))
        return packed.index_select(0, index).split_with_sizes(sizes, 1)

    def bare_goals() -> object:
        index = torch.randint(0, len(packed), (3, 256))
        goals = [packed[:, :17].index_select(0, one) for one in index[1:]]
        return packed.index_select(0, index[0]).split_with_sizes(sizes, 1), goals

    def add(item: str, items: int, room: str, name: str, *given: Any, **settings: Any) -> None:
        try:
            stream = getattr(importlib.import_module(f"orlog.loaders.{room}"), name)
        except (AttributeError, ImportError) as error:  # not there yet
            missing[item] = str(error)
            return
        made = stream(*given, **settings)
        if item in (*LOADER.values(), LOADER_SEQUENCES):
            made = DataLoader(made, batch_size=None, num_workers=0)
        calls[f"{OURS}/{item}"] = iter(made).__next__, items

    mapped = _mapped(dataset)
    for size in BATCHES:
        add(TRANSITIONS[size], size, "transitions", "transitions", arrays, size, seed=0)
        calls[f"{BARE}/{TRANSITIONS[size]}"] = functools.partial(bare, size), size
        if mapped is not None:
            add(MAP[size], size, "transitions", "transitions", mapped, size, seed=0)
    add(N_STEP, 256, "transitions", "transitions", arrays, 256, seed=0, n_steps=3)
    add(GOALS, 256, "goals", "goals", arrays, 256, seed=0)
    calls[f"{BARE}/{GOALS}"] = bare_goals, 256
    for size in BATCHES:
        add(LOADER[size], size, "transitions", "transitions", arrays, size, seed=0)
    alone = DataLoader(_small_batches(), batch_size=None, num_workers=0)
    calls[f"{OURS}/{LOADER_ALONE}"] = iter(alone).__next__, 1
    windows = _load(orlog.load_dataset("bench/variable-v0"))
    for item, length in [*zip(SEQUENCES.values(), LENGTHS, strict=True), (LOADER_SEQUENCES, 20)]:
        add(item, WINDOWS, "sequences", "sequences", windows, WINDOWS, length=length, seed=0)
    add(AROUND_ITEM, WINDOWS, "windows", "windows", windows, WINDOWS, seed=0)
    told, words = dialogues(), {"tokenizer": tokenizer(), "length": LENGTH}
    room = "token_sequences"
    add(TOKENS, SPEAKING * LENGTH, room, room, told, SPEAKING, seed=0, **words)
    found = rates(calls)
    columns = load_arrays(folder / "equal.npz")
    column_bytes = sum(column.nbytes for name, column in columns.items() if name != "lengths")
    found[f"{OURS}/{MEMORY}"] = bytes_of(arrays) / column_bytes
    print(ANSWER + json.dumps({"rates": found, "missing": missing}))


def _mapped(dataset: Any) -> Any:
    """Return arrays in mapped files."""
    from orlog.loaders.places import load_arrays

    return load_arrays(dataset, "mmap")


def _load(dataset: Any) -> Any:
    from orlog.loaders.arrays import read_arrays as load_into_memory

    return load_into_memory(dataset)


def bytes_of(arrays: Any) -> int:
    """Return the bytes of all arrays, tensors and tables that an object holds."""
    found = 0
    for value in vars(arrays).values():
        inside = list(value.values()) if isinstance(value, dict) else [value]
        found += sum(getattr(one, "nbytes", 0) for one in inside)
    return found


def _small_batches() -> Any:
    """Return a dataset of batches that take little time to make, to time the loader itself."""
    import torch

    class Small(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:  # six views each, as batches of transitions have
                block = torch.empty(64, 6, 1)
                yield from zip(*(column.unbind(0) for column in block.unbind(1)), strict=True)

    return Small()


def images_child(folder: Path) -> None:
    """Measure stacks and single images beside gathers from a mapped file."""
    import torch

    import orlog

    torch.set_num_threads(1)
    calls: dict[str, tuple[Call, int]] = {}
    missing: dict[str, str] = {}
    for kind, item in STACKS.items():
        frames = np.load(folder / f"{kind}.npy", mmap_mode="r")
        calls[f"{MAPPED}/{item}"] = functools.partial(_gather_mapped, frames, kind), IMAGES
        try:
            arrays = _load(orlog.load_dataset(f"bench/{kind}-v0"))
            stream = orlog.transitions(arrays, IMAGES, stacks=SLOTS[kind] - 1, seed=0)
        except TypeError as error:  # an older orlog, which has no such argument
            missing[item] = str(error)
            continue
        calls[f"{OURS}/{item}"] = iter(stream).__next__, IMAGES
    print(ANSWER + json.dumps({"rates": rates(calls), "missing": missing}))


def _gather_mapped(frames: np.ndarray, kind: str) -> object:
    import torch

    return torch.from_numpy(frames[slots(len(frames), kind)])


def first_child(folder: Path) -> None:
    """Measure the first batch in a fresh process, after the imports, warm.

    The files are read before, and memory touched and given back: where a virtual machine gives what
    it does not use back to its host, each costs up to a quarter of a second the next time.
    """
    import torch

    import orlog

    torch.set_num_threads(1)
    first_of = orlog.transitions
    load_dataset = orlog.load_dataset
    for path in (folder / "home" / "datasets" / "bench" / "equal-v0").rglob("*"):
        if path.is_file():
            path.read_bytes()
    np.ones(TOUCHED_BYTES, np.uint8)
    started = time.perf_counter()
    next(iter(first_of(load_dataset("bench/equal-v0"), 256, seed=0)))
    milliseconds = (time.perf_counter() - started) * 1000
    print(ANSWER + json.dumps({"rates": {f"{OURS}/{FIRST}": milliseconds}}))


CHILDREN = {"memory": memory_child, "images": images_child, "streams": streams_child, "first": first_child}


if __name__ == "__main__":
    main()
