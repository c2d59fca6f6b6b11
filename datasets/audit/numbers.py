"""Checks of numbers: each value by itself, and what a number does in an episode against the others.

For each number and episode a row of a table is kept: its extremes and how often it equals them, how
large it is, how much it changes, how often it stays the same and its longest rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from gymnasium import spaces

from orlog.datasets.audit.findings import Check, Facts, Finding, Seen, Severity, about_episodes, limit
from orlog.datasets.audit.pieces import Piece, dimensions, flat, plain_columns
from orlog.datasets.columns.bounds import bounds_of, lies_inside
from orlog.manifests.columns import axis_of, offsets_column, values_column
from orlog.manifests.names import counted, said_of
from orlog.manifests.roles import column_with
from orlog.manifests.spaces import leaf_spaces

UNITS = {180 / math.pi: "degrees and radians", 1000.0: "meters and millimeters"}
_END = 2**31  # more than the steps of any episode


def judged_columns(facts: Facts, *roots: str, kinds: str = "f") -> list[str]:
    """Return the columns under some roots whose rows are few numbers of some kinds of dtype."""
    specs = facts.dataset.schema.columns()
    return [
        name
        for name in plain_columns(facts.dataset, *roots)
        if specs[name].dtype.kind in kinds and 0 < math.prod(specs[name].shape) <= limit("wide rows")
    ]


def check_finite(facts: Facts) -> Check:
    """Find NaN and infinity in every column."""
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        for name, values in piece.columns.items():
            # A sum shows quickly whether there may be any; one that overflows is looked at too.
            if values.dtype.kind == "f" and not np.isfinite(values.sum()):
                bad = flat(~np.isfinite(values[: piece.counted(name)]))
                seen.note(name, piece, bad.any(axis=1), column=name)
                seen.sums[name] += int(bad.sum())
    places: dict[str, tuple[int, int | None, int]] = {}
    for name in plain_columns(facts.dataset, "episodes"):
        values = facts.dataset.column(name)
        if values.dtype.kind == "f" and name != "episodes/returns":  # which follow from rewards
            rows = np.flatnonzero(~np.isfinite(flat(values)).all(axis=1))
            if len(rows):
                places[name] = int(rows[0]), None, len(rows)
    places |= {name: (*noted.place[:2], seen.sums[name]) for name, noted in seen.noted.items()}
    findings = []
    for name, place in places.items():
        severity: Severity = "warning" if name.startswith(("infos/", "episodes/")) else "error"
        text = said_of(place[2], "numbers are infinite or NaN")
        findings.append(Finding("finite", severity, name, text, *place))
    return findings


def check_bounds(facts: Facts) -> Check:
    """Find observations and actions outside the bounds of their Box."""
    bounds = bounds_of(facts.dataset.observation_space, facts.dataset.action_space)
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        for name in bounds.keys() & piece.columns.keys():
            values, box = piece.columns[name][: piece.counted(name)], bounds[name]
            if not lies_inside(values, box):
                wrong = ((values < box.low) | (values > box.high)) & np.isfinite(values)
                seen.sums[name] += int(wrong.sum())
                rows, worst = flat(wrong), np.where(wrong, values, -np.inf)
                seen.note(name, piece, rows.any(axis=1), values=flat(worst).max(axis=1), column=name)
    findings = []
    for name, noted in seen.noted.items():
        text = f"{counted(seen.sums[name], 'number')} outside of {bounds[name]}, first {noted.value:g}"
        place = *noted.place[:2], seen.sums[name]
        findings.append(Finding("bounds", "warning", name, text, *place))
    return findings


def check_dropouts(facts: Facts) -> Check:
    """Find rows of zeros between rows of observations that have hardly any: a message that was lost."""
    names = [name for name in judged_columns(facts, "observations") if facts.dataset.schema.columns()[name].shape]
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        for name in names:
            values = piece.numbers(name)[:, : piece.counted(name)]
            zero, rows, firsts = ~values.any(axis=0), np.arange(values.shape[1]), piece.firsts(name)
            full = ~zero & ((values != 0).mean(axis=0) >= limit("dropped numbers")) & (len(values) > 2)
            before = np.maximum.accumulate(np.where(zero, 0, rows))
            after = np.minimum.accumulate(np.where(zero, rows[-1], rows)[::-1])[::-1]
            is_one = np.searchsorted(firsts, before, "right") == np.searchsorted(firsts, after, "right")
            seen.note(name, piece, zero & full[before] & full[after] & is_one, column=name)
    text = "rows of zeros between others without: what was measured got lost"
    return [
        Finding("dropouts", "warning", name, f"{noted.rows:,} {text}", *noted.place)
        for name, noted in seen.noted.items()
    ]


def check_texts(facts: Facts) -> Check:
    """Find texts of observations and actions that their space does not have."""
    dataset = facts.dataset
    leaves = [*leaf_spaces(dataset.observation_space, "observations"), *leaf_spaces(dataset.action_space, "actions")]
    texts = {name: leaf for name, leaf in leaves if isinstance(leaf, spaces.Text)}
    seen = Seen(dataset)
    while (piece := (yield seen)) is not None:
        for name, space in texts.items():
            odd = _odd_texts(piece, name, space)
            seen.note(name, piece, np.array([*odd], int), values=odd, column=offsets_column(name))
    findings = []
    for name, noted in seen.noted.items():
        text = f"outside its space, {texts[name]!s:.60}: {counted(noted.rows, 'text')}, first {noted.value!r:.60}"
        findings.append(Finding("texts", "error", name, text, *noted.place))
    return findings


def _odd_texts(piece: Piece, name: str, space: spaces.Text) -> dict[int, str]:
    """Return texts that a space does not have, by their rows."""
    ends, values = piece.columns[offsets_column(name)], piece.columns[values_column(name)]
    starts = np.concatenate([[0], ends[:-1]])
    known = np.zeros(256, np.bool_)
    known[[ord(each) for each in space.character_set if ord(each) < 128]] = True
    # Texts with bytes of other characters, or of those that take several bytes, are decoded.
    odd = np.searchsorted(ends, np.flatnonzero(~known[values]), "right")
    sizes = ends - starts
    unlikely = np.flatnonzero((sizes < space.min_length) | (sizes > space.max_length))
    texts = {
        row: values[starts[row] : ends[row]].tobytes().decode(errors="replace")
        for row in np.union1d(odd, unlikely).tolist()
    }
    return {row: text for row, text in texts.items() if text not in space}


def check_unused_actions(facts: Facts) -> Check:
    """Find discrete actions that were never taken."""
    discrete = {
        name: leaf
        for name, leaf in leaf_spaces(facts.dataset.action_space, "actions")
        if isinstance(leaf, spaces.Discrete) and leaf.n <= 2**16
    }
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        for name, leaf in discrete.items():
            taken = piece.columns[name].astype(np.int64) - leaf.start
            inside = taken[(taken >= 0) & (taken < leaf.n)]
            seen.sums[name] += np.bincount(inside, minlength=int(leaf.n))
    findings = []
    for name, leaf in discrete.items():
        times, unused = seen.sums[name], np.flatnonzero(seen.sums[name] == 0)
        if len(unused) and times.sum() >= limit("fewest rows") * len(times):
            shown = ", ".join(map(str, (unused[:10] + leaf.start).tolist()))
            text = f"{len(unused)} of {len(times)} actions were never taken in {counted(times.sum(), 'step')}: {shown}"
            text += ", …" if len(unused) > 10 else ""
            findings.append(Finding("unused actions", "warning", name, text, count=len(unused)))
    return findings


class Runs:
    """The longest run of rows that stay the same, of each number in each episode, (numbers, E)."""

    def __init__(self, seen: Seen, numbers: int) -> None:
        self._longest = seen.of_episodes(np.int64, numbers)  # length << 32 | _END - last row
        self._open = np.zeros((numbers, 1), np.int64)  # of a run that goes on in the next piece

    @property
    def lengths(self) -> np.ndarray:
        """How many rows of it stay the same."""
        return self._longest >> 32

    @property
    def ends(self) -> np.ndarray:
        """The last of these rows, counted in its episode."""
        return _END - (self._longest & (2**32 - 1))

    def add(self, piece: Piece, same: np.ndarray, firsts: np.ndarray) -> None:
        """Take in which rows stay the same, (numbers, rows); `firsts` are the first ones of episodes."""
        numbers = np.flatnonzero(same.any(axis=1))
        opened = np.zeros_like(self._open)
        if len(numbers):
            same, rows = same[numbers], np.arange(same.shape[1])
            counts = np.diff(firsts, append=len(rows))
            moved = np.maximum.accumulate(np.where(same, -1, rows), axis=1)
            runs = rows - np.maximum(moved, np.repeat(firsts - 1, counts))
            runs[:, : counts[0]] += (moved < 0)[:, : counts[0]] * self._open[numbers]
            runs[~same] = 0
            ends = _END - (rows - np.repeat(firsts, counts))
            ends[: counts[0]] -= piece.first_step
            at = np.ix_(numbers, piece.episodes)
            longest = np.maximum.reduceat((runs << 32) + ends, firsts, axis=1)
            self._longest[at] = np.maximum(self._longest[at], longest)
            opened[numbers, 0] = runs[:, -1]
        self._open = opened * (not piece.is_end)


class _Table:
    """What each number of a column does in each episode, arrays (numbers, E)."""

    def __init__(self, facts: Facts, seen: Seen, name: str) -> None:
        self.dataset, self.name, self.seen = facts.dataset, name, seen
        self.lengths = facts.dataset.episode_lengths
        self.spec = facts.dataset.schema.columns()[name]
        self.is_action = name.startswith("actions")
        size = math.prod(self.spec.shape)
        self.low, self.high = (seen.of_episodes(np.float64, size) for _ in "12")
        self.at_low, self.at_high, self.still = (seen.of_episodes(np.int32, size) for _ in "123")
        self.change, self.size = (seen.of_episodes(np.float32, size) for _ in "12")
        self.runs = Runs(seen, size)
        self._last = np.empty((size, 0))

    def add(self, piece: Piece) -> None:
        """Take in the rows of a piece."""
        values = piece.numbers(self.name)[:, : piece.counted(self.name)]
        values = values.astype(np.result_type(values.dtype, np.float32), copy=False)
        firsts, episodes = piece.firsts(self.name), piece.episodes
        counts = np.diff(firsts, append=values.shape[1])
        before = self._last if piece.first_step else values[:, :1]
        changes = np.abs(np.diff(values, axis=1, prepend=before))
        self._last = values[:, -1:]
        same = changes == 0
        same[:, firsts[piece.begun]] = False
        changes[:, firsts[piece.begun]] = 0
        self.change[:, episodes] += np.add.reduceat(changes, firsts, axis=1)
        self.size[:, episodes] += np.add.reduceat(np.abs(values), firsts, axis=1)
        self.still[:, episodes] += np.add.reduceat(same, firsts, axis=1, dtype=np.int32)
        self.runs.add(piece, same, firsts)
        moves = ~same.all(axis=0) if len(values) > 1 else np.ones(len(values[0]), np.bool_)
        self.seen.sums[self.name] += int(moves.sum())
        for extreme, at, extreme_of, none in (
            (self.low, self.at_low, np.fmin, np.inf),
            (self.high, self.at_high, np.fmax, -np.inf),
        ):
            old = extreme[:, episodes]
            old[:, piece.begun] = none
            new = extreme_of(old, extreme_of.reduceat(values, firsts, axis=1))
            on = (values == np.repeat(new, counts, axis=1)) & moves
            times = np.add.reduceat(on, firsts, axis=1, dtype=np.int32)
            at[:, episodes] = times + at[:, episodes] * (old == new)
            extreme[:, episodes] = new

    def names(self, numbers: Sequence[int] | np.ndarray) -> str:
        """Return the names of some of its numbers."""
        return dimensions(self.dataset, self.name, numbers)


def check_numbers(facts: Facts) -> Check:
    """Find numbers that are constant, saturated, frozen or in another unit, and episodes at rest."""
    seen = Seen(facts.dataset)
    names = judged_columns(facts, "observations", "actions", kinds="fiu")
    tables = [_Table(facts, seen, name) for name in names]
    while (piece := (yield seen)) is not None:
        for table in tables:
            table.add(piece)
    findings: list[Finding] = []
    for table in tables if facts.dataset.total_steps >= limit("fewest rows") else ():
        findings += [*_constant(table, tables), *_at_extremes(table)]
    real = [table for table in tables if table.is_action or table.spec.dtype.kind == "f"]
    findings += [each for table in real for each in _saturated_episodes(table)]
    units = [each for table in real for each in _units(table)]
    standing = np.empty(0, np.int64)
    if not units:  # in another unit, episodes move less
        standing = _standing(facts, [table for table in real if not table.is_action])
    if len(standing):
        text = f"nearly nothing moves in {counted(len(standing), 'episode')}, though it does in the others: "
        text += "the robot stands still, or its sensors hang"
        first = int(standing[0])
        place = first, 0, len(standing), int(facts.dataset.episode_lengths[first]) - 1
        findings.append(Finding("stuck", "warning", "observations", text, *place))
    told_to_rest = np.zeros(facts.dataset.total_episodes, np.int64)
    for table in real:
        if table.is_action:
            extremes = np.concatenate([table.low, table.high], axis=1)
            many = np.array([len(np.unique(e)) > limit("few values") for e in extremes])
            rests = table.runs.lengths[many]
            told_to_rest = np.maximum(told_to_rest, rests.max(axis=0, initial=0))
    for table in real:
        moving = [_moves(other) for other in real if other is not table and not other.is_action]
        findings += _frozen(facts, table, standing, told_to_rest, np.any(moving, axis=0))
    return [*findings, *units]


def _constant(table: _Table, tables: list[_Table]) -> Iterator[Finding]:
    """A number whose smallest and largest value are equal."""
    low, high = table.low.min(axis=1), table.high.max(axis=1)
    numbers = np.flatnonzero(low == high)
    if not len(numbers):
        return
    same, value = np.all(low[numbers] == low[numbers[0]]), low[numbers[0]] + 0.0  # no minus zero
    rows = int(table.lengths.sum()) + (not table.is_action) * len(table.lengths)
    text = f"always {f'{value:g}' if same else 'the same'} in {counted(rows, 'row')}"
    severity: Severity = "note"
    if table.is_action and same and value == 0:
        severity, moving = "warning", _moving_states(table, numbers, tables)
        text += f": never used, though {moving} move" if moving else ": this action was never used"
    check = "unused actions" if table.is_action else "constant"
    yield Finding(check, severity, table.names(numbers), text, count=len(numbers))


def _moving_states(action: _Table, numbers: np.ndarray, tables: list[_Table]) -> str:
    """Return which numbers of the observations belong to those of an action and move; nothing if none do.

    They have the same names, or the same places in a column that moves at all of the action's places.
    """
    names, size = action.dataset.dimension_names, len(action.low)
    for table in tables:
        moves = table.low.min(axis=1) < table.high.max(axis=1)
        places = numbers.tolist() if len(moves) >= size and moves[:size].all() else []
        if action.name in names and table.name in names:
            wanted = {str(names[action.name][number]) for number in numbers.tolist()}
            places = [at for at, name in enumerate(names[table.name]) if str(name) in wanted]
        places = [at for at in places if moves[at] and not table.is_action]
        if places:
            return table.names(places)
    return ""


def _at_extremes(table: _Table) -> Iterator[Finding]:
    """A number that often equals its smallest or largest value (of an action: the bound of its Box)."""
    rows = table.seen.sums[table.name]
    box = bounds_of(table.dataset.observation_space, table.dataset.action_space).get(table.name)
    low, high = table.low.min(axis=1), table.high.max(axis=1)
    at_low = np.where(table.low == low[:, None], table.at_low, 0).sum(axis=1)
    at_high = np.where(table.high == high[:, None], table.at_high, 0).sum(axis=1)
    if table.is_action and box is not None:
        lowest, highest = (np.broadcast_to(e, table.spec.shape).reshape(-1) for e in (box.low, box.high))
        on = at_low * (low == lowest) + at_high * (high == highest)
        often = on > limit("actions on a bound") * rows
        text = "lie on a bound of the Box: policies that squash actions with tanh never reach it"
    elif not table.is_action and table.spec.dtype.kind == "f":
        # A number with two values, or that rarely changes, sits on its extremes by nature.
        on, both = np.maximum(at_low, at_high), at_low + at_high
        often = on > limit("observations on an extreme") * rows
        often &= rows - both >= limit("observations between") * rows
        often &= table.still.sum(axis=1) - both <= limit("mostly still") * (rows - both)
        text = "equal the smallest or the largest one: clipped, or a sensor at its limit"
    else:
        return
    numbers = np.flatnonzero((low < high) & often)
    if len(numbers):
        count = int(on[numbers].sum())
        text = f"{count / rows / len(numbers):.1%} of the values {text}"
        yield Finding("saturated", "note", table.names(numbers), text, count=count)


def _saturated_episodes(table: _Table) -> Iterator[Finding]:
    """An action that often equals an episode's own extremes, three times as often as in nearly all others."""
    lengths = table.lengths
    if not table.is_action or table.spec.dtype.kind != "f":
        return
    on = np.where(table.low < table.high, table.at_low + table.at_high, 0)
    share = np.where(lengths >= limit("stuck steps"), on / lengths, 0)
    saturated = (share >= limit("saturated share")) & (on >= limit("stuck steps"))
    usual = np.where(saturated, 0, share).max(axis=1, keepdims=True)
    rare = saturated.sum(axis=1) <= max(1, limit("saturated episodes") * len(lengths))
    saturated &= rare[:, None] & (share >= limit("saturated ratio") * usual)
    saturated &= (~saturated).sum(axis=1, keepdims=True) >= limit("fewest episodes")
    numbers = np.flatnonzero(saturated.any(axis=1))
    if not len(numbers):
        return
    number, episodes = numbers[0], np.flatnonzero(saturated.any(axis=0))
    first = int(np.flatnonzero(saturated[number])[0])
    text = (
        f"{share[number, first]:.0%} of the values equal the episode's smallest or largest one, "
        f"{table.low[number, first]:g} or {table.high[number, first]:g}, in {counted(len(episodes), 'episode')}, "
        "though hardly any does in the others: clipped"
    )
    place = first, 0, len(episodes), int(lengths[first]) - 1
    yield Finding("saturated", "warning", table.names(numbers), text, *place)


