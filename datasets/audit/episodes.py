"""Checks of episodes: flags, rewards, returns, lengths, times, final observations, and columns with roles."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from orlog.datasets.audit.findings import Check, Facts, Finding, Seen, Severity, about_episodes, limit, looks_at_no_rows
from orlog.datasets.audit.pieces import Piece, flat, pieces, plain_columns
from orlog.datasets.reading.selection import success_column, success_of
from orlog.datasets.worlds.environments import make_environment
from orlog.errors import OrlogError, clause
from orlog.manifests.columns import ALWAYS, FLAGS, axis_of, offsets_column
from orlog.manifests.documents import canonical_json
from orlog.manifests.names import counted
from orlog.manifests.roles import ROLES
from orlog.manifests.spaces import leaf_spaces

_LENGTHS = r"(episode_)?(length|lengths|len|num_steps|n_steps|steps|num_samples|num_frames)"
_RETURNS = r"(episode_)?(return|total_reward|sum_of_rewards)"
_TIMES = r"(.*_)?(time|timestamp|timestamps|clock)"
_COUNTERS = r"(elapsed_steps?|step|steps|step_index|timestep|time_step|frame|frame_index|step_id)"


def check_flags(facts: Facts) -> Check:
    """Find terminations and truncations that do not fit the episodes and the time limit."""
    dataset, seen = facts.dataset, Seen(facts.dataset)
    ends = {name: seen.of_episodes(np.bool_) for name in FLAGS}
    early = {name: seen.of_episodes(np.bool_) for name in FLAGS}
    while (piece := (yield seen)) is not None:
        for name in FLAGS:
            flags = piece.columns[name].copy()
            ends[name][piece.ended] = flags[piece.lasts]
            flags[piece.lasts] = False
            early[name][piece.episodes[piece.which[flags]]] = True
            seen.note(name, piece, flags)
    findings = []
    for name, noted in seen.noted.items():
        text, episodes = ("{} is true before the last step of an episode", np.flatnonzero(early[name]))
        findings += about_episodes("flags", "error", name, text, episodes, step=noted.step)
    lengths, terminated, truncated = dataset.episode_lengths, *ends.values()

    def report(severity: Severity, column: str, text: str, chosen: np.ndarray) -> None:
        findings.extend(about_episodes("flags", severity, column, text, np.flatnonzero(chosen)))

    neither = ~terminated & ~truncated
    # An unfinished episode at the end of the data is usual; others lost their flag.
    is_usual = not neither[:-1].any()
    text = "{} ends without termination or truncation"
    report("note" if is_usual else "warning", "truncations", text, neither)
    stub = (lengths <= limit("stub length") * np.median(lengths)) & ~terminated
    stub[-1] = False  # where a recording may just have ended
    report("warning", "episodes/lengths", "{} ends after a few steps: a recording that failed?", stub)
    environment = dataset.environment
    horizon = None if environment is None else environment.max_episode_steps
    if horizon is None:
        if len(lengths) >= 10 and lengths[0] > 1 and (lengths == lengths[0]).all():
            text = f"{{}} is terminated after exactly {counted(lengths[0], 'step')}: perhaps a time limit"
            report("warning", "terminations", text, terminated & terminated.all())
        return findings
    limit_text = f"the environment's limit of {counted(horizon, 'step')}"
    long, at_limit = lengths > horizon, lengths == horizon
    # Play is often recorded without the limit of the tasks, then in all episodes alike.
    severity: Severity = "warning" if long.all() else "error"
    report(severity, "episodes/lengths", f"{{}} is longer than {limit_text}", long)
    wrong = at_limit & terminated & ~truncated
    if wrong.sum() >= limit("fewest episodes") and (
        wrong.sum() > limit("terminations at the horizon") * at_limit.sum()
    ):
        text = f"{{}} is terminated exactly at {limit_text}, where episodes are truncated: "
        report("warning", "terminations", text + "their last value would count as 0", wrong)
    short = (lengths < horizon) & truncated & ~terminated
    report("note", "truncations", f"{{}} is truncated before {limit_text}", short)
    return findings


def check_returns(facts: Facts) -> Check:
    """Find recorded returns that are not the sum of the episode's rewards, and rewards that were lost or stand alone."""
    dataset, seen = facts.dataset, Seen(facts.dataset)
    sums, sizes = seen.of_episodes(np.float64), seen.of_episodes(np.float64)
    while (piece := (yield seen)) is not None:
        rewards = piece.columns["rewards"].astype(np.float64)
        inside = np.abs(rewards) * piece.has_next
        inside[piece.lasts] = 0  # where a task that is done may give much
        seen.sums["dense"] += np.count_nonzero(inside)
        largest = np.argsort(-np.nan_to_num(inside, posinf=0), kind="stable")[:2]
        seen.rows["large"] += [np.array([inside[row], *piece.place(int(row), "rewards")]) for row in largest]
        sums[piece.episodes] += np.add.reduceat(rewards, piece.starts)
        sizes[piece.episodes] += np.add.reduceat(np.abs(rewards), piece.starts)
    findings, is_dense = [], seen.sums["dense"] >= limit("mostly still") * dataset.total_steps
    large = sorted(seen.rows["large"], key=lambda row: -float(row[0]))[:2]
    if is_dense and len(large) == 2 and large[0][0] >= limit("far jump") * large[1][0]:
        text = f"a reward of size {large[0][0]:g}, and no other beyond {large[1][0]:g}"
        findings.append(Finding("jumps", "warning", "rewards", text, int(large[0][1]), int(large[0][2])))
    # Without an environment or an outcome, rewards may be nothing that was recorded.
    if not sizes.any() and (dataset.environment is not None or success_column(dataset) is not None):
        text = "all rewards are zero: they were never recorded, or no task was done"
        findings.append(Finding("constant", "warning", "rewards", text, count=dataset.total_steps))
    if is_dense:
        findings += about_episodes(
            "rewards", "warning", "rewards", "rewards of {} are all zero", np.flatnonzero(sizes == 0)
        )
        sign = np.sign(sums) * (np.abs(sums) == sizes)  # of all steps
        if (sign == np.median(sign)).mean() >= limit("usual episodes"):
            other, text = np.flatnonzero(sign * np.median(sign) < 0), "rewards of {} have the other sign"
            findings += about_episodes("rewards", "warning", "rewards", text, other)
    for name in ["episodes/returns", *_of_episodes(facts, _RETURNS)]:
        recorded = dataset.column(name)
        # A column of the author's may have been summed in float32.
        error = limit("return error") * (1 if name in ALWAYS else 100)
        wrong = np.flatnonzero((np.abs(recorded - sums) > error * (sizes + 1)) & np.isfinite(sums))
        if len(wrong):
            values = f"{recorded[wrong[0]]:g}, not {sums[wrong[0]]:g}"
            text = f"{{}} has a return that is not the sum of its rewards: {values}"
            severity: Severity = "error" if name in ALWAYS else "warning"
            findings += about_episodes("returns", severity, name, text, wrong)
    return findings


