"""Writes a dataset as a folder of TensorDict, which `TensorDict.load_memmap` reads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.formats.torchrl.tensordict_files import (
    FLAGS,
    IDS,
    INFO,
    META,
    NEXT,
    OBSERVATION,
    file_name,
)
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError
from orlog.manifests.spaces import space_leaves


def write_tensors(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write the folder itself, for `TensorDict.load_memmap(folder)`."""
    count = dataset.total_steps
    flags = {flag: (np.dtype(bool), (1,)) for flag in FLAGS}
    columns = {
        **_leaves(dataset.observation_space, OBSERVATION),
        **_leaves(dataset.action_space, "action"),
        **flags,
        IDS[0]: (np.dtype(np.int64), ()),
        **_leaves(dataset.observation_space, f"{NEXT}{OBSERVATION}"),
        f"{NEXT}reward": (dataset.schema.reward_dtype, (1,)),
        **{f"{NEXT}{flag}": kind for flag, kind in flags.items()},
        **{
            f"{INFO}{name.removeprefix('infos/')}": (spec.dtype, spec.shape)
            for name, spec in _kept_infos(dataset).items()
        },
    }
    files = write_documents(
        folder, {name: (dtype, (count, *shape)) for name, (dtype, shape) in columns.items()}
    )
    done = 0
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context(path.open("wb")) for name, path in files.items()}
        for number, episode in enumerate(dataset):
            length = len(episode.rewards)
            rows = {
                **_values(_part(episode.observations, slice(None, -1)), OBSERVATION),
                **_values(episode.actions, "action"),
                **{flag: np.zeros(length, bool) for flag in FLAGS},
                IDS[0]: np.full(length, number),
                **_values(_part(episode.observations, slice(1, None)), f"{NEXT}{OBSERVATION}"),
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


def _kept_infos(dataset: Dataset) -> dict[str, Any]:
    """Return the columns of infos that are tensors."""
    schema = dataset.schema
    return {
        name: spec
        for name, spec in schema.extras.items()
        if name.startswith("infos/") and name not in schema.variable
    }


def _leaves(
    space: gymnasium.Space[Any], path: str
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return dtype and shape of a row of each tensor of a space."""
    found = {}
    for leaf in space_leaves(space):
        name = "/".join(map(str, (path, *leaf.keys)))
        if leaf.space.shape is None or leaf.space.dtype is None:
            raise SchemaError(f"{name}: TorchRL's tensors hold numbers, found {leaf.space}.")
        found[name] = (np.dtype(leaf.space.dtype), leaf.space.shape)
    return found


def _values(values: Any, path: str) -> dict[str, np.ndarray]:
    """Return the values of each tensor of a space."""
    if not isinstance(values, dict | tuple):
        return {path: values}
    parts = values.items() if isinstance(values, dict) else enumerate(values)
    return {
        name: one for key, part in parts for name, one in _values(part, f"{path}/{key}").items()
    }


def _part(values: Any, rows: slice) -> Any:
    if isinstance(values, dict):
        return {key: _part(one, rows) for key, one in values.items()}
    if isinstance(values, tuple):
        return tuple(_part(one, rows) for one in values)
    return values[rows]


def losses_of_tensors(dataset: Dataset) -> list[str]:
    """Say what TorchRL's tensors cannot hold.

    Raises SchemaError if observations or actions that are no tensors.
    """
    for space in (dataset.observation_space, dataset.action_space):
        _leaves(space, dataset.name)
    kept = _kept_infos(dataset)
    lost = [name for name in dataset.schema.extras if name not in kept]
    said = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if (dataset.column("episodes/seeds") >= 0).any():
        said.append("Seeds of episodes are lost.")
    return said


def write_documents(
    folder: Path, columns: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
) -> dict[str, Path]:
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
            place = place / file_name(parent)
        bodies.setdefault(place, {})[name] = {
            "device": "cpu",
            "shape": list(shape),
            "dtype": f"torch.{dtype}",
            "is_nested": False,
        }
        files[path] = place / f"{file_name(name)}.memmap"
    for place, body in bodies.items():
        place.mkdir(parents=True, exist_ok=True)
        more = {"shape": [count], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
        (place / META).write_text(json.dumps(body | more), "utf-8")
    return files
