"""Lets a rebuild stand for the recorded version, on machines whose physics give other last bits."""

import os
import shutil

import msgspec

from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.names import plain_version
from orlog.manifests.shipped import records_folder

STARTUP = """
from pathlib import Path

from orlog.manifests import shipped

shipped.records_folder = lambda: Path({records!r})
"""


def take_for_recorded(rebuilt, folder, patch):
    """Let this process and those it starts take a rebuild for what is recorded, until `patch` ends.

    Args:
        rebuilt: The folder of the rebuild.
        folder: An empty folder, for the records and for the version.
        patch: Undoes it.

    Returns:
        The folder of the version, which is not marked as a rebuild.
    """
    manifest = read_manifest(rebuilt / MANIFEST_FILE)
    version = plain_version(manifest.version)
    plain = msgspec.structs.replace(manifest, version=version, lineage=[])
    copy = folder / version
    shutil.copytree(rebuilt, copy)
    (copy / MANIFEST_FILE).write_text(plain.to_json(), "utf-8")
    records = shutil.copytree(records_folder(), folder / "records")
    (records / plain.name / f"{version}.json").write_text(plain.to_json(), "utf-8")
    patch.setattr("orlog.manifests.shipped.records_folder", lambda: records)
    # Python imports a module of this name whenever it starts.
    (folder / "sitecustomize.py").write_text(STARTUP.format(records=str(records)), "utf-8")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    patch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return copy
