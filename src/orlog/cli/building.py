"""Builds datasets of the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from orlog.base.terminal import progress_bar, say, waits
from orlog.cli.options import CORES, Executing, Name, app, takes_options
from orlog.errors import VersionExistsError


@app.command(epilog="Example: orlog build pointmaze/umaze-v1")
@takes_options
def build(
    name: Name,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes to use; with --executor, jobs at a time.",
            show_default="number of cores, or as many as the executor chooses",
        ),
    ] = None,
    *,
    where: Executing,
    replace: Annotated[
        bool, typer.Option("--replace", help="Build again even if it is here.")
    ] = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Record manifest and statistics among those that ship (maintainers)."
        ),
    ] = False,
) -> None:
    """Build a dataset of the catalogue from its recipe. An interrupted build leaves nothing.

    The last line says whether it is identical to the recorded build, or a rebuild with other bytes that
    is statistically equal to it, as other packages or another processor make. A rebuild has a version
    of its own, such as 1.0.0+d0b2cd7c. A build whose episodes are distributed differently is
    refused: nothing is kept, and the exit code is 3.
    With --executor the episodes are made on a cluster, and written here.
    """
    from orlog.cli.versions import check_pin
    from orlog.datasets.loading import load_dataset
    from orlog.datasets.recipes.build import build_dataset
    from orlog.datasets.recipes.rebuilds import compare_with_recorded, record_statistics
    from orlog.manifests.rebuilds import is_rebuild
    from orlog.manifests.shipped import recorded_folder

    execute = where.on_cluster()
    with progress_bar("steps") as update:
        folder = build_dataset(
            name,
            workers=CORES if workers is None and execute is None else workers,
            replace=replace,
            execute=execute,
            progress=update,
            on_wait=waits("building it", say),
        )
    dataset = load_dataset(folder)
    comparison = compare_with_recorded(dataset)
    if record:
        if is_rebuild(dataset.manifest):
            raise VersionExistsError(
                f"{dataset.name}@{dataset.version} differs from the recorded build; give the recipe "
                "another version, or delete what is recorded of this one first."
            )
        path = recorded_folder(dataset.name) / f"{dataset.version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dataset.manifest.to_json(), "utf-8")
        record_statistics(dataset)
    say(f"{dataset.name}@{dataset.version} is in {folder}")
    say(f"{dataset.digest}\n{comparison}")
    check_pin(dataset)
