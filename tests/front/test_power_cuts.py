"""What a command says is done is on disk: names and data are synced, as its own system calls show.

A power cut may lose the data of a file that was written and not synced, and each name that was made
(a file, a folder, a renamed one) and whose folder was not synced afterwards. So the calls of a command
are recorded by strace, and nothing that it leaves behind may still be waiting for a sync when it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def can_trace() -> bool:
    """Whether strace is here, and allowed to look at processes."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", os.devnull, "true"], check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace"),
]

CALLS = (
    "openat,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,fsync,fdatasync,unlink,rmdir"
)
STRACE = ("strace", "-f", "-y", "-qq", "-s", "4096", "-e")
# Locks hold nothing. When a version was last used is a hint for `cache gc`, and packs are made again.
NOT_PROMISED = re.compile(r"\.lock$|/used/|/packs/|\.pyc$|__pycache__|/last-used|\.unfinished")
RECORD = """
import gymnasium, sys, orlog
env = orlog.record(gymnasium.make("Pendulum-v1", max_episode_steps=5), "lab/pen-v1", append="more" in sys.argv)
for seed in range(2):
    env.reset(seed=seed)
    for _ in range(5):
        env.step(env.action_space.sample())
env.close()
"""


class Disk:
    """What a disk still waits for: names by their folder, and files whose data were written."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}
        self.data: set[str] = set()

    def named(self, path: str) -> None:
        self.names.setdefault(str(Path(path).parent), set()).add(Path(path).name)

    def moved(self, old: str, new: str, *, swapped: bool) -> None:
        def place(path: str) -> str:
            for one, other in ((old, new), *(((new, old),) if swapped else ())):
                if path == one or path.startswith(f"{one}/"):
                    return f"{other}{path[len(one) :]}"
            return path

        self.names = {place(folder): names for folder, names in self.names.items()}
        self.data = {place(path) for path in self.data}
        self.named(new)
        if swapped:
            self.named(old)

    def waiting(self, root: Path) -> list[str]:
        """Return what is still there and was not synced, below a folder."""
        names = [f"{folder}/{name}" for folder, names in self.names.items() for name in names]
        found = {path for path in [*names, *self.data] if path.startswith(f"{root}/")}
        return sorted(one for one in found if Path(one).exists() and not NOT_PROMISED.search(one))


def replay(log: str) -> Disk:
    """Return what a disk waits for after the calls in a log of strace."""
    disk, begun = Disk(), {}
    for line in log.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>")
            continue
        if call.startswith("<... "):
            call = begun.pop(pid) + call.partition(" resumed>")[2]
        name, _, rest = call.partition("(")
        arguments, _, result = rest.rpartition(" = ")
        if result.startswith("-1"):
            continue
        paths = re.findall(r'"((?:[^"\\]|\\.)*)"', arguments)
        if name in ("fsync", "fdatasync"):
            path = arguments.partition("<")[2].rpartition(">")[0]
            disk.data.discard(path)
            disk.names.pop(path, None)
        elif name in ("openat", "creat") and re.search(r"O_WRONLY|O_RDWR|O_CREAT", arguments):
            path = result.partition("<")[2].rpartition(">")[0]
            disk.data.add(path)
            disk.named(path)
        elif name.startswith("mkdir"):
            disk.named(paths[0])
        elif name.startswith("rename"):
            disk.moved(paths[0], paths[1], swapped="RENAME_EXCHANGE" in arguments)
        elif name.startswith("link"):
            disk.named(paths[1])
    return disk


def left_waiting(root: Path, *words: str) -> list[str]:
    """Run a command, and return what it left that is not on disk."""
    log = root / "calls.log"
    environment = {**os.environ, "ORLOG_HOME": str(root / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*STRACE, f"trace={CALLS}", "-o", str(log), sys.executable, *words],
        cwd=root,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = replay(log.read_text("utf-8", "replace"))
    log.unlink()
    return found.waiting(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder on which nothing was made yet, with a file to import."""
    rows = 20
    rng = np.random.default_rng(0)
    (tmp_path / "record.py").write_text(RECORD)
    np.savez(
        tmp_path / "data.npz",
        observations=rng.uniform(-1, 1, (rows, 3)),
        actions=rng.uniform(-2, 2, (rows, 1)),
        rewards=rng.normal(size=rows),
        terminals=np.zeros(rows, bool),
        timeouts=np.arange(rows) % 5 == 4,
    )
    return tmp_path


def test_what_is_recorded_appended_and_derived_is_on_disk(root: Path) -> None:
    orlog = ("-m", "orlog.cli")
    assert left_waiting(root, "record.py") == []
    assert left_waiting(root, "record.py", "more") == []
    words = ("view", "lab/pen-v1", "--top", "50", "--save", "views/best.json")
    assert left_waiting(root, *orlog, *words) == []
    assert left_waiting(root, *orlog, "save", "views/best.json", "lab/best-v1@1.0.0") == []
    assert left_waiting(root, *orlog, "lock", "lab/pen-v1") == []


def test_what_is_imported_published_and_downloaded_is_on_disk(root: Path) -> None:
    orlog = ("-m", "orlog.cli")
    words = ("import", "data.npz", "new/arm-v1", "--environment", "Pendulum-v1")
    assert left_waiting(root, *orlog, *words) == []
    publish = ("publish", "new/arm-v1", "shared/registry", "--no-audit")
    assert left_waiting(root, *orlog, *publish) == []
    assert left_waiting(root, *orlog, "registry", "add", "shared", "shared/registry") == []
    shutil.rmtree(root / "home" / "datasets")
    assert left_waiting(root, *orlog, "download", "new/arm-v1") == []


def test_what_is_trained_and_scored_is_on_disk(root: Path) -> None:
    orlog = ("-m", "orlog.cli")
    words = ("import", "data.npz", "new/arm-v1", "--environment", "Pendulum-v1")
    assert left_waiting(root, *orlog, *words) == []
    train = (
        "train",
        "bc",
        "new/arm-v1",
        "--steps",
        "4",
        "--evaluations",
        "1",
        "--set",
        "hidden=4,4",
    )
    assert left_waiting(root, *orlog, *train, "--keep-checkpoints") == []
    run = "runs/bc/new/arm-v1/seed-0"
    assert left_waiting(root, *orlog, "evaluate", run, "--episodes", "2") == []
