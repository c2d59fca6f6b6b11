"""Checks of what cameras record: blank, stale or late frames, cameras that hang, rows that are held, and colors.

A frame is looked at in about a thousand of its values. It moves if some of them change by more than noise
and compression do; only exactly equal ones count as the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding, Seen, Severity, about_episodes, limit
from orlog.datasets.audit.numbers import Runs, judged_columns
from orlog.datasets.audit.pieces import Piece, flat, plain_columns
from orlog.datasets.audit.relations import KEPT, Largest, count_outliers, regress
from orlog.manifests.names import counted, said_of

SAMPLED = 1024  # values of a frame that are compared
THUMB = 64  # of these, kept of the first and the last frame of each episode
MOST_HELD, MOST_LATE, CELLS, EVERY, EPISODES = 10, 10, 4, 8, 24


def _split(facts: Facts) -> tuple[list[str], list[str]]:
    """Return the columns of observations that are images, and the other ones of real numbers."""
    specs, cameras, states = facts.dataset.schema.columns(), [], []
    for name in plain_columns(facts.dataset, "observations"):
        spec, numbers = specs[name], math.prod(specs[name].shape)
        is_wide = spec.dtype == np.uint8 or numbers > limit("wide rows")
        if len(spec.shape) >= 2 and is_wide and numbers > 1:
            cameras.append(name)
        elif spec.dtype.kind == "f":
            states.append(name)
    return cameras, states


class _View(NamedTuple):
    """The frames of a camera in a piece: a sample of each, and how each step changes it.

    Attributes:
        sample: (frames, values).
        change: Mean change of a value in each step, (steps,).
        moves: Whether some values change by more than noise, (steps,) bool.
    """

    sample: np.ndarray
    change: np.ndarray
    moves: np.ndarray


def _view(piece: Piece, name: str) -> _View:
    def look() -> _View:
        frames = flat(piece.columns[name])
        stride = max(1, frames.shape[1] // SAMPLED)
        stride += stride % 3 == 0  # so that all colors are seen
        sample = np.ascontiguousarray(frames[:, ::stride])
        is_real = sample.dtype.kind == "f"
        values = sample.astype(np.float32 if is_real else np.int16)
        jumps = np.abs(np.diff(values, axis=0))[piece.before]
        brightest = max(1e-9, float(np.ptp(values))) if is_real else 255
        moving = np.count_nonzero(jumps > limit("moving pixel") * brightest, axis=1)
        return _View(sample, jumps.mean(axis=1), moving > limit("moving pixels") * jumps.shape[1])

    return piece.once((name, "view"), look)


def _same_actions(piece: Piece) -> np.ndarray:
    """Return in which steps the action is that of the step before, (steps,) bool."""
    hashes = piece.hashes("actions")
    same = np.append(False, hashes[1:] == hashes[:-1])
    same[piece.starts[piece.begun]] = False
    return same


class _Camera:
    """What is kept of a camera: by episode, blank frames, runs of equal ones, both ends, and colors."""

    def __init__(self, facts: Facts, seen: Seen, name: str) -> None:
        shape = facts.dataset.schema.columns()[name].shape
        self.name, self.seen, self.steps = name, seen, facts.dataset.total_steps
        self.is_colored = len(shape) == 3 and shape[2] == 3 and min(shape[:2]) >= CELLS
        self.blank, self.leap = seen.of_episodes(np.bool_), seen.of_episodes(np.float32)
        self.first, self.last = (seen.of_episodes(np.float32, THUMB) for _ in range(2))
        self.colors = seen.of_episodes(np.int64, 3 * CELLS**2 * self.is_colored)
        self.hangs, self.largest = Runs(seen, 1), seen.part(Largest(1))

    def add(self, piece: Piece, acts: np.ndarray) -> None:
        """Take in a piece; `acts` says in which steps something acts or moves."""
        view, frames = _view(piece, self.name), piece.columns[self.name]
        same = piece.same(self.name) & piece.has_next
        blank = (view.sample == view.sample[:, :1]).all(axis=1)
        blank[piece.before[~piece.has_next] + 1] = False  # which were never recorded
        blank[piece.counted(self.name) :] = False
        for row in np.flatnonzero(blank).tolist():
            blank[row] = (frames[row] == frames[row].flat[0]).all()
        self.seen.note(self.name, piece, blank, column=self.name)
        self.blank[piece.episodes] |= np.logical_or.reduceat(blank, piece.firsts(self.name))
        self.seen.note((self.name, "lost"), piece, same & acts & ~np.roll(same, 1) & ~np.roll(same, -1))
        small = (view.change > 0) & (view.change < view.change.mean() / 4)
        for what, values in (("change", view.change), ("same", same), ("moves", view.moves), ("small", small)):
            self.seen.sums[self.name, what] += float(values.sum())
        changes, largest = np.where(piece.has_next & (piece.step_index > 0), view.change, 0)[None], Largest(1)
        chosen = np.argsort(-changes[0], kind="stable")[:KEPT]
        largest.sizes, largest.places = changes[:, chosen], piece.places(chosen)[None]
        self.largest.join(largest)
        self.hangs.add(piece, (same & acts)[None], piece.starts)
        begun, firsts = piece.episodes[piece.begun], piece.starts[piece.begun]
        thumbs = view.sample[:, :: max(1, view.sample.shape[1] // THUMB)][:, :THUMB].T
        self.first[: len(thumbs), begun] = thumbs[:, piece.before[firsts]]
        self.last[: len(thumbs), piece.ended] = thumbs[:, piece.before[piece.lasts] + 1]
        self.leap[begun] = view.change[firsts]
        if self.is_colored:  # of some frames, in a few cells
            height, width = (each // CELLS for each in frames.shape[1:3])
            chosen = np.flatnonzero(piece.step_index % EVERY == 0)
            some = frames[piece.before[chosen], : CELLS * height, : CELLS * width]
            cells = some.reshape(len(some), CELLS, height, CELLS, width, 3)
            cells = cells[:, :, :: max(1, height // 8), :, :: max(1, width // 8)].astype(np.int64)
            sums = cells.sum(axis=(2, 4)).reshape(len(some), -1)
            np.add.at(self.colors.T, piece.episodes[piece.which[chosen]], sums)

    def findings(self, cameras: list[_Camera]) -> Iterator[Finding]:
        """Yield what is wrong with the frames."""
        if self.name in self.seen.noted:
            noted, episodes = self.seen.noted[self.name], int(np.count_nonzero(self.blank))
            text = said_of(noted.rows, "frames are blank, all of one value, in ")
            text += counted(episodes, "episode")
            is_habit = episodes > limit("jump habit") * len(self.blank)
            severity: Severity = "note" if is_habit else "warning"
            yield Finding("frames", severity, self.name, text, *noted.place)
        count = count_outliers(self.largest.sizes[0], self.steps) * (self.name not in self.seen.noted)
        if count and self.largest.sizes[0, 0] > limit("jump size") * self.seen.sums[self.name, "change"] / self.steps:
            place = divmod(int(self.largest.places[0, :count].min()), 2**32)
            text = "whole picture changes as in no other step: torn or foreign frames, or a cut"
            yield Finding("frames", "warning", self.name, f"in {counted(count, 'step')} the {text}", *place, count)
        lost, small = self.seen.noted.get((self.name, "lost")), self.seen.sums[self.name, "small"]
        if lost and max(limit("lost frames") * self.steps, 10 * small) <= lost.rows <= self.steps / 2:
            text = f"{counted(lost.rows, 'frame')} repeat the one before, and all others have noise: lost on the way"
            yield Finding("frames", "note", self.name, text, *lost.place)
        yield from self._hanging()
        usual = self.seen.sums[self.name, "change"] / self.steps
        away = np.abs(self.first[:, 1:] - self.last[:, :-1]).mean(axis=0)
        is_stale = away <= limit("stale frame") * self.leap[1:]
        stale = np.flatnonzero(is_stale & (self.leap[1:] >= limit("seam") * usual)) + 1
        text = "the first frame of {} is the last one of the episode before: stale"
        yield from about_episodes("frames", "warning", self.name, text, stale, step=0)
        if self.is_colored:
            yield from self._swapped()
            yield from self._misplaced(cameras)

    def _hanging(self) -> Iterator[Finding]:
        """Equal consecutive frames for 20 steps in which something moves, of a camera that rarely repeats one."""
        lengths = self.hangs.lengths[0] * (self.hangs.lengths[0] >= limit("stuck steps"))
        episodes, others = np.flatnonzero(lengths), max(1, self.steps - lengths.sum())
        same, moves = (self.seen.sums[self.name, what] for what in ("same", "moves"))
        rests, never = (same - lengths.sum() > limit(share) * others for share in ("still frames", "hardly still"))
        if len(episodes) and not rests and (not never or moves >= limit("mostly still") * others):
            first = int(episodes[0])
            last = int(self.hangs.ends[0, first])
            text = f"stays the same for {counted(int(lengths.max()), 'step')} in {counted(len(episodes), 'episode')}, "
            text += "though it moves in the other steps: a camera that hangs"
            place = first, last - int(lengths[first]) + 1, len(episodes), last
            yield Finding("frames", "warning", self.name, text, *place)

    def _swapped(self) -> Iterator[Finding]:
        """Episodes of one scene whose difference of red and blue is the negative of the others'."""
        cells = self.colors.reshape(CELLS**2, 3, -1).astype(np.float64)
        cells /= np.maximum(1, cells.sum(axis=(0, 1)))
        red, green, blue = cells.swapaxes(0, 1)
        ground = np.concatenate([green, red + blue])
        difference, ground = (
            each / np.maximum(1e-300, np.linalg.norm(each, axis=0))
            for each in (red - blue, ground - ground.mean(axis=0))
        )
        sign, fit = (each.T @ each[:, 0] for each in (difference, ground))
        alike = (np.abs(sign) >= limit("same colors")) & (fit >= limit("same colors"))
        other = min((np.flatnonzero(alike & (part > 0)) for part in (sign, -sign)), key=len)
        if alike.mean() >= limit("same scene") and len(other) >= 2:
            text = f"red and blue are swapped in {len(other):,} of {counted(len(sign), 'episode')} (RGB and BGR)"
            yield from about_episodes("frames", "warning", self.name, text, other, step=0)

    def _pictures(self) -> np.ndarray:
        """Return the mean picture of each episode, (cells, cells, colors, E), of one brightness."""
        cells = self.colors.reshape(CELLS, CELLS, 3, -1)
        return np.asarray(cells / np.maximum(1, cells.sum(axis=(0, 1, 2))))

    def _misplaced(self, cameras: list[_Camera]) -> Iterator[Finding]:
        """Few episodes whose pictures are nearer to the others' mirrored, upside down or of another camera, or lack a color."""
        cells = self._pictures()
        usual = np.median(cells, axis=3, keepdims=True)
        like = {"are mirrored": usual[:, ::-1], "are upside down": usual[::-1], "are turned": usual[::-1, ::-1]}
        others = [other for other in cameras if other is not self and other.is_colored]
        like |= {f"are of {other.name}": np.median(other._pictures(), axis=3, keepdims=True) for other in others}
        away = np.abs(cells - usual).sum(axis=(0, 1, 2))
        odd = {
            text: np.abs(cells - picture).sum(axis=(0, 1, 2)) <= limit("misplaced pictures") * away
            for text, picture in like.items()
        }
        odd |= {
            f"have no {color}": ~cells[:, :, at].any(axis=(0, 1)) for at, color in enumerate(("red", "green", "blue"))
        }
        for text, is_odd in odd.items():
            if is_odd.mean() <= 1 - limit("usual episodes"):
                text = f"frames of {{}} {text}"
                yield from about_episodes("frames", "warning", self.name, text, np.flatnonzero(is_odd), step=0)


