"""What comes from registries and goes there, which of them are asked, and the keys that sign them."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import typer

import orlog
from orlog.base.terminal import progress_bars, say, tell, waits
from orlog.cli.options import AsJson, Name, Signing, Transfer, command, command_group
from orlog.cli.results import show, show_rows
from orlog.manifests.names import counted

registries = command_group(
    "registry", "The places that datasets are fetched from, asked in order.", "orlog registry list"
)
DIGITS = len("ed25519:") + 12


@command("orlog download lab/arm-v1 --episodes 0:100 --limit-rate 20M")
def download(name: str, episodes: str | None = None, columns: str | None = None, *, transfer: Transfer) -> None:
    """Download a version from a registry or a URL, every byte checked.

    An interrupted download resumes where it stopped; what is here is not transferred again. A part
    is opened by orlog.load_dataset with the same episodes and columns, and completed by downloading
    without them. A mirror of a name is the URL of another registry with the same versions; a mirror
    of a URL is the URL of another copy of the folder.

    Options:
        name: Dataset's name, or the URL of a version's folder.
        episodes (A:B,.., default: all): Only the files that hold these episodes: 0:100 are the first hundred.
        columns (NAME,.., default: all): Keep only these of the optional columns: infos/.., parts of observations, ..
    """
    from orlog.datasets.home.folders import is_partial, present_objects
    from orlog.datasets.home.records import read_origin
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

    with progress_bars() as update:
        folder = orlog.download_dataset(
            name,
            episodes=_positions(episodes),
            columns=None if columns is None else [one for one in columns.split(",") if one],
            progress=functools.partial(update, "download", in_bytes=True),
            on_objects=functools.partial(update, "files"),
            on_wait=waits("downloading it"),
            on_read=lambda: tell("downloaded; importing it as a version"),
            on_mirror=lambda text: tell(text),
            **transfer.arguments(),
        )
    manifest = read_manifest(folder / MANIFEST_FILE)
    objects = present_objects(folder, manifest)
    size = sum(item.size_bytes for item in objects)
    files = counted(len(manifest.objects), "file")
    part = f" (a part: {len(objects)} of {files})" if is_partial(folder) else ""
    say(f"{manifest.name}@{manifest.version}: {size:,} bytes in {folder}{part}\n{manifest.digest}")
    origin = read_origin(folder)
    if origin is not None:
        where = f"registry {origin.registry}" if origin.registry else origin.mirrors[0]
        signed = f"signed by {origin.signed_by}" if origin.signed_by else "no signature required"
        say(f"from {where}, {signed}")
    elif manifest.lineage:
        say(manifest.lineage[-1].operation)


def _positions(text: str | None) -> list[int] | None:
    """Return the episodes that `0:100,200:300` means."""
    if text is None:
        return None
    positions: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or first + 1) if match else 0
        if last <= first:
            raise typer.BadParameter(f"{text!r}: expected ranges such as 0:100 or 0:100,200:300.")
        positions += range(first, last)
    return positions


@command("orlog publish lab/arm-v1 s3://our-bucket/datasets --sign lab.key")
def publish(
    name: Name, target: str, signing: Signing, no_audit: bool = False, no_hashes: bool = False, jobs: int = 8
) -> None:
    """Put a version into a registry, so that any static file server of that folder is a mirror.

    The data are audited first (orlog audit); with errors, nothing is published and the exit code is 3. A version
    that has files of more than 1 MiB needs hashes of its chunks (orlog save --chunk-hashes).

    A version that is there is never changed. An interrupted command continues when you give it again. With
    --sign, an index that is there must be signed by that key or one that --trust names. A view is
    stored as a version first: orlog save VIEW NAME@VERSION.

    Options:
        target: Registry to publish it to: a folder, or a URL such as s3://..
        no_audit: Publish without an audit; the registry's index then says so.
        no_hashes: Publish a version without hashes of its chunks, which is meant for downloads.
        jobs (>= 1): Files to transfer at once.
    """
    from orlog.datasets.reading.finding import stored_folder

    signer = signing.signer()
    folder = stored_folder(name)
    with progress_bars() as update:
        url = orlog.publish_dataset(
            folder,
            target,
            sign=signer,
            trusted=signing.trust or (),
            sign_existing=signing.sign_existing,
            audit=not no_audit,
            hashes=not no_hashes,
            jobs=jobs,
            progress=functools.partial(update, "publish", in_bytes=True),
            on_audit=functools.partial(update, "audit"),
            on_wait=waits("publishing there"),
        )
    say(f"published: {url}")


@command("orlog registry add lab https://data.example.org/registry --key ed25519:..", registries)
def add(
    name: str,
    url: str,
    mirrors: list[str] | None = None,
    public_keys: list[str] | None = None,
    first: bool = False,
    in_place: bool = False,
    whole_files: bool = False,
) -> None:
    """Add a registry; nothing is fetched yet.

    Options:
        name: Its name on this machine: a word.
        url: Its URL (https, http, file, s3, hf, ..) or a folder.
        mirrors (--mirror URL): Another place with the same files; may be repeated.
        public_keys (--key KEY): Public key that signs it; then unsigned indexes and versions are refused. May be
            repeated.
        first: Ask it before the others, not after them.
        in_place: Read its versions where they are: only what is needed is fetched, and checked.
        whole_files: With --in-place: also read versions without hashes of chunks, whose files are fetched whole.
    """
    from orlog.datasets.home.registries import add_registry

    if whole_files and not in_place:
        raise typer.BadParameter("it goes with --in-place.", param_hint="--whole-files")
    registry = add_registry(
        name,
        url,
        mirrors=mirrors or (),
        keys=public_keys or (),
        first=first,
        in_place=in_place,
        whole_files=whole_files,
    )
    state = "signed" if registry.keys else "not signed: its index is trusted as it is"
    say(f"added {registry.name}: {registry.url} ({state}{'; read in place' if in_place else ''})")


@command("orlog registry list", registries, "list")
def list_registries(as_json: AsJson = False) -> None:
    """List the registries in the order in which they are asked; the last ones ship with orlog."""
    from orlog.datasets.home.registries import read_registries, registries_file
    from orlog.manifests.shipped import SHIPPED

    keys = ("name", "url", "mirrors", "keys", "in_place", "whole_files")
    asked = [{key: getattr(one, key) for key in keys} for one in read_registries()]
    asked += [dict(zip(keys, (name, None, [], [], False, False), strict=True)) for name in SHIPPED]

    def text(body: dict[str, Any]) -> None:
        rows = [
            {
                **one,
                "url": (one["url"] or "shipped with orlog") + " (read in place)" * one["in_place"],
                "keys": [f"{key[:DIGITS]}.." for key in one["keys"]] or ("not signed" if one["url"] else "-"),
            }
            for one in body["registries"]
        ]
        show_rows(rows, "name url=URL mirrors keys=signed_by")
        has_own = len(rows) > len(SHIPPED)
        say(f"\nfile: {body['file']}" if has_own else "\nadd one: orlog registry add NAME URL")

    show({"file": registries_file(), "registries": asked}, as_json, text)


@command("orlog registry remove lab", registries)
def remove(name: str) -> None:
    """Remove a registry; datasets that were fetched from it stay.

    Options:
        name: Its name on this machine.
    """
    from orlog.datasets.home.registries import remove_registry

    removed = remove_registry(name)
    say(f"removed {removed.name}: {removed.url}")


@command("orlog registry key lab.pem --new", registries)
def key(path: Path, new: bool = False) -> None:
    """Print the public key of a private key that signs what you publish, or make a new one.

    Options:
        path (FILE): File of the private key.
        new: Make the key; a file that is there is never overwritten.
    """
    from orlog.manifests.signatures import new_key, public_key

    if not new:
        say(public_key(path))
        return
    public = new_key(path)
    say(f"private key: {path} (keep it secret, and keep a copy)")
    say(f"public key: {public} (for those who use your registry)")
