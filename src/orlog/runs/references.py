"""Finds the reference returns of a dataset: those of a random and an expert policy.

Published ones belong to a benchmark's dataset (`manifests/benchmarks.py`). Measured ones belong to an
environment with its arguments, so all datasets of one environment share them; `measuring.py` measures them.
They lie in the home beside the data or ship with orlog, in files of one layout:

    $ORLOG_HOME/references/SHA-256.json        of the environment's id and arguments
    manifests/recorded/references/*.json
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from orlog.datasets.home.folders import dataset_folders, datasets_folder
from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.finding import as_folder
from orlog.datasets.reading.opening import Given
from orlog.errors import ManifestError, NotFoundError, clause
from orlog.manifests.benchmarks import BenchmarkDataset, benchmark_dataset, find_benchmark_dataset
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.documents import canonical_json, replace_json_file, sole_writer
from orlog.manifests.manifest import EnvironmentRecord, Manifest
from orlog.manifests.names import is_name, is_url, parse_name
from orlog.manifests.rebuilds import recorded_build
from orlog.manifests.shipped import records_folder
from orlog.normalize.references import (
    Protocol,
    PublishedProtocol,
    PublishedReferences,
    PublishedReturn,
    References,
    benchmark_references,
    read_references,
)

TRAINED_POLICY = "last checkpoint, deterministic actions"
DRAWN_POLICY = "last checkpoint, actions drawn from a stream that is always the same"


def trained_policy(settings: Mapping[str, Any]) -> str:
    """Return in words which policy of a run is evaluated and how it acts, by the settings of its algorithm."""
    return DRAWN_POLICY if settings.get("sampling_temperature") else TRAINED_POLICY


def references_of(manifest: Manifest) -> References | None:
    """Return the reference returns that anchor scores on a dataset, or None.

    Those that its benchmark publishes come first, so that nothing measured here changes the score of a
    benchmark. Then come those of its environment, then those in the metadata of a Minari dataset. A dataset that
    names a benchmark, but an environment that is not the benchmark's, has none.
    """
    benchmark, environment = benchmark_of(manifest), manifest.environment
    published: References | None = None
    if benchmark is not None:
        if not holds_in(benchmark, environment):
            return None
        published = benchmark_references(benchmark)
    if published is not None or environment is None:
        return published
    return _measured_in(environment) or _minari_references(manifest, environment)


def _minari_references(manifest: Manifest, environment: EnvironmentRecord) -> PublishedReferences | None:
    """Return the reference returns that a dataset of Minari has in its metadata, or None."""
    from orlog.datasets.formats.minari.metadata import references_in

    returns = references_in(manifest.description)
    if returns is None:
        return None
    return PublishedReferences(
        random=PublishedReturn(policy="Minari's ref_min_score", mean=returns[0]),
        expert=PublishedReturn(policy="Minari's ref_max_score", mean=returns[1]),
        protocol=PublishedProtocol(
            environment_id=environment.id,
            environment_kwargs=dict(environment.kwargs),
            versions=dict(environment.versions),
            episodes=None,
            description="as the metadata of the Minari dataset say",
        ),
        source=f"metadata of the Minari dataset that {manifest.name} was read from",
        caveats=["Minari's own scores are these divided by 100."],
    )


def references_of_dataset(dataset: Dataset) -> References | None:
    """Return the reference returns of a version or view, or None; those of all parts must agree."""
    try:
        return references(dataset)
    except NotFoundError:
        return None


def benchmark_of(manifest: Manifest) -> BenchmarkDataset | None:
    """Return the benchmark's dataset whose references a dataset shares, or None."""
    return find_benchmark_dataset(manifest.benchmark or manifest.name)


def holds_in(benchmark: BenchmarkDataset, environment: EnvironmentRecord | None) -> bool:
    """Whether the references of a benchmark's dataset hold for returns of an environment.

    Only D4RL's environments are known; of other benchmarks a note beside a score names both.
    """
    known = benchmark_environment(benchmark.name)
    return environment is None or known is None or known.fits(environment)


def references(dataset: Given) -> References:
    """Return the reference returns of a dataset: values, source, protocol, simulator, caveats.

    Args:
        dataset: An open dataset, or the name or path of one. The name of a benchmark's dataset is
            enough, such as `atari/breakout` or `d4rl/hopper-medium-v2`; it need not be here.

    Raises:
        NotFoundError: no reference returns are known for it.
    """
    return references_to(described(dataset))


class Described(NamedTuple):
    """What is known of a dataset by its name; manifest or benchmark may be None, never both.

    There is a manifest if the dataset is here or ships with orlog.
    """

    name: str
    manifest: Manifest | None
    benchmark: BenchmarkDataset | None


