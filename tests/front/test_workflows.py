"""Workflows and issue forms are what GitHub takes, as far as this can be known here."""

import shutil
from pathlib import Path

import pytest

from tests.programs import run_program
from tests.tool_environments import tool_python

GITHUB = Path(__file__).parents[2] / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schema", "files"),
    [("github-workflows", WORKFLOWS), ("github-issue-forms", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")))],
)
def test_they_follow_their_schema(schema, files):
    assert files
    python = tool_python("check-jsonschema==0.39.0", alone=True)
    command = [python, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = run_program(command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_actionlint_finds_nothing():
    found = shutil.which("actionlint")
    if found is None:
        pytest.skip("actionlint is not installed; its releases are on github.com/rhysd/actionlint")
    done = run_program([found, *WORKFLOWS])
    assert done.returncode == 0, done.stdout + done.stderr
