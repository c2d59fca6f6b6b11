"""A registry in a repository of the Hugging Face Hub, which is written by commits.

    1. add `.publishing`, which claims the version              one commit
    2. add objects                                              one commit per 200 files or 256 MiB
    3. add manifest.json and its signature, remove the claim    one commit
    4. replace index.json and its signature                     one commit
    5. add the dataset card and its picture                     one commit

A change that depends on what was read names the commit that was read as its parent; the Hub refuses
it once there is a newer commit. Commits are few, since the Hub limits how many are made per hour.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orlog.datasets.publish.targets import (
    Change,
    RemoteTarget,
    check_size,
    checked_blocks,
    retried,
    target_errors,
)
from orlog.errors import NotFoundError, StorageError, clause
from orlog.manifests.manifest import StoredObject
from orlog.manifests.names import counted

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile

BLOCK_BYTES = 2**20
BATCH_FILES = 200
BATCH_BYTES = 2**28
LARGEST_HELD = 2**24
CONFLICTS = (409, 412)


class HubTarget(RemoteTarget):
    """A registry in a repository of the Hub; a file's tag is the commit it was read from."""

    def __init__(self, system: Any, root: str, url: str) -> None:
        super().__init__(system, root, url)
        from huggingface_hub import HfApi

        with _hub_errors(url):
            where = system.resolve_path(root)
        self._folder = where.path_in_repo
        kind = "" if where.repo_type == "model" else f"{where.repo_type}s/"
        self._root = f"{kind}{where.repo_id}"
        self._api = HfApi(endpoint=system.endpoint, token=system.token)
        self._repository = {"repo_id": where.repo_id, "repo_type": where.repo_type}
        self._branch = where.revision
        # The Hub shows the README.md of the repository itself, not one in a folder.
        self.shows_cards = where.repo_type == "dataset" and not self._folder

    def read(self, path: str, largest: int) -> tuple[bytes | None, str]:
        """Read a file as it is in the newest commit."""
        from huggingface_hub.errors import EntryNotFoundError

        with _hub_errors(f"{self.url}/{path}"):
            newest = self._newest()
            try:
                # Without blocks, so that the file is not looked up in cached listings.
                with self.system.open(
                    f"{self._root}/{self._path(path)}", "rb", block_size=0, revision=newest
                ) as file:
                    data = file.read(largest + 1)
            except (FileNotFoundError, EntryNotFoundError):
                return None, newest
        check_size(len(data), largest, f"{self.url}/{path}")
        return data, newest

    def apply(self, changes: Sequence[Change]) -> bool:
        """Make all changes in one commit."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        tags = {change.tag for change in changes} - {None}
        if len(tags) > 1:  # the repository changed between two reads
            return False
        operations: list[CommitOperationAdd | CommitOperationDelete] = []
        with _hub_errors(f"{self.url}/{changes[-1].path}"):
            for change in changes:
                path = self._path(change.path)
                if change.data is not None:
                    operations.append(CommitOperationAdd(path, change.data))
                elif self._api.get_paths_info(
                    paths=[path], revision=self._branch, **self._repository
                ):
                    operations.append(CommitOperationDelete(path))
            names = ", ".join(change.path for change in changes)
            return not operations or self._commit(operations, names, parent=next(iter(tags), None))

    def send_objects(
        self,
        place: str,
        objects: Iterable[StoredObject],
        folder: Path,
        jobs: int,
        progress: Callable[[int, int], None],
    ) -> None:
        """Commit the objects that are missing, then check that the Hub has all of them."""
        missing = self._missing(place, objects, folder)
        total = sum(item.size_bytes for item in objects)
        done = total - sum(item.size_bytes for item in missing)
        progress(done, total)
        for batch in _batches(missing):
            where = f"{self.url}/{place}"
            with _hub_errors(where):
                retried(functools.partial(self._send, place, batch, folder, jobs), where)
            done += sum(item.size_bytes for item in batch)
            progress(done, total)
        lost = self._missing(place, missing, folder) if missing else []
        if lost:
            raise StorageError(
                f"{self.url}/{place}: {lost[0].path} was sent, and the Hub does not have it as it was "
                "sent; if a .gitignore of the repository names it, change that, then run the same "
                "command again."
            )

    def _send(self, place: str, batch: Sequence[StoredObject], folder: Path, jobs: int) -> bool:
        from huggingface_hub import CommitOperationAdd

        operations = []
        for item in batch:
            source = folder / item.path
            blocks = checked_blocks(source, item, BLOCK_BYTES)
            # A file that is not held in memory could change before it is sent; the Hub then
            # notices, since it compares the SHA-256.
            content: bytes | Path = source
            if item.size_bytes <= LARGEST_HELD:
                content = b"".join(blocks)
            else:
                for _ in blocks:
                    pass
            operations.append(CommitOperationAdd(self._path(f"{place}/{item.path}"), content))
        return self._commit(operations, f"{place}: {counted(len(batch), 'file')}", jobs=jobs)

    def _commit(
        self, operations: Sequence[Any], message: str, *, parent: str | None = None, jobs: int = 1
    ) -> bool:
        """Commit; return False if another commit got in first."""
        from huggingface_hub.errors import HfHubHTTPError

        try:
            with _no_bars():
                self._api.create_commit(
                    operations=operations,
                    commit_message=f"orlog publish: {message}",
                    revision=self._branch,
                    parent_commit=parent,
                    num_threads=jobs,
                    **self._repository,
                )
        except HfHubHTTPError as error:
            if _status(error) not in CONFLICTS:
                raise
            return False
        return True

    def _missing(
        self, place: str, objects: Iterable[StoredObject], folder: Path
    ) -> list[StoredObject]:
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        with _hub_errors(f"{self.url}/{place}"):
            try:
                listed = self._api.list_repo_tree(
                    path_in_repo=self._path(place),
                    recursive=True,
                    revision=self._branch,
                    **self._repository,
                )
                held = {one.path: one for one in listed if isinstance(one, RepoFile)}
            except EntryNotFoundError:
                held = {}
        return [
            item
            for item in objects
            if not _is_same(held.get(self._path(f"{place}/{item.path}")), item, folder / item.path)
        ]

    def _newest(self) -> str:
        info = self._api.repo_info(revision=self._branch, **self._repository)
        return str(info.sha)

    def _path(self, path: str) -> str:
        return f"{self._folder}/{path}" if self._folder else path


def _is_same(held: RepoFile | None, item: StoredObject, source: Path) -> bool:
    """Return whether a file on the Hub has the bytes of an object, by the Hub's checksum."""
    if held is None or held.size != item.size_bytes:
        return False
    if held.lfs is not None:
        return bool(held.lfs.sha256 == item.sha256)
    digest = hashlib.sha1(b"blob %d\0" % item.size_bytes, usedforsecurity=False)
    for block in checked_blocks(source, item, BLOCK_BYTES):
        digest.update(block)
    return bool(held.blob_id == digest.hexdigest())


def _batches(objects: Iterable[StoredObject]) -> Iterator[list[StoredObject]]:
    """Yield objects in groups for one commit each."""
    batch: list[StoredObject] = []
    size = 0
    for item in objects:
        if batch and (len(batch) == BATCH_FILES or size + item.size_bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.size_bytes
    if batch:
        yield batch


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Hide the progress bars of huggingface_hub."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _status(error: HfHubHTTPError) -> int | None:
    return getattr(error.response, "status_code", None)


@contextlib.contextmanager
def _hub_errors(where: str) -> Iterator[None]:
    """Turn errors of the Hub into errors that say what to do."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    advice = "make it first, or give a token with access to it (hf auth login, or HF_TOKEN)"
    with target_errors(where):
        try:
            yield
        except RepositoryNotFoundError as error:
            raise NotFoundError(f"{where}: there is no such repository; {advice}.") from error
        except FileNotFoundError as error:
            raise NotFoundError(f"{where}: {clause(error)}; {advice}.") from error
        except HfHubHTTPError as error:
            if _status(error) in (401, 403):
                raise PermissionError(
                    f"the Hub refuses the token (HTTP {_status(error)})."
                ) from error
            raise
