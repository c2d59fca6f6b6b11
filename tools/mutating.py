"""Measures what the tests catch: changes the code in one place, and looks whether a test fails.

    pip install cosmic-ray coverage pytest-cov          (in an environment that has orlog's `dev`)
    python -m tools.mutating draw --seed 0              writes tools/reference/mutants.json
    python -m tools.mutating run --out after.json       each mutant against the tests that reach its line
    python -m tools.mutating run --checkout OLD --out before.json       (by the Python of that checkout)
    python -m tools.mutating compare before.json after.json --out tools/reference/mutants_caught.csv

A mutant is kept as the function it is in, its line and what becomes of it, not as a place in a file: the
same one is found again after modules have moved and lines around it have changed. `run` goes on where it
was stopped, and forks the processes of the tests from one that has imported PyTorch. Of the tests that reach
a line it takes the fastest of those that `make test-quick` runs. Lines that only a child process reaches are
not seen, and their mutants count as not covered.
"""

from __future__ import annotations

import argparse
import ast
import collections
import csv
import functools
import importlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DRAWN = ROOT / "tools" / "reference" / "mutants.json"
ROOMS = {
    "formats": (["datasets/formats"], ["tests/datasets/formats"]),
    "samplers": (["loaders"], ["tests/loaders"]),
    "algorithms": (["algos"], ["tests/algos"]),
    "verdicts": (["normalize", "src/orlog/runs"], ["tests/normalize", "tests/runs"]),
}
"""Folders of the code of a room, and of its tests."""
OPERATORS = [
    "core/AddNot",
    "core/NumberReplacer",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceContinueWithBreak",
    *(
        f"core/Replace{kind}Operator_{pair}"
        for kind, pairs in {
            "Binary": "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul",
            "Comparison": "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Eq_NotEq NotEq_Eq Lt_Gt Gt_Lt Is_IsNot IsNot_Is",
        }.items()
        for pair in pairs.split()
    ),
]
MOST_TESTS, MOST_SECONDS = 60, 15.0
"""How many tests a mutant is run against, and how long these took without it."""
CPU_SECONDS, SECONDS = 30, 200
"""After how much work a process of tests is ended, and after how long any of them is."""

PRELOADED = (
    *("torch", "scipy.stats", "scipy.sparse", "scipy.optimize", "h5py", "pyarrow.parquet"),
    *("gymnasium", "hypothesis.strategies", "jaxtyping", "zarr", "fsspec", "typer"),
)
"""What processes of tests have from the one that forks them; none of it imports orlog."""
CAUGHT = ("killed", "timed out")
PLACE = ("room", "module", "function", "before", "after")
SAID = ("room", "outcome", "module", "before", "by", "seconds")

Mutant = dict[str, Any]


def modules(folders: list[str]) -> Iterator[Path]:
    """Yield the modules of folders, sorted."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def draw(seed: int, count: int) -> list[Mutant]:
    """Return as many mutants of each room, drawn evenly over the lines of its functions."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    rng = random.Random(seed)
    operators = {name: get_operator(name)() for name in OPERATORS}
    drawn: list[Mutant] = []
    for room, (folders, _) in ROOMS.items():
        files = list(modules(folders))
        sizes = [len(file.read_text("utf-8").splitlines()) for file in files]
        taken: set[tuple[str, str, str]] = set()
        while len(taken) < count:
            file = rng.choices(files, sizes)[0]
            name = rng.choice(OPERATORS)
            source = file.read_text("utf-8")
            tree = get_ast(source)
            spots = sum(len([*operators[name].mutation_positions(node)]) for node in ast_nodes(tree))
            if not spots:
                continue
            changed = mutate_code(source, operators[name], rng.randrange(spots))
            found = None if changed is None else _difference(source, changed)
            if found is None:
                continue
            function, before, after = found
            if (file.stem, before, after) not in taken:
                taken.add((file.stem, before, after))
                drawn.append(
                    {"room": room, "module": file.stem, "function": function}
                    | {"operator": name, "before": before, "after": after}
                )
    return drawn


