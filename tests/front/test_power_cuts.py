"""Power cuts: what a command says is done is on disk, and before that the old state or the new one opens.

The system calls of a command are recorded by strace and repeated on a disk of the test's own, which
loses what was not synced. `make test` cuts recordings at some calls; `make test-all` cuts all commands after each of them.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest

import orlog
from orlog.algos.training.runs import CHECKPOINT_FILE, RUN_FILE, read_evaluation, read_metrics
from orlog.base.files import hash_file
from orlog.datasets.home.folders import installed_names, stored_versions
from orlog.errors import IntegrityError, NotFoundError
from orlog.runs.results import finished_results
from orlog.runs.run_folders import verify_run
from tests.command_line import orlog as command_line
from tests.levels import THOROUGH
from tests.power import SURVIVALS, Disk, File, Folder, can_trace, record_calls

pytestmark = [
    pytest.mark.slow,
    pytest.mark.scaled,
    pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace"),
]

# Locks hold nothing. When a version was last used is a hint for `cache gc`, and packs are made again.
NOT_PROMISED = re.compile(r"\.lock$|/used/|/packs/|\.pyc$|__pycache__|/last-used|\.unfinished")
ORLOG = (sys.executable, "-m", "orlog.cli")
RECORD = """
import gymnasium, sys, orlog
env = orlog.record(gymnasium.make("Pendulum-v1", max_episode_steps=5), "lab/pen-v1", append="more" in sys.argv)
for seed in range(2):
    env.reset(seed=seed)
    for _ in range(5):
        env.step(env.action_space.sample())
env.close()
"""
IMPORT = (*ORLOG, "import", "data.npz", "new/arm-v1", "--environment", "Pendulum-v1")
STEPS = 6
TRAIN = (
    *(*ORLOG, "train", "bc", "new/arm-v1", "--steps", str(STEPS)),
    *("--evaluations", "2", "--set", "hidden=4,4", "--keep-checkpoints"),
)
RUN = "runs/bc/new/arm-v1/seed-0"
FEW_CUTS = 4
RNG = np.random.default_rng(0)


class Place:
    """A folder in which commands run, one after another, and lose power at any of their calls."""

    def __init__(self, root, log):
        self.root, self._log = root, log
        self._environment = {**os.environ, "ORLOG_HOME": str(root / "home"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *words):
        """Run a command, which must end well, and return its calls."""
        return record_calls(self.root, self._log, words, self._environment)

    def cut(self, *words, state):
        """Run a command; cut the power at its calls, and look at what state opens then.

        Afterwards the folder is as the command left it.
        """
        before = Disk(self.root)
        old = state(self.root)
        before.put("all", 0)  # to look may have left marks
        calls = self.run(*words)
        left = Disk(self.root)
        before.put("all", 0)
        whole = Disk(self.root).run(calls)
        assert tree(whole.survivors("all", RNG)) == tree(left.root), "the disk of the test does not repeat this"
        assert waiting(whole) == []
        left.put("all", 0)
        new = state(self.root)
        whole.put("least", 0)
        assert state(self.root) == new, "what was said to be done is gone"
        before.put("all", 0)
        disk, done = Disk(self.root), 0
        for number, survival in cuts(calls):
            disk.run(calls[done:number]).put(survival, number)
            done = number
            found = state(self.root)
            assert found in (old, new), f"{survival} after call {number}, {calls[number - 1]}: {found}"
        left.put("all", 0)


def cuts(calls):
    """Return after how many calls to cut, and what survives: all of them, or a few spread over the whole command."""
    changing = [number for number, call in enumerate(calls, 1) if call.name != "lseek"]
    if THOROUGH:
        for number in changing:
            yield number, SURVIVALS[number % len(SURVIVALS)]
            yield number, "some"
        return
    rng = np.random.default_rng(len(calls))
    stretches = np.array_split(np.array(changing), min(FEW_CUTS, len(changing)))
    kinds = (*SURVIVALS, "some")
    for place, stretch in enumerate(stretches, int(rng.integers(len(kinds)))):
        yield int(rng.choice(stretch)), kinds[place % len(kinds)]


def tree(folder):
    return {
        name: tree(node) if isinstance(node, Folder) else node.content() if isinstance(node, File) else node
        for name, node in folder.first.items()
    }


def waiting(disk):
    """Return what is there and would not survive a power cut."""

    def missing(path, whole, least):
        for name, node in whole.first.items():
            other, place = least.first.get(name), f"{path}/{name}"
            if isinstance(node, Folder):
                yield from missing(place, node, other if isinstance(other, Folder) else Folder())
            elif other is not node or (isinstance(node, File) and node.synced < len(node.writes)):
                yield place

    found = missing("", disk.survivors("all", RNG), disk.survivors("least", RNG))
    return sorted(path for path in found if not NOT_PROMISED.search(path))


def versions(_):
    """Return the digest of each version that opens in the home, with every byte checked."""
    found = {}
    for name in installed_names():
        for version in stored_versions(name):
            dataset = orlog.load_dataset(f"{name}@{version}")
            assert orlog.verify_store(dataset)[1] == []
            found[f"{name}@{version}"] = dataset.digest
    return found


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder on which nothing was made yet, with a file to import."""
    root = tmp_path / "disk"
    root.mkdir()
    monkeypatch.setenv("ORLOG_HOME", str(root / "home"))
    monkeypatch.chdir(tmp_path)
    rows = 20
    rng = np.random.default_rng(0)
    (root / "record.py").write_text(RECORD)
    np.savez(
        root / "data.npz",
        observations=rng.uniform(-1, 1, (rows, 3)),
        actions=rng.uniform(-2, 2, (rows, 1)),
        rewards=rng.normal(size=rows),
        terminals=np.zeros(rows, bool),
        timeouts=np.arange(rows) % 5 == 4,
    )
    return Place(root, tmp_path / "calls.log")


