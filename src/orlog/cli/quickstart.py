"""Runs the main job from end to end."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer

from orlog.cli.options import CORES, app


@app.command(epilog="Example: orlog quickstart")
def quickstart(
    out: Annotated[
        Path | None,
        typer.Option(
            help="New folder for the runs and the page.", show_default="orlog-quickstart, -2, .."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes to use.", show_default="number of cores")
    ] = CORES,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="A run of seconds that shows that everything works; its scores mean nothing.",
        ),
    ] = False,
) -> None:
    """Build, verify, train, score and compare on one dataset, and write a page about it."""
    from orlog.reports.quickstart import quickstart as run

    run(out or _free_folder("orlog-quickstart"), smoke=smoke, workers=workers)


def _free_folder(name: str) -> Path:
    """Return the first of name, name-2, name-3 ... that is not there."""
    return next(
        path
        for number in itertools.count(1)
        if not (path := Path(name if number == 1 else f"{name}-{number}")).exists()
    )
