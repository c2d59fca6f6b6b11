"""Training from a dataset ten times larger than the memory that it may take.

HalfCheetah-like episodes of 100 to 900 steps are recorded until their arrays take 20 GB. A process
in a memory control group of 2 GB, in which pages of files count too, then opens the dataset, makes
its pack, takes statistics and trains IQL on random batches of 256. The same is trained without a
limit, and from a small part of the dataset in RAM.

    python -m benchmarks.larger_than_memory
    python -m benchmarks.larger_than_memory --gigabytes 1 --limit-gigabytes 0.3 --scratch FOLDER

Values are multiples of 1/8, so that the store takes little of the disk beside the pack; a pack is
not compressed. All is removed in the end. Linux only. Where no control group can be made, resident
memory alone is told: on systemd, begin with `systemd-run --user --scope -p Delegate=yes`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory_groups import Group, memory_group, number_behind
from benchmarks.scale import episode_lengths
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
    report,
)

NAME = "bench/larger-v0"
STEP_BYTES = 4 * (OBSERVATION_SIZE + ACTION_SIZE + 1) + 2
BLOCK_EPISODES, BLOCK_LENGTH, MEAN_LENGTH = 64, 2000, 500
SMALL_STEPS = 500_000
ROUNDS = 5  # in which RAM and map take turns
PHASE = "PHASE "


def main() -> None:
    """Record, measure in fresh processes, write the figures, and remove everything."""
    parser = argparse.ArgumentParser(description="Train from more than fits into memory.")
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--limit-gigabytes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=3000, help="of training, each time")
    parser.add_argument("--seconds", type=float, default=20.0, help="of drawing batches, each time")
    parser.add_argument("--scratch", type=Path, help="where the dataset is kept meanwhile")
    options = parser.parse_args()
    limit = int(options.limit_gigabytes * 1e9)
    base = (options.scratch or Path(tempfile.gettempdir())).absolute()
    base.mkdir(parents=True, exist_ok=True)
    check_disk(base, options.gigabytes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # having removed everything
    arguments = [str(options.steps), str(options.seconds)]
    with tempfile.TemporaryDirectory(prefix="orlog-larger-", dir=base) as home:
        os.environ["ORLOG_HOME"] = home
        with OtherCores() as others:
            written = run_child("write", [str(int(options.gigabytes * 1e9))])
            with memory_group(limit) as (group, why):
                limited = run_child("limited", arguments, group)
            free = run_child("free", arguments)
    with report("larger_than_memory") as console:
        for line in lines(written, limited, free, limit, why):
            console.print(line, soft_wrap=True)
        console.print(machine([others.cores]), soft_wrap=True)


def check_disk(folder: Path, gigabytes: float) -> None:
    """End with an error where the disk has no room for the store and the pack."""
    needed, free = 1.35 * gigabytes, shutil.disk_usage(folder).free / 1e9
    if free < needed:
        sys.exit(
            f"{gigabytes:g} GB of arrays, compressed and as a pack, take {needed:.0f} GB and "
            f"{folder} has {free:.0f} GB left: choose another disk with --scratch, or fewer "
            "--gigabytes"
        )


# --- what is seen of a process from outside


class Watch(threading.Thread):
    """Looks at a process and its group every 20 ms, and keeps the peaks of each phase in MB."""

    def __init__(self, process: int, group: Group | None) -> None:
        super().__init__(daemon=True)
        self.phase = "start"
        self.peaks: dict[str, float] = {}
        self._process, self._group = process, group
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until `end`."""
        while not self._ended.wait(0.02):
            try:
                status = Path(f"/proc/{self._process}/status")
                for name in ("VmRSS", "RssAnon", "RssFile", "VmHWM"):
                    self._note(name, number_behind(status, name))
                if self._group is not None:
                    self._note("anonymous", self._group.anonymous_bytes())
            except (OSError, LookupError):  # it has ended; where it was killed, workers wait for it
                if self._group is not None:
                    self._group.empty()
                return

    def _note(self, name: str, count: int) -> None:
        for key in (f"{self.phase} {name}", name):
            self.peaks[key] = max(self.peaks.get(key, 0.0), count / 1e6)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


