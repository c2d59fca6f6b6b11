"""Runs the command line inside of the test's own process, where no start has to be waited for."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from orlog.cli import main


class Ended(NamedTuple):
    """What a command left: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def orlog(*arguments, cwd=None):
    """Run `orlog` with arguments, as `python -m orlog.cli` would in a new process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["orlog", *arguments]),
        mock.patch.object(sys, "excepthook", sys.excepthook),  # typer puts its own there
        mock.patch.dict(os.environ, {"COLUMNS": "200", "NO_COLOR": "1"}),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.resetwarnings()
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        except Exception:  # noqa: BLE001 (a new process would print it and end with 1)
            traceback.print_exc()
            code = 1
    assert code is None or isinstance(code, int)
    return Ended(code or 0, out.getvalue(), err.getvalue())
