"""Between Python and the words of a command line.

The library speaks Python: `resume=True`, `columns={'action': 'u'}`, `orlog.import_dataset('a.h5', 'NAME')`. The
command line prints `--resume`, `--map action=u`, `orlog import a.h5 NAME`. What the command that runs has no
option for stays, as it is an argument of something else. Settings of an algorithm may be given as options.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from orlog.algos.algorithms import ALGORITHMS, known_as
from orlog.cli.options import Begun
from orlog.manifests.names import did_you_mean

ARGUMENTS = (
    "address|algorithm|audit|codebase|columns|curve_episodes|dataset|device|discount|ends|"
    "episode|evaluations|expert|format|hashes|horizon|keep_checkpoints|length|like|log|lossy|"
    "no_video|noise|observation|overwrite|partial|port|precision|preset|rate|replace|resume|"
    "reward|seed|seeds|settings|sign|sign_existing|sort|source|step|steps|stream|task|"
    "trust_environment|trusted|video|whole_files|workers"
)
"""The arguments that a message may name."""
OTHER_NAMES = {"columns": "map", "settings": "set", "trusted": "trust"}
"""The names of options that are not those of their arguments."""
COMMANDS = {"import_dataset": "orlog import"}
"""The command of each function that a message may end with a call of."""
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# The last two are what messages write for any value, `..`, and nothing at all: `rate=`.
_VALUE = rf"\{{(?:{_TEXT}|[^{{}}'\"])*\}}|{_TEXT}|[\w.+-]*\w|\.\.|"
# Not in a call or a signature, not after an option, such as `--set steps=5`, nor where Python is meant.
_ARGUMENT = re.compile(
    r"\w\([^()]*\)|\((?:\w+=?, )+\w+=\)"
    rf"|(?<![^\s(])(?<!--set )(?<!--map )({ARGUMENTS})=({_VALUE})(?!\w| in Python)"
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
    command = Begun.command
    for word in sys.argv[1:] if words is None else words:
        command = getattr(command, "commands", {}).get(word, command)
    known = _takes_value(getattr(command, "params", ()))

    def option(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        written = _words(found[1], _value(found[2]))
        return " ".join(written) if written[0] in known else found[0]

    parts = _CALL.split(message)  # text, function, text, ..
    calls = [_command(found[0]) for found in _CALL.finditer(message)]
    texts = [_ARGUMENT.sub(option, text) for text in parts[::2]]
    return "".join(part for pair in zip(texts, [*calls, ""], strict=True) for part in pair)


def _command(call: str) -> str:
    """Return the command that does what a call does; the call where it is not written out."""
    try:
        (node,) = ast.parse(call).body
        assert isinstance(node, ast.Expr)
        assert isinstance(node.value, ast.Call)
        assert isinstance(node.value.func, ast.Attribute)
        given = [ast.literal_eval(value) for value in node.value.args]
        words = [COMMANDS[node.value.func.attr], *map(shlex.quote, given)]
        for keyword in node.value.keywords:
            option, *values = _words(str(keyword.arg), ast.literal_eval(keyword.value), quoted=True)
            words += [option, *values]
    except (AssertionError, SyntaxError, TypeError, ValueError):
        return call
    return " ".join(words)


def _words(name: str, value: Any, *, quoted: bool = False) -> list[str]:
    """Return an argument as an option with its values."""
    if name not in ARGUMENTS.split("|"):
        raise ValueError(f"{name} is not an argument that messages name.")
    option = OTHER_NAMES.get(name, name.replace("_", "-"))
    if value is True or value in ("", {}):
        return [f"--{option}"]
    if value is False:
        return [f"--no-{option}"]
    texts = [f"{key}={text}" for key, text in value.items()] if isinstance(value, dict) else [value]
    written = (shlex.quote(str(text)) if quoted else str(text) for text in texts)
    return [word for text in written for word in (f"--{option}", text)]


def _value(text: str) -> Any:
    """Return a value as messages write it: a literal, or a word that stands for one."""
    is_number = text[:1].isdigit()
    try:
        return text if is_number else ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


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
    words name.

    Args:
        parameters: The parameters of the command, as its context has them.
        words: The command line.

    Raises ValueError that names the nearest option or setting where there is none of a name, or no value.
    """
    takes_value = _takes_value(parameters)
    settings = _settings_meant(words)
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
        elif not equals and waiting:
            value = waiting.pop(0)
        elif not equals:
            raise ValueError(f"{name} takes a value.")
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
                config = read_run(Path(word)).config
                settings |= {name: type(value) for name, value in config.items()}
    if not settings:
        for algorithm in ALGORITHMS:
            settings |= setting_types(algorithm)
    return settings
