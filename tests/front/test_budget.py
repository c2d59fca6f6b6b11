"""The budget of the code: how much there is to read, in all and at once.

Who makes something smaller lowers the figure here; who has to raise one says why in the commit. 66,000
lines of product and 45,000 of tests were the aims for the code of November 22, which had 76,872 and 63,914;
issues 23, 25 and 26 added about 11,100 lines of product after that (4,035 and 7,111), and the families of
issue 27 more. What was left out of the aims is what would have cost clarity. No function inside takes more
than eight parameters: options that belong together are an object (`TrainOptions`, `OnlineRecord`,
`ReproduceOptions`, `SeedHooks`, `BehaviorOptions`, `Recorded`, `StreamOptions`).
"""

from __future__ import annotations

import ast
import inspect
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orlog

ROOT = Path(__file__).parents[2]
PRODUCT = ("algos", "datasets", "loaders", "manifests", "normalize", "src")
LINES = {"product": 107_044, "tests": 81_564, "benchmarks": 8_024, "tools": 2_951}
MODULE_LINES = 500
PARAMETERS = 8
FOLDER_MODULES = 18
LONG = {
    "datasets/reading/dataset.py": 640  # one public class
}
"""Modules that are longer than others may be, and how long they may be."""
FULL = {
    "algos": 54,
    "algos/training": 20,
    "datasets/formats": 22,  # a format is a file
    "datasets/recipes": 26,
    "loaders": 30,
    "manifests": 20,
    "src/orlog/cli": 22,
}
"""Folders with more modules than others may have; `algos` has one for each algorithm, `cli` one for each group of commands."""


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
    found = {name: lines_of(tracked(name)) for name in ("tests", "benchmarks", "tools")}
    found["product"] = lines_of(tracked(*PRODUCT))
    too_many = {name: (count, LINES[name]) for name, count in found.items() if count > LINES[name]}
    assert not too_many


def test_no_module_is_longer_than_one_subject_needs() -> None:
    sizes = {file.relative_to(ROOT).as_posix(): lines_of([file]) for file in tracked(*PRODUCT)}
    assert {name: n for name, n in sizes.items() if n > LONG.get(name, MODULE_LINES)} == {}
    assert {name for name in LONG if sizes.get(name, 0) <= MODULE_LINES} == set(), "no longer long"


def test_no_folder_is_a_crowd() -> None:
    counts = Counter(file.parent.relative_to(ROOT).as_posix() for file in tracked(*PRODUCT))
    assert {name: n for name, n in counts.items() if n > FULL.get(name, FOLDER_MODULES)} == {}


def public_edge() -> set[str]:
    """Return the names of functions and methods that users call."""
    names = set()
    for name in orlog.__all__:
        value = getattr(orlog, name)
        names.add(getattr(value, "__qualname__", name))
        if inspect.isclass(value):
            names |= {f"{value.__qualname__}.{one}" for one in vars(value)}
    return names


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.arguments]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node.args
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def test_no_function_inside_takes_more_than_a_reader_can_hold() -> None:
    public, wide = public_edge(), set()
    for file in tracked(*PRODUCT):
        if file.parent == ROOT / "src" / "orlog" / "cli":  # parameters are the options of commands
            continue
        for name, arguments in functions(ast.parse(file.read_text("utf-8"))):
            each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            count = sum(one.arg not in ("self", "cls") for one in each)
            if count > PARAMETERS and name not in public:
                wide.add(name)
    assert wide == set()
