"""Texts as numbers: each row holds the place of its text in a table of the distinct texts.

    column    "go to the door"   "go to the door"   "open it"   "go to the door"
    places     0                  0                  1           0
    table     ("go to the door", "open it"): in the order in which they first occur

So each distinct text needs to be encoded once, and a batch of places selects its encodings.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from orlog.datasets.columns.values import episode_blocks
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import IntegrityError, SchemaError
from orlog.manifests.columns import offsets_column, row_ends, values_column

_BLOCK_ROWS = 65536  # rows whose texts are in memory at once, unless a single episode is longer


class TextTable:
    """The distinct texts of a column, as far as it was read.

    Rows must be read in order, since places follow the first occurrence of texts.
    """

    def __init__(self, column: str) -> None:
        """Start an empty table of the text at a path in the observation or action."""
        self._column = column
        self._places: dict[bytes, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts by place.

        Raises SchemaError if one is not UTF-8.
        """
        try:
            return tuple(one.decode() for one in self._places)
        except UnicodeDecodeError as error:
            raise SchemaError(f"column {self._column}: a text is not UTF-8: {error.object!r:.80}.") from error

    def read(self, dataset: Dataset, start: int, stop: int) -> Int64[np.ndarray, " rows"]:
        """Return the places of the texts of rows `start` to `stop - 1`; add new texts to the table.

        Raises IntegrityError if a file is damaged, or offsets do not count the bytes.
        """
        if start == stop:
            return np.empty(0, np.int64)
        ends = row_ends(self._column, dataset.episode_lengths)
        first, last = np.searchsorted(ends, [start, stop - 1], "right")
        edges = episode_blocks(ends[first : last + 1], _BLOCK_ROWS) + first
        pieces = [
            self._read_episodes(dataset, begin, end)
            for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]
        before = int(ends[first - 1]) if first else 0
        return np.concatenate(pieces)[start - before : stop - before]

    def _read_episodes(self, dataset: Dataset, first: int, last: int) -> Int64[np.ndarray, " rows"]:
        some = dataset[first:last]
        offsets = offsets_column(self._column)
        ends = some.column(offsets)
        texts = some.column(values_column(self._column)).tobytes()
        starts = np.concatenate([[0], ends[:-1]])
        if (starts > ends).any() or ends[-1] != len(texts):
            raise IntegrityError(
                f"{dataset.name}: column {offsets} does not count the {len(texts)} "
                f"bytes of episodes {first} to {last - 1}; run: orlog verify {dataset.name}",
                file=offsets,
            )
        known = self._places
        return np.array(
            [
                known.setdefault(texts[begin:end], len(known))
                for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)
            ],
            np.int64,
        )