def _difference(source: str, changed: str) -> tuple[str, str, str] | None:
    """Return the function and the line that a mutant changes; None if that can be of no consequence."""
    lines, others = source.splitlines(), changed.splitlines()
    differ = [n for n, (one, other) in enumerate(zip(lines, others, strict=False)) if one != other]
    if len(lines) != len(others) or len(differ) != 1:
        return None
    number = differ[0] + 1
    functions = [*_functions(ast.parse(source))]
    inside = [name for name, node in functions if node.lineno <= number <= (node.end_lineno or 0)]
    if not inside:
        return None
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Raise | ast.JoinedStr | ast.arguments) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        if is_text and node_lines(node)[0] <= number <= node_lines(node)[1]:
            return None
    return inside[-1], lines[differ[0]].strip(), others[differ[0]].strip()


def node_lines(node: ast.AST) -> tuple[int, int]:
    """Return the first and last line of a node; of arguments, those of all of them."""
    nodes: list[Any] = [one for one in ast.walk(node) if hasattr(one, "lineno")]
    if not nodes:
        return 0, -1
    return min(one.lineno for one in nodes), max(one.end_lineno or 0 for one in nodes)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        inner = f"{prefix}{node.name}." if isinstance(node, ast.ClassDef | ast.FunctionDef) else prefix
        yield from _functions(node, inner)


@functools.cache
def _sources(root: Path) -> dict[Path, str]:
    """Return the text of each module of a checkout."""
    folders = [root / name for name in ("algos", "datasets", "loaders", "manifests", "normalize")]
    files = [file for folder in (*folders, root / "src") for file in sorted(folder.rglob("*.py"))]
    linked = [file for file in files if any(part.is_symlink() for part in file.parents)]
    return {file: file.read_text("utf-8") for file in files if file not in {*linked}}


@functools.cache
def _parsed(source: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [*_functions(ast.parse(source))]


def find(mutant: Mutant, root: Path = ROOT) -> tuple[Path, int] | None:
    """Return the file and the line of a mutant in a checkout; None if its line is no more.

    The function may have moved to another module, or have got another name in its module.
    """
    found: list[tuple[int, Path, int]] = []
    for file, source in _sources(root).items():
        if mutant["before"] in source:
            lines = source.splitlines()
            for name, node in _parsed(source):
                is_named = name.rpartition(".")[2] == mutant["function"].rpartition(".")[2]
                is_here = file.stem == mutant["module"]
                if is_named or is_here:
                    found += [
                        (2 * is_named + is_here, file, number)
                        for number in range(node.lineno, (node.end_lineno or 0) + 1)
                        if lines[number - 1].strip() == mutant["before"]
                    ]
    best = max(found, key=lambda one: one[0], default=None)
    return None if best is None else (best[1], best[2])


def _copy_checkout(source: Path, folder: Path) -> None:
    """Copy what git tracks, and what was compiled."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=source, check=True, capture_output=True, text=True)
    compiled = [str(path.relative_to(source)) for path in source.glob("*/*.so")]
    for name in [*filter(None, listed.stdout.split("\0")), *compiled]:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target, follow_symlinks=False)


class _Notes:
    """A plugin of pytest that writes a line for each test: its result, its seconds and its name."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            with self.file.open("a", encoding="utf-8") as notes:
                notes.write(f"{report.outcome} {report.duration:.3f} {report.nodeid}\n")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            with self.file.open("a", encoding="utf-8") as notes:
                notes.write(f"failed 0 {report.nodeid}\n")


def _pytest(checkout: Path, notes: Path, *words: str, limited: bool = False) -> int:
    """Run tests in a fork of this process; return the exit code, or -1 after too long."""
    notes.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _run_here(checkout, notes, words, limited=limited)
        finally:
            os._exit(code)
    started = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended and limited and time.monotonic() > started + SECONDS:
            os.killpg(child, 9)
            ended, status = os.waitpid(child, 0)
        if ended:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        time.sleep(0.05)


def _run_here(checkout: Path, notes: Path, words: tuple[str, ...], *, limited: bool) -> int:
    import pytest

    os.setsid()
    if limited:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chdir(checkout)
    paths = [str(checkout / "src"), str(checkout)]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in ("", str(ROOT)))]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not slow"]
    # Hypothesis is a plugin, and imported before pytest here.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *words], plugins=[_Notes(notes)]))


