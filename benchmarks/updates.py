"""Updates per second of each algorithm, sampling included, on one thread, in turns.

At the published sizes (the defaults) and at the recipes of pointmaze/umaze-v1.

    python -m benchmarks.updates
    python -m benchmarks.updates --corl CORL --edac EDAC    # beside files that their users clone
    python -m benchmarks.updates --corl CORL --edac EDAC --processes
    python -m benchmarks.updates --precision    # float32 beside bfloat16

Beside peers (CORL; EDAC's authors; ReBRAC in plain PyTorch) and with `--precision` both sides take
short turns, at the published sizes, on HalfCheetah-like transitions (17 numbers observed, 6 acted).
They share one process and both keep freed memory, which orlog's training does. With `--processes`
each has a process of its own, and peers have the allocator's defaults, as their users do. Times are
those of the thread, so what others compute on these cores counts less. Ratios are medians over the
rounds. "products" is the time that all matrix products of one of our updates take when each size is
repeated on its own, the fastest of several rounds: about the least that an update can take.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import orlog
from benchmarks.ensemble_peers import make_authors_edac, make_plain_rebrac
from benchmarks.store import halfcheetah_like
from benchmarks.update_peers import PEERS, make_peer
from orlog.algos.algorithms import make_algorithm
from orlog.algos.networks import Scaling
from orlog.algos.presets import recipe_for
from orlog.algos.relu_networks import Precision, has_fast_bf16, products_in
from orlog.algos.repeated_updates import updates_of
from orlog.algos.settings import make_config
from orlog.algos.training.data import keep_freed_memory, loaded
from orlog.algos.training.loop import train
from orlog.algos.training.runs import code_versions
from orlog.base.processes import processor_name
from orlog.loaders.arrays import Arrays

ROUNDS = 5
SECONDS = 2.0
NAMES = ("bc", "td3bc", "iql", "awac", "rebrac", "edac", "cql")
PAIR_ROUNDS, PAIR_SECONDS = 15, 0.4
PRODUCT_ROUNDS = 30
EPISODES, LENGTH = 200, 1000
PRODUCTS = tuple(getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm"))

Call = Callable[[], object]
Maker = Callable[[], Call]
Timer = Callable[[int], float]


@dataclasses.dataclass(frozen=True)
class Peers:
    """Folders of clones, None where not given."""

    corl: Path | None
    edac: Path | None


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corl", type=Path, help="a clone of CORL")
    parser.add_argument("--edac", type=Path, help="a clone of snu-mllab/EDAC")
    parser.add_argument("--processes", action="store_true", help="each side in its own process")
    parser.add_argument("--precision", action="store_true", help="float32 beside bfloat16")
    parser.add_argument("--only", default=",".join(NAMES), help="names of algorithms")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    names = options.only.split(",")
    found: dict[str, Any] = {"threads": 1, "processor": processor_name(), "versions": code_versions()}
    peers = Peers(options.corl, options.edac)
    if peers != Peers(None, None):
        place = "in own processes" if options.processes else "in one process"
        found[f"beside peers, {place}"] = beside_peers(peers, names, options.processes)
    elif options.precision:
        found["has_fast_bf16"] = has_fast_bf16()
        found["precisions"] = {name: measure_pair(pair) for name, pair in precisions(names)}
    else:
        found["updates_per_s"] = rates(names)
    found["load average"] = round(os.getloadavg()[0], 1)
    print(json.dumps(found, indent=1))


def beside_peers(peers: Peers, names: list[str], own_processes: bool) -> dict[str, dict[str, float]]:
    """Return for each pair the milliseconds of both, their ratio, and those of our products."""
    found = {}
    for pair, sides in pairs_with_peers(peers, names).items():
        with contextlib.ExitStack() as stack:
            if own_processes:
                timers = {side: stack.enter_context(in_own_process(peers, pair, side)) for side in sides}
            else:
                timers = {side: timer(make()) for side, make in sides.items()}
            found[pair] = measure_pair(timers)
        found[pair]["products, ms"] = round(products_alone(sides["orlog"]()), 2)
        print(pair, found[pair], file=sys.stderr, flush=True)
    return found


def rates(names: list[str]) -> dict[str, float]:
    """Return updates per second of wall time at both sizes."""
    dataset = orlog.load_dataset("pointmaze/umaze-v1")
    packed = orlog.transitions(dataset, 256, seed=0).arrays
    runs = {}
    for name in names:
        for kind, settings in (("published sizes", {}), ("recipe", recipe_for(name, "pointmaze/umaze-v1").settings)):
            runs[f"{name}, {kind}"] = make_run(name, settings, packed)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, (algorithm, stream) in runs.items():
            found[name].append(rate(algorithm, stream))
    return {name: round(statistics.median(values), 1) for name, values in found.items()}


def make_run(
    name: str, settings: Mapping[str, object], packed: Arrays, device: str = "cpu"
) -> tuple[Any, Iterable[Any]]:
    """Return an algorithm and its batches."""
    mean, std = packed.observation_statistics()
    bounds = torch.ones(packed.action_dim)
    scaling = Scaling(obs_mean=mean, obs_std=std + 1e-3, action_low=-bounds, action_high=bounds)
    config = make_config(name, settings)
    algorithm: Any = make_algorithm(name, config, scaling, seed=0, device=device)
    return algorithm, loaded(type(algorithm), config, packed, seed=0)


def rate(algorithm: Any, stream: Iterable[Any]) -> float:
    """Return updates per second over a few seconds, after a warm-up of two updates."""
    for _ in train(algorithm, stream, last_step=2, every=2):
        pass
    started = time.perf_counter()
    for count in itertools.count(1):
        for _ in train(algorithm, stream, last_step=5, every=5):
            pass
        elapsed = time.perf_counter() - started
        if elapsed > SECONDS:
            return 5 * count / elapsed
    raise AssertionError


def pairs_with_peers(peers: Peers, names: list[str]) -> dict[str, dict[str, Maker]]:
    """Return what makes ours and a peer's update; CQL's policy follows its critics in both."""
    columns = halfcheetah_like(EPISODES, LENGTH)
    packed = pack(columns)
    mean, std = packed.observation_statistics()
    scaled = (columns["observations"] - mean.numpy()) / (std.numpy() + 1e-3)
    transitions = transitions_of({**columns, "observations": scaled})

    def ours(name: str) -> Call:
        settings = {"cloning_steps": 0} if name == "cql" else {}
        return updater(*make_run(name, settings, packed), "float32")

    found: dict[str, dict[str, Maker]] = {}
    for name in names:
        make_ours = functools.partial(ours, name)
        if name in PEERS and peers.corl is not None:
            theirs = functools.partial(make_peer, peers.corl, name, transitions, 256)
            found[name] = {"orlog": make_ours, "CORL": theirs}
        if name == "edac" and peers.edac is not None:
            theirs = functools.partial(make_authors_edac, peers.edac, transitions, 256)
            found["edac beside its authors'"] = {"orlog": make_ours, "authors": theirs}
        if name == "rebrac":
            for kind, compiled in (("plain", False), ("compiled", True)):
                theirs = functools.partial(make_plain_rebrac, transitions, 1024, compiled=compiled)
                found[f"rebrac beside {kind} PyTorch"] = {"orlog": make_ours, kind: theirs}
    return found


def transitions_of(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns as peers take them, with next observations."""
    by_episode = columns["observations"].reshape(EPISODES, LENGTH + 1, -1)
    return {
        "observations": by_episode[:, :-1].reshape(EPISODES * LENGTH, -1),
        "next_observations": by_episode[:, 1:].reshape(EPISODES * LENGTH, -1),
        "actions": columns["actions"],
        "rewards": columns["rewards"].astype(np.float32),
        "terminals": columns["terminations"].astype(np.float32),
    }


