"""Downloads versions, and repairs them by downloading damaged files again; every byte is checked.

Objects are kept in `$ORLOG_HOME/datasets/NAME/.VERSION.download/` until all of them have arrived
(`datasets/download/transfer.py`), so a version appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orlog.base.files import link_or_copy, make_folder, sole_access, storage_errors, sync_folders, write_durably
from orlog.datasets.download.foreign import download_foreign_file
from orlog.datasets.download.sources import ForeignFileSource, find_source, newest_at_url, plain_urls, version_at
from orlog.datasets.download.transfer import JOBS, Limiter, Progress, TransferOptions, download_folder, fetch_objects
from orlog.datasets.home.folders import (
    dataset_folders,
    datasets_folder,
    discard_part,
    installed_versions,
    is_whole,
    partial_folder,
    read_partial,
    unless_deleted,
    version_folder,
    version_folder_of,
    write_partial,
)
from orlog.datasets.home.records import Source, check_offered, origin_file, read_origin, write_origin
from orlog.datasets.reading.finding import folders_to_repair
from orlog.datasets.reading.opening import (
    Choice,
    Given,
    as_name,
    as_stored_folder,
    check_choice,
    choose,
    plain_objects,
    wanted_objects,
)
from orlog.datasets.recording.finishing import finish_version
from orlog.datasets.store.objects import Problem, find_link, mismatch
from orlog.datasets.store.verify import verify_folder
from orlog.datasets.worlds.recipe import catalogue
from orlog.errors import IntegrityError, ManifestError, NotFoundError, OrlogError, SchemaError, TransferError, clause
from orlog.manifests.benchmarks import as_listed
from orlog.manifests.lock import check_lock
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, StoredObject, read_manifest
from orlog.manifests.names import DatasetName, is_url, parse_name, plain_version

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset


def download_version(
    source: Source, options: TransferOptions = TransferOptions(), *, on_wait: Callable[[], None] = lambda: None
) -> Path:
    """Download what this machine lacks of a version, and return its folder."""
    here = version_folder(source.manifest.name, source.manifest.version)
    if _is_here(here, source.manifest):
        return here
    return _download(source, options, on_wait)


def _download(source: Source, options: TransferOptions, on_wait: Callable[[], None]) -> Path:
    manifest = source.manifest
    destination = datasets_folder() / manifest.name / manifest.version
    with sole_access(destination, on_wait=on_wait):
        if _is_here(destination, manifest):
            return destination
        check_offered(manifest)
        if destination.exists():  # without a manifest: its files were removed by hand
            _repair(destination, source, options)
            return destination
        folder = download_folder(destination)
        part = partial_folder(destination)
        fetch_objects(source, manifest.objects, folder, options, also_here=_files_of_part(part, manifest))
        store = folder / "store"
        with storage_errors(store):
            shutil.rmtree(store, ignore_errors=True)
            for item in manifest.objects:
                link_or_copy(folder / item.sha256, store / item.path)
        # Where it came from is recorded right before the version appears.
        finish_version(store, manifest, destination, accept=lambda _: write_origin(destination, source))
        shutil.rmtree(folder, ignore_errors=True)
        discard_part(part)
        origin_file(part).unlink(missing_ok=True)
    return destination


def _download_part(source: Source, choice: Choice, options: TransferOptions, on_wait: Callable[[], None]) -> Path:
    """Download what is missing of a part of a version, and return the part's folder."""
    manifest = source.manifest
    destination = datasets_folder() / manifest.name / manifest.version
    if manifest.container != "zarr":
        raise SchemaError(
            f"{manifest.name}@{manifest.version}: its container is {manifest.container}, one file "
            "that is downloaded whole; leave out episodes and columns, and choose after loading."
        )
    columns = check_choice(manifest, choice, destination)
    folder = partial_folder(destination)
    with sole_access(destination, on_wait=on_wait):
        if (destination / MANIFEST_FILE).is_file():  # another process has completed it
            return destination
        check_offered(manifest)
        if not (folder / MANIFEST_FILE).is_file():
            _write_manifest(folder, manifest, folder.with_name(f"{folder.name}.manifest"))
        held = {*(read_partial(folder, manifest) or ())}

        def fetch(objects: Sequence[StoredObject], options: TransferOptions) -> None:
            missing = [item for item in objects if item.path not in held]
            kept = download_folder(destination)
            fetch_objects(source, missing, kept, options, also_here=_files_of_part(folder, manifest))
            with storage_errors(folder):
                for item in missing:
                    (folder / item.path).unlink(missing_ok=True)
                    link_or_copy(kept / item.sha256, folder / item.path)
                sync_folders(folder)
                held.update(item.path for item in missing)
                write_partial(folder, manifest, held)
                write_origin(folder, source)
                for item in missing:
                    (kept / item.sha256).unlink(missing_ok=True)

        quiet = TransferOptions(jobs=options.jobs, limiter=options.limiter, patience=options.patience)
        fetch(plain_objects(manifest, columns), quiet)
        fetch(wanted_objects(folder, manifest, columns, choice.episodes), options)
    return folder


