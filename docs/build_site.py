"""Builds the documentation site from README.md, docs/, notebooks/ and the docstrings: `make site`.

The pages are copied first: README.md becomes the first page, links that leave `docs/` get a place in the
site, notebooks become pages without their output, and packages get the `__init__.py` without which
docstrings below them are not found. Warnings, such as a link that leads nowhere, make the build fail.

    python docs/build_site.py                          # with zensical, into site/
    python docs/build_site.py FOLDER --with material   # with mkdocs-material: pip install --group docs-fallback

The same `mkdocs.yml` serves both, so that the site does not depend on one tool.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jupytext

ROOT = Path(__file__).parents[1]
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "notebooks/look.py": "notebooks/look.md",
    "notebooks/record.py": "notebooks/record.md",
    "notebooks/sample.py": "notebooks/sample.md",
    "notebooks/train_and_score.py": "notebooks/train_and_score.md",
}
"""Pages outside of `docs/`, and their names in the site."""
WRITTEN = {"datasets": "dataset_pages", "benchmarks": "benchmark_pages"}
"""Folders of pages that are made here, and what `docs/write_FOLDER.py` makes them with."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


BUILDERS = {
    "zensical": ("zensical", "build", "--strict", "--clean"),
    "material": ("mkdocs", "build", "--strict", "--clean", "--quiet"),
}


def main(site: Path, builder: str = "zensical") -> None:
    """Build the site into a folder; an older site there is replaced, and nothing else."""
    if site.exists() and not (site / "sitemap.xml").is_file() and any(site.iterdir()):
        raise SystemExit(f"{site} holds no site, so it is not replaced; name a new folder.")
    with tempfile.TemporaryDirectory(prefix="orlog-site-") as name:
        work = Path(name)
        copy_sources(work)
        copy_pages(work)
        write_pages(work)
        build(work, builder)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)


def copy_pages(work: Path) -> None:
    """Copy all pages, with what they show, into the folder `docs` of a working folder."""
    shutil.copy(ROOT / "mkdocs.yml", work)
    pages = work / "docs"
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (pages / "notebooks").mkdir()
    for name, inside in MOVED.items():
        (pages / inside).write_text(site_text(ROOT / name, pages), "utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        (pages / page.relative_to(ROOT / "docs")).write_text(site_text(page, pages), "utf-8")
    (pages / "cli.md").write_text(runpy.run_path(str(ROOT / "docs" / "write_cli.py"))["cli_page"](), "utf-8")


def write_pages(work: Path) -> None:
    """Write the pages of datasets and benchmarks, and list them in the menu below their overviews."""
    config = work / "mkdocs.yml"
    menu = config.read_text("utf-8")
    for folder, function in WRITTEN.items():
        pages = runpy.run_path(str(ROOT / "docs" / f"write_{folder}.py"))[function]()
        for name, text in pages.items():
            page = work / "docs" / folder / name
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, "utf-8")
        lines = [f"      - {folder}/{name}\n" for name in pages]
        assert next(iter(pages)) == "index.md"
        menu = menu.replace(lines[0], "".join(lines))
    config.write_text(menu, "utf-8")


def copy_sources(work: Path) -> None:
    """Copy the packages, without links, each folder with an `__init__.py`."""
    skipped = shutil.ignore_patterns("__pycache__", "*.json", "*.csv", "*.safetensors", "*.so")
    shutil.copytree(ROOT / "src" / "orlog", work / "src" / "orlog", ignore=skipped)
    for module in sorted((work / "src").rglob("*.py")):
        (module.parent / "__init__.py").touch()


def site_text(page: Path, pages: Path) -> str:
    """Return the text of a page of the repository, with links as they are in the site.

    A file outside of the pages that a link means is copied beside them; a folder is only named.
    """
    docs = ROOT / "docs"
    moved = MOVED.get(page.relative_to(ROOT).as_posix())
    up = "../" * (moved or page.relative_to(docs).as_posix()).count("/")

    def place(found: re.Match[str]) -> str:
        mark, label, target, anchor = found[1], found[2], found[3], found[4] or ""
        meant = (page.parent / target).resolve()
        if not meant.is_relative_to(ROOT) or not meant.exists():
            return found[0]  # the build says that it leads nowhere
        if meant.is_dir():
            return label
        inside = MOVED.get(meant.relative_to(ROOT).as_posix())
        if inside is None and meant.is_relative_to(docs):
            inside = meant.relative_to(docs).as_posix()
        if inside is None:
            inside = f"files/{meant.relative_to(ROOT).as_posix()}"
            (pages / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(meant, pages / inside)
        return f"{mark}[{label}]({up}{inside}{anchor})"

    parts = CODE.split(notebook_text(page) if page.suffix == ".py" else page.read_text("utf-8"))
    return "".join(text if at % 2 else LINK.sub(place, text) for at, text in enumerate(parts))


def notebook_text(source: Path) -> str:
    """Return a notebook as Markdown, its code in blocks."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata["jupytext"] = {"notebook_metadata_filter": "-all"}
    return str(jupytext.writes(notebook, fmt="md"))


def build(work: Path, builder: str = "zensical") -> None:
    """Build the pages of a working folder into its folder `site`; a warning is an error."""
    plain = {**os.environ, "NO_COLOR": "1"}
    command = [sys.executable, "-m", *BUILDERS[builder]]
    done = subprocess.run(  # noqa: S603  # our own interpreter
        command, cwd=work, capture_output=True, text=True, check=False, env=plain
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}the site was not built.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("site", type=Path, nargs="?", default=ROOT / "site")
    parser.add_argument("--with", dest="builder", choices=BUILDERS, default="zensical")
    given = parser.parse_args()
    main(given.site, given.builder)
