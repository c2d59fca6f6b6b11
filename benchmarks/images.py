"""orlog's store of images beside its peers: size, writing, loading, random and sequential frames.

Two sets of 64 x 64 x 3 uint8 frames in episodes of 500: "drawn", 50,000 frames of moving shaded
discs before a smooth background with sensor noise; and "rendered", 10,000 frames of Gymnasium's
HalfCheetah under smooth random actions, drawn by MuJoCo. All are lossless but LeRobot's video. For
the rules of measuring and the peers' environments see `benchmarks/store.py`; "codec" rows decode
the same bytes as orlog from memory with nothing around, which bounds what a store can reach.

    python -m benchmarks.images --peers-python PEERS --lerobot-python LEROBOT

Rendering needs `pip install gymnasium mujoco` and, without a screen, MUJOCO_GL=egl or osmesa.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import importlib.metadata
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store import (
    Figures,
    Tool,
    add_options,
    measure_in_rounds,
    median_ms,
    module,
    prepare,
    print_footnotes,
    print_table,
    report,
    reset_peak,
    resident_mib,
    run_child,
    scratch_folder,
    size_on_disk,
)

SIDE, CHANNELS, EPISODE = 64, 3, 500
SHAPE = (SIDE, SIDE, CHANNELS)
FRAME_BYTES = SIDE * SIDE * CHANNELS
DRAWN_EPISODES, RENDERED_EPISODES, LEROBOT_FRAMES = 100, 20, 5000
BATCH = 64
ACTION_SIZE = 7
REPEATS = 3
RANDOM_S, SEQUENTIAL_S = 2.0, 5.0
NAME = "bench/frames-v0"
LEROBOT_IMAGE = "observation.images.camera"
HEADINGS = (
    "write s",
    "MB",
    "of raw",
    "files",
    "open ms",
    "load s",
    "extra MiB",
    "random frames/s",
    "sequential frames/s",
    "difference",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageTool(Tool):
    """One tool that stores frames.

    Attributes:
        write: Writes frames, in episodes of 500, into an empty folder.
        open: Opens what was written.
        load: Gives all frames.
        random: Gives the frames of these rows as one batch.
        sequential: Gives all frames in order, some at a time.
        frames: How many of the frames it is given; none for all.
    """

    write: Callable[[np.ndarray, Path], None]
    open: Callable[[Path], Any]
    load: Callable[[Any], Any]
    random: Callable[[Any, np.ndarray], Any]
    sequential: Callable[[Any], Iterator[Any]]
    frames: int | None = None


def main() -> None:
    """Measure all tools whose interpreters are given on both sets, and write the tables."""
    parser = argparse.ArgumentParser(description="Measure orlog's images beside its peers.")
    add_options(parser)
    parser.add_argument("--sets", default="drawn,rendered", help="drawn, rendered or both")
    options = parser.parse_args()
    os.environ.setdefault("MUJOCO_GL", "egl")
    with scratch_folder(options.scratch) as scratch, report("images") as console:
        for name in options.sets.split(","):
            data = scratch / f"{name}.npy"
            if not data.exists():
                {"drawn": draw_frames, "rendered": render_frames}[name](data)
            frames = len(np.load(data, mmap_mode="r"))
            found = measure_in_rounds("benchmarks.images", TOOLS, options, scratch, data)
            console.print(f"{name}: {frames:,} frames of 64 x 64 x 3, {frames * FRAME_BYTES / 1e6:,.1f} MB")
            print_table(console, HEADINGS, {tool: _row(figures, frames) for tool, figures in found.medians.items()})
            print_footnotes(console, found, TOOLS, options)
            console.print()
        console.print(
            f"random: batches of {BATCH} frames drawn from all. sequential: all frames once, in "
            f"order, {EPISODE} at a time (LeRobot one at a time). open, load: median of {REPEATS} "
            "after a first time. extra MiB: peak of resident memory while opening and loading all "
            "for the first time, above what it was after the imports. difference: mean, of "
            "255, between 64 frames as they were written and as they are read."
        )


def _row(figures: Figures, frames: int) -> list[str]:
    return [
        f"{figures['write_s']:.2f}",
        f"{figures['bytes'] / 1e6:,.1f}",
        f"{figures['bytes'] / (frames * FRAME_BYTES):.3f}",
        f"{figures['files']:,.0f}",
        f"{figures['open_ms']:,.2f}",
        f"{figures['load_s']:.2f}",
        f"{figures['extra_mib']:,.0f}",
        f"{figures['random_per_s']:,.0f}",
        f"{figures['sequential_per_s']:,.0f}",
        f"{figures['difference']:.2f}",
    ]


def draw_frames(path: Path) -> None:
    """Write episodes of three shaded discs that move before a smooth background."""
    generator = np.random.default_rng(3)
    down, right = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE
    unfinished = path.with_suffix(".unfinished")
    frames = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.uint8, shape=(DRAWN_EPISODES * EPISODE, *SHAPE))
    for episode in range(DRAWN_EPISODES):
        background = np.full(SHAPE, 110.0)
        for _ in range(6):
            height, tint = generator.uniform(10, 35), generator.uniform(0.5, 1, CHANNELS)
            waves, phase = generator.uniform(-3, 3, 2), generator.uniform(0, 6)
            slope = 2 * np.pi * (waves[0] * right + waves[1] * down) + phase
            background += height * np.sin(slope)[..., None] * tint
        places = generator.uniform(0.2, 0.8, (3, 2))
        velocities = generator.uniform(-0.02, 0.02, (3, 2))
        colors = generator.uniform(-90, 110, (3, CHANNELS))
        radii = generator.uniform(0.06, 0.16, 3)
        drawn = np.empty((EPISODE, *SHAPE), np.float32)
        for step in range(EPISODE):
            places += velocities
            velocities[(places < 0.05) | (places > 0.95)] *= -1
            frame = background
            for place, color, radius in zip(places, colors, radii, strict=True):
                distance = np.hypot(right - place[0], down - place[1])
                inside = np.clip((radius - distance) * SIDE, 0, 1)[..., None]
                shade = np.clip(1 - distance / radius, 0, 1)[..., None]
                frame = frame * (1 - inside) + inside * (128 + color * shade)
            drawn[step] = frame
        drawn += generator.standard_normal(drawn.shape, np.float32) * 0.5 + 0.5
        frames[episode * EPISODE : (episode + 1) * EPISODE] = np.clip(drawn, 0, 255)
    frames.flush()
    unfinished.replace(path)


def render_frames(path: Path) -> None:
    """Write episodes of Gymnasium's HalfCheetah under smooth random actions."""
    import gymnasium

    environment = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=SIDE, height=SIDE)
    generator = np.random.default_rng(0)
    frames = np.empty((RENDERED_EPISODES * EPISODE, *SHAPE), np.uint8)
    size = environment.action_space.shape or (0,)
    for row in range(len(frames)):
        if row % EPISODE == 0:
            environment.reset(seed=row)
            action = np.zeros(size)
        frames[row] = np.asarray(environment.render())
        action = np.clip(0.8 * action + 0.4 * generator.normal(size=size), -1, 1)
        environment.step(action.astype(np.float32))
    environment.close()
    np.save(path, frames)


