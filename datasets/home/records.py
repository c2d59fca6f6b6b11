"""What is known of versions beside their folders: where they came from, status, meaning, which files are intact.

    $ORLOG_HOME/datasets/NAME/.VERSION.origin.json  where it was downloaded from
    $ORLOG_HOME/datasets/NAME/versions.json         statuses set on this machine; they take precedence over
    manifests/NAME/versions.json                    those that ship with orlog
    $ORLOG_HOME/verified/KEY.json                   files that an earlier verification found intact;
                                                    KEY: the start of the SHA-256 of the store's path

Manifests never change, so a status is a file of its own. A superseded version is sound, but there is a
better one. A yanked version should not be used; it still opens if its version is given. What a name and version mean
is known from the homes of this machine, which hold whole versions or parts, from what ships, and from `orlog.lock`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from orlog.datasets.home.folders import (
    dataset_folders,
    datasets_folder,
    installed_versions,
    partial_folder,
    partial_versions,
    stored_versions,
    version_folder,
)
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    InvalidNameError,
    NotFoundError,
    OrlogError,
    VersionExistsError,
)
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer
from orlog.manifests.index import ForeignEntry, History, VersionStatus, check_version
from orlog.manifests.lock import find_lock, read_lock
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.manifests.names import is_version, newest_first, parse_name, version_parts
from orlog.manifests.shipped import listed_versions, recorded_folder, recorded_manifest

HISTORY_FILE = "versions.json"
SETTLED_NS = 2 * 10**9
MOST_FILES = 100_000  # as many as a small JSON file holds

# Size, mtime_ns, ctime_ns, inode.
Stamp: TypeAlias = tuple[int, int, int, int]


# --- where it was downloaded from


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The `Source` that a version was downloaded from, with the digest that its manifest had."""

    origin_version: Literal[1]
    digest: str
    mirrors: list[str]
    registry: str
    signed_by: str
    audit: Literal["skipped"] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a version can be downloaded from.

    Attributes:
        manifest: What it is.
        mirrors: URLs of the version's folder, in the order in which they are tried.
        registry: Registry that offers it; empty if it was given by URL.
        signed_by: Key that signed the manifest; empty where none was required.
        audit: `skipped` if the registry says that it was published without an audit.
    """

    manifest: Manifest
    mirrors: tuple[str, ...]
    registry: str = ""
    signed_by: str = ""
    audit: Literal["skipped"] | None = None


def origin_file(folder: Path) -> Path:
    """Return the file for a version's folder; it need not exist."""
    return folder.with_name(f".{folder.name}.origin.json")


def was_downloaded(folder: Path) -> bool:
    """Return whether it is known where a version was downloaded from."""
    return origin_file(folder).is_file()


def read_origin(folder: Path) -> Origin | None:
    """Return where a version was downloaded from; None if it was not downloaded."""
    path = origin_file(folder)
    if not path.is_file():
        return None
    repair = "delete the file, and give --mirror URL"
    return read_json_file(path, Origin, version=("origin_version", 1), repair=repair)


def write_origin(folder: Path, source: Source) -> None:
    """Record where a version was downloaded from."""
    origin = Origin(
        origin_version=1,
        digest=source.manifest.digest,
        mirrors=list(source.mirrors),
        registry=source.registry,
        signed_by=source.signed_by,
        audit=source.audit,
    )
    replace_json_file(origin_file(folder), msgspec.to_builtins(origin))


# --- the status of versions


def read_history(name: str) -> dict[str, VersionStatus]:
    """Return the status of a dataset's versions; those without one are fine."""
    own = _statuses_here(name)
    return {**_read_statuses(recorded_folder(name) / HISTORY_FILE), **_read_statuses(own)}


def known_versions(name: str) -> dict[str, tuple[Manifest, Path | None]]:
    """Return each version that is here, even in part, or ships with orlog, newest first."""
    shipped = [path.stem for path in recorded_folder(name).glob("*.json") if is_version(path.stem)]
    folders: dict[str, Path | None] = dict.fromkeys(shipped)
    folders |= partial_versions(name)
    folders |= {version: version_folder(name, version) for version in installed_versions(name)}
    versions = {}
    for version in newest_first(folders):
        folder = folders[version]
        if folder is None:
            manifest = recorded_manifest(name, version)
            assert manifest is not None
        else:
            manifest = read_manifest(folder / MANIFEST_FILE)
        versions[version] = (manifest, folder)
    return versions


