import ast
import functools
import graphlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("algos", "datasets", "loaders", "manifests", "normalize")
FRONT = ("base", "cli", "executors", "runs", "viewer")
# Each package may import itself and those above it; `loaders.batch` is a module on its own since
# that is all an algorithm's file may see, and so is what makes environments, which datasets name.
ORDER = (
    "errors",
    "base",
    "manifests",
    "datasets.worlds.environments",
    "datasets.looking",
    "datasets.columns",
    "datasets.home",
    "datasets.store",
    "datasets.reading",
    "datasets.audit",
    "datasets.recording",
    "datasets.formats",
    "datasets.worlds",
    "datasets.download",
    "datasets.publish",
    "datasets",
    "loaders.tensors",
    "loaders.batch",
    "loaders",
    "normalize",
    "algos",
    "algos.training",
    "runs",
    "executors",
    "viewer",
    "front",
    "cli",
)


def test_no_folder_of_a_room_is_a_regular_package():
    assert [path for room in ROOMS for path in (ROOT / room).rglob("__init__.py")] == []


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_linked_into_the_package(room):
    link = ROOT / "src" / "orlog" / room
    listed = subprocess.run(["git", "ls-files", "-s", link], cwd=ROOT, capture_output=True, text=True)
    if not link.is_symlink() and not listed.stdout:
        pytest.skip("copied sources without links, and no git checkout")
    assert link.resolve() == ROOT / room


def package_of(module):
    """Return the package of `ORDER` that a module belongs to."""
    parts = module.removeprefix("orlog").removeprefix(".").split(".")
    for name in (".".join(parts[:3]), ".".join(parts[:2]), parts[0]):
        if name in ORDER:
            return name
    return "front"


def modules():
    """Return every module of orlog with its file."""
    found = {}
    for base, folder in ((ROOT, room) for room in ROOMS):
        found |= {path: path.relative_to(base) for path in (base / folder).rglob("*.py")}
    source = ROOT / "src" / "orlog"
    for path in [*source.glob("*.py"), *(p for room in FRONT for p in (source / room).glob("*.py"))]:
        found[path] = path.relative_to(source)
    return {
        ".".join(("orlog", *name.with_suffix("").parts)).removesuffix(".__init__"): path for path, name in found.items()
    }


@functools.cache
def import_statements(path):
    """Return the imports of a file that are run; what types alone name is none."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports_of(path, known):
    """Return the modules of orlog that a file imports, at its top or inside a function."""
    found = set()
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            parts = [f"{module}.{alias.name}" for alias in node.names]
            found |= {part if part in known else module for part in parts}
        else:
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "orlog"}


def test_dependencies_run_one_way():
    files = modules()
    for module, path in files.items():
        if module != "orlog":  # the front door, whose imports wait until a name is used
            for other in imports_of(path, files):
                assert ORDER.index(package_of(other)) <= ORDER.index(package_of(module)), (
                    f"{module} may not import {other}"
                )


def test_no_modules_import_each_other_in_a_circle():
    files = modules()
    graph = {name: imports_of(path, files) for name, path in files.items() if name != "orlog"}
    order = graphlib.TopologicalSorter(graph)
    order.prepare()  # CycleError names the circle


SEEN_BY_TRAINING = {
    *("agent_transitions", "arrays", "batch", "filling", "goals", "infos", "members", "memory", "places"),
    *("statistics", "streaming", "streams", "teams", "token_sequences", "transforms", "weights"),
}
"""What training may see of the loaders: what reads data, and what knows their form. The loader of an algorithm's
batches it finds by the name that the algorithm declares."""


def test_an_algorithm_sees_batches_only_and_training_what_reads_data():
    files = modules()
    may_see = {"algos": {"batch"}, "algos.training": SEEN_BY_TRAINING}
    for module, path in files.items():
        seen = {name.removeprefix("orlog.loaders.") for name in imports_of(path, files) if "orlog.loaders" in name}
        assert package_of(module) not in may_see or seen <= may_see[package_of(module)], module


def test_the_version_is_the_same_in_code_and_package():
    import orlog

    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert orlog.__version__ == table["project"]["version"]
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {orlog.__version__}\n" in cited


def test_the_tests_that_contributing_names_are_there():
    named = re.findall(r"`(\w+(?:/\w+)*/test_\w+\.py)(?:::(\w+))?`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert named
    for file, test in named:
        assert f"def {test}" in (ROOT / "tests" / file).read_text("utf-8"), (file, test)


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import orlog", "torch numpy zarr gymnasium"),
        (
            "import orlog.cli.commands; from orlog.algos.algorithms import ALGORITHMS; assert 'bc' in ALGORITHMS",
            "torch zarr gymnasium orlog.algos.bc",
        ),
        ("import orlog; orlog.verify_store({0!r}); orlog.load_dataset({0!r})[0]", "torch"),
        (
            "import orlog; orlog.load_dataset({0!r})",
            "orlog.datasets.download orlog.datasets.worlds.build orlog.datasets.recording",
        ),
    ],
)
def test_what_needs_little_imports_little(code, heavy, built_mini):
    program = f"import sys; {code.format(str(built_mini))}; print(sorted({{*{heavy.split()}}} & {{*sys.modules}}))"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_there_is_no_public_name_but_those_of_the_list():
    import orlog

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        orlog.nothing  # noqa: B018 (the access is the test)
