"""Unpacks ZIP archives of others, whose names and sizes are not trusted."""

from __future__ import annotations

import lzma
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

from orlog.base.files import storage_errors
from orlog.errors import IntegrityError, OrlogError, SchemaError, clause
from orlog.manifests.index import is_safe_path

DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,  # an unknown way to compress
    ValueError,
)
ZIP_START = b"PK\x03\x04"
MOST_FILES = 100_000
MOST_GROWTH = 200  # times the archive's size; vaults of numbers shrink to a tenth
SMALL_BYTES = 2**30
BLOCK_BYTES = 2**20


def is_archive(file: Path) -> bool:
    """Return whether a file is a ZIP archive, by its first bytes."""
    with file.open("rb") as data:
        return data.read(len(ZIP_START)) == ZIP_START


def unpack(archive: Path, folder: Path, where: str) -> None:
    """Unpack an archive into a new folder, in place of one that is there.

    Nothing is written outside of it, and no link is made. An archive is refused that holds a name outside the
    folder or an encrypted file, or would grow too large. Errors call it `where`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as found:
            infos = [info for info in found.infolist() if not info.is_dir()]
            _check(infos, archive.stat().st_size, where)
            for info in infos:
                target = folder / info.filename
                with storage_errors(target), found.open(info) as data:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("xb") as file:
                        _copy(data, file, info.file_size, f"{where}, {info.filename}")
    except OrlogError:
        raise
    except DAMAGE as error:
        raise IntegrityError(f"{where}: not a whole ZIP archive: {clause(error)}.") from error


def _check(infos: list[zipfile.ZipInfo], archive_bytes: int, where: str) -> None:
    """Refuse names and sizes before anything is written."""
    if not infos or len(infos) > MOST_FILES:
        raise SchemaError(f"{where}: expected 1 to {MOST_FILES:,} files, found {len(infos):,}.")
    seen: set[str] = set()
    for info in infos:
        name = info.filename
        if not is_safe_path(name) or not name.isprintable() or name in seen:
            raise SchemaError(f"{where}: {name[:200]!r} is no name of a file in a folder.")
        if info.flag_bits & 1:
            raise SchemaError(f"{where}: {name} is encrypted; unpack it, and import the folder.")
        seen.add(name)
    total, most = sum(info.file_size for info in infos), MOST_GROWTH * archive_bytes + SMALL_BYTES
    if total > most:
        raise SchemaError(
            f"{where}: says that it unpacks to {total:,} bytes, more than the {most:,} that an archive of "
            "its size may; unpack it yourself if you trust it, and import the folder."
        )


def _copy(data: IO[bytes], file: IO[bytes], size: int, where: str) -> None:
    """Copy a file of that size, and no byte more."""
    copied = 0
    while block := data.read(BLOCK_BYTES):
        copied += len(block)
        if copied > size:
            break
        file.write(block)
    if copied != size:
        raise IntegrityError(f"{where}: expected {size} bytes, found another number.")
