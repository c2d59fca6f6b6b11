"""Where results lie: folders, buckets and web servers; reading several, and adding to one.

    RESULTS/results.json     the files that are here, with the SHA-256 of each, for servers that list nothing
    RESULTS/arm-v1/*.json    results and notes, and a `.sig` beside each that is signed

A folder is read as it is, whatever `results.json` says, so that two who add in their own branch of a repository
merge without thinking of it: `orlog results index` writes it anew, and so does the next result that is added.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from orlog.base.files import absolute_path
from orlog.datasets.download.credentials import plain_url
from orlog.datasets.download.http import read_small
from orlog.datasets.publish.open import open_target
from orlog.datasets.publish.targets import Change, FolderTarget, apply_changes
from orlog.errors import (
    FormatVersionError,
    IntegrityError,
    ManifestError,
    MissingExtraError,
    NotFoundError,
    OrlogError,
    SignatureError,
    StorageError,
    VersionExistsError,
    clause,
)
from orlog.manifests.documents import convert_json, parse_json, refuse_newer
from orlog.manifests.names import counted, is_url
from orlog.manifests.signatures import (
    LARGEST_SIGNATURE,
    SIGNATURE_SUFFIX,
    check_signature,
    public_key,
    sign,
    signers,
)
from orlog.results.documents import (
    LARGEST_RESULT,
    Document,
    Note,
    SharedResult,
    document_bytes,
    parse_document,
    with_digest,
)

LISTING_FILE = "results.json"
MOST_FILES = 100_000
READERS = 16
_FILE = r"[a-z0-9][a-z0-9._+-]{0,99}/[a-z0-9][a-z0-9._-]{0,149}\.json"
_PATH = re.compile(_FILE)


class _Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    results_version: Literal[1]
    files: Annotated[
        dict[
            Annotated[str, msgspec.Meta(pattern=rf"^{_FILE}(\.sig)?\Z")],
            Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")],
        ],
        msgspec.Meta(max_length=MOST_FILES),
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A document where it lies.

    Attributes:
        place: Folder or URL of the results.
        path: Where it lies there.
        document: What it says.
        signers: Public keys whose signature of it is right; None if signatures could not be checked.
    """

    place: str
    path: str
    document: Document
    signers: frozenset[str] | None

    @property
    def result(self) -> SharedResult:
        """What it says, where it is a result."""
        assert isinstance(self.document, SharedResult)
        return self.document

    @property
    def note(self) -> Note:
        """What it says, where it is a note."""
        assert isinstance(self.document, Note)
        return self.document

    @property
    def where(self) -> str:
        """Its path or URL."""
        return f"{self.place.rstrip('/')}/{self.path}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A result, wherever it lies, and what is said of it.

    Attributes:
        result: The result.
        found: It, as each place has it; nothing for one that ships with orlog.
        notes: What is said of it, wherever that lies.
    """

    result: SharedResult
    found: list[Found] = dataclasses.field(default_factory=list)
    notes: list[Found] = dataclasses.field(default_factory=list)

    @property
    def where(self) -> list[str]:
        """Its paths and URLs."""
        return [one.where for one in self.found]

    @property
    def signers(self) -> frozenset[str] | None:
        """Public keys whose signature of it is right; None if signatures could not be checked."""
        return self.found[0].signers if self.found else frozenset()

    def said(self, kind: str) -> list[Found]:
        """Return the notes of one kind."""
        return [one for one in self.notes if one.note.kind == kind]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What several places hold.

    Attributes:
        entries: Their results, each once.
        problems: What is wrong with files, a sentence each; these files are left out.
        notes: What else is left out, and why.
    """

    entries: list[Entry]
    problems: list[str]
    notes: list[str]


def collect(places: Sequence[str], *, trusted: Collection[str] = ()) -> Collected:
    """Return the results of several places, merged: one that lies in two is there once.

    With `trusted` public keys, only what one of them signed is taken.

    Raises NotFoundError if a place has no results; TransferError if it cannot be read.
    """
    files: list[Found] = []
    problems: list[str] = []
    for place in places:
        there, wrong = read_place(place)
        files += there
        problems += wrong
    notes = []
    if any(one.signers is None for one in files):
        if trusted:
            raise MissingExtraError(
                "signatures need cryptography, which is not installed", install="orlog[sign]"
            )
        notes.append('signatures were not checked: that takes pip install "orlog[sign]".')
    if trusted:
        others = [one for one in files if not (one.signers or frozenset()) & {*trusted}]
        notes += [f"{one.where}: left out, since no trusted key signed it." for one in others]
        files = [one for one in files if one not in others]
    by_digest: dict[str, list[Found]] = {}
    said: dict[str, dict[str, Found]] = {}
    for one in files:
        if isinstance(one.document, Note):
            said.setdefault(one.document.of, {}).setdefault(one.document.digest, one)
        else:
            by_digest.setdefault(one.document.digest, []).append(one)
    entries = [
        Entry(result=there[0].result, found=there, notes=[*said.get(digest, {}).values()])
        for digest, there in by_digest.items()
    ]
    for digest in said.keys() - by_digest.keys():
        first = next(iter(said[digest].values()))
        notes.append(
            f"{first.where}: is about {digest[:19]}, which no place given has; give that with its result too."
        )
    return Collected(entries=entries, problems=problems, notes=notes)


