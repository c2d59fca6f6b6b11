"""Stores a dataset or a view as a version of its own, or a version in the other container."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from orlog.base.files import absolute_path, link_or_copy, make_folder, storage_errors, unfinished_folder
from orlog.datasets.columns.values import Block, concatenate_blocks
from orlog.datasets.home.folders import datasets_folder, version_folder
from orlog.datasets.home.records import check_unchanged, check_unused, known_manifests
from orlog.datasets.reading.dataset import Dataset, episode_ranges
from orlog.datasets.reading.opening import Given, as_dataset, with_all_files
from orlog.datasets.recording.episodes import EpisodeWriter
from orlog.datasets.recording.finishing import (
    finish_version,
    in_order,
    make_manifest,
    refuse_chunk_hashes,
    refuse_existing,
    with_chunk_hashes,
    with_indexes,
    with_videos,
)
from orlog.datasets.store.chunk_hashes import has_chunk_hashes
from orlog.datasets.store.objects import check_object, mismatch
from orlog.datasets.store.videos import facts_of, joined_facts
from orlog.datasets.store.zarr_writer import WrittenPart, ZarrWriter
from orlog.errors import SchemaError
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import (
    MANIFEST_FILE,
    Container,
    Manifest,
    Parent,
    Part,
    StoredObject,
    Video,
    part_folder,
    parts_of,
    video_path,
)
from orlog.manifests.names import parse_name, version_parts

BLOCK_BYTES = 2**30  # of frames, which are not decoded


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
    video: Literal["keep", "frames"] = "keep",
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
        video: `keep` copies whole files of videos with the index of their frames; `frames` decodes them once to
            pixels, as the container hdf5 needs.
        progress: Called with steps done and in total.

    Raises:
        VersionExistsError: the version exists; versions are never overwritten.
        InvalidNameError: name or version do not follow the grammar.
        SchemaError: there is no episode.
        ValueError: hashes of chunks, or kept videos, are asked for in the container hdf5.
        IntegrityError: the source is damaged.
        MissingExtraError: h5py is not installed.
        StorageError: the disk is full.
    """
    dataset = as_dataset(dataset)
    wanted = parse_name(f"{name}@{version}")
    destination = datasets_folder() / wanted.name / wanted.version
    if chunk_hashes:
        refuse_chunk_hashes(container, str(wanted))
    if video not in ("keep", "frames"):
        raise ValueError(f"{wanted}: video={video!r}: expected keep or frames.")
    kept = _columns_of_videos(dataset) if video == "keep" else set()
    if kept and container != "zarr":
        raise ValueError(f"{wanted}: videos are kept in the container zarr only; video=frames decodes them.")
    here = version_folder(wanted.name, wanted.version)
    check_unused(wanted.name, wanted.version)
    refuse_existing(here / MANIFEST_FILE, here)
    with unfinished_folder(destination) as folder, storage_errors(folder):
        refuse_existing(destination / MANIFEST_FILE, destination)
        store, part = folder / "store", folder / "part"
        written, videos = _copy_episodes(dataset, store if container == "zarr" else part, kept, progress)
        objects = written.objects
        if container == "hdf5":
            from orlog.datasets.store.hdf5 import write_hdf5

            objects = write_hdf5(part, store, written)
        sources = [stored.manifest for stored in dataset.selection().versions]
        is_view = dataset.operation is not None
        manifest = make_manifest(
            written.schema,
            [written.part],
            objects,
            name=wanted.name,
            version=wanted.version,
            container=container,
            description=_joined("\n", sources, "description") if description is None else description,
            license=_joined(" AND ", sources, "license") if license is None else license,
            environment=dataset.environment,
            behavior_policy=_joined("; ", sources, "behavior_policy"),
            lineage=dataset.lineage if is_view else [Parent(digest=dataset.digest, operation="copy")],
            non_finite=written.non_finite,
            outside=written.outside,
            changes=changes,
            benchmark=dataset.benchmark,
            dimension_names=dataset.dimension_names,
            roles=dataset.stated_roles,
            videos=videos,
        )
        if chunk_hashes:
            manifest = with_chunk_hashes(store, manifest)
        finish_version(store, manifest, destination, accept=check_unchanged, share=objects)
    return destination


