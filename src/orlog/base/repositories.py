"""The repository and commit that sources come from, where git says so."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

SECONDS = 60.0
"""More than git takes on a busy machine; without an answer, nothing is said of the commit."""


def repository_and_commit(paths: Sequence[Path]) -> tuple[str, str]:
    """Return the address and the commit of the repository that holds files or folders as they are now.

    Both are empty where there is no git, where the paths are in no repository, or where anything among them is not
    what the commit has; the address is empty too where the repository has no remote named origin. User, password
    and query of an address are left out.
    """
    if not paths:
        return "", ""
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    names = [str(path.resolve()) for path in paths]
    held = _git(folder, "ls-files", "--error-unmatch", "--", *names)
    changed = _git(folder, "status", "--porcelain", "--", *names)
    if not held or changed != "":
        return "", ""
    commit = _git(folder, "rev-parse", "HEAD") or ""
    return _without_user(_git(folder, "remote", "get-url", "origin") or ""), commit.strip()


def _git(folder: Path, *words: str) -> str | None:
    """Return what git prints; None if it is not there, or refuses."""
    # A monitor of the file system is a program that the repository names: it is not run.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder.resolve()), *words]
    try:
        found = subprocess.run(  # noqa: S603 (paths are absolute, so none is taken for an option)
            command, capture_output=True, text=True, timeout=SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return found.stdout


def _without_user(address: str) -> str:
    scheme, mark, rest = address.strip().partition("://")
    if not mark:
        return scheme if ":" in scheme else ""  # a folder of this machine says nothing to others
    if scheme == "file":
        return ""
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
