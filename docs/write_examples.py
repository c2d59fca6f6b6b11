"""Writes the code of the pages `your-own-..` from the examples that they explain.

A comment names the file and the part of it, a class, function or method, that stands below it:

    <!-- cocoa.py: Anchors.find -->
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("your-own-*.md"))
BLOCK = re.compile(r"(<!-- (\w+\.py): ([\w.]+) -->\n```py\n)(.*?)(```)", re.DOTALL)


def page_with_code(page: Path) -> str:
    """Return a page with the code as the examples have it now."""
    text = page.read_text("utf-8")
    return BLOCK.sub(lambda found: found[1] + part_of(found[2], found[3]) + found[5], text)


def part_of(file: str, name: str) -> str:
    """Return the lines of a class, function or method of an example."""
    source = (ROOT / "examples" / file).read_text("utf-8")
    node: ast.Module | ast.ClassDef | ast.FunctionDef = ast.parse(source)
    for one in name.split("."):
        parts = [part for part in node.body if isinstance(part, ast.ClassDef | ast.FunctionDef)]
        (node,) = (part for part in parts if part.name == one)
    assert not isinstance(node, ast.Module)
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    lines = source.splitlines()[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)) + "\n"


if __name__ == "__main__":
    for one in PAGES:
        one.write_text(page_with_code(one), "utf-8")
