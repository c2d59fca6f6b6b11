"""Images straight from compressed files: what `benchmarks.loaders` measures of streams.

Frames of moving shaded discs before a smooth background, with a little sensor noise, in episodes of
500, of which orlog leaves 0.55 and gzip 0.86. All run on one core, to which the process is bound,
so that orlog's own threads have no other; everything lies in the page cache. It takes h5py.

    orlog             steps per second of `transitions(.., stream=True)`, batches of 64 tensors: decoded, sums
                      checked, in random order. A step comes with its observation and the next one;
                      it counts once, as the frame that is decoded for it does
    h5py gzip         random frames per second, a frame to a chunk, as batches of 64
    h5py gzip, pairs  steps per second, each with its frame and the next one
    codec             frames per second: orlog's own compressed chunks, in memory and in order, decoded
                      into the same few frames. Nothing that reads these files can be faster
    column in order   frames per second of `Dataset.column`, 500 at a time

A stream is measured over whole epochs, behind a first one: then neither memory that was never used
before nor a group that was decoded before the clock started flatters or harms it.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loader_data import FRAMES, FRAMES_PER_EPISODE, SHAPES, episodes_of, write_version
from benchmarks.store import ANSWER, module

HDF5, PAIRS, CODEC = "h5py gzip", "h5py gzip, pairs", "codec"
STREAMS = {kind: f"streamed {' x '.join(str(side) for side in shape)}, batch 64" for kind, shape in SHAPES.items()}
IN_ORDER = {kind: f"{item}: column in order" for kind, item in STREAMS.items()}
BATCH = 64
BUFFER_BYTES = 2**26  # some twenty groups in two epochs
EPOCHS, SECONDS, ROUNDS = 2, 0.5, 5
DISCS, WAVES = 3, 6


def make_streams(scratch: Path) -> None:
    """Make versions of orlog and HDF5 files with the same frames, if they are not there yet."""
    for kind in SHAPES:
        path = scratch / f"{kind}-streamed.h5"
        if path.exists():
            continue
        frames = draw_frames(kind)
        write_version(f"streamed-{kind}", episodes_of(frames))
        unfinished = path.with_suffix(".unfinished")
        with module("h5py").File(unfinished, "w") as file:
            chunks = (1, *frames.shape[1:])
            file.create_dataset("frames", data=frames, chunks=chunks, compression="gzip")
        unfinished.replace(path)


def draw_frames(kind: str) -> np.ndarray:
    """Return frames of a kind, the same ones each time."""
    generator = np.random.default_rng(3)
    side, _, channels = SHAPES[kind]
    down, right = np.mgrid[0:side, 0:side].astype(np.float32) / side
    frames = np.empty((FRAMES, *SHAPES[kind]), np.uint8)
    for episode in range(FRAMES // FRAMES_PER_EPISODE):
        background = np.full(SHAPES[kind], 110.0)
        for _ in range(WAVES):
            height, tint = generator.uniform(10, 35), generator.uniform(0.5, 1, channels)
            waves, phase = generator.uniform(-3, 3, 2), generator.uniform(0, 6)
            slope = 2 * np.pi * (waves[0] * right + waves[1] * down) + phase
            background += height * np.sin(slope)[..., None] * tint
        places = generator.uniform(0.2, 0.8, (DISCS, 2))
        velocities = generator.uniform(-0.02, 0.02, (DISCS, 2))
        colors = generator.uniform(-90, 110, (DISCS, channels))
        radii = generator.uniform(0.06, 0.16, DISCS)
        for step in range(FRAMES_PER_EPISODE):
            places += velocities
            velocities[(places < 0.05) | (places > 0.95)] *= -1
            frame = background
            for place, color, radius in zip(places, colors, radii, strict=True):
                distance = np.hypot(right - place[0], down - place[1])
                inside = np.clip((radius - distance) * side, 0, 1)[..., None]
                shade = np.clip(1 - distance / radius, 0, 1)[..., None]
                frame = frame * (1 - inside) + inside * (128 + color * shade)
            noise = generator.standard_normal(frame.shape, np.float32) * 0.5 + 0.5
            frames[episode * FRAMES_PER_EPISODE + step] = np.clip(frame + noise, 0, 255)
    return frames


def streams_child(folder: Path) -> None:
    """Measure all in turns, on one core, and print one line of JSON."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch

    import orlog

    torch.set_num_threads(1)
    measures: dict[str, Callable[[], float]] = {}
    for kind, item in STREAMS.items():
        dataset = orlog.load_dataset(f"bench/streamed-{kind}-v0")
        measures[f"orlog/{item}"] = functools.partial(stream_rate, dataset)
        measures[f"orlog/{IN_ORDER[kind]}"] = functools.partial(column_rate, dataset)
        measures[f"{CODEC}/{item}"] = functools.partial(codec_rate, *read_chunks(dataset))
        frames = module("h5py").File(folder / f"{kind}-streamed.h5", "r")["frames"]
        measures[f"{HDF5}/{item}"] = functools.partial(hdf5_rate, frames, 1)
        measures[f"{PAIRS}/{item}"] = functools.partial(hdf5_rate, frames, 2)
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            found[name].append(measure())
    rates = {name: statistics.median(values) for name, values in found.items()}
    for kind, item in STREAMS.items():
        rates[f"{CODEC}/{IN_ORDER[kind]}"] = rates[f"{CODEC}/{item}"]
    print(ANSWER + json.dumps({"rates": rates}))


