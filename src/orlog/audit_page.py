"""The page of `orlog audit --html`: findings by gravity, what was checked, and all thresholds."""

from __future__ import annotations

import html
from pathlib import Path

from orlog.datasets.audit.findings import GRAVITIES, Audit, place_text
from orlog.datasets.audit.thresholds import THRESHOLDS
from orlog.files import storage_errors
from orlog.manifests.names import counted
from orlog.pages import html_table, page

__all__ = ["write_audit_page"]

HEADINGS = ("check", "column", "finding", "first at", "count")


def write_audit_page(audit: Audit, path: Path) -> None:
    """Write the page about an audit.

    Raises:
        StorageError: the file cannot be written.
    """
    name = f"{audit.name}@{audit.version}" if audit.version else audit.name
    title = f"Audit of {name}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{counted(audit.episodes, 'episode')}, {counted(audit.steps, 'step')}: {audit.summary()}.</p>",
        f"<p><code>{html.escape(audit.digest)}</code></p>",
    ]
    for gravity, meaning in GRAVITIES.items():
        found = audit.of(gravity)
        if found:
            parts.append(f"<h2>{gravity.capitalize()}s: {meaning}</h2>")
            rows = [
                (one.check, one.column, one.text, place_text(one), f"{one.count:,}")
                for one in found
            ]
            parts.append(html_table(HEADINGS, rows, {4}))
    parts.append("<h2>What was checked</h2>")
    checked = [(name, "checked") for name in audit.checks]
    parts.append(html_table(("check", ""), [*checked, *audit.not_checked.items()]))
    parts.append("<h2>Thresholds</h2>")
    thresholds = [(name, f"{one.value:,.7g}", one.meaning) for name, one in THRESHOLDS.items()]
    parts.append(html_table(("name", "value", "meaning"), thresholds, {1}))
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(title, parts), "utf-8")
