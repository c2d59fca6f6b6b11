"""The page of `orlog audit --html`: findings by severity, what was checked, and all thresholds."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np

from orlog.datasets.audit.findings import SEVERITIES, THRESHOLDS, Audit, Finding, place_text
from orlog.datasets.looking.leaves import dimensions_of
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError
from orlog.manifests.names import counted
from orlog.runs.episode_figure import episode_figure
from orlog.runs.pages import HOW_TO_READ, figure, folded, how_to_read, html_table, paragraph, pictures, write_page
from orlog.runs.pictures import MOST_POINTS, Line, lines

MOST_PLOTS = 12
AROUND = 40  # steps before and after a place
NOTES = (
    "An error means that the data are wrong, a warning that they probably are, a note that something is so.",
    f"A picture shows {AROUND} steps before and after the first place of a finding, which is shaded.",
    f"The first {MOST_PLOTS} places are drawn, as far as their columns hold numbers.",
)
TO_LOOK = (
    '<p class="note">To look at an episode: <code>orlog open {name}</code>; each finding of its audit leads to its '
    "step. The address of the first place below ends in <code>#/0/episodes/{episode}?step={step}</code>.</p>"
)


def write_audit_page(audit: Audit, path: Path, dataset: Dataset | None = None) -> None:
    """Write the page about an audit, with a plot of each of the first places if the dataset is given.

    Raises StorageError if the file cannot be written.
    """
    name = f"{audit.name}@{audit.version}" if audit.version else audit.name
    size = f"{counted(audit.episodes, 'episode')}, {counted(audit.steps, 'step')}"
    parts = [paragraph(f"{size}: {audit.summary()}.")]
    named = [one for one in audit.findings if one.episode is not None and one.step is not None]
    drawn: dict[str, str] = {}  # several findings may be at one place
    if dataset is not None:
        for one in named[:MOST_PLOTS]:
            drawn[place_text(one)] = drawn.get(place_text(one), "") + _figure(one, dataset)
        first = episode_figure(dataset, named[0].episode if named else None)
        divisions = [f'<div id="{_anchor(at)}">{one}</div>' for at, one in drawn.items() if one]
        parts.append(pictures([first, *divisions]))
        if named:
            place = {"episode": named[0].episode, "step": named[0].step}
            parts.append(TO_LOOK.format(name=html.escape(name), **place))
    links = {at: f"#{_anchor(at)}" for at, one in drawn.items() if one}
    parts.append(f'<p class="note">{HOW_TO_READ}</p>')
    for severity, meaning in SEVERITIES.items():
        if rows := [(one.check, one.column, one.text, place_text(one), f"{one.count:,}") for one in audit.of(severity)]:
            parts.append(f"<h2>{severity.capitalize()}s: {meaning}</h2>")
            headings = ("check", "column", "finding", "first at", "count")
            parts.append(html_table(headings, rows, {4}, links))
    parts += ["<h2>What was checked</h2>", paragraph(f"{', '.join(audit.checks)}.")]
    if audit.not_checked:
        parts.append(html_table(("not checked", "why"), [*audit.not_checked.items()]))
    thresholds = [(name, f"{one.value:,.7g}", one.meaning) for name, one in THRESHOLDS.items()]
    parts.append(folded("Thresholds", [html_table(("name", "value", "meaning"), thresholds, {1})]))
    parts += [how_to_read(NOTES), f"<p><code>{html.escape(audit.digest)}</code></p>"]
    write_page(path, f"Audit of {name}", parts)


def _anchor(place: str) -> str:
    return place.replace(",", "").replace(" ", "-")


def _figure(finding: Finding, dataset: Dataset) -> str:
    """Return a finding's columns around its place, one above the other; empty where they are no numbers."""
    assert finding.episode is not None
    assert finding.step is not None
    try:
        episode = dataset[finding.episode]
    except (OrlogError, OSError):
        return ""  # not on this machine, or damaged
    known = {"terminations": episode.terminations, "truncations": episode.truncations}
    known |= dict(dimensions_of(episode))
    last = finding.step if finding.last_step is None else finding.last_step
    first = max(0, finding.step - AROUND)
    stop = min(last + AROUND + 1, first + MOST_POINTS)
    drawn = ""
    for series, name in enumerate(filter(None, (finding.column, finding.beside))):
        values = known.get(name.replace("][", ", "), known.get(f"{name}[0]"))
        if values is not None:
            ys = values[first:stop].astype(np.float64).tolist()
            curve = Line(xs=[*range(first, first + len(ys))], ys=ys, series=series)
            place = (finding.step - 0.5, last + 0.5)
            drawn += lines([curve], name, f"{name} over steps of episode {finding.episode}", place)
    text = f"{finding.check}, {finding.column}, {place_text(finding)}: {finding.text}"
    return drawn and figure(drawn, text)
