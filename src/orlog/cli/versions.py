"""Compares versions, pins them for a project, and marks them as superseded or yanked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orlog.base.terminal import print_json, say, show_table, tell
from orlog.cli.options import AsJson, app
from orlog.errors import LockError, NotFoundError

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset
    from orlog.manifests.diff import EpisodeRange
    from orlog.manifests.lock import LockedDataset

Compared = Annotated[str, typer.Argument(help="Dataset, version or path.")]
SHOWN = 5  # ranges of episodes that a line of the terminal holds


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

    The exit code of a check is 3 if something that is pinned is not here.
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
        if recorded is None or not recorded.digest.startswith(wanted.digest):
            raise
        manifest = recorded
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
    from orlog.manifests.rebuilds import marked_version

    if not pins:
        say(f"{path} pins nothing; run: orlog lock NAME")
        return
    rows, unmet = [], []
    for name, pin in sorted(pins.items()):
        version = marked_version(name, pin.version, pin.digest)
        is_here = _is_here(name, pin)
        if not is_here:
            unmet.append(f"{name}@{version}: {_how_to_meet(name, pin)}")
        rows.append((name, version, pin.digest[:19], "here" if is_here else "not here"))
    show_table(("name", "version", "digest", "state"), rows)
    say(f"\n{path}")
    for line in unmet:
        tell(f"\n{line}")
    if unmet:
        raise typer.Exit(3)


def check_pin(dataset: Dataset) -> None:
    """Say that what the lock of the working folder pins is not here, beside another version that is.

    Raises:
        LockError: it is not; the message says what would bring the pinned bytes.
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
