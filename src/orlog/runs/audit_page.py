"""The page of `orlog audit --html`: findings by severity, what was checked, and all thresholds."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np

from orlog.datasets.audit.findings import SEVERITIES, Audit, Finding, place_text
from orlog.datasets.audit.thresholds import THRESHOLDS
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError
from orlog.manifests.names import counted
from orlog.runs.episode_figure import episode_figure
from orlog.runs.pages import (
    HOW_TO_READ,
    figure,
    folded,
    how_to_read,
    html_table,
    paragraph,
    pictures,
    write_page,
)
from orlog.runs.pictures import MOST_POINTS, Line, lines

MOST_PLOTS = 12
AROUND = 40  # steps before and after a place
NOTES = (
    "An error means that the data are wrong, a warning that they probably are, a note that something is so.",
    f"A picture shows {AROUND} steps before and after the first place of a finding, which is shaded.",
    f"The first {MOST_PLOTS} places are drawn, as far as their columns hold numbers.",
)
HEADINGS = ("check", "column", "finding", "first at", "count")


def write_audit_page(audit: Audit, path: Path, dataset: Dataset | None = None) -> None:
    """Write the page about an audit, with a plot of each of the first places if the dataset is given.

    Raises StorageError if the file cannot be written.
    """
    name = f"{audit.name}@{audit.version}" if audit.version else audit.name
    parts = [
        paragraph(
            f"{counted(audit.episodes, 'episode')}, {counted(audit.steps, 'step')}: {audit.summary()}."
        )
    ]
    links: dict[str, str] = {}
    if dataset is not None:
        named = [one for one in audit.findings if one.episode is not None and one.step is not None]
        first = episode_figure(dataset, named[0].episode if named else None)
        drawn: dict[str, str] = {}  # several findings may be at one place
        for one in named[:MOST_PLOTS]:
            drawn[_anchor(one)] = drawn.get(_anchor(one), "") + _figure(one, dataset)
        links = {place_text(one): f"#{_anchor(one)}" for one in named if drawn.get(_anchor(one))}
        parts.append(
            pictures([first, *(f'<div id="{at}">{one}</div>' for at, one in drawn.items() if one)])
        )
        if named:
            address = f"#/0/episodes/{named[0].episode}?step={named[0].step}"
            parts.append(
                f'<p class="note">To look at an episode: <code>orlog open {html.escape(name)}</code>; each finding of '
                "its audit leads to its step. The address of the first place below ends in "
                f"<code>{address}</code>.</p>"
            )
    parts += [f'<p class="note">{HOW_TO_READ}</p>']
    for severity, meaning in SEVERITIES.items():
        found = audit.of(severity)
        if found:
            parts.append(f"<h2>{severity.capitalize()}s: {meaning}</h2>")
            rows = [
                (one.check, one.column, one.text, place_text(one), f"{one.count:,}")
                for one in found
            ]
            parts.append(html_table(HEADINGS, rows, {4}, links))
    parts += ["<h2>What was checked</h2>", paragraph(f"{', '.join(audit.checks)}.")]
    if audit.not_checked:
        parts.append(html_table(("not checked", "why"), [*audit.not_checked.items()]))
    thresholds = [(name, f"{one.value:,.7g}", one.meaning) for name, one in THRESHOLDS.items()]
    parts.append(folded("Thresholds", [html_table(("name", "value", "meaning"), thresholds, {1})]))
    parts.append(how_to_read(NOTES))
    parts.append(f"<p><code>{html.escape(audit.digest)}</code></p>")
    write_page(path, f"Audit of {name}", parts)


def _anchor(finding: Finding) -> str:
    return f"episode-{finding.episode}-step-{finding.step}"


def _figure(finding: Finding, dataset: Dataset) -> str:
    """Return a finding's columns around its place, one above the other; empty where they are no numbers."""
    assert finding.episode is not None
    assert finding.step is not None
    last = finding.step if finding.last_step is None else finding.last_step
    first = max(0, finding.step - AROUND)
    stop = min(last + AROUND + 1, first + MOST_POINTS)
    drawn = ""
    for series, name in enumerate(filter(None, (finding.column, finding.beside))):
        values = _values(dataset, name, finding.episode)
        if values is not None:
            ys = values[first:stop].astype(np.float64).tolist()
            curve = Line(xs=[*range(first, first + len(ys))], ys=ys, series=series)
            place = (finding.step - 0.5, last + 0.5)
            drawn += lines([curve], name, f"{name} over steps of episode {finding.episode}", place)
    text = f"{finding.check}, {finding.column}, {place_text(finding)}: {finding.text}"
    return figure(drawn, text) if drawn else ""


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
