"""Commands about the reports of sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orlog.base.terminal import print_json, say
from orlog.cli.options import AsJson, command_group
from orlog.manifests.names import counted

reports = command_group(
    "report", "The reports of sweeps (orlog reproduce --suite).", "orlog report verify runs/report"
)


@reports.command(epilog="Example: orlog report verify runs/report/report.html")
def verify(
    path: Annotated[
        Path, typer.Argument(help="The report's folder, its report.json or its report.html.")
    ],
    as_json: AsJson = False,
) -> None:
    """Compute all numbers of a report again from its returns, and compare. Exit code 3 if one differs.

    Results that are also in this home are compared with those; reference returns and recorded baselines
    with the ones that this orlog knows. Of a page, text and pictures are checked too.
    """
    from orlog.reports.sweep_report import verify_report

    found = verify_report(path)
    if as_json:
        print_json(
            {
                "problems": found.problems,
                "notes": found.notes,
                "results": found.results,
                "stored_here": found.stored,
            }
        )
    else:
        for problem in found.problems:
            say(problem, label="differs")
        for note in found.notes:
            say(f"note: {note}")
        wrong = counted(len(found.problems), "difference")
        outcome = wrong if found.problems else "all numbers agree"
        say(
            f"{outcome}: computed again from {counted(found.results, 'result')}, of which {found.stored} are "
            "stored in this home and were compared with it"
        )
    if found.problems:
        raise typer.Exit(3)
