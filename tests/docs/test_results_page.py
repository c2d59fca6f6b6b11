"""The page of results, followed from an empty folder: a first home adds a result, and a second one confirms it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import orlog
from tests.docs.test_task_pages import DOCS, commands

SHORTER = {
    "train": ("--evaluations", "1", "--curve-episodes", "2"),
    "evaluate": ("--episodes", "5"),
}


def filled(word: str) -> list[str]:
    """Return the paths that a shell makes of a word."""
    return sorted(map(str, Path().glob(word))) if "?" in word else [word]


def follow(lines: list[list[str]]) -> list[str]:
    """Run commands of the page, shorter than they stand there, and return what each printed."""
    said = []
    for words in lines:
        given = [one for word in words for one in filled(word)]
        if given[0] == "train":  # 200 steps show the same
            given[given.index("--steps") + 1] = "200"
        ended = orlog(*given, *SHORTER.get(given[0], ()))
        assert ended.returncode == 0, f"{given}: {ended.stdout}{ended.stderr}"
        said.append(ended.stdout)
    return said


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_run_here")
def test_a_newcomer_adds_a_result_and_a_second_home_confirms_it(
    mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mini_folder.is_dir()
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    lines = list(commands("results.md"))
    there = next(
        i for i, words in enumerate(lines) if words[:2] == ["key", "new"] and words[2] == "own.key"
    )
    end = next(i for i, words in enumerate(lines) if words[:2] == ["results", "verify"])
    said = follow(lines[:there])
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "second-home"))
    said += follow(lines[there : end + 1])
    assert "confirmation: identical" in said[there + 1]
    assert "confirmed 1x (1 signed by others)" in said[there + 2]
    assert "all agree: 1 result, 1 signed, and 1 note" in said[-1]
    (result,) = Path("results/umaze-mini-v1").glob("bc-????????.json")
    body = json.loads(result.read_bytes())
    page = (DOCS / "results.md").read_text("utf-8")
    table = page.partition("## What a result says")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in table for name in body if name != "result_version")


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_run_here")
def test_a_method_of_ones_own_is_added_and_run_again(
    mini_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mini_folder.is_dir()
    monkeypatch.chdir(tmp_path)
    lesson = (DOCS / "algorithm-in-30-lines.md").read_text("utf-8")
    Path("mine.py").write_text(lesson.partition("```python\n")[2].partition("```")[0])
    follow([["key", "new", "lab.key"]])
    said = follow([words for words in commands("results.md") if "mine" in " ".join(words).lower()])
    assert "confirmation: identical" in said[-1]
