"""Statistics of a dataset's steps and episodes: one pass in float64, cached by digest.

    $ORLOG_HOME/statistics/DIGEST.json

Blocks are merged as Chan, Golub and LeVeque 1979 ("Updating formulae and a pairwise algorithm for
computing sample variances"), which loses no digits if the mean is far from zero. The second call
takes a millisecond: it reads and checks the cached file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import re
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float64

from orlog.datasets.home.folders import datasets_folder
from orlog.errors import ManifestError, SchemaError, StorageError
from orlog.loaders.arrays.arrays import Arrays, check_arrays
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer

_BLOCK_ROWS = 65536
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
    path = statistics_file(arrays.digest)
    if path is None:
        return compute_statistics(arrays)
    if path.exists():
        return _read(path, arrays)
    found = compute_statistics(arrays)
    body = {"digest": arrays.digest, **_plain(found)}
    # A home that is full or read-only, as on cluster nodes, must not prevent training.
    with contextlib.suppress(StorageError), sole_writer(path):
        replace_json_file(path, {**body, "checksum": _checksum(body), "statistics_version": 1})
    return found


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
    count = 0
    mean, squares = np.zeros(width), np.zeros(width)
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    with arrays.in_order():
        for first in range(0, arrays.total_steps, _BLOCK_ROWS):
            rows = arrays.step_rows(first, min(first + _BLOCK_ROWS, arrays.total_steps))
            block = matrix[rows, :width].astype(np.float64)
            if not np.isfinite(block).all():
                raise _not_finite(arrays, first, block)
            low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
            block_mean = block.sum(0) / len(block)
            block -= block_mean
            apart = block_mean - mean
            total = count + len(block)
            squares += np.square(block).sum(0) + np.square(apart) * (count * len(block) / total)
            mean += apart * (len(block) / total)
            count = total
    all_of = Moments(mean=mean, std=np.sqrt(squares / count), low=low, high=high)
    columns = arrays.columns
    returns = episode_returns(arrays)
    average = math.fsum(returns) / len(returns)
    return Statistics(
        steps=count,
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
    return Moments(
        mean=moments.mean[place],
        std=moments.std[place],
        low=moments.low[place],
        high=moments.high[place],
    )


def _plain(statistics: Statistics) -> dict[str, object]:
    """Return statistics as JSON values, which keep float64 numbers bit for bit."""
    plain: dict[str, object] = {"steps": statistics.steps, "episodes": statistics.episodes}
    for name in ("observations", "actions", "rewards", "returns"):
        moments: Moments = getattr(statistics, name)
        plain[name] = {
            field.name: getattr(moments, field.name).tolist()
            for field in dataclasses.fields(moments)
        }
    return plain


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read(path: Path, arrays: Arrays) -> Statistics:
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
    sizes = [arrays.obs_dim, arrays.action_dim, 1, 1]
    parts = [found.observations, found.actions, found.rewards, found.returns]
    is_ours = (
        body.digest == arrays.digest
        and (found.steps, found.episodes) == (arrays.total_steps, len(arrays.lengths))
        and all(len(part.mean) == size for part, size in zip(parts, sizes, strict=True))
    )
    if not is_ours or body.checksum != _checksum({"digest": body.digest, **_plain(found)}):
        raise ManifestError(
            f"{path}: {'damaged' if is_ours else f'not the statistics of {arrays.name}'}; {repair}.",
            file=str(path),
        )
    return found


def _moments(plain: _Moments) -> Moments:
    return Moments(
        mean=np.array(plain.mean, np.float64),
        std=np.array(plain.std, np.float64),
        low=np.array(plain.low, np.float64),
        high=np.array(plain.high, np.float64),
    )
