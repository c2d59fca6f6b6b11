"""Versions that are read where they are, in a bucket or on a web server, and what is kept of them here.

    $ORLOG_HOME/in-place/DIGEST/manifest.json, zarr.json, ..    metadata, whole and checked
                                observations/c.0.0               a sparse file with the chunks that were read
                                .source                          the registry that it was found in, or its URL

A shard has a sparse file, and what was read of it lies where it lies in the shard. So it is read as any other
shard is, once the chunks that are wanted are there. Whether a chunk is there is asked of its bytes alone: those
that agree with its hash (`store/chunk_hashes.py`) are right; zeros, halves that a kill left, and damage are fetched
again. Small shards, and those of a version without hashes, are fetched whole and compared with their SHA-256.

Nothing here is needed: what is removed is fetched again. ORLOG_CACHE limits how much is kept (`20G` by default, `0`
for as little as can be); the shards that were opened longest ago go first. Processes share it without locks.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from orlog.base.files import make_folder, replace_file, sole_access, storage_errors
from orlog.datasets.download.http import Failure, Patience, opened
from orlog.datasets.download.sources import ForeignFileSource, find_source, newest_at_url
from orlog.datasets.download.transfer import Mirror, ask
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import (
    LEFT_BEHIND,
    OPENED_NOW,
    Candidate,
    GarbageReport,
    collect,
    erase,
    remove_in_one_step,
    remove_unless_busy,
)
from orlog.datasets.home.records import Source
from orlog.datasets.home.registries import read_registries
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.chunk_hashes import (
    CHUNKS_FILE,
    HASH_BYTES,
    SHARDS_FILE,
    Layout,
    hash_of,
    is_kept_whole,
    lacks_chunk_hashes,
    metadata_objects,
)
from orlog.datasets.store.objects import check_data, mismatch
from orlog.datasets.store.shards import Shard, check_bytes
from orlog.errors import IntegrityError, NotFoundError, OrlogError, SchemaError, TransferError
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, StoredObject, read_manifest
from orlog.manifests.names import DatasetName, bytes_of, is_url, parse_name

Key = TypeVar("Key")
Check: TypeAlias = Callable[[bytes], None]
Coming: TypeAlias = "concurrent.futures.Future[None]"
"""A request for some chunks, sent or waiting to be."""

AT_ONCE = 16
"""Requests that are on their way at once."""
WHOLE_BYTES = 2**17
"""Shards of at most this are fetched whole: their index and their chunks in one request."""
PIECE_BYTES = 2**21
"""Most bytes of a request for several neighboring chunks, so that a long range comes by several at once."""
LIMIT, DEFAULT_LIMIT = "ORLOG_CACHE", "20G"
_BLOCK = 512  # bytes, in which the system counts what a file takes
_SHARE_BETWEEN_LOOKS = 0.02  # of the limit: what is written before the folder is looked at again
_LEFT = 0.9  # of the limit, once something is removed
_TRIES = 100  # to make a file in a folder that is being removed
_SOURCE_FILE = ".source"
_FOLDER = re.compile(r"([0-9a-f]{64})|\.([0-9a-f]{64})\.deleted")
_lock, _bringing = threading.Lock(), threading.Lock()
_written: dict[int, int] = {}  # since the folder was last looked at, by process


def open_in_place(
    name: str | DatasetName | Source,
    mirrors: Sequence[str] = (),
    *,
    whole_files: bool = False,
    patience: Patience = Patience(),
) -> Dataset:
    """Return a version that is read where it is: each chunk is fetched when it is needed, and checked.

    The manifest, its signature where the registry has keys, and all metadata are fetched and checked first. `name`
    is one that a registry offers; or the URL of a version, or of a dataset in a registry, whose newest version is
    taken; or where a version is. `mirrors` are other places with the same files. With `whole_files`, a version
    without hashes of its chunks is opened too, whose files are then fetched whole.

    Raises SchemaError for what cannot be read in place, and says what to run.
    """
    if isinstance(name, Source):
        source: Source | ForeignFileSource = name
    elif isinstance(name, str) and is_url(name):
        source = newest_at_url(name, mirrors, patience=patience)
    else:
        source = find_source(parse_name(name) if isinstance(name, str) else name, mirrors, patience=patience)
    if isinstance(source, ForeignFileSource):
        raise SchemaError(
            f"{source.name}@{source.version} is made of third-party files, which are imported whole; run: "
            f"orlog download {source.name}"
        )
    manifest = source.manifest
    # A query may be a secret, which is kept in no file and shown to nobody.
    address = source.mirrors[-1].partition("?")[0]
    named = f"{manifest.name}@{manifest.version}"
    download = f"run: orlog download {manifest.name if source.registry else address}"
    if manifest.container != "zarr":
        raise SchemaError(
            f"{named}: its container is {manifest.container}, a file that is downloaded whole; {download}, or "
            "publish it in the container zarr (orlog save)."
        )
    allowed = any(registry.whole_files for registry in read_registries() if registry.name == source.registry)
    if lacks_chunk_hashes(manifest) and not (whole_files or allowed):
        raise SchemaError(
            f"{named}: it has no hashes of its chunks, so no part of a file can be checked alone; {download}, or let "
            "its files be fetched whole (whole_files=True, orlog registry add --in-place --whole-files)."
        )
    folder = in_place_folder() / manifest.digest.partition(":")[2]
    with storage_errors(folder):
        make_folder(folder.parent)
        clear_way(folder.parent, f".{folder.name}.lock")
    elsewhere = Elsewhere(source.mirrors, patience, folder, {item.path: item for item in manifest.objects})
    with sole_access(folder):
        elsewhere.bring_metadata(manifest, source.registry or address)
    with contextlib.suppress(NotFoundError, FileNotFoundError):
        return Dataset(folder, manifest, elsewhere)
    with sole_access(folder):  # a collection removed it in between, which it cannot now
        elsewhere.bring_metadata(manifest, source.registry or address)
        return Dataset(folder, manifest, elsewhere)


# --- what is kept, and its limit


class Kept(NamedTuple):
    """What is kept of one version: its bytes on the disk, and when a shard was last opened (seconds since 1970)."""

    folder: Path
    manifest: Manifest
    size_bytes: int
    used: float


def in_place_folder() -> Path:
    """Return the folder of all versions that are read in place; it need not exist."""
    return datasets_folder().parent / "in-place"


def limit_bytes() -> int:
    """Return how much is kept at most."""
    text = os.environ.get(LIMIT, "") or DEFAULT_LIMIT
    try:
        return bytes_of(text)
    except ValueError:
        raise ValueError(f"{LIMIT} must be a size such as 500M or 20G, found {text!r:.40}.") from None


def kept_versions() -> list[Kept]:
    """Return what is kept of each version, the last used first."""
    kept = []
    for folder in _folders():
        with contextlib.suppress(OrlogError, OSError):
            kept.append(Kept(folder, read_manifest(folder / MANIFEST_FILE), *_size_and_use(folder)))
    return sorted(kept, key=lambda version: -version.used)


def address_of(folder: Path) -> str:
    """Return the URL of a version that was opened by that alone; empty for one that a registry offers by its name."""
    text = _read_bytes(folder / _SOURCE_FILE).decode("utf-8", "replace")
    return text if is_url(text) else ""


def make_room(size_bytes: int, *, at_once: bool = False) -> int:
    """Note that so many bytes more are kept, remove what is above the limit, and return how much that was.

    The folder is looked at now and then; `at_once` looks now, and removes all shards, as on a full disk.
    """
    limit = 0 if at_once else limit_bytes()
    process = os.getpid()
    with _lock:
        known = _written.get(process)
        _written[process] = (known or 0) + size_bytes
        if not at_once and known is not None and known + size_bytes < limit * _SHARE_BETWEEN_LOOKS:
            return 0
        _written[process] = 0
        files = list(_files(in_place_folder()))
        total = sum(status.st_blocks * _BLOCK for _, status in files)
        shards = [(status.st_mtime, path, status) for path, status in files if path.name.startswith("c.")]
        freed = 0
        for _, path, status in sorted(shards) if total > limit else ():
            if total - freed <= limit * _LEFT:
                break
            with contextlib.suppress(OSError):  # another process removes too
                path.unlink()
                freed += status.st_blocks * _BLOCK
        return freed


def collect_in_place(
    *, unused_days: int | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove what is kept of versions that are read in place, and report it.

    What killed processes left goes, what is kept of registries that were removed, and what is above ORLOG_CACHE; the
    limits are those of `collect`. Processes that read a version go on, and fetch what they miss.
    """
    known = {"", *(registry.name for registry in read_registries())}
    whole = {version.folder for version in kept_versions()}
    candidates, total = [], 0
    for folder in _folders():
        if _FOLDER.fullmatch(folder.name):
            size, used = _size_and_use(folder)
            source = _read_bytes(folder / _SOURCE_FILE).decode("utf-8", "replace")
            total += size
            why = "" if source in known or is_url(source) else f"its registry {source} was removed"
            candidates.append(
                Candidate(
                    path=folder,
                    age=max(0.0, time.time() - used),
                    remove=functools.partial(_remove, folder, dry_run),
                    free=functools.partial(int, size),
                    why=why if folder in whole else LEFT_BEHIND,
                )
            )
    limit = limit_bytes() if max_bytes is None else min(limit_bytes(), max_bytes)
    return collect(candidates, total, unused_days, limit)


