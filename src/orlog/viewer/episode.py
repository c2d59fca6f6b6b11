"""One episode: its facts and columns over time, frames and texts.

The `lines` of a column are float64, little-endian, which JSON has as base64: all points of the first number of
a row, then those of the second. Point i is of step `first + i`, or, where `every` is not 1, points 2 i and 2 i + 1 are the smallest and the largest of the
`every` steps from step `first + i * every`.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.looking.leaves import as_picture, is_frame, maze_of, png_bytes
from orlog.datasets.store.version import StoredVersion
from orlog.errors import IntegrityError, NotFoundError, OrlogError
from orlog.manifests.columns import (
    FLAGS,
    ColumnSpec,
    is_offsets,
    is_part,
    offsets_column,
    path_of_offsets,
    values_column,
)
from orlog.manifests.manifest import video_path
from orlog.manifests.names import counted
from orlog.manifests.spaces import leaf_spaces
from orlog.viewer.rendering import source_of
from orlog.viewer.shown import Shown

MOST_POINTS = 4000  # of one line; longer ones show the smallest and largest of each few steps
MOST_NUMBERS = 64  # of a row
MOST_ROW_NUMBERS = 64  # of a value of any length
LONGEST_TEXT = 20_000
ALL_TEXT = 2_000_000
SAMPLED_FRAMES = 8
NESTED = "nested values of any length are not shown here; read them in Python: dataset[i]."


def episode_of(shown: Shown, episode: int, steps: slice, numbers: int) -> dict[str, Any]:
    """Return an episode with some of its steps, and so many numbers of a row at most.

    A damaged column says so in its place.

    Raises IndexError if there is no such episode.
    """
    stored, position = shown.stored(episode)
    length = int(stored.lengths[position])
    facts, errors = shown.values_or_errors(np.array([episode]))
    known = {name: values[0] for name, values in facts.items()}
    return {
        "episode": episode,
        "facts": known,
        "errors": errors,
        "length": length,
        "window": {"first": steps.start, "last": min(length, steps.stop or length)},
        "policy": stored.manifest.behavior_policy,
        "version": f"{stored.manifest.name}@{stored.manifest.version}",
        "stored_as": position,
        "series": list(_series(shown, episode, steps, numbers)),
        "texts": list(_texts(shown, episode)),
        "frames": list(_frames(shown, episode)),
        "maze": maze_of(shown.dataset.environment),
        "renders": source_of(shown, known.get("seeds")),
    }


def number_columns(shown: Shown) -> list[str]:
    """Return the columns of steps and observations that are drawn over time, the usual ones first."""
    names = [
        name
        for name, spec in _columns(shown).items()
        if name not in FLAGS and 0 not in spec.shape and not is_frame(spec.dtype, spec.shape)
    ]
    order = ("rewards", "actions", "observations")
    roots = {name: name.partition("/")[0] for name in names}
    place = {name: order.index(root) if root in order else 3 for name, root in roots.items()}
    return sorted(names, key=lambda name: (place[name], name))


def _columns(shown: Shown) -> dict[str, ColumnSpec]:
    """Return the columns with rows of one shape for each step or observation."""
    return {
        name: spec
        for name, spec in shown.dataset.schema.columns().items()
        if not is_part(name) and not name.startswith("episodes/")
    }


def _series(shown: Shown, episode: int, steps: slice, numbers: int) -> Iterator[dict[str, Any]]:
    for name in number_columns(shown):
        try:
            values = shown.rows(name, episode)
        except (OrlogError, OSError) as error:
            yield {"name": name, "error": str(error)}
            continue
        dimensions = shown.dataset.dimension_names.get(name, [])
        yield {**_line(name, values, steps, numbers), "dimensions": dimensions}
        if name == "rewards" and values.ndim == 1:
            to_go = values[::-1].astype(np.float64).cumsum()[::-1]
            yield _line("returns to go", to_go, steps, numbers)


def _line(name: str, values: np.ndarray, steps: slice, numbers: int) -> dict[str, Any]:
    flat = values.reshape(len(values), -1)
    part = flat[steps, :numbers].astype(np.float64)
    every = math.ceil(len(part) / (MOST_POINTS // 2)) if len(part) > MOST_POINTS else 1
    points = part if every == 1 else _thinned(part, every)
    return {
        "name": name,
        "dtype": str(values.dtype),
        "shape": values.shape[1:],
        "width": flat.shape[1],
        "shown": part.shape[1],
        "first": min(steps.start, len(flat)),
        "every": every,
        "lines": points.T.astype("<f8").tobytes(),
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
    for name, spec in _columns(shown).items():
        if not is_frame(spec.dtype, spec.shape):
            continue
        sides = spec.shape[-3:]
        axis = int(np.argmin(sides)) if len(sides) == 3 else 2
        height, width = (side for at, side in enumerate(sides) if at != axis)
        channels = sides[axis] if len(sides) == 3 else 1
        note = ""
        if spec.dtype != np.uint8:
            try:
                low, high = _depth_range(shown, name, episode)
                note = f"values as shades of gray: black is {low:.5g} or less, white {high:.5g} or more"
            except (OrlogError, OSError) as error:
                note = f"values as shades of gray, whose range cannot be read: {error}"
        elif len(spec.shape) > 3 or (axis == 0 and channels not in (1, 3)):
            note = f"the newest of {math.prod(spec.shape[:-3]) * (axis or channels)} stacked images"
        elif channels not in (1, 3):
            note = f"the first {3 if channels > 3 else 1} of {counted(channels, 'channel')}"
        count = stored.count_rows(name, np.array([position]))
        film = _film(shown, name, episode)
        yield {"name": name, "width": width, "height": height, "count": count, "note": note, "film": film}


def _film(shown: Shown, name: str, episode: int) -> dict[str, Any] | None:
    """Return when a browser shows each frame of an episode in its stored video, in seconds; None where it plays none."""
    with contextlib.suppress(OrlogError, OSError):  # which its frames say too
        stored, _, index = film_of(shown, name, episode)
        seconds = index[:, 1] * stored.videos.unit(name, int(index[0, 0]))
        video = stored.manifest.videos[name]
        rate = 1 / float(np.median(np.diff(seconds))) if len(seconds) > 1 else video.rate or 1
        return {"codec": video.codec, "rate": rate, "seconds": seconds}
    return None


def film_of(shown: Shown, name: str, episode: int) -> tuple[StoredVersion, str, np.ndarray]:
    """Return the version and the path in it of the video that shows an episode, and the index of its frames, (F, 3) int64.

    Rows behind them are of no file. Raises NotFoundError if it is in no video, in several, or in another order; IndexError if
    there is no such episode.
    """
    stored, position = shown.stored(episode)
    if name in stored.manifest.videos:
        rows = stored.read_frame_index(name, np.array([position]))
        index = rows[: np.count_nonzero(rows[:, 0])]
        if len(index) and (index[:, 0] == rows[0, 0]).all() and (np.diff(index[:, 1]) > 0).all():
            return stored, video_path(name, int(rows[0, 0])), index
    raise NotFoundError(
        f"{shown.title}, episode {episode}: {name!r:.100} is not one video from its first frame to its last."
    )


def frame_png(shown: Shown, name: str, episode: int, step: int) -> bytes:
    """Return the frame at one row of an episode as a PNG file: to the exact pixel, depth in shades of gray.

    Raises NotFoundError if the column has no frames; IndexError if there is no such episode or row.
    """
    spec = _columns(shown).get(name)
    if spec is None or not is_frame(spec.dtype, spec.shape):
        raise NotFoundError(f"{shown.title}: {name!r:.100} is no column of images.")
    frame = _rows(shown, name, episode, np.array([step]))[0]
    ends = None if spec.dtype == np.uint8 else _depth_range(shown, name, episode)
    return png_bytes(as_picture(frame, ends))


@functools.lru_cache(maxsize=64)
def _depth_range(shown: Shown, name: str, episode: int) -> tuple[float, float]:
    """Return the values that are black and white: the smallest and largest of a few frames."""
    stored, position = shown.stored(episode)
    last = int(stored.lengths[position]) - 1
    steps = np.unique(np.linspace(0, last, SAMPLED_FRAMES).astype(np.int64))
    values = _rows(shown, name, episode, steps)
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)


def _rows(shown: Shown, name: str, episode: int, steps: np.ndarray) -> np.ndarray:
    stored, position = shown.stored(episode)
    first = int(stored.first_rows(name, np.array([position]))[0])
    count = stored.count_rows(name, np.array([position]))
    if not (steps.min() >= 0 and steps.max() < count):
        raise IndexError(
            f"{shown.title}, episode {episode}: {name} has {counted(count, 'frame')}, found number {steps.max()}."
        )
    return stored.read_rows(name, first + steps)


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
    paths = [path_of_offsets(column) or "" for column in dataset.columns if is_offsets(column)]
    nested: dict[str, None] = {}
    for path in paths:
        if path.startswith("episodes/"):
            continue
        if "@" in path or values_column(path) not in dataset.columns:
            nested[path.partition("@")[0]] = None
            continue
        try:
            yield {"name": path, "values": _values(shown, episode, path, is_text=path in texts)}
        except (OrlogError, OSError, UnicodeDecodeError) as error:
            yield {"name": path, "error": str(error)}
    yield from ({"name": name, "error": NESTED} for name in nested)


def _values(shown: Shown, episode: int, path: str, *, is_text: bool) -> list[str]:
    ends = shown.rows(offsets_column(path), episode).tolist()
    values = shown.rows(values_column(path), episode)
    if ends and ends[-1] > len(values):
        raise IntegrityError(f"{shown.title}: {offsets_column(path)} does not count its values.")
    left, texts = ALL_TEXT, []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        row = values[start:end]
        if is_text:
            text = row.tobytes().decode()
        else:
            numbers = row.reshape(-1)[:MOST_ROW_NUMBERS].tolist()
            more = f" … ({row.size:,} numbers)" if row.size > MOST_ROW_NUMBERS else ""
            text = ", ".join(f"{number:g}" for number in numbers) + more
        most = min(LONGEST_TEXT, max(0, left))
        texts.append(text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)")
        left -= len(texts[-1])
    return texts
