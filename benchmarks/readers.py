"""What reading files of other formats costs, beside reading the same bytes by the library of the format.

100,000 steps like HalfCheetah's (17 observations, 6 actions, float32) are exported to every format that
orlog writes, and turned into two that it only reads. `library` reads all arrays of the files with h5py, NumPy or
pyarrow, into arrays of NumPy, and keeps none (of RLDS's records it compares the checksums, of other files it takes
the bytes). `orlog` is the reading part of `orlog import`: it opens the
files and pulls all steps, checked, in pieces, and writes nothing. Both take turns in one process; the time
is that of the processor, all threads included, and the ratio is the median over turns of library / orlog.

`--memory` measures instead the peak of resident memory of a whole import of large files, which hold numbers that
compress well, so that little disk is needed. Every 20 ms the resident pages of the importing process and of all
that it started are added up: those of its own, and with them those of mapped files, which the system takes back when
it needs room.

    python -m benchmarks.readers
    python -m benchmarks.readers --memory --scratch FOLDER --gigabytes 20

print a table and write it to `benchmarks/results/readers.txt`, or `readers_memory.txt`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

import orlog
from benchmarks.recording import machine
from benchmarks.store import RESULTS, halfcheetah_like, scratch_folder
from orlog.datasets.formats.formats import Format, formats
from orlog.datasets.interchange.episodes import Asked, Options
from orlog.datasets.interchange.tfrecord_files import record_spans

EPISODES, LENGTH, TURNS = 100, 1000, 5
ROW, BLOCK, HOLE = 512, 2**13, 2**16
ZEROS = bytes(HOLE)
ROLES = ("observation", "action", "reward", "terminated", "truncated")
CSV = Options(
    columns={
        **{name: name for name in ROLES},
        "observation": "observation_*",
        "action": "action_*",
    },
    episode="episode",
    step="step",
)
OPTIONS = {"table, csv": CSV}


def main() -> None:
    """Measure speed or memory, print and keep the table."""
    asked = argparse.ArgumentParser(description="Measure the readers of other formats.")
    asked.add_argument("--scratch", type=Path)
    asked.add_argument("--memory", action="store_true")
    asked.add_argument("--gigabytes", type=float, default=20.0)
    asked.add_argument("names", nargs="*", metavar="FORMAT")
    given = asked.parse_intermixed_args()
    with scratch_folder(given.scratch) as scratch:
        os.environ["ORLOG_HOME"] = str(scratch / "home")
        if given.memory:
            text, name = measure_memory(scratch, given.gigabytes, given.names), "readers_memory"
        else:
            text, name = measure_speed(scratch, given.names), "readers"
    print(text)
    if not given.names:
        (RESULTS / f"{name}.txt").write_text(f"{text}\n")


# --- speed


def measure_speed(scratch: Path, wanted: Sequence[str]) -> str:
    """Return the table of all formats, or of some."""
    lines = [
        f"{EPISODES * LENGTH:,} steps, {TURNS} turns of each",
        "",
        f"{'':22}  {'MB':>6}  library s  orlog s  ratio",
    ]
    for name, files in write_all(scratch).items():
        if wanted and name not in wanted:
            continue
        one = formats()[name.partition(",")[0]]
        every = [path for file in files for path in ([file] if file.is_file() else _inside(file))]
        options = OPTIONS.get(name, Options())
        spent: list[tuple[float, float]] = []
        for _ in range(TURNS):
            library = timed(lambda e=every: [read_raw(path) for path in e])  # type: ignore[misc]
            ours = timed(lambda f=files, o=one, w=options: pull(o, f, w))  # type: ignore[misc]
            spent.append((library, ours))
        size = sum(path.stat().st_size for path in every) / 1e6
        medians = [statistics.median(column) for column in zip(*spent, strict=True)]
        ratio = statistics.median(library / ours for library, ours in spent)
        lines.append(f"{name:22}  {size:6.1f}  {medians[0]:9.3f}  {medians[1]:7.3f}  {ratio:5.2f}")
    return "\n".join([*lines, "", machine()])


def write_all(scratch: Path) -> dict[str, list[Path]]:
    """Write the steps in every format; return what a user would name of each."""
    dataset = recorded()
    found = {}
    for name, one in formats().items():
        if one.open is not None and one.write is not None:
            folder = orlog.export_dataset(dataset, scratch / name, to=name, lossy=True)
            found[name] = given_of(one, folder)
    (plain,) = found["d4rl"]
    found["d4rl, not packed"] = [copied(plain, scratch / "plain.hdf5", {})]
    found["dsrl"] = [copied(plain, scratch / "dsrl.hdf5", {"compression": "gzip"}, costs=True)]
    found["npz, not packed"] = [scratch / "plain.npz"]
    with np.load(found["npz"][0]) as arrays:
        np.savez(scratch / "plain.npz", allow_pickle=False, **arrays)
    found["table, csv"] = [as_csv(found["parquet"][0], scratch / "table.csv")]
    return dict(sorted(found.items()))


def recorded() -> orlog.Dataset:
    """Return the steps as a dataset."""
    box = gymnasium.spaces.Box
    arrays = halfcheetah_like(EPISODES, LENGTH)
    with orlog.DatasetWriter(
        "bench/halfcheetah-v0",
        observation_space=box(-np.inf, np.inf, (17,), np.float32),
        action_space=box(-np.inf, np.inf, (6,), np.float32),
        reward_dtype=np.float32,
    ) as writer:
        for number in range(EPISODES):
            rows = slice(number * LENGTH, (number + 1) * LENGTH)
            first = number * (LENGTH + 1)
            ends = np.arange(LENGTH) == LENGTH - 1
            writer.add_episode(
                orlog.Episode(
                    observations=arrays["observations"][first : first + LENGTH + 1],
                    actions=arrays["actions"][rows],
                    rewards=arrays["rewards"][rows],
                    terminations=np.zeros(LENGTH, bool),
                    truncations=ends,
                )
            )
    return orlog.load_dataset("bench/halfcheetah-v0")


def given_of(one: Format, folder: Path) -> list[Path]:
    """Return what a user would name: the folder that holds all, or the files."""
    while len(list(folder.iterdir())) == 1 and next(folder.iterdir()).is_dir():
        folder = next(folder.iterdir())
    return [folder] if "" in one.extensions else sorted(folder.iterdir())


def copied(file: Path, to: Path, options: dict[str, Any], *, costs: bool = False) -> Path:
    """Write the arrays of an HDF5 file again."""
    with h5py.File(file) as source, h5py.File(to, "w") as target:
        for key in source:
            target.create_dataset(key, data=source[key][()], **options)
        if costs:
            target.create_dataset("costs", data=source["rewards"][()], **options)
    return to


def as_csv(file: Path, to: Path) -> Path:
    """Write a Parquet table as CSV, a column for each number."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    columns: dict[str, Any] = {}
    for name, column in zip(*_named(pyarrow.parquet.read_table(file)), strict=True):
        values = np.stack(column.to_numpy())
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{part}": values[:, part] for part in range(values.shape[1])}
    pyarrow.csv.write_csv(pa.table(columns), to)
    return to


