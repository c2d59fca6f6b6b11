"""A sample of a dataset, to which models are fitted before everything is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from orlog.datasets.audit.findings import Facts
from orlog.datasets.audit.pieces import Piece, pieces

SAMPLED_EPISODES = 64
SAMPLED_STEPS = 2**16


def sampled_pieces(facts: Facts) -> Iterator[Piece]:
    """Yield some episodes that lie evenly in the data, until there are enough steps."""
    last = facts.dataset.total_episodes - 1
    chosen = np.unique(np.linspace(0, last, SAMPLED_EPISODES).astype(np.int64))
    steps = 0
    for piece in pieces(facts.dataset[chosen], facts.missing_finals[chosen]):
        yield piece
        steps += piece.steps
        if steps > SAMPLED_STEPS:
            return
