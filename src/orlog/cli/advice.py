"""Options and commands in place of the arguments and calls that messages of the library name.

The library speaks Python: `resume=True`, `columns={'action': 'u'}`, `orlog.import_dataset('a.h5', 'NAME')`. The
command line prints `--resume`, `--map action=u`, `orlog import a.h5 NAME`. What the command that runs has no
option for stays, as it is an argument of something else.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from orlog.cli.options import Begun

OPTIONS = {
    "address": "--address",
    "algorithm": "--algorithm",
    "audit": "--audit",
    "columns": "--map",
    "curve_episodes": "--curve-episodes",
    "dataset": "--dataset",
    "device": "--device",
    "discount": "--discount",
    "ends": "--ends",
    "episode": "--episode",
    "evaluations": "--evaluations",
    "expert": "--expert",
    "format": "--format",
    "hashes": "--hashes",
    "horizon": "--horizon",
    "keep_checkpoints": "--keep-checkpoints",
    "length": "--length",
    "like": "--like",
    "log": "--log",
    "lossy": "--lossy",
    "no_video": "--no-video",
    "noise": "--noise",
    "observation": "--observation",
    "overwrite": "--overwrite",
    "partial": "--partial",
    "port": "--port",
    "precision": "--precision",
    "preset": "--preset",
    "rate": "--rate",
    "replace": "--replace",
    "resume": "--resume",
    "reward": "--reward",
    "seed": "--seed",
    "seeds": "--seeds",
    "settings": "--set",
    "sign": "--sign",
    "sign_existing": "--sign-existing",
    "sort": "--sort",
    "source": "--source",
    "step": "--step",
    "steps": "--steps",
    "stream": "--stream",
    "task": "--task",
    "trust_environment": "--trust-environment",
    "trusted": "--trust",
    "video": "--video",
    "codebase": "--codebase",
    "whole_files": "--whole-files",
    "workers": "--workers",
}
"""The option of each argument that a message may name."""
COMMANDS = {"import_dataset": "orlog import"}
"""The command of each function that a message may end with a call of."""
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# The last two are what messages write for any value, `..`, and nothing at all: `rate=`.
_VALUE = rf"\{{(?:{_TEXT}|[^{{}}'\"])*\}}|{_TEXT}|[\w.+-]*\w|\.\.|"
# Not in a call or a signature, not after an option, such as `--set steps=5`, nor where Python is meant.
_ARGUMENT = re.compile(
    r"\w\([^()]*\)|\((?:\w+=?, )+\w+=\)"
    rf"|(?<![^\s(])(?<!--set )(?<!--map )({'|'.join(OPTIONS)})=({_VALUE})(?!\w| in Python)"
)
_CALL = re.compile(rf"\borlog\.({'|'.join(COMMANDS)})\(.*\)$", re.MULTILINE)


def with_line(text: str, free: str) -> str:
    """Return a message that ends with a free version, with the command that ran, for that version, in its place."""
    words, name = sys.argv[1:], free.partition("@")[0]
    places = [place for place, word in enumerate(words) if word.partition("@")[0] == name]
    if not places:
        return text
    words[places[-1]] = free
    return text.replace(f"give another version: {free}", f"run: orlog {shlex.join(words)}")


def in_options(message: str, words: Sequence[str] | None = None) -> str:
    """Return a message with options of the command that runs in place of arguments, and commands of calls."""
    known = _options_of(sys.argv[1:] if words is None else words)

    def option(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        written = _words(found[1], _value(found[2]))
        return " ".join(written) if written[0] in known else found[0]

    parts = _CALL.split(message)  # text, function, text, ..
    calls = [one[0] for one in _CALL.finditer(message)]
    texts = [_ARGUMENT.sub(option, text) for text in parts[::2]]
    return texts[0] + "".join(
        _command(call) + text for call, text in zip(calls, texts[1:], strict=True)
    )


def _options_of(words: Sequence[str]) -> set[str]:
    """Return the options of the command that words begin with."""
    command = Begun.command
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return {
        option
        for one in getattr(command, "params", ())
        for option in (*one.opts, *one.secondary_opts)
    }


def _command(call: str) -> str:
    """Return the command that does what a call does; the call where it is not written out."""
    try:
        (node,) = ast.parse(call).body
        assert isinstance(node, ast.Expr)
        assert isinstance(node.value, ast.Call)
        assert isinstance(node.value.func, ast.Attribute)
        given = [ast.literal_eval(one) for one in node.value.args]
        words = [COMMANDS[node.value.func.attr], *map(shlex.quote, given)]
        for one in node.value.keywords:
            option, *values = _words(str(one.arg), ast.literal_eval(one.value), quoted=True)
            words += [option, *values]
    except (AssertionError, KeyError, SyntaxError, TypeError, ValueError):
        return call
    return " ".join(words)


def _words(name: str, value: Any, *, quoted: bool = False) -> list[str]:
    """Return an argument as an option with its values."""
    option = OPTIONS[name]
    if value is True or value in ("", {}):
        return [option]
    if value is False:
        return [f"--no-{option[2:]}"]
    texts = [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else [value]
    written = (shlex.quote(str(text)) if quoted else str(text) for text in texts)
    return [word for text in written for word in (option, text)]


def _value(text: str) -> Any:
    """Return a value as messages write it: a literal, or a word that stands for one."""
    is_number = text[:1].isdigit()
    try:
        return text if is_number else ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
