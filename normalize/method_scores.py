"""Scores of methods by task and seed, and the checks that all statistics of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from orlog.manifests.names import counted

LARGEST = 1e150
"""Scores must be smaller, so that their variance is a number."""

FEWEST_SEEDS = 3
"""Seeds that a method needs to be ranked."""

USUAL_EPISODES = 100
"""Episodes of each seed that it needs where no other number was recorded, if another method has so many."""

MethodScores: TypeAlias = Mapping[str, Mapping[str, np.ndarray]]
"""By method and task, an array [seeds, episodes]."""


def check_finite(scores: Float[np.ndarray, "*shape"], what: str = "scores") -> None:
    """Refuse scores that are not all finite, or whose squares would not be.

    Raises ValueError if a score is not finite, or too large; the message has its position.
    """
    wrong = ~(np.abs(np.atleast_1d(scores)) < LARGEST)
    if wrong.any():
        place = tuple(int(one[0]) for one in np.nonzero(wrong))
        raise ValueError(
            f"{what}: {np.atleast_1d(scores)[place]} at position {', '.join(map(str, place))}; "
            "statistics need finite scores: evaluate that run again, or leave it out."
        )


def run_means(
    scores: Sequence[Float[np.ndarray, "seeds episodes"]],
) -> Float[np.ndarray, "seeds tasks"]:
    """Return the mean score of each run of a method, from its scores by task."""
    return np.stack([one.mean(1) for one in scores], axis=1)


def check_method_scores(scores: MethodScores) -> None:
    """Refuse scores that cannot be compared over tasks.

    Raises ValueError if there is no method or task, methods have different tasks, a method has different
    numbers of seeds on its tasks, or a score is not finite.
    """
    if not scores:
        raise ValueError("there is no method to compare.")
    first, tasks = next((method, set(of_tasks)) for method, of_tasks in scores.items())
    for method, of_tasks in scores.items():
        if not of_tasks:
            raise ValueError(f"{method} has no task.")
        if differing := sorted(tasks ^ set(of_tasks)):
            lacking, having = (first, method) if differing[0] in of_tasks else (method, first)
            raise ValueError(
                f"{having} has scores on {differing[0]}, {lacking} has none; compare methods on the "
                "same tasks."
            )
        seeds = {task: len(one) for task, one in of_tasks.items()}
        least, most = min(seeds, key=seeds.__getitem__), max(seeds, key=seeds.__getitem__)
        if seeds[least] != seeds[most]:
            raise ValueError(
                f"{method} has {seeds[most]} seeds on {most} and {seeds[least]} on {least}; take as "
                "many on each task, so that each counts the same."
            )
        for task, one in of_tasks.items():
            if one.ndim != 2 or not one.size:
                raise ValueError(
                    f"{method} on {task}: scores must be an array [seeds, episodes] that is not "
                    f"empty, found shape {one.shape}."
                )
            check_finite(one, f"{method} on {task} [seed, episode]")


def unranked_methods(scores: MethodScores, episodes: Mapping[str, int | None]) -> dict[str, str]:
    """Return why methods are not ranked, by method: too few seeds, or fewer episodes than the protocol of a task has.

    `episodes` is the number of episodes of a seed in the recorded protocol of each task. Where none is known, the most that
    a method has count, at most `USUAL_EPISODES`: so nobody is ranked for the best 5 of 100.
    """
    found = {}
    for method, of_tasks in scores.items():
        for task, one in of_tasks.items():
            most = max(other[task].shape[1] for other in scores.values() if task in other)
            needed = episodes.get(task) or min(USUAL_EPISODES, most)
            if len(one) < FEWEST_SEEDS:
                found[method] = f"{len(one)} of at least {counted(FEWEST_SEEDS, 'seed')}"
            elif one.shape[1] < needed:
                found[method] = f"{one.shape[1]} of {counted(needed, 'episode')} of each seed"
    return found


def equal_methods(scores: MethodScores) -> dict[str, str]:
    """Return which methods have a seed whose scores another method before them has too, to the bit.

    By the name of the later method, that of the first one. Seeds that score the same in all episodes show nothing.
    """
    owners: dict[tuple[str, bytes], str] = {}
    found: dict[str, str] = {}
    for method, of_tasks in scores.items():
        for task, one in of_tasks.items():
            for seed in one:
                if len(seed) > 1 and np.ptp(seed) > 0:
                    owner = owners.setdefault((task, seed.tobytes()), method)
                    if owner != method:
                        found.setdefault(method, owner)
    return found


def differing_facts(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return in what methods differ, a sentence each: facts are by method and by what they are of."""
    found = []
    for what in dict.fromkeys(what for one in facts.values() for what in one):
        values: dict[str, list[str]] = {}
        for method, one in facts.items():
            values.setdefault(one.get(what, "not said"), []).append(method)
        if len(values) > 1:
            each = "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
            found.append(f"the rows differ in {what}: {each}.")
    return found