def run_child(step: str, arguments: list[str], group: Group | None = None) -> Figures:
    """Run a step in a fresh process, inside a group if there is one; return figures and peaks."""
    from orlog.base.terminal import progress_bars

    command = [sys.executable, "-m", "benchmarks.larger_than_memory", "--child", step, *arguments]
    if group is not None:
        enter = f'echo $$ > "{group.folder}/cgroup.procs" && exec "$@"'
        command = ["sh", "-c", enter, "sh", *command]
    figures: Figures = {}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child,  # noqa: S603  # our own interpreter and code
        progress_bars() as update,
    ):
        watch = Watch(child.pid, group)
        watch.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith(PHASE):
                    watch.phase, done, total = json.loads(line.removeprefix(PHASE))
                    update(f"{step}: {watch.phase}", done, total)
                elif line.startswith(ANSWER):
                    figures = json.loads(line.removeprefix(ANSWER))
        except BaseException:
            child.kill()
            raise
        finally:
            watch.end()
    if child.returncode:
        was_killed = child.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        why = "memory ran out" if was_killed else f"exit code {child.returncode}"
        sys.exit(f"{step}: ended in phase {watch.phase}: {why}; peaks in MB: {watch.peaks}")
    if group is not None:
        figures |= {"group_mb": group.peak_bytes() / 1e6, "full": group.times_full()}
    return figures | watch.peaks


def lines(written: Figures, limited: Figures, free: Figures, limit: int, why: str) -> Iterator[str]:
    """Yield what was found, in words."""
    yield (
        f"{written['steps']:,.0f} steps in {written['episodes']:,.0f} episodes, "
        f"{written['array_bytes'] / 1e9:.2f} GB of arrays; store "
        f"{written['store_bytes'] / 1e9:.2f} GB, written in {written['seconds']:.0f} s with at most "
        f"{written['VmHWM']:,.0f} MB resident; pack {limited['pack_bytes'] / 1e9:.2f} GB"
    )
    if why:
        yield f"without a limit ({why}); resident memory alone is told"
    else:
        yield (
            f"in a control group of {limit / 1e6:,.0f} MB, pages of files counted: peak "
            f"{limited['group_mb']:,.0f} MB, of which anonymous at most "
            f"{limited['anonymous']:,.0f} MB; it was full {limited['full']:,.0f} times"
        )
    yield (
        f"the training process: peak resident {limited['VmHWM']:,.0f} MB, anonymous "
        f"{limited['RssAnon']:,.0f} MB, mapped files {limited['RssFile']:,.0f} MB"
    )
    yield ""
    yield f"{'phase':<20}{'seconds':>9}{'anonymous MB':>14}{'of all processes':>18}{'mapped MB':>11}"
    for phase in PHASES:
        yield (
            f"{phase:<20}{limited[f'{phase} s']:>9,.1f}"
            f"{limited.get(f'{phase} RssAnon', 0):>14,.0f}"
            f"{limited.get(f'{phase} anonymous', 0):>18,.0f}"
            f"{limited.get(f'{phase} RssFile', 0):>11,.0f}"
        )
    yield ""
    yield f"{'':<34}{'in the limit':>14}{'without':>12}{'small, in RAM':>16}"
    for name, heading in RATES.items():
        yield (f"{heading:<34}{limited[name]:>14,.0f}{free[name]:>12,.0f}{free[f'small {name}']:>16,.0f}")
    yield (
        f"(without: all of it was read once before, on a machine of "
        f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.0f} GB)"
    )
    yield ""
    yield (
        f"a batch of 256 random rows from two workers: {limited['fork']:,.0f}/s by fork, "
        f"{limited['spawn']:,.0f}/s by spawn, in the limit"
    )
    yield (
        f"the disk itself: {limited['disk reads']:,.0f} random reads of 4 KiB per second one after "
        f"the other, {limited['disk reads of 16']:,.0f} by 16 threads; in the limit "
        f"{limited['batches'] * 256:,.0f} random rows per second, "
        f"{limited['fault bytes']:,.0f} bytes read of the disk for each"
    )


