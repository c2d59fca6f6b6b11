"""A dataset in pieces of bounded size: whole episodes, or a part of one long episode.

A piece with T steps of an episode has its T + 1 observations, so each step has the one after it:

    episode of 5 steps in two pieces    steps         0 1 2 | 3 4
                                        observations  0 1 2 3 | 3 4 5

Rows are compared by hashes of 64 bits. They are no protection against rows made to collide; among a
million different rows the chance of two equal hashes is 3e-8.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np

from orlog.datasets.columns.schema import Schema
from orlog.datasets.columns.values import Block, episode_blocks, slice_block
from orlog.datasets.reading.dataset import Dataset, row_bytes_of
from orlog.manifests.columns import axis_of, has_offsets, is_offsets, is_part, offsets_of
from orlog.manifests.spaces import named_parts

LONG_EPISODE_BYTES = 2**26
PIECE_BYTES = 2**21  # so that most of what checks compute stays in the CPU's cache
MOST_RUNS = 4  # of neighboring dimensions, which are named one by one
ODD = np.uint64(0x9E3779B97F4A7C15)
OTHER = np.uint64(0xD1B54A32D192ED03)
Result = TypeVar("Result")


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
        views: What checks compute and share.
    """

    columns: Block
    episodes: np.ndarray
    lengths: np.ndarray
    first_step: int
    is_end: bool
    missing_finals: np.ndarray
    views: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Number of steps here."""
        return int(self.ends[-1])

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """The step row after each episode's last one here, (n,) int64."""
        return self.lengths.cumsum()

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The step row of each episode's first one here, (n,) int64."""
        return np.asarray(self.ends - self.lengths)

    @functools.cached_property
    def begun(self) -> slice:
        """Which of the episodes begin here."""
        return slice(bool(self.first_step), None)

    @functools.cached_property
    def lasts(self) -> np.ndarray:
        """The step row of the last step of each episode that ends here."""
        lasts = self.ends - 1
        return np.asarray(lasts if self.is_end else lasts[:-1])

    @functools.cached_property
    def ended(self) -> np.ndarray:
        """Positions of the episodes that end here."""
        return self.episodes[: len(self.lasts)]

    @functools.cached_property
    def has_next(self) -> np.ndarray:
        """Whether each step's next observation was recorded, (steps,) bool."""
        known = np.ones(self.steps, np.bool_)
        known[self.lasts[self.missing_finals[: len(self.lasts)]]] = False
        return known

    @functools.cached_property
    def which(self) -> np.ndarray:
        """The index in `episodes` of each step's episode, (steps,)."""
        return np.asarray(np.repeat(np.arange(len(self.lengths)), self.lengths))

    @functools.cached_property
    def step_index(self) -> np.ndarray:
        """The number of each step in its episode, (steps,)."""
        index: np.ndarray = np.arange(self.steps) - self.starts[self.which]
        index[: self.lengths[0]] += self.first_step
        return index

    @functools.cached_property
    def before(self) -> np.ndarray:
        """The row of the observation before each step, (steps,) int64; the one after it follows."""
        return np.asarray(np.arange(self.steps) + self.which)

    def firsts(self, name: str) -> np.ndarray:
        """Return each episode's first row here in a column of steps or of observations."""
        shift = np.arange(len(self.starts)) if axis_of(name) == "observation" else 0
        return np.asarray(self.starts + shift)

    def place(self, row: int, name: str = "rewards") -> tuple[int, int]:
        """Return the episode and step of a row of a column, or of a value of variable length."""
        while (offsets := offsets_of(name)) is not None:
            row, name = int(np.searchsorted(self.columns[offsets], row, "right")), offsets
        firsts = self.firsts(name)
        index = int(np.searchsorted(firsts, row, "right")) - 1
        step = row - int(firsts[index]) + (self.first_step if index == 0 else 0)
        return int(self.episodes[index]), step

    def places(self, steps: np.ndarray) -> np.ndarray:
        """Return the episodes and steps of some step rows as one number, `episode << 32 | step`."""
        return np.asarray((self.episodes[self.which[steps]] << 32) + self.step_index[steps])

    def once(self, key: Any, compute: Callable[[], Result]) -> Result:
        """Return what is computed for a key when it is first asked for."""
        if key not in self.views:
            self.views[key] = compute()
        result: Result = self.views[key]
        return result

    def numbers(self, name: str) -> np.ndarray:
        """Return a column with one row for each number of its rows, (numbers, rows), contiguous."""
        return self.once(name, lambda: np.ascontiguousarray(flat(self.columns[name]).T))

    def changes(self, name: str) -> np.ndarray:
        """Return how much each real number of an observation changes in each step, (numbers, steps)."""

        def compute() -> np.ndarray:
            changes = np.diff(self.numbers(name), axis=1)
            return changes[:, self.before] if len(self.lengths) > 1 else changes

        return self.once((name, "changes"), compute)

    def hashes(self, root: str) -> np.ndarray:
        """Return a hash of each row of a column, or of all columns under a root: `observations`."""

        def of_column(name: str) -> np.ndarray:
            hashes, offsets = row_hashes(self.columns[name]), offsets_of(name)
            while offsets is not None:
                hashes, offsets = sums_of(hashes, self.columns[offsets]), offsets_of(offsets)
            return hashes

        def compute() -> np.ndarray:
            total = np.zeros(self.steps + len(self.lengths) * (axis_of(root) == "observation"), np.uint64)
            inside = [name for name in self.columns if re.match(f"{re.escape(root)}($|[/@])", name)]
            for number, name in enumerate(sorted(inside)):
                if not is_offsets(name):  # what it counts is hashed with its count
                    rows = self.once((name, "rows"), functools.partial(of_column, name))
                    with np.errstate(over="ignore"):
                        total += mixed(rows + ODD * np.uint64(2 * number + 1))
            return total

        return self.once((root, "hashes"), compute)

    def same(self, root: str) -> np.ndarray:
        """Return in which steps observations stay exactly the same, (steps,) bool."""
        hashes = self.hashes(root)
        return np.asarray((hashes[1:] == hashes[:-1])[self.before])

    def counted(self, name: str) -> int:
        """Return how many rows of a column are here and not in the next piece too."""
        shared = axis_of(name) == "observation" and not self.is_end
        return len(self.columns[name]) - shared


