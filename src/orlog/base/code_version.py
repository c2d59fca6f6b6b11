"""The sources that decide the numbers of a run, each with a hash of what it does.

Counted are the modules of `orlog.algos` and `orlog.loaders` that training and evaluating one algorithm
import, and the modules of the environment if it is orlog's own. Not counted is what other parts of a
result's key hold whole: the reading of datasets (their digest), presets and the reading of settings
(the complete settings), packages (their versions); nor the C form of the gather, which copies the same
bytes as the one in Python. Comments, docstrings and the layout of the text
change no hash; nor do other algorithms.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium

_COUNTED = (
    "orlog.algos.",
    "orlog.datasets.environments.",
    "orlog.loaders.",
    "orlog.normalize.rollouts",
)
_METRICS = "orlog.normalize.metrics"  # what is counted in episodes; not what it imports
_ROOTS = ("orlog.algos.training.train", "orlog.algos.training.evaluating")
_NOT_COUNTED = frozenset(
    {
        "orlog.algos.algorithms",  # finds the class, whose own module is counted
        "orlog.algos.presets",  # the complete settings are in the key
        "orlog.algos.settings",  # reads them from text
        "orlog.algos.training.commands",  # what to type next
        "orlog.algos.training.metrics",  # the file of the log
    }
)


def run_sources(kind: type[Any], config: Any, environment_id: str) -> dict[str, str]:
    """Return the hex SHA-256 of each module that decides the numbers of a run, by its name.

    Of an algorithm that is not orlog's, its own file counts, that of its loader, which its settings choose,
    and the modules of orlog that these import or that its base classes are in; but no other file that they
    import. So do the metrics of episodes.
    """
    loader = kind.loader(config)[0].partition(":")[0]
    environment = _environment_module(environment_id)
    roots = [*(base.__module__ for base in kind.__mro__), loader, environment, *_ROOTS]
    for module in (kind.__module__, loader):
        if not module.startswith("orlog.") and _is_module(module):
            roots += _imports(ast.parse(_file(module).read_bytes()))
    found = _counted_from(tuple(roots))
    for module in (kind.__module__, loader, environment, _METRICS):
        if module and module not in found and _is_module(module):
            found = {**found, module: source_hash(_file(module).read_bytes())}
    return dict(sorted(found.items()))


def unchanged_files(sources: dict[str, str]) -> list[Path]:
    """Return the files of `run_sources`, once each is shown to be what it was; nothing if one is not."""
    try:
        found = {module: _file(module) for module in sources}
    except (AssertionError, ModuleNotFoundError):  # another orlog had it
        return []

    def hash_now(module: str) -> str:
        if module.startswith("orlog."):
            return _hash_and_imports(module)[0]  # which `run_sources` has found already
        return source_hash(found[module].read_bytes())

    is_as_it_was = all(hash_now(module) == expected for module, expected in sources.items())
    return [*found.values()] if is_as_it_was else []


def sources_digest(kind: type[Any]) -> str:
    """Return a hex SHA-256 that shows whether the code of a run is that which is here.

    It is of the bytes of all sources among which `run_sources` chooses, and of the file of an algorithm that is
    not orlog's, so it is found in milliseconds. It changes with comments too: equal ones mean equal code. It is
    empty for a class that no file holds, as in a notebook.
    """
    digest = hashlib.sha256(_own_sources().encode())
    if not kind.__module__.startswith("orlog."):
        try:
            digest.update(_file(kind.__module__).read_bytes())
        except (ValueError, ImportError, OSError):
            return ""
    return digest.hexdigest()


@functools.cache
def _own_sources() -> str:
    digest = hashlib.sha256()
    for part in _COUNTED:
        spec = importlib.util.find_spec(part.rstrip("."))
        assert spec is not None, part
        folders = spec.submodule_search_locations
        folder = Path(folders[0]) if folders else Path(spec.origin or "").parent
        for file in sorted(folder.rglob("*.py")) if folders else [Path(spec.origin or "")]:
            digest.update(f"{part}{file.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _environment_module(environment_id: str) -> str:
    """Return the module of an environment of orlog's own; empty for others."""
    entry = gymnasium.spec(environment_id).entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return module if module.startswith("orlog.") else ""


@functools.cache
def _counted_from(roots: tuple[str, ...]) -> dict[str, str]:
    """Return the hash of each counted module that modules import, themselves included."""
    found: dict[str, str] = {}
    waiting = [*roots]
    while waiting:
        module = waiting.pop()
        if module in found or module in _NOT_COUNTED or not module.startswith(_COUNTED):
            continue
        found[module], imported = _hash_and_imports(module)
        waiting += imported
    return found


@functools.cache
def _hash_and_imports(module: str) -> tuple[str, list[str]]:
    source = _file(module).read_bytes()
    return source_hash(source), [*_imports(ast.parse(source))]


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of orlog that a module may import, those for types only left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orlog"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if _is_module(inner) else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from _imports(node)


def _is_module(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the part before the last dot is no package
        return False


def source_hash(source: bytes) -> str:
    """Return the hex SHA-256 of Python code without its comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[:] = body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(ast.fix_missing_locations(tree)).encode()).hexdigest()


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _file(module: str) -> Path:
    """Return the source of a module; that of an own algorithm's file has no place in the path."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is None:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        loaded = spec.origin
    assert loaded is not None, module
    return Path(loaded)