def check_frames(facts: Facts) -> Check:
    """Find frames of one value, cameras that hang or are late, stale first frames and swapped colors."""
    cameras, states = _split(facts)
    if not cameras:
        return []
    seen = Seen(facts.dataset)
    kept = [_Camera(facts, seen, name) for name in cameras]
    late = facts.once("late", lambda: list(_late(facts, cameras, states)))
    while (piece := (yield seen)) is not None:
        quiet = [piece.same(name) for name in states] or [_same_actions(piece)]
        acts = np.convolve(~np.all(quiet, axis=0), np.ones(9))[4:-4] > 0  # or did or will soon
        for camera in kept:
            camera.add(piece, acts)
    return [*late, *(finding for camera in kept for finding in camera.findings(kept))]


def _late(facts: Facts, cameras: list[str], states: list[str]) -> Iterator[Finding]:
    """Cameras whose frames change as the states did some steps before, by a regression with each delay.

    Another delay than none must predict how much frames change better in nearly all of some episodes.
    """
    states = [name for name in states if name in judged_columns(facts, "observations")]
    frames: dict[str, list[np.ndarray]] = {name: [] for name in cameras}
    speeds: list[np.ndarray] = []
    episodes, chosen = list[int](), facts.spread(EPISODES)
    least = int(limit("stuck steps")) + 2 * MOST_LATE
    for piece in facts.sample(EPISODES, images=True) if states else ():
        speed = np.sqrt(np.abs(np.concatenate([piece.changes(name) for name in states])))
        for first, end in zip(piece.starts.tolist(), piece.ends.tolist(), strict=True):
            if end - first >= least and np.isfinite(speed[:, first:end]).all():
                speeds.append(speed[:, first:end])
                episodes.append(int(chosen[piece.episodes[piece.which[first]]]))
                for name, rows in frames.items():
                    rows.append(np.sqrt(_view(piece, name).change[first:end]))
    for name, rows in frames.items() if len(speeds) > limit("fewest episodes") else ():
        late, errors = _delay(rows, speeds)
        steps = counted(abs(late), "step")
        text = f"the camera is {steps} late: its frames move as the states did {steps} before"
        if late < 0:
            text = f"the camera is {steps} early: its frames move as the states do {steps} later"
        if late:
            yield Finding("frames", "warning", name, text, 0, 0, abs(late))
        else:  # but a few may be
            fits, best = errors[MOST_LATE] <= limit("frames with states"), errors.argmin(axis=0)
            is_late = ~fits & (errors.min(axis=0) <= limit("frames with states"))
            foreign = (errors[MOST_LATE] >= 1) & ~is_late
            texts = {"frames of {} do not change as the states do: of another episode, or some lost": foreign}
            for late in np.unique(best[is_late]).tolist():
                way = "late" if late > MOST_LATE else "early"
                text = f"the camera is {counted(abs(late - MOST_LATE), 'step')} {way} in {{}}"
                texts[text] = is_late & (best == late)
            for text, odd in texts.items() if fits.mean() >= limit("usual episodes") else ():
                yield from about_episodes("frames", "warning", name, text, np.array(episodes)[odd], step=0)


