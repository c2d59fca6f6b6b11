"""Helpers for tests of publishing: what a registry holds, and children that are killed."""

import os
import signal
import sys
import warnings

from orlog.datasets.publish import targets
from orlog.errors import VersionExistsError
from orlog.manifests.index import index_from_json
from orlog.manifests.signatures import check_signature, signers

MINI = "pointmaze/umaze-mini-v1"
PLACE = f"{MINI}/1.0.0"
OWN_PLACE = f"{MINI}/1.0.9"  # a version that does not ship with orlog
SOME = "rewards/c.0"


def assert_signed(files, sign):
    """Assert that every index and manifest has a right signature by a key."""
    signed = [path for path in files if path.endswith(("index.json", "manifest.json"))]
    assert signed
    for path in signed:
        kind = "index" if path.endswith("index.json") else "manifest"
        trusted = signers(sign(b"", kind))
        check_signature(files[path], kind, files.get(f"{path}.sig"), trusted, path)


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def index_of(registry):
    return index_from_json((registry / "index.json").read_bytes(), "test")


def in_child(work, instant=0):
    """Start a fork that does the work, killed at one of its accesses to files; return its id.

    It ends with 0, with 17 where the version exists, or with the signal. No disk loses power here,
    so none is waited for.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no thread of ours runs here
        child = os.fork()
    if child:
        return child
    signal.alarm(600)  # whatever hangs is not waited for
    left = instant
    checked_blocks = targets.checked_blocks

    def access():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and "registry" in str(arguments[0]):
            access()

    def blocks_one_by_one(*arguments):
        for block in checked_blocks(*arguments):
            yield block
            access()

    os.fsync = lambda _: access()
    targets.checked_blocks = blocks_one_by_one
    targets.BLOCK_BYTES = 2**14  # more than a file's buffer, so half a file gets to the disk
    sys.addaudithook(hook)
    try:
        work()
    except VersionExistsError:
        os._exit(17)
    except BaseException as error:  # noqa: BLE001 (nothing may leave the child)
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    if instant < 0:
        os.write(-instant, b"%d" % (instant - left))
    os._exit(0)


def ending(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