def set_status(name: str, version: str, status: Literal["superseded", "yanked"], *, reason: str, use: str = "") -> None:
    """Set the status of a version on this machine, replacing the one set before."""
    if status not in ("superseded", "yanked"):
        raise ValueError(f"a version is superseded or yanked, found {status!r}.")
    entry = VersionStatus(status=status, reason=reason, use=use)
    check_version(version, entry)
    _change_status(name, version, entry)


def clear_status(name: str, version: str) -> None:
    """Remove the status set on this machine; the one that ships with orlog applies again."""
    path = _statuses_here(name)
    if version not in _read_statuses(path):
        raise NotFoundError(f"{path}: no status of {name}@{version} is recorded on this machine.")
    _change_status(name, version, None)


def choose_version(versions: list[str], history: Mapping[str, VersionStatus]) -> str | None:
    """Return the newest version that is not yanked, of versions newest first; None if all are."""
    for version in versions:
        if version not in history or history[version].status != "yanked":
            return version
    return None


def status_message(name: str, version: str, history: Mapping[str, VersionStatus]) -> str | None:
    """Return a line with a version's status and what to use instead; None if it has none."""
    entry = history.get(version)
    if entry is None:
        return None
    instead = f"{name}@{entry.use}" if is_version(entry.use) else entry.use
    advice = f"; use {instead}" if instead else ""
    return f"{name}@{version} was {entry.status}: {entry.reason.removesuffix('.')}{advice}."


def _statuses_here(name: str) -> Path:
    if parse_name(name).name != name:
        raise InvalidNameError(f"{name}: expected a name without a version.")
    return datasets_folder() / name / HISTORY_FILE


def _read_statuses(path: Path) -> dict[str, VersionStatus]:
    if not path.exists():
        return {}
    repair = "repair or delete the file"
    return read_json_file(path, History, version=("history_version", 1), repair=repair).versions


def _change_status(name: str, version: str, entry: VersionStatus | None) -> None:
    path = _statuses_here(name)
    with sole_writer(path):
        others = {key: value for key, value in _read_statuses(path).items() if key != version}
        versions = others if entry is None else {**others, version: entry}
        replace_json_file(path, msgspec.to_builtins(History(history_version=1, versions=versions)))


# --- what a name and version mean: one digest only, when a version enters a home or registry


def known_manifests(name: str, version: str, *, shipped: bool = True) -> Iterator[tuple[str, Manifest]]:
    """Yield (where a version is known from, its manifest); unreadable manifests are skipped."""
    for root in dataset_folders():
        folder = root / name / version
        for place in (folder, partial_folder(folder)):
            with contextlib.suppress(IntegrityError, FormatVersionError):
                yield str(place), read_manifest(place / MANIFEST_FILE)
    recorded = recorded_manifest(name, version) if shipped else None
    if recorded is not None:
        yield "what ships with orlog", recorded


def check_unused(name: str, version: str, *, is_listed: bool = False) -> None:
    """Refuse a name and version that are already in use, before new data are written for them."""
    for where, known in known_manifests(name, version):
        raise VersionExistsError(
            f"{name}@{version} is already {known.digest} ({where}), and a version never changes",
            free=free_version(name),
        )
    entry = None if is_listed else _shipped_file(name, version)
    if entry is not None:
        raise VersionExistsError(
            f"{name}@{version} is already the file {entry.place}, which orlog lists, and a version "
            "never changes; give another name or version."
        )


def free_version(name: str) -> str:
    """Return the next version of a name after those that are here or that orlog knows, as NAME@VERSION."""
    major, minor, _ = max(
        version_parts(version)[0] for version in (*stored_versions(name), *listed_versions(name), "1.0.0")
    )
    return f"{name}@{major}.{minor + 1}.0"


def check_unchanged(manifest: Manifest, *, shipped: bool = True) -> None:
    """Refuse a version whose name and version mean other bytes on this machine, or, if asked, as `shipped`."""
    for where, digest in _others(manifest, shipped=shipped):
        raise VersionExistsError(
            f"{manifest.name}@{manifest.version}: this is {manifest.digest}, but {where} has "
            f"it as {digest}, and a version never changes; delete the other one first, or store this one "
            f"under another version: orlog save {manifest.name}@{manifest.version} {free_version(manifest.name)}"
        )


