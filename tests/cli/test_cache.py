"""The commands about disk space, as a user runs them."""

import json
import shutil

import pytest

from orlog import Dataset
from orlog.cli import cache as commands
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import cached_versions
from orlog.loaders.packs import hold_pack, open_pack, pack_folder
from tests.command_line import orlog
from tests.datasets.cached_homes import age, beside, place, put, record_template

ARM, LEG = "lab/arm-v1", "lab/leg-v1"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return a tiny recorded version; do not write to it."""
    return record_template(tmp_path_factory.mktemp("template"))


@pytest.fixture(autouse=True)
def no_lock(monkeypatch):
    monkeypatch.setenv("ORLOG_LOCK", "0")


def run(*arguments, code=0):
    """Run a command; return what it printed as one line."""
    ended = orlog(*map(str, arguments))
    assert ended.returncode == code, ended.stderr
    return " ".join((ended.stdout + ended.stderr).split())


def listed():
    return json.loads(run("cache", "list", "--json"))


def test_versions_are_listed_for_people_and_for_scripts(template, tmp_path, monkeypatch):
    folder = place(template, ARM, "1.0.0", days=40, linked=True)
    place(template, LEG, "2.0.0", downloaded=False, linked=True)
    put(beside(folder.with_name("1.1.0"), "download"), size=2_500_000)
    shared = tmp_path / "[group]"
    shutil.copytree(folder, shared / "datasets" / ARM / "3.0.0")
    monkeypatch.setenv("ORLOG_SHARED", str(shared))
    origin = json.loads(beside(folder, "origin.json").read_text("utf-8"))
    origin["mirrors"] = [f"{one}?token=abc123" for one in origin["mirrors"]]
    beside(folder, "origin.json").write_text(json.dumps(origin))
    run("cache", "keep", ARM)
    shown = run("cache", "list")
    for words in ("downloaded from lab", "40 days ago", "pinned", "recorded", "just now", "2.5 MB", str(shared)):
        assert words in shown
    body = listed()
    assert body["folder"] == str(datasets_folder())
    assert [(one["version"], one["kind"]) for one in body["versions"]] == [
        ("1.1.0", "download"),
        ("1.0.0", "version"),
        ("2.0.0", "version"),
        ("3.0.0", "version"),
    ]
    assert 2_500_000 < body["total_bytes"] < 2_600_000
    assert body["versions"][1]["shared_bytes"] > 0
    assert "abc123" not in shown + json.dumps(body)


def test_garbage_is_collected_and_told(template):
    old = place(template, ARM, "1.0.0", days=40)
    pinned = place(template, ARM, "2.0.0", days=40)
    left = put(beside(old, "unfinished"))
    assert run("cache", "keep", f"{ARM}@2.0.0") == f"{ARM}@2.0.0 is kept"
    told = run("cache", "gc", "--unused", 30, "--dry-run")
    assert f"would remove {left} (1.0 kB): left by a process that ended early" in told
    assert f"would remove {old}" in told
    assert old.exists()
    told = run("cache", "gc")
    assert told.startswith(f"removed {left}")
    assert "1.0 kB freed" in told
    told = run("cache", "gc", "--max-size", "1k")
    assert f"removed {old}" in told
    assert f"kept {pinned}: is kept" in told
    assert "that is more than 1k" in told
    assert run("cache", "keep", "--off", ARM) == f"{ARM}@2.0.0 is no longer kept"
    assert run("cache", "keep", "--off", ARM) == f"{ARM}@2.0.0 was not kept"
    assert "not opened for 40 days" in run("cache", "gc", "--unused", 30)
    assert cached_versions() == []
    for size in ("much", "-1G", ""):
        run("cache", "gc", "--max-size", size, code=2)


def test_deleting_shows_what_goes_and_asks(template, monkeypatch):
    folder = place(template, ARM, "1.0.0")
    place(template, ARM, "2.0.0", downloaded=False)
    put(beside(folder, "strange"))
    put(beside(folder, "recording"))
    assert "add --yes" in run("delete", ARM, code=1)
    monkeypatch.setattr(commands, "_is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: (_ for _ in ()).throw(commands.typer.Abort))
    run("delete", ARM, code=130)
    assert len(cached_versions()) == 4
    told = run("delete", ARM, "--yes")
    for words in (
        f"{folder}: to get it again, run: orlog download {ARM}@1.0.0",
        f"{folder.with_name('2.0.0')}: NO OTHER COPY IS KNOWN (recorded)",
        f"{beside(folder, 'strange')}: NO OTHER COPY IS KNOWN (moved aside by a repair)",
        f"{beside(folder, 'recording')}: an interrupted recording, left alone",
        f"deleted {ARM}@1.0.0",
        f"deleted {ARM}@2.0.0",
    ):
        assert words in told
    assert [one.kind for one in cached_versions()] == ["recording"]
    place(template, LEG, "1.0.0")
    run("cache", "keep", LEG)
    assert "orlog cache keep --off" in run("delete", LEG, "--yes", code=1)


def pack_of(folder, days):
    """Make the pack of a version, last opened so many days ago."""
    dataset = Dataset(folder)
    open_pack(dataset)
    age(pack_folder(dataset), days)
    return pack_folder(dataset)


def test_packs_and_results_of_sweeps_are_listed(template, home):
    folder = place(template, ARM, "1.0.0")
    pack, view = pack_of(folder, 12), Dataset(folder)[[0]]
    open_pack(view)
    for key, files in (("a" * 64, ("result.json", "run.json")), ("b" * 64, ("run.json",))):
        (home / "results" / key).mkdir(parents=True)
        for name in files:
            (home / "results" / key / name).write_bytes(bytes(1000))
    assert "12 days ago" in run("cache", "list")
    body = listed()
    assert body["packs_folder"] == str(pack.parent)
    packs = {one["folder"]: one for one in body["packs"]}
    first, second = packs[str(pack)], packs[str(pack_folder(view))]
    assert (first["name"], first["versions"], first["is_view"]) == (ARM, [f"{ARM}@1.0.0"], False)
    assert (second["name"], second["is_view"], second["kind"]) == (ARM, True, "pack")
    assert body["packs_bytes"] == first["size_bytes"] + second["size_bytes"] > 0
    assert body["results"] == {"finished": 1, "begun": 1, "size_bytes": 3000}


def test_packs_are_collected_before_versions(template):
    folders = [place(template, ARM, one, days=40) for one in ("1.0.0", "1.1.0")]
    packs = [pack_of(folders[0], 40), pack_of(folders[1], 20)]
    report = listed()
    told = run("cache", "gc", "--max-size", report["total_bytes"] + report["packs_bytes"] - 1)
    assert f"removed {packs[0]}" in told
    assert packs[1].exists()
    assert all(folder.exists() for folder in folders)
    assert f"removed {packs[1]}" in run("cache", "gc", "--unused", 10)
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("unused", [None, 30])
def test_packs_have_the_room_that_is_left_by_what_goes_anyway(template, unused):
    pack = pack_of(place(template, ARM, "1.0.0", days=3), 3)
    old = place(template, LEG, "1.0.0", days=40)
    gone = put(beside(old, "unfinished"), size=3_000_000)
    if unused is not None:
        gone = old
        (old / "manifest.json").write_bytes((old / "manifest.json").read_bytes() + b" " * 3_000_000)
        age(old, 40)
    limits = ("--max-size", "1M") if unused is None else ("--max-size", "1M", "--unused", unused)
    for dry_run in (True, False):
        told = run("cache", "gc", *limits, *(["--dry-run"] if dry_run else []))
        assert told.count(f"{'would remove' if dry_run else 'removed'} {gone} ") == 1
        assert str(pack) not in told
        assert "that is more than" not in told
    assert pack.exists()
    assert not gone.exists()


def test_a_pack_that_cannot_go_keeps_nothing_else(template):
    folders = [place(template, ARM, one, days=40) for one in ("1.0.0", "1.1.0")]
    packs = [pack_of(folder, 40) for folder in folders]
    lock = beside(packs[0], "lock")
    lock.unlink()
    lock.mkdir()
    told = run("cache", "gc", "--unused", 30, code=1)
    for path in (packs[1], *folders):
        assert f"removed {path} (" in told
        assert not path.exists()
    assert packs[0].exists()


def test_deleting_a_version_takes_its_pack_along(template):
    folders = [place(template, ARM, one) for one in ("1.0.0", "2.0.0")]
    packs = [pack_of(folder, 3) for folder in folders]
    assert f"deleted {packs[0]}" in run("delete", f"{ARM}@1.0.0", "--yes")
    assert [path.exists() for path in packs] == [False, True]
    held = hold_pack(packs[1])
    assert "in use by a process" in run("delete", ARM, "--yes", code=1)
    assert not folders[1].exists()
    del held
    assert f"removed {packs[1]}" in run("cache", "gc", "--unused", 0)
