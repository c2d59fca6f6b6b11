"""Rebuilds: what a recipe gives where it does not give the recorded bytes.

Other versions of packages, or another processor, change the last bits of physics. What comes out is another content,
so it never has the recorded version: it is `1.0.0+d0b2cd7c`, a version with build metadata (https://semver.org,
item 10) that names the recorded version it stands for and, by the start of the digest that it would have under that
version, its own content. Its lineage names the recorded digest, with this operation:

    {"rebuild": {"finding": "statistically equal", "recorded": {"mujoco": "3.3.0", ..}, "version": "1.0.0"}}
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Mapping

import msgspec

from orlog.manifests.documents import canonical_json
from orlog.manifests.manifest import Manifest, Parent
from orlog.manifests.names import plain_version
from orlog.manifests.shipped import recorded_manifest

_DIGITS = 8  # of the digest in the version of a rebuild


def recorded_build(name: str, version: str) -> Manifest | None:
    """Return the recorded manifest of a version or of one that is a rebuild of it; None without."""
    return recorded_manifest(name, plain_version(version))


def is_rebuild(manifest: Manifest) -> bool:
    """Return whether a version is a rebuild, or was made from one by appending or converting."""
    return "+" in manifest.version


def as_rebuild(manifest: Manifest, recorded: Manifest, finding: str) -> Manifest:
    """Return the manifest of a build that differs from the recorded one, marked as a rebuild.

    `manifest` is what the build would be under the recorded version, `finding` how their episodes compare.
    """
    operation = {"rebuild": {"finding": finding, "recorded": _versions(recorded), "version": recorded.version}}
    return msgspec.structs.replace(
        manifest,
        version=f"{manifest.version}+{manifest.digest.removeprefix('sha256:')[:_DIGITS]}",
        lineage=[Parent(digest=recorded.digest, operation=canonical_json(operation).decode())],
    )


def rebuild_notes(name: str, versions: Iterable[str]) -> list[str]:
    """Return a sentence for each of the versions of a dataset that is marked as a rebuild."""
    return [
        f"the data are a rebuild, {name}@{version}, not the recorded {name}."
        for version in dict.fromkeys(versions)
        if "+" in version
    ]


def rebuild_text(manifest: Manifest) -> str:
    """Return what a rebuild was made with and how it compares, in words; empty if it is none."""
    if not is_rebuild(manifest):
        return ""
    here = _versions(manifest)
    for parent in manifest.lineage:
        try:
            stated = json.loads(parent.operation)["rebuild"]
            recorded, finding = dict(stated["recorded"]), f"{stated['finding']!s:.60}"
        except (KeyError, RecursionError, TypeError, ValueError):
            continue
        other = [
            f"{package} {here.get(package, 'unknown')} (recorded with {version})"
            for package, version in recorded.items()
            if here.get(package) != version
        ]
        made = ", ".join(other) or "the same versions of packages, so on another processor"
        return f"a rebuild of {plain_version(manifest.version)} with {made}, {finding}"
    return "made from a rebuild"


def rebuild_warning(manifest: Manifest) -> str:
    """Return the warning for a name without a version that stands for a rebuild here."""
    recorded = recorded_build(manifest.name, manifest.version)
    again = "" if recorded is None else f"; for the recorded bytes {how_to_record(recorded, [manifest])}"
    named = f"{manifest.name}@{manifest.version}"
    return f"{manifest.name} is not the recorded data here: {named} is {rebuild_text(manifest)}{again}."


def how_to_record(recorded: Manifest, built: Iterable[Manifest] = ()) -> str:
    """Return what gives the recorded bytes of a recipe here, as the end of a sentence.

    `built` is what was built on this machine.
    """
    if any(_versions(manifest) == _versions(recorded) and is_rebuild(manifest) for manifest in built):
        return (
            "copy it from a machine with another processor, or build it there: this one gives other "
            "bytes with the same versions of packages"
        )
    build = f"orlog build {recorded.name}@{recorded.version}"
    other = [
        f"{package}=={version} (here {_installed(package)})"
        for package, version in _versions(recorded).items()
        if _installed(package) != version
    ]
    if other:
        return f"install the versions it was recorded with, {', '.join(other)}, then run: {build}"
    return f"run: {build} (the versions of packages here are those it was recorded with)"


def _versions(manifest: Manifest) -> Mapping[str, str]:
    return {} if manifest.environment is None else manifest.environment.versions


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
