"""The documentation site: it builds without a warning, holds every page, and asks nobody else."""

import inspect
import os
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import orlog
from orlog.manifests.benchmarks import BENCHMARKS
from orlog.manifests.shipped import SHIPPED, recorded_manifests, shipped_index, shipped_names
from orlog.normalize.published_scores import published_scores
from tests.programs import run_program
from tests.tool_environments import tool_python

ROOT = Path(__file__).parents[2]
BUILD = runpy.run_path(str(ROOT / "docs" / "build_site.py"))
PAGES = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
ELSEWHERE = re.compile(
    r"""<(?:script|link|img|source|iframe|video|use)\b[^>]*\s(?:src|srcset|href)=["']?(?:https?:)?//|"""
    r"""(?:@import\s+|url\()["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    BUILD["main"](folder)
    return folder


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    pages = [*PAGES, *BUILD["MOVED"].values()]
    assert [page for page in pages if f" {page}\n" not in menu] == []


@pytest.mark.thorough
def test_the_site_has_every_page_and_asks_no_other_host(site):
    for page in [*PAGES, "cli.md", *BUILD["MOVED"].values()]:
        assert (site / page).with_suffix(".html").is_file(), page
    for manifest in recorded_manifests():
        assert (site / "datasets" / f"{manifest.name}.html").is_file(), manifest.name
    asks_nobody(site)


def asks_nobody(site):
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert not ELSEWHERE.search(file.read_text("utf-8")), file.name


@pytest.mark.thorough
def test_every_benchmark_has_a_page_with_its_names_files_and_scores(site):
    menu = (site / "index.html").read_text("utf-8")
    for key in {*SHIPPED, *(one for one in BENCHMARKS if published_scores(one))}:
        page = (site / "benchmarks" / f"{key}.html").read_text("utf-8")
        assert f"benchmarks/{key}.html" in menu
        names = [one for one in shipped_names() if one.startswith(f"{key}/")]
        assert all(f"<code>{name}</code>" in page for name in names)
        licenses = {
            entry.license
            for versions in (shipped_index(key).foreign.values() if names else ())
            for entry in versions.values()
        }
        assert all(one in page for one in licenses if one)
        assert bool(key in BENCHMARKS and published_scores(key)) == ("Published scores" in page)
        assert "arXiv:" in page or "https:" in page


@pytest.mark.thorough
def test_mkdocs_material_builds_the_same_site(site, tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    python, other = tool_python(*project["dependency-groups"]["docs-fallback"]), tmp_path / "site"
    done = run_program(
        [python, ROOT / "docs" / "build_site.py", other, "--with", "material"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.relative_to(site) for page in site.rglob("*.html")}
    assert {page.relative_to(other) for page in other.rglob("*.html")} == pages
    asks_nobody(other)
    assert "iframe-worker" in (other / "index.html").read_text("utf-8")


def test_every_public_name_is_documented_in_one_place():
    pages = [page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")]
    written = re.findall(r"^(?:::: orlog\.(?!errors$)|`orlog\.)([\w.]+)", "\n".join(pages), re.MULTILINE)
    assert sorted(name for name in written if "." not in name) == sorted(orlog.__all__)
    texts = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    uses = re.findall(r"^from (orlog\.[\w.]+) import (?:\(([^)]*)\)|(.*))$", texts, re.MULTILINE)
    for module, *names in uses:
        for name in re.findall(r"\w+", "".join(names)):
            if module != "orlog.loaders.streams":  # shown to explain, and not public
                assert f"{module[6:]}.{name}" in written
    assert [name for name in orlog.__all__ if not inspect.getdoc(getattr(orlog, name))] == []


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    BUILD["copy_pages"](tmp_path)
    BUILD["copy_sources"](tmp_path)
    with (tmp_path / "docs" / "ope.md").open("a", encoding="utf-8") as page:
        page.write("\n[nothing](nothing.md), [nowhere](guide.md#nowhere)\n")
    said = r"(?s)page does not exist.*anchor does not exist.*\b2 issues found"  # and no other link
    with pytest.raises(SystemExit, match=said):
        BUILD["build"](tmp_path)


@pytest.mark.thorough
def test_search_finds_words_in_a_site_opened_from_its_folder(site, chromium):
    asked = []
    page = chromium.new_page()
    page.set_default_timeout(300_000)  # whatever hangs is not waited for
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__button").click()
    page.get_by_role("combobox").fill("expectile")
    page.get_by_text(re.compile(r"^\d+ results$")).wait_for()
    page.close()
    assert all(url.startswith("file:") for url in asked)


def test_a_folder_that_holds_no_site_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine", "utf-8")
    with pytest.raises(SystemExit, match="holds no site"):
        BUILD["main"](tmp_path)
    assert (tmp_path / "thesis.txt").is_file()
