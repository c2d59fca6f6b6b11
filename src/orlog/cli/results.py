"""Adds results with every episode's return to a folder or bucket, and makes tables of what many have added."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orlog.base.terminal import print_json, progress_bars, say, say_notes, tell, waits
from orlog.cli.options import (
    AsJson,
    Imports,
    SigningKey,
    TrustEnvironment,
    command_group,
    takes_options,
)
from orlog.cli.reproducing import NOT_CONSISTENT, UNSETTLED, errors_are_no_verdict
from orlog.cli.statistics import print_comparison
from orlog.manifests.names import counted, is_url

if TYPE_CHECKING:
    from orlog.results.documents import Document
    from orlog.results.places import Entry

DAMAGE = 3
WAITS = waits("adding a result")

results = command_group(
    "results",
    "Results that others can add: files with every episode's return, in a folder, bucket or web server.",
    "orlog results table lab/arm-v1 --from results/",
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A result: its path or URL.")]
Places = Annotated[
    list[str],
    typer.Option("--from", metavar="PLACE", help="Folder or URL with results. May be repeated."),
]
Trusted = Annotated[
    list[str] | None,
    typer.Option(
        "--trust", metavar="KEY", help="Take only what this public key signed. May be repeated."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="PLACE",
        help="Folder or URL for the note.",
        show_default="beside the result",
    ),
]
OwnAlgorithm = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:CLASS", help="The algorithm, if it is one of your own."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whose:
    """Who says something, and with which key."""

    by: Annotated[str, typer.Option(help="Who you are: a name, a lab.")] = ""
    sign: SigningKey = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adding:
    """What no file says of a result."""

    whose: Whose
    method: Annotated[
        str, typer.Option(help="Name to compare it under.", show_default="the algorithm's")
    ] = ""
    tried: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many settings you tried to choose these, themselves counted."
        ),
    ] = None
    algorithm: OwnAlgorithm = None
    repository: Annotated[
        str, typer.Option(metavar="URL", help="Where the code is.", show_default="what git says")
    ] = ""
    commit: Annotated[str, typer.Option(help="The commit there.", show_default="what git says")] = (
        ""
    )
    note: Annotated[str, typer.Option(help="What else is to be said.")] = ""
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines", help="Add the recorded baselines of datasets, which RUNS are then."
        ),
    ] = False


@results.command(
    "add",
    epilog="Example: orlog results add runs/iql/lab/arm-v1 --to results/ --tried 4 --sign lab.key",
)
@takes_options
def add(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUNS..",
            help="Folders of evaluated runs, or files with the JSON of orlog evaluate or orlog reproduce.",
        ),
    ],
    to: Annotated[str, typer.Option(metavar="PLACE", help="Folder or URL to add it to.")],
    given: Adding,
    *,
    as_json: AsJson = False,
) -> None:
    """Add a result for each method and dataset among runs: one file, with every episode's return.

    It is checked first: scores follow from returns and references, and the digest of the data is that of
    the manifest that is known here. With --sign, a signature lies beside it.
    """
    import msgspec

    from orlog.results.adding import of_these_runs, remarks, there_already
    from orlog.results.documents import SharedResult
    from orlog.results.known import baseline_results
    from orlog.results.making import Stated, results_of_runs
    from orlog.results.places import add_documents, signed_document

    stated = Stated(
        by=given.whose.by,
        method=given.method,
        tried=given.tried,
        repository=given.repository,
        commit=given.commit,
        note=given.note,
        algorithm=given.algorithm,
    )
    made = (
        [one for name in runs for one in baseline_results(name)]
        if given.baselines
        else results_of_runs(runs, stated)
    )
    added = []
    for one in made:
        new = signed_document(one, given.whose.sign)
        assert isinstance(new, SharedResult)
        before, twin = there_already(to, new), of_these_runs(to, new)
        if before is None:
            add_documents(to, {new.path: new}, key_file=given.whose.sign, on_wait=WAITS)
        else:
            new = before.result
            add_documents(to, {})  # its place in results.json may be missing
        file = f"{to.rstrip('/')}/{new.path}"
        added.append({"file": file, "is_new": before is None, "result": msgspec.to_builtins(new)})
        if not as_json:
            say(f"{'added' if before is None else 'is there already'}: {file}")
        for remark in () if given.baselines else remarks(new, named=given.algorithm is not None):
            tell(f"note: {remark}")
        if twin is not None:
            tell(
                f"note: {twin.where} is of the same runs; if this one replaces it, remove that file."
            )
    if as_json:
        print_json({"added": added})
    else:
        names = " ".join(dict.fromkeys(one.dataset.name for one in made))
        tell(f"to see them in tables, run: orlog results table {names} --from {to}")


def _add_note(about: Entry, note: Document, whose: Whose, to: str | None) -> str:
    from orlog.results.documents import Note
    from orlog.results.places import add_documents, signed_document

    place = _place_of_note(about, whose, to)
    new = signed_document(note, whose.sign)
    assert isinstance(new, Note)
    path = new.path_beside(about.found[0].path)
    add_documents(place, {path: new}, key_file=whose.sign, on_wait=WAITS)
    return f"{place.rstrip('/')}/{path}"


def _place_of_note(about: Entry, whose: Whose, to: str | None) -> str:
    """Return where a note goes, once that takes files and the key is there: what comes before may take hours."""
    from orlog.errors import StorageError
    from orlog.manifests.signatures import public_key

    place = to or about.found[0].place
    if place.startswith(("http://", "https://")):
        raise StorageError(
            f"{place}: a web server takes no files; add --to FOLDER: a note counts wherever it lies."
        )
    if whose.sign is not None:
        public_key(whose.sign)
    return place


@results.command(
    "reproduce", epilog="Example: orlog results reproduce results/arm-v1/iql-3f9ac2d1.json --seed 0"
)
@errors_are_no_verdict()
@takes_options
def reproduce(
    file: File,
    seed: Annotated[
        list[int] | None,
        typer.Option(help="Seed to run again. May be repeated.", show_default="its first"),
    ] = None,
    algorithm: OwnAlgorithm = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/results"),
    to: Where = None,
    *,
    whose: Whose,
    trust_environment: TrustEnvironment = False,
    imports: Imports = None,  # noqa: ARG001 (its callback does the work)
    as_json: AsJson = False,
) -> None:
    """Run seeds of a result again, and add a confirmation or a contradiction beside it, signed if you like.

    The verdicts are those of orlog reproduce, against all seeds of the result. A confirmation is identical,
    the same or consistent; where neither that nor a contradiction can be told, the note says so too.

    Exit codes: 0 a confirmation; 1 a contradiction; 2 an error; 3 damage; 4 unsettled.
    """
    import msgspec

    from orlog.results.places import read_result
    from orlog.results.reproducing import reproduce_result

    about = read_result(file)
    _place_of_note(about, whose, to)
    result = about.result
    with progress_bars() as update:
        note, verdict = reproduce_result(
            result,
            out / result.path.removesuffix(".json"),
            seeds=seed or [result.seeds[0].seed],
            algorithm=algorithm,
            trust_environment=trust_environment,
            by=whose.by,
            progress=lambda one, step, steps: update(f"seed {one}", step, steps),
        )
    path = _add_note(about, note, whose, to)
    if as_json:
        print_json(
            {
                "file": path,
                "verdict": dataclasses.asdict(verdict),
                "note": msgspec.to_builtins(note),
            }
        )
    else:
        say(f"{note.kind}: {verdict}")
        say(f"added: {path}")
    if note.kind == "contradiction":
        raise typer.Exit(NOT_CONSISTENT)
    if note.kind == "unsettled":
        raise typer.Exit(UNSETTLED)


@results.command(
    "table", epilog="Example: orlog results table lab/arm-v1 --from results/ --html table.html"
)
def table(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME..]",
            help="Datasets, also as pointmaze/*.",
            show_default="all that results are of",
        ),
    ] = None,
    places: Places = [],  # noqa: B006 (typer reads it)
    trust: Trusted = None,
    results_only: Annotated[
        bool,
        typer.Option("--results-only", help="Without recorded baselines and published scores."),
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show results in tables: only those that compare share one, and what differs between tables is said.

    Results lie in folders, buckets and on web servers; what several have is there once. Recorded baselines and
    published scores stand beside them, with where they come from. A file that is damaged, or says what is not so, is
    named and left out; the exit code is then 3.
    """
    from orlog.base.files import replace_file, storage_errors
    from orlog.results.page import render
    from orlog.results.places import collect
    from orlog.results.printing import print_board
    from orlog.results.tables import make_board

    if not places and not names:
        raise typer.BadParameter("name a dataset, or places with --from.")
    board = make_board(collect(places, trusted=_keys(trust)), names or (), others=not results_only)
    if html is not None:
        with storage_errors(html):
            replace_file(
                html, render(board, f"Results on {', '.join(names or ['all datasets'])}").encode()
            )
        tell(f"wrote {html}")
    if as_json:
        print_json(board.to_json())
    else:
        print_board(board, functools.partial(print_comparison, is_normalized=True))
    for problem in board.problems:
        tell(problem, label="differs")
    if board.problems:
        raise typer.Exit(DAMAGE)


