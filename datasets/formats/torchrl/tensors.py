"""Folders in which TensorDict keeps tensors, read and written: no code, no pickle, no link followed.

FOLDER/meta.json             {"shape": [S], "observation": {"dtype": "torch.float32", "shape": [S, 3], ..},
                              "next": {"type": "TensorDict"}, ..}
FOLDER/observation.memmap    the numbers alone, row by row
FOLDER/next/meta.json ..     a TensorDict inside
"""

from __future__ import annotations

import contextlib
import json
import math
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from orlog.datasets.formats.safe_reading import read_json_object
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.spaces import space_leaves

META = "meta.json"
FLAGS = ("done", "terminated", "truncated")
IDS = ("collector/traj_ids", "traj_ids", "episode", "next/traj_ids", "next/episode")
NEXT = "next/"
OBSERVATION = "observation"
INFO = "info/"
LONGEST_NAME = 240  # of a file, in bytes
NUMBERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
DTYPES = {f"torch.{name}": np.dtype(name) for name in (*NUMBERS, "float16", "float32", "float64")}
UNSAFE = frozenset('/<>:"|?*\\ %\x7f') | {chr(code) for code in range(32)}
Kind = tuple[np.dtype[Any], tuple[int, ...]]  # the dtype of a tensor, and the shape of a row


class Batch(NamedTuple):
    """Where the rows of one or more environments lie; those of one come after those of the other.

    Attributes:
        shape: Shape of the batch: rows, or environments and rows, or rows and environments.
        environments: How many environments there are.
        steps: Rows of each that are filled.
        in_turn: Whether each row of the file is followed by that of the next environment.
        oldest: The row of each environment that was written first: not 0 in a ring whose first rows were overwritten.
    """

    shape: tuple[int, ...]
    environments: int
    steps: int
    in_turn: bool
    oldest: int = 0

    @property
    def rows_filled(self) -> int:
        """How many rows are filled."""
        return self.environments * self.steps

    def ends(self) -> np.ndarray:
        """Return the last row of each environment."""
        return self.steps * np.arange(1, self.environments + 1) - 1

    def rows(self, start: int, stop: int) -> slice | np.ndarray:
        """Return which rows of the file those from `start` on and before `stop` are."""
        if not (self.in_turn or self.oldest):
            return slice(start, stop)
        environment, step = np.divmod(np.arange(start, stop), self.steps)
        return (step + self.oldest) % self.steps * self.environments + environment


class TensorColumn:
    """The rows of a tensor, of one environment after another, each in the order of time."""

    def __init__(self, tensor: np.ndarray, batch: Batch, where: str) -> None:
        self._batch, self.where, self.dtype = batch, where, tensor.dtype
        row: tuple[int, ...] = tensor.shape[len(batch.shape) :]
        self.shape = (batch.rows_filled, *row)
        self._tensor = tensor.reshape(-1, *row)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows."""
        start, stop, _ = rows.indices(len(self))
        values = np.array(self._tensor[self._batch.rows(start, stop)])
        if self.dtype == bool and (values.view(np.uint8) > 1).any():
            raise IntegrityError(f"{self.where}: a flag is neither 0 nor 1.")
        return values


def read_document(path: Path, where: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises SchemaError if there is no such file, it is a link, or holds something else; IntegrityError if it
    is no JSON.
    """
    return read_json_object(path, where, missing=f"has no {path.name} that can be read.")


def open_tensors(folder: Path, where: str) -> tuple[dict[str, np.ndarray], list[str], tuple[int, ...]]:
    """Return the tensors with a row for each step by their paths, what is left out, and the shape of the batch.

    A path is such as `next/observation`; a batch has one or two axes.
    Raises SchemaError if documents are not those of TensorDict, or a file is a link; IntegrityError if a file is not
    there, or has not the size that its shape says.
    """
    shape = _shape(read_document(folder / META, where), (), where)
    if len(shape) not in (1, 2) or not math.prod(shape):
        raise SchemaError(
            f"{where}: expected a row for each step, or for each environment and step, found a batch of shape "
            f"{shape}. Save the steps of each environment one after another: "
            "TensorDict.load_memmap(..).flatten(0, -2).memmap(..), if time is the last axis."
        )
    tensors: dict[str, np.ndarray] = {}
    left_out: list[str] = []
    for name, tensor in _tensors_in(folder, where, "", shape):
        if tensor is None:
            left_out.append(name)
        else:
            tensors[name] = tensor
    return tensors, left_out, shape


