"""One episode as one answer: what is known of it as JSON, and its numbers as float64 behind it.

    uint32 size of the JSON | JSON | zeros up to a multiple of 8 | float64, little-endian

A column of numbers is an entry of `series` in the JSON. Its values begin at the number `start` behind
the JSON: all points of the first number of a row, then those of the second. Point i is of step
`first + i`, or, where `every` is not 1, points 2 i and 2 i + 1 are the smallest and the largest of the
`every` steps from step `first + i * every`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import msgspec
import numpy as np

from orlog.datasets.looking.leaves import maze_of
from orlog.errors import IntegrityError, OrlogError
from orlog.manifests.columns import (
    FLAGS,
    is_offsets,
    is_part,
    offsets_column,
    path_of_offsets,
    values_column,
)
from orlog.manifests.rebuilds import version_of
from orlog.manifests.spaces import leaf_spaces
from orlog.viewer.episodes import EpisodeList
from orlog.viewer.frames import depth_range, frame_columns
from orlog.viewer.opened import Shown
from orlog.viewer.rendering import source_of

MOST_POINTS = 4000  # of one line; longer ones show the smallest and largest of each few steps
MOST_NUMBERS = 64  # of a row
MOST_ROW_NUMBERS = 64  # of a value of any length
LONGEST_TEXT = 20_000
ALL_TEXT = 2_000_000
NESTED = "nested values of any length are not shown here; read them in Python: dataset[i]."
MISSING_FINAL = "episodes/final_observation_missing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """Which part of an episode is asked for.

    Attributes:
        first: First step.
        last: Step after the last one; None for the end.
        numbers: Numbers of a row, at most.
    """

    first: int = 0
    last: int | None = None
    numbers: int = MOST_NUMBERS


class _Numbers:
    """The numbers that follow the JSON."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.count = 0

    def add(self, values: np.ndarray) -> int:
        """Add values (points, numbers); return where they begin."""
        start = self.count
        self.parts.append(np.ascontiguousarray(values.T, "<f8").reshape(-1))
        self.count += values.size
        return start


def episode_answer(episodes: EpisodeList, episode: int, window: Window) -> bytes:
    """Return an episode as the module's docstring says. A damaged column says so in its place."""
    shown = episodes.shown
    stored, position = shown.stored(episode)
    length = int(stored.lengths[position])
    numbers = _Numbers()
    facts: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in episodes.names:
        try:
            facts[name] = episodes.values(name, np.array([episode]))[0]
        except (OrlogError, OSError, UnicodeDecodeError) as error:
            errors[name] = str(error)
    manifest = stored.manifest
    head = {
        "episode": episode,
        "facts": facts,
        "errors": errors,
        "length": length,
        "window": {"first": window.first, "last": min(length, window.last or length)},
        "policy": manifest.behavior_policy,
        "version": f"{manifest.name}@{version_of(manifest)}",
        "stored_as": position,
        "final_missing": _final_missing(shown, episode),
        "series": list(_series(shown, episode, window, numbers)),
        "texts": list(_texts(shown, episode)),
        "frames": list(_frames(shown, episode)),
        "maze": maze_of(shown.dataset.environment),
        "renders": source_of(shown, facts.get("seeds")),
    }
    text = msgspec.json.encode(head)
    padding = b"\0" * (-(4 + len(text)) % 8)
    values = np.concatenate(numbers.parts) if numbers.parts else np.empty(0)
    return len(text).to_bytes(4, "little") + text + padding + values.tobytes()


def number_columns(shown: Shown) -> list[str]:
    """Return the columns of steps and observations that are drawn over time, the usual ones first."""
    frames = frame_columns(shown.dataset.schema)
    names = [
        name
        for name, spec in shown.dataset.schema.columns().items()
        if not is_part(name)
        and name not in frames
        and name not in FLAGS
        and not name.startswith("episodes/")
        and math.prod(spec.shape) > 0
    ]
    order = ("rewards", "actions", "observations")
    roots = [name.partition("/")[0] for name in names]
    place = {root: order.index(root) if root in order else len(order) for root in roots}
    return sorted(names, key=lambda name: (place[name.partition("/")[0]], name))


def _series(
    shown: Shown, episode: int, window: Window, numbers: _Numbers
) -> Iterator[dict[str, Any]]:
    for name in number_columns(shown):
        try:
            values = shown.rows(name, episode)
        except (OrlogError, OSError) as error:
            yield {"name": name, "error": str(error)}
            continue
        series = _one_series(name, values, window, numbers)
        yield {**series, "dimensions": shown.dataset.dimension_names.get(name, [])}
        if name == "rewards" and values.ndim == 1:
            to_go = values[::-1].astype(np.float64).cumsum()[::-1]
            yield _one_series("returns to go", to_go, window, numbers)


