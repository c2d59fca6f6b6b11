from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("algos", "datasets", "loaders", "manifests", "normalize")
MAY_IMPORT = {
    "datasets": {"datasets", "errors", ""},
    "loaders": {"datasets", "loaders", "errors", ""},
    "algos": {"algos", "loaders", "errors", ""},
    "normalize": {"normalize"},
}


def python_folders() -> set[str]:
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    return {folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders}


def test_every_folder_of_code_is_in_the_table_of_packages() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    expected = {"orlog", "orlog.cli", "orlog.manifests"}
    expected |= {f"orlog.{name}" for name in python_folders()}
    assert set(table["packages"]) == expected
    for package, folder in table["package-dir"].items():
        assert folder == (package.removeprefix("orlog.").replace(".", "/") or "src")


def test_no_folder_of_a_room_is_a_regular_package() -> None:
    assert [path for room in ROOMS for path in (ROOT / room).rglob("__init__.py")] == []


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_linked_into_the_package(room: str) -> None:
    link = ROOT / "src" / "orlog" / room
    if not link.is_symlink():
        pytest.skip("a checkout without links")
    assert link.resolve() == ROOT / room


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_dependencies_run_one_way(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                if name.split(".")[0] == "orlog":
                    other = name.partition(".")[2].partition(".")[0]
                    assert other in MAY_IMPORT[room], f"{path} imports {name}"
    if room == "algos":
        text = "".join(path.read_text("utf-8") for path in (ROOT / room).glob("*.py"))
        assert text.count("orlog.loaders") == text.count("orlog.loaders.batch")


def test_importing_orlog_is_light() -> None:
    code = (
        "import sys, orlog; "
        "print(sorted({'torch', 'numpy', 'zarr', 'gymnasium'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_verifying_needs_no_torch(mini_folder: Path) -> None:
    code = (
        "import sys, pathlib, orlog; orlog.verify_store(pathlib.Path(sys.argv[1])); "
        "orlog.load_dataset(sys.argv[1])[0]; print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(mini_folder)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"


def test_the_version_is_the_same_in_code_and_package() -> None:
    import orlog

    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert orlog.__version__ == table["project"]["version"]


def test_every_public_name_is_importable_and_described() -> None:
    import orlog

    for name in orlog.__all__:
        value = getattr(orlog, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        orlog.nothing  # noqa: B018 (the access is the test)


def test_the_tests_that_contributing_names_are_there() -> None:
    named = re.findall(
        r"`(\w+/test_\w+\.py)(?:::(\w+))?`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    )
    assert named
    for file, test in named:
        assert f"def {test}" in (ROOT / "tests" / file).read_text("utf-8"), (file, test)
