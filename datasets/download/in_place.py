"""Opens versions where they are: in a bucket or on a web server, without downloading them first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from orlog.base.files import link_or_copy, make_folder, sole_access, storage_errors, write_durably
from orlog.datasets.download.http import Patience
from orlog.datasets.download.objects import TransferOptions, fetch_objects
from orlog.datasets.download.ranges import RangeSource
from orlog.datasets.download.sources import ForeignFileSource, find_source, newest_at_url
from orlog.datasets.home.in_place import note_use, place_of
from orlog.datasets.home.origin import Source
from orlog.datasets.home.registries import read_registries
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.chunk_hashes import metadata_objects
from orlog.datasets.store.in_place import Elsewhere
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.manifest import MANIFEST_FILE
from orlog.manifests.names import DatasetName, is_url, parse_name


def open_in_place(
    name: str | DatasetName, mirrors: Sequence[str] = (), *, patience: Patience = Patience()
) -> Dataset:
    """Return a version that is read where it is: each chunk is fetched when it is needed, and checked.

    The manifest, its signature where the registry has keys, and all metadata are fetched and checked first.

    Args:
        name: A name that a registry offers; or the URL of a version, or of a dataset in a registry, of which
            the newest version is taken.
        mirrors: Other places with the same files.
        patience: How long each place is tried.

    Raises:
        NotFoundError: no registry offers it.
        SchemaError: it is a third-party file, or in the container hdf5, of which no part can be checked.
        IntegrityError: metadata are damaged; SignatureError: the signature is wrong.
        TransferError: no place answers.
        StorageError: the disk is full.
    """
    if isinstance(name, str) and is_url(name):
        source: Source | ForeignFileSource = newest_at_url(name, mirrors, patience=patience)
    else:
        wanted = parse_name(name) if isinstance(name, str) else name
        source = find_source(wanted, mirrors, patience=patience)
    if isinstance(source, ForeignFileSource):
        raise SchemaError(
            f"{source.name}@{source.version} is made of third-party files, which are imported whole; run: "
            f"orlog download {source.name}"
        )
    return open_source(source, patience)


def is_offered_in_place(registry: str) -> bool:
    """Return whether versions of a registry are read where they are."""
    return any(one.in_place for one in read_registries() if one.name == registry)


def open_source(source: Source, patience: Patience = Patience()) -> Dataset:
    """Return a version that is read where it is; raises as `open_in_place`."""
    manifest = source.manifest
    if manifest.container != "zarr":
        raise SchemaError(
            f"{manifest.name}@{manifest.version}: its container is {manifest.container}, a file that is "
            f"downloaded whole; run: orlog download {manifest.name}, or publish it in the container zarr "
            "(orlog convert)."
        )
    folder = place_of(manifest)
    with storage_errors(folder):
        make_folder(folder.parent)
    origin = RangeSource(
        mirrors=source.mirrors,
        sizes={item.path: item.size_bytes for item in manifest.objects},
        patience=patience,
    )
    objects = {item.path: item for item in manifest.objects}

    def bring() -> None:
        if not (folder / MANIFEST_FILE).is_file():
            _fetch_metadata(source, patience)
        # A query may be a secret, which is kept in no file.
        note_use(folder, source.registry, source.mirrors[-1].partition("?")[0])

    def opened() -> Dataset:
        return Dataset(folder, manifest, Elsewhere(source=origin, folder=folder, objects=objects))

    with sole_access(folder):
        bring()
    with contextlib.suppress(NotFoundError, FileNotFoundError):
        return opened()
    with sole_access(folder):  # a collection removed it in between, which it cannot now
        bring()
        return opened()


def _fetch_metadata(source: Source, patience: Patience) -> None:
    """Fetch all objects but shards into the folder of a version; its manifest comes last."""
    folder = place_of(source.manifest)
    kept = folder.with_name(f".{folder.name}.download")
    wanted = metadata_objects(source.manifest)
    fetch_objects(source, wanted, kept, TransferOptions(patience=patience))
    with storage_errors(folder):
        for item in wanted:
            make_folder((folder / item.path).parent)
            (folder / item.path).unlink(missing_ok=True)
            link_or_copy(kept / item.sha256, folder / item.path)
        for item in {one.sha256: one for one in wanted}.values():
            (kept / item.sha256).unlink(missing_ok=True)
        kept.rmdir()
        unfinished = folder / f".{MANIFEST_FILE}"
        write_durably(unfinished, source.manifest.to_json().encode())
        unfinished.replace(folder / MANIFEST_FILE)
