"""A disk that loses power: it repeats the calls of a command, and shows what could be left after any of them.

A power cut may lose what was written to a file and not synced, and each name that was made, moved or
removed in a folder that was not synced afterwards. Changes of one folder are lost from the last one
backwards, and so are writes to one file; otherwise anything may survive without anything else. A move
between two folders happens in both or in none, as journals of file systems hold it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.programs import run_program

TRACED = (
    "openat,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,fsync,fdatasync,"
    "unlink,unlinkat,rmdir,write,writev,pwrite64,pwritev,ftruncate,truncate,lseek,sendfile,copy_file_range,"
    "fallocate"
)
STRACE = ("strace", "-f", "-y", "-qq", "-xx", "-s", "268435456", "--seccomp-bpf", "-e", f"trace={TRACED}")
BYTES = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
DESCRIPTOR = re.compile(r"(-?\d+)<((?:\\x[0-9a-f]{2})*)>")
SYNCS = {"fsync", "fdatasync"}
SURVIVALS = ("least", "names", "data")


def can_trace():
    """Whether strace is here, and allowed to look at processes."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run([*STRACE, "-o", os.devnull, "true"], check=False).returncode == 0


@dataclasses.dataclass(eq=False, slots=True)
class File:
    """A file: what was on disk first, and each write since, of which the first `synced` are on disk."""

    first: bytes = b""
    writes: list[tuple[int, bytes | None]] = dataclasses.field(default_factory=list)
    synced: int = 0

    def content(self, count=None):
        """Return the content after so many writes, or after all."""
        data = bytearray(self.first)
        for place, piece in self.writes[:count]:
            if piece is None:
                del data[place:]
                data.extend(bytes(place - len(data)))
            else:
                data.extend(bytes(max(0, place - len(data))))
                data[place : place + len(piece)] = piece
        return bytes(data)


@dataclasses.dataclass(eq=False, slots=True)
class Folder:
    """A folder: what lay in it first; changes are kept by the disk."""

    first: dict[str, Any] = dataclasses.field(default_factory=dict)
    names: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False, slots=True)
