"""Where a version on this machine was downloaded from, kept next to its folder.

    $ORLOG_HOME/datasets/NAME/.VERSION.origin.json

`orlog verify --repair` tries these places first. Only versions with such a file count as downloadable again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import msgspec

from orlog.manifests.documents import read_json_file, replace_json_file
from orlog.manifests.manifest import Manifest


class Origin(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Where a version was downloaded from.

    Attributes:
        digest: Digest of its manifest at that time.
        mirrors: URLs of the version's folder.
        registry: Registry that offered it; empty if it was given by URL.
        signed_by: Key that signed the manifest; empty where none was required.
        audit: `skipped` if the registry says that it was published without an audit.
    """

    origin_version: Literal[1]
    digest: str
    mirrors: list[str]
    registry: str
    signed_by: str
    audit: Literal["skipped"] | None = None


def origin_file(folder: Path) -> Path:
    """Return the file for a version's folder; it need not exist."""
    return folder.with_name(f".{folder.name}.origin.json")


def was_downloaded(folder: Path) -> bool:
    """Return whether it is known where a version was downloaded from."""
    return origin_file(folder).is_file()


def read_origin(folder: Path) -> Origin | None:
    """Return where a version was downloaded from; None if it was not downloaded.

    Raises ManifestError if the file is malformed; FormatVersionError if it was written by a newer orlog.
    """
    path = origin_file(folder)
    if not path.is_file():
        return None
    repair = "delete the file, and give --mirror URL"
    return read_json_file(path, Origin, version=("origin_version", 1), repair=repair)


def write_origin(folder: Path, source: Source) -> None:
    """Record where a version was downloaded from.

    Raises StorageError if the file cannot be written.
    """
    origin = Origin(
        origin_version=1,
        digest=source.manifest.digest,
        mirrors=list(source.mirrors),
        registry=source.registry,
        signed_by=source.signed_by,
        audit=source.audit,
    )
    replace_json_file(origin_file(folder), msgspec.to_builtins(origin))


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
