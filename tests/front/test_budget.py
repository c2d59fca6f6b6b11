"""How much there is to read. Who makes it smaller lowers a figure; who has to raise one says why in the commit."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("algos", "datasets", "loaders", "manifests", "normalize", "src")
SOURCES = (".py", ".pyi", ".c", ".js", ".css", ".html")


@pytest.mark.parametrize(
    ("folders", "endings", "count", "most"),
    [
        (ROOMS, SOURCES, lambda path: len(path.read_text("utf-8").splitlines()), 90_550),
        (ROOMS, (".py",), lambda _: 1, 297),
        (("tests",), (".py",), lambda path: len(path.read_text("utf-8").splitlines()), 65_850),
    ],
    ids=["lines of the product", "modules of the product", "lines of tests"],
)
def test_there_is_no_more_to_read_than_planned(folders, endings, count, most):
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name.endswith(endings)]
    assert sum(count(path) for path in files if path.is_file() and not path.is_symlink()) <= most
