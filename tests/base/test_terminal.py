import fcntl
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import ConsoleDimensions

from orlog.base import terminal
from orlog.base.terminal import console, errors, print_json, progress_bar, progress_bars, show_table, table
from tests.command_line import orlog
from tests.programs import run_program
from tests.viewer.made import write_robot

DIGEST = "sha256:" + "0123456789abcdef" * 4
LONG = f"{DIGEST} {'a sentence of many words ' * 20}{DIGEST}"


@pytest.mark.parametrize("one", [console, errors])
@pytest.mark.parametrize("forced", [False, True])
def test_what_is_not_a_terminal_gets_lines_as_wide_as_needed(one, forced, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout" if one is console else "stderr", out)
    one.print(LONG)
    one.print(table(("name", "digest"), [("x" * 100, DIGEST), (LONG, DIGEST)]))
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0] == LONG
    assert lines[2].split() == ["x" * 100, DIGEST]
    assert max(map(len, lines)) < 2000


def in_a_terminal(*arguments, **environment):
    """Return what Python prints into a terminal of 100 columns that has colors."""
    ours, theirs = pty.openpty()
    kept = {key: text for key, text in os.environ.items() if key not in ("COLUMNS", "LINES")}
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept | {"TERM": "xterm-256color"} | environment,
    ):
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # Linux says so when the other end is closed
            pass
    os.close(ours)
    return text.decode()


@pytest.mark.slow
def test_frames_are_drawn_only_where_colors_are_wanted():
    write_robot(episodes=1, steps=4)
    command = ("-m", "orlog.cli", "show", "lab/robot-v1", "--episode", "0")
    assert "▀" in in_a_terminal(*command)
    plain = in_a_terminal(*command, NO_COLOR="1")
    assert "▀" not in plain
    assert "a terminal with colors shows them" in plain


def test_json_is_one_document_that_any_reader_takes(capsys):
    print_json({"name": "ü\x1b[1m", "list": [1, None]})
    found = capsys.readouterr()
    assert json.loads(found.out) == {"name": "ü\x1b[1m", "list": [1, None]}
    assert "\x1b" not in found.out
    with pytest.raises(ValueError, match=r"."):
        print_json({"score": float("nan")})


def test_columns_without_text_and_those_a_window_lacks_are_left_out(monkeypatch, capsys):
    headings, rows = ("name", "note", "steps", "state"), [("a" * 30, "", "1,000", "here")]
    for width, left in ((80, "name steps state"), (40, "name state"), (20, "name state")):
        size = ConsoleDimensions(width, 25)
        monkeypatch.setattr(type(console), "size", size)
        show_table(headings, rows, numbers=(2,), spare=("note", "steps"))
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == left.split()
        assert all(line == line.rstrip() for line in lines)


def test_orlog_alone_says_what_is_here_and_what_to_try(mini_folder):
    greeted = orlog()
    assert greeted.returncode == 0
    lines = greeted.stdout.splitlines()
    assert len(lines) == 6
    assert "1 dataset," in lines[1]
    assert "orlog open pointmaze/umaze-mini-v1" in lines[2]
    assert "orlog show pointmaze/umaze-mini-v1 --episode 0" in lines[2]
    shutil.rmtree(mini_folder)
    assert "orlog build classic/pendulum-mixed-v1" in orlog().stdout


def test_the_shell_completes_commands_and_names(mini_folder):
    assert mini_folder.is_dir()
    for words, found in (("orlog sho", "show"), ("orlog show pointmaze/umaze-m", "umaze-mini-v1")):
        told = run_program(
            [sys.executable, "-m", "orlog.cli"],
            env={
                **os.environ,
                "_ORLOG_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")),
            },
        )
        assert found in told.stdout, told.stderr


def test_long_work_without_a_terminal_prints_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    with progress_bar("import") as update:
        update(1, 3_000)
    with progress_bar("steps", "building a/b-v1") as update:
        update(0, 1_000)
    with progress_bars() as update_any:
        update_any("download", 2_500_000, 5_000_000, in_bytes=True)
        update_any("seed 0", 0, None, "waiting")
    assert capsys.readouterr().err.splitlines() == [
        "import: 1 of 3,000",
        "building a/b-v1: 1,000 steps",
        "steps: 0 of 1,000",
        "download: 2.5 of 5.0 MB",
    ]
