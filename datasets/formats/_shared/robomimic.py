"""robomimic's layout, which LIBERO, MimicGen, RoboCasa and Isaac Lab write too: what its names alone do not say.

    /data/demo_0, demo_1, ..   by their numbers, which may have gaps
        actions (T, n)   rewards (T,)   dones (T,)   states (T, ..)
        obs/NAME (T, ..)   [next_obs/NAME (T, ..)]   attributes num_samples, model_file, ..
    /data attribute env_args     JSON of the environment, kept in the description
    /mask/NAME                   names of demonstrations: `episodes/mask/NAME`

`dones` may mean success or the end of the recording, as the file's maker chose: a demonstration whose last one is 1 is
taken to have ended, and all of them are kept as `infos/done`. Demonstrations in masks named `train` and `valid` get
`episodes/split`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.columns.bounds import Bounds, count_outside, describe_outside, merge_outside
from orlog.datasets.formats._shared.beside_arrays import plain
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, tell_lack
from orlog.datasets.formats._shared.hdf5_files import (
    attribute,
    check_stored,
    child,
    has_child,
    names_in,
    numbers,
    open_hdf5,
    reading,
)
from orlog.datasets.formats._shared.mapped_arrays import ArrayLayout, open_layout
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.places import Place
from orlog.datasets.formats._shared.roles import by_numbers
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import SchemaError

BLOCK_BYTES = 2**24
LONGEST_ARGUMENTS = 5000
NAME = "robomimic's layout"
SPLITS = ("train", "valid")
JOINTS = ("joint_states", "robot0_joint_pos")
ROBOSUITE = 1
"""Robomimic's number of an environment of robosuite (`EnvType`)."""
ROBOMIMIC = ArrayLayout(
    needs=("data/demo_*",),
    episode="data/demo_*",
    columns={
        "action": "actions",
        "reward": "rewards",
        "terminated": "dones",
        "infos/done": "dones",
        "infos/states": "states",
        "observation/*": "obs/*",
        "next_observation/*": "next_obs/*",
    },
    last_flag=True,
    next_follows=True,
    keeps_rest=True,
    beside=("mask/*",),
    codes=("rewards_none", "left_out_no_row"),
    ends_first=True,
    without_observations=", only states; let robomimic's dataset_states_to_obs.py make observations from them.",
)


@contextlib.contextmanager
def open_robomimic(asked: Asked) -> Iterator[Opened]:
    """Read a file of robomimic's layout, or of those who write as it does; for `Format.open`."""
    path, where = asked.only_file(NAME)
    lacks: list[Note] = []
    with open_hdf5(path, where, texts=True) as file, reading(where):
        data, size = child(file, "data", where, NAME), path.stat().st_size
        demos = [name for name in names_in(data) if name.startswith("demo_")]
        demos.sort(key=by_numbers)
        masks = _masks(file, where, size)
        arguments = attribute(data, "env_args", "")
        actions = {}
        for name in demos:
            demo = child(data, name, where, NAME)
            if has_child(demo, "actions"):
                node = child(demo, "actions", where, NAME)
                actions[name] = numbers(node, f"{where}, {name}, actions", size)
            count = attribute(demo, "num_samples")
            if name in actions and count is not None and int(count) != len(actions[name]):
                raise SchemaError(
                    f"{where}, {name}: num_samples says {int(count)}, and actions holds "
                    f"{len(actions[name])} rows."
                )
        total = attribute(data, "total")
        for lack in _lacks(where, actions, masks, total):
            tell_lack(asked.options, lacks, lack)
        is_bounded, told = _unit_actions(arguments, actions)
        convention = plain(attribute(data, "macros_image_convention", ""))
        first = child(data, demos[0], where, NAME) if demos else {}
        has_dones, lag = has_child(first, "dones"), _lag(first, where, asked.options)

    def about(place: Place) -> tuple[Mapping[str, Any], None]:
        name = place.path.removeprefix("data/")
        values: dict[str, Any] = {f"mask/{mask}": name in names for mask, names in masks.items()}
        if {*SPLITS} <= masks.keys():
            values["split"] = next((mask for mask in SPLITS if name in masks[mask]), "")
        return values, None

    with open_layout(dataclasses.replace(ROBOMIMIC, about=about), asked) as opened:
        opened.notes[:0] = [Note("dones_of_robomimic")] if has_dones else []
        opened.notes += [*told, *lacks]
        turned = _turned(opened.schema.observation_space, asked.options)
        stated = [*(turned if convention == "opengl" else []), *lag]
        opened.notes += [Note("conventions", sentence=one) for one in stated]
        if is_bounded:
            space: Any = opened.schema.action_space
            bounded = spaces.Box(-1, 1, space.shape, space.dtype.type)
            opened.schema = dataclasses.replace(opened.schema, action_space=bounded)
        if isinstance(arguments, str) and 0 < len(arguments) <= LONGEST_ARGUMENTS:
            opened.description = f"robomimic's env_args: {' '.join(arguments.split())}"
        yield opened


