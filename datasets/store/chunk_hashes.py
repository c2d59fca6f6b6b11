"""Hashes of chunks, so that a chunk that is read alone is known to be the one that the manifest means.

    chunk_hashes/chunks    a hash of each chunk with its CRC: of all chunks of all shards, by path
    chunk_hashes/shards    for each shard a hash of its index of chunks, followed by the hashes of its chunks

A hash is the BLAKE3 of the bytes, cut to 16. Both files are objects of the version like any other, so that the
manifest pins them. A chunk's own CRC finds accidents and no adversary, so shards without hashes are fetched whole.
Whoever reads one chunk of a shard needs its index, the few hashes of its chunks, and the 16 bytes in `shards`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import blake3

from orlog.base.files import make_folder, storage_errors, write_durably
from orlog.datasets.store.objects import check_object, column_of, mismatch
from orlog.datasets.store.shards import index_bytes_of, places_in
from orlog.manifests.manifest import Manifest, StoredObject

CHUNKS_FILE = "chunk_hashes/chunks"
SHARDS_FILE = "chunk_hashes/shards"
HASH_BYTES = 16
LARGE_BYTES = 2**20
"""A version with a larger shard needs hashes of its chunks, so that parts of it can be fetched and checked."""
MOST_WHOLE_BYTES = 2**22
"""Hashes of chunks that are fetched whole where a version is read in place; more are fetched by shard."""


class Layout(NamedTuple):
    """Where the hashes of a shard are."""

    shard: int
    first: int
    chunks: int
    room: int

    @property
    def of_hashes(self) -> tuple[int, int]:
        """Where its hashes are in the file of chunks."""
        return self.first * HASH_BYTES, (self.first + self.chunks) * HASH_BYTES


def hash_of(data: bytes | memoryview) -> bytes:
    """Return the hash of a chunk's bytes."""
    return blake3.blake3(data).digest(HASH_BYTES)


def has_chunk_hashes(manifest: Manifest) -> bool:
    """Return whether a version has hashes of its chunks."""
    return {CHUNKS_FILE, SHARDS_FILE} <= {item.path for item in manifest.objects}


def lacks_chunk_hashes(manifest: Manifest) -> bool:
    """Return whether a version has shards too large to be fetched whole, and no hashes of their chunks."""
    has_large = any(item.size_bytes > LARGE_BYTES and column_of(item.path) is not None for item in manifest.objects)
    return manifest.container == "zarr" and has_large and not has_chunk_hashes(manifest)


def metadata_objects(manifest: Manifest) -> list[StoredObject]:
    """Return the objects that are needed to open a version: all but shards, and large files of hashes."""
    return [
        item
        for item in manifest.objects
        if column_of(item.path) is None and (item.path != CHUNKS_FILE or is_kept_whole(item))
    ]


def is_kept_whole(hashes: StoredObject) -> bool:
    """Return whether the file of chunks' hashes is fetched whole where a version is read in place."""
    return hashes.size_bytes <= MOST_WHOLE_BYTES


def layouts(chunks: Mapping[str, tuple[int, int]]) -> dict[str, Layout]:
    """Return where the hashes of each shard are, given how many chunks it holds and has room for, by path."""
    result: dict[str, Layout] = {}
    first = 0
    for shard, (path, (held, room)) in enumerate(sorted(chunks.items())):
        result[path] = Layout(shard, first, held, room)
        first += held
    return result


def read_chunk_hashes(folder: Path, manifest: Manifest, places: Mapping[str, Layout]) -> dict[str, tuple[bytes, bytes]]:
    """Return the hash of each shard of a version, and those of its chunks one after the other, by path."""
    check_sizes(manifest, places)
    for item in manifest.objects:
        problem = check_object(folder, item) if item.path in (CHUNKS_FILE, SHARDS_FILE) else None
        if problem is not None:
            advice = f"run: orlog verify {folder} --repair"
            raise mismatch(f"{folder / item.path}", item.path, problem.expected, problem.found, advice)
    return {path: _stated(folder, place) for path, place in places.items()}


def write_chunk_hashes(
    folder: Path, chunks: Mapping[str, tuple[int, int]], known: Mapping[str, tuple[bytes, bytes]] | None = None
) -> list[StoredObject]:
    """Write the hashes of all shards of a folder, and return both files as objects."""
    known = known or {}
    hashes = [
        known.get(path) or hashes_of_shard(folder / path, held, room) for path, (held, room) in sorted(chunks.items())
    ]
    contents = {
        CHUNKS_FILE: b"".join(of_chunks for _, of_chunks in hashes),
        SHARDS_FILE: b"".join(of_shard for of_shard, _ in hashes),
    }
    for path, content in contents.items():
        with storage_errors(folder / path):
            make_folder((folder / path).parent)
            write_durably(folder / path, content)
    return [
        StoredObject(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for path, data in contents.items()
    ]


def shards_of_other_hashes(folder: Path, places: Mapping[str, Layout], column: str) -> Iterator[str]:
    """Yield each shard of a column, named with its part, whose hashes are not those that the folder's files hold."""
    for path, place in places.items():
        is_meant = path.startswith(f"{column}/c.")
        if is_meant and _stated(folder, place) != hashes_of_shard(folder / path, place.chunks, place.room):
            yield path


def _stated(folder: Path, place: Layout) -> tuple[bytes, bytes]:
    """Return the hash of a shard and those of its chunks that the folder's files hold."""
    hashes = []
    of_shard = place.shard * HASH_BYTES, (place.shard + 1) * HASH_BYTES
    for name, (start, stop) in ((SHARDS_FILE, of_shard), (CHUNKS_FILE, place.of_hashes)):
        with (folder / name).open("rb") as file:
            file.seek(start)
            hashes.append(file.read(stop - start))
    return hashes[0], hashes[1]


def hashes_of_shard(shard: Path, held: int, room: int) -> tuple[bytes, bytes]:
    """Return the hash of a shard and those of its chunks; it holds so many and has room for so many."""
    with storage_errors(shard):
        data = shard.read_bytes()
    index = data[len(data) - index_bytes_of(room) :]
    view = memoryview(data)
    places = places_in(index)[:held].tolist()
    hashes = b"".join(hash_of(view[start : start + size]) for start, size in places)
    return hash_of(index + hashes), hashes


def check_sizes(manifest: Manifest, places: Mapping[str, Layout]) -> None:
    """Refuse files of hashes that are not of these shards."""
    chunks = sum(place.chunks for place in places.values())
    sizes = {item.path: item.size_bytes for item in manifest.objects}
    for path, count in ((CHUNKS_FILE, chunks), (SHARDS_FILE, len(places))):
        if sizes[path] != count * HASH_BYTES:
            where, expected = f"{manifest.name}@{manifest.version}: {path}", count * HASH_BYTES
            raise mismatch(where, path, f"{expected} bytes", f"{sizes[path]} bytes")
