"""All commands, in the order of `orlog --help`, and what becomes of the errors that they raise."""

from __future__ import annotations

import inspect
import logging
import re
import shlex
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import typer

from orlog.base.terminal import tell
from orlog.cli import (  # noqa: F401 (some only declare commands)
    cache,
    checking,
    environments,
    imports,
    listing,
    open,  # noqa: A004 (the module is named as the command is)
    registries,
    reproducing,
    runs,
    scores,
    scoring,
    showing,
    statistics,
    training,
    versions,
)
from orlog.cli.advice import in_options, with_line
from orlog.cli.options import Debug, as_settings
from orlog.cli.options import app as app
from orlog.cli.stopping import stopped_by_signals
from orlog.errors import InvalidNameError, OrlogError, VersionExistsError

# The panels of `orlog --help` and their commands, in the order shown, and those of groups of commands.
PANELS = {
    "Datasets": ("list", "show", "open", "build", "verify", "audit"),
    "Download and publish": ("download", "repair", "publish", "import", "export"),
    "Versions and views": ("diff", "lock", "mark", "view", "convert", "save"),
    "Disk space": ("delete",),
    "Training and scores": (
        "train",
        "finetune",
        "evaluate",
        "scores",
        "ope",
        "reproduce",
        "sweep",
        "compare",
        "tune-curve",
        "quickstart",
    ),
}
GROUPS = {
    "Download and publish": (registries.registries, registries.keys),
    "Disk space": (cache.cache,),
    "Training and scores": (runs.runs,),
}


def _flowing(text: str) -> str:
    """Return a docstring whose lines end only where a sentence does: rich keeps each line's end."""
    return re.sub(r"(?<![.:\n])\n(?!\n)", " ", text)


def _name(command: Any) -> str:
    return str(command.name or command.callback.__name__)


def _arrange() -> None:
    """Put commands and groups into their panels, with their docstrings as help."""
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    order = list(panel_of)
    app.registered_commands.sort(key=lambda command: order.index(_name(command)))
    for command in app.registered_commands:
        command.rich_help_panel = panel_of[_name(command)]
    for panel, groups in GROUPS.items():
        for group in groups:
            app.add_typer(group, rich_help_panel=panel)
    for commands in (app, *(group for groups in GROUPS.values() for group in groups)):
        for command in commands.registered_commands:
            command.help = _flowing(inspect.getdoc(command.callback) or "")


_arrange()


@stopped_by_signals()
def run() -> None:
    """Run the command line; known errors become one line and an exit code, as signals do."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # it takes whatever comes
    transfers = logging.getLogger("orlog.download")
    transfers.handlers[:] = [_Telling()]
    transfers.setLevel(logging.INFO)
    try:
        code = _run()
    except typer.Abort:
        tell("Aborted.")
        sys.exit(130)
    except (OrlogError, ValueError, FloatingPointError, OSError) as error:
        _fail(error)
    except Exception as error:  # noqa: BLE001 (a wrong use, or a defect, printed as Python does)
        # Only what typer raises for a wrong use can format its message; what it prints itself would
        # be wrapped in pipes too.
        if hasattr(error, "format_message"):
            _fail_usage(error)
        _fail_with_traceback(error)
    else:
        sys.exit(code)


def _run() -> Any:
    """Run a command; where an option is unknown and is a setting of the algorithm, with it as `--set`."""
    try:
        return app(prog_name="orlog", standalone_mode=False)
    except Exception as error:
        words = sys.argv[1:]
        context = getattr(error, "ctx", None) if hasattr(error, "option_name") else None
        options = [] if context is None else context.command.get_params(context)
        if not any("--set" in one.opts for one in options):
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


def _show_warning(message: Warning | str, *_: object) -> None:
    tell(message, label="warning")


def _fail(error: Exception) -> None:
    if Debug.on:
        _fail_with_traceback(error)
    text = in_options(str(error))
    if isinstance(error, VersionExistsError) and error.free:
        text = with_line(text, error.free)
    if isinstance(error, FileNotFoundError) and error.filename is None and not _is_folder_there():
        text = "the current folder was deleted; change to one that exists."
    if isinstance(error, InvalidNameError) and error.name:
        from orlog.datasets.reading.finding import near_names

        text += near_names(error.name)
    tell(text, label="error")
    sys.exit(_exit_code(error))


def _fail_with_traceback(error: Exception) -> None:
    traceback.print_exception(error)
    sys.exit(_exit_code(error))


def _exit_code(error: Exception) -> int:
    return int(getattr(error, "exit_code", 1))


def _fail_usage(error: Any) -> None:
    """Print how the command is used, and what was wrong; without arguments, help was printed."""
    message = error.format_message()
    if message:
        if error.ctx is not None:
            usage = " ".join(error.ctx.get_usage().split())
            path = error.ctx.command_path
            hint = f"{usage}\nFor help, run: {path} --help"
            tell(hint)
        option = next(
            (one for one in getattr(getattr(error, "param", None), "opts", ()) if one[:2] == "--"),
            None,
        )
        extra = [] if option is None or error.ctx is None else _arguments_too_many(error.ctx)
        if extra:
            message = (
                f"{message.removesuffix('.')}; {shlex.join(extra)} is more than it takes: did you mean "
                f"{option} {shlex.quote(extra[0])}?"
            )
        end = "" if message.endswith((".", "?")) else "."
        tell(f"{message}{end}", label="error")
    sys.exit(error.exit_code)


def _arguments_too_many(context: Any) -> list[str]:
    """Return the arguments of this command line that the command has no place for."""
    words = sys.argv[1:]
    for one in context.command_path.split()[1:]:
        words = words[words.index(one) + 1 :] if one in words else []
    _, extra, _ = context.command.make_parser(context).parse_args(words)
    return list(extra)


def _is_folder_there() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
