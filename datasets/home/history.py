"""The status of a dataset's versions, given after they were made: superseded or yanked, and why.

    $ORLOG_HOME/datasets/NAME/versions.json      statuses set on this machine; they take precedence
    manifests/NAME/versions.json                 what ships with orlog

    {"history_version": 1, "versions": {"1.0.0": {"status": "yanked", "reason": "..", "use": ".."}}}

Manifests never change, so this is a separate file. A superseded version is sound, but there is a
better one. A yanked version should not be used; it still opens if its version is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from orlog.datasets.home.folders import datasets_folder, installed_versions, version_folder
from orlog.datasets.home.presence import partial_versions
from orlog.errors import InvalidNameError, NotFoundError
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.manifests.names import is_version, newest_first, parse_name
from orlog.manifests.shipped import recorded_folder, recorded_manifest
from orlog.manifests.status import History, VersionStatus, check_version

HISTORY_FILE = "versions.json"


def read_history(name: str) -> dict[str, VersionStatus]:
    """Return the status of a dataset's versions; those without one are fine.

    Raises InvalidNameError if the name does not follow the grammar, or has a version in it; ManifestError if
    a file is malformed; FormatVersionError if a file was written by a newer orlog.
    """
    return {**_read(recorded_folder(_plain_name(name)) / HISTORY_FILE), **_read(_home_file(name))}


def known_versions(name: str) -> dict[str, tuple[Manifest, Path | None]]:
    """Return each version that is here, even in part, or ships with orlog, newest first.

    Returns:
        Manifest, and the folder that the version or a part of it is in; None if it is not here.

    Raises ManifestError if a manifest is malformed.
    """
    shipped = [path.stem for path in recorded_folder(name).glob("*.json") if is_version(path.stem)]
    folders: dict[str, Path | None] = dict.fromkeys(shipped)
    folders |= partial_versions(name)
    folders |= {version: version_folder(name, version) for version in installed_versions(name)}
    found = {}
    for version in newest_first(folders):
        folder = folders[version]
        manifest = (
            recorded_manifest(name, version)
            if folder is None
            else read_manifest(folder / MANIFEST_FILE)
        )
        assert manifest is not None
        found[version] = (manifest, folder)
    return found


def set_status(
    name: str, version: str, status: Literal["superseded", "yanked"], *, reason: str, use: str = ""
) -> None:
    """Set the status of a version on this machine, replacing the one set before.

    Raises InvalidNameError if the name, or `use`, does not follow the grammar; ValueError for an invalid
    version or status, a missing reason, or a version to be used in place of itself; ManifestError if the
    existing file is malformed; it stays; StorageError if the file cannot be written.
    """
    if status not in ("superseded", "yanked"):
        raise ValueError(f"a version is superseded or yanked, found {status!r}.")
    entry = VersionStatus(status=status, reason=reason, use=use)
    check_version(version, entry)
    path = _home_file(name)
    with sole_writer(path):
        _write(path, {**_read(path), version: entry})


def clear_status(name: str, version: str) -> None:
    """Remove the status set on this machine; the one that ships with orlog applies again.

    Raises NotFoundError if no status of this version was set on this machine; InvalidNameError if the name
    does not follow the grammar; ManifestError if the existing file is malformed; it stays; StorageError if
    the file cannot be written.
    """
    path = _home_file(name)
    if version not in _read(path):
        raise NotFoundError(f"{path}: no status of {name}@{version} is recorded on this machine.")
    with sole_writer(path):
        _write(path, {key: value for key, value in _read(path).items() if key != version})


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


def _plain_name(text: str) -> str:
    name = parse_name(text)
    if str(name) != name.name:
        raise InvalidNameError(f"{text}: expected a name without a version.")
    return name.name


def _home_file(name: str) -> Path:
    return datasets_folder() / _plain_name(name) / HISTORY_FILE


def _read(path: Path) -> dict[str, VersionStatus]:
    if not path.exists():
        return {}
    repair = "repair or delete the file"
    return read_json_file(path, History, version=("history_version", 1), repair=repair).versions


def _write(path: Path, versions: dict[str, VersionStatus]) -> None:
    history = History(history_version=1, versions=versions)
    replace_json_file(path, msgspec.to_builtins(history))
