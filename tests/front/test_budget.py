"""How much there is to read. Who makes it smaller lowers a figure; who has to raise one says why in the commit."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("algos", "datasets", "loaders", "manifests", "normalize", "src")
MODULES, PAGE = (".py",), (".py", ".pyi", ".js", ".css", ".html")
LARGEST_SHARE = 0.8
"""Of a room's lines that its tests may have."""


def lines_of(*folders, endings=MODULES):
    """Return how many lines git tracks in files of some folders of the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name.endswith(endings)]
    return sum(len(path.read_text("utf-8").splitlines()) for path in files if not path.is_symlink())


@pytest.mark.parametrize(
    ("folders", "endings", "most"),
    [
        (PRODUCT, MODULES, 97_200),
        (("datasets",), MODULES, 47_600),
        (("manifests",), MODULES, 4_100),
        (("src",), PAGE, 18_200),
        (("normalize",), MODULES, 3_300),
        (("tests",), MODULES, 77_800),
        (("benchmarks", "tools"), MODULES, 11_050),
    ],
)
def test_there_is_no_more_to_read_than_planned(folders, endings, most):
    assert lines_of(*folders, endings=endings) <= most


@pytest.mark.parametrize(
    "room", [("base", "executors"), ("cli",), ("runs",), ("viewer",), ("normalize",), ("datasets", "manifests")]
)
def test_tests_are_shorter_than_what_they_test(room):
    product = [name if name in PRODUCT else f"src/orlog/{name}" for name in room]
    tested = lines_of(*(f"tests/{name}" for name in room))
    assert tested <= LARGEST_SHARE * lines_of(*product, endings=PAGE)
