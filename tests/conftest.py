"""Fixtures for all tests: every test has a home of its own, and one small dataset is built once."""

import ctypes
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

# The networks of the tests are small, and other processes of the same run use the other cores.
# Before torch is imported, so that processes which tests start see it too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

import orlog
from orlog.manifests.manifest import MANIFEST_FILE, read_manifest
from orlog.manifests.rebuilds import is_rebuild
from tests.levels import THOROUGH, scaled
from tests.mujoco_models import compile_once
from tests.own_records import take_for_recorded
from tests.pools import pool_in_this_process
from tests.scheduling import leave_real_time
from tests.small_disks import mounted_in

MINI = "pointmaze/umaze-mini-v1"
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 2**30
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOW = "the browser tests need Chromium: apt-get install chromium, and pip install playwright"


MALLOC_BYTES = 2**24
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

settings.register_profile(
    "orlog",
    max_examples=scaled(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # on a busy machine all is slow at times
)
settings.load_profile("orlog")


@pytest.hookimpl(tryfirst=True)
def pytest_configure():
    """Give memory back that is freed, and put temporary files into memory where there is room.

    A shell lets what it starts in the background ignore Ctrl-C, and so would the commands of tests.
    """
    leave_real_time()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        # By default glibc comes to keep hundreds of megabytes that tests have freed long ago.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: None)
        mallopt(M_MMAP_THRESHOLD, MALLOC_BYTES)
        mallopt(M_TRIM_THRESHOLD, MALLOC_BYTES)
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_xdist_auto_num_workers():
    """Run one process more than there are cores: some tests wait for servers and clocks."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what only `make test-all` runs."""
    if not THOROUGH:
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_itemcollected(item):
    """Mark property tests, which have more examples in `make test-all`."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker(pytest.mark.scaled)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Let a skip for a program that ORLOG_REQUIRE names, such as strace,nginx,chromium, be a failure."""
    report = yield
    required = [name for name in os.environ.get("ORLOG_REQUIRE", "").lower().split(",") if name]
    reason = report.longrepr[-1] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if any(name in reason.lower() for name in required):
        report.outcome, report.longrepr = "failed", f"ORLOG_REQUIRE: {reason}"
    return report


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Return this test's ORLOG_HOME, which does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("ORLOG_HOME", str(folder))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return folder


@pytest.fixture(autouse=True)
def no_waiting_for_disks(request, monkeypatch):
    """Let nothing wait until a disk has what was written: no disk loses power during a test."""
    if request.node.get_closest_marker("fsync") is None:
        monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def models_are_compiled_once():
    """Let environments of the same model share the work of MuJoCo's compiler."""
    compile_once()


@pytest.fixture(scope="module", autouse=True)
def freed_memory_is_given_back():
    """Give back what a module's tests have freed: training asks glibc to keep it, gigabytes in the end."""
    yield
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)


@pytest.fixture
def jobs_run_here(monkeypatch):
    """Run jobs in this process; processes of their own are for what only these can show."""
    monkeypatch.setattr("orlog.base.jobs.ProcessPool", pool_in_this_process)


@pytest.fixture(scope="session")
def built_mini(tmp_path_factory):
    """Return a folder with pointmaze/umaze-mini-v1, built once; do not write to it.

    Where the recipe gives other last bits than on the processor of the records, all tests take what
    it gives here for what is recorded.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which all workers of a run share: one builds, the others wait
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORLOG_HOME", str(folder / "built"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f"{MINI} is not the recorded data here")
            built = orlog.build_dataset(MINI)
    with pytest.MonkeyPatch.context() as patch:
        if is_rebuild(read_manifest(built / MANIFEST_FILE)):
            built = take_for_recorded(built, tmp_path_factory.mktemp("recorded"), patch)
        yield built


@pytest.fixture
def mount(tmp_path):
    """Return a function that mounts a real disk in memory, with options such as `size=2m`."""
    with mounted_in(tmp_path) as mount_disk:
        yield mount_disk


@pytest.fixture
def mini_folder(built_mini, home):
    """Return a copy of the small dataset in this test's home, to be damaged at will."""
    folder = home / "datasets" / MINI / "1.0.0"
    shutil.copytree(built_mini, folder)
    return folder


@pytest.fixture
def mini(mini_folder):
    """Return the small dataset, opened from this test's home."""
    return orlog.load_dataset(mini_folder)


@pytest.fixture(scope="session")
def chromium():
    """Return a headless Chromium."""
    sync = pytest.importorskip("playwright.sync_api", reason=HOW)
    if CHROMIUM is None:
        pytest.skip(HOW)
    with sync.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=300_000)
        yield browser
        browser.close()