def check_lengths(facts: Facts) -> Check:
    """Find recorded lengths that are not the number of steps (or of observations)."""
    yield from looks_at_no_rows(facts)
    lengths = facts.dataset.episode_lengths
    findings = []
    for name in _of_episodes(facts, _LENGTHS):
        recorded = facts.dataset.column(name)
        wrong = min((np.flatnonzero(recorded != expected) for expected in (lengths, lengths + 1)), key=len)
        if len(wrong):
            steps = counted(lengths[wrong[0]], "step")
            text = f"{{}} has {steps}, but this column says {recorded[wrong[0]]:g}"
            findings += about_episodes("lengths", "error", name, text, wrong)
    return findings


def _of_episodes(facts: Facts, pattern: str) -> list[str]:
    """Return the author's columns of episodes that hold one number, by what their name says."""
    names = plain_columns(facts.dataset, "episodes")
    return [name for name in _numbers_called(facts, names, pattern) if name not in ALWAYS]


def _numbers_called(facts: Facts, names: Iterable[str], pattern: str) -> list[str]:
    specs = facts.dataset.schema.columns()
    return [
        name
        for name in names
        if specs[name].dtype.kind in "iuf"
        and specs[name].shape in ((), (1,))
        and re.fullmatch(pattern, name.rpartition("/")[2].lower())
    ]