def reached(checkout: Path, room: str, mutants: list[Mutant], kept: Path) -> dict[str, dict[str, list[str]]]:
    """Return tests of a room by file and line that they reach, for files of mutants; kept in a file."""
    import coverage

    if kept.exists():
        return dict(json.loads(kept.read_text("utf-8")))
    tests = ROOMS[room][1]
    data, notes = checkout / f".coverage-{room}", checkout / f"notes-{room}"
    os.environ["COVERAGE_FILE"] = str(data)
    places = filter(None, (find(one, checkout) for one in mutants))
    folders = {file.parent.relative_to(checkout) for file, _ in places}
    # The rooms are reached through links, so that their files are named by these.
    several = [root / one for one in sorted(folders) for root in (checkout, checkout / "src/orlog")]
    sources = [f"--cov={folder}" for folder in several if folder.is_dir()]
    tests = [name for name in tests if (checkout / name).exists()]
    _pytest(checkout, notes, *tests, *sources, "--cov-context=test", "--cov-report=")
    seconds = _passed(notes)
    measured = coverage.CoverageData(str(data))
    measured.read()
    by_file: dict[str, dict[str, list[str]]] = collections.defaultdict(dict)
    for file in measured.measured_files():
        name = os.path.relpath(os.path.realpath(file), os.path.realpath(checkout))
        for line, contexts in measured.contexts_by_lineno(file).items():
            names = {context.partition("|")[0] for context in contexts} & seconds.keys()
            by_file[name][str(line)] = _fastest(names, seconds)
    kept.write_text(json.dumps(by_file), "utf-8")
    return by_file


def _passed(notes: Path) -> dict[str, float]:
    """Return the seconds of each test that passed without a mutant; others would show nothing."""
    seconds, others = {}, set()
    for line in notes.read_text("utf-8").splitlines():
        outcome, duration, name = line.split(" ", 2)
        seconds[name] = float(duration)
        if outcome != "passed":
            others.add(name)
    return {name: took for name, took in seconds.items() if name not in others}


