"""Keeps the memory that one update frees for the next one."""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD, _TOP_PAD, _TRIM_THRESHOLD = -3, -2, -1  # names of glibc's `mallopt`
_HUGE_PAGES = 14  # name of `madvise`
_MIB = 2**20


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
