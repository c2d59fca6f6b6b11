"""Compares a build with the recorded one: identical, statistically equal, or another dataset.

Another processor can change the last bits of floating-point results, and chaotic physics makes other
episodes of them. Such a rebuild is kept, under
a version of its own (`orlog.manifests.rebuilds`), if no two-sample Kolmogorov-Smirnov test (Massey 1951,
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
from orlog.manifests.names import plain_version
from orlog.manifests.rebuilds import as_rebuild, how_to_record, recorded_build
from orlog.manifests.shipped import recorded_folder

LEVEL = 0.001
QUANTILES = 100
MOST_NUMBERS = 64  # columns with more numbers in a row, such as images, are compared by the mean of all of them
TEST = "two-sample Kolmogorov-Smirnov"
DIFFERENT = "statistically different"
NOT_COMPARED = "not compared"


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


def accepted(folder: Path, manifest: Manifest) -> Manifest:
    """Return the manifest to keep a build with: the recorded one, or one that says it is a rebuild.

    If all files are those of the recorded build, it is the recorded build, whatever the packages here. A
    build whose episodes are not distributed alike is refused; the message names the test and the values.
    """
    recorded = recorded_build(manifest.name, manifest.version)
    if recorded is None or recorded.digest == manifest.digest:
        return manifest
    if msgspec.structs.replace(manifest, environment=recorded.environment) == recorded:
        return recorded
    finding, line = _compared(Dataset(folder, manifest))
    if finding == DIFFERENT:
        raise IntegrityError(
            f"{manifest.name}@{manifest.version}: {line}; for the recorded bytes "
            f"{how_to_record(recorded, [as_rebuild(manifest, recorded, finding)])}. Nothing was kept.",
            expected=recorded.digest,
            found=manifest.digest,
        )
    return as_rebuild(manifest, recorded, finding)


def record_statistics(dataset: Dataset) -> Path:
    """Record the statistics of a build among the files that ship, and return their file."""
    quantiles = {
        name: np.quantile(values, _shares(), method="inverted_cdf").tolist()
        for name, values in _episode_values(dataset).items()
    }
    statistics = BuildStatistics(version=dataset.version, episodes=dataset.total_episodes, quantiles=quantiles)
    path = _path(dataset.name)
    path.write_text(json.dumps(msgspec.to_builtins(statistics)) + "\n", "utf-8")
    return path


def _path(name: str) -> Path:
    return recorded_folder(name) / "statistics.json"


def _compared(dataset: Dataset) -> tuple[str, str]:
    """Return how a build compares with the recorded one, in few words and in a line."""
    manifest = dataset.manifest
    recorded = recorded_build(manifest.name, manifest.version)
    if recorded is None:
        return NOT_COMPARED, "no build of it is recorded"
    if recorded.digest == manifest.digest:
        return "equal bytes", "identical: the same digest as the recorded build"
    if _value_digests(recorded) == _value_digests(manifest):
        return "equal values", (
            f"rebuilt: the same values as the recorded build ({recorded.digest[:19]}), in other bytes"
        )
    path = _path(manifest.name)
    kept = msgspec.json.decode(path.read_bytes(), type=BuildStatistics) if path.is_file() else None
    if kept is None or kept.version != plain_version(manifest.version):
        return NOT_COMPARED, (
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
        return DIFFERENT, (
            f"the build differs from the recorded version ({recorded.digest[:19]}) by "
            f"{', '.join(different[:3])}{' and others' if len(different) > 3 else ''} ({tests})"
        )
    return "statistically equal", (
        f"rebuilt: statistically equal to the recorded version ({recorded.digest[:19]}) by {tests}"
    )


def _value_digests(manifest: Manifest) -> dict[str, str]:
    return {column.name: column.blake3 for column in manifest.columns}


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
    collected: dict[str, list[Any]] = {"returns": [], "lengths": []}
    for block, lengths in dataset.blocks():
        collected["lengths"].append(lengths.astype(np.float64))
        collected["returns"].append(block["episodes/returns"])
        for name, rows in block.items():
            if name.split("/")[0] in ("actions", "observations") and rows.dtype.kind in "biuf":
                extra = 1 if axis_of(name) == "observation" else 0
                if len(rows) == lengths.sum() + extra * len(lengths):
                    for number, means in enumerate(_means(rows, lengths + extra).T):
                        collected.setdefault(f"{name} {number}", []).append(means)
    return {name: np.concatenate(values) for name, values in collected.items()}


def _means(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the mean of each number over the rows of each episode, shape (episodes, numbers)."""
    numbers = rows.reshape(len(rows), -1)
    if numbers.shape[1] > MOST_NUMBERS:
        numbers = numbers.mean(axis=1, dtype=np.float64, keepdims=True)
    starts = np.concatenate([[0], lengths.cumsum()[:-1]]).astype(np.intp)
    sums: np.ndarray = np.add.reduceat(numbers.astype(np.float64), starts, axis=0)
    means: np.ndarray = sums / lengths[:, None]
    return means
