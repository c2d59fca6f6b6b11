"""orlog's store beside its peers: writing, size, opening, loading everything into memory.

One million steps in 1,000 episodes of float32 like HalfCheetah's (17 observations, 6 actions),
whose mantissas hardly compress, as in recorded data. Every tool is given the same episodes and
gives flat arrays back, which are compared with what was written. Tools take turns in rounds; each
writes in one fresh process, up to three times, and reads in another, with the settings and threads it comes with
unless its name says otherwise. The file cache is warm. orlog's figures include what peers leave
out: SHA-256 of all values and files, a checksum per chunk, and waiting for the disk.

    python -m benchmarks.store --peers-python PEERS --d3rlpy-python D3RLPY --lerobot-python LEROBOT

Peers have environments of their own; one whose interpreter is not given is left out.

    PEERS    pip install torch==2.13.0 torchrl==0.14.1 tensordict==0.14.3 "minari[hdf5]==0.5.4"
             pip install h5py==3.16.0 zarr==3.1.6 numcodecs==0.16.6 pillow
    D3RLPY   pip install torch==2.13.0 d3rlpy==2.8.1 "numpy<2.3"
    LEROBOT  pip install --no-deps lerobot==0.4.4 torchvision==0.28.0 torchcodec==0.11.1 \
                 "accelerate<2"
             pip install torch==2.13.0 "datasets<5" "huggingface-hub<0.36" "av<16" "packaging<26" \
                 jsonlines deepdiff einops draccus==0.10.0 termcolor gymnasium psutil safetensors \
                 "numpy<2.3"

LeRobot is installed in parts since its own pins bring gigabytes of CUDA; reading video also needs
FFmpeg's libraries on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
EPISODES, LENGTH, OBSERVATION_SIZE, ACTION_SIZE = 1000, 1000, 17, 6
LEROBOT_EPISODES = 20
COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations")
REPEATS = 5
WRITES, LONG_WRITE = 3, 5.0
QUIET_CORES = 0.15
ANSWER = "ANSWER "
NAME = "bench/halfcheetah-v0"

HEADINGS = ("write s", "MB", "of raw", "files", "import ms", "first ms", "open ms", "load ms", "extra MiB")

Arrays = dict[str, np.ndarray]
Figures = dict[str, float]


def main() -> None:
    """Measure all tools whose interpreters are given, and write the table."""
    parser = argparse.ArgumentParser(description="Measure orlog's store beside its peers.")
    add_options(parser)
    options = parser.parse_args()
    with scratch_folder(options.scratch) as scratch:
        data = scratch / "steps.npz"
        if not data.exists():
            save_npz(np.savez, halfcheetah_like(EPISODES, LENGTH), data)
        raw_mb = sum(column.nbytes for column in load_arrays(data).values()) / 1e6
        found = measure_in_rounds("benchmarks.store", TOOLS, options, scratch, data)
        imports = import_times(options.rounds)
    with report("store") as console:
        console.print(f"{EPISODES * LENGTH:,} steps, {EPISODES:,} episodes, {raw_mb:.1f} MB of arrays")
        print_table(console, HEADINGS, {name: _row(figures, raw_mb) for name, figures in found.medians.items()})
        console.print(
            "first ms: open and load all, once, in a fresh process after its imports. open, load: "
            f"median of {REPEATS} more in the same process. extra MiB: peak of resident memory "
            "while opening and loading for the first time, above what it was after the imports."
        )
        console.print(imports)
        print_footnotes(console, found, TOOLS, options)


def _row(figures: Figures, raw_mb: float) -> list[str]:
    return [
        f"{figures['write_s']:.3f}",
        f"{figures['bytes'] / 1e6:.1f}",
        f"{figures['bytes'] / 1e6 / raw_mb:.3f}",
        f"{figures['files']:,.0f}",
        f"{figures['import_ms']:,.0f}",
        f"{figures['first_ms']:,.1f}",
        f"{figures['open_ms']:,.2f}",
        f"{figures['load_ms']:,.1f}",
        f"{figures['extra_mib']:,.0f}",
    ]


def halfcheetah_like(episodes: int, length: int) -> Arrays:
    """Return flat columns of equally long episodes: a gait with slowly drifting noise."""
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(OBSERVATION_SIZE, ACTION_SIZE)) / np.sqrt(OBSERVATION_SIZE)
    frequency = generator.uniform(0.2, 0.6, OBSERVATION_SIZE)
    amplitude = generator.uniform(0.3, 2.0, OBSERVATION_SIZE)
    phase = generator.uniform(0, 2 * np.pi, (episodes, 1))
    drift = generator.normal(size=(episodes, OBSERVATION_SIZE)) * 0.1
    observations = np.empty((episodes, length + 1, OBSERVATION_SIZE), np.float32)
    actions = np.empty((episodes, length, ACTION_SIZE), np.float32)
    rewards = np.empty((episodes, length), np.float32)
    for step in range(length + 1):
        drift = 0.95 * drift + 0.1 * generator.normal(size=drift.shape)
        state = drift + amplitude * np.sin(frequency * step + phase)
        observations[:, step] = state
        if step < length:
            noise = generator.normal(size=(episodes, ACTION_SIZE))
            actions[:, step] = np.tanh(state @ mixing + 0.2 * noise)
            effort = np.square(actions[:, step], dtype=np.float64).sum(-1)
            rewards[:, step] = 4 + state[:, 8] - 0.1 * effort
    truncations = np.zeros((episodes, length), np.bool_)
    truncations[:, -1] = True
    return {
        "observations": observations.reshape(-1, OBSERVATION_SIZE),
        "actions": actions.reshape(-1, ACTION_SIZE),
        "rewards": rewards.reshape(-1),
        "terminations": np.zeros(episodes * length, np.bool_),
        "truncations": truncations.reshape(-1),
    }


def import_times(rounds: int) -> str:
    """Return what importing orlog costs in a fresh process, in words."""
    code = (
        "import time; a = time.perf_counter(); import orlog; b = time.perf_counter(); "
        "orlog.load_dataset; c = time.perf_counter(); print(b - a, c - b)"
    )
    light, heavy = [], []
    for _ in range(max(REPEATS, rounds)):
        done = subprocess.run(  # noqa: S603  # our own interpreter and code
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
        )
        if done.returncode != 0:
            return f"orlog cannot be imported: {done.stderr.strip().splitlines()[-1]}"
        first, second = map(float, done.stdout.split())
        light.append(first * 1000)
        heavy.append(second * 1000)
    return (
        f"import orlog: {statistics.median(light):.1f} ms; the first use of orlog.load_dataset "
        f"imports what it needs (NumPy included): {statistics.median(heavy):.0f} ms more."
    )


# What all benchmarks of stores share.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool that is measured.

    Attributes:
        environment: Whose interpreter runs it: orlog, peers, d3rlpy or lerobot.
        package: What it is installed as.
        modules: What is imported before anything else is timed.
        note: What a reader must know of its figures.
    """

    environment: str
    package: str
    modules: tuple[str, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreTool(Tool):
    """One tool that stores episodes of numbers.

    Attributes:
        write: Writes episodes into an empty folder.
        open: Opens what was written.
        load: Gives everything that the opened thing holds as arrays.
        episodes: How many of the episodes it is given; none for all.
    """

    write: Callable[[list[Arrays], Path], None]
    open: Callable[[Path], Any]
    load: Callable[[Any], Arrays]
    episodes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What the rounds found: medians by tool, versions by package, and why tools are missing."""

    medians: dict[str, Figures]
    versions: dict[str, str]
    left_out: dict[str, str]
    other_cores: list[float]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that these benchmarks share."""
    for peer in ("peers", "d3rlpy", "lerobot"):
        parser.add_argument(f"--{peer}-python", default="", metavar="PATH")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of tools, separated by commas")
    parser.add_argument("--scratch", type=Path, help="where generated data is kept")
    parser.add_argument("--wait", type=float, default=15, help="seconds to wait for a quiet CPU")


@contextlib.contextmanager
def scratch_folder(chosen: Path | None) -> Iterator[Path]:
    """Give a folder for generated data; it is removed in the end unless it was chosen."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="orlog-bench-") as made:
        yield Path(made)


def measure_in_rounds(
    module: str, tools: Mapping[str, Tool], options: argparse.Namespace, scratch: Path, data: Path
) -> Found:
    """Run `module` in two processes per tool and round, first to write and then to read."""
    from orlog.base.terminal import progress_bar

    pythons = {"orlog": sys.executable}
    pythons |= {peer: getattr(options, f"{peer}_python") for peer in ("peers", "d3rlpy", "lerobot")}
    only = [name.strip() for name in options.only.split(",") if name.strip()]
    chosen = [name for name in tools if not only or name in only]
    found = Found(medians={}, versions={}, left_out={}, other_cores=[])
    for name in chosen:
        if not pythons[tools[name].environment]:
            found.left_out[name] = f"no --{tools[name].environment}-python was given"
    rounds: dict[str, list[Figures]] = {}
    with progress_bar("measuring") as update:
        for turn in range(options.rounds):
            for place, name in enumerate(chosen):
                update(turn * len(chosen) + place, options.rounds * len(chosen))
                if name in found.left_out:
                    continue
                tool = tools[name]
                wait_until_quiet(options.wait)
                with OtherCores() as others:
                    answer = _write_and_read(pythons[tool.environment], module, name, scratch / "store", data)
                found.other_cores.append(others.cores)
                if "error" in answer:
                    found.left_out[name] = answer["error"]
                    rounds.pop(name, None)
                    continue
                found.versions[tool.package] = answer.pop("version")
                rounds.setdefault(name, []).append(answer)
    for name, figures in rounds.items():
        found.medians[name] = {key: statistics.median(figure[key] for figure in figures) for key in figures[0]}
    return found


def _write_and_read(python: str, module: str, name: str, folder: Path, data: Path) -> dict[str, Any]:
    """Return the figures of one tool in one round, or {"error": why}."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    answer: dict[str, Any] = {}
    try:
        for step in ("write", "read"):
            command = [python, "-m", module, "--child", step, name, str(folder), str(data)]
            done = subprocess.run(  # noqa: S603  # interpreters that the user named
                command, capture_output=True, text=True, cwd=ROOT, check=False
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
            if done.returncode != 0 or not lines:
                wrong = (done.stderr.strip() or "no answer").splitlines()[-1]
                return {"error": f"{step} failed: {wrong}"}
            answer |= json.loads(lines[-1].removeprefix(ANSWER))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return answer


def run_child(arguments: Sequence[str], measure: Mapping[str, Callable[..., object]]) -> None:
    """Do one step of one tool in this process and print the answer as one line of JSON."""
    step, name, folder, data = arguments
    print(ANSWER + json.dumps(measure[step](name, Path(folder), Path(data))))


class OtherCores:
    """Count the CPU cores that processes other than ours use inside a `with` block."""

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._busy, self._own = self._seconds()
        return self

    def __exit__(self, *error: object) -> None:
        busy, own = self._seconds()
        elapsed = max(time.perf_counter() - self._started, 0.02)
        self.cores = max(0.0, (busy - self._busy) - (own - self._own)) / elapsed

    @staticmethod
    def _seconds() -> tuple[float, float]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
        own = os.times()
        return (
            (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK"),
            own.user + own.system + own.children_user + own.children_system,
        )


def wait_until_quiet(limit_s: float) -> None:
    """Return once other processes leave the CPU alone, or after a while."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        with OtherCores() as others:
            time.sleep(0.3)
        if others.cores < QUIET_CORES:
            return


def reset_peak() -> float:
    """Forget the peak of resident memory so far; return what is resident now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident_mib("VmRSS")


def resident_mib(field: str = "VmRSS") -> float:
    """Return the resident memory of this process (VmRSS) or its peak (VmHWM), in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def size_on_disk(folder: Path) -> Figures:
    """Return bytes and number of files."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"bytes": sum(sizes), "files": len(sizes)}


def median_ms(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of some calls, in milliseconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = call()
        times.append((time.perf_counter() - started) * 1000)
        del result
    return statistics.median(times)


def load_arrays(path: Path) -> Arrays:
    """Return all arrays of an .npz file."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def save_npz(save: Callable[..., None], arrays: Arrays, path: Path) -> None:
    """Write arrays with `np.savez` or `np.savez_compressed`."""
    save(path, **arrays)


def module(name: str) -> Any:
    """Return a peer's module, which our own environment need not have."""
    return importlib.import_module(name)


@contextlib.contextmanager
def report(name: str) -> Iterator[Console]:
    """Give a console; what is printed to it is also written to `results/NAME.txt`."""
    from rich.console import Console

    console = Console(record=True, width=140, highlight=False, markup=False)
    yield console
    text = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    (RESULTS / f"{name}.txt").write_text(text + "\n", "utf-8")


def print_table(console: Console, headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    """Print one row of figures per tool."""
    from orlog.base.terminal import table

    console.print()
    console.print(
        table(["tool", *headings], [[name, *row] for name, row in rows.items()], numbers=range(1, len(headings) + 1))
    )
    console.print()


def print_footnotes(console: Console, found: Found, tools: Mapping[str, Tool], options: argparse.Namespace) -> None:
    """Print what tools need said, what is missing, versions and the machine."""
    for name in found.medians:
        if tools[name].note:
            console.print(f"{name}: {tools[name].note}")
    for name, why in found.left_out.items():
        console.print(f"left out: {name}: {why}")
    versions = " ".join(f"{package} {text}" for package, text in sorted(found.versions.items()))
    console.print(f"medians of {options.rounds} rounds; {versions}")
    console.print(machine(found.other_cores))


def machine(other_cores: Sequence[float]) -> str:
    """Return what ran this, in one line."""
    information = Path("/proc/cpuinfo").read_text()
    models = [line for line in information.splitlines() if line.startswith("model name")]
    model = models[0].split(":")[1].strip() if models else platform.processor()
    others = statistics.mean(other_cores) if other_cores else 0.0
    return (
        f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, Python "
        f"{platform.python_version()}; other processes used {others:.2f} cores on average "
        f"(at most {max(other_cores, default=0.0):.2f})"
    )


# The children.


def write_child(name: str, folder: Path, data: Path) -> dict[str, Any]:
    """Return what one tool needs to write the episodes."""
    tool = TOOLS[name]
    episodes = split_episodes(load_arrays(data))[: tool.episodes]
    prepare(tool)
    times: list[float] = []
    while len(times) < WRITES and sum(times) < LONG_WRITE:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started = time.perf_counter()
        tool.write(episodes, folder)
        times.append(time.perf_counter() - started)
    seconds = statistics.median(times)
    factor = EPISODES / len(episodes)
    size = size_on_disk(folder)
    return {
        "write_s": seconds * factor,
        "bytes": size["bytes"] * factor,
        "files": size["files"],
        "version": importlib.metadata.version(tool.package),
    }


def read_child(name: str, folder: Path, data: Path) -> Figures:
    """Return what one tool needs to open and to load everything, and check what it gave."""
    tool = TOOLS[name]
    started = time.perf_counter()
    prepare(tool)
    import_ms = (time.perf_counter() - started) * 1000
    before_mib = reset_peak()
    started = time.perf_counter()
    opened = tool.open(folder)
    first_open_ms = (time.perf_counter() - started) * 1000
    started = time.perf_counter()
    loaded = tool.load(opened)
    first_load_ms = (time.perf_counter() - started) * 1000
    extra_mib = resident_mib("VmHWM") - before_mib
    check_loaded(loaded, split_episodes(load_arrays(data))[: tool.episodes])
    del loaded, opened
    factor = EPISODES / (tool.episodes or EPISODES)
    return {
        "import_ms": import_ms,
        "first_ms": first_open_ms + first_load_ms * factor,
        "extra_mib": extra_mib,
        "open_ms": median_ms(lambda: tool.open(folder)),
        "load_ms": statistics.median(
            median_ms(functools.partial(tool.load, tool.open(folder)), 1) for _ in range(REPEATS)
        )
        * factor,
    }


def prepare(tool: Tool) -> None:
    """Import what a tool needs."""
    if tool.environment == "lerobot":
        prepare_lerobot()
    for name in tool.modules:
        module(name)
    if tool.environment == "orlog":
        import orlog

        _ = orlog.load_dataset, orlog.DatasetWriter


def prepare_lerobot() -> None:
    """Keep LeRobot off the network, and let torchvision be imported without its CUDA half.

    LeRobot needs its `ToTensor` alone; the two operators are named so that the rest finds them.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch = module("torch")
    for operator in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{operator}", schema)


def check_loaded(loaded: Arrays, episodes: list[Arrays]) -> None:
    """Check that what was loaded is what was written; some tools keep no last observation."""
    for name, column in loaded.items():
        parts = [episode[name] for episode in episodes]
        if name == "observations" and len(column) < sum(map(len, parts)):
            parts = [part[:-1] for part in parts]
        if not np.array_equal(column, np.concatenate(parts)):
            raise AssertionError(f"{name} is not what was written")


def split_episodes(columns: Arrays) -> list[Arrays]:
    """Return the flat columns cut into episodes, each with copies of its own."""
    return [
        {name: column.reshape(EPISODES, -1, *column.shape[1:])[index].copy() for name, column in columns.items()}
        for index in range(EPISODES)
    ]


def join_episodes(episodes: list[Arrays]) -> Arrays:
    """Return flat columns."""
    return {name: np.concatenate([episode[name] for episode in episodes]) for name in COLUMNS}


def transitions_of(episodes: list[Arrays]) -> Arrays:
    """Return flat columns with the next observation beside each observation."""
    flat = join_episodes(episodes)
    flat["observations"] = np.concatenate([episode["observations"][:-1] for episode in episodes])
    flat["next"] = np.concatenate([episode["observations"][1:] for episode in episodes])
    return flat


# The tools: how each writes, opens and loads, the way its own documentation does.


def write_orlog(container: str, episodes: list[Arrays], folder: Path) -> None:
    """Write with orlog."""
    from gymnasium import spaces

    import orlog

    os.environ["ORLOG_HOME"] = str(folder)
    writing: Any = orlog
    with writing.DatasetWriter(
        NAME,
        version="1.0.0",
        observation_space=spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32),
        action_space=spaces.Box(-1, 1, (ACTION_SIZE,), np.float32),
        reward_dtype=np.float32,
        description="",
        license="CC0-1.0",
        container=container,
    ) as writer:
        for episode in episodes:
            writer.add_episode(writing.Episode(**episode, infos={}, seed=None))


def open_orlog(folder: Path) -> Any:
    """Open with orlog."""
    import orlog

    os.environ["ORLOG_HOME"] = str(folder)
    return orlog.load_dataset(NAME)


def load_orlog(dataset: Any) -> Arrays:
    """Load with orlog."""
    return {name: dataset.column(name) for name in COLUMNS}


def write_hdf5(settings: dict[str, Any], episodes: list[Arrays], folder: Path) -> None:
    """Write one dataset per column with h5py."""
    with module("h5py").File(folder / "steps.h5", "w") as file:
        for name, column in join_episodes(episodes).items():
            file.create_dataset(name, data=column, **settings)


def open_hdf5(folder: Path) -> Any:
    """Open with h5py."""
    return module("h5py").File(folder / "steps.h5", "r")


def load_by_name(opened: Any) -> Arrays:
    """Load columns from a mapping whose values are read with `[()]`."""
    return {name: opened[name][()] for name in COLUMNS}


def write_npz(save: Callable[..., None], episodes: list[Arrays], folder: Path) -> None:
    """Write with NumPy."""
    save_npz(save, join_episodes(episodes), folder / "steps.npz")


def open_npz(folder: Path) -> Any:
    """Open with NumPy."""
    return np.load(folder / "steps.npz")


def write_zarr(episodes: list[Arrays], folder: Path) -> None:
    """Write arrays with zarr-python, 65,536 rows to a chunk."""
    codec = module("zarr.codecs").BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle")
    group = module("zarr").create_group(folder / "steps.zarr", zarr_format=3)
    for name, column in join_episodes(episodes).items():
        array = group.create_array(
            name, shape=column.shape, dtype=column.dtype, chunks=(65536, *column.shape[1:]), compressors=codec
        )
        array[...] = column


def open_zarr(folder: Path) -> Any:
    """Open with zarr-python."""
    return module("zarr").open_group(folder / "steps.zarr", mode="r")


def write_minari(episodes: list[Arrays], folder: Path) -> None:
    """Write with Minari's default settings, which is HDF5 with a group per episode."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    spaces = module("gymnasium.spaces")
    buffers = [module("minari.data_collector").EpisodeBuffer(id=None, **episode, infos={}) for episode in episodes]
    module("minari").create_dataset_from_buffers(
        NAME,
        buffers,
        observation_space=spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32),
        action_space=spaces.Box(-1, 1, (ACTION_SIZE,), np.float32),
        algorithm_name="none",
        author="none",
        author_email="none",
        code_permalink="none",
        description="none",
    )


def open_minari(folder: Path) -> Any:
    """Open with Minari."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    return module("minari").load_dataset(NAME)


def load_minari(dataset: Any) -> Arrays:
    """Load with Minari, an episode at a time."""
    episodes = list(dataset.iterate_episodes())
    return {name: np.concatenate([getattr(episode, name) for episode in episodes]) for name in COLUMNS}


def write_torchrl(episodes: list[Arrays], folder: Path) -> None:
    """Write the memory-mapped storage of TorchRL's replay buffer."""
    tensor = module("torch").from_numpy
    flat = transitions_of(episodes)
    steps = len(flat["rewards"])
    transitions = module("tensordict").TensorDict(
        {
            "observation": tensor(flat["observations"]),
            "action": tensor(flat["actions"]),
            "next": {
                "observation": tensor(flat["next"]),
                "reward": tensor(flat["rewards"])[:, None],
                "terminated": tensor(flat["terminations"])[:, None],
                "truncated": tensor(flat["truncations"])[:, None],
            },
        },
        [steps],
    )
    torchrl = module("torchrl.data")
    with tempfile.TemporaryDirectory(dir=folder.parent) as working:
        buffer = torchrl.ReplayBuffer(storage=torchrl.LazyMemmapStorage(steps, scratch_dir=working))
        buffer.extend(transitions)
        buffer.dumps(folder / "buffer")


def open_torchrl(folder: Path) -> Any:
    """Open the memory map."""
    return module("tensordict").TensorDict.load_memmap(folder / "buffer" / "storage")


def load_torchrl(transitions: Any) -> Arrays:
    """Copy the memory map into memory."""
    copy = transitions.clone()
    return {
        "observations": copy["observation"].numpy(),
        "actions": copy["action"].numpy(),
        "rewards": copy["next", "reward"].numpy()[:, 0],
        "terminations": copy["next", "terminated"].numpy()[:, 0],
        "truncations": copy["next", "truncated"].numpy()[:, 0],
    }


def write_d3rlpy(episodes: list[Arrays], folder: Path) -> None:
    """Dump d3rlpy's replay buffer, which is HDF5."""
    d3rlpy = module("d3rlpy.dataset")
    buffer = d3rlpy.ReplayBuffer(
        d3rlpy.InfiniteBuffer(),
        episodes=[
            d3rlpy.Episode(
                episode["observations"][:-1],
                episode["actions"],
                episode["rewards"][:, None],
                bool(episode["terminations"][-1]),
            )
            for episode in episodes
        ],
    )
    with (folder / "buffer.h5").open("w+b") as file:
        buffer.dump(file)


def open_d3rlpy(folder: Path) -> Path:
    """Do nothing: d3rlpy opens and loads in one."""
    return folder / "buffer.h5"


def load_d3rlpy(path: Path) -> Arrays:
    """Load d3rlpy's replay buffer."""
    d3rlpy = module("d3rlpy.dataset")
    with path.open("rb") as file:
        buffer = d3rlpy.ReplayBuffer.load(file, d3rlpy.InfiniteBuffer())
    return {
        "observations": np.concatenate([episode.observations for episode in buffer.episodes]),
        "actions": np.concatenate([episode.actions for episode in buffer.episodes]),
        "rewards": np.concatenate([episode.rewards[:, 0] for episode in buffer.episodes]),
    }


def write_lerobot(episodes: list[Arrays], folder: Path) -> None:
    """Write with LeRobot, a frame at a time."""
    features = {
        "observation.state": {"dtype": "float32", "shape": (OBSERVATION_SIZE,), "names": None},
        "action": {"dtype": "float32", "shape": (ACTION_SIZE,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    dataset = module("lerobot.datasets.lerobot_dataset").LeRobotDataset.create(
        NAME, fps=20, root=folder / "lerobot", features=features, use_videos=False
    )
    for episode in episodes:
        for step in range(len(episode["rewards"])):
            dataset.add_frame(
                {
                    "observation.state": episode["observations"][step],
                    "action": episode["actions"][step],
                    "next.reward": episode["rewards"][step : step + 1],
                    "next.done": episode["truncations"][step : step + 1],
                    "task": "run",
                }
            )
        dataset.save_episode()
    dataset.finalize()


def open_lerobot(folder: Path) -> Any:
    """Open with LeRobot."""
    lerobot = module("lerobot.datasets.lerobot_dataset")
    return lerobot.LeRobotDataset(NAME, root=folder / "lerobot")


def load_lerobot(dataset: Any) -> Arrays:
    """Load with LeRobot, columns of its table at a time."""
    table = dataset.hf_dataset.with_format("numpy")
    return {
        "observations": np.asarray(table["observation.state"][:]),
        "actions": np.asarray(table["action"][:]),
        "rewards": np.asarray(table["next.reward"][:]).reshape(-1),
        "truncations": np.asarray(table["next.done"][:]).reshape(-1),
    }


_ORLOG = functools.partial(
    StoreTool, environment="orlog", package="orlog", modules=("orlog", "gymnasium"), open=open_orlog, load=load_orlog
)
_PEER = functools.partial(StoreTool, environment="peers")
_HDF5 = functools.partial(_PEER, package="h5py", modules=("h5py",), open=open_hdf5, load=load_by_name)
_NPZ = functools.partial(_PEER, package="numpy", modules=(), open=open_npz, load=load_by_name)

TOOLS: dict[str, StoreTool] = {
    "orlog zarr": _ORLOG(write=functools.partial(write_orlog, "zarr")),
    "orlog hdf5": _ORLOG(write=functools.partial(write_orlog, "hdf5")),
    "Minari HDF5": _PEER(
        package="minari",
        modules=("minari", "minari.data_collector"),
        write=write_minari,
        open=open_minari,
        load=load_minari,
    ),
    "h5py gzip": _HDF5(write=functools.partial(write_hdf5, {"compression": "gzip"})),
    "h5py lzf": _HDF5(write=functools.partial(write_hdf5, {"compression": "lzf"})),
    "npz compressed": _NPZ(write=functools.partial(write_npz, np.savez_compressed)),
    "npz": _NPZ(write=functools.partial(write_npz, np.savez), note="not compressed"),
    "zarr": _PEER(
        package="zarr",
        modules=("zarr", "zarr.codecs"),
        write=write_zarr,
        open=open_zarr,
        load=load_by_name,
        note="zarr-python, chunks of 65,536 rows, bit shuffle and zstd 3, no checksums",
    ),
    "TorchRL memmap": _PEER(
        package="torchrl",
        modules=("torch", "tensordict", "torchrl.data"),
        write=write_torchrl,
        open=open_torchrl,
        load=load_torchrl,
        note="not compressed; keeps next observations too; memory counts pages of the mapped file",
    ),
    "d3rlpy": StoreTool(
        environment="d3rlpy",
        package="d3rlpy",
        modules=("d3rlpy.dataset",),
        write=write_d3rlpy,
        open=open_d3rlpy,
        load=load_d3rlpy,
        note="opens and loads in one",
    ),
    "LeRobot": StoreTool(
        environment="lerobot",
        package="lerobot",
        modules=("lerobot.datasets.lerobot_dataset",),
        write=write_lerobot,
        open=open_lerobot,
        load=load_lerobot,
        episodes=LEROBOT_EPISODES,
        note=f"measured on {LEROBOT_EPISODES} episodes; write, MB and loading are scaled up "
        f"{EPISODES // LEROBOT_EPISODES} times, opening and memory are not",
    ),
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2:], {"write": write_child, "read": read_child})
    else:
        main()
