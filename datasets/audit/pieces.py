"""A dataset in pieces of bounded size: whole episodes, or a part of one long episode.

A piece with T steps of an episode has its T + 1 observations, so each step has the one after it:

    episode of 5 steps in two pieces    steps         0 1 2 | 3 4
                                        observations  0 1 2 3 | 3 4 5
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from orlog.datasets.audit.hashing import ODD, mixed, row_hashes, sums_of
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.columns.blocks import Block, episode_blocks, slice_block
from orlog.datasets.columns.schema import Schema
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.episode_ranges import row_bytes_of
from orlog.manifests.columns import axis_of, has_offsets, is_offsets, is_part, offsets_of
from orlog.manifests.spaces import named_parts

LONG_EPISODE_BYTES = 2**26
SAMPLED_EPISODES = 64
SAMPLED_STEPS = 2**16
MOST_RUNS = 4  # of neighboring dimensions, which are named one by one
PIECE_BYTES = 2**21  # so that most of what checks compute stays in the CPU's cache


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Rows of some episodes.

    Attributes:
        columns: Columns of steps and observations, by name.
        episodes: Positions of the episodes, (n,) int64.
        lengths: Steps of each of them that are here, (n,) int64.
        first_step: Index of the first step here in its episode; 0 unless a piece of it came before.
        is_end: Whether the last episode ends here.
        missing_finals: Whether the final observation of each episode was never recorded, (n,) bool.
    """

    columns: Block
    episodes: np.ndarray
    lengths: np.ndarray
    first_step: int
    is_end: bool
    missing_finals: np.ndarray
    views: dict[Any, Any] = dataclasses.field(default_factory=dict)  # what checks share
    _numbers: Block = dataclasses.field(default_factory=dict)
    _hashes: Block = dataclasses.field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Number of steps here."""
        return int(self.ends[-1])

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """The step row after each episode's last one here, (n,) int64."""
        return self.lengths.cumsum()

    @functools.cached_property
    def lasts(self) -> np.ndarray:
        """The step row of the last step of each episode that ends here."""
        lasts = self.ends - 1
        return lasts if self.is_end else lasts[:-1]

    @functools.cached_property
    def ending(self) -> np.ndarray:
        """The episodes that end here, as indices into `episodes`."""
        return np.arange(len(self.lasts))

    @functools.cached_property
    def has_next(self) -> np.ndarray:
        """Whether each step's next observation was recorded, (steps,) bool."""
        known = np.ones(self.steps, np.bool_)
        known[self.lasts[self.missing_finals[self.ending]]] = False
        return known

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the episodes and the steps of rows of steps."""
        index = np.searchsorted(self.ends, rows, "right")
        steps = rows - (self.ends - self.lengths)[index] + np.where(index == 0, self.first_step, 0)
        return self.episodes[index], steps

    def place(self, row: int, *, of_observations: bool = False) -> tuple[int, int]:
        """Return the episode and the step of a row of steps or of observations."""
        ends = self.ends + np.arange(1, len(self.ends) + 1) if of_observations else self.ends
        index = int(np.searchsorted(ends, row, "right"))
        step = row - (int(ends[index - 1]) if index else 0)
        return int(self.episodes[index]), step + (self.first_step if index == 0 else 0)

    @functools.cached_property
    def before(self) -> np.ndarray:
        """The row of the observation before each step, (steps,) int64; the one after it follows."""
        rows: np.ndarray = np.arange(self.steps) + np.repeat(
            np.arange(len(self.lengths)), self.lengths
        )
        return rows

    def numbers(self, name: str) -> np.ndarray:
        """Return a column with one row for each number of its rows, (numbers, rows), contiguous."""
        if name not in self._numbers:
            values = self.columns[name]
            rows = values.reshape(len(values), math.prod(values.shape[1:]))
            self._numbers[name] = np.ascontiguousarray(rows.T)
        return self._numbers[name]

    def hashes(self, root: str) -> np.ndarray:
        """Return a hash of each row of all columns under a root, such as `observations`."""
        if root in self._hashes:
            return self._hashes[root]
        names = sorted(name for name in self.columns if re.split("[/@]", name)[0] == root)
        rows = self.steps + len(self.lengths) * (root == "observations")
        total = np.zeros(rows, np.uint64)
        for number, name in enumerate(names):
            if is_offsets(name):
                continue  # what it counts is hashed with its count
            hashes, offsets = row_hashes(self.columns[name]), offsets_of(name)
            while offsets is not None:
                hashes = sums_of(hashes, self.columns[offsets])
                offsets = offsets_of(offsets)
            with np.errstate(over="ignore"):
                total = total + mixed(hashes + ODD * np.uint64(2 * number + 1))
        self._hashes[root] = total
        return total

    def changes(self, name: str) -> np.ndarray:
        """Return how much each real number of an observation changes in each step, (numbers, steps)."""
        if (name, "changes") not in self.views:
            changes = np.diff(self.numbers(name), axis=1)
            self.views[name, "changes"] = (
                changes if len(self.lengths) == 1 else changes.take(self.before, axis=1)
            )
        changed: np.ndarray = self.views[name, "changes"]
        return changed

    def counted(self, name: str) -> int:
        """Return how many rows of a column are here and not in the next piece too."""
        shared = axis_of(name) == "observation" and not self.is_end
        return len(self.columns[name]) - shared


def plain_columns(dataset: Dataset, *roots: str) -> list[str]:
    """Return the columns of fixed-size numbers under some roots, such as `observations`."""
    return [
        name for name in dataset.columns if name.partition("/")[0] in roots and not is_part(name)
    ]


def dimension(dataset: Dataset, name: str, index: int) -> str:
    """Return the name of one number in the rows of a column: `observations[3]`."""
    shape = dataset.schema.columns()[name].shape
    return name + "".join(f"[{one}]" for one in np.unravel_index(index, shape)) if shape else name


def dimensions(dataset: Dataset, name: str, indices: Sequence[int] | np.ndarray) -> str:
    """Return the names of some numbers in the rows of a column: `observations[0] to [5], [7] (waist to wrist)`."""
    texts, names = [], dataset.dimension_names.get(name)
    indices = np.asarray(indices)
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    for run in runs[:MOST_RUNS]:
        ends = [dimension(dataset, name, int(one)) for one in (run[0], run[-1])]
        texts.append(ends[0] + (f" to {ends[1].removeprefix(name)}" if len(run) > 1 else ""))
    text = ", ".join([texts[0], *(one.removeprefix(name) for one in texts[1:])])
    if len(runs) > MOST_RUNS:
        text += f" and others, {len(indices)} in all"
    if names is None or len(indices) > len(names):
        return text
    ends = [names[int(indices[0])], names[int(indices[-1])]]
    return f"{text} ({ends[0]}" + (f" to {ends[1]})" if len(indices) > 1 else ")")


def pieces(
    dataset: Dataset, missing_finals: np.ndarray, some: range | None = None
) -> Iterator[Piece]:
    """Yield all episodes, or a range of them, in pieces of bounded size.

    Values of variable length keep an episode whole, however long it is.
    """
    lengths = dataset.episode_lengths
    names = [name for name in dataset.columns if axis_of(name) != "episode"]
    row_bytes = row_bytes_of(dataset)
    longest = max(1, LONG_EPISODE_BYTES // max(1, row_bytes))
    is_long = (lengths > longest) & (not any(has_offsets(name) for name in names))
    beside = np.flatnonzero(is_long[1:] | is_long[:-1]) + 1  # where a long episode starts or ends
    chosen = range(len(lengths)) if some is None else some
    beside = beside[(beside > chosen.start) & (beside < chosen.stop)]
    for first, last in itertools.pairwise([chosen.start, *beside.tolist(), chosen.stop]):
        if is_long[first]:
            yield from _parts(dataset, names, first, longest, missing_finals)
            continue
        done = first
        for block, counts in dataset.blocks(np.arange(first, last)):
            columns = {name: block[name] for name in names}
            edges = episode_blocks(counts.cumsum(), max(1, PIECE_BYTES // max(1, row_bytes)))
            for begin, end in itertools.pairwise(edges.tolist()):
                episodes = np.arange(done + begin, done + end)
                part = slice_block(columns, counts, begin, end)
                yield Piece(part, episodes, counts[begin:end], 0, True, missing_finals[episodes])
            done += len(counts)


def sampled_pieces(
    dataset: Dataset,
    missing_finals: np.ndarray,
    episodes: int = SAMPLED_EPISODES,
    *,
    images: bool = False,
) -> Iterator[Piece]:
    """Yield some episodes that lie evenly in the data, until there are enough steps.

    Models are fitted to them before everything is read. Images are left out where other observations are
    there, unless they are wanted.
    """
    chosen = np.linspace(0, dataset.total_episodes - 1, episodes).astype(np.int64)
    chosen = np.unique(chosen)
    some = dataset[chosen]
    specs = dataset.schema.columns()
    wide = {
        name
        for name in plain_columns(dataset, "observations")
        if math.prod(specs[name].shape) > limit("wide rows")
    }
    if wide and not images and isinstance(dataset.observation_space, gymnasium.spaces.Dict):
        kept = [one for one in optional_columns(dataset.schema) if one not in wide]
        if any(one.startswith("observations") for one in kept):
            some = some.select_columns(kept)
    steps = 0
    for piece in pieces(some, missing_finals[chosen]):
        yield piece
        steps += piece.steps
        if steps > SAMPLED_STEPS:
            return


def optional_columns(schema: Schema) -> set[str]:
    """Return the columns that a view or a download may leave out."""
    space = schema.observation_space
    keys = named_parts(space) if isinstance(space, gymnasium.spaces.Dict) else []
    return {*schema.extras, *(f"observations/{name}" for _, name, _ in keys)}


def _parts(
    dataset: Dataset, names: list[str], episode: int, longest: int, missing_finals: np.ndarray
) -> Iterator[Piece]:
    start, length = int(dataset.episode_starts[episode]), int(dataset.episode_lengths[episode])
    one = np.array([episode])
    for first in range(0, length, longest):
        last = min(first + longest, length)
        columns = {}
        for name in names:
            more = axis_of(name) == "observation"
            begin = start + (episode if more else 0)
            columns[name] = dataset.column(name, begin + first, begin + last + more)
        counts = np.array([last - first])
        yield Piece(columns, one, counts, first, last == length, missing_finals[one])
