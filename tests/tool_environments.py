"""Other people's tools, in virtual environments of their own, for tests that ask what they make of our files.

An environment is made once and kept in the user's cache folder, under a name that tells what is in it. Where
no package registry answers, the test that asks for one is skipped.
"""

import fcntl
import functools
import hashlib
import os
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest

from tests.programs import run_program

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
UNREACHABLE = ("Retrying (", "No network", "ConnectionError", "Temporary failure")


@functools.cache
def tool_python(*requirements, alone=False, dependencies=True):
    """Return the Python of an environment that holds these packages; skip the test without a registry.

    Args:
        requirements: Pinned packages, such as `torchrl==0.14.1`.
        alone: Whether it has nothing but these; by default it sees all that the tests have, orlog and
            its pins included.
        dependencies: Whether pip installs what the packages ask for; without, `requirements` names
            all that is needed.
    """
    said = [*requirements, str(alone), str(dependencies), sys.version, sys.prefix]
    if not alone:
        said.append(CONSTRAINTS.read_text("utf-8"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orlog-tests"
    folder = cache / hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
    python = folder / "bin" / "python"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            venv.create(folder, clear=True, symlinks=True)
            if not alone:
                ours = repr(sysconfig.get_path("purelib"))
                theirs = sysconfig.get_path("purelib", vars={"base": str(folder)})
                line = f"import site; site.addsitedir({ours})\n"
                Path(theirs, "ours.pth").write_text(line, "utf-8")
            _install(python, requirements, alone=alone, dependencies=dependencies)
            (folder / "ready").touch()
    return python


def _install(python, requirements, *, alone, dependencies):
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    # Most modules of what is installed are never imported, so none is compiled before it is.
    command += ["--disable-pip-version-check", "--no-input", "--no-compile"]
    if not dependencies:
        command.append("--no-deps")
    elif not alone:
        command += ["--constraint", str(CONSTRAINTS)]
    done = run_program([*command, *requirements])
    if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"no package registry answers for {', '.join(requirements)}")
    assert done.returncode == 0, done.stderr


def run_tool(python, code, *arguments, folder):
    """Run a program there, in a folder, and return what it prints.

    Args:
        python: What `tool_python` returned.
        code: The program; it is dedented.
        arguments: Its `sys.argv[1:]`.
        folder: Where it runs.
    """
    command = [python, "-c", textwrap.dedent(code), *arguments]
    done = run_program(command, cwd=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout
