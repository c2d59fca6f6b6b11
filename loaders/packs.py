"""A dataset's `Arrays` as files that are mapped into memory: for datasets larger than RAM.

    $ORLOG_HOME/packs/<first 32 hex digits of the digest>-2/
        rows.f32         the matrix of `Arrays`, little-endian
        since.u8         the table of steps
        lengths.i64      steps of each episode
        mixture.i64      steps by component, of a weighted mixture only
        other0.u8, ..    columns that are not packed
        pack.json        what they hold; size and BLAKE3 of each

A pack is made once per digest, a block at a time, and appears whole or not at all; processes share
its pages. It is opened copy-on-write: what a process writes into its tensors stays its own. Pages
that were read are clean: they count in a process's resident size (RssFile), yet the system takes
them back whenever memory is short. Only anonymous memory (RssAnon) is really taken, and of that a
pack needs some bytes an episode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import math
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import blake3
import msgspec
import numpy as np
import torch

from orlog.datasets.dataset import Dataset
from orlog.datasets.home import dataset_folders, datasets_folder, publish, unfinished_folder
from orlog.datasets.json_files import LARGEST_FILE, read_json_file
from orlog.datasets.storage import little_endian_bytes, storage_errors, sync, write_durably
from orlog.datasets.verify import Problem
from orlog.errors import IntegrityError, SchemaError, StorageError
from orlog.loaders.arrays import Arrays, Leaf, Mixture, missing_finals, mixture_of
from orlog.loaders.filling import Layout, fill_matrix, fill_other, layout_of, not_finite
from orlog.loaders.gathering import expect_on_disk
from orlog.loaders.memory import available_memory
from orlog.loaders.pack_cache import RECORD_FILE, HeldPack, hold_pack
from orlog.loaders.step_table import StepTable, count_since

__all__ = ["MappedArrays", "is_packed", "open_pack", "pack_folder", "verify_pack"]

BLOCK_BYTES = 2**24
_VERSION = 2
_SUFFIXES = {"float32": "f32", "int64": "i64", "uint8": "u8"}
# Private pages that are never written need no room in swap; Python names the flag from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    column: str
    dtype: str
    shape: tuple[int, ...]
    blake3: str

    @property
    def size(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    column: str
    first: int
    shape: tuple[int, ...]


class _Mixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    first: tuple[int, ...]
    sizes: tuple[int, ...]
    up_to: tuple[float, ...]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pack_version: Literal[2]
    name: str
    digest: str
    sources: tuple[str, ...]
    non_finite: str
    obs_dim: int
    action_dim: int
    texts: dict[str, tuple[str, ...]]
    observation_leaves: dict[str, _Leaf]
    mixture: _Mixture | None
    files: tuple[_File, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MappedArrays(Arrays):
    """`Arrays` whose tensors are maps of a pack's files. `open_pack` makes it.

    Pickling it, as for a worker process, writes the folder's path and what was since replaced, and
    the other process maps the same files.

    Attributes:
        folder: The pack.
        opened: What each field was when the pack was opened, and the table of steps.
    """

    folder: Path
    opened: Mapping[str, Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def step_table(self) -> StepTable:
        """Where steps lie."""
        # From the file, since making it takes memory for each step.
        is_same = self.lengths is self.opened["lengths"]
        return StepTable(self.lengths, self.opened["since"] if is_same else None)

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """Have the pages behind those that are asked for read too, which else would come one by one."""
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
        """Return the same on another device; on the CPU that is this."""
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
        return _reopen, (self.folder, self.opened["digest"], changed)


def pack_folder(dataset: Dataset) -> Path:
    """Return the folder that a dataset's pack is in, or would be put in.

    A pack in one of the homes of ORLOG_SHARED serves as one's own does.
    """
    name = f"{dataset.digest.removeprefix('sha256:')[:32]}-{_VERSION}"
    homes = [folder.parent for folder in (datasets_folder(), *dataset_folders())]
    folders = [home / "packs" / name for home in homes]
    return next((folder for folder in folders if _is_there(folder)), folders[0])


def is_packed(dataset: Dataset) -> bool:
    """Return whether a dataset's pack is on this machine."""
    return _is_there(pack_folder(dataset))


