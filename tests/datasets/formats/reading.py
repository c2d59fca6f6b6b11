"""Reads files by a format into a dataset, and damages files, for the tests of all formats."""

import os
from pathlib import Path

import numpy as np

from orlog import OrlogError, load_dataset
from orlog.datasets.formats.episodes import Asked, Options
from orlog.datasets.formats.formats import Wanted, read_version
from orlog.manifests.manifest import MANIFEST_FILE


def read_files(file_format, files, folder, options=None):
    """Return the dataset that files hold, stored in a new folder, and what was found in them.

    Reading changes neither the files nor their times, and adds none.
    """
    paths = [files] if isinstance(files, Path) else list(files)
    sources = [path.name for path in paths]
    asked = Asked(files=paths, sources=sources, options=options or Options())
    wanted = Wanted(name="lab/test-v0", version="1.0.0")
    before = everything(paths, folder)
    manifest, found = read_version(file_format, asked, folder, wanted)
    assert everything(paths, folder) == before
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), "utf-8")
    return load_dataset(folder), found


def everything(paths, without):
    """Return the bytes and times of files and folders and of all in them, but for those in one folder."""
    inside = [one for path in paths for one in (path, *path.rglob("*"))]
    kept = [one for one in inside if not one.is_relative_to(without) and not without.is_relative_to(one)]
    return [(one, one.lstat().st_mtime_ns, one.read_bytes() if one.is_file() else b"") for one in kept]


def damaged(good, count, *, seed=0):
    """Yield copies of a file with a few flipped bits, a fifth of them cut off too."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        data = np.frombuffer(good, np.uint8).copy()
        for place in rng.integers(0, len(data), 4):
            data[place] ^= 1 << int(rng.integers(8))
        cut = int(rng.integers(1, len(data))) if number % 5 == 0 else len(data)
        yield data[:cut].tobytes()


def refuses_or_reads(read):
    """Read a damaged file: an error of orlog is right, and values that decode are too."""
    try:
        read()
    except OrlogError:
        return


class Runs:
    """What makes a folder where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("made",)
