import os
import signal
import subprocess
import sys

import pytest

import orlog
from orlog import load_dataset
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.worlds.pointmaze import DATASETS, UMAZE, PointMazeRecipe
from orlog.datasets.worlds.recipe import CatalogueEntry, catalogue
from orlog.errors import InvalidNameError, NotFoundError, WorkerDiedError
from orlog.manifests.manifest import read_manifest
from tests.levels import scaled

MINI = "pointmaze/umaze-mini-v1"
TINY = "pointmaze/tiny-v1"
TINY_ENTRY = CatalogueEntry(
    version="1.0.0",
    description="Two episodes for tests.",
    license="CC0-1.0",
    recipe=PointMazeRecipe(steps=450, maze=UMAZE, seed=9),
)

# Every script knows the tiny dataset, as this file does.
PRELUDE = """
import os, resource, signal, sys, time
from pathlib import Path
from orlog.datasets.worlds.build import build_dataset
from orlog.datasets.worlds.recipe import catalogue
from orlog.datasets.worlds.environments import make_environment
from orlog.datasets.worlds.pointmaze import DATASETS, UMAZE, PointMazeRecipe
from orlog.datasets.worlds.recipe import CatalogueEntry
from orlog.errors import StorageError

MINI, TINY = "pointmaze/umaze-mini-v1", "pointmaze/tiny-v1"
DATASETS[TINY] = CatalogueEntry(
    version="1.0.0",
    description="Two episodes for tests.",
    license="CC0-1.0",
    recipe=PointMazeRecipe(steps=450, maze=UMAZE, seed=9),
)

"""


