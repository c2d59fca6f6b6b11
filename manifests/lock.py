"""`orlog.lock`: which version of each dataset a project uses, kept next to its code.

    {
      "datasets": {
        "pointmaze/umaze-v1": {"digest": "sha256:..", "version": "1.0.0"}
      },
      "lock_version": 1
    }

Commit it. The nearest one in the working folder or above it applies. The environment variable
ORLOG_LOCK names another one instead; if it is empty or `0`, none applies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from orlog.errors import InvalidNameError, LockError
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer
from orlog.manifests.names import DatasetName, is_version, parse_name

LOCK_FILE = "orlog.lock"


class LockedDataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The version that a name is pinned to.

    Attributes:
        version: Content version.
        digest: `sha256:` and the 64 digits of the manifest's digest, which has to match.
    """

    version: str
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]

    def __post_init__(self) -> None:
        """Refuse anything but a content version."""
        if not is_version(self.version):
            raise ValueError(f"{self.version[:60]!r} is not a content version such as 1.0.0.")


class _Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    lock_version: Literal[1]
    datasets: dict[str, LockedDataset]

    def __post_init__(self) -> None:
        for name in self.datasets:
            _check_name(name)


def find_lock(start: Path | None = None) -> Path | None:
    """Return the lock file that applies in a folder, the working folder by default.

    ORLOG_LOCK takes precedence; the file that it names need not exist yet.
    """
    chosen = os.environ.get("ORLOG_LOCK")
    if chosen is not None:
        return None if chosen.strip() in ("", "0") else Path(chosen).expanduser().absolute()
    try:
        folder = (start or Path.cwd()).absolute()
    except FileNotFoundError:  # the working folder was removed
        return None
    for parent in (folder, *folder.parents):
        if os.access(parent, os.X_OK) and (parent / LOCK_FILE).is_file():
            return parent / LOCK_FILE
    return None


def read_lock(path: Path) -> dict[str, LockedDataset]:
    """Return the pins of a lock file, by name without version.

    Raises ManifestError if the file is missing or malformed; FormatVersionError if it was written by a newer
    orlog.
    """
    repair = "restore the file (resolve merge conflicts first), or delete it and pin again with `orlog lock`"
    return read_json_file(path, _Lock, version=("lock_version", 1), repair=repair).datasets


def write_lock(path: Path, entries: Mapping[str, LockedDataset]) -> None:
    """Pin names in a lock file, which is created if missing; pins of other names stay.

    Two processes may pin at once. Equal pins give equal bytes.

    Raises InvalidNameError if a name does not follow the grammar, or has a version in it; ManifestError if
    the existing file is malformed; it stays; FormatVersionError if it was written by a newer orlog; it stays;
    StorageError if the file cannot be written.
    """
    for name in entries:
        _check_name(name)
    path = path.resolve()  # so that a symbolic link stays one
    with sole_writer(path):
        there = read_lock(path) if path.exists() else {}
        lock = _Lock(lock_version=1, datasets={**there, **entries})
        replace_json_file(path, msgspec.to_builtins(lock))


def check_lock(wanted: DatasetName, path: Path | None = None) -> LockedDataset | None:
    """Return the pin that applies to a name as the user gave it; None if none does.

    A name without a version means the pinned one. To check a dataset that was opened, pass its whole digest:
    `check_lock(DatasetName(name, digest=manifest.digest))`. The lock is that of `find_lock` by default; a
    LockError says that it pins another version or digest.
    """
    path = path or find_lock()
    pin = read_lock(path).get(wanted.name) if path is not None else None
    if pin is None:
        return None
    if wanted.version in ("", pin.version) and pin.digest.startswith(wanted.digest):
        return pin
    expected = f"{wanted.name}@{pin.version} ({pin.digest})"
    option = "--update --rebuild" if "+" in wanted.version else "--update"
    raise LockError(
        f"{wanted} is not what {path} pins: {expected}; to move the pin run: orlog lock {option} {wanted}",
        file=str(path),
        expected=expected,
        found=str(wanted),
    )


def _check_name(text: str) -> None:
    name = parse_name(text)
    if str(name) != name.name:
        raise InvalidNameError(f"{text}: a lock file pins names without a version; give {name.name}.")
