"""Removing versions, killed at any instant and beside other processes: whole or gone, never half."""

import os
import shutil
import signal
import sys
import warnings

import numpy as np
import pytest

import orlog
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import collect_garbage, delete_version, pin_version
from orlog.datasets.home.records import origin_file
from tests.datasets.cached_homes import beside, place, put, snapshot
from tests.levels import scaled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_lock")]

ARM, LEG = "lab/arm-v1", "lab/leg-v1"
KILLS = scaled(60, 12)
ACCESSES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir"}


def in_child(work, instant):
    """Work in a fork that kills itself at one of its accesses to files; return status, accesses."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # no thread of ours runs here
        child = os.fork()
    if child == 0:
        signal.alarm(600)  # whatever hangs is not waited for
        seen = 0

        def hook(event, _):
            nonlocal seen
            if event in ACCESSES:
                seen += 1
                if seen == instant:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (nothing may leave the child)
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os.write(write_end, b"%d" % seen)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        told = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(told or 0)


def make_home(template):
    """Make a home anew; return the versions that go, other things that go, and what stays."""
    shutil.rmtree(datasets_folder(), ignore_errors=True)
    versions = [
        place(template, ARM, "1.0.0", days=50, linked=True),
        place(template, ARM, "1.1.0", days=40),
        place(template, LEG, "1.0.0", days=30, partial=True),
    ]
    first = versions[0]
    others = [put(beside(first, kind), 60) for kind in ("download", "strange", "unfinished", "replaced", "deleted")]
    pinned = place(template, ARM, "2.0.0", days=90, linked=True)
    pin_version(ARM, "2.0.0")
    stays = [
        pinned,
        place(template, ARM, "3.0.0", downloaded=False, days=90),
        place(template, "lab/tail-v1", "1.0.0", days=90),
        put(datasets_folder() / "lab/tail-v1/.1.1.0.recording", 90),
    ]
    return versions, others, stays


def collect():
    collect_garbage(unused_days=7)


def delete_first():
    delete_version(ARM, "1.0.0")


@pytest.mark.scaled
@pytest.mark.parametrize("work", [collect, delete_first])
def test_a_kill_at_any_instant_leaves_versions_whole_or_gone(template, work, record_testsuite_property):
    make_home(template)
    code, total = in_child(work, 0)
    assert code == 0
    instants = np.random.default_rng(0).permutation(np.arange(1, total + 1))[:KILLS]
    kills = halfway = 0
    for instant in sorted(instants.tolist()):
        versions, others, stays = make_home(template)
        before = snapshot(*stays)
        whole = {folder: snapshot(folder) for folder in versions}
        code, _ = in_child(work, instant)
        assert code == -signal.SIGKILL, instant
        kills += 1
        gone = [folder for folder in versions if not folder.exists()]
        halfway += 0 < len(gone) < (len(versions) if work is collect else 2)
        for folder in set(versions) - set(gone):
            assert snapshot(folder) == whole[folder], instant
            assert orlog.verify_store(folder)[1] == [], instant
            assert origin_file(folder).exists(), instant
        assert snapshot(*stays) == before, instant
        collect()
        for folder in (*versions, *others):
            assert not folder.exists(), instant
            assert not origin_file(folder).exists(), instant
        assert snapshot(*stays) == before, instant
        assert list(datasets_folder().rglob("*.deleted")) == []
    record_testsuite_property(f"{work.__name__}: kills", kills)
    assert kills >= min(total, KILLS)
    assert halfway > 0


# --- many processes