def read_place(place: str, prefix: str = "") -> tuple[list[Found], list[str]]:
    """Return the documents of one place whose paths begin so, and what is wrong with files there."""
    root = _root(place)
    listed = _remote_listing(root).files if is_url(root) else local_files(Path(root))
    paths = [path for path in sorted(listed) if path.endswith(".json") and path.startswith(prefix)]

    def read(path: str) -> Found | str:
        try:
            return _read_found(root, path, listed)
        except OrlogError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(READERS if is_url(root) else 1) as pool:
        found = list(pool.map(read, paths))
    return (
        [one for one in found if isinstance(one, Found)],
        [one for one in found if isinstance(one, str)],
    )


def read_result(given: str) -> Entry:
    """Return the result at a path or URL, with the notes that lie beside it where that is a folder.

    Raises NotFoundError if it is not there; ManifestError if it is malformed or no result; SignatureError if
    its signature is missing or wrong.
    """
    whole = plain_url(given) if is_url(given) else Path(given).expanduser().as_posix()
    if not is_url(whole) and whole.count("/") < 2:  # given from inside of the folder of results
        whole = absolute_path(whole).as_posix()
    root, folder, name = whole.rsplit("/", 2)
    path = f"{folder}/{name}"
    if not _PATH.fullmatch(path):
        raise NotFoundError(
            f"{given}: is no file of a result, such as results/arm-v1/iql-3f9ac2d1.json."
        )
    if is_url(whole):
        found, notes = _read_found(root, path, None), []
    else:
        found = _read_found(root, path, local_files(Path(root)))
        beside, _ = read_place(root, f"{folder}/")
        notes = [
            one
            for one in beside
            if isinstance(one.document, Note) and one.document.of == found.document.digest
        ]
    if isinstance(found.document, Note):
        raise ManifestError(f"{given}: is a note about a result, and no result.", file=given)
    return Entry(result=found.result, found=[found], notes=notes)


def _root(place: str) -> str:
    return (plain_url(place) if is_url(place) else str(Path(place).expanduser())).rstrip("/")