def _files_of_part(folder: Path, manifest: Manifest) -> dict[str, Path]:
    files = [(item.sha256, folder / item.path) for item in manifest.objects]
    return {sha256: path for sha256, path in files if path.is_file()}


def _write_manifest(folder: Path, manifest: Manifest, unfinished: Path) -> None:
    with storage_errors(folder):
        make_folder(folder)
        write_durably(unfinished, manifest.to_json().encode())
        unfinished.replace(folder / MANIFEST_FILE)


def download_dataset(
    name: str | Dataset,
    *,
    episodes: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    mirrors: Sequence[str] = (),
    jobs: int = JOBS,
    limiter: Limiter | None = None,
    progress: Progress = lambda _done, _total: None,
    on_objects: Progress = lambda _done, _total: None,
    on_wait: Callable[[], None] = lambda: None,
    on_read: Callable[[], None] = lambda: None,
    on_mirror: Callable[[str], None] = lambda _text: None,
) -> Path:
    """Download what this machine lacks of a version, and return its folder.

    With `episodes` or `columns`, only the files that hold these are downloaded, unless the whole
    version is here; `load_dataset` with the same choice opens them. Without, everything missing is
    downloaded, and a part that then holds every file becomes the version. Third-party files that a
    registry lists are downloaded whole and imported as a version.

    Args:
        name: A dataset's name to look up in the registries (`orlog registry add`), optionally with
            version or digest; or the URL of a version's folder. `orlog.lock` applies.
        episodes: Positions of episodes, such as `range(100)`.
        columns: Optional columns to keep, as `Dataset.select_columns` takes them.
        mirrors: Further places to try first: for a name, URLs of registries; for a URL, URLs of
            the same folder elsewhere.
        jobs: Objects that are transferred at once.
        limiter: Bounds the rate of all transfers together.
        progress: Called with bytes done and bytes in all, from one thread at a time.
        on_objects: Called with files done and files in all, from one thread at a time.
        on_wait: Called once if another process is downloading it.
        on_read: Called after third-party files have arrived, before they are read.
        on_mirror: Called with a sentence about each third-party file that its first mirror did not
            give.

    Raises:
        InvalidNameError, NotFoundError, LockError: as `load_dataset`; no registry has it.
        SchemaError: it has no such episodes, or its container has no parts.
        NotFoundError: it has no such columns.
        SignatureError: a registry must be signed, and a signature is missing or wrong.
        TransferError, IntegrityError, StorageError: as `download_version`.
    """
    options = TransferOptions(jobs=jobs, limiter=limiter, progress=progress, on_objects=on_objects)
    choice = choose(episodes, columns)
    name = as_name(name)
    if is_url(name):
        source: Source = newest_at_url(name, mirrors)
        check_lock(DatasetName(source.manifest.name, digest=source.manifest.digest))
    else:
        wanted = parse_name(as_listed(name))
        pin = check_lock(wanted)
        if pin is not None:
            wanted = DatasetName(wanted.name, pin.version, pin.digest)
        here = _named_here(wanted)
        if here is not None:
            return _checked(here, choice)
        listed = find_source(wanted, mirrors)
        if isinstance(listed, ForeignFileSource):
            imported = download_foreign_file(listed, options, on_wait=on_wait, on_read=on_read, on_mirror=on_mirror)
            return _checked(imported, choice)
        source = listed
    here = version_folder(source.manifest.name, source.manifest.version)
    if choice and _is_here(here, source.manifest):
        return _checked(here, choice)
    if choice:
        part = _download_part(source, choice, options, on_wait)
        if not is_whole(part, source.manifest):
            return part
    return download_version(source, options, on_wait=on_wait)


