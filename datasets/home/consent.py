"""Consent to environments that datasets name, since their arguments can make them do anything.

A simulator reads the files that its arguments name, compiles models, and takes memory for any map
it is given. So an environment with arguments other than those registered for its id is made only if

- the user consents (`--trust-environment`, `trust_environment=True`),
- the version, or an environment with these arguments, ships with orlog,
- the version came from a registry of this machine, signed by one of that registry's keys, or
- data were recorded on this machine in an environment with these arguments, noted in

    $ORLOG_HOME/environments/SHA-256.json      {"id": .., "kwargs": {..}}, whose SHA-256 names it

Numbers of a world behind uncertainty (`orlog/uncertain-v0`) need none of this, since they only make its steps noisy
or late; the world that they are about does, as if it were named alone.

Even then, two things are refused: arguments that hold paths, and ids that wrap environments of
other libraries, since their arguments name modules to import.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.records import read_origin
from orlog.datasets.home.registries import read_registries
from orlog.datasets.worlds.environments import own_arguments, world_behind
from orlog.errors import NotFoundError, SimulatorError, clause
from orlog.manifests.counterparts import benchmark_environment
from orlog.manifests.documents import canonical_json, replace_json_file, sole_writer
from orlog.manifests.manifest import EnvironmentRecord, Manifest
from orlog.manifests.shipped import recorded_manifest, recorded_manifests

# Such ids of `gymnasium.make` wrap environments of old Gym, dm_control, bsuite and others.
_WRAPS_OTHERS = re.compile(r"GymV[0-9]+|compatibility", re.IGNORECASE)
# The arguments that name the world of an environment that is made of another one.
_WORLD = ("environment", "arguments")
# Separators of paths and modules, `~` for a home folder, and file suffixes.
_PATH = re.compile(r"[/\\:]|^~|\.[A-Za-z][A-Za-z0-9]{1,4}$")


def check_environment(
    name: str,
    record: EnvironmentRecord | None,
    versions: Iterable[tuple[Manifest, Path]],
    *,
    trust_environment: bool = False,
) -> EnvironmentRecord:
    """Return the environment that a dataset names, if making it is allowed."""
    if record is None:
        environments = [benchmark_environment(manifest.benchmark) for manifest, _ in versions]
        reasons = {environment.reason for environment in environments if environment is not None and environment.reason}
        why = f": {reasons.pop()}" if len(reasons) == 1 else ""
        raise NotFoundError(
            f"{name} names no environment{why}, so nothing can be evaluated in it; import the files with one: orlog import "
            ".. --environment ID"
        )
    world = world_behind(record)
    if world is not None and all(
        isinstance(value, int | float) for key, value in record.kwargs.items() if key not in _WORLD
    ):
        # What is left are numbers, which `environments/uncertain.py` bounds: the world decides.
        check_environment(name, world, versions, trust_environment=trust_environment)
        return record
    if _WRAPS_OTHERS.search(record.id):
        raise SimulatorError(
            f"{name}: environment {record.id} wraps environments of other libraries, which "
            "its arguments name; orlog never takes that from data. Make it yourself."
        )
    try:
        own = own_arguments(record.id, record.kwargs)
    except NotFoundError as error:
        if not record.module:
            raise
        raise NotFoundError(
            f"{name}: {clause(error)}. The data were recorded with the module {record.module!r:.100}; "
            f"orlog imports it only if you name it: --import {shlex.quote(record.module[:100])} "
            "(in Python, import it before)"
        ) from error
    for argument, value in own.items():
        if (path := _find_path(value)) is not None:
            raise SimulatorError(
                f"{name}: argument {argument} of environment {record.id} looks like a path or "
                f"module, {path!r:.80}, which orlog never takes from data. If you trust the file, "
                "register an id of your own with gymnasium.register(.., kwargs=..)."
            )
    if own and not (trust_environment or _is_trusted(record, versions)):
        raise SimulatorError(
            f"{name}: environment {record.id} has arguments from the data, "
            f"{_shown(own)}. An argument can make a simulator read files or never stop; if you trust "
            "the dataset, use trust_environment=True."
        )
    return record


def note_environment(record: EnvironmentRecord) -> None:
    """Note that the user of this machine recorded data in an environment."""
    path = _note(record)
    if record.kwargs and not path.is_file():
        with sole_writer(path):
            replace_json_file(path, {"id": record.id, "kwargs": record.kwargs})


def _note(record: EnvironmentRecord) -> Path:
    name = hashlib.sha256(canonical_json([record.id, record.kwargs])).hexdigest()
    return datasets_folder().parent / "environments" / f"{name}.json"


def _is_trusted(record: EnvironmentRecord, versions: Iterable[tuple[Manifest, Path]]) -> bool:
    """Return whether orlog, a trusted signer or the user of this machine vouches for it."""
    recorded = (manifest.environment for manifest in recorded_manifests())
    ships = any(listed is not None and (listed.id, listed.kwargs) == (record.id, record.kwargs) for listed in recorded)
    return ships or _note(record).is_file() or any(_vouched(manifest, folder) for manifest, folder in versions)


def _vouched(manifest: Manifest, folder: Path) -> bool:
    """Return whether a version ships with orlog, or is signed by a registry of this machine."""
    shipped = recorded_manifest(manifest.name, manifest.version)
    if shipped is not None and shipped.digest == manifest.digest:
        return True
    origin = read_origin(folder)
    if origin is None or not origin.signed_by or origin.digest != manifest.digest:
        return False
    return any(registry.name == origin.registry and origin.signed_by in registry.keys for registry in read_registries())


def _find_path(value: Any) -> str | None:
    """Return the first text inside a value that could name a file or a module."""
    if isinstance(value, str):
        return value if _PATH.search(value) else None
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return next((path for part in value if (path := _find_path(part)) is not None), None)
    return None


def _shown(arguments: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r:.60}" for name, value in arguments.items())
    return text if len(text) <= 200 else f"{text[:200]}.."
