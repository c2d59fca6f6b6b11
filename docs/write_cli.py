"""Makes the page of the command line, which only the site has, from the help of each command."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from orlog.cli.commands import app

HEAD = """# The command line

What `orlog COMMAND --help` prints. Exit codes: 0 good, 1 user error, 2 usage,
3 integrity; `orlog reproduce`, which ends in a verdict, has its own, which its help lists.
"""


def cli_page() -> str:
    """Return the page: the help of orlog and of each command, in 100 columns."""
    commands = [[name] for name in _names(app)]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        name = str(group.typer_instance.info.name)
        commands += [[name], *([name, command] for command in _names(group.typer_instance))]
    parts = [HEAD]
    for arguments in ([], *commands):
        text = help_of(arguments)
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## {' '.join(['orlog', *arguments])}\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


def help_of(arguments: list[str]) -> str:
    """Return what a command's --help prints, in 100 columns and without colors."""
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, [*arguments, "--help"], prog_name="orlog", env=plain).stdout


def _names(group: typer.Typer) -> list[str]:
    return [str(command.name or getattr(command.callback, "__name__", "")) for command in group.registered_commands]
