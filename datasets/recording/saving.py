"""Stores a dataset or a view as a version of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orlog.base.files import storage_errors, unfinished_folder
from orlog.datasets.home.folders import datasets_folder, version_folder
from orlog.datasets.home.meaning import check_unchanged, check_unused
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.recording.finishing import (
    finish_version,
    make_manifest,
    refuse_chunk_hashes,
    refuse_existing,
    with_chunk_hashes,
)
from orlog.datasets.store.container import WrittenPart
from orlog.manifests.manifest import MANIFEST_FILE, Container, Parent
from orlog.manifests.names import parse_name


def save_dataset(
    dataset: Given,
    name: str,
    *,
    version: str = "1.0.0",
    description: str | None = None,
    license: str | None = None,  # noqa: A002 (the word of the manifest)
    changes: str = "",
    container: Container = "zarr",
    chunk_hashes: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """Store a dataset or a view as a version of its own under ORLOG_HOME, and return its folder.

    Rows are copied, about 16 MiB at a time, into one part. The lineage of a stored view names its
    parents and its operation; that of a copied version names the version and the operation `copy`.
    Environment and benchmark are kept if all sources agree on them; weights of a mixture are kept only in the
    lineage.

    Args:
        dataset: Episodes to store.
        name: Name of the new dataset, without version.
        version: Content version, `major.minor.patch`.
        description: What the data are; by default the descriptions of its sources.
        license: SPDX identifier; by default those of its sources, joined by AND.
        changes: What is new since the previous version.
        container: `zarr`, or `hdf5` for a single file.
        chunk_hashes: Add a hash of each chunk, by which those who read it in place check every chunk.
        progress: Called with steps done and in total.

    Raises:
        VersionExistsError: the version exists; versions are never overwritten.
        InvalidNameError: name or version do not follow the grammar.
        SchemaError: there is no episode.
        ValueError: hashes of chunks are asked for in the container hdf5.
        IntegrityError: the source is damaged.
        MissingExtraError: h5py is not installed.
        StorageError: the disk is full.
    """
    dataset = as_dataset(dataset)
    wanted = parse_name(f"{name}@{version}")
    destination = datasets_folder() / wanted.name / wanted.version
    if chunk_hashes:
        refuse_chunk_hashes(container, str(wanted))
    here = version_folder(wanted.name, wanted.version)
    check_unused(wanted.name, wanted.version)
    refuse_existing(here / MANIFEST_FILE, here)
    with unfinished_folder(destination) as folder, storage_errors(folder):
        refuse_existing(destination / MANIFEST_FILE, destination)
        store, part = folder / "store", folder / "part"
        written = _copy_episodes(dataset, store if container == "zarr" else part, progress)
        objects = written.objects
        if container == "hdf5":
            from orlog.datasets.store.hdf5 import write_hdf5

            objects = write_hdf5(part, store, written)
        sources = [stored.manifest for stored in dataset.selection().versions]
        manifest = make_manifest(
            written.schema,
            [written.part],
            objects,
            name=wanted.name,
            version=wanted.version,
            container=container,
            description=_joined("\n", [source.description for source in sources])
            if description is None
            else description,
            license=_joined(" AND ", [source.license for source in sources])
            if license is None
            else license,
            environment=dataset.environment,
            behavior_policy=_joined("; ", [source.behavior_policy for source in sources]),
            lineage=dataset.lineage
            if dataset.operation is not None
            else [Parent(digest=dataset.digest, operation="copy")],
            non_finite=written.non_finite,
            outside=written.outside,
            changes=changes,
            benchmark=dataset.benchmark,
            dimension_names=dataset.dimension_names,
            roles=dataset.stated_roles,
        )
        if chunk_hashes:
            manifest = with_chunk_hashes(store, manifest)
        finish_version(store, manifest, destination, accept=check_unchanged, share=objects)
    return destination


def _copy_episodes(
    dataset: Dataset, folder: Path, progress: Callable[[int, int], None]
) -> WrittenPart:
    done = 0
    progress(done, dataset.total_steps)
    writer = EpisodeWriter(folder, dataset.schema, dataset.name)
    try:
        for block, lengths in dataset.blocks():
            writer.add_block(block, lengths)
            done += int(lengths.sum())
            progress(done, dataset.total_steps)
        return writer.finish()
    finally:
        writer.close()


def _joined(separator: str, texts: list[str]) -> str:
    """Join the distinct texts that are not empty, in order."""
    return separator.join(dict.fromkeys(text for text in texts if text))
