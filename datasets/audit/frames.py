"""Checks of what cameras record: blank, stale or late frames, cameras that hang, rows that are held, and colors.

A frame is looked at in about a thousand of its values. It moves if some of them change by more than noise
and compression do; only exactly equal ones count as the same.
"""

from __future__ import annotations

import math

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding, Severity, about_episodes
from orlog.datasets.audit.pieces import Piece, plain_columns, sampled_pieces
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.audit.values import judged_columns
from orlog.manifests.names import counted

SAMPLED = 1024  # values of a frame that are compared
THUMB = 64  # of these, kept of the first and the last frame of each episode
MOST_HELD, MOST_LATE, CELLS, EVERY, EPISODES = 10, 10, 4, 8, 24


def is_image(dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    """Return whether the rows of a column are images."""
    numbers = math.prod(shape)
    return len(shape) >= 2 and (dtype == np.uint8 or numbers > limit("wide rows")) and numbers > 1


def _cameras(facts: Facts) -> list[str]:
    specs = facts.dataset.schema.columns()
    return [
        name
        for name in plain_columns(facts.dataset, "observations")
        if is_image(specs[name].dtype, specs[name].shape)
    ]


def _states(facts: Facts) -> list[str]:
    specs = facts.dataset.schema.columns()
    names = plain_columns(facts.dataset, "observations")
    return [
        each
        for each in names
        if specs[each].dtype.kind == "f" and not is_image(specs[each].dtype, specs[each].shape)
    ]


class _View:
    """The frames of a camera in a piece: a sample of each, and how each step changes it.

    Attributes:
        sample: (frames, values).
        change: Mean change of a value in each step, (steps,).
        moves: Whether some values change by more than noise, (steps,) bool.
    """

    def __init__(self, piece: Piece, name: str) -> None:
        frames = piece.columns[name].reshape(len(piece.columns[name]), -1)
        stride = max(1, frames.shape[1] // SAMPLED)
        stride += stride % 3 == 0  # so that all colors are seen
        self.sample = np.ascontiguousarray(frames[:, ::stride])
        values = self.sample.astype(np.float32 if self.sample.dtype.kind == "f" else np.int16)
        jumps = np.abs(np.diff(values, axis=0)).take(piece.before, axis=0)
        self.change = jumps.mean(axis=1)
        brightest = 255 if values.dtype == np.int16 else max(1e-9, float(np.ptp(values)))
        share = np.count_nonzero(jumps > limit("moving pixel") * brightest, axis=1) / jumps.shape[1]
        self.moves = share > limit("moving pixels")


def _view(piece: Piece, name: str) -> _View:
    if name not in piece.views:
        piece.views[name] = _View(piece, name)
    view: _View = piece.views[name]
    return view


def _is_same(piece: Piece, name: str) -> np.ndarray:
    """Return in which steps a whole row of the observations stays the same, (steps,) bool."""
    if (name, "same") not in piece.views:
        rows = piece.columns[name].reshape(len(piece.columns[name]), -1)
        if rows.shape[1] <= limit("wide rows") and rows.dtype.kind == "f":
            same = ~piece.changes(name).any(axis=0)
        elif rows.shape[1] <= SAMPLED:
            same = (rows[1:] == rows[:-1]).all(axis=1)[piece.before]
        else:
            same = _view(piece, name).change == 0
            for step in np.flatnonzero(same).tolist():
                row = piece.before[step]
                same[step] = np.array_equal(rows[row], rows[row + 1])
        piece.views[name, "same"] = same
    known: np.ndarray = piece.views[name, "same"]
    return known


def check_frames(facts: Facts) -> Check:
    """Find frames of one value, cameras that hang or are late, stale first frames and swapped colors."""
    cameras, states = _cameras(facts), _states(facts)
    if not cameras:
        return []
    dataset = facts.dataset
    specs = dataset.schema.columns()
    seen = Seen(dataset)
    counts, firsts = seen.counts(), seen.firsts()
    blank = {each: seen.of_episodes(np.int64) for each in cameras}
    hangs = {each: seen.of_episodes(np.int64, 2) for each in cameras}  # steps, and their first one
    ends = {each: seen.of_episodes(np.float32, 2, THUMB) for each in cameras}
    leaps = {each: seen.of_episodes(np.float32) for each in cameras}
    colored = [
        each for each in cameras if specs[each].shape[-1:] == (3,) and len(specs[each].shape) == 3
    ]
    colors = {each: seen.of_episodes(np.int64, 3 * CELLS**2) for each in colored}
    late = facts.once("late", lambda: _late(facts, cameras, states))
    open_rest = dict.fromkeys(cameras, 0)
    while (piece := (yield seen)) is not None:
        quiet = [_is_same(piece, each) for each in states] or [_same_actions(piece)]
        acts = ~np.all(quiet, axis=0)
        acts = np.convolve(acts, np.ones(9))[4:-4] > 0  # or did or will soon
        counts["steps"] += piece.steps
        for name in cameras:
            view, same = _view(piece, name), _is_same(piece, name) & piece.has_next
            _note_blank(piece, name, view, blank[name], firsts)
            counts[name, "change"] += float(view.change.sum())
            counts[name, "same"] += int(same.sum())
            counts[name, "moves"] += int(view.moves.sum())
            open_rest[name] = _note_rest(piece, same & acts, hangs[name], open_rest[name])
            _note_ends(piece, view, ends[name], leaps[name])
            if name in colors:
                _note_colors(piece, name, colors[name])
    findings: list[Finding] = [*late]
    for name in cameras:
        findings += _blank_frames(facts, name, blank[name], firsts)
        findings += _hanging(name, hangs[name], counts, dataset.episode_lengths)
        findings += _stale(name, ends[name], leaps[name], counts)
        if name in colors:
            findings += _swapped(name, colors[name])
    return findings


def _same_actions(piece: Piece) -> np.ndarray:
    """Return in which steps the action is that of the step before, (steps,) bool."""
    hashes = piece.hashes("actions")
    same = np.append(False, hashes[1:] == hashes[:-1])
    same[(piece.ends - piece.lengths)[bool(piece.first_step) :]] = False
    return same


def _note_blank(
    piece: Piece, name: str, view: _View, blank: np.ndarray, firsts: dict[str, int]
) -> None:
    """Count frames of one value, but for final ones that were never recorded."""
    is_blank = (view.sample == view.sample[:, :1]).all(axis=1)
    is_blank[piece.before[~piece.has_next] + 1] = False
    for row in np.flatnonzero(is_blank[: piece.counted(name)]).tolist():
        frame = piece.columns[name][row].reshape(-1)
        if (frame == frame[0]).all():
            episode, step = piece.place(row, of_observations=True)
            blank[episode] += 1
            firsts.setdefault(name, step)


def _note_rest(piece: Piece, still: np.ndarray, hangs: np.ndarray, before: int) -> int:
    """Note the longest rest of each episode; return how long one is that goes on after the piece."""
    steps, firsts = np.arange(piece.steps), piece.ends - piece.lengths
    moved = np.maximum.accumulate(np.where(still, -1, steps))
    rest = np.where(still, steps - np.maximum(moved, np.repeat(firsts - 1, piece.lengths)), 0)
    rest[: piece.lengths[0]] += (
        np.where(moved < 0, before, 0)[: piece.lengths[0]] * still[: piece.lengths[0]]
    )
    for index in np.flatnonzero(np.maximum.reduceat(rest, firsts) >= limit("stuck steps")).tolist():
        first, end = firsts[index], piece.ends[index]
        at = int(rest[first:end].argmax())
        episode, length = piece.episodes[index], int(rest[first + at])
        if length > hangs[0, episode]:
            start = at + 1 - length + (piece.first_step if index == 0 else 0)
            hangs[:, episode] = length, start
    return 0 if piece.is_end else int(rest[-1])


def _note_ends(piece: Piece, view: _View, ends: np.ndarray, leaps: np.ndarray) -> None:
    """Keep the first and the last frame of each episode, small, and how much the first step changes."""
    thumbs = view.sample[:, :: max(1, view.sample.shape[1] // THUMB)][:, :THUMB].T
    begun = slice(bool(piece.first_step), None)
    firsts = (piece.ends - piece.lengths)[begun]
    ends[0, : len(thumbs), piece.episodes[begun]] = thumbs[:, piece.before[firsts]].T
    leaps[piece.episodes[begun]] = view.change[firsts]
    ended = piece.episodes[piece.ending]
    ends[1, : len(thumbs), ended] = thumbs[:, piece.before[piece.lasts] + 1].T


def _note_colors(piece: Piece, name: str, colors: np.ndarray) -> None:
    """Add up the colors of some frames of each episode, in a few cells."""
    frames = piece.columns[name]
    height, width = (max(1, each // CELLS) for each in frames.shape[1:3])
    if min(frames.shape[1:3]) < CELLS:
        return
    steps = np.arange(piece.steps) - np.repeat(piece.ends - piece.lengths, piece.lengths)
    steps[: piece.lengths[0]] += piece.first_step
    chosen = np.flatnonzero(steps % EVERY == 0)
    thin = slice(None, None, max(1, height // 8)), slice(None, None, max(1, width // 8))
    some = frames[piece.before[chosen], : CELLS * height, : CELLS * width]
    cells = some.reshape(len(some), CELLS, height, CELLS, width, 3)[:, :, thin[0], :, thin[1]]
    sums = cells.astype(np.int64).sum(axis=(2, 4)).reshape(len(some), -1)
    which = np.searchsorted(piece.ends, chosen, "right")
    np.add.at(colors.T, piece.episodes[which], sums)


def _blank_frames(
    facts: Facts, name: str, blank: np.ndarray, firsts: dict[str, int]
) -> list[Finding]:
    if not blank.any():
        return []
    episodes, count = np.flatnonzero(blank), int(blank.sum())
    is_habit = len(episodes) > limit("jump habit") * facts.dataset.total_episodes
    return [
        Finding(
            check="frames",
            severity="note" if is_habit else "warning",
            column=name,
            text=f"{count:,} frame{'s are' if count > 1 else ' is'} blank, all of one value, in "
            f"{counted(len(episodes), 'episode')}",
            episode=int(episodes[0]),
            step=firsts[name],
            count=count,
        )
    ]


def _hanging(
    name: str, hangs: np.ndarray, counts: dict[object, int], lengths: np.ndarray
) -> list[Finding]:
    """Return the finding about frames that stay the same while the robot moves, of a camera that sees it move."""
    episodes = np.flatnonzero(hangs[0])
    stuck = int(hangs[0].sum())
    others = max(1, counts["steps"] - stuck)
    if (
        not len(episodes)
        or (counts[name, "same"] - stuck) / others > limit("still frames")
        or counts[name, "moves"] < limit("mostly still") * others
    ):
        return []
    first = int(episodes[0])
    length, start = hangs[:, first].tolist()
    return [
        Finding(
            check="frames",
            severity="warning",
            column=name,
            text=f"stays the same for {counted(int(hangs[0].max()), 'step')} in {counted(len(episodes), 'episode')}, "
            "though it moves in the other steps: a camera that hangs",
            episode=first,
            step=start,
            last_step=min(start + length, int(lengths[first]) - 1),
            count=len(episodes),
        )
    ]


def _stale(
    name: str, ends: np.ndarray, leaps: np.ndarray, counts: dict[object, int]
) -> list[Finding]:
    """Return the finding about first frames that show the end of the episode before, and leap to their own."""
    if len(leaps) < 2:
        return []
    away = np.abs(ends[0, :, 1:] - ends[1, :, :-1]).mean(axis=0)
    usual = counts[name, "change"] / max(1, counts["steps"])
    stale = (
        np.flatnonzero(
            (away <= limit("stale frame") * leaps[1:]) & (leaps[1:] >= limit("seam") * usual)
        )
        + 1
    )
    if not len(stale):
        return []
    text = f"the first frame of {counted(len(stale), 'episode')} is the last one of the episode before: stale"
    return [about_episodes("frames", "warning", name, text, stale, step=0)]


def _late(facts: Facts, cameras: list[str], states: list[str]) -> list[Finding]:
    """Return findings about cameras whose frames change as the states did some steps before.

    How much a frame changes is predicted from how fast each number of the states changes, in some episodes, with
    each delay. Another delay than none must predict it better in nearly all of them.
    """
    states = [each for each in states if each in judged_columns(facts, "observations")]
    frames: dict[str, list[np.ndarray]] = {name: [] for name in cameras}
    speeds: list[np.ndarray] = []
    least = int(limit("stuck steps")) + 2 * MOST_LATE
    pieces = sampled_pieces(facts.dataset, facts.missing_finals, EPISODES, images=True)
    for piece in pieces if states else ():
        speed = np.sqrt(np.abs(np.concatenate([piece.changes(each) for each in states])))
        for first, end in zip(
            (piece.ends - piece.lengths).tolist(), piece.ends.tolist(), strict=True
        ):
            if end - first < least or not np.isfinite(speed[:, first:end]).all():
                continue
            speeds.append(speed[:, first:end])
            for name, rows in frames.items():
                rows.append(np.sqrt(_view(piece, name).change[first:end]))
    if len(speeds) <= limit("fewest episodes"):
        return []
    findings = []
    for name, rows in frames.items():
        late = _delay(rows, speeds)
        if late:
            steps = counted(abs(late), "step")
            findings.append(
                Finding(
                    check="frames",
                    severity="warning",
                    column=name,
                    text=f"the camera is {steps} {'late' if late > 0 else 'early'}: its frames move as the states "
                    + (f"did {steps} before" if late > 0 else f"do {steps} later"),
                    episode=0,
                    step=0,
                    count=abs(late),
                )
            )
    return findings


def _delay(frames: list[np.ndarray], speeds: list[np.ndarray]) -> int:
    """Return how many steps the frames of some episodes are behind the speeds of the states; 0 if it is not sure."""
    inside = slice(MOST_LATE, -MOST_LATE)
    y = np.concatenate([each[inside] for each in frames])
    y -= y.mean()
    ends = np.cumsum([len(each) - 2 * MOST_LATE for each in frames])
    errors = []
    for late in range(-MOST_LATE, MOST_LATE + 1):
        shifted = [each[:, MOST_LATE - late : each.shape[1] - MOST_LATE - late] for each in speeds]
        x = np.concatenate(shifted, axis=1)
        x -= x.mean(axis=1, keepdims=True)
        x /= np.maximum(x.std(axis=1, keepdims=True), 1e-12)
        weights = np.linalg.solve(x @ x.T + 1e-3 * len(y) * np.eye(len(x)), x @ y)
        errors.append(np.add.reduceat((y - weights @ x) ** 2, np.append(0, ends[:-1])))
    of_episodes = np.array(errors) / max(1e-300, float(y @ y))
    best = int(of_episodes.sum(axis=1).argmin())
    better = of_episodes[MOST_LATE] - of_episodes[best]
    is_sure = better.mean() * math.sqrt(len(better)) > limit("late evidence") * better.std()
    explains = of_episodes[best].sum() <= 1 - limit("late frames")
    return best - MOST_LATE if is_sure and explains else 0


def _swapped(name: str, colors: np.ndarray) -> list[Finding]:
    """Return the finding about episodes of one scene in which red and blue are swapped against the others."""
    cells = colors.reshape(CELLS**2, 3, -1).astype(np.float64)
    cells /= np.maximum(1, cells.sum(axis=(0, 1)))
    red_blue = cells[:, 0] - cells[:, 2]
    green = np.concatenate([cells[:, 1], cells[:, 0] + cells[:, 2]])
    fits = [
        (each * each[:, :1]).sum(axis=0)
        / np.maximum(1e-300, np.linalg.norm(each, axis=0) * np.linalg.norm(each[:, 0]))
        for each in (red_blue, green - green.mean(axis=0))
    ]
    alike = (np.abs(fits[0]) >= limit("same colors")) & (fits[1] >= limit("same colors"))
    other = np.flatnonzero(alike & (fits[0] < 0))
    if alike.mean() < limit("same scene") or len(other) < 2 or alike.sum() - len(other) < 2:
        return []
    if 2 * len(other) > len(fits[0]):
        other = np.flatnonzero(alike & (fits[0] > 0))
    text = f"red and blue are swapped in {len(other):,} of {counted(len(fits[0]), 'episode')} (RGB and BGR)"
    return [about_episodes("frames", "warning", name, text, other, step=0)]


def check_held(facts: Facts) -> Check:
    """Find observations that change in every second or third step only, as of a slower clock or of doubled rows."""
    cameras, states = _cameras(facts), _states(facts)
    seen = Seen(facts.dataset)
    held = seen.counts()
    while (piece := (yield seen)) is not None:
        changes = {name: _view(piece, name).moves for name in cameras}
        changes |= {name: ~_is_same(piece, name) for name in states}
        changes |= {f"exact {name}": ~_is_same(piece, name) for name in cameras}
        changes["actions"] = np.roll(~_same_actions(piece), -1)  # after the step, as observations
        for name, moves in changes.items():
            steps = np.flatnonzero(moves)
            which = np.searchsorted(piece.ends, steps, "right")
            runs = np.diff(steps)[which[1:] == which[:-1]]
            held[name] += np.bincount(np.minimum(runs, MOST_HELD + 1), minlength=MOST_HELD + 2)
    times = {name: _times(held[name]) for name in (*cameras, *states, "actions") if name in held}
    resting = []  # cameras in which hardly anything moves
    for name in cameras:
        if times.get(name) == 1:
            times[name], rests = _exact_times(held[f"exact {name}"], held[name])
            resting += [name] * rests
    some = [each for each in (*cameras, *states) if times.get(each, 1) > 1]
    if not some:
        return []
    number = times[some[0]]
    is_all = all(times[each] == number for each in (*cameras, *states))
    severity: Severity = "warning"
    if is_all and times["actions"] == number:
        column, text = (
            "observations",
            f"rows are doubled: each is stored {number} times, with its action",
        )
    elif is_all:
        column = "observations" if len(some) > 1 else some[0]
        text = f"each observation is held for {number} steps, while the actions go on"
    elif any(each in cameras for each in some):
        some = [each for each in some if each in cameras]
        column = some[0]
        text = f"each frame is held for {times[some[0]]} steps, while the states go on"
        if all(each in resting for each in some):
            severity, text = "note", f"{text}: a slower camera, or a video in which little moves"
    else:
        column, severity = some[0], "note"
        text = (
            f"changes only every {number} steps, and other observations do in each: a slower sensor"
        )
    return [
        Finding(
            check="held",
            severity=severity,
            column=", ".join(some) if column != "observations" else column,
            text=text,
            episode=0,
            step=0,
            count=number,
        )
    ]


def _times(runs: np.ndarray) -> int:
    """Return for how many steps each row is held; 1 if there is no such number."""
    moving = runs[1 : MOST_HELD + 1]
    best = int(moving.argmax())
    few = moving[best] < limit("held rows") or moving[best] < limit("held share") * moving.sum()
    return 1 if few else best + 1


def _exact_times(runs: np.ndarray, moving: np.ndarray) -> tuple[int, bool]:
    """Return for how many steps each frame stays exactly the same, and whether hardly anything moves in them.

    Videos repeat a frame in which nothing moves up to their next keyframe: what moves must do so at these steps too.
    """
    times, moving = _times(runs), moving[: MOST_HELD + 1]
    fits = moving[times::times].sum() >= limit("held share") * moving.sum()
    return (times if fits else 1), bool(moving.sum() < limit("moves of held frames"))
