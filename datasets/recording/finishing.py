"""Finishes a version: makes its manifest, and puts the written folder in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Required, TypedDict, Unpack

import msgspec
import numpy as np
from gymnasium import spaces

from orlog.base.files import (
    link_or_copy,
    make_folder,
    put_in_place,
    put_new,
    storage_errors,
    sync_folders,
    write_durably,
)
from orlog.datasets.columns.bounds import merge_outside
from orlog.datasets.columns.schema import Schema
from orlog.datasets.home.folders import share_objects
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.chunk_hashes import (
    CHUNKS_FILE,
    SHARDS_FILE,
    has_chunk_hashes,
    lacks_chunk_hashes,
    layouts,
    read_chunk_hashes,
    write_chunk_hashes,
)
from orlog.datasets.store.verify import check_values
from orlog.datasets.store.version import StoredVersion
from orlog.datasets.store.videos import add_videos, index_spec, video_blake3
from orlog.datasets.store.zarr_writer import WrittenPart
from orlog.errors import IntegrityError, VersionExistsError
from orlog.manifests.manifest import (
    MANIFEST_FILE,
    MANIFEST_VERSION,
    STORE_FORMAT,
    Base,
    Column,
    Container,
    EnvironmentRecord,
    Manifest,
    Outside,
    Parent,
    Part,
    RecipeRecord,
    StoredObject,
    Video,
    combined_blake3,
    part_folder,
    parts_of,
)
from orlog.manifests.roles import spread_roles
from orlog.manifests.spaces import named_parts, space_to_json


def finish_version(
    store: Path,
    manifest: Manifest,
    destination: Path,
    *,
    accept: Callable[[Manifest], None],
    share: Sequence[StoredObject] = (),
    among: Iterable[str] | None = None,
    decode: bool = False,
    replace: bool = False,
) -> None:
    """Complete a folder whose objects are written, and put it in its place in one step.

    The order is: write the manifest, share equal objects, make everything durable, decode values and compare
    them with the manifest if `decode` is set, call `accept`, rename the folder. `accept` raises if the version
    must not appear there. Objects to `share` are replaced by links to equal ones of other versions on this
    machine, or of the datasets `among` them. Without `replace`, nothing may be at the destination.

    Raises IntegrityError if values do not decode to those written; StorageError if the disk is full, or
    something is at the destination.
    """
    with storage_errors(store):
        write_durably(store / MANIFEST_FILE, manifest.to_json().encode())
        if share:
            share_objects(store, share, among)
        sync_folders(store)
        problems = check_values(StoredVersion(store)) if decode else []
        if problems:
            raise IntegrityError(
                f"{manifest.name}@{manifest.version}: the written files do not decode to the values "
                f"they were made from: {problems[0]}; the memory or a codec is at fault. Nothing was "
                "kept; run the same command again.",
                file=problems[0].file,
                expected=problems[0].expected,
                found=problems[0].found,
            )
        accept(manifest)
        put = put_in_place if replace else put_new
        put(store, destination)


def refuse_existing(place: Path, destination: Path) -> None:
    """Refuse a destination if something is at a place."""
    if place.exists() or place.is_symlink():
        raise VersionExistsError(f"{destination} exists already; versions are never overwritten: choose another one.")


def refuse_chunk_hashes(container: Container, wanted: str) -> None:
    """Refuse hashes of chunks in a container whose chunks are not read alone."""
    if container != "zarr":
        raise ValueError(f"{wanted}: chunks have hashes in the container zarr only, found {container}.")


def with_chunk_hashes(store: Path, manifest: Manifest, base: Path | None = None) -> Manifest:
    """Write the hashes of the chunks in a folder, whose shards were checked; return the manifest with them.

    The manifest lists none yet. Shards that a version in the folder `base` has under the same paths keep theirs.

    Raises:
        IntegrityError: a file of hashes of `base` is damaged.
        StorageError: the disk is full.
    """
    known = {}
    if base is not None:
        before = StoredVersion(base)
        known = read_chunk_hashes(base, before.manifest, layouts(before.chunks_of_shards()))
    hashes = write_chunk_hashes(store, StoredVersion(store, manifest).chunks_of_shards(), known)
    return msgspec.structs.replace(manifest, objects=in_order([*manifest.objects, *hashes]))


class Facts(TypedDict, total=False):
    """What a manifest says that the files of its version do not; `Manifest` documents the fields."""

    name: Required[str]
    version: Required[str]
    description: str
    license: str
    environment: EnvironmentRecord | None
    behavior_policy: str
    recipe: RecipeRecord | None
    lineage: Sequence[Parent]
    changes: str
    benchmark: str
    dimension_names: dict[str, list[str]]
    roles: Mapping[str, str]
    base: Base | None
    videos: Mapping[str, Video]


def make_manifest(
    schema: Schema,
    parts: Sequence[Part],
    objects: Iterable[StoredObject],
    *,
    container: Container = "zarr",
    non_finite: dict[str, int],
    outside: Mapping[str, Outside] | None = None,
    **facts: Unpack[Facts],
) -> Manifest:
    """Return the manifest of a version that consists of these parts, at least one, in order.

    Objects are all files, with paths inside the version's folder, in any order. `non_finite` and `outside`
    leave out the columns that have no such numbers. The other fields are explained at `Manifest`; columns in
    `roles` may be patterns.

    Raises ManifestError if fields make no sense, such as roles that do not fit their columns.
    """
    roles = spread_roles(facts.get("roles", {}), schema.held())
    return Manifest(
        manifest_version=MANIFEST_VERSION,
        name=facts["name"],
        version=facts["version"],
        description=facts.get("description", ""),
        license=facts.get("license", ""),
        container=container,
        format_version=STORE_FORMAT,
        total_episodes=sum(part.episodes for part in parts),
        total_steps=sum(part.steps for part in parts),
        observation_space=space_to_json(schema.observation_space),
        action_space=space_to_json(schema.action_space),
        environment=facts.get("environment"),
        behavior_policy=facts.get("behavior_policy", ""),
        recipe=facts.get("recipe"),
        lineage=[*facts.get("lineage", ())],
        columns=[
            Column(
                name=name,
                dtype=spec.dtype.name,
                shape=list(spec.shape),
                rows=sum(part.columns[name].rows for part in parts),
                blake3=combined_blake3([part.columns[name].blake3 for part in parts]),
            )
            for name, spec in sorted(schema.columns().items())
        ],
        objects=in_order(objects),
        parts=list(parts) if len(parts) > 1 else [],
        variable_columns=dict(schema.variable),
        non_finite=non_finite,
        outside_bounds=dict(outside or {}),
        changes=facts.get("changes", ""),
        benchmark=facts.get("benchmark", ""),
        dimension_names=facts.get("dimension_names", {}),
        roles=roles,
        base=facts.get("base"),
        videos=dict(facts.get("videos", {})),
    )


def with_indexes(schema: Schema, names: Collection[str]) -> Schema:
    """Return a schema in which the index of videos stands for the frames of some columns of observations."""
    low = np.iinfo(np.int64)
    index = spaces.Box(low.min, low.max, index_spec("").shape, np.int64)
    space = schema.observation_space
    if isinstance(space, spaces.Dict):
        parts = {str(key): index if f"observations/{name}" in names else part for key, name, part in named_parts(space)}
        space = spaces.Dict(parts)
    elif "observations" in names:
        space = index
    return dataclasses.replace(schema, observation_space=space)


def with_videos(written: WrittenPart, schema: Schema, store: Path, videos: Mapping[str, Sequence[Path]]) -> WrittenPart:
    """Copy the files of columns of videos, whose indexes are written, into a store; return the part with them."""
    if not videos:
        return written
    objects = add_videos(store, videos)
    columns = {
        name: msgspec.structs.replace(column, blake3=video_blake3(objects, name, column.blake3))
        if name in videos
        else column
        for name, column in written.part.columns.items()
    }
    return dataclasses.replace(
        written,
        schema=dataclasses.replace(written.schema, observation_space=schema.observation_space),
        part=msgspec.structs.replace(written.part, columns=columns),
        objects=[*written.objects, *objects],
    )


def lay_out_version(
    recorded: Path, written: WrittenPart, store: Path, *, container: Container, base: Dataset | None, facts: Facts
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
    new = [msgspec.structs.replace(item, path=prefix + item.path) for item in objects]
    shared: list[StoredObject] = []
    non_finite = dict(written.non_finite)
    outside = [written.outside]
    if base is not None and before is not None:
        shared = [item for item in before.objects if item.path not in (CHUNKS_FILE, SHARDS_FILE)]
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
    for item in objects:
        link_or_copy(source / item.path, target / item.path)


def in_order(objects: Iterable[StoredObject]) -> list[StoredObject]:
    """Return objects as a manifest lists them: by their paths."""
    return sorted(objects, key=lambda item: item.path)