def _one_series(name: str, values: np.ndarray, window: Window, numbers: _Numbers) -> dict[str, Any]:
    """Return what the page needs to draw a column, and add its numbers."""
    shape, dtype = values.shape[1:], str(values.dtype)
    flat = values.reshape(len(values), -1)
    rows, width = flat.shape
    first = min(max(0, window.first), rows)
    part = flat[first : window.last, : window.numbers].astype(np.float64)
    every = math.ceil(len(part) / (MOST_POINTS // 2)) if len(part) > MOST_POINTS else 1
    points = part if every == 1 else _thinned(part, every)
    return {
        "name": name,
        "dtype": dtype,
        "shape": shape,
        "rows": rows,
        "width": width,
        "shown": part.shape[1],
        "first": first,
        "every": every,
        "points": len(points),
        "start": numbers.add(points),
        "non_finite": int((~np.isfinite(part)).sum()),
    }


def _thinned(values: np.ndarray, every: int) -> np.ndarray:
    """Return the smallest and the largest of each few rows, one after the other."""
    full = np.pad(values, ((0, -len(values) % every), (0, 0)), mode="edge")
    blocks = full.reshape(-1, every, values.shape[1])
    ends = np.stack([np.fmin.reduce(blocks, 1), np.fmax.reduce(blocks, 1)], 1)
    return ends.reshape(-1, values.shape[1])


def _frames(shown: Shown, episode: int) -> Iterator[dict[str, Any]]:
    stored, position = shown.stored(episode)
    for name, frames in frame_columns(shown.dataset.schema).items():
        one: dict[str, Any] = {
            "name": name,
            "width": frames.width,
            "height": frames.height,
            "count": stored.count_rows(name, np.array([position])),
            "note": frames.note,
        }
        if frames.is_depth:
            try:
                low, high = depth_range(shown, name, episode)
                one["note"] += f": black is {low:.5g} or less, white {high:.5g} or more"
            except (OrlogError, OSError) as error:
                one["note"] += f", whose range cannot be read: {error}"
        yield one


def _texts(shown: Shown, episode: int) -> Iterator[dict[str, Any]]:
    """Yield the columns with texts, and those with values of any length, a list entry for each row."""
    dataset = shown.dataset
    spaces = (("observations", dataset.observation_space), ("actions", dataset.action_space))
    texts = {
        name
        for root, space in spaces
        for name, leaf in leaf_spaces(space, root)
        if isinstance(leaf, gymnasium.spaces.Text)
    }
    texts |= {name for name, kind in dataset.schema.variable.items() if kind == "text"}
    told: set[str] = set()
    for column in dataset.columns:
        path = path_of_offsets(column) if is_offsets(column) else None
        if path is None or path.startswith("episodes/"):
            continue
        root = path.partition("@")[0]
        if "@" in path or values_column(path) not in dataset.columns:
            if root not in told:
                yield {"name": root, "error": NESTED}
            told.add(root)
            continue
        try:
            yield {"name": path, "values": _cut(shown, episode, path, is_text=path in texts)}
        except (OrlogError, OSError, UnicodeDecodeError) as error:
            yield {"name": path, "error": str(error)}


def _cut(shown: Shown, episode: int, path: str, *, is_text: bool) -> list[str]:
    ends = shown.rows(offsets_column(path), episode).tolist()
    values = shown.rows(values_column(path), episode)
    if ends and ends[-1] > len(values):
        raise IntegrityError(f"{shown.title}: {offsets_column(path)} does not count its values.")
    left, found = ALL_TEXT, []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        one = values[start:end]
        if is_text:
            text = one.tobytes().decode()
        else:
            text = ", ".join(
                f"{number:g}" for number in one.reshape(-1)[:MOST_ROW_NUMBERS].tolist()
            )
            text += f" … ({one.size:,} numbers)" if one.size > MOST_ROW_NUMBERS else ""
        most = min(LONGEST_TEXT, max(0, left))
        found.append(text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)")
        left -= len(found[-1])
    return found


def _final_missing(shown: Shown, episode: int) -> bool:
    if MISSING_FINAL not in shown.dataset.columns:
        return False
    try:
        return bool(shown.rows(MISSING_FINAL, episode)[0])
    except (OrlogError, OSError):
        return False
