"""Checks of columns by their roles (`manifests/roles.py`): one entry of `ROLE_CHECKS` each.

A dataset without a column of the role has nothing to find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from orlog.datasets.audit.findings import Check, Facts, Finding, about_episodes, looks_at_no_rows
from orlog.datasets.audit.pieces import Piece, pieces
from orlog.datasets.audit.seen import Seen
from orlog.datasets.audit.thresholds import limit
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.selection import success_column, success_of
from orlog.manifests.columns import FLAGS, axis_of, offsets_column
from orlog.manifests.names import counted
from orlog.manifests.roles import ROLES, column_with
from orlog.manifests.spaces import leaf_spaces

_UNITS = {"step": "step", "observation": "step", "episode": "episode"}


class _Judged(NamedTuple):
    """What is looked for in the columns of a role.

    `wrong` returns which rows are wrong of the values of a column at the steps of a piece, (steps, ..), or
    of all episodes, where there is no piece; `about` says what they are.
    """

    check: str
    wrong: Callable[[Facts, str, np.ndarray, Piece | None], np.ndarray]
    about: str


def _judge(facts: Facts, roles: Mapping[str, tuple[_Judged, ...]]) -> Check:
    """Find rows that are wrong in columns with some roles."""
    judged = {
        (column, one.about): (one, axis_of(column) == "episode")
        for column, role in facts.dataset.roles.items()
        for one in roles.get(role, ())
    }
    seen = Seen(facts.dataset)
    counts, firsts = seen.counts(), seen.firsts()
    while (piece := (yield seen)) is not None:
        for (column, about), (one, of_episodes) in judged.items():
            if of_episodes:
                continue
            values = _at_steps(piece, column)
            rows = np.flatnonzero(one.wrong(facts, column, values, piece))
            counts[column, about] += len(rows)
            if len(rows):
                row = int(rows[0])
                firsts.setdefault((column, about), (*piece.place(row), f"{values[row]}"))
    found: dict[tuple[str, str], tuple[int, int, int | None, str]] = {}
    for (column, about), (one, of_episodes) in judged.items():
        if of_episodes:
            values = facts.dataset.column(column)
            rows = np.flatnonzero(one.wrong(facts, column, values, None))
            if len(rows):
                found[column, about] = len(rows), int(rows[0]), None, f"{values[rows[0]]}"
    found |= {key: (counts[key], *first) for key, first in firsts.items()}
    return [
        Finding(
            check=judged[column, about][0].check,
            severity="error",
            column=column,
            text=f"{about}: {counted(count, _UNITS[axis_of(column)])}, first {value}",
            episode=episode,
            step=step,
            count=count,
        )
        for (column, about), (count, episode, step, value) in found.items()
    ]


def _at_steps(piece: Piece, column: str) -> np.ndarray:
    """Return a column's row at each step: of an observation the one before the action."""
    values = piece.columns[column]
    return values.take(piece.before, axis=0) if axis_of(column) == "observation" else values


def _negative(_facts: Facts, _column: str, costs: np.ndarray, _piece: Piece | None) -> np.ndarray:
    return np.asarray(~(np.isfinite(costs) & (costs >= 0)))


def _odd_number(_facts: Facts, _column: str, tasks: np.ndarray, _piece: Piece | None) -> np.ndarray:
    return np.asarray((tasks < 0) | (tasks > limit("numbered tasks")))


def _agent_of(column: str) -> str:
    """Return the agent that a column is of; nothing for one of the whole."""
    found = re.fullmatch(r"(?:infos/agents|observations)/([^/]+)/.+", column)
    return "" if found is None else found[1]


def _acting(column: str, piece: Piece) -> np.ndarray:
    """Return at which steps the agent of a column acts: all, if it is of the whole."""
    acts = piece.columns.get(f"infos/agents/{_agent_of(column)}/acts")
    return np.ones(piece.steps, np.bool_) if acts is None else acts.astype(np.bool_)


def _empty(_facts: Facts, column: str, legal: np.ndarray, piece: Piece | None) -> np.ndarray:
    assert piece is not None
    empty: np.ndarray = _acting(column, piece) & ~(legal != 0).any(axis=1)
    return empty


def _nothing_next(facts: Facts, column: str, legal: np.ndarray, piece: Piece | None) -> np.ndarray:
    """Return where nothing may be done next, and a step follows."""
    assert piece is not None
    agent = _agent_of(column)
    empty = _empty(facts, column, legal, piece)
    for flag in FLAGS:  # of the agent, which may end before the others
        empty &= ~piece.columns.get(f"infos/agents/{agent}/{flag}", piece.columns[flag])
    empty[piece.lasts] = False
    return empty