PHASES = ("open", "make the pack", "statistics", "train", "batches", "fork", "spawn")
RATES = {"updates": "updates of IQL per second", "batches": "batches of 256 per second"}


# --- the children: what they import is theirs alone


def say(phase: str, done: float = 0, total: float = 0) -> None:
    """Tell the parent where this process is."""
    print(PHASE + json.dumps([phase, int(done), int(total)]), flush=True)


def write_child(array_bytes: str) -> Figures:
    """Record the dataset."""
    from gymnasium import spaces

    import orlog

    lengths = episode_lengths(int(array_bytes) // (STEP_BYTES + 4 * OBSERVATION_SIZE // MEAN_LENGTH))
    started = time.perf_counter()
    with orlog.DatasetWriter(
        NAME,
        version="1.0.0",
        observation_space=spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32),
        action_space=spaces.Box(-1, 1, (ACTION_SIZE,), np.float32),
        reward_dtype=np.float32,
        license="CC0-1.0",
    ) as writer:
        for index, episode in enumerate(make_episodes(lengths)):
            writer.add_episode(orlog.Episode(**episode))
            if index % 1000 == 0:
                say("write", index, len(lengths))
    files = [path for path in writer.folder.rglob("*") if path.is_file()]
    steps, episodes = int(lengths.sum()), len(lengths)
    return {
        "steps": steps,
        "episodes": episodes,
        "array_bytes": steps * STEP_BYTES + episodes * 4 * OBSERVATION_SIZE,
        "store_bytes": sum(path.stat().st_size for path in files),
        "seconds": time.perf_counter() - started,
    }


def make_episodes(lengths: np.ndarray) -> Iterator[dict[str, Any]]:
    """Give episodes cut from one block of gaits, in steps of 1/8."""
    generator = np.random.default_rng(2)
    block: Arrays = {
        name: column.reshape(BLOCK_EPISODES, -1, *column.shape[1:])
        for name, column in halfcheetah_like(BLOCK_EPISODES, BLOCK_LENGTH).items()
    }
    for name in ("observations", "actions", "rewards"):
        block[name] = np.round(block[name] * 8) / 8
    for length in lengths.tolist():
        gait = int(generator.integers(BLOCK_EPISODES))
        start = int(generator.integers(BLOCK_LENGTH - length + 1))
        stop = start + length
        ended = np.arange(length) == length - 1
        terminated = generator.random() < 0.5
        yield {
            "observations": block["observations"][gait, start : stop + 1],
            "actions": block["actions"][gait, start:stop],
            "rewards": block["rewards"][gait, start:stop],
            "terminations": ended & terminated,
            "truncations": ended & (not terminated),
        }


def limited_child(steps: str, seconds: str) -> Figures:
    """Open, make the pack, take statistics, train, and draw batches also with workers."""
    import torch
    from torch.utils.data import DataLoader

    import orlog
    from orlog.loaders.packs import open_pack, pack_folder

    torch.set_num_threads(1)
    figures: Figures = {}
    with timed("open", figures):
        dataset = orlog.load_dataset(NAME)
    written = 0

    def progress(count: int) -> None:
        nonlocal written
        written += count
        say("make the pack", written, 1.1 * dataset.total_steps * STEP_BYTES)

    with timed("make the pack", figures):
        open_pack(dataset, progress=progress)
    rows_file = pack_folder(dataset) / "rows.f32"
    figures["pack_bytes"] = sum(path.stat().st_size for path in rows_file.parent.iterdir())
    arrays = orlog.load_arrays(dataset, "mmap")
    with timed("statistics", figures):
        mean, std = arrays.observation_statistics()
    stream = orlog.transitions(arrays, 256, seed=0)
    with timed("train", figures):
        figures["updates"] = update_rate(stream, mean, std, int(steps))
    with timed("batches", figures):
        before = read_bytes()
        figures["batches"], count = batch_rate(stream, float(seconds))
        figures["fault bytes"] = (read_bytes() - before) / count / 256
    for method in ("fork", "spawn"):
        with timed(method, figures):
            loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=method)
            figures[method], _ = batch_rate(loader, float(seconds))
    say("the disk itself")
    figures["disk reads"] = disk_rate(rows_file, 1)
    figures["disk reads of 16"] = disk_rate(rows_file, 16)
    return figures


