"""Files of others that are read into versions: brought, checked, converted, and told where from.

    $ORLOG_HOME/first-downloads.json    {"files": {URL: {"sha256", "size_bytes", "date"}}}

A registry names such a file with what upstream says of it (`ForeignEntry`). Where that is no
checksum, the first download is trusted: its SHA-256 is kept, a file that differs later is refused,
and the version says so. The lineage of a version names the SHA-256 of the file it was read from.
What formats there are is known in `datasets/formats/` only.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from orlog.datasets.download.objects import download_folder
from orlog.datasets.download.sources import ForeignFileSource
from orlog.datasets.download.transfer import Expected, Limiter, Mirror, Patience, fetch_object
from orlog.datasets.formats.formats import Format, find_format, read_version
from orlog.datasets.home.folders import datasets_folder, version_folder
from orlog.datasets.home.meaning import check_offered
from orlog.datasets.interchange.episodes import Options
from orlog.datasets.recording.finishing import finish_version
from orlog.errors import IntegrityError
from orlog.files import unfinished_folder
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer
from orlog.manifests.manifest import MANIFEST_FILE, Count, Manifest, Parent, read_manifest

__all__ = ["download_foreign_file", "first_downloads_file"]

SOURCE_FILE = "source.part"


class _FirstDownload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size_bytes: Count
    date: str


class _FirstDownloads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    first_downloads_version: Literal[1]
    files: dict[str, _FirstDownload]


def download_foreign_file(
    source: ForeignFileSource,
    *,
    limiter: Limiter | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_wait: Callable[[], None] = lambda: None,
    on_read: Callable[[], None] = lambda: None,
    patience: Patience = Patience(),
    replace: bool = False,
) -> Path:
    """Return the folder of a version made from a third-party file, downloading that if necessary.

    The file is removed once it was read. An interruption at any instant leaves nothing that looks
    finished, and the download of a file with a checksum is resumed. Several processes may ask for
    the same version: one makes it, the others wait for that.

    Args:
        source: Where to download the file.
        limiter: Bounds the rate of the transfer.
        progress: Called with the bytes downloaded and the file's size as far as it is known.
        on_wait: Called once if another process is making the same version.
        on_read: Called once when the file is downloaded and reading it starts.
        patience: How long to retry a server.
        replace: Download and read the file again though the version is here, as a repair does; the
            result must be the same version.

    Raises:
        FormatVersionError: this orlog reads no such format.
        TransferError: the file cannot be downloaded, or its size or checksum is wrong.
        SchemaError: it does not have its format.
        IntegrityError: it is not the file that was first downloaded and trusted, or does not give
            the requested version.
        MissingExtraError: a package that reads it is not installed.
        StorageError: the disk is full.
    """
    file_format = find_format(source.entry.format, f"{source.name}@{source.version}")
    file_format.check()
    here = version_folder(source.name, source.version)
    if (here / MANIFEST_FILE).is_file() and not replace:
        _check_digest(source, read_manifest(here / MANIFEST_FILE).digest)
        return here
    destination = datasets_folder() / source.name / source.version
    with unfinished_folder(destination, on_wait=on_wait) as folder:
        if replace or not (destination / MANIFEST_FILE).is_file():
            file = download_folder(destination) / SOURCE_FILE
            try:
                sha256 = _fetch(source, file, limiter, progress, patience)
                on_read()
                _import_file(source, file_format, file, sha256, folder / "store", destination)
            finally:
                # Without a checksum, a partial download cannot be resumed.
                if not _has_checksum(source):
                    shutil.rmtree(file.parent, ignore_errors=True)
            shutil.rmtree(file.parent, ignore_errors=True)
    _check_digest(source, read_manifest(destination / MANIFEST_FILE).digest)
    return destination


def first_downloads_file() -> Path:
    """Return the file that records which first downloads were trusted; it need not exist."""
    return datasets_folder().parent / "first-downloads.json"


def _fetch(
    source: ForeignFileSource,
    file: Path,
    limiter: Limiter | None,
    progress: Callable[[int, int], None],
    patience: Patience,
) -> str:
    """Download the file and return its SHA-256."""
    entry = source.entry
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(done, max(done, entry.size_bytes or 0))

    return fetch_object(
        [Mirror(url) for url in source.urls[0]],
        Expected(size_bytes=entry.size_bytes, sha256=entry.sha256 or "", md5=entry.md5 or ""),
        file,
        progress=count,
        limiter=limiter,
        patience=patience,
    )


def _import_file(
    source: ForeignFileSource,
    file_format: Format,
    file: Path,
    sha256: str,
    store: Path,
    destination: Path,
) -> None:
    """Write the file's version and put it in its place."""
    is_checked = _has_checksum(source)
    if not is_checked:
        _refuse_another(source, sha256, _read_first_downloads())

    def accept(manifest: Manifest) -> None:
        _check_digest(source, manifest.digest)
        check_offered(manifest)
        if not is_checked:  # not earlier: an error page sent instead must not be trusted
            _remember_first(source, file, sha256)

    manifest = _convert(source, file_format, file, sha256, store)
    finish_version(store, manifest, destination, accept=accept, decode=True, replace=True)


