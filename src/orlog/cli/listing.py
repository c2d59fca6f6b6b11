"""Lists datasets: those on this machine, those the catalogue builds, and those registries offer."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from orlog.base.terminal import ago, console, print_json, say, show_table, tell
from orlog.cli.options import AsJson, app
from orlog.manifests.families import FAMILIES, find_family
from orlog.manifests.names import counted, size_text

if TYPE_CHECKING:
    from orlog.datasets.listing import Listed


@app.command("list", epilog="Example: orlog list --remote --benchmark minari --search hopper")
def list_datasets(
    pattern: Annotated[
        str,
        typer.Argument(
            help="Only names that contain this text, or match it if it has *, ? or [ in it.",
            show_default="all",
        ),
    ] = "",
    remote: Annotated[
        bool, typer.Option("--remote", help="List what can be downloaded, and what of it is here.")
    ] = False,
    benchmark: Annotated[
        str,
        typer.Option(
            help="Only datasets of this benchmark: the first part of their names.",
            metavar="NAME",
            show_default="all",
        ),
    ] = "",
    search: Annotated[
        str,
        typer.Option(
            help="Only datasets with this text in name or description, in any case.",
            metavar="TEXT",
            show_default="all",
        ),
    ] = "",
    family: Annotated[
        str,
        typer.Option(
            help=f"Only datasets of this family: {', '.join(FAMILIES)}.",
            metavar="NAME",
            show_default="all",
        ),
    ] = "",
    here: Annotated[
        bool, typer.Option("--here", help="List only what is on this machine.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="List what is here and what can be downloaded together.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the datasets of the catalogue and on this machine, or with --remote those to download.

    What known benchmarks publish (d4rl, minari, ogbench, ..) is listed without a network. A
    registry of yours that does not answer is named on stderr.
    """
    from orlog.datasets.home.folders import datasets_folder
    from orlog.datasets.listing import listed_elsewhere, listed_here, matching

    if family:
        find_family(family)  # what is wrong is said before anything is looked for
    if here and (remote or every):
        raise typer.BadParameter("--here lists this machine alone; leave out --remote and --all.")
    found = listed_here()
    if here:  # without what the catalogue could build
        found = {name: one for name, one in found.items() if one.source != "catalogue"}
    problems: dict[str, str] = {}
    if remote or every:
        offered, problems = listed_elsewhere(found)
        found = {**offered, **found} if every else offered
    chosen = matching(found, pattern, benchmark, search, family)
    for registry, problem in problems.items():
        text = f"the registry {registry} does not answer: {problem}."
        tell(text)
    if as_json:
        print_json(
            {
                "folder": str(datasets_folder()),
                "datasets": [dataclasses.asdict(one) for one in chosen],
                "unreachable": problems,
            }
        )
        return
    if remote and not every:
        _print_remote(chosen)
    else:
        _print_all(chosen)
    if not chosen:
        benchmarks = sorted({one.split("/")[0] for one in found})
        text = _nothing(pattern, benchmark, search, family, benchmarks)
        if not (remote or every):
            text += f" To search what can be downloaded, run: orlog list --all {pattern}".rstrip()
        tell(text)
    if not remote or every:
        say(f"\nfolder: {datasets_folder()}")
    elif chosen:
        say(
            f"\n{counted(len(chosen), 'dataset')}. Files and checksums: orlog show NAME; to get one: "
            "orlog download NAME"
        )
        unknown = sum(_size(one) == "-" and not one.has_checksum for one in chosen)
        if unknown:
            say(
                f"Neither size nor checksum is known of {unknown:,}: their first download is trusted."
            )


def _nothing(pattern: str, benchmark: str, search: str, family: str, benchmarks: list[str]) -> str:
    """Return a sentence that says what was looked for in vain."""
    if benchmark and benchmark.lower() not in benchmarks:
        return f"no dataset is of {benchmark}; there are {', '.join(benchmarks)}."
    asked = (
        f"matches {pattern}" if pattern else "",
        f"is of {benchmark}" if benchmark else "",
        f"has {search} in name or description" if search else "",
        f"is of the family {family}" if family else "",
    )
    return f"no dataset {' and '.join(filter(None, asked))}."


def _print_all(chosen: list[Listed]) -> None:
    rows = [
        (
            one.name,
            one.version,
            "-" if one.steps is None else f"{one.steps:,}",
            _size(one),
            _returns(one),
            "" if one.last_used is None else ago(one.last_used.timestamp()),
            _state(one),
        )
        for one in chosen
    ]
    headings = ("name", "version", "steps", "size", "returns", "used", "state")
    spare = ("steps", "used", "size", "returns", "version")
    show_table(headings, rows, numbers=(2, 3), spare=spare)
    if any(one.source == "catalogue" for one in chosen):
        tell("\nto have one that is not here: orlog build NAME, or load_dataset(NAME, build=True)")


def _returns(one: Listed) -> str:
    """Return how the returns of a dataset that is here are spread; nothing where they cannot be read."""
    from orlog.datasets.looking.sparklines import spread
    from orlog.datasets.reading.dataset import Dataset
    from orlog.datasets.reading.finding import find_stored
    from orlog.errors import OrlogError

    if one.state != "here" or one.problem is not None:
        return ""
    with contextlib.suppress(OrlogError, OSError):
        # Not opened as a user would, which marks it as used.
        dataset = Dataset(*find_stored(f"{one.name}@{one.version}"))
        return spread(dataset.column("episodes/returns"), 10)
    return ""


def _print_remote(chosen: list[Listed]) -> None:
    """Print a line for each; a table of rich would take longer than all the rest."""
    heading = ("name", "version", "size", "license", "here")
    rows = [(one.name, one.version, _size(one), one.license or "-", _note(one)) for one in chosen]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    # A name that is too long for the terminal moves its own line only.
    room = console.width - sum(widths[1:4]) - 4 * len("  ") - len(heading[4])
    widths[0] = min(widths[0], max(20, room))
    for number, row in enumerate((heading, *rows)):
        name, version, size, license_id, here = row
        line = (
            f"{name:{widths[0]}}  {version:{widths[1]}}  {size:>{widths[2]}}  "
            f"{license_id:{widths[3]}}  {here}"
        )
        say(line, style="" if number else "bold")


def _size(one: Listed) -> str:
    """Return a size, with a tilde in front where only a rounded one is known."""
    is_rounded = one.size_bytes is None and one.about_bytes is not None
    return f"~{size_text(one.about_bytes)}" if is_rounded else size_text(one.size_bytes)


def _note(one: Listed) -> str:
    """Return what is here of a dataset that can be downloaded, and what is to be known of it."""
    unread = "by hf download" if one.format == "lerobot" else "cannot be read"
    notes = (
        {"not here": "", "here": "yes"}.get(one.state, one.state),
        "not audited" if one.audit else "",
        unread if one.problem else "",
    )
    return ", ".join(filter(None, notes)) or "-"


def _state(one: Listed) -> str:
    audit = ", published without an audit" if one.audit else ""
    if one.problem is not None and one.source is None:
        return f"damaged: {one.problem}" if one.state == "damaged" else one.problem
    if one.source == "catalogue":
        return "not here"
    if one.problem is not None:
        return f"not here; {one.problem}"
    if one.source is not None:
        return f"not here; get it from {one.source} with orlog download{audit}"
    rebuild = f", {one.rebuild}" if one.rebuild else ""
    return f"{one.state}{rebuild}{audit}"
