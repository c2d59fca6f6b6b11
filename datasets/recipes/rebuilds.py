"""Compares a build with the recorded one: identical, statistically equal, or another dataset.

Another processor can change the last bits of floating-point results, and chaotic physics makes other
episodes of them. Such a rebuild is accepted if no two-sample Kolmogorov-Smirnov test (Massey 1951,
https://doi.org/10.1080/01621459.1951.10500769) tells its episodes from the recorded ones: a test of
their returns, one of their lengths, and one of the mean over each episode of every number of an
action and of an observation. All tests together refuse a build of the same distribution with a
probability of at most `LEVEL`.

Of the recorded build, `statistics.json` beside its manifest keeps the number of episodes and 100
quantiles of each of these values:

    {"version": "1.0.0", "episodes": 1250, "quantiles": {"returns": [..], "actions 0": [..], ..}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError
from orlog.manifests.columns import axis_of
from orlog.manifests.manifest import Manifest
from orlog.manifests.shipped import recorded_folder, recorded_manifest

__all__ = ["BuildStatistics", "check_rebuild", "compare_with_recorded", "record_statistics"]

LEVEL = 0.001
QUANTILES = 100
MOST_NUMBERS = 64
"""Columns with more numbers in a row, such as images, are compared by the mean of all of them."""
TEST = "two-sample Kolmogorov-Smirnov"


class BuildStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is kept of a recorded build, to compare rebuilds with.

    Attributes:
        version: Content version.
        episodes: Number of episodes.
        quantiles: 100 quantiles over the episodes of each value: the middles of 100 equal shares.
    """

    version: str
    episodes: int
    quantiles: dict[str, list[float]]


def compare_with_recorded(dataset: Dataset) -> str:
    """Return one line that compares a built dataset with the recorded build."""
    return _compared(dataset)[1]


def check_rebuild(folder: Path, manifest: Manifest) -> None:
    """Refuse a build whose episodes are not distributed as those of the recorded build.

    Raises:
        IntegrityError: they are not; the message names the test and the values.
    """
    recorded = recorded_manifest(manifest.name, manifest.version)
    if recorded is None or recorded.digest == manifest.digest:
        return
    is_equal, line = _compared(Dataset(folder, manifest))
    if is_equal is False:
        raise IntegrityError(
            f"{manifest.name}@{manifest.version}: {line}; {_versions(recorded, manifest)}. Nothing "
            "was kept.",
            expected=recorded.digest,
            found=manifest.digest,
        )


def record_statistics(dataset: Dataset) -> Path:
    """Record the statistics of a build among the files that ship, and return their file."""
    quantiles = {
        name: np.quantile(values, _shares(), method="inverted_cdf").tolist()
        for name, values in _episode_values(dataset).items()
    }
    found = BuildStatistics(
        version=dataset.version, episodes=dataset.total_episodes, quantiles=quantiles
    )
    path = _path(dataset.name)
    path.write_text(json.dumps(msgspec.to_builtins(found)) + "\n", "utf-8")
    return path


def _path(name: str) -> Path:
    return recorded_folder(name) / "statistics.json"


def _compared(dataset: Dataset) -> tuple[bool | None, str]:
    """Return whether a build is the recorded one or distributed as it is, and a line about it.

    It is None if nothing is recorded that would tell.
    """
    manifest = dataset.manifest
    recorded = recorded_manifest(manifest.name, manifest.version)
    if recorded is None:
        return None, "no build of it is recorded"
    if recorded.digest == manifest.digest:
        return True, "identical: the same digest as the recorded build"
    if _value_digests(recorded) == _value_digests(manifest):
        return True, (
            f"identical: the same values as the recorded build ({recorded.digest[:19]}), in other "
            "bytes or with other versions of packages"
        )
    path = _path(manifest.name)
    kept = msgspec.json.decode(path.read_bytes(), type=BuildStatistics) if path.is_file() else None
    if kept is None or kept.version != manifest.version:
        return None, (
            f"rebuilt: NOT the recorded build ({recorded.digest[:19]}), and no statistics of it are "
            "recorded to compare with"
        )
    values = _episode_values(dataset)
    level = LEVEL / max(1, len(kept.quantiles))
    different = [
        name
        for name, quantiles in kept.quantiles.items()
        if name not in values or _p_value(quantiles, kept.episodes, values[name]) < level
    ]
    tests = f"{len(kept.quantiles)} {TEST} tests of episodes at a level of {LEVEL} together"
    if different:
        return False, (
            f"the build differs from the recorded version ({recorded.digest[:19]}) by "
            f"{', '.join(different[:3])}{' and others' if len(different) > 3 else ''} ({tests})"
        )
    return True, (
        f"rebuilt: statistically equal to the recorded version ({recorded.digest[:19]}) by {tests}"
    )


def _value_digests(manifest: Manifest) -> dict[str, str]:
    return {column.name: column.blake3 for column in manifest.columns}


def _versions(recorded: Manifest, built: Manifest) -> str:
    """Return which versions of packages differ, and what to do."""
    if recorded.environment is None or built.environment is None:
        return "the recipe makes other data"
    here = built.environment.versions
    other = [
        f"{package}=={version} (here {here.get(package, 'none')})"
        for package, version in recorded.environment.versions.items()
        if here.get(package) != version
    ]
    if other:
        return f"install the versions it was recorded with, {', '.join(other)}, and build again"
    return "the versions of packages are the same, so the recipe or this processor is at fault"


def _shares() -> np.ndarray:
    shares: np.ndarray = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return shares


def _p_value(quantiles: list[float], episodes: int, values: np.ndarray) -> float:
    """Return the p-value of the test; 1 where the two agree but for rounding.

    The quantiles stand for the recorded sample, whose distribution function they give to within
    half a share; this is taken off the distance.
    """
    from scipy import stats  # slow to import

    ours = np.quantile(values, _shares(), method="inverted_cdf")
    if np.allclose(ours, quantiles, rtol=1e-6, atol=1e-9):
        return 1.0
    distance = float(stats.ks_2samp(quantiles, values).statistic) - 0.5 / QUANTILES
    size = episodes * len(values) / (episodes + len(values))
    return float(stats.kstwobign.sf(max(0.0, distance) * np.sqrt(size)))


def _episode_values(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the compared values of every episode by name."""
    found: dict[str, list[Any]] = {"returns": [], "lengths": []}
    for block, lengths in dataset.blocks():
        found["lengths"].append(lengths.astype(np.float64))
        found["returns"].append(block["episodes/returns"])
        for name, rows in block.items():
            if name.split("/")[0] in ("actions", "observations") and rows.dtype.kind in "biuf":
                extra = 1 if axis_of(name) == "observation" else 0
                if len(rows) == lengths.sum() + extra * len(lengths):
                    for number, means in enumerate(_means(rows, lengths + extra).T):
                        found.setdefault(f"{name} {number}", []).append(means)
    return {name: np.concatenate(values) for name, values in found.items()}


def _means(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the mean of each number over the rows of each episode, shape (episodes, numbers)."""
    numbers = rows.reshape(len(rows), -1)
    if numbers.shape[1] > MOST_NUMBERS:
        numbers = numbers.mean(axis=1, dtype=np.float64, keepdims=True)
    starts = np.concatenate([[0], lengths.cumsum()[:-1]]).astype(np.intp)
    sums: np.ndarray = np.add.reduceat(numbers.astype(np.float64), starts, axis=0)
    means: np.ndarray = sums / lengths[:, None]
    return means
