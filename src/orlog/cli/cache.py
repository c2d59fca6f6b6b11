"""The disk space that datasets take: listing it, freeing it, and deleting versions."""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
from typing import Any

import typer

from orlog.base.terminal import say, waits
from orlog.cli.options import AsJson, Versions, command, command_group, read_bytes
from orlog.cli.results import show, show_rows
from orlog.errors import StorageError
from orlog.manifests.names import size_text

cache = command_group("cache", "The datasets on this machine, and the space that they take.", "orlog cache list")
VERSIONS = "name version kind size_bytes shared_bytes came_from=from last_used is_pinned=pinned home"
PACKS = "name=pack_of versions kind is_view=of_a_view size_bytes last_used folder"
IN_PLACE = "name=read_in_place version size_bytes=kept whole_bytes=of used=last_opened"


@command("orlog cache list", cache, "list")
def list_versions(as_json: AsJson = False) -> None:
    """List every version and pack here, with size, source and the time it was last opened.

    A pack is the uncompressed copy that load_arrays(ds, "mmap") maps; it can always be made again.
    The last lines tell of the results of sweeps, each a folder that can be deleted by itself.
    """
    from orlog.datasets.download.in_place import in_place_folder, kept_versions, limit_bytes
    from orlog.datasets.home.folders import datasets_folder
    from orlog.datasets.home.garbage import cached_versions, total_bytes
    from orlog.loaders.packs import cached_packs, packs_folder
    from orlog.runs.results import results_folder, stored_space

    packs, kept = cached_packs(), kept_versions()
    body = {
        "folder": datasets_folder(),
        "total_bytes": total_bytes(),
        "versions": [dataclasses.asdict(version) for version in cached_versions()],
        "packs_folder": packs_folder(),
        "packs_bytes": sum(pack.size_bytes for pack in packs if pack.folder.parent == packs_folder()),
        "packs": [dataclasses.asdict(pack) | {"versions": list(map(str, pack.versions))} for pack in packs],
        "in_place_folder": in_place_folder(),
        "in_place_bytes": sum(version.size_bytes for version in kept),
        "in_place_limit": limit_bytes(),
        "in_place": [
            {
                "name": version.manifest.name,
                "version": version.manifest.version,
                "digest": version.manifest.digest,
                "size_bytes": version.size_bytes,
                "whole_bytes": version.manifest.size_bytes,
                "used": dt.datetime.fromtimestamp(version.used, dt.UTC),
            }
            for version in kept
        ],
        "results_folder": results_folder(),
        "results": stored_space()._asdict(),
    }
    show(body, as_json, versions=VERSIONS, packs=PACKS, in_place=IN_PLACE)


@command("orlog cache gc --unused 60 --max-size 50G --dry-run", cache)
def gc(unused: int | None = None, max_size: str | None = None, dry_run: bool = False) -> None:
    """Remove what killed processes left; with options also packs and downloaded versions.

    Of versions that are read in place, what is kept above ORLOG_CACHE goes, and what is of registries that were
    removed; who reads them fetches it again. Recorded, built and saved versions stay, and so do pinned ones
    (orlog cache keep, or the orlog.lock of the working folder), those opened within a day (unless --unused 0 is
    given), and those in shared homes. Packs can always be made again; those that a process has open stay.

    Options:
        unused (DAYS, >= 0): Also remove packs, downloaded versions and what is kept of those read in place that were
            not opened for this many days, and interrupted downloads and files moved aside by a repair of the same
            age.
        max_size (SIZE): Also remove what is kept of versions read in place, then packs, then downloaded versions,
            least recently opened first, until the rest fits this size, such as 500M or 50G.
        dry_run: Only print what would be removed.
    """
    from orlog.datasets.download.in_place import collect_in_place
    from orlog.datasets.home.garbage import GarbageReport, collect_garbage
    from orlog.loaders.packs import collect_packs

    collectors: dict[str, Any] = {
        "versions": collect_garbage,
        "packs": collect_packs,
        "read in place": collect_in_place,
    }
    reports: list[GarbageReport] = []
    left = dict.fromkeys(collectors, 0)
    limit = None if max_size is None else read_bytes(max_size, "a size such as 500M or 50G")

    def collect(kind: str, *, is_limited: bool) -> None:
        others = sum(size for other, size in left.items() if other != kind)
        room = max(0, limit - others) if is_limited and limit is not None else None
        reports.append(collectors[kind](unused_days=unused, max_bytes=room, dry_run=dry_run))
        left[kind] = reports[-1].left_bytes

    # First what is removed in any case; what is read in place and packs may use the space that this leaves.
    collect("versions", is_limited=False)
    collect("packs", is_limited=False)
    collect("read in place", is_limited=True)
    if limit is not None:
        collect("packs", is_limited=True)
        collect("versions", is_limited=True)
    # In a dry run both passes report what is removed in any case.
    removed = {gone.path: gone for report in reports for gone in report.removed}
    for gone in removed.values():
        say(f"{'would remove' if dry_run else 'removed'} {gone.path} ({size_text(gone.freed_bytes)}): {gone.why}")
    for kept in {kept.path: kept for report in reports for kept in report.kept}.values():
        say(f"kept {kept.path}: {kept.why}")
    freed = size_text(sum(gone.freed_bytes for gone in removed.values()))
    sizes = ", ".join(f"{kind} {size_text(size)}" for kind, size in left.items())
    say(f"{freed} {'would be freed' if dry_run else 'freed'}; what is left: {sizes}")
    if limit is not None and sum(left.values()) > limit:
        say(f"that is more than {max_size}, but nothing else may be removed; see: orlog cache list")
    for failure in (failure for report in reports for failure in report.failures):
        raise failure


