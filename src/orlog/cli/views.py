"""Derives datasets: views, views stored as versions, and versions in the other container."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orlog.base.terminal import progress_bar, say
from orlog.cli.options import Container, Executing, Name, OptionalDescription, app, takes_options
from orlog.manifests.names import counted


@app.command(
    epilog='Example: orlog view pointmaze/umaze-v1 --where "returns > 20" --save good.json'
)
def view(
    name: Name,
    save: Annotated[Path, typer.Option(help="JSON file to write; load_dataset opens it.")],
    where: Annotated[
        str | None, typer.Option(help="Condition on episode columns, such as returns > 20.")
    ] = None,
    top: Annotated[
        float | None, typer.Option(help="Keep this percentage of episodes, the best by return.")
    ] = None,
    episodes: Annotated[
        str | None, typer.Option(help="Keep a slice of episodes, such as 0:100 or :-10.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Keep this column; may be repeated.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another view in the file.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Save it even if no episode is left.")
    ] = False,
) -> None:
    """Derive a dataset without copying it: --where, --top, --episodes, --column, in this order.

    A file that is not a saved view is never overwritten.
    """
    from orlog.datasets.loading import load_dataset

    dataset = load_dataset(name)
    if where is not None:
        dataset = dataset.filter_episodes(where)
    if top is not None:
        dataset = dataset.top_episodes(top)
    if episodes is not None:
        dataset = dataset[_slice(episodes)]
    if columns:
        dataset = dataset.select_columns(columns)
    if dataset.operation is None:
        raise typer.BadParameter(
            "choose what the view keeps, with --where, --top, --episodes or --column."
        )
    if not dataset.total_episodes and not allow_empty:
        raise ValueError(
            f"{name}: no episode is left, so {save} was not written; widen the condition, or save an "
            "empty view with --allow-empty."
        )
    path = dataset.save(save, replace=replace)
    say(f"{counted(dataset.total_episodes, 'episode')}, {counted(dataset.total_steps, 'step')}")
    say(f"{dataset.digest}\n{path}")


def _slice(text: str) -> slice:
    parts = text.split(":")
    try:
        bounds = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        bounds = []
    if len(bounds) not in (2, 3):
        raise ValueError(f"--episodes takes a slice such as 0:100 or :-10, found {text!r}.")
    return slice(*bounds)


@app.command(epilog="Example: orlog convert pointmaze/umaze-mini-v1 umaze-mini-hdf5 --to hdf5")
@takes_options
def convert(
    name: Name,
    target: Annotated[Path, typer.Argument(help="New folder.")],
    to: Container,
    named: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME@VERSION",
            help="Name and version of the result.",
            show_default="the next patch version",
        ),
    ] = None,
    *,
    where: Executing,
) -> None:
    """Write a version into a new folder in the other container: same columns, same values.

    Its files differ, so it gets its own version number.
    With --executor the machines of a cluster write it, from and to a disk that all of them share.
    """
    from orlog.datasets.loading import load_dataset
    from orlog.datasets.recording.converting import convert_dataset
    from orlog.manifests.names import parse_name

    dataset = load_dataset(name)
    wanted = None if named is None else parse_name(named)
    execute = where.on_cluster()
    with progress_bar("bytes") as update:
        folder = convert_dataset(
            dataset,
            target,
            container=to,
            name=None if wanted is None else wanted.name,
            version=None if wanted is None else wanted.version or None,
            execute=execute,
            progress=update,
        )
    written = load_dataset(folder)
    say(
        f"{dataset.name}@{dataset.version} as {to} is {written.name}@{written.version}, in {folder}\n"
        f"{written.digest}"
    )


@app.command(epilog="Example: orlog save good.json lab/umaze-good-v1@1.0.0")
def save(
    view: Annotated[str, typer.Argument(help="View or dataset: a path or a name.")],
    name: Annotated[str, typer.Argument(help="Name and version to store it as, NAME@VERSION.")],
    description: OptionalDescription = None,
    changes: Annotated[str, typer.Option(help="What is new since the previous version.")] = "",
    container: Container = "zarr",
) -> None:
    """Store a view as its own dataset, with its lineage."""
    from orlog.datasets.loading import load_dataset
    from orlog.datasets.recording.saving import save_dataset
    from orlog.manifests.names import parse_name

    wanted = parse_name(name)
    with progress_bar("steps") as update:
        folder = save_dataset(
            load_dataset(view),
            wanted.name,
            version=wanted.version or "1.0.0",
            description=description,
            changes=changes,
            container=container,
            progress=update,
        )
    stored = load_dataset(folder)
    say(f"{stored.name}@{stored.version} is in {folder}\n{stored.digest}")
