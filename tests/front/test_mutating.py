"""Finding a mutant again: the figures of two checkouts are only then of the same changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.mutating import DRAWN, Mutant, find

SOURCE = """
class Cutter:
    def cut(self, rows):
        if rows < 3:
            return 1
        return rows - 1


def other(rows):
    return rows - 1
"""
MUTANT: Mutant = {"module": "old", "function": "Cutter.cut", "before": "return rows - 1"}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("", ""), 6),
        (("if rows < 3:", "print()\n        if rows < 3:"), 7),
        (("class Cutter:", "class EpisodeCutter:"), 6),
        (("        return rows - 1", "        return rows"), None),
    ],
)
def test_a_mutant_is_found_after_its_function_moved(
    tmp_path: Path, change: tuple[str, str], line: int | None
) -> None:
    file = tmp_path / "datasets" / "elsewhere" / "new.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE.replace(*change), "utf-8")
    expected = None if line is None else (file, line)
    assert find(MUTANT, tmp_path) == expected


def test_the_drawn_mutants_are_many_and_most_are_in_the_code() -> None:
    drawn = json.loads(DRAWN.read_text("utf-8"))
    assert len(drawn) >= 200
    assert sum(find(mutant) is None for mutant in drawn) < 0.2 * len(drawn)
