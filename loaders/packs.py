"""A dataset's `Arrays` as files that are mapped into memory: for datasets larger than RAM.

    $ORLOG_HOME/packs/<first 32 hex digits of the digest>-3/
        rows.f32         the matrix of `Arrays`, little-endian
        since.u8         the table of steps
        lengths.i64      steps of each episode
        mixture.i64      steps by component, of a weighted mixture only
        other0.u8, ..    columns that are not packed
        pack.json        what they hold; size and BLAKE3 of each

A pack is made once per digest, a block at a time, and appears whole or not at all; processes share
its pages. It is opened copy-on-write: what a process writes into its tensors is private to it.
Pages that were only read count in a process's resident size (RssFile), but the system reclaims them
whenever memory is short. Only anonymous memory (RssAnon) is really taken, and a pack needs only
some bytes of it per episode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import logging
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orlog.base.files import put_in_place, refuse_too_many_files, unfinished_folder
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import FormatVersionError, IntegrityError, StorageError
from orlog.loaders.arrays import Arrays, Mixture, missing_finals, with_infos
from orlog.loaders.filling import not_finite, warn_of_outside
from orlog.loaders.gathering import expect_on_disk
from orlog.loaders.info_rows import check_names, info_layout
from orlog.loaders.memory import available_memory
from orlog.loaders.pack_cache import RECORD_FILE, HeldPack, discard_pack, hold_pack, packs_folder
from orlog.loaders.pack_record import (
    PACK_VERSION,
    PackFile,
    PackRecord,
    PackSource,
    damaged_pack,
    ends_of,
    is_pack,
    leaves_of,
    read_record,
)
from orlog.loaders.pack_writer import make_pack
from orlog.loaders.step_table import StepTable

# Private pages that are never written need no swap space; Python has this constant since 3.13.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

_logger = logging.getLogger("orlog")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MappedArrays(Arrays):
    """`Arrays` whose tensors are maps of a pack's files. `open_pack` makes it.

    Pickling it, as for a worker process, writes only the folder's path and the fields that were
    replaced since it was opened; the other process maps the same files.

    Attributes:
        folder: The pack.
        opened: The value of each field when the pack was opened, and the table of steps.
    """

    folder: Path
    opened: Mapping[str, Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def step_table(self) -> StepTable:
        """The table that finds the rows of steps."""
        # From the file, since computing it takes memory for each step.
        is_same = self.lengths is self.opened["lengths"]
        return StepTable(self.lengths, self.opened["since"] if is_same else None)

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """Let the system read ahead inside the `with` block instead of page by page."""
        mapped, advice = self.opened["map"], self.opened["advice"]
        is_mapped = self.rows is self.opened["rows"] and hasattr(mapped, "madvise")
        if is_mapped:
            mapped.madvise(mmap.MADV_SEQUENTIAL)
        try:
            yield
        finally:
            if is_mapped:
                mapped.madvise(advice)

    def to(self, device: torch.device | str) -> Arrays:
        """Return the same on another device; for the CPU, return itself."""
        if torch.device(device).type == "cpu":
            return self
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(Arrays)}
        return Arrays(**fields).to(device)

    def __reduce__(self) -> tuple[Callable[..., MappedArrays], tuple[object, ...]]:
        """Say how to open the same pack elsewhere."""
        changed = {
            one.name: getattr(self, one.name)
            for one in dataclasses.fields(Arrays)
            if getattr(self, one.name) is not self.opened[one.name]
        }
        return _reopen, (self.folder, self.opened["digest"], changed, _content(self.opened["record"]))


def pack_folder(dataset: Dataset) -> Path:
    """Return the folder of a dataset's pack, existing or not."""
    return _folder(PackSource(dataset))


def is_packed(dataset: Dataset) -> bool:
    """Return whether a dataset's pack is on this machine."""
    return is_pack(pack_folder(dataset))


