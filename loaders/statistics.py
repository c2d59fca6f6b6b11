"""Statistics of a dataset's steps and episodes: one pass in float64, cached by digest; and sums over steps.

    $ORLOG_HOME/statistics/DIGEST.json

Sums of rewards and of infos are here too:

    infos["cost"]            1  0  0  1  0
    infos["cost_to_go"]      2  1  1  1  0      the sum from this step on, itself included
    info_sums(.., "cost")    2                  of the episode

Blocks are merged as Chan, Golub and LeVeque 1979 ("Updating formulae and a pairwise algorithm for
computing sample variances"), which loses no digits if the mean is far from zero. The second call
takes a millisecond: it reads and checks the cached file.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64

from orlog.datasets.columns.values import episode_blocks
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given
from orlog.errors import SchemaError, StorageError
from orlog.loaders.arrays import Arrays, as_arrays, check_arrays
from orlog.loaders.filling import Layout, Leaf, fill_matrix, layout_of, not_finite
from orlog.loaders.tensors import Tensor, torch
from orlog.manifests.documents import replace_json_file, sole_writer

TO_GO = "_to_go"
"""End of the name under which batches give a sum from a step on."""

_VERSION = 2  # of the cached file
_PARTS = ("observations", "actions", "rewards", "returns")
_BLOCK_ROWS = 65536
_SUMMED_ROWS = 2**20  # summed at once, in float64
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


def load_statistics(arrays: Arrays) -> Statistics:
    """Return the statistics of a dataset, from the cache if possible; else compute and cache them.

    They are computed each time for arrays without a digest, or if the home cannot be written, and again if what is
    cached is damaged or of other data.

    Raises SchemaError if a number is not finite; TypeError if they are no arrays.
    """
    check_arrays(arrays)
    sizes = (arrays.obs_dim, arrays.action_dim)
    return _cached(arrays.digest, (arrays.total_steps, len(arrays.lengths)), sizes, lambda: compute_statistics(arrays))


def stream_statistics(dataset: Dataset, before: Callable[[], None] = lambda: None) -> Statistics:
    """Return the statistics of a dataset as `load_statistics` does, without holding it in memory.

    It takes some 200 MiB, and where a row has over 128 numbers, means may differ by rounding. `before` is called if
    the dataset is about to be read.
    """
    layout = layout_of(dataset)

    def compute() -> Statistics:
        before()
        width, place = layout.width - 2, layout.packed["rewards"].start
        sums = EpisodeSums(dataset.episode_lengths)
        all_of, count = _moments_of(_streamed(dataset, layout), width, also=lambda block: sums.add(block[:, place]))
        names = {"observations": slice(0, layout.obs_dim), "actions": slice(layout.obs_dim, place)}
        return _statistics(all_of, count, {**names, "rewards": slice(place, place + 1)}, sums.totals)

    counts = dataset.total_steps, dataset.total_episodes
    return _cached(dataset.digest, counts, (layout.obs_dim, layout.action_dim), compute)


def statistics_file(digest: str) -> Path | None:
    """Return the cache file for the statistics of a digest; None if there is no digest."""
    match = _DIGEST.fullmatch(digest)
    return datasets_folder().parent / "statistics" / f"{match[1]}.json" if match else None


def compute_statistics(arrays: Arrays) -> Statistics:
    """Return the statistics of a dataset, in one pass over its rows.

    Takes three blocks of 65,536 rows in float64: 40 MiB for rows of 26 numbers.
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
        self.totals = np.zeros(len(lengths))

    def add(self, values: np.ndarray) -> None:
        """Add the values of the next steps."""
        values = np.concatenate([*self._open, values])
        begin = self._steps  # the step of the first value
        over = int(np.searchsorted(self._ends, begin + len(values), "right"))
        if over > self._done:
            stops = self._ends[self._done : over] - begin
            starts = np.concatenate([[0], stops[:-1]])
            whole = values[: stops[-1]]
            self.totals[self._done : over] = np.add.reduceat(whole, starts, dtype=np.float64)
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
    """Return the same, all of them finite."""
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


def _cached(
    digest: str, counts: tuple[int, int], sizes: tuple[int, int], compute: Callable[[], Statistics]
) -> Statistics:
    """Return the statistics in the file of a digest, if they fit it and are whole; else compute and keep them."""
    path = statistics_file(digest)
    if path is None:
        return compute()
    form = [_VERSION, digest, *counts, *sizes]
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        known = json.loads(path.read_text("utf-8"))
        if (known["form"], known["checksum"]) == (form, _checksum(known["parts"])):
            parts = {name: _moments(part) for name, part in known["parts"].items()}
            return Statistics(steps=counts[0], episodes=counts[1], **parts)
    computed = compute()
    # As JSON values, which keep float64 numbers bit for bit.
    plain = {name: {key: values.tolist() for key, values in _fields(getattr(computed, name))} for name in _PARTS}
    # A home that is full or read-only, as on cluster nodes, must not prevent training.
    with contextlib.suppress(StorageError), sole_writer(path):
        replace_json_file(path, {"form": form, "parts": plain, "checksum": _checksum(plain)})
    return computed


