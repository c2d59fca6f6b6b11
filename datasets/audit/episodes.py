"""Checks of episodes: flags, returns, lengths and times."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from orlog.datasets.audit.findings import (
    Check,
    Facts,
    Finding,
    Severity,
    about_episodes,
    looks_at_no_rows,
)
from orlog.datasets.audit.pieces import Piece, pieces, plain_columns
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.manifests.columns import ALWAYS, FLAGS
from orlog.manifests.names import counted

_LENGTHS = re.compile(
    r"(episode_)?(length|lengths|len|num_steps|n_steps|steps|num_samples|num_frames)"
)
_RETURNS = re.compile(r"(episode_)?(return|total_reward|sum_of_rewards)")
_TIMES = re.compile(r"(.*_)?(time|timestamp|timestamps|clock)")
_COUNTERS = re.compile(
    r"(elapsed_steps?|step|steps|step_index|timestep|time_step|frame|frame_index|step_id)"
)


def check_flags(facts: Facts) -> Check:
    """Find terminations and truncations that do not fit the episodes and the time limit."""
    dataset = facts.dataset
    seen = Seen(dataset)
    ends = {name: seen.of_episodes(np.bool_) for name in FLAGS}
    early = {name: seen.of_episodes(np.bool_) for name in FLAGS}
    first_steps = seen.firsts()
    while (piece := (yield seen)) is not None:
        for name in FLAGS:
            flags = piece.columns[name]
            ends[name][piece.episodes[piece.ending]] = flags[piece.lasts]
            inside = np.delete(np.arange(piece.steps), piece.lasts)
            episodes, steps = piece.places(inside[flags[inside]])
            early[name][episodes] = True
            if len(steps):
                first_steps.setdefault(name, int(steps[0]))
    terminated, truncated = ends["terminations"], ends["truncations"]
    findings = [
        about_episodes(
            "flags",
            "error",
            name,
            "{} is true before the last step of an episode",
            np.flatnonzero(early[name]),
            step=step,
        )
        for name, step in first_steps.items()
    ]
    neither = np.flatnonzero(~terminated & ~truncated)
    if len(neither):
        # An unfinished episode at the end of the data is usual; others lost their flag.
        is_last = neither.tolist() == [dataset.total_episodes - 1]
        text = "{} ends without termination or truncation"
        findings.append(
            about_episodes("flags", "note" if is_last else "warning", "truncations", text, neither)
        )
    environment = dataset.environment
    horizon = None if environment is None else environment.max_episode_steps
    if horizon is None:
        return findings + _equal_lengths(facts, terminated)
    lengths = dataset.episode_lengths
    long = np.flatnonzero(lengths > horizon)
    if len(long):
        text = f"{{}} is longer than the environment's limit of {counted(horizon, 'step')}"
        # Play is often recorded without the limit of the tasks, then in all episodes alike.
        severity: Severity = "warning" if len(long) == len(lengths) else "error"
        findings.append(about_episodes("flags", severity, "episodes/lengths", text, long))
    at_limit = lengths == horizon
    wrong = np.flatnonzero(at_limit & terminated & ~truncated)
    share = len(wrong) / max(1, int(at_limit.sum()))
    if len(wrong) >= limit("fewest episodes") and share > limit("terminations at the horizon"):
        text = (
            f"{{}} is terminated exactly at the environment's limit of {counted(horizon, 'step')}, where "
            "episodes are truncated: their last value would count as 0"
        )
        findings.append(about_episodes("flags", "warning", "terminations", text, wrong))
    short = np.flatnonzero((lengths < horizon) & truncated & ~terminated)
    if len(short):
        text = f"{{}} is truncated before the environment's limit of {counted(horizon, 'step')}"
        findings.append(about_episodes("flags", "note", "truncations", text, short))
    return findings


def _equal_lengths(facts: Facts, terminated: np.ndarray) -> list[Finding]:
    lengths = facts.dataset.episode_lengths
    if len(lengths) < 10 or lengths[0] < 2 or not terminated.all() or lengths.min() < lengths.max():
        return []
    text = f"{{}} is terminated after exactly {counted(lengths[0], 'step')}: perhaps a time limit"
    return [about_episodes("flags", "warning", "terminations", text, np.arange(len(lengths)))]


def check_returns(facts: Facts) -> Check:
    """Find recorded returns that are not the sum of the episode's rewards."""
    dataset = facts.dataset
    seen = Seen(dataset)
    sums, sizes = seen.of_episodes(np.float64), seen.of_episodes(np.float64)
    while (piece := (yield seen)) is not None:
        rewards = piece.columns["rewards"].astype(np.float64)
        firsts = piece.ends - piece.lengths
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(sums, piece.episodes, np.add.reduceat(rewards, firsts))
            np.add.at(sizes, piece.episodes, np.add.reduceat(np.abs(rewards), firsts))
    findings = []
    for name in ["episodes/returns", *_of_episodes(facts, _RETURNS)]:
        recorded = dataset.column(name)
        # A column of the author's may have been summed in float32.
        error = limit("return error") * (1 if name in ALWAYS else 100)
        with np.errstate(invalid="ignore"):
            wrong = np.abs(recorded - sums) > error * (sizes + 1)
        wrong &= np.isfinite(sums)
        if wrong.any():
            one = int(wrong.argmax())
            text = f"{{}} has a return that is not the sum of its rewards: {recorded[one]:g}, not {sums[one]:g}"
            severity: Severity = "error" if name in ALWAYS else "warning"
            findings.append(about_episodes("returns", severity, name, text, np.flatnonzero(wrong)))
    return findings


