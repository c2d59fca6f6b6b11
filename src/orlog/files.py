"""Writing files so that they last, and hashing them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from orlog.errors import OrlogError, StorageError

__all__ = [
    "absolute_path",
    "hash_file",
    "link_or_copy",
    "list_files",
    "little_endian_bytes",
    "put_in_place",
    "put_new",
    "sole_access",
    "storage_errors",
    "sync",
    "sync_all",
    "sync_folders",
    "too_many_files",
    "unfinished_folder",
    "write_durably",
]

BLOCK_BYTES = 2**18
SYNCS = 16


def little_endian_bytes(values: np.ndarray) -> memoryview:
    """Return the bytes of an array, row by row, little-endian; no copy where it is so already."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def absolute_path(path: str | Path) -> Path:
    """Return a path from the root on, as people should see it: without `~` and `..`."""
    whole = Path(path).expanduser().absolute()
    return whole.resolve() if ".." in whole.parts else whole  # a link may lie before the `..`


def list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path inside the folder, file) of everything in it but folders, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix(), path


def hash_file(path: Path, progress: Callable[[int], None] = lambda _: None) -> str:
    """Return the hex SHA-256 of a file, read into one small buffer that stays in the cache."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = memoryview(bytearray(min(BLOCK_BYTES, size + 1)))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            progress(count)
    return digest.hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk; its folder still needs `sync`."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """Make files and folders durable, side by side: the disk then waits once for many of them."""
    files = list(paths)
    with concurrent.futures.ThreadPoolExecutor(SYNCS) as pool:
        for _ in pool.map(_sync_each, (files[start::SYNCS] for start in range(SYNCS))):
            pass


def _sync_each(paths: Iterable[Path]) -> None:
    for path in paths:
        sync(path)


def sync_folders(folder: Path) -> None:
    """Make the entries of a folder and of all folders below it durable."""
    sync_all([Path(below) for below, _, _ in os.walk(folder)])


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a durable copy where links are not possible.

    A copy appears whole or not at all.
    """
    try:
        _link(source, target)
    except OSError:
        unfinished = target.with_name(f".{target.name}.copy")
        try:
            shutil.copyfile(source, unfinished)
            sync(unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)


def too_many_files(where: object, error: OSError) -> StorageError | None:
    """Return what to raise if an error says that too many files are open; None if it does not."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    return StorageError(
        f"{where}: too many files are open; close some, or raise the limit: ulimit -n 4096",
        errno=error.errno,
    )


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a StorageError that names the folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OrlogError):
            raise
        raise StorageError(
            f"{folder}: cannot write: {error.strerror or error}; free some space or set ORLOG_HOME "
            "to another disk, then run the same command again",
            errno=error.errno,
        ) from error


@contextlib.contextmanager
def sole_access(destination: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the only right to write `destination`; wait for it after one call of `on_wait`.

    Raises:
        StorageError: the folder around it cannot be written.
    """
    with storage_errors(destination.parent):
        destination.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(destination.with_name(f".{destination.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_wait()
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def unfinished_folder(
    destination: Path, *, on_wait: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Hold the only right to write `destination`, and give an empty folder beside it.

    Waits while another process writes the same destination, after one call of `on_wait`. The
    folder is removed in the end, whatever happens, unless `put_in_place` has renamed it.

    Raises:
        StorageError: the folder cannot be made.
    """
    with sole_access(destination, on_wait=on_wait):
        folder = destination.with_name(f".{destination.name}.unfinished")
        old = _replaced(destination)
        try:
            with storage_errors(folder):
                if old.exists() and not destination.exists():
                    old.rename(destination)
                shutil.rmtree(old, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def put_in_place(folder: Path, destination: Path) -> None:
    """Put a finished folder in its place, in one step; what was there before is removed.

    Call it inside `unfinished_folder` only. Where the system cannot swap two folders in one step
    (all but Linux), what was there is first moved aside, and a process that is killed right then
    leaves it there for the next writer to put back.

    Raises:
        StorageError: the folder cannot be renamed.
    """
    with storage_errors(destination):
        if destination.exists() and not _exchange(folder, destination):
            destination.rename(_replaced(destination))
            folder.rename(destination)
        elif not destination.exists():
            folder.rename(destination)
        sync(destination.parent)
    shutil.rmtree(_replaced(destination), ignore_errors=True)


def put_new(folder: Path, destination: Path) -> None:
    """Put a finished folder in a place where nothing is, in one step.

    Raises:
        StorageError: something is there, or the folder cannot be renamed.
    """
    with storage_errors(destination):
        folder.rename(destination)
        sync(destination.parent)


def _replaced(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.replaced")


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step (renameat2); return whether the system could."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    code = library.renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange)
    return bool(code == 0)