def _convert(
    source: ForeignFileSource, file_format: Format, file: Path, sha256: str, store: Path
) -> Manifest:
    """Write the objects of the version that the file holds, and return its manifest."""
    entry = source.entry
    operation = f"read {entry.format} from {entry.place}"
    trust = ""
    if not _has_checksum(source):
        operation += " (upstream publishes no checksum: first download trusted)"
        trust = f"Upstream publishes no checksum: the first download (sha256 {sha256}) was trusted."
    manifest, _ = read_version(
        file_format,
        [file],
        store,
        name=source.name,
        version=source.version,
        sources=[entry.place],
        lineage=[Parent(digest=f"sha256:{sha256}", operation=operation)],
        options=Options(horizon=entry.horizon, task=entry.task or ""),
        description=" ".join(filter(None, (entry.description, trust))),
        license=entry.license or "",
    )
    return manifest


def _check_digest(source: ForeignFileSource, found: str) -> None:
    """Refuse a version other than the requested one."""
    if not found.startswith(source.digest):
        raise IntegrityError(
            f"{source.name}@{source.version}: expected {source.digest}, but reading "
            f"{source.entry.place} gives {found}; the digest was pinned with another version of orlog, "
            "or the file has changed.",
            expected=source.digest,
            found=found,
        )


def _has_checksum(source: ForeignFileSource) -> bool:
    return source.entry.sha256 is not None or source.entry.md5 is not None


def _remember_first(source: ForeignFileSource, file: Path, sha256: str) -> None:
    """Record a file as trusted, unless another process has recorded a different one."""
    path = first_downloads_file()
    today = dt.datetime.now(dt.UTC).date().isoformat()
    first = _FirstDownload(sha256=sha256, size_bytes=file.stat().st_size, date=today)
    with sole_writer(path):
        files = _read_first_downloads()
        _refuse_another(source, sha256, files)
        files = {**dict.fromkeys(source.urls[0], first), **files}
        body = _FirstDownloads(first_downloads_version=1, files=files)
        replace_json_file(path, msgspec.to_builtins(body))


def _refuse_another(
    source: ForeignFileSource, sha256: str, files: dict[str, _FirstDownload]
) -> None:
    """Refuse a file that differs from the one trusted at its first download."""
    for url in source.urls[0]:
        first = files.get(url)
        if first is not None and first.sha256 != sha256:
            raise IntegrityError(
                f"{url}: upstream publishes no checksum, and the file is not the one that was first "
                f"downloaded: on {first.date} it had sha256 {first.sha256} ({first.size_bytes:,} "
                f"bytes), now it has {sha256}; nothing was kept. Ask who publishes it what changed; "
                f"to trust the new file, remove this URL from {first_downloads_file()}.",
                file=url,
                expected=first.sha256,
                found=sha256,
            )


def _read_first_downloads() -> dict[str, _FirstDownload]:
    path = first_downloads_file()
    if not path.exists():
        return {}
    repair = "repair the file, or delete it, which trusts the next download of each file again"
    version = ("first_downloads_version", 1)
    return read_json_file(path, _FirstDownloads, version=version, repair=repair).files
