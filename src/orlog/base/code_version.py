"""The sources that decide the numbers of a run, each with the SHA-256 of its files, and the commit that they are of.

Counted are whole rooms of orlog: algorithms, loaders, the scoring of episodes, and environments of its own.
So a change of any of their files, of a comment too, changes all hashes of that room. Not counted is what
other parts of a result's key hold whole: the reading of datasets (their digest) and packages (their versions);
nor the C form of the gather, which copies the same bytes as the one in Python.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orlog.base.files import hash_file

_ROOMS = ("orlog.algos", "orlog.datasets.worlds", "orlog.loaders", "orlog.normalize")
SECONDS = 60.0
"""More than git takes on a busy machine; without an answer, nothing is said of the commit."""


def run_sources(kind: type[Any], config: Any) -> dict[str, str]:
    """Return the hex SHA-256 of each room and module that decides the numbers of a run, by its name.

    Of an algorithm that is not orlog's, its own file counts, and that of its loader, which its settings choose;
    but no other file that they import.

    Raises ImportError if no file holds its class.
    """
    loader = kind.loader(config)[0].partition(":")[0]
    own = {module for module in (kind.__module__, loader) if not module.startswith("orlog.")}
    return {name: _hash(name) for name in sorted({*_ROOMS, *own})}


def sources_digest(kind: type[Any]) -> str:
    """Return a hex SHA-256 that shows whether the code of a run is that which is here.

    It is of the rooms of `run_sources` and of the file of an algorithm that is not orlog's; empty for a class
    that no file holds, as in a notebook.
    """
    own = () if kind.__module__.startswith("orlog.") else (kind.__module__,)
    try:
        hashes = [_hash(name) for name in (*_ROOMS, *own)]
    except (ImportError, OSError):
        return ""
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _hash(name: str) -> str:
    return _hash_of_room(name) if name in _ROOMS else hash_file(_place(name))


@functools.cache
def _hash_of_room(name: str) -> str:
    """Return what `find . -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum` prints in its folder."""
    folder = _place(name)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    lines = "".join(f"{hash_file(folder / file)}  ./{file}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def _place(name: str) -> Path:
    """Return the folder of a room, or the file of a module."""
    module = importlib.import_module(name)
    if name in _ROOMS:
        return Path(module.__path__[0])
    if getattr(module, "__file__", None) is None:
        raise ImportError(f"no file holds {name}.")
    return Path(str(module.__file__))


def repository_and_commit(sources: Iterable[str]) -> tuple[str, str]:
    """Return the address and the commit of the repository that holds sources (`run_sources`) as they are now.

    Both are empty where there is no git, where the files are in no repository, or where anything among them is not
    what the commit has; the address is empty too where the repository has no remote named origin, or one on this
    machine. User, password and query of an address are left out.
    """
    paths = [_place(name).resolve() for name in sources]
    folder = paths[0] if paths[0].is_dir() else paths[0].parent

    def git(*words: str | Path) -> str:
        # A monitor of the file system is a program that the repository names: it is not run.
        command = ["git", "-c", "core.fsmonitor=false", "-C", folder, *words]
        output = subprocess.run(  # noqa: S603 (paths are absolute, so none is taken for an option)
            command, capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return output.stdout.strip()

    try:
        held = git("ls-files", "--error-unmatch", "--", *paths)
        if not held or git("status", "--porcelain", "--", *paths):
            return "", ""
        commit = git("rev-parse", "HEAD")
        address = git("config", "--default", "", "--get", "remote.origin.url")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return "", ""
    if "://" not in address:
        return address if ":" in address else "", commit
    parts = urlsplit(address)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return "" if parts.scheme == "file" else plain, commit
