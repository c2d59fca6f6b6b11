"""Where a run computes: finding the device, putting its data there, and keeping the memory that it frees.

A generator on a GPU draws other numbers than one on the CPU with the same seed, so a run there has
other initial weights and other noise. Its batches are the same.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from orlog.loaders.arrays import Arrays
from orlog.loaders.memory import measure_memory

_SHARE = 0.5  # of a GPU's free memory that data may take; networks and other runs need some too
_MMAP_THRESHOLD, _TOP_PAD, _TRIM_THRESHOLD = -3, -2, -1  # names of glibc's `mallopt`
_HUGE_PAGES = 14  # name of `madvise`
_MIB = 2**20


def find_device(name: str) -> str:
    """Return the device that a name means: `cpu`, or `cuda:0`.

    Names are `cpu`, `cuda` for the current GPU, `cuda:1`, and `auto` for a GPU if there is one.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return "cpu"
    if name in ("cuda", "auto") and count:
        return f"cuda:{torch.cuda.current_device()}"
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise ValueError(f"device must be cpu, cuda, cuda:NUMBER or auto, found {name!r}.")
    if colon and int(number) < count:
        return f"cuda:{int(number)}"
    if torch.version.cuda is None:
        found = f"PyTorch {torch.__version__} was installed without CUDA"
    else:
        found = f"PyTorch finds {', '.join(f'cuda:{one}' for one in range(count)) or 'no GPU'}"
    raise ValueError(f"there is no device {name}: {found}; choose another, such as cpu.")


def device_versions(device: str) -> dict[str, str]:
    """Return what a record holds of a GPU besides its name: its model, and the version of CUDA."""
    if torch.device(device).type != "cuda":
        return {}
    return {"cuda": str(torch.version.cuda), "gpu": torch.cuda.get_device_name(device)}


def put_arrays(packed: Arrays, device: str) -> Arrays:
    """Return arrays on a device; where they take more than half of its memory, as they are."""
    if torch.device(device).type == "cpu":
        return packed
    needed = sum(one.nbytes for one in (packed.rows, *packed.others.values()))
    free = measure_memory(gpus=True).gpu_bytes.get(device, 0)
    return packed.to(device) if needed <= _SHARE * free else packed


def batches_on(batches: Iterable[Any], packed: Arrays, device: str) -> Iterable[Any]:
    """Return batches on a device; those of arrays that lie elsewhere are moved there."""
    if packed.rows.device.type == torch.device(device).type:
        return batches
    return moved(batches, device)


def moved(batches: Iterable[Any], device: str) -> Iterator[Any]:
    """Yield batches on a device."""
    for batch in batches:
        # From page-locked memory, so that the copy waits for nothing.
        yield batch.pin_memory().to(device, non_blocking=True)


def keep_freed_memory() -> None:
    """Let this process keep up to 512 MiB of freed memory, half of it in huge pages, with glibc.

    Activations have hundreds of KiB and more. By its defaults glibc may give such memory back to
    the system when it is freed, and the next update then waits for the system to clear it again.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):  # other C libraries have none
        return
    library.mallopt(_MMAP_THRESHOLD, 32 * _MIB)
    library.mallopt(_TRIM_THRESHOLD, 512 * _MIB)
    library.mallopt(_TOP_PAD, 256 * _MIB)
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    # More than is free, so that the heap grows by it and the pad, which is only reserved until used.
    first = library.malloc(ctypes.c_size_t(16 * _MIB))
    start, end = first + -first % (2 * _MIB), library.sbrk(ctypes.c_ssize_t(0))
    library.free(ctypes.c_void_p(first))
    if start < end:
        # A core finds data in fewer, larger pages faster. Systems without them ignore it.
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _HUGE_PAGES)
