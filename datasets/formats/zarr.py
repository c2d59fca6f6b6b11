"""Reads replay buffers in Zarr, as Diffusion Policy (Chi and others, 2023) and its relatives store demonstrations.

    data/NAME (N, ..)           the steps of all episodes, one after the other
    data/action (N, n)
    meta/episode_ends (E,)      the rows up to which each episode goes

A folder or a Zip archive, in Zarr's version 2 or 3. All arrays of `data` but the action, and a reward where there is
one, become observations by their names. https://github.com/real-stanford/diffusion_policy
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from orlog.datasets.formats._containers.zarr_arrays import is_zarr, names_in_zarr
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats.formats import Format

ENDS = "meta/episode_ends"
KNOWN = Known(
    columns={"action": "data/action", "reward": "data/reward", "observation/*": "data/*"},
    episode=ENDS,
)


def _recognizes(files: Sequence[Path]) -> bool:
    return all(is_zarr(one) and {ENDS, "data/action"} <= names_in_zarr(one) for one in files)


FORMAT = Format(
    name="zarr",
    open=functools.partial(open_known, KNOWN),
    recognizes=_recognizes,
    extensions=("", ".zarr", ".zip"),
    options=("horizon", "ends"),
    reads=("**",),
)
