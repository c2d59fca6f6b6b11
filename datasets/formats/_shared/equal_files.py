"""Files of one layout that are put one after the other: each holds whole episodes, and all have the same columns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

from orlog.datasets.formats._shared.episodes import Asked, Opened, Options, Steps
from orlog.datasets.formats._shared.notes import Note
from orlog.datasets.formats._shared.pieces import check_stream, read_steps
from orlog.errors import SchemaError

OpenFile: TypeAlias = Callable[[Path, str, Options], AbstractContextManager[Opened]]


@contextlib.contextmanager
def open_each(asked: Asked, open_file: OpenFile, splits: Sequence[str]) -> Iterator[Opened]:
    """Open files that are one dataset, and yield the steps of all of them.

    Args:
        asked: The files.
        open_file: Opens one, by its path, what errors call it, and the options.
        splits: What each file is named for; where all are, it becomes `episodes/split`.

    Raises SchemaError if their columns differ in dtype or shape; ValueError if several processes are to read files
    that are too large for a job.
    """
    with contextlib.ExitStack() as stack:
        files = [
            _File(*each, asked.options) for each in zip(asked.files, asked.sources, strict=True)
        ]
        opened = [stack.enter_context(one.opening(open_file)) for one in files]
        first = opened[0]
        for file, one in zip(files, opened, strict=True):
            if one.schema != first.schema:
                raise SchemaError(
                    f"{file.where}: its columns differ in dtype or shape from those of {files[0].where}, so they "
                    "are not one dataset."
                )
            columns = one.schema.columns().values()
            row_bytes = sum(each.dtype.itemsize * math.prod(each.shape) for each in columns)
            check_stream(asked, one.total_steps * row_bytes, file.where)
        notes = [note for one in opened for note in one.notes]
        if all(splits):
            for file, split in zip(files, splits, strict=True):
                file.metadata["split"] = split
        yield Opened(
            schema=first.schema,
            steps=read_steps(asked, functools.partial(_read, open_file), files, notes),
            total_steps=sum(one.total_steps for one in opened),
            notes=notes,
        )


class _File:
    """A file; a process that it is sent to opens it again.

    Attributes:
        where: What errors call it.
        metadata: Values of all of its episodes.
    """

    def __init__(self, path: Path, where: str, options: Options) -> None:
        self.where, self.metadata = where, dict[str, str]()
        self._path, self._options = path, options
        self._opened: Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open in this process."""
        return {**self.__dict__, "_opened": None}

    @contextlib.contextmanager
    def opening(self, open_file: OpenFile) -> Iterator[Opened]:
        """Yield what it says and its steps, which can be read once."""
        if self._opened is not None:
            yield self._opened
            return
        with open_file(self._path, self.where, self._options) as self._opened:
            yield self._opened
        self._opened = None


def _read(open_file: OpenFile, file: _File) -> Iterator[Steps | Note]:
    with file.opening(open_file) as opened:
        for steps in opened.steps:
            more = file.metadata if steps.ends else {}
            yield dataclasses.replace(steps, metadata={**steps.metadata, **more})
        yield from opened.notes
