"""Commands about registries, where datasets are fetched from, and the keys that sign them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from orlog.terminal import console, table

__all__ = ["keys", "registries"]

registries = typer.Typer(
    name="registry",
    help="The places that datasets are fetched from, asked in order.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
keys = typer.Typer(
    name="key",
    help="The keys that sign what is published.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
DIGITS = len("ed25519:") + 12

KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")]


@registries.command(
    epilog="Example: orlog registry add lab https://data.example.org/registry --key ed25519:.."
)
def add(
    name: Annotated[str, typer.Argument(help="What to call it here: a word.")],
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
            help="Public key that signs it; what is not signed is refused then. May be repeated.",
        ),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="Ask it before the others, not after them.")
    ] = False,
) -> None:
    """Add a registry; nothing is fetched yet."""
    from orlog.datasets.registries import add_registry

    registry = add_registry(name, url, mirrors=mirrors or (), keys=public_keys or (), first=first)
    state = "signed" if registry.keys else "not signed: its index is believed as it comes"
    console.print(escape(f"added {registry.name}: {registry.url} ({state})"), soft_wrap=True)


@registries.command("list", epilog="Example: orlog registry list")
def list_registries() -> None:
    """List the registries in the order in which they are asked."""
    from orlog.datasets.registries import read_registries, registries_file

    rows = [
        (
            one.name,
            escape(one.url),
            escape("\n".join(one.mirrors) or "-"),
            "\n".join(f"{key[:DIGITS]}.." for key in one.keys) or "not signed",
        )
        for one in read_registries()
    ]
    if not rows:
        console.print("no registries; add one: orlog registry add NAME URL", soft_wrap=True)
        return
    console.print(table(("name", "URL", "mirrors", "signed by"), rows))
    console.print(escape(f"\nfile: {registries_file()}"), soft_wrap=True)


@registries.command(epilog="Example: orlog registry remove lab")
def remove(name: Annotated[str, typer.Argument(help="What it is called here.")]) -> None:
    """Remove a registry; datasets that were fetched from it stay."""
    from orlog.datasets.registries import remove_registry

    removed = remove_registry(name)
    console.print(escape(f"removed {removed.name}: {removed.url}"), soft_wrap=True)


@keys.command(epilog="Example: orlog key new lab.pem")
def new(path: KeyFile) -> None:
    """Make a key that signs what you publish; never overwrites a file."""
    from orlog.datasets.signatures import new_key

    public = new_key(path)
    console.print(
        escape(
            f"private key: {path} (keep it secret, and keep a copy)\n"
            f"public key: {public} (for those who use your registry)"
        ),
        soft_wrap=True,
    )


@keys.command(epilog="Example: orlog key show lab.pem")
def show(path: KeyFile) -> None:
    """Print the public key of a private key file."""
    from orlog.datasets.signatures import public_key

    console.print(public_key(path), soft_wrap=True)
