"""The disk space that datasets take: listing it, freeing it, and deleting versions."""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orlog.base.terminal import print_json, say, show_table, waits
from orlog.cli.options import AsJson, Versions, app, command_group, read_bytes
from orlog.errors import StorageError
from orlog.manifests.names import size_text

if TYPE_CHECKING:
    from orlog.datasets.home.holdings import CachedVersion
    from orlog.loaders.arrays.pack_cache import CachedPack

cache = command_group(
    "cache", "The datasets on this machine, and the space that they take.", "orlog cache list"
)


@cache.command("list", epilog="Example: orlog cache list")
def list_versions(as_json: AsJson = False) -> None:
    """List every version and pack here, with size, source and the time it was last opened.

    A pack is the uncompressed copy that load_arrays(ds, "mmap") maps; it can always be made again.
    The last lines tell of the results of sweeps, each a folder that can be deleted by itself.
    """
    from orlog.datasets.home.folders import datasets_folder
    from orlog.datasets.home.garbage import total_bytes
    from orlog.datasets.home.holdings import cached_versions
    from orlog.datasets.home.in_place import in_place_folder, kept_versions, limit_bytes
    from orlog.loaders.arrays.pack_cache import cached_packs, packs_folder
    from orlog.runs.result_folders import results_folder, stored_space

    results = stored_space()
    found, packs, kept = cached_versions(), cached_packs(), kept_versions()
    kept_bytes = sum(one.size_bytes for one in kept)
    packs_bytes = sum(one.size_bytes for one in packs if one.folder.parent == packs_folder())
    if as_json:
        body = {
            "folder": datasets_folder(),
            "total_bytes": total_bytes(),
            "versions": [dataclasses.asdict(one) for one in found],
            "packs_folder": packs_folder(),
            "packs_bytes": packs_bytes,
            "packs": [_pack_as_json(one) for one in packs],
            "in_place_folder": in_place_folder(),
            "in_place_bytes": kept_bytes,
            "in_place_limit": limit_bytes(),
            "in_place": [
                {
                    "name": one.manifest.name,
                    "version": one.manifest.version,
                    "digest": one.manifest.digest,
                    "size_bytes": one.size_bytes,
                    "whole_bytes": one.manifest.size_bytes,
                    "used": dt.datetime.fromtimestamp(one.used, dt.UTC),
                }
                for one in kept
            ],
            "results_folder": results_folder(),
            "results": results._asdict(),
        }
        print_json(body)
        return
    if found:
        _show_versions(found)
        say()
    say(f"folder: {datasets_folder()}")
    say(f"in all: {size_text(total_bytes())}, shared files counted once")
    if packs:
        say()
        _show_packs(packs)
        say()
        say(f"packs: {packs_folder()}")
        say(f"in all: {size_text(packs_bytes)}")
    if kept:
        say()
        rows = [
            (
                f"{one.manifest.name}@{one.manifest.version}",
                size_text(one.size_bytes),
                size_text(one.manifest.size_bytes),
                _days_ago(dt.datetime.fromtimestamp(one.used, dt.UTC)),
            )
            for one in kept
        ]
        show_table(("read in place", "kept", "of", "last opened"), rows)
        say(f"\nread in place: {in_place_folder()}")
        say(f"in all: {size_text(kept_bytes)} of at most {size_text(limit_bytes())} (ORLOG_CACHE)")
    if results.finished or results.begun:
        say()
        say(f"results: {results_folder()}")
        say(
            f"in all: {size_text(results.size_bytes)}; {results.finished:,} finished, "
            f"{results.begun:,} begun"
        )


