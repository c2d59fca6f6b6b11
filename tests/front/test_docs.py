from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_python_in_the_docs_runs(page: Path, mini_folder: Path) -> None:
    assert mini_folder.is_dir()
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    for block in blocks:
        # The small dataset stands in for the large one, which takes a minute to build.
        code = block.replace("umaze-v1", "umaze-mini-v1")
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_every_link_in_the_docs_leads_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r}); import write_cli; print(write_cli.cli_page(), end='')"
    found = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        encoding="utf-8",
        env=os.environ,
    )
    assert found.stdout == (ROOT / "docs" / "cli.md").read_text("utf-8"), "run: make docs"


def test_the_example_runs(mini_folder: Path) -> None:
    assert mini_folder.is_dir()
    found = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "first_steps.py")],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    assert "observations/observation: (301, 4)" in found.stdout
    assert "step 100" in found.stdout
