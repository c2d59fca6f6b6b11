"""Files of others that are read into versions: brought, checked, converted, and told where from.

    NAME/.VERSION.download/files/PATH   each file of the version, as far as it has arrived
    $ORLOG_HOME/first-downloads.json    {"files": {URL: {"sha256", "size_bytes", "date"}}}

A registry names such files with what upstream says of them (`ForeignEntry`). Where that is no
checksum, the first download is trusted: its SHA-256 is kept, a file that differs later is refused,
and the version says so. A file may have mirrors: where one does not give it, or gives other bytes,
the next is asked. The lineage of a version names the SHA-256 of the files it was read from. What
formats there are is known in `datasets/formats/` only.
"""

from __future__ import annotations

import datetime as dt
import shutil
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from orlog.base.files import hash_of_sums, list_files, make_folder, storage_errors, unfinished_folder
from orlog.datasets.download.sources import ForeignFileSource
from orlog.datasets.download.transfer import (
    Expected,
    Fetched,
    Mirror,
    Progress,
    TransferOptions,
    TransferProgress,
    check_room,
    download_folder,
    fetch_at_once,
    fetch_object,
)
from orlog.datasets.formats.episodes import Asked, Found, Options
from orlog.datasets.formats.formats import Format, Wanted, find_format, read_version
from orlog.datasets.home.folders import datasets_folder, version_folder
from orlog.datasets.home.records import check_offered
from orlog.datasets.reading.finding import how_to_fetch
from orlog.datasets.recording.finishing import finish_version
from orlog.datasets.store.objects import mismatch
from orlog.errors import IntegrityError, MissingExtraError, NotFoundError, OrlogError, SchemaError, clause
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer
from orlog.manifests.index import ForeignEntry, ForeignFile, is_safe_path
from orlog.manifests.manifest import MANIFEST_FILE, Count, Manifest, Parent, read_manifest

ZIP_START = b"PK\x03\x04"
MOST_FILES = 100_000  # of an archive
MOST_GROWTH = 200  # times the archive's size; vaults of numbers shrink to a tenth
SMALL_BYTES = 2**30


class _FirstDownload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size_bytes: Count
    date: str


class _FirstDownloads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    first_downloads_version: Literal[1]
    files: dict[str, _FirstDownload]


def download_foreign_file(
    source: ForeignFileSource,
    options: TransferOptions = TransferOptions(),
    *,
    on_wait: Callable[[], None] = lambda: None,
    on_read: Callable[[], None] = lambda: None,
    on_mirror: Callable[[str], None] = lambda _text: None,
    replace: bool = False,
) -> Path:
    """Return the folder of a version made from third-party files, downloading them if necessary."""
    _check_packages(source)
    here = version_folder(source.name, source.version)
    if (here / MANIFEST_FILE).is_file() and not replace:
        _check_digest(source, read_manifest(here / MANIFEST_FILE).digest)
        return here
    destination = datasets_folder() / source.name / source.version
    with unfinished_folder(destination, on_wait=on_wait) as folder:
        if replace or not (destination / MANIFEST_FILE).is_file():
            files = download_folder(destination) / "files"
            try:
                _make_version(source, files, folder / "store", destination, options, on_read, on_mirror)
            finally:
                # Of files without a checksum a part cannot be resumed.
                unproven = [file for file in source.entry.each if not file.has_checksum]
                for file in unproven:
                    (files / file.path).unlink(missing_ok=True)
                if len(unproven) == len(source.entry.each):
                    shutil.rmtree(files.parent, ignore_errors=True)
            shutil.rmtree(files.parent, ignore_errors=True)
    _check_digest(source, read_manifest(destination / MANIFEST_FILE).digest)
    return destination


def _check_packages(source: ForeignFileSource) -> None:
    """Raise one MissingExtraError that names all that downloading, reading and scoring will need."""
    if source.entry.is_folder:
        raise NotFoundError(f"{source.name}: {how_to_fetch(source.name, source.entry)}")
    try:
        find_format(source.entry.format, f"{source.name}@{source.version}").check()
    except MissingExtraError as error:
        install = "orlog[formats,mujoco]" if source.name.startswith("d4rl/") else error.install
        raise MissingExtraError(f"{source.name} needs packages that are not installed", install=install) from None


def first_downloads_file() -> Path:
    """Return the file that records which first downloads were trusted; it need not exist."""
    return datasets_folder().parent / "first-downloads.json"


