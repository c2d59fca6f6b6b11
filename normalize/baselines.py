"""Recorded baselines: per-seed scores of an algorithm on a dataset, read and written."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.errors import StorageError
from orlog.manifests.documents import convert_json, parse_json, write_json
from orlog.manifests.names import is_name
from orlog.manifests.shipped import recorded_folder, records_folder
from orlog.normalize.references import Protocol, References


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The recorded results of an algorithm on a dataset."""

    algorithm: str  # name of the algorithm
    dataset: str  # name of the dataset
    digest: str  # digest of the dataset that it was trained on
    steps: int  # gradient steps
    config: dict[str, Any]  # every setting
    policy: str  # which of a run's policies was evaluated, and how it acts
    protocol: Protocol  # how its returns were measured
    versions: dict[str, str]  # versions of the code that trained
    returns: dict[str, list[float]]  # returns of each evaluation episode, by training seed
    processor: str = "unknown"  # processor that trained and scored; "unknown" if it was not noted
    # What metrics counted in each episode, by metric and training seed.
    metrics: dict[str, dict[str, list[bool | float | list[float]]]] = {}
    # Settings that were tried before these were chosen; 0 if nobody noted it.
    settings_tried: int = 0
    tuning_seeds: list[int] = []  # training seeds of those trials, as far as somebody noted them

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that its algorithm has today: what was not one when it was recorded is what it was then.

        A table has those (`tools/write_added_settings.py`), so that no algorithm is imported.
        """
        return {**self.config, **_added_settings().get(self.algorithm, {}).get(self.dataset, {})}

    def scores(self, references: References) -> dict[int, np.ndarray]:
        """Return normalized scores of each episode, by training seed."""
        return {int(seed): references.normalize(np.array(returns)) for seed, returns in self.returns.items()}


def added_settings_file() -> Path:
    """Return the file that has, by algorithm and dataset, the settings that recorded baselines do not have."""
    return records_folder() / "tables" / "added_settings.json"


@functools.cache
def _added_settings() -> dict[str, dict[str, dict[str, Any]]]:
    added: dict[str, dict[str, dict[str, Any]]] = parse_json(added_settings_file().read_bytes())
    return added


def read_baseline(algorithm: str, name: str) -> Baseline | None:
    """Return the recorded baseline of an algorithm on a dataset, or None."""
    path = recorded_folder(name) / "baselines" / f"{algorithm}.json"
    return convert_json(parse_json(path.read_bytes()), Baseline) if path.is_file() else None


def read_baselines(name: str) -> list[Baseline]:
    """Return all recorded baselines of a dataset, by the names of their algorithms."""
    paths = sorted((recorded_folder(name) / "baselines").glob("*.json"))
    return [convert_json(parse_json(path.read_bytes()), Baseline) for path in paths]


def equal_baselines(baseline: Baseline) -> list[str]:
    """Return the other algorithms whose recorded returns on the dataset are equal to the bit.

    Such returns do not tell one method from another: often all of them fail in the same episodes.
    """
    return [
        other.algorithm
        for other in read_baselines(baseline.dataset)
        if other.algorithm != baseline.algorithm and other.returns == baseline.returns
    ]


def protocol_episodes(name: str) -> int | None:
    """Return how many episodes of a seed the recorded baselines of a dataset have, the fewest; None without any."""
    if not is_name(name):  # which a file of somebody else may say
        return None
    return min((each.protocol.episodes for each in read_baselines(name)), default=None)


def record_baseline(baseline: Baseline) -> Path:
    """Add a baseline to those that ship with orlog, in a checkout; return the file."""
    folder = recorded_folder(baseline.dataset) / "baselines"
    return write_record(folder / f"{baseline.algorithm}.json", baseline)


def write_record(path: Path, record: msgspec.Struct) -> Path:
    """Add a record to those that ship with orlog, in a checkout; return its file."""
    try:
        write_json(path, msgspec.to_builtins(record))
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write the record: {error.strerror}; use a checkout of orlog that you can write to.",
            errno=error.errno,
        ) from error
    return path
