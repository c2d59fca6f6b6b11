"""The application, how a function becomes one of its commands, and the options that several commands share.

A parameter is an option. Its type and default are in the signature, its help under `Options:` in the docstring:

    html (FILE): Also write a page with all of it there.

What stands in parentheses is what the page of help shows of it: its name where it is another one (`--map`), what
stands for its value (`FILE`), its least value (`>= 1`), its default in words, last (`default: all`). A parameter that is a
dataclass stands for an option for each of its fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import orlog
from orlog.algos.algorithms import ALGORITHMS, known_as
from orlog.base.processes import cores
from orlog.base.terminal import say, show_facts
from orlog.manifests.names import bytes_of, counted, size_text

if TYPE_CHECKING:
    from orlog.base.jobs import Execute
    from orlog.datasets.publish.publish import Sign

CORES = cores()
app = typer.Typer(
    name="orlog",
    help="Offline-RL datasets pinned byte by byte, reference algorithms, and honest scores.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Example: orlog quickstart",
)


def command_group(name: str, about: str, example: str) -> typer.Typer:
    """Return a new group of commands, such as `orlog runs`."""
    epilog = f"Example: {example}"
    return typer.Typer(name=name, help=about, no_args_is_help=True, rich_markup_mode="rich", epilog=epilog)


class Begun:
    """The command that began, which holds all others, and the options with which it goes on if it is stopped."""

    command: Any = None
    more: Sequence[str] = ()
    debug: bool = False  # whether errors show their traceback


def _print_version(asked: bool) -> None:
    if asked:
        say(orlog.__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    Begun.debug, Begun.command, Begun.more = debug, context.command, ()
    if context.invoked_subcommand is None:
        _greet()


def _greet() -> None:
    from orlog.datasets.listing import listed_here

    here = [listed for listed in listed_here().values() if listed.state == "here"]
    size = size_text(sum(listed.size_bytes or 0 for listed in here))
    name = here[0].name if here else "classic/pendulum-mixed-v1"
    first = "" if here else f"orlog build {name}, then "
    say(f"orlog {orlog.__version__}: {app.info.help}", style="bold")
    show_facts(
        [
            ("here", f"{counted(len(here), 'dataset')}, {size}; more to build: orlog list"),
            ("next", f"{first}orlog open {name}, in a terminal orlog show {name} --episode 0"),
            ("find", "orlog list --remote --search hopper"),
            ("try", "orlog quickstart"),
            ("help", "orlog --help"),
        ]
    )


def command(
    example: str, group: typer.Typer = app, name: str | None = None, **more: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of a group, under its own name or another, with an example in its help."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        group.command(name, epilog=f"Example: {example}", **more)(takes_options(function))
        return function

    return add


def takes_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a function the signature and help that typer makes a command of; the function itself stays as it is."""
    taken = _parameters(function)
    about, helps = _help_of(function)
    parameters = [option for parameter in taken for option in _options_of(parameter, helps)]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        function(**{parameter.name: _gathered(parameter, given) for parameter in taken})

    run.__doc__ = about
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(documented: Any) -> list[inspect.Parameter]:
    return [*inspect.signature(documented, eval_str=True).parameters.values()]