def _make_version(
    source: ForeignFileSource,
    files: Path,
    store: Path,
    destination: Path,
    options: TransferOptions,
    on_read: Callable[[], None],
    on_mirror: Callable[[str], None],
) -> None:
    """Download the files and put the version that they hold in its place."""
    entry = source.entry
    refused: set[str] = set()
    while True:
        fetched = _fetch(source, files, refused, options, on_mirror)
        on_read()

        def accept(manifest: Manifest, fetched: Sequence[Fetched] = fetched) -> None:
            _check_digest(source, manifest.digest)
            check_offered(manifest)
            _remember_first(source, files, fetched)  # not earlier: an error page must not be trusted

        try:
            _refuse_others(source, fetched, _read_first_downloads())
            paths = [files] if reads_folder(entry) else [files / file.path for file in entry.each]
            sums = [result.sha256 for result in fetched]
            manifest, _ = read_listed(source.name, source.version, entry, paths, sums, store)
            finish_version(store, manifest, destination, accept=accept, decode=True, replace=True)
        except (SchemaError, IntegrityError) as error:
            each = zip(entry.each, source.urls, fetched, strict=True)
            unproven = [(urls, result.sources) for file, urls, result in each if not file.has_checksum]
            wrong = {url for _, sources in unproven for url in sources}
            refused |= wrong
            if not any(set(urls) - refused for urls, _ in unproven):
                raise
            on_mirror(f"mirrors are asked, since {', '.join(sorted(wrong))} gave no good files: {clause(error)}.")
            shutil.rmtree(store, ignore_errors=True)
        else:
            return


def _fetch(
    source: ForeignFileSource,
    folder: Path,
    refused: Collection[str],
    options: TransferOptions,
    on_mirror: Callable[[str], None],
) -> list[Fetched]:
    """Download all files into a folder, but for mirrors that are refused; say what gave each."""
    each = source.entry.each
    with storage_errors(folder):
        make_folder(folder)
        sizes = {path: file.lstat().st_size for path, file in list_files(folder)}
        for path in sizes.keys() - {file.path for file in each}:
            (folder / path).unlink()  # of an entry that was listed here before
        held = sum(sizes.get(file.path, 0) for file in each if file.size_bytes is not None)
    known = sum(file.size_bytes or 0 for file in each)
    check_room(folder, max(0, known - held))
    progress = TransferProgress(options, known, 0, objects=len(each), objects_done=0)

    def fetch(task: tuple[ForeignFile, Sequence[str]]) -> Fetched:
        file, urls = task
        result = fetch_object(
            [Mirror(url) for url in [address for address in urls if address not in refused] or urls],
            Expected(size_bytes=file.size_bytes, sha256=file.sha256 or "", md5=file.md5 or ""),
            folder / file.path,
            progress=progress.add,
            limiter=options.limiter,
            patience=options.patience,
        )
        progress.finish_object()
        return result

    tasks = list(zip(each, source.urls, strict=True))
    fetched = fetch_at_once(fetch, tasks, options.jobs, progress)
    for outcome in fetched:
        if outcome.failed and outcome.sources:
            reasons = "; ".join(f"{url}: {reason}" for url, reason in outcome.failed.items())
            on_mirror(f"downloaded from {', '.join(outcome.sources)}, since {reasons}.")
    return fetched


def read_listed(
    name: str,
    version: str,
    entry: ForeignEntry,
    files: Sequence[Path],
    sums: Sequence[str],
    store: Path,
    *,
    progress: Progress = lambda _done, _total: None,
) -> tuple[Manifest, Found]:
    """Write the objects of the version that listed files hold; return manifest and what was found."""
    each = entry.each
    unproven = sum(not file.has_checksum for file in each)
    trust = ""
    if unproven:
        what = f"(sha256 {sums[0]})" if len(each) == 1 else f"of {unproven} of {len(each)} files"
        trust = f"Upstream publishes no checksum: the first download {what} was trusted."
    if reads_folder(entry):
        listed = hash_of_sums({file.path: digest for file, digest in zip(each, sums, strict=True)})
        places = [(entry.place, listed, not unproven)]
    else:
        proofs = zip(each, sums, strict=True)
        places = [(file.url, digest, file.has_checksum) for file, digest in proofs]
    trusted = " (upstream publishes no checksum: first download trusted)"
    lineage = [
        Parent(digest=f"sha256:{sha256}", operation=f"read {entry.format} from {place}{'' if is_proven else trusted}")
        for place, sha256, is_proven in places
    ]
    file_format = find_format(entry.format, f"{name}@{version}")
    if entry.url and file_format.extensions == ("",) and is_archive(files[0]):
        unpacked = store.with_name("unpacked")
        unpack(files[0], unpacked, entry.url)
        files = [_root(unpacked, file_format)]
    wanted = Wanted(
        name=name,
        version=version,
        lineage=lineage,
        description=" ".join(filter(None, (entry.description, trust))),
        license=entry.license or "",
    )
    options = Options(time_limit=entry.horizon, task=entry.task or "")
    asked = Asked(files=files, sources=[place for place, _, _ in places], options=options)
    return read_version(file_format, asked, store, wanted, progress=progress)