def check_times(facts: Facts) -> Check:
    """Find timestamps and counters of steps that go back, stand still or leave steps out."""
    names = plain_columns(facts.dataset, "infos")
    counters = _numbers_called(facts, names, _COUNTERS)
    times = dict.fromkeys([*_numbers_called(facts, names, _TIMES), *counters])
    usual = facts.once("times", lambda: _usual_steps(facts, times))
    seen = Seen(facts.dataset)
    last: dict[str, np.ndarray] = {}
    others = {name: seen.of_episodes(np.int64) for name in times if name not in counters}
    while (piece := (yield seen)) is not None:
        for name in times:
            steps, expected = _steps_of_times(piece, name, last), usual[name]
            seen.sums[name] += int(np.count_nonzero(steps > 0))
            if name in others:
                is_other = np.abs(np.log(steps / expected)) > math.log(limit("another rate"))
                others[name][piece.episodes] += np.add.reduceat(is_other & (steps > 0), piece.starts, dtype=np.int64)
            most = expected if name in counters else limit("time step") * expected
            ahead = (steps != most) if name in counters else (steps > most)
            seen.note((name, "goes back"), piece, steps < 0)
            if expected > 0:
                seen.note((name, "stands still"), piece, steps == 0)
                seen.note((name, "leaves steps out"), piece, ahead & (steps > 0))
    findings = []
    for (name, kind), noted in seen.noted.items():
        text = f"{kind} in {counted(noted.rows, 'step')} inside of episodes"
        if kind != "goes back":
            text += f" (usually {usual[name]:g} from step to step)"
        severity: Severity = "error" if kind == "goes back" else "warning"
        findings.append(Finding("times", severity, name, text, *noted.place))
    findings += [
        Finding("times", "warning", name, "never changes", count=facts.dataset.total_steps)
        for name in times
        if usual[name] == 0 and not seen.sums[name]
    ]
    for name, counts in others.items():
        slow = counts >= limit("held share") * np.maximum(facts.dataset.episode_lengths - 1, 1)
        text = f"{{}} has another time from step to step than the others ({usual[name]:g})"
        findings += about_episodes("times", "warning", name, text, np.flatnonzero(slow))
    return findings


def _steps_of_times(piece: Piece, name: str, last: dict[str, np.ndarray]) -> np.ndarray:
    """Return how much a time changes since the row before; NaN in an episode's first row."""
    values = piece.columns[name].reshape(-1).astype(np.float64)
    steps: np.ndarray = np.diff(values, prepend=last[name] if piece.first_step else values[:1])
    last[name] = values[-1:]
    steps[piece.starts[piece.begun]] = np.nan
    return steps


def _usual_steps(facts: Facts, names: Iterable[str]) -> dict[str, float]:
    """Return the median change of each time from step to step in a sample; NaN if there is none."""
    steps: dict[str, list[np.ndarray]] = {name: [np.array([np.nan])] for name in names}
    last: dict[str, np.ndarray] = {}
    for piece in facts.sampled() if steps else ():
        for name, parts in steps.items():
            parts.append(_steps_of_times(piece, name, last))
    return {name: float(np.nanmedian(np.concatenate(parts))) for name, parts in steps.items()}


