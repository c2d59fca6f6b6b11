"""Figures of a whole dataset: histograms and ends of all episodes, the rest of an even sample of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.columns.bounds import bounds_of
from orlog.datasets.looking.sparklines import Histogram, counts_between, histogram
from orlog.errors import OrlogError
from orlog.manifests.spaces import leaf_spaces
from orlog.runs.pictures import bars
from orlog.viewer.episode import number_columns
from orlog.viewer.shown import ENDS, Shown

SAMPLED_STEPS = 100_000
MOST_NUMBERS = {"rewards": 1, "actions": 16, "observations": 32}
BINS = 40
MOST_ACTIONS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Numbers of steps that lie evenly in a dataset.

    Attributes:
        values: One row for each step, float32 [steps, numbers].
        names: What the numbers are: `observations[3]`.
        episodes: Number of episodes that the steps are of.
        errors: Why a column is left out, by name.
    """

    values: np.ndarray
    names: list[str]
    episodes: int
    errors: dict[str, str]


def draw_sample(shown: Shown, progress: Callable[[int, int], None]) -> Sample:
    """Return whole episodes, evenly spread, of about 100,000 steps together; all if there are fewer."""
    dataset = shown.dataset
    mean = max(1.0, dataset.total_steps / max(1, dataset.total_episodes))
    count = min(dataset.total_episodes, max(1, round(SAMPLED_STEPS / mean)))
    chosen = np.unique(np.linspace(0, dataset.total_episodes - 1, count).astype(np.int64))
    lengths = dataset.episode_lengths[chosen]
    chosen = chosen[: max(1, int(np.searchsorted(lengths.cumsum(), 2 * SAMPLED_STEPS)))]
    names: list[str] = []
    parts: list[np.ndarray] = []
    errors: dict[str, str] = {}
    columns = [name for name in number_columns(shown) if name.partition("/")[0] in MOST_NUMBERS]
    for done, column in enumerate(columns if len(chosen) else []):
        progress(done, len(columns))
        root = column.partition("/")[0]
        left = MOST_NUMBERS[root] - sum(name.startswith(root) for name in names)
        if left <= 0:
            continue
        try:
            rows = _rows(shown, column, chosen)[:, :left]
        except (OrlogError, OSError) as error:
            errors[column] = str(error)
            continue
        parts.append(rows)
        width = rows.shape[1]
        names += [column] if width == 1 else [f"{column}[{at}]" for at in range(width)]
    values = np.concatenate(parts, 1) if parts else np.zeros((0, 0), np.float32)
    return Sample(values=values, names=names, episodes=len(chosen), errors=errors)


def _rows(shown: Shown, column: str, episodes: np.ndarray) -> np.ndarray:
    """Return one row for each step of some episodes, float32; final observations are left out."""
    blocks = []
    for stored, some in shown.selection.runs(episodes):
        values = stored.read_episodes(column, some)
        if column.partition("/")[0] == "observations":
            lasts = (stored.lengths[some] + 1).cumsum() - 1
            values = np.delete(values, lasts, axis=0)
        blocks.append(values.reshape(len(values), -1).astype(np.float32))
    return np.concatenate(blocks)


def figures_of(shown: Shown, sample: Sample) -> dict[str, Any]:
    """Return the figures of a dataset, for the page."""
    dataset = shown.dataset
    errors = dict(sample.errors)
    histograms = []
    for label in ("return", "steps"):
        try:
            values = dataset.episode_lengths
            if label == "return":
                values = dataset.column("episodes/returns")
            histograms.append({"label": label, **_spread(values, label)})
        except (OrlogError, OSError) as error:
            errors[label] = str(error)
    ends: dict[str, int] = {}
    try:
        counts = np.bincount(shown.ends(np.arange(dataset.total_episodes)), minlength=len(ENDS))
        ends = {word: count for word, count in zip(ENDS, counts.tolist(), strict=True) if count}
    except (OrlogError, OSError) as error:
        errors["ends"] = str(error)
    return {
        "histograms": histograms,
        "ends": ends,
        "sampled_steps": len(sample.values),
        "sampled_episodes": sample.episodes,
        "all_steps": dataset.total_steps,
        "names": sample.names,
        "ranges": [_range(values) for values in sample.values.T],
        "actions": list(_use_of_actions(shown, sample)),
        "errors": errors,
    }


def _spread(values: np.ndarray, label: str) -> dict[str, Any]:
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite):
        return {"picture": "", "text": "no finite value"}
    return {
        "picture": bars(histogram(finite, BINS), f"Histogram of {label}"),
        "mean": float(finite.mean()),
        "median": float(np.median(finite)),
        "deviation": float(finite.std()),
        "non_finite": len(values) - len(finite),
    }


def _range(values: np.ndarray) -> list[float | None]:
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite):
        return [None] * 4
    return [float(number) for number in (finite.min(), finite.mean(), finite.std(), finite.max())]


def _use_of_actions(shown: Shown, sample: Sample) -> Iterator[dict[str, Any]]:
    """Yield, for each number of the actions, how much of its range is used and how often it is on a bound."""
    dataset = shown.dataset
    bounds = bounds_of(dataset.observation_space, dataset.action_space)
    for name, leaf in leaf_spaces(dataset.action_space, "actions"):
        at = [i for i, part in enumerate(sample.names) if part.partition("[")[0] == name]
        if not at:
            continue
        if isinstance(leaf, gymnasium.spaces.Discrete):
            first, count = int(leaf.start), min(int(leaf.n), MOST_ACTIONS)
            taken = sample.values[:, at[0]].astype(np.int64) - first
            counts = np.bincount(taken[(taken >= 0) & (taken < count)], minlength=count)
            last = first + count - 1
            drawn = Histogram(counts, first - 0.5, last + 0.5, 1, first, last)
            yield {"name": name, "taken": counts / len(taken), "of": int(leaf.n), "picture": bars(drawn, name)}
        elif name in bounds and bounds[name].are_finite:
            ends = (
                np.broadcast_to(end, leaf.shape or ()).astype(np.float32).reshape(-1).tolist()
                for end in (bounds[name].low, bounds[name].high)
            )
            for column, low, high in zip(at, *ends, strict=False):
                values = sample.values[:, column]
                counts = counts_between(values, low, high, BINS)
                drawn = Histogram(counts, low, high, 0, low, high)
                yield {
                    "name": sample.names[column],
                    "bounds": [low, high],
                    "range": [float(values.min()), float(values.max())],
                    "on_low": float((values <= low).mean()),
                    "on_high": float((values >= high).mean()),
                    "picture": bars(drawn, sample.names[column]),
                }
