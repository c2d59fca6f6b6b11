"""Checks for what occurs more than once: episodes and transitions, within splits and across them.

Rows are compared by hashes. Of more transitions than fit, those whose hash is below a threshold are
kept: an even sample that holds either all copies of a transition or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from orlog.datasets.audit.findings import Check, Facts, Finding, Seen, Severity, about_episodes, limit, looks_at_no_rows
from orlog.datasets.audit.pieces import ODD, OTHER, Piece, mixed
from orlog.manifests.columns import axis_of, is_part
from orlog.manifests.names import counted, said_of

MANY = 2**14  # episodes that show how many values there are; some have few steps
_WORD = r"(^|[^a-z])({})($|[^a-z])"
_HELD_OUT = _WORD.format("val|valid|validation|test|testing|eval|evaluation|held.?out|holdout")
_TRAIN = _WORD.format("train(ing)?")


def _in_split(facts: Facts, words: str) -> np.ndarray:
    """Return which episodes are in a split whose name has one of these words, such as `20_test`, (E,) bool."""
    splits = facts.splits or [frozenset()] * facts.dataset.total_episodes
    return np.array([any(re.search(words, name, re.IGNORECASE) for name in names) for names in splits], np.bool_)


def check_splits(facts: Facts) -> Check:
    """Find episodes that are in two splits which should share none, or in no split."""
    yield from looks_at_no_rows(facts)
    if facts.splits is None:
        return "there are no splits: no text column episodes/split, and nothing to compare with"
    held = _in_split(facts, _HELD_OUT)
    both, none = held & _in_split(facts, _TRAIN), [not names for names in facts.splits]
    shared = np.zeros_like(held)
    selection = facts.dataset.selection()
    first: dict[tuple[int, int], int] = {}
    places = zip(selection.source.tolist(), selection.index.tolist(), strict=True)
    for episode, place in enumerate(places):
        shared[episode] = held[first.setdefault(place, episode)] != held[episode]
    findings: list[Finding] = []
    cases: list[tuple[Severity, ArrayLike, str]] = [
        ("error", both, "episodes are both for training and held out"),
        ("error", shared, "stored episodes are in a held-out split and in another one"),
        ("warning", none, "episodes are in no split, though others are"),
    ]
    for severity, chosen, text in cases:
        episodes = np.flatnonzero(chosen)
        findings += about_episodes("splits", severity, "episodes/split", said_of(len(episodes), text), episodes)
    return findings


def check_duplicates(facts: Facts) -> Check:
    """Find episodes and transitions that occur more than once, and rows that are stored twice."""
    dataset, seen = facts.dataset, Seen(facts.dataset)
    episode_hashes, doubled = seen.of_episodes(np.uint64), seen.of_episodes(np.int64)
    is_varied = facts.once("varied", lambda: _is_varied(facts))
    share = min(1.0, limit("remembered transitions") / dataset.total_steps)
    while (piece := (yield seen)) is not None:
        same, twice = _stored_twice(piece)
        seen.sums["same"] += int(same.sum())
        seen.note("twice", piece, twice)
        doubled[piece.episodes] += np.add.reduceat(twice, piece.starts, dtype=np.int64)
        hashes, is_moving = _transitions(piece)
        each = mixed(hashes + ODD * (piece.step_index.astype(np.uint64) + np.uint64(1)))
        episode_hashes[piece.episodes] += np.add.reduceat(each, piece.starts)
        chosen = is_moving & piece.has_next & (hashes <= np.uint64(share * (2**64 - 2**11)))
        places = hashes, piece.episodes[piece.which], piece.step_index
        seen.rows["transitions"].append(np.array([each[chosen] for each in places], np.uint64))
    columns = dataset.schema.columns()
    is_real = is_varied and any(columns[name].dtype.kind == "f" for name in columns if name.startswith("actions"))
    held = _in_split(facts, _HELD_OUT)
    is_copy, findings = _copied_episodes(episode_hashes, held, is_varied)
    rows = _repeated(seen.rows["transitions"])
    rows = rows[:, ~is_copy[rows[1].astype(np.int64)]]
    findings += _copied_transitions(rows, share, held, is_varied, is_real)
    count, most = int(doubled.sum()), limit("held share")
    # Where all rows are stored twice, it is another check that says so.
    few = count <= most / (1 + most) * dataset.total_steps
    if is_real and few and count >= max(limit("shared transitions"), most * seen.sums["same"]):
        episodes = counted(int(np.count_nonzero(doubled)), "episode")
        text = f"{count:,} rows are stored twice, one after the other, in {episodes}, while others are not"
        place = *seen.noted["twice"].place[:2], count
        findings.append(Finding("duplicates", "warning", "steps", text, *place))
    return findings


def _stored_twice(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows the next one repeats, and which of them belong to a stretch a, a, b, b.

    A robot at rest repeats its row many times.
    """
    taken, same = piece.hashes("actions"), piece.same("observations")
    same[:-1] &= taken[1:] == taken[:-1]
    same[piece.ends - 1] = False
    wide = np.pad(same, 2)
    return same, same & ~wide[1:-3] & ~wide[3:-1] & (wide[:-4] | wide[4:])


