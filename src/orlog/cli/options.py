"""The application, and the options that several of its commands take, each declared once.

A command takes options that belong together as one dataclass (`takes_options`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import orlog
from orlog.algos.algorithms import ALGORITHMS, known_as
from orlog.base.processes import cores
from orlog.base.terminal import say, show_facts
from orlog.manifests.names import bytes_of, counted, did_you_mean, size_text

if TYPE_CHECKING:
    from orlog.datasets.publish.publish import Sign
    from orlog.runs.jobs import Executor

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
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        rich_markup_mode="rich",
        epilog=f"Example: {example}",
    )


def _print_version(asked: bool) -> None:
    if asked:
        say(orlog.__version__)
        raise typer.Exit


class Debug:
    """Whether errors show their traceback."""

    on = False


class Begun:
    """The command that began, which holds all others, and the options with which it goes on if it is stopped."""

    command: Any = None
    more: Sequence[str] = ()


def greet() -> None:
    """Print what is here and what to do next."""
    from orlog.datasets.listing import listed_here

    listed = listed_here().values()
    here = [one for one in listed if one.state == "here"]
    to_build = sum(one.source == "catalogue" for one in listed)
    size = size_text(sum(one.size_bytes or 0 for one in here))
    name = here[0].name if here else "classic/pendulum-mixed-v1"
    first = "" if here else f"orlog build {name}, then "
    say(f"orlog {orlog.__version__}: {app.info.help}", style="bold")
    show_facts(
        [
            (
                "here",
                f"{counted(len(here), 'dataset')}, {size}; {to_build} more to build: orlog list",
            ),
            ("next", f"{first}orlog open {name}, in a terminal orlog show {name} --episode 0"),
            ("find", "orlog list --remote --search hopper"),
            ("try", "orlog quickstart"),
            ("help", "orlog --help"),
        ]
    )


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    Debug.on, Begun.command, Begun.more = debug, context.command, ()
    if context.invoked_subcommand is None:
        greet()


CORES = cores()


def as_settings(options: Iterable[Any], words: Sequence[str]) -> list[str]:
    """Return the words of a command line with options that are settings of the algorithm as `--set`.

    `--batch-size 64` becomes `--set batch_size=64`. Which settings there are, the algorithms and runs say that the
    words name.

    Args:
        options: The parameters of the command, as its context has them.
        words: The command line.

    Raises ValueError that names the nearest option or setting where there is none of a name, or no value.
    """
    takes_value = {
        name: not getattr(one, "is_flag", False)
        for one in options
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("-")
    }
    settings = _settings_meant(words)
    found: list[str] = []
    waiting = [*words]
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*found, word, *waiting]
        if name in takes_value or not name.startswith("--"):
            found.append(word)
            if takes_value.get(name) and not equals and waiting:
                found.append(waiting.pop(0))
            continue
        setting = name.removeprefix("--").replace("-", "_")
        if setting not in settings:
            there = [f"--{one.replace('_', '-')}" for one in settings]
            near = did_you_mean(name, dict.fromkeys([*takes_value, *there]))
            listed = f"; settings of the algorithm are options too: {', '.join(there)}."
            raise ValueError(f"No such option: {name}{near or listed}")
        if not equals and settings[setting] is bool and waiting[:1] not in (["true"], ["false"]):
            value = "true"
        elif not equals and waiting:
            value = waiting.pop(0)
        elif not equals:
            raise ValueError(f"{name} takes a value.")
        found += ["--set", f"{setting}={value}"]
    return found


def _settings_meant(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings, with types, of the algorithms or runs that words name; of all if none does."""
    from orlog.algos.settings import setting_types
    from orlog.algos.training.runs import RUN_FILE, read_run
    from orlog.errors import OrlogError

    found: dict[str, Any] = {}
    for word in words:
        with contextlib.suppress(OrlogError, OSError, ValueError):
            if known_as(word) in ALGORITHMS or (":" in word and not word.startswith("-")):
                found |= setting_types(word)
            elif (Path(word) / RUN_FILE).is_file():
                found |= {name: type(value) for name, value in read_run(Path(word)).config.items()}
    if not found:
        for algorithm in ALGORITHMS:
            found |= setting_types(algorithm)
    return found


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of the dataclasses among its parameters.

    typer reads the signature, in which the fields stand in place of their dataclass.
    """
    taken = inspect.signature(command, eval_str=True).parameters
    parameters = [option for one in taken.values() for option in _options_of(one)]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(**{name: _gathered(one, given) for name, one in taken.items()})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _options_of(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield a parameter, or in place of one that is a dataclass those that its fields are."""
    if _is_gathered(parameter):
        for field in _fields(parameter).values():
            yield from _options_of(field)
    else:
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _gathered(parameter: inspect.Parameter, given: Mapping[str, Any]) -> Any:
    """Return the value of a parameter, a dataclass made of its fields where it is one."""
    if not _is_gathered(parameter):
        return given[parameter.name]
    fields = _fields(parameter)
    return parameter.annotation(**{name: _gathered(fields[name], given) for name in fields})


def _is_gathered(parameter: inspect.Parameter) -> bool:
    return dataclasses.is_dataclass(parameter.annotation)


def _fields(parameter: inspect.Parameter) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(parameter.annotation, eval_str=True).parameters


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
_DATASET = "Dataset: a name such as pointmaze/umaze-v1, or a path."


def _names_that_begin(incomplete: str) -> list[str]:
    """Return the datasets of the catalogue and those here whose names begin so, for the shell."""
    from orlog.datasets.listing import listed_here

    return [name for name in listed_here() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help=_DATASET, autocompletion=_names_that_begin)]
