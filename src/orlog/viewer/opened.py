"""What `orlog open` was given: datasets and views, folders of runs, reports. Nothing else is reachable."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from orlog.datasets.loading import load_dataset
from orlog.datasets.reading.finding import as_folder, holds_manifest
from orlog.errors import NotFoundError
from orlog.viewer.shown import Shown

REPORT = "report.html"
RUN_FILE = "run.json"
MOST_FILES = 50_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """All that one server shows.

    Attributes:
        datasets: Datasets and views, in the order given.
        runs: Folders with runs.
        reports: Pages of reports.
        folder: Where views are saved: the folder in which orlog was started.
        trust_environment: Consent to environment arguments that come with the data.
    """

    datasets: Sequence[Shown]
    runs: Sequence[Path]
    reports: Sequence[Path]
    folder: Path
    trust_environment: bool = False


def open_all(names: Sequence[str], *, trust_environment: bool = False) -> Opened:
    """Open datasets by name or path, views by their file, folders of runs, and reports.

    With `trust_environment`, environment arguments that come with the data are used to render.

    Raises NotFoundError if something is not here, or a folder holds nothing that can be shown;
    IntegrityError if a file is missing, cut or altered; ValueError if a folder holds too much to search.
    """
    datasets: list[Shown] = []
    runs: list[Path] = []
    reports: list[Path] = []
    for name in names:
        path = as_folder(name)
        if path is not None and path.suffix == ".html" and path.is_file():
            reports.append(path.resolve())
        elif path is None or not path.is_dir() or holds_manifest(path):
            datasets.append(Shown(name, load_dataset(name)))
        elif (path / REPORT).is_file():
            reports.append((path / REPORT).resolve())
        elif count_runs(path):
            runs.append(path.resolve())
        else:
            raise NotFoundError(
                f"{path}: this folder holds no dataset (manifest.json), no run (run.json) and no report "
                f"({REPORT}); name a folder or a file that orlog wrote."
            )
    return Opened(datasets=datasets, runs=runs, reports=reports, folder=Path.cwd(), trust_environment=trust_environment)


def count_runs(folder: Path) -> int:
    """Return how many runs are in a folder and below; links are not followed.

    Raises ValueError if more lies there than can be searched each time it is shown.
    """
    count = seen = 0
    for _, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MOST_FILES:
            raise ValueError(
                f"{folder}: more than {MOST_FILES:,} files and folders lie in it, too many to search for runs; "
                "name the folder that orlog train wrote into."
            )
        count += RUN_FILE in files
    return count