def _copy_episodes(
    dataset: Dataset, folder: Path, kept: Collection[str], progress: Callable[[int, int], None]
) -> tuple[WrittenPart, dict[str, Video]]:
    """Write all episodes, and the videos of the columns that are kept; return what manifests say of these too."""
    done, schema = 0, dataset.schema
    files: dict[str, dict[Path, int]] = {name: {} for name in kept}
    progress(done, dataset.total_steps)
    with contextlib.closing(EpisodeWriter(folder, with_indexes(schema, kept), dataset.name)) as writer:
        for block, lengths in _blocks(dataset, files) if kept else dataset.blocks():
            writer.add_block(block, lengths)
            done += int(lengths.sum())
            progress(done, dataset.total_steps)
        written = writer.finish()
    shapes = {name: spec.shape for name, spec in schema.columns().items()}
    videos = {
        name: joined_facts([facts_of(path, shapes[name], str(path)) for path in each]) for name, each in files.items()
    }
    return with_videos(written, schema, folder, {name: [*each] for name, each in files.items()}), videos


def _columns_of_videos(dataset: Dataset) -> set[str]:
    """Return the columns of which all frames are in videos of this machine."""
    versions = dataset.selection().versions
    return {
        name for name in dataset.videos if all(name in part.manifest.videos and not part.elsewhere for part in versions)
    }


def _blocks(dataset: Dataset, files: Mapping[str, dict[Path, int]]) -> Iterator[tuple[Block, np.ndarray]]:
    """Yield (columns, lengths) of whole episodes, with the index of the videos in `files`, which get their numbers there."""
    names = [name for name in dataset.columns if name not in files]
    for some in episode_ranges(dataset, BLOCK_BYTES):
        blocks = []
        for stored, inside in dataset.selection().runs(np.arange(some.start, some.stop)):
            block = stored.read_block(inside, names)
            for name, numbers in files.items():
                index = stored.read_frame_index(name, inside)
                for number in np.unique(index[:, 0]).tolist():
                    path = stored.folder / video_path(name, number)
                    new = numbers.setdefault(path, len(numbers) + 1) if number else 0
                    block[name] = block.get(name, index.copy())
                    block[name][index[:, 0] == number, 0] = new
            blocks.append(block)
        yield dict(concatenate_blocks(blocks)), dataset.episode_lengths[some.start : some.stop]


def _joined(separator: str, manifests: list[Manifest], field: str) -> str:
    """Join the distinct texts of a field that are not empty, in order."""
    texts = [getattr(manifest, field) for manifest in manifests]
    return separator.join(dict.fromkeys(text for text in texts if text))


