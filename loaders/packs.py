"""A dataset's `Arrays` as files that are mapped into memory: for datasets larger than RAM.

    $ORLOG_HOME/packs/<first 32 hex digits of the digest>-4/
        rows.f32         the matrix of `Arrays`, little-endian
        since.u8         the table of steps
        lengths.i64      steps of each episode
        mixture-..       the fields of a weighted mixture
        other0.uint8, .. columns that are not packed
        pack.json        dtype and shape of each, and the texts; written last
    $ORLOG_HOME/packs/.PACK.deleted/     being removed; the next collection finishes that

A pack is made once per digest, a block at a time, and appears whole or not at all; processes share
its pages. It is opened copy-on-write: what a process writes into its tensors is private to it.
Pages that were only read count in a process's resident size (RssFile), but the system reclaims them
whenever memory is short. Only anonymous memory (RssAnon) is really taken, and a pack needs only
some bytes of it per episode.

A pack whose record cannot be read, or of which a file has another size or was changed after the record was written, is
removed and made again. A process that has a pack open holds a shared lock on its `pack.json`, which the system releases
when the process ends; such packs are not collected. All others can be, since a pack can always be made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import functools
import logging
import math
import mmap
import os
import re
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from orlog.base.files import (
    lock_open_file,
    put_in_place,
    refuse_too_many_files,
    sole_access,
    storage_errors,
    sync,
    unfinished_folder,
    write_durably,
)
from orlog.datasets.home.folders import datasets_folder, installed_names, installed_versions, version_folder
from orlog.datasets.home.garbage import (
    LEFT_BEHIND,
    OPENED_NOW,
    Candidate,
    GarbageReport,
    collect,
    erase,
    remove_in_one_step,
    remove_unless_busy,
)
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import FormatVersionError, IntegrityError, SchemaError, StorageError
from orlog.loaders.arrays import Arrays, add_infos, missing_finals, mixture_of
from orlog.loaders.choices import Mixture, StepTable, count_since
from orlog.loaders.filling import Layout, fill_matrix, fill_other, layout_of, not_finite, warn_of_outside
from orlog.loaders.gathering import expect_on_disk
from orlog.loaders.infos import check_names, info_layout, infos_digest
from orlog.loaders.memory import available_memory
from orlog.loaders.tensors import torch
from orlog.loaders.videos import without_videos
from orlog.manifests.columns import little_endian_bytes
from orlog.manifests.documents import LARGEST_FILE, convert_json, parse_json, read_json_file, read_small_file
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import DatasetName

PACK_VERSION: Final = 4
RECORD_FILE = "pack.json"
BLOCK_BYTES = 2**24

_REPAIR = "remove the folder (the pack is made again when it is next needed)"
_PACK = re.compile(r"[0-9a-f]{32}-[0-9]+")
_LEFTOVER = re.compile(r"\.([0-9a-f]{32}-[0-9]+)\.(?:unfinished|replaced|deleted)")
# Private pages that are never written need no swap space; Python has this constant since 3.13.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_logger = logging.getLogger("orlog")

_Dtype = Annotated[str, msgspec.Meta(pattern="^(bool|u?int(8|16|32|64)|float(16|32|64))$")]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of little-endian numbers, row by row; `column` is that of `Arrays.others`, if it is one."""

    column: str
    dtype: _Dtype
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class _Origin(msgspec.Struct, kw_only=True):
    """What the record of any version says about where a pack is from: digests of stored versions, sorted."""

    name: str = ""
    digest: str = ""
    sources: tuple[str, ...] = ()


class _Record(_Origin, forbid_unknown_fields=True, kw_only=True):
    """What `pack.json` holds; `non_finite` is where the first number that is not finite stands, if there is one."""

    pack_version: Literal[4]
    non_finite: str
    texts: dict[str, tuple[str, ...]]
    files: dict[str, _File]