@cache.command(epilog="Example: orlog cache gc --unused 60 --max-size 50G --dry-run")
def gc(
    unused: Annotated[
        int | None,
        typer.Option(
            metavar="DAYS",
            min=0,
            help="Also remove packs, downloaded versions and what is kept of those read in place that were not "
            "opened for this many days, and interrupted downloads and files moved aside by repair of the same age.",
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Also remove what is kept of versions read in place, then packs, then downloaded versions, least "
            "recently opened first, until the rest fits this size, such as 500M or 50G.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
) -> None:
    """Remove what killed processes left; with options also packs and downloaded versions.

    Of versions that are read in place, what is kept above ORLOG_CACHE goes, and what is of registries that were
    removed; who reads them fetches it again. Recorded, built and saved versions stay, and so do pinned ones
    (orlog cache keep, or the orlog.lock of the working folder), those opened within a day (unless --unused 0 is
    given), and those in shared homes. Packs can always be made again; those that a process has open stay.
    """
    from orlog.datasets.home.garbage import collect_garbage, total_bytes
    from orlog.datasets.home.in_place import collect_in_place, kept_versions
    from orlog.datasets.home.removal import GarbageReport
    from orlog.loaders.arrays.pack_cache import collect_packs

    failures: list[StorageError] = []

    def collect_versions(room: int | None) -> GarbageReport:
        try:
            return collect_garbage(unused_days=unused, max_bytes=room, dry_run=dry_run)
        except StorageError as error:
            failures.append(error)
            return GarbageReport([], [], total_bytes())

    def collect_kept(room: int | None) -> GarbageReport:
        try:
            return collect_in_place(unused_days=unused, max_bytes=room, dry_run=dry_run)
        except StorageError as error:
            failures.append(error)
            return GarbageReport([], [], sum(one.size_bytes for one in kept_versions()))

    limit = None if max_size is None else read_bytes(max_size, "a size such as 500M or 50G")
    # First what is removed in any case; what is read in place and packs may use the space that this leaves.
    versions = due = collect_versions(None)
    packs = due_packs = collect_packs(unused_days=unused, dry_run=dry_run)
    room = None if limit is None else max(0, limit - due.left_bytes - packs.left_bytes)
    in_place = collect_kept(room)
    if limit is not None:
        room = max(0, limit - due.left_bytes - in_place.left_bytes)
        packs = collect_packs(unused_days=unused, max_bytes=room, dry_run=dry_run)
        versions = collect_versions(max(0, limit - packs.left_bytes - in_place.left_bytes))
    # In a dry run both passes report what is removed in any case.
    reports = (in_place, due_packs, packs, due, versions)
    removed = {gone.path: gone for report in reports for gone in report.removed}
    for gone in removed.values():
        verb = "would remove" if dry_run else "removed"
        say(f"{verb} {gone.path} ({size_text(gone.freed_bytes)}): {gone.why}")
    for kept in {kept.path: kept for report in reports for kept in report.kept}.values():
        say(f"kept {kept.path}: {kept.why}")
    freed = size_text(sum(gone.freed_bytes for gone in removed.values()))
    say(
        f"{freed} {'would be freed' if dry_run else 'freed'}; versions take "
        f"{size_text(versions.left_bytes)}, packs {size_text(packs.left_bytes)}"
        + (f", read in place {size_text(in_place.left_bytes)}" if in_place.left_bytes else "")
    )
    left = packs.left_bytes + versions.left_bytes + in_place.left_bytes
    if limit is not None and left > limit:
        say(
            f"that is more than {max_size}, but nothing else may be removed; to see what is left, "
            "run: orlog cache list"
        )
    failures += [*due_packs.failures, *packs.failures]
    if failures:
        raise failures[0]


@cache.command(epilog="Example: orlog cache keep lab/arm-v1@1.0.0")
def keep(
    name: Versions,
    off: Annotated[bool, typer.Option("--off", help="Let gc remove them again.")] = False,
) -> None:
    """Keep versions: gc never removes them, whatever options it is given."""
    from orlog.datasets.home.garbage import own_versions, pin_version, unpin_version

    for version in own_versions(name):
        if not off:
            pin_version(version.name, version.version, on_wait=waits("writing it"))
            say(f"{version} is kept")
        elif unpin_version(version.name, version.version):
            say(f"{version} is no longer kept")
        else:
            say(f"{version} was not kept")


@app.command(epilog="Example: orlog delete lab/arm-v1@1.0.0")
def delete(
    name: Versions, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Delete versions from your home, after showing them and whether you could get them again.

    Their packs go too, also those of views of them. Interrupted recordings and versions in shared
    homes are left alone. Versions that `orlog cache keep` keeps or `orlog.lock` pins are refused.
    """
    from orlog.datasets.home.garbage import (
        check_deletable,
        delete_version,
        own_versions,
        plan_deletion,
    )
    from orlog.datasets.home.holdings import cached_versions
    from orlog.loaders.arrays.pack_cache import delete_pack, packs_of

    wanted = own_versions(name, ("version", "partial", "download", "strange", "leftover"))
    for one in wanted:
        check_deletable(one.name, one.version)
    found, freed = plan_deletion(wanted)
    packs = packs_of(wanted)
    _show_versions(found)
    say()
    for version in found:
        if version.kind in ("version", "strange"):
            say(f"{version.folder}: {_how_to_get_again(version)}")
    for there in cached_versions():
        if there.kind == "recording" and there.name == wanted[0].name:
            say(f"{there.folder}: an interrupted recording, left alone")
    for pack in packs:
        say(f"{pack.folder}: its pack ({size_text(pack.size_bytes)})")
    say(f"this frees {size_text(freed + sum(pack.size_bytes for pack in packs))}")
    if not yes:
        if not _is_terminal():
            raise ValueError(
                "delete asks for confirmation, and there is no terminal to answer in; add --yes."
            )
        typer.confirm("Delete?", abort=True)
    for one in wanted:
        freed = delete_version(one.name, one.version)
        say(f"deleted {one} ({size_text(freed)})")
    failures = []
    for pack in packs:
        try:
            delete_pack(pack)
            say(f"deleted {pack.folder} ({size_text(pack.size_bytes)})")
        except StorageError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _how_to_get_again(version: CachedVersion) -> str:
    if version.again:
        return f"to get it again, run: {version.again}"
    return f"NO OTHER COPY IS KNOWN ({_short(version.came_from) or 'moved aside by orlog repair'})"


def _short(origin: str) -> str:
    """Return where something is from; of an address or a path in at most 44 characters, its beginning and its end."""
    is_short = "/" not in origin or len(origin) <= 44
    return origin if is_short else f"{origin[:26]}..{origin[-16:]}"


def _show_versions(versions: Sequence[CachedVersion]) -> None:
    from orlog.datasets.home.folders import datasets_folder

    rows = [
        (
            one.name,
            one.version,
            "" if one.kind == "version" else one.kind,
            size_text(one.size_bytes),
            size_text(one.shared_bytes) if one.shared_bytes else "-",
            _short(one.came_from) or "-",
            _days_ago(one.last_used),
            "pinned" if one.is_pinned else "",
            "" if one.home == datasets_folder() else str(one.home),
        )
        for one in versions
    ]
    headings = ("name", "version", "what", "size", "shared", "from", "last used", "pin", "home")
    show_table(headings, rows, numbers=(3, 4), spare=("shared", "home"))


def _show_packs(packs: Sequence[CachedPack]) -> None:
    rows = [
        (
            one.name or "-",
            _versions_of(one) or "-",
            "" if one.kind == "pack" else one.kind,
            size_text(one.size_bytes),
            _days_ago(one.last_used),
            str(one.folder),
        )
        for one in packs
    ]
    show_table(("pack of", "version", "what", "size", "last used", "folder"), rows, numbers=(3,))


def _versions_of(pack: CachedPack) -> str:
    """Return which versions a pack is of, in words; nothing where none of them is here."""
    first, *others = [*dict.fromkeys(one.version for one in pack.versions), ""]
    return ("view of " if pack.is_view and first else "") + ", ".join([first, *others[:-1]])


def _days_ago(time: dt.datetime) -> str:
    days = max(0, (dt.datetime.now(dt.UTC) - time).days)
    return "within a day" if days == 0 else f"{days} days ago"


def _pack_as_json(pack: CachedPack) -> dict[str, object]:
    return {
        "name": pack.name,
        "versions": list(map(str, pack.versions)),
        "is_view": pack.is_view,
        "kind": pack.kind,
        "folder": pack.folder,
        "size_bytes": pack.size_bytes,
        "last_used": pack.last_used,
    }


def _is_terminal() -> bool:
    return sys.stdin.isatty()
