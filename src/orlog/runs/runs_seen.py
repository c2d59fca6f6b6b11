"""The runs of a folder in Python: a table in a notebook, and learning curves."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orlog.algos.algorithms import algorithm_title
from orlog.base.terminal import ago
from orlog.runs.pages import html_table
from orlog.runs.run_folders import RunSummary, find_run_folders
from orlog.runs.run_groups import group_runs
from orlog.runs.statistics_plots import curves_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Runs:
    """The runs of a folder, as they were when it was read.

    Attributes:
        folder: The folder.
        runs: What is known of each run; one that cannot be read says why.
    """

    folder: Path
    runs: list[RunSummary]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.runs)

    def __iter__(self) -> Iterator[RunSummary]:
        """Iterate over them, by folder."""
        return iter(self.runs)

    def __repr__(self) -> str:
        """Return the folder, and how many runs of each algorithm are in it."""
        names = Counter(
            algorithm_title(run.record.algorithm, run.record.config) if run.record else "unreadable"
            for run in self.runs
        )
        counts = ", ".join(f"{count} {name}" for name, count in names.items())
        return f"Runs({str(self.folder)!r}: {counts})"

    def __getitem__(self, index: int) -> RunSummary:
        """Return one of them."""
        return self.runs[index]

    def plot(self, *, success: bool = False) -> Figure:
        """Return learning curves: mean score over seeds, and its 95 % interval as a band.

        With `success` it is the share of successful episodes, where the environment tells.

        Raises ValueError if no run has a curve; MissingExtraError if matplotlib is not installed.
        """
        return curves_plot(group_runs(self.runs), success=success)

    def _repr_html_(self) -> str:
        headings = ("run", "algorithm", "dataset", "seed", "step", "score", "state", "changed")
        return html_table(headings, [_cells(run) for run in self.runs])


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
    return Runs(Path(folder), find_run_folders(Path(folder)))