def check_final_observations(facts: Facts) -> Check:
    """Find final observations that repeat the one before, are zero, or are of another episode."""
    names = plain_columns(facts.dataset, "observations")
    specs = facts.dataset.schema.columns()
    real = [name for name in names if specs[name].dtype.kind == "f"]
    if not real:
        return "observations are no real numbers, so equal ones are no sign of a mistake"
    seen, lengths = Seen(facts.dataset), facts.dataset.episode_lengths
    first, final, before_final = (seen.of_episodes(np.uint64) for _ in range(3))  # hashes
    zero_first, zero_final, moved = (seen.of_episodes(np.bool_) for _ in range(3))
    leap_first, leap_last, leaps = (seen.of_episodes(np.float64) for _ in range(3))
    while (piece := (yield seen)) is not None:
        change = sum(np.nan_to_num(np.abs(piece.changes(name)).mean(axis=0)) for name in real)
        hashes, same = piece.hashes("observations"), piece.same("observations")
        seen.sums["repeats"] += int(same.sum() - same[piece.lasts].sum())
        seen.sums["steps"] += piece.steps - len(piece.lasts)
        begun, firsts = piece.episodes[piece.begun], piece.starts[piece.begun]
        lasts, ended = piece.lasts, piece.ended
        first[begun], leap_first[begun] = hashes[piece.before[firsts]], change[firsts]
        before_final[ended], final[ended] = (hashes[piece.before[lasts] + at] for at in (0, 1))
        leap_last[ended] = change[lasts]
        leaps[piece.episodes] += np.add.reduceat(change, piece.starts)
        moved[ended] = ~same[lasts - 1] & (piece.lengths[: len(ended)] > 1)
        zero_first[begun] = _are_zero(piece, names, piece.before[firsts])
        zero_final[ended] = _are_zero(piece, names, piece.before[lasts] + 1)
    known = ~facts.missing_finals
    check, column = "final observations", "observations"
    text = "the final observation of {} was never recorded, as the data say"
    missing = np.flatnonzero(facts.missing_finals)
    findings = about_episodes(check, "note", column, text, missing)
    repeated = (final == before_final) & known
    usual = seen.sums["repeats"] / max(1, seen.sums["steps"])
    by_chance = (usual + 1 / max(1, seen.sums["steps"])) * known.sum()
    # Most of them: perhaps each was copied. A few: where others hardly ever repeat, and nothing was at rest.
    is_habit = repeated.sum() >= max(limit("fewest episodes"), limit("copied finals") * known.sum())
    if is_habit and usual <= limit("copied steps"):
        text = "the final observation of {} repeats the one before it: perhaps T observations for T actions"
        findings += about_episodes(check, "warning", column, text, np.flatnonzero(repeated))
    elif by_chance <= limit("copied by chance") * (repeated & moved).sum():
        text = "the final observation of {} repeats the one before it, as hardly any other does"
        findings += about_episodes(check, "warning", column, text, np.flatnonzero(repeated & moved))
    shifted = np.flatnonzero((final[:-1] == first[1:]) & known[:-1])
    # Unless it was one recording at rest, the observation at the wrong end of the seam leaps.
    is_most = len(shifted) > limit("cut episodes") * len(lengths)
    if len(shifted) >= max(2, limit("shifted finals") * len(lengths)):
        far, ends = limit("seam") * np.median(leaps / lengths), (leap_last[shifted], leap_first[shifted + 1])
        if is_most and (facts.dataset.column("episodes/seeds")[shifted + 1] >= 0).all():
            far = min(far, np.median(ends, axis=1).max() * 0.999)  # a reset with a seed is no continuation
        if np.median(ends[0]) > far:
            text = "the final observation of {} is the first one of the next episode"
            findings += about_episodes(check, "error", column, text, shifted)
        elif np.median(ends[1]) > far:
            text = "the first observation of {} is the final one of the episode before: stale"
            findings += about_episodes(check, "warning", column, text, shifted + 1, step=0)
        elif not is_most and np.isin(final, first).sum() == len(shifted) and np.min(ends) > 0:
            text = (
                "{} begins with the final observation of the one before, as no other does: one episode was cut in two"
            )
            findings += about_episodes(check, "warning", column, text, shifted + 1, step=0)
    text = "the final observation of {} is zero: it was probably never recorded"
    zero = np.flatnonzero(zero_final & ~zero_first & known)
    return findings + about_episodes(check, "warning", column, text, zero)


def _are_zero(piece: Piece, names: list[str], rows: np.ndarray) -> np.ndarray:
    zero = [~flat(piece.columns[name][rows]).any(axis=1) for name in names]
    return np.asarray(np.all(zero, axis=0))


def check_next_observations(facts: Facts) -> Check:
    """Find next observations among the infos that differ from the observation after the step."""
    names = {
        name: other
        for other in plain_columns(facts.dataset, "observations")
        for infos in ("infos/next_observations", "infos/next_observation")
        if (name := other.replace("observations", infos, 1)) in facts.dataset.columns
    }
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        for name, other in names.items():
            differ = piece.columns[name] != piece.columns[other][piece.before + 1]
            seen.note(name, piece, flat(differ).any(axis=1) & piece.has_next)
    findings = []
    for name, noted in seen.noted.items():
        text = f"{noted.rows:,} rows differ from the observation of the following row"
        findings.append(Finding("final observations", "error", name, text, *noted.place))
    return findings


