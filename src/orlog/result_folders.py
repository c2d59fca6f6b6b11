"""Where the results of sweeps lie, and the space that they take; `stored_results` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from orlog.datasets.home.folders import datasets_folder
from orlog.files import list_files

__all__ = ["RESULT_FILE", "StoredSpace", "result_folder", "results_folder", "stored_space"]

RESULT_FILE = "result.json"


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
    folders = [path for path in results_folder().glob("*") if path.is_dir()]
    finished = sum((folder / RESULT_FILE).is_file() for folder in folders)
    size = sum(path.lstat().st_size for folder in folders for _, path in list_files(folder))
    return StoredSpace(finished, len(folders) - finished, size)
