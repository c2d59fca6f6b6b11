"""Finds where to download a version: the registry that offers it, its manifest and its mirrors.

A registry is a folder that any static file server can serve (`datasets/publish/publish.py` writes
it):

    index.json, index.json.sig              which versions there are, and their digests; URLs and
                                            checksums of third-party files to import as versions
    NAME/VERSION/manifest.json(.sig)        next to the objects that the manifest lists

Registries are asked in order, and the first one that has the name wins. One that does not answer
ends the search unless the digest is known: the next one could have other data under the same name.
Last come the indexes of well-known third-party files that ship with orlog; they need no network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from orlog.datasets.download.http import Patience, plain_url
from orlog.datasets.download.transfer import Mirror, read_first, read_small
from orlog.datasets.home.records import Source, choose_version, read_history, read_origin
from orlog.datasets.home.registries import Registry, check_serial, read_registries
from orlog.datasets.store.objects import mismatch
from orlog.errors import (
    IntegrityError,
    ManifestError,
    MissingExtraError,
    NotFoundError,
    SignatureError,
    TransferError,
    clause,
)
from orlog.manifests.index import INDEX_FILE, LARGEST_INDEX, ForeignEntry, Index, IndexEntry, index_from_json
from orlog.manifests.manifest import LARGEST_MANIFEST, MANIFEST_FILE, Manifest, manifest_from_text
from orlog.manifests.names import DatasetName, did_you_mean, is_name, is_url, newest_first, parse_name
from orlog.manifests.shipped import SHIPPED, shipped_index, shipped_names
from orlog.manifests.signatures import LARGEST_SIGNATURE, SIGNATURE_SUFFIX, check_signature

BRIEF = Patience(timeout=5.0, attempts=1)
PAUSE = 0.5  # seconds
WHOLE_DIGEST = len("sha256:") + 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFileSource:
    """Where to download the third-party files that are imported as a version."""

    name: str
    version: str
    entry: ForeignEntry
    urls: tuple[tuple[str, ...], ...]
    registry: str = ""
    signed_by: str = ""
    digest: str = ""


def source_of_url(url: str, mirrors: Sequence[str] = (), *, patience: Patience = Patience()) -> Source:
    """Return the version whose folder or manifest is at a URL of a user; mirrors are copies of the folder."""
    folder, mark, query = url.partition("?")
    base = plain_url(folder.rstrip("/").removesuffix(f"/{MANIFEST_FILE}") + mark + query)
    source = version_at(base, patience=patience)
    return dataclasses.replace(source, mirrors=(*plain_urls(mirrors), base))


def version_at(folder: str, *, patience: Patience = Patience()) -> Source:
    """Return the version in a folder whose URL is known; raises as `source_of_url`."""
    where = f"{folder}/{MANIFEST_FILE}"
    manifest = manifest_from_text(read_small(where, LARGEST_MANIFEST, patience=patience), where)
    return Source(manifest=manifest, mirrors=(folder,))


def newest_at_url(url: str, mirrors: Sequence[str] = (), *, patience: Patience = Patience()) -> Source:
    """Return the version at a URL, or the newest one of the dataset there, as the registry above says."""
    try:
        return source_of_url(url, mirrors, patience=patience)
    except NotFoundError as error:
        parts = url.partition("?")[0].rstrip("/").split("/")
        for depth in range(1, len(parts) - 2):
            root, name = "/".join(parts[:-depth]), "/".join(parts[-depth:])
            if not is_name(name):
                continue
            with contextlib.suppress(NotFoundError, TransferError):
                index, _ = read_index(Registry(name="url", url=root), patience)
                offered = offered_version(index, parse_name(name))
                if offered is not None:
                    return version_at(f"{root}/{name}/{offered[0]}", patience=patience)
        raise NotFoundError(
            f"{clause(error)}; give the URL of a version's folder, or of a dataset in a registry."
        ) from error


def find_source(
    wanted: DatasetName, mirrors: Sequence[str] = (), *, patience: Patience = Patience()
) -> Source | ForeignFileSource:
    """Return what the first registry with the name offers: a version, or a third-party file."""
    mirrors = plain_urls(mirrors)
    asked = []
    known: set[str] = set()
    unreachable: TransferError | NotFoundError | None = None
    for registry in read_registries():
        try:
            index, signed_by = read_index(registry, patience)
        except (TransferError, NotFoundError) as error:
            if len(wanted.digest) < WHOLE_DIGEST:
                raise TransferError(
                    f"{wanted}: the registry {registry.name} does not answer: {clause(error)}. The "
                    "registries after it are not asked, since they could have other data under this "
                    "name; try again, name the digest, or run: orlog registry remove "
                    f"{registry.name}",
                    attempts=getattr(error, "attempts", ()),
                ) from error
            unreachable = error
            asked.append(f"{registry.name} does not answer")
            continue
        roots = (*mirrors, registry.url, *registry.mirrors)
        offered = offered_version(index, wanted)
        if offered is None:
            asked.append(registry.name + _absence(index, wanted))
            known |= {*index.datasets, *index.foreign}
            continue
        version, entry = offered
        if isinstance(entry, ForeignEntry):
            return _listed(registry.name, roots, wanted, version, entry, signed_by)
        return _offered(registry, roots, wanted.name, version, entry, patience)
    for name in SHIPPED:
        index = shipped_index(name)
        offered = offered_version(index, wanted)
        if offered is not None and isinstance(offered[1], ForeignEntry):
            return _listed(name, (), wanted, offered[0], offered[1], "")
        if index.foreign.get(wanted.name) or wanted.name.startswith(f"{name}/"):
            asked.append(name + _absence(index, wanted))
            known |= set(index.foreign)
    if not asked:
        raise NotFoundError(
            f"{wanted}: there is no registry to ask"
            + (did_you_mean(wanted.name, shipped_names()) or ".")
            + " Run: orlog registry add NAME URL, or give the URL of the version."
        )
    end = "." if wanted.name in known else did_you_mean(wanted.name, known) or "."
    raise NotFoundError(f"{wanted}: {'; '.join(asked)}{end}") from unreachable


def _absence(index: Index, wanted: DatasetName) -> str:
    there = {**index.datasets.get(wanted.name, {}), **index.foreign.get(wanted.name, {})}
    return f" has {', '.join(sorted(there))} of it" if there else " does not have it"


def read_index(registry: Registry, patience: Patience = Patience()) -> tuple[Index, str]:
    """Return the index from the first place of a registry with a valid one, and who signed it."""
    attempts = []
    signed_by = ""
    refused: SignatureError | None = None
    for root in (registry.url, *registry.mirrors):
        where = f"{root}/{INDEX_FILE}"
        for is_last in (False, True):
            try:
                data = read_small(where, LARGEST_INDEX, patience=patience)
                if registry.keys:
                    signature = _signature(where, patience)
                    signed_by = check_signature(data, "index", signature, registry.keys, where)
                index = index_from_json(data, where)
                check_serial(registry, index.serial, hashlib.sha256(data).hexdigest())
            except SignatureError as error:
                refused = error
                if is_last:
                    attempts.append(f"{where}: {clause(error)}")
                else:
                    time.sleep(PAUSE)  # an index and its signature are replaced one after the other
            except (NotFoundError, TransferError) as error:
                attempts.append(clause(error))
                break
            else:
                return index, signed_by
    if refused is not None:
        raise refused
    raise TransferError(f"{'; '.join(attempts)}.", attempts=attempts)


def offered_version(index: Index, wanted: DatasetName) -> tuple[str, IndexEntry | ForeignEntry] | None:
    """Return the version that an index offers under a name, and its entry; None if it has none.

    By default it is the newest that this machine does not know to be yanked.
    """
    # The digest of a third-party file is known only after its import, so it is compared then.
    foreign = index.foreign.get(wanted.name, {}) if wanted.version or not wanted.digest else {}
    entries: dict[str, IndexEntry | ForeignEntry] = {**foreign, **index.datasets.get(wanted.name, {})}
    good = newest_first(
        version
        for version, entry in entries.items()
        if wanted.version in ("", version)
        and (isinstance(entry, ForeignEntry) or entry.digest.startswith(wanted.digest))
    )
    if not good:
        return None
    chosen = good[0]
    if not (wanted.version or wanted.digest) and len(good) > 1:
        chosen = choose_version(good, read_history(wanted.name)) or chosen
    return chosen, entries[chosen]


def _offered(
    registry: Registry, roots: Sequence[str], name: str, version: str, entry: IndexEntry, patience: Patience
) -> Source:
    folders = tuple(f"{root}/{name}/{version}" for root in roots)
    places = [f"{folder}/{MANIFEST_FILE}" for folder in folders]
    data, where = read_first(places, LARGEST_MANIFEST, patience=patience)
    signed_by = ""
    if registry.keys:
        signed_by = check_signature(data, "manifest", _signature(where, patience), registry.keys, where)
    manifest = manifest_from_text(data, where)
    if (manifest.name, manifest.version, manifest.digest) != (name, version, entry.digest):
        expected, actual = (f"{name}@{version} {entry.digest}", f"{manifest.name}@{manifest.version} {manifest.digest}")
        raise mismatch(
            f"{where}, in the index of {registry.name}", MANIFEST_FILE, expected, actual, "tell its publisher."
        )
    return Source(manifest=manifest, mirrors=folders, registry=registry.name, signed_by=signed_by, audit=entry.audit)


def _listed(
    registry: str, roots: Sequence[str], wanted: DatasetName, version: str, entry: ForeignEntry, signed_by: str
) -> ForeignFileSource:
    """Return the third-party files that a registry with these roots lists under a name."""
    is_far = any(is_url(root) and not root.startswith("file:") for root in roots)
    urls = []
    for file in entry.each:
        places: list[str] = []
        for url in (file.url, *file.mirrors):
            if url.startswith("file:") and is_far:
                raise ManifestError(
                    f"{wanted.name}@{version}: the registry {registry} names {url}, a file of this "
                    "machine, and is not on it itself; tell who publishes it.",
                    file=INDEX_FILE,
                )
            places += [url] if is_url(url) else [Mirror(root).url_of(url) for root in roots]
        urls.append(tuple(places))
    return ForeignFileSource(
        name=wanted.name,
        version=version,
        entry=entry,
        urls=tuple(urls),
        registry=registry,
        signed_by=signed_by,
        digest=wanted.digest,
    )


def _signature(where: str, patience: Patience) -> bytes | None:
    try:
        return read_small(f"{where}{SIGNATURE_SUFFIX}", LARGEST_SIGNATURE, patience=patience)
    except NotFoundError:
        return None


def plain_urls(urls: Sequence[str]) -> tuple[str, ...]:
    """Return URLs that a user gives without their queries, which are sent with requests below them."""
    return tuple(plain_url(url).rstrip("/") for url in urls)


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmation:
    """What a version's origin says about it."""

    state: Literal["same", "other", "unknown"]
    text: str


