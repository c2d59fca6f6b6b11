"""Where the results of sweeps lie, and the space that they take; `stored_results` reads them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from orlog.datasets.home.folders import datasets_folder

RESULT_FILE = "result.json"
DAMAGED_FOLDER = ".damaged"
"""Holds the folders of damaged results whose jobs were run again."""


def results_folder() -> Path:
    """Return `$ORLOG_HOME/results`, which is not created."""
    return datasets_folder().parent / "results"


def result_folder(key: str) -> Path:
    """Return the folder of a job's result, finished or not."""
    return results_folder() / key


class StoredSpace(NamedTuple):
    """How many results a home holds, how many runs there have only begun, and the bytes of both."""

    finished: int
    begun: int
    size_bytes: int


def stored_space() -> StoredSpace:
    """Return the space that the results of this home take."""
    folders = [path for path in results_folder().glob("[!.]*") if path.is_dir()]
    finished = sum((folder / RESULT_FILE).is_file() for folder in folders)
    return StoredSpace(finished, len(folders) - finished, sum(map(_size, folders)))


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; a run beside may remove one at any time."""
    size = 0
    for below, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(below, name).lstat().st_size
    return size
