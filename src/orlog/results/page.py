"""The tables of results as a page to look at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from orlog.algos.algorithms import algorithm_title
from orlog.manifests.names import counted
from orlog.normalize.intervals import BOOTSTRAP_NOTE
from orlog.reports.pages import folded, how_to_read, html_table, page, paragraph
from orlog.reports.pictures import series_of
from orlog.reports.sweep_page import comparison_parts
from orlog.results.documents import SharedResult
from orlog.results.places import Entry
from orlog.results.tables import RECORDED, Board, Row, Table

HEADINGS = (
    *("method", "score", "IQM", "rank", "seeds", "episodes", "steps", "tried"),
    *("settings that differ", "said of it", "by", "from"),
)
NUMBERS = range(1, 8)
PUBLISHED = ("method", "score", "spread", "seeds", "source", "caveats")


def cells(table: Table) -> list[list[str]]:
    """Return the rows of a table of results, under `HEADINGS`; what was taken back has no interval and no rank."""
    rows = []
    for row in table.rows:
        result, found = row.entry.result, table.comparison
        stands = found is not None and row.name in found.runs
        settings = ", ".join(f"{name}={value}" for name, value in row.settings.items())
        rows.append(
            [
                row.name,
                str(row.score) if stands else f"({row.score.value:.1f})",
                str(found.aggregates[row.name]["IQM"]) if found is not None and stands else "",
                str(found.ranks.get(row.name, "")) if found is not None and stands else "",
                str(len(result.seeds)),
                f"{result.protocol.episodes:,}",
                f"{result.compute.steps:,}",
                "not said" if result.method.tried is None else str(result.method.tried),
                settings,
                "; ".join(row.state) or ("not run again yet" if row.entry.found else ""),
                signed_by(row.entry),
                (row.entry.where or [RECORDED])[0],
            ]
        )
    return rows


def signed_by(entry: Entry) -> str:
    """Return who states a result, and the start of the key that signed it."""
    key = entry.result.signed_by
    if not entry.found:
        return RECORDED
    how = "unsigned"
    if key:
        how = f"{key[:20]}, {'not checked' if entry.signers is None else 'signature is right'}"
    return f"{entry.result.by} ({how})" if entry.result.by else how


def published_cells(table: Table) -> list[list[str]]:
    """Return the rows of published scores, under `PUBLISHED`."""
    return [
        [
            algorithm_title(one.algorithm),
            f"{one.score:.1f}",
            "unknown" if one.spread is None else f"{one.spread:.1f} ({one.spread_kind})",
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
        yield _filled(HEADINGS, cells(table), NUMBERS)
    yield from (paragraph(line, "note") for line in table.notes)
    facts = [[name, text] for name, text in table.facts.items()]
    yield folded("What its rows have in common", [html_table(("what", "is"), facts)])
    if table.rows:
        yield folded("Where each number comes from", list(_origins(table.rows)))
    if table.comparison is not None and len(table.comparison.methods) > 1:
        _, *parts = comparison_parts(table.comparison, series_of(table.comparison.methods))
        yield folded("Aggregates, ranks and profiles", parts)


def _filled(headings: Sequence[str], rows: list[list[str]], numbers: Collection[int]) -> str:
    """Return a table without the columns in which nothing stands."""
    kept = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    return html_table(
        [headings[index] for index in kept],
        [[row[index] for index in kept] for row in rows],
        [place for place, index in enumerate(kept) if index in numbers],
    )


def _origins(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        facts = [[name, text] for name, text in origin(row.entry).items() if text]
        facts += [["counted", str(one)] for one in row.numbers]
        yield html_table((row.name, ""), facts)


def origin(entry: Entry) -> dict[str, str]:
    """Return where a result comes from, what it took, and its settings, in words."""
    result: SharedResult = entry.result
    compute, code, method = result.compute, result.code, result.method
    unknown = "not known"
    return {
        "digest": result.digest,
        "created": result.created,
        "places": ", ".join(entry.where or [RECORDED]),
        "algorithm": method.algorithm,
        "settings": ", ".join(f"{name}={value}" for name, value in method.settings.items()),
        "settings from": method.source,
        "seeds": ", ".join(str(one.seed) for one in result.seeds),
        "code": f"sha256 {code.digest[:16]}.." if code.digest else unknown,
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
