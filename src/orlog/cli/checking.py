"""Checks stored versions: their bytes and values, and whether the data make sense; and packs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from orlog.base.terminal import print_json, progress_bar, say, show_table, tell
from orlog.cli.options import AsJson, Imports, Name, TrustEnvironment, Workers, app
from orlog.errors import NotFoundError
from orlog.manifests.names import counted, is_url

if TYPE_CHECKING:
    from orlog.datasets.audit.findings import Audit
    from orlog.datasets.download.confirm import Confirmation
    from orlog.datasets.reading.dataset import Dataset
    from orlog.datasets.store.verify import Problem
    from orlog.manifests.manifest import Manifest


_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


@app.command(epilog="Example: orlog verify pointmaze/umaze-v1 --quick")
def verify(
    name: Annotated[str, typer.Argument(help="Name, path or URL of a dataset.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Skip files verified before whose size, times and inode are unchanged."
        ),
    ] = False,
    values: Annotated[
        bool,
        typer.Option(
            "--values",
            help="Also decode every value, and check the BLAKE3 of the columns, their counts of infinities and "
            "NaN, hashes of chunks, and that each file belongs to a column.",
        ),
    ] = False,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Do not ask its source whether it still offers this digest."
        ),
    ] = False,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Check it where it is, in a registry or at a URL.")
    ] = False,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="With --in-place, check only this share of the chunks, such as 1%.",
            show_default="100%",
        ),
    ] = None,
    whole_files: Annotated[
        bool,
        typer.Option(
            "--whole-files",
            help="With --in-place, also check a version without hashes of chunks: each file is fetched whole.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a dataset against its manifest. Exit code 3 if one is wrong.

    The place it was downloaded from is asked whether it still offers this digest; if it offers
    another one, the exit code is 3 too. For a view, the stored versions that it is made from are
    checked, and --json prints one JSON object for each.
    """
    if in_place or whole_files or sample is not None:
        if not in_place or quick or values or offline:
            raise typer.BadParameter(
                "--sample and --whole-files are for --in-place, which can be combined with --json and "
                "--executor only.",
                param_hint="--in-place",
            )
        _verify_in_place(name, sample, whole_files, as_json)
        return
    from orlog.datasets.download.confirm import confirm_version
    from orlog.datasets.home.deletion import unless_deleted
    from orlog.datasets.home.origin import was_downloaded
    from orlog.datasets.reading.finding import folders_to_verify
    from orlog.datasets.store.verify import verify_folder
    from orlog.datasets.store.verify_values import check_opening

    is_right = True
    for folder in folders_to_verify(name):
        with unless_deleted(folder), _bytes_bar(_stored_bytes(folder)) as count:
            manifest, problems = verify_folder(folder, quick=quick, progress=count)
        are_bytes_right = not problems
        if are_bytes_right:
            problems = check_opening(folder, manifest)
        if values and not problems:
            problems = _find_wrong_values(folder)
        origin = confirm_version(folder, manifest, offline=offline)
        is_right = is_right and not problems and origin.state != "other"
        if as_json:
            _print_json(folder, manifest, problems, origin)
            continue
        for problem in problems:
            tell(problem, style="red")
        if not are_bytes_right:
            _print_damage(folder, name, manifest, len(problems))
        else:
            _print_good_bytes(folder, manifest, quick)
            if values or problems:
                _print_values(folder, manifest, bool(problems))
        if origin.state == "other":
            tell(origin.text, style="red")
        elif was_downloaded(folder):
            say(origin.text)
    if not is_right:
        raise typer.Exit(3)