def local_files(folder: Path) -> dict[str, str]:
    """Return the files of results in a folder, by their paths there; their hashes are left empty.

    Raises NotFoundError if there is no such folder.
    """
    if not folder.is_dir():
        raise NotFoundError(f"{folder}: there is no such folder of results.")
    found = [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*.json"))]
    found = [path for path in found if _PATH.fullmatch(path)]
    signed = (f"{path}{SIGNATURE_SUFFIX}" for path in found)
    return dict.fromkeys([*found, *(path for path in signed if (folder / path).is_file())], "")


def _remote_listing(root: str) -> _Listing:
    where = f"{root}/{LISTING_FILE}"
    try:
        return parse_listing(read_small(where, LARGEST_RESULT), where)
    except NotFoundError as error:
        raise NotFoundError(
            f"{clause(error)}; a server or bucket with results has this file, which orlog results add and "
            "orlog results index write."
        ) from error


def parse_listing(data: bytes, where: str) -> _Listing:
    """Return what `results.json` says; a ManifestError that names file and field if it is malformed."""
    try:
        body = parse_json(data, 10 * MOST_FILES)
        refuse_newer(body, {"results_version": 1}, where)
        return convert_json(body, _Listing)
    except FormatVersionError:
        raise
    except ValueError as error:
        raise ManifestError(f"{where}: {clause(error)}.", file=where) from error


def _read_found(root: str, path: str, listed: Mapping[str, str] | None) -> Found:
    """Return one document, with its signers; `listed` is None where nobody knows what else is there."""
    data = _read(root, path, listed, LARGEST_RESULT)
    signed = f"{path}{SIGNATURE_SUFFIX}"
    signature = None
    if listed is None or signed in listed:
        try:
            signature = _read(root, signed, listed, LARGEST_SIGNATURE)
        except NotFoundError:
            if listed is not None:
                raise
    where = f"{root}/{path}"
    document = parse_document(data, where)
    return Found(
        place=root,
        path=path,
        document=document,
        signers=_checked_signers(data, signature, document.signed_by, where),
    )


def _read(root: str, path: str, listed: Mapping[str, str] | None, largest: int) -> bytes:
    """Return a file, of at most `largest` bytes, that has the SHA-256 that was listed."""
    where = f"{root}/{path}"
    if is_url(root):
        data = read_small(where, largest)
        expected, found = (listed or {}).get(path), hashlib.sha256(data).hexdigest()
        if expected not in (None, found):
            raise IntegrityError(
                f"{where}: {LISTING_FILE} there says another SHA-256 ({expected[:12]}..), so one of them was "
                "changed; tell who keeps this place.",
                file=where,
                expected=expected,
                found=found,
            )
        return data
    try:
        if Path(where).is_symlink():  # which may lead anywhere
            raise ManifestError(f"{where}: is a link; put the file itself there.", file=where)
        with Path(where).open("rb") as file:
            data = file.read(largest + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"{where}: there is no such file.") from error
    except OSError as error:
        if isinstance(error, OrlogError):
            raise
        raise StorageError(
            f"{where}: cannot be read: {error.strerror}.", errno=error.errno
        ) from error
    if len(data) > largest:
        raise ManifestError(f"{where}: too large: more than {largest} bytes.", file=where)
    return data


def _checked_signers(
    data: bytes, signature: bytes | None, stated: str, where: str
) -> frozenset[str] | None:
    """Return whose signatures of a file are right, which all must be; None if they cannot be checked here."""
    if signature is None:
        if stated:
            raise SignatureError(
                f"{where}: signed_by: says {stated}, but no {SIGNATURE_SUFFIX} file is beside it.",
                expected=stated,
                found="none",
            )
        return frozenset()
    named = signers(signature, f"{where}{SIGNATURE_SUFFIX}")
    if stated not in named:
        raise SignatureError(
            f"{where}: signed_by: says {stated or 'nobody'}, but it is signed by "
            f"{' and '.join(sorted(named))}.",
            expected=stated,
            found=" and ".join(sorted(named)),
        )
    try:
        for key in sorted(named):
            check_signature(data, "result", signature, [key], where)
    except MissingExtraError:
        return None
    return named


def add_documents(
    to: str,
    documents: Mapping[str, Document],
    *,
    key_file: Path | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Add documents to a place by their paths there, each signed if there is a key; `results.json` comes last.

    Raises ManifestError if a document does not agree, or has not its digest; VersionExistsError if something else
    lies at a path; StorageError if the place cannot be written.
    """
    files: dict[str, bytes] = {}
    for path, document in documents.items():
        data = document_bytes(document)
        parse_document(data, path)
        if key_file is not None:  # first, so that no result is seen without its signature
            files[f"{path}{SIGNATURE_SUFFIX}"] = sign(data, "result", key_file)
        files[path] = data
    target = open_target(to)
    folder = target.root if isinstance(target, FolderTarget) else None

    def changes() -> list[Change]:
        before, tag = target.read(LISTING_FILE, LARGEST_RESULT)
        if folder is not None:
            listed = _hashes(folder) if folder.is_dir() else {}
        else:
            listed = {} if before is None else parse_listing(before, f"{to}/{LISTING_FILE}").files
        made = []
        for path, data in files.items():
            there, _ = target.read(path, LARGEST_RESULT)
            if there is None:
                made.append(Change(path, data, ""))
            elif there != data:
                raise VersionExistsError(
                    f"{to}/{path}: something else is there, and is left as it is."
                )
        sums = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
        after = _listing_bytes({**listed, **sums})
        return [*made, *([] if after == before else [Change(LISTING_FILE, after, tag)])]

    with target.sole_index_writer(on_wait):
        apply_changes(target, changes, "nothing was added")


def write_listing(folder: Path) -> int:
    """Write `results.json` of a folder anew, from what is there; return the number of files."""
    count = len(local_files(folder))
    add_documents(str(folder), {})
    return count


def stale_listing(folder: Path) -> str:
    """Return how `results.json` of a folder differs from what is there, in words; empty if it does not."""
    path = folder / LISTING_FILE
    if not path.is_file():
        return f"there is no {LISTING_FILE}, which a web server needs; run: orlog results index {folder}"
    said, there = parse_listing(path.read_bytes(), str(path)).files, _hashes(folder)
    differing = [one for one in sorted({*said, *there}) if said.get(one) != there.get(one)]
    if not differing:
        return ""
    return (
        f"{LISTING_FILE} is not up to date about {counted(len(differing), 'file')}, such as {differing[0]}; "
        f"run: orlog results index {folder}"
    )


def _hashes(folder: Path) -> dict[str, str]:
    return {
        path: hashlib.sha256((folder / path).read_bytes()).hexdigest()
        for path in local_files(folder)
    }


def _listing_bytes(files: Mapping[str, str]) -> bytes:
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(files[path])}" for path in sorted(files))
    return f'{{"files": {{\n{lines}\n }},\n "results_version": 1}}\n'.encode()


def signed_document(document: Document, key_file: Path | None) -> Document:
    """Return a new document that says who signs it, with its digest."""
    key = "" if key_file is None else public_key(key_file)
    found: Document = with_digest(msgspec.structs.replace(document, signed_by=key))
    return found
