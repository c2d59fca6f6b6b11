"""What reading files of other formats costs, beside reading the same bytes by the library of the format.

100,000 steps like HalfCheetah's (17 observations, 6 actions, float32) are exported to every format that
orlog writes, and turned into those that it only reads. `library` reads all arrays of the files with h5py, NumPy,
pyarrow, TensorStore or PyAV into arrays of NumPy (of RLDS's records it compares the checksums, of other files it takes
the bytes). A tool that is named reads the same files in an environment of its own: TensorFlow gives the raw records,
or parses each as tf.train.Example; tensordict loads its folder and copies the tensors, imitation makes each
trajectory. `orlog` is the reading part of
`orlog import`: it opens the files and pulls all steps, checked, in pieces, and writes nothing. Both take turns in one
run; the time is that of the processor, all threads included, and the ratio is the median over turns of library / orlog.

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
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import orlog
from benchmarks.large_reader_files import LARGE, ROW
from benchmarks.reader_files import EPISODES, LENGTH, write_all
from benchmarks.recording import machine
from benchmarks.store import RESULTS, scratch_folder
from orlog.datasets.formats.episodes import Asked, Options
from orlog.datasets.formats.formats import Format, formats
from orlog.datasets.formats.rlds.tfrecords import read_records
from tests.datasets.formats.test_imitation import PACKAGES as IMITATION_PACKAGES
from tests.datasets.formats.test_rlds import TENSORFLOW
from tests.datasets.formats.test_torchrl import PACKAGES as TORCHRL
from tests.tool_environments import tool_python

TURNS = 5
ROLES = ("observation", "action", "reward", "terminated", "truncated")
CSV = Options(
    columns={**{name: name for name in ROLES}, "observation": "observation_*", "action": "action_*"},
    episode="episode",
    step="step",
)
OPTIONS = {"table, csv": CSV}
LOOP = """
for _ in sys.stdin:
    start = time.process_time()
    read()
    print(time.process_time() - start, flush=True)
"""
RECORDS = """
import pathlib, sys, time
import tensorflow as tf
tf.config.set_visible_devices([], "GPU")
files = sorted(map(str, pathlib.Path(sys.argv[1]).rglob("*.tfrecord*")))
records = tf.data.TFRecordDataset(files)
def read():
    for _ in records.as_numpy_iterator():
        pass
"""
EXAMPLES = (
    RECORDS
    + """
first = tf.train.Example.FromString(next(records.as_numpy_iterator())).features.feature
kinds = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}
wanted = {
    name: tf.io.FixedLenSequenceFeature((), kinds[one.WhichOneof("kind")], allow_missing=True)
    for name, one in first.items()
    if one.WhichOneof("kind")
}
parsed = records.map(lambda record: tf.io.parse_single_example(record, wanted))
def read():
    for _ in parsed.as_numpy_iterator():
        pass
"""
)
TENSORDICT = """
import sys, time
import torch
from tensordict import TensorDict
torch.set_num_threads(1)
def read():
    found = TensorDict.load_memmap(sys.argv[1])
    return [one.clone() for one in found.values(True, True)]
"""
IMITATION = """
import sys, time
from imitation.data import serialize
def read():
    for one in serialize.load(sys.argv[1]):
        one.obs, one.acts, one.rews
"""
THEIRS = {
    ("imitation", "imitation"): (IMITATION_PACKAGES, IMITATION),
    ("rlds", "TensorFlow"): (TENSORFLOW, EXAMPLES),
    ("rlds", "raw records"): (TENSORFLOW, RECORDS),
    ("torchrl", "tensordict"): (TORCHRL, TENSORDICT),
}
"""Tools in environments of their own, and what reads a folder there."""


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
    files_of = write_all(scratch)
    for name in [*files_of, *(f"{one}, {tool}" for one, tool in THEIRS)]:
        form, _, tool = name.partition(", ")
        if wanted and name not in wanted:
            continue
        files = files_of.get(name) or files_of[form]
        every = [path for file in files for path in ([file] if file.is_file() else _inside(file))]
        options = OPTIONS.get(name, Options())
        with contextlib.ExitStack() as stack:
            library: Callable[[], float] = functools.partial(read_by_library, form, files, every)
            if (form, tool) in THEIRS:
                library = stack.enter_context(their_reading(form, tool, files[0]))
            spent = [
                (library(), timed(lambda f=files, o=form, w=options: pull(formats()[o], f, w)))  # type: ignore[misc]
                for _ in range(TURNS)
            ]
        size = sum(path.stat().st_size for path in every) / 1e6
        medians = [statistics.median(column) for column in zip(*spent, strict=True)]
        ratio = statistics.median(library / ours for library, ours in spent)
        lines.append(f"{name:22}  {size:6.1f}  {medians[0]:9.3f}  {medians[1]:7.3f}  {ratio:5.2f}")
        print(lines[-1], flush=True)
    return "\n".join([*lines, "", machine()])


def read_by_library(form: str, files: Sequence[Path], every: Sequence[Path]) -> float:
    """Return the seconds in which the library of a format reads files."""
    if form == "ogmarl":
        return timed(lambda: read_vault(files[0]))
    return timed(lambda: [read_raw(path) for path in every])


@contextlib.contextmanager
def their_reading(form: str, tool: str, folder: Path) -> Iterator[Callable[[], float]]:
    """Start a tool in an environment of its own; what is yielded returns the seconds in which it reads a folder."""
    packages, program = THEIRS[form, tool]
    python = tool_python(*packages, alone=form == "rlds", dependencies=form != "imitation")
    command = [str(python), "-c", program + LOOP, str(folder)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(  # noqa: S603 (ourselves)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet
    ) as child:
        asks, answers = child.stdin, child.stdout
        assert asks is not None
        assert answers is not None

        def seconds() -> float:
            print(file=asks, flush=True)
            return float(answers.readline())

        seconds()  # the first time it also gets ready
        yield seconds
        asks.close()


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
            opened.visititems(lambda _name, node: arrays.append(node[()]) if isinstance(node, h5py.Dataset) else None)
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
    if file.suffix == ".arrow":
        import pyarrow as pa

        with pa.memory_map(str(file)) as source:
            is_file = file.parent.parent.name == "data"
            reader = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source)
            return len([_numbers(column) for column in reader.read_all().columns])
    if file.suffix == ".mp4":
        import av

        with av.open(str(file)) as opened:
            return len([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)])
    if ".tfrecord" in file.name:  # what reads them without TensorFlow compares checksums at least
        with file.open("rb") as opened:
            return len(list(read_records(opened, file.name)))
    return len(file.read_bytes())


def read_vault(folder: Path) -> int:
    """Return how many arrays a vault holds, all of which are read by TensorStore."""
    import tensorstore

    names = [*json.loads((folder / "metadata.json").read_bytes())["structure_shape"]]
    for name in names:
        base = {"driver": "file", "path": f"{folder}/"}
        kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}./"}
        array = tensorstore.open({"driver": "zarr", "kvstore": kvstore}, open=True).result()
        array.read().result()
    return len(names)


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _numbers(column: Any) -> np.ndarray | None:
    """Return numbers; no texts and no nothing, which are not read here either."""
    column = column.combine_chunks()
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        column = column.flatten()
    is_number = any(word in str(column.type) for word in ("int", "float", "double", "bool"))
    return np.asarray(column) if is_number and "struct" not in str(column.type) else None


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
        lines.append(f"{name:22}  {size:7,.0f}  {own / 2**20:7,.0f}  {everything / 2**20:17,.0f}  {seconds:7.0f}")
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        import_one(*sys.argv[2:])
    else:
        main()