def precisions(names: list[str]) -> Iterator[tuple[str, dict[str, Timer]]]:
    """Yield the updates of each algorithm in bfloat16 and float32."""
    packed = pack(halfcheetah_like(EPISODES, LENGTH))
    for name in names:
        settings: dict[str, Any] = {"cloning_steps": 0} if name == "cql" else {}
        kinds: tuple[Precision, ...] = ("bf16", "float32")
        yield (name, {kind: timer(updater(*make_run(name, settings, packed), kind)) for kind in kinds})


def pack(columns: dict[str, np.ndarray]) -> Arrays:
    """Return the rows of the columns: observation, action, reward, ends; one more after the last."""
    sizes = [columns[name].shape[-1] for name in ("observations", "actions")]
    rows = np.zeros((EPISODES, LENGTH + 1, sum(sizes) + 3), np.float32)
    rows[..., : sizes[0]] = columns["observations"].reshape(EPISODES, LENGTH + 1, -1)
    place = sizes[0]
    for name in ("actions", "rewards", "terminations", "truncations"):
        values = columns[name].reshape(EPISODES, LENGTH, -1)
        rows[:, :-1, place : place + values.shape[-1]] = values
        place += values.shape[-1]
    return Arrays(
        rows=torch.from_numpy(rows.reshape(-1, rows.shape[-1])),
        lengths=np.full(EPISODES, LENGTH),
        obs_dim=sizes[0],
        action_dim=sizes[1],
        digest="sha256:made here",
    )


