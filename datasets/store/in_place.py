"""Shards of a version that lies elsewhere, such as in a bucket: read by ranges, and kept here.

A shard has a sparse file in a folder of this machine, and what was read of it lies where it lies in the
shard. So it is read as any other shard is, once the chunks that are wanted are there. Whether a chunk is there
is asked of its bytes alone: those that agree with its hash (`chunk_hashes.py`) are right; zeros, halves that a kill
left, and damage are fetched again. Small shards, and those of a version without hashes, are fetched whole and
compared with their SHA-256.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from orlog.base.files import make_folder, replace_file, storage_errors
from orlog.datasets.home.in_place import clear_way, in_place_folder, make_room
from orlog.datasets.store.chunk_hashes import (
    CHUNKS_FILE,
    HASH_BYTES,
    SHARDS_FILE,
    Layout,
    hash_of,
    is_kept_whole,
)
from orlog.datasets.store.shards import Shard, check_bytes
from orlog.errors import IntegrityError, TransferError
from orlog.manifests.manifest import StoredObject

Key = TypeVar("Key")
Coming: TypeAlias = "concurrent.futures.Future[None]"
"""A request for some chunks, sent or waiting to be."""

AT_ONCE = 16
"""Requests that are on their way at once."""
WHOLE_BYTES = 2**17
"""Shards of at most this are fetched whole: their index and their chunks in one request."""
PIECE_BYTES = 2**21
"""Most bytes of a request for several neighboring chunks, so that a long range comes by several at once."""
_TRIES = 100  # to make a file in a folder that is being removed
_bringing = threading.Lock()


class Source(Protocol):
    """Where the objects of a version are."""

    def get(self, path: str, start: int, stop: int, check: Callable[[bytes], None]) -> bytes:
        """Return the bytes `start` to `stop - 1` of an object, once they pass a check.

        Raises IntegrityError, as the check does, if no place gives such bytes; TransferError if none answers.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """What is known of a version that is read in place.

    Attributes:
        source: Where its objects are.
        folder: Folder of this machine that holds its manifest and metadata, and keeps what is read.
        objects: Its objects, by path.
        layouts: Where the hashes of each shard are; empty if it has none. Filled when its columns are known.
    """

    source: Source
    folder: Path
    objects: Mapping[str, StoredObject]
    layouts: dict[str, Layout] = dataclasses.field(default_factory=dict)
    _whole: dict[str, bytes] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __reduce__(self) -> tuple[Callable[..., Elsewhere], tuple[object, ...]]:
        """On another machine, what is read is kept in its own home."""
        return _arrived, (self.source, self.folder, self.objects, self.layouts)

    def is_whole(self, path: str) -> bool:
        """Return whether a shard is fetched whole: it is small, or its chunks have no hashes."""
        return self.objects[path].size_bytes <= WHOLE_BYTES or path not in self.layouts

    def hashes_ahead(self, path: str) -> concurrent.futures.Future[bytes] | None:
        """Ask for the hashes of a shard's chunks while its index comes; None if they are here.

        Nothing is checked yet: that takes the index.
        """
        if is_kept_whole(self.objects[CHUNKS_FILE]):
            return None
        pool = _requests(os.getpid(), "hashes")  # others may all wait for it
        where = self.layouts[path].of_hashes
        return pool.submit(self.source.get, CHUNKS_FILE, *where, lambda _data: None)

    def chunk_hashes(
        self, path: str, index: bytes, ahead: concurrent.futures.Future[bytes] | None
    ) -> bytes:
        """Return the hashes of a shard's chunks, which were checked together with its index."""
        layout = self.layouts[path]
        place = layout.shard * HASH_BYTES
        expected = self._read_whole(SHARDS_FILE)[place : place + HASH_BYTES]

        def check(hashes: bytes) -> None:
            found = hash_of(index + hashes)
            if found != expected:
                raise IntegrityError(
                    f"{path}, index of chunks: it and the hashes of its chunks are not those of the manifest.",
                    file=path,
                    expected=expected.hex(),
                    found=found.hex(),
                )

        start, stop = layout.of_hashes
        if ahead is None:
            hashes = self._read_whole(CHUNKS_FILE)[start:stop]
            check(hashes)
            return hashes
        with contextlib.suppress(IntegrityError, TransferError):  # then each place is asked
            hashes = ahead.result()
            check(hashes)
            return hashes
        return self.source.get(CHUNKS_FILE, start, stop, check)

    def _read_whole(self, path: str) -> bytes:
        """Return an object that is kept whole; what is missing here or damaged is brought again."""
        if path not in self._whole:
            item = self.objects[path]
            check = functools.partial(check_whole, item)
            data = b""
            with contextlib.suppress(OSError):
                data = (self.folder / path).read_bytes()
            if not _passes(check, data):
                data = self.source.get(path, 0, item.size_bytes, check)
                self._keep_whole(path, data)
            self._whole[path] = data
        return self._whole[path]

    def _keep_whole(self, path: str, data: bytes) -> None:
        removed = contextlib.suppress(FileNotFoundError, FileExistsError)  # in between
        with storage_errors(self.folder), _bringing, removed:
            clear_way(self.folder, path)
            make_folder((self.folder / path).parent)
            replace_file(self.folder / path, data, alone=False)

    def bring(
        self,
        opened: Callable[[Key], Shard],
        wanted: Mapping[Key, Iterable[int]],
        ahead: list[Coming] | None = None,
    ) -> None:
        """Fetch what is not here of some chunks, by shard: all indexes at once, then all chunks.

        With `ahead`, chunks are not waited for: what fetches them is added to it. Whoever needs them waits.

        Raises as `RemoteShard.fetch` does.
        """
        pool = _requests(os.getpid(), "chunks")
        opening = _requests(os.getpid(), "indexes").map if len(wanted) > 1 else map
        shards = list(opening(opened, wanted))
        own: list[Coming] = []
        others: list[Coming] = []
        for shard, chunks in zip(shards, wanted.values(), strict=True):
            if isinstance(shard, RemoteShard):
                shard.start(chunks, pool, own, others)
        if ahead is not None:
            ahead += own
            return
        try:
            for request in concurrent.futures.as_completed(own):
                request.result()
        finally:
            for request in own:
                request.cancel()
        for request in others:
            with contextlib.suppress(concurrent.futures.CancelledError):
                request.result()
        if any(request.cancelled() for request in others):  # whoever had asked for them stopped
            self.bring(opened, wanted)


