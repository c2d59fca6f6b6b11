"""Durable writes, locks, hashes, and folders that are put in place in one step."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from orlog.errors import OrlogError, StorageError, first_line

_fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # Windows, where the files of a map cannot be removed anyway
    _fcntl = None

BLOCK_BYTES = 2**18
SYNCS = 16
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NUMBER = re.compile(r"errno\W+(\d+)")  # in what HDF5 and Arrow say of an error


def home_folder() -> Path:
    """Return ORLOG_HOME, which is `~/.cache/orlog` unless it is set; the folder is not created."""
    home = os.environ.get("ORLOG_HOME")
    if home:
        return Path(home).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "orlog"


def absolute_path(path: str | Path) -> Path:
    """Return an absolute path as people should see it: without `~` and `..`."""
    whole = Path(path).expanduser().absolute()
    return whole.resolve() if ".." in whole.parts else whole  # `..` may follow a link


def list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path inside the folder, file) of everything in it except folders, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix(), path


def hash_file(path: Path, progress: Callable[[int], None] = lambda _: None) -> str:
    """Return the hex SHA-256 of a file, read through one small buffer that fits the CPU's cache."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = memoryview(bytearray(min(BLOCK_BYTES, size + 1)))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            progress(count)
    return digest.hexdigest()


def hash_of_sums(sums: Mapping[str, str]) -> str:
    """Return the SHA-256 of what `sha256sum` prints about files, in the order of their names.

    Names are paths in their folder, with slashes.
    """
    ordered = sorted(sums, key=lambda path: path.split("/"))
    return hashlib.sha256("".join(f"{sums[path]}  {path}\n" for path in ordered).encode()).hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk; its folder still needs `sync`."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, *, alone: bool = True) -> None:
    """Replace a file in one step, durably; if that fails, the old file stays.

    If it is not `alone`, as under a lock, the last of several processes wins.
    """
    replace_files({path: data}, mark="" if alone else f".{os.getpid()}")


def replace_files(files: Mapping[Path, bytes], mark: str = "") -> None:
    """Replace files of one folder, each in one step, after all of them were written beside the old ones."""
    unfinished = {path: path.with_name(f".{path.name}{mark}.unfinished") for path in files}
    try:
        for path, data in files.items():
            write_durably(unfinished[path], data)
        for path, new in unfinished.items():
            new.replace(path)
    finally:
        for new in unfinished.values():
            new.unlink(missing_ok=True)
    sync(next(iter(files)).parent)


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those around it that are missing, so that a power cut leaves none out.

    The entry of a new folder is made durable in the folder around it; one that is there costs a look.

    Raises FileExistsError if a file is in the way.
    """
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        sync(parent.parent)


def sync_all(paths: Iterable[Path]) -> None:
    """Make files and folders durable in parallel, so that one wait for the disk covers many."""
    with concurrent.futures.ThreadPoolExecutor(SYNCS) as pool:
        list(pool.map(sync, paths))


def sync_folders(folder: Path) -> None:
    """Make the entries of a folder and of all folders below it durable."""
    sync_all([Path(below) for below, _, _ in os.walk(folder)])


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it durably where links are not possible.

    A copy appears whole or not at all.
    """
    make_folder(target.parent)
    try:
        os.link(source, target)
    except OSError:
        unfinished = target.with_name(f".{target.name}.copy")
        try:
            shutil.copyfile(source, unfinished)
            sync(unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)


def refuse_too_many_files(where: object, error: OSError) -> None:
    """Raise StorageError if an error says that too many files are open."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise StorageError(
            f"{where}: too many files are open; close some, or raise the limit: ulimit -n 4096", errno=error.errno
        ) from error


class BusyError(StorageError):
    """Another process holds the lock of a path."""


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a StorageError that names the path and what helps.

    A library may raise another error in place of that of a full disk, such as one about a closed file.
    """
    try:
        yield
    except OrlogError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        if cause is None or (cause is not error and cause.errno not in NO_ROOM):
            raise
        raise _storage_error(path, cause) from error


def _storage_error(path: Path, error: OSError) -> StorageError:
    """Return the error that says why a path cannot be written, and what to do about it."""
    written = _NUMBER.search(str(error))
    number = error.errno or int(written[1] if written else 0)
    if number in errno.errorcode:
        reason = os.strerror(number)
    else:
        reason = error.strerror or first_line(error)
    if number in (*NO_ROOM, errno.EACCES, errno.EPERM, errno.EROFS):
        first = "free some space" if number in NO_ROOM else "change who may write there"
        in_home = path.absolute().is_relative_to(home_folder())
        other = "set ORLOG_HOME to another disk" if in_home else "choose a folder on another disk"
        reason += f"; {first} or {other}, then run the same command again"
    elif error.filename is not None and str(error.filename) != str(path):
        reason += f": {error.filename}"
    return StorageError(f"{path}: cannot write: {reason}.", errno=number or None)


