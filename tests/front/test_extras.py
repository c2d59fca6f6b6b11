"""What the extras of pyproject.toml install."""

import re
import tomllib
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def packages_of(extras):
    """Return the installed packages that extras bring, with all that these depend on."""
    left = [Requirement(f"orlog[{','.join(extras)}]")]
    seen = {}
    packages = {}
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        known = seen.setdefault(name, set())
        new = {"", *wanted.extras} - known
        known |= new
        if name == "orlog":
            left += [Requirement(text) for extra in new if extra for text in EXTRAS[extra]]
            continue
        try:
            packages[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for text in packages[name].requires or ():
            needed = Requirement(text)
            if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in new):
                left.append(needed)
    return packages


def test_no_two_packages_that_extras_install_write_the_same_file():
    owners = defaultdict(set)
    for name, package in packages_of([*EXTRAS]).items():
        for file in package.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                owners[str(file)].add(name)
    assert len(owners) > 10_000
    assert {tuple(sorted(names)) for names in owners.values() if len(names) > 1} == set()


def test_every_extra_that_code_and_docs_name_is_there():
    named = defaultdict(set)
    folders = ("algos", "datasets", "docs", "examples", "loaders", "manifests", "normalize")
    files = [ROOT / "README.md", ROOT / "Makefile", ROOT / ".ci/run", *(ROOT / ".github").rglob("*.yml")]
    for folder in (*folders, "notebooks", "src"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    for path in files:
        for text in re.findall(r"(?:orlog|\.|whl\))\[([a-z0-9_,]+)\]", path.read_text("utf-8")):
            named[path.name] |= {*text.split(",")}
    assert {"quickstart", "dev"} <= named["Makefile"]
    wrong = {name: extras - {*EXTRAS} for name, extras in named.items()}
    assert {name: extras for name, extras in wrong.items() if extras} == {}
