"""`SHA256SUMS` beside exported files, as `sha256sum` writes it and checks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orlog.base.files import hash_file, sync, write_durably
from orlog.errors import IntegrityError

SUMS_FILE = "SHA256SUMS"
FOLDERS_ABOVE = 3  # as of NAMESPACE/NAME/data in an export to Minari
HEX = frozenset("0123456789abcdef")


def write_sums(folder: Path) -> None:
    """Write the SHA-256 of each file of a folder beside them, durably."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    lines = [f"{hash_file(folder / name)}  {name}\n" for name in names if "\n" not in name]
    write_durably(folder / SUMS_FILE, "".join(lines).encode())
    sync(folder)


def check_sums(folder: Path, sums: Mapping[str, str], *, all_of_it: bool) -> bool:
    """Compare files with the `SHA256SUMS` of their folder; return whether it lists any of them.

    Where it lists none of them, the lists of the next folders above are asked: a part of an export may be
    imported, such as `ID/data` of Minari's. Only names of `sums` are looked for, so that no path of a list is
    ever opened: the SHA-256 of each file by its path, with slashes, in the folder itself and not through a
    link. If they are `all_of_it`, each file that a list has there must be among them.
    """
    start = ""  # of the files' names in the list
    for place in (folder, *folder.parents[:FOLDERS_ABOVE]):
        named = {start + name: sha256 for name, sha256 in sums.items()}
        if place == folder:
            named.pop(SUMS_FILE, None)
        if _is_listed(place, named, start if all_of_it else None):
            return True
        start = f"{place.name}/{start}"
    return False


def _is_listed(folder: Path, sums: Mapping[str, str], whole: str | None) -> bool:
    """Compare files with the list of one folder, if there is one; return whether it lists any of them.

    `whole` begins the names of which all are among `sums`; None where there may be others.
    """
    path = folder / SUMS_FILE
    if path.is_symlink() or not path.is_file():
        return False
    listed: dict[str, str] = {}
    for line in path.read_bytes().decode("utf-8", "replace").splitlines():
        sha256, name = line[:64].lower(), line[66:].removeprefix("./")
        if len(sha256) == 64 and HEX.issuperset(sha256) and line[64:66] in ("  ", " *"):
            listed[name] = sha256
    wrong = [name for name, one in sums.items() if listed.get(name, one) != one]
    if whole is not None:
        wrong += [name for name in listed if name.startswith(whole) and name not in sums]
    if wrong:
        shown = ", ".join(repr(name)[1:-1] for name in wrong[:5])
        more = f" and {len(wrong) - 5:,} more" if len(wrong) > 5 else ""
        raise IntegrityError(
            f"{path}: {shown}{more}: not the bytes that were written, or missing. Nothing was kept. Export or "
            f"copy the files again; if you changed them on purpose, remove {SUMS_FILE}.",
            file=str(folder / wrong[0]),
        )
    return any(name in listed for name in sums)
