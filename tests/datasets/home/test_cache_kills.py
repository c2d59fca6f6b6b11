"""Removing versions, killed at any instant: whole or gone, never half."""

import shutil

import numpy as np
import pytest

import orlog
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import collect_garbage, delete_version, pin_version
from orlog.datasets.home.records import origin_file
from tests.datasets.cached_homes import beside, place, put, snapshot
from tests.kills import killed_at
from tests.levels import scaled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_lock")]

ARM, LEG = "lab/arm-v1", "lab/leg-v1"
KILLS = scaled(60, 12)


def make_home(template):
    """Make a home anew; return the versions that go, other things that go, and what stays."""
    shutil.rmtree(datasets_folder(), ignore_errors=True)
    versions = [
        place(template, ARM, "1.0.0", days=50, linked=True),
        place(template, ARM, "1.1.0", days=40),
        place(template, LEG, "1.0.0", days=30, partial=True),
    ]
    kinds = ("download", "strange", "unfinished", "replaced", "deleted")
    others = [put(beside(versions[0], kind), 60) for kind in kinds]
    pinned = place(template, ARM, "2.0.0", days=90, linked=True)
    pin_version(ARM, "2.0.0")
    stays = [
        pinned,
        place(template, ARM, "3.0.0", downloaded=False, days=90),
        place(template, "lab/tail-v1", "1.0.0", days=90),
        put(datasets_folder() / "lab/tail-v1/.1.1.0.recording", 90),
    ]
    return versions, others, stays


def collect(_step):
    collect_garbage(unused_days=7)


def delete_first(_step):
    delete_version(ARM, "1.0.0")


@pytest.mark.scaled
@pytest.mark.parametrize("work", [collect, delete_first])
def test_a_kill_at_any_instant_leaves_versions_whole_or_gone(template, work):
    make_home(template)
    _, total = killed_at(work, 0, datasets_folder())
    halfway = 0
    for instant in sorted(np.random.default_rng(0).permutation(np.arange(1, total + 1))[:KILLS].tolist()):
        versions, others, stays = make_home(template)
        before = snapshot(*stays)
        whole = {folder: snapshot(folder) for folder in versions}
        assert killed_at(work, instant, datasets_folder())[0]
        gone = [folder for folder in versions if not folder.exists()]
        halfway += 0 < len(gone) < (len(versions) if work is collect else 2)
        for folder in set(versions) - set(gone):
            assert snapshot(folder) == whole[folder], instant
            assert orlog.verify_store(folder)[1] == [], instant
            assert origin_file(folder).exists(), instant
        assert snapshot(*stays) == before, instant
        collect(None)
        for folder in (*versions, *others):
            assert not folder.exists(), instant
            assert not origin_file(folder).exists(), instant
        assert snapshot(*stays) == before, instant
        assert list(datasets_folder().rglob("*.deleted")) == []
    assert halfway > 0