@command("orlog cache keep lab/arm-v1@1.0.0", cache)
def keep(name: Versions, off: bool = False) -> None:
    """Keep versions: gc never removes them, whatever options it is given.

    Options:
        off: Let gc remove them again.
    """
    from orlog.datasets.home.garbage import own_versions, pin_version, unpin_version

    for version in own_versions(name):
        if not off:
            pin_version(version.name, version.version, on_wait=waits("writing it"))
            say(f"{version} is kept")
        else:
            was_kept = unpin_version(version.name, version.version)
            say(f"{version} {'is no longer' if was_kept else 'was not'} kept")


@command("orlog delete lab/arm-v1@1.0.0")
def delete(name: Versions, yes: bool = False) -> None:
    """Delete versions from your home, after showing them and whether you could get them again.

    Their packs go too, also those of views of them. Interrupted recordings and versions in shared
    homes are left alone. Versions that `orlog cache keep` keeps or `orlog.lock` pins are refused.

    Options:
        yes: Do not ask.
    """
    from orlog.datasets.home.garbage import (
        cached_versions,
        check_deletable,
        delete_version,
        own_versions,
        plan_deletion,
    )
    from orlog.loaders.packs import delete_pack, packs_of

    wanted = own_versions(name, ("version", "partial", "download", "strange", "leftover"))
    for named in wanted:
        check_deletable(named.name, named.version)
    versions, freed = plan_deletion(wanted)
    packs = packs_of(wanted)
    show_rows([dataclasses.asdict(version) for version in versions], VERSIONS)
    say()
    for version in versions:
        if version.kind in ("version", "strange"):
            origin = version.came_from or "moved aside by a repair"
            again = f"to get it again, run: {version.again}"
            say(f"{version.folder}: {again if version.again else f'NO OTHER COPY IS KNOWN ({origin})'}")
    for cached in cached_versions():
        if cached.kind == "recording" and cached.name == wanted[0].name:
            say(f"{cached.folder}: an interrupted recording, left alone")
    for pack in packs:
        say(f"{pack.folder}: its pack ({size_text(pack.size_bytes)})")
    say(f"this frees {size_text(freed + sum(pack.size_bytes for pack in packs))}")
    if not yes:
        if not _is_terminal():
            raise ValueError("delete asks for confirmation, and there is no terminal to answer in; add --yes.")
        typer.confirm("Delete?", abort=True)
    for named in wanted:
        say(f"deleted {named} ({size_text(delete_version(named.name, named.version))})")
    failures = []
    for pack in packs:
        try:
            delete_pack(pack)
            say(f"deleted {pack.folder} ({size_text(pack.size_bytes)})")
        except StorageError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _is_terminal() -> bool:
    return sys.stdin.isatty()