class Change:
    """What became of names in one or two folders at once; None where a name is gone."""

    names: list[tuple[Folder, str, Any]]
    synced: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call of the system: its name, paths and bytes in it, the files it was given, and its result."""

    name: str
    text: str
    strings: list[bytes]
    files: list[tuple[int, Path]]
    result: int
    result_path: Path | None


class Disk:
    """The folder of a command, as calls change it."""

    def __init__(self, root):
        """Take what lies in a folder as being on disk."""
        self.root_path = root
        self.root = _read(root)
        self.changes = []
        self.files = []
        self._places = {}

    def find(self, path):
        """Return the file or folder that has a path now, or None."""
        if not path.is_relative_to(self.root_path):
            return None
        node = self.root
        for part in path.relative_to(self.root_path).parts:
            node = node.names.get(part) if isinstance(node, Folder) else None
        return node

    def run(self, calls):
        """Take calls, in order; return the disk."""
        for call in calls:
            self._take(call)
        return self

    def sync(self, path):
        """Sync a file or folder."""
        node = self.find(path)
        if isinstance(node, File):
            node.synced = len(node.writes)
        elif isinstance(node, Folder):
            self._settle({id(node)}, len(self.changes))

    def _settle(self, folders, end):
        # What was changed before in a folder that a synced change touches is on disk as well.
        for change in reversed(self.changes[:end]):
            touched = {id(folder) for folder, _, _ in change.names}
            if touched & folders:
                change.synced = True
                folders |= touched

    def _take(self, call):
        name, files = call.name, call.files
        if name in SYNCS:
            self.sync(files[0][1])
        elif name in ("openat", "creat"):
            self._open(call)
        elif name == "lseek":
            self._places[files[0]] = call.result
        elif name in ("write", "writev", "pwrite64", "pwritev"):
            self._write(call, b"".join(call.strings))
        elif name in ("sendfile", "copy_file_range"):
            target, source = files[:2] if name == "sendfile" else files[:2][::-1]
            self._copy(source, target, call)
        elif name in ("ftruncate", "truncate"):
            path = files[0][1] if files else self._path(call.strings[0])
            node = self.find(path)
            if isinstance(node, File):
                node.writes.append((int(call.text.rpartition(",")[2].strip(" )")), None))
        elif name == "fallocate":
            raise AssertionError("fallocate is not repeated by this disk; add it")
        else:
            self._rename(call)

    def _open(self, call):
        if call.result_path is None or not re.search(r"O_WRONLY|O_RDWR|O_CREAT", call.text):
            return
        key = (call.result, call.result_path)
        node = self.find(call.result_path)
        parent = self.find(call.result_path.parent)
        if node is None and isinstance(parent, Folder) and "O_CREAT" in call.text:
            node = File()
            self.files.append(node)
            self._change((parent, call.result_path.name, node))
        if isinstance(node, File):
            if "O_TRUNC" in call.text and node.content():
                node.writes.append((0, None))
            self._places[key] = len(node.content()) if "O_APPEND" in call.text else 0

    def _write(self, call, data):
        key = call.files[0]
        node = self.find(key[1])
        if not isinstance(node, File):
            return
        data = data[: call.result]
        if call.name.startswith("p"):
            node.writes.append((int(call.text.rpartition(",")[2].strip(" )")), data))
            return
        place = self._places.get(key, 0)
        node.writes.append((place, data))
        self._places[key] = place + len(data)

    def _copy(self, source, target, call):
        node = self.find(target[1])
        if not isinstance(node, File) or not call.result:
            return
        found = self.find(source[1])
        content = found.content() if isinstance(found, File) else source[1].read_bytes()
        given = re.search(r"\[(\d+)\]", call.text)
        start = int(given[1]) if given else self._places.get(source, 0)
        place = self._places.get(target, 0)
        node.writes.append((place, content[start : start + call.result]))
        self._places[target] = place + call.result
        self._places[source] = start + call.result

    def _path(self, text, folder=None):
        return Path(os.path.normpath((folder or self.root_path) / os.fsdecode(text)))

    def _rename(self, call):
        folders = [path for _, path in call.files] or [self.root_path]
        paths = [self._path(text, folders[min(number, len(folders) - 1)]) for number, text in enumerate(call.strings)]
        if call.name.startswith("symlink"):
            paths = paths[1:]
        places = [(self.find(path.parent), path.name) for path in paths]
        if not all(isinstance(folder, Folder) for folder, _ in places):
            return
        nodes = [self.find(path) for path in paths]
        if call.name.startswith("mkdir"):
            self._change((*places[0], Folder()))
        elif call.name.startswith("symlink"):
            self._change((*places[0], os.fsdecode(call.strings[0])))
        elif call.name.startswith("link"):
            self._change((*places[1], nodes[0]))
        elif call.name.startswith("rename"):
            swapped = "RENAME_EXCHANGE" in call.text
            self._change((*places[0], nodes[1] if swapped else None), (*places[1], nodes[0]))
        else:
            self._change((*places[0], None))

    def _change(self, *names):
        self.changes.append(Change(list(names)))
        _apply(self.changes[-1], "names")

    def survivors(self, survival, rng):
        """Return what is on disk after a power cut now, as folders whose `first` holds it.

        Args:
            survival: `least`: nothing but what was synced. `all`: everything. `names`: all names, no data
                but those that were synced. `data`: all data, no names but those that were synced. `some`:
                anything in between, by chance.
            rng: Chooses among what may survive.
        """
        kept = [change.synced or survival in ("names", "all") for change in self.changes]
        if survival == "some":
            lost = set()
            for number, change in enumerate(self.changes):
                touched = {id(folder) for folder, _, _ in change.names}
                kept[number] = change.synced or (not touched & lost and rng.random() < 0.8)
                if not kept[number]:
                    lost |= touched
        return _copied(self.root, [c for c, keep in zip(self.changes, kept, strict=True) if keep])

    def put(self, survival, seed):
        """Write what is on disk after a power cut into the folder, in place of what lies there."""
        rng = np.random.default_rng(seed)
        shutil.rmtree(self.root_path, ignore_errors=True)
        _put(self.survivors(survival, rng), self.root_path, survival, rng)


def _read(path):
    folder = Folder()
    for entry in path.iterdir():
        if entry.is_symlink():
            folder.first[entry.name] = str(entry.readlink())
        elif entry.is_dir():
            folder.first[entry.name] = _read(entry)
        else:
            folder.first[entry.name] = File(entry.read_bytes())
    folder.names = dict(folder.first)
    return folder


def _apply(change, where):
    for folder, name, node in change.names:
        names = getattr(folder, where)
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _copied(root, changes):
    """Return folders after some changes; those of the disk stay as they are."""
    copies = {}
    kept = [root, *(f for change in changes for f, _, _ in change.names)]

    def copy(node):
        if not isinstance(node, Folder):
            return node
        if id(node) not in copies:
            made = copies[id(node)] = Folder()
            made.first = {name: copy(one) for name, one in node.first.items()}
        return copies[id(node)]

    for node in kept:
        copy(node)
    for change in changes:
        _apply(Change([(copy(folder), name, copy(node)) for folder, name, node in change.names]), "first")
    return copies[id(root)]


def _put(folder, path, survival, rng):
    path.mkdir()
    for name, node in folder.first.items():
        if isinstance(node, Folder):
            _put(node, path / name, survival, rng)
        elif isinstance(node, str):
            (path / name).symlink_to(node)
        else:
            (path / name).write_bytes(_left(node, survival, rng))


def _left(file, survival, rng):
    """Return what is left of a file's content."""
    if survival in ("all", "data"):
        return file.content()
    if survival == "some" and file.synced < len(file.writes):
        count = int(rng.integers(file.synced, len(file.writes) + 1))
        content = file.content(count)
        # A file may have its size before it has its data.
        size = len(file.content())
        return content + bytes(max(0, size - len(content))) if rng.random() < 0.3 else content
    return file.content(file.synced)