def check_success(facts: Facts) -> Check:
    """Find that all episodes failed, which leaves nothing to imitate, or tell how many did."""
    yield from looks_at_no_rows(facts)
    column = success_column(facts.dataset)
    if column is None:
        return []
    failed = np.flatnonzero(~success_of(facts.dataset, column))
    if len(failed) < facts.dataset.total_episodes:
        return about_episodes("success", "note", column, "{} failed", failed)
    text = f"no episode succeeded: {counted(len(failed), 'episode')} failed"
    return [Finding("success", "warning", column, text)]


def check_statistics(facts: Facts) -> Check:
    """Tell statistics that came with the imported files and are not those of their rows, as the import's notes say."""
    yield from looks_at_no_rows(facts)
    sentences = re.findall(r"(meta/stats\.json .+?); statistics were computed anew", facts.dataset.manifest.description)
    return [Finding("statistics", "note", "", f"of the files that were imported, {sentence}") for sentence in sentences]


def check_objectives(facts: Facts) -> Check:
    """Find objectives and weights whose number differs, from step to step or between columns."""
    dataset, seen = facts.dataset, Seen(facts.dataset)
    specs, findings = dataset.schema.columns(), []
    columns = [name for name, role in dataset.roles.items() if ROLES[role].family == "objectives"]
    for column in columns[1:]:
        number, first = (specs[name].shape[0] for name in (column, columns[0]))
        if number != first:
            text = f"it has {number} objectives, and {columns[0]} has {first}"
            findings.append(Finding("objectives", "error", column, text))
    usual = ROLES["objectives"].usual
    loose = [name for name in usual if dataset.schema.variable.get(name) == "array"]
    rows = next(pieces(dataset, facts.missing_finals)).columns if loose else {}
    first_of = {name: rows[offsets_column(name)][0] for name in loose}
    while (piece := (yield seen)) is not None:
        for column in loose:
            sizes = np.diff(piece.columns[offsets_column(column)], prepend=0)
            seen.note(column, piece, sizes != first_of[column], values=sizes)
    for column, noted in seen.noted.items():
        text = f"another number of objectives than the {first_of[column]} of the first step: "
        text += f"{counted(noted.rows, 'step')}, first {noted.value}"
        findings.append(Finding("objectives", "error", column, text, *noted.place))
    return findings


Wrong = Callable[[Facts, str, np.ndarray, Any], np.ndarray]
"""Returns which rows are wrong, of the values of a column at the steps of a piece."""


def _acting(column: str, piece: Piece) -> np.ndarray:
    """Return at which steps the agent of a column acts: all, if it is of the whole."""
    acts = piece.columns.get(f"infos/agents/{_agent_of(column)}/acts")
    return np.ones(piece.steps, np.bool_) if acts is None else acts.astype(np.bool_)


def _agent_of(column: str) -> str:
    """Return the agent that a column is of; nothing for one of the whole."""
    match = re.fullmatch(r"(?:infos/agents|observations)/([^/]+)/.+", column)
    return "" if match is None else match[1]


def _empty(_facts: Facts, column: str, legal: np.ndarray, piece: Piece) -> np.ndarray:
    return np.asarray(_acting(column, piece) & ~(legal != 0).any(axis=1))


def _nothing_next(facts: Facts, column: str, legal: np.ndarray, piece: Piece) -> np.ndarray:
    """Return where nothing may be done next, and a step follows."""
    empty = _empty(facts, column, legal, piece)
    for flag in FLAGS:  # of the agent, which may end before the others
        flags = f"infos/agents/{_agent_of(column)}/{flag}"
        empty &= ~piece.columns.get(flags, piece.columns[flag])
    empty[piece.lasts] = False
    return empty