def _remove(path: Path, dry_run: bool, seconds: float) -> str:
    """Remove a folder in one step, unless it was used within so many seconds; return why it stays, or nothing."""
    digest, leftover = _FOLDER.fullmatch(path.name).groups()  # type: ignore[union-attr]
    folder = path.with_name(digest or leftover)

    def is_due(place: Path) -> bool:
        return seconds == 0 or time.time() - _size_and_use(place)[1] >= seconds

    def attempt() -> str:
        if leftover:
            erase(path)
            return ""
        gone = remove_in_one_step(path, path.with_name(f".{path.name}.deleted"), is_due=is_due)
        return "" if gone else OPENED_NOW

    if dry_run:
        return "" if is_due(path) else OPENED_NOW
    clear_way(folder.parent, f".{folder.name}.lock")
    return remove_unless_busy(folder, attempt)


def _folders() -> list[Path]:
    root = in_place_folder()
    return sorted(root.iterdir()) if root.is_dir() else []


def _size_and_use(folder: Path) -> tuple[int, float]:
    states = [status for _, status in _files(folder)]
    return sum(state.st_blocks * _BLOCK for state in states), max((state.st_mtime for state in states), default=0.0)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                yield path, path.lstat()


def clear_way(folder: Path, path: str) -> None:
    """Remove what is in the way of a file: links, folders for files, files for folders, files that cannot be opened."""
    *above, name = path.split("/")
    with contextlib.suppress(FileNotFoundError):
        for part in above:
            folder /= part
            if not stat.S_ISDIR(folder.lstat().st_mode):
                erase(folder)
        file = folder / name
        if not stat.S_ISREG(file.lstat().st_mode) or not os.access(file, os.R_OK | os.W_OK):
            erase(file)


