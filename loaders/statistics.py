"""Statistics of a dataset's steps and episodes: one pass in float64, cached by digest.

    $ORLOG_HOME/statistics/DIGEST.json

Blocks are merged as Chan, Golub and LeVeque 1979 ("Updating formulae and a pairwise algorithm for
computing sample variances"), which loses no digits if the mean is far from zero. The second call
takes a millisecond: it reads and checks the cached file.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float64, Int64

from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import ManifestError, SchemaError, StorageError
from orlog.loaders.arrays import Arrays, check_arrays
from orlog.loaders.filling import Layout, fill_matrix, layout_of, not_finite
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer

_BLOCK_ROWS = 65536
_BLOCK_BYTES = 2**25  # of a block that is streamed: rows of over 128 numbers come in smaller ones
_AHEAD_BYTES = 2**26  # fetched at once, of a dataset that is read in place
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean, standard deviation and range of some numbers, float64.

    Attributes:
        mean: Mean of each.
        std: Standard deviation of each: the root of the mean square (not of n - 1).
        low: Smallest of each.
        high: Largest of each.
    """

    mean: Float64[np.ndarray, " numbers"]
    std: Float64[np.ndarray, " numbers"]
    low: Float64[np.ndarray, " numbers"]
    high: Float64[np.ndarray, " numbers"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a dataset, each step or episode counted once, whatever its weight.

    Attributes:
        steps: Number of steps.
        episodes: Number of episodes.
        observations: Of the packed observation of every step, without final observations; empty if
            none is packed (images, integers).
        actions: Of the packed actions; empty if actions are integers.
        rewards: Of the reward, one number.
        returns: Of the sum of rewards of an episode, one number.
    """

    steps: int
    episodes: int
    observations: Moments
    actions: Moments
    rewards: Moments
    returns: Moments


class _Moments(msgspec.Struct, forbid_unknown_fields=True):
    mean: list[float]
    std: list[float]
    low: list[float]
    high: list[float]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    statistics_version: int
    digest: str
    checksum: str
    steps: int
    episodes: int
    observations: _Moments
    actions: _Moments
    rewards: _Moments
    returns: _Moments


def load_statistics(arrays: Arrays) -> Statistics:
    """Return the statistics of a dataset, from the cache if possible; else compute and cache them.

    They are computed each time for arrays without a digest, or if the home cannot be written.

    Raises SchemaError if a number that is not finite; ManifestError if the cached statistics are damaged, or
    are of other data; FormatVersionError if they were cached by a newer orlog; TypeError if they are no arrays.
    """
    check_arrays(arrays)
    form = _Form(
        arrays.name, arrays.digest, arrays.total_steps, len(arrays.lengths), (arrays.obs_dim, arrays.action_dim, 1, 1)
    )
    return _cached(form, lambda: compute_statistics(arrays))


def stream_statistics(dataset: Dataset, before: Callable[[], None] = lambda: None) -> Statistics:
    """Return the statistics of a dataset as `load_statistics` does, without holding it in memory.

    It takes some 200 MiB, and where a row has over 128 numbers, means may differ by rounding. `before` is called if
    the dataset is about to be read.

    Raises SchemaError if a number that is not finite, and as `layout_of`; IntegrityError if a file is damaged;
    ManifestError as `load_statistics`.
    """
    layout = layout_of(dataset)
    form = _Form(
        dataset.name,
        dataset.digest,
        dataset.total_steps,
        dataset.total_episodes,
        (layout.obs_dim, layout.action_dim, 1, 1),
    )

    def compute() -> Statistics:
        before()
        width, place = layout.width - 2, layout.packed["rewards"].start
        sums = EpisodeSums(dataset.episode_lengths)
        all_of, count = _moments_of(_streamed(dataset, layout), width, also=lambda block: sums.add(block[:, place]))
        names = {"observations": slice(0, layout.obs_dim), "actions": slice(layout.obs_dim, place)}
        return _statistics(all_of, count, {**names, "rewards": slice(place, place + 1)}, sums.found)

    return _cached(form, compute)


def statistics_file(digest: str) -> Path | None:
    """Return the cache file for the statistics of a digest; None if there is no digest."""
    match = _DIGEST.fullmatch(digest)
    return datasets_folder().parent / "statistics" / f"{match[1]}.json" if match else None


def compute_statistics(arrays: Arrays) -> Statistics:
    """Return the statistics of a dataset, in one pass over its rows.

    Takes three blocks of 65,536 rows in float64: 40 MiB for rows of 26 numbers.

    Raises SchemaError if a number that is not finite.
    """
    width = arrays.rows.shape[1] - 2  # without the end flags
    matrix = arrays.rows.cpu().numpy()

    def blocks() -> Iterator[np.ndarray]:
        for first in range(0, arrays.total_steps, _BLOCK_ROWS):
            rows = arrays.step_rows(first, min(first + _BLOCK_ROWS, arrays.total_steps))
            block = matrix[rows, :width]
            if not np.isfinite(block).all():
                raise _not_finite(arrays, first, block)
            yield block

    with arrays.in_order():
        all_of, count = _moments_of(blocks(), width)
    return _statistics(all_of, count, arrays.columns, episode_returns(arrays))


def _streamed(dataset: Dataset, layout: Layout) -> Iterator[np.ndarray]:
    """Yield the rows of all steps, in order, read block after block."""
    total, row_bytes = dataset.total_steps, 4 * layout.width
    count = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // row_bytes))
    ends = dataset.episode_lengths.cumsum()
    at_once = max(1, _AHEAD_BYTES // (count * row_bytes))

    def fetch(first: int) -> None:
        last = min(first + at_once * count, total)
        if dataset.in_place and first < last:
            inside = np.searchsorted(ends, [first, last - 1], "right")
            dataset.fetch_ahead(np.arange(inside[0], inside[1] + 1), [*layout.packed])

    with concurrent.futures.ThreadPoolExecutor(1, "orlog-ahead") as ahead:
        coming = ahead.submit(fetch, 0)
        for number, first in enumerate(range(0, total, count)):
            if number % at_once == 0:
                coming.result()
                coming = ahead.submit(fetch, first + at_once * count)
            last = min(first + count, total)
            inside = np.searchsorted(ends, [first, last - 1], "right")
            begin, end = first + int(inside[0]), last + int(inside[1])
            block = np.zeros((end - begin, layout.width), np.float32)
            if place := fill_matrix(dataset, layout, begin, end, block):
                raise not_finite(dataset, place)
            yield block[layout.step_rows(begin, end) - begin]


def _moments_of(
    blocks: Iterable[np.ndarray], width: int, also: Callable[[np.ndarray], None] = lambda _: None
) -> tuple[Moments, int]:
    """Return the moments of the first numbers of all rows, and how many rows there are."""
    count = 0
    mean, squares = np.zeros(width), np.zeros(width)
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for rows in blocks:
        also(rows)
        block = rows[:, :width].astype(np.float64)
        low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
        block_mean = block.sum(0) / len(block)
        block -= block_mean
        apart = block_mean - mean
        total = count + len(block)
        squares += np.square(block).sum(0) + np.square(apart) * (count * len(block) / total)
        mean += apart * (len(block) / total)
        count = total
    return Moments(mean=mean, std=np.sqrt(squares / count), low=low, high=high), count


def _statistics(
    all_of: Moments, steps: int, columns: Mapping[str, slice], returns: Float64[np.ndarray, " episodes"]
) -> Statistics:
    average = math.fsum(returns) / len(returns)
    return Statistics(
        steps=steps,
        episodes=len(returns),
        observations=_part(all_of, columns["observations"]),
        actions=_part(all_of, columns["actions"]),
        rewards=_part(all_of, columns["rewards"]),
        returns=Moments(
            mean=np.array([average]),
            std=np.array([math.sqrt(math.fsum((returns - average) ** 2) / len(returns))]),
            low=returns.min(keepdims=True),
            high=returns.max(keepdims=True),
        ),
    )


class EpisodeSums:
    """Sums a number of each step by episode, in float64, of values that come piece by piece in their order."""

    def __init__(self, lengths: Int64[np.ndarray, " episodes"]) -> None:
        self._ends = np.cumsum(lengths)
        self._done = self._steps = 0
        self._open: list[np.ndarray] = []  # of the episode that is not over
        self.found = np.zeros(len(lengths))

    def add(self, values: np.ndarray) -> None:
        """Add the values of the next steps."""
        values = np.concatenate([*self._open, values])
        begin = self._steps  # the step of the first value
        over = int(np.searchsorted(self._ends, begin + len(values), "right"))
        if over > self._done:
            stops = self._ends[self._done : over] - begin
            starts = np.concatenate([[0], stops[:-1]])
            whole = values[: stops[-1]]
            self.found[self._done : over] = np.add.reduceat(whole, starts, dtype=np.float64)
            self._done, self._steps = over, begin + int(stops[-1])
            values = values[stops[-1] :]
        self._open = [values.copy()]


def episode_returns(arrays: Arrays) -> Float64[np.ndarray, " episodes"]:
    """Return the sum of rewards of each episode, over the float32 rewards that batches hold."""
    column = arrays.rows[:, arrays.columns["rewards"].start].cpu().numpy()
    with arrays.in_order():
        returns: np.ndarray = np.add.reduceat(column, arrays.first_rows, dtype=np.float64)
    return returns


def finite_returns(arrays: Arrays) -> Float64[np.ndarray, " episodes"]:
    """Return the same, all of them finite.

    Raises SchemaError if one is not; TypeError if they are no arrays.
    """
    check_arrays(arrays)
    returns = episode_returns(arrays)
    wrong = ~np.isfinite(returns)
    if wrong.any():
        episode = int(wrong.argmax())
        raise SchemaError(
            f"{arrays.name}: column rewards of episode {episode} sums to {returns[episode]}, and "
            f"{int(wrong.sum())} of {len(returns)} returns are not finite; leave such episodes out "
            "(ds.filter_episodes)."
        )
    return returns


def derived_digest(arrays: Arrays, operation: str) -> str:
    """Return the digest of arrays after an operation; empty if the given arrays have none."""
    if not arrays.digest:
        return ""
    text = f"orlog {operation}\n{arrays.digest}"
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _not_finite(arrays: Arrays, first: int, block: np.ndarray) -> SchemaError:
    """Return the error for a block of steps from `first` on with a number that is not finite."""
    finite = np.isfinite(block)
    row, number = np.unravel_index(int(finite.argmin()), finite.shape)
    column = next(name for name, place in arrays.columns.items() if number < place.stop)
    step = first + int(row)
    episode = int(np.searchsorted(arrays.lengths.cumsum(), step, "right"))
    inside = step - int(arrays.lengths[:episode].sum())
    return SchemaError(
        f"{arrays.name}: column {column} is not finite at step {step} of the dataset (episode "
        f"{episode}, step {inside}), so there are no statistics; leave the episode out "
        "(ds.filter_episodes)."
    )


def _part(moments: Moments, place: slice) -> Moments:
    return Moments(mean=moments.mean[place], std=moments.std[place], low=moments.low[place], high=moments.high[place])


def _plain(statistics: Statistics) -> dict[str, object]:
    """Return statistics as JSON values, which keep float64 numbers bit for bit."""
    plain: dict[str, object] = {"steps": statistics.steps, "episodes": statistics.episodes}
    for name in ("observations", "actions", "rewards", "returns"):
        moments: Moments = getattr(statistics, name)
        plain[name] = {field.name: getattr(moments, field.name).tolist() for field in dataclasses.fields(moments)}
    return plain


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """Of which data statistics must be: name, digest, counts, and how many numbers each part has."""

    name: str
    digest: str
    steps: int
    episodes: int
    sizes: tuple[int, int, int, int]


def _cached(form: _Form, compute: Callable[[], Statistics]) -> Statistics:
    path = statistics_file(form.digest)
    if path is None:
        return compute()
    if path.exists():
        return _read(path, form)
    found = compute()
    body = {"digest": form.digest, **_plain(found)}
    # A home that is full or read-only, as on cluster nodes, must not prevent training.
    with contextlib.suppress(StorageError), sole_writer(path):
        replace_json_file(path, {**body, "checksum": _checksum(body), "statistics_version": 1})
    return found


def _read(path: Path, form: _Form) -> Statistics:
    repair = "delete the file (it is made again when it is next needed)"
    body = read_json_file(path, _File, version=("statistics_version", 1), repair=repair)
    found = Statistics(
        steps=body.steps,
        episodes=body.episodes,
        observations=_moments(body.observations),
        actions=_moments(body.actions),
        rewards=_moments(body.rewards),
        returns=_moments(body.returns),
    )
    parts = [found.observations, found.actions, found.rewards, found.returns]
    is_ours = (
        body.digest == form.digest
        and (found.steps, found.episodes) == (form.steps, form.episodes)
        and all(len(part.mean) == size for part, size in zip(parts, form.sizes, strict=True))
    )
    if not is_ours or body.checksum != _checksum({"digest": body.digest, **_plain(found)}):
        raise ManifestError(
            f"{path}: {'damaged' if is_ours else f'not the statistics of {form.name}'}; {repair}.", file=str(path)
        )
    return found


def _moments(plain: _Moments) -> Moments:
    return Moments(
        mean=np.array(plain.mean, np.float64),
        std=np.array(plain.std, np.float64),
        low=np.array(plain.low, np.float64),
        high=np.array(plain.high, np.float64),
    )