def _arrived(
    source: Source, folder: Path, objects: Mapping[str, StoredObject], layouts: dict[str, Layout]
) -> Elsewhere:
    """Return a version that is read in place, in a process that may be on another machine."""
    here = in_place_folder() / folder.name
    with storage_errors(here):
        make_folder(here)
    return Elsewhere(source=source, folder=here, objects=objects, layouts=layouts)


def check_whole(item: StoredObject, data: bytes) -> None:
    """Raise IntegrityError if these are not the bytes of an object."""
    found = hashlib.sha256(data).hexdigest()
    if found != item.sha256:
        raise IntegrityError(
            f"{item.path}: sha256 expected {item.sha256} found {found}.",
            file=item.path,
            expected=item.sha256,
            found=found,
        )


@functools.cache
def _requests(_process: int, kind: str) -> concurrent.futures.ThreadPoolExecutor:
    """Return the threads of this process that wait for answers of a kind; a fork needs its own.

    Indexes do not wait behind the chunks that were asked for before.
    """
    return concurrent.futures.ThreadPoolExecutor(AT_ONCE, f"orlog-{kind}")


class RemoteShard(Shard):
    """A shard that lies elsewhere: its bytes come into a sparse file here before they are read.

    Safe in threads; several processes may share its file.
    """

    def __init__(self, elsewhere: Elsewhere, path: str, chunks: int, *, name: str) -> None:
        """Open the shard at `path` in the version, with room for so many chunks, and bring its index."""
        self._elsewhere, self._path = elsewhere, path
        self._item = elsewhere.objects[path]
        self._here = np.zeros(chunks, np.bool_)
        self._coming: dict[int, tuple[threading.Lock, dict[int, Coming]]] = {}
        self._hashes = b""
        super().__init__(elsewhere.folder / path, chunks, self._item.size_bytes, name=name)

    def _open(self, path: Path, size_bytes: int) -> int:
        """Open the sparse file, which is made if it is not here."""
        with storage_errors(path):
            file = _open_or_make(self._elsewhere.folder, self._path)
            if os.fstat(file).st_size != size_bytes:
                os.ftruncate(file, size_bytes)
            os.utime(file)  # when it was last used
        return file

    def _read_index(self, index_bytes: int) -> bytes:
        """Bring the index and the hashes of the chunks, or the whole shard."""
        if not self._elsewhere.is_whole(self._path):
            ahead = self._elsewhere.hashes_ahead(self._path)

            def check(data: bytes) -> None:
                check_bytes(data, f"{self._path}, index of chunks", self._path)
                self._hashes = self._elsewhere.chunk_hashes(self._path, data, ahead)

            if not _passes(check, os.pread(self._file, index_bytes, self._end)):
                self._get(self._end, self._item.size_bytes, check)
        elif not _passes(self._check_whole, os.pread(self._file, self._item.size_bytes, 0)):
            self.fetch(0, len(self._here))
        else:
            self._here[:] = True
        return super()._read_index(index_bytes)

    def start(
        self,
        chunks: Iterable[int],
        pool: concurrent.futures.Executor,
        own: list[Coming],
        others: list[Coming],
    ) -> None:
        """Start to fetch what is not here of some chunks, but for what is on its way already.

        Requests are added to `own`, and those of others that bring some of the chunks to `others`.
        """
        wanted = [*chunks]
        if self._here[wanted].all():
            return
        # A fork copies a lock that may be held, and requests that its threads do not answer.
        starting, coming = self._coming.setdefault(os.getpid(), (threading.Lock(), {}))
        with starting:
            others += {coming[chunk] for chunk in wanted if chunk in coming}
            for first, last in self._lacking(chunk for chunk in wanted if chunk not in coming):
                request = pool.submit(self.fetch, first, last)
                own.append(request)
                coming |= dict.fromkeys(range(first, last), request)
                request.add_done_callback(functools.partial(_forget, coming, range(first, last)))

    def _lacking(self, chunks: Iterable[int]) -> list[tuple[int, int]]:
        """Return (first, last + 1) of runs of neighboring chunks that are not here, in pieces to be fetched."""
        return self.pieces(chunk for chunk in chunks if not self._is_here(chunk))

    def _is_here(self, chunk: int) -> bool:
        if not self._here[chunk]:
            offset, size = self.place(chunk)
            self._here[chunk] = not _is_hole(self._file, offset, size) and _passes(
                functools.partial(self._check, chunk), os.pread(self._file, size, offset)
            )
        return bool(self._here[chunk])

    def pieces(self, chunks: Iterable[int]) -> list[tuple[int, int]]:
        """Return (first, last + 1) of runs of neighbors among chunks in order, each small enough for a request."""
        wanted = [*chunks]
        pieces: list[tuple[int, int]] = []
        before = end = size = 0
        for chunk, (offset, length) in zip(wanted, self.places(wanted), strict=True):
            if pieces and chunk == before + 1 and offset == end and size + length <= PIECE_BYTES:
                pieces[-1] = pieces[-1][0], chunk + 1
                size += length
            else:
                pieces.append((chunk, chunk + 1))
                size = length
            before, end = chunk, offset + length
        return pieces

    def fetch(self, first: int, last: int) -> None:
        """Fetch chunks `first` to `last - 1`, which are neighbors, check each of them, and keep them.

        Raises IntegrityError that names the object and the chunk; TransferError if no place answers;
        StorageError if the disk is full.
        """
        if self._elsewhere.is_whole(self._path):
            self._get(0, self._item.size_bytes, self._check_whole)
            self._here[:] = True
            return
        places = self.places(range(first, last))
        start, stop = places[0][0], sum(places[-1])

        def check(data: bytes) -> None:
            view = memoryview(data)
            for chunk, (offset, size) in enumerate(places, first):
                self._check(chunk, view[offset - start : offset - start + size])

        self._get(start, stop, check)
        self._here[first:last] = True

    def _bytes(self, first: int, last: int, start: int, size: int) -> bytes:
        for piece in self._lacking(range(first, last)):
            self.fetch(*piece)
        return super()._bytes(first, last, start, size)

    def _checked(self, chunk: int, data: bytes) -> memoryview:
        """Compare the bytes of a chunk with their checksum; what was damaged since it came is fetched once more."""
        with contextlib.suppress(IntegrityError):
            return super()._checked(chunk, data)
        self.fetch(chunk, chunk + 1)
        offset, size = self.place(chunk)
        return super()._checked(chunk, os.pread(self._file, size, offset))

    def _check(self, chunk: int, data: bytes | memoryview) -> None:
        """Compare the bytes of a chunk with its hash, which covers its checksum."""
        expected = self._hashes[chunk * HASH_BYTES : (chunk + 1) * HASH_BYTES]
        found = hash_of(data)
        if found != expected:
            where = f"{self._path}, chunk {chunk}"
            check_bytes(bytes(data), where, self._path)
            raise IntegrityError(
                f"{where}: other bytes than the manifest's: blake3 expected {expected.hex()} found "
                f"{found.hex()}.",
                file=self._path,
                expected=expected.hex(),
                found=found.hex(),
            )

    def _check_whole(self, data: bytes) -> None:
        check_whole(self._item, data)

    def _get(self, start: int, stop: int, check: Callable[[bytes], None]) -> None:
        """Fetch bytes and write them where they lie; on a full disk, what else is kept here goes first."""
        data = self._elsewhere.source.get(self._path, start, stop, check)
        make_room(len(data))
        with storage_errors(self._elsewhere.folder / self._path):
            try:
                self._write(data, start)
            except OSError as error:
                is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if not is_full or not make_room(0, at_once=True):
                    raise
                self._write(data, start)

    def _write(self, data: bytes, start: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, start)
            rest, start = rest[written:], start + written


def _forget(coming: dict[int, Coming], chunks: Iterable[int], _done: Coming) -> None:
    for chunk in chunks:
        coming.pop(chunk, None)


def _is_hole(file: int, offset: int, size: int) -> bool:
    """Return whether nothing was ever written at a place of a sparse file; False where the system cannot tell."""
    if not hasattr(os, "SEEK_DATA"):
        return False
    try:
        return os.lseek(file, offset, os.SEEK_DATA) >= offset + size
    except OSError as error:
        return error.errno == errno.ENXIO  # nothing from there on


def _open_or_make(folder: Path, name: str) -> int:
    """Open a file for reading and writing; it and its folder are made, also while another process removes them."""
    path = folder / name
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            clear_way(folder, name)
            make_folder(path.parent)
            return os.open(path, flags, 0o600)
    return os.open(path, flags, 0o600)


def _passes(check: Callable[[bytes], None], data: bytes) -> bool:
    try:
        check(data)
    except IntegrityError:
        return False
    return True
