"""Reads the recordings of ALOHA and ACT (Zhao and others, 2023): a file of HDF5 an episode, `episode_0.hdf5`, ..

    /observations/qpos, qvel, effort (T, n)   /observations/images/NAME (T, height, width, 3), or JPEG in (T, bytes)
    /action (T, n)   [/base_action (T, 2)]   [/compress_len]

Observations become a Dict: `qpos`, `qvel`, `images.NAME`. `base_action` is kept as `infos/base_action`. There are no
rewards and no flags, and what followed the last action was not recorded. https://github.com/tonyzhaozh/act
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orlog.datasets.formats._containers.hdf5_files import has_child, is_hdf5, look_inside
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats.formats import Format

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


FORMAT = Format(
    name="aloha",
    open=functools.partial(open_known, KNOWN),
    recognizes=_recognizes,
    extensions=("", ".hdf5", ".h5"),
    options=("horizon", "ends"),
    reads=("action", "observations/**", "base_action", "compress_len", "@sim", "@compress"),
)
