"""Commands that download, repair and publish versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orlog.base.terminal import say, tell, transfer_bar, waits
from orlog.cli.options import Jobs, Mirrors, Name, Rate, Signing, app, takes_options

if TYPE_CHECKING:
    from orlog.datasets.download.mirrors import Limiter


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

    with transfer_bar("download") as bar:
        folder = download_dataset(
            name,
            episodes=_positions(episodes),
            columns=None if columns is None else [one for one in columns.split(",") if one],
            mirrors=mirror or (),
            jobs=jobs,
            limiter=_limiter(limit_rate),
            progress=bar,
            on_objects=bar.count,
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
        with transfer_bar("repair") as bar:
            problems = repair_dataset(
                folder,
                mirrors=mirror or (),
                jobs=jobs,
                limiter=_limiter(limit_rate),
                progress=bar,
                on_objects=bar.count,
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
    jobs: Jobs = 8,
) -> None:
    """Put a version into a registry, so that any static file server of that folder is a mirror.

    The data are audited first (orlog audit); with errors, nothing is published and the exit code is 3.

    A version that is there is never changed. An interrupted command continues when you give it again. With
    --sign, an index that is there must be signed by that key or one that --trust names. A view is
    stored as a version first: orlog save VIEW NAME@VERSION.
    """
    from orlog.datasets.publish.publish import publish_dataset
    from orlog.datasets.reading.finding import stored_folder

    signer = signing.signer()
    folder = stored_folder(name)
    with transfer_bar("publish") as bar:
        url = publish_dataset(
            folder,
            target,
            sign=signer,
            trusted=signing.trust or (),
            sign_existing=signing.sign_existing,
            audit=not no_audit,
            jobs=jobs,
            progress=bar,
            on_audit=bar.audited,
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
        part = f" (a part: {len(objects)} of {len(manifest.objects)} files)"
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

    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG]?)", rate)
    number = (
        float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2].lower()] if match else 0
    )
    if number < 1:
        raise typer.BadParameter(f"{rate!r}: expected bytes per second such as 500k or 20M.")
    return Limiter(number)
