"""Batches of other kinds than transitions straight from compressed shards, for datasets too large to hold.

Each group of whole episodes that `loaders/streaming.py` decodes is given to the loader as if it were all of the data.
So this fits loaders whose items are drawn by a step and lie in its episode, and no others.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from orlog.datasets.reading.dataset import Dataset
from orlog.loaders.arrays.arrays import Arrays, missing_finals
from orlog.loaders.sampling.streams import Sampler
from orlog.loaders.streaming import StreamedTransitions

STREAMED = (
    "orlog.loaders.transitions:transitions",
    "orlog.loaders.returns:return_transitions",
    "orlog.loaders.sequences:sequences",
    "orlog.loaders.windows:windows",
    "orlog.loaders.chunks:action_chunks",
)
"""Loaders whose items need nothing but the episode of the step that is drawn."""
BUFFER_BYTES = 2**28
"""Memory for decoded steps, as `orlog.stream_transitions` takes by default. Another value gives other batches."""


class StreamedBatches(StreamedTransitions):
    """An endless stream of epochs of what a loader gives: every step of the data is drawn once an epoch.

    The order of steps is that of `orlog.stream_transitions` with the same seed and buffer. Batches are those that the
    loader would gather for these steps.
    """

    def __init__(
        self,
        dataset: Dataset,
        loader: str,
        arguments: Mapping[str, Any],
        *,
        seed: int,
        start: int = 0,
        change: Callable[[Arrays], Arrays] = lambda arrays: arrays,
    ) -> None:
        """Plan a stream; nothing is decoded yet.

        Args:
            dataset: What to read.
            loader: One of `STREAMED`.
            arguments: Arguments of the loader, with the size of a batch.
            seed: Seed of the stream.
            start: First batch of an iteration.
            change: Changes the steps of a group before they are sampled, such as their rewards.
        """
        rest = dict(arguments)
        size, infos = rest.pop("batch_size"), rest.pop("infos", ())
        # A run is one process, also where others of its group train too.
        place: dict[str, Any] = {"start": start, "rank": 0, "ranks": 1}
        super().__init__(dataset, size, seed=seed, buffer_bytes=BUFFER_BYTES, infos=infos, **place)
        self._loader, self._arguments, self._change = loader, rest, change

    @functools.cached_property
    def _of_all(self) -> dict[str, Any]:
        """What the steps of a group know of the whole dataset."""
        longest = int(self.dataset.episode_lengths.max())
        return {"longest": longest, "missing_finals": missing_finals(self.dataset)}

    def _sampler_of(self, arrays: Arrays) -> Sampler[Any]:
        module, _, function = self._loader.partition(":")
        loader = getattr(importlib.import_module(module), function)
        arrays = self._change(dataclasses.replace(arrays, **self._of_all))
        made = loader(arrays, self.batch_size, seed=0, rank=0, ranks=1, **self._arguments)
        sampler: Sampler[Any] = made.sampler
        return sampler
