"""Puts a stored version into a registry: a folder, an S3 bucket, or whatever fsspec can write.

    0. an audit of the data: what is wrong is not published, nor what has no hashes of its chunks
    1. objects, each checked against the manifest on its way
    2. manifest.json.sig, then manifest.json      from here on readers see the version
    3. index.json.sig, then index.json            from here on it is listed
    4. README.md, a dataset card                  only on the Hugging Face Hub (`card.py`)

So readers never see half a version, and running an interrupted call again continues it. A `.sig`
file also keeps the signatures of the file that is being replaced, so it is valid at every instant.
Two publishers of one version exclude each other before they send anything: in a folder by a file
lock, in a bucket by a file `.publishing` that only one can create. If their bytes differ, one of
them gets an error.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias

from orlog.datasets.audit.audit import audit as audit_dataset
from orlog.datasets.audit.findings import Audit, place_text
from orlog.datasets.download.http import secret_parts
from orlog.datasets.download.sources import BRIEF, read_index
from orlog.datasets.formats.formats import find_format
from orlog.datasets.home.folders import unless_deleted
from orlog.datasets.home.records import check_linked, check_unchanged
from orlog.datasets.home.registries import read_registries
from orlog.datasets.publish.card import publish_card
from orlog.datasets.publish.targets import Change, Target, open_target
from orlog.datasets.reading.finding import stored_folders
from orlog.datasets.reading.opening import Given, as_stored_folder
from orlog.datasets.store.chunk_hashes import lacks_chunk_hashes
from orlog.errors import (
    AuditError,
    InvalidNameError,
    OrlogError,
    SchemaError,
    SignatureError,
    StorageError,
    VersionExistsError,
)
from orlog.manifests.documents import convert_json
from orlog.manifests.index import INDEX_FILE, LARGEST_INDEX, ForeignEntry, Index, index_from_json
from orlog.manifests.manifest import (
    LARGEST_MANIFEST,
    MANIFEST_FILE,
    Manifest,
    manifest_from_text,
    not_a_version,
    read_manifest,
)
from orlog.manifests.names import newest_first, parse_name
from orlog.manifests.rebuilds import is_rebuild, rebuild_text
from orlog.manifests.signatures import (
    LARGEST_SIGNATURE,
    SIGNATURE_SUFFIX,
    SignedKind,
    add_signature,
    check_signature,
    signers,
)

MOST_NAMED = 3  # findings in a message

Sign: TypeAlias = Callable[[bytes, SignedKind], bytes]
"""Gives the bytes of a `.sig` file for the bytes of a file and its kind, "manifest" or "index"."""


def publish_dataset(
    folder: Given,
    target: str | Path,
    *,
    sign: Sign | None = None,
    trusted: Collection[str] = (),
    sign_existing: bool = False,
    audit: bool = True,
    hashes: bool = True,
    jobs: int = 8,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_audit: Callable[[int, int], None] = lambda _done, _total: None,
    on_wait: Callable[[], None] = lambda: None,
) -> str:
    """Put one stored version into a registry and return the URL of its folder there.

    Objects that are already there and known to be right are not sent again, so the same call
    continues where an interrupted one stopped. A published version never changes.

    Args:
        folder: Folder of a stored version, with its manifest; or a dataset or its name. Store a
            view with `save_dataset` first: what it leaves out must not be published with it.
        target: The registry: a folder, or a URL such as `s3://bucket/prefix` and
            `hf://datasets/USER/REPO`. Exclusive publishing needs a folder, a bucket with
            conditional writes, or the Hugging Face Hub; elsewhere let only one publish at a time.
        sign: Returns the signature of a file; required for a registry whose index is signed.
        trusted: Public keys of others who sign the same registry. The existing index is signed
            again only if it carries a valid signature by one of them or by your own key.
        sign_existing: Sign the existing index, with everything in it, whoever wrote it.
        audit: Whether the data are audited first, if the version is not in the registry yet. If
            not, the registry's index says so.
        hashes: Whether it must have hashes of its chunks, by which every part of it is checked where it is read
            in place, if it has files of more than 1 MiB and is not in the registry yet.
        jobs: Objects that are sent at a time.
        progress: Called with bytes done and bytes in all.
        on_audit: Called with steps audited and steps in all.
        on_wait: Called once if another process publishes into the same folder.

    Raises:
        SchemaError: it is the file of a view, or has no hashes of its chunks.
        ManifestError: the manifest in the folder, or the index or manifest of the registry, is
            malformed.
        AuditError: the audit found something wrong with the data; nothing was published.
        IntegrityError: a file in the folder is not what the manifest says; it was not published.
        VersionExistsError: the version exists with another digest: in the registry, in another
            registry that this machine knows and can reach, or on this machine; or somebody else
            has begun to publish it.
        SignatureError: the registry is signed and no `sign` was given, or its index is not signed
            by a trusted key.
        FormatVersionError: the index was written by a newer orlog.
        MissingExtraError: the package that writes such URLs is not installed.
        NotFoundError: nothing writes URLs of that kind.
        StorageError: the registry cannot be read or written, or is full.
    """
    folder = as_stored_folder(folder, stored_folders)
    if folder.is_file():
        raise SchemaError(not_a_version(folder))
    with unless_deleted(folder):
        manifest = read_manifest(folder / MANIFEST_FILE)
    check_unchanged(manifest)
    if is_rebuild(manifest):
        raise VersionExistsError(
            f"{manifest.name}@{manifest.version} is {rebuild_text(manifest)}, and in a registry "
            f"{manifest.name} means the recorded data; store this under a name of your own (orlog "
            "save), and publish that."
        )
    registry = open_target(str(target))
    _check_registries(manifest, registry.url)
    seal = None if sign is None else _Seal(sign, trusted, sign_existing)
    told_to_wait = functools.cache(on_wait)
    place = f"{manifest.name}/{manifest.version}"

    def manifest_changes() -> list[Change]:
        return _manifest_changes(registry, place, manifest, seal)

    # If the index cannot take this version, fail before anything is sent.
    _read_index(registry, seal).index.with_version(manifest)
    finished_audit = None
    is_new = _published(registry, place, manifest)[0] is None
    if hashes and is_new and lacks_chunk_hashes(manifest):
        raise SchemaError(
            f"{manifest.name}@{manifest.version} has no hashes of its chunks, by which each part of it is checked "
            f"where it is read in place. To publish a patch version that has them, run: orlog save {folder} "
            f"FOLDER --chunk-hashes, then: orlog publish FOLDER {target}. To publish it as it is, for downloads: "
            "hashes=False."
        )
    if audit and is_new:
        finished_audit = audit_dataset(folder, progress=on_audit)
        _refuse_wrong_data(finished_audit, folder)
    if manifest_changes():
        with registry.sole_publisher(place, manifest.digest, told_to_wait):
            if _published(registry, place, manifest)[0] is None:
                with unless_deleted(folder):
                    registry.send_objects(place, manifest.objects, folder, jobs, progress)
            registry.apply_all(manifest_changes, "everything except the manifest is published")
    progress(manifest.size_bytes, manifest.size_bytes)
    with registry.sole_index_writer(told_to_wait):
        registry.apply_all(
            lambda: _index_changes(registry, lambda index: index.with_version(manifest, is_audited=audit), seal),
            "the version is published but not listed",
        )
    if registry.shows_cards:
        listed = _read_index(registry, seal).index.datasets
        if manifest.version == newest_first(listed[manifest.name])[0]:
            publish_card(
                registry,
                folder,
                manifest,
                listed,
                lambda: finished_audit or (audit_dataset(folder, progress=on_audit) if audit else None),
            )
    return f"{registry.url}/{place}"


def foreign_file_entry(**values: str | int | Sequence[str] | None) -> ForeignEntry:
    """Return an index entry for a file from its fields; None stands for an unknown value.

    Raises ValueError if a value makes no sense, or a field does not exist.
    """
    return convert_json(values, ForeignEntry)


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
        raise InvalidNameError(f"{name}: give the version of the file, such as {wanted.name}@1.0.0.")
    find_format(entry.format, name)
    for url in (url for file in entry.each for url in (file.url, *file.mirrors)):
        plain, _, query = url.partition("?")
        if secret_parts(query):  # whoever may read the registry reads its index
            raise ValueError(
                f"{plain}: leave out what follows the ? in this URL: it may be a secret, and the registry would show "
                f'it. Who downloads the file gives it instead: orlog download {name} --mirror "{plain}?.."'
            )
    check_linked(wanted.name, wanted.version, entry)
    registry = open_target(target)
    seal = None if sign is None else _Seal(sign, trusted, sign_existing)
    with registry.sole_index_writer(on_wait):
        registry.apply_all(
            lambda: _index_changes(
                registry, lambda index: index.with_foreign(wanted.name, wanted.version, entry), seal
            ),
            "its index is unchanged",
        )
    return registry.url


def _refuse_wrong_data(finished_audit: Audit, folder: Path) -> None:
    wrong = [error for error in finished_audit.of("error") if error.check != "damage"]
    if wrong:
        places = "; ".join(f"{error.column} ({place_text(error)}): {error.text}" for error in wrong[:MOST_NAMED])
        more = f"; and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise AuditError(
            f"{finished_audit.name}@{finished_audit.version}: the audit found errors in its data, so it is "
            f"not published: {places}{more}. To see all, run: orlog audit {folder} (to publish it "
            "nevertheless: audit=False)."
        )


def _check_registries(manifest: Manifest, target: str) -> None:
    """Refuse a version that another registry known to this machine lists with other bytes."""
    for registry in read_registries():
        if target in (registry.url, f"file://{registry.url}"):
            continue
        try:
            index, _ = read_index(registry, BRIEF)
        except OrlogError:
            continue
        listed = index.entry(manifest.name, manifest.version)
        if listed is not None and listed.digest != manifest.digest:
            raise VersionExistsError(
                f"{manifest.name}@{manifest.version}: this is {manifest.digest}, but the registry "
                f"{registry.name} ({registry.url}) has it as {listed.digest}; a version never "
                "changes: publish this one under another version (orlog save)."
            )


class _Seal:
    """Signs files, and knows which other keys are trusted."""

    def __init__(self, sign: Sign, trusted: Collection[str], sign_existing: bool) -> None:
        self.sign = sign
        self.sign_existing = sign_existing
        self.keys = frozenset({*trusted, *signers(sign(b"", "manifest"))})

    def is_right(self, data: bytes, kind: SignedKind, signature: bytes | None) -> bool:
        """Return whether a signature is valid and by a trusted key."""
        try:
            check_signature(data, kind, signature, self.keys, "")
        except SignatureError:
            return False
        return True


def _published(registry: Target, place: str, manifest: Manifest) -> tuple[bytes | None, str]:
    path = f"{place}/{MANIFEST_FILE}"
    data, tag = registry.read(path, LARGEST_MANIFEST)
    if data is not None:
        there = manifest_from_text(data, f"{registry.url}/{path}").digest
        if there != manifest.digest:
            raise VersionExistsError(
                f"{manifest.name}@{manifest.version}: {registry.url} has it as {there}, this is "
                f"{manifest.digest}; a version never changes: publish it under a new version."
            )
    return data, tag


def _manifest_changes(registry: Target, place: str, manifest: Manifest, seal: _Seal | None) -> list[Change]:
    there, tag = _published(registry, place, manifest)
    path = f"{place}/{MANIFEST_FILE}"
    data = manifest.to_json().encode() if there is None else there
    old, old_tag = registry.read(path + SIGNATURE_SUFFIX, LARGEST_SIGNATURE)
    changes = []
    if seal is not None and not seal.is_right(data, "manifest", old):
        signature = add_signature(seal.sign(data, "manifest"), old)
        changes.append(Change(path + SIGNATURE_SUFFIX, signature, old_tag))
    if there is None:
        if seal is None and old is not None:  # for other bytes, by a publisher that never finished
            changes.append(Change(path + SIGNATURE_SUFFIX, None))
        changes += [Change(path, data, tag), *registry.closing_changes(place)]
    return changes


@dataclasses.dataclass(frozen=True)
class _IndexThere:
    """The existing index, its signatures, and whether one of them is by a trusted key."""

    index: Index
    data: bytes | None
    tag: str
    signature: bytes | None
    signature_tag: str
    is_signed: bool


def _read_index(registry: Target, seal: _Seal | None) -> _IndexThere:
    where = f"{registry.url}/{INDEX_FILE}"
    data, tag = registry.read(INDEX_FILE, LARGEST_INDEX)
    # Signatures are written before the index and read after it, so they cover the index just read.
    signature, signature_tag = registry.read(INDEX_FILE + SIGNATURE_SUFFIX, LARGEST_SIGNATURE)
    if seal is None and signature is not None:
        raise SignatureError(
            f"{registry.url}: its index is signed, and readers would refuse it without a signature; publish with sign=."
        )
    index = Index() if data is None else index_from_json(data, where)
    is_signed = seal is not None and data is not None and seal.is_right(data, "index", signature)
    lists_any = bool(index.datasets or index.foreign)
    if seal is not None and lists_any and not (is_signed or seal.sign_existing):
        raise SignatureError(
            f"{where}: the existing index has no valid signature by "
            f"{' or '.join(sorted(seal.keys))}, and signing it would vouch for everything it lists. "
            "If another key signs this registry, name it in trusted=; only if you know that every "
            "entry is right, publish with sign_existing=True."
        )
    return _IndexThere(index, data, tag, signature, signature_tag, is_signed)


def _index_changes(registry: Target, change: Callable[[Index], Index], seal: _Seal | None) -> list[Change]:
    there = _read_index(registry, seal)
    data, new = there.data, change(there.index)
    changed = data if data is not None and new is there.index else new.to_json()
    if len(changed) > LARGEST_INDEX:
        raise StorageError(
            f"{registry.url}/{INDEX_FILE}: would have over {LARGEST_INDEX} bytes; start another registry."
        )
    changes = []
    if seal is not None and not (there.is_signed and changed == data):
        # Until the new index is written, the old one stays, so its signatures are kept as well.
        signature = there.signature
        if data is not None and not there.is_signed:
            signature = add_signature(seal.sign(data, "index"), signature)
        signature = add_signature(seal.sign(changed, "index"), signature)
        changes.append(Change(INDEX_FILE + SIGNATURE_SUFFIX, signature, there.signature_tag))
    if changed != data:
        changes.append(Change(INDEX_FILE, changed, there.tag))
    return changes
