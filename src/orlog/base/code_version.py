"""The sources that decide the numbers of a run, each with the SHA-256 of its files.

Counted are whole rooms of orlog: algorithms, loaders, the scoring of episodes, and environments of its own.
So a change of any of their files, of a comment too, changes all hashes of that room. Not counted is what
other parts of a result's key hold whole: the reading of datasets (their digest) and packages (their versions);
nor the C form of the gather, which copies the same bytes as the one in Python.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

_ROOMS = ("orlog.algos", "orlog.datasets.environments", "orlog.loaders", "orlog.normalize")


def run_sources(kind: type[Any], config: Any) -> dict[str, str]:
    """Return the hex SHA-256 of each room and module that decides the numbers of a run, by its name.

    Of an algorithm that is not orlog's, its own file counts, and that of its loader, which its settings choose;
    but no other file that they import.
    """
    loader = kind.loader(config)[0].partition(":")[0]
    own = {module for module in (kind.__module__, loader) if not module.startswith("orlog.")}
    return {name: _hash(name) for name in sorted({*_ROOMS, *own})}


def unchanged_files(sources: dict[str, str]) -> list[Path]:
    """Return the files and folders of `run_sources`, if all are what they were; nothing if one is not."""
    try:
        is_as_it_was = all(_hash(name) == expected for name, expected in sources.items())
    except (ImportError, OSError, ValueError):  # another orlog had it
        return []
    return [_place(name) for name in sources] if is_as_it_was else []


def sources_digest(kind: type[Any]) -> str:
    """Return a hex SHA-256 that shows whether the code of a run is that which is here.

    It is of the rooms of `run_sources` and of the file of an algorithm that is not orlog's; empty for a class
    that no file holds, as in a notebook.
    """
    own = () if kind.__module__.startswith("orlog.") else (kind.__module__,)
    try:
        hashes = [_hash(name) for name in (*_ROOMS, *own)]
    except (ImportError, OSError, ValueError):
        return ""
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _hash(name: str) -> str:
    """Return the hex SHA-256 of a module's file, or of a room of orlog.

    Raises ImportError, OSError or ValueError if there is no file of that name.
    """
    return _hash_of_room(name) if name in _ROOMS else _hash_of_file(_place(name))


@functools.cache
def _hash_of_room(name: str) -> str:
    """Return what `find . -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum` prints in its folder."""
    folder = _place(name)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    lines = "".join(f"{_hash_of_file(folder / file)}  ./{file}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def _hash_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _place(name: str) -> Path:
    """Return the file of a module or the folder of a room; an own algorithm's file is in no path of imports."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is None or name in _ROOMS:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"no module {name}")
        loaded = next(iter(spec.submodule_search_locations or ()), spec.origin)
    if loaded is None:
        raise ModuleNotFoundError(f"{name} has no file")
    return Path(loaded)
