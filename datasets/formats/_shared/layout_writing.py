"""Writes files of known layouts of arrays: ALOHA's, robomimic's, and replay buffers in Zarr."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numcodecs
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.formats._shared.flat_writing import (
    demonstration_losses,
    file_stem,
    flat_columns,
    stop_losses,
)
from orlog.datasets.formats._shared.hdf5_files import create_hdf5, write_checked
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import SchemaError, needing

BASE = "infos/base_action"
CHUNK_BYTES = 2**20
GYMNASIUM = 2
"""Robomimic's number of an environment of Gymnasium (`EnvType`)."""
OWN = ("actions", "rewards", "dones", "obs", "next_obs")
Progress = Callable[[int, int], None]


def write_aloha(dataset: Dataset, folder: Path, progress: Progress) -> None:
    """Write `episode_0.hdf5`, .., which ACT's training opens."""
    for number, rows in enumerate(flat_columns(dataset, progress)):
        with create_hdf5(folder / f"episode_{number}.hdf5") as (file, _):
            file.attrs["sim"] = dataset.environment is not None
            write_checked(file, "action", rows["actions"])
            if BASE in rows:
                write_checked(file, "base_action", rows[BASE])
            for column, values in rows.items():
                root, _, part = column.partition("/")
                if root == "observations":
                    name = part.replace("images.", "images/", 1) or "qpos"
                    write_checked(file, f"observations/{name}", values)


def aloha_losses(dataset: Dataset) -> list[str]:
    """Say what ALOHA's recordings cannot hold; raise SchemaError if observations have no joints."""
    space = dataset.observation_space
    if isinstance(space, spaces.Dict) and "qpos" not in space.spaces:
        raise SchemaError(
            f"{dataset.name}: ALOHA's recordings hold joints as qpos; the observations have {', '.join(space)}."
        )
    return [*demonstration_losses(dataset, "ALOHA's recordings", own=(BASE,)), "Rewards are lost."]


def write_zarr(dataset: Dataset, folder: Path, progress: Progress) -> None:
    """Write `NAME.zarr`, a replay buffer in version 2, which Diffusion Policy opens.

    A filter of numcodecs, as old as version 2, keeps a checksum in each chunk; every reader compares it.
    """
    with needing("to write Zarr needs zarr", "orlog[formats]"):
        import zarr
    checks: dict[str, Any] = {"filters": [numcodecs.CRC32()]}
    root = zarr.open_group(folder / f"{file_stem(dataset)}.zarr", mode="w", zarr_format=2)
    arrays: dict[str, Any] = {}
    ends: list[int] = []
    for rows in flat_columns(dataset, progress):
        start = ends[-1] if ends else 0
        ends.append(start + len(rows["rewards"]))
        named = {"data/action": rows["actions"], "data/reward": rows["rewards"]}
        for column, values in rows.items():
            if column.startswith("observations"):
                named[f"data/{column.partition('/')[2] or 'state'}"] = values
        for name, values in named.items():
            if name not in arrays:
                row_bytes = max(1, values.dtype.itemsize * math.prod(values.shape[1:]))
                chunk = min(dataset.total_steps, max(1, CHUNK_BYTES // row_bytes))
                arrays[name] = root.create_array(
                    name,
                    shape=(dataset.total_steps, *values.shape[1:]),
                    chunks=(chunk, *values.shape[1:]),
                    dtype=values.dtype,
                    **checks,
                )
            arrays[name][start : ends[-1]] = values
    root.create_array("meta/episode_ends", data=np.array(ends, np.int64), **checks)


def zarr_losses(dataset: Dataset) -> list[str]:
    """Say what replay buffers cannot hold."""
    return demonstration_losses(dataset, "replay buffers", own=("action", "reward"))


def write_robomimic(dataset: Dataset, folder: Path, progress: Progress) -> None:
    """Write `NAME.hdf5`."""
    masks: dict[str, list[str]] = {}
    done = 0
    with create_hdf5(folder / f"{file_stem(dataset)}.hdf5", progress) as (file, progress):
        data = file.create_group("data")
        for number, episode in enumerate(dataset):
            demonstration = f"demo_{number}"
            _write_demonstration(data.create_group(demonstration), episode)
            for key, value in episode.metadata.items():
                if key.startswith("mask/") and value:
                    masks.setdefault(key, []).append(demonstration)
            done += len(episode.rewards)
            progress(done, dataset.total_steps)
        data.attrs["total"] = done
        environment = dataset.environment
        data.attrs["env_args"] = json.dumps(
            {
                "env_name": "" if environment is None else environment.id,
                "type": GYMNASIUM,
                "env_kwargs": {} if environment is None else environment.kwargs,
            }
        )
        for mask, names in masks.items():
            file.create_dataset(mask, data=np.array(names, dtype="S"))


def _write_demonstration(group: Any, episode: Episode) -> None:
    observations = episode.observations
    parts = observations if isinstance(observations, dict) else {"state": observations}
    for part, values in parts.items():
        write_checked(group, f"obs/{part}", values[:-1])
        write_checked(group, f"next_obs/{part}", values[1:])
    write_checked(group, "actions", episode.actions)
    write_checked(group, "rewards", episode.rewards)
    dones = episode.infos.get("done", episode.terminations)
    write_checked(group, "dones", np.asarray(dones).astype(np.int64))
    for name, values in episode.infos.items():
        if name != "done" and isinstance(values, np.ndarray) and name.split("/")[0] not in OWN:
            write_checked(group, name, values)
    group.attrs["num_samples"] = len(episode.rewards)
    if "success" in episode.metadata:
        group.attrs["success"] = bool(episode.metadata["success"])


def robomimic_losses(dataset: Dataset) -> list[str]:
    """Say what robomimic's files cannot hold; raise SchemaError if observations or actions have no place."""
    space, schema = dataset.observation_space, dataset.schema
    parts: list[gymnasium.Space[Any]] = [dataset.action_space, space]
    if isinstance(space, spaces.Dict):
        parts = [dataset.action_space, *space.spaces.values()]
    if not all(isinstance(part, spaces.Box) for part in parts):
        raise SchemaError(
            f"{dataset.name}: robomimic's files hold a Box, or a Dict of them, and actions that are a "
            f"Box; found {space} and {dataset.action_space}."
        )
    lost = [
        name
        for name in schema.extras
        if name not in ("infos/done", "episodes/split", "episodes/success")
        and not name.startswith("episodes/mask/")
        and not (
            name.startswith("infos/")
            and name.split("/")[1] not in OWN
            and name not in schema.variable
        )
    ]
    said = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    if "infos/done" not in schema.extras and dataset.column("truncations").any():
        said.append("Truncations are lost: dones hold terminations alone.")
    return [*said, *stop_losses(dataset, "truncated")]
