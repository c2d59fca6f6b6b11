"""What the Makefile does before it installs anything."""

import os
import shutil
import sys
import venv
from pathlib import Path

import pytest

from tests.programs import run_program

MAKEFILE = Path(__file__).parents[2] / "Makefile"
# What `make test VENV=..` hands on, and would change what the inner make is to do.
OF_THE_OUTER_MAKE = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "VENV", "PYTHON")
TRACE = """#!/bin/sh
[ "$1" = -c ] && exec "{python}" "$@"
echo "$@" >> "{log}"
"""


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with the Makefile, an environment, and a Python that only notes what it is to do."""
    for name in ("pyproject.toml", "constraints.txt", "loaders/_gather.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(MAKEFILE, tmp_path)
    python = tmp_path / "python"
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    python.write_text(TRACE.format(python=base, log=tmp_path / "log"))
    python.chmod(0o755)
    venv.create(tmp_path / ".venv", with_pip=False, symlinks=True)
    return tmp_path


def made(checkout):
    """Run the first rule up to the installation; return what was said, and done to the environment."""
    # Without pip in the environment the rule ends after that.
    found = run_program(
        ["make", ".venv/.quickstart", "PYTHON=./python"],
        cwd=checkout,
        env={name: value for name, value in os.environ.items() if name not in OF_THE_OUTER_MAKE},
    )
    return found.stdout, (checkout / "log").read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_environment_of_the_same_python_is_kept(checkout):
    said, done = made(checkout)
    assert "another Python" not in said
    assert done == "-m venv .venv\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("change", ["other", "gone"])
def test_an_environment_of_another_python_is_made_anew(checkout, change):
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    if change == "other":
        python.write_text("#!/bin/sh\necho 3.9.1 /usr\n")
        python.chmod(0o755)
    else:
        python.symlink_to("/nowhere/bin/python3.9")
    said, done = made(checkout)
    assert ".venv was made by another Python than ./python; making it anew." in said
    assert done == "-m venv --clear .venv\n"
