"""Every example of a format runs in an empty folder."""

import runpy
from pathlib import Path

import pytest

from orlog.datasets.formats.formats import formats

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "formats").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_of_a_format_runs(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert "episodes" in capsys.readouterr().out


def test_every_format_has_an_example_and_a_row_in_the_docs():
    rows = (ROOT / "docs" / "formats.md").read_text("utf-8")
    for name in formats():
        assert name in {example.stem for example in EXAMPLES}, name
        assert f"| `{name}` |" in rows, name
