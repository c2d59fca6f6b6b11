"""Reads CALVIN (Mees and others, 2022): a folder with a file of npz for each step, and where episodes begin and end.

    training/episode_0000000.npz     rgb_static, rgb_gripper, [depth_..], robot_obs, scene_obs, actions, rel_actions
    training/ep_start_end_ids.npy    (E, 2), the numbers of the first and the last file of each episode

The action is `rel_actions`, as its authors train; `actions` become `infos/actions`. All other arrays are parts of the
observation. Instructions lie in pickles, which are not read. http://calvin.cs.uni-freiburg.de
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orlog.datasets.formats._containers.npz_files import npy_header, open_npz, reading_npz
from orlog.datasets.formats._shared.episodes import Asked, Options
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats._shared.places import Place, Places
from orlog.datasets.formats.formats import Format
from orlog.errors import SchemaError

ENDS = "ep_start_end_ids.npy"
STEP = "episode_{:07d}.npz"
MOST_EPISODES = 2**20
MOST_STEPS = 2**24


class _Episode(NamedTuple):
    """An episode: its folder, what errors call that, and the numbers of its first and last file."""

    folder: Path
    where: str
    first: int
    last: int


def _open_episode(episode: _Episode, _options: Options) -> Generator[Place]:
    """Yield an episode, a file a step."""
    folder, where, first, last = episode
    files: list[Path] = []
    for number in range(first, last + 1):
        file = folder / STEP.format(number)
        if file.is_symlink() or not file.is_file():
            raise SchemaError(f"{where}: {file.name} is missing, or a link.")
        files.append(file)
    place = f"{where}/{files[0].name} to {files[-1].name}"
    with open_npz(files[0], f"{where}/{files[0].name}") as opened:
        kinds = {name: (opened.shape(name), opened.dtype(name)) for name in opened.names}

    def column(name: str) -> Any:
        return _Steps(files, name, *kinds[name], where)

    yield Place(place, sorted(kinds), column, reading_npz)


def _episodes(asked: Asked) -> list[_Episode]:
    """Return where each episode lies."""
    folder, source = asked.files[0], asked.sources[0]
    where, path = f"{source}/{ENDS}", folder / ENDS
    with reading_npz(where), path.open("rb") as stream:
        if path.is_symlink():
            raise SchemaError(f"{where}: a link, which is not followed.")
        shape, is_fortran, dtype = npy_header(stream, where)
        is_list = len(shape) == 2 and shape[1] == 2 and 0 < shape[0] <= MOST_EPISODES
        if dtype.kind not in "iu" or not is_list or is_fortran:
            raise SchemaError(f"{where}: expected two numbers an episode, found {dtype} {shape}.")
        data = stream.read(shape[0] * 2 * dtype.itemsize)
        found = np.frombuffer(data, dtype).reshape(shape).tolist()
    for first, last in found:
        if not 0 <= first <= last < first + MOST_STEPS:
            raise SchemaError(f"{where}: an episode from {first} to {last}.")
    return [_Episode(folder, source, first, last) for first, last in found]


class _Steps:
    """An array of which each file holds a row.

    Attributes:
        shape: Rows, and the shape of each.
        dtype: What numbers they hold.
    """

    def __init__(
        self, files: list[Path], name: str, shape: tuple[int, ...], dtype: np.dtype[Any], where: str
    ) -> None:
        if dtype.kind not in "biuf":
            raise SchemaError(f"{where}/{files[0].name}, {name}: expected numbers, found {dtype}.")
        self._files, self._name, self._where = files, name, where
        self.shape, self.dtype = (len(files), *shape), dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows.

        Raises SchemaError if a file holds another shape; IntegrityError if it is damaged.
        """
        files = self._files[rows]
        found = np.empty((len(files), *self.shape[1:]), self.dtype)
        for number, file in enumerate(files):
            place = f"{self._where}/{file.name}"
            with open_npz(file, place) as opened:
                column = opened.column(self._name)
                if column.shape != self.shape[1:]:
                    raise SchemaError(
                        f"{place}, {self._name}: expected {self.shape[1:]}, found {column.shape}."
                    )
                found[number] = column[0 : len(column)]
        return found


KNOWN = Known(
    columns={
        "action": "rel_actions",
        "infos/actions": "actions",
        "observation/*": "rgb_*,depth_*,robot_obs,scene_obs",
    },
    places=Places(_episodes, _open_episode),
    doubts=("Instructions are left out: they lie in a pickle, which could run code.",),
)


def _recognizes(files: Sequence[Path]) -> bool:
    return len(files) == 1 and (files[0] / ENDS).is_file()


FORMAT = Format(
    name="calvin",
    open=functools.partial(open_known, KNOWN),
    recognizes=_recognizes,
    extensions=("",),
    options=("horizon", "ends"),
    shares=True,
    reads=(
        "actions",
        "rel_actions",
        "rgb_*",
        "depth_*",
        "robot_obs",
        "scene_obs",
        "./ep_start_end_ids.npy",
    ),
)