def convert_dataset(
    dataset: Given,
    target: str | Path,
    *,
    container: Container,
    name: str | None = None,
    version: str | None = None,
    chunk_hashes: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """Write a stored version in the other container, or with hashes of its chunks, into a new folder.

    Parts and every column's BLAKE3 stay the same, and are checked. Since objects and digest differ,
    the result is another version: by default the next free patch. The old digest is added to the
    lineage with the operation `convert`. Memory is bounded; an interruption leaves nothing under
    `target`. Returns the folder.

    Args:
        dataset: The version. Views have no container; store them with `save_dataset` first.
        target: The new folder, which must not exist.
        container: `zarr`, or `hdf5` for one file per part.
        chunk_hashes: Add a hash of each chunk, by which those who read it in place
            (`orlog.load_dataset(.., in_place=True)`) check every chunk against the manifest. The
            container may then stay `zarr`: its files are linked or copied.
        name: Name of the new version; by default that of the dataset.
        version: Content version. By default 1.0.0 under another name; under the same name, the next
            patch version that is free on this machine.
        progress: Called with bytes of rows done and in total.

    Raises:
        VersionExistsError: `target` exists, or the version exists with other content.
        InvalidNameError: name or version do not follow the grammar.
        SchemaError: the dataset is a view.
        ValueError: the dataset is in this container already, or hdf5 is to have hashes of chunks.
        IntegrityError: the source is damaged, or the written values read back differently.
        MissingExtraError: h5py is not installed.
        StorageError: the disk is full.
    """
    dataset = as_dataset(dataset)
    if dataset.operation is not None:
        raise SchemaError(
            f"a view of {dataset.name} has no container; store it as a version first: orlog save "
            "VIEW NAME@VERSION --container hdf5 (in Python: save_dataset)."
        )
    manifest = with_all_files(dataset).manifest
    source = f"{manifest.name}@{manifest.version}"
    if manifest.videos and container == "hdf5":
        raise ValueError(
            f"{source} keeps videos, which hdf5 does not hold; first run: orlog save {source} NEW --video frames"
        )
    same = manifest.container == container
    if same and (not chunk_hashes or has_chunk_hashes(manifest)):
        also = " and has hashes of its chunks" if chunk_hashes else ""
        raise ValueError(f"{source} is in the {container} container{also}.")
    if chunk_hashes:
        refuse_chunk_hashes(container, source)
    destination = absolute_path(target)
    refuse_existing(destination, destination)
    with unfinished_folder(destination) as folder, storage_errors(folder):
        refuse_existing(destination, destination)
        store = folder / "store"
        objects = _take_files(dataset, store) if same else _convert_parts(dataset, store, container, progress)
        converted = msgspec.structs.replace(
            manifest,
            changes=f"{source} {'with hashes of chunks' if same else f'in the {container} container'}",
            container=container,
            objects=in_order(objects),
            lineage=[*manifest.lineage, Parent(digest=dataset.digest, operation="convert")],
        )
        if chunk_hashes:
            converted = with_chunk_hashes(store, converted)
        converted = _named(converted, dataset.version, name or manifest.name, version)
        finish_version(store, converted, destination, accept=check_unchanged)
    return destination


def _named(converted: Manifest, old: str, name: str, version: str | None) -> Manifest:
    """Return the manifest of a conversion under its name and version: by default the next that is free."""
    (major, minor, patch), rebuild = version_parts(old)
    is_given = version is not None or name != converted.name
    for number in itertools.count(patch + 1):
        wanted = parse_name(f"{name}@{version or '1.0.0' if is_given else f'{major}.{minor}.{number}{rebuild}'}")
        named = msgspec.structs.replace(converted, name=wanted.name, version=wanted.version)
        known = known_manifests(wanted.name, wanted.version)
        # What was converted before in the same way is no other content.
        if all(manifest.digest == named.digest for _, manifest in known):
            return named
        if is_given:
            check_unused(wanted.name, wanted.version)
    raise AssertionError("numbers end nowhere")


def _take_files(dataset: Dataset, store: Path) -> list[StoredObject]:
    """Link or copy the files of a version into a store, after checking them; return them as objects."""
    for item in dataset.manifest.objects:
        problem = check_object(dataset.folder, item)
        if problem is not None:
            advice = f"run: orlog verify {dataset.folder}"
            raise mismatch(f"{dataset.folder / item.path}", item.path, problem.expected, problem.found, advice)
        make_folder((store / item.path).parent)
        link_or_copy(dataset.folder / item.path, store / item.path)
    return list(dataset.manifest.objects)


def _convert_parts(
    dataset: Dataset, store: Path, container: Container, progress: Callable[[int, int], None]
) -> list[StoredObject]:
    """Write all parts into a store in another container, and return their objects."""
    from orlog.datasets.store.hdf5 import write_hdf5

    specs = dataset.schema.columns()
    columns = dataset.manifest.columns
    total = sum(column.rows * specs[column.name].dtype.itemsize * math.prod(column.shape) for column in columns)
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    add(0)
    objects: list[StoredObject] = []
    for number, part in enumerate(parts_of(dataset.manifest)):
        prefix = part_folder(number)
        here, there = dataset.folder / prefix, store / prefix
        if container == "hdf5":
            held = [
                msgspec.structs.replace(item, path=item.path.removeprefix(prefix))
                for item in dataset.manifest.objects
                if item.path.startswith(prefix)
            ]
            whole = WrittenPart(schema=dataset.schema, part=part, objects=held, non_finite={})
            written = write_hdf5(here, there, whole, progress=add)
        else:
            rows = {spec: part.columns[name].rows for name, spec in specs.items()}
            written = _write_zarr(here, there, rows, part, add)
        objects += [msgspec.structs.replace(item, path=prefix + item.path) for item in written]
    return objects


def _write_zarr(
    source: Path, target: Path, rows: Mapping[ColumnSpec, int], part: Part, progress: Callable[[int], None]
) -> list[StoredObject]:
    """Copy a part from HDF5 into the Zarr container, and compare each column with its BLAKE3."""
    from orlog.datasets.store.hdf5 import Hdf5Reader

    reader = Hdf5Reader(source, rows)
    with contextlib.closing(ZarrWriter(target)) as writer:
        for spec, count in rows.items():
            step = writer.add_column(spec).encoding.shard_rows
            for start in range(0, count, step):
                values = reader.read(spec.name, start, min(count, start + step))
                writer.append({spec.name: values})
                progress(values.nbytes)
        columns, objects = writer.finish()
    for column in columns:
        name, expected = column.spec.name, part.columns[column.spec.name].blake3
        if column.blake3 != expected:
            where, advice = f"{source}: column {name}: blake3", "run orlog verify on the dataset"
            raise mismatch(where, name, expected, column.blake3, advice)
        objects += column.objects
    return objects
