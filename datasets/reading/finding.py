"""Finds stored versions on this machine by name, digest or folder, without opening them."""

from __future__ import annotations

import contextlib
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path

from orlog.base.files import absolute_path
from orlog.datasets.home.folders import (
    datasets_folder,
    installed_names,
    installed_versions,
    is_whole,
    mark_used,
    partial_versions,
    present_objects,
    stored_versions,
    unless_deleted,
    version_folder,
)
from orlog.datasets.home.records import choose_version, read_history, status_message
from orlog.datasets.home.registries import read_registries
from orlog.datasets.reading.views import view_sources
from orlog.errors import FormatVersionError, IntegrityError, ManifestError, NotFoundError, SchemaError
from orlog.manifests.index import ForeignEntry
from orlog.manifests.lock import check_lock
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, not_a_version, read_manifest
from orlog.manifests.names import DatasetName, did_you_mean, either, is_name, mended, nearest, parse_name, versioned
from orlog.manifests.rebuilds import how_to_record, is_rebuild, rebuild_warning, recorded_build
from orlog.manifests.shipped import listed_versions, recorded_manifests, shipped_names

FILES = (".json", ".hdf5", ".h5")


def find_part(wanted: DatasetName) -> Path | None:
    """Return the folder of the newest matching version that was downloaded in part."""
    for version, folder in partial_versions(wanted.name).items():
        is_meant = wanted.version in ("", version)
        if is_meant and read_manifest(folder / MANIFEST_FILE).digest.startswith(wanted.digest):
            return folder
    return None


def pinned(wanted: DatasetName) -> DatasetName:
    """Return the name with the digest that `orlog.lock` pins it to, if it does."""
    pin = check_lock(wanted)
    return wanted if pin is None else DatasetName(wanted.name, "", pin.digest)


def as_folder(name: str | Path) -> Path | None:
    """Return the absolute path if a path is given, or None for a dataset's name."""
    is_path = isinstance(name, Path) or name.startswith(("/", ".", "~")) or name.endswith(FILES)
    if not is_path and (is_name(str(name)) or not _is_there(Path(name))):
        return None
    return absolute_path(name)


def _is_there(path: Path) -> bool:
    with contextlib.suppress(OSError):  # a path too long for any file
        return path.exists()
    return False


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False for a path that is too long."""
    return _is_there(path) and path.is_file()


def holds_manifest(folder: Path) -> bool:
    """Return whether a folder holds a manifest; False for a path that is too long."""
    return _is_there(folder / MANIFEST_FILE)


def find_dataset(name: str | Path) -> Path:
    """Return the folder of a dataset that is on this machine."""
    return find_stored(name)[0]


def find_whole_or_part(name: str) -> Path:
    """Return the folder of a dataset that is on this machine, or of a version downloaded in part."""
    try:
        return find_dataset(name)
    except NotFoundError:
        part = find_part(parse_name(name))
        if part is None:
            raise
        return part


def stored_folders(name: str | Path, find: Callable[[str], Path] = find_dataset) -> list[Path]:
    """Return the folders of the stored versions that a name, folder or view's file stands for; `orlog.lock` applies.

    Only a view's file is opened. Raises ManifestError for a view that is malformed.
    """
    path = as_folder(name)
    if path is None:
        return [find(str(pinned(parse_name(str(name)))))]
    return [find_dataset(source) for source in (view_sources(path) if is_file(path) else [path])]


def folders_to_verify(name: str | Path) -> list[Path]:
    """Return folders as `stored_folders` does, or the folder of a version downloaded in part."""
    return stored_folders(name, find_whole_or_part)


def folders_to_repair(name: str) -> list[Path]:
    """Return folders as `folders_to_verify` does, also of versions whose manifest is missing or damaged."""
    if as_folder(name) is None:
        wanted = parse_name(name)
        for version in stored_versions(wanted.name):
            folder = version_folder(wanted.name, version)
            if wanted.version == version or not (wanted.version or wanted.digest):
                try:
                    read_manifest(folder / MANIFEST_FILE)
                except IntegrityError:
                    return [folder]
    return folders_to_verify(name)


def find_stored(name: str | Path, *, opens: bool = False) -> tuple[Path, Manifest]:
    """Return folder and manifest of a stored version; `opens` marks it as used."""
    folder = as_folder(name)
    if folder is not None:
        if is_file(folder):
            raise SchemaError(not_a_version(folder))
        if not holds_manifest(folder):
            raise NotFoundError(f"{folder}: no dataset: there is no {MANIFEST_FILE} in it.")
        return folder, _read_manifest(folder, opens)
    wanted = parse_name(str(name))
    versions = installed_versions(wanted.name)
    history = read_history(wanted.name)
    if not wanted.version and not wanted.digest:
        newest = choose_version(versions, history)
        candidates = versions[:1] if newest is None else [newest]
    else:
        candidates = [version for version in versions if wanted.version in ("", version)]
    for version in candidates:
        folder = version_folder(wanted.name, version)
        try:
            manifest = _read_manifest(folder, opens)
        except NotFoundError:
            continue
        if (manifest.name, manifest.version) != (wanted.name, version):
            expected, actual = f"{wanted.name}@{version}", f"{manifest.name}@{manifest.version}"
            raise ManifestError(
                f"{folder}: expected {expected}, found {actual}; move the folder away, then run: "
                f"orlog build {wanted.name}",
                file=MANIFEST_FILE,
                expected=expected,
                found=actual,
            )
        if manifest.digest.startswith(wanted.digest):
            message = status_message(wanted.name, version, history)
            if message is not None:
                warnings.warn(message, stacklevel=4)
            if opens and not (wanted.version or wanted.digest) and is_rebuild(manifest):
                warnings.warn(rebuild_warning(manifest), stacklevel=4)
            return folder, manifest
    part = find_part(wanted)
    if part is not None:
        manifest = read_manifest(part / MANIFEST_FILE)
        if is_whole(part, manifest):
            return part, manifest
    raise NotFoundError(_why_not_here(wanted, versions, part))


def _read_manifest(folder: Path, opens: bool) -> Manifest:
    if opens:  # before reading it, so that a process that removes versions sees it in time
        mark_used(folder)
    with unless_deleted(folder):
        return read_manifest(folder / MANIFEST_FILE)


def read_installed(name: str) -> list[Manifest]:
    """Return the manifests of a dataset's versions on this machine, newest first, if readable."""
    manifests = []
    for version in installed_versions(name):
        with contextlib.suppress(IntegrityError, FormatVersionError):
            manifests.append(read_manifest(version_folder(name, version) / MANIFEST_FILE))
    return manifests


