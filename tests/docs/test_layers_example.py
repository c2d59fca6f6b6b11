"""The example of layers, as it is run by its page."""

import runpy
import shutil
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "layers.py"


@pytest.mark.slow
def test_the_example_of_layers_runs(built_mini, tmp_path, monkeypatch, capsys):
    shutil.copytree(built_mini, tmp_path / "home" / "datasets" / "pointmaze" / "umaze-mini-v1" / "1.0.0")
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "filter view" in printed
    assert "trained on pointmaze/umaze-mini-v1 by episodes/weight" in printed