def free_child(steps: str, seconds: str) -> Figures:
    """Train from all of the map and from a small part in RAM, and draw batches of both."""
    import torch

    import orlog
    from orlog.loaders.packs import pack_folder

    torch.set_num_threads(1)
    dataset = orlog.load_dataset(NAME)
    say("read it once")
    with (pack_folder(dataset) / "rows.f32").open("rb", buffering=0) as file:
        while file.read(2**22):  # as much of it stays in memory as fits
            pass
    arrays = orlog.load_arrays(dataset, "mmap")
    share = min(1.0, SMALL_STEPS / dataset.total_steps)
    small = orlog.load_arrays(dataset[: max(1, int(share * len(dataset)))], "ram")
    mean, std = small.observation_statistics()
    found: dict[str, list[float]] = {}
    for turn in range(ROUNDS):
        for key, data in (("small ", small), ("", arrays)):
            say("updates and batches", turn, ROUNDS)
            stream = orlog.transitions(data, 256, seed=turn)  # rows that none asked for before
            rate = update_rate(stream, mean, std, int(steps) // ROUNDS)
            found.setdefault(f"{key}updates", []).append(rate)
            stream = orlog.transitions(data, 256, seed=ROUNDS + turn)
            rate, _ = batch_rate(stream, float(seconds) / ROUNDS)
            found.setdefault(f"{key}batches", []).append(rate)
    return {name: statistics.median(rates) for name, rates in found.items()}


@contextlib.contextmanager
def timed(phase: str, figures: Figures) -> Iterator[None]:
    """Say that a phase begins, and note its seconds."""
    say(phase)
    started = time.perf_counter()
    yield
    figures[f"{phase} s"] = time.perf_counter() - started


def update_rate(stream: Any, mean: Any, std: Any, steps: int) -> float:
    """Return updates of IQL per second."""
    import torch

    from orlog.algos.algorithms import make_algorithm
    from orlog.algos.networks import Scaling
    from orlog.algos.settings import make_config
    from orlog.algos.training.loop import train

    low, high = torch.full((ACTION_SIZE,), -1.0), torch.full((ACTION_SIZE,), 1.0)
    scaling = Scaling(obs_mean=mean, obs_std=std + 1e-3, action_low=low, action_high=high)
    algorithm = make_algorithm("iql", make_config("iql", {"steps": steps}), scaling, seed=0)
    started = time.perf_counter()
    for step, _ in train(algorithm, stream, last_step=steps, every=100):
        say("train", step, steps)
    return steps / (time.perf_counter() - started)


def batch_rate(stream: Any, seconds: float) -> tuple[float, int]:
    """Return batches per second, without those of the first tenth of the time, and all batches."""
    warm, skipped = 0.0, 0
    started = time.perf_counter()
    for count, _ in enumerate(stream, 1):
        now = time.perf_counter()
        if not warm:
            if now - started > seconds / 10:
                warm, skipped = now, count
        elif now - started > seconds:
            return (count - skipped) / (now - warm), count
    raise AssertionError("the stream ended")


def read_bytes() -> int:
    """Return what this process has had read of disks."""
    return number_behind(Path("/proc/self/io"), "read_bytes")


def disk_rate(path: Path, threads: int, seconds: float = 3.0) -> float:
    """Return random reads of 4 KiB per second, past the page cache."""
    counts = []
    blocks = path.stat().st_size // 4096
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(seed: int) -> None:
        generator = np.random.default_rng(seed)
        aligned = mmap.mmap(-1, 4096)  # as reading past the page cache asks for
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            os.preadv(file, [aligned], 4096 * int(generator.integers(blocks)))
            count += 1
        counts.append(count)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    os.close(file)
    return sum(counts) / seconds


CHILDREN: dict[str, Callable[..., Figures]] = {"write": write_child, "limited": limited_child, "free": free_child}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(ANSWER + json.dumps(CHILDREN[sys.argv[2]](*sys.argv[3:])), flush=True)
    else:
        main()
