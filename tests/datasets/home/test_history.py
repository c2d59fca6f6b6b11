"""Statuses of versions: set, read, cleared, and refused where they are nonsense."""

import json
import re

import pytest

from orlog.datasets.home import records
from orlog.datasets.home.records import choose_version, clear_status, read_history, set_status, status_message
from orlog.errors import FormatVersionError, InvalidNameError, ManifestError, NotFoundError
from orlog.manifests.index import VersionStatus

NAME = "pointmaze/umaze-v1"
YANKED = VersionStatus(status="yanked", reason="rewards were shifted by a step", use="1.1.0")
OLD = VersionStatus(status="superseded", reason="more episodes", use="pointmaze/umaze-v2")


def set_yanked(version="1.0.0"):
    set_status(NAME, version, "yanked", reason=YANKED.reason, use=YANKED.use)


def test_what_is_set_goes_before_what_ships_until_it_is_cleared(home, tmp_path, monkeypatch):
    assert read_history(NAME) == {}
    assert not home.exists()
    monkeypatch.setattr(records, "recorded_folder", lambda name: tmp_path / "shipped" / name)
    shipped = tmp_path / "shipped" / NAME / "versions.json"
    shipped.parent.mkdir(parents=True)
    entry = {"status": "superseded", "reason": "more episodes", "use": "pointmaze/umaze-v2"}
    shipped.write_text(json.dumps({"history_version": 1, "versions": {"1.0.0": entry}}), "utf-8")
    before = shipped.read_bytes()
    assert read_history(NAME) == {"1.0.0": OLD}
    set_yanked("1.0.0")
    set_yanked("1.0.5")
    assert read_history(NAME) == {"1.0.0": YANKED, "1.0.5": YANKED}
    assert read_history("pointmaze/umaze-v2") == {}
    clear_status(NAME, "1.0.0")
    assert read_history(NAME) == {"1.0.0": OLD, "1.0.5": YANKED}
    assert shipped.read_bytes() == before
    with pytest.raises(NotFoundError):
        clear_status(NAME, "1.0.0")


@pytest.mark.parametrize(
    ("versions", "known", "expected"),
    [
        ([], {}, None),
        (["2.0.0", "1.0.0"], {}, "2.0.0"),
        (["2.0.0", "1.0.0"], {"2.0.0": YANKED}, "1.0.0"),
        (["2.0.0", "1.0.0"], {"2.0.0": OLD}, "2.0.0"),
        (["2.0.0", "1.0.0"], {"2.0.0": YANKED, "1.0.0": YANKED}, None),
    ],
)
def test_the_newest_that_is_not_yanked_is_chosen(versions, known, expected):
    assert choose_version(versions, known) == expected


def test_a_message_says_what_why_and_what_instead():
    bare = VersionStatus(status="yanked", reason="licence withdrawn")
    known = {"1.0.0": YANKED, "0.9.0": OLD, "0.8.0": bare}
    for version, words in (
        ("1.0.0", f"yanked: rewards were shifted by a step; use {NAME}@1.1.0."),
        ("0.9.0", "superseded: more episodes; use pointmaze/umaze-v2."),
        ("0.8.0", "yanked: licence withdrawn."),
    ):
        assert status_message(NAME, version, known) == f"{NAME}@{version} was {words}"
    assert status_message(NAME, "2.0.0", known) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1.0"},
        {"status": "fine"},
        {"reason": " "},
        {"reason": "\x1b[2J"},
        {"reason": "x" * 1001},
        {"use": "1.0.0"},
        {"use": "newest"},
        {"name": "../up/a-v1"},
        {"name": f"{NAME}@1.0.0"},
    ],
)
def test_nonsense_is_never_written(home, change):
    given = {"name": NAME, "version": "1.0.0", "status": "yanked", "reason": "why", **change}
    with pytest.raises(ValueError, match=r"."):
        set_status(**given)
    if "name" in change:
        for action in (read_history, lambda name: clear_status(name, "1.0.0")):
            with pytest.raises(InvalidNameError):
                action(change["name"])
    assert not home.exists()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"history_version": 1, "versions": {}, "more": 1}',
        '{"history_version": 1, "versions": {"one": {"status": "yanked", "reason": "a"}}}',
        '{"history_version": 1, "versions": {"1.0.0": {"status": "good", "reason": "a"}}}',
        '{"history_version": 2}',
    ],
)
def test_a_wrong_file_is_refused_with_its_path_and_kept(home, content):
    path = home / "datasets" / NAME / "versions.json"
    path.parent.mkdir(parents=True)
    path.write_text(content, "utf-8")
    for action in (lambda: read_history(NAME), set_yanked):
        with pytest.raises((ManifestError, FormatVersionError), match=re.escape(str(path))):
            action()
    assert path.read_text("utf-8") == content
