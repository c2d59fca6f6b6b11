"""Where a version can be had: which registry offers it, its manifest, and the mirrors of its files.

A registry is a folder that any static file server can serve (`datasets/publish.py` writes it):

    index.json, index.json.sig              which versions there are, and their digests
    NAME/VERSION/manifest.json(.sig)        and beside it the objects that the manifest lists

Registries are asked in their order and the first one that has the name answers. One that does not
answer ends the search unless the digest is known: the next one could mean other data by the name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Sequence

from orlog.datasets.history import choose_version, read_history
from orlog.datasets.index import (
    INDEX_FILE,
    LARGEST_INDEX,
    Index,
    index_from_json,
)
from orlog.datasets.manifest import (
    LARGEST_MANIFEST,
    MANIFEST_FILE,
    Manifest,
    manifest_from_text,
)
from orlog.datasets.names import DatasetName, did_you_mean, newest_first
from orlog.datasets.registries import Registry, check_serial, read_registries
from orlog.datasets.signatures import LARGEST_SIGNATURE, SIGNATURE_SUFFIX, check_signature
from orlog.datasets.transport import read_small
from orlog.errors import (
    IntegrityError,
    NotFoundError,
    SignatureError,
    TransferError,
)

__all__ = ["Source", "find_source", "source_of_url"]

PAUSE = 0.5  # seconds
WHOLE_DIGEST = len("sha256:") + 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a version can be had.

    Attributes:
        manifest: What it is.
        mirrors: URLs of the version's folder, in the order in which they are tried.
        registry: Which registry offers it; empty for one that was given by URL.
        signed_by: Key that signed the manifest; empty where none was asked for.
    """

    manifest: Manifest
    mirrors: tuple[str, ...]
    registry: str = ""
    signed_by: str = ""


def source_of_url(url: str, mirrors: Sequence[str] = ()) -> Source:
    """Return the version whose folder, or manifest, is at a URL; mirrors are folders like it.

    Raises:
        NotFoundError: there is no manifest.
        TransferError: it cannot be read.
        ManifestError: it is no manifest.
    """
    base = url.rstrip("/").removesuffix(f"/{MANIFEST_FILE}")
    where = f"{base}/{MANIFEST_FILE}"
    manifest = manifest_from_text(read_small(where, LARGEST_MANIFEST), where)
    return Source(manifest=manifest, mirrors=(*_trimmed(mirrors), base))


def find_source(wanted: DatasetName, mirrors: Sequence[str] = ()) -> Source:
    """Return what the first registry offers that has the name.

    Args:
        wanted: Name, perhaps with a version or a digest; without, the newest version that this
            machine does not know to be yanked.
        mirrors: Further URLs of registries with the same tree, tried first.

    Raises:
        NotFoundError: no registry has it.
        TransferError: a registry cannot be read.
        SignatureError: a registry promises signatures, and one is missing, wrong or of the past.
        IntegrityError: a manifest is not the one that the index names.
    """
    registries = read_registries()
    if not registries:
        raise NotFoundError(
            f"{wanted}: no registry is known to ask; run: orlog registry add NAME URL, or give the "
            "URL of the version"
        )
    asked = []
    unreachable: TransferError | NotFoundError | None = None
    for registry in registries:
        try:
            index = _read_index(registry)
        except (TransferError, NotFoundError) as error:
            if len(wanted.digest) < WHOLE_DIGEST:
                raise TransferError(
                    f"{wanted}: the registry {registry.name} does not answer: {error}; the ones "
                    "behind it are not asked, since they could mean other data by this name: try "
                    f"again, name the digest, or run: orlog registry remove {registry.name}",
                    attempts=getattr(error, "attempts", ()),
                ) from error
            unreachable = error
            asked.append(f"{registry.name} does not answer")
            continue
        version = _choose(index, wanted)
        if version is not None:
            return _offered(registry, wanted.name, version, index, mirrors)
        there = index.datasets.get(wanted.name)
        versions = f" has {', '.join(sorted(there))} of it" if there else " does not have it"
        asked.append(registry.name + versions + did_you_mean(wanted.name, index.datasets))
    raise NotFoundError(f"{wanted}: {'; '.join(asked)}") from unreachable


def _read_index(registry: Registry) -> Index:
    """Return the index from the first place of a registry that has a good one.

    One of these may lag behind or be replaced right now, so a bad signature is no end yet.
    """
    attempts = []
    refused: SignatureError | None = None
    for root in (registry.url, *registry.mirrors):
        where = f"{root}/{INDEX_FILE}"
        for is_last in (False, True):
            try:
                data = read_small(where, LARGEST_INDEX)
                if registry.keys:
                    check_signature(data, "index", _signature(where), registry.keys, where)
                index = index_from_json(data, where)
                check_serial(registry, index.serial, hashlib.sha256(data).hexdigest())
            except SignatureError as error:
                refused = error
                if is_last:
                    attempts.append(f"{where}: {error}")
                else:
                    time.sleep(PAUSE)  # an index and its signature are replaced one after the other
            except (NotFoundError, TransferError) as error:
                attempts.append(str(error))
                break
            else:
                return index
    if refused is not None:
        raise refused
    raise TransferError("; ".join(attempts), attempts=attempts)


def _choose(index: Index, wanted: DatasetName) -> str | None:
    """Return the version that is meant, the newest that is not yanked where any is good."""
    offered = index.datasets.get(wanted.name, {})
    good = [
        version
        for version, entry in offered.items()
        if wanted.version in ("", version) and entry.digest.startswith(wanted.digest)
    ]
    good = newest_first(good)
    if wanted.version or wanted.digest:
        return good[0] if good else None
    return choose_version(good, read_history(wanted.name)) or (good[0] if good else None)


def _offered(
    registry: Registry, name: str, version: str, index: Index, mirrors: Sequence[str]
) -> Source:
    entry = index.datasets[name][version]
    roots = (*_trimmed(mirrors), registry.url, *registry.mirrors)
    folders = tuple(f"{root}/{name}/{version}" for root in roots)
    data, where = _read_first(folders, MANIFEST_FILE, LARGEST_MANIFEST)
    signed_by = ""
    if registry.keys:
        signed_by = check_signature(data, "manifest", _signature(where), registry.keys, where)
    manifest = manifest_from_text(data, where)
    if (manifest.name, manifest.version, manifest.digest) != (name, version, entry.digest):
        raise IntegrityError(
            f"{where}: the index of {registry.name} names {name}@{version} ({entry.digest}), found "
            f"{manifest.name}@{manifest.version} ({manifest.digest}); tell who publishes it",
            file=MANIFEST_FILE,
            expected=entry.digest,
            found=manifest.digest,
        )
    return Source(manifest=manifest, mirrors=folders, registry=registry.name, signed_by=signed_by)


def _read_first(roots: Sequence[str], path: str, limit: int) -> tuple[bytes, str]:
    """Return a small file and its URL from the first place that has it."""
    attempts = []
    for root in roots:
        where = f"{root}/{path}"
        try:
            return read_small(where, limit), where
        except (NotFoundError, TransferError) as error:
            attempts.append(str(error))
    raise TransferError("; ".join(attempts), attempts=attempts)


def _signature(where: str) -> bytes | None:
    try:
        return read_small(f"{where}{SIGNATURE_SUFFIX}", LARGEST_SIGNATURE)
    except NotFoundError:
        return None


def _trimmed(urls: Sequence[str]) -> tuple[str, ...]:
    return tuple(url.rstrip("/") for url in urls)
