"""What commands say when they fail or are stopped: options in place of arguments, and the command that goes on.

The library speaks Python: `resume=True`, `orlog.import_dataset('a.h5', 'NAME')`. The command line prints `--resume`,
`orlog import a.h5 NAME`. What the command that runs has no option for stays. Settings of an algorithm may be given
as options.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orlog.algos.algorithms import ALGORITHMS, known_as
from orlog.base.terminal import tell
from orlog.cli.options import Begun
from orlog.manifests.names import did_you_mean

OTHER_NAMES = {"columns": "map", "settings": "set", "trusted": "trust"}
"""The names of options that are not those of their arguments."""
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# The last two values are what messages write for any value, `..`, and nothing at all: `rate=`.
_VALUE = rf"\{{(?:{_TEXT}|[^{{}}'\"])*\}}|{_TEXT}|[\w.+-]*\w|\.\.|"
# Not in a call or a signature, not after an option, such as `--set steps=5`, nor where Python is meant.
_ARGUMENT = re.compile(
    rf"\w\([^()]*\)|\((?:\w+=?, )+\w+=\)|(?<![^\s(])(?<!--set )(?<!--map )(\w+)=({_VALUE})(?!\w| in Python)"
)
_CALL = re.compile(r"\borlog\.import_dataset(\(.*\))$", re.MULTILINE)


def in_options(message: str, words: Sequence[str] | None = None) -> str:
    """Return a message with options of the command that runs for arguments, and a command for a call."""
    command = Begun.command
    for word in sys.argv[1:] if words is None else words:
        command = getattr(command, "commands", {}).get(word, command)
    known = _takes_value(getattr(command, "params", ()))

    def option(argument: re.Match[str]) -> str:
        if argument[1] is None:
            return argument[0]
        value: Any = argument[2]
        with contextlib.suppress(SyntaxError, ValueError):  # a word that stands for a value
            value = value if value[:1].isdigit() else ast.literal_eval(value)
        written = _words(argument[1], value)
        return " ".join(written) if written[0] in known else argument[0]

    parts = _CALL.split(message)  # text, arguments of a call, text, ..
    parts[::2] = [_ARGUMENT.sub(option, text) for text in parts[::2]]
    parts[1::2] = [_import_command(arguments) for arguments in parts[1::2]]
    return "".join(parts)


def _import_command(arguments: str) -> str:
    """Return the command that imports as a call does; the call where it is not written out."""
    try:
        call: Any = ast.parse(f"f{arguments}", mode="eval").body
        words = ["orlog import", *(shlex.quote(ast.literal_eval(value)) for value in call.args)]
        for keyword in call.keywords:
            option, *values = _words(keyword.arg, ast.literal_eval(keyword.value))
            words += [option, *(value if value == option else shlex.quote(value) for value in values)]
    except (SyntaxError, TypeError, ValueError):
        return f"orlog.import_dataset{arguments}"
    return " ".join(words)


def _words(name: str, value: Any) -> list[str]:
    """Return an argument as an option with its values."""
    option = f"--{OTHER_NAMES.get(name, name.replace('_', '-'))}"
    if value is True or value in ("", {}):
        return [option]
    if value is False:
        return [f"--no-{option[2:]}"]
    texts = [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else [value]
    return [word for text in texts for word in (option, str(text))]


def _takes_value(parameters: Iterable[Any]) -> dict[str, bool]:
    """Return every name of the options among the parameters of a command, and whether a value follows it."""
    return {
        name: not getattr(parameter, "is_flag", False)
        for parameter in parameters
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }


def as_settings(parameters: Iterable[Any], words: Sequence[str]) -> list[str]:
    """Return the words of a command line with options that are settings of the algorithm as `--set`.

    `--batch-size 64` becomes `--set batch_size=64`. Which settings there are, the algorithms and runs say that the
    words name. `parameters` are those of the command.

    Raises ValueError that names the nearest option or setting where there is none of a name, or no value.
    """
    takes_value, settings = _takes_value(parameters), _settings_meant(words)
    changed: list[str] = []
    waiting = [*words]
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*changed, word, *waiting]
        if name in takes_value or not name.startswith("--"):
            changed.append(word)
            if takes_value.get(name) and not equals and waiting:
                changed.append(waiting.pop(0))
            continue
        setting = name.removeprefix("--").replace("-", "_")
        if setting not in settings:
            there = [f"--{known.replace('_', '-')}" for known in settings]
            near = did_you_mean(name, dict.fromkeys([*takes_value, *there]))
            listed = f"; settings of the algorithm are options too: {', '.join(there)}."
            raise ValueError(f"No such option: {name}{near or listed}")
        if not equals and settings[setting] is bool and waiting[:1] not in (["true"], ["false"]):
            value = "true"
        elif not equals:
            if not waiting:
                raise ValueError(f"{name} takes a value.")
            value = waiting.pop(0)
        changed += ["--set", f"{setting}={value}"]
    return changed


def _settings_meant(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings, with types, of the algorithms or runs that words name; of all if none does."""
    from orlog.algos.settings import setting_types
    from orlog.algos.training.runs import RUN_FILE, read_run
    from orlog.errors import OrlogError

    settings: dict[str, Any] = {}
    for word in words:
        with contextlib.suppress(OrlogError, OSError, ValueError):
            if known_as(word) in ALGORITHMS or (":" in word and not word.startswith("-")):
                settings |= setting_types(word)
            elif (Path(word) / RUN_FILE).is_file():
                settings |= {name: type(value) for name, value in read_run(Path(word)).config.items()}
    for algorithm in () if settings else ALGORITHMS:
        settings |= setting_types(algorithm)
    return settings


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End a command that Ctrl-C or SIGTERM stops with two lines, and the code 130 or 143."""
    stopped_by = 0
    is_ending = False

    def stop(number: int, _frame: object) -> None:
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
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    # What a shell lets this process ignore stays ignored.
    usual = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
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
        tell(f"stopped by {name}: what was finished stays, and nothing is half written.")
        tell(f"to go on, run: {command_to_go_on()}")
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


def _handle(handlers: dict[signal.Signals, Any]) -> None:
    with contextlib.suppress(ValueError):  # in other threads than the first, which get no signals
        for number, handler in handlers.items():
            signal.signal(number, handler)