def check_lengths(facts: Facts) -> Check:
    """Find recorded lengths that are not the number of steps (or of observations)."""
    yield from looks_at_no_rows(facts)
    lengths = facts.dataset.episode_lengths
    findings = []
    for name in _of_episodes(facts, _LENGTHS):
        recorded = facts.dataset.column(name)
        both = [recorded != lengths, recorded != lengths + 1]
        wrong = min(both, key=np.count_nonzero)
        if wrong.any():
            one = int(wrong.argmax())
            text = (
                f"{{}} has {counted(lengths[one], 'step')}, but this column says {recorded[one]:g}"
            )
            findings.append(about_episodes("lengths", "error", name, text, np.flatnonzero(wrong)))
    return findings


def check_times(facts: Facts) -> Check:
    """Find timestamps and counters of steps that go back, stand still or leave steps out."""
    dataset = facts.dataset
    specs = dataset.schema.columns()
    kinds = {
        name: pattern
        for name in plain_columns(dataset, "infos")
        for pattern in (_TIMES, _COUNTERS)
        if specs[name].dtype.kind in "iuf"
        and specs[name].shape in ((), (1,))
        and pattern.fullmatch(name.rpartition("/")[2].lower())
    }
    usual: dict[str, float] = facts.once("times", lambda: _usual_steps(facts, kinds))
    seen = Seen(dataset)
    counts, firsts = seen.counts(), seen.firsts()
    last: dict[str, np.ndarray] = {}
    while (piece := (yield seen)) is not None:
        for name, pattern in kinds.items():
            steps, inside = _steps_of_times(piece, name, last)
            for kind, wrong in _irregular(steps, usual.get(name, 0.0), pattern is _COUNTERS):
                rows = np.flatnonzero(wrong & inside)
                if len(rows):
                    counts[name, kind] += len(rows)
                    firsts.setdefault((name, kind), piece.place(int(rows[0])))
    return [
        Finding(
            check="times",
            severity="error" if kind == "goes back" else "warning",
            column=name,
            text=f"{kind} in {counts[name, kind]:,} step{'' if counts[name, kind] == 1 else 's'} inside of episodes"
            + (f" (usually {usual[name]:g} from step to step)" if kind != "goes back" else ""),
            episode=episode,
            step=step,
            count=counts[name, kind],
        )
        for (name, kind), (episode, step) in firsts.items()
    ]


def _steps_of_times(
    piece: Piece, name: str, last: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return how much a time changes to each row of a piece, and whether the row before is of the same episode."""
    values = piece.columns[name].reshape(-1).astype(np.float64)
    # The row before a piece's first one belongs to it too, where its episode goes on.
    before = np.concatenate([last[name] if piece.first_step else values[:1], values[:-1]])
    last[name] = values[-1:]
    inside = np.ones(piece.steps, np.bool_)
    inside[(piece.ends - piece.lengths)[bool(piece.first_step) :]] = False
    return values - before, inside


def _usual_steps(facts: Facts, names: Iterable[str]) -> dict[str, float]:
    """Return how much each time usually changes from step to step, by the first piece that shows it."""
    usual: dict[str, float] = {}
    missing = set(names)
    last: dict[str, np.ndarray] = {}
    for piece in pieces(facts.dataset, facts.missing_finals) if missing else ():
        for name in sorted(missing):
            steps, inside = _steps_of_times(piece, name, last)
            if inside.any():
                usual[name] = float(np.nanmedian(steps[inside]))
        missing -= usual.keys()
        if not missing:
            break
    return usual


def _irregular(steps: np.ndarray, usual: float, counts: bool) -> list[tuple[str, np.ndarray]]:
    """Return where differences of times or counters are irregular, by kind."""
    ahead = (steps != usual) if counts else (steps > limit("time step") * usual)
    return [
        ("goes back", steps < 0),
        ("stands still", (steps == 0) & (usual > 0)),
        ("leaves steps out", ahead & (steps > 0) & (usual > 0)),
    ]


def _of_episodes(facts: Facts, pattern: re.Pattern[str]) -> list[str]:
    """Return the author's columns of episodes that hold one number, by what their name says."""
    specs = facts.dataset.schema.columns()
    return [
        name
        for name in plain_columns(facts.dataset, "episodes")
        if name not in ALWAYS
        and specs[name].shape == ()
        and specs[name].dtype.kind in "iuf"
        and pattern.fullmatch(name.rpartition("/")[2].lower())
    ]