def start(script, *arguments, **variables):
    """Start a script of its own process group."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
        start_new_session=True,
    )


def output_of(process, limit_s):
    """Return what a script printed; one that does not end in time is killed with its children."""
    try:
        return process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def left_in(name):
    """Return what lies in the folder of a dataset; a lock file may always stay."""
    folder = datasets_folder() / name
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return {name for name in names if not name.endswith(".lock")}


@pytest.fixture
def tiny(monkeypatch):
    """Put a dataset of 450 steps into the catalogue and return its name."""
    monkeypatch.setitem(DATASETS, TINY, TINY_ENTRY)
    return TINY


@pytest.fixture
def tiny_digest(tiny, tmp_path, monkeypatch):
    """Return the digest of the tiny dataset, built elsewhere without interruption."""
    with monkeypatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(tmp_path / "elsewhere"))
        return load_dataset(tiny, build=True).digest


def test_a_built_manifest_says_what_the_catalogue_says(built_mini):
    manifest = read_manifest(built_mini / "manifest.json")
    entry = catalogue()[MINI]
    assert (manifest.name, manifest.version) == (MINI, entry.version)
    assert (manifest.description, manifest.license) == (entry.description, entry.license)
    assert (manifest.total_episodes, manifest.total_steps) == (67, entry.recipe.steps)
    assert manifest.environment.id == entry.recipe.environment_id
    assert manifest.environment.kwargs == entry.recipe.environment_kwargs
    assert manifest.environment.max_episode_steps == 300
    parameters = dict(manifest.recipe.parameters)
    parameters["maze"] = tuple(parameters["maze"])
    assert PointMazeRecipe(**parameters, seed=manifest.recipe.seed) == entry.recipe


def test_a_dataset_is_built_into_the_home_and_nothing_else_is_left(tiny, home):
    folder = orlog.build_dataset(tiny)
    assert folder == home / "datasets" / tiny / "1.0.0"
    assert left_in(tiny) == {"1.0.0"}
    assert orlog.verify_store(folder)[1] == []
    assert load_dataset(tiny).total_steps == 450


def test_loading_builds_what_is_not_here_if_it_may(tiny):
    seen = []
    dataset = load_dataset(f"{tiny}@1.0.0", build=True, progress=lambda *done: seen.append(done))
    assert len(dataset) == 2
    assert seen == [(0, 450), (300, 450), (450, 450)]
    seen.clear()
    assert load_dataset(tiny, build=True, progress=lambda *done: seen.append(done)).digest == (dataset.digest)
    assert seen == []


def test_what_is_there_is_left_alone_and_replaced_only_if_asked(tiny):
    folder = orlog.build_dataset(tiny)
    digest = load_dataset(folder).digest
    shard = folder / "rewards/c.0"
    good = shard.read_bytes()
    shard.write_bytes(bytes(len(good)))
    assert orlog.build_dataset(tiny) == folder
    assert shard.read_bytes() == bytes(len(good))
    assert orlog.build_dataset(tiny, replace=True) == folder
    assert shard.read_bytes() == good
    assert load_dataset(folder).digest == digest
    assert left_in(tiny) == {"1.0.0"}


def test_a_folder_without_a_manifest_does_not_stand_in_the_way(tiny):
    folder = datasets_folder() / tiny / "1.0.0"
    (folder / "actions").mkdir(parents=True)
    assert load_dataset(tiny, build=True).total_steps == 450


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_number_of_workers(built_mini):
    folder = orlog.build_dataset(MINI, workers=2)
    assert folder != built_mini
    text = (folder / "manifest.json").read_text("utf-8")
    assert text == (built_mini / "manifest.json").read_text("utf-8")
    assert orlog.verify_store(folder)[1] == []


def test_an_executor_that_ends_jobs_in_any_order_gives_the_same_bytes(tiny, tiny_digest, monkeypatch):
    monkeypatch.setattr("orlog.datasets.worlds.build.EPISODES_PER_TASK", 1)
    made = []
    asked = []

    def backwards(function, jobs, *, workers, **_):
        asked.append(workers)
        for index, job in reversed([*enumerate(jobs)]):
            made.append(index)
            yield index, function(job)

    orlog.build_dataset(tiny, execute=backwards)
    assert made == [1, 0]
    assert load_dataset(tiny).digest == tiny_digest
    orlog.build_dataset(tiny, execute=backwards, workers=3, replace=True)
    assert asked == [None, 3]

    def failing(_function, _jobs, **_):
        yield 0, WorkerDiedError("its node was lost.")

    with pytest.raises(WorkerDiedError, match="its node was lost"):
        orlog.build_dataset(tiny, replace=True, execute=failing)
    assert load_dataset(tiny).digest == tiny_digest


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pointmaze/umaze-mini-v2", r"no recipe for .*; did you mean pointmaze/umaze-mini-v1"),
        ("qqq/zzz-v1", r"no recipe for qqq/zzz-v1\. Run: orlog download qqq/zzz-v1, .* orlog list"),
        (f"{MINI}@1.0.1", r"builds version 1\.0\.0; run: orlog build pointmaze/umaze-mini-v1$"),
        (f"{MINI}@sha256:abcdef", r"builds version 1\.0\.0"),
    ],
)
def test_what_no_recipe_builds_is_refused(home, name, message):
    with pytest.raises(NotFoundError, match=message):
        orlog.build_dataset(name)
    with pytest.raises(InvalidNameError):
        orlog.build_dataset("../../umaze-v1")
    assert not home.exists()


KILLED = """
home = os.environ["ORLOG_HOME"]
make_environment(catalogue()[TINY].recipe.environment_id, {}).close()  # import it once for all

def build(instant):
    \"\"\"Build in a child that kills itself at one of its accesses to files below its home.\"\"\"
    folder = f"{home}-{instant}"
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(600)  # whatever hangs is not waited for
        os.environ["ORLOG_HOME"] = folder
        seen = 0
        changes = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir"}

        def hook(event, arguments):
            nonlocal seen
            if event in changes and str(arguments[0]).startswith(folder):
                seen += 1
                if seen == instant:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        build_dataset(TINY)
        os.write(write_end, str(seen).encode())
        os._exit(0)
    os.close(write_end)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read_end) as pipe:
        return status, pipe.read()

