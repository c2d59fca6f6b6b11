"""Gathers random rows of a matrix into one block, the core of every batch.

    gather_rows(source, rows)  =  source.index_select(0, rows)

bit for bit, and `gather_around` does it for rows around others. If the compiled part (`_gather.c`) could be built when orlog was installed, it
prefetches rows before they are copied, which takes about half the time; without it PyTorch does the
work. Rows of a mapped file that does not stay in memory are requested from the disk all at once.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import weakref
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int32, Int64, Shaped
from torch import Tensor

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

    Raises IndexError for a row that is not there.
    """
    if _compiled is None or not _is_plain(source, rows):
        return source.index_select(0, rows)
    available, *shape = source.shape
    is_on_disk = _is_on_disk(source)
    if shape == [1] and source.itemsize != _NUMBER_BYTES and not is_on_disk:
        # Of single numbers PyTorch's is faster, but only without a second dimension.
        return source.squeeze(1).index_select(0, rows).unsqueeze(1)
    found = source.new_empty((rows.numel(), *shape))
    size = found.nbytes
    is_for_threads = size > _LARGE and torch.get_num_threads() >= _MANY_THREADS
    if not size or (is_for_threads and not is_on_disk):
        return source.index_select(0, rows)
    wrong = _compiled.copy_rows(
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
        raise _no_such_row(source, rows, wrong)
    return found


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Where pieces of rows go in rows of another width, with zeros between them.

    Attributes:
        places: First number of each piece in its row, its size, and its first number there: in the order of
            the last, side by side or apart.
        width: Numbers of the rows that they go to.
    """

    places: tuple[tuple[int, int, int], ...]
    width: int

    @functools.cached_property
    def in_bytes(self) -> Int64[Tensor, "pieces three"]:
        """The places of float32."""
        return torch.tensor(self.places) * 4


def gather_pieces(
    source: Float32[Tensor, "rows numbers"], rows: Int64[Tensor, " batch"], pieces: Pieces
) -> Float32[Tensor, "batch width"]:
    """Return pieces of some rows in rows of their own.

    Raises IndexError for a row that is not there.
    """
    found: Tensor
    if _compiled is None or not _is_plain(source, rows) or _is_on_disk(source):
        block = gather_rows(source, rows)
        found = block.new_zeros(len(rows), pieces.width)
        for first, size, place in pieces.places:
            found[:, place : place + size] = block[:, first : first + size]
        return found
    found = source.new_empty((len(rows), pieces.width))
    wrong = _compiled.copy_pieces(
        source.data_ptr(),
        len(source),
        source.stride(0) * 4,
        source.shape[1] * 4,
        rows.data_ptr(),
        len(rows),
        pieces.in_bytes.data_ptr(),
        len(pieces.places),
        found.data_ptr(),
        pieces.width * 4,
    )
    if wrong >= 0:
        raise _no_such_row(source, rows, wrong)
    return found


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

    Raises IndexError for a row that is not there.
    """
    rows, first_rows, last_rows = chosen.unbind(1)
    if (
        _compiled is None
        or not all(_is_plain(source, one) for one in (rows, first_rows, last_rows, offsets))
        or _is_on_disk(source)
        or not (source.shape[1] and rows.numel() and offsets.numel())
    ):
        nearest, valid = nearest_rows(chosen, offsets, before_last=before_last)
        found = gather_rows(source, nearest.view(-1)).view(*nearest.shape, source.shape[1])
        return found.masked_fill_(~valid.unsqueeze(2), 0) if zeros else found, valid
    count, slots = rows.numel(), offsets.numel()
    found = source.new_empty((count, slots, source.shape[1]))
    valid = torch.empty((count, slots), dtype=torch.bool)
    wrong = _compiled.copy_around(
        source.data_ptr(),
        len(source),
        source.stride(0) * source.itemsize,
        source.shape[1] * source.itemsize,
        *(one.data_ptr() for one in (rows, first_rows, last_rows)),
        count,
        before_last,
        offsets.data_ptr(),
        slots,
        found.data_ptr(),
        valid.data_ptr(),
        zeros,
    )
    if wrong >= 0:
        raise _no_such_row(source, rows, wrong)
    return found, valid


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Stretches:
    """Tokens of episodes one after the other, of which stretches are given, and what belongs to their rows.

    Attributes:
        tokens: All tokens; `length` more may follow.
        token_rows: The row of each.
        is_said: Whether each is said, with the mark after it.
        decides: Whether the next one is said: what is said and does not decide is the mark after it.
        returns: The return of each row.
        ends: Reward and termination of each row.
        starts: First row of each episode.
        length: Slots of a stretch.
    """

    tokens: Int32[Tensor, " tokens"]
    token_rows: Int64[Tensor, " tokens"]
    is_said: Bool[Tensor, " tokens"]
    decides: Bool[Tensor, " tokens"]
    returns: Float32[Tensor, " rows"]
    ends: Float32[Tensor, "rows two"]
    starts: Int64[Tensor, " episodes"]
    length: int

    def gather(self, chosen: Int64[Tensor, "items two"]) -> dict[str, Any] | None:
        """Return the tensors of the slots of some stretches, given by their first token and number of tokens.

        Slots without a token are zeros. None where the compiled part cannot: PyTorch has to do it then.
        Raises IndexError for a token that is not there.
        """
        # What an older installation compiled lacks it.
        copy = getattr(_compiled, "copy_stretches", None)
        firsts, counts = chosen.unbind(1)
        if copy is None or not (firsts.is_cpu and firsts.is_contiguous() and self._can):
            return None
        items = len(chosen)
        numbers = torch.empty((2, items, self.length), dtype=torch.int64)
        flags = torch.empty((3, items, self.length), dtype=torch.bool)
        values = torch.empty((3, items, self.length), dtype=torch.float32)
        found = [*numbers.unbind(0), *flags.unbind(0), *values.unbind(0)]
        wrong = copy(
            *self._addresses,
            firsts.data_ptr(),
            counts.data_ptr(),
            items,
            self.length,
            *(one.data_ptr() for one in found),
        )
        if wrong >= 0:
            raise IndexError(f"tokens from {int(firsts[wrong])} on: there are no such tokens.")
        return dict(zip(_OF_STRETCHES, found, strict=True))

    @functools.cached_property
    def _can(self) -> bool:
        """Whether all lie in main memory as the compiled part takes them."""
        flat = (self.tokens, self.token_rows, self.is_said, self.decides, self.returns, self.starts)
        return all(one.is_cpu and one.is_contiguous() for one in flat) and self.ends.is_cpu and self.ends.stride(1) == 1

    @functools.cached_property
    def _addresses(self) -> tuple[int, ...]:
        """The first arguments of `copy_stretches`."""
        flat = (self.tokens, self.token_rows, self.is_said, self.decides)
        return (
            *(one.data_ptr() for one in flat),
            len(self.tokens),
            self.returns.data_ptr(),
            self.ends.data_ptr(),
            len(self.returns),
            self.ends.stride(0),
            self.starts.data_ptr(),
            len(self.starts),
        )


_OF_STRETCHES = ("tokens", "timesteps", "valid", "is_action", "decides", "rewards", "returns_to_go", "terminations")


def nearest_rows(
    chosen: Int64[Tensor, "items three"], offsets: Int64[Tensor, " slots"], *, before_last: int
) -> tuple[Int64[Tensor, "items slots"], Bool[Tensor, "items slots"]]:
    """Return the rows that `gather_around` reads, and which of them are those that were asked for."""
    rows, first_rows, last_rows = (one.unsqueeze(1) for one in chosen.unbind(1))
    wanted = rows + offsets
    nearest = torch.minimum(torch.maximum(wanted, first_rows), last_rows - before_last)
    return nearest, nearest == wanted


def _no_such_row(source: Tensor, rows: Tensor, place: int) -> IndexError:
    return IndexError(f"row {int(rows[place])} of {len(source)}: there is no such row.")


def _is_on_disk(source: Tensor) -> bool:
    return bool(_on_disk) and source.untyped_storage().data_ptr() in _on_disk


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