def references_to(known: Described) -> References:
    """Return the reference returns of a described dataset; a NotFoundError if none are known."""
    name, manifest, benchmark = known
    if manifest is not None:
        anchors = references_of(manifest)
    else:
        anchors = None if benchmark is None else benchmark_references(benchmark)
    if anchors is not None:
        return anchors
    environment = None if manifest is None else manifest.environment
    if benchmark is None:
        missing = f"no reference returns are known; measure them with: {_MEASURE.format(name)}"
    elif environment is not None and not holds_in(benchmark, environment):
        missing = (
            f"returns of its environment {environment.id} have no score of {benchmark.name}, which "
            "has another environment; store the data under another name, without benchmark."
        )
    else:
        missing = f"{benchmark.benchmark.title} {benchmark.benchmark.missing}."
    raise NotFoundError(f"{name}: {missing}")


def described(dataset: Given) -> Described:
    """Return the name of a dataset that is here or in a known benchmark, its manifest and its benchmark's dataset."""
    manifest = _manifest(dataset)
    if manifest is not None:
        return Described(manifest.name, manifest, benchmark_of(manifest))
    benchmark = benchmark_dataset(str(dataset))
    return Described(benchmark.name, None, benchmark)


def _manifest(dataset: Given) -> Manifest | None:
    """Return a dataset's manifest, or that of the first part of a view; None for an unknown name.

    A view whose parts have different references is refused.
    """
    if not isinstance(dataset, str) or as_folder(dataset) is not None or is_url(dataset):
        loaded = load_dataset(dataset)
        if loaded.operation is None:
            return loaded.manifest
        first, *others = (stored.manifest for stored in loaded.selection().versions)
        for other in others:
            if _anchors(other) != _anchors(first):
                raise NotFoundError(
                    f"{first.name}: this view also holds {other.name}, whose references are others, so "
                    "that its returns have no score; score each part by itself."
                )
        return first
    if not is_name(dataset):
        return None
    try:
        return load_dataset(dataset).manifest
    except NotFoundError:
        wanted = parse_name(dataset)
        recorded = recorded_build(wanted.name, wanted.version)
        fits = recorded is not None and recorded.digest.startswith(wanted.digest)
        return recorded if fits else None


def _anchors(manifest: Manifest) -> tuple[object, ...] | None:
    known = references_of(manifest)
    return None if known is None else (known.random.mean, known.expert.mean, known.simulator)


def references_measured(name: str, digest: str, protocol: Protocol) -> References | None:
    """Return the reference returns of a dataset by name and digest, or those of the environment returns are of.

    Those of a benchmark hold only for returns of its own environment, whatever a name says.
    """
    environment = EnvironmentRecord(
        id=protocol.environment_id,
        kwargs=protocol.environment_kwargs,
        versions=protocol.versions,
        max_episode_steps=protocol.max_episode_steps,
    )
    benchmark = benchmark_of_name(name, digest)
    if benchmark is None:
        return _measured_in(environment)
    its_name, dataset = benchmark
    try:
        return references(its_name) if holds_in(dataset, environment) else None
    except NotFoundError:
        return None


def benchmark_of_name(name: str, digest: str) -> tuple[str, BenchmarkDataset] | None:
    """Return the benchmark's dataset with references that a dataset's name says, with its own name.

    It is that of the version with this digest, or of any version of the name.
    """
    for text in (f"{name}@{digest}", name):
        if is_name(text):
            with contextlib.suppress(NotFoundError):
                benchmark = described(text).benchmark
                if benchmark is not None and benchmark.anchors is not None:
                    return text, benchmark
    return None


_MEASURE = "orlog scores {} --random --expert RUN."


def _measured_in(environment: EnvironmentRecord) -> References | None:
    """Return the reference returns of an environment that were measured here, else those that ship, or None.

    Raises ManifestError if a file that was written here is damaged, or of another environment.
    """
    for folder in dataset_folders():
        path = folder.parent / "references" / _file_name(environment)
        try:
            known = read_references(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise _unusable(path, f"cannot be read: {clause(error)}") from error
        if not _is_of(known, environment):
            raise _unusable(path, "it is of another environment")
        return known
    shipped = map(read_references, sorted((records_folder() / "references").glob("*.json")))
    return next((known for known in shipped if _is_of(known, environment)), None)


def _unusable(path: Path, reason: str) -> ManifestError:
    again = f"measure again, which comes before this file: {_MEASURE.format('NAME')}"
    return ManifestError(f"{path}: {reason}; {again}", file=str(path))


def store_references(environment: EnvironmentRecord, references: References) -> Path:
    """Keep reference returns in the home, in place of older ones; return the file.

    Raises StorageError if the home cannot be written; the older ones stay.
    """
    path = datasets_folder().parent / "references" / _file_name(environment)
    with sole_writer(path):
        replace_json_file(path, msgspec.to_builtins(references))
    return path


def _is_of(references: References, environment: EnvironmentRecord) -> bool:
    protocol = references.protocol
    its_environment = protocol.environment_id, protocol.environment_kwargs
    return its_environment == (environment.id, environment.kwargs)


def _file_name(environment: EnvironmentRecord) -> str:
    text = canonical_json([environment.id, environment.kwargs])
    return f"{hashlib.sha256(text).hexdigest()}.json"