def _verify_in_place(name: str, sample: str | None, whole_files: bool, as_json: bool) -> None:
    from orlog.datasets.download.in_place import open_in_place
    from orlog.datasets.store.chunk_hashes import has_chunk_hashes
    from orlog.datasets.store.verify_in_place import check_where_it_is

    share = 1.0 if sample is None else _share(sample)
    version = open_in_place(name, whole_files=whole_files).selection().versions[0]
    manifest = version.manifest
    with progress_bar("files", f"checking {manifest.name}") as update:
        checked = check_where_it_is(version, share, progress=update)
    by = "hashes" if has_chunk_hashes(manifest) else "whole files"
    if as_json:
        print_json(
            {
                "name": manifest.name,
                "version": manifest.version,
                "digest": version.digest,
                "chunks": checked.chunks,
                "of_chunks": checked.of_chunks,
                "checked_by": by,
                "problems": [dataclasses.asdict(one) for one in checked.problems],
            }
        )
    else:
        for problem in checked.problems:
            tell(problem, style="red")
        what = f"{checked.chunks:,} of {counted(checked.of_chunks, 'chunk')}"
        found = (
            f"{counted(len(checked.problems), 'file')} damaged" if checked.problems else "all right"
        )
        say(f"{manifest.name}@{manifest.version}: {what} fetched and checked by {by}: {found}")
        say(version.digest)
    if checked.problems:
        raise typer.Exit(3)


def _share(text: str) -> float:
    """Return the share that a text such as 1% means."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise typer.BadParameter(
            f"{text!r}: expected a percentage such as 1%.", param_hint="--sample"
        )
    return share


def _print_json(
    folder: Path, manifest: Manifest, problems: list[Problem], origin: Confirmation
) -> None:
    import dataclasses

    from orlog.datasets.home.presence import is_whole, present_objects
    from orlog.manifests.rebuilds import rebuild_text, version_of

    objects = present_objects(folder, manifest)
    body = {
        "name": manifest.name,
        "version": version_of(manifest),
        "rebuild": rebuild_text(manifest) or None,
        "digest": manifest.digest,
        "folder": str(folder),
        "partial": not is_whole(folder, manifest),
        "objects": len(objects),
        "bytes": sum(item.size_bytes for item in objects),
        "origin": dataclasses.asdict(origin),
        "problems": [dataclasses.asdict(problem) for problem in problems],
    }
    print_json(body)


def _print_good_bytes(folder: Path, manifest: Manifest, quick: bool) -> None:
    from orlog.datasets.home.presence import how_much, is_whole, present_objects
    from orlog.manifests.rebuilds import rebuild_text, version_of

    objects = present_objects(folder, manifest)
    count = f"{counted(len(objects), 'file')}"
    if not is_whole(folder, manifest):
        count = how_much(folder, manifest)
    how = " (those that did not change since they were hashed were not read)" if quick else ""
    say(
        f"{manifest.name}@{version_of(manifest)}: {count}, "
        f"{sum(item.size_bytes for item in objects):,} bytes, all as in the manifest{how}\n{manifest.digest}"
    )
    if text := rebuild_text(manifest):
        say(f"{text}: not the recorded data")


def _print_damage(folder: Path, name: str, manifest: Manifest, count: int) -> None:
    from orlog.datasets.home.origin import was_downloaded
    from orlog.datasets.reading.finding import as_folder
    from orlog.datasets.recipes.catalogue import catalogue

    if was_downloaded(folder):
        again = f"run: orlog repair {name}"
    elif as_folder(name) is None and manifest.name in catalogue():
        again = f"run: orlog build {manifest.name} --replace"
    else:
        again = f"copy it from its source again, or run: orlog repair {name} --mirror URL"
    tell(
        f"{count} of {len(manifest.objects)} files of {manifest.name}@{manifest.version} are not "
        f"as in the manifest ({folder}); {again}"
    )


def _print_values(folder: Path, manifest: Manifest, are_wrong: bool) -> None:
    if are_wrong:
        tell(
            f"the files of {manifest.name}@{manifest.version} are as in the manifest, but not what it and "
            f"store format 1 say of them ({folder}): another program, faulty memory or a faulty codec wrote "
            "them so, or reads them now; try another machine, then ask the author for a new version."
        )
    else:
        total = _value_bytes(manifest)
        say(f"{counted(len(manifest.columns), 'column')}, {total:,} bytes of values, all as stated")


def _find_wrong_values(folder: Path) -> list[Problem]:
    """Decode all values of a version whose bytes are right, and return the problems found."""
    from orlog.datasets.home.presence import is_whole
    from orlog.datasets.store.verify import locate
    from orlog.datasets.store.verify_values import check_values
    from orlog.datasets.store.version import StoredVersion
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

    if not is_whole(folder, read_manifest(folder / MANIFEST_FILE)):
        raise NotFoundError(
            f"{folder}: only a part of the version is here, and its checksums of values are for the whole "
            "version; complete it with orlog download, or leave out --values."
        )
    stored = StoredVersion(folder)
    with _bytes_bar(_value_bytes(stored.manifest)) as count:
        return locate(folder, stored.manifest, check_values(stored, count))


def _stored_bytes(folder: Path) -> int:
    from orlog.datasets.home.presence import present_objects
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

    objects = present_objects(folder, read_manifest(folder / MANIFEST_FILE))
    return sum(item.size_bytes for item in objects)


def _value_bytes(manifest: Manifest) -> int:
    import math

    import numpy as np

    return sum(
        column.rows * math.prod(column.shape) * np.dtype(column.dtype).itemsize
        for column in manifest.columns
    )


@contextlib.contextmanager
def _bytes_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield a function that takes the bytes done since its last call."""
    done = 0
    with progress_bar("bytes") as update:

        def count(size: int) -> None:
            nonlocal done
            done += size
            update(done, total)

        yield count


