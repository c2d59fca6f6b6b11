"""Ctrl-C and SIGTERM: a command that they stop says what stands, and which command goes on."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeAlias

from orlog.base.terminal import tell
from orlog.cli.options import Begun

_Handlers: TypeAlias = dict[signal.Signals, Any]

STANDS = {
    "audit": "an audit changes nothing",
    "build export": "what is not finished leaves nothing",
    "verify": "checking changes nothing, and files that --repair fetched stay",
    "download publish import": "files that arrived stay, and are not fetched or sent again",
    "evaluate": "each run keeps its last evaluation that is complete",
    "train finetune": "a run keeps its last checkpoint",
    "reproduce sweep quickstart": "finished runs and the last checkpoints of others stay",
    "ope": "an estimate keeps nothing; fewer steps of each fit are faster: --fqe-steps",
}
"""What stands of a command that was stopped at any moment."""
OTHERWISE = "what was finished stays, and nothing is half written"


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End a command that Ctrl-C or SIGTERM stops with two lines, and the code 130 or 143."""
    stopped_by = 0
    is_ending = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal stopped_by
        stopped_by = number
        raise KeyboardInterrupt

    def stop_again() -> None:
        if not is_ending:
            os.kill(os.getpid(), stopped_by)

    def again_if_lost(ignored: Any) -> None:
        # What arrives in a finalizer is ignored by Python: imports have many.
        if isinstance(ignored.exc_value, KeyboardInterrupt) and stopped_by:
            threading.Timer(0.05, stop_again).start()
        else:
            hook(ignored)

    hook, sys.unraisablehook = sys.unraisablehook, again_if_lost
    usual: _Handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    # What a shell lets this process ignore stays ignored.
    usual = {number: one for number, one in usual.items() if signal.getsignal(number) is one}
    _handle(dict.fromkeys(usual, stop))
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        # typer ends a command with 130 where it sees a KeyboardInterrupt.
        if not stopped_by or getattr(end, "code", 130) != 130:
            raise
        is_ending = True
        usual = dict.fromkeys(usual, signal.SIG_DFL)  # a second one ends what is still waited for
        _handle(usual)
        name = "Ctrl-C" if stopped_by == signal.SIGINT else "SIGTERM"
        words = sys.argv[1:]
        stands = next((text for names, text in STANDS.items() if {*words} & {*names.split()}), OTHERWISE)
        tell(f"stopped by {name}: {stands}.\nto go on, run: {command_to_go_on()}")
        sys.exit(128 + stopped_by)
    finally:
        _handle(usual)
        sys.unraisablehook = hook


def command_to_go_on() -> str:
    """Return the command that runs, with all its options and those with which it goes on."""
    words = sys.argv[1:]
    again = ["orlog", *words, *(word for word in Begun.more if word not in words)]
    if "--resume" in again:  # what it would replace is gone
        again = [word for word in again if word != "--overwrite"]
    return shlex.join(again)


def _handle(handlers: _Handlers) -> None:
    with contextlib.suppress(ValueError):  # in other threads than the first, which get no signals
        for number, handler in handlers.items():
            signal.signal(number, handler)
