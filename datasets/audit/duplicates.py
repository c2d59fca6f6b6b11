"""Checks for what occurs more than once: episodes and transitions, within splits and across them.

Rows are compared by 64-bit hashes. Of more transitions than fit, those whose hash is below a
threshold are kept: an even sample that holds either all copies of a transition or none.
"""

from __future__ import annotations

import re

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding, looks_at_no_rows
from orlog.datasets.audit.hashing import ODD, OTHER, mixed
from orlog.datasets.audit.pieces import Piece
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.manifests.columns import axis_of, is_part
from orlog.manifests.names import counted, said_of

_HELD_OUT = re.compile(
    r"(^|[^a-z])(val|valid|validation|test|testing|eval|evaluation|held.?out|holdout)($|[^a-z])",
    re.IGNORECASE,
)
_TRAIN = re.compile(r"(^|[^a-z])train(ing)?($|[^a-z])", re.IGNORECASE)


def is_held_out(split: str) -> bool:
    """Return whether the name of a split says that it is not for training: `val`, `20_test`, .."""
    return _HELD_OUT.search(split) is not None


def check_splits(facts: Facts) -> Check:
    """Find episodes that are in two splits which should share none, or in no split."""
    yield from looks_at_no_rows(facts)
    if facts.splits is None:
        return "there are no splits: no text column episodes/split, and nothing to compare with"
    findings = []
    held = [any(map(is_held_out, names)) for names in facts.splits]
    both = [
        episode
        for episode, names in enumerate(facts.splits)
        if held[episode] and any(map(_TRAIN.search, names))
    ]
    if both:
        findings.append(
            Finding(
                check="splits",
                severity="error",
                column="episodes/split",
                text=said_of(len(both), "episodes are both for training and held out: ")
                + f"{', '.join(sorted(facts.splits[both[0]]))}",
                episode=both[0],
                count=len(both),
            )
        )
    selection = facts.dataset.selection()
    first: dict[tuple[int, int], int] = {}
    shared = []
    for episode, place in enumerate(
        zip(selection.source.tolist(), selection.index.tolist(), strict=True)
    ):
        other = first.setdefault(place, episode)
        if facts.splits[other] != facts.splits[episode] and held[other] != held[episode]:
            shared.append(episode)
    if shared:
        findings.append(
            Finding(
                check="splits",
                severity="error",
                column="episodes/split",
                text=said_of(
                    len(shared), "stored episodes are in a held-out split and in another one"
                ),
                episode=shared[0],
                count=len(shared),
            )
        )
    none = [episode for episode, names in enumerate(facts.splits) if not names]
    if none:
        findings.append(
            Finding(
                check="splits",
                severity="warning",
                column="episodes/split",
                text=said_of(len(none), "episodes are in no split, though others are"),
                episode=none[0],
                count=len(none),
            )
        )
    return findings


def check_duplicates(facts: Facts) -> Check:
    """Find episodes and transitions that occur more than once, and rows that are stored twice."""
    dataset = facts.dataset
    seen = Seen(dataset)
    episode_hashes = seen.of_episodes(np.uint64)
    counts, firsts, doubled = seen.counts(), seen.firsts(), seen.of_episodes(np.int64)
    sample = seen.part(_Sample())
    is_real = {
        root: any(
            spec.dtype.kind == "f" and name.partition("/")[0] == root
            for name, spec in dataset.schema.columns().items()
        )
        for root in ("observations", "actions")
    }
    varied = seen.part(_Varied())
    while (piece := (yield seen)) is not None:
        varied.add(piece)
        same, twice = _stored_twice(piece)
        counts["same"] += int(same.sum())
        if twice.any():
            firsts.setdefault("twice", piece.place(int(twice.argmax())))
            np.add.at(doubled, np.repeat(piece.episodes, piece.lengths), twice)
        hashes, is_moving = _transitions(piece)
        steps = np.arange(piece.steps) - np.repeat(piece.ends - piece.lengths, piece.lengths)
        steps[: piece.lengths[0]] += piece.first_step
        each = mixed(hashes + ODD * (steps.astype(np.uint64) + np.uint64(1)))
        sums = np.add.reduceat(each, piece.ends - piece.lengths)
        np.add.at(episode_hashes, piece.episodes, sums)
        chosen = is_moving & piece.has_next
        sample.add(hashes[chosen], np.repeat(piece.episodes, piece.lengths)[chosen], steps[chosen])
    is_real["observations"] &= varied.is_enough
    findings = []
    copies = _groups(episode_hashes)
    is_copy = np.zeros(dataset.total_episodes, np.bool_)
    for group in copies:
        is_copy[group[1:]] = True
    findings += _copied_episodes(facts, copies, is_real["observations"])
    # Copies of whole episodes are reported already; those in other splits count as leaks there.
    hashes, episodes, steps = sample.without(is_copy)
    findings += _copied_transitions(facts, hashes, episodes, steps, is_real, sample.share)
    count, share = int(doubled.sum()), limit("held share")
    # Where all rows are stored twice, it is another check that says so.
    few = count <= share / (1 + share) * dataset.total_steps
    many = count >= max(limit("shared transitions"), share * counts["same"])
    if few and many and all(is_real.values()):
        findings.append(
            Finding(
                check="duplicates",
                severity="warning",
                column="steps",
                text=f"{count:,} rows are stored twice, one after the other, in "
                f"{counted(int(np.count_nonzero(doubled)), 'episode')}, while others are not",
                episode=firsts["twice"][0],
                step=firsts["twice"][1],
                count=count,
            )
        )
    return findings


