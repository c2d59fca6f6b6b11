"""Streaming from a web server 20 ms away over a link of 200 MB/s, beside the tools that do it too.

Two datasets: vectors (as of HalfCheetah) and frames of 64 x 64 x 3. Each tool has the same episodes in its own layout on
one server, a process of its own on loopback, and reads all of them once in a fresh process with an empty cache, in
batches of 256 steps where it makes batches; zarr stops after 20 s. The link is what 16 threads read of 1 MiB ranges, without
decoding. The same stream from the folder on this machine's disk shows what of the time is decoding. Tools take turns in rounds; figures are medians, with the smallest and largest. A third dataset of 100 million steps
shows how long the first batch takes, and the memory beside the stream's buffer.

Of one random episode, after the dataset was opened and with nothing kept: time, bytes, requests, and how many of these waited
for one another (rounds).

    python -m benchmarks.in_place --peers FOLDER     with a folder of packages (pip install --target), beside ours
    python -m benchmarks.in_place --quick            small, and writes no results

    FOLDER   pip install --target FOLDER --no-deps webdataset braceexpand mosaicml-streaming zstd python-snappy cramjam \
                 brotli xxhash catalogue

mosaicml-streaming reads the same server as an S3-compatible bucket, with stand-ins for packages of language and vision that it
imports and that nothing here needs. LeRobot's streaming reads the Hugging Face hub alone, and is not here.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.abc
import importlib.machinery
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import asked_bytes, asked_rounds, serve
from benchmarks.store import ANSWER, ROOT, OtherCores, halfcheetah_like, machine, print_table, report

LATENCY, RATE = 0.02, 200e6
BATCH = 256
RANGE_BYTES = 2**20
NAMES = {"vectors": "bench/vectors-v1", "frames": "bench/frames-v1"}
ROUNDS = 3
LARGE = "large"
LARGE_STEPS = 100_000_000
LARGE_BATCHES = 20_000
BUFFER_MIB = 2**8  # of `orlog.transitions(.., stream=True)`
ZARR_SECONDS = 20.0


def main() -> None:
    """Write the data in all layouts, measure, and write the tables."""
    parser = argparse.ArgumentParser(description="Stream from a server beside other tools.")
    parser.add_argument("--peers", type=Path, help="folder with webdataset and mosaicml-streaming")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--large", type=int, default=LARGE_STEPS, help="steps of the third")
    parser.add_argument("--store", type=Path, help="folder that keeps the third between runs")
    options = parser.parse_args()
    if options.child:
        tool, kind, url, scratch = options.child
        print(ANSWER + json.dumps(TOOLS[tool](kind, url, Path(scratch))))
        return
    episodes, large = (40, 1_000_000) if options.quick else (10_000, options.large)
    with tempfile.TemporaryDirectory(prefix="orlog-in-place-", dir=_disk()) as folder:
        scratch = Path(folder)
        tools = [one for one in TOOLS if one != "first" and (options.peers or one not in PEERS)]
        write_all(scratch / "served", episodes, options.peers)
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        with serve(scratch / "served", LATENCY, RATE) as url, OtherCores() as others:
            for _ in range(1 if options.quick else ROUNDS):
                for kind in NAMES:
                    for tool in tools:
                        before = asked_bytes(url)
                        answer = run_child(tool, kind, url, scratch, options.peers)
                        answer.setdefault("fetched", asked_bytes(url) - before)
                        found.setdefault((kind, tool), []).append(answer)
                        print(kind, tool, answer, flush=True)
    with tempfile.TemporaryDirectory(prefix="orlog-in-place-") as folder:  # too large for memory
        rounds = range(1 if options.quick else ROUNDS)
        kept = options.store or Path(folder)
        first = [read_first_batch(kept, Path(folder), large) for _ in rounds]
        print(first, flush=True)
    if options.quick:
        return
    with report("in_place") as console:
        for kind in NAMES:
            console.print(f"{kind}, {LATENCY * 1e3:g} ms and {RATE / 1e6:g} MB/s")
            rows = {tool: _row(found[kind, tool], found[kind, "link"]) for tool in tools}
            print_table(console, HEADINGS, rows)
            one = [answer["episode"] for answer in found[kind, "orlog"]]
            console.print(_of_an_episode(one) + "\n")
        seconds = ", ".join(f"{one['first']:.2f}" for one in first)
        extra = max(one["extra_mib"] for one in first) - BUFFER_MIB
        console.print(
            f"first batch of {large:,} steps: {seconds} s; the most memory beside the buffer of {BUFFER_MIB} MiB, "
            f"over {LARGE_BATCHES:,} batches: {extra:.0f} MiB\n"
        )
        console.print(machine([others.cores]))


HEADINGS = ("steps/s", "MB/s", "of the link", "MB fetched", "first batch s", "extra MiB")


def _row(found: list[dict[str, float]], link: list[dict[str, float]]) -> list[str]:
    def text(values: list[float], form: str) -> str:
        if not values:
            return "-"
        middle = statistics.median(values)
        return f"{middle:{form}} ({min(values):{form}} to {max(values):{form}})"

    speeds = [one["fetched"] / one["seconds"] / 1e6 for one in found]
    carried = statistics.median(one["fetched"] / one["seconds"] / 1e6 for one in link)
    steps = [one["steps"] / one["seconds"] for one in found if one["steps"]]
    return [
        text(steps, ",.0f"),
        text(speeds, ".0f"),
        f"{statistics.median(speeds) / carried:.2f}",
        f"{statistics.median(one['fetched'] for one in found) / 1e6:.0f}",
        text([one["first"] for one in found if one["first"]], ".2f"),
        f"{statistics.median(one['extra_mib'] for one in found):.0f}",
    ]


def _of_an_episode(found: list[list[dict[str, float]]]) -> str:
    """Return what a random episode took, in a line."""
    every = [one for several in found for one in several]

    def text(name: str, form: str) -> str:
        values = [one[name] for one in every]
        return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"

    return (
        f"one random episode after the first: {text('ms', '.0f')} ms, {text('rounds', '.0f')} round trips, "
        f"{text('requests', '.0f')} requests, {text('kb', '.0f')} kB"
    )


def read_first_batch(kept: Path, scratch: Path, steps: int) -> dict[str, float]:
    """Time the first batch of a large store, which is written if it is not there, and the memory of many."""
    folder = kept / LARGE
    if not folder.is_dir():
        write_large(folder, steps)
    with serve(folder.parent, LATENCY, RATE) as url:
        return run_child("first", LARGE, url, scratch, None)


def write_large(folder: Path, steps: int) -> None:
    """Write many steps of vectors with hashes of chunks: the same 100 episodes, moved a little each time."""
    os.environ["ORLOG_HOME"] = str(folder.parent / "home")
    from gymnasium import spaces

    import orlog

    data = halfcheetah_like(100, 1000)
    seen = data["observations"].reshape(-1, 1001, 17)
    acted, rewards = data["actions"].reshape(-1, 1000, 6), data["rewards"].reshape(-1, 1000)
    ends = np.arange(1000) == 999
    with orlog.DatasetWriter(
        "bench/large-v1",
        observation_space=spaces.Box(-np.inf, np.inf, (17,), np.float32),
        action_space=spaces.Box(-np.inf, np.inf, (6,), np.float32),
    ) as writer:
        for number in range(steps // 1000):
            which, moved = number % 100, np.float32(number * 1e-3)
            writer.add_episode(
                orlog.Episode(
                    observations=seen[which] + moved,
                    actions=acted[which] + moved,
                    rewards=rewards[which] + moved,
                    terminations=np.zeros(1000, bool),
                    truncations=ends,
                )
            )
    shutil.copytree(orlog.load_dataset("bench/large-v1").folder, folder)
    shutil.rmtree(folder.parent / "home")


def _disk() -> str | None:
    return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 8e9 else None  # noqa: S108


def run_child(tool: str, kind: str, url: str, scratch: Path, peers: Path | None) -> dict[str, Any]:
    """Run a tool in a fresh process with an empty home and cache; return what it measured."""
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        environment = {**os.environ, "ORLOG_HOME": f"{own}/home", "OMP_NUM_THREADS": "1"}
        if tool in PEERS:
            environment["PYTHONPATH"] = f"{peers}:{environment.get('PYTHONPATH', '')}"
        command = [sys.executable, "-m", "benchmarks.in_place", "--child", tool, kind, url, own]
        done = subprocess.run(  # noqa: S603  # our own interpreter and code
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    lines = [one for one in done.stdout.splitlines() if one.startswith(ANSWER)]
    if not lines:
        raise RuntimeError(f"{tool}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(ANSWER))
    return answer


def episodes_of(kind: str, episodes: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield observations, actions and rewards of each episode."""
    if kind == "vectors":
        for start in range(0, episodes, 100):
            data = halfcheetah_like(min(100, episodes - start), 1000)
            length, rows = 1000, 1001
            for number in range(min(100, episodes - start)):
                yield (
                    data["observations"].reshape(-1, rows, 17)[number] + start,
                    data["actions"].reshape(-1, length, 6)[number],
                    data["rewards"].reshape(-1, length)[number],
                )
        return
    generator = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(64), np.arange(64))
    for _ in range(episodes // 20):
        phase = generator.uniform(0, 6, 3)
        time_of = np.arange(201)[:, None, None, None] / 20
        waves = np.sin(x[..., None] / 9 + phase + time_of) * np.cos(y[..., None] / 7 - time_of)
        noise = generator.integers(0, 8, (201, 64, 64, 3))
        frames = (100 + 90 * waves + noise).astype(np.uint8)
        yield frames, generator.normal(size=(200, 6)).astype(np.float32), np.zeros(200, np.float32)


def write_all(served: Path, episodes: int, peers: Path | None) -> None:
    """Write both datasets in the layout of each tool."""
    os.environ["ORLOG_HOME"] = str(served.parent / "home")
    from gymnasium import spaces

    import orlog
    from orlog.datasets.publish.publish import publish_dataset

    served.mkdir()
    (served / "registry").mkdir()
    if peers is not None:
        sys.path.insert(0, str(peers))
    for kind, name in NAMES.items():
        low, high, shape = (0, 255, (64, 64, 3)) if kind == "frames" else (-np.inf, np.inf, (17,))
        dtype = np.uint8 if kind == "frames" else np.float32
        made = episodes_of(kind, episodes)
        with orlog.DatasetWriter(
            name,
            observation_space=spaces.Box(low, high, shape, dtype),
            action_space=spaces.Box(-np.inf, np.inf, (6,), np.float32),
        ) as writer:
            for observations, actions, rewards in made:
                ends = np.arange(len(actions)) == len(actions) - 1
                writer.add_episode(
                    orlog.Episode(
                        observations=observations.astype(dtype),
                        actions=actions,
                        rewards=rewards,
                        terminations=np.zeros(len(actions), bool),
                        truncations=ends,
                    )
                )
        publish_dataset(name, str(served / "registry"), audit=False)
        if peers is not None:
            write_peers(served / kind, orlog.load_dataset(name))


def write_peers(folder: Path, dataset: Any) -> None:
    """Write a dataset as tar files and as mosaicml's compressed shards, a sample for each episode."""
    import webdataset

    (folder / "tar").mkdir(parents=True)
    columns = ("observations", "actions", "rewards")
    shards = str(folder / "tar" / "%06d.tar")
    mds = mosaicml().MDSWriter(out=str(folder / "mds"), columns=dict.fromkeys(columns, "ndarray"), compression="zstd")
    with webdataset.ShardWriter(shards, maxsize=2**25, verbose=0) as tar, mds:
        for number, episode in enumerate(dataset):
            arrays = {name: np.asarray(getattr(episode, name)) for name in columns}
            named = {f"{name}.npy": values for name, values in arrays.items()}
            tar.write({"__key__": f"{number:06d}", **named})
            mds.write(arrays)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules of packages that mosaicml-streaming imports for what is not done here."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ("transformers", "torchvision"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        made: Any = types.ModuleType(spec.name)
        made.__getattr__ = _class_named
        stand_in: types.ModuleType = made
        return stand_in

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _class_named(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def mosaicml() -> Any:
    """Import mosaicml-streaming."""
    sys.meta_path.append(_StandIns())
    return importlib.import_module("streaming")


class Clock:
    """Counts steps and memory from when it is made."""

    def __init__(self) -> None:
        self.before = _resident("VmRSS")
        self.began = time.perf_counter()
        self.first = 0.0
        self.steps = 0

    def add(self, steps: int) -> None:
        """Note that so many steps came."""
        if not self.first:
            self.first = time.perf_counter() - self.began
        self.steps += steps

    def answer(self, **others: Any) -> dict[str, Any]:
        """Return what was measured."""
        return {
            "seconds": time.perf_counter() - self.began,
            "steps": self.steps,
            "first": self.first,
            "extra_mib": _resident("VmHWM") - self.before,
            **others,
        }


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(one for one in lines if one.startswith(field)).split()[1]) / 1024


def read_link(kind: str, url: str, _scratch: Path) -> dict[str, float]:
    """Read all shards in ranges of 1 MiB, 16 at once."""
    import urllib3

    from orlog.datasets.download.sources import source_of_url

    place = f"{url}/registry/{NAMES[kind]}/1.0.1"
    manifest = source_of_url(place).manifest
    pool = urllib3.PoolManager(maxsize=16)
    ranges = [
        (item.path, start, min(item.size_bytes, start + RANGE_BYTES))
        for item in manifest.objects
        for start in range(0, item.size_bytes, RANGE_BYTES)
    ]

    def read(one: tuple[str, int, int]) -> int:
        path, start, stop = one
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        return len(pool.request("GET", f"{place}/{path}", headers=headers).data)

    clock = Clock()
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(read, ranges))
    return clock.answer()


