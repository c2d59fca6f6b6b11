"""The index of a registry: which versions of which datasets it holds.

    index.json = {"index_version": 1, "serial": 7, "datasets": {NAME: {VERSION: {"digest": ..}}},
                  "foreign": {NAME: {VERSION: {"url": .., "format": "d4rl-hdf5", "sha256": ..},
                                     VERSION: {"files": [{"path": .., "url": ..}], "format": ..}}}}

Foreign versions are third-party files that stay where they are, in their own formats. The serial
grows by one with each change, so older indexes are recognized. Reading is strict: unknown,
missing or repeated keys, wrong types and invalid names are errors.

A `versions.json` beside it holds the status of versions: superseded or yanked, and why.
"""

from __future__ import annotations

import itertools
import json
import urllib.parse
from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from orlog.errors import InvalidNameError, ManifestError, VersionExistsError, clause
from orlog.manifests.documents import convert_json, parse_json, refuse_newer
from orlog.manifests.manifest import MOST_VALUES, Count, Manifest
from orlog.manifests.names import is_version, parse_name, plain_version

INDEX_FILE = "index.json"
INDEX_VERSION = 1
LARGEST_INDEX = 64 * 2**20
LONGEST_URL = 2000
LONGEST_PATH = 1000
LONGEST_REASON = 1000
SCHEMES = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "hf", "file", "memory"})


