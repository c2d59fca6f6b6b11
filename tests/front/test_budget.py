"""How much there is to read. Who makes it smaller lowers a figure; who has to raise one says why in the commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("algos", "datasets", "loaders", "manifests", "normalize", "src")
LINES = {"product": 110_400, "tests": 86_250, "benchmarks and tools": 11_050}
FOLDERS = {"product": PRODUCT, "tests": ("tests",), "benchmarks and tools": ("benchmarks", "tools")}


def tracked(*folders: str) -> list[Path]:
    """Return the modules that git tracks in folders of the checkout."""
    found = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [ROOT / name for name in found.stdout.split("\0") if name.endswith(".py")]
    return [file for file in files if not file.is_symlink()]


def lines_of(files: list[Path]) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def test_there_is_no_more_to_read_than_planned() -> None:
    found = {name: lines_of(tracked(*folders)) for name, folders in FOLDERS.items()}
    assert {name: count for name, count in found.items() if count > LINES[name]} == {}
