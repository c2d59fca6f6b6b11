"""All commands, in the order of `orlog --help`, and what becomes of the errors that they raise."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
import warnings
from typing import Any

import typer

from orlog.base.terminal import tell
from orlog.cli import cache, checking, evaluating, exchange, reproducing, scores, showing, training, versions  # noqa: F401
from orlog.cli.advice import as_settings, in_options, stopped_by_signals
from orlog.cli.options import Begun
from orlog.cli.options import app as app
from orlog.errors import InvalidNameError, OrlogError

# The panels of `orlog --help` with their commands in the order shown, and their groups of commands.
PANELS: dict[str, tuple[str, list[typer.Typer]]] = {
    "Datasets": ("list show open build verify audit", []),
    "Download and publish": ("download publish import export", [exchange.registries]),
    "Versions and views": ("diff layer lock mark save", []),
    "Disk space": ("delete", [cache.cache]),
    "Training and scores": ("train finetune evaluate scores ope reproduce sweep compare runs quickstart", []),
}


def _arrange() -> None:
    """Put commands and groups into their panels, with their docstrings as help."""
    order = [name for names, _ in PANELS.values() for name in names.split()]
    app.registered_commands.sort(key=lambda command: order.index(_name(command)))
    commands = [*app.registered_commands]
    for panel, (names, groups) in PANELS.items():
        for command in app.registered_commands:
            if _name(command) in names.split():
                command.rich_help_panel = panel
        for group in groups:
            app.add_typer(group, rich_help_panel=panel)
            commands += group.registered_commands
    for command in commands:  # rich keeps each line's end: those within a sentence go
        text = inspect.getdoc(command.callback) or ""
        command.help = re.sub(r"(?<![.:\n])\n(?!\n)", " ", text)


def _name(command: Any) -> str:
    return str(command.name or command.callback.__name__)


_arrange()


@stopped_by_signals()
def run() -> None:
    """Run the command line; known errors become one line and an exit code, as signals do."""
    warnings.showwarning = lambda message, *_: tell(message, label="warning")
    transfers = logging.getLogger("orlog.download")
    transfers.handlers[:] = [_Telling()]
    transfers.setLevel(logging.INFO)
    try:
        code = _run()
    except typer.Abort:
        tell("Aborted.")
        code = 130
    except Exception as error:  # noqa: BLE001 (a defect is printed as Python does)
        if hasattr(error, "format_message"):  # of a wrong use; typer itself would wrap it in pipes too
            _tell_usage(error)
        elif Begun.debug or not isinstance(error, OrlogError | ValueError | FloatingPointError | OSError):
            traceback.print_exception(error)
        else:
            _tell_error(error)
        code = getattr(error, "exit_code", 1)
    sys.exit(code)


def _run() -> Any:
    """Run a command; where an option is unknown and is a setting of the algorithm, with it as `--set`."""
    try:
        return app(prog_name="orlog", standalone_mode=False)
    except Exception as error:
        words = sys.argv[1:]
        context = getattr(error, "ctx", None) if hasattr(error, "option_name") else None
        options = [] if context is None else context.command.get_params(context)
        if not any("--set" in option.opts for option in options):
            raise
        try:
            again = as_settings(options, words)
        except ValueError as wrong:
            error.message, error.possibilities = str(wrong), None  # type: ignore[attr-defined]
            raise error from wrong
        if again == words:
            raise
    return app(again, prog_name="orlog", standalone_mode=False)


class _Telling(logging.Handler):
    """Prints what a transfer logs: requests that failed, and when they are sent again."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


def _tell_error(error: Exception) -> None:
    text = in_options(str(error))
    if isinstance(error, InvalidNameError) and error.name:
        from orlog.datasets.reading.finding import near_names

        text += near_names(error.name)
    tell(text, label="error")


def _tell_usage(error: Any) -> None:
    """Print how the command is used, and what was wrong; without arguments, help was printed."""
    message = error.format_message()
    if not message:
        return
    if error.ctx is not None:
        usage = " ".join(error.ctx.get_usage().split())
        tell(f"{usage}\nFor help, run: {error.ctx.command_path} --help")
    tell(message if message.endswith((".", "?")) else f"{message}.", label="error")
