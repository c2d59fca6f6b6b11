"""Real disks in memory, to be filled; `mount` in conftest.py gives them to tests."""

import contextlib
import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Mount = Callable[[str], Path]


@contextlib.contextmanager
def mounted_in(folder):
    """Yield a function that mounts a real disk in memory, with options such as `size=2m`."""
    mounted = []

    def mount_disk(options):
        disk = folder / f"disk{len(mounted)}"
        disk.mkdir()
        try:
            change_mount(options, disk)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", "") or error).splitlines()[0]
            pytest.skip(f"no disk in memory can be mounted here: {reason}")
        mounted.append(disk)
        return disk

    try:
        yield mount_disk
    finally:
        for disk in mounted:
            subprocess.run(["umount", "-l", disk], check=True)


@contextlib.contextmanager
def files_limited_to(size):
    """Let no file of this process grow beyond a size, as on a full disk; bytecode, which Python keeps cut, is not written."""
    import resource

    limits, handler = (resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = kept
        signal.signal(signal.SIGXFSZ, handler)


def can_mount():
    """Return whether a process can have mounts of its own."""
    try:
        command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=100k tmpfs /mnt"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def change_mount(options, folder):
    """Mount a disk in memory, or change the one that is there with `remount,`."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def fill(disk, leave=0):
    """Take all room of a disk but some bytes; return the file that does."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(2**16)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 (anything else is the test's fault)
        file.truncate(max(0, file.tell() - leave))
    return filler