def flat(values: np.ndarray) -> np.ndarray:
    """Return rows as vectors, (rows, numbers)."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


def sums_of(hashes: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a hash for each run of hashes, which depends on their order; `ends` are theirs."""
    starts = np.concatenate([[0], ends])[:-1]
    positions = np.arange(len(hashes)) - np.repeat(starts, ends - starts)
    placed = mixed(hashes + OTHER * (positions.astype(np.uint64) + np.uint64(1)))
    sums = np.concatenate([np.zeros(1, np.uint64), placed.cumsum(dtype=np.uint64)])
    return np.asarray(sums[ends] - sums[starts] + (ends - starts).astype(np.uint64))


def row_hashes(values: np.ndarray) -> np.ndarray:
    """Return a hash of the bytes of each row."""
    if values.size == 0:
        return np.zeros(len(values), np.uint64)
    size = values.nbytes // len(values)
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(len(values), size)
    if size % 8:
        data = np.pad(data, ((0, 0), (0, -size % 8)))
    words = np.ascontiguousarray(data).view(np.uint64)
    places = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * ODD | np.uint64(1)
    with np.errstate(over="ignore"):
        words = words ^ (words >> np.uint64(29))
        words *= places
        words ^= words >> np.uint64(32)
        words *= OTHER
        return mixed(np.add.reduce(words, axis=1))


