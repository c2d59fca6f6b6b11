"""Checks of episodes: flags, final observations, returns, lengths and times."""

from __future__ import annotations

import re

import numpy as np

from orlog.datasets.audit.findings import Check, Facts, Finding, Gravity
from orlog.datasets.audit.pieces import plain_columns
from orlog.datasets.audit.thresholds import limit
from orlog.manifests.columns import ALWAYS, FLAGS

__all__ = [
    "check_final_observations",
    "check_flags",
    "check_lengths",
    "check_returns",
    "check_times",
]

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
    ends = {name: np.zeros(dataset.total_episodes, np.bool_) for name in FLAGS}
    early: dict[str, list[tuple[int, int]]] = {name: [] for name in FLAGS}
    while (piece := (yield)) is not None:
        for name in FLAGS:
            flags = piece.columns[name]
            ends[name][piece.episodes[piece.ending]] = flags[piece.lasts]
            inside = np.delete(np.arange(piece.steps), piece.lasts)
            early[name] += [piece.place(int(row)) for row in inside[flags[inside]]]
    terminated, truncated = ends["terminations"], ends["truncations"]
    findings = [
        _finding(
            "flags",
            "error",
            name,
            "{} is true before the last step of an episode",
            np.array([episode for episode, _ in places]),
            step=places[0][1],
        )
        for name, places in early.items()
        if places
    ]
    neither = np.flatnonzero(~terminated & ~truncated)
    if len(neither):
        # An unfinished episode at the end of the data is usual; others lost their flag.
        is_last = neither.tolist() == [dataset.total_episodes - 1]
        text = "{} ends without termination or truncation"
        findings.append(
            _finding("flags", "note" if is_last else "warning", "truncations", text, neither)
        )
    environment = dataset.environment
    horizon = None if environment is None else environment.max_episode_steps
    if horizon is None:
        return findings + _equal_lengths(facts, terminated)
    lengths = dataset.episode_lengths
    long = np.flatnonzero(lengths > horizon)
    if len(long):
        text = f"{{}} is longer than the environment's limit of {horizon:,} steps"
        findings.append(_finding("flags", "error", "episodes/lengths", text, long))
    at_limit = lengths == horizon
    wrong = np.flatnonzero(at_limit & terminated & ~truncated)
    share = len(wrong) / max(1, int(at_limit.sum()))
    if len(wrong) >= limit("fewest episodes") and share > limit("terminations at the horizon"):
        text = (
            f"{{}} is terminated exactly at the environment's limit of {horizon:,} steps, where "
            "episodes are truncated: their last value would count as 0"
        )
        findings.append(_finding("flags", "warning", "terminations", text, wrong))
    short = np.flatnonzero((lengths < horizon) & truncated & ~terminated)
    if len(short):
        text = f"{{}} is truncated before the environment's limit of {horizon:,} steps"
        findings.append(_finding("flags", "note", "truncations", text, short))
    return findings


def _equal_lengths(facts: Facts, terminated: np.ndarray) -> list[Finding]:
    lengths = facts.dataset.episode_lengths
    if len(lengths) < 10 or lengths[0] < 2 or not terminated.all() or lengths.min() < lengths.max():
        return []
    text = f"{{}} is terminated after exactly {lengths[0]:,} steps: perhaps a time limit"
    return [_finding("flags", "warning", "terminations", text, np.arange(len(lengths)))]


