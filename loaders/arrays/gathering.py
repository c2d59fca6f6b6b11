"""Rows of a matrix from random places, as one block: what every batch is made of.

    gather_rows(source, rows)  =  source.index_select(0, rows)

bit for bit. Where the compiled half (`_gather.c`) could be built when orlog was installed, rows are
asked for ahead of their copy, which takes about half the time; without it PyTorch does the work.
Rows of a mapped file that does not stay in memory are asked of the disk all at once.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

__all__ = ["expect_on_disk", "gather_rows", "is_compiled"]

# PyTorch spreads a large gather over its threads, the compiled one uses the caller's alone. From
# this many threads on PyTorch's is faster; below this many bytes it starts no other thread.
_MANY_THREADS = 4
_LARGE = 1 << 18
_VERSION = 2  # of `_gather.c`


def _load() -> Callable[..., int] | None:
    try:
        module = importlib.import_module("orlog.loaders.arrays._gather")
    except ImportError:  # installed where there was no compiler
        return None
    if getattr(module, "version", 1) != _VERSION:  # of an installation in place, since updated
        return None
    copy_rows: Callable[..., int] = module.copy_rows
    return copy_rows


_copy_rows = _load()
_on_disk: set[int] = set()  # addresses of maps whose pages mostly have to be read first


def is_compiled() -> bool:
    """Whether the compiled gather is there."""
    return _copy_rows is not None


def expect_on_disk(mapped: np.ndarray) -> None:
    """Let `gather_rows` ask the disk for all its rows before it copies the first of them.

    Several times faster where pages mostly have to be read, and slower where they are in memory.

    Args:
        mapped: A mapped file; views of it and tensors that share its memory are meant too.
    """
    address = mapped.ctypes.data
    _on_disk.add(address)
    weakref.finalize(mapped, _on_disk.discard, address)


def gather_rows(
    source: Shaped[Tensor, "rows ..."], rows: Int64[Tensor, " batch"]
) -> Shaped[Tensor, "batch ..."]:
    """Return a new tensor of some rows, in the order asked for.

    The rows of `source` may overlap, as those of `Arrays.windows` do. Other threads can run during the copy.

    Args:
        source: Two or more dimensions, on any device; the compiled gather takes those in main
            memory whose rows are contiguous.
        rows: Which rows, on the same device.

    Raises:
        IndexError: a row that is not there.
    """
    if _copy_rows is None or not _is_plain(source, rows):
        return source.index_select(0, rows)
    available, *shape = source.shape
    found = source.new_empty((rows.numel(), *shape))
    size = found.nbytes
    is_on_disk = bool(_on_disk) and source.untyped_storage().data_ptr() in _on_disk
    is_for_threads = size > _LARGE and torch.get_num_threads() >= _MANY_THREADS
    if not size or (is_for_threads and not is_on_disk):
        return source.index_select(0, rows)
    wrong = _copy_rows(
        source.data_ptr(),
        available,
        source.stride(0) * source.itemsize,
        size // rows.numel(),
        rows.data_ptr(),
        rows.numel(),
        found.data_ptr(),
        is_on_disk,
    )
    if wrong >= 0:
        raise IndexError(f"row {int(rows[wrong])} of {available}: there is no such row")
    return found


def _is_plain(source: Tensor, rows: Tensor) -> bool:
    """Whether both are in main memory, indices and the numbers of each row without gaps."""
    if not (
        source.is_cpu
        and rows.is_cpu
        and rows.dtype is torch.int64
        and rows.dim() == 1
        and rows.is_contiguous()
        and source.layout is torch.strided
    ) or (source.requires_grad or source.is_neg() or source.is_conj()):
        return False
    if source.dim() == 2:
        return source.stride(1) == 1
    return source.dim() > 2 and source[:1].is_contiguous()
