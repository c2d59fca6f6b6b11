"""Reads the logs of DQN on Atari (Agarwal and others, 2020), as Dopamine writes them: gzip files of single arrays.

    $store$_observation_ckpt.0.gz (N, 84, 84)   $store$_action_ckpt.0.gz   $store$_reward_ckpt.0.gz
    $store$_terminal_ckpt.0.gz   [add_count_ckpt.0.gz   invalid_range_ckpt.0.gz]

All checkpoints of a folder are read, in the order of their numbers, each as a log of its own: its last episode goes on in
the next one, which nothing says where. An observation is one frame, the newest; `orlog.frames` stacks them.
https://research.google/resources/datasets/dqn-replay/
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orlog.datasets.formats._containers.npz_files import NpzColumn, npy_header, reading_npz
from orlog.datasets.formats._shared.episodes import Asked, Options
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats._shared.places import Place, Places, files_in
from orlog.datasets.formats.formats import Format
from orlog.errors import SchemaError

NAME = re.compile(r"(?:\$store\$_)?(\w+)_ckpt\.(\d+)\.gz")
LARGEST_ROW_BYTES = 2**24
MOST_ROWS = 2**31
NEEDED = {"observation", "action", "reward", "terminal"}


class _Checkpoint(NamedTuple):
    """A checkpoint: what errors call its folder, its number, and the file of each array."""

    where: str
    number: int
    files: dict[str, Path]


def _checkpoints(asked: Asked) -> list[_Checkpoint]:
    """Return the checkpoints of a folder, by their numbers."""
    folder, where = asked.files[0], asked.sources[0]
    checkpoints: dict[int, dict[str, Path]] = {}
    for file, _ in files_in(folder, where, lambda one: NAME.fullmatch(one.name) is not None):
        found = NAME.fullmatch(file.name)
        assert found is not None
        checkpoints.setdefault(int(found[2]), {})[found[1]] = file
    return [_Checkpoint(where, number, files) for number, files in sorted(checkpoints.items())]


def _open_checkpoint(checkpoint: _Checkpoint, _options: Options) -> Generator[Place]:
    """Yield the arrays of a checkpoint, as streams."""
    where, number, files = checkpoint
    place = f"{where}, checkpoint {number}"
    missing = sorted(NEEDED - files.keys())
    if missing:
        raise SchemaError(f"{place}: has no {missing[0]}.")
    with contextlib.ExitStack() as stack:

        def column(name: str) -> Any:
            return _column(files[name], f"{where}/{files[name].name}", stack)

        yield Place(place, sorted(files), column, reading_npz, job_bytes=None)


def _column(file: Path, where: str, stack: contextlib.ExitStack) -> NpzColumn:
    """Return an array as a stream of rows."""
    with reading_npz(where):
        stream: Any = stack.enter_context(gzip.GzipFile(file))
        shape, is_fortran, dtype = npy_header(stream, where)
    row_bytes = dtype.itemsize
    for size in shape[1:]:
        row_bytes *= size
    if (
        dtype.kind not in "biuf"
        or is_fortran
        or not shape
        or not 0 < row_bytes <= LARGEST_ROW_BYTES
    ):
        raise SchemaError(f"{where}: expected numbers with a row a step, found {dtype} {shape}.")
    if not 0 < shape[0] <= MOST_ROWS:
        raise SchemaError(f"{where}: expected rows, found {shape[0]:,}.")
    return NpzColumn(stream, where, shape, dtype)


KNOWN = Known(
    columns={
        "observation": "observation",
        "action": "action",
        "reward": "reward",
        "terminated": "terminal",
    },
    episode="",
    places=Places(_checkpoints, _open_checkpoint),
)


def _recognizes(files: Sequence[Path]) -> bool:
    if len(files) != 1 or not files[0].is_dir():
        return False
    found = [match[1] for one in files[0].iterdir() if (match := NAME.fullmatch(one.name))]
    return set(found) >= NEEDED


FORMAT = Format(
    name="dqn_replay",
    open=functools.partial(open_known, KNOWN),
    recognizes=_recognizes,
    extensions=("",),
    shares=True,
    reads=("./*_ckpt.#.gz",),
)
