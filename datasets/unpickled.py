"""Turns what a pickle held into arrays with a row for each step.

orlog reads no pickle, since that runs the program in it. A user who trusts one reads it, and calls `save_rows`, as the
message of `orlog import` says: episodes as dicts of arrays, arrays or lists by the usual names, lists of transitions or
of dicts for each step, and the replay buffer of Stable-Baselines3.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

NAMES = {
    "observations": "observations observation obs states state s",
    "actions": "actions action acts act a",
    "rewards": "rewards reward rews rew r",
    "next_observations": "next_observations next_observation next_obs new_obs obs_next next_states next_state s_ ns",
    "terminals": "terminals terminal terminations terminated terminateds dones done d",
    "timeouts": "timeouts timeout truncations truncated truncateds",
    "episodes": "episode episodes episode_id episode_index traj trajectory traj_id trajectory_id",
}
"""Usual names of what a pickle holds, by D4RL's names."""
ORDERS = (
    ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"),
    ("observations", "actions", "rewards", "next_observations", "terminals"),
    ("observations", "next_observations", "actions", "rewards", "terminals"),
    ("observations", "actions", "next_observations", "rewards", "terminals"),
    ("observations", "actions", "rewards", "terminals"),
    ("observations", "actions", "rewards"),
)
"""The orders that transitions have, the commonest first."""
NUMBERS = ("rewards", "terminals", "timeouts")
Rows = dict[str, np.ndarray]


def save_rows(data: Any, file: str | os.PathLike[str] = "data.npz") -> None:
    """Save what a pickle held as npz, which `orlog import` reads."""
    rows = rows_of(data)
    if rows is None:
        raise ValueError(
            "these data are of no kind that is known; save arrays with a row for each step: np.savez('data.npz', "
            "observations=.., actions=.., rewards=.., terminals=.., timeouts=..)."
        )
    np.savez(file, **rows)  # type: ignore[arg-type]


def rows_of(data: Any) -> Rows | None:
    """Return arrays with a row for each step by D4RL's names; None for data of no known kind."""
    data = _plain(data)
    if isinstance(data, Mapping) and {"pos", "full", "buffer_size", "n_envs"} <= data.keys():
        return _of_stable_baselines(data)
    if (rows := _columns(data)) is not None:
        if isinstance(data, Mapping) and not {"terminals", "timeouts", "episodes"} & rows.keys():
            # Other arrays may say where episodes end.
            return {str(key): np.asarray(value) for key, value in data.items() if _shape(value)}
        return _with_ends(rows)
    if isinstance(data, Mapping) and (several := _each_episode(data)):
        return _joined(several)
    each = list(data.values() if isinstance(data, Mapping) else data) if _is_many(data) else []
    episodes = [_columns(_plain(one)) for one in each]
    if episodes and all(episodes):
        return _joined([one for one in episodes if one])
    for inner in each if isinstance(data, Mapping) else ():
        if _is_many(inner) and (rows := rows_of(inner)) is not None:
            return rows
    return None


def _is_many(data: Any) -> bool:
    return isinstance(data, Mapping | list | tuple) and len(data) > 0


def _plain(data: Any) -> Any:
    """Return the attributes of an object, and a deque as a list."""
    if isinstance(data, collections.deque):
        return list(data)
    if _is_many(data) or hasattr(data, "__array__"):
        return data
    return getattr(data, "__dict__", data)


def _columns(data: Any) -> Rows | None:
    """Return arrays with a row for each step of one set of rows; None if the data are none."""
    if isinstance(data, Mapping):
        return _of_dict(data)
    if not isinstance(data, list | tuple) or not data:
        return None
    first = data[0]
    if isinstance(first, Mapping) and _of_dict(first) is None:
        keys = _keys(first)
        keys = {role: key for role, key in keys.items() if role == "episodes" or _shape(first[key]) is not None}
        if {"observations", "actions"} <= keys.keys():
            return {role: np.asarray([step[key] for step in data]) for role, key in keys.items()}
    if isinstance(first, list | tuple):
        roles = _order([_shape(one) for one in first])
        return {role: np.asarray([step[at] for step in data]) for role, at in roles.items()} or None
    shapes = [_shape(one) for one in data]
    if all(shapes) and len({shape[0] for shape in shapes if shape}) == 1:
        roles = _order([shape and shape[1:] for shape in shapes])
        return {role: np.asarray(data[at]) for role, at in roles.items()} or None
    return None


