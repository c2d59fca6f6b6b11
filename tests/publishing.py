"""Helpers for tests of publishing: what a registry holds, and several who publish at once."""

import multiprocessing

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


def _exit_code(work):
    try:
        work()
    except VersionExistsError:
        raise SystemExit(17) from None


def at_once(*works):
    """Do each work in a fork, all at once; return how they ended: with 0, or with 17 where the version exists."""
    children = [multiprocessing.get_context("fork").Process(target=_exit_code, args=(work,)) for work in works]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode for child in children]
