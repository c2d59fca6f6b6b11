"""How robomimic's files are written, and what the environment in them says of actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.episode import Episode
from orlog.datasets.formats._containers.episode_values import plain
from orlog.datasets.formats._containers.hdf5_files import (
    check_stored,
    child,
    create_hdf5,
    has_child,
    names_in,
    write_checked,
)
from orlog.datasets.formats._shared.episodes import Options
from orlog.datasets.formats._shared.flat_writing import file_stem, stop_losses
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import SchemaError

LAYOUT = "robomimic's layout"
OBSERVED = ("obs", "next_obs")
NO_ROWS: np.ndarray = np.zeros(0)
JOINTS = ("joint_states", "robot0_joint_pos")
ROBOSUITE, GYMNASIUM = 1, 2
"""Robomimic's numbers of kinds of environments (`EnvType`)."""


def masks_in(file: Any, where: str, file_bytes: int) -> dict[str, set[str]]:
    """Return the names of demonstrations in each mask."""
    if not has_child(file, "mask"):
        return {}
    h5py = import_h5py()
    masks = {}
    group = child(file, "mask", where, LAYOUT)
    for name in names_in(group):
        node = child(group, name, f"{where}, mask", LAYOUT)
        if not isinstance(node, h5py.Dataset) or node.ndim != 1 or node.dtype.kind not in "SO":
            raise SchemaError(f"{where}, mask/{name}: expected names of demonstrations.")
        check_stored(node, f"{where}, mask/{name}", file_bytes)
        masks[name] = {one.decode() if isinstance(one, bytes) else str(one) for one in node[:]}
    return masks


def write_robomimic(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write `NAME.hdf5`."""
    name = file_stem(dataset)
    masks: dict[str, list[str]] = {}
    done = 0
    with create_hdf5(folder / f"{name}.hdf5", progress) as (file, progress):
        data = file.create_group("data")
        for number, episode in enumerate(dataset):
            demonstration = f"demo_{number}"
            _write_episode(data.create_group(demonstration), episode)
            for key, value in episode.metadata.items():
                if key.startswith("mask/") and value:
                    masks.setdefault(key.removeprefix("mask/"), []).append(demonstration)
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
            file.create_dataset(f"mask/{mask}", data=np.array(names, dtype="S"))


def _write_episode(group: Any, episode: Episode) -> None:
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
        if name != "done" and _has_place(name, values):
            write_checked(group, name, values)
    group.attrs["num_samples"] = len(episode.rewards)
    if "success" in episode.metadata:
        group.attrs["success"] = bool(episode.metadata["success"])


def _has_place(name: str, values: Any) -> bool:
    """Return whether infos can lie beside the arrays of the layout: numbers of a name of their own."""
    taken = ("actions", "rewards", "dones", *OBSERVED)
    return isinstance(values, np.ndarray) and name.split("/")[0] not in taken


def robomimic_losses(dataset: Dataset) -> list[str]:
    """Say what robomimic's files cannot hold.

    Raises SchemaError if observations or actions that they have no place for.
    """
    space = dataset.observation_space
    parts: list[gymnasium.Space[Any]] = [space]
    if isinstance(space, spaces.Dict):
        parts = list(space.spaces.values())
    actions = dataset.action_space
    if not all(isinstance(part, spaces.Box) for part in (*parts, actions)):
        raise SchemaError(
            f"{dataset.name}: robomimic's files hold a Box, or a Dict of them, and actions that are a "
            f"Box; found {space} and {actions}."
        )
    kept = {"infos/done", "episodes/split", "episodes/success"}
    numbers_only = dataset.schema.extras.keys() - dataset.schema.variable.keys()
    kept |= {
        name
        for name in numbers_only
        if name.startswith("infos/") and _has_place(name.removeprefix("infos/"), NO_ROWS)
    }
    lost = [
        name
        for name in dataset.schema.extras
        if name not in kept and not name.startswith("episodes/mask/")
    ]
    said = [f"These columns are lost: {', '.join(lost)}."] if lost else []
    ends = dataset.column("truncations")
    if "infos/done" not in dataset.schema.extras and ends.any():
        said.append("Truncations are lost: dones hold terminations alone.")
    return [*said, *stop_losses(dataset, "truncated")]


def takes_unit_actions(arguments: object) -> bool:
    """Return whether `env_args` say that actions lie in [-1, 1], as those of robosuite's environments do.

    Each part of a robot has a controller, which cuts actions off at its `input_min` and `input_max`, -1 and 1 unless
    they say otherwise. One that takes absolute positions (`control_delta` false, or since robosuite 1.5 `input_type`)
    does not. https://robosuite.ai/docs/modules/controllers.html
    """
    try:
        told = json.loads(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        return False
    if not isinstance(told, dict) or told.get("type") != ROBOSUITE:
        return False
    return all(
        one.get("input_min", -1) == -1
        and one.get("input_max", 1) == 1
        and one.get("control_delta", True)
        and one.get("input_type") != "absolute"
        for one in _dicts_in(told.get("env_kwargs"))
    )


def is_frames(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether rows of this dtype and shape are frames."""
    return dtype == np.uint8 and len(shape) == 3 and shape[-1] in (1, 3, 4)


def conventions_stated(
    frames: Sequence[str], attributes: Mapping[str, Callable[[], Any]], options: Options
) -> list[str]:
    """Return what the attributes of a file say about its frames, as robosuite's macros, with the options that mend it."""
    read = attributes.get("macros_image_convention", lambda: "")
    if not frames or options.flip or plain(read()) != "opengl":
        return []
    lines = " ".join(f"--flip observation/{part}" for part in frames)
    return [f"Frames lie upside down, since macros_image_convention is opengl. {lines} turns them."]


def lag_stated(
    column: Callable[[str], Any], parts: Mapping[str, str], options: Options
) -> list[str]:
    """Return what to know where the joints of each row are in the state of the next one, as LIBERO records them.

    A state of robosuite begins with the time, then come the joints of the robot. `column` opens an array of a
    demonstration, and `parts` says where the parts of observations lie.
    """
    for part in () if "action" in options.shift else JOINTS:
        if part in parts:
            joints, states = column(f"obs/{parts[part]}")[:], column("states")[:]
            states = states.reshape(len(states), -1)[:, 1 : 1 + joints.shape[-1]]
            if len(joints) < 2 or joints.shape != states.shape:
                continue
            here, after = np.abs(joints - states).mean(), np.abs(joints[:-1] - states[1:]).mean()
            if after < here / 10:
                told = f"{part} of a row is in states of the next one, as in LIBERO"
                return [
                    f"Each observation was recorded after the action of its row: {told}. --shift action=-1 pairs them."
                ]
    return []


def _dicts_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _dicts_in(inner)
