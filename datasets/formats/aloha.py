"""Reads the recordings of ALOHA and ACT (Zhao and others, 2023): a file of HDF5 an episode, `episode_0.hdf5`, ..

    /observations/qpos, qvel, effort (T, n)   /observations/images/NAME (T, height, width, 3), or JPEG in (T, bytes)
    /action (T, n)   [/base_action (T, 2)]   [/compress_len]

Observations become a Dict: `qpos`, `qvel`, `images.NAME`. `base_action` is kept as `infos/base_action`. There are no
rewards and no flags, and what followed the last action was not recorded. https://github.com/tonyzhaozh/act
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from orlog.datasets.formats._containers.episode_values import EPISODES
from orlog.datasets.formats._containers.hdf5_files import (
    create_hdf5,
    has_child,
    is_hdf5,
    look_inside,
    write_checked,
)
from orlog.datasets.formats._shared.flat_writing import demonstration_losses, flat_columns
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats.formats import Format
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.hdf5 import import_h5py
from orlog.errors import SchemaError

BASE = "infos/base_action"

KNOWN = Known(
    columns={
        "action": "action",
        "observation/*": "observations/*",
        "infos/base_action": "base_action",
    }
)


def _recognizes(files: Sequence[Path]) -> bool:
    inside = sorted(files[0].glob("*.hdf5")) if len(files) == 1 and files[0].is_dir() else files
    return bool(inside) and all(map(is_hdf5, inside)) and look_inside(inside[:1], _is_aloha)


def _is_aloha(file: Any) -> bool:
    return (
        has_child(file, "action")
        and has_child(file, "observations")
        and has_child(file["observations"], "qpos")
    )


def _write(dataset: Dataset, folder: Path, progress: Callable[[int, int], None]) -> None:
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


def _losses(dataset: Dataset) -> list[str]:
    space = dataset.observation_space
    if isinstance(space, gymnasium.spaces.Dict) and "qpos" not in space.spaces:
        raise SchemaError(
            f"{dataset.name}: ALOHA's recordings hold joints as qpos; the observations have {', '.join(space)}."
        )
    return [*demonstration_losses(dataset, "ALOHA's recordings", own=(BASE,)), "Rewards are lost."]


FORMAT = Format(
    name="aloha",
    open=functools.partial(open_known, KNOWN),
    recognizes=_recognizes,
    extensions=("", ".hdf5", ".h5"),
    options=("horizon", "ends", EPISODES),
    shares=True,
    write=_write,
    losses=_losses,
    check=lambda: import_h5py(),
    reads=("action", "observations/**", "base_action", "compress_len", "@sim", "@compress"),
)