def open_pack(
    dataset: Dataset,
    *,
    allow_non_finite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> MappedArrays:
    """Map a dataset's pack into memory, having made and verified it if there is none.

    Equal to `read_arrays`, bit for bit. Opening checks the record and the size of each file;
    `verify_pack` checks every byte. Processes that ask for the same pack at once make it once.
    Making it takes the memory of one block, and 8 bytes a step for a weighted mixture; of a view
    with reordered episodes, that of the episodes which a block touches.

    Args:
        dataset: What to read.
        allow_non_finite: Take NaN and infinity as they are.
        progress: Called with the bytes written since its last call.

    Raises:
        SchemaError: as `read_arrays`.
        IntegrityError: an object of the dataset is damaged, or a file of the pack.
        StorageError: the disk is full or cannot be written.
    """
    folder = pack_folder(dataset)
    while (held := hold_pack(folder)) is None:
        with unfinished_folder(folder) as unfinished:
            if not _is_there(folder):  # nobody made it while this process waited
                _make(dataset, unfinished, allow_non_finite, progress)
                publish(unfinished, folder)
    arrays, record = _open(folder, dataset.digest, held)
    arrays = dataclasses.replace(arrays, missing_finals=missing_finals(dataset))
    if record.non_finite and not allow_non_finite:
        raise not_finite(dataset, record.non_finite)
    return arrays


def verify_pack(
    dataset: Dataset, progress: Callable[[int], None] = lambda _: None
) -> list[Problem]:
    """Hash every byte of a dataset's pack; a damaged one is to be removed, and is then made anew.

    Args:
        dataset: Whose pack.
        progress: Called with the bytes read since its last call.

    Returns:
        What is wrong, by file; nothing if all is right.

    Raises:
        ManifestError: there is no pack, or its record cannot be read.
    """
    folder = pack_folder(dataset)
    return _problems(folder, _read_record(folder, dataset.digest), progress)


def _make(
    dataset: Dataset, folder: Path, allow_non_finite: bool, progress: Callable[[int], None]
) -> None:
    """Write a pack into an empty folder and read it back."""
    layout = layout_of(dataset)
    mixture = mixture_of(dataset)
    _check_room(dataset, folder, layout)
    non_finite = ""
    with storage_errors(folder), contextlib.ExitStack() as opened:
        writers = {
            name: opened.enter_context(_Writer(folder, name, column, dtype, shape))
            for name, column, dtype, shape in _files(layout)
        }
        for first, last in layout.ranges("", BLOCK_BYTES):
            matrix = np.zeros((last - first, layout.width), np.float32)
            place = fill_matrix(dataset, layout, first, last, matrix)
            if place and not allow_non_finite:
                raise not_finite(dataset, place)
            non_finite = non_finite or place
            progress(writers["rows.f32"].write(matrix))
        # Column by column: each has its own size of chunks, and decodes them once.
        for writer in [one for one in writers.values() if one.column]:
            spec = layout.others[writer.column]
            for first, last in layout.ranges(writer.column, BLOCK_BYTES):
                values = np.zeros((last - first, *spec.shape), spec.dtype)
                fill_other(dataset, layout, writer.column, first, last, values)
                progress(writer.write(values))
        writers["lengths.i64"].write(dataset.episode_lengths)
        for since in count_since(dataset.episode_lengths):
            progress(writers["since.u8"].write(since))
        if mixture is not None:
            writer = opened.enter_context(
                _Writer(folder, "mixture.i64", "", np.dtype(np.int64), mixture.steps.shape)
            )
            writer.write(mixture.steps)
            writers[writer.name] = writer
        record = _Record(
            pack_version=2,
            name=dataset.name,
            digest=dataset.digest,
            sources=tuple(sorted(_sources(dataset))),
            non_finite=non_finite,
            obs_dim=layout.obs_dim,
            action_dim=layout.action_dim,
            texts=layout.texts,
            observation_leaves={
                key: _Leaf(column=leaf.column, first=leaf.first, shape=leaf.shape)
                for key, leaf in layout.observation_leaves.items()
            },
            mixture=None
            if mixture is None
            else _Mixture(
                first=tuple(mixture.first.tolist()),
                sizes=tuple(mixture.sizes.tolist()),
                up_to=tuple(mixture.up_to.tolist()),
            ),
            files=tuple(writer.finish() for writer in writers.values()),
        )
        encoded = msgspec.json.format(msgspec.json.encode(record))
        if len(encoded) > LARGEST_FILE:
            raise SchemaError(
                f"{dataset.name}: distinct texts of {', '.join(record.texts)} take {len(encoded):,} "
                f"bytes, a pack holds {LARGEST_FILE:,}; use where='ram' or leave them out"
            )
        write_durably(folder / RECORD_FILE, encoded)
        sync(folder)
    for problem in _problems(folder, record, lambda _: None):
        raise IntegrityError(
            f"{folder}: {problem}; the disk or memory changed what was written: try another disk",
            file=problem.file,
            expected=problem.expected,
            found=problem.found,
        )


class _Writer:
    """Writes one file of a pack, hashing what goes by; used with `with`."""

    def __init__(
        self, folder: Path, name: str, column: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self.name = name
        self.column = column
        self._dtype, self._shape = dtype, shape
        self._digest = blake3.blake3()
        self._file: BinaryIO = (folder / name).open("wb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, values: np.ndarray) -> int:
        """Append values; return their bytes."""
        data = little_endian_bytes(values)
        self._digest.update(data)
        written = 0
        while written < len(data):
            written += self._file.write(data[written:])
        return written

    def finish(self) -> _File:
        """Make the file durable and describe it."""
        os.fsync(self._file.fileno())
        return _File(
            name=self.name,
            column=self.column,
            dtype=str(self._dtype),
            shape=self._shape,
            blake3=self._digest.hexdigest(),
        )


def _files(layout: Layout) -> list[tuple[str, str, np.dtype[Any], tuple[int, ...]]]:
    """Return name, column, dtype and shape of each file but that of a mixture."""
    count = layout.rows
    integers, floats = np.dtype(np.int64), np.dtype(np.float32)
    episodes = len(layout.first_rows)
    files: list[tuple[str, str, np.dtype[Any], tuple[int, ...]]] = [
        ("rows.f32", "", floats, (count, layout.width)),
        ("since.u8", "", np.dtype(np.uint8), (count - episodes,)),
        ("lengths.i64", "", integers, (episodes,)),
    ]
    for number, (name, spec) in enumerate(layout.others.items()):
        suffix = _SUFFIXES.get(str(spec.dtype), str(spec.dtype))
        files.append((f"other{number}.{suffix}", name, spec.dtype, (count, *spec.shape)))
    return files


def _check_room(dataset: Dataset, folder: Path, layout: Layout) -> None:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if layout.total_bytes > free:
        raise StorageError(
            f"{dataset.name}: a pack takes {layout.total_bytes:,} bytes and {folder.parent} has "
            f"{free:,} left; free some, set ORLOG_HOME to another disk, or use stream_transitions, "
            "which needs no room",
            errno=errno.ENOSPC,
        )


def _is_there(folder: Path) -> bool:
    try:
        return (folder / RECORD_FILE).is_file()
    except OSError:  # a folder of ORLOG_SHARED that may not be looked into
        return False


def _read_record(folder: Path, digest: str) -> _Record:
    repair = f"remove {folder}; the pack is made anew when it is next asked for"
    record = read_json_file(
        folder / RECORD_FILE, _Record, version=("pack_version", _VERSION), repair=repair
    )
    if record.digest != digest:
        raise IntegrityError(
            f"{folder}: expected the pack of {digest}, found that of {record.digest}; {repair}",
            file=RECORD_FILE,
            expected=digest,
            found=record.digest,
        )
    if not all(re.fullmatch(r"[a-z_]+\d*\.[a-z]+\d*", one.name) for one in record.files):
        raise IntegrityError(f"{folder}: a file has a strange name; {repair}", file=RECORD_FILE)
    return record


def _problems(folder: Path, record: _Record, progress: Callable[[int], None]) -> list[Problem]:
    """Return which files are not what the record says."""
    problems = []
    for one in record.files:
        path = folder / one.name
        if not path.is_file():
            problems.append(Problem(one.name, "missing", f"{one.size} bytes", "no file"))
        elif path.stat().st_size != one.size:
            found = f"{path.stat().st_size} bytes"
            problems.append(Problem(one.name, "wrong size", f"{one.size} bytes", found))
        else:
            digest = blake3.blake3()
            with path.open("rb", buffering=0) as file:
                while data := file.read(2**20):
                    digest.update(data)
                    progress(len(data))
            if digest.hexdigest() != one.blake3:
                problems.append(
                    Problem(
                        one.name,
                        "damaged",
                        f"blake3 {one.blake3}",
                        f"blake3 {digest.hexdigest()}",
                        column=one.column or None,
                    )
                )
    return problems


def _sources(dataset: Dataset) -> set[str]:
    """Return the digests of the stored versions that a dataset is made of."""
    if not dataset.parents:
        return {dataset.digest}
    return {digest for parent in dataset.parents for digest in _sources(parent)}


def _open(folder: Path, digest: str, held: HeldPack | None) -> tuple[MappedArrays, _Record]:
    """Map the files of a pack that is held, having checked their sizes."""
    record = _read_record(folder, digest)
    _check_shapes(folder, record)
    # For what does not stay in memory, reading the pages behind those asked for is wasted.
    is_large = sum(one.size for one in record.files) > available_memory() // 2
    advice = getattr(mmap, "MADV_RANDOM" if is_large else "MADV_NORMAL", 0)
    mapped = {one.name: _map(folder, one, advice) for one in record.files}
    maps = {name: values for name, (values, _) in mapped.items()}
    if is_large:
        for values in maps.values():
            expect_on_disk(values)
    mixture = record.mixture
    fields: dict[str, Any] = {
        "rows": torch.from_numpy(maps["rows.f32"]),
        "lengths": maps["lengths.i64"],
        "obs_dim": record.obs_dim,
        "action_dim": record.action_dim,
        "mixture": mixture
        and Mixture(
            steps=maps["mixture.i64"],
            first=np.array(mixture.first, np.int64),
            sizes=np.array(mixture.sizes, np.int64),
            up_to=np.array(mixture.up_to, np.float64),
        ),
        "name": record.name,
        "digest": record.digest,
        "others": {
            one.column: torch.from_numpy(maps[one.name]) for one in record.files if one.column
        },
        "texts": record.texts,
        "observation_leaves": {
            key: Leaf(column=leaf.column, first=leaf.first, shape=leaf.shape)
            for key, leaf in record.observation_leaves.items()
        },
    }
    # Fields that `Arrays` has beyond these keep their defaults.
    plain = Arrays(**fields)
    opened = {one.name: getattr(plain, one.name) for one in dataclasses.fields(Arrays)}
    opened["since"] = maps["since.u8"]
    opened |= {"held": held, "map": mapped["rows.f32"][1], "advice": advice}
    return MappedArrays(**vars(plain), folder=folder, opened=opened), record


def _reopen(folder: Path, digest: str, changed: Mapping[str, Any]) -> MappedArrays:
    arrays, _ = _open(folder, digest, hold_pack(folder))
    return dataclasses.replace(arrays, **changed) if changed else arrays


def _check_shapes(folder: Path, record: _Record) -> None:
    """Check that the files are those of one pack, so that no row lies outside of a map."""
    shapes = {one.name: (one.dtype, one.shape) for one in record.files}
    _, (episodes,) = shapes.get("lengths.i64", ("", (0,)))
    _, (steps,) = shapes.get("since.u8", ("", (0,)))
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "rows.f32": ("float32", (steps + episodes, record.obs_dim + record.action_dim + 3)),
        "since.u8": ("uint8", (steps,)),
        "lengths.i64": ("int64", (episodes,)),
    }
    if record.mixture is not None:
        expected["mixture.i64"] = ("int64", (steps,))
    others = [one for one in record.files if one.column]
    named = {leaf.column for leaf in record.observation_leaves.values() if leaf.column}
    if (
        {name: shape for name, shape in shapes.items() if name in expected} != expected
        or len(expected) + len(others) != len(record.files)
        or any(one.shape[0] != steps + episodes for one in others)
        or not named | record.texts.keys() <= {one.column for one in others}
    ):
        raise IntegrityError(
            f"{folder}: {RECORD_FILE} does not describe one pack; remove the folder: the pack is "
            "made anew when it is next asked for",
            file=RECORD_FILE,
        )


def _map(folder: Path, one: _File, advice: int) -> tuple[np.ndarray, mmap.mmap | None]:
    """Map a file copy-on-write, with the system told how its pages will be asked for."""
    with (folder / one.name).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != one.size:
            raise IntegrityError(
                f"{folder}: {one.name}: expected {one.size} bytes, found {size}; remove the folder: "
                "the pack is made anew when it is next asked for",
                file=one.name,
                expected=str(one.size),
                found=str(size),
            )
        if size == 0:
            return np.empty(one.shape, one.dtype), None
        mapped = mmap.mmap(
            file.fileno(),
            size,
            flags=mmap.MAP_PRIVATE | _NO_RESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    if hasattr(mapped, "madvise"):
        mapped.madvise(advice)
    return np.frombuffer(mapped, one.dtype).reshape(one.shape), mapped
