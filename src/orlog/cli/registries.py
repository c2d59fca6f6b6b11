"""Commands about registries, where datasets are fetched from, and the keys that sign them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from orlog.base.terminal import say, show_table
from orlog.cli.options import (
    Description,
    Horizon,
    KeyFile,
    License,
    Signing,
    command_group,
    takes_options,
)
from orlog.manifests.documents import parse_json, read_small_file
from orlog.manifests.names import counted

registries = command_group(
    "registry", "The places that datasets are fetched from, asked in order.", "orlog registry list"
)
keys = command_group("key", "The keys that sign what is published.", "orlog key new lab.pem")
DIGITS = len("ed25519:") + 12


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
) -> None:
    """Add a registry; nothing is fetched yet."""
    from orlog.datasets.home.registries import add_registry

    registry = add_registry(name, url, mirrors=mirrors or (), keys=public_keys or (), first=first)
    state = "signed" if registry.keys else "not signed: its index is trusted as it is"
    say(f"added {registry.name}: {registry.url} ({state})")


@registries.command("list", epilog="Example: orlog registry list")
def list_registries() -> None:
    """List the registries in the order in which they are asked; the last ones ship with orlog."""
    from orlog.datasets.home.registries import read_registries, registries_file
    from orlog.manifests.shipped import SHIPPED

    registered = read_registries()
    rows = [
        (
            one.name,
            one.url,
            "\n".join(one.mirrors) or "-",
            "\n".join(f"{key[:DIGITS]}.." for key in one.keys) or "not signed",
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


@registries.command(
    epilog="Example: orlog registry link s3://our-bucket/datasets lab/hopper-v2@1.0.0 "
    "https://data.example.org/hopper.hdf5 --format d4rl-hdf5 --sha256 .."
)
@takes_options
def link(
    target: Annotated[
        str, typer.Argument(help="The registry to list it in: a folder, or a URL such as s3://..")
    ],
    name: Annotated[str, typer.Argument(help="Its name and version, NAME@VERSION.")],
    file_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Format of the files: d4rl-hdf5.")
    ],
    url: Annotated[
        str | None, typer.Argument(help="URL of the file, or its path in the registry.")
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of a URL, a JSON list of several files: path, url, mirrors, size_bytes, "
            "sha256 and md5 of each.",
        ),
    ] = None,
    mirrors: Annotated[
        list[str] | None,
        typer.Option(
            "--mirror", metavar="URL", help="Another URL of the same bytes; may be repeated."
        ),
    ] = None,
    sha256: Annotated[str | None, typer.Option(help="SHA-256 that upstream publishes.")] = None,
    md5: Annotated[
        str | None, typer.Option(help="MD5, if upstream publishes nothing better.")
    ] = None,
    size: Annotated[int | None, typer.Option(min=0, help="Its size in bytes.")] = None,
    description: Description = "",
    license: License = "",  # noqa: A002 (the word of the manifest)
    horizon: Horizon = None,
    *,
    signing: Signing,
) -> None:
    """List files of others in a registry; they stay where they are, and nothing is fetched yet.

    Users download them from there; without --sha256 or --md5 the first download is trusted. A query that may
    open a signed URL is refused: users give it as --mirror of orlog download.
    """
    from orlog.datasets.formats.formats import find_format
    from orlog.datasets.publish.linking import foreign_file_entry, link_foreign_file

    find_format(file_format, name)
    if (url is None) == (files is None):
        raise typer.BadParameter("give the URL of one file, or --files with a list of several.")
    entry = foreign_file_entry(
        **({"url": url} if files is None else {"files": _listed_files(files)}),
        mirrors=mirrors or (),
        format=file_format,
        size_bytes=size,
        sha256=sha256,
        md5=md5,
        description=description or None,
        license=license or None,
        horizon=horizon,
    )
    registry = link_foreign_file(
        target,
        name,
        entry,
        sign=signing.signer(),
        trusted=signing.trust or (),
        sign_existing=signing.sign_existing,
    )
    has_all = all(file.has_checksum for file in entry.each)
    note = "" if has_all else "; without a checksum the first download will be trusted"
    places = url or f"{counted(len(entry.files), 'file')}"
    say(f"listed in {registry}: {name} at {places}{note}")


def _listed_files(path: Path) -> Any:
    try:
        return parse_json(read_small_file(path))
    except OSError as error:
        raise typer.BadParameter(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise typer.BadParameter(f"{path}: expected a JSON list of files: {error}") from error


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
