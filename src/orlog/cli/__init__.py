"""The command line. Exit codes: 0 good, 1 user error, 2 usage, 3 integrity, 130 and 143 stopped by a signal.

`orlog reproduce` ends in a verdict, with codes of its own (`orlog.cli.reproducing`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any


def main() -> None:
    """Run the command line; Ctrl-C while it is still imported ends it with one line."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        _handle(_stop)
    from orlog.cli.commands import run

    if usual is signal.default_int_handler:
        _handle(usual)
    run()


def _handle(handler: Any) -> None:
    with contextlib.suppress(ValueError):  # in other threads than the first, which get no signals
        signal.signal(signal.SIGINT, handler)


def _stop(*_: object) -> None:
    # Nothing has begun, and libraries that are imported halfway may turn an exception into another.
    os.write(2, b"stopped by Ctrl-C: nothing had begun.\n")
    os._exit(130)
