"""Opens a publishing target by its address: a folder or a URL."""

from __future__ import annotations

from pathlib import Path

from orlog.base.files import absolute_path
from orlog.datasets.download.http import missing_backend
from orlog.datasets.publish.targets import FolderTarget, RemoteTarget, Target
from orlog.errors import NotFoundError, StorageError, clause
from orlog.manifests.names import is_url


def open_target(target: str) -> Target:
    """Return the target that a folder or URL names.

    Raises MissingExtraError if the package that writes such URLs is not installed; NotFoundError if nothing
    writes URLs of that kind, or there is no such repository; StorageError if it is a web server, or cannot be
    reached.
    """
    if not is_url(target):
        return FolderTarget(absolute_path(target))
    scheme = target.partition("://")[0]
    if scheme in ("http", "https"):
        # Without a password and the query of a signed URL.
        place = target.partition("://")[2].partition("?")[0].rpartition("@")[2]
        raise StorageError(
            f"{scheme}://{place}: cannot publish to a web server; publish to the folder or bucket it serves."
        )
    url = target.rstrip("/")
    if not is_url(url):
        raise NotFoundError(f"{target}: names no folder or bucket.")
    import fsspec

    try:
        # A fresh one: a cached one may hold old credentials, servers and listings.
        system, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:
        raise missing_backend(url, error) from error
    except Exception as error:  # each backend of fsspec has its own errors
        raise NotFoundError(f"{target}: cannot be opened: {clause(error)}.") from error
    protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    if "file" in protocols:
        return FolderTarget(Path(root))
    if "s3" in protocols:
        from orlog.datasets.publish.bucket import BucketTarget

        return BucketTarget(system, root, url)
    if "hf" in protocols and not root.startswith("buckets/"):
        from orlog.datasets.publish.hub import HubTarget

        return HubTarget(system, root, url)
    return RemoteTarget(system, root, url)
