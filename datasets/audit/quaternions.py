"""Check for quaternions whose sign flips: q and -q are one rotation, but far apart for a network."""

from __future__ import annotations

import math

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding
from orlog.datasets.audit.pieces import Piece, dimensions
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.audit.values import judged_columns
from orlog.manifests.names import counted


def quaternions(facts: Facts) -> dict[str, list[int]]:
    """Return where four neighboring numbers of an observation have length 1 in a sample of the data."""
    known: dict[str, list[int]] = facts.once("quaternions", lambda: _quaternions(facts))
    return known


def _quaternions(facts: Facts) -> dict[str, list[int]]:
    specs = facts.dataset.schema.columns()
    names = [
        each for each in judged_columns(facts, "observations") if math.prod(specs[each].shape) >= 4
    ]
    good: dict[str, np.ndarray] = {}
    rows = dict.fromkeys(names, 0)
    moved: dict[str, np.ndarray] = {}
    for piece in facts.sample() if names else ():
        for name in names:
            values = piece.numbers(name).astype(np.float64)
            squares = np.lib.stride_tricks.sliding_window_view(values**2, 4, axis=0).sum(axis=-1)
            unit = np.count_nonzero(np.abs(squares - 1) <= limit("unit length"), axis=1)
            good[name] = good.get(name, 0) + unit
            rows[name] += values.shape[1]
            moved[name] = moved.get(name, False) | (values != values[:, :1]).any(axis=1)
    places: dict[str, list[int]] = {}
    for name in names:
        for first in np.flatnonzero(good[name] >= limit("unit rows") * rows[name]).tolist():
            before = places.get(name, [-4])[-1]
            if first >= before + 4 and moved[name][first : first + 4].sum() >= 2:
                places.setdefault(name, []).append(first)
    return places


def flips(piece: Piece, name: str, first: int) -> np.ndarray:
    """Return the steps in which a quaternion changes its sign, (steps,) bool."""
    values = piece.numbers(name)[first : first + 4].astype(np.float64)
    along = (values[:, 1:] * values[:, :-1]).sum(axis=0)
    turned: np.ndarray = (along <= -limit("sign flip"))[piece.before] & piece.has_next
    return turned


def check_quaternions(facts: Facts) -> Check:
    """Find quaternions whose sign flips from one step to the next."""
    places = [(name, first) for name, some in quaternions(facts).items() for first in some]
    seen = Seen(facts.dataset)
    counts, firsts = seen.counts(), seen.firsts()
    while (piece := (yield seen)) is not None:
        for place in places:
            steps = np.flatnonzero(flips(piece, *place))
            if len(steps):
                counts[place] += len(steps)
                firsts.setdefault(place, piece.place(int(steps[0])))
    return [
        Finding(
            check="quaternions",
            severity="warning",
            column=dimensions(facts.dataset, name, range(first, first + 4)),
            text=f"the sign of this quaternion flips in {counted(counts[name, first], 'step')}: q and -q are the same "
            "rotation, but no small change for a network",
            episode=episode,
            step=step,
            count=counts[name, first],
        )
        for (name, first), (episode, step) in firsts.items()
    ]