def _help_of(documented: Any) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return a docstring without its options; and of each option what stands in parentheses, and its help."""
    about, _, options = (inspect.getdoc(documented) or "").partition("\nOptions:\n")
    parts = re.findall(r"^    (\w+)(?: \((.*?)\))?: (.*(?:\n     .*)*)", options, re.MULTILINE)
    return about.strip(), {name: (how, " ".join(text.split())) for name, how, text in parts}


def _options_of(parameter: inspect.Parameter, helps: Mapping[str, tuple[str, str]]) -> Iterator[inspect.Parameter]:
    """Yield a parameter, or in place of one that is a dataclass those that its fields are."""
    kind = parameter.annotation
    if dataclasses.is_dataclass(kind):
        for field in _parameters(kind):
            yield from _options_of(field, _help_of(kind)[1])
        return
    if parameter.name in helps:
        how, text = helps[parameter.name]
        is_needed = parameter.default is inspect.Parameter.empty
        if kind is bool and parameter.default is False and "--" not in how:
            how = f"--{parameter.name.replace('_', '-')}"  # without a --no- of its own
        is_argument = how.startswith("[") or (is_needed and "--" not in how)
        kind = Annotated[kind, option(how, text, typer.Argument if is_argument else typer.Option)]
    yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind)


def _gathered(parameter: inspect.Parameter, given: Mapping[str, Any]) -> Any:
    kind: Any = parameter.annotation
    if not dataclasses.is_dataclass(kind):
        return given[parameter.name]
    return kind(**{field.name: _gathered(field, given) for field in _parameters(kind)})  # type: ignore[operator]


def option(how: str, text: str, make: Any = typer.Option, **more: Any) -> Any:
    """Return what typer takes for an option: `how` is what would stand in parentheses in a docstring."""
    how, _, default = how.partition("default: ")
    if default:
        more["show_default"] = default
    names = []
    for part in filter(None, how.split(", ")):
        if part.startswith("--"):
            name, _, part = part.partition(" ")
            names = [name]
        if part.startswith(">= "):
            number = part.removeprefix(">= ")
            more["min"] = int(number) if number.isdecimal() else float(number)
        elif part:
            more["metavar"] = part
    return make(*names, help=text.replace("[", r"\["), **more)  # rich reads brackets


def argument(how: str, text: str, **more: Any) -> Any:
    """Return what typer takes for an argument, as `option` does."""
    return option(how, text, typer.Argument, **more)


def read_bytes(text: str, expected: str, *, at_least: int = 0) -> int:
    """Return the bytes that a text such as 500M or 1.5G means."""
    try:
        size = bytes_of(text)
    except ValueError:
        size = -1
    if size < at_least:
        raise typer.BadParameter(f"{text!r}: expected {expected}.")
    return size


# Datasets.
def _names_that_begin(incomplete: str) -> list[str]:
    """Return the datasets of the catalogue and those here whose names begin so, for the shell."""
    from orlog.datasets.listing import listed_here

    return [name for name in listed_here() if name.startswith(incomplete)]


_DATASET = "Dataset: a name such as pointmaze/umaze-v1, or a path."
Name = Annotated[str, argument("", _DATASET, autocompletion=_names_that_begin)]
OptionalName = Annotated[str | None, argument("", _DATASET, autocompletion=_names_that_begin)]
Versions = Annotated[str, argument("NAME[@VERSION]", "Dataset; without a version, all versions that are here.")]
Container = Annotated[Literal["zarr", "hdf5"], option("", "Container to write.")]
ChunkHashes = Annotated[
    bool,
    option("--chunk-hashes", "Add a hash of each chunk, so that those who read it in place can check every chunk."),
]

# Training.
_ALGORITHM = f"{', '.join(ALGORITHMS)}, or FILE.py:CLASS of an algorithm of your own."
Algorithm = Annotated[
    str,
    argument(
        "",
        _ALGORITHM,
        callback=known_as,
        autocompletion=lambda incomplete: [one for one in ALGORITHMS if one.startswith(incomplete)],
    ),
]
OptionalAlgorithm = Annotated[
    str | None, argument("", _ALGORITHM, show_default=False, callback=lambda given: given and known_as(given))
]
Settings = Annotated[list[str] | None, option("--set", "A setting of the algorithm, as name=value; may be repeated.")]
Steps = Annotated[int | None, option(">= 1, default: the recipe's", "Gradient steps.")]
Device = Annotated[str, option("DEVICE", "Where to compute: cpu, cuda, cuda:1, or auto for a GPU if there is one.")]
Log = Annotated[str, option("", "Copy the log of metrics, which is in metrics.jsonl: tensorboard or wandb.")]
Overwrite = Annotated[bool, option("--overwrite", "Replace the run that the folder holds.")]

# Trained runs.
DatasetOfRun = Annotated[str | None, option("", "Path or name of the dataset, if its recorded name does not find it.")]
AlgorithmOfRun = Annotated[str | None, option("FILE.py:CLASS", "The algorithm of the run, if it is one of your own.")]

# Environments.
TrustEnvironment = Annotated[bool, option("--trust-environment", "Use environment arguments that come with the data.")]


def _import_modules(names: list[str] | None) -> list[str] | None:
    if names:
        from orlog.datasets.worlds.environments import import_modules

        import_modules(names)
    return names


Imports = Annotated[
    list[str] | None,
    option(
        "--import MODULE",
        "Module or file of yours that registers environments; may be repeated. ORLOG_IMPORT=MODULE,.. says the same.",
        callback=_import_modules,
    ),
]

# What is printed, and by how many processes it is made.
AsJson = Annotated[bool, option("--json", "Print a JSON document for scripts, and nothing else.")]
PROCESSES = "Processes to use."
Workers = Annotated[int, option(">= 1", PROCESSES)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """How files are fetched.

    Options:
        mirror (--mirror URL): Another place to try, before the others. May be repeated.
        jobs (>= 1): Number of files to transfer at once.
        limit_rate (RATE, default: none): Bytes per second at most: 500k, 20M.
    """

    mirror: list[str] | None = None
    jobs: int = 16
    limit_rate: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Return them as `download_dataset` and `repair_dataset` take them."""
        from orlog.datasets.download.transfer import Limiter

        rate = "bytes per second such as 500k or 20M"
        limit = self.limit_rate and Limiter(read_bytes(self.limit_rate, rate, at_least=1))
        return {"mirrors": self.mirror or (), "jobs": self.jobs, "limiter": limit or None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signing:
    """With which key an index is signed, and whose signatures in it are trusted.

    Options:
        sign (FILE): Key to sign with: orlog registry key FILE --new
        trust (KEY): Public key of another signer of this registry. May be repeated.
        sign_existing: Sign the existing index and everything in it, without checking.
    """

    sign: Path | None = None
    trust: list[str] | None = None
    sign_existing: bool = False

    def signer(self) -> Sign | None:
        """Return what signs, and refuse the other options where nothing does."""
        if self.sign is not None:
            from orlog.manifests import signatures

            return functools.partial(signatures.sign, key_file=self.sign)
        if self.trust or self.sign_existing:
            raise typer.BadParameter("--trust and --sign-existing are only for signing; add --sign FILE.")
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executing:
    """Where jobs run.

    Options:
        executor: Where jobs run: processes, ray or slurm.
        address: Ray: its cluster, as HOST:PORT, or auto for the one here.
        executor_option (NAME=VALUE): SLURM: partition=NAME, time=MINUTES, memory=GIGABYTES. May be repeated.
    """

    executor: str = "processes"
    address: str | None = None
    executor_option: list[str] | None = None

    def chosen(self) -> Execute:
        """Return the executor that the options choose."""
        from orlog.runs.jobs import find_executor

        given = {} if self.address is None else {"address": self.address}
        for option in self.executor_option or []:
            key, equals, value = option.partition("=")
            if not equals:
                raise typer.BadParameter(f"--executor-option takes NAME=VALUE, found {option!r}.")
            given[key] = value
        return find_executor(self.executor, **given)

    def on_cluster(self) -> Execute | None:
        """Return the executor that the options choose; None for processes of the command itself."""
        if self.executor == "processes" and not self.address and not self.executor_option:
            return None
        return self.chosen()
