"""Trains the policies that recipes record with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orlog.base.terminal import say
from orlog.cli.options import Imports, Settings, command_group
from orlog.cli.training import read_settings
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.algos.behaviors.training import LogLine

behavior = command_group(
    "behavior",
    "Policies that recipes record datasets with.",
    "orlog behavior train Hopper-v5 --algorithm sac --out hopper.safetensors",
)


@behavior.command(
    epilog="Example: orlog behavior train Hopper-v5 --algorithm sac --out hopper.safetensors"
)
def train(
    environment: Annotated[
        str, typer.Argument(help="Id of a Gymnasium environment with actions in [-1, 1].")
    ],
    algorithm: Annotated[
        str, typer.Option(help="ars (random search, linear policies) or sac (networks).")
    ],
    out: Annotated[Path, typer.Option(help="File of the policies, FILE.safetensors.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps in the environment.")] = 1_000_000,
    every: Annotated[int, typer.Option(min=1, help="Steps between evaluations.")] = 50_000,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
    settings: Settings = None,
    _imports: Imports = None,
) -> None:
    """Train policies in an environment, and keep weak, medium and best ones in a file.

    The medium policy is the one that returns about a third of what the best one does. The record
    beside the file (FILE.json) holds its digest, the settings, the versions of packages, the log of
    training, and the returns of each policy over 100 episodes. Ctrl-C ends training early, with the
    files of the steps until then.
    """
    from orlog.algos.behaviors.training import train_behavior
    from orlog.algos.training.stopping import StopRequest

    def show(line: LogLine) -> None:
        say(f"{counted(line.steps, 'step')}: return {line.mean:,.1f}")

    request = StopRequest()
    with request.noted():
        record = train_behavior(
            environment,
            out,
            algorithm=algorithm,
            steps=steps,
            seed=seed,
            every=every,
            settings=read_settings(settings),
            progress=show,
            stops=lambda: bool(request.signal),
        )
    for line in record.policies:
        say(
            f"kept: policy of {line.steps:,} steps, mean return {line.mean:,.1f} over "
            f"{counted(len(line.returns), 'episode')}"
        )
    say(f"{record.digest}\nis in {out}")
