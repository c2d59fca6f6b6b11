"""Small homes for the tests of the cache: versions made from one tiny recording."""

import hashlib
import json
import os
import shutil
import time

import numpy as np
import pytest
from gymnasium import spaces

import orlog
from orlog.datasets.home.folders import datasets_folder, partial_folder
from orlog.datasets.home.records import origin_file
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from tests.episodes import whole_episode

DAY = 86_400.0
BOX = spaces.Box(-1, 1, (2,), np.float32)


def record_template(home):
    """Record a version of a few kilobytes in a home of its own; return its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(home))
        with orlog.DatasetWriter("lab/template-v1", observation_space=BOX, action_space=BOX) as writer:
            writer.add_episode(
                whole_episode(
                    np.zeros((4, 2), np.float32), np.ones((3, 2), np.float32), np.arange(3.0), end="truncation"
                )
            )
        return writer.folder


def place(template, name, version, *, partial=False, downloaded=True, days=0.0, linked=False):
    """Put the template under another name into this test's home, last opened so many days ago."""
    own = datasets_folder() / name / version
    folder = partial_folder(own) if partial else own
    shutil.copytree(template, folder, copy_function=os.link if linked else shutil.copy2)
    body = json.loads((template / MANIFEST_FILE).read_text("utf-8"))
    body.pop("digest")
    body.update(name=name, version=version)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    (folder / MANIFEST_FILE).unlink()
    (folder / MANIFEST_FILE).write_text(json.dumps({"digest": digest, **body}), "utf-8")
    if partial:
        record = {"partial_version": 1, "digest": digest, "objects": []}
        (folder / "partial.json").write_text(json.dumps(record), "utf-8")
    if downloaded:
        write_origin_of(folder)
    age(folder, days)
    return folder


def write_origin_of(folder, registry="lab"):
    origin = {
        "origin_version": 1,
        "digest": read_manifest(folder / MANIFEST_FILE).digest,
        "mirrors": ["http://127.0.0.1:9/x"],
        "registry": registry,
        "signed_by": "",
    }
    origin_file(folder).write_text(json.dumps(origin), "utf-8")


def put(folder, days=0.0, size=1000):
    """Make a folder with a file, last changed so many days ago."""
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * size)
    age(folder / "file", days)
    age(folder, days)
    return folder


def age(path, days):
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def beside(folder, kind):
    return folder.with_name(f".{folder.name}.{kind}")


def snapshot(*folders):
    """Return size and time of change of every file below folders."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for folder in folders
        for path in [folder, *sorted(folder.rglob("*"))]
    }