def _checksum(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _fields(moments: Moments) -> list[tuple[str, np.ndarray]]:
    return [(field.name, getattr(moments, field.name)) for field in dataclasses.fields(moments)]


def _moments(plain: Mapping[str, list[float]]) -> Moments:
    return Moments(**{name: np.array(values, np.float64) for name, values in plain.items()})


# --- sums over steps, within an episode


def sum_rewards(
    arrays: Arrays, steps: int, discount: float, dtype: type[np.floating[Any]] = np.float32
) -> Float[Tensor, " rows"]:
    """Return for each row the discounted sum of its next rewards, within its episode.

    Terms are added one by one, not taken as differences of running sums, so equal rewards have
    equal sums.
    """
    rewards = arrays.rows[:, arrays.columns["rewards"].start].cpu().numpy()
    total = np.empty(len(rewards), dtype)
    with arrays.in_order():
        for first in range(0, len(total), _SUMMED_ROWS):
            last = min(first + _SUMMED_ROWS, len(total))
            own = rewards[first : last + steps].astype(np.float64)
            begin, end = np.searchsorted(arrays.final_rows, [first, first + len(own)])
            ends = arrays.final_rows[begin:end] - first
            own[ends] = 0
            summed = own.copy()
            for _ in range(steps - 1):
                summed[:-1] = own[:-1] + discount * summed[1:]
                summed[ends] = 0
            total[first:last] = summed[: last - first]
    return torch.from_numpy(total)


def returns_to_go(arrays: Arrays, discount: float = 1.0) -> Float32[Tensor, " steps_and_episodes"]:
    """Return for each row of the matrix the discounted sum of rewards to its episode's end."""
    return sums_to_go(arrays, arrays.rows[:, arrays.columns["rewards"].start], discount)


def sums_to_go(
    arrays: Arrays, values: Float32[Tensor, " steps_and_episodes"], discount: float = 1.0
) -> Float32[Tensor, " steps_and_episodes"]:
    """Return for each row the discounted sum of some values of the rows to its episode's end.

    Sums are in float64 and never cross an episode. Each pass doubles their reach: the sum over 2^k
    steps plus the discounted sum over the next 2^k. That is as exact as adding backwards, in few
    passes.
    """
    numbers = values.cpu().numpy()
    sums = np.empty(len(numbers), np.float32)
    # In blocks of episodes, since temporary arrays take many bytes a step.
    edges = episode_blocks(arrays.final_rows, _SUMMED_ROWS)
    with arrays.in_order():
        for episodes in itertools.starmap(slice, itertools.pairwise(edges)):
            lengths, final_rows = arrays.lengths[episodes], arrays.final_rows[episodes]
            rows = slice(final_rows[0] - lengths[0], final_rows[-1] + 1)
            total = numbers[rows].astype(np.float64)
            left = np.repeat(final_rows, lengths + 1) - np.arange(rows.start, rows.stop)
            reach, longest = 1, int(lengths.max())
            while reach < longest:
                inside = np.flatnonzero(left > reach)
                total[inside] += discount**reach * total[inside + reach]
                reach *= 2
            sums[rows] = total
    return torch.from_numpy(sums).to(arrays.rows.device)


def info_numbers(data: Given | Arrays, name: str) -> Float32[Tensor, " steps_and_episodes"]:
    """Return the values of an info of one number, for each row of the arrays: zeros at final observations."""
    arrays = as_arrays(data, (name,))
    assert arrays.infos is not None
    infos = arrays.infos
    leaf = infos.observation_leaves[name]
    values = infos.others[leaf.column] if leaf.column else infos.rows[:, leaf.place]
    shape = values.shape[1:] if leaf.column else leaf.shape
    if tuple(shape) != () or leaf.column in infos.texts:
        held = "texts" if leaf.column in infos.texts else f"values of shape {list(shape)}"
        raise SchemaError(
            f"{arrays.name}: the info {name} has {held}, and one number for each step was expected; record "
            "its sum or one part of it as an info of its own."
        )
    numbers = values.reshape(-1).float()
    wrong = ~torch.isfinite(numbers)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        episode = int(np.searchsorted(arrays.final_rows, row))
        raise SchemaError(
            f"{arrays.name}: the info {name} is {float(numbers[row])} in step {row - arrays.first_rows[episode]} of "
            f"episode {episode}; leave the episode out, or correct it."
        )
    return numbers


def step_numbers(arrays: Arrays, name: str) -> np.ndarray:
    """Return an info that is one number, for each step in order, float64. Errors are those of `info_numbers`."""
    numbers: np.ndarray = info_numbers(arrays, name)[arrays.step_rows()].double().cpu().numpy()
    return numbers


def info_sums(data: Given | Arrays, name: str) -> Float64[np.ndarray, " episodes"]:
    """Return the sum of an info over the steps of each episode. Errors are those of `info_numbers`."""
    arrays = as_arrays(data, (name,))
    values = info_numbers(arrays, name).cpu().numpy().astype(np.float64)
    sums: np.ndarray = np.add.reduceat(values, arrays.first_rows)
    return sums


def with_sums_to_go(arrays: Arrays, names: Sequence[str], *, discount: float = 1.0) -> Arrays:
    """Return arrays that have the sum from a step on of some infos as further infos, `NAME_to_go`.

    The stream stays as it is. All infos that are packed are copied.
    """
    for name in names:
        sums = sums_to_go(arrays, info_numbers(arrays, name), discount)
        infos = arrays.infos
        assert infos is not None
        leaf = Leaf(first=infos.obs_dim, shape=())
        infos = dataclasses.replace(
            infos,
            rows=torch.cat([infos.rows, sums[:, None].to(infos.rows.device)], 1),
            obs_dim=infos.obs_dim + 1,
            observation_leaves={**infos.observation_leaves, f"{name}{TO_GO}": leaf},
        )
        arrays = dataclasses.replace(arrays, infos=infos)
    return arrays