def known_names() -> set[str]:
    """Return the names of all datasets that orlog builds or lists, and of those here."""
    built = {manifest.name for manifest in recorded_manifests() if manifest.recipe is not None}
    return {*built, *installed_names(), *shipped_names()}


def near_names(text: str) -> str:
    """Return a sentence with the known names that a text which is no name may mean."""
    wanted, known = text.lower().partition("@")[0], known_names()
    # A name of the Hugging Face Hub, such as lerobot/pusht, has another first part and no version.
    owner, _, last = wanted.rpartition("/")
    if owner == "lerobot":
        return f" {how_to_fetch_lerobot(wanted)}"
    if versioned(wanted) == wanted:
        close = nearest(wanted, sorted(known))
    else:
        close = [name for name in sorted(known) if name.rpartition("/")[2].startswith(f"{last}-v")]
    search = f" To find names like it, run: orlog list --remote --search {shlex.quote(last)}"
    # In a group of the user's own, other groups' names are not meant.
    group, others = f"{wanted.partition('/')[0]}/", known.difference(installed_names())
    if owner and not any(name.startswith(group) for name in others):
        close = [name for name in close if name.startswith(group)]
        meant = mended(text)
        if meant and not close:
            return f" Did you mean {meant}?{search}"
    return f" Did you mean {either(close[:3])}?" if close else search


def how_to_fetch(name: str, entry: ForeignEntry) -> str:
    """Return a sentence with the line that brings and imports a listed folder."""
    if entry.hub_folder:
        return how_to_fetch_lerobot(entry.hub_folder)
    folder = name.rpartition("/")[2]
    read = f"orlog import {folder} lab/{folder.removesuffix('-v0')}-v1"
    if not entry.url.endswith(f"/{folder}/"):
        return f"No server has its files; make them as {entry.url} says, then: {read}"
    levels = entry.url.count("/") - 4
    return (
        f"A folder of files: wget -r -np -nH --cut-dirs={levels} -A '*.npz' {entry.url} && {read} (some of the files "
        "are a dataset, too)"
    )


def how_to_fetch_lerobot(repository: str) -> str:
    """Return a sentence with the line that brings and imports a dataset of LeRobot, such as `lerobot/pusht`."""
    last = repository.rpartition("/")[2]
    folder, name = shlex.quote(last), shlex.quote(f"lab/{last.replace('_', '-')}-v1")
    return (
        "LeRobot's datasets are folders of the Hugging Face Hub: hf download --repo-type dataset "
        f"{shlex.quote(repository)} --local-dir {folder} && orlog import {folder} {name}"
    )


def _why_not_here(wanted: DatasetName, versions: list[str], part: Path | None) -> str:
    """Return why a dataset is not found, and what brings it."""
    absent = f"{wanted} is not on this machine"
    if part is not None:
        manifest = read_manifest(part / MANIFEST_FILE)
        here = len(present_objects(part, manifest))
        return (
            f"only a part of {wanted} is on this machine ({here} of {len(manifest.objects)} "
            f"files); run: orlog download {wanted} (or name the episodes or columns)."
        )
    recorded = recorded_build(wanted.name, wanted.version)
    if recorded is not None and (recorded.recipe is None or not recorded.digest.startswith(wanted.digest)):
        recorded = None
    if recorded is not None and wanted.version not in ("", recorded.version):
        recorded = None
    if versions:
        others = ", ".join(f"{wanted.name}@{version}" for version in versions)
        if recorded is None:
            return f"{absent}; its versions here are: {others}."
        how = how_to_record(recorded, read_installed(wanted.name))
        return f"{absent}; for the recorded build {how}. What is here is other data: {others}."
    listed = listed_versions(wanted.name)
    entry = next(iter(listed.values()), None)
    if entry is not None and entry.is_folder:
        return f"{absent}. {how_to_fetch(wanted.name, entry)}"
    if listed or recorded is not None:
        what = "download" if listed else "build"
        return f'{absent} yet; run: orlog {what} {wanted} (or in Python: orlog.load_dataset("{wanted}", {what}=True)).'
    recordings = sorted((datasets_folder() / wanted.name).glob(".*.recording/journal.json"))
    if recordings:
        return (
            f"{wanted} is not finished: its recording in {recordings[0].parent} still runs or was "
            "interrupted. Ending it makes the version; orlog.record(.., resume=True) or the writer goes on."
        )
    newest = recorded_build(wanted.name, "")
    if newest is not None and newest.recipe is not None:
        return f"{wanted} is not known; the recipe of this orlog builds version {newest.version}."
    names = [registry.name for registry in read_registries()]
    why = f"{wanted.name} is not {'on this machine' if names else 'known'}"
    why += did_you_mean(wanted.name, known_names()) or "."
    if names:
        why += f" If it is in a registry of yours ({', '.join(names)}), run: orlog download {wanted}."
    return f"{why} To see all, run: orlog list"
