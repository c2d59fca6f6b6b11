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
    "stuck steps": Threshold(
        20, "Steps from which a number or a frame that stays the same counts as stuck."
    ),
    "hardly still": Threshold(
        0.01,
        "A number that stays the same in more than this share of its other steps rests by nature: in our datasets, "
        "those that ever do have 0.028 or more, the others 0.",
    ),
    "frozen episodes": Threshold(
        0.05,
        "Share of the episodes (or 3 of them) up to which a number may hang in a part of them.",
    ),
    "episodes of a kind": Threshold(
        10, "Episodes of a task from which those that rest are told from its others."
    ),
    "few values": Threshold(8, "Different values up to which an action is a switch."),
    "standing still": Threshold(
        0.1, "Share of its median change up to which a number does not move in an episode."
    ),
    "standing dimensions": Threshold(
        0.8,
        "Share of the numbers of observations that must not move in an episode that stands still.",
    ),
    "unit error": Threshold(
        1.8,
        "Factor by which values and changes in two units may differ from the ratio of the units.",
    ),
    "units apart": Threshold(
        4.0,
        "Factor between the largest episode in one unit and the smallest in the other, at least.",
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
    "moving pixel": Threshold(
        0.1,
        "Share of the full brightness from which the change of a pixel is no noise or compression.",
    ),
    "moving pixels": Threshold(
        0.002, "Share of the pixels that change so from which a frame moves."
    ),
    "still frames": Threshold(
        0.05, "Share of the other steps up to which frames may stay the same if one camera hangs."
    ),
    "stale frame": Threshold(
        0.2,
        "Distance of a stale first frame from the end of the episode before, as a share of its leap.",
    ),
    "seam": Threshold(
        3.0,
        "How many times the usual change an observation leaps where two episodes were mixed up.",
    ),
    "late frames": Threshold(
        0.2,
        "Share of the changes of frames that the speed of the states must explain to judge a delay.",
    ),
    "late evidence": Threshold(
        5.0, "How many standard errors better than none another delay must be, over the episodes."
    ),
    "same colors": Threshold(
        0.8, "Correlation of the colors of two episodes from which they are of one scene."
    ),
    "same scene": Threshold(
        0.9, "Share of the episodes that must be of one scene to judge its colors."
    ),
    "held rows": Threshold(50, "Times that a row must be held for the same number of steps."),
    "held share": Threshold(0.8, "Share of the changes that must come after that number of steps."),
    "moves of held frames": Threshold(
        10,
        "Moves after that number of steps from which equal frames are no video of a scene at rest.",
    ),
    "copied action": Threshold(
        0.02,
        "Distance of an action from a state, as a share of the usual change, up to which they are equal.",
    ),
    "copied rows": Threshold(0.98, "Share of the rows in which they must be equal."),
    "following": Threshold(
        0.3,
        "Distance of a state from its action, in standard deviations, up to which it follows it.",
    ),
    "no action": Threshold(
        0.9, "Correlation with each action below which a number of a state has none of its own."
    ),
    "states without action": Threshold(
        0.25, "How many such numbers there may be, as a share of those that follow an action."
    ),
    "moving rows": Threshold(0.05, "Share of the rows in which they must change."),
    "same sense": Threshold(
        0.7,
        "Correlation of an action with a position, or its change, from which they belong together.",
    ),
    "clear kind": Threshold(
        0.3,
        "How much larger one of these correlations is than the other, if it is clear which is meant.",
    ),
    "clear sign": Threshold(0.4, "The same, of single episodes, whose sign is compared."),
    "episodes before": Threshold(
        5, "Episodes before and after the only change of where a switch begins, at least."
    ),
    "two senses": Threshold(
        0.9, "Share of the episodes that must be of one of two kinds to report that there are two."
    ),
    "unit length": Threshold(0.02, "How far the squared length of a quaternion may be from 1."),
    "unit rows": Threshold(0.99, "Share of the rows in which four numbers must be of length 1."),
    "sign flip": Threshold(
        0.9, "Cosine between a quaternion and minus the next one from which its sign has flipped."
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
