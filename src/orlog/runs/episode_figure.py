"""One episode as a picture that begins a page: its path, over the maze where there is one, or a frame."""

from __future__ import annotations

import base64

import numpy as np

from orlog.base.png import png_bytes
from orlog.datasets.columns.episode import Episode
from orlog.datasets.looking.leaves import as_picture, dimensions_of, frames_of, maze_of
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError
from orlog.runs.pages import figure
from orlog.runs.pictures import path_map

PLACES = ("achieved_goal", "position", "xy", "observation")
"""Parts of observations whose first two numbers are a place, the likeliest first."""


def episode_figure(dataset: Dataset, episode: int | None = None) -> str:
    """Return a figure of an episode, the one with the highest return if none is named.

    It is empty where there is nothing to draw, or the data cannot be read.
    """
    try:
        if not dataset.total_episodes:
            return ""
        index = episode
        if index is None:
            returns = dataset.column("episodes/returns")
            index = int(np.nan_to_num(returns, nan=-np.inf).argmax())
        return _figure(dataset, dataset[index], index, is_best=episode is None)
    except (OrlogError, OSError):
        return ""


def _figure(dataset: Dataset, episode: Episode, index: int, *, is_best: bool) -> str:
    which = f"Episode {index} of {dataset.name}"
    end = "terminated" if episode.terminations[-1:].any() else ""
    end = end or ("truncated" if episode.truncations[-1:].any() else "")
    why = ", which has the highest return" if is_best else ""
    ends = {"terminated": "; it ends at ■, terminated", "truncated": "; it ends at □, cut off"}
    maze = maze_of(dataset.environment)
    known = {name: values for name, values in dimensions_of(episode) if name.startswith("obs")}
    roots = [*(f"observations/{part}" for part in PLACES), "observations"]
    roots += [name[:-3] for name in known if name.endswith("[1]")]
    for root in roots:
        x, y = known.get(f"{root}[0]"), known.get(f"{root}[1]")
        if x is None or y is None or not (np.isfinite(x) & np.isfinite(y)).any():
            continue
        is_place = maze is not None and root == "observations/achieved_goal"
        what = "its path in the maze" if is_place else f"{root}[0] across, {root}[1] up"
        picture = path_map(np.stack([x, y], 1), f"{which}: {what}", end, maze if is_place else None)
        caption = f"{which}{why}: {what}. It starts at ○{ends.get(end, '')}."
        return figure(picture, caption, kind="frame")
    for name, rows in frames_of(episode).items():
        data = base64.b64encode(png_bytes(as_picture(rows[0]))).decode()
        picture = f'<img src="data:image/png;base64,{data}" alt="first frame of an episode">'
        return figure(picture, f"{which}{why}: the first frame of {name}.", kind="frame")
    return ""
