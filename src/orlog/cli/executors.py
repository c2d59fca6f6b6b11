"""The options that say where jobs run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orlog.experiments.jobs import Executor

ExecutorName = Annotated[
    str, typer.Option("--executor", help="Where jobs run: processes, ray or slurm.")
]
Address = Annotated[
    str | None, typer.Option(help="Ray: its cluster, as HOST:PORT, or auto for the one here.")
]
ExecutorOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="SLURM: partition=NAME, time=MINUTES, memory=GIGABYTES. May be repeated.",
    ),
]


def chosen_executor(name: str, address: str | None, options: list[str] | None) -> Executor:
    """Return the executor that the options choose.

    Raises:
        ValueError: there is no such executor, or it has no such option.
    """
    from orlog.experiments.jobs import find_executor

    given = {} if address is None else {"address": address}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals:
            raise typer.BadParameter(f"--executor-option takes NAME=VALUE, found {option!r}.")
        given[key] = value
    return find_executor(name, **given)


def cluster_executor(name: str, address: str | None, options: list[str] | None) -> Executor | None:
    """Return the executor that the options choose; None for processes of the command itself.

    Raises:
        ValueError: there is no such executor, or it has no such option.
    """
    if name == "processes" and not address and not options:
        return None
    return chosen_executor(name, address, options)
