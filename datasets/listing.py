"""`list_datasets`: what is on this machine, what can be built, and what can be downloaded."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import fnmatch
import warnings
from pathlib import Path

from orlog.datasets.download.sources import BRIEF, offered_version, read_index
from orlog.datasets.home.folders import (
    how_much,
    installed_names,
    installed_versions,
    partial_names,
    partial_versions,
    unless_deleted,
)
from orlog.datasets.home.garbage import last_used
from orlog.datasets.home.records import read_origin
from orlog.datasets.home.registries import read_registries
from orlog.datasets.reading.finding import find_whole_or_part, how_to_fetch
from orlog.datasets.worlds.recipe import catalogue
from orlog.errors import IntegrityError, LockError, OrlogError, clause
from orlog.manifests.index import ForeignEntry, Index, IndexEntry
from orlog.manifests.manifest import MANIFEST_FILE, Manifest, read_manifest
from orlog.manifests.names import DatasetName, newest_first
from orlog.manifests.rebuilds import rebuild_text
from orlog.manifests.roles import find_family, is_of_family
from orlog.manifests.shipped import SHIPPED, recorded_manifest, shipped_index

NOT_READ = frozenset({"envlogger"})
"""Formats that orlog lists and does not read; importing all formats to see that takes too long."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A dataset that is here, or that can be built or downloaded; None means unknown.

    Attributes:
        name: Its name.
        version: The version that the name alone stands for.
        steps: Number of steps.
        size_bytes: Size of its files, or of the files it is imported from.
        about_bytes: That size as upstream rounds it, where the exact one is not known.
        has_checksum: Whether a checksum of every file is known before it is downloaded.
        state: `here`, `not here`, `VERSION is here` for another version, `damaged`, `unusable`, or
            how much of it is here.
        source: Where it comes from: `catalogue`, or the name of a registry; None if it is here and
            only that was asked.
        command: The command that builds or downloads it; None if it is here.
        rebuild: With which packages it was built again, if it is not the recorded data.
        problem: Why it cannot be opened although it is here, or why it cannot be downloaded.
        license: SPDX identifier of the data.
        format: Format of the third-party files that it is imported from; None if it is no import.
        audit: `skipped` if it was published without an audit.
        description: What the data are.
        layer_of: The version that its columns lie over, if it is a layer that is here.
        last_used: When it was last opened or made, in UTC; listing it is no use.
    """

    name: str
    version: str
    steps: int | None = None
    size_bytes: int | None = None
    about_bytes: int | None = None
    has_checksum: bool = True
    state: str = "not here"
    source: str | None = None
    command: str | None = None
    rebuild: str | None = None
    problem: str | None = None
    license: str | None = None
    format: str | None = None
    audit: str | None = None
    description: str | None = None
    layer_of: str | None = None
    last_used: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Offered:
    """What a registry says about a version that it offers."""

    registry: str
    version: str
    entry: IndexEntry | ForeignEntry


def list_datasets(
    pattern: str = "", *, remote: bool = False, benchmark: str = "", search: str = "", family: str = ""
) -> list[Listed]:
    """Return the datasets on this machine and those that can be built, sorted by name.

    Args:
        pattern: Only names that contain this text, or match it if it has `*`, `?` or `[` in it.
        remote: Return those that can be downloaded instead, from registries and from the servers of
            known benchmarks; each says whether it is here. Only registries need a network.
        benchmark: Only those of this benchmark: the first part of their names, such as `minari`.
        search: Only those with this text in name or description; upper and lower case are the same.
        family: Only those of this family (docs/families.md), such as `safety`.

    Raises NotFoundError if there is no such family.
    """
    here = listed_here()
    if not remote:
        return matching(here, pattern, benchmark, search, family)
    offered, problems = listed_elsewhere(here)
    for registry, problem in problems.items():
        text = f"the registry {registry} does not answer: {problem}."
        warnings.warn(text, stacklevel=2)
    return matching(offered, pattern, benchmark, search, family)


def matching(
    candidates: dict[str, Listed], pattern: str = "", benchmark: str = "", search: str = "", family: str = ""
) -> list[Listed]:
    """Return those that `list_datasets` would return for these arguments, sorted by name."""
    text = search.casefold()
    kind = find_family(family) if family else None
    return [
        candidates[name]
        for name in sorted(candidates)
        if _matches(name, pattern)
        and (not benchmark or name.startswith(f"{benchmark.lower()}/"))
        and (text in name or text in (candidates[name].description or "").casefold())
        and (kind is None or is_of_family(kind, name, _manifest_of(candidates[name])))
    ]


def _manifest_of(listed: Listed) -> Manifest | None:
    """Return the manifest of what is here, or else the one that ships; None if none can be read."""
    if listed.state == "not here":
        return recorded_manifest(listed.name)
    with contextlib.suppress(OrlogError):
        folder = find_whole_or_part(listed.name)
        with unless_deleted(folder):
            return read_manifest(folder / MANIFEST_FILE)
    return None


def _matches(name: str, pattern: str) -> bool:
    if set(pattern) & set("*?["):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern in name


def listed_here() -> dict[str, Listed]:
    """Return what is on this machine, and what the catalogue builds, by name."""
    by_name = {}
    known = catalogue()
    for name in {*known, *installed_names(), *partial_names()}:
        # A part counts where no whole version is here.
        versions = installed_versions(name) or [*partial_versions(name)]
        if not versions:
            entry = known[name]
            by_name[name] = Listed(
                name=name,
                version=entry.version,
                steps=entry.recipe.steps,
                source="catalogue",
                command=f"orlog build {name}",
            )
            continue
        try:
            folder = find_whole_or_part(name)
            with unless_deleted(folder):
                manifest = read_manifest(folder / MANIFEST_FILE)
            by_name[name] = Listed(
                name=name,
                version=manifest.version,
                steps=manifest.total_steps,
                size_bytes=manifest.size_bytes,
                state=how_much(folder, manifest),
                rebuild=rebuild_text(manifest) or None,
                license=manifest.license or None,
                audit=audit_of(folder),
                description=manifest.description or None,
                layer_of=None if manifest.base is None else str(manifest.base),
                last_used=last_used(folder),
            )
        except OrlogError as error:
            is_damaged = isinstance(error, IntegrityError) and not isinstance(error, LockError)
            by_name[name] = Listed(
                name=name, version=versions[0], state="damaged" if is_damaged else "unusable", problem=str(error)
            )
    return by_name


def audit_of(folder: Path) -> str | None:
    """Return `skipped` if a version was downloaded that was published without an audit."""
    try:
        origin = read_origin(folder)
    except OrlogError:  # said where the origin is needed: by verify and repair
        return None
    return None if origin is None else origin.audit


def listed_elsewhere(here: dict[str, Listed]) -> tuple[dict[str, Listed], dict[str, str]]:
    """Return what registries offer, each name from the first that has it, and those that fail."""
    indexes, problems = _indexes()
    by_name: dict[str, Listed] = {}
    for registry, index in indexes:
        for name in {*index.datasets, *index.foreign} - by_name.keys():
            wanted = DatasetName(name)
            offered = offered_version(index, wanted)
            assert offered is not None  # an index names no dataset without a version
            version, entry = offered
            state = _state_here(name, version, here)
            listed = Listed(
                name=name,
                version=version,
                source=registry,
                state=state,
                command=None if state == "here" else f"orlog download {name}",
            )
            if isinstance(entry, IndexEntry):
                listed = dataclasses.replace(
                    listed, steps=entry.steps, size_bytes=entry.size_bytes, audit=entry.audit, license=entry.license
                )
            else:
                listed = dataclasses.replace(
                    listed,
                    size_bytes=entry.total_bytes,
                    about_bytes=entry.about_bytes,
                    has_checksum=all(file.has_checksum for file in entry.each),
                    license=entry.license,
                    format=entry.format,
                    description=entry.description,
                    problem=_why_not(name, entry),
                    command=None if entry.is_folder else listed.command,
                )
            by_name[name] = listed
    return by_name, problems


def _why_not(name: str, entry: ForeignEntry) -> str | None:
    """Return why `orlog download` does not bring what is listed, or None."""
    if entry.format in NOT_READ:
        return f"orlog does not read {entry.format}"
    return how_to_fetch(name, entry) if entry.is_folder else None


def offers_of(wanted: DatasetName) -> tuple[list[Offered], dict[str, str]]:
    """Return what registries offer of a dataset, and why some do not answer."""
    indexes, problems = _indexes()
    offers = []
    for registry, index in indexes:
        offered = offered_version(index, wanted)
        if offered is None:
            continue
        offers.append(Offered(registry, *offered))
        if wanted.version or wanted.digest:
            continue
        listed: dict[str, IndexEntry | ForeignEntry] = {
            **index.foreign.get(wanted.name, {}),
            **index.datasets.get(wanted.name, {}),
        }
        offers += [
            Offered(registry, version, listed[version]) for version in newest_first(listed) if version != offered[0]
        ]
    return offers, problems


def _indexes() -> tuple[list[tuple[str, Index]], dict[str, str]]:
    """Return the registries in the order in which they are asked, and those that fail."""
    indexes: list[tuple[str, Index]] = []
    problems = {}
    for registry in read_registries():
        try:
            indexes.append((registry.name, read_index(registry, BRIEF)[0]))
        except OrlogError as error:
            problems[registry.name] = clause(error)
    return [*indexes, *((name, shipped_index(name)) for name in SHIPPED)], problems


def _state_here(name: str, version: str, here: dict[str, Listed]) -> str:
    """Return the state of the version of a name that a registry offers."""
    listed = here.get(name)
    if listed is None or listed.source is not None:
        return "not here"
    if listed.version == version:
        return listed.state
    return "here" if version in installed_versions(name) else f"{listed.version} is here"
