"""Checks of images: frames that are blank, and cameras that hang."""

from __future__ import annotations

import math

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece, plain_columns
from orlog.datasets.audit.runs import Runs
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.manifests.names import counted

SAMPLED = (
    64  # numbers of a frame that are compared first: few frames are equal in them and not elsewhere
)


class _Camera:
    """What one column of images has shown so far."""

    def __init__(self) -> None:
        self.blank: list[tuple[int, int]] = []  # (episode, row)
        self.steps = self.still = 0
        self.frozen = Runs(limit("frozen steps"))

    def join(self, other: _Camera) -> None:
        """Take in what another one has shown in later episodes."""
        self.blank += other.blank
        self.steps += other.steps
        self.still += other.still
        self.frozen.join(other.frozen)


def check_frames(facts: Facts) -> Check:
    """Find frames of one value, and frames that do not change for long."""
    specs = facts.dataset.schema.columns()
    seen = Seen(facts.dataset)
    cameras = {
        name: seen.part(_Camera())
        for name in plain_columns(facts.dataset, "observations")
        if _is_image(specs[name].dtype, specs[name].shape)
    }
    if not cameras:
        return []
    while (piece := (yield seen)) is not None:
        for name, camera in cameras.items():
            _look(piece, name, camera)
    return [
        finding
        for name, camera in cameras.items()
        for finding in (*_blank_frames(facts, name, camera.blank), *_frozen_frames(name, camera))
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
    camera.frozen.add(piece, still)


def _blank_frames(facts: Facts, name: str, blank: list[tuple[int, int]]) -> list[Finding]:
    if not blank:
        return []
    episodes = len({episode for episode, _ in blank})
    is_habit = episodes > limit("jump habit") * facts.dataset.total_episodes
    count = len(blank)
    return [
        Finding(
            check="frames",
            severity="note" if is_habit else "warning",
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
    frozen, runs = camera.frozen.steps, camera.frozen.found
    elsewhere = (camera.still - frozen) / max(1, camera.steps - frozen)
    if not runs or elsewhere > limit("hardly still"):
        return []
    count, longest = len(runs), max(one.steps for one in runs)
    return [
        Finding(
            check="frames",
            severity="warning",
            column=name,
            text=f"stays the same for {counted(longest, 'step')}"
            + (f" at most, in {counted(count, 'place')}" if count > 1 else "")
            + ", though it changes in nearly every other step: a camera that hangs",
            episode=runs[0].episode,
            step=runs[0].step,
            last_step=runs[0].step + runs[0].steps,
            count=count,
        )
    ]