_Url = Annotated[str, Meta(min_length=1, max_length=LONGEST_URL)]
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Md5 = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class ForeignFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One of the third-party files of a dataset; None means unknown.

    Attributes:
        path: Its place in the folder that the dataset is read from, such as `data/main_data.hdf5`.
        url: A URL, or a path inside the registry.
        mirrors: Other URLs of the same bytes, in the order in which they are tried.
        size_bytes: Its size.
        sha256: Hex SHA-256 of its bytes.
        md5: Hex MD5 of its bytes, where upstream publishes no better checksum.
    """

    path: Annotated[str, Meta(min_length=1, max_length=LONGEST_PATH)]
    url: _Url
    mirrors: tuple[_Url, ...] = ()
    size_bytes: Count | None = None
    sha256: _Sha256 | None = None
    md5: _Md5 | None = None

    def __post_init__(self) -> None:
        """Refuse what the types alone let through.

        Raises ManifestError if a URL is not one that orlog reads, or a path leaves its folder.
        """
        if not is_safe_path(self.path) or not self.path.isprintable():
            raise ManifestError(
                f"{self.path[:200]!r}: expected a path inside the dataset's folder, such as data/a.npz."
            )
        for url in (self.url, *self.mirrors):
            _check_url(url)

    @property
    def has_checksum(self) -> bool:
        """Whether upstream says a checksum."""
        return self.sha256 is not None or self.md5 is not None


class ForeignEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Third-party files that become a version of a dataset when they are read; None means unknown.

    It has either `url`, for one file, or `files`.

    Attributes:
        url: A URL, or a path inside the registry; empty if it has `files`.
        mirrors: Other URLs of the same bytes, in the order in which they are tried.
        files: The files of a dataset that has several, or whose format asks for their names.
        format: The format that reads it, for example `d4rl-hdf5`.
        size_bytes: The size of the file at `url`.
        sha256: Hex SHA-256 of its bytes.
        md5: Hex MD5 of its bytes, where upstream publishes no better checksum.
        description: What the data are.
        license: SPDX identifier of the data.
        horizon: Steps after which the environment truncates an episode, for files that do not flag
            truncations themselves.
        task: Name of one of several tasks that the files have rewards for.
        about_bytes: The size of all files together as upstream rounds it, where that is all that is known.
    """

    url: _Url = ""
    mirrors: tuple[_Url, ...] = ()
    files: tuple[ForeignFile, ...] = ()
    format: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}\Z")]
    size_bytes: Count | None = None
    sha256: _Sha256 | None = None
    md5: _Md5 | None = None
    description: Annotated[str, Meta(max_length=10_000)] | None = None
    license: Annotated[str, Meta(max_length=1000)] | None = None
    horizon: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    task: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    about_bytes: Count | None = None

    def __post_init__(self) -> None:
        """Refuse what the types alone let through.

        Raises ManifestError if it has neither `url` nor `files`, or both; a URL is not one that orlog reads,
        or two files have the same path.
        """
        if bool(self.url) == bool(self.files):
            raise ManifestError("a third-party dataset has either a url or files.")
        of_one_file = (self.mirrors, self.size_bytes, self.sha256, self.md5)
        if self.files and of_one_file != ((), None, None, None):
            raise ManifestError("with files, each of them has its own mirrors, size_bytes, sha256 and md5.")
        for url in (self.url, *self.mirrors) if self.url else ():
            _check_url(url)
        # A file system may take a and A for one name, and a name is a file or a folder.
        taken = [f"{file.path.casefold()}/" for file in self.files]
        for path, other in itertools.pairwise(sorted(taken)):
            if other.startswith(path):
                raise ManifestError(f"two files cannot be at {other[:-1]!r} and {path[:-1]!r}.")

    @property
    def each(self) -> tuple[ForeignFile, ...]:
        """Its files; the one at `url` has the last part of that as its path."""
        if self.files:
            return self.files
        return (
            ForeignFile(
                path=_last_part(self.url),
                url=self.url,
                mirrors=self.mirrors,
                size_bytes=self.size_bytes,
                sha256=self.sha256,
                md5=self.md5,
            ),
        )

    @property
    def place(self) -> str:
        """What messages and lineages call it: its URL, or that of the folder of its files."""
        folders = {file.url.removesuffix(f"/{file.path}") for file in self.files}
        return self.url or (folders.pop() if len(folders) == 1 else self.files[0].url)

    @property
    def hub_folder(self) -> str:
        """The repository of the Hugging Face Hub that it is, such as `lerobot/pusht`; empty if it has files."""
        kind, _, repository = self.url.partition("hf://datasets/")
        return repository if not kind and repository.count("/") == 1 else ""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder whose files are not listed, so that orlog does not download it."""
        return bool(self.hub_folder) or self.url.endswith("/")

    @property
    def total_bytes(self) -> int | None:
        """Size of all its files; None if that of one is unknown."""
        sizes = [file.size_bytes for file in self.each if file.size_bytes is not None]
        return sum(sizes) if len(sizes) == len(self.each) else None


class IndexEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One version of a dataset.

    Attributes:
        digest: Digest of its manifest, `sha256:` and 64 hex digits.
        size_bytes: Size of all its objects together.
        episodes: Number of episodes.
        steps: Number of steps.
        audit: `skipped` if its data were published without an audit; left out otherwise.
        license: SPDX identifier of the data; left out if the manifest says none, and by older orlogs.
    """

    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    size_bytes: Count
    episodes: Count
    steps: Count
    audit: Literal["skipped"] | None = None
    license: Annotated[str, Meta(max_length=1000)] | None = None


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every version that a registry holds.

    Attributes:
        index_version: Version of this JSON's layout.
        serial: Grows by one with each change; readers refuse one smaller than they have seen.
        datasets: Entries by name and version.
        foreign: Third-party files, by name and version; none is in `datasets` too.
    """

    index_version: int = INDEX_VERSION
    serial: Count = 0
    datasets: dict[str, dict[str, IndexEntry]] = {}
    foreign: dict[str, dict[str, ForeignEntry]] = {}

    def __post_init__(self) -> None:
        """Refuse what the types alone let through.

        Raises ManifestError if a name or version that is invalid or repeated, a name without versions.
        """
        listed: list[tuple[str, Collection[str]]] = [*self.datasets.items(), *self.foreign.items()]
        for name, versions in listed:
            try:
                is_name = parse_name(name).name == name
            except InvalidNameError:
                is_name = False
            if not is_name or not versions:
                raise ManifestError(f"{name!r} is not a dataset name with versions.")
            for version in versions:
                if not is_version(version) or plain_version(version) != version:
                    raise ManifestError(f"{name}: {version!r} is not a content version.")
        for name, foreign in self.foreign.items():
            for version in foreign.keys() & self.datasets.get(name, {}).keys():
                raise ManifestError(f"{name}@{version} is listed both in datasets and in foreign.")

    def entry(self, name: str, version: str) -> IndexEntry | None:
        """Return the entry of a version, or None."""
        return self.datasets.get(name, {}).get(version)

    def with_version(self, manifest: Manifest, *, is_audited: bool = True) -> Index:
        """Return the next index, with a version added; this index itself if it lists the version.

        The entry says so if the data were not audited. A version listed with another digest is refused.
        """
        entry = IndexEntry(
            digest=manifest.digest,
            size_bytes=manifest.size_bytes,
            episodes=manifest.total_episodes,
            steps=manifest.total_steps,
            audit=None if is_audited else "skipped",
            license=manifest.license or None,
        )
        return self._with("datasets", manifest.name, manifest.version, entry)

    def with_foreign(self, name: str, version: str, entry: ForeignEntry) -> Index:
        """Return the next index, with a foreign file added; this index itself if it lists the file.

        Raises VersionExistsError if the version is listed with another entry or with a digest; ManifestError
        if name, version or entry is invalid, or the serial cannot grow any more.
        """
        try:
            # The constructor checks only URLs and paths; reading the entry as JSON checks all of it.
            convert_json(msgspec.to_builtins(entry), ForeignEntry)
        except ValueError as error:
            raise ManifestError(f"{name}@{version}: {clause(error)}.") from error
        return self._with("foreign", name, version, entry)

    def _with(self, kind: str, name: str, version: str, entry: IndexEntry | ForeignEntry) -> Index:
        listed = self.entry(name, version) or self.foreign.get(name, {}).get(version)
        if listed is not None and _content_of(listed) == _content_of(entry):
            return self
        if listed is not None:
            raise VersionExistsError(
                f"{name}@{version}: the index lists {_content_of(listed)!s:.200} under that name and version, not "
                f"{_content_of(entry)!s:.200}, and a version never changes; publish it under a new version."
            )
        if self.serial >= 2**53:
            raise ManifestError(f"serial {self.serial} of the index is the largest possible; restore the index.")
        entries = getattr(self, kind)
        added = {**entries, name: {**entries.get(name, {}), version: entry}}
        return msgspec.structs.replace(self, serial=self.serial + 1, **{kind: added})

    def to_json(self) -> bytes:
        """Return the bytes of `index.json`: keys sorted, so equal indexes have equal bytes."""
        body = msgspec.to_builtins(self)
        if not self.foreign:
            del body["foreign"]
        return (json.dumps(body, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _content_of(entry: IndexEntry | ForeignEntry) -> str | ForeignEntry:
    """Return what a version never changes: a digest, or a third-party entry."""
    return entry.digest if isinstance(entry, IndexEntry) else entry


def _last_part(url: str) -> str:
    """Return the name of the file at a URL, or `file` where that is no good name."""
    path = url.partition("?")[0].partition("#")[0]
    name = urllib.parse.unquote(path.rpartition("/")[2])
    return name if is_safe_path(name) and name.isprintable() and len(name) <= 100 else "file"


def _check_url(url: str) -> None:
    """Refuse a URL that orlog does not read, and a path that leaves the registry."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        is_good = is_safe_path(url) and not set(url) & set("?#%")
    else:
        # Chained URLs such as simplecache::https://.. make fsspec do more than read a file.
        is_good = scheme in SCHEMES and bool(rest.strip("/")) and "::" not in url
        is_web = scheme in ("http", "https")
        is_good = is_good and not (is_web and ("@" in rest.split("/")[0] or " " in rest))
    if not is_good or not url.isprintable():
        # What stands before the host may be a password, and a query a signature.
        shown = f"{scheme}://..@{rest.rpartition('@')[2]}" if "@" in rest.split("/")[0] else url
        shown = shown.partition("?")[0] + "?.." * ("?" in shown)
        raise ManifestError(
            f"{shown[:200]!r}: expected a URL of {', '.join(sorted(SCHEMES))} without a "
            "password, or a path inside the registry."
        )