def repaired(root):
    """Return whether every byte is right; what is damaged is refused."""
    manifest, problems = orlog.verify_store("new/arm-v1")
    if not problems:
        return versions(root) == {f"{manifest.name}@{manifest.version}": manifest.digest}
    with pytest.raises(IntegrityError):
        orlog.load_dataset("new/arm-v1")
    return False


def published(root):
    """Return what another home can have from the folder `shared`, every byte checked."""
    with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, ORLOG_HOME=home):
        try:
            orlog.download_dataset("new/arm-v1", mirrors=[str(root / "shared")])
        except NotFoundError:
            return {}
        return versions(root)


def trained(root):
    """Go on with the training, or begin it where nothing of it was left; return what was learned."""
    words = ("--resume", RUN) if (root / RUN / RUN_FILE).exists() else TRAIN[len(ORLOG) + 1 :]
    ended = command_line("train", *words, cwd=root)
    assert ended.returncode == 0, ended.stderr
    assert [line["step"] for line in read_metrics(root / RUN)] == list(range(1, STEPS + 1))
    assert verify_run(root / RUN)[0] == []
    return hash_file(root / RUN / CHECKPOINT_FILE)


def scored(root):
    """Return the returns that an evaluation says, after its seals were checked."""
    assert verify_run(root / RUN)[0] == []
    file = root / RUN / "evaluation.json"
    return json.loads(file.read_bytes())["returns"] if file.exists() else None


def reproduced(_):
    """Return the returns in the results that are kept, after their seals were checked."""
    return {folder.name: read_evaluation(folder).returns for folder in finished_results()}


def imported(place):
    assert command_line(*IMPORT[len(ORLOG) :], cwd=place.root).returncode == 0


def test_recordings_and_what_comes_of_them(place):
    record = (sys.executable, "record.py")
    place.cut(*record, state=versions)
    place.cut(*record, "more", state=versions)
    view = ("save", "lab/pen-v1", "views/best.json", "--top", "50")
    place.cut(*ORLOG, *view, state=versions)
    place.cut(*ORLOG, "save", "views/best.json", "lab/best-v1@1.0.0", state=versions)
    place.cut(*ORLOG, "lock", "lab/pen-v1", state=versions)


@pytest.mark.thorough
def test_imports_and_deletions(place):
    place.cut(*IMPORT, state=versions)
    place.cut(*ORLOG, "delete", "new/arm-v1", "--yes", state=versions)
    assert versions(place.root) == {}


@pytest.mark.thorough
def test_what_is_published_downloaded_and_repaired(place):
    imported(place)
    publish = ("publish", "new/arm-v1", "shared", "--no-audit")
    place.cut(*ORLOG, *publish, state=published)
    place.cut(*ORLOG, "registry", "add", "shared", "shared", state=versions)
    shutil.rmtree(place.root / "home" / "datasets")
    place.cut(*ORLOG, "download", "new/arm-v1", state=versions)
    stored = orlog.load_dataset("new/arm-v1")
    shard = stored.folder / stored.manifest.objects[-1].path
    shard.write_bytes(bytes(shard.stat().st_size))
    place.cut(*ORLOG, "verify", "new/arm-v1", "--repair", state=repaired)
    place.cut(*ORLOG, "cache", "gc", state=versions)


@pytest.mark.thorough
def test_training_and_scores(place):
    imported(place)
    place.cut(*TRAIN, state=trained)
    place.cut(*ORLOG, "evaluate", RUN, "--episodes", "2", state=scored)


@pytest.mark.thorough
def test_results_of_sweeps(place):
    imported(place)
    words = ("--datasets", "new/arm-v1", "--algorithms", "bc", "--seeds", "1", "--steps", "4")
    place.cut(*ORLOG, "sweep", *words, "--episodes", "2", "--workers", "1", state=reproduced)


@pytest.mark.thorough
def test_builds(place):
    place.cut(*ORLOG, "build", "pointmaze/umaze-mini-v1", state=versions)
