"""Homes with random content lose exactly what a slow and obvious model says."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import collect_garbage, pin_version, total_bytes
from tests.datasets.cached_homes import beside, place, put, snapshot
from tests.levels import scaled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_lock")]

ARM, LEG = "lab/arm-v1", "lab/leg-v1"


@dataclasses.dataclass(frozen=True)
class Thing:
    """Something in a random home."""

    name: str
    version: str
    kind: str
    days: float
    is_linked: bool
    is_downloaded: bool


KINDS = ["", "", "", "partial", "download", "strange", "recording"]
KINDS += ["unfinished", "deleted", "replaced"]
THINGS = st.builds(
    Thing,
    name=st.sampled_from([ARM, LEG]),
    version=st.sampled_from(["1.0.0", "1.1.0", "2.0.0"]),
    kind=st.sampled_from(KINDS),
    days=st.sampled_from([-3.0, 0.0, 0.5, 1.5, 8.0, 31.0]),
    is_linked=st.booleans(),
    is_downloaded=st.sampled_from([True, True, False]),
)


def build_home(things, template):
    made = {}
    for index, thing in enumerate(things):
        days = thing.days + index / 1000  # no two of the same age
        folder = datasets_folder() / thing.name / thing.version
        if thing.kind in ("", "partial"):
            path = place(
                template,
                thing.name,
                thing.version,
                partial=thing.kind == "partial",
                downloaded=thing.is_downloaded or thing.kind == "partial",
                days=days,
                linked=thing.is_linked,
            )
        else:
            path = put(beside(folder, thing.kind), days, 3000 + 1000 * index)
        made[path] = dataclasses.replace(thing, days=days)
    return made


def bytes_of(paths):
    files = [file.stat() for path in paths for file in path.rglob("*") if file.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def expected_rest(made, safe, unused, most):
    """Return what must be there afterwards, by the rules as one would tell them."""
    rest = set(made)
    recorded = {thing.name for thing in made.values() if thing.kind == "recording"}
    for path, thing in made.items():
        version = datasets_folder() / thing.name / thing.version
        if thing.kind in ("unfinished", "deleted"):
            rest -= {path}
        if thing.kind == "replaced" and version in made:
            rest -= {path}
        is_old = unused is not None and max(0.0, thing.days) >= unused
        if thing.kind in ("download", "strange") and is_old:
            rest -= {path}
    may_go = [
        path
        for path, thing in made.items()
        if (thing.kind == "partial" or (thing.kind == "" and thing.is_downloaded))
        and datasets_folder() / thing.name / thing.version not in safe
        and thing.name not in recorded
    ]
    may_go.sort(key=lambda path: made[path].days, reverse=True)
    for path in may_go:
        if unused is not None and max(0.0, made[path].days) >= unused:
            rest -= {path}
    for path in may_go:
        if most is not None and path in rest and made[path].days >= 1 and bytes_of(rest) > most:
            rest -= {path}
    return rest


@settings(
    max_examples=scaled(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    things=st.lists(THINGS, max_size=9, unique_by=lambda thing: (thing.name, thing.version, thing.kind)),
    pins=st.sets(st.integers(0, 8), max_size=2),
    unused=st.sampled_from([None, None, 0, 1, 7, 30]),
    share=st.sampled_from([None, 0.0, 0.3, 0.6, 1.0]),
)
def test_random_homes_lose_exactly_what_the_rules_say(template, home, things, pins, unused, share):
    shutil.rmtree(home, ignore_errors=True)
    made = build_home(things, template)
    safe = set()
    for thing in (thing for index, thing in enumerate(things) if index in pins):
        if thing.kind in ("", "partial"):
            pin_version(thing.name, thing.version)
            safe.add(datasets_folder() / thing.name / thing.version)
    most = None if share is None else int(share * bytes_of(set(made)))
    expected = expected_rest(made, safe, unused, most)
    content = snapshot(*expected)
    assert total_bytes() == bytes_of(set(made))
    planned = collect_garbage(unused_days=unused, max_bytes=most, dry_run=True)
    assert snapshot(*made).keys() >= content.keys()
    before = total_bytes()
    report = collect_garbage(unused_days=unused, max_bytes=most)
    assert report == planned
    put_back = {
        path: datasets_folder() / made[path].name / made[path].version
        for path in expected
        if made[path].kind == "replaced"
    }
    assert {one.path for one in report.removed} == set(made) - expected
    for path in set(made) - expected:
        assert not path.exists()
    for path in set(expected) - set(put_back):
        assert snapshot(path).items() <= content.items()
    assert all(path.is_dir() for path in put_back.values())
    assert report.left_bytes == total_bytes()
    assert sum(one.freed_bytes for one in report.removed) == before - report.left_bytes
