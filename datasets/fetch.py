"""Fetches a version by the URL of its folder in a registry, and checks every byte on the way in.

    https://data.example.org/lab/arm-v1/1.0.0/manifest.json     and the objects it lists beside it

The folder is laid out as a stored version is, so any static file server is a registry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orlog.datasets.home import datasets_folder, publish_new, unfinished_folder
from orlog.datasets.manifest import (
    LARGEST_MANIFEST,
    MANIFEST_FILE,
    Manifest,
    StoredObject,
    manifest_from_json,
    parse_json,
    read_manifest,
)
from orlog.datasets.storage import storage_errors, sync_folders, write_durably
from orlog.errors import IntegrityError, ManifestError, MissingExtraError, NotFoundError

__all__ = ["fetch_version", "is_url"]

BLOCK_BYTES = 2**20
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def is_url(name: str | Path) -> bool:
    """Return whether a URL is meant, and not a dataset's name or a path."""
    return isinstance(name, str) and _URL.match(name) is not None


def fetch_version(
    url: str, *, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Path:
    """Return the folder of the version at a URL, fetched first if it is not on this machine.

    It appears whole or not at all, each object with the size and SHA-256 that the manifest says.

    Args:
        url: URL of a version's folder, or of its manifest: https, file, s3 and whatever else
            fsspec reads.
        progress: Called with bytes done and bytes in all.

    Raises:
        NotFoundError: there is no manifest, or an object is missing.
        MissingExtraError: the package that reads such URLs is not installed.
        IntegrityError: bytes are not what the manifest says, or another version of the same name
            and number is here.
        StorageError: the disk is full.
    """
    base = url.rstrip("/").removesuffix(f"/{MANIFEST_FILE}")
    manifest = _read_remote_manifest(f"{base}/{MANIFEST_FILE}")
    destination = datasets_folder() / manifest.name / manifest.version
    if not _is_here(destination, manifest):
        with unfinished_folder(destination) as folder:
            if not _is_here(destination, manifest):
                done = 0
                for item in manifest.objects:
                    _fetch(f"{base}/{item.path}", folder / "store" / item.path, item)
                    done += item.size_bytes
                    progress(done, manifest.size_bytes)
                store = folder / "store"
                with storage_errors(store):
                    write_durably(store / MANIFEST_FILE, manifest.to_json().encode())
                    sync_folders(store)
                publish_new(store, destination)
    return destination


def _is_here(destination: Path, manifest: Manifest) -> bool:
    if not (destination / MANIFEST_FILE).is_file():
        return False
    here = read_manifest(destination / MANIFEST_FILE).digest
    if here != manifest.digest:
        raise IntegrityError(
            f"{manifest.name}@{manifest.version}: the URL offers {manifest.digest}, but {destination} "
            f"is {here}; a version never changes: ask who published it, or move the folder away",
            expected=here,
            found=manifest.digest,
        )
    return True


def _read_remote_manifest(url: str) -> Manifest:
    data = bytearray()
    with _open(url) as file:
        while len(data) <= LARGEST_MANIFEST and (block := _read(file, BLOCK_BYTES, url)):
            data += block
    if len(data) > LARGEST_MANIFEST:
        raise ManifestError(f"{url}: over {LARGEST_MANIFEST} bytes is too large for a manifest")
    try:
        body = parse_json(data.decode())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{url}: not the JSON of a manifest: {error}") from error
    return manifest_from_json(body, url)


def _fetch(url: str, path: Path, item: StoredObject) -> None:
    digest, size = hashlib.sha256(), 0
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.open("xb")
    with target, _open(url) as source:
        # One byte more than expected is asked for, so that a longer answer is seen and not stored.
        while block := _read(source, min(BLOCK_BYTES, item.size_bytes + 1 - size), url):
            size += len(block)
            digest.update(block)
            with storage_errors(path):
                target.write(block)
            if size > item.size_bytes:
                break
    found = digest.hexdigest()
    if (size, found) != (item.size_bytes, item.sha256):
        raise IntegrityError(
            f"{url}: expected {item.size_bytes} bytes with sha256 {item.sha256}, found "
            f"{'more' if size > item.size_bytes else f'{size} bytes with sha256 {found}'}; nothing "
            "was kept",
            file=item.path,
            expected=item.sha256,
            found=found,
        )


def _open(url: str) -> Any:
    """Open a URL for reading, with errors of ours."""
    import fsspec

    try:
        return fsspec.open(url, "rb", **_options(url)).open()
    except ImportError as error:
        raise MissingExtraError(
            f'{url}: {error}; for http and https run: pip install "orlog[remote]"', extra="remote"
        ) from error
    except Exception as error:  # each transport under fsspec has errors of its own
        raise NotFoundError(
            f"{url}: cannot be read: {str(error) or type(error).__name__}"
        ) from error


def _read(source: Any, size: int, url: str) -> bytes:
    try:
        return bytes(source.read(size))
    except Exception as error:  # each transport under fsspec has errors of its own
        raise NotFoundError(
            f"{url}: the transfer broke off: {str(error) or type(error).__name__}; nothing was kept, run "
            "the same command again"
        ) from error


def _options(url: str) -> dict[str, Any]:
    """Read http as a stream: servers without ranges serve too."""
    return {"block_size": 0} if url.startswith("http") else {}