def _root(folder: Path, file_format: Format) -> Path:
    """Return the uppermost folder of an archive that looks like the format; the whole if none does."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    folders.sort(key=lambda path: (len(path.parts), path))
    return next((inner for inner in folders if file_format.recognizes([inner])), folder)


def reads_folder(entry: ForeignEntry) -> bool:
    """Return whether listed files are read from their folder, since their format takes no such files."""
    taken = find_format(entry.format, entry.place).extensions
    endings = {Path(file.path).suffix for file in entry.files}
    return "" in taken and not endings <= set(taken)


def _check_digest(source: ForeignFileSource, digest: str) -> None:
    if not digest.startswith(source.digest):
        where = f"{source.name}@{source.version}, read from {source.entry.place}"
        advice = "the digest was pinned with another version of orlog, or the file has changed."
        raise mismatch(where, "", source.digest, digest, advice)


def _remember_first(source: ForeignFileSource, folder: Path, fetched: Sequence[Fetched]) -> None:
    today = dt.datetime.now(dt.UTC).date().isoformat()
    new: dict[str, _FirstDownload] = {}
    for file, urls, result in zip(source.entry.each, source.urls, fetched, strict=True):
        if not file.has_checksum:
            size = (folder / file.path).stat().st_size
            first = _FirstDownload(sha256=result.sha256, size_bytes=size, date=today)
            new |= dict.fromkeys(urls, first)
    if not new:
        return
    path = first_downloads_file()
    with sole_writer(path):
        files = _read_first_downloads()
        _refuse_others(source, fetched, files)
        body = _FirstDownloads(first_downloads_version=1, files={**new, **files})
        replace_json_file(path, msgspec.to_builtins(body))


def _refuse_others(source: ForeignFileSource, fetched: Sequence[Fetched], known: dict[str, _FirstDownload]) -> None:
    """Refuse files that differ from those trusted at their first download."""
    for file, urls, result in zip(source.entry.each, source.urls, fetched, strict=True):
        for url in () if file.has_checksum else urls:
            first = known.get(url)
            if first is not None and first.sha256 != result.sha256:
                raise IntegrityError(
                    f"{url}: upstream publishes no checksum, and the file is not the one that was first "
                    f"downloaded: on {first.date} it had sha256 {first.sha256} ({first.size_bytes:,} "
                    f"bytes), now it has {result.sha256}; nothing was kept. Ask who publishes it what "
                    "changed; to trust the new file, remove this URL from "
                    f"{first_downloads_file()}.",
                    file=url,
                    expected=first.sha256,
                    found=result.sha256,
                )


def _read_first_downloads() -> dict[str, _FirstDownload]:
    path = first_downloads_file()
    if not path.exists():
        return {}
    repair = "repair the file, or delete it, which trusts the next download of each file again"
    version = ("first_downloads_version", 1)
    return read_json_file(path, _FirstDownloads, version=version, repair=repair).files


# Archives, whose names and sizes are not trusted.


def is_archive(file: Path) -> bool:
    """Return whether a file is a ZIP archive, by its first bytes."""
    with file.open("rb") as data:
        return data.read(len(ZIP_START)) == ZIP_START


def unpack(archive: Path, folder: Path, where: str) -> None:
    """Unpack an archive into a new folder, in place of one that is there; errors call it `where`."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as opened:
            infos = [info for info in opened.infolist() if not info.is_dir()]
            _check_archive(infos, archive.stat().st_size, where)
            for info in infos:
                target = folder / info.filename
                with storage_errors(target), opened.open(info) as data:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("xb") as file:
                        shutil.copyfileobj(data, file)  # no byte more than was checked
    except OrlogError:
        raise
    except Exception as error:  # each way to compress has its own errors
        raise IntegrityError(f"{where}: not a whole ZIP archive: {clause(error)}.") from error
    for info in infos:
        if (folder / info.filename).stat().st_size != info.file_size:
            raise IntegrityError(f"{where}: {info.filename} ends too early.", file=info.filename)


def _check_archive(infos: list[zipfile.ZipInfo], archive_bytes: int, where: str) -> None:
    """Refuse names and sizes before anything is written."""
    if not infos or len(infos) > MOST_FILES:
        raise SchemaError(f"{where}: expected 1 to {MOST_FILES:,} files, found {len(infos):,}.")
    names: set[str] = set()
    for info in infos:
        name = info.filename
        if not is_safe_path(name) or not name.isprintable() or name in names:
            raise SchemaError(f"{where}: {name[:200]!r} is no name of a file in a folder.")
        if info.flag_bits & 1:
            raise SchemaError(f"{where}: {name} is encrypted; unpack it, and import the folder.")
        names.add(name)
    total, most = sum(info.file_size for info in infos), MOST_GROWTH * archive_bytes + SMALL_BYTES
    if total > most:
        raise SchemaError(
            f"{where}: says that it unpacks to {total:,} bytes, more than the {most:,} that an archive of "
            "its size may; unpack it yourself if you trust it, and import the folder."
        )