def _delay(frames: list[np.ndarray], speeds: list[np.ndarray]) -> tuple[int, np.ndarray]:
    """Return how many steps the frames of some episodes are behind the speeds of the states; 0 if it is not sure.

    And the errors of what is usual with each delay, (delays, episodes), as shares of what changes in an episode.
    """
    inside = slice(MOST_LATE, -MOST_LATE)
    y = np.concatenate([each[inside] for each in frames], dtype=np.float64)[None]
    firsts = np.cumsum([0, *(len(each) - 2 * MOST_LATE for each in frames[:-1])])
    usual = regress(np.concatenate([each[:, inside] for each in speeds], axis=1, dtype=np.float64), y)
    errors: list[np.ndarray] = []
    with_usual: list[np.ndarray] = []
    for late in range(-MOST_LATE, MOST_LATE + 1):
        shifted = [each[:, MOST_LATE - late : each.shape[1] - MOST_LATE - late] for each in speeds]
        x = np.concatenate(shifted, axis=1, dtype=np.float64)
        for model, kept in ((regress(x, y), errors), (usual, with_usual)):
            kept.append(np.add.reduceat((y - model.of(x))[0] ** 2, firsts))
    of_episodes = np.array(errors) / max(1e-300, float(y.var() * y.size))
    best = int(of_episodes.sum(axis=1).argmin())
    better = of_episodes[MOST_LATE] - of_episodes[best]
    is_sure = better.mean() * math.sqrt(len(better)) > limit("late evidence") * better.std()
    explains = of_episodes[best].sum() <= 1 - limit("late frames")
    counts = np.diff(firsts, append=y.size)
    spread = np.add.reduceat(y[0] ** 2, firsts) - np.add.reduceat(y[0], firsts) ** 2 / counts
    return best - MOST_LATE if is_sure and explains else 0, np.array(with_usual) / np.maximum(spread, 1e-300)


