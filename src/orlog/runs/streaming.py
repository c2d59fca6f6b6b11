"""Whether a training reads its data block by block, and what is said of that before it begins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from orlog.algos.algorithms import AlgorithmLike, algorithm_name
from orlog.algos.presets import recipe_for
from orlog.algos.training.options import TrainOptions
from orlog.algos.training.policy import fitting_form
from orlog.algos.training.run_data import streams
from orlog.algos.training.train import run_config
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import OrlogError
from orlog.loaders.arrays.filling import layout_of
from orlog.loaders.arrays.memory import measure_memory
from orlog.loaders.arrays.places import RAM_SHARE
from orlog.manifests.names import size_text

ASKED_ABOVE = 10e9  # bytes of a dataset that is read in place


def streams_by_default(algorithm: AlgorithmLike, dataset: Dataset, options: TrainOptions) -> bool:
    """Return whether a run is streamed unless it is said: of data that are read in place, if it can be."""
    if not dataset.in_place:
        return False
    kind = fitting_form(algorithm, dataset)
    recipe = recipe_for(algorithm_name(algorithm), dataset, preset=options.preset)
    settings = {**recipe.settings, **(options.settings or {})}
    config = run_config(kind, settings, steps=options.steps or recipe.steps, seed=options.seed)
    return streams(kind, config, dataset)


def choose_stream(
    algorithm: AlgorithmLike,
    dataset: Dataset,
    options: TrainOptions,
    asked: bool | None,
    *,
    tell: Callable[[str], None],
    ask: Callable[[str], None],
) -> TrainOptions:
    """Return options that say whether the data are streamed; tell what that fetches, or may not fit into memory.

    `asked` is what was asked for, None if nothing was; `ask` is called with a question where very much would be
    fetched at once, and raises if the answer is no.
    """
    stream = streams_by_default(algorithm, dataset, options) if asked is None else asked
    options = msgspec.structs.replace(options, stream=stream)
    name, size = dataset.name, size_text(dataset.manifest.size_bytes)
    if not dataset.in_place:
        if not stream:
            _tell_of_memory(dataset, tell)
    elif stream:
        tell(
            f"{name}: read in place; training streams it: {size} an epoch, less what is kept here."
        )
    else:
        tell(f"{name}: read in place; training reads all of it once: {size}.")
        if dataset.manifest.size_bytes > ASKED_ABOVE:
            ask(f"Fetch {size}?")
    return options


def _tell_of_memory(dataset: Dataset, tell: Callable[[str], None]) -> None:
    with contextlib.suppress(OrlogError):  # said when the data are read
        needed, free = layout_of(dataset).total_bytes, measure_memory().ram_bytes
        if needed > RAM_SHARE * free:
            tell(
                f"{dataset.name}: takes {size_text(needed)} of the {size_text(free)} of free memory; to read a part "
                "at a time: --stream"
            )