def _standing(facts: Facts, tables: list[_Table]) -> np.ndarray:
    """Return the episodes in which nearly no number changes more than a small share of its median change."""
    lengths = facts.dataset.episode_lengths
    if not tables or len(lengths) < limit("fewest episodes"):
        return np.empty(0, np.int64)
    change = np.concatenate([table.change / lengths for table in tables])
    usual = np.nanmedian(change, axis=1, keepdims=True)
    moving = usual[:, 0] > 0
    quiet = (change[moving] <= limit("standing still") * usual[moving]).sum(axis=0)
    stands = quiet >= limit("standing dimensions") * max(1, moving.sum())
    return _unlike_their_kind(facts, stands & (lengths >= limit("stuck steps")))


def _unlike_their_kind(facts: Facts, is_such: np.ndarray) -> np.ndarray:
    """Return such episodes, but for those of a task in which most are such, or of which there are few."""
    episodes: np.ndarray = np.flatnonzero(is_such)
    column = column_with(facts.dataset.roles, "task")
    if column is None or axis_of(column) != "episode":
        return episodes
    kinds = np.unique(facts.dataset.column(column), return_inverse=True)[1]
    counts, such = np.bincount(kinds), np.bincount(kinds, is_such)
    judged = (counts >= limit("episodes of a kind")) & (such < counts / 2)
    return np.asarray(episodes[judged[kinds[episodes]]])