@app.command(epilog="Example: orlog audit pointmaze/umaze-v1 --html audit.html")
def audit(
    name: Name,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page with all of it there.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A held-out dataset or view, such as a test set, that must share nothing with this "
            "one. May be repeated.",
        ),
    ] = None,
    trust_environment: TrustEnvironment = False,
    workers: Workers = 1,
    _imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Check whether the data of a dataset make sense. Exit code 3 if something is wrong.

    It reads every value: NaN, bounds, constant, stuck and clipped dimensions, other units, flags against the
    time limit, final observations, returns, lengths and times, jumps inside of episodes, cameras that hang or
    are late, rows that are held, actions that are copies or change their sense, actions and rewards that are
    shifted by a step, rewards as the environment computes them, duplicates, and splits that share data. Errors
    mean that the data are wrong; warnings and notes leave the exit code 0. The page of --html plots the
    first places.
    With --workers several processes read the data. The findings are the same.
    """
    from orlog.datasets.audit.audit import audit as audit_dataset

    with progress_bar("audit") as update:
        found = audit_dataset(
            _audited(name),
            against=[_audited(one) for one in against or ()],
            trust_environment=trust_environment,
            workers=workers,
            progress=update,
        )
    if html is not None:
        from orlog.runs.audit_page import write_audit_page

        write_audit_page(found, html, _dataset(name))
    if as_json:
        print_json(found.to_json())
    else:
        print_audit(found)
        if html is not None:
            say(f"written: {html}")
    if not found.is_good:
        raise typer.Exit(3)


def _audited(name: str) -> Dataset | str:
    """Return what a URL or a name in a registry of datasets in place stands for; any other name as it is."""
    from orlog.datasets.loading import load_dataset
    from orlog.errors import OrlogError, TransferError

    if is_url(name):
        return load_dataset(name, in_place=True)
    try:
        opened = load_dataset(name)
    except TransferError:
        raise
    except OrlogError:
        return name  # a part of a version, or what the audit says is wrong
    return opened if opened.in_place else name


def _dataset(name: str) -> Dataset | None:
    """Return what was audited, to plot places of it; None for a part of it."""
    from orlog.datasets.loading import load_dataset
    from orlog.errors import OrlogError

    try:
        return load_dataset(name, in_place=True if is_url(name) else None)
    except OrlogError:
        return None


def print_audit(found: Audit) -> None:
    """Print findings as a table, and what was not checked."""
    from orlog.datasets.audit.findings import place_text

    name = f"{found.name}@{found.version}" if found.version else found.name
    title = f"{name}: {counted(found.episodes, 'episode')}, {counted(found.steps, 'step')}: {found.summary()}"
    say(title)
    if found.findings:
        rows: list[list[str | Text]] = [
            [
                Text(one.severity, _COLORS[one.severity]),
                one.check,
                one.column,
                place_text(one),
                one.text,
            ]
            for one in found.findings
        ]
        show_table(["", "check", "column", "first at", "finding"], rows)
    for check, reason in found.not_checked.items():
        tell(f"not checked: {check}: {reason}")
