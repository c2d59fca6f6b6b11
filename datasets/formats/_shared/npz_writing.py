"""Writes npz files a few rows at a time, so that memory does not grow with the dataset."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

COPIED_BYTES = 2**20


@contextlib.contextmanager
def npz_writer(path: Path) -> Iterator[NpzWriter]:
    """Write a compressed npz file, which appears when the context ends without an error.

    Rows lie in unnamed files of the same folder until then, since one member of a ZIP archive is
    written after the other.
    """
    with contextlib.ExitStack() as stack:
        writer = NpzWriter(path.parent, stack)
        yield writer
        writer.finish(path)


class NpzWriter:
    """Takes rows of columns that grow alike."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Keep rows in a folder until a stack is closed."""
        self._folder, self._stack = folder, stack
        self._columns: dict[str, tuple[IO[bytes], np.dtype[Any], tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add rows to each column; all rows of a column have one dtype and shape."""
        for name, values in rows.items():
            if name not in self._columns:
                unnamed = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (the stack does)
                self._stack.enter_context(unnamed)
                self._columns[name] = unnamed, values.dtype, values.shape[1:]
            file, dtype, shape = self._columns[name]
            assert (values.dtype, values.shape[1:]) == (dtype, shape)
            file.write(np.ascontiguousarray(values).tobytes())
            self._rows[name] = self._rows.get(name, 0) + len(values)

    def finish(self, path: Path) -> None:
        """Write the archive."""
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, (file, dtype, shape) in self._columns.items():
                header = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (self._rows[name], *shape),
                }
                file.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    shutil.copyfileobj(file, member, COPIED_BYTES)