def _not_legal(facts: Facts, column: str, legal: np.ndarray, piece: Piece | None) -> np.ndarray:
    """Return where the recorded action is not one of the legal ones; nowhere if actions are no numbers."""
    assert piece is not None
    leaves = dict(leaf_spaces(facts.dataset.action_space, "actions"))
    agent = _agent_of(column)
    name = f"actions/{agent}" if f"actions/{agent}" in leaves else "actions"
    space = leaves.get(name)
    if not isinstance(space, spaces.Discrete) or legal.shape[1] != space.n:
        return np.zeros(piece.steps, np.bool_)
    chosen = piece.columns[name].astype(np.int64) - int(space.start)
    inside = (chosen >= 0) & (chosen < legal.shape[1])
    taken = legal[np.arange(piece.steps), np.where(inside, chosen, 0)]
    wrong: np.ndarray = _acting(column, piece) & (legal != 0).any(axis=1) & inside & (taken == 0)
    return wrong


def check_costs(facts: Facts) -> Check:
    """Find costs that are negative or not finite."""
    judged = _Judged("costs", _negative, "negative or not finite costs")
    return (yield from _judge(facts, {"cost": (judged,)}))


def check_legal_actions(facts: Facts) -> Check:
    """Find steps in which nothing may be done, and actions that were taken and are not legal."""
    name = "legal actions"
    empty = "no choice is legal"
    return (
        yield from _judge(
            facts,
            {
                "legal_actions": (
                    _Judged(name, _empty, empty),
                    _Judged(name, _not_legal, "an action was taken that is not legal"),
                ),
                "next_legal_actions": (_Judged(name, _nothing_next, empty),),
            },
        )
    )


def check_task_numbers(facts: Facts) -> Check:
    """Find numbers of tasks that are no small whole numbers from 0 on."""
    judged = _Judged("task numbers", _odd_number, "a task has no small number from 0 on")
    return (yield from _judge(facts, {"task": (judged,)}))


def kinds_of_episodes(dataset: Dataset) -> np.ndarray | None:
    """Return the task of each episode, numbered from 0 on, (E,); None where no column of episodes says it.

    Checks that compare episodes with one another compare those of one kind.
    """
    column = column_with(dataset.roles, "task")
    if column is None or axis_of(column) != "episode":
        return None
    kinds: np.ndarray = np.unique(dataset.column(column), return_inverse=True)[1]
    return kinds


def check_objectives(facts: Facts) -> Check:
    """Find objectives and weights whose number differs, from step to step or between columns."""
    dataset = facts.dataset
    specs = dataset.schema.columns()
    findings = []
    numbers = {
        column: specs[column].shape[0]
        for column, role in dataset.roles.items()
        if ROLES[role].family == "objectives"
    }
    first = next(iter(numbers), "")
    for column, number in numbers.items():
        if number != numbers[first]:
            text = f"it has {number} objectives, and {first} has {numbers[first]}"
            findings.append(Finding(check="objectives", severity="error", column=column, text=text))
    loose = [
        column
        for column in ROLES["objectives"].usual
        if dataset.schema.variable.get(column) == "array"
    ]
    expected: dict[str, int] = facts.once("objectives", lambda: _first_sizes(facts, loose))
    seen = Seen(dataset)
    counts, places = seen.counts(), seen.firsts()
    while (piece := (yield seen)) is not None:
        for column in loose:
            sizes = np.diff(piece.columns[offsets_column(column)], prepend=0)
            wrong = np.flatnonzero(sizes != expected[column])
            counts[column] += len(wrong)
            if len(wrong):
                places.setdefault(column, (*piece.place(int(wrong[0])), int(sizes[wrong[0]])))
    return findings + [
        Finding(
            check="objectives",
            severity="error",
            column=column,
            text=f"another number of objectives than the {expected[column]} of the first step: "
            f"{counted(counts[column], 'step')}, first {number}",
            episode=episode,
            step=step,
            count=counts[column],
        )
        for column, (episode, step, number) in places.items()
    ]


def _first_sizes(facts: Facts, columns: list[str]) -> dict[str, int]:
    """Return how many numbers the first value of each column has."""
    if not columns:
        return {}
    first = next(pieces(facts.dataset, facts.missing_finals))
    return {name: int(first.columns[offsets_column(name)][0]) for name in columns}


def check_success(facts: Facts) -> Check:
    """Find that all episodes failed, which makes nothing to imitate, or tell how many did."""
    yield from looks_at_no_rows(facts)
    column = success_column(facts.dataset)
    if column is None:
        return []
    failed = np.flatnonzero(~success_of(facts.dataset, column))
    if not len(failed):
        return []
    if len(failed) < facts.dataset.total_episodes:
        return [about_episodes("success", "note", column, "{} failed", failed)]
    text = f"no episode succeeded: {counted(len(failed), 'episode')} failed"
    return [Finding(check="success", severity="warning", column=column, text=text)]


ROLE_CHECKS: dict[str, Callable[[Facts], Check]] = {
    "costs": check_costs,
    "legal actions": check_legal_actions,
    "task numbers": check_task_numbers,
    "objectives": check_objectives,
    "success": check_success,
}
"""Checks by name, as the table `CHECKS` of the audit takes them."""
