"""The registries of this machine, from which datasets are fetched, and what was seen of each.

    $ORLOG_HOME/registries.json         {"registries": [{"name", "url", "mirrors", "keys"}, ..]}
    $ORLOG_HOME/registries-seen.json    the newest index of each, so that older ones are refused

A registry is a folder or URL; a mirror is another place with the same files. Registries are tried
in order, and the first that has a dataset serves it. If a registry has keys, its index and
manifests must be signed by one of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from orlog.datasets.home.folders import datasets_folder
from orlog.errors import NotFoundError, SignatureError, StorageError, clause
from orlog.manifests.documents import read_json_file, replace_json_file, sole_writer
from orlog.manifests.names import did_you_mean
from orlog.manifests.signatures import is_public_key

LARGEST_SERIAL = 2**53
LONGEST_URL = 2000
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
_URL = re.compile(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[^/:\[\]?# ]+)(:[0-9]+)?(/[^?# ]*[^/?# ])?"
    r"|file:///.*[^/]|(?!https?:|file:)[a-z][a-z0-9+.-]*://.*[^/]"
)


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A place that datasets are fetched from.

    Attributes:
        name: Its name on this machine.
        url: URL of its folder, or an absolute path; no slash at the end.
        mirrors: Other places with the same files, to be tried in this order after `url`.
        keys: Public keys. If there are any, one of them must sign its index and manifests.
        in_place: Whether its versions are read where they are, and not downloaded first.
        whole_files: Whether versions without hashes of chunks are read in place too, by files fetched whole.
    """

    name: str
    url: str
    mirrors: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    in_place: bool = False
    whole_files: bool = False

    def __post_init__(self) -> None:
        """Refuse a name, a URL or a key that is malformed or repeated."""
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(
                f"{self.name[:60]!r} is not a name for a registry: expected one word of up to 40 "
                "lower-case letters, digits, '_', '.' and '-', for example lab."
            )
        for url in (self.url, *self.mirrors):
            _check_url(url)
        for key in self.keys:
            if not is_public_key(key):
                raise ValueError(
                    f"registry {self.name}: {key[:100]!r} is not a public key: expected ed25519: "
                    "and 64 hexadecimal digits in lower case, as `orlog registry key` prints them."
                )
        _refuse_repeated(f"registry {self.name}: URL", (self.url, *self.mirrors))
        _refuse_repeated(f"registry {self.name}: key", self.keys)
        if self.whole_files and not self.in_place:
            raise ValueError(f"registry {self.name}: whole_files is for a registry read in place.")


class _Registries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    registries_version: Literal[1]
    registries: list[Registry]

    def __post_init__(self) -> None:
        _refuse_repeated("registry", [registry.name for registry in self.registries])
        _refuse_repeated("registry with URL", [registry.url for registry in self.registries])


