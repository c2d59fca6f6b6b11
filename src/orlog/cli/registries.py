"""What comes from registries and goes there, which of them are asked, and the keys that sign them."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orlog.base.terminal import (
    lines_in_cell,
    print_json,
    progress_bars,
    say,
    show_table,
    tell,
    waits,
)
from orlog.cli.options import (
    AsJson,
    Jobs,
    KeyFile,
    Mirrors,
    Name,
    Rate,
    Signing,
    app,
    command_group,
    read_bytes,
    takes_options,
)
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from rich.text import Text

    from orlog.datasets.download.mirrors import Limiter


registries = command_group(
    "registry", "The places that datasets are fetched from, asked in order.", "orlog registry list"
)
keys = command_group("key", "The keys that sign what is published.", "orlog key new lab.pem")
DIGITS = len("ed25519:") + 12


@app.command(epilog="Example: orlog download lab/arm-v1 --episodes 0:100 --limit-rate 20M")
def download(
    name: Annotated[str, typer.Argument(help="Dataset's name, or the URL of a version's folder.")],
    episodes: Annotated[
        str | None,
        typer.Option(
            metavar="A:B,..",
            help="Only the files that hold these episodes: 0:100 are the first hundred.",
            show_default="all",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,..",
            help="Keep only these of the optional columns: infos/.., parts of observations, ..",
            show_default="all",
        ),
    ] = None,
    mirror: Mirrors = None,
    jobs: Jobs = 16,
    limit_rate: Rate = None,
) -> None:
    """Download a version from a registry or a URL, every byte checked.

    An interrupted download resumes where it stopped; what is here is not transferred again. A part
    is opened by orlog.load_dataset with the same episodes and columns, and completed by downloading
    without them. A mirror of a name is the URL of another registry with the same versions; a mirror
    of a URL is the URL of another copy of the folder.
    """
    from orlog.datasets.download.download import download_dataset

    with progress_bars() as update:
        folder = download_dataset(
            name,
            episodes=_positions(episodes),
            columns=None if columns is None else [one for one in columns.split(",") if one],
            mirrors=mirror or (),
            jobs=jobs,
            limiter=_limiter(limit_rate),
            progress=functools.partial(update, "download", in_bytes=True),
            on_objects=functools.partial(update, "files"),
            on_wait=waits("downloading it"),
            on_read=lambda: tell("downloaded; importing it as a version"),
            on_mirror=lambda text: tell(text),
        )
    _print_downloaded(folder)


@app.command(epilog="Example: orlog repair lab/arm-v1")
def repair(name: Name, mirror: Mirrors = None, jobs: Jobs = 16, limit_rate: Rate = None) -> None:
    """Check a version and download again what is damaged or missing, and nothing else.

    It comes from the mirrors given here (URLs of the version's folder), then from where it was
    downloaded, or else from the registries.
    """
    from orlog.datasets.download.download import repair_dataset
    from orlog.datasets.reading.finding import folders_to_repair

    for folder in folders_to_repair(name):
        with progress_bars() as update:
            problems = repair_dataset(
                folder,
                mirrors=mirror or (),
                jobs=jobs,
                limiter=_limiter(limit_rate),
                progress=functools.partial(update, "repair", in_bytes=True),
                on_objects=functools.partial(update, "files"),
            )
        for problem in problems:
            say(problem)
        result = "no damage found."
        if problems:
            one = len(problems) == 1
            result = "1 problem, repaired." if one else f"{len(problems)} problems, all repaired."
        say(f"{folder}: {result}")


@app.command(epilog="Example: orlog publish lab/arm-v1 s3://our-bucket/datasets --sign lab.key")
@takes_options
def publish(
    name: Name,
    target: Annotated[
        str, typer.Argument(help="Registry to publish it to: a folder, or a URL such as s3://..")
    ],
    signing: Signing,
    no_audit: Annotated[
        bool,
        typer.Option(
            "--no-audit", help="Publish without an audit; the registry's index then says so."
        ),
    ] = False,
    no_hashes: Annotated[
        bool,
        typer.Option(
            "--no-hashes",
            help="Publish a version without hashes of its chunks, which is meant for downloads.",
        ),
    ] = False,
    jobs: Jobs = 8,
) -> None:
    """Put a version into a registry, so that any static file server of that folder is a mirror.

    The data are audited first (orlog audit); with errors, nothing is published and the exit code is 3. A version
    that has files of more than 1 MiB needs hashes of its chunks (orlog convert --chunk-hashes).

    A version that is there is never changed. An interrupted command continues when you give it again. With
    --sign, an index that is there must be signed by that key or one that --trust names. A view is
    stored as a version first: orlog save VIEW NAME@VERSION.
    """
    from orlog.datasets.publish.publish import publish_dataset
    from orlog.datasets.reading.finding import stored_folder

    signer = signing.signer()
    folder = stored_folder(name)
    with progress_bars() as update:
        url = publish_dataset(
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


def _print_downloaded(folder: Path) -> None:
    from orlog.datasets.home.origin import read_origin
    from orlog.datasets.home.presence import is_partial, present_objects
    from orlog.manifests.manifest import MANIFEST_FILE, read_manifest

    manifest = read_manifest(folder / MANIFEST_FILE)
    objects = present_objects(folder, manifest)
    size = sum(item.size_bytes for item in objects)
    part = ""
    if is_partial(folder):
        part = f" (a part: {len(objects)} of {counted(len(manifest.objects), 'file')})"
    lines = [
        f"{manifest.name}@{manifest.version}: {size:,} bytes in {folder}{part}",
        manifest.digest,
    ]
    origin = read_origin(folder)
    if origin is not None:
        where = f"registry {origin.registry}" if origin.registry else origin.mirrors[0]
        lines.append(
            f"from {where}, "
            + (f"signed by {origin.signed_by}" if origin.signed_by else "no signature required")
        )
    elif manifest.lineage:
        lines.append(manifest.lineage[-1].operation)
    say("\n".join(lines))


def _positions(text: str | None) -> list[int] | None:
    """Return the episodes that `0:100,200:300` means."""
    if text is None:
        return None
    positions: list[int] = []
    for one in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", one.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or first + 1) if match else 0
        if last <= first:
            raise typer.BadParameter(f"{text!r}: expected ranges such as 0:100 or 0:100,200:300.")
        positions += range(first, last)
    return positions


def _limiter(rate: str | None) -> Limiter | None:
    """Return what bounds the rate, from text such as 500k or 20M."""
    if rate is None:
        return None
    from orlog.datasets.download.mirrors import Limiter

    number = read_bytes(rate, "bytes per second such as 500k or 20M", at_least=1)
    return Limiter(number)


@registries.command(
    epilog="Example: orlog registry add lab https://data.example.org/registry --key ed25519:.."
)
def add(
    name: Annotated[str, typer.Argument(help="Its name on this machine: a word.")],
    url: Annotated[
        str, typer.Argument(help="Its URL (https, http, file, s3, hf, ..) or a folder.")
    ],
    mirrors: Annotated[
        list[str] | None,
        typer.Option(
            "--mirror", metavar="URL", help="Another place with the same files; may be repeated."
        ),
    ] = None,
    public_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Public key that signs it; then unsigned indexes and versions are refused. May be repeated.",
        ),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="Ask it before the others, not after them.")
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Read its versions where they are: only what is needed is fetched, and checked.",
        ),
    ] = False,
    whole_files: Annotated[
        bool,
        typer.Option(
            "--whole-files",
            help="With --in-place: also read versions without hashes of chunks, whose files are fetched whole.",
        ),
    ] = False,
) -> None:
    """Add a registry; nothing is fetched yet."""
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
    state += "; read in place" if in_place else ""
    say(f"added {registry.name}: {registry.url} ({state})")


@registries.command("list", epilog="Example: orlog registry list")
def list_registries(as_json: AsJson = False) -> None:
    """List the registries in the order in which they are asked; the last ones ship with orlog."""
    from orlog.datasets.home.registries import read_registries, registries_file
    from orlog.manifests.shipped import SHIPPED

    registered = read_registries()
    if as_json:
        asked: list[dict[str, Any]] = [
            {
                "name": one.name,
                "url": one.url,
                "mirrors": one.mirrors,
                "keys": one.keys,
                "in_place": one.in_place,
                "whole_files": one.whole_files,
            }
            for one in registered
        ]
        asked += [
            {
                "name": name,
                "url": None,
                "mirrors": [],
                "keys": [],
                "in_place": False,
                "whole_files": False,
            }
            for name in SHIPPED
        ]
        print_json({"file": str(registries_file()), "registries": asked})
        return
    rows: list[tuple[str | Text, ...]] = [
        (
            one.name,
            f"{one.url} (read in place)" if one.in_place else one.url,
            lines_in_cell(one.mirrors or ["-"]),
            lines_in_cell([f"{key[:DIGITS]}.." for key in one.keys] or ["not signed"]),
        )
        for one in registered
    ]
    rows += [(name, "shipped with orlog", "-", "-") for name in SHIPPED]
    show_table(("name", "URL", "mirrors", "signed by"), rows)
    if not registered:
        say("\nadd one: orlog registry add NAME URL")
        return
    say(f"\nfile: {registries_file()}")


@registries.command(epilog="Example: orlog registry remove lab")
def remove(name: Annotated[str, typer.Argument(help="Its name on this machine.")]) -> None:
    """Remove a registry; datasets that were fetched from it stay."""
    from orlog.datasets.home.registries import remove_registry

    removed = remove_registry(name)
    say(f"removed {removed.name}: {removed.url}")


@keys.command(epilog="Example: orlog key new lab.pem")
def new(path: KeyFile) -> None:
    """Make a key that signs what you publish; never overwrites a file."""
    from orlog.manifests.signatures import new_key

    public = new_key(path)
    say(
        f"private key: {path} (keep it secret, and keep a copy)\n"
        f"public key: {public} (for those who use your registry)"
    )


@keys.command(epilog="Example: orlog key show lab.pem")
def show(path: KeyFile) -> None:
    """Print the public key of a private key file."""
    from orlog.manifests.signatures import public_key

    say(public_key(path))
