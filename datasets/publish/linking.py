"""Lists third-party files in a registry; the files stay at their own URLs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from orlog.datasets.download.credentials import may_be_signed
from orlog.datasets.formats.formats import find_format
from orlog.datasets.home.meaning import check_linked
from orlog.datasets.publish.publish import Sign, change_index
from orlog.errors import InvalidNameError
from orlog.manifests.documents import convert_json
from orlog.manifests.index import ForeignEntry
from orlog.manifests.names import parse_name


def foreign_file_entry(**said: str | int | Sequence[str] | None) -> ForeignEntry:
    """Return an index entry for a file from its fields; None stands for an unknown value.

    Raises ValueError if a value makes no sense, or a field does not exist.
    """
    return convert_json(said, ForeignEntry)


def link_foreign_file(
    target: str,
    name: str,
    entry: ForeignEntry,
    *,
    sign: Sign | None = None,
    trusted: Collection[str] = (),
    sign_existing: bool = False,
    on_wait: Callable[[], None] = lambda: None,
) -> str:
    """List a third-party file under `NAME@VERSION` in the index of a registry, and return the registry's URL.

    Nothing is downloaded: the file is checked against the entry only when it is used. A URL with a query that
    may be a secret is refused without repeating it, and so is a format that orlog does not read. The other
    arguments are those of `publish_dataset`.
    """
    wanted = parse_name(name)
    if not wanted.version:
        raise InvalidNameError(
            f"{name}: give the version of the file, such as {wanted.name}@1.0.0."
        )
    find_format(entry.format, name)
    _check_queries(name, entry)
    check_linked(wanted.name, wanted.version, entry)
    return change_index(
        target,
        lambda index: index.with_foreign(wanted.name, wanted.version, entry),
        sign=sign,
        trusted=trusted,
        sign_existing=sign_existing,
        on_wait=on_wait,
    )


def _check_queries(name: str, entry: ForeignEntry) -> None:
    """Refuse queries of signed URLs: whoever may read the registry reads its index."""
    for file in entry.each:
        for url in (file.url, *file.mirrors):
            if may_be_signed(url):
                plain = url.partition("?")[0]
                raise ValueError(
                    f"{plain}: leave out what follows the ? in this URL: it may be a secret, and the "
                    "registry would show it to all who read it. Who downloads the file gives it "
                    f'instead: orlog download {name} --mirror "{plain}?.."'
                )
