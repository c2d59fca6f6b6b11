"""Measures what the tests catch: changes the code in one place, and looks whether a test fails.

    pip install cosmic-ray coverage pytest-cov          (in an environment that has orlog's `dev`)
    python -m tools.mutating draw --seed 0              writes tools/reference/mutants.json
    python -m tools.mutating run --out before.json      each mutant against the tests that reach its line
    python -m tools.mutating compare before.json after.json

A mutant is kept as the function it is in, its line and what becomes of it, not as a place in a file: the
same one is found again after modules have moved and lines around it have changed. `run` goes on where it
was stopped. Lines that only a child process reaches are not seen, and their mutants count as not covered.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import json
import os
import random
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
    "verdicts": (
        ["normalize", "src/orlog/scoring"],
        ["tests/normalize", "tests/front/test_statistics.py", "tests/front/test_scores.py"],
    ),
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
MOST_TESTS = 60
SECONDS = 240

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
            spots = sum(
                len([*operators[name].mutation_positions(node)]) for node in ast_nodes(tree)
            )
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


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        inner = (
            f"{prefix}{node.name}." if isinstance(node, ast.ClassDef | ast.FunctionDef) else prefix
        )
        yield from _functions(node, inner)


@functools.cache
def _sources(root: Path) -> dict[Path, str]:
    """Return the text of each module of a checkout."""
    folders = [root / name for name in ("algos", "datasets", "loaders", "manifests", "normalize")]
    files = [file for folder in (*folders, root / "src") for file in sorted(folder.rglob("*.py"))]
    linked = [file for file in files if any(part.is_symlink() for part in file.parents)]
    return {file: file.read_text("utf-8") for file in files if file not in {*linked}}


def find(mutant: Mutant, root: Path = ROOT) -> tuple[Path, int] | None:
    """Return the file and the line of a mutant in a checkout; None if its line is no more.

    The function may have moved to another module, or have got another name in its module.
    """
    found: list[tuple[int, Path, int]] = []
    for file, source in _sources(root).items():
        if mutant["before"] in source:
            lines = source.splitlines()
            for name, node in _functions(ast.parse(source)):
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


def _copy_checkout(folder: Path) -> None:
    """Copy what git tracks, and what was compiled."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    compiled = [str(path.relative_to(ROOT)) for path in ROOT.glob("*/*/*.so")]
    for name in [*filter(None, listed.stdout.split("\0")), *compiled]:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)


def _pytest(checkout: Path, *words: str, seconds: float | None = None) -> int:
    """Run tests in a checkout; return the exit code, or -1 after too long."""
    path = os.pathsep.join([str(checkout / "src"), str(checkout)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, *words],
        cwd=checkout,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return -1


def reached(checkout: Path, room: str) -> dict[str, dict[int, list[str]]]:
    """Return the tests of a room by file and line that they reach, the fastest first."""
    import coverage

    folders, tests = ROOMS[room]
    data = checkout / f".coverage-{room}"
    report = checkout / f"durations-{room}.xml"
    os.environ["COVERAGE_FILE"] = str(data)
    sources = [f"--cov={checkout / folder}" for folder in folders]
    # The rooms are reached through links, so that their files are named by these.
    sources += [f"--cov={checkout / 'src' / 'orlog' / folder}" for folder in folders]
    _pytest(
        checkout, *tests, *sources, "--cov-context=test", "--cov-report=", f"--junitxml={report}"
    )
    seconds = _durations(report)
    measured = coverage.CoverageData(str(data))
    measured.read()
    by_file: dict[str, dict[int, list[str]]] = {}
    for file in measured.measured_files():
        lines: dict[int, list[str]] = collections.defaultdict(list)
        for line, contexts in measured.contexts_by_lineno(file).items():
            names = {context.partition("|")[0] for context in contexts if context}
            lines[line] = sorted(names, key=lambda name: seconds.get(_short(name), 1.0))
        name = os.path.relpath(os.path.realpath(file), os.path.realpath(checkout))
        by_file.setdefault(name, {}).update(lines)
    return by_file


def _durations(report: Path) -> dict[str, float]:
    import xml.etree.ElementTree as ET  # a file that pytest has just written

    cases = ET.parse(report).getroot().iter("testcase")
    return {
        f"{one.get('classname', '').rpartition('.')[2]}::{one.get('name')}": float(
            one.get("time", 1)
        )
        for one in cases
    }


def _short(name: str) -> str:
    return name.rpartition("/")[2].replace(".py::", "::")


def run(mutants: list[Mutant], out: Path) -> None:
    """Run each mutant against its tests, and write what became of it as it goes."""
    results: dict[str, dict[str, Any]] = json.loads(out.read_text("utf-8")) if out.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        checkout = Path(scratch)
        _copy_checkout(checkout)
        for room in ROOMS:
            mine = [(n, one) for n, one in enumerate(mutants) if one["room"] == room]
            if all(str(number) in results for number, _ in mine):
                continue
            by_file = reached(checkout, room)
            for number, mutant in mine:
                if str(number) in results:
                    continue
                started = time.monotonic()
                outcome, by = _outcome(checkout, mutant, by_file)
                results[str(number)] = {
                    **mutant,
                    "outcome": outcome,
                    "tests": by,
                    "seconds": round(time.monotonic() - started, 1),
                }
                out.write_text(json.dumps(results, indent=1), "utf-8")
                print(number, room, outcome, mutant["module"], mutant["before"], flush=True)


def _outcome(
    checkout: Path, mutant: Mutant, by_file: dict[str, dict[int, list[str]]]
) -> tuple[str, int]:
    place = find(mutant, checkout)
    if place is None:
        return "gone", 0
    file, line = place
    tests = by_file.get(str(file.relative_to(checkout)), {}).get(line, [])
    if not tests:
        return "not covered", 0
    source = file.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(mutant["before"], mutant["after"])
    try:
        file.write_text("".join(lines), "utf-8")
        code = _pytest(checkout, "-x", *tests[:MOST_TESTS], seconds=SECONDS)
    finally:
        file.write_text(source, "utf-8")
    return {0: "survived", -1: "timed out"}.get(code, "killed"), len(tests)


def _summary(results: dict[str, dict[str, Any]]) -> str:
    rows = []
    for room in ROOMS:
        counts = collections.Counter(
            one["outcome"] for one in results.values() if one["room"] == room
        )
        rows.append(f"{room}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return "\n".join(rows)


def compare(before: Path, after: Path) -> str:
    """Return the figures of two runs, and the mutants that were killed before and survive now."""
    first, second = (json.loads(path.read_text("utf-8")) for path in (before, after))
    caught = ("killed", "timed out")
    lost = [
        f"{number} {one['module']}.{one['function']}: {one['before']} -> {one['after']} ({one['outcome']})"
        for number, one in second.items()
        if one["outcome"] in ("survived", "not covered") and first[number]["outcome"] in caught
    ]
    return "\n".join(
        ["before:", _summary(first), "after:", _summary(second), "lost:", *(lost or ["none"])]
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Measure what the tests catch.")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--count", type=int, default=55, help="of each room")
    running = commands.add_parser("run")
    running.add_argument("--out", type=Path, required=True)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "draw":
        DRAWN.write_text(json.dumps(draw(options.seed, options.count), indent=1) + "\n", "utf-8")
    elif options.command == "run":
        run(json.loads(DRAWN.read_text("utf-8")), options.out)
        print(_summary(json.loads(options.out.read_text("utf-8"))))
    else:
        print(compare(options.before, options.after))


if __name__ == "__main__":
    main()