# The children.


def write_child(name: str, folder: Path, data: Path) -> dict[str, Any]:
    """Return what one tool needs to write the frames."""
    tool = TOOLS[name]
    everything = np.load(data, mmap_mode="r")
    frames = np.array(everything[: tool.frames])
    prepare(tool)
    started = time.perf_counter()
    tool.write(frames, folder)
    seconds = time.perf_counter() - started
    factor = len(everything) / len(frames)
    size = size_on_disk(folder)
    return {
        "write_s": seconds * factor,
        "bytes": size["bytes"] * factor,
        "files": size["files"],
        "version": importlib.metadata.version(tool.package),
    }


def read_child(name: str, folder: Path, data: Path) -> Figures:
    """Return what one tool needs to load all, random and sequential frames; check some."""
    tool = TOOLS[name]
    everything = np.load(data, mmap_mode="r")
    frames = everything[: tool.frames]
    prepare(tool)
    before_mib = reset_peak()
    loaded = tool.load(tool.open(folder))
    extra_mib = resident_mib("VmHWM") - before_mib
    del loaded
    load_ms = [median_ms(functools.partial(tool.load, tool.open(folder)), 1) for _ in range(REPEATS)]
    opened = tool.open(folder)
    generator = np.random.default_rng(0)
    rows = generator.integers(0, len(frames), BATCH)
    difference = as_frames(tool.random(opened, rows)).astype(np.int64) - frames[rows]
    return {
        "open_ms": median_ms(lambda: tool.open(folder), REPEATS),
        "load_s": statistics.median(load_ms) / 1000 * len(everything) / len(frames),
        "extra_mib": extra_mib,
        "random_per_s": random_rate(tool, opened, len(frames)),
        "sequential_per_s": sequential_rate(tool, opened),
        "difference": float(np.abs(difference).mean()),
    }


