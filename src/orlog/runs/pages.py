"""Self-contained HTML pages in the viewer's look: no scripts, no external links."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from orlog.base.files import make_folder, replace_file, storage_errors

_STYLE = Path(__file__).parents[1] / "viewer" / "page" / "shared.css"
HOW_TO_READ = '<a href="#how-to-read">How to read this</a>'
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title><style>
{style}</style></head>
<body><main class="sheet">
<h1>{name}</h1>
{body}
</main></body></html>
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return the text of a page; its parts are HTML, the title is text and its heading too."""
    style = _STYLE.read_text("utf-8")
    return PAGE.format(name=html.escape(title), style=style, body="\n".join(parts))


def write_page(path: Path, title: str, parts: Sequence[str]) -> None:
    """Write a page, and the folder that it is to lie in.

    Raises StorageError if the file cannot be written.
    """
    with storage_errors(path):
        make_folder(path.parent)
        replace_file(path, page(title, parts).encode())


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of a text; its kind is a class of the style sheet."""
    return f'<p class="{kind}">{html.escape(text)}</p>'


def html_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    links: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a table of texts; the columns in `numbers` are aligned to the right.

    A text in `links` leads to that place. Where the window is narrow, the table alone is scrolled.
    """

    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(cell(tag, *one) for one in enumerate(cells))}</tr>\n"

    def cell(tag: str, index: int, text: str) -> str:
        kind = "number" if index in numbers else "long" if len(text) > 24 else ""
        kind = "breaks" if re.search(r"\S{25}", text) else kind
        inner = html.escape(text)
        if text in links:
            inner = f'<a href="{html.escape(links[text])}">{inner}</a>'
        return f'<{tag} class="{kind}">{inner}</{tag}>'

    label = html.escape(", ".join(filter(None, headings)) or "facts")
    body = "".join(row("td", cells) for cells in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table>\n'
        f"<thead>{row('th', headings)}</thead>\n<tbody>{body}</tbody></table></div>"
    )


def pictures(figures: Iterable[str]) -> str:
    """Return figures side by side, as far as there is room; without any, nothing."""
    there = "\n".join(filter(None, figures))
    return there and f'<div class="pictures">{there}</div>'


def figure(picture: str, caption: str, series: Mapping[str, int] | None = None, kind: str = "") -> str:
    """Return a picture, or pictures, with a text below; `series` has the number of each line by its name."""
    named = "".join(
        f'<span><i class="swatch c{number}"></i>{html.escape(name)}</span> ' for name, number in (series or {}).items()
    )
    words = f"<figcaption>{named}{html.escape(caption)}</figcaption>"
    return f'<figure class="{kind}">{picture}{words}</figure>'


def folded(summary: str, parts: Sequence[str], name: str = "") -> str:
    """Return parts that are shown after a click; a link to `name` opens them."""
    inner = "\n".join(parts)
    mark = name and f' id="{name}"'
    return f"<details><summary>{html.escape(summary)}</summary><div{mark}>{inner}</div></details>"


def how_to_read(notes: Iterable[str]) -> str:
    """Return the folded notes of a page."""
    return folded("How to read this", [paragraph(one) for one in notes], "how-to-read")
