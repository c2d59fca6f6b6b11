"""The errors that orlog raises, all under one root.

    OrlogError                             exit code 1 on the command line
    ├── InvalidNameError(ValueError)       a dataset name that does not follow the grammar
    ├── NotFoundError(LookupError)         no dataset, run, reference or baseline of that name
    ├── AlgorithmError(TypeError)           an algorithm's class or file that cannot be used, or failed
    ├── MissingExtraError(ImportError)     an optional package is not installed
    ├── SchemaError(ValueError)            data that does not fit its space, shape, dtype or length
    ├── FormatVersionError(ValueError)     written by a newer orlog than this one
    ├── VersionExistsError(FileExistsError) a version, or a file, that is there and is not overwritten
    ├── StorageError(OSError)              a disk that is full or cannot be written
    ├── WorkerDiedError(RuntimeError)      a worker process was killed
    ├── SimulatorError(RuntimeError)       an environment that may not, or cannot, be made
    ├── StoppedError                       a training run that was asked to stop, and saved its state
    ├── DivergedError(FloatingPointError)  a training run whose numbers are no longer finite
    ├── TransferError(OSError)             no mirror gave the bytes; says what each did
    └── IntegrityError(OSError)            bytes that are not what was recorded; exit code 3
        ├── AuditError                     data that an audit found wrong, so they are not published
        ├── LockError                      a version or digest other than `orlog.lock` pins
        ├── SignatureError                 a signature that is missing, wrong or of an older index
        ├── CheckpointError(ValueError)    a checkpoint that is damaged or of another run
        └── ManifestError(ValueError)      a manifest that cannot be read as right

Bad arguments stay `ValueError` and `TypeError`. Every error can be made from its message alone, so
that it comes back whole from a worker process.

A message names the dataset, file or field, and says what to do next. It ends with a full stop, unless
it ends with a command to copy. Arguments are those of Python, such as `resume=True`: the command line prints
its own options in their place (`cli/advice.py`). A message that quotes another error takes its `clause`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any


class OrlogError(Exception):
    """Root of every error that orlog raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, **facts: Any) -> None:
        """Keep a message, and facts under the names of attributes that the class has."""
        super().__init__(message)
        for name, value in facts.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no {name}.")
            setattr(self, name, value)


class InvalidNameError(OrlogError, ValueError):
    """A dataset name that does not follow the grammar; `name` is the text, if it may mean another."""

    name: str = ""


class NotFoundError(OrlogError, LookupError):
    """Nothing of that name is known here."""


class AlgorithmError(OrlogError, TypeError):
    """The class or the file of an algorithm cannot be used as one, or failed in its own code."""


class MissingExtraError(OrlogError, ImportError):
    """An optional package is not installed; `pip install` with what `install` says adds it."""

    install: str = ""

    def __init__(self, message: str, *, install: str = "") -> None:
        """Add the command that installs the package to the message."""
        quoted = f'"{install}"' if "[" in install else install
        whole = f"{message}; run: pip install {quoted}" if install else message
        super().__init__(whole, install=install)


@contextlib.contextmanager
def needing(what: str, install: str) -> Iterator[None]:
    """Say what adds a package that an import inside does not find: `needing("videos need PyAV", "av")`.

    Raises MissingExtraError if there is no such package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{what}, which is not installed", install=install) from error


class SchemaError(OrlogError, ValueError):
    """Data that does not fit the space, shape, dtype or length it should have."""


class FormatVersionError(OrlogError, ValueError):
    """A manifest or store written by a newer orlog than this one."""


class VersionExistsError(OrlogError, FileExistsError):
    """A version, or a saved view, that is there already and is not overwritten.

    `free` is the next version of that name, NAME@VERSION, where the message ends with it.
    """

    free: str = ""

    def __init__(self, message: str, *, free: str = "") -> None:
        """Add the free version to the message."""
        super().__init__(f"{message}; give another version: {free}" if free else message, free=free)


class StorageError(OrlogError, OSError):
    """The disk is full or cannot be written; nothing that was there before is lost.

    `errno` is that of the system's error.
    """

    errno: int | None = None  # in place of that of OSError, which pickling leaves out


class WorkerDiedError(OrlogError, RuntimeError):
    """A worker process was killed, often because memory ran out."""


class SimulatorError(OrlogError, RuntimeError):
    """An environment named by a dataset that needs the user's consent, or that cannot be made."""


class StoppedError(OrlogError):
    """A training run that was asked to stop; `step` is that of the checkpoint it wrote."""

    step: int = 0


class DivergedError(OrlogError, FloatingPointError):
    """A training run whose numbers are no longer finite, as was seen after `step` in `metric`."""

    step: int = 0
    metric: str = ""


class TransferError(OrlogError, OSError):
    """No mirror gave the requested bytes; those that did arrive are kept, and a retry resumes there.

    `attempts` says what each mirror did, a line each: `URL: reason`.
    """

    attempts: Sequence[str] = ()


class IntegrityError(OrlogError, OSError):
    """Bytes that are not what the manifest says.

    `file` is the path inside the store; `expected` and `found` say how it differs.
    """

    exit_code = 3
    file: str = ""
    expected: str = ""
    found: str = ""


class AuditError(IntegrityError):
    """Data that an audit found wrong: their bytes are as recorded, but they make no sense."""


class LockError(IntegrityError):
    """A version or digest was asked for, or found, that is not the one `orlog.lock` pins."""


class SignatureError(IntegrityError):
    """A manifest or index whose signature is missing, wrong, or older than one seen before."""


class CheckpointError(IntegrityError, ValueError):
    """A checkpoint that is damaged, or of another run or configuration."""


class ManifestError(IntegrityError, ValueError):
    """A manifest that cannot be read as right: malformed, edited, or not of this store."""


def wrong_type(parameter: str, expected: str, value: object) -> TypeError:
    """Return the error about an argument of a wrong type."""
    return TypeError(f"{parameter} must be {expected}, found {type(value).__name__} {value!r:.80}.")


def clause(error: BaseException) -> str:
    """Return an error's message without its full stop, to stand inside a longer sentence."""
    return str(error).removesuffix(".")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop: a library's may be long."""
    return str(error).strip().partition("\n")[0].removesuffix(".")
