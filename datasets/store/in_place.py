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
from orlog.datasets.store.chunk_hashes import CHUNKS_FILE, HASH_BYTES, SHARDS_FILE, Layout, hash_of
from orlog.datasets.store.shards import Shard, check_bytes, index_bytes_of
from orlog.errors import IntegrityError, TransferError
from orlog.manifests.manifest import StoredObject

Key = TypeVar("Key")

_bringing = threading.Lock()

WHOLE_BYTES = 2**17
"""Shards of at most this are fetched whole: their index and their chunks in one request."""
PIECE_BYTES = 2**21
"""Most bytes of a request for several neighboring chunks, so that a long range comes by several at once."""


_TRIES = 100  # to make a file in a folder that is being removed


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
        if (self.folder / CHUNKS_FILE).is_file():
            return None
        where = self.layouts[path].of_hashes
        pool = _requests(os.getpid(), "hashes")  # others may all wait for it
        return pool.submit(self.source.get, CHUNKS_FILE, *where, lambda _data: None)

    def chunk_hashes(
        self, path: str, index: bytes, ahead: concurrent.futures.Future[bytes] | None
    ) -> bytes:
        """Return the hashes of a shard's chunks, which were checked together with its index."""
        layout = self.layouts[path]

        def check(hashes: bytes) -> None:
            expected = self._kept(SHARDS_FILE, layout.shard * HASH_BYTES, HASH_BYTES)
            if hash_of(index + hashes) != expected:
                raise IntegrityError(
                    f"{path}, index of chunks: it and the hashes of its chunks are not those of the manifest.",
                    file=path,
                    expected=expected.hex(),
                    found=hash_of(index + hashes).hex(),
                )

        start, stop = layout.of_hashes
        if ahead is not None:
            with contextlib.suppress(IntegrityError, TransferError):  # then each place is asked
                hashes = ahead.result()
                check(hashes)
                return hashes
        if (self.folder / CHUNKS_FILE).is_file():
            if not _passes(check, self._kept(CHUNKS_FILE, start, stop - start)):
                self._mend(SHARDS_FILE, CHUNKS_FILE)
            hashes = self._kept(CHUNKS_FILE, start, stop - start)
            check(hashes)
            return hashes
        self._mend(SHARDS_FILE)
        return self.source.get(CHUNKS_FILE, start, stop, check)

    def _mend(self, *paths: str) -> None:
        """Bring whole objects again of which the folder has other bytes."""
        for path in paths:
            item = self.objects[path]
            data = self._kept(path, 0, item.size_bytes)
            if not _passes(functools.partial(check_whole, item), data):
                self._bring(path)

    def _kept(self, path: str, start: int, size: int) -> bytes:
        """Return bytes of a whole object that is in the folder; another machine brings it first."""
        with (
            contextlib.suppress(OSError),  # or it was removed or damaged while this process reads
            (self.folder / path).open("rb") as file,
        ):
            file.seek(start)
            return file.read(size)
        return self._bring(path)[start : start + size]

    def _bring(self, path: str) -> bytes:
        item = self.objects[path]
        data = self.source.get(path, 0, item.size_bytes, functools.partial(check_whole, item))
        removed = contextlib.suppress(FileNotFoundError, FileExistsError)  # in between
        with storage_errors(self.folder), _bringing, removed:
            clear_way(self.folder, path)
            make_folder((self.folder / path).parent)
            replace_file(self.folder / path, data, alone=False)
        return data


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


Coming: TypeAlias = "concurrent.futures.Future[None]"
"""A request for some chunks, sent or waiting to be."""

AT_ONCE = 16
"""Requests that are on their way at once."""