# --- a version that lies elsewhere


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """What is known of a version that is read in place; it can be pickled, and used in threads.

    Attributes:
        mirrors: URLs of the version's folder, in the order in which they are tried.
        patience: How long each mirror is tried.
        folder: Folder of this machine that holds its manifest and metadata, and keeps what is read.
        objects: Its objects, by path.
        layouts: Where the hashes of each shard are; empty if it has none. Filled when its columns are known.
    """

    mirrors: tuple[str, ...]
    patience: Patience
    folder: Path
    objects: Mapping[str, StoredObject]
    layouts: dict[str, Layout] = dataclasses.field(default_factory=dict)
    _whole: dict[str, bytes] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __reduce__(self) -> tuple[Callable[..., Elsewhere], tuple[object, ...]]:
        """On another machine, what is read is kept in its own home."""
        return _arrived, (self.mirrors, self.patience, self.folder.name, self.objects, self.layouts)

    def get(self, path: str, start: int, stop: int, check: Check) -> bytes:
        """Return the bytes `start` to `stop - 1` of an object, once they pass a check."""

        def attempt(mirror: Mirror) -> bytes:
            data = _read_range(mirror.url_of(path), start, stop, self.objects[path].size_bytes, self.patience)
            check(data)
            mirror.moved_at = time.monotonic()
            return data

        mirrors = _mirrors(os.getpid(), self.mirrors)
        try:
            return ask(mirrors, path, attempt, self.patience, what=f"{path}, bytes {start} to {stop - 1}")
        except TransferError as error:
            damage = error.__cause__
            if not isinstance(damage, IntegrityError):
                raise
            raise IntegrityError(f"{error}", file=path, expected=damage.expected, found=damage.found) from damage

    def bring_metadata(self, manifest: Manifest, source: str) -> None:
        """Fetch what the folder lacks of the metadata, or has damaged; keep the name of the registry or the URL."""
        texts = {_SOURCE_FILE: source.encode(), MANIFEST_FILE: manifest.to_json().encode()}
        paths = [item.path for item in metadata_objects(manifest)]
        with storage_errors(self.folder):
            make_folder(self.folder)
            list(_requests(os.getpid(), "indexes").map(self._bring_whole, paths))
            for name, text in texts.items():
                clear_way(self.folder, name)
                if _read_bytes(self.folder / name) != text:
                    replace_file(self.folder / name, text)
            os.utime(self.folder / MANIFEST_FILE)  # when it was last used

    def _bring_whole(self, path: str) -> bytes:
        """Return an object that is kept whole; what is missing here or damaged is fetched."""
        check = functools.partial(check_data, self.objects[path])
        with storage_errors(self.folder):
            clear_way(self.folder, path)
            data = _read_bytes(self.folder / path)
            if not _passes(check, data):
                data = self.get(path, 0, self.objects[path].size_bytes, check)
                with contextlib.suppress(FileNotFoundError, FileExistsError):  # removed in between
                    make_folder((self.folder / path).parent)
                    replace_file(self.folder / path, data, alone=False)
        return data

    def _read_whole(self, path: str) -> bytes:
        if path not in self._whole:
            with _bringing:
                self._whole[path] = self._bring_whole(path)
        return self._whole[path]

    def shard(self, path: str, chunks: int, name: str) -> Shard:
        """Return the shard at `path` in the version, with room for so many chunks, and bring its index."""
        return RemoteShard(self, path, chunks, name=name)

    def check(self, path: str, room: int, chunks: Iterable[int]) -> None:
        """Fetch some chunks of a shard with room for so many, or all of it where it is fetched whole, and check them."""
        if self.is_whole(path):
            item = self.objects[path]
            self.get(path, 0, item.size_bytes, functools.partial(check_data, item))
            return
        shard = RemoteShard(self, path, room, name=path)
        for piece in shard.pieces(chunks):
            shard.fetch(*piece)

    def is_whole(self, path: str) -> bool:
        """Return whether a shard is fetched whole: it is small, or its chunks have no hashes."""
        return self.objects[path].size_bytes <= WHOLE_BYTES or path not in self.layouts

    def hashes_ahead(self, path: str) -> concurrent.futures.Future[bytes] | None:
        """Ask for the hashes of a shard's chunks, unchecked, while its index comes; None if they are here."""
        if is_kept_whole(self.objects[CHUNKS_FILE]):
            return None
        pool = _requests(os.getpid(), "hashes")  # others may all wait for it
        return pool.submit(self.get, CHUNKS_FILE, *self.layouts[path].of_hashes, lambda _data: None)

    def chunk_hashes(self, path: str, index: bytes, ahead: concurrent.futures.Future[bytes] | None) -> bytes:
        """Return the hashes of a shard's chunks, which were checked together with its index."""
        layout = self.layouts[path]
        place = layout.shard * HASH_BYTES
        expected = self._read_whole(SHARDS_FILE)[place : place + HASH_BYTES]

        def check(hashes: bytes) -> None:
            if (actual := hash_of(index + hashes)) != expected:
                where = f"{path}, index of chunks: it and the hashes of its chunks are not those of the manifest"
                raise mismatch(where, path, expected.hex(), actual.hex())

        start, stop = layout.of_hashes
        if ahead is None:
            hashes = self._read_whole(CHUNKS_FILE)[start:stop]
            check(hashes)
            return hashes
        with contextlib.suppress(IntegrityError, TransferError):  # then each place is asked
            hashes = ahead.result()
            check(hashes)
            return hashes
        return self.get(CHUNKS_FILE, start, stop, check)

    def bring(
        self, opened: Callable[[Key], Shard], wanted: Mapping[Key, Iterable[int]], ahead: list[Coming] | None = None
    ) -> None:
        """Fetch what is not here of some chunks, by shard: all indexes at once, then all chunks.

        With `ahead`, chunks are not waited for: what fetches them is added to it. Whoever needs them waits.
        """
        pool = _requests(os.getpid(), "chunks")
        opening = _requests(os.getpid(), "indexes").map if len(wanted) > 1 else map
        own: list[Coming] = []
        others: list[Coming] = []
        for shard, chunks in zip(list(opening(opened, wanted)), wanted.values(), strict=True):
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


