"""Writes a stored version in the other container."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from orlog.base.files import (
    absolute_path,
    hash_file,
    link_or_copy,
    make_folder,
    storage_errors,
    unfinished_folder,
)
from orlog.datasets.home.meaning import check_unchanged, check_unused, known_manifests
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset, with_all_files
from orlog.datasets.recording.finishing import (
    finish_version,
    in_order,
    refuse_chunk_hashes,
    refuse_existing,
    with_chunk_hashes,
)
from orlog.datasets.store.chunk_hashes import has_chunk_hashes
from orlog.datasets.store.container import WrittenPart
from orlog.datasets.store.zarr_writer import ZarrWriter
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.columns import ColumnSpec
from orlog.manifests.manifest import Container, Parent, Part, StoredObject, part_folder, parts_of
from orlog.manifests.names import DatasetName, parse_name, version_parts


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
    same = manifest.container == container
    if same and (not chunk_hashes or has_chunk_hashes(manifest)):
        also = " and has hashes of its chunks" if chunk_hashes else ""
        raise ValueError(
            f"{manifest.name}@{manifest.version} is in the {container} container{also}."
        )
    if chunk_hashes:
        refuse_chunk_hashes(container, f"{manifest.name}@{manifest.version}")
    wanted = _name_of_converted(dataset, container, name, version, chunk_hashes)
    destination = absolute_path(target)
    refuse_existing(destination, destination)
    with unfinished_folder(destination) as folder, storage_errors(folder):
        refuse_existing(destination, destination)
        store = folder / "store"
        pieces = [] if same else _pieces(dataset, container)
        total = sum(map(_bytes_of_rows, pieces))
        progress(0, total)
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)

        if same:
            objects = _take_files(dataset, store)
        else:
            objects = [item for piece in pieces for item in _write(dataset, piece, store, add)]
        how = "with hashes of chunks" if same else f"in the {container} container"
        converted = msgspec.structs.replace(
            manifest,
            name=wanted.name,
            version=wanted.version,
            changes=f"{manifest.name}@{manifest.version} {how}",
            container=container,
            objects=in_order({item.path: item for item in objects}.values()),
            lineage=[*manifest.lineage, Parent(digest=dataset.digest, operation="convert")],
        )
        if chunk_hashes:
            converted = with_chunk_hashes(store, converted)
        finish_version(store, converted, destination, accept=check_unchanged)
    return destination


def _take_files(dataset: Dataset, store: Path) -> list[StoredObject]:
    """Link or copy the files of a version into a store, after checking them; return them as objects."""
    for item in dataset.manifest.objects:
        path = dataset.folder / item.path
        found = hash_file(path)
        if found != item.sha256:
            raise IntegrityError(
                f"{path}: sha256 expected {item.sha256}, found {found}; run: orlog verify {dataset.folder}",
                file=item.path,
                expected=item.sha256,
                found=found,
            )
        make_folder((store / item.path).parent)
        link_or_copy(path, store / item.path)
    return list(dataset.manifest.objects)


def _name_of_converted(
    dataset: Dataset,
    container: Container,
    name: str | None,
    version: str | None,
    chunk_hashes: bool,
) -> DatasetName:
    """Return the name and version of a version's conversion to another container."""
    name = dataset.name if name is None else name
    if version is None and name != dataset.name:
        version = "1.0.0"
    if version is not None:
        wanted = parse_name(f"{name}@{version}")
        if not _is_free(wanted, dataset, container, chunk_hashes):
            check_unused(wanted.name, wanted.version)
        return wanted
    (major, minor, patch), rebuild = version_parts(dataset.version)
    versions = (f"{major}.{minor}.{number}{rebuild}" for number in itertools.count(patch + 1))
    names = (parse_name(f"{name}@{version}") for version in versions)
    return next(wanted for wanted in names if _is_free(wanted, dataset, container, chunk_hashes))


def _is_free(
    wanted: DatasetName, dataset: Dataset, container: Container, chunk_hashes: bool
) -> bool:
    """Return whether a version is free, or is an earlier result of this same conversion."""
    step = Parent(digest=dataset.digest, operation="convert")
    return all(
        known.container == container
        and known.lineage[-1:] == [step]
        and has_chunk_hashes(known) == chunk_hashes
        for _, known in known_manifests(wanted.name, wanted.version)
    )


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Columns of a part that are written together: all of them in an HDF5 file, else one."""

    container: Container
    number: int
    part: Part
    specs: Sequence[ColumnSpec]

    @property
    def prefix(self) -> str:
        return part_folder(self.number)

    @property
    def rows(self) -> dict[ColumnSpec, int]:
        return {spec: self.part.columns[spec.name].rows for spec in self.specs}


def _pieces(dataset: Dataset, container: Container) -> list[_Piece]:
    specs = [spec for _, spec in sorted(dataset.schema.columns().items())]
    groups = [specs] if container == "hdf5" else [[spec] for spec in specs]
    return [
        _Piece(container, number, part, group)
        for number, part in enumerate(parts_of(dataset.manifest))
        for group in groups
    ]


def _bytes_of_rows(piece: _Piece) -> int:
    return sum(
        count * spec.dtype.itemsize * math.prod(spec.shape) for spec, count in piece.rows.items()
    )


def _write(
    dataset: Dataset, piece: _Piece, store: Path, progress: Callable[[int], None]
) -> list[StoredObject]:
    """Write a piece into a store, and return its objects."""
    target = store / piece.prefix
    write = _write_hdf5 if piece.container == "hdf5" else _write_zarr
    objects = write(dataset, piece, target, progress)
    return [msgspec.structs.replace(item, path=piece.prefix + item.path) for item in objects]


def _write_hdf5(
    dataset: Dataset, piece: _Piece, target: Path, progress: Callable[[int], None]
) -> list[StoredObject]:
    from orlog.datasets.store.hdf5 import write_hdf5

    objects = [
        msgspec.structs.replace(item, path=item.path.removeprefix(piece.prefix))
        for item in dataset.manifest.objects
        if item.path.startswith(piece.prefix)
    ]
    written = WrittenPart(schema=dataset.schema, part=piece.part, objects=objects, non_finite={})
    return write_hdf5(dataset.folder / piece.prefix, target, written, progress=progress)


def _write_zarr(
    dataset: Dataset, piece: _Piece, target: Path, progress: Callable[[int], None]
) -> list[StoredObject]:
    from orlog.datasets.store.hdf5 import Hdf5Reader

    reader = Hdf5Reader(dataset.folder / piece.prefix, piece.rows)
    writer = ZarrWriter(target)
    try:
        for spec, count in piece.rows.items():
            step = writer.add_column(spec).encoding.shard_rows
            for start in range(0, count, step):
                values = reader.read(spec.name, start, min(count, start + step))
                writer.append({spec.name: values})
                progress(values.nbytes)
        written, groups = writer.finish()
    finally:
        writer.close()
    for column in written:
        expected = piece.part.columns[column.spec.name].blake3
        if column.blake3 != expected:
            raise IntegrityError(
                f"{dataset.folder}: column {piece.prefix}{column.spec.name}: blake3 expected "
                f"{expected}, found {column.blake3}; run: orlog verify {dataset.folder}",
                file=column.spec.name,
                expected=expected,
                found=column.blake3,
            )
    return [*groups, *(item for column in written for item in column.objects)]