def read_orlog(kind: str, url: str, _scratch: Path) -> dict[str, Any]:
    """Stream an epoch in batches; then random episodes, with what is kept of them forgotten."""
    import orlog
    from orlog.datasets.download.in_place import in_place_folder

    _ = orlog.transitions  # is imported now, which is not counted
    before = asked_bytes(url)
    clock = Clock()
    ds = orlog.load_dataset(f"{url}/registry/{NAMES[kind]}", in_place=True)
    total = ds.total_steps // BATCH
    stream = iter(orlog.transitions(ds, BATCH, seed=0, stream=True))
    for _ in range(total):
        clock.add(len(next(stream).rewards))
    answer = {**clock.answer(), "fetched": asked_bytes(url) - before}
    del stream
    episodes = []
    for number in np.random.default_rng(0).integers(0, len(ds), 10).tolist():
        shutil.rmtree(in_place_folder())
        again = orlog.load_dataset(f"{url}/registry/{NAMES[kind]}", in_place=True)
        _ = again.episode_lengths
        asked_rounds(url)
        before, began = asked_bytes(url), time.perf_counter()
        np.asarray(again[number].observations)
        took = 1e3 * (time.perf_counter() - began)
        requests, rounds = asked_rounds(url)
        kb = (asked_bytes(url) - before) / 1e3
        episodes.append({"ms": took, "requests": requests, "rounds": rounds, "kb": kb})
    return {**answer, "episode": episodes}


