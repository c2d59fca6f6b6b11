"""Self-contained HTML pages: no scripts, no external links."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.2rem; font-size: 1.25rem; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; margin: 0.8rem 0; }
th, td { text-align: left; padding: 0.35rem 0.9rem 0.35rem 0; border-bottom: 1px solid #ddd;
         vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: 0.85em; overflow-wrap: anywhere; }
.note { background: #fff6dd; border-left: 4px solid #e0a800; padding: 0.5rem 0.9rem; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return the text of a page; its parts are HTML, the title is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def html_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()
) -> str:
    """Return a table of texts; the columns in `numbers` are aligned to the right."""

    def cell(tag: str, index: int, text: str) -> str:
        kind = ' class="number"' if index in numbers else ""
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", index, text) for index, text in enumerate(headings))
    body = "".join(
        "<tr>" + "".join(cell("td", index, text) for index, text in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    return f"<table>\n<tr>{head}</tr>\n{body}</table>"
