"""Makes versions and views, compares and pins them, and marks them as superseded or yanked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orlog.base.terminal import print_json, progress_bar, say, show_table, tell, waits
from orlog.cli.options import (
    CORES,
    JOBS_AT_A_TIME,
    AsJson,
    ChunkHashes,
    Container,
    Executing,
    Name,
    OptionalDescription,
    app,
    takes_options,
)
from orlog.errors import IntegrityError, LockError, NotFoundError, VersionExistsError
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset
    from orlog.manifests.diff import EpisodeRange
    from orlog.manifests.lock import LockedDataset


Compared = Annotated[str, typer.Argument(help="Dataset, version or path.")]
SHOWN = 5  # ranges of episodes that a line of the terminal holds


@app.command(epilog="Example: orlog build pointmaze/umaze-v1")
@takes_options
def build(
    name: Name,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=JOBS_AT_A_TIME,
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
    from orlog.datasets.loading import load_dataset
    from orlog.datasets.recipes.build import build_dataset
    from orlog.datasets.recipes.rebuilds import compare_with_recorded, record_statistics
    from orlog.datasets.store.verify import verify_folder
    from orlog.manifests.rebuilds import is_rebuild
    from orlog.manifests.shipped import recorded_folder

    execute = where.on_cluster()
    with progress_bar("steps", f"building {name}") as update:
        folder = build_dataset(
            name,
            workers=CORES if workers is None and execute is None else workers,
            replace=replace,
            execute=execute,
            progress=update,
            on_wait=waits("building it", say),
        )
    if verify_folder(folder)[1]:
        raise IntegrityError(
            f"{folder}: files of the version that is here are damaged; to build it again, run: orlog build {name} --replace"
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


@app.command(
    epilog='Example: orlog view pointmaze/umaze-v1 --where "returns > 20" --save good.json'
)
def view(
    name: Name,
    save: Annotated[Path, typer.Option(help="JSON file to write; load_dataset opens it.")],
    where: Annotated[
        str | None, typer.Option(help="Condition on episodes, such as returns > 20, or success.")
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
def convert(
    name: Name,
    target: Annotated[Path, typer.Argument(help="New folder.")],
    to: Container = "zarr",
    named: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME@VERSION",
            help="Name and version of the result.",
            show_default="the next patch version",
        ),
    ] = None,
    chunk_hashes: ChunkHashes = False,
) -> None:
    """Write a version into a new folder in the other container: same columns, same values.

    Its files differ, so it gets its own version number. With --chunk-hashes the container zarr may stay.
    """
    from orlog.datasets.loading import load_dataset
    from orlog.datasets.recording.converting import convert_dataset
    from orlog.manifests.names import parse_name

    dataset = load_dataset(name)
    wanted = None if named is None else parse_name(named)
    with progress_bar("bytes") as update:
        folder = convert_dataset(
            dataset,
            target,
            container=to,
            name=None if wanted is None else wanted.name,
            version=None if wanted is None else wanted.version or None,
            chunk_hashes=chunk_hashes,
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
    chunk_hashes: ChunkHashes = False,
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
            chunk_hashes=chunk_hashes,
            progress=update,
        )
    stored = load_dataset(folder)
    say(f"{stored.name}@{stored.version} is in {folder}\n{stored.digest}")


@app.command(epilog="Example: orlog diff pointmaze/umaze-v1 pointmaze/umaze-mini-v1")
def diff(before: Compared, after: Compared, as_json: AsJson = False) -> None:
    """Show which metadata, columns and episodes differ between two datasets or versions."""
    from orlog.datasets.loading import load_dataset
    from orlog.manifests.diff import diff_datasets

    found = diff_datasets(load_dataset(before), load_dataset(after))
    if as_json:
        print_json(found.to_json())
        return
    if found.differences:
        rows = [
            (one.kind, one.name, one.change, _short(one.before), _short(one.after))
            for one in found.differences
        ]
        show_table(("what", "name", "change", "before", "after"), rows)
        say()
    lines = [
        ("unchanged", f"{found.unchanged:,}", ""),
        ("changed", f"{sum(map(len, found.changed)):,}", _ranges(found.changed)),
        ("added", f"{sum(map(len, found.added)):,}", _ranges(found.added)),
        ("removed", f"{sum(map(len, found.removed)):,}", _ranges(found.removed)),
        (
            "moved",
            f"{sum(len(one.before) for one in found.moved):,}",
            ", ".join(f"{one.before} -> {one.after}" for one in found.moved[:SHOWN]),
        ),
    ]
    show_table(("episodes", "number", "which"), lines, numbers=(1,))
    if found.changed_columns:
        text = ", ".join(f"{name} in {count}" for name, count in found.changed_columns.items())
        say(f"\ncolumns of changed episodes: {text}")
    if found.is_append:
        say("\nthe second is the first with episodes appended")


def _short(value: object) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _ranges(ranges: list[EpisodeRange]) -> str:
    rest = f", and {len(ranges) - SHOWN} more ranges" if len(ranges) > SHOWN else ""
    return ", ".join(map(str, ranges[:SHOWN])) + rest


@app.command(epilog="Example: orlog lock pointmaze/umaze-v1")
def lock(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Datasets to pin; with --update and no names, all pinned ones."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Move existing pins to other versions or digests.")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Pin a rebuild too, which other machines may not be able to make."
        ),
    ] = False,
) -> None:
    """Pin datasets to their bytes in orlog.lock; without names, check what it pins.

    The exit code of a check is 3 if something that is pinned is not here, and no registry that was added with
    --in-place offers it.
    """
    from orlog.manifests.lock import LOCK_FILE, find_lock, read_lock, write_lock

    path = find_lock() or Path(LOCK_FILE).absolute()
    pins = read_lock(path) if path.exists() else {}
    if not names and not update:
        _check_pins(path, pins)
        return
    wanted = {name.partition("@")[0]: _pin_of(name, rebuild) for name in names or sorted(pins)}
    rows = []
    for name, pin in wanted.items():
        old = pins.get(name)
        if old is not None and old.digest != pin.digest and not update:
            raise LockError(
                f"{path} pins {name} to {old.version} ({old.digest[:19]}), not {pin.version} "
                f"({pin.digest[:19]}); to move it run: orlog lock --update {name}@{pin.version}",
                file=str(path),
                expected=old.digest,
                found=pin.digest,
            )
        state = "new" if old is None else "unchanged" if old.digest == pin.digest else "moved"
        rows.append((name, old.version if old else "-", pin.version, pin.digest[:19], state))
    write_lock(path, wanted)
    show_table(("name", "was", "version", "digest", "pin"), rows)
    say(f"\n{path}: commit it with the code that uses these datasets.")


def _pin_of(name: str, rebuild: bool) -> LockedDataset:
    """Return the pin of what a name means now, whatever a lock says; of a rebuild only if allowed."""
    from orlog.datasets.loading import offered_in_place
    from orlog.datasets.reading.finding import find_dataset
    from orlog.manifests.lock import LockedDataset
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
    from orlog.manifests.names import parse_name, plain_version
    from orlog.manifests.rebuilds import rebuild_text, version_of
    from orlog.manifests.shipped import recorded_manifest

    wanted = parse_name(name)
    try:
        manifest = read_manifest(find_dataset(str(wanted)) / MANIFEST_FILE)
    except NotFoundError:
        recorded = recorded_manifest(wanted.name, wanted.version)
        if recorded is not None and recorded.digest.startswith(wanted.digest):
            manifest = recorded
        elif (offered := offered_in_place(wanted)) is not None:
            manifest = offered.manifest
        else:
            raise
    version = version_of(manifest)
    if "+" in version and not rebuild:
        raise LockError(
            f"{wanted.name}@{version} is {rebuild_text(manifest)}: other machines may not be able to "
            f"make it. To pin it nevertheless run: orlog lock --rebuild {wanted.name}@{version}; to "
            f"pin the recorded data run: orlog lock {wanted.name}@{plain_version(version)}",
            found=manifest.digest,
        )
    return LockedDataset(version=version, digest=manifest.digest)


def _check_pins(path: Path, pins: dict[str, LockedDataset]) -> None:
    from orlog.datasets.loading import offered_in_place
    from orlog.manifests.names import DatasetName
    from orlog.manifests.rebuilds import marked_version

    if not pins:
        say(f"{path} pins nothing; run: orlog lock NAME")
        return
    rows, unmet = [], []
    for name, pin in sorted(pins.items()):
        version = marked_version(name, pin.version, pin.digest)
        state = "here"
        if not _is_here(name, pin):
            is_offered = offered_in_place(DatasetName(name, "", pin.digest)) is not None
            state = "read in place" if is_offered else "not here"
            if not is_offered:
                unmet.append(f"{name}@{version}: {_how_to_meet(name, pin)}")
        rows.append((name, version, pin.digest[:19], state))
    show_table(("name", "version", "digest", "state"), rows)
    say(f"\n{path}")
    for line in unmet:
        tell(f"\n{line}")
    if unmet:
        raise typer.Exit(3)


def check_pin(dataset: Dataset) -> None:
    """Say that what the lock of the working folder pins is not here, beside another version that is.

    The LockError says what would bring the pinned bytes.
    """
    from orlog.manifests.lock import find_lock, read_lock

    path = find_lock()
    pin = read_lock(path).get(dataset.name) if path is not None and path.exists() else None
    if pin is not None and not _is_here(dataset.name, pin):
        raise LockError(
            f"{path} pins {dataset.name}@{pin.version} ({pin.digest}), and this is other data; for "
            f"those: {_how_to_meet(dataset.name, pin)}",
            file=str(path),
            expected=pin.digest,
            found=dataset.digest,
        )


def _is_here(name: str, pin: LockedDataset) -> bool:
    from orlog.datasets.reading.finding import find_dataset

    try:
        find_dataset(f"{name}@{pin.digest}")
    except NotFoundError:
        return False
    return True


def _how_to_meet(name: str, pin: LockedDataset) -> str:
    """Return what would bring the pinned bytes of a dataset to this machine."""
    from orlog.datasets.reading.finding import read_installed
    from orlog.manifests.names import plain_version
    from orlog.manifests.rebuilds import how_to_record, marked_version, recorded_build

    version = marked_version(name, pin.version, pin.digest)
    recorded = recorded_build(name, pin.version)
    if recorded is not None and recorded.digest == pin.digest:
        return how_to_record(recorded, read_installed(name))
    if "+" not in version:
        return f"run: orlog download {name}@{version}"
    return (
        "only the packages and the processor that made this rebuild give it again; with those "
        f"run: orlog build {name}@{version}. Or copy it into a home of yours from where it is, or "
        f"pin the recorded data: orlog lock --update {name}@{plain_version(version)}"
    )


@app.command(
    epilog='Example: orlog mark lab/arm-v1@1.0.0 yanked --reason "camera upside down" --use 1.1.0'
)
def mark(
    name: Annotated[str, typer.Argument(help="Dataset with its version, NAME@VERSION.")],
    status: Annotated[
        Literal["superseded", "yanked", "good"],
        typer.Argument(
            help="superseded: there is a better one. yanked: must not be used; names without a "
            "version skip it. good: neither."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why, in a sentence.")] = "",
    use: Annotated[str, typer.Option(help="Version or dataset to use instead.")] = "",
) -> None:
    """Mark a version on this machine; opening a superseded or yanked one gives a warning."""
    from orlog.datasets.home.history import clear_status, known_versions, set_status
    from orlog.manifests.names import parse_name

    wanted = parse_name(name)
    if not wanted.version:
        raise ValueError(f"{name}: name the version, for example {wanted.name}@1.0.0.")
    if wanted.version not in known_versions(wanted.name):
        listing = f"orlog show {wanted.name}" if known_versions(wanted.name) else "orlog list"
        raise NotFoundError(f"{wanted} is not known; to see what is, run: {listing}")
    if status == "good":
        clear_status(wanted.name, wanted.version)
    else:
        set_status(wanted.name, wanted.version, status, reason=reason, use=use)
    say(f"{wanted} is {status}")