OptionalName = Annotated[
    str | None, typer.Argument(help=_DATASET, autocompletion=_names_that_begin)
]
Container = Annotated[Literal["zarr", "hdf5"], typer.Option(help="Container to write.")]
ChunkHashes = Annotated[
    bool,
    typer.Option(
        "--chunk-hashes",
        help="Add a hash of each chunk, so that those who read it in place can check every chunk.",
    ),
]
Horizon = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="STEPS",
        help="Steps after which the environment truncates, for files that do not say where; the rule is in "
        "docs/formats.md.",
    ),
]

_DESCRIPTION = "What the data are."
Description = Annotated[str, typer.Option(help=_DESCRIPTION)]
OptionalDescription = Annotated[
    str | None, typer.Option(help=_DESCRIPTION, show_default="that of its source")
]
License = Annotated[str, typer.Option(help="SPDX identifier of the data.")]
Versions = Annotated[
    str,
    typer.Argument(
        metavar="NAME[@VERSION]", help="Dataset; without a version, all versions that are here."
    ),
]

# Transfers and registries.
Mirrors = Annotated[
    list[str] | None,
    typer.Option(
        "--mirror", metavar="URL", help="Another place to try, before the others. May be repeated."
    ),
]
Jobs = Annotated[int, typer.Option(min=1, help="Number of files to transfer at once.")]
Rate = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Bytes per second at most: 500k, 20M.", show_default="none"),
]
KeyFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of the private key.")]

# Training.
_ALGORITHM = f"{', '.join(ALGORITHMS)}, or FILE.py:CLASS of an algorithm of your own."
Algorithm = Annotated[
    str,
    typer.Argument(
        help=_ALGORITHM,
        callback=known_as,
        autocompletion=lambda incomplete: [one for one in ALGORITHMS if one.startswith(incomplete)],
    ),
]
OptionalAlgorithm = Annotated[
    str | None,
    typer.Argument(
        help=_ALGORITHM, show_default=False, callback=lambda given: given and known_as(given)
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the algorithm, as name=value; may be repeated."),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Gradient steps.", show_default="the recipe's")
]
Device = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        help="Where to compute: cpu, cuda, cuda:1, or auto for a GPU if there is one.",
    ),
]
Log = Annotated[
    str,
    typer.Option(help="Copy the log of metrics, which is in metrics.jsonl: tensorboard or wandb."),
]

# Trained runs.
RunFolder = Annotated[
    Path, typer.Argument(metavar="[FOLDER]", help="Folder of runs, at any depth.")
]
EvaluatedRuns = Annotated[
    list[str],
    typer.Argument(
        metavar="RUNS...",
        help="Folders of evaluated runs, files that orlog evaluate --out wrote, or folders that hold some of both. "
        "NAME=RUNS names their method.",
    ),
]
DatasetOfRun = Annotated[
    str | None,
    typer.Option(help="Path or name of the dataset, if its recorded name does not find it."),
]
AlgorithmOfRun = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:CLASS", help="The algorithm of the run, if it is one of your own."
    ),
]

# Environments.
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run that the folder holds.")
]
TrustEnvironment = Annotated[
    bool,
    typer.Option("--trust-environment", help="Use environment arguments that come with the data."),
]


def _import_modules(names: list[str] | None) -> list[str] | None:
    if names:
        from orlog.manifests.environments import import_modules

        import_modules(names)
    return names


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Module or file of yours that registers environments; may be repeated. "
        "ORLOG_IMPORT=MODULE,.. says the same.",
        callback=_import_modules,
    ),
]

# What is printed.
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a JSON document for scripts, and nothing else.")
]


SigningKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Key to sign with: orlog key new FILE")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signing:
    """With which key an index is signed, and whose signatures in it are trusted."""

    sign: SigningKey = None
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="Public key of another signer of this registry. May be repeated."
        ),
    ] = None
    sign_existing: Annotated[
        bool,
        typer.Option(
            "--sign-existing",
            help="Sign the existing index and everything in it, without checking.",
        ),
    ] = False

    def signer(self) -> Sign | None:
        """Return what signs, and refuse the other options where nothing does."""
        if self.sign is not None:
            from orlog.manifests import signatures

            return functools.partial(signatures.sign, key_file=self.sign)
        if self.trust or self.sign_existing:
            raise typer.BadParameter(
                "--trust and --sign-existing are only for signing; add --sign FILE."
            )
        return None


JOBS_AT_A_TIME = "Processes to use; with --executor, jobs at a time."

PROCESSES = "Processes to use."

Workers = Annotated[int, typer.Option(min=1, help=PROCESSES)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executing:
    """Where jobs run."""

    executor: Annotated[str, typer.Option(help="Where jobs run: processes, ray or slurm.")] = (
        "processes"
    )
    address: Annotated[
        str | None, typer.Option(help="Ray: its cluster, as HOST:PORT, or auto for the one here.")
    ] = None
    executor_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="SLURM: partition=NAME, time=MINUTES, memory=GIGABYTES. May be repeated.",
        ),
    ] = None

    def chosen(self) -> Executor:
        """Return the executor that the options choose."""
        from orlog.runs.jobs import find_executor

        given = {} if self.address is None else {"address": self.address}
        for option in self.executor_option or []:
            key, equals, value = option.partition("=")
            if not equals:
                raise typer.BadParameter(f"--executor-option takes NAME=VALUE, found {option!r}.")
            given[key] = value
        return find_executor(self.executor, **given)

    def on_cluster(self) -> Executor | None:
        """Return the executor that the options choose; None for processes of the command itself."""
        if self.executor == "processes" and not self.address and not self.executor_option:
            return None
        return self.chosen()