def read_disk(kind: str, _url: str, scratch: Path) -> dict[str, Any]:
    """Stream the same epoch from the folder that is served."""
    import orlog

    _ = orlog.transitions
    folder = scratch.parent / "served" / "registry" / NAMES[kind] / "1.0.1"
    clock = Clock()
    ds = orlog.load_dataset(folder)
    stream = iter(orlog.transitions(ds, BATCH, seed=0, stream=True))
    for _ in range(ds.total_steps // BATCH):
        clock.add(len(next(stream).rewards))
    return clock.answer(fetched=ds.manifest.size_bytes)


def read_first(_kind: str, url: str, _scratch: Path) -> dict[str, float]:
    """Open a large store in place, and stream batches of it."""
    import orlog

    _ = orlog.transitions
    clock = Clock()
    ds = orlog.load_dataset(f"{url}/{LARGE}", in_place=True)
    stream = iter(orlog.transitions(ds, BATCH, seed=0, stream=True))
    for _ in range(min(LARGE_BATCHES, ds.total_steps // BATCH)):
        clock.add(len(next(stream).rewards))
    return clock.answer()


def read_zarr(kind: str, url: str, _scratch: Path) -> dict[str, float]:
    """Read the same store by zarr-python, a column after the other, 16 MiB at a time."""
    import zarr

    clock = Clock()
    group: Any = zarr.open_group(f"{url}/registry/{NAMES[kind]}/1.0.1", mode="r")
    steps = 0
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        array = group[name]
        # So little at a time that it stops soon after its time is over.
        rows = max(
            1, (2**22 if kind == "frames" else 2**24) // max(1, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
        )
        for start in range(0, array.shape[0], rows):
            found = np.asarray(array[start : start + rows])
            if name == "observations":
                clock.add(0)
            steps += len(found) if name == "observations" else 0
            clock.steps = steps
            if time.perf_counter() - clock.began > ZARR_SECONDS:
                return clock.answer()
    return clock.answer()


def read_webdataset(kind: str, url: str, scratch: Path) -> dict[str, float]:
    """Read tar files in order, shuffled in a buffer of episodes."""
    import webdataset

    clock = Clock()
    count = len(list((scratch.parent / "served" / kind / "tar").glob("*.tar")))
    urls = f"{url}/{kind}/tar/{{000000..{count - 1:06d}}}.tar"
    for sample in webdataset.WebDataset(urls, shardshuffle=False).shuffle(100).decode():
        clock.add(len(sample["rewards.npy"]))
    return clock.answer()


def read_mosaicml(kind: str, url: str, scratch: Path) -> dict[str, float]:
    """Read mosaicml's shards as it does by default in one process, shuffled."""
    key = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    os.environ |= {"S3_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", **key}
    streaming = mosaicml()
    clock = Clock()
    with tempfile.TemporaryDirectory(dir=scratch) as local:
        remote = f"s3://{kind}/mds"
        for sample in streaming.StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=1):
            clock.add(len(sample["rewards"]))
        return clock.answer()


TOOLS: dict[str, Callable[[str, str, Path], dict[str, float]]] = {
    "link": read_link,
    "orlog": read_orlog,
    "orlog, disk": read_disk,
    "first": read_first,
    "zarr": read_zarr,
    "webdataset": read_webdataset,
    "mosaicml": read_mosaicml,
}
PEERS = ("webdataset", "mosaicml")

if __name__ == "__main__":
    main()
