"""Reads arrays of HDF5, npz and Zarr that the user names, whatever their layout.

    orlog import my.h5 lab/mine-v1 --episode "demo_*" --map observation=obs/qpos,obs/qvel --map action=actions
    orlog import logs/*.npz lab/mine-v1 --episode file --map observation=obs* --map action=a --horizon 200
    orlog import all.zarr lab/mine-v1 --episode meta/episode_ends --map "observation/*=data/*" --map action=data/action

`--map` is as for tables (`_shared/roles.py`), but an array has as many numbers a row as it likes, and several that
make one observation are put side by side. `_shared/mapped_arrays.py` says what an episode is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from orlog.datasets.formats._shared.episodes import Asked
from orlog.datasets.formats._shared.mapped_arrays import FLAGS, open_mapped
from orlog.datasets.formats._shared.places import find_places, holds_arrays
from orlog.datasets.formats._shared.roles import usual
from orlog.datasets.formats.formats import Format
from orlog.errors import OrlogError

MOST_SHOWN = 40


def _recognizes(files: Sequence[Path]) -> bool:
    if all(map(holds_arrays, files)):
        return True
    return len(files) == 1 and files[0].is_dir() and any(map(holds_arrays, files[0].iterdir()))


def _describe(files: Sequence[Path]) -> str:
    """Return the arrays of the first file, and a `--map` by their usual names."""
    if not _recognizes(files):
        return ""
    places = find_places(Asked(files=files, sources=[str(file) for file in files]))
    try:
        place = next(places)
        with place.reading(place.where):
            shown = {name: place.column(name) for name in place.names[:MOST_SHOWN]}
    except (OrlogError, StopIteration):  # it is damaged, or holds other things than numbers
        return ""
    lines = [f"    {name}  {tuple(one.shape)} {one.dtype}" for name, one in shown.items()]
    if len(place.names) > MOST_SHOWN:
        lines.append(f"    and {len(place.names) - MOST_SHOWN:,} more")
    # Groups whose paths differ in a number alone are episodes: `data/demo_*`.
    parts = [re.fullmatch(r"(.*?[^/\d]?)\d+/(.+)", name) for name in shown]
    heads = {part[1] for part in parts if part is not None}
    pattern = f"{heads.pop()}*" if len(heads) == 1 and None not in parts else ""
    inner = [
        part[2] if part is not None and pattern else name
        for name, part in zip(shown, parts, strict=True)
    ]
    by_last = {name.rpartition("/")[2]: name for name in reversed(inner)}
    guessed = {role: [by_last[n] for n in found] for role, found in usual(sorted(by_last)).items()}
    ends = [name for name, one in shown.items() if "ends" in name and len(one.shape) == 1]
    numbered = guessed.get("episode", ends)
    episode = pattern or (numbered[0] if numbered else "ARRAY|PATTERN|file")
    columns = {
        role: ",".join(guessed.get(role, ["ARRAY"]))
        for role in ("observation", "action", "reward", *FLAGS)
        if role in guessed or role in ("observation", "action")
    }
    return (
        f"\nThe arrays of {place.where}:\n"
        + "\n".join(lines)
        + "\nSay what they mean, for example: "
        f"orlog.import_dataset({str(files[0])!r}, 'NAME', {episode=}, {columns=})"
    )


FORMAT = Format(
    name="arrays",
    open=open_mapped,
    recognizes=_recognizes,
    extensions=(".hdf5", ".h5", ".npz", ".zarr", ".zip", ""),
    options=("columns", "episode", "horizon", "ends"),
    only_mapped=True,
    describe=_describe,
    reads=("**",),
)
