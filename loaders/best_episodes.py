"""Random transitions, or token sequences, of the episodes with the highest returns, for BC-10%."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from orlog.datasets.reading.opening import Given
from orlog.datasets.reading.views import best_positions
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.batch import Batch, TokenBatch
from orlog.loaders.statistics import finite_returns, info_sums
from orlog.loaders.streams import Batches, StreamOptions, takes_stream_options
from orlog.loaders.token_sequences import SPEAKER, token_sequences
from orlog.loaders.transitions import transitions
from orlog.loaders.weights import weighted, weights_by_episode


@takes_stream_options
def best_transitions(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    percent: float = 10.0,
    within: tuple[str, float] | None = None,
    seed: int,
    **stream: Unpack[StreamOptions],
) -> Batches[Batch]:
    """Return an endless stream of random transitions of the best episodes, with replacement.

    These are the episodes of `Dataset.top_episodes(percent)`: at least one, and of equal returns the
    earlier ones. Their steps are equally likely, unless the dataset is a weighted mixture. With `within`,
    an info and a number, they are the best of those whose sum of the info is at most the number. All other
    arguments are those of `transitions`.

    Raises ValueError if percent does not lie in [1, 100], or no episode is within the number; SchemaError if
    a return, or a value of the info, is not finite.
    """
    chosen = _best_episodes(data, percent, stream, within)
    made: Batches[Batch] = transitions(chosen, batch_size, seed=seed, **stream)
    return made


@takes_stream_options
def best_token_sequences(
    data: Given | Arrays,
    batch_size: int = 32,
    *,
    percent: float = 10.0,
    seed: int,
    tokenizer: Any,
    length: int = 512,
    speaker: str | None = None,
    **stream: Unpack[StreamOptions],
) -> Batches[TokenBatch]:
    """Return an endless stream of token sequences of the best episodes, as `best_transitions` chooses them.

    All other arguments are those of `token_sequences`.
    """
    chosen = _best_episodes(data, percent, stream, speaker=speaker)
    return token_sequences(chosen, batch_size, seed=seed, tokenizer=tokenizer, length=length, speaker=speaker, **stream)


def _best_episodes(
    data: Given | Arrays,
    percent: float,
    stream: StreamOptions,
    within: tuple[str, float] | None = None,
    *,
    speaker: str | None = None,
) -> Arrays:
    """Return arrays of which only the steps of the best episodes are drawn."""
    if not 1 <= percent <= 100:
        meant = f"; for {100 * percent:g} % give {100 * percent:g}" if 0 < percent < 1 else ""
        raise ValueError(f"percent must lie in [1, 100], found {percent}{meant}.")
    needed = [] if within is None else [within[0]]
    needed += [] if speaker is None else [SPEAKER]
    arrays = as_arrays(data, tuple(dict.fromkeys([*stream.get("infos", ()), *needed])))
    returns = finite_returns(arrays)
    allowed = np.arange(len(returns))
    if within is not None:
        name, most = within
        sums = info_sums(arrays, name)
        allowed = np.flatnonzero(sums <= most)
        if not len(allowed):
            raise ValueError(
                f"{arrays.name}: no episode has a {name} of at most {most:g}; the least is {sums.min():g}. Raise "
                "the limit, or learn from data with such episodes."
            )
    is_best = np.zeros(len(returns))
    is_best[allowed[best_positions(returns[allowed], percent)]] = 1.0
    return weighted(arrays, weights_by_episode(arrays, is_best, per="step"))