def check_final_observations(facts: Facts) -> Check:
    """Find final observations (the last of T + 1) that were not recorded as such."""
    dataset = facts.dataset
    names = plain_columns(dataset, "observations")
    if not names:
        return "observations have no columns of fixed size"
    count = dataset.total_episodes
    repeated, is_next_first, zeros = (np.ones(count, np.bool_) for _ in range(3))
    first_is_zero = np.ones(count, np.bool_)
    repeats = steps = 0
    first_rows: list[np.ndarray | None] = [None] * len(names)
    final_rows: list[np.ndarray | None] = [None] * len(names)
    varies = False
    next_names = {
        name: other
        for other in names
        for name in (
            other.replace("observations", "infos/next_observations", 1),
            other.replace("observations", "infos/next_observation", 1),
        )
        if name in dataset.columns
    }
    differing: dict[str, list[tuple[int, int]]] = {name: [] for name in next_names}
    while (piece := (yield)) is not None:
        same = np.ones(piece.steps, np.bool_)
        finals = piece.lasts + 1 + piece.ending
        for number, name in enumerate(names):
            rows = _rows(piece.columns[name])
            equal = (rows[1:] == rows[:-1]).all(axis=1)
            same &= np.delete(equal, piece.ends[:-1] + np.arange(len(piece.ends) - 1))
            firsts = piece.ends - piece.lengths + np.arange(len(piece.ends))
            if piece.first_step:
                firsts = firsts[1:]
            begun = piece.episodes[-len(firsts) :] if len(firsts) else piece.episodes[:0]
            first_is_zero[begun] &= ~rows[firsts].any(axis=1)
            zeros[piece.episodes[piece.ending]] &= ~rows[finals].any(axis=1)
            # Each episode's final observation beside the next one's first one.
            last = final_rows[number]
            if last is not None and len(firsts) and not piece.first_step:
                is_next_first[begun[0] - 1] &= bool((last == rows[firsts[0]]).all())
            inner = rows[finals[: len(firsts) - 1]] == rows[firsts[1:]] if len(firsts) > 1 else None
            if inner is not None:
                is_next_first[begun[1:] - 1] &= inner.all(axis=1)
            if len(finals):
                final_rows[number] = rows[finals[-1]].copy()
            if first_rows[number] is None and len(firsts):
                first_rows[number] = rows[firsts[0]].copy()
            varies |= bool((rows[firsts] != first_rows[number]).any())
        for name, other in next_names.items():
            recorded, rows = _rows(piece.columns[name]), _rows(piece.columns[other])
            following = piece.steps_of(rows.T, after=True).T
            wrong = np.flatnonzero((recorded != following).any(axis=1) & piece.has_next)
            differing[name] += [piece.place(int(row)) for row in wrong]
        repeated[piece.episodes[piece.ending]] = same[piece.lasts]
        others = np.delete(same, piece.lasts)
        repeats, steps = repeats + int(others.sum()), steps + len(others)
    is_next_first[-1:] = False
    known = ~facts.missing_finals
    findings = [
        Finding(
            check="final observations",
            gravity="error",
            column=name,
            text=f"{len(places):,} rows differ from the observation of the following row",
            episode=places[0][0],
            step=places[0][1],
            count=len(places),
        )
        for name, places in differing.items()
        if places
    ]
    if facts.missing_finals.any():
        text = "the final observation of {} was never recorded, as the data say"
        findings.append(
            _finding(
                "final observations",
                "note",
                "observations",
                text,
                np.flatnonzero(facts.missing_finals),
            )
        )
    few = limit("fewest episodes")
    moving = repeats <= limit("copied steps") * max(1, steps)
    copied = np.flatnonzero(repeated & known)
    if moving and len(copied) >= max(few, limit("copied finals") * known.sum()):
        text = "the final observation of {} repeats the one before it: perhaps T observations for T actions"
        findings.append(_finding("final observations", "warning", "observations", text, copied))
    shifted = np.flatnonzero(is_next_first & known)
    if varies and len(shifted) >= max(2, limit("shifted finals") * count):
        text = "the final observation of {} is the first one of the next episode"
        findings.append(_finding("final observations", "error", "observations", text, shifted))
    empty = np.flatnonzero(zeros & known & ~first_is_zero)
    if len(empty):
        text = "the final observation of {} is zero: it was probably never recorded"
        findings.append(_finding("final observations", "warning", "observations", text, empty))
    return findings


def check_returns(facts: Facts) -> Check:
    """Find recorded returns that are not the sum of the episode's rewards."""
    dataset = facts.dataset
    sums, sizes = (np.zeros(dataset.total_episodes) for _ in range(2))
    while (piece := (yield)) is not None:
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
            gravity: Gravity = "error" if name in ALWAYS else "warning"
            findings.append(_finding("returns", gravity, name, text, np.flatnonzero(wrong)))
    return findings


def check_lengths(facts: Facts) -> Check:
    """Find recorded lengths that are not the number of steps (or of observations)."""
    yield
    lengths = facts.dataset.episode_lengths
    findings = []
    for name in _of_episodes(facts, _LENGTHS):
        recorded = facts.dataset.column(name)
        both = [recorded != lengths, recorded != lengths + 1]
        wrong = min(both, key=np.count_nonzero)
        if wrong.any():
            one = int(wrong.argmax())
            text = f"{{}} has {lengths[one]:,} steps, but this column says {recorded[one]:g}"
            findings.append(_finding("lengths", "error", name, text, np.flatnonzero(wrong)))
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
    usual: dict[str, float] = {}
    found: dict[tuple[str, str], tuple[int, tuple[int, int]]] = {}
    last: dict[str, np.ndarray] = {}
    while (piece := (yield)) is not None:
        for name, pattern in kinds.items():
            values = piece.columns[name].reshape(-1).astype(np.float64)
            # The row before a piece's first one belongs to it too, where its episode goes on.
            before = np.concatenate([last[name] if piece.first_step else values[:1], values[:-1]])
            last[name] = values[-1:]
            steps = values - before
            inside = np.ones(piece.steps, np.bool_)
            inside[(piece.ends - piece.lengths)[bool(piece.first_step) :]] = False
            if name not in usual and inside.any():
                usual[name] = float(np.nanmedian(steps[inside]))
            for kind, wrong in _irregular(steps, usual.get(name, 0.0), pattern is _COUNTERS):
                rows = np.flatnonzero(wrong & inside)
                if len(rows):
                    count, place = found.get((name, kind), (0, piece.place(int(rows[0]))))
                    found[name, kind] = count + len(rows), place
    return [
        Finding(
            check="times",
            gravity="error" if kind == "goes back" else "warning",
            column=name,
            text=f"{kind} in {count:,} step{'' if count == 1 else 's'} inside of episodes"
            + (f" (usually {usual[name]:g} from step to step)" if kind != "goes back" else ""),
            episode=place[0],
            step=place[1],
            count=count,
        )
        for (name, kind), (count, place) in found.items()
    ]


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


def _rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def _finding(
    check: str,
    gravity: Gravity,
    column: str,
    text: str,
    episodes: np.ndarray,
    *,
    step: int | None = None,
) -> Finding:
    """Return a finding about episodes; `{}` in the text stands for their number."""
    distinct = np.unique(episodes)
    one = len(distinct) == 1
    subject = "1 episode" if one else f"each of {len(distinct):,} episodes"
    return Finding(
        check=check,
        gravity=gravity,
        column=column,
        text=text.format(subject),
        episode=int(distinct[0]),
        step=step,
        count=len(distinct),
    )