class HeldPack:
    """Keeps a pack from being removed for as long as it lives, here and in forked processes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)

    def is_in(self, folder: Path) -> bool:
        """Return whether the held pack is still the one in a folder."""
        try:
            return os.path.samestat((folder / RECORD_FILE).stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Opened:
    """A pack whose files are mapped: its record, the maps by file, and the fields of `Arrays` that they are."""

    folder: Path
    record: _Record
    held: HeldPack | None
    maps: Mapping[str, np.ndarray]
    of_rows: mmap.mmap | None
    advice: int
    fields: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MappedArrays(Arrays):
    """`Arrays` whose tensors are maps of a pack's files. `open_pack` makes it.

    Pickling it, as for a worker process, writes only the folder's path and the fields that are not
    those maps; the other process maps the same files.
    """

    pack: _Opened = dataclasses.field(repr=False)

    @property
    def folder(self) -> Path:
        """The folder of the pack."""
        return self.pack.folder

    @functools.cached_property
    def step_table(self) -> StepTable:
        """The table that finds the rows of steps."""
        # From the file, since computing it takes memory for each step.
        is_same = self.lengths is self.pack.fields["lengths"]
        return StepTable(self.lengths, self.pack.maps["since.u8"] if is_same else None)

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """Let the system read ahead inside the `with` block instead of page by page."""
        mapped = self.pack.of_rows if self.rows is self.pack.fields["rows"] else None
        if mapped is None or not hasattr(mapped, "madvise"):
            yield
            return
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        try:
            yield
        finally:
            mapped.madvise(self.pack.advice)

    def to(self, device: torch.device | str) -> Arrays:
        """Return the same on another device; for the CPU, return itself."""
        if torch.device(device).type == "cpu":
            return self
        return Arrays(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Arrays)}).to(device)

    def __reduce__(self) -> tuple[Callable[..., MappedArrays], tuple[object, ...]]:
        """Say how to open the same pack elsewhere."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Arrays)}
        own = {name: value for name, value in fields.items() if value is not self.pack.fields.get(name, fields)}
        mapped = self.pack.fields["others"]
        if "others" in own:  # videos beside maps
            own["others"] = {name: None if value is mapped.get(name) else value for name, value in self.others.items()}
        return _reopen, (self.folder, own)


def pack_folder(dataset: Dataset) -> Path:
    """Return the folder of a dataset's pack, existing or not."""
    return _folder_of(dataset.digest)


def is_packed(dataset: Dataset) -> bool:
    """Return whether a dataset's pack is on this machine."""
    return (pack_folder(dataset) / RECORD_FILE).is_file()


def packs_folder() -> Path:
    """Return `$ORLOG_HOME/packs`, without making it."""
    return datasets_folder().parent / "packs"


