"""Gathers random rows of a matrix into one block, the core of every batch.

    gather_rows(source, rows)  =  source.index_select(0, rows)

bit for bit. If the compiled part (`_gather.c`) could be built when orlog was installed, it
prefetches rows before they are copied, which takes about half the time; without it PyTorch does the
work. Rows of a mapped file that does not stay in memory are requested from the disk all at once.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

# PyTorch spreads a large gather over its threads; the compiled one uses only the caller's. From
# this many threads on, PyTorch's is faster; below this many bytes it does not use other threads.
_MANY_THREADS = 4
_LARGE = 1 << 18
_VERSION = 2  # of `_gather.c`


def _load() -> Callable[..., int] | None:
    try:
        module = importlib.import_module("orlog.loaders.arrays._gather")
    except ImportError:  # installed where there was no compiler
        return None
    if getattr(module, "version", 1) != _VERSION:  # built by an older editable installation
        return None
    copy_rows: Callable[..., int] = module.copy_rows
    return copy_rows


_copy_rows = _load()
_on_disk: set[int] = set()  # addresses of maps whose pages mostly are on disk


def is_compiled() -> bool:
    """Whether the compiled gather is there."""
    return _copy_rows is not None


def expect_on_disk(mapped: np.ndarray) -> None:
    """Make `gather_rows` request all rows of a mapped file from the disk before it copies any.

    Several times faster if pages mostly have to be read, and slower if they are in memory. Views of the file
    and tensors that share its memory are included.
    """
    address = mapped.ctypes.data
    _on_disk.add(address)
    weakref.finalize(mapped, _on_disk.discard, address)


def gather_rows(
    source: Shaped[Tensor, "rows ..."], rows: Int64[Tensor, " batch"]
) -> Shaped[Tensor, "batch ..."]:
    """Return a new tensor of some rows, in the given order.

    Both are on the same device, and the rows of `source` may overlap, as in `Arrays.windows`. The compiled
    gather is used only in main memory, for contiguous rows; other threads can run during the copy.

    Raises IndexError for a row that is not there.
    """
    if _copy_rows is None or not _is_plain(source, rows):
        return source.index_select(0, rows)
    available, *shape = source.shape
    is_on_disk = bool(_on_disk) and source.untyped_storage().data_ptr() in _on_disk
    if shape == [1] and not is_on_disk:
        # Of single numbers PyTorch's is three times faster, but only without a second dimension.
        return source.squeeze(1).index_select(0, rows).unsqueeze(1)
    found = source.new_empty((rows.numel(), *shape))
    size = found.nbytes
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
        raise IndexError(f"row {int(rows[wrong])} of {available}: there is no such row.")
    return found


def _is_plain(source: Tensor, rows: Tensor) -> bool:
    """Whether both are in main memory, with contiguous indices and contiguous rows."""
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