status, total = build(0)
assert status == 0
total = int(total)
few = int(sys.argv[1])
instants = sorted({1 + total * number // few for number in range(few)} | set(range(total - few, total + 1)) | {10**9})
for instant in instants:
    status, _ = build(instant)
    # The number of accesses differs a little from run to run; the last instant may never come.
    assert status in (0, signal.SIGKILL), (instant, status)
    print(instant)
"""


@pytest.mark.scaled
@pytest.mark.slow
def test_a_build_killed_at_any_instant_leaves_nothing_or_all_and_can_be_run_again(tiny, tiny_digest, home, monkeypatch):
    with start(KILLED, str(scaled(8, 3))) as process:
        instants, errors = output_of(process, 300)
    assert process.returncode == 0, errors
    outcomes = []
    for instant in instants.split():
        monkeypatch.setenv("ORLOG_HOME", f"{home}-{instant}")
        try:
            dataset = load_dataset(tiny)
        except NotFoundError:
            outcomes.append("nothing")
        else:
            outcomes.append("all")
            assert dataset.digest == tiny_digest
            assert orlog.verify_store(dataset.folder)[1] == []
        folder = orlog.build_dataset(tiny)
        assert load_dataset(tiny).digest == tiny_digest
        assert orlog.verify_store(folder)[1] == []
    assert set(outcomes) == {"nothing", "all"}


BUILD_MINI = """
import signal

# A shell that starts a job in the background lets it ignore Ctrl-C, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

def progress(done, total):
    if done >= int(sys.argv[2]):
        print("stopped", flush=True)
        time.sleep(600)

build_dataset(MINI, workers=int(sys.argv[1]), progress=progress)
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_killed_while_it_writes_leaves_nothing_that_opens(built_mini, workers):
    for steps in (1, 3000):
        with start(BUILD_MINI, str(workers), str(steps)) as process:
            assert process.stdout.readline() == "stopped\n"
            process.send_signal(signal.SIGKILL)
        with pytest.raises(NotFoundError, match="not on this machine yet"):
            load_dataset(MINI)
    folder = orlog.build_dataset(MINI)
    assert left_in(MINI) == {"1.0.0"}
    assert load_dataset(folder).digest == load_dataset(built_mini).digest


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_ctrl_c_leaves_nothing(workers):
    with start(BUILD_MINI, str(workers), "300") as process:
        assert process.stdout.readline() == "stopped\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        _, errors = output_of(process, 300)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert workers > 1 or errors.count("Traceback") == 1
    assert left_in(MINI) == set()


TWO = """
mine, theirs = sys.argv[1:]
shared = Path(os.environ["ORLOG_HOME"]).parent

def progress(done, total):
    if done == 0:
        (shared / mine).touch()
        print("builds", flush=True)
        while not (shared / f"{theirs} waits").exists():
            time.sleep(0.05)

folder = build_dataset(
    TINY, progress=progress, on_wait=(shared / f"{mine} waits").touch
)
print(folder)
"""


def test_two_processes_that_build_at_once_build_once_and_both_succeed(tiny, tiny_digest, tmp_path):
    with start(TWO, "a", "b") as one, start(TWO, "b", "a") as two:
        outputs = [output_of(process, 600) for process in (one, two)]
    assert [one.returncode, two.returncode] == [0, 0], outputs
    folder = datasets_folder() / tiny / "1.0.0"
    assert sorted(output for output, _ in outputs) == [f"{folder}\n", f"builds\n{folder}\n"]
    assert len(list(tmp_path.glob("* waits"))) == 1
    assert left_in(tiny) == {"1.0.0"}
    assert load_dataset(tiny).digest == tiny_digest


FULL = """
# Writing beyond this size fails as a full disk does, with an OSError.
sys.dont_write_bytecode = True  # it would be cut, and kept
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    build_dataset(TINY)
except StorageError as error:
    print(error)
"""


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tiny):
    with start(FULL, "8000") as process:
        output, errors = output_of(process, 300)
    assert (process.returncode, errors) == (0, "")
    assert "cannot write: File too large; free some space or set ORLOG_HOME" in output
    assert left_in(tiny) == set()
    assert load_dataset(tiny, build=True).total_steps == 450
