"""Names, paths and texts that look like markup are printed as they are, by every command."""

import re
import shutil

import pytest

from tests.cli.test_commands import COMMANDS
from tests.command_line import orlog

MINI = "pointmaze/umaze-mini-v1"
GOOD = "lab/good-v1"
HOME = "home[bold]"
SMALL = "--steps 20 --evaluations 1"

# What is run, in this order and in one folder, and what is then in its output.
DATA = {
    f"build {MINI}": HOME,
    "list": HOME,
    f"show {MINI}": HOME,
    f"show {MINI} --card c[red]d.md": "c[red]d.md and c[red]d.svg",
    f"audit {MINI} --html a[red]b.html": "written: a[red]b.html",
    f"save {MINI} a[bold]b.json --top 50": "a[bold]b.json",
    f"save a[bold]b.json {GOOD} --changes [red]new[/red] --description [/x]": HOME,
    f"show {GOOD}": "[/x]",
    f"diff {MINI} {GOOD}": "[/x]",
    f"layer lab/labels-v1 --of {MINI} --score return --description [/x]": "episodes/quality",
    f"save {MINI} c[i]d --container hdf5": "c[i]d",
    f"export {MINI} minari e[i]f --lossy": f"{MINI} as minari in e[i]f",
    "import e[i]f lab/imported-v1": HOME,
    "import e[b]f.hdf5 lab/other-v1": "e[b]f.hdf5",
    "import --list": "d4rl",
    f"lock {MINI}": "work[/b]/orlog.lock",
    "lock": "work[/b]/orlog.lock",
    f"mark {GOOD}@1.0.0 superseded --reason [b]upside[/b]": GOOD,
    f"show {GOOD}@1.0.0": "[b]upside[/b]",
    "cache list": HOME,
    f"cache keep {GOOD}": GOOD,
    f"cache keep --off {GOOD}": GOOD,
    "cache gc --dry-run": "0 B would be freed",
    "registry key k[b].pem --new": "private key: k[b].pem",
    "registry key k[b].pem": "ed25519:",
    f"publish {MINI} r[b] --sign k[b].pem": "r[b]",
    f"publish {GOOD} r[b] --sign k[b].pem": "r[b]",
    "registry add lab r[b]": "r[b]",
    "registry list": "r[b]",
    f"delete {GOOD} --yes": HOME,
    f"download {GOOD}": HOME,
    f"verify {GOOD} --repair": HOME,
    f"verify {GOOD}": "[b]upside[/b]",
    f"verify nothing[b]/{GOOD}": f"nothing[b]/{GOOD}",
    "registry remove lab": "r[b]",
}
RUNS = {
    f"train bc {MINI} --out runs/t[b] {SMALL}": "orlog evaluate 'runs/t[b]'",
    f"train iql {MINI} --out runs/i[b] {SMALL} --preset none": "runs/i[b]",
    f"train bc {MINI} --seeds 0-1 --processes 1 --out s[b] {SMALL}": "s[b]/seed-1",
    "evaluate runs --episodes 2": "to compare them, run: orlog compare runs",
    "evaluate n[b]": "n[b]",
    "finetune runs/i[b] --steps 20 --evaluations 0 --out f[b]": "orlog evaluate 'f[b]'",
    "runs": "runs/t[b]",
    "runs runs/t[b] --command": "--out 'runs/t[b]'",
    "runs n[b]": "n[b]",
    "runs --verify": "2 runs, none is damaged",
    "compare m[b]=runs/t[b] runs/i[b] --plot p[b]": "m[b]",
    "compare m[b]=runs/t[b] --tuning --plot u[b].svg": "m[b]",
    "ope runs/t[b] runs/i[b] --fqe-steps 2 --fqe-fits 1 --episodes 1": "runs/t[b] step 20",
    f"scores {MINI}": "source: measured with orlog",
    f"scores {MINI} 20": "source: measured with orlog",
    f"reproduce bc {MINI} --seeds 1 --episodes 1 --workers 1 --out o[b] {SMALL}": "BC",
    f"sweep --datasets {MINI} --algorithms bc --seeds 1 --episodes 1 --workers 1 --out q[b] {SMALL}": "report: q[b]",
    "evaluate runs/t[b] --episodes 2 --out d[b]/t[b].json": "d[b]/t[b].json",
    "compare d[b]": "BC",
    f"train bc {MINI} --steps 2 --evaluations 0 --out k[b]": "trained BC",
    "compare runs/t[b] k[b]": "k[b]: has no score yet",
    "reproduce n[b].json": "n[b].json",
    "scores n[b]/m": "n[b]/m",
}


@pytest.fixture
def folder(built_mini, tmp_path, monkeypatch):
    """Return a folder to work in; like that of the home, its name looks like markup."""
    shutil.copytree(built_mini, tmp_path / HOME / "datasets" / MINI / "1.0.0")
    monkeypatch.setenv("ORLOG_HOME", str(tmp_path / HOME))
    folder = tmp_path / "work[" / "b]"
    folder.mkdir(parents=True)
    return folder


def run_each(expected, folder):
    missing = {}
    for line, text in expected.items():
        found = orlog(*line.split(), cwd=folder)
        printed = found.stdout + found.stderr
        if text not in re.sub(r" {2,}", " ", printed) or "Traceback" in printed:
            missing[line] = printed
    assert missing == {}


@pytest.mark.slow
def test_commands_about_data(folder):
    run_each(DATA, folder)


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_run_here")
def test_commands_about_runs(folder):
    run_each(RUNS, folder)


def test_no_command_is_left_out():
    left_out = {one for one in COMMANDS if not any(f"{line} ".startswith(f"{one} ") for line in (*DATA, *RUNS))}
    # The quickstart takes minutes and calls what these call; the viewer serves until it is stopped
    # (viewer/test_server.py).
    assert left_out == {"quickstart", "open"}
