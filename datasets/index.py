"""The index of a registry: which versions of which datasets it holds.

    index.json = {"index_version": 1, "serial": 7, "datasets": {NAME: {VERSION: {"digest": ..}}}}

The serial grows by one with each change, so that an older index is known as such. Reading is
strict: unknown, missing or repeated keys, wrong types and names that are none are errors.
"""

from __future__ import annotations

import json
import threading
from typing import Annotated

import msgspec
from msgspec import Meta

from orlog.datasets.manifest import Count, Manifest, parse_json
from orlog.datasets.names import is_version, parse_name
from orlog.errors import FormatVersionError, InvalidNameError, ManifestError, VersionExistsError

__all__ = [
    "INDEX_FILE",
    "LARGEST_INDEX",
    "Index",
    "IndexEntry",
    "index_from_json",
]

INDEX_FILE = "index.json"
INDEX_VERSION = 1
LARGEST_INDEX = 64 * 2**20
_converting = threading.Lock()


class IndexEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One version of a dataset.

    Attributes:
        digest: Digest of its manifest, `sha256:` and 64 hex digits.
        size_bytes: Size of all its objects together.
        episodes: Number of episodes.
        steps: Number of steps.
    """

    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    size_bytes: Count
    episodes: Count
    steps: Count


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every version that a registry holds.

    Attributes:
        index_version: Version of this JSON's layout.
        serial: Grows by one with each change; who saw one refuses a smaller one later.
        datasets: Entries by name and version.
    """

    index_version: int = INDEX_VERSION
    serial: Count = 0
    datasets: dict[str, dict[str, IndexEntry]] = {}

    def __post_init__(self) -> None:
        """Refuse what the types alone let through.

        Raises:
            ManifestError: a name or version that is none, or a name without a version.
        """
        for name, versions in self.datasets.items():
            try:
                is_name = parse_name(name).name == name
            except InvalidNameError:
                is_name = False
            if not is_name or not versions:
                raise ManifestError(f"{name!r} is not a dataset name with versions")
            for version in versions:
                if not is_version(version):
                    raise ManifestError(f"{name}: {version!r} is not a content version")

    def entry(self, name: str, version: str) -> IndexEntry | None:
        """Return what is said of a version, or None."""
        return self.datasets.get(name, {}).get(version)

    def with_version(self, manifest: Manifest) -> Index:
        """Return the next index, which lists one version more; the same one if it is listed.

        Raises:
            VersionExistsError: the version is listed with another digest.
            ManifestError: the serial cannot grow any more.
        """
        name, version = manifest.name, manifest.version
        listed = self.entry(name, version)
        if listed is not None and listed.digest != manifest.digest:
            raise VersionExistsError(
                f"{name}@{version}: the index lists it with {listed.digest}, this is "
                f"{manifest.digest}; a version never changes: publish it under a new version"
            )
        if listed is not None:
            return self
        if self.serial >= 2**53:
            raise ManifestError(f"serial {self.serial} of the index cannot grow; restore the index")
        entry = IndexEntry(
            digest=manifest.digest,
            size_bytes=manifest.size_bytes,
            episodes=manifest.total_episodes,
            steps=manifest.total_steps,
        )
        versions = {**self.datasets.get(name, {}), version: entry}
        return Index(serial=self.serial + 1, datasets={**self.datasets, name: versions})

    def to_json(self) -> bytes:
        """Return the bytes of `index.json`: keys sorted, so equal indexes have equal bytes."""
        body = msgspec.to_builtins(self)
        return (json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def index_from_json(data: bytes, where: str) -> Index:
    """Return the index in the bytes of an `index.json`; `where` names their origin in errors.

    Raises:
        ManifestError: it is too large or malformed.
        FormatVersionError: it was written by a newer orlog.
    """
    if len(data) > LARGEST_INDEX:
        raise ManifestError(f"{where}: over {LARGEST_INDEX} bytes is too large for an index")
    try:
        body = parse_json(data.decode())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: not the JSON of an index: {error}") from error
    if not isinstance(body, dict):
        raise ManifestError(f"{where}: an index is a JSON object")
    version = body.get("index_version")
    if isinstance(version, int) and version > INDEX_VERSION:
        raise FormatVersionError(
            f"{where}: index_version {version} is newer than this orlog reads ({INDEX_VERSION}); "
            "run: pip install --upgrade orlog"
        )
    missing = {"index_version", "serial", "datasets"} - body.keys()
    if missing:
        raise ManifestError(f"{where}: the index has no {', '.join(sorted(missing))}")
    try:
        # msgspec (0.22) can crash where two threads are the first to use a type.
        with _converting:
            index = msgspec.convert(body, Index, strict=True)
    except RecursionError as error:
        raise ManifestError(f"{where}: nested too deeply") from error
    except msgspec.ValidationError as error:
        cause = error.__cause__
        raise ManifestError(
            f"{where}: {cause if isinstance(cause, ManifestError) else error}"
        ) from None
    if index.index_version != INDEX_VERSION:
        raise ManifestError(f"{where}: index_version {index.index_version} does not exist")
    return index
