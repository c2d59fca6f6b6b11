"""The page of results, followed from an empty folder: a first home writes a file, and a second one confirms it."""

import json
from pathlib import Path

import pytest

from tests.command_line import orlog
from tests.docs.test_task_pages import DOCS, commands

SHORTER = {"train": ("--evaluations", "1", "--curve-episodes", "2"), "evaluate": ("--episodes", "5")}


def follow(*words):
    """Run a command of the page, shorter than it stands there, and return what it printed."""
    given = ["200" if before == "--steps" else word for before, word in zip(("", *words), (*words, ""), strict=True)][
        :-1
    ]
    ended = orlog(*given, *SHORTER.get(given[0], ()))
    assert ended.returncode == 0, f"{given}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture
def empty(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


@pytest.mark.slow
@pytest.mark.usefixtures("empty", "mini_folder", "jobs_run_here")
def test_a_newcomer_writes_a_file_and_a_second_home_confirms_it(tmp_path, monkeypatch):
    lines = list(commands("results.md"))
    assert [words[0] for words in lines] == ["build", "train", "evaluate", "compare", "reproduce"]
    said = [follow(*words) for words in lines[:4]]
    assert "bc" in said[3].lower()
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "second-home"))
    assert follow(*lines[4]).startswith("confirms: identical")
    body = json.loads(Path("results/bc.json").read_bytes())
    assert [len(seed["returns"]) for seed in body["seeds"]] == [5, 5, 5]
    page = (DOCS / "results.md").read_text("utf-8")
    table = page.partition("## What a file says")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in table for name in body)
