"""Reads episodes as DreamerV2, ExoRL and V-D4RL store them: a file of npz an episode, in which rows begin with a reset.

    observation or image, .. (T + 1, ..)   action (T + 1, n)   reward (T + 1,)   discount (T + 1,)
    [is_first, is_last, is_terminal]   [physics (T + 1, n)]

Row 0 is the reset: its action and reward mean nothing, and row t holds the action that led to it. A last discount of 0, or
`is_terminal`, says that the task ended; else the episode was cut off. `physics`, the state of the simulator, becomes
`infos/physics`: the state that each action was chosen in. Files come in the order of the numbers in their names.
https://github.com/denisyarats/exorl, https://github.com/danijar/dreamerv2
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._containers.npz_files import is_npz, open_npz
from orlog.datasets.formats._shared.episodes import Asked, Opened, Options
from orlog.datasets.formats._shared.mapped_arrays import Known, open_known
from orlog.datasets.formats._shared.places import (
    ARRAYS,
    Place,
    Places,
    files_of_arrays,
    open_arrays,
)
from orlog.datasets.formats.formats import Format
from orlog.errors import OrlogError, SchemaError

SHIFTED = ("action", "reward")
BEFORE = ("physics",)
FLAGS = ("is_first", "is_last", "is_terminal", "discount")
NEEDED = {"action", "reward"}


@contextlib.contextmanager
def _open(asked: Asked) -> Iterator[Opened]:
    _, _, first = next(ARRAYS.find(asked))
    parts = [name for name in first.names if name not in (*SHIFTED, *BEFORE, *FLAGS)]
    columns = {f"observation/{name}": name for name in parts}
    if len(parts) == 1:
        columns = {"observation": parts[0]}
    columns |= {name: name for name in SHIFTED}
    columns |= {f"infos/{name}": name for name in BEFORE}
    columns["terminated"] = "is_terminal" if "is_terminal" in first.names else "discount"
    known = Known(columns=columns, places=Places(files_of_arrays, _open_file))
    with open_known(known, asked) as opened:
        yield opened


def _open_file(file: tuple[Path, str], options: Options) -> Generator[Place]:
    """Yield a file, whose rows of steps begin after the reset."""
    for place in open_arrays(file, options):

        def column(name: str, place: Place = place) -> Any:
            found = place.column(name)
            if len(found) < 2:
                raise SchemaError(
                    f"{place.where}, {name}: expected the reset and a step, found {len(found)} rows."
                )
            if name in BEFORE:
                return _Rows(found, 0, len(found) - 1)
            if name in SHIFTED or name in FLAGS:
                return _Rows(found, 1, len(found), is_discount=name == "discount")
            return found

        yield dataclasses.replace(place, column=column)


class _Rows:
    """Some rows of an array, of which the first ones may be skipped.

    Attributes:
        shape: Shape of these rows.
        dtype: What numbers they hold.
    """

    def __init__(self, column: Any, start: int, stop: int, *, is_discount: bool = False) -> None:
        self._column, self._start, self._is_discount = column, start, is_discount
        self.shape: tuple[int, ...] = (stop - start, *column.shape[1:])
        self.dtype = column.dtype
        if start:
            column[:start]  # rows are read in order

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return rows; of discounts whether they end the task."""
        start, stop, _ = rows.indices(len(self))
        found: np.ndarray = self._column[start + self._start : stop + self._start]
        return found == 0 if self._is_discount else found


def _recognizes(files: Sequence[Path]) -> bool:
    inside = sorted(files[0].glob("*.npz")) if len(files) == 1 and files[0].is_dir() else files
    if not inside or not all(map(is_npz, inside)):
        return False
    with contextlib.suppress(OrlogError), open_npz(inside[0], str(inside[0])) as file:
        return {*file.names} >= NEEDED and bool({"discount", "is_terminal"} & {*file.names})
    return False


FORMAT = Format(
    name="episode_npz",
    open=_open,
    recognizes=_recognizes,
    extensions=("", ".npz"),
    shares=True,
    reads=("**",),
)
