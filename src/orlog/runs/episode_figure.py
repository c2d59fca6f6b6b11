"""One episode as a picture that begins a page: its path, over the maze where there is one, or a frame."""

from __future__ import annotations

import base64

import numpy as np

from orlog.datasets.looking.leaves import as_picture, dimensions_of, frames_of, maze_of, png_bytes
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError
from orlog.runs.pages import figure
from orlog.runs.pictures import path_map

PLACES = ("achieved_goal", "position", "xy", "observation")
"""Parts of observations whose first two numbers are a place, the likeliest first."""
ENDS = {"terminated": "; it ends at ■, terminated", "truncated": "; it ends at □, cut off", "": ""}


def episode_figure(dataset: Dataset, index: int | None = None) -> str:
    """Return a figure of an episode, the one with the highest return if none is named.

    It is empty where there is nothing to draw, or the data cannot be read.
    """
    which = f"Episode {index} of {dataset.name}"
    try:
        if index is None and dataset.total_episodes:
            returns = dataset.column("episodes/returns")
            index = int(np.nan_to_num(returns, nan=-np.inf).argmax())
            which = f"Episode {index} of {dataset.name}, which has the highest return"
        if index is None:
            return ""
        episode = dataset[index]
    except (OrlogError, OSError):
        return ""
    end = "terminated" if episode.terminations[-1:].any() else ""
    end = end or ("truncated" if episode.truncations[-1:].any() else "")
    known = {name: values for name, values in dimensions_of(episode) if name.startswith("obs")}
    roots = [*(f"observations/{part}" for part in PLACES), "observations"]
    roots += [name[:-3] for name in known if name.endswith("[1]")]
    for root in roots:
        x, y = known.get(f"{root}[0]"), known.get(f"{root}[1]")
        if x is None or y is None or not (np.isfinite(x) & np.isfinite(y)).any():
            continue
        maze = maze_of(dataset.environment) if root == "observations/achieved_goal" else None
        what = f"{root}[0] across, {root}[1] up" if maze is None else "its path in the maze"
        picture = path_map(np.stack([x, y], 1), f"{which}: {what}", end, maze)
        return figure(picture, f"{which}: {what}. It starts at ○{ENDS[end]}.", kind="frame")
    for name, rows in frames_of(episode).items():
        data = base64.b64encode(png_bytes(as_picture(rows[0]))).decode()
        picture = f'<img src="data:image/png;base64,{data}" alt="first frame of an episode">'
        return figure(picture, f"{which}: the first frame of {name}.", kind="frame")
    return ""
