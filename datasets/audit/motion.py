"""Checks of how numbers move in each episode: a sensor that hangs, an episode that stands still, other units.

For each number and episode four things are kept: how much it changes in all, how large it is, in how many
steps it stays the same, and its longest rest.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding, about_episodes
from orlog.datasets.audit.pieces import Piece, dimensions
from orlog.datasets.audit.roles import kinds_of_episodes
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.audit.values import judged_columns
from orlog.manifests.columns import axis_of
from orlog.manifests.names import counted

UNITS = {180 / math.pi: "degrees and radians", 1000.0: "meters and millimeters"}
_END = 2**31  # more than the steps of any episode


class Motion(NamedTuple):
    """What the numbers of a column did in each episode, arrays (numbers, E)."""

    change: np.ndarray
    size: np.ndarray
    still: np.ndarray
    longest: np.ndarray  # rest << 32 | _END - its last step

    @property
    def rest(self) -> np.ndarray:
        """Steps of the longest rest."""
        return self.longest >> 32

    @property
    def rest_start(self) -> np.ndarray:
        """The first step of the longest rest."""
        start: np.ndarray = _END - (self.longest & (2**32 - 1)) - self.rest + 1
        return start

    def add(
        self, piece: Piece, values: np.ndarray, changes: np.ndarray, before: np.ndarray
    ) -> None:
        """Take in the values and changes of the steps of a piece, and the rests that go on from the one before."""
        episodes, firsts = piece.episodes, piece.ends - piece.lengths
        self.change[:, episodes] += np.add.reduceat(np.abs(changes), firsts, axis=1)
        self.size[:, episodes] += np.add.reduceat(np.abs(values), firsts, axis=1)
        same = changes == 0
        rows = np.flatnonzero(same.any(axis=1))
        rests = np.zeros((len(values), 1), np.int64)
        if len(rows):
            same = same[rows]
            steps = np.arange(piece.steps)
            moved = np.maximum.accumulate(np.where(same, -1, steps), axis=1)
            rest = steps - np.maximum(moved, np.repeat(firsts - 1, piece.lengths))
            rest[:, : piece.lengths[0]] += (moved < 0)[:, : piece.lengths[0]] * before[rows]
            rest[~same] = 0
            ends = _END - (steps - np.repeat(firsts, piece.lengths))
            ends[: piece.lengths[0]] -= piece.first_step
            longest = np.maximum.reduceat((rest << 32) + ends, firsts, axis=1)
            at = np.ix_(rows, episodes)
            self.still[at] += np.add.reduceat(same, firsts, axis=1, dtype=np.int64)
            self.longest[at] = np.maximum(self.longest[at], longest)
            rests[rows, 0] = rest[:, -1]
        before[:] = rests if not piece.is_end else 0


def check_motion(facts: Facts) -> Check:
    """Find numbers that hang, episodes that stand still, and episodes in another unit."""
    specs, seen = facts.dataset.schema.columns(), Seen(facts.dataset)
    sizes = {
        name: math.prod(specs[name].shape)
        for name in (
            *judged_columns(facts, "observations"),
            *judged_columns(facts, "actions", kinds="fiu"),
        )
    }
    kept = {
        name: Motion(
            *(seen.of_episodes(np.float32, size) for _ in range(2)),
            *(seen.of_episodes(np.int64, size) for _ in range(2)),
        )
        for name, size in sizes.items()
    }
    before = {name: np.zeros((size, 1), np.int64) for name, size in sizes.items()}
    last: dict[str, np.ndarray] = {}
    while (piece := (yield seen)) is not None:
        for name, motion in kept.items():
            values = piece.numbers(name)
            if axis_of(name) == "observation":
                changes = piece.changes(name)
                values = values.take(piece.before, axis=1)
            else:
                changes = _since_before(piece, values, last.get(name))
                last[name] = values[:, -1:]
            motion.add(piece, values, changes, before[name])
    standing = _standing(facts, kept, exact=True)
    findings = [each for name in kept for each in _units(facts, name, kept[name], standing)]
    if not findings:  # in which episodes move less
        standing = _standing(facts, kept)
    if len(standing):
        findings.append(
            Finding(
                check="stuck",
                severity="warning",
                column="observations",
                text=f"nearly nothing moves in {counted(len(standing), 'episode')}, though it does in the "
                "others: the robot stands still, or its sensors hang",
                episode=int(standing[0]),
                step=0,
                last_step=int(facts.dataset.episode_lengths[standing[0]]) - 1,
                count=len(standing),
            )
        )
    for name in kept:
        findings += _frozen(facts, name, kept, standing)
    return findings


def _since_before(piece: Piece, values: np.ndarray, last: np.ndarray | None) -> np.ndarray:
    """Return how much actions change since the step before; in the first one of an episode next to nothing."""
    values = values.astype(np.result_type(values.dtype, np.float32), copy=False)
    before = values[:, :1] if last is None else last.astype(values.dtype)
    changes = np.diff(values, axis=1, prepend=before)
    changes[:, (piece.ends - piece.lengths)[bool(piece.first_step) :]] = 1e-30  # which is no rest
    return changes


def _standing(facts: Facts, kept: dict[str, Motion], *, exact: bool = False) -> np.ndarray:
    """Return the episodes in which nearly no number of the observations moves, or none at all, as in the others."""
    lengths = facts.dataset.episode_lengths
    changes = [each.change / lengths for name, each in kept.items() if name.startswith("obs")]
    if not changes or len(lengths) < limit("fewest episodes"):
        return np.empty(0, np.int64)
    change = np.concatenate(changes)
    usual = np.nanmedian(change, axis=1, keepdims=True)
    moving = usual[:, 0] > 0
    quiet = change[moving] <= (0 if exact else limit("standing still")) * usual[moving]
    stands = (quiet.sum(axis=0) >= limit("standing dimensions") * max(1, moving.sum())) & (
        lengths >= limit("stuck steps")
    )
    return _unlike_their_kind(facts, stands)


def _unlike_their_kind(facts: Facts, is_such: np.ndarray) -> np.ndarray:
    """Return such episodes, but for those of a task in which most are such, or of which there are few."""
    episodes: np.ndarray = np.flatnonzero(is_such)
    kinds = kinds_of_episodes(facts.dataset)
    if kinds is None:
        return episodes
    counts, such = np.bincount(kinds), np.bincount(kinds, is_such)
    judged = (counts >= limit("episodes of a kind")) & (such < counts / 2)
    unlike: np.ndarray = episodes[judged[kinds[episodes]]]
    return unlike


def _frozen(
    facts: Facts, name: str, kept: dict[str, Motion], standing: np.ndarray
) -> list[Finding]:
    """Return the finding about numbers that hang in few episodes, while others of their column move.

    A sensor has noise and never rests, so 20 equal values are no accident. What often rests does so by
    nature, such as a thing on a table, and what rests as long as some action does was told to.
    """
    lengths, motion = facts.dataset.episode_lengths, kept[name]
    is_action = axis_of(name) != "observation"
    rests = motion.rest >= limit("stuck steps")
    rests[:, standing] = False
    steps = facts.dataset.total_steps
    elsewhere = (motion.still.sum(axis=1) - (motion.rest * rests).sum(axis=1)) / steps
    whole = rests & (motion.rest >= lengths - is_action)
    few = max(limit("fewest episodes"), limit("frozen episodes") * len(lengths))
    suspect = (elsewhere <= limit("hardly still")) & ((motion.rest * rests).sum(axis=1) < steps / 2)
    hangs = whole | (rests & (rests.sum(axis=1, keepdims=True) <= few))
    apart = rests[suspect].sum(axis=0) <= suspect.sum() / 2
    hangs &= suspect[:, None] & (apart | (whole & is_action))
    if not is_action:
        hangs &= motion.rest > _told_to_rest(facts, kept) + 1
    numbers = [
        (number, episodes)
        for number in np.flatnonzero(hangs.any(axis=1)).tolist()
        if len(episodes := _unlike_their_kind(facts, hangs[number]))
    ]
    if not numbers:
        return []
    number, episodes = numbers[0]
    first = int(episodes[0])
    start, rest = int(motion.rest_start[number, first]), int(motion.rest[number, first])
    count = len(np.unique(np.concatenate([some for _, some in numbers])))
    longest = max(int(motion.rest[each, some].max()) for each, some in numbers)
    return [
        Finding(
            check="stuck",
            severity="warning",
            column=dimensions(facts.dataset, name, [each for each, _ in numbers]),
            text=f"stays the same for {counted(longest, 'step')} in {counted(count, 'episode')}, while others "
            "move, though it changes in nearly every other step: frozen",
            episode=first,
            step=start - is_action,  # from the row that stays
            last_step=start - is_action + rest,
            count=count,
        )
    ]


def _told_to_rest(facts: Facts, kept: dict[str, Motion]) -> np.ndarray:
    """Return for how long an action of more than a few values rests in each episode, (E,)."""
    longest = np.zeros(facts.dataset.total_episodes, np.int64)
    for name, motion in kept.items():
        if axis_of(name) != "observation":
            several = facts.once(f"values of {name}", functools.partial(_several, facts, name))
            longest = np.maximum(longest, motion.rest[several].max(axis=0, initial=0))
    return longest


def _several(facts: Facts, name: str) -> np.ndarray:
    """Return which numbers of a column have more than a few values, as a gripper or a switch has."""
    values = [piece.numbers(name) for piece in facts.sample()]
    return np.array(
        [len(np.unique(each)) > limit("few values") for each in np.concatenate(values, axis=1)]
    )


def _units(facts: Facts, name: str, motion: Motion, standing: np.ndarray) -> list[Finding]:
    """Return findings about episodes whose values and changes are both larger by a factor between units."""
    lengths = facts.dataset.episode_lengths
    chosen = np.setdiff1d(np.arange(len(lengths)), standing)
    with np.errstate(divide="ignore"):
        change, size = (
            np.log(each[:, chosen] / lengths[chosen]) for each in (motion.change, motion.size)
        )
    groups: dict[bytes, list[tuple[int, float]]] = {}
    for number in range(len(change)):
        x, y = change[number], size[number]
        order = np.argsort(x, kind="stable")
        if len(order) < 2 * limit("fewest episodes") or not np.isfinite(x).all():
            continue
        at = int(np.diff(x[order]).argmax()) + 1
        low, high = order[:at], order[at:]
        factors = [np.median(each[high]) - np.median(each[low]) for each in (x, y)]
        apart = min(each[high].min() - each[low].max() for each in (x, y))
        if (
            min(len(low), len(high)) >= 2
            and apart >= math.log(limit("units apart"))
            and abs(factors[0] - factors[1]) <= 2 * math.log(limit("unit error"))
        ):
            groups.setdefault(np.sort(high).tobytes(), []).append((number, float(np.mean(factors))))
    findings = []
    for key, numbers in groups.items():
        factor = float(np.median([each for _, each in numbers]))
        unit = min(UNITS, key=lambda each: abs(factor - math.log(each)))
        if abs(factor - math.log(unit)) > math.log(limit("unit error")):
            continue
        high = chosen[np.frombuffer(key, np.int64)]
        rare = high if 2 * len(high) <= len(chosen) else np.setdiff1d(chosen, high)
        column = dimensions(facts.dataset, name, [each for each, _ in numbers])
        text = (
            f"another unit in {len(rare):,} of {counted(len(lengths), 'episode')}: values and changes are about "
            f"{unit:.0f} times as large in {len(high):,} as in the others, as between {UNITS[unit]}"
        )
        findings.append(about_episodes("units", "warning", column, text, rare, step=0))
    return findings