def _stored_twice(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows the next one repeats, and which of them belong to a stretch a, a, b, b, .. (steps,) bool.

    A robot at rest repeats its row many times.
    """
    observed, taken = piece.hashes("observations"), piece.hashes("actions")
    same = observed[piece.before] == observed[piece.before + 1]
    same[:-1] &= taken[1:] == taken[:-1]
    same[piece.ends - 1] = False
    wide = np.pad(same, 2)
    return same, same & ~wide[1:-3] & ~wide[3:-1] & (wide[:-4] | wide[4:])


class _Varied:
    """Whether real numbers of observations have so many values that equal ones hardly come about by themselves."""

    def __init__(self) -> None:
        self._values: dict[str, np.ndarray] = {}
        self._rows = 0

    @property
    def is_enough(self) -> bool:
        """Whether any number has many values, or many for the rows that there are."""
        return self._most >= min(limit("values"), limit("values of a row") * self._rows)

    @property
    def _most(self) -> int:
        return max((len(one) for one in self._values.values()), default=0)

    def add(self, piece: Piece) -> None:
        """Take in a piece; once there are enough, nothing more."""
        if self._most >= limit("values"):
            return
        self._rows += piece.steps + len(piece.episodes)
        for name, values in piece.columns.items():
            if values.dtype.kind == "f" and name.partition("/")[0] == "observations":
                seen = self._values.get(name, np.empty(0, values.dtype))
                self._values[name] = np.union1d(seen, values.ravel())

    def join(self, other: _Varied) -> None:
        """Take in what another one has of later episodes."""
        if self._most >= limit("values"):
            return
        self._rows += other._rows
        for name, values in other._values.items():
            seen = self._values.get(name, np.empty(0, values.dtype))
            self._values[name] = np.union1d(seen, values)


def _copied_episodes(facts: Facts, copies: list[np.ndarray], is_real: bool) -> list[Finding]:
    if not copies:
        return []
    leaks = [group for group in copies if _crosses(facts, group)]
    findings = []
    if leaks:
        count = sum(len(group) - 1 for group in leaks)
        findings.append(
            Finding(
                check="duplicates",
                severity="error",
                column="episodes",
                text=f"{count:,} episode{'' if count == 1 else 's'} of a held-out split "
                f"{'is' if count == 1 else 'are'} also in another split: scores on it would be too good "
                f"(episodes {leaks[0][0]} and {leaks[0][1]})",
                episode=int(leaks[0][1]),
                count=count,
            )
        )
    inside = [group for group in copies if not _crosses(facts, group)]
    if inside:
        count = sum(len(group) - 1 for group in inside)
        findings.append(
            Finding(
                check="duplicates",
                severity="warning" if is_real else "note",
                column="episodes",
                text=f"{count:,} episode{'' if count == 1 else 's'} repeat{'s' if count == 1 else ''} "
                f"another one exactly (episodes {inside[0][0]} and {inside[0][1]})",
                episode=int(inside[0][1]),
                count=count,
            )
        )
    return findings


def _copied_transitions(
    facts: Facts,
    hashes: np.ndarray,
    episodes: np.ndarray,
    steps: np.ndarray,
    is_real: dict[str, bool],
    share: float,
) -> list[Finding]:
    order = np.argsort(hashes, kind="stable")  # copies stay in the order of the data
    hashes, episodes, steps = hashes[order], episodes[order], steps[order]
    repeats = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    # Actions on their limits lead there and back, and then there again: that is no copy.
    is_near = steps[repeats] - steps[repeats - 1] <= limit("there and back")
    repeats = repeats[~(is_near & (episodes[repeats] == episodes[repeats - 1]))]
    count = round(len(repeats) / share)
    if count < limit("shared transitions"):
        return []
    about = "about " if share < 1 else ""
    repeats = repeats[np.lexsort((steps[repeats], episodes[repeats]))]
    first = repeats[0]
    findings = []
    if facts.splits is not None:
        held = np.array([any(map(is_held_out, names)) for names in facts.splits])
        crosses = repeats[held[episodes[repeats]] != held[episodes[repeats - 1]]]
        if len(crosses):
            place = crosses[0]
            findings.append(
                Finding(
                    check="duplicates",
                    severity="error" if all(is_real.values()) else "warning",
                    column="steps",
                    text=about
                    + said_of(round(len(crosses) / share), "transitions of a held-out split are ")
                    + "also in another split",
                    episode=int(episodes[place]),
                    step=int(steps[place]),
                    count=round(len(crosses) / share),
                )
            )
    if not is_real["observations"]:
        return findings
    findings.append(
        Finding(
            check="duplicates",
            severity="warning" if is_real["actions"] else "note",
            column="steps",
            text=about + said_of(count, "transitions occur more than once"),
            episode=int(episodes[first]),
            step=int(steps[first]),
            count=count,
        )
    )
    return findings


def _crosses(facts: Facts, group: np.ndarray) -> bool:
    """Return whether some of these episodes are held out and others are not."""
    if facts.splits is None:
        return False
    return len({any(map(is_held_out, facts.splits[one])) for one in group.tolist()}) > 1


def _groups(hashes: np.ndarray) -> list[np.ndarray]:
    """Return the positions of equal hashes, for those that occur more than once."""
    order = np.argsort(hashes, kind="stable")
    edges = np.flatnonzero(np.diff(hashes[order])) + 1
    groups = [group for group in np.split(order, edges) if len(group) > 1]
    return sorted(groups, key=lambda group: int(group[1]))


class _Sample:
    """Hashes of transitions with their places; an even sample if there are too many."""

    def __init__(self) -> None:
        self.kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.count = 0
        self.halved = 0  # times

    @property
    def share(self) -> float:
        """Share of all transitions that the sample holds."""
        return 2.0**-self.halved

    def add(self, hashes: np.ndarray, episodes: np.ndarray, steps: np.ndarray) -> None:
        """Take in transitions."""
        self._take([(hashes, episodes, steps)])

    def join(self, other: _Sample) -> None:
        """Take in what another one has of later episodes."""
        self.halved = max(self.halved, other.halved)
        before, self.kept, self.count = self.kept, [], 0
        self._take(before + other.kept)

    def _take(self, rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> None:
        added = [self._below(one) for one in rows]
        self.kept += added
        self.count += sum(len(one[0]) for one in added)
        while self.count > limit("remembered transitions"):
            self.halved += 1
            self.kept = [self._below(one) for one in self.kept]
            self.count = sum(len(one[0]) for one in self.kept)

    def _below(
        self, rows: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not self.halved:
            return rows
        chosen = rows[0] < np.uint64(2 ** (64 - self.halved))
        return rows[0][chosen], rows[1][chosen], rows[2][chosen]

    def without(self, left_out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return hashes, episodes and steps, without those of some episodes."""
        if not self.kept:
            return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
        hashes, episodes, steps = (np.concatenate(some) for some in zip(*self.kept, strict=True))
        chosen = ~left_out[episodes]
        return hashes[chosen], episodes[chosen], steps[chosen]


def _transitions(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Return the hash of each step's transition, and whether its observation changes in it.

    A single number of several that changes, such as that of a gripper of a resting arm, repeats by itself.
    """
    observed = piece.hashes("observations")
    before, after = observed[piece.before], observed[piece.before + 1]
    taken, rewards = piece.hashes("actions"), piece.hashes("rewards")
    is_moving = before != after
    names = [one for one in piece.columns if axis_of(one) == "observation"]
    if all(piece.columns[one].dtype.kind == "f" and not is_part(one) for one in names):
        sizes = [piece.columns[one][0].size for one in names]
        if sum(sizes) <= limit("wide rows"):
            changed = sum(np.count_nonzero(piece.changes(one), axis=0) for one in names)
            is_moving &= np.asarray(changed >= min(2, sum(sizes)))
    return mixed(mixed(before + ODD * taken) + OTHER * after + rewards), is_moving