def _arrived(mirrors: tuple[str, ...], patience: Patience, name: str, *rest: Any) -> Elsewhere:
    """Return a version that is read in place, in a process that may be on another machine."""
    folder = in_place_folder() / name
    with storage_errors(folder):
        make_folder(folder)
    return Elsewhere(mirrors, patience, folder, *rest)


def _read_range(url: str, start: int, stop: int, size: int, patience: Patience) -> bytes:
    """Return a range of a file of a known size; raises Failure if the server sends another one."""
    blocks, left = [], stop - start
    with opened(url, patience, start, stop) as stream:
        if stream.total not in (None, size):
            raise Failure(f"has {stream.total} bytes, expected {size}", "final")
        if stream.is_whole and (start, stop) != (0, size):
            raise Failure("sends whole files, and no ranges of them", "final")
        while left > 0 and (block := stream.read(left)):
            blocks.append(block)
            left -= len(block)
    if left:
        raise Failure(f"sent {stop - start - left} of {stop - start} bytes from {start} on")
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


@functools.lru_cache(64)
def _mirrors(_process: int, urls: tuple[str, ...]) -> tuple[Mirror, ...]:
    """Return what is known of mirrors, which all threads of a process share; a forked one asks anew."""
    return tuple(map(Mirror, urls))