def _of_dict(data: Mapping[Any, Any]) -> Rows | None:
    """Return the arrays of a dict that have as many rows as there are actions."""
    keys = _keys(data)
    if not {"observations", "actions"} <= keys.keys() or _each_episode(data):
        return None
    shapes = {key: _shape(value) for key, value in data.items()}
    count = (shapes[keys["actions"]] or (0,))[0]
    seen = (shapes[keys["observations"]] or (0,))[0]
    if not count or seen not in (count, count + 1):
        return None
    if "rewards" in keys and (shapes[keys["rewards"]] or (0,))[0] != count:
        return None
    rows = {
        role: np.asarray(data[key])
        for role, key in keys.items()
        if shapes[key] and shapes[key][0] == count  # type: ignore[index]
    }
    if seen == count + 1:
        values = np.asarray(data[keys["observations"]])
        rows |= {"observations": values[:-1], "next_observations": values[1:]}
    if "terminals" in keys and shapes[keys["terminals"]] == ():  # one for the whole episode
        flag = bool(np.asarray(data[keys["terminals"]]))
        rows["terminals"] = np.arange(count) == (count - 1 if flag else count)
    for key, shape in shapes.items():
        if isinstance(key, str) and key not in keys.values() and shape and shape[0] == count:
            rows[key] = np.asarray(data[key])
    return rows


def _each_episode(data: Mapping[Any, Any]) -> list[Rows]:
    """Return the episodes of a dict whose values have an item for each; nothing for another one."""
    keys = _keys(data)
    firsts = {role: _shape(_first(data[key])) for role, key in keys.items()}
    lengths = {role: shape[0] if shape else None for role, shape in firsts.items()}
    count = lengths.get("rewards", lengths.get("terminals"))
    if count in (None, 1) or count != lengths.get("actions") or "observations" not in keys:
        return []
    chosen = {role: data[key] for role, key in keys.items() if lengths[role] is not None}
    episodes = [
        _of_dict({role: values[number] for role, values in chosen.items()}) for number in range(len(chosen["actions"]))
    ]
    return [one for one in episodes if one is not None]


def _with_ends(rows: Rows) -> Rows:
    """Return one set of rows with flags; an episode ends where a number of episodes or next observations say it."""
    if "episodes" in rows and "timeouts" not in rows:
        number = rows.pop("episodes")
        return _flagged(rows, np.append(number[1:] != number[:-1], True))
    if "timeouts" in rows or "terminals" not in rows:
        return rows
    count = len(rows["actions"])
    if "next_observations" not in rows:
        return _flagged(rows, np.arange(count) == count - 1)
    jumps = rows["next_observations"][:-1] != rows["observations"][1:]
    return _flagged(rows, np.append(jumps.reshape(count - 1, -1).any(axis=1), True))


def _joined(episodes: Sequence[Rows]) -> Rows:
    names = [name for name in episodes[0] if name not in ("timeouts", "episodes")]
    ends = np.cumsum([len(one["actions"]) for one in episodes]) - 1
    rows = {name: np.concatenate([one[name] for one in episodes]) for name in names}
    return _flagged(rows, np.isin(np.arange(len(rows["actions"])), ends))


def _flagged(rows: Rows, last: np.ndarray) -> Rows:
    """Return rows whose episodes end at the last ones: by the task where a flag says so, else cut off."""
    ended = rows.pop("terminals", np.zeros(len(last))).astype(bool).reshape(-1)
    return {**rows, "terminals": ended, "timeouts": last & ~ended}


def _of_stable_baselines(data: Mapping[str, Any]) -> Rows:
    """Return the rows of a `ReplayBuffer`, [size, environments, ..], in the order in which they were recorded."""
    size = data["buffer_size"] if data["full"] else data["pos"]
    order = (np.arange(size) + (data["pos"] if data["full"] else 0)) % data["buffer_size"]

    def rows(name: str) -> np.ndarray:
        values: np.ndarray = np.swapaxes(data[name][order], 0, 1)
        return values.reshape(-1, *values.shape[2:])

    timeouts = rows("timeouts").astype(bool)
    names = ("observations", "actions", "rewards", "next_observations")
    arrays = {name: rows(name) for name in names}
    arrays["terminals"] = rows("dones").astype(bool) & ~timeouts
    return _flagged(arrays, np.tile(np.arange(size) == size - 1, data["n_envs"]) | timeouts)


def _keys(data: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the keys of a dict by our names of what they are."""
    by_name = {str(key).lower(): key for key in reversed(list(data))}
    spelled = {role: [one for one in names.split() if one in by_name] for role, names in NAMES.items()}
    return {role: by_name[names[0]] for role, names in spelled.items() if names}


def _order(shapes: Sequence[tuple[int, ...] | None]) -> dict[str, int]:
    """Return which value of a transition is what, by the shapes of all; nothing if that is not clear."""
    for roles in ORDERS:
        at = {role: place for place, role in enumerate(roles)}
        if len(roles) > len(shapes) or None in shapes[: at["actions"] + 1]:
            continue
        if not all(shapes[at[role]] in ((), (1,)) for role in NUMBERS if role in at):
            continue
        if "next_observations" in at and shapes[at["next_observations"]] != shapes[0]:
            continue
        return at
    return {}


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, a number, or lists of these; None for anything else."""
    with contextlib.suppress(ValueError, TypeError):
        array = np.asarray(value)
        return array.shape if array.dtype.kind in "biuf" else None
    return None


def _first(value: Iterable[Any]) -> Any:
    """Return the first item of a list, or row of an array."""
    return value[0] if isinstance(value, list | tuple | np.ndarray) and len(value) else None
