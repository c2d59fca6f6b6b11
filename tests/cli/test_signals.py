"""Ctrl-C and SIGTERM, sent to real commands while they import, work, and wait for other processes."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from orlog.datasets.home.folders import datasets_folder
from tests.command_line import orlog

# As the command `orlog`: processes that it starts import this file too. At its moment it stands still.
COMMAND = """
import os, sys, time

moment = os.environ["MOMENT"]


def stand_still(*_, **__):
    os.write(1, b"now\\n")  # in one piece: several processes may come here
    time.sleep(600)


class Finalizer:
    __del__ = stand_still


class Finder:
    def find_spec(self, name, *_):
        if name == moment and __name__ == "__main__":
            stand_still()
        if name == "torch" and moment == "finalizer":
            Finalizer()


if moment == "process" and __name__ != "__main__":
    stand_still()
if moment == "progress":
    from rich.progress import Progress

    Progress.update = stand_still
sys.meta_path.insert(0, Finder())
from orlog.cli import main

if __name__ == "__main__":
    main()
"""
MINI = "pointmaze/umaze-mini-v1"
CTRL_C, SIGTERM = signal.SIGINT, signal.SIGTERM
NAMES = {CTRL_C: "Ctrl-C", SIGTERM: "SIGTERM"}
AT_ONCE = "orlog.datasets.loading"


def stopped(words, moment, number, folder):
    """Send a signal to a command at a moment, as a terminal does; return what goes on."""
    (folder / "command.py").write_text(COMMAND, "utf-8")
    with subprocess.Popen(
        [sys.executable, "command.py", *shlex.split(words)],
        env={**os.environ, "MOMENT": moment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        cwd=folder,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        while (line := running.stdout.readline()) != "now\n":
            assert line, running.communicate()
        os.killpg(running.pid, number)
        _, err = running.communicate(timeout=600)  # all that it started has ended then
    assert running.returncode == 128 + number, err
    assert "Traceback" not in err
    assert "resource_tracker" not in err
    stands, on = err.splitlines()[-2:]
    assert stands.startswith(f"stopped by {NAMES[number]}: ")
    assert on.startswith("to go on, run: orlog ")
    return on.partition("run: ")[2]


@pytest.fixture
def folder(mini_folder, tmp_path):
    """Return a folder with a run of one step, in which commands are given."""
    words = f"train bc {mini_folder} --steps 1 --evaluations 0 --out run"
    found = orlog(*words.split(), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "moment", "number"),
    [
        ("build classic/pendulum-mixed-v1", "progress", SIGTERM),
        ("build classic/pendulum-mixed-v1", "process", CTRL_C),
        ("evaluate run", "torch", SIGTERM),
        ("evaluate run --episodes 100000", "finalizer", CTRL_C),
        (f"train bc {MINI}", AT_ONCE, SIGTERM),
        (f"export {MINI} minari out", AT_ONCE, CTRL_C),
        ("list", "orlog.datasets.listing", CTRL_C),
    ],
)
def test_a_command_that_is_stopped_says_how_to_go_on(words, moment, number, folder):
    assert stopped(words, moment, number, folder) == f"orlog {words}"
    assert [*datasets_folder().rglob("*.unfinished*")] == []


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_run_here")  # of the command that goes on
def test_a_reproduction_that_is_stopped_while_it_trains_goes_on(mini, tmp_path):
    words = f"reproduce bc {mini.name} --seeds 2 --steps 20 --evaluations 1 --episodes 1 --out r"
    on = stopped(words, "progress", CTRL_C, tmp_path)
    assert on == f"orlog {words} --resume"
    again = orlog(*shlex.split(on)[1:], cwd=tmp_path)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("module", ["typer", "numpy", "orlog.cli.options"])
def test_ctrl_c_while_the_command_line_is_imported_is_one_line(module):
    command = [sys.executable, "-X", "importtime", "-m", "orlog.cli", "list"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:  # a line for each module, when it was imported
            if line.split(b"|")[-1].strip() == module.encode():
                break
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr if not line.startswith(b"import time:")]
    # On a busy machine the command may have begun when the signal comes.
    assert b"".join(said).startswith(b"stopped by Ctrl-C: ")
    assert len(said) == (1 if b"nothing had begun" in said[0] else 2)
    assert process.returncode == 130
