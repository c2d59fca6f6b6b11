"""Checks of the last of an episode's T + 1 observations, and of next observations in the infos."""

from __future__ import annotations

import math

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding, about_episodes
from orlog.datasets.audit.pieces import Piece, plain_columns
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit

CHECK = "final observations"


def check_final_observations(facts: Facts) -> Check:
    """Find final observations that were not recorded as such."""
    names = plain_columns(facts.dataset, "observations")
    if not any(facts.dataset.schema.columns()[name].dtype.kind == "f" for name in names):
        return "observations are no real numbers, so equal ones are no sign of a mistake"
    count = facts.dataset.total_episodes
    seen = Seen(facts.dataset)
    first, final, before_final = (seen.of_episodes(np.uint64) for _ in range(3))  # hashes
    starts_at_zero, ends_at_zero = (seen.of_episodes(np.bool_) for _ in range(2))
    moved = seen.of_episodes(np.bool_)  # whether the step before the last one changed something
    leaps = seen.of_episodes(np.float64, 3)  # of the first step, of the last one, of all
    counts = seen.counts()
    while (piece := (yield seen)) is not None:
        _note_leaps(piece, names, leaps)
        hashes = piece.hashes("observations")
        same = hashes[piece.before] == hashes[piece.before + 1]
        others = np.delete(same, piece.lasts)
        counts["repeats"] += int(others.sum())
        counts["steps"] += len(others)
        ended, lasts = piece.episodes[piece.ending], piece.before[piece.lasts]
        before_final[ended], final[ended] = hashes[lasts], hashes[lasts + 1]
        moved[ended] = (hashes[lasts] != hashes[lasts - 1]) & (piece.lengths[piece.ending] > 1)
        ends_at_zero[ended] = _are_zero(piece, names, lasts + 1)
        goes_on = bool(piece.first_step)
        begun = piece.episodes[goes_on:]
        firsts = piece.before[piece.ends - piece.lengths][goes_on:]
        first[begun] = hashes[firsts]
        starts_at_zero[begun] = _are_zero(piece, names, firsts)
    known = ~facts.missing_finals
    repeated = np.flatnonzero((final == before_final) & known)
    shifted = np.flatnonzero((final[:-1] == first[1:]) & known[:-1])
    zero = np.flatnonzero(ends_at_zero & ~starts_at_zero & known)
    findings = []
    if facts.missing_finals.any():
        text = "the final observation of {} was never recorded, as the data say"
        missing = np.flatnonzero(facts.missing_finals)
        findings.append(about_episodes(CHECK, "note", "observations", text, missing))
    steps = counts["steps"]
    usual = counts["repeats"] / max(1, steps)
    findings += _repeated(repeated, moved[repeated], usual, steps, int(known.sum()))
    if len(shifted) >= max(2, limit("shifted finals") * count):
        findings += _shifted(shifted, leaps, facts.dataset.episode_lengths)
    if len(zero):
        text = "the final observation of {} is zero: it was probably never recorded"
        findings.append(about_episodes(CHECK, "warning", "observations", text, zero))
    return findings


def _note_leaps(piece: Piece, names: list[str], leaps: np.ndarray) -> None:
    """Add up how much the real numbers of the observations change in the first step, the last one, and all."""
    real = [one for one in names if piece.columns[one].dtype.kind == "f"]
    change = np.sum(
        [np.nan_to_num(np.abs(piece.changes(one)).mean(axis=0)) for one in real], axis=0
    )
    firsts, begun = piece.ends - piece.lengths, slice(bool(piece.first_step), None)
    leaps[0, piece.episodes[begun]] = change[firsts[begun]]
    leaps[1, piece.episodes[piece.ending]] = change[piece.lasts]
    leaps[2, piece.episodes] += np.add.reduceat(change, firsts)


def _shifted(shifted: np.ndarray, leaps: np.ndarray, lengths: np.ndarray) -> list[Finding]:
    """Return the finding about episodes that end as the next one begins, if it was not one recording at rest.

    The observation that is at the wrong end of the seam is far from the rest of its episode.
    """
    usual = limit("seam") * np.median(leaps[2] / lengths)
    if np.median(leaps[1, shifted]) > usual:
        text = "the final observation of {} is the first one of the next episode"
        return [about_episodes(CHECK, "error", "observations", text, shifted)]
    if np.median(leaps[0, shifted + 1]) > usual:
        text = "the first observation of {} is the final one of the episode before: stale"
        return [about_episodes(CHECK, "warning", "observations", text, shifted + 1, step=0)]
    return []


def _repeated(
    repeated: np.ndarray, moved: np.ndarray, usual: float, steps: int, episodes: int
) -> list[Finding]:
    """Return the finding about final observations that repeat the ones before them.

    Most of them: perhaps each was copied. A few: where observations hardly ever repeat, and where the
    world had not come to rest before.
    """
    habit = max(limit("fewest episodes"), limit("copied finals") * episodes)
    if usual <= limit("copied steps") and len(repeated) >= habit:
        text = "the final observation of {} repeats the one before it: perhaps T observations for T actions"
        return [about_episodes(CHECK, "warning", "observations", text, repeated)]
    alone = repeated[moved]
    by_chance = (usual + 1 / max(1, steps)) * episodes
    if not len(alone) or by_chance > limit("copied by chance") * len(alone):
        return []
    text = "the final observation of {} repeats the one before it, as hardly any other does"
    return [about_episodes(CHECK, "warning", "observations", text, alone)]


def check_next_observations(facts: Facts) -> Check:
    """Find next observations among the infos that differ from the observation after the step."""
    names = {
        name: other
        for other in plain_columns(facts.dataset, "observations")
        for name in (
            other.replace("observations", "infos/next_observations", 1),
            other.replace("observations", "infos/next_observation", 1),
        )
        if name in facts.dataset.columns
    }
    seen = Seen(facts.dataset)
    counts, firsts = seen.counts(), seen.firsts()
    while (piece := (yield seen)) is not None:
        for name, other in names.items():
            following = _rows(piece, other).take(piece.before + 1, axis=0)
            wrong = (_rows(piece, name) != following).any(axis=1) & piece.has_next
            if wrong.any():
                counts[name] += int(wrong.sum())
                firsts.setdefault(name, piece.place(int(wrong.argmax())))
    return [
        Finding(
            check=CHECK,
            severity="error",
            column=name,
            text=f"{counts[name]:,} rows differ from the observation of the following row",
            episode=episode,
            step=step,
            count=counts[name],
        )
        for name, (episode, step) in firsts.items()
    ]


def _are_zero(piece: Piece, names: list[str], rows: np.ndarray) -> np.ndarray:
    empty: np.ndarray = np.all([~_rows(piece, name)[rows].any(axis=1) for name in names], axis=0)
    return empty


def _rows(piece: Piece, name: str) -> np.ndarray:
    values = piece.columns[name]
    return values.reshape(len(values), math.prod(values.shape[1:]))