def check_offered(manifest: Manifest) -> None:
    """Refuse a version from elsewhere whose name and version mean other bytes on this machine."""
    for where, digest in _others(manifest, shipped=True):
        raise IntegrityError(
            f"{manifest.name}@{manifest.version}: {manifest.digest} is offered, but {where} "
            f"has it as {digest}, and a version never changes; ask who published it, or move "
            "the other one away.",
            expected=digest,
            found=manifest.digest,
        )


def check_linked(name: str, version: str, entry: ForeignEntry) -> None:
    """Refuse to list a file under a name and version that mean something else on this machine."""
    file = _shipped_file(name, version)
    if file is not None and [(part.url, part.sha256) for part in file.each] != [
        (part.url, part.sha256) for part in entry.each
    ]:
        raise VersionExistsError(
            f"{name}@{version} is already the file {file.place}, which orlog lists, and a version "
            "never changes; link the file under another name or version."
        )
    for where, known in known_manifests(name, version):
        origin = known.lineage[0] if known.lineage else None
        if origin is None or not (
            origin.digest == f"sha256:{entry.sha256}"
            or origin.operation.startswith(f"read {entry.format} from {entry.place}")
        ):
            raise VersionExistsError(
                f"{name}@{version} is already {known.digest} ({where}), which was not read from "
                f"{entry.place}, and a version never changes; link the file under another version."
            )


def _others(manifest: Manifest, *, shipped: bool) -> Iterator[tuple[str, str]]:
    """Yield what else a manifest's name and version mean: where, and the digest or file."""
    name, version = manifest.name, manifest.version
    for where, known in known_manifests(name, version, shipped=shipped):
        if known.digest != manifest.digest:
            yield where, known.digest
    entry = _shipped_file(name, version)
    operation = manifest.lineage[0].operation if manifest.lineage else ""
    if entry is not None and not operation.startswith(f"read {entry.format} from {entry.place}"):
        yield "what ships with orlog", f"the file {entry.place}"
    path = find_lock()
    pin = read_lock(path).get(name) if path is not None and path.exists() else None
    if pin is not None and pin.version == version and pin.digest != manifest.digest:
        yield str(path), pin.digest


def _shipped_file(name: str, version: str) -> ForeignEntry | None:
    """Return the foreign file that orlog itself lists under a name and version, or None."""
    listed = listed_versions(name)
    if version in listed:
        return listed[version]
    newest = newest_first([*listed, version])[0]
    return listed[newest] if newest != version and listed[newest].sha256 else None


# --- files that were found intact


class _Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The files of a store that were read and had the SHA-256 of the manifest with this digest."""

    verified_version: Literal[1]
    folder: str
    digest: str
    files: dict[str, Stamp]


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the properties that change when a file does."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def is_settled(stamp: Stamp, now_ns: int) -> bool:
    """Return whether a file was old enough at `now_ns` for any later change to alter its stamp."""
    _, modified, changed, _ = stamp
    return max(modified, changed) <= now_ns - SETTLED_NS


def remembered_files(folder: Path, digest: str) -> dict[str, Stamp]:
    """Return the stamps of files that were found intact, by path inside the store."""
    with contextlib.suppress(OrlogError, RuntimeError):
        path, text = _verified_file(folder)
        if path.exists():
            version, repair = ("verified_version", 1), "remove it"
            record = read_json_file(path, _Verified, version=version, repair=repair)
            if (record.folder, record.digest) == (text, digest):
                return record.files
    return {}


def remember_files(folder: Path, digest: str, files: Mapping[str, Stamp]) -> None:
    """Replace the record of verified files; a read-only home is not an error."""
    if len(files) > MOST_FILES:
        return
    with contextlib.suppress(OrlogError, RuntimeError):
        path, text = _verified_file(folder)
        with sole_writer(path):
            body = {"verified_version": 1, "folder": text, "digest": digest, "files": files}
            replace_json_file(path, body)


def _verified_file(folder: Path) -> tuple[Path, str]:
    """Return the record of a store, and the store's path as text; RuntimeError without a home folder."""
    path = os.fsencode(folder.resolve())
    name = hashlib.sha256(path).hexdigest()[:32]
    return datasets_folder().parent / "verified" / f"{name}.json", path.decode("utf-8", "backslashreplace")
