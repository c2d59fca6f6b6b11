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


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Return a file of the history that ships with orlog, with one entry in it."""
    monkeypatch.setattr(records, "recorded_folder", lambda name: tmp_path / "shipped" / name)
    path = tmp_path / "shipped" / NAME / "versions.json"
    path.parent.mkdir(parents=True)
    entry = {"status": "superseded", "reason": "more episodes", "use": "pointmaze/umaze-v2"}
    path.write_text(json.dumps({"history_version": 1, "versions": {"1.0.0": entry}}), "utf-8")
    return path


def set_yanked(version="1.0.0", name=NAME):
    set_status(name, version, "yanked", reason=YANKED.reason, use=YANKED.use)


def test_a_version_is_fine_until_something_is_known(home):
    assert read_history(NAME) == {}
    assert status_message(NAME, "1.0.0", {}) is None
    assert not home.exists()


def test_what_is_set_is_read_and_cleared(home):
    set_yanked()
    set_status(NAME, "1.0.1", "superseded", reason=OLD.reason, use=OLD.use)
    assert read_history(NAME) == {"1.0.0": YANKED, "1.0.1": OLD}
    assert read_history("pointmaze/umaze-v2") == {}
    path = home / "datasets" / NAME / "versions.json"
    assert json.loads(path.read_text("utf-8"))["history_version"] == 1
    assert path.read_text("utf-8").endswith("}\n")
    clear_status(NAME, "1.0.0")
    assert read_history(NAME) == {"1.0.1": OLD}
    clear_status(NAME, "1.0.1")
    assert read_history(NAME) == {}


def test_this_machine_goes_before_what_ships(shipped):
    before = shipped.read_bytes()
    assert read_history(NAME) == {"1.0.0": OLD}
    set_yanked("1.0.0")
    set_yanked("1.0.5")
    assert read_history(NAME) == {"1.0.0": YANKED, "1.0.5": YANKED}
    clear_status(NAME, "1.0.0")
    assert read_history(NAME) == {"1.0.0": OLD, "1.0.5": YANKED}
    assert shipped.read_bytes() == before
    with pytest.raises(NotFoundError, match=r"no status of .*@1\.0\.0 is recorded on this machine"):
        clear_status(NAME, "1.0.0")


@pytest.mark.parametrize(
    ("versions", "known", "expected"),
    [
        ([], {}, None),
        (["2.0.0", "1.0.0"], {}, "2.0.0"),
        (["2.0.0", "1.0.0"], {"2.0.0": YANKED}, "1.0.0"),
        (["2.0.0", "1.0.0"], {"2.0.0": OLD}, "2.0.0"),
        (["2.0.0", "1.0.0"], {"2.0.0": YANKED, "1.0.0": YANKED}, None),
        (["2.0.0", "1.0.0"], {"2.0.0": YANKED, "1.0.0": OLD}, "1.0.0"),
    ],
)
def test_the_newest_that_is_not_yanked_is_chosen(versions, known, expected):
    assert choose_version(versions, known) == expected


def test_a_message_says_what_why_and_what_instead():
    bare = VersionStatus(status="yanked", reason="licence withdrawn")
    known = {"1.0.0": YANKED, "0.9.0": OLD, "0.8.0": bare}
    assert status_message(NAME, "1.0.0", known) == (
        f"{NAME}@1.0.0 was yanked: rewards were shifted by a step; use {NAME}@1.1.0."
    )
    assert status_message(NAME, "0.9.0", known) == (
        f"{NAME}@0.9.0 was superseded: more episodes; use pointmaze/umaze-v2."
    )
    assert status_message(NAME, "0.8.0", known) == f"{NAME}@0.8.0 was yanked: licence withdrawn."
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
    with pytest.raises(ValueError, match=r"superseded|needs a reason|not a|in place of|without a"):
        set_status(**given)
    assert not home.exists()


@pytest.mark.parametrize("name", [f"{NAME}@1.0.0", "../../etc/a-v1", ""])
def test_names_are_checked_before_they_become_paths(name):
    for action in (read_history, lambda name: clear_status(name, "1.0.0")):
        with pytest.raises(InvalidNameError):
            action(name)


@pytest.mark.parametrize(
    "content",
    [
        "",
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