def take_lock(path: Path, *, on_wait: Callable[[], None] = lambda: None, longest_wait: float | None = None) -> FileLock:
    """Lock a file or folder for writing and return the lock; makes the folder around it.

    The lock is a file `.NAME.lock` next to the path. It is never removed, since that would race. `on_wait` is
    called once before waiting for another process: for as long as it takes, or so many seconds, then a
    BusyError.
    """
    make_folder(path.parent)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    for wait in (0, -1 if longest_wait is None else longest_wait):
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            if wait == 0 and longest_wait != 0:
                on_wait()
        except OSError as error:
            # What the disks of some clusters answer, which cannot lock files.
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP):
                raise
            _warn_of_no_locks(path.parent, error.strerror)
            return lock
        else:
            return lock
    raise BusyError(_BUSY.format(path))


_BUSY = "{} is being written by another process; wait for it."


@functools.cache
def _warn_of_no_locks(path: object, reason: str) -> None:
    warnings.warn(
        f"the disk of {path} cannot lock files ({reason}), so nothing keeps two processes apart: "
        "let one at a time write there.",
        stacklevel=4,
    )


@contextlib.contextmanager
def sole_access(
    path: Path, *, on_wait: Callable[[], None] = lambda: None, longest_wait: float | None = None
) -> Iterator[None]:
    """Hold the lock of a file or folder, as `take_lock` takes it.

    Raises BusyError if another process still holds it after `longest_wait` seconds; StorageError if the
    folder around it cannot be written.
    """
    with storage_errors(path.parent):
        lock = take_lock(path, on_wait=on_wait, longest_wait=longest_wait)
    try:
        yield
    finally:
        lock.release()


def lock_open_file(file: int | BinaryIO, *, shared: bool) -> bool:
    """Lock an open file until it is closed; return False if another process's lock prevents it.

    A shared lock waits until nobody holds an exclusive one; an exclusive one does not wait. Where
    the system or the disk cannot lock files, nothing is locked and the result is True.
    """
    if _fcntl is None:
        return True
    try:
        _fcntl.flock(file, _fcntl.LOCK_SH if shared else _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        name = "the open file" if isinstance(file, int) else file.name
        _warn_of_no_locks(name, error.strerror)
    return True


@contextlib.contextmanager
def hold_folder(folder: Path, *, busy: str) -> Iterator[None]:
    """Hold the lock of a folder that exists, without a file for it; it ends with the process.

    Where the system or the disk cannot lock folders, nothing is locked.

    Raises BusyError if another process holds it, with the message `busy`; StorageError if the folder cannot
    be opened.
    """
    if _fcntl is None:
        yield
        return
    with storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_locked = lock_open_file(descriptor, shared=False)
        try:  # whoever held it may have moved or removed it
            is_there = os.path.samestat(os.fstat(descriptor), folder.stat())
        except FileNotFoundError:
            is_there = False
        if not (is_locked and is_there):
            raise BusyError(busy)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether another process, or this one, holds the lock of a folder (`hold_folder`)."""
    try:
        with hold_folder(folder, busy=""):
            return False
    except BusyError:
        return True


@contextlib.contextmanager
def unfinished_folder(destination: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Hold the lock of `destination`, and yield an empty folder next to it.

    Waits while another process writes the same destination, after one call of `on_wait`. The
    folder is always removed at the end, unless `put_in_place` has renamed it.

    Raises StorageError if the folder cannot be made.
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


@contextlib.contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """Yield an empty folder next to `destination` for `put_new`; an error leaves nothing, not even folders around it.

    What a killed process left there is removed first. The folder is its own lock, so that no file of one stays.

    Raises BusyError if another process writes the same destination; StorageError if the disk is full or cannot
    be written.
    """
    folder = destination.with_name(f".{destination.name}.unfinished")
    missing = [place for place in destination.parents if not place.exists()]
    with storage_errors(destination):
        try:
            make_folder(folder)
            with hold_folder(folder, busy=_BUSY.format(destination)):
                try:
                    for path in folder.iterdir():
                        if path.is_dir() and not path.is_symlink():
                            shutil.rmtree(path)
                        else:
                            path.unlink()
                    yield folder
                finally:
                    # Threads of a library may still write into it for a moment.
                    for wait in (0.0, 0.05, 0.2, 0.5) if folder.exists() else ():
                        time.sleep(wait)
                        shutil.rmtree(folder, ignore_errors=True)
        finally:
            with contextlib.suppress(OSError):  # the first that holds something stays
                for place in missing:
                    place.rmdir()


def put_in_place(folder: Path, destination: Path) -> None:
    """Put a finished folder in its place, in one step; the old folder is removed.

    Call it inside `unfinished_folder` only. Where the system cannot swap two folders in one step
    (all but Linux), the old one is first moved aside; if the process is killed right then, the
    next writer puts it back.

    Raises StorageError if the folder cannot be renamed.
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
    """Put a finished folder in its place, in one step, if nothing is there.

    Raises StorageError if something is there, or the folder cannot be renamed.
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