def _fastest(names: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the fastest case of each test, then the fastest second one of each, up to the limits."""
    cases: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(names, key=lambda one: (seconds[one], one)):
        cases[name.partition("[")[0]].append(name)
    turns = {name: turn for several in cases.values() for turn, name in enumerate(several)}
    taken: list[str] = []
    total = 0.0
    for name in sorted(names, key=lambda one: (turns[one], seconds[one], one))[:MOST_TESTS]:
        total += seconds[name]
        if taken and total > MOST_SECONDS:
            break
        taken.append(name)
    return taken


def run(mutants: list[Mutant], out: Path, source: Path, rooms: list[str], every: int) -> None:
    """Run each mutant against its tests, and write what became of it as it goes."""
    results: dict[str, dict[str, Any]] = json.loads(out.read_text("utf-8")) if out.exists() else {}
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch)
        _copy_checkout(source, checkout)
        for room in rooms:
            mine = [(n, one) for n, one in enumerate(mutants) if one["room"] == room][:every]
            if all(str(number) in results for number, _ in mine):
                continue
            every_one = [one for one in mutants if one["room"] == room]
            by_file = reached(checkout, room, every_one, out.with_suffix(f".{room}.json"))
            for number, mutant in mine:
                if str(number) in results:
                    continue
                started = time.monotonic()
                results[str(number)] = {
                    **mutant,
                    **_outcome(checkout, mutant, by_file),
                    "seconds": round(time.monotonic() - started, 1),
                }
                out.write_text(json.dumps(results, indent=1), "utf-8")
                print(number, *(results[str(number)][key] for key in SAID), flush=True)


def _outcome(checkout: Path, mutant: Mutant, by_file: dict[str, dict[str, list[str]]]) -> dict[str, Any]:
    """Return what became of a mutant, against how many tests, and which of them failed."""
    place = find(mutant, checkout)
    if place is None:
        return {"outcome": "gone", "tests": 0, "by": ""}
    file, line = place
    source = file.read_text("utf-8")
    lines_reached = by_file.get(str(file.relative_to(checkout)), {})
    statement = _statement(source, line)
    tests = next((found for n in (line, *statement) if (found := lines_reached.get(str(n)))), [])
    if not tests:
        return {"outcome": "not covered", "tests": 0, "by": ""}
    lines = source.splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(mutant["before"], mutant["after"])
    notes = checkout / "notes"
    try:
        file.write_text("".join(lines), "utf-8")
        code = _pytest(checkout, notes, "-x", *tests, limited=True)
    finally:
        file.write_text(source, "utf-8")
    outcome = {0: "survived", -1: "timed out"}.get(code, "killed")
    said = notes.read_text("utf-8").splitlines() if notes.exists() else []
    by = [line.split(" ", 2)[2] for line in said if line.startswith("failed")]
    return {"outcome": outcome, "tests": len(tests), "by": by[0] if by else ""}


def _statement(source: str, line: int) -> range:
    """Return the lines of the smallest statement that a line is in."""
    found = [
        range(node.lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return min(found, key=len)


def compare(before: Path, after: Path, out: Path | None = None) -> str:
    """Return the figures of the mutants that are in two runs, and which were caught before alone.

    A CSV file may get a row for each of them.
    """
    first, second = (json.loads(path.read_text("utf-8")) for path in (before, after))
    pairs = {
        number: (first[number], second[number])
        for number in sorted(first.keys() & second.keys(), key=int)
        if "gone" not in (first[number]["outcome"], second[number]["outcome"])
    }
    if out is not None:
        with out.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            names = [f"{what}_{when}" for when in ("before", "after") for what in ("outcome", "by")]
            rows.writerow(["number", *PLACE, *names])
            for number, (one, two) in pairs.items():
                found = [side[key] for side in (one, two) for key in ("outcome", "by")]
                rows.writerow([number, *(one[key] for key in PLACE), *found])
    lines = ["| room | mutants | caught before | caught after |", "|---|---|---|---|"]
    for room in ROOMS:
        mine = [pair for pair in pairs.values() if pair[0]["room"] == room]
        caught = [sum(pair[side]["outcome"] in CAUGHT for pair in mine) for side in (0, 1)]
        lines.append(f"| {room} | {len(mine)} | {caught[0]} | {caught[1]} |")
    lost = [
        f"{number} {one['module']}.{one['function']}: {one['before']} -> {one['after']} (by {one['by']})"
        for number, (one, two) in pairs.items()
        if one["outcome"] in CAUGHT and two["outcome"] not in CAUGHT
    ]
    return "\n".join([*lines, "caught before alone:", *(lost or ["none"])])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Measure what the tests catch.")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--count", type=int, default=55, help="of each room")
    running = commands.add_parser("run")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--checkout", type=Path, default=ROOT)
    running.add_argument("--rooms", nargs="+", default=list(ROOMS), choices=list(ROOMS))
    running.add_argument("--every", type=int, default=1000, help="mutants of each room")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--out", type=Path, help="a CSV file with a row for each mutant")
    options = parser.parse_args()
    if options.command == "draw":
        DRAWN.write_text(json.dumps(draw(options.seed, options.count), indent=1) + "\n", "utf-8")
    elif options.command == "run":
        drawn = json.loads(DRAWN.read_text("utf-8"))
        run(drawn, options.out, options.checkout.resolve(), options.rooms, options.every)
    else:
        print(compare(options.before, options.after, options.out))


if __name__ == "__main__":
    main()
