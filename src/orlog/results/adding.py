"""What to know before a result is added: what it does not say, and what its place has of these runs already."""

from __future__ import annotations

import msgspec

from orlog.errors import NotFoundError
from orlog.results.documents import Document, SharedResult
from orlog.results.going_on import check_options
from orlog.results.page import trained_by
from orlog.results.places import Found, read_place


def remarks(result: SharedResult, *, named: bool) -> list[str]:
    """Return what a result of runs does not say, which keeps others from placing it or from running it again.

    `named` is whether the file of an algorithm that is not orlog's was named.
    """
    found, method = [], result.method
    if method.tried is None:
        found.append("how many settings were tried to choose these is not said; add --tried N.")
    if method.options is None:
        return found
    try:
        check_options(method.options, result.compute.steps)
    except NotFoundError as error:
        found.append(f"nobody can run it again: {error}")
    if result.code.trained_by:
        found.append(f"it was not trained by one known code: {'; '.join(trained_by(result))}.")
    elif not result.code.files and ":" in method.algorithm and not named:
        found.append(
            f"{method.algorithm} is not one of orlog's, and its file is not stated, so nobody can run it again; add "
            "--algorithm FILE.py:CLASS."
        )
    elif not result.code.files:
        found.append(
            "its code is not stated, since nothing shows that the sources of now trained it."
        )
    return found


def there_already(to: str, result: SharedResult) -> Found | None:
    """Return the document of a place that says the same as a result that was made just now, if one does."""
    found = _of_method(to, result)
    return next((one for one in found if _timeless(one.document) == _timeless(result)), None)


def of_these_runs(to: str, result: SharedResult) -> Found | None:
    """Return a result of a place with the same returns, of which something else is said."""
    for one in _of_method(to, result):
        other = one.document
        if (
            isinstance(other, SharedResult)
            and (other.dataset, other.seeds) == (result.dataset, result.seeds)
            and _timeless(other) != _timeless(result)
        ):
            return one
    return None


def _of_method(to: str, result: SharedResult) -> list[Found]:
    """Return what a place holds of the method and dataset of a result."""
    folder, _, name = result.path.partition("/")
    try:
        return read_place(to, f"{folder}/{name.rpartition('-')[0]}-")[0]
    except NotFoundError:
        return []


def _timeless(document: Document) -> Document:
    return msgspec.structs.replace(document, created="", digest="")
