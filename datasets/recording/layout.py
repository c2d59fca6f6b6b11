"""Lays out a recorded version's folder: files of the version it appends to, and a new part."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orlog.base.files import link_or_copy, make_folder
from orlog.datasets.columns.bounds import merge_outside
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.recording.finishing import Facts, make_manifest, with_chunk_hashes
from orlog.datasets.store.chunk_hashes import (
    CHUNKS_FILE,
    SHARDS_FILE,
    has_chunk_hashes,
    lacks_chunk_hashes,
)
from orlog.datasets.store.container import WrittenPart
from orlog.manifests.manifest import Container, Manifest, StoredObject, part_folder, parts_of


def lay_out_version(
    recorded: Path,
    written: WrittenPart,
    store: Path,
    *,
    container: Container,
    base: Dataset | None,
    facts: Facts,
) -> tuple[Manifest, list[StoredObject]]:
    """Fill the new folder `store` of a version; return its manifest and its new objects.

    `written` is the part in the folder `recorded`, and `base` the version that is appended to, if any; `facts`
    are the other fields that `make_manifest` takes. Chunks get hashes if those of `base` have them, or if there is
    no `base` and a shard is too large to be read whole. Files are linked, not moved: a kill before the version is
    in place leaves the recording whole.
    """
    before = None if base is None else base.manifest
    parts = [] if before is None else parts_of(before)
    prefix = part_folder(len(parts))
    target = store / prefix
    if container == "hdf5":
        from orlog.datasets.store.hdf5 import write_hdf5

        objects = write_hdf5(recorded, target, written)
    else:
        make_folder(target.parent)
        _link_objects(recorded, target, written.objects)
        objects = written.objects
    new = [
        StoredObject(path=prefix + one.path, size_bytes=one.size_bytes, sha256=one.sha256)
        for one in objects
    ]
    shared: list[StoredObject] = []
    non_finite = dict(written.non_finite)
    outside = [written.outside]
    if base is not None and before is not None:
        shared = [one for one in before.objects if one.path not in (CHUNKS_FILE, SHARDS_FILE)]
        _link_objects(base.folder, store, shared)
        for name, count in before.non_finite.items():
            non_finite[name] = non_finite.get(name, 0) + count
        outside.insert(0, before.outside_bounds)
    manifest = make_manifest(
        written.schema,
        [*parts, written.part],
        [*new, *shared],
        container=container,
        non_finite=non_finite,
        outside=merge_outside(outside),
        **facts,
    )
    if base is not None and has_chunk_hashes(base.manifest):
        manifest = with_chunk_hashes(store, manifest, base.folder)
    elif base is None and lacks_chunk_hashes(manifest):
        manifest = with_chunk_hashes(store, manifest)
    return manifest, new


def _link_objects(source: Path, target: Path, objects: Iterable[StoredObject]) -> None:
    """Link objects into another folder, or copy them where links are not possible."""
    for item in objects:
        link_or_copy(source / item.path, target / item.path)
