"""The page of `orlog audit --html`: findings by severity, what was checked, and all thresholds."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from orlog.base.files import make_folder, storage_errors
from orlog.datasets.audit.findings import SEVERITIES, Audit, Finding, place_text
from orlog.datasets.audit.thresholds import THRESHOLDS
from orlog.datasets.looking.figures import check_plots, new_figure
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import MissingExtraError, OrlogError
from orlog.manifests.names import counted
from orlog.reports.pages import html_table, page
from orlog.reports.plots import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PLOTS = 12
AROUND = 40  # steps before and after a place
HEADINGS = ("check", "column", "finding", "first at", "count")


def write_audit_page(audit: Audit, path: Path, dataset: Dataset | None = None) -> None:
    """Write the page about an audit, with a plot of each of the first places if the dataset is given.

    Raises StorageError if the file cannot be written.
    """
    name = f"{audit.name}@{audit.version}" if audit.version else audit.name
    title = f"Audit of {name}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{counted(audit.episodes, 'episode')}, {counted(audit.steps, 'step')}: {audit.summary()}.</p>",
        f"<p><code>{html.escape(audit.digest)}</code></p>",
    ]
    for severity, meaning in SEVERITIES.items():
        found = audit.of(severity)
        if found:
            parts.append(f"<h2>{severity.capitalize()}s: {meaning}</h2>")
            rows = [
                (one.check, one.column, one.text, place_text(one), f"{one.count:,}")
                for one in found
            ]
            parts.append(html_table(HEADINGS, rows, {4}))
    if dataset is not None:
        parts += _places(audit, dataset)
    parts.append("<h2>What was checked</h2>")
    checked = [(name, "checked") for name in audit.checks]
    parts.append(html_table(("check", ""), [*checked, *audit.not_checked.items()]))
    parts.append("<h2>Thresholds</h2>")
    thresholds = [(name, f"{one.value:,.7g}", one.meaning) for name, one in THRESHOLDS.items()]
    parts.append(html_table(("name", "value", "meaning"), thresholds, {1}))
    with storage_errors(path):
        make_folder(path.parent)
        path.write_text(page(title, parts), "utf-8")


def _places(audit: Audit, dataset: Dataset) -> list[str]:
    """Return plots of the columns around the first places that findings name."""
    named = [one for one in audit.findings if one.episode is not None and one.step is not None]
    if not named:
        return []
    try:
        check_plots()
    except MissingExtraError as error:
        return [f"<h2>Places</h2><p>Not drawn: {html.escape(str(error))}</p>"]
    parts = ["<h2>Places</h2>"]
    for one in named[:MOST_PLOTS]:
        figure = _plot(one, dataset)
        if figure is not None:
            text = f"{one.check}, {one.column}, {place_text(one)}: {one.text}"
            parts += [f"<h3>{html.escape(text)}</h3>", to_svg(figure)]
    if len(named) > MOST_PLOTS:
        parts.append(f"<p>The first {MOST_PLOTS} of {len(named)} places are drawn.</p>")
    return parts if len(parts) > 1 else []


def _plot(finding: Finding, dataset: Dataset) -> Figure | None:
    """Return a plot of a finding's column around its place; None where it is no numbers."""
    assert finding.episode is not None
    assert finding.step is not None
    columns = {
        name: values
        for name in filter(None, (finding.column, finding.beside))
        if (values := _values(dataset, name, finding.episode)) is not None
    }
    if not columns:
        return None
    last = finding.step if finding.last_step is None else finding.last_step
    first, stop = max(0, finding.step - AROUND), last + AROUND + 1
    figure, axes = new_figure(1, width=7.5, height=2.2, in_row=1)
    for extra in range(1, len(columns)):
        axes.append(axes[0].twinx())
        axes[extra].spines["top"].set_visible(False)
    for one, color, (name, values) in zip(
        axes, ("#0072b2", "#d55e00"), columns.items(), strict=False
    ):
        shown = values[first:stop]
        one.plot(
            range(first, first + len(shown)), shown, ".-", color=color, linewidth=0.8, markersize=3
        )
        one.set_ylabel(name, color=color, fontsize="small")
    axes[0].axvspan(finding.step - 0.5, last + 0.5, color="#f0e442", alpha=0.4, linewidth=0)
    axes[0].set_xlabel(f"step of episode {finding.episode}")
    return figure


def _values(dataset: Dataset, column: str, episode: int) -> np.ndarray | None:
    """Return what a column with the index of a number, `observations[3]`, has in an episode, (steps,)."""
    name, _, index = column.partition("[")
    root, _, key = name.partition("/")
    try:
        value = getattr(dataset[episode], root)
        for part in [key] if root == "infos" else key.split("/") if key else []:
            value = value[part]
        rows = np.asarray(value)
        chosen = rows.reshape(len(rows), -1)[:, int(index.partition("]")[0]) if index else 0]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OrlogError):
        return None  # text, columns of episodes, or what is not on this machine
    return chosen if chosen.dtype.kind in "fiub" else None