def _not_legal(facts: Facts, column: str, legal: np.ndarray, piece: Piece) -> np.ndarray:
    """Return where the recorded action is not one of the legal ones; nowhere if actions are no numbers."""
    leaves = dict(leaf_spaces(facts.dataset.action_space, "actions"))
    agent = f"actions/{_agent_of(column)}"
    name = agent if agent in leaves else "actions"
    space = leaves.get(name)
    if not isinstance(space, spaces.Discrete) or legal.shape[1] != space.n:
        return np.zeros(piece.steps, np.bool_)
    chosen = piece.columns[name].astype(np.int64) - int(space.start)
    inside = (chosen >= 0) & (chosen < legal.shape[1])
    taken = legal[np.arange(piece.steps), np.where(inside, chosen, 0)]
    return np.asarray(_acting(column, piece) & (legal != 0).any(axis=1) & inside & (taken == 0))


WRONG: dict[str, list[tuple[str, Wrong, str]]] = {
    "cost": [("costs", lambda _, __, costs, ___: ~(np.isfinite(costs) & (costs >= 0)), "negative or not finite costs")],
    "legal_actions": [
        ("legal actions", _empty, "no choice is legal"),
        ("legal actions", _not_legal, "an action was taken that is not legal"),
    ],
    "next_legal_actions": [("legal actions", _nothing_next, "no choice is legal")],
    "task": [
        (
            "task numbers",
            lambda _, __, tasks, ___: (tasks < 0) | (tasks > limit("numbered tasks")),
            "a task has no small number from 0 on",
        )
    ],
}
"""By role: the check, which rows are wrong, and what they are. Columns of episodes are given without a piece."""


def check_roles(facts: Facts) -> Check:
    """Find wrong rows in columns with roles: costs, legal actions, numbers of tasks."""
    dataset, seen = facts.dataset, Seen(facts.dataset)
    rules = [
        (check, name, about, wrong)
        for name, role in dataset.roles.items()
        for check, wrong, about in WRONG.get(role, ())
    ]
    while (piece := (yield seen)) is not None:
        for *key, wrong in rules:
            column = key[1]
            if (axis := axis_of(column)) != "episode":
                values = piece.columns[column]
                values = values[piece.before] if axis == "observation" else values
                rows = wrong(facts, column, values, piece)
                seen.note(tuple(key), piece, rows, values=values)
    findings = []
    for (check, column, about), noted in seen.noted.items():
        text = f"{about}: {counted(noted.rows, 'step')}, first {noted.value}"
        findings.append(Finding(check, "error", column, text, *noted.place))
    for check, column, about, wrong in rules:
        if axis_of(column) == "episode":
            values = dataset.column(column)
            rows = np.flatnonzero(wrong(facts, column, values, None))
            text = f"{about}: {counted(len(rows), 'episode')}, first {values[rows[0]] if len(rows) else 0}"
            findings += about_episodes(check, "error", column, text, rows)
    return findings


Formula = Callable[[Piece], "np.ndarray | None"]


def _force(piece: Piece) -> np.ndarray:
    return np.asarray(piece.numbers("actions")[0], float)


def _pendulum(piece: Piece) -> np.ndarray:
    cosine, sine, speed = piece.numbers("observations")[:, piece.before].astype(float)
    cost = np.arctan2(sine, cosine) ** 2 + 0.1 * speed**2 + 0.001 * _force(piece).clip(-2, 2) ** 2
    return np.asarray(-cost)


def _sum_of_parts(piece: Piece) -> np.ndarray | None:
    """Return the sum of the parts of MuJoCo's rewards, if they were recorded with the infos."""
    names = r"infos/reward_(forward|run|ctrl|survive|contact|quadctrl|alive|impact)"
    parts = [flat(piece.columns[name])[:, 0] for name in piece.columns if re.fullmatch(names, name)]
    return np.sum(parts, axis=0, dtype=float) if len(parts) > 1 else None


# Pattern of environment ids -> the reward of each step of a piece, or None if it cannot be computed.
FORMULAS: dict[str, Formula] = {
    r"CartPole-v[01]": lambda piece: np.ones(piece.steps),
    r"MountainCar-v0": lambda piece: -np.ones(piece.steps),
    r"MountainCarContinuous-v0": lambda piece: 100.0 * piece.columns["terminations"] - 0.1 * _force(piece) ** 2,
    r"Acrobot-v1": lambda piece: piece.columns["terminations"] - 1.0,
    r"Pendulum-v1": _pendulum,
    r"InvertedPendulum-v5": lambda piece: 1.0 - piece.columns["terminations"],
    r"(Ant|HalfCheetah|Hopper|Humanoid|Swimmer|Walker2d)-v[45]": _sum_of_parts,
}


