"""Audits the data of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from orlog.base.terminal import print_json, progress_bar, say, show_table, tell
from orlog.cli.options import AsJson, Imports, Name, TrustEnvironment, app
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.datasets.audit.findings import Audit
    from orlog.datasets.reading.dataset import Dataset

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


@app.command(epilog="Example: orlog audit pointmaze/umaze-v1 --html audit.html")
def audit(
    name: Name,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with all of it there.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A held-out dataset or view, such as a test set, that must share nothing with this "
            "one. May be repeated.",
        ),
    ] = None,
    trust_environment: TrustEnvironment = False,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Check whether the data of a dataset make sense. Exit code 3 if something is wrong.

    It reads every value: NaN, bounds, constant, stuck and clipped dimensions, flags against the
    time limit, final observations, returns, lengths and times, jumps inside of episodes, actions and
    rewards that are shifted by a step, rewards as the environment computes them, duplicates, and
    splits that share data. Errors mean that the data are wrong; warnings and notes leave the exit
    code 0. The page of --html plots the first places.
    """
    from orlog.datasets.audit.audit import audit as audit_dataset

    with progress_bar("audit") as update:
        found = audit_dataset(
            name, against=against or (), trust_environment=trust_environment, progress=update
        )
    if html is not None:
        from orlog.reports.audit_page import write_audit_page

        write_audit_page(found, html, _dataset(name))
    if as_json:
        print_json(found.to_json())
    else:
        print_audit(found)
        if html is not None:
            say(f"written: {html!s}")
    if not found.is_good:
        raise typer.Exit(3)


def _dataset(name: str) -> Dataset | None:
    """Return what was audited, to plot places of it; None for a part of it."""
    from orlog.datasets.loading import load_dataset
    from orlog.errors import OrlogError

    try:
        return load_dataset(name)
    except OrlogError:
        return None


def print_audit(found: Audit) -> None:
    """Print findings as a table, and what was not checked."""
    from orlog.datasets.audit.findings import place_text

    name = f"{found.name}@{found.version}" if found.version else found.name
    title = f"{name}: {counted(found.episodes, 'episode')}, {counted(found.steps, 'step')}: {found.summary()}"
    say(title)
    if found.findings:
        rows: list[list[str | Text]] = [
            [
                Text(one.severity, _COLORS[one.severity]),
                one.check,
                one.column,
                place_text(one),
                one.text,
            ]
            for one in found.findings
        ]
        show_table(["", "check", "column", "first at", "finding"], rows)
    for check, reason in found.not_checked.items():
        tell(f"not checked: {check}: {reason}")
