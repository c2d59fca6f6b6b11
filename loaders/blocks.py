"""Gathers several batches at once as views of one block, which is faster than one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

BatchT = TypeVar("BatchT")

# For larger blocks malloc returns the memory to the system each time, and getting it back page by
# page takes longer than everything else.
_BLOCK_BYTES = 1 << 21


def gather_in_blocks(
    make: Callable[..., BatchT],
    columns: Callable[[Tensor], Iterable[Tensor]],
    chosen: Tensor,
    *,
    size: int,
    item_bytes: int,
) -> Iterator[BatchT]:
    """Yield batches of `size` items whose tensors are views of a few gathered blocks.

    `columns` gathers the fields of some items, each with a row per item, and `make` makes a batch of them, given
    by position: by name would take longer. One gathered item takes `item_bytes`; `chosen` are the items of all
    batches, a multiple of `size`.
    """
    for items in torch.split(chosen, items_at_once(size, item_bytes)):
        yield from batches_of(make, columns(items), size)


def batches_of(make: Callable[..., BatchT], columns: Iterable[Tensor], size: int) -> Iterator[BatchT]:
    """Return batches of `size` items each whose tensors are views of some columns."""
    several = [one.view(len(one) // size, size, *one.shape[1:]).unbind(0) for one in columns]
    return map(make, *several)


def items_at_once(size: int, item_bytes: int) -> int:
    """Return how many items a block takes: a multiple of `size`, at least one batch."""
    return max(1, _BLOCK_BYTES // item_bytes // size) * size
