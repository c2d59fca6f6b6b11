"""The runs of a folder in Python: a table in a notebook, and learning curves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import ago
from orlog.runs.pages import html_table
from orlog.runs.run_folders import RunSummary, find_run_folders
from orlog.runs.statistics_plots import curves_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Runs(list[RunSummary]):
    """The runs of a folder, as they were when it was read; one that cannot be read says why."""

    def __init__(self, folder: Path) -> None:
        """Read them."""
        super().__init__(find_run_folders(folder))
        self.folder = folder

    def __repr__(self) -> str:
        """Return the folder, and how many runs of each algorithm are in it."""
        names = Counter(
            algorithm_title(run.record.algorithm, run.record.config) if run.record else "unreadable" for run in self
        )
        counts = ", ".join(f"{count} {name}" for name, count in names.items())
        return f"Runs({str(self.folder)!r}: {counts})"

    def plot(self, *, success: bool = False) -> Figure:
        """Return learning curves: mean score over seeds, and its 95 % interval as a band.

        With `success` it is the share of successful episodes, where the environment tells.

        Raises ValueError if no run has a curve; MissingExtraError if matplotlib is not installed.
        """
        return curves_plot(self, success=success)

    def _repr_html_(self) -> str:
        headings = ("run", "algorithm", "dataset", "seed", "step", "score", "state", "changed")
        return html_table(headings, [_cells(run) for run in self])


def _cells(run: RunSummary) -> tuple[str, ...]:
    record = run.record
    if record is None:
        return (str(run.folder), "", "", "", "", "", f"{run.state}: {run.problem}", "")
    return (
        str(run.folder),
        algorithm_title(record.algorithm, record.config),
        record.shown_dataset,
        str(record.seed),
        f"{run.step:,}/{record.steps:,}",
        "" if run.score is None else f"{run.score:z.1f}",
        run.state,
        ago(run.changed),
    )


def load_runs(folder: str | Path = "runs") -> Runs:
    """Return the runs in a folder and all folders in it: their settings, curves, scores and states.

    Raises NotFoundError if there is no such folder.
    """
    return Runs(Path(folder))