def check_rewards(facts: Facts) -> Check:
    """Find rewards that differ from what the environment computes from what was recorded."""
    formula = _formula(facts)
    if isinstance(formula, str):
        return formula
    seen = Seen(facts.dataset)
    while (piece := (yield seen)) is not None:
        expected = formula(piece)
        if expected is None:
            return "the parts of the reward were not recorded"
        rewards = piece.columns["rewards"].astype(np.float64)
        known = piece.has_next & np.isfinite(rewards)
        wrong = np.abs(rewards - expected) > limit("reward error") * (1 + np.abs(expected))
        pairs = np.stack([rewards, expected], axis=1)
        seen.note("rewards", piece, wrong & known, values=pairs)
        seen.sums["steps"] += int(known.sum())
    findings = []
    for column, noted in seen.noted.items():
        text = f"{noted.rows:,} of {seen.sums['steps']:,} rewards differ from the environment's: "
        text += f"{noted.value[0]:g}, not {noted.value[1]:g}"
        is_other = noted.rows > limit("other rewards") * seen.sums["steps"]
        if is_other:
            text += "; so many that they were probably computed in another way on purpose"
        severity: Severity = "warning" if is_other else "error"
        findings.append(Finding("rewards", severity, column, text, *noted.place))
    return findings


def rewards_are_computed(facts: Facts) -> bool:
    """Return whether the first rewards can be computed again."""
    formula = _formula(facts)
    return not isinstance(formula, str) and formula(facts.sampled()[0]) is not None


def _formula(facts: Facts) -> Formula | str:
    """Return what computes the rewards of a piece, or why nothing does."""
    dataset = facts.dataset
    if dataset.environment is None:
        return "the data name no environment"
    space = dataset.observation_space
    if isinstance(space, spaces.Dict) and all(
        isinstance(space.get(goal), spaces.Box) for goal in ("achieved_goal", "desired_goal")
    ):
        return _of_goals(facts)
    for pattern, formula in FORMULAS.items():
        if re.fullmatch(pattern, dataset.environment.id) and not dataset.environment.kwargs:
            return formula
    return f"the reward of {dataset.environment.id} does not follow from what is recorded"


def _of_goals(facts: Facts) -> Formula | str:
    """Return the formula of an environment with goals: its own `compute_reward`; or why there is none."""
    trust = facts.trust_environment
    try:
        record = facts.once("environment", lambda: facts.dataset.checked_environment(trust_environment=trust))
        compute = _compute_reward(record.id, canonical_json(record.kwargs))
    except OrlogError as error:
        return f"the environment cannot be made: {clause(error)}"
    if compute is None:
        return f"{record.id} has no compute_reward"

    def of_goals(piece: Piece) -> np.ndarray | None:
        # The goal that counts is the one observed with the result of the step.
        goals = (piece.columns[f"observations/{key}_goal"] for key in ("achieved", "desired"))
        try:
            rewards = np.asarray(compute(*(goal[piece.before + 1] for goal in goals), {}), float)
        except Exception:  # noqa: BLE001 (an environment runs any code and raises anything)
            return None
        return rewards if rewards.shape == (piece.steps,) else None

    return of_goals


@functools.lru_cache(maxsize=8)
def _compute_reward(environment_id: str, kwargs: bytes) -> Callable[..., Any] | None:
    """Return the function of an environment that gives rewards for goals; None if it has none."""
    env = make_environment(environment_id, json.loads(kwargs))
    compute: Callable[..., Any] | None = getattr(env.unwrapped, "compute_reward", None)
    env.close()
    return compute


CHECKS: dict[str, Callable[[Facts], Check]] = {
    "flags": check_flags,
    "final observations": check_final_observations,
    "next observations": check_next_observations,
    "returns": check_returns,
    "lengths": check_lengths,
    "times": check_times,
    "costs, legal actions and task numbers": check_roles,
    "objectives": check_objectives,
    "rewards": check_rewards,
    "success": check_success,
    "statistics": check_statistics,
}
