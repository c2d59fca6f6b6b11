"""Memory control groups of Linux: processes in one may take so much, pages of files included."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class Group:
    """A memory control group, of version 1 or 2 of Linux's control groups."""

    folder: Path
    is_first_version: bool

    def number(self, name: str) -> int:
        """Return the number in a file."""
        return int((self.folder / name).read_text("ascii"))

    def empty(self) -> None:
        """End the processes in it, all of them ours."""
        while processes := (self.folder / "cgroup.procs").read_text("ascii").split():
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(0.1)

    def peak_bytes(self) -> int:
        """Return the most that it has taken, pages of files among it."""
        return self.number("memory.max_usage_in_bytes" if self.is_first_version else "memory.peak")

    def times_full(self) -> int:
        """Return how often it was full and the kernel had to take pages back."""
        if self.is_first_version:
            return self.number("memory.failcnt")
        return number_behind(self.folder / "memory.events", "max")

    def anonymous_bytes(self) -> int:
        """Return the memory of its processes that is no file's."""
        name = "total_rss" if self.is_first_version else "anon"
        return number_behind(self.folder / "memory.stat", name)


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[tuple[Group | None, str]]:
    """Make a control group below our own, or say why none can be made; it is removed in the end."""
    group, why = None, "this system has no memory control groups"
    for parent, is_first_version in parent_groups():
        folder = parent / f"orlog-{os.getpid()}"
        limit = folder / ("memory.limit_in_bytes" if is_first_version else "memory.max")
        try:
            folder.mkdir()
            try:
                limit.write_text(str(limit_bytes), "ascii")
            except OSError:
                folder.rmdir()
                raise
        except OSError as error:
            why = f"no control group can be made: {error}"
            continue
        group, why = Group(folder, is_first_version), ""
        break
    try:
        yield group, why
    finally:
        if group is not None:
            group.empty()
            group.folder.rmdir()


def parent_groups() -> Iterator[tuple[Path, bool]]:
    """Yield where a group with a limit may be made, and whether it is of version 1."""
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield GROUPS / "memory" / path.lstrip("/"), True
        elif not controllers:
            # Version 2 has limits beside processes only: in a sibling of our own group.
            own = GROUPS / path.lstrip("/")
            yield from ((own, False), (own.parent, False))


def number_behind(path: Path, name: str) -> int:
    """Return the number of a line `name number`, or of `name: number kB` in bytes."""
    for line in path.read_text("ascii").splitlines():
        words = line.replace(":", " ").split()
        if words[0] == name:
            return int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
    raise LookupError(f"{path} has no line {name}")