def open_pack(
    dataset: Dataset,
    *,
    allow_non_finite: bool = False,
    infos: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> MappedArrays:
    """Map a dataset's pack into memory; make it first if there is none.

    The arrays equal those of `read_arrays` bit for bit. A damaged pack is made again, of which the logger `orlog`
    warns. If several processes open the same pack at the same time, it is made once. Making it takes the memory of
    one block, plus 8 bytes a step for a weighted mixture; for a view with reordered episodes, the memory of all
    episodes in a block. Infos have a pack of their own. `progress` gets the bytes written since its last call.
    """
    names = check_names(infos)
    beside = info_layout(dataset, names) if names else None  # a wrong name shows before anything is written
    arrays = _open_or_make(dataset, layout_of(dataset), dataset.digest, allow_non_finite, progress)
    warn_of_outside(dataset)
    arrays = dataclasses.replace(arrays, missing_finals=missing_finals(dataset))
    if beside is None:
        return arrays
    return add_infos(
        arrays, _open_or_make(dataset, beside, infos_digest(dataset, names), allow_non_finite, progress, names)
    )


def _open_or_make(
    dataset: Dataset,
    layout: Layout,
    digest: str,
    allow_non_finite: bool,
    progress: Callable[[int], None],
    infos: tuple[str, ...] = (),
) -> MappedArrays:
    folder = _folder_of(digest)
    layout, videos = without_videos(dataset, layout)
    while True:
        held = hold_pack(folder)
        if held is None:
            with unfinished_folder(folder) as unfinished:
                if not (folder / RECORD_FILE).is_file():  # no other process made it during the wait
                    _make(dataset, layout, _origin(dataset, digest, infos), unfinished, allow_non_finite, progress)
                    put_in_place(unfinished, folder)
            continue
        try:
            pack = _open(folder, held)
            if pack.record.digest != digest:
                raise _damaged(
                    folder, RECORD_FILE, f"expected the pack of {digest}, found that of {pack.record.digest}"
                )
            arrays = MappedArrays(
                **pack.fields,
                pack=pack,
                obs_dim=layout.obs_dim,
                action_dim=layout.action_dim,
                ends=layout.width - layout.obs_dim - layout.action_dim,
                name=dataset.name,
                digest=digest,
                texts=pack.record.texts,
                observation_leaves=layout.observation_leaves,
                parts=layout.parts,
            )
        except (IntegrityError, FormatVersionError, ValueError, KeyError) as error:
            _logger.warning("%s: its pack is damaged and is made again: %s", dataset.name, error)
            # Processes that have it open can still read their mapped files.
            with sole_access(folder), storage_errors(folder):
                if held.is_in(folder):
                    remove_in_one_step(folder, _trash_of(folder))
            continue
        if pack.record.non_finite and not allow_non_finite:
            raise not_finite(dataset, pack.record.non_finite)
        return dataclasses.replace(arrays, others={**arrays.others, **videos}) if videos else arrays


def _folder_of(digest: str) -> Path:
    return packs_folder() / f"{digest.removeprefix('sha256:')[:32]}-{PACK_VERSION}"


def _origin(dataset: Dataset, digest: str, infos: tuple[str, ...]) -> _Origin:
    """Return what a pack is made from; one whose own digest is not among the sources counts as that of a view."""
    sources = {version.digest for version in dataset.selection().versions}
    name = dataset.name
    if infos:
        sources.add(digest if dataset.digest in sources else dataset.digest)
        name += f" (infos: {', '.join(sorted(infos))})"
    return _Origin(name=name, digest=digest, sources=tuple(sorted(sources)))


def _make(
    dataset: Dataset,
    layout: Layout,
    origin: _Origin,
    folder: Path,
    allow_non_finite: bool,
    progress: Callable[[int], None],
) -> None:
    """Write a pack into an empty folder."""
    free = shutil.disk_usage(folder).free
    if layout.total_bytes > free:
        raise StorageError(
            f"{dataset.name}: a pack takes {layout.total_bytes:,} bytes, but {folder.parent} has "
            f"{free:,} left; free some space, set ORLOG_HOME to another disk, or use "
            "stream=True, which needs no space.",
            errno=errno.ENOSPC,
        )
    files: dict[str, _File] = {}
    places = {name: f"other{number}.{spec.dtype}" for number, (name, spec) in enumerate(layout.others.items())}
    non_finite = ""

    def write(name: str, blocks: Iterable[np.ndarray], column: str = "") -> None:
        rows = 0
        with (folder / name).open("wb", buffering=0) as file:
            for block in blocks:
                data = little_endian_bytes(block)
                written = 0
                while written < len(data):
                    written += file.write(data[written:])
                rows += len(block)
                progress(len(data))
            os.fsync(file.fileno())
        files[name] = _File(column=column, dtype=str(block.dtype), shape=(rows, *block.shape[1:]))

    def matrix() -> Iterator[np.ndarray]:
        nonlocal non_finite
        for first, last in layout.ranges("", BLOCK_BYTES):
            block = np.zeros((last - first, layout.width), np.float32)
            place = fill_matrix(dataset, layout, first, last, block)
            if place and not allow_non_finite:
                raise not_finite(dataset, place)
            non_finite = non_finite or place
            yield block

    def other(name: str) -> Iterator[np.ndarray]:
        spec = layout.others[name]
        for first, last in layout.ranges(name, BLOCK_BYTES):
            block = np.zeros((last - first, *spec.shape), spec.dtype)
            fill_other(dataset, layout, name, first, last, block)
            yield block

    def record() -> bytes:
        whole = _Record(
            pack_version=PACK_VERSION,
            non_finite=non_finite,
            texts=layout.texts,
            files={name: files[name] for name in (*places.values(), *files) if name in files},
            **msgspec.structs.asdict(origin),
        )
        encoded = msgspec.json.format(msgspec.json.encode(whole))
        if len(encoded) > LARGEST_FILE:
            raise SchemaError(
                f"{origin.name}: distinct texts of {', '.join(layout.texts)} take {len(encoded):,} "
                f"bytes, more than the {LARGEST_FILE:,} of a pack; use where='ram' or leave them out."
            )
        return encoded

    with storage_errors(folder):
        # Texts first: only they can make the record invalid, which should not show hours later.
        for name in layout.tables:
            write(places[name], other(name), name)
        record()
        for name in [key for key in layout.others if key not in layout.tables]:
            write(places[name], other(name), name)
        write("rows.f32", matrix())
        write("lengths.i64", [dataset.episode_lengths])
        write("since.u8", count_since(dataset.episode_lengths))
        mixture = mixture_of(dataset) if "rewards" in layout.packed else None
        for field in dataclasses.fields(Mixture) if mixture is not None else ():
            write(f"mixture-{field.name}", [getattr(mixture, field.name)])
        write_durably(folder / RECORD_FILE, record())
        sync(folder)


def hold_pack(folder: Path) -> HeldPack | None:
    """Keep a pack from being removed, and record its use.

    Returns None if there is no pack, or it was just removed. On a disk that cannot lock files the pack is not
    kept, but mapped files stay readable even then.
    """
    path = folder / RECORD_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened: {error.strerror}.", errno=error.errno) from error
    held = HeldPack(descriptor)
    lock_open_file(descriptor, shared=True)
    if not held.is_in(folder):
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    return held


def _open(folder: Path, held: HeldPack | None) -> _Opened:
    """Map the files of a pack that is held."""
    path = folder / RECORD_FILE
    record = read_json_file(path, _Record, version=("pack_version", PACK_VERSION), repair=_REPAIR)
    made = path.stat().st_mtime_ns
    size = sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in record.files.values())
    # Reading ahead is wasted on pages that do not stay in memory.
    is_large = size > available_memory() // 2
    advice = getattr(mmap, "MADV_RANDOM" if is_large else "MADV_NORMAL", 0)
    maps: dict[str, np.ndarray] = {}
    of_rows = None
    for name, spec in record.files.items():
        maps[name], mapped = _map(folder, name, spec, made, advice)
        of_rows = mapped if name == "rows.f32" else of_rows
        if is_large:
            expect_on_disk(maps[name])
    fields = {
        "rows": torch.from_numpy(maps["rows.f32"]),
        "lengths": maps["lengths.i64"],
        "others": {spec.column: torch.from_numpy(maps[name]) for name, spec in record.files.items() if spec.column},
        "mixture": None,
    }
    if "mixture-steps" in maps:
        fields["mixture"] = Mixture(**{part.name: maps[f"mixture-{part.name}"] for part in dataclasses.fields(Mixture)})
    return _Opened(folder=folder, record=record, held=held, maps=maps, of_rows=of_rows, advice=advice, fields=fields)