def _tensors_in(
    folder: Path, where: str, prefix: str, batch: tuple[int, ...]
) -> Iterator[tuple[str, np.ndarray | None]]:
    """Yield the path of what lies in a folder and in those in it, and its tensor; None for what is left out."""
    here = f"{where}, {prefix.rstrip('/')}" if prefix else where
    if folder.is_symlink():
        raise SchemaError(f"{here}: a link, which is not followed.")
    body = read_document(folder / META, here)
    _shape(body, batch, here)
    for key, stated in body.items():
        if not isinstance(stated, dict):  # of the TensorDict itself: shape, device, names
            continue
        name, path = f"{prefix}{key}", folder / _file_name(key)
        if len(path.name.encode(errors="replace")) > LONGEST_NAME:
            raise SchemaError(f"{here}: the name {key!r:.50} is too long.")
        if stated.get("type") == "TensorDict":
            yield from _tensors_in(path, where, f"{name}/", batch)
            continue
        dtype = DTYPES.get(str(stated.get("dtype")))
        shape = () if "type" in stated else _shape(stated, batch, f"{where}, {name}")
        if dtype is None or stated.get("is_nested") or not shape or 0 in shape:
            yield name, None
        else:
            file = path.with_name(f"{path.name}.memmap")
            yield name, _mapped(file, dtype, shape, f"{where}, {name}")


def _shape(body: Mapping[str, Any], batch: tuple[int, ...], where: str) -> tuple[int, ...]:
    """Return the shape of a tensor or of a TensorDict, which begins with that of the batch."""
    shape = body.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise SchemaError(f"{where}: expected a shape, found {shape!r:.50}.")
    if tuple(shape[: len(batch)]) != batch:
        raise SchemaError(f"{where}: expected {' x '.join(map(str, batch))} rows, found {shape}.")
    return tuple(shape)


