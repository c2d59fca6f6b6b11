"""A process that opens hostile documents, whose paths are watched too."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

from tests.fuzz.watched import MOST_BYTES, Watched


def _make_outside():
    Path("../new").mkdir()
    Path("../new").rmdir()


PROBES = {
    "crash": os.abort,
    "large": lambda: b"x" * (MOST_BYTES + 2**26),
    "too large": lambda: bytes(2**40),
    "other error": lambda: int("x"),
    "open outside": lambda: Path("../outside/secret").read_text(),
    "look outside": lambda: Path("../outside/secret").is_file(),
    "make outside": _make_outside,
}
"""What does wrong, to see that it is seen."""
SEES = ("stat", "lstat", "access", "readlink")


class Child(Watched):
    """Opens documents in a process of its own."""

    def __init__(self, folder):
        super().__init__(folder, _start)

    def check(self, kind, data):
        """Open a document, or one that some steps make, or do what a kind of `PROBES` does."""
        return self.ask(kind, data)


class _Paths:
    """Notes paths outside of a folder that this process opens, looks at or changes."""

    def __init__(self, folder):
        self.escapes = []
        self.is_on = False
        paths = {*sys.path, *site.getsitepackages(), *sysconfig.get_paths().values(), sys.prefix}
        source = Path(__file__).resolve().parents[2]
        allowed = {folder, source, *(Path(path).resolve() for path in paths if path)}
        # The devices, but not what lies in memory there, as the folders of tests may.
        devices = [path for path in Path("/dev").iterdir() if path.name != "shm"]
        self._allowed = tuple(f"{path}{os.sep}" for path in {*allowed, *devices, Path("/proc")})
        # Links on the way are looked for.
        self._parents = {str(parent) for parent in (folder, *folder.parents)}
        for name in SEES:
            setattr(os, name, self._watched(getattr(os, name)))
        sys.addaudithook(self._hear)

    def _watched(self, real):
        def watched(path, *arguments, **options):
            self._note(real.__name__, path)
            return real(path, *arguments, **options)

        return watched

    def _hear(self, event, arguments):
        if event == "open" or event.startswith(("os.", "shutil.")):
            for argument in arguments[:2]:
                self._note(event, argument)

    def _note(self, event, path):
        if not self.is_on or not isinstance(path, str | bytes | os.PathLike):
            return
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (it must not look at links)
        is_mode = event == "open" and len(os.fsdecode(path)) <= 3
        if not (is_mode or text in self._parents or f"{text}/".startswith(self._allowed)):
            self.escapes.append(f"{event} {text}")


def _start(work):
    from tests.fuzz.documents import Workplace

    os.chdir(work)
    outside = work.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    os.fsync = lambda _: None  # half of the time, and for nothing here
    place, paths = Workplace(work), _Paths(work)

    def check(kind, data):
        if not isinstance(data, bytes):
            data = place.damaged(kind, data)
        paths.is_on, paths.escapes = True, []
        try:
            PROBES[kind]() if kind in PROBES else place.check(kind, data)
        finally:
            paths.is_on = False
            left = sorted(path.name for path in work.parent.iterdir())
            assert not paths.escapes, f"left its folder: {paths.escapes}"
            assert left == ["inside", "outside"], left
            assert len(list(outside.iterdir())) == 1

    return check