def _read_bytes(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


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
        self._check_whole = functools.partial(check_data, self._item)
        super().__init__(elsewhere.folder / path, chunks, self._item.size_bytes, name=name)

    def _open(self, path: Path, size_bytes: int) -> int:
        """Open the sparse file; it and its folder are made, also while another process removes them."""
        with storage_errors(path):
            file = self._make(path)
            if os.fstat(file).st_size != size_bytes:
                os.ftruncate(file, size_bytes)
            os.utime(file)  # when it was last used
        return file

    def _make(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                clear_way(self._elsewhere.folder, self._path)
                make_folder(path.parent)
                return os.open(path, flags, 0o600)
        return os.open(path, flags, 0o600)

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
        self, chunks: Iterable[int], pool: concurrent.futures.Executor, own: list[Coming], others: list[Coming]
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
        """Fetch chunks `first` to `last - 1`, which are neighbors, check each of them, and keep them."""
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
        if (actual := hash_of(data)) != expected:
            where = f"{self._path}, chunk {chunk}"
            check_bytes(bytes(data), where, self._path)
            raise mismatch(
                f"{where}: other bytes than the manifest's: blake3", self._path, expected.hex(), actual.hex()
            )

    def _get(self, start: int, stop: int, check: Check) -> None:
        """Fetch bytes and write them where they lie; on a full disk, what else is kept here goes first."""
        data = self._elsewhere.get(self._path, start, stop, check)
        make_room(len(data))
        with storage_errors(self._elsewhere.folder / self._path):
            try:
                self._write(data, start)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not make_room(0, at_once=True):
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


def _passes(check: Check, data: bytes) -> bool:
    try:
        check(data)
    except IntegrityError:
        return False
    return True
