"""Rewards that the user says, in place of those of the files, or where these have none.

    --reward constant            1 at each step; `constant=-1` another number
    --reward success             1 where `infos/success` is true, if the files have it; else at the last step of each
                                 episode whose `episodes/success` is true; where neither is there, of each one that
                                 the task ended (`--ends terminated` says that all did)
    --reward FILE.py:function    what a function of yours returns for the steps of a piece of an episode

The function takes observations and actions, n rows each, and the observations after each action, and returns n
numbers. A Dict of observations comes as a dict of arrays.
"""

from __future__ import annotations

import dataclasses
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from orlog.datasets.formats._shared.conventions import joined, rows_of
from orlog.datasets.formats._shared.episodes import Opened, Steps
from orlog.datasets.formats._shared.flags import OF_STEPS, success_in
from orlog.datasets.formats._shared.notes import Note
from orlog.errors import NotFoundError, SchemaError

SUCCESS, CONSTANT = "success", "constant"
Reward = Callable[[Any, Any, Any], Any]


def put_rewards(opened: Opened, said: str) -> None:
    """Give all steps the rewards that the user says, and note it.

    That files have no rewards is not to be told then: their readers leave it out where `Options.reward` is given.
    Raises ValueError if that is none of what is known, or the file cannot be run; NotFoundError if there is no such
    file or function.
    """
    label = _labels(said)
    opened.schema = dataclasses.replace(opened.schema, reward_dtype=np.dtype(np.float64))
    opened.notes.append(Note("rewards_made", reward=said))
    opened.steps = _relabeled(opened.steps, label, said, opened)


def _labels(said: str) -> Callable[[Steps, Any], Any]:
    """Return what gives rewards to a piece, from it and the observation before it."""
    if said == SUCCESS:
        return _successes
    kind, _, value = said.partition("=")
    if kind == CONSTANT:
        try:
            number = float(value or 1)
        except ValueError:
            raise ValueError(f"reward={said!r}: expected a number, such as constant=-1.") from None
        return lambda steps, _before: np.full(len(steps.rewards), number)
    path, _, name = said.rpartition(":")
    if not path.endswith(".py"):
        raise ValueError(
            f"reward={said!r}: expected constant, constant=NUMBER, success, or FILE.py:function."
        )
    if not Path(path).is_file():
        raise NotFoundError(f"reward={said!r}: there is no file {path}.")
    try:
        declared = runpy.run_path(path, run_name=Path(path).stem)
    except Exception as error:  # a user's code raises anything
        raise ValueError(f"{path}: {type(error).__name__} when it was run: {error}.") from error
    function = declared.get(name)
    if not callable(function):
        raise NotFoundError(f"reward={said!r}: {path} has no function {name!r}.")
    return lambda steps, before: _called(function, said, steps, before)


def _relabeled(
    pieces: Iterator[Steps], label: Callable[[Steps, Any], Any], said: str, opened: Opened
) -> Iterator[Steps]:
    before, rewarded, by_end = None, 0, 0
    for steps in pieces:
        rewards = np.asarray(label(steps, before), np.float64)
        if rewards.shape != steps.rewards.shape:
            raise SchemaError(
                f"reward={said!r}: expected {steps.rewards.shape} numbers, one a step, found {rewards.shape}."
            )
        rewarded += int(np.count_nonzero(rewards))
        by_end += label is _successes and bool(rewards.any()) and not _states_success(steps)
        before = None if steps.ends else rows_of(steps.observations, slice(-1, None))
        yield dataclasses.replace(steps, rewards=rewards)
    if by_end:
        opened.notes.append(Note("rewards_by_end", count=by_end))
    if not rewarded:
        opened.notes.append(Note("rewards_all_zero"))


def _successes(steps: Steps, _before: Any) -> np.ndarray:
    stated = success_in(steps.infos, OF_STEPS)
    if stated is not None:
        return stated.astype(np.float64)
    rewards = np.zeros(len(steps.rewards))
    if steps.ends:
        stated = success_in({**steps.infos, **steps.metadata})
        rewards[-1] = steps.terminated if stated is None else stated[-1]
    return rewards


def _states_success(steps: Steps) -> bool:
    return success_in({**steps.infos, **steps.metadata}) is not None


def _called(function: Reward, said: str, steps: Steps, before: Any) -> Any:
    """Call the user's function with n observations, n actions, and the n observations after these."""
    seen = steps.observations if before is None else joined(before, steps.observations)
    try:
        return function(rows_of(seen, slice(0, -1)), steps.actions, rows_of(seen, slice(1, None)))
    except Exception as error:  # a user's code raises anything
        raise ValueError(f"reward={said!r}: {type(error).__name__}: {error}.") from error