def _keys(trust: Sequence[str] | None) -> list[str]:
    from orlog.manifests.signatures import is_public_key

    for key in trust or ():
        if not is_public_key(key):
            raise typer.BadParameter(
                f"--trust {key}: expected ed25519: and 64 digits, as orlog key prints."
            )
    return list(trust or ())


@results.command("verify", epilog="Example: orlog results verify results/")
def verify(
    places: Annotated[list[str], typer.Argument(metavar="PLACE..", help="Folders or URLs.")],
    trust: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Check results and notes: digests, signatures, scores, references, data, verdicts. Exit code 3 if one is wrong."""
    from orlog.results.places import collect, stale_listing
    from orlog.results.tables import checked

    collected = collect(places, trusted=_keys(trust))
    entries, problems = checked(collected)
    stale = [stale_listing(Path(one)) for one in places if not is_url(one)]
    notes = [*collected.notes, *filter(None, stale)]
    said = sum(len(one.notes) for one in entries)
    signed = sum(bool(one.signers) for one in entries)
    if as_json:
        print_json(
            {
                "results": len(entries),
                "notes": said,
                "signed": signed,
                "problems": problems,
                "caveats": notes,
            }
        )
    else:
        for problem in problems:
            say(problem, label="differs")
        say_notes(notes)
        outcome = counted(len(problems), "problem") if problems else "all agree"
        say(
            f"{outcome}: {counted(len(entries), 'result')}, {signed} signed, and {counted(said, 'note')} about them"
        )
    if problems:
        raise typer.Exit(DAMAGE)


@results.command("index", epilog="Example: orlog results index results/")
def index(folder: Annotated[Path, typer.Argument(help="Folder of results.")]) -> None:
    """Write results.json of a folder anew: the list of its files, which a web server needs.

    Adding a result does it too. It is for after files were merged in git, or copied.
    """
    from orlog.results.places import write_listing

    say(f"{folder}: {counted(write_listing(folder), 'file')} listed")
