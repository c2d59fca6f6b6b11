"""Asks a version's origin whether it still offers the same digest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from orlog.datasets.download.http import Patience
from orlog.datasets.download.sources import read_index, source_of_url
from orlog.datasets.home.origin import read_origin
from orlog.datasets.home.registries import read_registries
from orlog.errors import IntegrityError, MissingExtraError, NotFoundError, TransferError, clause
from orlog.manifests.manifest import Manifest

BRIEF = Patience(timeout=5.0, attempts=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmation:
    """What a version's origin says about it.

    Attributes:
        state: `same`: the origin offers this digest; `other`: it does not; `unknown`: it did not
            answer, or the version was not downloaded.
        text: A line about it.
    """

    state: Literal["same", "other", "unknown"]
    text: str


def confirm_version(folder: Path, manifest: Manifest, *, offline: bool = False) -> Confirmation:
    """Compare a downloaded version with what was downloaded, and, unless `offline`, with what its origin offers."""
    origin = read_origin(folder)
    if origin is None:
        return Confirmation("unknown", "it was not downloaded, so no registry was asked")
    if origin.digest != manifest.digest:
        return Confirmation(
            "other", f"{origin.digest} was downloaded, but the manifest is of another version"
        )
    if offline:
        return Confirmation("unknown", "its origin was not asked")
    try:
        if origin.registry:
            return _ask_registry(origin.registry, manifest)
        where = origin.mirrors[0]
        found = source_of_url(where, patience=BRIEF).manifest.digest
    except (TransferError, NotFoundError, MissingExtraError) as error:
        return Confirmation("unknown", f"its origin does not answer: {clause(error)}")
    except IntegrityError as error:
        return Confirmation("other", clause(error))
    return _compare(where, found, manifest, "")


def _ask_registry(name: str, manifest: Manifest) -> Confirmation:
    registry = next((one for one in read_registries() if one.name == name), None)
    if registry is None:
        return Confirmation("unknown", f"the registry {name} is not known any more")
    index, signed_by = read_index(registry, BRIEF)
    entry = index.entry(manifest.name, manifest.version)
    signed = f", signed by {signed_by}" if signed_by else ""
    return _compare(f"the registry {name}", entry.digest if entry else "", manifest, signed)


def _compare(where: str, found: str, manifest: Manifest, signed: str) -> Confirmation:
    if found == manifest.digest:
        return Confirmation("same", f"{where} offers this digest{signed}")
    offered = f"offers {found}" if found else "does not list it any more"
    return Confirmation("other", f"{where} {offered}{signed}")
