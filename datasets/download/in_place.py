"""Opens versions where they are: in a bucket or on a web server, without downloading them first."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from orlog.base.files import link_or_copy, make_folder, replace_file, sole_access, storage_errors
from orlog.datasets.download.http import Patience
from orlog.datasets.download.objects import TransferOptions, fetch_objects
from orlog.datasets.download.sources import ForeignFileSource, find_source, newest_at_url
from orlog.datasets.download.transfer import RangeSource
from orlog.datasets.home.garbage import erase
from orlog.datasets.home.in_place import clear_way, note_use, place_of
from orlog.datasets.home.records import Source
from orlog.datasets.home.registries import read_registries
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.store.chunk_hashes import lacks_chunk_hashes, metadata_objects
from orlog.datasets.store.in_place import Elsewhere
from orlog.datasets.store.verify import check_object
from orlog.errors import NotFoundError, SchemaError
from orlog.manifests.manifest import MANIFEST_FILE
from orlog.manifests.names import DatasetName, is_url, parse_name


def open_in_place(
    name: str | DatasetName,
    mirrors: Sequence[str] = (),
    *,
    whole_files: bool = False,
    patience: Patience = Patience(),
) -> Dataset:
    """Return a version that is read where it is: each chunk is fetched when it is needed, and checked.

    The manifest, its signature where the registry has keys, and all metadata are fetched and checked first.

    Args:
        name: A name that a registry offers; or the URL of a version, or of a dataset in a registry, of which
            the newest version is taken.
        mirrors: Other places with the same files.
        whole_files: Also open a version without hashes of its chunks, whose files are then fetched whole.
        patience: How long each place is tried.

    Raises:
        NotFoundError: no registry offers it.
        SchemaError: it is a third-party file, or in the container hdf5, of which no part can be checked; or it
            has no hashes of its chunks, and `whole_files` was not given.
        IntegrityError: metadata are damaged; SignatureError: the signature is wrong.
        TransferError: no place answers.
        StorageError: the disk is full.
    """
    if isinstance(name, str) and is_url(name):
        return open_source(
            newest_at_url(name, mirrors, patience=patience), patience, whole_files=whole_files
        )
    wanted = parse_name(name) if isinstance(name, str) else name
    source = find_source(wanted, mirrors, patience=patience)
    if isinstance(source, ForeignFileSource):
        raise SchemaError(
            f"{source.name}@{source.version} is made of third-party files, which are imported whole; run: "
            f"orlog download {source.name}"
        )
    return open_source(source, patience, whole_files=whole_files)


def is_offered_in_place(registry: str) -> bool:
    """Return whether versions of a registry are read where they are."""
    return any(one.in_place for one in read_registries() if one.name == registry)


def open_source(
    source: Source, patience: Patience = Patience(), *, whole_files: bool = False
) -> Dataset:
    """Return a version that is read where it is; raises as `open_in_place`."""
    manifest = source.manifest
    # A query may be a secret, which is kept in no file and shown to nobody.
    address = source.mirrors[-1].partition("?")[0]
    named = f"{manifest.name}@{manifest.version}"
    download = f"run: orlog download {manifest.name if source.registry else address}"
    if manifest.container != "zarr":
        raise SchemaError(
            f"{named}: its container is {manifest.container}, a file that is downloaded whole; {download}, or "
            "publish it in the container zarr (orlog save)."
        )
    allowed = any(one.whole_files for one in read_registries() if one.name == source.registry)
    if lacks_chunk_hashes(manifest) and not (whole_files or allowed):
        raise SchemaError(
            f"{named}: it has no hashes of its chunks, so no part of a file can be checked alone; {download}, or let "
            "its files be fetched whole (whole_files=True, orlog registry add --in-place --whole-files)."
        )
    folder = place_of(manifest)
    with storage_errors(folder):
        make_folder(folder.parent)
        clear_way(folder.parent, f".{folder.name}.lock")
    objects = {item.path: item for item in manifest.objects}
    sizes = {path: item.size_bytes for path, item in objects.items()}
    origin = RangeSource(mirrors=source.mirrors, sizes=sizes, patience=patience)

    def opened() -> Dataset:
        return Dataset(folder, manifest, Elsewhere(source=origin, folder=folder, objects=objects))

    with sole_access(folder):
        _bring_metadata(source, folder, patience)
        note_use(folder, source.registry, address)
    with contextlib.suppress(NotFoundError, FileNotFoundError):
        return opened()
    with sole_access(folder):  # a collection removed it in between, which it cannot now
        _bring_metadata(source, folder, patience)
        note_use(folder, source.registry, address)
        return opened()


def _bring_metadata(source: Source, folder: Path, patience: Patience) -> None:
    """Fetch what the folder of a version lacks of its metadata, or has damaged; its manifest comes last."""
    text = source.manifest.to_json().encode()
    kept = folder.with_name(f".{folder.name}.download")
    with storage_errors(folder):
        clear_way(folder.parent, f"{folder.name}/{MANIFEST_FILE}")
        objects = metadata_objects(source.manifest)
        if lacking := [item for item in objects if check_object(folder, item) is not None]:
            clear_way(kept.parent, f"{kept.name}/manifest")
            for path in kept.iterdir() if kept.exists() else ():
                clear_way(kept, path.name)
            fetch_objects(source, lacking, kept, TransferOptions(patience=patience))
            for item in lacking:
                clear_way(folder, item.path)
                make_folder((folder / item.path).parent)
                (folder / item.path).unlink(missing_ok=True)
                link_or_copy(kept / item.sha256, folder / item.path)
            erase(kept)
        with contextlib.suppress(OSError):
            if (folder / MANIFEST_FILE).read_bytes() == text:
                return
        replace_file(folder / MANIFEST_FILE, text)
