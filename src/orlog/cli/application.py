"""What the commands share: the application, and arguments that several of them take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import orlog
from orlog.algos.algorithms import ALGORITHMS, known_as
from orlog.base.processes import cores
from orlog.base.terminal import console

app = typer.Typer(
    name="orlog",
    help="Offline-RL datasets pinned byte by byte, reference algorithms, and honest scores.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Example: orlog quickstart",
)

Name = Annotated[str, typer.Argument(help="Dataset: a name such as pointmaze/umaze-v1, or a path.")]
Algorithm = Annotated[
    str,
    typer.Argument(
        help=f"{', '.join(ALGORITHMS)}, or FILE.py:CLASS of an algorithm of your own.",
        callback=known_as,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a JSON document for scripts, and nothing else.")
]
Workers = Annotated[
    int, typer.Option(min=1, help="Processes to use.", show_default="number of cores")
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY", help="Public key of another signer of this registry. May be repeated."
    ),
]
SignExisting = Annotated[
    bool,
    typer.Option(
        "--sign-existing", help="Sign the existing index and everything in it, without checking."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        help="Where to compute: cpu, cuda, cuda:1, or auto for a GPU if there is one.",
    ),
]
Log = Annotated[
    str,
    typer.Option(help="Copy the log of metrics, which is in metrics.jsonl: tensorboard or wandb."),
]
AlgorithmOfRun = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:CLASS", help="The algorithm of the run, if it is one of your own."
    ),
]
TrustEnvironment = Annotated[
    bool,
    typer.Option("--trust-environment", help="Use environment arguments that come with the data."),
]


def _import_modules(names: list[str] | None) -> list[str] | None:
    if names:
        from orlog.manifests.environments import import_modules

        import_modules(names)
    return names


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module or file of yours that registers environments; may be repeated. "
        "ORLOG_IMPORT=MODULE,.. says the same.",
        callback=_import_modules,
    ),
]
CORES = cores()


def _print_version(asked: bool) -> None:
    if asked:
        console.print(orlog.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    Debug.on = debug


def check_signing(sign: Path | None, trust: list[str] | None, sign_existing: bool) -> None:
    """Refuse options about signing where nothing is signed."""
    if sign is None and (trust or sign_existing):
        raise typer.BadParameter(
            "--trust and --sign-existing are only for signing; add --sign FILE."
        )


class Debug:
    """Whether errors show their traceback."""

    on = False
