"""All thresholds of the audit, in one table."""

from __future__ import annotations

from typing import NamedTuple


class Threshold(NamedTuple):
    """A number that decides whether something is reported, and what it means."""

    value: float
    meaning: str


THRESHOLDS = {
    "wide rows": Threshold(
        256,
        "Rows with more dimensions than this, such as images, are not judged one dimension at a time.",
    ),
    "fewest rows": Threshold(
        100, "Constant, saturated and unused dimensions are reported from this many rows on."
    ),
    "actions on a bound": Threshold(
        0.25, "Share of the values of an action on a bound of its Box from which it is reported."
    ),
    "observations on an extreme": Threshold(
        0.05, "Share of the values of an observation that equal its largest or smallest value."
    ),
    "observations between": Threshold(
        0.05, "Share of its values that must differ from both, so that it has more than two values."
    ),
    "mostly still": Threshold(
        0.5,
        "A dimension that stays the same in more than this share of the steps is not judged for jumps, "
        "stuck or saturated values.",
    ),
    "hardly still": Threshold(
        0.05,
        "A dimension may count as stuck, or a frame as frozen, if it stays the same in less than this share of "
        "the other steps.",
    ),
    "stuck steps": Threshold(
        20, "Steps of an episode from which a dimension that never changes in it counts as stuck."
    ),
    "hardly frozen": Threshold(
        0.01,
        "A dimension that stays the same in less than this share of the other steps may count as frozen in a "
        "few episodes, however it goes on. In our datasets, dimensions that never rest for long have 0; the "
        "least that one that does has is 0.028.",
    ),
    "frozen episodes": Threshold(
        0.05, "Share of the episodes up to which a dimension may be frozen, however it goes on."
    ),
    "episodes of a kind": Threshold(
        10, "Episodes of a task from which their stuck values are told from those of its others."
    ),
    "frozen leap": Threshold(
        1.0,
        "How many times as large as the usual change the one after a frozen dimension is, if there are more or "
        "the dimension rests elsewhere. What rests by nature has 0 to 0.4 in our datasets.",
    ),
    "saturated share": Threshold(
        0.15,
        "Share of an episode's values of an action on its smallest and largest one from which it is saturated, "
        "if nearly no other episode is. The largest of one in our datasets where the others are not: 0.03.",
    ),
    "saturated episodes": Threshold(
        0.05, "Share of the episodes up to which they are reported as saturated, one by one."
    ),
    "hardly saturated": Threshold(
        0.01,
        "Share of the values of the other episodes up to which they are not saturated, but for one smallest and "
        "one largest in each. In our datasets 0, or more than 0.02 where controllers saturate.",
    ),
    "wholly saturated": Threshold(
        0.9,
        "The same share where others are saturated in part. The largest in our mazes, whose controllers are: 0.7.",
    ),
    "partly saturated": Threshold(0.75, "The share that no other episode may exceed for that."),
    "frozen steps": Threshold(
        20, "Steps from which a frame that stays the same is reported, if nearly all others change."
    ),
    "jump ratio": Threshold(
        2.0, "How many times as large as the largest of the rest the smallest jump is, at least."
    ),
    "usual changes": Threshold(0.99, "Share of the changes of a dimension that count as usual."),
    "jump size": Threshold(
        3.0, "How many times as large as the largest usual change a jump is, at least."
    ),
    "far jump": Threshold(
        20.0,
        "How many times as large as the largest usual change a jump is that no collision explains.",
    ),
    "jumping dimensions": Threshold(
        0.5, "If more than this share of the dimensions jumps at once, no collision explains it."
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
    "copied by chance": Threshold(
        0.1,
        "How many final observations may be expected to repeat the one before it by chance, for each that does.",
    ),
    "shifted finals": Threshold(
        0.1, "Share of the episodes whose final observation is the first one of the next episode."
    ),
    "shared transitions": Threshold(
        5, "Transitions of real numbers that occur more than once, from which they are reported."
    ),
    "values": Threshold(
        2**14,
        "Different values of real numbers in observations, from which on equal ones are no accident.",
    ),
    "values of a row": Threshold(
        0.05,
        "The same for each row, where there are fewer rows: numbers of few values repeat by themselves.",
    ),
    "there and back": Threshold(
        4, "Steps after which a transition that occurs again in its episode counts as a copy."
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
    "fewest aligned steps": Threshold(
        500, "Steps from which actions and rewards are judged to be of the step before or after."
    ),
    "fewest steps to align": Threshold(
        20, "Steps of an episode from which it is judged by itself."
    ),
    "explained changes": Threshold(
        0.05,
        "Share of the changes of some dimension that actions explain, beyond earlier observations, from which "
        "single episodes are judged. Our datasets: 0.27 to 1.",
    ),
    "explained changes by shifted actions": Threshold(
        0.1, "The same share from which the actions of all episodes may count as shifted."
    ),
    "shifted gain": Threshold(
        1.5,
        "How many times as much as actions explain those of the step before or after do, if all are shifted. "
        "Our datasets, as they are: 0.5 at most; shifted by a step: 2.1 at least.",
    ),
    "free actions": Threshold(
        0.1,
        "Share of the actions' variance that must not follow from the observations for this to be told.",
    ),
    "unexplained rewards": Threshold(
        0.3,
        "Share of the rewards' variance that may be unexplained where they are judged by prediction.",
    ),
    "shifted rewards": Threshold(
        0.5,
        "How much of what is unexplained of the rewards is left if they are taken from the step before or after "
        "and all are shifted; and from which it can be told for one episode.",
    ),
    "aligned errors": Threshold(
        0.8,
        "How large the errors of an episode's predictions are with the actions or rewards of the step before or "
        "after, as a share of its own. Our datasets as they are: 0.9 at least.",
    ),
    "aligned evidence": Threshold(
        4.0,
        "How many standard errors they must be smaller by. Our datasets, as they are: 1.6 at most.",
    ),
    "numbered tasks": Threshold(65_535, "The largest number of a task that is no mistake."),
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