def open_pack(
    dataset: Dataset,
    *,
    allow_non_finite: bool = False,
    infos: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> MappedArrays:
    """Map a dataset's pack into memory; make and verify it first if there is none.

    The arrays equal those of `read_arrays` bit for bit. A pack is read back when it is made, and made again if
    a file of it changed since, of which the logger `orlog` warns. If several processes open the same pack at the
    same time, it is made once. Making it takes the memory of one block, plus 8 bytes a
    step for a weighted mixture; for a view with reordered episodes, the memory of all episodes in a block.
    Infos have a pack of their own. `progress` gets the bytes written since its last call.
    """
    names = check_names(infos)
    if names:
        info_layout(dataset, names)  # a wrong name shows before anything is written
    arrays = _open_or_make(PackSource(dataset), allow_non_finite, progress)
    warn_of_outside(dataset)
    arrays = dataclasses.replace(arrays, missing_finals=missing_finals(dataset))
    if not names:
        return arrays
    beside = _open_or_make(PackSource(dataset, names), allow_non_finite, progress)
    return with_infos(arrays, beside)


def _open_or_make(source: PackSource, allow_non_finite: bool, progress: Callable[[int], None]) -> MappedArrays:
    """Map one pack into memory; make and verify it first if there is none."""
    dataset, own = source.dataset, _folder(source)
    while (opened := _open_checked(source, own)) is None:
        with unfinished_folder(own) as unfinished:
            if not is_pack(own):  # no other process made it during the wait
                make_pack(source, unfinished, allow_non_finite, progress)
                put_in_place(unfinished, own)
    arrays, record = opened
    if record.non_finite and not allow_non_finite:
        raise not_finite(dataset, record.non_finite)
    return dataclasses.replace(arrays, name=dataset.name)


def _folder(source: PackSource) -> Path:
    return packs_folder() / f"{source.digest.removeprefix('sha256:')[:32]}-{PACK_VERSION}"


def _open_checked(source: PackSource, folder: Path) -> tuple[MappedArrays, PackRecord] | None:
    """Open the pack in a folder; None if there is none (any more), also once a damaged one is removed."""
    held = hold_pack(folder)
    if held is None:
        return None
    try:
        return _open(folder, source.digest, held)
    except (IntegrityError, FormatVersionError) as error:
        _logger.warning("%s: its pack is damaged and is made again: %s", source.dataset.name, error)
        discard_pack(folder, held)
        return None


def _open(folder: Path, digest: str, held: HeldPack | None) -> tuple[MappedArrays, PackRecord]:
    """Map the files of a pack that is held; check their sizes and when they last changed."""
    record = read_record(folder, digest)
    # Reading ahead is wasted on pages that do not stay in memory.
    is_large = sum(one.size for one in record.files) > available_memory() // 2
    advice = getattr(mmap, "MADV_RANDOM" if is_large else "MADV_NORMAL", 0)
    maps: dict[str, np.ndarray] = {}
    mapped: dict[str, mmap.mmap | None] = {}
    for one in record.files:
        maps[one.name], mapped[one.name] = _map(folder, one, advice)
    if is_large:
        for values in maps.values():
            expect_on_disk(values)
    mixture = record.mixture
    fields: dict[str, Any] = {
        "rows": torch.from_numpy(maps["rows.f32"]),
        "lengths": maps["lengths.i64"],
        "obs_dim": record.obs_dim,
        "action_dim": record.action_dim,
        "ends": ends_of(record),
        "mixture": mixture
        and Mixture(
            steps=maps["mixture.i64"],
            first=np.array(mixture.first, np.int64),
            sizes=np.array(mixture.sizes, np.int64),
            up_to=np.array(mixture.up_to, np.float64),
        ),
        "name": record.name,
        "digest": record.digest,
        "others": {one.column: torch.from_numpy(maps[one.name]) for one in record.files if one.column},
        "texts": record.texts,
        "observation_leaves": leaves_of(record.observation_leaves),
        "parts": leaves_of(record.parts),
    }
    # Fields that `Arrays` has beyond these keep their defaults.
    try:
        plain = Arrays(**fields)
    except ValueError as error:
        raise damaged_pack(folder, "lengths.i64", str(error)) from error
    opened = {one.name: getattr(plain, one.name) for one in dataclasses.fields(Arrays)}
    opened |= {"since": maps["since.u8"], "maps": maps}
    opened |= {"record": record, "held": held, "map": mapped["rows.f32"], "advice": advice}
    return MappedArrays(**vars(plain), folder=folder, opened=opened), record


def _reopen(folder: Path, digest: str, changed: Mapping[str, Any], content: tuple[str, ...]) -> MappedArrays:
    """Open a pack that another process has opened."""
    arrays, record = _open(folder, digest, hold_pack(folder))
    if _content(record) != content:
        raise damaged_pack(folder, RECORD_FILE, "the pack has other content than the process that sent it saw")
    return dataclasses.replace(arrays, **changed) if changed else arrays


def _content(record: PackRecord) -> tuple[str, ...]:
    return tuple(one.blake3 for one in record.files)


def _map(folder: Path, one: PackFile, advice: int) -> tuple[np.ndarray, mmap.mmap | None]:
    """Map a file copy-on-write, and advise the system how its pages will be read."""
    path = folder / one.name
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            if size != one.size:
                raise damaged_pack(
                    folder,
                    one.name,
                    f"expected {one.size} bytes, found {size}",
                    expected=str(one.size),
                    found=str(size),
                )
            if status.st_ctime_ns != one.changed_ns:
                raise damaged_pack(folder, one.name, "it changed since the pack was made")
            if size == 0:
                return np.empty(one.shape, one.dtype), None
            mapped = mmap.mmap(
                file.fileno(), size, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        values = np.frombuffer(mapped, one.dtype).reshape(one.shape)
    except FileNotFoundError as error:
        raise damaged_pack(folder, one.name, f"expected {one.size} bytes, found no file") from error
    except ValueError as error:  # dimensions that no array has
        raise damaged_pack(folder, one.name, str(error)) from error
    except OSError as error:
        if isinstance(error, IntegrityError):
            raise
        refuse_too_many_files(path, error)
        if error.errno == errno.ENOMEM:
            raise StorageError(
                f"{path}: cannot be mapped: {error.strerror}; raise the limit of address space: ulimit -v unlimited",
                errno=error.errno,
            ) from error
        what = f"cannot be read: {error.strerror or error}"
        raise damaged_pack(folder, one.name, what) from error
    if hasattr(mapped, "madvise"):
        mapped.madvise(advice)
    return values, mapped