def _masks(file: Any, where: str, file_bytes: int) -> dict[str, set[str]]:
    """Return the names of demonstrations in each mask."""
    if not has_child(file, "mask"):
        return {}
    masks, group = {}, child(file, "mask", where, NAME)
    for name in names_in(group):
        node, place = child(group, name, f"{where}, mask", NAME), f"{where}, mask/{name}"
        is_array = isinstance(node, import_h5py().Dataset)
        if not is_array or node.ndim != 1 or node.dtype.kind not in "SO":
            raise SchemaError(f"{place}: expected names of demonstrations.")
        check_stored(node, place, file_bytes)
        masks[name] = {one.decode() if isinstance(one, bytes) else str(one) for one in node[:]}
    return masks


def _lacks(
    where: str, actions: Mapping[str, Any], masks: Mapping[str, set[str]], total: Any
) -> Iterator[SchemaError]:
    """Yield what says that demonstrations are lost which masks or the total still count."""
    for mask, names in masks.items():
        lost = sorted(names - actions.keys())
        if lost:
            yield SchemaError(
                f"{where}, mask/{mask}: names {lost[0]!r}, which data does not hold ({len(lost):,} such). "
                "Copy the file again, or remove these names from the mask."
            )
    steps = sum(map(len, actions.values()))
    if isinstance(total, int | np.integer) and total != steps:
        yield SchemaError(
            f"{where}, data: total says {total:,} steps, and the demonstrations hold {steps:,}. Copy the "
            "file again, or correct total."
        )


def _unit_actions(arguments: object, actions: Mapping[str, Any]) -> tuple[bool, list[Note]]:
    """Return whether actions are bounded by -1 and 1, since the environment takes these, and what to tell if not."""
    first = next(iter(actions.values()), None)
    if first is None or first.dtype.kind != "f" or not takes_unit_actions(arguments):
        return False, []
    bounds = Bounds(np.array(-1.0), np.array(1.0))
    rows = max(1, BLOCK_BYTES // (first.dtype.itemsize * max(1, int(np.prod(first.shape[1:])))))
    outside = merge_outside(
        {"actions": count}
        for column in actions.values()
        for start in range(0, len(column), rows)
        if (count := count_outside(column[start : start + rows], bounds)) is not None
    )
    if not outside:
        return True, []
    told = describe_outside(outside["actions"], bounds)
    return False, [Note("actions_beyond_unit", outside=told)]


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
        part.get("input_min", -1) == -1
        and part.get("input_max", 1) == 1
        and part.get("control_delta", True)
        and part.get("input_type") != "absolute"
        for part in _dicts_in(told.get("env_kwargs"))
    )


def _dicts_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _dicts_in(inner)


def _lag(demo: Any, where: str, options: Options) -> list[str]:
    """Return what to know where the joints of each row are in the state of the next one, as LIBERO records them.

    A state of robosuite begins with the time, then come the joints of the robot.
    """
    arrays = [f"obs/{part}" for part in JOINTS if "action" not in options.shift]
    for array in arrays if hasattr(demo.get("states"), "dtype") else ():
        if not has_child(demo.get("obs"), array.removeprefix("obs/")):
            continue
        joints, states = (numbers(demo[one], where, 2**40)[:] for one in (array, "states"))
        states = states.reshape(len(states), -1)[:, 1 : 1 + joints.shape[-1]]
        if len(joints) < 2 or joints.shape != states.shape:
            continue
        here, after = np.abs(joints - states).mean(), np.abs(joints[:-1] - states[1:]).mean()
        if after < here / 10:
            told = (
                f"{array.removeprefix('obs/')} of a row is in states of the next one, as in LIBERO"
            )
            return [
                f"Each observation was recorded after the action of its row: {told}. --shift action=-1 pairs them."
            ]
    return []


def _turned(space: Any, options: Options) -> list[str]:
    """Return what to know about frames of a file that states OpenGL's convention."""
    frames = [
        part
        for part, one in space.items()
        if one.dtype == np.uint8 and len(one.shape) == 3 and one.shape[-1] in (1, 3, 4)
    ]
    if not frames or options.flip:
        return []
    lines = " ".join(f"--flip observation/{part}" for part in frames)
    return [f"Frames lie upside down, since macros_image_convention is opengl. {lines} turns them."]