def mixed(hashes: np.ndarray) -> np.ndarray:
    """Return hashes whose bits depend on all bits (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(hashes ^ (hashes >> np.uint64(31)))


def plain_columns(dataset: Dataset, *roots: str) -> list[str]:
    """Return the columns of fixed-size numbers under some roots, such as `observations`."""
    return [name for name in dataset.columns if name.partition("/")[0] in roots and not is_part(name)]


def dimension(dataset: Dataset, name: str, index: int) -> str:
    """Return the name of one number in the rows of a column: `observations[3]`."""
    shape = dataset.schema.columns()[name].shape
    return name + "".join(f"[{each}]" for each in np.unravel_index(index, shape)) if shape else name


def dimensions(dataset: Dataset, name: str, indices: Sequence[int] | np.ndarray) -> str:
    """Return the names of some numbers of a column: `observations[0] to [5], [7] (waist to wrist)`."""
    indices = np.asarray(indices)
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    texts: list[str] = []
    for run in runs[:MOST_RUNS]:
        first, last = (dimension(dataset, name, int(run[at])) for at in (0, -1))
        text = first + (f" to {last.removeprefix(name)}" if len(run) > 1 else "")
        texts.append(text.removeprefix(name) if texts else text)
    text = ", ".join(texts)
    if len(runs) > MOST_RUNS:
        text += f" and others, {len(indices)} in all"
    names = dataset.dimension_names.get(name)
    if names is None or len(indices) > len(names):
        return text
    ends = dict.fromkeys(str(names[int(indices[at])]) for at in (0, -1))
    return f"{text} ({' to '.join(ends)})"


def optional_columns(schema: Schema) -> set[str]:
    """Return the columns that a view or a download may leave out."""
    space = schema.observation_space
    keys = named_parts(space) if isinstance(space, gymnasium.spaces.Dict) else []
    return {*schema.extras, *(f"observations/{name}" for _, name, _ in keys)}


def pieces(dataset: Dataset, missing_finals: np.ndarray, some: range | None = None) -> Iterator[Piece]:
    """Yield all episodes, or a range of them, in pieces of bounded size.

    Values of variable length keep an episode whole, however long it is.
    """
    lengths = dataset.episode_lengths
    names = [name for name in dataset.columns if axis_of(name) != "episode"]
    row_bytes = max(1, row_bytes_of(dataset))
    longest = max(1, LONG_EPISODE_BYTES // row_bytes)
    is_long = (lengths > longest) & (not any(has_offsets(name) for name in names))
    chosen = range(len(lengths)) if some is None else some
    beside = np.flatnonzero(is_long[1:] | is_long[:-1]) + 1  # where a long episode starts or ends
    beside = beside[(beside > chosen.start) & (beside < chosen.stop)]
    for first, last in itertools.pairwise([chosen.start, *beside.tolist(), chosen.stop]):
        if is_long[first]:
            yield from _parts(dataset, names, first, longest, missing_finals)
            continue
        done = first
        for block, counts in dataset.blocks(np.arange(first, last)):
            columns = {name: block[name] for name in names}
            edges = episode_blocks(counts.cumsum(), max(1, PIECE_BYTES // row_bytes))
            for begin, end in itertools.pairwise(edges.tolist()):
                episodes = np.arange(done + begin, done + end)
                part = slice_block(columns, counts, begin, end)
                yield Piece(part, episodes, counts[begin:end], 0, True, missing_finals[episodes])
            done += len(counts)


def _parts(
    dataset: Dataset, names: list[str], episode: int, longest: int, missing_finals: np.ndarray
) -> Iterator[Piece]:
    start, length = int(dataset.episode_starts[episode]), int(dataset.episode_lengths[episode])
    position = np.array([episode])
    for first in range(0, length, longest):
        last = min(first + longest, length)
        columns = {}
        for name in names:
            more = axis_of(name) == "observation"
            begin = start + (episode if more else 0)
            columns[name] = dataset.column(name, begin + first, begin + last + more)
        counts = np.array([last - first])
        yield Piece(columns, position, counts, first, last == length, missing_finals[position])
