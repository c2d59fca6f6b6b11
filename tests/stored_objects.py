"""What a folder of columns holds, as manifests list it, and damage to it."""

import os

from orlog.base.files import hash_file, list_files
from orlog.manifests.manifest import StoredObject


def make_objects(folder):
    """Return the objects of a folder that was just written, sorted by path."""
    return [
        StoredObject(path=path, size_bytes=file.stat().st_size, sha256=hash_file(file))
        for path, file in list_files(folder)
    ]


def change_unseen(path):
    """Change a file's bytes and put its size and times back, as far as a program can."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(path):
    """Change one bit of a file, and of no other that links to it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