def is_safe_path(path: str) -> bool:
    """Return whether a relative path stays inside its folder."""
    parts = path.split("/")
    return not {"", ".", ".."} & set(parts) and "\\" not in path and ":" not in path


def index_from_json(data: bytes, where: str) -> Index:
    """Return the index in the bytes of an `index.json`; `where` names their origin in errors.

    Raises ManifestError if it is too large or malformed; FormatVersionError if it was written by a newer
    orlog.
    """
    if len(data) > LARGEST_INDEX:
        raise ManifestError(f"{where}: an index has at most {LARGEST_INDEX} bytes, found more.")
    try:
        body = parse_json(data, MOST_VALUES)
    except ValueError as error:
        raise ManifestError(f"{where}: not the JSON of an index: {clause(error)}.") from error
    if not isinstance(body, dict):
        raise ManifestError(f"{where}: an index is a JSON object.")
    refuse_newer(body, {"index_version": INDEX_VERSION}, where)
    missing = {"index_version", "serial", "datasets"} - body.keys()
    if missing:
        raise ManifestError(f"{where}: the index has no {', '.join(sorted(missing))}.")
    try:
        index = convert_json(body, Index)
    except ValueError as error:
        raise ManifestError(f"{where}: {clause(error)}.") from error
    if index.index_version != INDEX_VERSION:
        raise ManifestError(f"{where}: index_version {index.index_version} does not exist.")
    return index


class VersionStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The status of a version.

    Attributes:
        status: `superseded`: there is a better one. `yanked`: it should not be used.
        reason: Why, in a sentence.
        use: What to use instead: a version of the same dataset or a dataset's name; may be empty.
    """

    status: Literal["superseded", "yanked"]
    reason: str
    use: str = ""

    def __post_init__(self) -> None:
        """Refuse a reason that says nothing and a `use` that names nothing.

        Raises ValueError if the reason or `use` is invalid.
        """
        good = self.reason.strip() and self.reason.isprintable()
        if not good or len(self.reason) > LONGEST_REASON:
            raise ValueError(
                f"a {self.status} version needs a reason: one line of up to {LONGEST_REASON} "
                f"characters, found {self.reason[:60]!r}."
            )
        if self.use and not is_version(self.use):
            parse_name(self.use)


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of a `versions.json`: the status of each version that has one."""

    history_version: Literal[1]
    versions: dict[str, VersionStatus]

    def __post_init__(self) -> None:
        for version, status in self.versions.items():
            check_version(version, status)


def check_version(version: str, entry: VersionStatus) -> None:
    """Refuse a status for an invalid version, or one that names itself as its replacement.

    Raises ValueError if the version is invalid, or `use` names it.
    """
    if not is_version(version):
        raise ValueError(f"{version[:60]!r} is not a content version such as 1.0.0.")
    if entry.use == version:
        raise ValueError(f"version {version} cannot be used in place of itself.")