def updater(algorithm: Any, stream: Iterable[Any], precision: Precision, *, one_by_one: bool = False) -> Call:
    """Return a function that takes one update as training does, sampling included.

    With `one_by_one` a GPU is told each of its kernels, and does not repeat recorded ones.
    """
    batches = iter(stream)
    take = algorithm.update if one_by_one else updates_of(algorithm)

    def update() -> object:
        with products_in(precision):
            return take(next(batches))

    return update


def timer(call: Call, clock: Callable[[], float] = time.thread_time) -> Timer:
    """Return a function that makes a number of calls and returns the milliseconds of each."""

    def take(count: int) -> float:
        started = clock()
        for _ in range(count):
            call()
        return 1e3 * (clock() - started) / count

    return take


@contextlib.contextmanager
def in_own_process(peers: Peers, pair: str, side: str) -> Iterator[Timer]:
    """Give the timer of one side, whose calls a process of its own makes."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, peers, pair, side), daemon=True)
    process.start()
    there.close()

    def take(count: int) -> float:
        here.send(count)
        found: float = here.recv()
        return found

    yield take
    here.send(0)
    process.join()


def serve(connection: Connection, peers: Peers, pair: str, side: str) -> None:
    """Answer numbers of calls by milliseconds, until the number is 0."""
    torch.set_num_threads(1)
    if side == "orlog":
        keep_freed_memory()  # as its training does
    name = pair.partition(" ")[0]
    take = timer(pairs_with_peers(peers, [name])[pair][side]())
    while count := connection.recv():
        connection.send(take(count))


def measure_pair(timers: dict[str, Timer]) -> dict[str, float]:
    """Return milliseconds of each update and how many times as long the second takes."""
    counts = {}
    for name, take in timers.items():
        take(3)
        counts[name] = max(1, int(1e3 * PAIR_SECONDS / take(1)))
    found: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(PAIR_ROUNDS):
        for name, take in timers.items():
            found[name].append(take(counts[name]))
    first, second = found.values()
    ratios = [other / one for one, other in zip(first, second, strict=True)]
    return {
        **{f"{name}, ms": round(statistics.median(times), 2) for name, times in found.items()},
        "ratio": round(statistics.median(ratios), 2),
        "lowest ratio": round(min(ratios), 2),
        "highest ratio": round(max(ratios), 2),
    }


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts the matrix products of each size."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.sizes: collections.Counter[tuple[torch.Size, torch.Size]] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            left, right = args[-2:]
            self.sizes[left.shape, right.shape] += 1
        return func(*args, **(kwargs or {}))


def products_alone(call: Call) -> float:
    """Return the milliseconds of all products of an update, each size repeated on its own."""
    with Products() as products:
        for _ in range(2):  # some algorithms move the policy in every second update
            call()
    total = 0.0
    for (left, right), count in products.sizes.items():
        one, other = torch.randn(left), torch.randn(right)
        take = timer(functools.partial(torch.matmul, one, other))
        repeats = max(1, int(10 / take(3)))
        total += count / 2 * min(take(repeats) for _ in range(PRODUCT_ROUNDS))
    return total


if __name__ == "__main__":
    main()