def check_held(facts: Facts) -> Check:
    """Find observations of which nearly all changes are the same number of steps, more than one, apart."""
    cameras, states = _split(facts)
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        changes = {name: _view(piece, name).moves for name in cameras}
        changes |= {name: ~piece.same(name) for name in states}
        changes |= {f"exact {name}": ~piece.same(name) for name in cameras}
        changes["actions"] = np.roll(~_same_actions(piece), -1)  # after the step, as observations
        for name, moves in changes.items():
            steps = np.flatnonzero(moves)
            apart = np.diff(steps)[piece.which[steps[1:]] == piece.which[steps[:-1]]]
            seen.sums[name] += np.bincount(np.minimum(apart, MOST_HELD + 1), minlength=MOST_HELD + 2)
    times = {name: _times(seen.sums[name]) for name in (*cameras, *states, "actions")}
    resting = set()  # cameras in which hardly anything moves
    for name in cameras:
        # Videos repeat a frame in which nothing moves up to their next keyframe: what moves must do so then too.
        moving, exact = seen.sums[name][: MOST_HELD + 1], _times(seen.sums[f"exact {name}"])
        if times[name] == 1 and moving[exact::exact].sum() >= limit("held share") * moving.sum():
            times[name] = exact
            if moving.sum() < limit("moves of held frames"):
                resting.add(name)
    held = [name for name in (*cameras, *states) if times[name] > 1]
    if not held:
        return []
    number = times[held[0]]
    severity: Severity = "warning"
    is_all = all(times[name] == number for name in (*cameras, *states))
    if is_all and times["actions"] == number:
        held = ["observations"]
        text = f"rows are doubled: each is stored {number} times, with its action"
    elif is_all:
        held = ["observations"] if len(held) > 1 else held
        text = f"each observation is held for {number} steps, while the actions go on"
    elif cameras and held[0] in cameras:
        held = [name for name in held if name in cameras]
        text = f"each frame is held for {number} steps, while the states go on"
        if resting.issuperset(held):
            severity, text = "note", f"{text}: a slower camera, or a video in which little moves"
    else:
        held, severity = held[:1], "note"
        text = f"changes only every {number} steps, others in each step: a slower sensor"
    return [Finding("held", severity, ", ".join(held), text, 0, 0, number)]


def _times(apart: np.ndarray) -> int:
    """Return how many steps most changes are apart; 1 if there is no such number."""
    moving = apart[1 : MOST_HELD + 1]
    best = int(moving.argmax())
    few = moving[best] < limit("held rows") or moving[best] < limit("held share") * moving.sum()
    return 1 if few else best + 1


CHECKS: dict[str, Callable[[Facts], Check]] = {"frames": check_frames, "held rows": check_held}