def random_rate(tool: ImageTool, opened: Any, frames: int) -> float:
    """Return frames per second in random batches."""
    generator = np.random.default_rng(1)
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < RANDOM_S or count < 2 * BATCH:
        tool.random(opened, generator.integers(0, frames, BATCH))
        count += BATCH
    return count / elapsed


def sequential_rate(tool: ImageTool, opened: Any) -> float:
    """Return frames per second in one pass, which is cut short if it takes long."""
    count, started = 0, time.perf_counter()
    for frames in tool.sequential(opened):
        count += len(frames)
        if time.perf_counter() - started > SEQUENTIAL_S:
            break
    return count / (time.perf_counter() - started)


def as_frames(batch: Any) -> np.ndarray:
    """Return a batch as uint8 frames, also where a tool gives float tensors, channels first."""
    found = np.asarray(batch)
    if found.dtype == np.uint8:
        return found
    frames: np.ndarray = np.rint(found.transpose(0, 2, 3, 1) * 255).astype(np.uint8)
    return frames


# The tools: how each writes, opens and reads, the way its own documentation does.


def episodes_of(frames: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Give episodes whose only content is their frames."""
    steps = EPISODE - 1
    for start in range(0, len(frames), EPISODE):
        yield {
            "observations": frames[start : start + EPISODE],
            "actions": np.zeros((steps, ACTION_SIZE), np.float32),
            "rewards": np.zeros(steps, np.float32),
            "terminations": np.zeros(steps, np.bool_),
            "truncations": np.arange(steps) == steps - 1,
        }


def write_orlog(container: str, frames: np.ndarray, folder: Path) -> None:
    """Write with orlog."""
    from gymnasium import spaces

    import orlog

    os.environ["ORLOG_HOME"] = str(folder)
    writing: Any = orlog
    with writing.DatasetWriter(
        NAME,
        version="1.0.0",
        observation_space=spaces.Box(0, 255, SHAPE, np.uint8),
        action_space=spaces.Box(-1, 1, (ACTION_SIZE,), np.float32),
        reward_dtype=np.float32,
        description="",
        license="CC0-1.0",
        container=container,
    ) as writer:
        for episode in episodes_of(frames):
            writer.add_episode(writing.Episode(**episode, infos={}, seed=None))


def open_orlog(folder: Path) -> Any:
    """Open with orlog."""
    import orlog

    os.environ["ORLOG_HOME"] = str(folder)
    return orlog.load_dataset(NAME)


def sequential_orlog(dataset: Any) -> Iterator[Any]:
    """Read rows of the column in order."""
    for start in range(0, dataset.total_episodes * EPISODE, EPISODE):
        yield dataset.column("observations", start, start + EPISODE)


def write_hdf5(compression: str, frames: np.ndarray, folder: Path) -> None:
    """Write with h5py, a frame to a chunk."""
    with module("h5py").File(folder / "frames.h5", "w") as file:
        file.create_dataset("frames", data=frames, chunks=(1, *SHAPE), compression=compression)


def open_hdf5(folder: Path) -> Any:
    """Open with h5py."""
    return module("h5py").File(folder / "frames.h5", "r")["frames"]


def random_hdf5(dataset: Any, rows: np.ndarray) -> np.ndarray:
    """Read frames one by one, which is faster than h5py's own lists of rows."""
    frames = np.empty((len(rows), *SHAPE), np.uint8)
    for place, row in enumerate(rows):
        frames[place] = dataset[row]
    return frames


def write_memmap(frames: np.ndarray, folder: Path) -> None:
    """Write with NumPy."""
    np.save(folder / "frames.npy", frames)


def open_memmap(folder: Path) -> np.ndarray:
    """Map the file."""
    mapped: np.ndarray = np.load(folder / "frames.npy", mmap_mode="r")
    return mapped


def take(frames: Any, rows: np.ndarray) -> Any:
    """Index an array."""
    return frames[rows]


def slices(frames: Any) -> Iterator[Any]:
    """Copy slices of an array in order."""
    for start in range(0, len(frames), EPISODE):
        yield np.array(frames[start : start + EPISODE])


def write_torchrl(frames: np.ndarray, folder: Path) -> None:
    """Write the memory-mapped storage of TorchRL's replay buffer."""
    torchrl = module("torchrl.data")
    batch = module("tensordict").TensorDict({"pixels": module("torch").from_numpy(frames)}, [len(frames)])
    with tempfile.TemporaryDirectory(dir=folder.parent) as working:
        storage = torchrl.LazyMemmapStorage(len(frames), scratch_dir=working)
        buffer = torchrl.ReplayBuffer(storage=storage)
        buffer.extend(batch)
        buffer.dumps(folder / "buffer")


def open_torchrl(folder: Path) -> Any:
    """Open the memory map."""
    return module("tensordict").TensorDict.load_memmap(folder / "buffer" / "storage")


def random_torchrl(batch: Any, rows: np.ndarray) -> Any:
    """Index the memory map."""
    return batch[module("torch").from_numpy(rows)]["pixels"]


def sequential_torchrl(batch: Any) -> Iterator[Any]:
    """Copy slices of the memory map."""
    for start in range(0, len(batch), EPISODE):
        yield batch[start : start + EPISODE]["pixels"].clone()


def write_minari(frames: np.ndarray, folder: Path) -> None:
    """Write with Minari, its default lossy JPEG turned off."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    spaces = module("gymnasium.spaces")
    buffers = [
        module("minari.data_collector").EpisodeBuffer(id=None, **episode, infos={}) for episode in episodes_of(frames)
    ]
    module("minari").create_dataset_from_buffers(
        NAME,
        buffers,
        observation_space=spaces.Box(0, 255, SHAPE, np.uint8),
        action_space=spaces.Box(-1, 1, (ACTION_SIZE,), np.float32),
        algorithm_name="none",
        author="none",
        author_email="none",
        code_permalink="none",
        description="none",
        jpeg_encoding=False,
    )


def open_minari(folder: Path) -> Any:
    """Open with Minari."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    return module("minari").load_dataset(NAME)


def random_minari(dataset: Any, rows: np.ndarray) -> np.ndarray:
    """Read the whole episode of each frame, the only unit that Minari reads."""
    return np.stack([dataset[int(row // EPISODE)].observations[row % EPISODE] for row in rows])


def sequential_minari(dataset: Any) -> Iterator[Any]:
    """Read episodes in order."""
    for episode in dataset.iterate_episodes():
        yield episode.observations


def write_lerobot(video: bool, frames: np.ndarray, folder: Path) -> None:
    """Write with LeRobot, a frame at a time."""
    features = {
        LEROBOT_IMAGE: {
            "dtype": "video" if video else "image",
            "shape": SHAPE,
            "names": ["height", "width", "channels"],
        },
        "action": {"dtype": "float32", "shape": (ACTION_SIZE,), "names": None},
    }
    dataset = module("lerobot.datasets.lerobot_dataset").LeRobotDataset.create(
        NAME, fps=20, root=folder / "lerobot", features=features, use_videos=video, image_writer_threads=4
    )
    action = np.zeros(ACTION_SIZE, np.float32)
    for row, frame in enumerate(frames):
        dataset.add_frame({LEROBOT_IMAGE: frame, "action": action, "task": "run"})
        if (row + 1) % EPISODE == 0:
            dataset.save_episode()
    dataset.finalize()


def open_lerobot(folder: Path) -> Any:
    """Open with LeRobot."""
    lerobot = module("lerobot.datasets.lerobot_dataset")
    return lerobot.LeRobotDataset(NAME, root=folder / "lerobot")


def random_lerobot(dataset: Any, rows: np.ndarray) -> Any:
    """Read items and stack them, as a DataLoader does."""
    return module("torch").stack([dataset[int(row)][LEROBOT_IMAGE] for row in rows])


def load_lerobot(dataset: Any) -> Any:
    """Read all items."""
    return random_lerobot(dataset, np.arange(len(dataset)))


def sequential_lerobot(dataset: Any) -> Iterator[Any]:
    """Read items in order."""
    for row in range(len(dataset)):
        yield [dataset[row][LEROBOT_IMAGE]]


def write_codec(compression: str, frames: np.ndarray, folder: Path) -> None:
    """Compress each frame as orlog does, one after the other on one thread."""
    blosc = module("numcodecs.blosc")
    blosc.use_threads = False
    pieces = []
    for frame in frames:
        difference = frame.copy()
        difference[1:] -= frame[:-1]
        pieces.append(blosc.compress(difference, compression.encode(), 3, blosc.BITSHUFFLE, 0))
    (folder / "frames").write_bytes(b"".join(pieces))
    np.save(folder / "sizes.npy", [len(piece) for piece in pieces])


def open_codec(folder: Path) -> list[memoryview]:
    """Read the compressed frames into memory."""
    data = memoryview((folder / "frames").read_bytes())
    ends = np.cumsum(np.load(folder / "sizes.npy")).tolist()
    return [data[start:end] for start, end in itertools.pairwise([0, *ends])]


def random_codec(threads: int, pieces: list[memoryview], rows: np.ndarray) -> np.ndarray:
    """Decode frames with nothing around: no file, no checksum, no index."""
    frames = np.empty((len(rows), *SHAPE), np.uint8)
    if threads == 1:
        _decode(pieces, rows, frames)
        return frames
    parts = np.array_split(np.arange(len(rows)), threads)
    list(_pool(threads).map(lambda part: _decode(pieces, rows[part], frames[part[0] : part[-1] + 1]), parts))
    return frames


def _decode(pieces: list[memoryview], rows: np.ndarray, frames: np.ndarray) -> None:
    blosc = module("numcodecs.blosc")
    blosc.use_threads = False
    for place, row in enumerate(rows.tolist()):
        blosc.decompress(pieces[row], frames[place])
    for line in range(1, SIDE):
        frames[:, line] += frames[:, line - 1]


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(threads)


def load_codec(threads: int, pieces: list[memoryview]) -> np.ndarray:
    """Decode all frames, some at a time so that differences are undone in the cache."""
    return np.concatenate(list(sequential_codec(threads, pieces)))


def sequential_codec(threads: int, pieces: list[memoryview]) -> Iterator[np.ndarray]:
    """Decode frames in order."""
    for start in range(0, len(pieces), BATCH):
        stop = min(start + BATCH, len(pieces))
        yield random_codec(threads, pieces, np.arange(start, stop))


_ORLOG = functools.partial(
    ImageTool,
    environment="orlog",
    package="orlog",
    modules=("orlog", "gymnasium"),
    open=open_orlog,
    load=lambda dataset: dataset.column("observations"),
    random=lambda dataset, rows: dataset.rows("observations", rows),
    sequential=sequential_orlog,
)
_HDF5 = functools.partial(
    ImageTool,
    environment="peers",
    package="h5py",
    modules=("h5py",),
    open=open_hdf5,
    load=lambda dataset: dataset[()],
    random=random_hdf5,
    sequential=slices,
    note="a frame to a chunk",
)
_LEROBOT = functools.partial(
    ImageTool,
    environment="lerobot",
    package="lerobot",
    modules=("lerobot.datasets.lerobot_dataset",),
    open=open_lerobot,
    load=load_lerobot,
    random=random_lerobot,
    sequential=sequential_lerobot,
    frames=LEROBOT_FRAMES,
)
_LEROBOT_NOTE = f"measured on {LEROBOT_FRAMES:,} frames; write, MB and load are scaled up"


def _codec(compression: str, threads: int) -> ImageTool:
    return ImageTool(
        environment="orlog",
        package="numcodecs",
        modules=("numcodecs",),
        write=functools.partial(write_codec, compression),
        open=open_codec,
        load=functools.partial(load_codec, threads),
        random=functools.partial(random_codec, threads),
        sequential=functools.partial(sequential_codec, threads),
    )


CORES = os.cpu_count() or 1
TOOLS: dict[str, ImageTool] = {
    "orlog zarr": _ORLOG(write=functools.partial(write_orlog, "zarr")),
    "orlog hdf5": _ORLOG(write=functools.partial(write_orlog, "hdf5")),
    "codec lz4hc, 1 thread": _codec("lz4hc", 1),
    f"codec lz4hc, {CORES} threads": _codec("lz4hc", CORES),
    "codec zstd, 1 thread": _codec("zstd", 1),
    "h5py gzip": _HDF5(write=functools.partial(write_hdf5, "gzip")),
    "h5py lzf": _HDF5(write=functools.partial(write_hdf5, "lzf")),
    "Minari": ImageTool(
        environment="peers",
        package="minari",
        modules=("minari", "minari.data_collector"),
        write=write_minari,
        open=open_minari,
        load=lambda dataset: np.concatenate(list(sequential_minari(dataset))),
        random=random_minari,
        sequential=sequential_minari,
        note="HDF5, not compressed: its default JPEG loses detail",
    ),
    "LeRobot image": _LEROBOT(write=functools.partial(write_lerobot, False), note=f"PNG; {_LEROBOT_NOTE}"),
    "LeRobot video": _LEROBOT(write=functools.partial(write_lerobot, True), note=f"AV1, loses detail; {_LEROBOT_NOTE}"),
    "TorchRL memmap": ImageTool(
        environment="peers",
        package="torchrl",
        modules=("torch", "tensordict", "torchrl.data"),
        write=write_torchrl,
        open=open_torchrl,
        load=lambda batch: batch.clone()["pixels"],
        random=random_torchrl,
        sequential=sequential_torchrl,
        note="not compressed; memory counts pages of the mapped file too",
    ),
    "NumPy memmap": ImageTool(
        environment="peers",
        package="numpy",
        modules=(),
        write=write_memmap,
        open=open_memmap,
        load=np.array,
        random=take,
        sequential=slices,
        note="not compressed; memory counts pages of the mapped file too",
    ),
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2:], {"write": write_child, "read": read_child})
    else:
        main()