def _transitions(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of each step's transition, and whether its observation changes in it.

    A single number of several that changes, such as that of a gripper of a resting arm, repeats by itself.
    """
    hashes = piece.hashes("observations")
    before, after = hashes[piece.before], hashes[piece.before + 1]
    names = [name for name in piece.columns if axis_of(name) == "observation"]
    is_moving = before != after
    if all(piece.columns[name].dtype.kind == "f" and not is_part(name) for name in names):
        size = sum(piece.columns[name][0].size for name in names)
        if size <= limit("wide rows"):
            changed = sum(np.count_nonzero(piece.changes(name), axis=0) for name in names)
            is_moving &= np.asarray(changed >= min(2, size))
    taken = mixed(before + ODD * piece.hashes("actions"))
    return mixed(taken + OTHER * after + piece.hashes("rewards")), is_moving


def _is_varied(facts: Facts) -> bool:
    """Return whether real numbers of observations have so many values in a sample that equal rows are no accident."""
    names = [
        name
        for name, spec in facts.dataset.schema.columns().items()
        if spec.dtype.kind == "f" and axis_of(name) == "observation"
    ]
    values: dict[str, np.ndarray] = {}
    rows = 0
    for piece in facts.sample(MANY) if names else ():
        rows += piece.steps + len(piece.episodes)
        for name in [name for name in names if name in piece.columns]:
            values[name] = np.union1d(values.get(name, []), piece.columns[name])
        if max(map(len, values.values())) >= limit("values"):
            return True
    return bool(values) and max(map(len, values.values())) >= limit("values of a row") * rows


def _copied_episodes(hashes: np.ndarray, held: np.ndarray, is_varied: bool) -> tuple[np.ndarray, list[Finding]]:
    """Return which episodes repeat an earlier one, and findings about them."""
    order = np.argsort(hashes, kind="stable")
    edges = np.flatnonzero(np.diff(hashes[order])) + 1
    groups = [group for group in np.split(order, edges) if len(group) > 1]
    groups.sort(key=lambda group: int(group[1]))
    is_copy = np.zeros(len(hashes), np.bool_)
    is_copy[[episode for group in groups for episode in group[1:]]] = True
    leaks = [group for group in groups if held[group].any() and not held[group].all()]
    inside = [group for group in groups if held[group].all() or not held[group].any()]
    findings = []
    cases: list[tuple[list[np.ndarray], Severity, str]] = [
        (leaks, "error", "episodes of a held-out split are also in another split"),
        (inside, "warning" if is_varied else "note", "episodes repeat another one exactly"),
    ]
    for some, severity, text in cases:
        if some:
            count = sum(len(group) - 1 for group in some)
            text = f"{said_of(count, text)} (episodes {some[0][0]} and {some[0][1]})"
            place = int(some[0][1]), None, count
            findings.append(Finding("duplicates", severity, "episodes", text, *place))
    return is_copy, findings


def _repeated(parts: list[np.ndarray]) -> np.ndarray:
    """Return the rows whose hash, which comes first, occurs more than once."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(part[0] for part in parts)])
    hashes.sort()
    again = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    chosen = [part[:, np.isin(part[0], again)] for part in parts if len(again)]
    return np.concatenate([np.empty((3, 0), np.uint64), *chosen], axis=1)


def _copied_transitions(
    rows: np.ndarray, share: float, held: np.ndarray, is_varied: bool, is_real: bool
) -> list[Finding]:
    """Return findings about transitions that occur more than once, of their hashes, episodes and steps."""
    hashes, episodes, steps = rows[:, np.argsort(rows[0], kind="stable")]
    episodes, steps = episodes.astype(np.int64), steps.astype(np.int64)
    again = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    # Actions on their limits lead there and back, and then there again: that is no copy.
    is_near = steps[again] - steps[again - 1] <= limit("there and back")
    again = again[~(is_near & (episodes[again] == episodes[again - 1]))]
    again = again[np.lexsort((steps[again], episodes[again]))]
    if len(again) < limit("shared transitions") * share:
        return []
    leaks = again[held[episodes[again]] != held[episodes[again - 1]]]
    findings = []
    again = again if is_varied else again[:0]
    text = "transitions of a held-out split are also in another split"
    cases: list[tuple[np.ndarray, Severity, str]] = [
        (leaks, "error" if is_real else "warning", text),
        (again, "warning" if is_real else "note", "transitions occur more than once"),
    ]
    for places, severity, text in cases:
        if len(places):
            count = round(len(places) / share)
            text = ("about " if share < 1 else "") + said_of(count, text)
            place = int(episodes[places[0]]), int(steps[places[0]]), count
            findings.append(Finding("duplicates", severity, "steps", text, *place))
    return findings


CHECKS: dict[str, Callable[[Facts], Check]] = {"duplicates": check_duplicates, "splits": check_splits}
