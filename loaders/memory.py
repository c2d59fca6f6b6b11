"""Measures how much memory a process can still take: RAM, control group limits, and GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from orlog.loaders.tensors import torch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Free memory in bytes.

    Attributes:
        ram_bytes: Memory available without swapping; cached files count as free.
        gpu_bytes: Free memory of each GPU that PyTorch can use, by name: `cuda:0`.
    """

    ram_bytes: int
    gpu_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)


def measure_memory(*, gpus: bool = False) -> Memory:
    """Return the memory that is free now. `gpus=True` starts CUDA in this process."""
    count = torch.cuda.device_count() if gpus and torch.cuda.is_available() else 0
    free = {f"cuda:{number}": int(torch.cuda.mem_get_info(number)[0]) for number in range(count)}
    return Memory(ram_bytes=available_memory(), gpu_bytes=free)


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that can still be taken.

    This is the machine's free memory, or what the tightest control group of this process leaves
    (its container, SLURM job or service).
    """
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # no such file, as on macOS
    with contextlib.suppress(OSError, ValueError, LookupError):
        free = 1024 * _number(root / "proc/meminfo", "MemAvailable:")
    for folder, limit, used, all_below in _limits(root):
        with contextlib.suppress(OSError, ValueError, LookupError):  # "max", or no limit
            left = int((folder / limit).read_text("ascii")) - int((folder / used).read_text("ascii"))
            # The system reclaims pages of files when memory is short, but not those of tmpfs.
            for kind in ("active_file", "inactive_file"):
                left += _number(folder / "memory.stat", f"{all_below}{kind}")
            free = min(free, left)
    return max(0, free)


def _limits(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the folder and file names of each control group that may limit this process.

    A container often sees its own group as the root, although the listed path does not exist there.
    """
    own, cgroup = {"": PurePosixPath("/"), "memory": PurePosixPath("/")}, root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            own.update({controller: PurePosixPath("/", path) for controller in controllers.split(",")})
    for group in (own[""], *own[""].parents):
        yield cgroup / group.relative_to("/"), "memory.max", "memory.current", ""
    for group in (own["memory"], *own["memory"].parents):
        folder = cgroup / "memory" / group.relative_to("/")
        yield folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"


def _number(path: Path, name: str) -> int:
    """Return the number after a name in a file of lines `name number ..`."""
    for line in path.read_text("ascii").splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    raise LookupError(f"{path} has no line {name}.")
