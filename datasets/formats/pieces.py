"""Datasets of several files: a file is read at a time here, or a file a job by several processes.

What is read is the same and comes in the same order. What goes on from one file to the next, such as cutting rows into
episodes, is done by the process that asks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from orlog.base.jobs import check_seen, do_jobs
from orlog.datasets.formats.blanks import Blanks, note_all, noted_blanks
from orlog.datasets.formats.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats.notes import Note
from orlog.errors import SchemaError

File = TypeVar("File")
Part = TypeVar("Part")
OpenFile: TypeAlias = Callable[[Path, str, Options], AbstractContextManager[Opened]]


def read_pieces(
    asked: Asked, read: Callable[[Iterable[File]], Iterable[Part]], files: Sequence[File]
) -> Iterator[Part]:
    """Yield what `read` yields of files, in their order.

    Args:
        asked: Says who reads; several processes get a file each.
        read: Yields what files hold; for other processes it, files and what it yields can be pickled.
        files: The files, shards or files of episodes, in whatever form `read` takes them.
    """
    if asked.sharing is None or len(files) < 2:
        if asked.sharing is not None:
            warn_of_one_process(asked, "a job reads a whole file, and the data are in one")
        yield from read(files)
        return
    folders = sorted({file if file.is_dir() else file.parent for file in asked.files})
    jobs = ([file] for file in files)
    there = functools.partial(_read_there, read, folders)
    for parts, blanks in do_jobs(there, jobs, **asked.sharing._asdict()):
        note_all(blanks)
        yield from parts


def read_steps(
    asked: Asked, read: Callable[[Iterable[File]], Iterable[Steps | Note]], files: Sequence[File], notes: list[Note]
) -> Iterator[Steps]:
    """Yield the steps of files as `read_pieces` does, and add each different note of theirs to the notes once."""
    for part in read_pieces(asked, read, files):
        if isinstance(part, Steps):
            yield part
        elif part not in notes:
            notes.append(part)


def warn_of_one_process(asked: Asked, why: str) -> None:
    """Warn that this process reads the data, though several were asked for."""
    warnings.warn(
        f"{asked.sources[0]}: one process reads these data, since {why}; workers and executors change nothing.",
        stacklevel=2,
    )


def _read_there(
    read: Callable[[Iterable[File]], Iterable[Part]], folders: Sequence[Path], files: Sequence[File]
) -> tuple[list[Part], Blanks]:
    """Read files in a process that may be on another machine, with what was noted about their values."""
    check_seen(*folders)
    with noted_blanks() as blanks:
        return [*read(files)], blanks


@contextlib.contextmanager
def open_each(asked: Asked, open_file: OpenFile, splits: Sequence[str]) -> Iterator[Opened]:
    """Open files that are one dataset: each holds whole episodes, and all have the same columns.

    Args:
        asked: The files.
        open_file: Opens one, by its path, what errors call it, and the options.
        splits: What each file is named for; where all are, it becomes `episodes/split`.

    Raises SchemaError if their columns differ in dtype or shape.
    """
    with contextlib.ExitStack() as stack:
        files: list[_File] = []
        notes: list[Note] = []
        for path, where, split in zip(asked.files, asked.sources, splits, strict=True):
            opened = stack.enter_context(open_file(path, where, asked.options))
            files.append(_File(path, where, {"split": split} if all(splits) else {}, opened))
            notes += [note for note in opened.notes if note not in notes]
            if opened.schema != files[0].opened.schema:
                raise SchemaError(
                    f"{where}: its columns differ in dtype or shape from those of {files[0].where}, so they "
                    "are not one dataset."
                )
        if asked.sharing is None:
            steps = read_steps(asked, _read_open, files, notes)
        else:
            read = functools.partial(_open_and_read, open_file, asked.options)
            closed = [(file.path, file.where, file.metadata) for file in files]
            steps = read_steps(asked, read, closed, notes)
        yield Opened(
            schema=files[0].opened.schema,
            steps=steps,
            total_steps=sum(file.opened.total_steps for file in files),
            notes=notes,
        )


class _File(NamedTuple):
    path: Path
    where: str
    metadata: dict[str, str]
    opened: Opened


def _read_open(files: Iterable[_File]) -> Iterator[Steps | Note]:
    for file in files:
        for steps in file.opened.steps:
            more = file.metadata if steps.ends else {}
            yield dataclasses.replace(steps, metadata={**steps.metadata, **more})
        yield from file.opened.notes


def _open_and_read(
    open_file: OpenFile, options: Options, files: Iterable[tuple[Path, str, dict[str, str]]]
) -> Iterator[Steps | Note]:
    for path, where, metadata in files:
        with open_file(path, where, options) as opened:
            yield from _read_open([_File(path, where, metadata, opened)])
