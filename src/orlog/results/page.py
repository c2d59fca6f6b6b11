"""The tables of results as a page to look at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from orlog.algos.algorithms import algorithm_title
from orlog.manifests.names import counted
from orlog.normalize.metrics import HEADINGS as NUMBER_HEADINGS
from orlog.normalize.statistics import BOOTSTRAP_NOTE
from orlog.reports.pages import folded, how_to_read, html_table, page, paragraph
from orlog.reports.pictures import series_of
from orlog.reports.result_figures import comparison_parts
from orlog.results.documents import SharedResult
from orlog.results.places import Entry
from orlog.results.tables import RECORDED, Board, Row, Table

HEADINGS = (
    *("method", "score", "IQM", "rank", "seeds", "episodes", "steps", "tried"),
    *("settings that differ", "said of it", "by"),
)
NUMBERS = range(1, 8)
COUNTED = ("method", *NUMBER_HEADINGS)
PUBLISHED = ("method", "score", "spread", "seeds", "source", "caveats")


def cells(table: Table) -> list[list[str]]:
    """Return the rows of a table of results, under `HEADINGS`; what is not ranked has no rank."""
    rows = []
    for row in table.rows:
        result, found = row.entry.result, table.comparison
        stands = found is not None and row.name in found.runs
        settings = ", ".join(f"{name}={value}" for name, value in row.settings.items())
        rows.append(
            [
                row.name,
                str(row.score) if stands else f"({row.score.value:z.1f})",
                str(found.aggregates[row.name]["IQM"]) if found is not None and stands else "",
                str(found.ranks.get(row.name, "")) if found is not None and stands else "",
                str(len(result.seeds)),
                f"{result.protocol.episodes:,}",
                " + ".join(
                    f"{one:,}" for one in [*result.method.steps_before, result.compute.steps]
                ),
                "not said" if result.method.tried is None else str(result.method.tried),
                settings,
                "; ".join(row.state) or ("not run again yet" if row.entry.found else ""),
                signed_by(row.entry),
            ]
        )
    return rows


def counted_cells(table: Table) -> list[list[str]]:
    """Return what metrics counted in the rows of a table, under `COUNTED`."""
    return [[row.name, *number.cells()] for row in table.rows for number in row.numbers]


def signed_by(entry: Entry) -> str:
    """Return who states a result, and whether it is signed; where nobody is named, the start of the key."""
    result = entry.result
    if not entry.found:
        return RECORDED
    how = f"signed by {result.signed_by[:20]}" if result.signed_by else "unsigned"
    if result.signed_by and entry.signers is None:
        how += ", not checked"
    elif result.signed_by and result.by:
        how = "signed"
    return f"{result.by} ({how})" if result.by else how


def published_cells(table: Table) -> list[list[str]]:
    """Return the rows of published scores, under `PUBLISHED`."""
    return [
        [
            algorithm_title(one.algorithm),
            f"{one.score:z.1f}",
            "unknown" if one.spread is None else f"{one.spread:z.1f} ({one.spread_kind})",
            str(one.seeds or "unknown"),
            f"{one.source} ({one.source_kind}{f', {one.year}' if one.year else ''})",
            "; ".join(one.caveats),
        ]
        for one in table.scores
    ]


def render(board: Board, title: str) -> str:
    """Return the page of some tables: what is in them, what differs between them, and every number's origin."""
    parts = [
        paragraph(
            "Results that compare share a table. Each is a file with every episode's return; scores, intervals and "
            "ranks follow from these files."
        )
    ]
    parts += [paragraph(line, "error") for line in board.problems]
    for number, table in enumerate(board.tables, 1):
        parts.append(f"<h2>Table {number}</h2>")
        parts += _table_parts(table)
    if board.differences:
        rows = [
            [f"{first + 1} and {second + 1}", line]
            for (first, second), lines in board.differences.items()
            for line in lines
        ]
        parts += ["<h2>What differs between tables</h2>", html_table(("tables", "differ in"), rows)]
    for comparison in board.overall:
        parts += comparison_parts(comparison, series_of(comparison.methods))
    return page(title, [*parts, how_to_read([BOOTSTRAP_NOTE, *board.notes])])


def _table_parts(table: Table) -> Iterator[str]:
    yield paragraph(table.dataset)
    if table.published is not None:
        yield _filled(PUBLISHED, published_cells(table), (1, 3))
    else:
        yield _filled(HEADINGS, cells(table), NUMBERS, _addresses(table.rows))
        if counted_cells(table):
            yield html_table(COUNTED, counted_cells(table), (2, 3))
    yield from (paragraph(line, "note") for line in table.notes)
    facts = [[name, text] for name, text in table.facts.items()]
    yield folded("What its rows have in common", [html_table(("what", "is"), facts)])
    if table.rows:
        yield folded("Where each number comes from", list(_origins(table.rows)))
    if table.comparison is not None and len(table.comparison.methods) > 1:
        _, *parts = comparison_parts(table.comparison, series_of(table.comparison.methods))
        yield folded("Aggregates, ranks and profiles", parts)


def _addresses(rows: Sequence[Row]) -> dict[str, str]:
    """Return where a web server has the files of rows, by their names."""
    found = {row.name: row.entry.where[0] for row in rows if row.entry.found}
    return {name: one for name, one in found.items() if one.startswith(("http://", "https://"))}


def _filled(
    headings: Sequence[str],
    rows: list[list[str]],
    numbers: Collection[int],
    links: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a table without the columns in which nothing stands."""
    kept = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    return html_table(
        [headings[index] for index in kept],
        [[row[index] for index in kept] for row in rows],
        [place for place, index in enumerate(kept) if index in numbers],
        links,
    )


def _origins(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        facts = [[name, text] for name, text in origin(row.entry).items() if text]
        yield html_table((row.name, ""), facts)


def trained_by(result: SharedResult) -> list[str]:
    """Return the starts of the digests of the code that trained each seed, where it was not one code."""
    return [
        f"seed {seed} by {', then '.join(one[:12] or 'code that is not known' for one in codes)}"
        for seed, codes in result.code.trained_by.items()
    ]


def _checked(entry: Entry) -> str:
    return "not checked" if entry.signers is None else "signature is right"


def origin(entry: Entry) -> dict[str, str]:
    """Return where a result comes from, what it took, and its settings, in words."""
    result: SharedResult = entry.result
    compute, code, method = result.compute, result.code, result.method
    unknown = "not known"
    return {
        "digest": result.digest,
        "created": result.created,
        "signed by": result.signed_by and f"{result.signed_by}, {_checked(entry)}",
        "places": ", ".join(entry.where or [RECORDED]),
        "algorithm": method.algorithm,
        "settings": ", ".join(f"{name}={value}" for name, value in method.settings.items()),
        "settings from": method.source,
        "seeds": ", ".join(str(one.seed) for one in result.seeds),
        "code": f"sha256 {code.digest[:16]}.." if code.digest else unknown,
        "trained by": "; ".join(trained_by(result)),
        "repository": " ".join(filter(None, [code.repository, code.commit])) or unknown,
        "versions": ", ".join(f"{name} {one}" for name, one in code.versions.items()),
        "training": f"{counted(compute.steps, 'step')}, batches of {compute.batch_size or unknown}, "
        f"{unknown if compute.parameters is None else f'{compute.parameters:,}'} parameters, "
        f"{unknown if compute.hours is None else f'{compute.hours:.3g}'} hours, {compute.device or unknown}",
        "references": ""
        if result.references is None
        else f"{result.references.source}: {result.references.simulator}",
        "note": result.note,
    }
