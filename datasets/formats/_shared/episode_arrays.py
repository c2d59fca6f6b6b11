"""Arrays that say what an episode is, and arrays [episodes, time, ..] as rows, an episode after the other, without what fills them up.

obs (6, 20, 4)   actions (6, 20, 2)   mask (6, 20)     6 episodes of up to 20 steps
obs (6, 21, 4)                                         the same, with the final observation of each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.npz_files import NpzColumn
from orlog.errors import SchemaError
from orlog.manifests.names import counted

LENGTHS = (
    "mask",
    "masks",
    "valid",
    "traj_mask",
    "length",
    "lengths",
    "episode_lengths",
    "traj_lengths",
)
"""Usual names of arrays that say how long episodes are."""
FEWEST_STEPS = 8  # fewer are agents, or frames that are stacked


class PaddedColumn:
    """The steps of an array, which can be sliced by rows.

    Attributes:
        shape: Its shape: that of a step after the number of steps.
        dtype: What numbers it holds.
    """

    def __init__(self, column: Any, spans: np.ndarray, *, after: bool = False) -> None:
        """Take an array, and from which step on, and before which one, each episode lies; `after` is a step later."""
        self._column, self._starts = column, spans[:, 0] + after
        self._lengths = spans[:, 1] - spans[:, 0]
        self._ends = np.cumsum(self._lengths)
        self.shape = (len(self), *column.shape[2:])
        self.dtype = column.dtype
        self._held: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        """Return the number of steps."""
        return int(self._lengths.sum())

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return steps."""
        start, stop, _ = rows.indices(len(self))
        found, done = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype), start
        while done < stop:
            episode = int(np.searchsorted(self._ends, done, side="right"))
            step = done - int(self._ends[episode] - self._lengths[episode])
            count = min(stop - done, int(self._lengths[episode]) - step)
            first = int(self._starts[episode]) + step
            found[done - start :][:count] = self._steps(episode)[first : first + count]
            done += count
        return found

    def _steps(self, episode: int) -> Any:
        if self._held[0] != episode:
            # What can only be read in order is read up to there.
            first = self._held[0] + 1 if isinstance(self._column, NpzColumn) else episode
            self._held = episode, np.asarray(self._column[first : episode + 1])[-1]
        return self._held[1]


def are_episodes(observations: Sequence[Any], action: Any) -> bool:
    """Return whether arrays look like [episodes, time, ..]: observations and actions have two axes in common."""
    axes = tuple(action.shape[:2])
    has_steps = len(action.shape) > 2 or (len(axes) == 2 and action.dtype.kind in "iu")
    if not has_steps or axes[0] < 2 or axes[1] < FEWEST_STEPS:
        return False
    fitting = (axes, (axes[0], axes[1] + 1))
    return all(len(one.shape) > 2 and tuple(one.shape[:2]) in fitting for one in observations)


def usual_lengths(shapes: Mapping[str, tuple[int, ...]], axes: Sequence[int]) -> str:
    """Return the array that is called as those are that say how long episodes are, and has their shape; or nothing."""
    fitting = (tuple(axes), (axes[0],), (axes[0], 1))
    return next(
        (
            name
            for name, shape in shapes.items()
            if name.rpartition("/")[2].lower() in LENGTHS and shape[:2] in fitting
        ),
        "",
    )


def spans_of_episodes(column: Any, axes: Sequence[int], where: str) -> np.ndarray:
    """Return from which step on, and before which one, each episode lies, by its lengths or a mask of its steps.

    Without an array all are as long as the axis of time. Raises SchemaError if it is neither, or no episode has a step.
    """
    count, steps = axes
    values = np.full(count, steps) if column is None else np.asarray(column[0 : len(column)])
    if values.size == count == len(values) and values.dtype.kind in "iu":
        lengths = values.reshape(-1).astype(np.int64)
        odd = np.flatnonzero((lengths < 0) | (lengths > steps))
        if len(odd):
            raise SchemaError(
                f"{where}: says {lengths[odd[0]]} steps of episode {odd[0]}, and its arrays have {steps}."
            )
        starts = np.zeros_like(lengths)
    else:
        is_mask = values.size == count * steps and len(values) == count
        if not is_mask or not np.isin(values, (0, 1)).all():
            raise SchemaError(
                f"{where}: expected the steps of each of {counted(count, 'episode')}, or 0 and 1 for each of {steps} "
                f"steps, found {values.dtype} {values.shape}."
            )
        mask = values.reshape(count, steps) != 0
        begins = (np.diff(mask.astype(np.int8), prepend=0, axis=1) > 0).sum(1)
        if (begins > 1).any():
            raise SchemaError(
                f"{where}: the steps of episode {np.argmax(begins > 1)} do not follow each other."
            )
        starts, lengths = np.argmax(mask, axis=1), mask.sum(1)
    if not lengths.any():
        raise SchemaError(f"{where}: says that no episode has a step.")
    return np.stack([starts, starts + lengths], 1)


def lengths_by(column: Any, rows: int, where: str) -> list[int]:
    """Return the rows of each episode by an array with the number of an episode in each row, or of ends that grow.

    Raises SchemaError if it is neither, or the rows of an episode do not follow each other.
    """
    if column.shape not in ((len(column),), (len(column), 1)):
        raise SchemaError(f"{where}: expected one number a row, found {column.shape}.")
    values = np.asarray(column[: len(column)]).reshape(-1)
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values % 1 == 0)).all():
        raise SchemaError(f"{where}: expected whole numbers.")
    if len(values) != rows or rows == 1:
        ends = values.astype(np.int64)
        if not len(ends) or (np.diff(ends, prepend=0) <= 0).any() or ends[-1] != rows:
            raise SchemaError(
                f"{where}: expected the number of an episode in each of {rows} rows, or "
                f"ends that grow up to {rows}."
            )
    else:
        ends = np.flatnonzero(np.append(values[1:] != values[:-1], True)) + 1
        numbers, times = np.unique(values[ends - 1], return_counts=True)
        if (times > 1).any():
            again = numbers[times > 1][0]
            raise SchemaError(f"{where}: the rows of episode {again} do not follow each other.")
    lengths: list[int] = np.diff(ends, prepend=0).tolist()
    return lengths
