from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console

from orlog.base.terminal import console, errors, print_json, table

DIGEST = "sha256:" + "0123456789abcdef" * 4
LONG = f"{DIGEST} {'a sentence of many words ' * 20}{DIGEST}"


@pytest.mark.parametrize("one", [console, errors])
@pytest.mark.parametrize("forced", [False, True])
def test_what_is_not_a_terminal_gets_lines_as_wide_as_needed(
    one: Console, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_terminal_still_gets_lines_of_its_width() -> None:
    ours, theirs = pty.openpty()
    code = f"from orlog.base.terminal import console; console.print({LONG!r})"
    environment = {key: text for key, text in os.environ.items() if key not in ("COLUMNS", "LINES")}
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"TERM": "xterm"},
    ):
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # Linux says so when the other end is closed
            pass
    os.close(ours)
    widths = [len(line) for line in text.decode().splitlines()]
    assert len(widths) > 3
    assert max(widths) <= 100


def test_json_is_one_document_that_any_reader_takes(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "ü\x1b[1m", "list": [1, None]})
    found = capsys.readouterr()
    assert json.loads(found.out) == {"name": "ü\x1b[1m", "list": [1, None]}
    assert "\x1b" not in found.out
    with pytest.raises(ValueError, match=r"."):
        print_json({"score": float("nan")})


@pytest.mark.parametrize("one", [console, errors])
def test_a_file_and_its_class_are_printed_as_they_are(one: Console) -> None:
    with one.capture() as printed:
        one.print("error: ./mine.py:X: must be a class")
        one.print(table(["algorithm"], [["./mine.py:X: and :smile:"]]))
    assert "./mine.py:X: must" in printed.get()
    assert "./mine.py:X: and :smile:" in printed.get()