def _named(table: Any) -> tuple[list[str], list[Any]]:
    return table.column_names, table.columns


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of the processor that a call takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def pull(one: Format, files: Sequence[Path], options: Options) -> int:
    """Return the number of steps in files, all of which are read."""
    assert one.open is not None
    asked = Asked(files=files, sources=[str(file) for file in files], options=options)
    with one.open(asked) as opened:
        return sum(len(piece.rewards) for piece in opened.steps)


def read_raw(file: Path) -> int:
    """Return how many arrays a file holds, all of which are read by the library of its format."""
    if file.suffix in (".hdf5", ".h5"):
        arrays: list[np.ndarray] = []
        with h5py.File(file) as opened:
            opened.visititems(
                lambda _name, node: (
                    arrays.append(node[()]) if isinstance(node, h5py.Dataset) else None
                )
            )
        return len(arrays)
    if file.suffix == ".npz":
        with np.load(file) as opened:
            return len([opened[key] for key in opened.files])
    if file.suffix in (".parquet", ".csv"):
        import pyarrow.csv
        import pyarrow.parquet

        is_csv = file.suffix == ".csv"
        table = pyarrow.csv.read_csv(file) if is_csv else pyarrow.parquet.read_table(file)
        return len([_numbers(column) for column in table.columns])
    if ".tfrecord" in file.name:  # what reads them without TensorFlow compares checksums at least
        with file.open("rb") as opened:
            return len(list(record_spans(opened, file.name)))
    return len(file.read_bytes())


def _numbers(column: Any) -> np.ndarray:
    column = column.combine_chunks()
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        column = column.flatten()
    return np.asarray(column)


# --- memory