def _mapped(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> np.ndarray:
    try:
        about = file.lstat()
    except (OSError, ValueError) as error:  # the name may be none
        raise IntegrityError(f"{where}: {file.name!r} is missing.") from error
    if not stat.S_ISREG(about.st_mode):
        raise SchemaError(f"{where}: {file.name} is a link or a folder, which is not read.")
    wanted = math.prod(shape) * dtype.itemsize
    if about.st_size != wanted:
        raise IntegrityError(
            f"{where}: shape {shape} of {dtype} takes {wanted:,} bytes, and {file.name} has {about.st_size:,}."
        )
    return np.memmap(file, dtype, "r", shape=shape)


def _file_name(key: str) -> str:
    """Return the name of a file as TensorDict makes it of a key; it never leaves the folder."""
    if key in ("", ".", ".."):
        return "%2E" * len(key) or "%"
    return "".join(f"%{ord(character):02X}" if character in UNSAFE else character for character in key)


def write_tensors(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write the folder itself, for `TensorDict.load_memmap(folder)`."""
    count = dataset.total_steps
    flags: dict[str, Kind] = {flag: (np.dtype(bool), (1,)) for flag in FLAGS}
    columns: dict[str, Kind] = {
        **_leaves(dataset.observation_space, OBSERVATION),
        **_leaves(dataset.action_space, "action"),
        **flags,
        IDS[0]: (np.dtype(np.int64), ()),
        **_leaves(dataset.observation_space, f"{NEXT}{OBSERVATION}"),
        f"{NEXT}reward": (dataset.schema.reward_dtype, (1,)),
        **{f"{NEXT}{flag}": kind for flag, kind in flags.items()},
    }
    for name in _kept_infos(dataset):
        spec = dataset.schema.extras[name]
        columns[f"{INFO}{name.removeprefix('infos/')}"] = spec.dtype, spec.shape
    files = write_documents(folder, {name: (dtype, (count, *shape)) for name, (dtype, shape) in columns.items()})
    done = 0
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context(path.open("wb")) for name, path in files.items()}
        for number, episode in enumerate(dataset):
            length = len(episode.rewards)
            observations = _parts(dataset.observation_space, episode.observations, OBSERVATION)
            rows = {
                **{name: values[:-1] for name, values in observations.items()},
                **_parts(dataset.action_space, episode.actions, "action"),
                **{flag: np.zeros(length, bool) for flag in FLAGS},
                IDS[0]: np.full(length, number),
                **{f"{NEXT}{name}": values[1:] for name, values in observations.items()},
                f"{NEXT}reward": episode.rewards,
                f"{NEXT}done": episode.terminations | episode.truncations,
                f"{NEXT}terminated": episode.terminations,
                f"{NEXT}truncated": episode.truncations,
                **{f"{INFO}{name}": values for name, values in episode.infos.items()},
            }
            for name, stream in streams.items():
                stream.write(np.ascontiguousarray(rows[name], columns[name][0]).data)
            done += length
            progress(done, count)


def _kept_infos(dataset: Dataset) -> list[str]:
    schema = dataset.schema
    return [name for name in schema.extras if name.startswith("infos/") and name not in schema.variable]


def _leaves(space: gymnasium.Space[Any], path: str) -> dict[str, Kind]:
    leaves = {}
    for leaf in space_leaves(space):
        name = "/".join(map(str, (path, *leaf.keys)))
        if leaf.space.shape is None or leaf.space.dtype is None:
            raise SchemaError(f"{name}: TorchRL's tensors hold numbers, found {leaf.space}.")
        leaves[name] = (np.dtype(leaf.space.dtype), leaf.space.shape)
    return leaves


def _parts(space: gymnasium.Space[Any], values: Any, path: str) -> dict[str, np.ndarray]:
    parts = {}
    for leaf in space_leaves(space):
        part = values
        for key in leaf.keys:
            part = part[key]
        parts["/".join(map(str, (path, *leaf.keys)))] = part
    return parts


def losses_of_tensors(dataset: Dataset) -> list[str]:
    """Say what TorchRL's tensors cannot hold.

    Raises SchemaError if observations or actions that are no tensors.
    """
    for space in (dataset.observation_space, dataset.action_space):
        _leaves(space, dataset.name)
    kept = _kept_infos(dataset)
    lost = [name for name in dataset.schema.extras if name not in kept]
    losses = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if (dataset.column("episodes/seeds") >= 0).any():
        losses.append("Seeds of episodes are lost.")
    return losses


def write_documents(folder: Path, columns: Mapping[str, Kind]) -> dict[str, Path]:
    """Write each `meta.json` for tensors, which all have the same number of rows, by dtype and shape of each path.

    Returns the file of each tensor, which is still to be written.
    """
    count = next(iter(columns.values()))[1][0]
    bodies: dict[Path, dict[str, Any]] = {}
    files = {}
    for path, (dtype, shape) in columns.items():
        place = folder
        *parents, name = path.split("/")
        for parent in parents:
            bodies.setdefault(place, {})[parent] = {"type": "TensorDict"}
            place = place / _file_name(parent)
        bodies.setdefault(place, {})[name] = {
            "device": "cpu",
            "shape": list(shape),
            "dtype": f"torch.{dtype}",
            "is_nested": False,
        }
        files[path] = place / f"{_file_name(name)}.memmap"
    for place, body in bodies.items():
        place.mkdir(parents=True, exist_ok=True)
        more = {"shape": [count], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
        (place / META).write_text(json.dumps(body | more), "utf-8")
    return files