def confirm_version(folder: Path, manifest: Manifest, *, offline: bool = False) -> Confirmation:
    """Compare a downloaded version with what was downloaded, and, unless `offline`, with what its origin offers."""
    origin = read_origin(folder)
    if origin is None:
        return Confirmation("unknown", "it was not downloaded, so no registry was asked")
    if origin.digest != manifest.digest:
        return Confirmation("other", f"{origin.digest} was downloaded, but the manifest is of another version")
    if offline:
        return Confirmation("unknown", "its origin was not asked")
    try:
        signed_by = ""
        if origin.registry:
            where = f"the registry {origin.registry}"
            known = [registry for registry in read_registries() if registry.name == origin.registry]
            if not known:
                return Confirmation("unknown", f"{where} is not known any more")
            index, signed_by = read_index(known[0], BRIEF)
            entry = index.entry(manifest.name, manifest.version)
            offered = entry.digest if entry else ""
        else:
            where = origin.mirrors[0]
            offered = version_at(where, patience=BRIEF).manifest.digest
    except (TransferError, NotFoundError, MissingExtraError) as error:
        return Confirmation("unknown", f"its origin does not answer: {clause(error)}")
    except IntegrityError as error:
        return Confirmation("other", clause(error))
    signed = f", signed by {signed_by}" if signed_by else ""
    if offered == manifest.digest:
        return Confirmation("same", f"{where} offers this digest{signed}")
    instead = f"offers {offered}" if offered else "does not list it any more"
    return Confirmation("other", f"{where} {instead}{signed}")
