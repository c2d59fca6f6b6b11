"""Reference returns that were measured here: in the home beside the data, or among those that ship.

    $ORLOG_HOME/references/SHA-256.json     of the environment's id and arguments

They belong to an environment with its arguments, so all datasets of one environment share them. The
files have the layout of those that ship, `manifests/recorded/references/*.json`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from orlog.datasets.home.folders import dataset_folders, datasets_folder
from orlog.errors import ManifestError, StorageError, clause
from orlog.manifests.documents import canonical_json, replace_json_file, sole_writer
from orlog.manifests.manifest import EnvironmentRecord
from orlog.manifests.shipped import records_folder
from orlog.normalize.baselines import write_record
from orlog.normalize.references import References, read_references


def stored_references(environment: EnvironmentRecord) -> References | None:
    """Return the reference returns of an environment that this machine's homes hold, or None.

    Raises ManifestError if the file is damaged, or of another environment.
    """
    for folder in dataset_folders():
        path = folder.parent / "references" / _file_name(environment)
        try:
            found = read_references(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            reason = clause(error)
            raise _unusable(path, f"cannot be read: {reason}") from error
        if not _is_of(found, environment):
            raise _unusable(path, "it is of another environment")
        return found
    return None


def recorded_references(environment: EnvironmentRecord) -> References | None:
    """Return the reference returns of an environment that ship with orlog, or None."""
    path = _recorded_file(environment)
    return None if path is None else read_references(path)


def store_references(environment: EnvironmentRecord, references: References) -> Path:
    """Keep reference returns in the home, in place of older ones; return the file.

    Raises StorageError if the home cannot be written; the older ones stay.
    """
    path = datasets_folder().parent / "references" / _file_name(environment)
    with sole_writer(path):
        replace_json_file(path, msgspec.to_builtins(references))
    return path


def record_references(name: str, environment: EnvironmentRecord, references: References) -> Path:
    """Add reference returns to those that ship with orlog, in a checkout; return the file.

    A new file is named after the dataset.
    """
    # The lock is in the home: it would stay among the files that ship.
    with sole_writer(datasets_folder().parent / "references" / "recorded"):
        path = _recorded_file(environment)
        new = records_folder() / "references" / f"{name.replace('/', '-')}.json"
        if path is None and new.exists():
            raise StorageError(
                f"{new} holds the references of another environment; record these under another "
                "name, or remove the file."
            )
        return write_record(path or new, references)


def _recorded_file(environment: EnvironmentRecord) -> Path | None:
    for path in sorted((records_folder() / "references").glob("*.json")):
        if _is_of(read_references(path), environment):
            return path
    return None


def _is_of(references: References, environment: EnvironmentRecord) -> bool:
    protocol = references.protocol
    return (protocol.environment_id, protocol.environment_kwargs) == (
        environment.id,
        environment.kwargs,
    )


def _file_name(environment: EnvironmentRecord) -> str:
    text = canonical_json([environment.id, environment.kwargs])
    return f"{hashlib.sha256(text).hexdigest()}.json"


def _unusable(path: Path, reason: str) -> ManifestError:
    return ManifestError(
        f"{path}: {reason}; measure again, which comes before this file: orlog references NAME "
        "--random --expert RUN.",
        file=str(path),
    )