def repair_dataset(
    folder: Given,
    *,
    mirrors: Sequence[str] = (),
    jobs: int = JOBS,
    limiter: Limiter | None = None,
    progress: Progress = lambda _done, _total: None,
    on_objects: Progress = lambda _done, _total: None,
) -> list[Problem]:
    """Download the damaged files of a stored version again, and return what was wrong.

    Files that do not belong to it are moved out of the folder, not deleted.

    Args:
        folder: The version's folder under ORLOG_HOME, a copy of it, or the folder of a part of it;
            or a dataset or its name.
        mirrors: URLs of the same folder elsewhere, tried first. Then come the places it was
            downloaded from, and the registries.
        jobs: Objects that are transferred at once.
        limiter: Bounds the rate of all transfers together.
        progress: Called with bytes done and bytes in all, from one thread at a time.
        on_objects: Called with files done and files in all, from one thread at a time.

    Raises:
        NotFoundError: it is damaged, and no place is known to download it from.
        IntegrityError: the places offer another version than the one in the folder.
        TransferError: no mirror gave a file; nothing was changed.
        StorageError: the disk cannot be written.
    """
    folder = as_stored_folder(folder, folders_to_repair)
    options = TransferOptions(jobs=jobs, limiter=limiter, progress=progress, on_objects=on_objects)
    with unless_deleted(folder):
        source = _source_of_folder(folder, mirrors)
        if isinstance(source, ForeignFileSource):
            return _read_again(folder, source, options)
        if any(folder.is_relative_to(shared) for shared in dataset_folders()[1:]):
            problems = _find_problems(folder, source.manifest)
            if problems:  # a good copy goes into the user's own home, which takes precedence
                _download(source, options, lambda: None)
            return problems
        with sole_access(version_folder_of(folder)):
            return _repair(folder, source, options)


def _read_again(folder: Path, source: ForeignFileSource, options: TransferOptions) -> list[Problem]:
    problems = verify_folder(folder)[1]
    if problems and folder != datasets_folder() / source.name / source.version:
        raise NotFoundError(
            f"{folder}: a version made from {source.entry.place} can only be repaired in ORLOG_HOME; "
            f"run: orlog download {source.name}@{source.version}"
        )
    if problems:
        download_foreign_file(source, options, replace=True)
    return problems


def _checked(folder: Path, choice: Choice) -> Path:
    """Return the folder of a version that is here, if it has the episodes and columns chosen."""
    check_choice(read_manifest(folder / MANIFEST_FILE), choice, folder)
    return folder


def _named_here(wanted: DatasetName) -> Path | None:
    for version in installed_versions(wanted.name) if wanted.version or wanted.digest else ():
        if plain_version(wanted.version) in ("", plain_version(version)):
            folder = version_folder(wanted.name, version)
            manifest = read_manifest(folder / MANIFEST_FILE)
            is_meant = wanted.digest or wanted.version == manifest.version
            if is_meant and manifest.digest.startswith(wanted.digest):
                return folder
    return None


