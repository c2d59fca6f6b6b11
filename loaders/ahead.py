"""Blocks of a dataset that is read in place, on their way before they are needed."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError

if TYPE_CHECKING:
    from orlog.datasets.download.in_place import Coming


class Ahead:
    """Fetches blocks before they are needed, in the order in which they will be.

    One thread asks for them, since it may have to wait for what says where they are.

    Attributes:
        is_over: Whether nothing more is needed.
    """

    def __init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "orlog-ahead")
        self._requests: list[Coming] = []
        self.is_over = False

    def fetch(self, dataset: Dataset, blocks: Sequence[np.ndarray], columns: set[str]) -> None:
        """Ask for the rows of blocks of episodes in some columns."""
        self._requests[:] = [one for one in self._requests if not one.done()]
        with contextlib.suppress(OrlogError, OSError):  # whoever reads the rows meets it too
            dataset.fetch_ahead(np.concatenate(blocks), columns, indexes=True)
            for block in blocks:
                if not self.is_over:
                    dataset.fetch_ahead(block, columns, self._requests)

    def later(self, fetch: Callable[[], None]) -> None:
        """Do this in the thread that asks."""
        self._pool.submit(fetch)

    def close(self) -> None:
        """Take back what was not sent yet."""
        self.is_over = True
        self._pool.shutdown(cancel_futures=True)
        for one in self._requests:
            one.cancel()
