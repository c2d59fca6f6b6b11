"""The notebooks run from top to bottom, in a kernel of this environment and an empty folder."""

import json
import runpy
import sys
import tempfile
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
LONGEST_S = 600  # whatever hangs is not waited for
LONGEST = "train_and_score"
CASES = [
    pytest.param(one, marks=[pytest.mark.thorough] if one.stem == LONGEST else [], id=one.stem) for one in NOTEBOOKS
]


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return the name of a kernel of the Python that runs the tests, whatever kernels the user has."""
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "tests", "language": "python"}
    folder = tmp_path / "jupyter" / "kernels" / "tests"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec), "utf-8")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel chooses the one that draws in a notebook
    return "tests"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("source", CASES)
def test_the_notebooks_run(source, kernel, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    notebook = jupytext.read(source, fmt="py:percent")
    where = {"metadata": {"path": str(work)}}
    with tempfile.TemporaryDirectory() as sockets:  # tmp_path is longer than their names may be
        # Not ports: until the kernel opens those that were free, a server of another test may have one.
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        options = {"kernel_name": kernel, "resources": where, "config": config}
        NotebookClient(notebook, startup_timeout=LONGEST_S, timeout=LONGEST_S, **options).execute()
    drawn = [cell for cell in notebook.cells if cell.source.endswith(".plot()")]
    assert all("image/png" in cell.outputs[-1].data for cell in drawn)


def test_every_notebook_is_a_page_of_the_site():
    build = runpy.run_path(str(ROOT / "docs" / "build_site.py"))
    pages = {name for name in build["MOVED"] if name.startswith("notebooks/")}
    assert pages == {f"notebooks/{source.name}" for source in NOTEBOOKS}