@functools.cache
def _requests(_process: int, kind: str) -> concurrent.futures.ThreadPoolExecutor:
    """Return the threads of this process that wait for answers of a kind; a fork needs its own.

    Indexes do not wait behind the chunks that were asked for before.
    """
    return concurrent.futures.ThreadPoolExecutor(AT_ONCE, f"orlog-{kind}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FarPart:
    """A part of a version that is read in place.

    Attributes:
        elsewhere: The version.
        prefix: Folder of the part in it: empty, or `parts/1/`.
    """

    elsewhere: Elsewhere
    prefix: str

    def open_shard(self, name: str, room: int) -> FarShard:
        """Return a shard by its path in the part, with room for so many chunks."""
        return FarShard(self.elsewhere, self.prefix + name, room, name=name)

    def bring(
        self,
        opened: Callable[[Key], Shard],
        wanted: Mapping[Key, Iterable[int]],
        ahead: list[Coming] | None = None,
    ) -> None:
        """Fetch what is not here of some chunks, by shard: all indexes at once, then all chunks.

        With `ahead`, chunks are not waited for: what fetches them is added to it. Whoever needs them waits.

        Raises as `FarShard.fetch` does.
        """
        pool = _requests(os.getpid(), "chunks")
        opening = _requests(os.getpid(), "indexes").map if len(wanted) > 1 else map
        shards = list(opening(opened, wanted))
        own: list[Coming] = []
        others: list[Coming] = []
        for shard, chunks in zip(shards, wanted.values(), strict=True):
            if isinstance(shard, FarShard):
                shard.start(chunks, pool, own, others)
        if ahead is not None:
            ahead += own
            return
        try:
            for one in concurrent.futures.as_completed(own):
                one.result()
        finally:
            for one in own:
                one.cancel()
        for one in others:
            with contextlib.suppress(concurrent.futures.CancelledError):
                one.result()
        if any(one.cancelled() for one in others):  # whoever had asked for them stopped
            self.bring(opened, wanted)


class FarShard(Shard):
    """One shard that lies elsewhere. Safe in threads; several processes may share its file."""

    def __init__(self, elsewhere: Elsewhere, path: str, chunks: int, *, name: str) -> None:
        self._elsewhere, self._path = elsewhere, path
        self._item = elsewhere.objects[path]
        self._here = np.zeros(chunks, np.bool_)
        self._coming: dict[int, tuple[threading.Lock, dict[int, Coming]]] = {}
        self._hashes = b""
        super().__init__(elsewhere.folder / path, chunks, self._item.size_bytes, name=name)

    def _open(self, path: Path, size_bytes: int, chunks: int) -> None:
        """Open the sparse file, which is made if it is not here, and bring the index."""
        with storage_errors(path):
            self._file = _open_or_make(self._elsewhere.folder, self._path)
            if os.fstat(self._file).st_size != size_bytes:
                os.ftruncate(self._file, size_bytes)
            os.utime(self._file)  # when it was last used
        if not self._elsewhere.is_whole(self._path):
            self._bring_index(chunks)
        elif _passes(self._check_whole, os.pread(self._file, size_bytes, 0)):
            self._here[:] = True
        else:
            self._fetch_whole()

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
            others += {coming[one] for one in wanted if one in coming}
            for first, last in self.lacking(one for one in wanted if one not in coming):
                request = pool.submit(self.fetch, first, last)
                own.append(request)
                places = range(first, last)
                coming |= dict.fromkeys(places, request)
                request.add_done_callback(functools.partial(_forget, coming, places))

    def lacking(self, chunks: Iterable[int]) -> list[tuple[int, int]]:
        """Return (first, last + 1) of runs of neighboring chunks that are not here, in pieces to be fetched."""
        wanted = np.fromiter(chunks, np.int64)
        wanted = wanted[~self._here[wanted]]
        missing: list[int] = []
        for run in np.split(wanted, 1 + np.flatnonzero(np.diff(wanted) != 1)):
            some = run.tolist()
            if some and not self._is_empty(some[0], some[-1] + 1):
                some = [one for one in some if not self._is_kept(one)]
            missing += some
        return self.pieces(missing)

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
            self._fetch_whole()
            return
        places = self.places(range(first, last))
        start, stop = places[0][0], sum(places[-1])

        def check(data: bytes) -> None:
            view = memoryview(data)
            for chunk, (offset, size) in enumerate(places, first):
                self._check(chunk, view[offset - start : offset - start + size])

        self._keep(self._elsewhere.source.get(self._path, start, stop, check), start)
        self._here[first:last] = True

    def _bytes(self, first: int, last: int, start: int, size: int) -> bytes:
        for piece in self.lacking(range(first, last)):
            self.fetch(*piece)
        return super()._bytes(first, last, start, size)

    def _checked(self, chunk: int, data: bytes) -> memoryview:
        """Compare the bytes of a chunk with their checksum; what was damaged since it came is fetched once more."""
        with contextlib.suppress(IntegrityError):
            return super()._checked(chunk, data)
        self.fetch(chunk, chunk + 1)
        offset, size = self.place(chunk)
        return super()._checked(chunk, os.pread(self._file, size, offset))

    def _is_empty(self, first: int, last: int) -> bool:
        """Return whether nothing was ever kept of chunks `first` to `last - 1`."""
        places = self.places((first, last - 1))
        return _is_hole(self._file, places[0][0], sum(places[1]) - places[0][0])

    def _is_kept(self, chunk: int) -> bool:
        offset, size = self.place(chunk)
        if _is_hole(self._file, offset, size):
            return False
        data = os.pread(self._file, size, offset)
        is_kept = _passes(functools.partial(self._check, chunk), data)
        self._here[chunk] = is_kept
        return is_kept

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

    def _fetch_whole(self) -> None:
        size = self._item.size_bytes
        self._keep(self._elsewhere.source.get(self._path, 0, size, self._check_whole), 0)
        self._here[:] = True

    def _bring_index(self, chunks: int) -> None:
        """Bring the index and the hashes of the chunks."""
        stop = self._item.size_bytes
        start = stop - index_bytes_of(chunks)
        ahead = self._elsewhere.hashes_ahead(self._path)

        def check(data: bytes) -> None:
            check_bytes(data, f"{self._path}, index of chunks", self._path)
            self._hashes = self._elsewhere.chunk_hashes(self._path, data, ahead)

        if not _passes(check, os.pread(self._file, stop - start, start)):
            self._keep(self._elsewhere.source.get(self._path, start, stop, check), start)

    def _keep(self, data: bytes, start: int) -> None:
        """Write bytes where they lie in the shard; on a full disk, what else is kept here goes first."""
        make_room(len(data))
        with storage_errors(self._elsewhere.folder / self._path):
            try:
                self._write(data, start)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not make_room(
                    0, at_once=True
                ):
                    raise
                self._write(data, start)

    def _write(self, data: bytes, start: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, start)
            rest, start = rest[written:], start + written


def _forget(coming: dict[int, Coming], places: Iterable[int], _done: Coming) -> None:
    for one in places:
        coming.pop(one, None)


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
