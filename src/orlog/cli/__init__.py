"""The command line. Exit codes: 0 good, 1 user error, 2 usage, 3 integrity."""

from __future__ import annotations

import sys
import warnings

from rich.markup import escape

from orlog.cli import cache, experiments, overview, registries, stores, transfers, versions
from orlog.cli.application import Debug, app
from orlog.errors import OrlogError
from orlog.terminal import errors, printable

__all__ = ["app", "main"]

PANELS = {
    overview.__name__: "Datasets",
    stores.__name__: "Datasets",
    transfers.__name__: "Download and publish",
    versions.__name__: "Versions and views",
    cache.__name__: "Disk space",
    experiments.__name__: "Training and scores",
}
for _command in app.registered_commands:
    _command.rich_help_panel = PANELS[_command.callback.__module__]
app.registered_commands.sort(
    key=lambda command: list(PANELS.values()).index(str(command.rich_help_panel))
)


for _group in (registries.registries, registries.keys):
    app.add_typer(_group, rich_help_panel=PANELS[transfers.__name__])
app.add_typer(cache.cache, rich_help_panel=PANELS[cache.__name__])


def main() -> None:
    """Run the command line; known errors become one line and an exit code."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # it takes whatever comes
    try:
        app(prog_name="orlog")
    except OrlogError as error:
        _fail(error, error.exit_code)
    except (ValueError, FloatingPointError, OSError) as error:
        _fail(error, 1)


def _show_warning(message: Warning | str, *_: object) -> None:
    errors.print(f"[yellow]warning:[/yellow] {escape(printable(str(message)))}", soft_wrap=True)


def _fail(error: Exception, code: int) -> None:
    if Debug.on:
        raise error
    errors.print(f"[red]error:[/red] {escape(printable(str(error)))}", soft_wrap=True)
    sys.exit(code)
