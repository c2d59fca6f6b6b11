"""Gathers random rows of a matrix into one block, the core of every batch.

    gather_rows(source, rows)  =  source.index_select(0, rows)

bit for bit, and `gather_around` does it for rows around others. If the compiled part (`_gather.c`) could be built when
orlog was installed, it prefetches rows before they are copied, which takes about half the time; without it PyTorch does
the work. Rows of a mapped file that does not stay in memory are requested from the disk all at once.
"""

from __future__ import annotations

import importlib
import weakref
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from orlog.loaders.tensors import HAS_TORCH, Tensor, torch

# PyTorch spreads a large gather over its threads; the compiled one uses only the caller's. From
# this many threads on, PyTorch's is faster; below this many bytes it does not use other threads.
_MANY_THREADS = 4
_LARGE = 1 << 18
_VERSION = 3  # of `_gather.c`
_NUMBER_BYTES = 4  # of single numbers that it knows how to copy fast


def _load() -> Any:
    try:
        module = importlib.import_module("orlog.loaders._gather")
    except ImportError:  # installed where there was no compiler
        return None
    # Another version was built by an older editable installation.
    return module if getattr(module, "version", 1) == _VERSION else None


_compiled = _load()
_on_disk: set[int] = set()  # addresses of maps whose pages mostly are on disk


def is_compiled() -> bool:
    """Whether the compiled gather is there."""
    return _compiled is not None


def expect_on_disk(mapped: np.ndarray) -> None:
    """Make `gather_rows` request all rows of a mapped file from the disk before it copies any.

    Several times faster if pages mostly have to be read, and slower if they are in memory. Views of the file
    and tensors that share its memory are included.
    """
    address = mapped.ctypes.data
    _on_disk.add(address)
    weakref.finalize(mapped, _on_disk.discard, address)


def gather_rows(source: Shaped[Tensor, "rows ..."], rows: Int64[Tensor, " batch"]) -> Shaped[Tensor, "batch ..."]:
    """Return a new tensor of some rows, in the given order.

    Both are on the same device, and the rows of `source` may overlap, as in `Arrays.windows`. The compiled
    gather is used only in main memory, for contiguous rows; other threads can run during the copy.
    """
    if _compiled is None or not _is_plain(source, rows):
        return source.index_select(0, rows)
    available, *shape = source.shape
    is_on_disk = _is_on_disk(source)
    if shape == [1] and source.itemsize != _NUMBER_BYTES and not is_on_disk:
        # Of single numbers PyTorch's is faster, but only without a second dimension.
        return source.squeeze(1).index_select(0, rows)[:, None]
    gathered = torch.empty((len(rows), *shape), dtype=source.dtype)
    size = gathered.nbytes
    is_for_threads = size > _LARGE and torch.get_num_threads() >= _MANY_THREADS
    if not size or (is_for_threads and not is_on_disk):
        return source.index_select(0, rows)
    wrong = _compiled.copy_rows(
        source.data_ptr(),
        available,
        source.stride(0) * source.itemsize,
        size // len(rows),
        rows.data_ptr(),
        len(rows),
        gathered.data_ptr(),
        is_on_disk,
    )
    if wrong >= 0:
        raise _no_such_row(source, rows, wrong)
    return gathered


def gather_around(
    source: Shaped[Tensor, "rows numbers"],
    chosen: Int64[Tensor, "items three"],
    offsets: Int64[Tensor, " slots"],
    *,
    before_last: int = 0,
    zeros: bool = False,
) -> tuple[Shaped[Tensor, "items slots numbers"], Bool[Tensor, "items slots"]]:
    """Return the rows at some offsets from others, and which of them are those that were asked for.

    `chosen` has for each item its row, and the first and the last row of what it is part of. A row outside of
    these, or less than `before_last` rows before the last, is replaced by the nearest one, or by zeros.
    """
    rows, first_rows, last_rows = chosen.unbind(1)
    if (
        _compiled is None
        or not all(_is_plain(source, tensor) for tensor in (rows, first_rows, last_rows, offsets))
        or _is_on_disk(source)
        or not (source.shape[1] and len(rows) and len(offsets))
    ):
        nearest, valid = nearest_rows(chosen, offsets, before_last=before_last)
        gathered = gather_rows(source, nearest.reshape(-1)).reshape(*nearest.shape, source.shape[1])
        return gathered.masked_fill_(~valid[:, :, None], 0) if zeros else gathered, valid
    count, slots = len(rows), len(offsets)
    gathered = torch.empty((count, slots, source.shape[1]), dtype=source.dtype)
    valid = torch.empty((count, slots), dtype=torch.bool)
    wrong = _compiled.copy_around(
        source.data_ptr(),
        len(source),
        source.stride(0) * source.itemsize,
        source.shape[1] * source.itemsize,
        *(tensor.data_ptr() for tensor in (rows, first_rows, last_rows)),
        count,
        before_last,
        offsets.data_ptr(),
        slots,
        gathered.data_ptr(),
        valid.data_ptr(),
        zeros,
    )
    if wrong >= 0:
        raise _no_such_row(source, rows, wrong)
    return gathered, valid


def nearest_rows(
    chosen: Int64[Tensor, "items three"], offsets: Int64[Tensor, " slots"], *, before_last: int
) -> tuple[Int64[Tensor, "items slots"], Bool[Tensor, "items slots"]]:
    """Return the rows that `gather_around` reads, and which of them are those that were asked for."""
    rows, first_rows, last_rows = (column[:, None] for column in chosen.unbind(1))
    wanted = rows + offsets
    nearest = torch.minimum(torch.maximum(wanted, first_rows), last_rows - before_last)
    return nearest, nearest == wanted


def _no_such_row(source: Tensor, rows: Tensor, place: int) -> IndexError:
    return IndexError(f"row {int(rows[place])} of {len(source)}: there is no such row.")


def _is_on_disk(source: Tensor) -> bool:
    return bool(_on_disk) and source.untyped_storage().data_ptr() in _on_disk


def _is_plain(source: Tensor, rows: Tensor) -> bool:
    """Whether both are in main memory, with contiguous indices and contiguous rows."""
    is_elsewhere = HAS_TORCH and not (source.is_cpu and rows.is_cpu and source.layout is torch.strided)
    is_lazy = HAS_TORCH and not is_elsewhere and (source.requires_grad or source.is_neg() or source.is_conj())
    if is_elsewhere or is_lazy or rows.dtype != torch.int64 or rows.ndim != 1 or not rows.is_contiguous():
        return False
    if source.ndim == 2:
        return source.stride(1) == 1
    return source.ndim > 2 and source[:1].is_contiguous()
