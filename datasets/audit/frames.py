"""Checks of images: frames that are blank, and cameras that hang."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece, plain_columns
from orlog.datasets.audit.thresholds import limit

__all__ = ["check_frames"]

SAMPLED = (
    64  # numbers of a frame that are compared first: few frames are equal in them and not elsewhere
)


class _Run(NamedTuple):
    """Steps of an episode in which a frame stays the same."""

    episode: int
    step: int
    steps: int


class _Camera:
    """What one column of images has shown so far."""

    def __init__(self) -> None:
        self.blank: list[tuple[int, int]] = []  # (episode, row)
        self.steps = self.still = 0
        self.frozen: list[_Run] = []
        self.open: _Run | None = None  # at the end of a piece that does not end its episode


def check_frames(facts: Facts) -> Check:
    """Find frames of one value, and frames that do not change for long."""
    specs = facts.dataset.schema.columns()
    cameras = {
        name: _Camera()
        for name in plain_columns(facts.dataset, "observations")
        if _is_image(specs[name].dtype, specs[name].shape)
    }
    if not cameras:
        return []
    while (piece := (yield)) is not None:
        for name, camera in cameras.items():
            _look(piece, name, camera)
    return [
        finding
        for name, camera in cameras.items()
        for finding in (
            *_blank_frames(facts, name, camera.blank),
            *_frozen_frames(name, camera),
        )
    ]


def _is_image(dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    numbers = math.prod(shape)
    return len(shape) >= 2 and (dtype == np.uint8 or numbers > limit("wide rows")) and numbers > 1


def _look(piece: Piece, name: str, camera: _Camera) -> None:
    """Note the blank frames of a piece, and for how long others stay the same."""
    frames = piece.columns[name].reshape(len(piece.columns[name]), -1)
    sample = np.ascontiguousarray(frames[:, :: max(1, frames.shape[1] // SAMPLED)])
    known = np.ones(len(frames), np.bool_)  # but for final frames that were never recorded
    known[piece.before[~piece.has_next] + 1] = False
    one_value = (sample == sample[:, :1]).all(axis=1) & known
    for row in np.flatnonzero(one_value[: piece.counted(name)]).tolist():
        if (frames[row] == frames[row, 0]).all():
            camera.blank.append(piece.place(row, of_observations=True))
    still = (sample[1:] == sample[:-1]).all(axis=1)[piece.before] & piece.has_next
    for step in np.flatnonzero(still).tolist():
        row = piece.before[step]
        still[step] = np.array_equal(frames[row], frames[row + 1])
    camera.steps += piece.steps
    camera.still += int(still.sum())
    _note_runs(piece, still, camera)


def _note_runs(piece: Piece, still: np.ndarray, camera: _Camera) -> None:
    """Note the runs of steps in which nothing changes, each within its episode."""
    runs = [] if camera.open is None else [camera.open]
    camera.open = None
    if still.any():
        firsts = piece.ends - piece.lengths
        starts = still & ~np.concatenate([[False], still[:-1]])
        starts[firsts] |= still[firsts]
        lengths = np.bincount((starts.cumsum() - 1)[still])
        episodes, steps = piece.places(np.flatnonzero(starts))
        new = [_Run(*one) for one in np.transpose([episodes, steps, lengths]).tolist()]
        if runs and still[0]:
            before = runs.pop()
            new[0] = before._replace(steps=before.steps + new[0].steps)
        runs += new
        if not piece.is_end and still[-1]:
            camera.open = runs.pop()
    camera.frozen += [one for one in runs if one.steps >= limit("frozen steps")]


def _blank_frames(facts: Facts, name: str, blank: list[tuple[int, int]]) -> list[Finding]:
    if not blank:
        return []
    episodes = len({episode for episode, _ in blank})
    is_habit = episodes > limit("jump habit") * facts.dataset.total_episodes
    count = len(blank)
    return [
        Finding(
            check="frames",
            gravity="note" if is_habit else "warning",
            column=name,
            text=f"{count:,} frame{'s are' if count > 1 else ' is'} blank, all of one value, in {episodes:,} "
            f"episode{'s' if episodes > 1 else ''}",
            episode=blank[0][0],
            step=blank[0][1],
            count=count,
        )
    ]


def _frozen_frames(name: str, camera: _Camera) -> list[Finding]:
    """Return the runs of equal frames, unless frames often stay the same elsewhere too."""
    frozen = sum(one.steps for one in camera.frozen)
    elsewhere = (camera.still - frozen) / max(1, camera.steps - frozen)
    if not camera.frozen or elsewhere > limit("hardly still"):
        return []
    count, longest = len(camera.frozen), max(one.steps for one in camera.frozen)
    return [
        Finding(
            check="frames",
            gravity="warning",
            column=name,
            text=f"stays the same for {longest:,} steps"
            + (f" at most, in {count:,} places" if count > 1 else "")
            + ", though it changes in nearly every other step: a camera that hangs",
            episode=camera.frozen[0].episode,
            step=camera.frozen[0].step,
            count=count,
        )
    ]