def _frozen(
    facts: Facts, table: _Table, standing: np.ndarray, told_to_rest: np.ndarray, moving: np.ndarray
) -> Iterator[Finding]:
    """A number that stays the same for 20 steps in few episodes, and hardly ever else, while others move.

    A sensor has noise and never rests. What often rests does so by nature, such as a thing on a table,
    and what rests as long as some action does was told to.
    """
    lengths, steps = table.lengths, facts.dataset.total_steps
    rest = table.runs.lengths
    rests = rest >= limit("stuck steps")
    rests[:, standing] = False
    resting = (rest * rests).sum(axis=1)
    suspect = table.still.sum(axis=1) - resting <= limit("hardly still") * steps
    suspect &= resting < steps / 2
    whole = rests & (rest >= lengths - table.is_action)
    few = max(limit("fewest episodes"), limit("frozen episodes") * len(lengths))
    apart = rests[suspect].sum(axis=0) <= suspect.sum() / 2
    if not table.is_action and len(table.low) > 1:  # a whole column may hang
        apart |= whole.all(axis=0) & moving
    never = table.still.sum(axis=1) == resting
    most = np.where(never, max(few, limit("frozen episodes at most") * len(lengths)), few)[:, None]
    hangs = whole | (rests & (rests.sum(axis=1, keepdims=True) <= most))
    hangs &= suspect[:, None] & (apart | (whole & table.is_action))
    if table.is_action and len(lengths) > few:
        usual = np.sort(rest, axis=1)[:, [-int(few) - 1]]
        hangs |= whole & (rest >= limit("longer rest") * np.maximum(usual, 1)) & (rest > usual + limit("stuck steps"))
    if not table.is_action:
        hangs &= rest > told_to_rest + 1
        # Where another number that moves rests meanwhile, all came to rest.
        ends, lively = table.runs.ends, table.still.sum(axis=1, keepdims=True) <= limit("mostly still") * steps
        for number in np.flatnonzero(hangs.any(axis=1)).tolist():
            together = np.minimum(ends, ends[number]) - np.maximum(ends - rest, ends[number] - rest[number])
            hangs[number] &= ~(lively & ~hangs & (together >= rest[number] / 2)).any(axis=0) | whole[number]
    unlike = {number: _unlike_their_kind(facts, each) for number, each in enumerate(hangs)}
    unlike = {number: episodes for number, episodes in unlike.items() if len(episodes)}
    if not unlike:
        return
    number, episodes = next(iter(unlike.items()))
    first = int(episodes[0])
    last, length = int(table.runs.ends[number, first]), int(rest[number, first])
    count = len(np.unique(np.concatenate([*unlike.values()])))
    longest = max(int(rest[at, each].max()) for at, each in unlike.items())
    text = f"stays the same for {counted(longest, 'step')} in {counted(count, 'episode')}, while others move, "
    text += "though it changes in nearly every other step: frozen"
    yield Finding("stuck", "warning", table.names([*unlike]), text, first, last - length, count, last)