def stream_rate(dataset: Any) -> float:
    """Return steps per second of whole epochs."""
    import orlog

    batches = iter(orlog.transitions(dataset, BATCH, seed=0, buffer_bytes=BUFFER_BYTES, stream=True))
    epoch = int(dataset.total_steps) // BATCH
    for _ in itertools.islice(batches, epoch):
        pass
    started = time.perf_counter()
    for _ in itertools.islice(batches, EPOCHS * epoch):
        pass
    elapsed = time.perf_counter() - started
    batches.close()  # a generator; its thread ends with it
    return EPOCHS * epoch * BATCH / elapsed


def column_rate(dataset: Any) -> float:
    """Return frames per second, all in order."""
    started = time.perf_counter()
    for first in range(0, FRAMES, FRAMES_PER_EPISODE):
        dataset.column("observations", first, first + FRAMES_PER_EPISODE)
    return FRAMES / (time.perf_counter() - started)


def read_chunks(dataset: Any) -> tuple[list[bytes], Any]:
    """Return the compressed frames of a dataset, and their encoding."""
    from orlog.datasets.store.encoding import read_encoding
    from orlog.datasets.store.objects import shard_path
    from orlog.datasets.store.shards import Shard

    spec = dataset.schema.columns()["observations"]
    metadata = (dataset.folder / "observations" / "zarr.json").read_bytes()
    encoding = read_encoding(metadata, spec, FRAMES)
    assert encoding.chunk_rows == 1
    chunks = []
    for shard, first in enumerate(range(0, FRAMES, encoding.shard_rows)):
        path = dataset.folder / shard_path(spec, shard)
        count = encoding.chunks_per_shard
        opened = Shard(path, count, path.stat().st_size, name=path.name)
        chunks += [bytes(opened.read(chunk)) for chunk in range(min(count, FRAMES - first))]
    return chunks, encoding


def codec_rate(chunks: list[bytes], encoding: Any) -> float:
    """Return frames per second of the codec alone: Blosc, and differences of pixels undone."""
    from numcodecs import blosc

    from orlog.datasets.store.shards import undo_difference

    shape = next(shape for shape in SHAPES.values() if np.prod(shape) == decoded_bytes(chunks[0]))
    frames = np.empty((BATCH, *shape), np.uint8)
    places = list(frames)
    started = time.perf_counter()
    for first in range(0, len(chunks), BATCH):
        for chunk, place in zip(chunks[first : first + BATCH], places, strict=False):
            blosc.decompress(chunk, place)
        if encoding.difference_axis is not None:
            undo_difference(frames, encoding.difference_axis)
    return len(chunks) / (time.perf_counter() - started)


def decoded_bytes(chunk: bytes) -> int:
    """Return how many bytes a chunk of Blosc decodes to."""
    return int.from_bytes(chunk[4:8], "little")


def hdf5_rate(frames: Any, together: int) -> float:
    """Return random frames per second, or runs of frames that lie together, as tensors."""
    import torch

    generator = np.random.default_rng(0)
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        batch = np.empty((BATCH, together, *frames.shape[1:]), np.uint8)
        rows = generator.integers(0, len(frames) - together + 1, BATCH).tolist()
        for place, row in zip(batch, rows, strict=True):
            place[:] = frames[row : row + together]
        torch.from_numpy(batch)
        count += BATCH
    return count / elapsed