def _source_of_folder(folder: Path, mirrors: Sequence[str]) -> Source | ForeignFileSource:
    """Return where to download the version in a folder; its own manifest decides, if undamaged."""
    origin = read_origin(folder)
    places = [*plain_urls(mirrors), *(origin.mirrors if origin else ())]
    try:
        manifest = read_manifest(folder / MANIFEST_FILE)
    except IntegrityError:
        if not places:
            raise
        return _source_of_digest(places, "" if origin is None else origin.digest)
    if places:
        return Source(manifest=manifest, mirrors=tuple(places))
    try:
        return find_source(DatasetName(manifest.name, manifest.version, manifest.digest))
    except NotFoundError as error:
        problems = verify_folder(folder)[1]
        if not problems:
            return Source(manifest=manifest, mirrors=())
        again = (
            f"its recipe makes it again: orlog build {manifest.name} --replace"
            if manifest.name in catalogue()
            else f"delete it (orlog delete {manifest.name}@{manifest.version}) and import or record it again, or name a "
            f"copy: mirrors=[URL], --mirror URL; {clause(error)}"
        )
        raise NotFoundError(
            f"{folder}: {len(problems)} of {len(manifest.objects)} files are damaged or missing, and no place is known "
            f"to download them from; {again}"
        ) from error


def _source_of_digest(places: Sequence[str], digest: str) -> Source:
    refused: OrlogError | None = None
    for place in places:
        try:
            manifest = version_at(place).manifest
        except (NotFoundError, TransferError, ManifestError) as error:
            refused = error
            continue
        check_lock(DatasetName(manifest.name, digest=manifest.digest))
        if digest in ("", manifest.digest):
            return Source(manifest=manifest, mirrors=tuple(places))
        refused = IntegrityError(
            f"{place}: holds {manifest.name}@{manifest.version} ({manifest.digest}), but {digest} was "
            "downloaded; nothing was changed.",
            expected=digest,
            found=manifest.digest,
        )
    assert refused is not None
    raise refused


def _repair(folder: Path, source: Source, options: TransferOptions) -> list[Problem]:
    """Repair a version in place; the caller holds the right to write it."""
    manifest = source.manifest
    problems = _find_problems(folder, manifest)
    if problems and problems[0].file == MANIFEST_FILE:
        check_offered(manifest)
        _write_manifest(folder, manifest, folder.with_name(f".{folder.name}.manifest"))
        problems += verify_folder(folder)[1]
    listed = {item.path: item for item in manifest.objects}
    broken = [listed[problem.file] for problem in problems if problem.file in listed]
    kept = download_folder(version_folder_of(folder))
    fetch_objects(source, broken, kept, options, damaged=folder)
    with storage_errors(folder):
        for problem in problems:
            if problem.file not in listed and problem.file != MANIFEST_FILE:
                aside = folder.with_name(f".{folder.name}.strange") / problem.file
                make_folder(aside.parent)
                _rename(folder / problem.file, aside)
        for item in broken:
            if (link := find_link(folder, item.path)) is not None:
                link.unlink()
            target = folder / item.path
            if target.is_dir():
                shutil.rmtree(target)
            temporary = target.with_name(f".{target.name}.good")
            temporary.unlink(missing_ok=True)
            link_or_copy(kept / item.sha256, temporary)
            _rename(temporary, target)
        sync_folders(folder)
        for item in broken:
            (kept / item.sha256).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # what another download left unfinished is kept
        kept.rmdir()
    return problems


def _is_here(destination: Path, manifest: Manifest) -> bool:
    if not (destination / MANIFEST_FILE).is_file():
        return False
    try:
        with unless_deleted(destination):
            here = read_manifest(destination / MANIFEST_FILE).digest
    except NotFoundError:
        return False
    if here != manifest.digest:
        where = f"{manifest.name}@{manifest.version} is offered with another digest than that in {destination}"
        advice = "a version never changes: ask who published it, or move the folder away."
        raise mismatch(where, "", here, manifest.digest, advice)
    return True


def _find_problems(folder: Path, manifest: Manifest) -> list[Problem]:
    try:
        here = read_manifest(folder / MANIFEST_FILE)
    except IntegrityError as error:
        return [Problem(MANIFEST_FILE, "damaged", manifest.digest, clause(error))]
    if here.digest != manifest.digest:
        where = f"{folder}: the source offers another version, {manifest.name}@{manifest.version}"
        raise mismatch(where, "", here.digest, manifest.digest, "nothing was changed.")
    return verify_folder(folder)[1]


def _rename(path: Path, target: Path) -> None:
    path.replace(target)
    path.unlink(missing_ok=True)  # renaming between two links to one file does nothing
