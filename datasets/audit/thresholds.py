"""All thresholds of the audit, in one table."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["THRESHOLDS", "Threshold", "limit"]


class Threshold(NamedTuple):
    """A number that decides whether something is reported, and what it means."""

    value: float
    meaning: str


THRESHOLDS = {
    "wide rows": Threshold(
        256, "Rows with more numbers than this, such as images, are not judged number by number."
    ),
    "fewest rows": Threshold(
        100, "Constant, saturated and unused numbers are reported from this many rows on."
    ),
    "actions on a bound": Threshold(
        0.25, "Share of the values of an action on a bound of its Box from which it is reported."
    ),
    "observations on an extreme": Threshold(
        0.05, "Share of the values of an observation that equal its largest or smallest value."
    ),
    "observations between": Threshold(
        0.05,
        "Share of its values that must differ from both, so that it is no number of two values.",
    ),
    "mostly still": Threshold(
        0.5,
        "A number that stays the same in more than this share of the steps is not judged for jumps, "
        "stuck or saturated values.",
    ),
    "hardly still": Threshold(
        0.05,
        "A number may count as stuck, or a frame as frozen, if it stays the same in less than this share of "
        "the other steps.",
    ),
    "stuck steps": Threshold(
        20, "Steps of an episode from which a number that never changes in it counts as stuck."
    ),
    "frozen steps": Threshold(
        20, "Steps from which a frame that stays the same is reported, if nearly all others change."
    ),
    "jump ratio": Threshold(
        2.0, "How many times as large as the largest of the rest the smallest jump is, at least."
    ),
    "usual changes": Threshold(0.99, "Share of the changes of a number that count as usual."),
    "jump size": Threshold(
        3.0, "How many times as large as the largest usual change a jump is, at least."
    ),
    "far jump": Threshold(
        20.0,
        "How many times as large as the largest usual change a jump is that no collision explains.",
    ),
    "jumping numbers": Threshold(
        0.5, "If more than this share of the numbers jumps at once, no collision explains it."
    ),
    "jump evidence": Threshold(
        8.0,
        "Least logarithm of how unlikely such a gap is by chance, given how fast large changes become "
        "rare in the rest of the data.",
    ),
    "jump share": Threshold(0.01, "Changes in more than this share of the steps are no jumps."),
    "jump habit": Threshold(
        0.5,
        "Jumps in the same step of more than this share of the episodes, and blank frames in more of them, are "
        "a habit of the data.",
    ),
    "fewest steps for jumps": Threshold(500, "Steps from which jumps are judged."),
    "copied finals": Threshold(
        0.5, "Share of the episodes whose final observation repeats the one before it."
    ),
    "copied steps": Threshold(
        0.1, "Share of other steps up to which observations may repeat, if final ones must not."
    ),
    "shifted finals": Threshold(
        0.1, "Share of the episodes whose final observation is the first one of the next episode."
    ),
    "shared transitions": Threshold(
        5, "Transitions of real numbers that occur more than once, from which they are reported."
    ),
    "remembered transitions": Threshold(
        2**21, "Transitions that are compared at most; of more, an even sample is."
    ),
    "reward error": Threshold(
        1e-3, "Relative and absolute difference up to which a recomputed reward counts as equal."
    ),
    "other rewards": Threshold(
        0.5, "If more than this share of the rewards differs, another formula was used on purpose."
    ),
    "return error": Threshold(
        1e-6, "Difference of a recorded return from the sum of rewards, relative to their sizes."
    ),
    "time step": Threshold(
        3.0, "How many times the usual time between two steps counts as steps that are missing."
    ),
    "terminations at the horizon": Threshold(
        0.5, "Share of the episodes as long as the time limit that are terminated, not truncated."
    ),
    "fewest episodes": Threshold(
        3, "Episodes from which something about most of them is reported."
    ),
}


def limit(name: str) -> float:
    """Return the value of a threshold."""
    return THRESHOLDS[name].value
