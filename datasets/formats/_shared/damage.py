"""Turns what a library says of a file that it cannot read into an error that names the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from orlog.errors import IntegrityError, OrlogError

LONGEST_TEXT = 200


@contextlib.contextmanager
def reading(where: str, kind: str = "") -> Iterator[None]:
    """Raise an IntegrityError that names the file for any error of a library, such as `kind` "HDF5"."""
    try:
        yield
    except OrlogError:
        raise
    except Exception as error:  # libraries raise errors of all kinds about damage
        text = str(error.args[0] if error.args else error).partition("\n")[0]
        text = text[:LONGEST_TEXT] or type(error).__name__
        what = f" as {kind}" if kind else ""
        raise IntegrityError(f"{where}: cannot be read{what}: {text}.", file=where) from error
