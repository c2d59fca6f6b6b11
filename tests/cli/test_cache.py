"""The commands about disk space, as a user runs them."""

import json
import os
import shutil

import pytest
import typer
from typer.testing import CliRunner

from orlog import Dataset
from orlog.cli import app
from orlog.cli import cache as commands
from orlog.datasets.home.folders import datasets_folder
from orlog.datasets.home.garbage import cached_versions
from orlog.errors import NotFoundError, StorageError
from orlog.loaders.pack_cache import hold_pack
from orlog.loaders.packs import open_pack, pack_folder
from orlog.runs.results import stored_space
from tests.datasets.cached_homes import age, beside, place, put, record_template

ARM, LEG = "lab/arm-v1", "lab/leg-v1"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Return a tiny recorded version; do not write to it."""
    return record_template(tmp_path_factory.mktemp("template"))


@pytest.fixture(autouse=True)
def no_lock(monkeypatch):
    monkeypatch.setenv("ORLOG_LOCK", "0")


def run(*arguments, answer=None, raw=False):
    """Run a command that must succeed; return what it printed as one line."""
    found = CliRunner().invoke(app, list(map(str, arguments)), input=answer, env={"COLUMNS": "300"})
    if found.exception is not None:
        raise found.exception
    return found.output if raw else " ".join(found.output.split())


def test_versions_are_listed_for_people_and_for_scripts(template, tmp_path, monkeypatch):
    assert f"folder: {datasets_folder()} in all: 0 B" in run("cache", "list")
    folder = place(template, ARM, "1.0.0", days=40, linked=True)
    place(template, LEG, "2.0.0", downloaded=False, linked=True)
    put(beside(folder.with_name("1.1.0"), "download"), size=2_500_000)
    shared = tmp_path / "[group]"
    shutil.copytree(folder, shared / "datasets" / ARM / "3.0.0")
    monkeypatch.setenv("ORLOG_SHARED", str(shared))
    run("cache", "keep", ARM)
    shown = run("cache", "list")
    for words in ("downloaded from lab", "40 days ago", "pinned", "recorded", "just now"):
        assert words in shown
    for words in ("1.1.0 download 2.5 MB", str(shared / "datasets"), "in all: 2.5 MB"):
        assert words in shown
    body = json.loads(run("cache", "list", "--json", raw=True))
    assert body["folder"] == str(datasets_folder())
    assert [(one["version"], one["kind"]) for one in body["versions"]] == [
        ("1.1.0", "download"),
        ("1.0.0", "version"),
        ("2.0.0", "version"),
        ("3.0.0", "version"),
    ]
    assert 2_500_000 < body["total_bytes"] < 2_600_000
    assert body["versions"][1]["shared_bytes"] > 0


def test_long_origins_are_cut_and_their_queries_are_not_shown(template):
    folder = place(template, ARM, "1.0.0")
    url = f"https://data.example.org/{'deep/' * 30}lab/arm-v1/1.0.0"
    origin = json.loads(beside(folder, "origin.json").read_text("utf-8"))
    origin |= {"registry": "", "mirrors": [f"{url}?token=abc123"]}
    beside(folder, "origin.json").write_text(json.dumps(origin))
    shown = CliRunner().invoke(app, ["cache", "list"], env={"COLUMNS": "100"}).output
    (line,) = (line for line in shown.splitlines() if ARM in line)
    assert "downloaded from https://da..lab/arm-v1/1.0.0" in line
    assert shown.count("arm-v1") == 2
    refused = CliRunner().invoke(app, ["delete", ARM]).output
    for text in (shown, refused, run("cache", "list", "--json", raw=True)):
        assert "abc123" not in text
    assert f"orlog download {url}" in "".join(refused.split("\n"))


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
    for size in ("much", "-1G", "1E", ""):
        with pytest.raises((SystemExit, typer.BadParameter)):
            run("cache", "gc", "--max-size", size)


def test_deleting_shows_what_goes_and_asks(template, monkeypatch):
    folder = place(template, ARM, "1.0.0")
    place(template, ARM, "2.0.0", downloaded=False)
    put(beside(folder, "strange"))
    put(beside(folder, "recording"))
    with pytest.raises(ValueError, match="add --yes"):
        run("delete", ARM)
    monkeypatch.setattr(commands, "_is_terminal", lambda: True)
    with pytest.raises(SystemExit):
        run("delete", ARM, answer="n\n")
    assert len(cached_versions()) == 4
    told = run("delete", ARM, answer="y\n")
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


def test_only_the_version_named_is_deleted(template):
    place(template, ARM, "1.0.0")
    place(template, ARM, "2.0.0")
    assert f"deleted {ARM}@1.0.0" in run("delete", f"{ARM}@1.0.0", "--yes")
    assert [one.version for one in cached_versions()] == ["2.0.0"]
    run("cache", "keep", ARM)
    with pytest.raises(StorageError, match="orlog cache keep --off"):
        run("delete", ARM, "--yes")
    with pytest.raises(NotFoundError, match="not on this machine"):
        run("delete", LEG, "--yes")


def pack_of(folder, days):
    """Make the pack of a version, last opened so many days ago."""
    dataset = Dataset(folder)
    open_pack(dataset)
    age(pack_folder(dataset), days)
    return pack_folder(dataset)


def test_packs_are_listed(template):
    assert "packs:" not in run("cache", "list")
    folder = place(template, ARM, "1.0.0")
    pack, view = pack_of(folder, 12), Dataset(folder)[[0]]
    open_pack(view)
    shown = run("cache", "list")
    assert "12 days ago" in shown
    assert f"packs: {pack.parent} in all: " in shown
    body = json.loads(run("cache", "list", "--json", raw=True))
    assert body["packs_folder"] == str(pack.parent)
    (first,) = (one for one in body["packs"] if one["folder"] == str(pack))
    assert (first["name"], first["versions"], first["is_view"]) == (ARM, [f"{ARM}@1.0.0"], False)
    (second,) = (one for one in body["packs"] if one["folder"] == str(pack_folder(view)))
    assert (second["name"], second["is_view"], second["kind"]) == (ARM, True, "pack")
    assert body["packs_bytes"] == first["size_bytes"] + second["size_bytes"] > 0


def test_results_of_sweeps_are_counted(home):
    assert "results:" not in run("cache", "list")
    for key, files in (("a" * 64, ("result.json", "run.json")), ("b" * 64, ("run.json",))):
        (home / "results" / key).mkdir(parents=True)
        for name in files:
            (home / "results" / key / name).write_bytes(bytes(1000))
    assert f"results: {home / 'results'} in all: 3.0 kB; 1 finished, 1 begun" in run("cache", "list")
    body = json.loads(run("cache", "list", "--json", raw=True))
    assert body["results"] == {"finished": 1, "begun": 1, "size_bytes": 3000}


def test_a_file_that_is_removed_while_results_are_counted_is_left_out(home, monkeypatch):
    folder = home / "results" / ("a" * 64)
    folder.mkdir(parents=True)
    for name in ("run.json", ".run.json.unfinished"):
        (folder / name).write_bytes(bytes(1000))
    walk = os.walk

    def walk_beside_a_run(top):
        for below in walk(top):
            (folder / ".run.json.unfinished").unlink(missing_ok=True)
            yield below

    monkeypatch.setattr(os, "walk", walk_beside_a_run)
    assert stored_space() == (0, 1, 1000)


def test_packs_are_collected_before_versions(template):
    folders = [place(template, ARM, one, days=40) for one in ("1.0.0", "1.1.0")]
    packs = [pack_of(folders[0], 40), pack_of(folders[1], 20)]
    left = put(beside(packs[0], "unfinished"))
    assert f"would remove {left} (1.0 kB)" in run("cache", "gc", "--dry-run")
    told = run("cache", "gc")
    assert f"removed {left} (1.0 kB): left by a process that ended early" in told
    assert ", packs " in told
    report = json.loads(run("cache", "list", "--json", raw=True))
    told = run("cache", "gc", "--max-size", report["total_bytes"] + report["packs_bytes"] - 1)
    assert f"removed {packs[0]}" in told
    assert packs[1].exists()
    assert all(folder.exists() for folder in folders)
    told = run("cache", "gc", "--unused", 10)
    assert f"removed {packs[1]}" in told
    assert "packs 0 B" in told
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


def test_a_pack_that_cannot_go_does_not_keep_versions(template):
    folders = [place(template, ARM, one, days=40) for one in ("1.0.0", "1.1.0")]
    packs = [pack_of(folder, 40) for folder in folders]
    lock = beside(packs[0], "lock")
    lock.unlink()
    lock.mkdir()
    arguments = ["cache", "gc", "--unused", "30"]
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert isinstance(found.exception, StorageError)
    assert str(lock) in str(found.exception) or str(lock.parent) in str(found.exception)
    told = " ".join(found.output.split())
    for path in (packs[1], *folders):
        assert f"removed {path} (" in told
        assert not path.exists()
    assert packs[0].exists()


def test_names_in_records_are_shown_as_they_are(template):
    record = pack_of(place(template, ARM, "1.0.0"), 3) / "pack.json"
    for name, shown in (("lab/[/x]", "lab/[/x]"), ("\x1b[2Jarm", r"\x1b[2Jarm")):
        body = json.loads(record.read_text()) | {"name": name}
        record.write_text(json.dumps(body))
        assert shown in run("cache", "list")


def test_deleting_a_version_takes_its_pack_along(template):
    folders = [place(template, ARM, one) for one in ("1.0.0", "2.0.0")]
    packs = [pack_of(folder, 3) for folder in folders]
    told = run("delete", f"{ARM}@1.0.0", "--yes")
    assert f"{packs[0]}: its pack (" in told
    assert f"deleted {packs[0]}" in told
    assert [path.exists() for path in packs] == [False, True]
    held = hold_pack(packs[1])
    with pytest.raises(StorageError, match="in use by a process"):
        run("delete", ARM, "--yes")
    assert not folders[1].exists()
    del held
    assert f"removed {packs[1]}" in run("cache", "gc", "--unused", 0)