def measure_memory(scratch: Path, gigabytes: float, wanted: Sequence[str]) -> str:
    """Return the table of formats whose files can be large."""
    steps = int(gigabytes * 1e9) // (4 * ROW)
    lines = [
        f"{steps:,} steps of {ROW} numbers, {gigabytes:g} GB of observations, for each format",
        "",
        f"{'':22}  file MB  own MiB  with mapped files  seconds",
    ]
    for name, write in LARGE.items():
        if wanted and name not in wanted:
            continue
        folder = scratch / "large"
        for left in (folder, Path(os.environ["ORLOG_HOME"])):
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
        file = write(folder, steps)
        command = [sys.executable, "-m", __spec__.name, "--child", str(file), name]
        began = time.monotonic()
        own, everything = peak_of(command)
        seconds = time.monotonic() - began
        every = _inside(file) if file.is_dir() else [file]
        size = sum(one.stat().st_size for one in every) / 1e6
        lines.append(
            f"{name:22}  {size:7,.0f}  {own / 2**20:7,.0f}  {everything / 2**20:17,.0f}  {seconds:7.0f}"
        )
        print(lines[-1], flush=True)
        shutil.rmtree(folder)
    return "\n".join([*lines, "", machine()])


def import_one(file: str, name: str) -> None:
    """Import a file, and remove what came of it."""
    one = formats()[name.partition(",")[0]]
    options: dict[str, Any] = {}
    if one.name == "table":
        roles = {"observation": "observation", "action": "action"}
        options = {"columns": roles, "episode": "episode"}
    orlog.import_dataset(file, "bench/large-v0", format=name.partition(",")[0], **options)
    shutil.rmtree(Path(os.environ["ORLOG_HOME"]), ignore_errors=True)


def peak_of(command: Sequence[str]) -> tuple[int, int]:
    """Return the most bytes that a command and all that it starts hold at once: own pages, and all pages."""
    own = everything = 0
    with subprocess.Popen(command) as child:  # noqa: S603 (ourselves)
        while child.poll() is None:
            sizes = [_resident(process) for process in _family(child.pid)]
            own = max(own, sum(size[0] for size in sizes))
            everything = max(everything, sum(size[1] for size in sizes))
            time.sleep(0.02)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return own, everything


def _family(process: int) -> list[int]:
    """Return a process and all that come from it."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for one in task.read_text().split():
                found += _family(int(one))
    return found


def _resident(process: int) -> tuple[int, int]:
    """Return the bytes of resident pages of a process: without those of files, and all."""
    kinds = {"RssAnon": 0, "RssShmem": 0, "RssFile": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in kinds:
                kinds[key] = 1024 * int(value.split()[0])
    return kinds["RssAnon"] + kinds["RssShmem"], sum(kinds.values())


class Sparse(io.RawIOBase):
    """A new file in which zeros take no room, as the system lets files have holes."""

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self._file = path.open("wb", buffering=0)

    def writable(self) -> bool:
        """Say that it is there to be written."""
        return True

    def seekable(self) -> bool:
        """Say that places in it can be gone to."""
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._file.seek(place, whence)

    def write(self, data: Any) -> int:
        """Write bytes, and go past blocks that are zeros."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), HOLE):
            block = view[start : start + HOLE]
            if block == ZEROS[: len(block)]:
                self._file.seek(len(block), os.SEEK_CUR)
            else:
                self._file.write(block)
        return len(view)

    def close(self) -> None:
        """End the file where it was written to last."""
        if not self.closed:
            self._file.truncate(self._file.seek(0, os.SEEK_CUR))
            self._file.close()
        super().close()


