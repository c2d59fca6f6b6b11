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
    "loaders.batch",
    "loaders",
    "normalize",
    "algos",
    "algos.training",
    "algos.behaviors",
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


def test_an_algorithm_sees_batches_only():
    files = modules()
    for module, path in files.items():
        if package_of(module) == "algos":
            seen = {name for name in imports_of(path, files) if "loaders" in name}
            assert seen <= {"orlog.loaders.batch"}, module


def test_importing_orlog_is_light():
    code = "import sys, orlog; print(sorted({'torch', 'numpy', 'zarr', 'gymnasium'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_the_command_line_and_the_names_of_algorithms_are_light():
    code = (
        "import sys, orlog.cli; from orlog.algos.algorithms import ALGORITHMS; print(*ALGORITHMS); "
        "print(sorted({'torch', 'zarr', 'gymnasium', 'orlog.algos.bc'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    names, imported, *_ = found.stdout.split("\n")
    assert {"bc", "cql", "iql"} <= {*names.split()}
    assert imported == "[]"


def test_verifying_needs_no_torch(mini_folder):
    code = (
        "import sys, pathlib, orlog; orlog.verify_store(pathlib.Path(sys.argv[1])); "
        "orlog.load_dataset(sys.argv[1])[0]; print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(mini_folder)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"


def test_the_version_is_the_same_in_code_and_package():
    import orlog

    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert orlog.__version__ == table["project"]["version"]
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {orlog.__version__}\n" in cited


def test_every_public_name_is_importable_and_described():
    import orlog

    for name in orlog.__all__:
        value = getattr(orlog, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        orlog.nothing  # noqa: B018 (the access is the test)


def test_the_tests_that_contributing_names_are_there():
    named = re.findall(r"`(\w+(?:/\w+)*/test_\w+\.py)(?:::(\w+))?`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert named
    for file, test in named:
        assert f"def {test}" in (ROOT / "tests" / file).read_text("utf-8"), (file, test)


def test_opening_a_stored_dataset_imports_nothing_that_builds_or_downloads(built_mini):
    code = (
        "import sys, orlog; orlog.load_dataset(sys.argv[1]); "
        "print([name for name in sys.modules if name.startswith(('orlog.datasets.download.', "
        "'orlog.datasets.worlds.build', 'orlog.datasets.recording.'))])"
    )
    command = [sys.executable, "-c", code, str(built_mini)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