class _SeenIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    serial: Annotated[int, Meta(ge=0, le=LARGEST_SERIAL)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    seen_version: Literal[1]
    indexes: dict[str, _SeenIndex]


def registries_file() -> Path:
    """Return the file that lists the registries of this machine; it need not exist."""
    return datasets_folder().parent / "registries.json"


def seen_file() -> Path:
    """Return the file that remembers the newest index of each registry; it need not exist."""
    return datasets_folder().parent / "registries-seen.json"


def read_registries() -> list[Registry]:
    """Return the registries of this machine, in the order in which they are tried."""
    path = registries_file()
    if not path.exists():
        return []
    repair = "repair the file, or delete it and add the registries again with `orlog registry add`"
    body = read_json_file(path, _Registries, version=("registries_version", 1), repair=repair)
    return body.registries


def add_registry(
    name: str,
    url: str,
    *,
    mirrors: Iterable[str] = (),
    keys: Iterable[str] = (),
    first: bool = False,
    in_place: bool = False,
    whole_files: bool = False,
) -> Registry:
    """Add a registry to the list of this machine, and return it.

    Nothing is fetched: whether it can be reached shows on first use.

    Args:
        name: Its name on this machine, a simple word.
        url: A URL that fsspec knows (https, http, file, s3, hf, ..), or an existing folder.
        mirrors: Other places with the same files.
        keys: Public keys, one of which signs its index and manifests.
        first: Try it before the existing registries, not after them.
        in_place: Read its versions where they are: `orlog.load_dataset` fetches only what is read.
        whole_files: With `in_place`, also read versions without hashes of chunks, whose files are fetched whole.

    Raises:
        ValueError: an argument is invalid, or the name or URL is listed already.
        NotFoundError: a folder does not exist.
        ManifestError: the file of the registries is malformed; it stays.
        FormatVersionError: it was written by a newer orlog; it stays.
        StorageError: the file cannot be written.
    """
    registry = Registry(
        name=name,
        url=_normal_url(url),
        mirrors=tuple(map(_normal_url, mirrors)),
        keys=tuple(keys),
        in_place=in_place,
        whole_files=whole_files,
    )
    path = registries_file()
    with sole_writer(path):
        others = read_registries()
        for other in others:
            if other.name == name or other.url == registry.url:
                raise ValueError(
                    f"registry {other.name} with URL {other.url} exists already; to change it, "
                    f"run: orlog registry remove {other.name}, then add it again."
                )
        _write(path, [registry, *others] if first else [*others, registry])
    return registry


def remove_registry(name: str) -> Registry:
    """Remove a registry from the list of this machine, and return it."""
    _find(name)
    path = registries_file()
    with sole_writer(path):
        removed = _find(name)
        _write(path, [registry for registry in read_registries() if registry.name != name])
    return removed


def check_serial(registry: Registry, serial: int, index_sha256: str) -> None:
    """Refuse an index with a smaller serial than one seen before, or with other bytes; remember this one."""
    if not 0 <= serial <= LARGEST_SERIAL:
        raise SignatureError(
            f"{registry.url}: expected a serial from 0 to {LARGEST_SERIAL} in its index, found "
            f"{str(serial)[:30]}; ask who publishes it."
        )
    path = seen_file()
    index = _SeenIndex(serial=serial, sha256=index_sha256)
    if _refuse_older(registry, index, _read_seen(path)) == index:
        return
    try:
        with sole_writer(path):
            seen = _read_seen(path)
            _refuse_older(registry, index, seen)
            body = _Seen(seen_version=1, indexes={**seen, registry.url: index})
            replace_json_file(path, msgspec.to_builtins(body))
    except StorageError as error:
        warnings.warn(
            f"registry {registry.name}: serial {serial} of its index cannot be remembered, so an "
            f"older index will not be noticed later: {clause(error)}.",
            stacklevel=2,
        )


def _refuse_older(registry: Registry, index: _SeenIndex, seen: dict[str, _SeenIndex]) -> _SeenIndex | None:
    """Return the index seen before, or None; raise if the given one is older or differs from it."""
    before = seen.get(registry.url)
    if before is None or index.serial > before.serial or index == before:
        return before
    advice = (
        "run the same command again; if that fails, ask who publishes it. Only if the registry was "
        f"created again, remove its entry from {seen_file()}"
    )
    if index.serial < before.serial:
        raise SignatureError(
            f"registry {registry.name} ({registry.url}): its index is older than one seen before: "
            f"expected serial {before.serial} or more, found {index.serial}. A mirror may be out of "
            f"date, or someone may be hiding newer versions; {advice}.",
            expected=str(before.serial),
            found=str(index.serial),
        )
    raise SignatureError(
        f"registry {registry.name} ({registry.url}): two indexes have serial {index.serial}: "
        f"expected sha256 {before.sha256}, found {index.sha256}; {advice}.",
        expected=before.sha256,
        found=index.sha256,
    )


def _find(name: str) -> Registry:
    names = {registry.name: registry for registry in read_registries()}
    if name not in names:
        raise NotFoundError(
            f"no registry is called {name[:60]!r}{did_you_mean(name, names) or '.'} To see all, run: "
            "orlog registry list"
        )
    return names[name]


def _write(path: Path, registries: list[Registry]) -> None:
    body = _Registries(registries_version=1, registries=registries)
    replace_json_file(path, msgspec.to_builtins(body))


def _read_seen(path: Path) -> dict[str, _SeenIndex]:
    if not path.exists():
        return {}
    repair = "repair or delete the file (once deleted, an older index is not noticed the next time)"
    return read_json_file(path, _Seen, version=("seen_version", 1), repair=repair).indexes


def _normal_url(text: str) -> str:
    """Return a URL, or the absolute path of a folder, in the form that is stored."""
    import fsspec

    _check_text(text)
    scheme, separator, rest = text.partition("://")
    if separator:
        known = fsspec.available_protocols()
        if scheme.lower() not in known:
            raise ValueError(
                f"{text!r}: no transport is called {scheme!r}; expected https, http, file, s3, hf "
                f"or another that fsspec knows{did_you_mean(scheme, known) or '.'}"
            )
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    with contextlib.suppress(OSError, RuntimeError):
        folder = Path(text).expanduser().absolute()
        if folder.is_dir():
            return os.path.normpath(folder)
    raise NotFoundError(
        f"{text!r}: no such folder; make it first, or give a whole URL, such as https://data.example.org/registry."
    )


def _check_text(url: str) -> None:
    if not url.strip() or not url.isprintable() or len(url) > LONGEST_URL:
        raise ValueError(f"{url[:60]!r}: expected a URL or a folder, one line of up to {LONGEST_URL} characters.")


def _check_url(url: str) -> None:
    """Refuse anything but a URL or an absolute path in the form that is stored; no message shows a secret."""
    _check_text(url)
    scheme, separator, rest = url.partition("://")
    if scheme in ("http", "https") and "@" in rest.split("/")[0]:
        raise ValueError(
            f"leave user and password out of the URL: URLs are kept in {registries_file()} and shown in messages."
        )
    if not (_URL.fullmatch(url) if separator else Path(url).is_absolute()):
        shown = url.partition("#")[0].partition("?")[0]
        raise ValueError(
            f"{shown!r}: expected an absolute path (file:///folder), or a URL such as "
            "https://data.example.org/registry: with a host, without spaces, '?' or '#', and without a slash "
            "at the end."
        )


def _refuse_repeated(what: str, texts: Sequence[str]) -> None:
    for text in texts:
        if texts.count(text) > 1:
            raise ValueError(f"{what} {text} is listed twice.")