def _reopen(folder: Path, own: Mapping[str, Any]) -> MappedArrays:
    """Open a pack that another process has opened."""
    pack = _open(folder, hold_pack(folder))
    mapped = pack.fields["others"]
    others = {name: mapped[name] if value is None else value for name, value in own.get("others", mapped).items()}
    return MappedArrays(**{**pack.fields, **own, "others": others}, pack=pack)


def _map(folder: Path, name: str, spec: _File, made: int, advice: int) -> tuple[np.ndarray, mmap.mmap | None]:
    """Map a file copy-on-write, and advise the system how its pages will be read."""
    path, size = folder / name, math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size != size:
                raise _damaged(folder, name, f"expected {size} bytes, found {status.st_size}")
            if status.st_mtime_ns > made:
                raise _damaged(folder, name, "it changed since the pack was made")
            if size == 0:
                return np.empty(spec.shape, spec.dtype), None
            mapped = mmap.mmap(
                file.fileno(), size, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
    except OSError as error:
        refuse_too_many_files(path, error)
        if error.errno == errno.ENOMEM:
            raise StorageError(
                f"{path}: cannot be mapped: {error.strerror}; raise the limit of address space: ulimit -v unlimited",
                errno=error.errno,
            ) from error
        raise _damaged(folder, name, f"cannot be read: {error.strerror or error}") from error
    if hasattr(mapped, "madvise"):
        mapped.madvise(advice)
    return np.frombuffer(mapped, spec.dtype).reshape(spec.shape), mapped


def _damaged(folder: Path, file: str, what: str) -> IntegrityError:
    return IntegrityError(f"{folder}: {file}: {what.removesuffix('.')}; {_REPAIR}.", file=file)


# --- the packs on this machine


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedPack:
    """A pack, or what is left of one.

    Attributes:
        folder: Its folder.
        kind: `pack`, or `leftover`: left by a process that was killed, or being written now.
        name: Name of its dataset; empty where its record cannot be read.
        versions: Versions on this machine that it was made from: one, or several for a view; empty
            if they are unknown or not on this machine.
        is_view: Whether it was made from a view, as far as is known.
        size_bytes: Bytes of its files.
        last_used: When it was last opened, in UTC.
    """

    folder: Path
    kind: Literal["pack", "leftover"]
    name: str
    versions: tuple[DatasetName, ...]
    is_view: bool
    size_bytes: int
    last_used: dt.datetime


def cached_packs() -> list[CachedPack]:
    """Return all packs and their leftovers."""
    installed = {}
    for name in installed_names():
        for version in installed_versions(name):
            with contextlib.suppress(IntegrityError, FormatVersionError):
                manifest = read_manifest(version_folder(name, version) / MANIFEST_FILE)
                installed[manifest.digest] = DatasetName(name, version)
    return [*_packs(installed)]


def packs_of(versions: Iterable[DatasetName]) -> list[CachedPack]:
    """Return the packs of some stored versions, and of views of them."""
    wanted = set(versions)
    return [pack for pack in cached_packs() if wanted & {*pack.versions}]


def collect_packs(
    *, unused_days: int | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove leftovers of killed processes, and packs if asked.

    Packs that a process has open or is writing are never removed. Packs opened within the last day stay too,
    unless `unused_days` is 0.

    With `unused_days`, packs not opened for so long go; then, with `max_bytes`, the least recently opened
    ones, until all take no more than this. Returned are what was removed, what was due but kept, what the
    disk refused to remove, and the bytes of the packs that are left. A `dry_run` writes nothing.
    """
    packs = [*_packs({})]
    candidates = [
        Candidate(
            path=pack.folder,
            age=_seconds_unused(pack.folder),
            remove=functools.partial(_remove, pack.folder, dry_run=dry_run),
            free=functools.partial(int, pack.size_bytes),
            why=LEFT_BEHIND if pack.kind == "leftover" else "",
        )
        for pack in packs
    ]
    return collect(candidates, sum(pack.size_bytes for pack in packs), unused_days, max_bytes)


def delete_pack(pack: CachedPack) -> None:
    """Remove a pack; one that is already gone is not an error."""
    if refusal := _remove(pack.folder, 0.0):
        raise StorageError(f"{pack.folder} {refusal}; when that process has ended, remove the folder.")


def _packs(installed: Mapping[str, DatasetName]) -> Iterator[CachedPack]:
    """Yield the packs in the home and their leftovers, sorted by path; `installed` are the versions by digest."""
    folders = sorted(packs_folder().iterdir()) if packs_folder().is_dir() else []
    for folder in folders:
        if not (_PACK.fullmatch(folder.name) or _LEFTOVER.fullmatch(folder.name)):
            continue
        with contextlib.suppress(OSError):  # removed since, or unreadable
            used = dt.datetime.fromtimestamp(folder.stat().st_mtime, dt.UTC)
            is_whole = not folder.name.startswith(".") and (folder / RECORD_FILE).exists()
            origin = _Origin()
            if is_whole:
                with contextlib.suppress(OSError, ValueError):
                    origin = convert_json(parse_json(read_small_file(folder / RECORD_FILE)), _Origin)
            sources = sorted({origin.digest, *origin.sources})
            yield CachedPack(
                folder=folder,
                kind="pack" if is_whole else "leftover",
                name=origin.name,
                versions=tuple(installed[digest] for digest in sources if digest in installed),
                is_view=origin.digest not in (origin.sources or installed),
                size_bytes=sum(path.lstat().st_size for path in folder.iterdir()),
                last_used=used,
            )


def _seconds_unused(folder: Path) -> float:
    """Return the seconds since a pack was opened; 0 if that time is in the future, or it is gone."""
    try:
        return max(0.0, time.time() - folder.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _remove(folder: Path, seconds: float, *, dry_run: bool = False) -> str:
    """Remove a pack or a leftover in one step; return why it stays, or nothing."""
    leftover = _LEFTOVER.fullmatch(folder.name)

    def remove() -> str:
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context((folder / RECORD_FILE).open("r+b"))  # as locks on network disks require
            except (FileNotFoundError, NotADirectoryError):  # no record, so no pack that could be open
                pass
            except OSError as error:
                return f"may be in use: {RECORD_FILE} cannot be opened ({error.strerror})"
            else:
                if not lock_open_file(file, shared=False):
                    return "is in use by a process"
            if _seconds_unused(folder) < seconds:
                return OPENED_NOW
            if leftover and not dry_run:
                erase(folder)
            elif not dry_run:
                remove_in_one_step(folder, _trash_of(folder))
        return ""

    return remove() if dry_run else remove_unless_busy(folder.with_name(leftover[1]) if leftover else folder, remove)


def _trash_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.deleted")