def read_calls(log):
    """Return the calls in a log of strace that did something."""
    begun = {}
    for line in log.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>")
            continue
        if call.startswith("<... "):
            call = begun.pop(pid) + call.partition(" resumed>")[2]
        name, bracket, rest = call.partition("(")
        text, _, result = rest.rpartition(" = ")
        if not bracket or not result or result.startswith(("-1", "?")):
            continue
        strings = BYTES.findall(text)
        assert not any(cut for _, cut in strings), f"strace cut the bytes of {name}"
        answer = DESCRIPTOR.match(result)
        yield Call(
            name,
            text,
            [_bytes(one) for one, _ in strings],
            [(int(number), _path(one)) for number, one in DESCRIPTOR.findall(text)]
            + ([(-100, _path(text.partition("<")[2].partition(">")[0]))] if "AT_FDCWD<" in text else []),
            int(result.split("<")[0].split()[0], 0),
            _path(answer[2]) if answer else None,
        )


def _bytes(text):
    return bytes.fromhex(text.replace("\\x", ""))


def _path(text):
    return Path(os.fsdecode(_bytes(text)))


def record_calls(root, log, words, environment):
    """Run a command in a folder, which must end well, and return its calls that change anything there."""
    done = run_program([*STRACE, "-o", str(log), *words], cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    calls = list(read_calls(log.read_text("utf-8", "replace")))
    log.unlink()
    return [call for call in calls if _matters(call, root)]


def _matters(call, root):
    if call.name in ("openat", "creat"):
        return call.result_path is not None and call.result_path.is_relative_to(root)
    if call.name in ("lseek", "write", "writev", "pwrite64", "pwritev", "ftruncate", *SYNCS):
        return call.files[0][1].is_relative_to(root)
    if call.name in ("sendfile", "copy_file_range"):
        return any(path.is_relative_to(root) for _, path in call.files)
    return True
