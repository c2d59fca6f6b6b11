"""Checks of how actions and observations belong together: copies of one another, and what changes half way.

Which number of an action goes with which number of the observations is found in a sample of the episodes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding, looks_at_no_rows
from orlog.datasets.audit.pieces import Piece, dimensions
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.audit.values import judged_columns
from orlog.manifests.names import counted

MOST_ROWS = 2**12  # that are compared, number by number


class _Sample(NamedTuple):
    """Some steps: actions (steps, A), observations before and after (steps, O), and where episodes begin."""

    actions: np.ndarray
    before: np.ndarray
    after: np.ndarray
    starts: np.ndarray
    action_numbers: list[tuple[str, int]]
    numbers: list[tuple[str, int]]

    def named(self, facts: Facts, indices: np.ndarray, *, of_actions: bool = False) -> str:
        """Return the names of some numbers, by column."""
        numbers = self.action_numbers if of_actions else self.numbers
        chosen = [numbers[each] for each in np.unique(indices).tolist()]
        return ", ".join(
            dimensions(facts.dataset, name, [each for other, each in chosen if other == name])
            for name in dict.fromkeys(name for name, _ in chosen)
        )


def _rows(piece: Piece, names: list[str], rows: np.ndarray) -> np.ndarray:
    return np.concatenate([piece.numbers(each).take(rows, axis=1) for each in names]).astype(
        np.float64
    )


def _sample(facts: Facts) -> _Sample | None:
    """Return steps of some episodes; None where actions or observations are no few real numbers."""
    actions, observations = (judged_columns(facts, each) for each in ("actions", "observations"))
    if not actions or not observations:
        return None
    parts: list[list[np.ndarray]] = [[], [], [], []]
    for piece in facts.sample():
        steps = np.arange(piece.steps)
        starts = np.zeros(piece.steps, np.bool_)
        starts[(piece.ends - piece.lengths)[bool(piece.first_step) :]] = True
        for part, rows in zip(
            parts,
            (
                _rows(piece, actions, steps),
                _rows(piece, observations, piece.before),
                _rows(piece, observations, piece.before + 1),
                starts[None],
            ),
            strict=True,
        ):
            part.append(rows.T)
    specs = facts.dataset.schema.columns()
    numbers = [
        [(name, each) for name in names for each in range(math.prod(specs[name].shape))]
        for names in (actions, observations)
    ]
    taken, before, after, starts = (np.concatenate(each) for each in parts)
    return _Sample(taken, before, after, starts[:, 0], *numbers)


def check_copies(facts: Facts) -> Check:
    """Find actions that are the state of their own row, and observations that hold the action before."""
    names = [judged_columns(facts, each) for each in ("actions", "observations")]
    findings = facts.once("copies", lambda: _copies(facts)) if all(names) else []
    yield from looks_at_no_rows(facts)
    found: list[Finding] = findings
    return found


def _copies(facts: Facts) -> list[Finding]:
    sample = _sample(facts)
    if sample is None or len(sample.actions) < limit("fewest rows"):
        return []
    steps = slice(None, None, max(1, len(sample.actions) // MOST_ROWS))
    findings = _without_action(facts, sample, steps)
    moved = np.abs(sample.after - sample.before)
    near = limit("copied action") * moved.mean(axis=0)
    same = []
    for number in range(sample.actions.shape[1]):
        away = np.abs(sample.actions[steps, number : number + 1] - sample.before[steps])
        moves = moved[steps] > near
        hits = ((away <= near) & moves).sum(axis=0)
        good = (hits >= limit("copied rows") * moves.sum(axis=0)) & (
            moves.sum(axis=0) >= limit("moving rows") * len(away)
        )
        same += [(number, other) for other in np.flatnonzero(good & (near > 0)).tolist()]
    if same:
        actions, states = np.transpose(same)
        findings.append(
            Finding(
                check="copies",
                severity="warning",
                column=sample.named(facts, actions, of_actions=True),
                text=f"equals {sample.named(facts, states)} of the same row: it says where the robot is, and not "
                "what it shall do; the state of the next row is meant",
                episode=0,
                step=0,
                count=len(np.unique(actions)),
            )
        )
    earlier = np.flatnonzero(~sample.starts[1:])
    earlier = earlier[:: max(1, len(earlier) // MOST_ROWS)]
    firsts = np.flatnonzero(sample.starts)
    firsts = firsts[firsts + 1 < len(sample.actions)]
    held = []
    for number in range(sample.actions.shape[1]):
        values = sample.actions[:, number]
        changes = np.abs(np.diff(values))[earlier]
        if (changes > 0).mean() < limit("moving rows"):
            continue
        away = np.abs(values[earlier, None] - sample.before[earlier + 1])
        equal = away <= 1e-6 * (1 + np.abs(values[earlier, None]))
        is_copy = equal.mean(axis=0) >= limit("copied rows")
        follows = ~is_copy & (away.mean(axis=0) <= limit("following") * values[earlier].std())
        for other in np.flatnonzero(is_copy).tolist():
            # The next state may be the action, but does not begin at 0 or with an action yet to come.
            # That of a robot at rest tells nothing, but where another number follows it, that is the state.
            begins = sample.before[firsts, other]
            is_filled = (begins == values[firsts]).all() and (
                follows.any() or (values[firsts] != values[firsts + 1]).all()
            )
            if len(firsts) > 2 and ((begins == 0).all() or is_filled):
                held.append((number, other))
    if held:
        actions, states = np.transpose(held)
        findings.append(
            Finding(
                check="copies",
                severity="note",
                column=sample.named(facts, states),
                text=f"holds {sample.named(facts, actions, of_actions=True)} of the step before: what imitates the data "
                "can repeat it, and learn nothing else",
                episode=0,
                step=1,
                count=len(np.unique(states)),
            )
        )
    return findings


def _without_action(facts: Facts, sample: _Sample, steps: slice) -> list[Finding]:
    """Return findings about numbers of a state without an action, though those beside them follow one each."""
    actions, findings = sample.actions[steps], []
    spread = actions.std(axis=0)
    for name in dict.fromkeys(column for column, _ in sample.numbers):
        numbers = np.array([at for at, (column, _) in enumerate(sample.numbers) if column == name])
        states = sample.after[steps][:, numbers]
        away = np.array([np.abs(each[:, None] - states).mean(axis=0) for each in actions.T])
        nearest = away.argmin(axis=1)
        if (away.min(axis=1) > limit("following") * spread).any() or (np.diff(nearest) < 1).any():
            continue
        between = np.setdiff1d(np.arange(nearest[0], nearest[-1]), nearest)
        moves = states.std(axis=0)
        moves = moves > limit("standing still") * np.median(moves[nearest])
        alike = np.corrcoef(actions, states, rowvar=False)[: len(spread), len(spread) :]
        alone = moves & (np.abs(alike).max(axis=0) < limit("no action"))  # unlike a second finger
        between = between[alone[between]]
        if 0 < len(between) <= limit("states without action") * len(nearest):
            findings.append(
                Finding(
                    check="unused actions",
                    severity="note",
                    column=sample.named(facts, numbers[between]),
                    text="moves, and no action is about it, while the numbers beside it follow one each",
                    count=len(between),
                )
            )
    return findings


def check_sense(facts: Facts) -> Check:
    """Find episodes whose actions are positions in some and changes in others, or point the other way."""
    pairs = facts.once("sense", lambda: _pairs(facts))
    if isinstance(pairs, str):
        return pairs
    numbers, states, switches, sample = pairs
    actions, observations = (judged_columns(facts, each) for each in ("actions", "observations"))
    seen = Seen(facts.dataset)
    sums = seen.of_episodes(np.float64, 9, len(numbers))
    begins = seen.of_episodes(np.float64, len(switches))
    while (piece := (yield seen)) is not None:
        begun = slice(bool(piece.first_step), None)
        firsts = (piece.ends - piece.lengths)[begun]
        begins[:, piece.episodes[begun]] = _rows(piece, actions, firsts)[switches]
        steps = np.flatnonzero(piece.has_next)
        if not len(steps):
            continue
        a = _rows(piece, actions, steps)[numbers]
        after = _rows(piece, observations, piece.before[steps] + 1)[states]
        change = after - _rows(piece, observations, piece.before[steps])[states]
        which = np.searchsorted(piece.ends, steps, "right")
        firsts = np.flatnonzero(np.diff(which, prepend=-1))
        terms = (
            np.ones_like(a),
            a,
            after,
            change,
            a * a,
            after * after,
            change * change,
            a * after,
            a * change,
        )
        for total, each in zip(sums, terms, strict=True):
            total[:, piece.episodes[which[firsts]]] += np.add.reduceat(each, firsts, axis=1)
    n, a, after, change, aa, pp, dd, ap, ad = sums
    position, delta = (
        (n * both - a * each) / np.sqrt((n * aa - a * a) * (n * squares - each * each))
        for each, squares, both in ((after, pp, ap), (change, dd, ad))
    )
    known = np.isfinite(position) & np.isfinite(delta) & (n >= limit("stuck steps"))
    found: dict[tuple[str, bytes], list[int]] = {}
    findings = []
    for number, values in zip(switches, begins, strict=True):
        change = _one_change(values)
        if change:
            findings.append(
                Finding(
                    check="sense of actions",
                    severity="warning",
                    column=sample.named(facts, np.array([number]), of_actions=True),
                    text=f"begins at {values[0]:g} in the first {counted(change, 'episode')} and at {values[-1]:g} in "
                    "all after them: perhaps its sense was reversed",
                    episode=change,
                    step=0,
                    count=len(values) - change,
                )
            )
    for index in range(len(numbers)):
        of_number = _parts(position[index], delta[index], known[index])
        if of_number is not None:
            kind, episodes = of_number
            found.setdefault((kind, episodes.tobytes()), []).append(index)
    total = counted(facts.dataset.total_episodes, "episode")
    texts = {
        "kind": "{count:,} of {total} have {kind} as actions, and the others {other}",
        "sense": "goes the other way in at least {count:,} of {total}, against {states}: its sense was reversed",
    }
    for (kind, key), indices in found.items():
        episodes = np.frombuffer(key, np.int64)
        is_delta = abs(delta[indices[0], episodes[0]]) > abs(position[indices[0], episodes[0]])
        findings.append(
            Finding(
                check="sense of actions",
                severity="warning",
                column=sample.named(facts, numbers[indices], of_actions=True),
                text=texts[kind].format(
                    count=len(episodes),
                    total=total,
                    kind="changes of position" if is_delta else "positions",
                    other="positions" if is_delta else "changes of position",
                    states=sample.named(facts, states[indices]),
                ),
                episode=int(episodes[0]),
                step=0,
                count=len(episodes),
            )
        )
    return findings


def _one_change(values: np.ndarray) -> int:
    """Return from which episode on all begin with another value than all before; 0 if they do not."""
    changes = np.flatnonzero(np.diff(values)) + 1
    if len(changes) != 1 or min(changes[0], len(values) - changes[0]) < limit("episodes before"):
        return 0
    return int(changes[0])


def _parts(
    position: np.ndarray, delta: np.ndarray, known: np.ndarray
) -> tuple[str, np.ndarray] | None:
    """Return what differs between two parts of the episodes, and which are the fewer."""
    fits, clear, sign = limit("same sense"), limit("clear kind"), limit("clear sign")
    is_position = known & (np.abs(position) >= fits) & (np.abs(position) - np.abs(delta) >= clear)
    is_delta = known & (np.abs(delta) >= fits) & (np.abs(delta) - np.abs(position) >= clear)
    pairs = [("kind", is_position, is_delta)]
    best = position if np.nansum(np.abs(position)) >= np.nansum(np.abs(delta)) else delta
    pairs.append(("sense", known & (best >= sign), known & (best <= -sign)))
    for kind, each, other in pairs:
        fewer = each if each.sum() < other.sum() else other
        agree = (each | other).sum() >= limit("two senses") * max(1, known.sum())
        if agree and fewer.sum() >= 2:
            return kind, np.flatnonzero(fewer)
    return None


def _pairs(facts: Facts) -> tuple[np.ndarray, np.ndarray, np.ndarray, _Sample] | str:
    """Return numbers of actions, and those of the observations that go best with them; and those of two values."""
    sample = _sample(facts)
    if sample is None:
        return "observations or actions are no real numbers, or have too many dimensions"
    edges = np.flatnonzero(sample.starts).tolist()
    totals = np.zeros((sample.actions.shape[1], sample.before.shape[1]))
    count = 0
    for first, end in zip(edges, [*edges[1:], len(sample.starts)], strict=True):
        if end - first < limit("stuck steps"):
            continue
        a, after, change = (
            (each - each.mean(axis=0)) / np.where(each.std(axis=0) > 0, each.std(axis=0), np.inf)
            for each in (
                sample.actions[first:end],
                sample.after[first:end],
                sample.after[first:end] - sample.before[first:end],
            )
        )
        both = [np.abs(np.nan_to_num(a.T @ each)) / (end - first) for each in (after, change)]
        totals += np.maximum(*both)
        count += 1
    states = totals.argmax(axis=1)
    numbers = np.flatnonzero(totals.max(axis=1) >= limit("same sense") * max(1, count))
    spread = np.ptp(sample.actions, axis=0)
    away = np.minimum(
        sample.actions - sample.actions.min(axis=0), sample.actions.max(axis=0) - sample.actions
    )
    switches = np.flatnonzero((spread > 0) & (away == 0).all(axis=0))
    empty = np.empty((0, 0))
    slim = sample._replace(
        actions=empty, before=empty, after=empty
    )  # it may be sent to other machines
    return numbers, states[numbers], switches, slim