def _hdf5(folder: Path, steps: int, options: dict[str, Any]) -> Path:
    """Write D4RL's layout, zeros but for the ends of episodes."""
    path = folder / "large.hdf5"
    # Room for all zeros at once, which the system gives without writing any.
    room = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    room.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    room.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        shapes = {"observations": (steps, ROW), "actions": (steps, 2), "rewards": (steps,)}
        for key, shape in shapes.items():
            if not options:
                file.create_dataset(key, shape, "f4", dcpl=room)
                continue
            node = file.create_dataset(key, shape, "f4", chunks=(BLOCK // 4, *shape[1:]), **options)
            for start in range(0, steps, BLOCK):
                node[start : start + BLOCK] = 0
        file["terminals"] = np.zeros(steps, bool)
        file["timeouts"] = np.arange(steps) % LENGTH == LENGTH - 1
    return path


def _robomimic(folder: Path, steps: int) -> Path:
    """Write ten demonstrations of zeros."""
    path = folder / "large.hdf5"
    count = steps // 10
    with h5py.File(path, "w") as file:
        for number in range(10):
            group = file.create_group(f"data/demo_{number}")
            for key, shape in {
                "actions": (count, 2),
                "rewards": (count,),
                "dones": (count,),
                "obs/state": (count, ROW // 2),
                "next_obs/state": (count, ROW // 2),
            }.items():
                chunks = (BLOCK // 4, *shape[1:])
                node = group.create_dataset(
                    key, shape, "f4", chunks=chunks, compression="gzip", compression_opts=1
                )
                for start in range(0, count, BLOCK):
                    node[start : start + BLOCK] = 0
    return path


def _npz(folder: Path, steps: int, compression: int) -> Path:
    """Write arrays of zeros as NumPy does, but piece by piece."""
    path = folder / "large.npz"
    ends = np.arange(steps) % LENGTH == LENGTH - 1
    shapes = {"observations": (steps, ROW), "actions": (steps, 2), "rewards": (steps,)}
    with (
        contextlib.closing(Sparse(path)) as file,
        zipfile.ZipFile(file, "w", compression, compresslevel=1) as archive,
    ):
        for name, shape in shapes.items():
            head = {"descr": "<f4", "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array_header_1_0(stream, head)
                left = 4 * int(np.prod(shape))
                while left:
                    stream.write(bytes(min(left, 2**22)))
                    left -= min(left, 2**22)
        for name, values in (("terminals", np.zeros(steps, bool)), ("timeouts", ends)):
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, values)
    return path


def _parquet(folder: Path, steps: int) -> Path:
    """Write a table of zeros, not packed."""
    import pyarrow as pa
    import pyarrow.parquet

    path = folder / "large.parquet"
    rows = 50_000
    columns = {
        "observation": pa.FixedSizeListArray.from_arrays(
            pa.array(np.zeros(rows * ROW, np.float32)), ROW
        ),
        "action": pa.array(np.zeros(rows)),
    }
    schema = pa.schema(
        [*((name, column.type) for name, column in columns.items()), ("episode", pa.int64())]
    )
    with (
        contextlib.closing(Sparse(path)) as file,
        pyarrow.parquet.ParquetWriter(
            file, schema, use_dictionary=False, compression="none"
        ) as writer,
    ):
        for start in range(0, steps, rows):
            table = pa.table({**columns, "episode": (start + np.arange(rows)) // LENGTH})
            writer.write_table(table, row_group_size=rows)
    return path


def _rlds(folder: Path, steps: int) -> Path:
    """Export one short episode, and write its record with zeros in it as often as steps ask for."""
    box = gymnasium.spaces.Box
    with orlog.DatasetWriter(
        "bench/zeros-v0",
        observation_space=box(-np.inf, np.inf, (ROW,), np.float32),
        action_space=box(-np.inf, np.inf, (2,), np.float32),
        reward_dtype=np.float32,
    ) as writer:
        writer.add_episode(
            orlog.Episode(
                observations=np.zeros((LENGTH + 1, ROW), np.float32),
                actions=np.zeros((LENGTH, 2), np.float32),
                rewards=np.zeros(LENGTH, np.float32),
                terminations=np.zeros(LENGTH, bool),
                truncations=np.arange(LENGTH) == LENGTH - 1,
            )
        )
    orlog.export_dataset("bench/zeros-v0", folder / "out", to="rlds", lossy=True)
    (info,) = folder.rglob("dataset_info.json")
    (records,) = info.parent.glob("*.tfrecord*")
    record = records.read_bytes()
    episodes = steps // LENGTH
    with contextlib.closing(Sparse(records)) as file:
        for _ in range(episodes):
            file.write(record)
    said = json.loads(info.read_text())
    (split,) = said["splits"]
    split["shardLengths"], split["numBytes"] = [str(episodes)], str(episodes * len(record))
    info.write_text(json.dumps(said))
    return folder / "out"


LARGE: dict[str, Callable[[Path, int], Path]] = {
    "d4rl": lambda folder, steps: _hdf5(
        folder, steps, {"compression": "gzip", "compression_opts": 1}
    ),
    "d4rl, not packed": lambda folder, steps: _hdf5(folder, steps, {}),
    "npz": lambda folder, steps: _npz(folder, steps, zipfile.ZIP_DEFLATED),
    "npz, not packed": lambda folder, steps: _npz(folder, steps, zipfile.ZIP_STORED),
    "robomimic": _robomimic,
    "rlds": _rlds,
    "table": _parquet,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        import_one(*sys.argv[2:])
    else:
        main()
