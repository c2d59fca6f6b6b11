"""Conventions of recordings that the user mends: rows that are off by one, frames upside down, colors swapped.

    --shift action=-1            the action of a row is the one that the next row holds, as where observations were
                                 recorded after the action (LIBERO); rewards and infos move with it
    --shift infos/force=2        one column alone; `infos/force=0` keeps one where it is
    --flip observation/image     the lowest row of a frame comes first (OpenGL)
    --bgr observation/image      red and blue are swapped (frames that cv2 encoded)

Rows move within their episode alone. Those without a partner at an end are left out: with -1 the last one of each
episode, whose observation is then the final one. How episodes ended stays.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from orlog.datasets.formats.episode_cutter import MISSING
from orlog.datasets.formats.episodes import Opened, Options, Steps
from orlog.datasets.formats.notes import OF_FINALS, Note
from orlog.errors import SchemaError
from orlog.manifests.names import did_you_mean

CHANNELS = (1, 3, 4)
CONVENTIONS = ("shift", "flip", "bgr")
"""The options of this module, which all formats take."""


def put_conventions(opened: Opened, options: Options, where: str) -> None:
    """Mend the steps as the user says, and add a note about each change when they are read.

    Raises SchemaError, then too, if a name is that of no column, or a column holds no such frames.
    """
    for option, patterns in (("flip", options.flip), ("bgr", options.bgr)):
        if patterns:
            opened.steps = _reframed(opened.steps, opened.notes, option, patterns, where)
    if options.shift:
        opened.steps = _shifted(opened.steps, opened.notes, options.shift, where)


def about_pictures(columns: Collection[str], options: Options) -> list[Note]:
    """Return what to know about columns of frames that were decoded from pictures in arrays, as cv2 may have written them."""
    if not columns or options.bgr:
        return []
    return [Note("pictures", columns, lines=" ".join(f"--bgr {name}" for name in columns))]


def rows_of(values: Any, rows: slice) -> Any:
    """Return some rows of the values of a space."""
    return _changed("", values, lambda _, part: part[rows])


def joined(before: Any, after: Any) -> Any:
    """Return rows of the values of a space with those that follow."""
    if isinstance(before, dict):
        return {name: joined(before[name], part) for name, part in after.items()}
    if isinstance(before, tuple):
        return tuple(map(joined, before, after))
    return before + after if isinstance(before, list) else np.concatenate((before, after))


def _changed(name: str, values: Any, change: Callable[[str, Any], Any]) -> Any:
    """Return values with all of their parts changed, each by its name and what it holds."""
    if isinstance(values, dict):
        return {key: _changed(f"{name}/{key}", part, change) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_changed(f"{name}/{n}", part, change) for n, part in enumerate(values))
    return change(name, values)


def _frames_changed(steps: Steps, change: Callable[[str, Any], Any]) -> Steps:
    infos = {name: _changed(f"infos/{name}", values, change) for name, values in steps.infos.items()}
    observations = _changed("observation", steps.observations, change)
    return dataclasses.replace(steps, observations=observations, infos=infos)


def _reframed(
    pieces: Iterator[Steps], notes: list[Note], option: str, patterns: Sequence[str], where: str
) -> Iterator[Steps]:
    chosen: list[str] = []

    def change(name: str, values: Any) -> Any:
        return _mended(values, option) if name in chosen else values

    for steps in pieces:
        if not chosen:
            chosen = _frames(steps, option, patterns, where)
            notes.append(Note(option, chosen))
        yield _frames_changed(steps, change)


def _mended(frames: np.ndarray, option: str) -> np.ndarray:
    """Return frames, (n, .., height, width[, channels]) or (n, .., channels, height, width), flipped or recolored."""
    has_channels_last = frames.ndim > 3 and frames.shape[-1] in CHANNELS
    if option == "flip":
        return np.ascontiguousarray(np.flip(frames, -3 if has_channels_last else -2))
    channels = -1 if has_channels_last else -3
    order = [2, 1, 0, 3][: frames.shape[channels]]
    return np.take(frames, order, axis=channels)


def _frames(steps: Steps, option: str, patterns: Sequence[str], where: str) -> list[str]:
    """Return the names of the columns of frames that patterns mean."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, values: Any) -> Any:
        shapes[name] = values.shape[1:] if isinstance(values, np.ndarray) else ()

    _frames_changed(steps, note)
    frames = [
        name
        for name, shape in shapes.items()
        if len(shape) > 1 and (option == "flip" or (len(shape) > 2 and {3, 4} & {shape[-1], shape[-3]}))
    ]
    kind = "frames" if option == "flip" else "frames of 3 or 4 channels"
    names: dict[str, None] = {}
    for pattern in ",".join(patterns).split(","):
        what = f"{where}: {option}={pattern!r:.100}"
        if pattern in shapes and pattern not in frames:
            raise SchemaError(f"{what}: expected {kind}, found rows of shape {shapes[pattern]}.")
        names |= dict.fromkeys(_named(pattern, frames, f"{what}: no column of {kind}"))
    return [*names]


