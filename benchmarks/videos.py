"""Memory of workers that read random windows of many videos, and their speed beside PyAV alone.

python -m benchmarks.videos FOLDER [--files 2000] [--workers 8]
"""

import argparse
import json
import os
import time
from multiprocessing import active_children
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

import orlog

CAMERA, FPS, FRAMES, SIZE, WINDOWS = "observation.image", 30, 30, (240, 320), 32


def write(root: Path, files: int) -> None:
    """Write a LeRobotDataset of so many episodes of a second, each in a file of its own."""
    folder, noise = root / f"videos/{CAMERA}/chunk-000", np.random.default_rng(0).integers(0, 99, (*SIZE, 3), np.uint8)
    for path in (folder, root / "data/chunk-000", root / "meta/episodes/chunk-000"):
        path.mkdir(parents=True)
    with av.open(str(folder / "file-000.mp4"), "w") as container:
        stream = container.add_stream("libx264", FPS, options={"g": "2", "bf": "0", "crf": "30"})
        (stream.height, stream.width), stream.pix_fmt = SIZE, "yuv420p"
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, number, 1) + np.uint8(5 * number), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for number in range(1, files):
        os.link(folder / "file-000.mp4", folder / f"file-{number:03d}.mp4")
    step, episode = np.tile(np.arange(FRAMES), files), np.repeat(np.arange(files), FRAMES)
    numbers = {"episode_index": episode, "frame_index": step, "index": np.arange(len(step)), "task_index": step * 0}
    arrays = {"observation.state": episode[:, None] * np.ones(2, "f4"), "action": step[:, None].astype("f4")}
    arrays |= numbers | {"timestamp": (step / FPS).astype("f4")}
    features = {name: {"dtype": str(one.dtype), "shape": list(one.shape[1:]) or [1]} for name, one in arrays.items()}
    features[CAMERA] = {"dtype": "video", "shape": [*SIZE, 3]}
    places = {"chunk_index": 0, "from_timestamp": 0.0, "to_timestamp": FRAMES / FPS}
    rows = [
        {"episode_index": number, "length": FRAMES, "tasks": ["pick"]}
        | {f"videos/{CAMERA}/{name}": value for name, value in (places | {"file_index": number}).items()}
        for number in range(files)
    ]
    pq.write_table(
        pa.table({name: one.tolist() for name, one in arrays.items()}), root / "data/chunk-000/file-000.parquet"
    )
    pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    info = {"codebase_version": "v3.0", "fps": FPS, "features": features, "total_episodes": files}
    info |= {
        "total_frames": len(step),
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info), "utf-8")


def peak_mib(process: int) -> int:
    """Return the most memory that a process has had resident, in MiB."""
    (line,) = (one for one in Path(f"/proc/{process}/status").read_text("ascii").splitlines() if "VmHWM" in one)
    return int(line.split()[1]) // 1024


def bare(file: Path, first: int) -> np.ndarray:
    """Return two frames of a file, by PyAV alone."""
    with av.open(str(file)) as container:
        (stream,) = container.streams.video
        time_of = [round(number / FPS / (stream.time_base or 1)) for number in (first, first + 1)]
        container.seek(time_of[0], stream=stream)
        wanted = (frame for frame in container.decode(stream) if frame.pts in time_of)
        return np.stack([next(wanted).to_ndarray(format="rgb24") for _ in time_of])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batches", type=int, default=40)
    asked = parser.parse_args()
    os.environ["ORLOG_HOME"] = str(asked.folder / "home")
    write(asked.folder / "set", asked.files)
    began = time.perf_counter()
    orlog.import_dataset(asked.folder / "set", "bench/videos-v1")
    print(f"import of {asked.files} files: {time.perf_counter() - began:.1f} s")
    arrays = orlog.load_arrays(orlog.load_dataset("bench/videos-v1"), where="mmap")
    stream = orlog.windows(arrays, WINDOWS, seed=0, observations=(-1, 0), actions=range(2))
    alone, batches = iter(stream), asked.batches
    began = time.perf_counter()
    drawn = [dict(next(alone).observations)["state"][:, -1, 0] for _ in range(batches)]
    ours = time.perf_counter() - began
    files = sorted((asked.folder / f"set/videos/{CAMERA}/chunk-000").iterdir())
    began = time.perf_counter()
    for batch in drawn:
        for row, number in enumerate(batch.tolist()):
            bare(files[int(number)], row % (FRAMES - 1))
    print(f"windows a second, beside PyAV alone: {(time.perf_counter() - began) / ours:.2f}")
    read = iter(DataLoader(stream, batch_size=None, num_workers=asked.workers))
    for _ in range(batches * asked.workers):
        next(read)
    print(
        f"peak of each of {asked.workers} workers, MiB: {sorted(peak_mib(one.pid) for one in active_children() if one.pid)}"
    )


if __name__ == "__main__":
    main()