def _moves(table: _Table) -> np.ndarray:
    """Return in which episodes most numbers of a column change about as usual, (E,) bool."""
    change = table.change / table.lengths
    usual = np.median(change, axis=1, keepdims=True)
    return np.asarray(((change >= usual / 2) & (change > 0)).mean(axis=0) >= limit("mostly still"))


def _units(table: _Table) -> Iterator[Finding]:
    """Episodes in which a number and its changes are both larger, by the factor between two units.

    The largest gap between sorted episodes divides them in two groups.
    """
    chosen = np.flatnonzero((table.change > 0).any(axis=0))
    if len(chosen) < 2 * limit("fewest episodes"):
        return
    changes, sizes = (np.log(e[:, chosen] / table.lengths[chosen]) for e in (table.change, table.size))
    groups: dict[bytes, dict[int, float]] = {}
    for number, (change, size) in enumerate(zip(changes, sizes, strict=True)):
        if not np.isfinite(change).all():
            continue
        order = np.argsort(change, kind="stable")
        at = int(np.diff(change[order]).argmax()) + 1
        low, high = order[:at], order[at:]
        apart = min(each[high].min() - each[low].max() for each in (change, size))
        by_change, by_size = (np.median(e[high]) - np.median(e[low]) for e in (change, size))
        agree = abs(by_change - by_size) <= 2 * math.log(limit("unit error"))
        if agree and min(len(low), len(high)) >= 2 and apart >= math.log(limit("units apart")):
            group = groups.setdefault(np.sort(high).tobytes(), {})
            group[number] = float(by_change + by_size) / 2
    for key, factors in groups.items():
        factor = float(np.median([*factors.values()]))
        unit = min(UNITS, key=lambda each: abs(factor - math.log(each)))
        if abs(factor - math.log(unit)) > math.log(limit("unit error")):
            continue
        high = chosen[np.frombuffer(key, np.int64)]
        rare = high if 2 * len(high) <= len(chosen) else np.setdiff1d(chosen, high)
        text = (
            f"another unit in {len(rare):,} of {counted(len(table.lengths), 'episode')}: values and changes are "
            f"about {unit:.0f} times as large in {len(high):,} as in the others, as between {UNITS[unit]}"
        )
        yield from about_episodes("units", "warning", table.names([*factors]), text, rare, step=0)


CHECKS: dict[str, Callable[[Facts], Check]] = {
    "finite": check_finite,
    "bounds": check_bounds,
    "dropouts": check_dropouts,
    "texts": check_texts,
    "constant, saturated, stuck and units": check_numbers,
    "unused actions": check_unused_actions,
}