def _named(pattern: str, columns: Sequence[str], what: str) -> list[str]:
    """Return the columns that a name or pattern means; SchemaError where it means none."""
    names = [pattern] if pattern in columns else fnmatch.filter(columns, pattern)
    if not names:
        others = did_you_mean(pattern, columns) or f"; they are {', '.join(columns) or 'none'}."
        raise SchemaError(f"{what} has this name{others}")
    return names


def _shifted(pieces: Iterator[Steps], notes: list[Note], shift: Mapping[str, int], where: str) -> Iterator[Steps]:
    by: dict[str, int] = {}
    held: dict[str, Any] = {}
    rows = given = episodes = vanished = 0
    for steps in pieces:
        columns: dict[str, Any] = {"action": steps.actions, "reward": steps.rewards}
        columns |= {f"infos/{name}": values for name, values in steps.infos.items()}
        by = by or _by_column(shift, [*columns], where)
        # Of each column, rows before these have no partner; the column that lacks most says how many are ready.
        start = max(0, *by.values())
        skip = {name: start - by[name] for name in columns} | {"observation": start}
        columns["observation"] = steps.observations
        is_inside = bool(held)
        for name, values in columns.items():
            before = rows + (is_inside and name == "observation")
            values = rows_of(values, slice(max(0, skip[name] - before), None))
            held[name] = joined(held[name], values) if name in held else values
        rows += len(steps.rewards)
        ready = max(0, rows - max(skip.values()))
        if ready > given or (steps.ends and ready):
            counts = dict.fromkeys(held, ready - given)
            counts["observation"] += given == 0
            taken = {name: rows_of(part, slice(counts[name])) for name, part in held.items()}
            held = {name: rows_of(part, slice(counts[name], None)) for name, part in held.items()}
            given = ready
            metadata = dict(steps.metadata)
            if MISSING in metadata and min(by.values()) < 0:
                metadata[MISSING] = False  # the observation of a row that was left out
            yield dataclasses.replace(
                steps,
                observations=taken.pop("observation"),
                actions=taken.pop("action"),
                rewards=taken.pop("reward"),
                infos={name.removeprefix("infos/"): part for name, part in taken.items()},
                seed=None if start else steps.seed,
                metadata=metadata,
            )
        if steps.ends:
            episodes += 1
            vanished += not ready
            held, rows, given = {}, 0, 0
    if episodes and episodes == vanished:
        raise SchemaError(f"{where}: shift={dict(shift)}: no episode is long enough to be moved so far.")
    if not any(by.values()):
        return
    if min(by.values()) < 0:  # the rows that were left out hold the final observations
        notes[:] = [note for note in notes if note.code not in OF_FINALS]
    moves: dict[int, list[str]] = {}
    for name, distance in by.items():
        moves.setdefault(distance, []).append(name)
    moved = "; ".join(f"{', '.join(moves[n])} by {n:+d}" for n in moves if n)
    left = max(0, *by.values()) - min(0, *by.values())
    notes.append(Note("shift", moved=moved))
    notes.append(Note("left_out_by_shift", steps=left, episodes=episodes))
    if vanished:
        notes.append(Note("vanished_by_shift", episodes=vanished))


def _by_column(shift: Mapping[str, int], columns: Sequence[str], where: str) -> dict[str, int]:
    """Return by how many rows each column moves: all as the action does, unless they are named."""
    by = dict.fromkeys(columns, shift.get("action", 0))
    for pattern, rows in shift.items():
        what = f"{where}: shift={{{pattern!r:.100}: {rows}}}: no column of steps"
        names = _named(pattern, columns, what)
        by |= dict.fromkeys(names, rows) if pattern != "action" else {}
    return by
