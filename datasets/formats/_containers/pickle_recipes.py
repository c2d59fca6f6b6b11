"""Says with which lines a user who trusts a pickle turns what it holds into an npz file."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orlog.datasets.formats._containers.pickles import (
    UNREADABLE,
    Array,
    Outline,
    Thing,
    in_words,
    outline_of,
    packing,
    plain,
)

NAMES = {
    "observations": "observations observation obs states state s",
    "actions": "actions action acts act a",
    "rewards": "rewards reward rews rew r",
    "next_observations": "next_observations next_observation next_obs new_obs obs_next next_states next_state s_ ns",
    "terminals": "terminals terminal terminations terminated terminateds dones done d",
    "timeouts": "timeouts timeout truncations truncated truncateds",
    "episodes": "episode episodes episode_id episode_index traj trajectory traj_id trajectory_id",
}
"""Usual names of what a pickle holds, by our names in npz files."""
BY_HAND = (
    "Where you trust it, read it with the library that wrote it, and save arrays with a row for each step: "
    "np.savez('data.npz', observations=.., actions=.., rewards=.., terminals=.., timeouts=..). "
    "Then: orlog import data.npz NAME"
)
STABLE_BASELINES = (
    "size = data.buffer_size if data.full else data.pos",
    "order = (np.arange(size) + (data.pos if data.full else 0)) % data.buffer_size",
    "rows = lambda values: np.swapaxes(values[order], 0, 1).reshape(-1, *values.shape[2:])",
    "ended = rows(data.dones).astype(bool) & ~rows(data.timeouts).astype(bool)",
    "last = np.tile(np.arange(size) == size - 1, data.n_envs) | rows(data.timeouts).astype(bool)",
    "np.savez('data.npz', observations=rows(data.observations), actions=rows(data.actions),",
    "         rewards=rows(data.rewards), next_observations=rows(data.next_observations),",
    "         terminals=ended, timeouts=last & ~ended)",
)
"""For a `ReplayBuffer` of Stable-Baselines3, [size, environments, ..]."""
KNOWN_MODULES = {
    *[
        "numpy",
        "torch",
        "collections",
        "builtins",
        "__builtin__",
        "copyreg",
        "copy_reg",
        "_codecs",
        "__main__",
        "?",
    ],
    *["pandas", "joblib", "functools", "datetime"],
}
ORDERS = (
    ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"),
    ("observations", "actions", "rewards", "next_observations", "terminals"),
    ("observations", "next_observations", "actions", "rewards", "terminals"),
    ("observations", "actions", "next_observations", "rewards", "terminals"),
    ("observations", "actions", "rewards", "terminals"),
    ("observations", "actions", "rewards"),
)
"""The orders that transitions have, the commonest first."""


def about_pickle(dataset: str, file: Path) -> str:
    """Return that a file is a pickle, what it holds, and lines that write that as npz, or as Parquet."""
    if not file.stat().st_size:
        return f"{dataset}: {file.name} is empty; get this file again."
    said = f"{dataset}: {file.name} is a pickle, and reading a pickle runs the program in it, so it is not read."
    outline = None
    try:
        outline = outline_of(file)
        if outline.is_cut:
            return (
                f"{dataset}: {file.name} is a pickle that is cut off; get the whole file. {BY_HAND}"
            )
        far = "" if outline.is_whole else ", as far as was looked,"
        said += f" It holds{far} {in_words(outline.value)}."
        lines = [*_load(file, outline), *_program(outline.value)]
    except UNREADABLE:
        if outline is None:
            said = f"{dataset}: {file.name} is called a pickle, or begins as one, and is damaged or something else. A pickle "
            said += "is not read, since reading it runs the program in it."
        return f"{said} {BY_HAND}"
    program = "".join(f"    {line}\n" for line in lines)
    foreign = sorted({one.partition(".")[0] for one in outline.calls} - KNOWN_MODULES)
    where = f", where {' and '.join(foreign)} can be imported" if foreign else ""
    made = "data.parquet" if "data.parquet" in program else "data.npz"
    return f"{said} Where you trust it, convert it yourself{where}:\n{program}Then: orlog import {made} NAME"


def _load(file: Path, outline: Outline) -> list[str]:
    """Return the lines that read a file into `data`."""
    name, how = repr(file.name), packing(file)
    if how == "zip" or file.name.endswith((".pt", ".pth")):
        foreign = {
            one for one in outline.calls if not one.startswith(("torch.", "collections.", "?"))
        }
        safe = "False" if foreign else "True"
        return [
            "import numpy as np, torch",
            f"data = torch.load({name}, map_location='cpu', weights_only={safe})",
        ]
    if file.name.lower().endswith(".joblib") or any("joblib" in one for one in outline.calls):
        return ["import joblib, numpy as np", f"data = joblib.load({name})"]
    encoding = ", encoding='latin1'" if outline.is_of_python_2 else ""
    imports = f"import {how}, pickle, numpy as np" if how else "import pickle, numpy as np"
    opening = f"{how}.open({name})" if how else f"open({name}, 'rb')"
    own = [one for one in outline.calls if one.startswith("__main__.")]
    classes = []
    if own:
        imports = imports.replace("import ", "import collections, ")
        classes = [
            f"class {one[9:]}(tuple): __new__ = lambda cls, *values: tuple.__new__(cls, values)"
            for one in own
        ]
    return [imports, *classes, f"with {opening} as file: data = pickle.load(file{encoding})"]


def _program(value: Any) -> list[str]:
    """Return lines that write `data` as npz.

    Raises LookupError if it is of no kind that is known here.
    """
    if isinstance(value, Thing) and value.name.startswith("pandas."):
        return ["data.to_parquet('data.parquet')"]
    if isinstance(value, Thing) and value.name == "stable_baselines3.common.buffers.ReplayBuffer":
        return [*STABLE_BASELINES]
    if isinstance(value, Thing) and isinstance(value.state, dict):
        return ["data = vars(data)", *_program(plain(value.state))]
    if isinstance(value, (dict, list, tuple)) and value:
        first = next(iter(value.values() if isinstance(value, dict) else value))
        if rows := _rows(value, "data"):
            if isinstance(value, dict) and not {"terminals", "timeouts"} & rows.keys():
                names = [key for key, inner in value.items() if _shape(inner)]
                return [
                    f"np.savez('data.npz', **{{name: np.asarray(data[name]) for name in {names}}})"
                ]
            return _of_rows(rows)
        if isinstance(value, dict) and (rows := _rows_of_each(value)):
            count = f"len(data[{_keys(value)['actions']!r}])"
            return _of_episodes(rows, f"for number in range({count})")
        if isinstance(first, Thing) and isinstance(first.state, dict):
            each = "data.values()" if isinstance(value, dict) else "data"
            return [f"data = [vars(one) for one in {each}]", *_program([plain(first.state)])]
        if rows := _rows(first, "one"):
            return _of_episodes(
                rows, f"for one in {'data.values()' if isinstance(value, dict) else 'data'}"
            )
        if isinstance(value, dict):
            for key, inner in value.items():
                with contextlib.suppress(LookupError):
                    return [f"data = data[{key!r}]", *_program(inner)]
    raise LookupError("unknown")


def _of_rows(rows: Mapping[str, str]) -> list[str]:
    """Return lines for one set of rows; where episodes end, their flags say, or next observations that do not follow."""
    lines = [f"columns = {_written(rows)}"]
    if "episodes" in rows and "timeouts" not in rows:
        lines += [
            "number = columns.pop('episodes')",
            "last = np.append(number[1:] != number[:-1], True)",
        ]
        return [*lines, *_END]
    if "timeouts" in rows or "terminals" not in rows:
        return [*lines, "np.savez('data.npz', **columns)"]
    if "next_observations" in rows:
        lines += [
            "jumps = columns['next_observations'][:-1] != columns['observations'][1:]",
            "last = np.append(jumps.reshape(len(jumps), -1).any(axis=1), True)",
        ]
    else:
        lines += ["last = np.arange(len(columns['actions'])) == len(columns['actions']) - 1"]
    return [*lines, *_END]


def _of_episodes(rows: Mapping[str, str], each: str) -> list[str]:
    """Return lines for a set of rows for each episode."""
    rows = {role: how for role, how in rows.items() if role not in ("timeouts", "episodes")}
    return [
        f"episodes = [{_written(rows)} {each}]",
        "columns = {name: np.concatenate([one[name] for one in episodes]) for name in episodes[0]}",
        "ends = np.cumsum([len(one['actions']) for one in episodes]) - 1",
        "last = np.isin(np.arange(len(columns['actions'])), ends)",
        *_END,
    ]


_END = (
    "ended = columns.pop('terminals', np.zeros(len(last))).astype(bool).reshape(-1)",
    "np.savez('data.npz', **columns, terminals=ended, timeouts=last & ~ended)",
)


def _written(rows: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{role!r}: {how}" for role, how in rows.items()) + "}"


def _rows(value: Any, data: str) -> dict[str, str]:
    """Return how arrays with a row for each step are made of a value, by our names; nothing if they are not.

    `data` is what the lines call the value.
    """
    if isinstance(value, dict):
        return _rows_of_dict(value, data)
    if not isinstance(value, (list, tuple)) or not value:
        return {}
    first = value[0]
    if isinstance(first, Thing) and isinstance(first.arguments, tuple):  # a named tuple
        first = plain(first.arguments)
    if isinstance(first, dict) and not _rows_of_dict(first, "one"):
        keys = _keys(first)
        keys = {
            role: key
            for role, key in keys.items()
            if role == "episodes" or _shape(first[key]) is not None
        }
        if {"observations", "actions"} <= keys.keys():
            return {
                role: f"np.asarray([step[{key!r}] for step in {data}])"
                for role, key in keys.items()
            }
    if isinstance(first, (list, tuple)):
        roles = _order([_shape(one) for one in first])
        return {role: f"np.asarray([step[{at}] for step in {data}])" for role, at in roles.items()}
    shapes = [_shape(one) for one in value]
    if all(shapes) and len({shape[0] for shape in shapes if shape}) == 1:
        roles = _order([shape and shape[1:] for shape in shapes])
        return {role: f"np.asarray({data}[{at}])" for role, at in roles.items()}
    return {}


def _rows_of_dict(value: Mapping[Any, Any], data: str) -> dict[str, str]:
    """Return what `_rows` does of a dict of arrays, or lists, of as many rows as there are actions."""
    keys = _keys(value)
    if not {"observations", "actions"} <= keys.keys() or _rows_of_each(value):
        return {}
    lengths = {role: _length(value[key]) for role, key in keys.items()}
    count = lengths["actions"]
    has_final = count is not None and lengths["observations"] == count + 1
    if count is None or lengths["observations"] not in (count, count + 1):
        return {}
    if lengths.get("rewards", count) != count:
        return {}
    rows = {
        role: f"np.asarray({data}[{key!r}])" for role, key in keys.items() if lengths[role] == count
    }
    if has_final:
        seen = f"np.asarray({data}[{keys['observations']!r}])"
        rows |= {"observations": f"{seen}[:-1]", "next_observations": f"{seen}[1:]"}
    if "terminals" in keys and lengths["terminals"] is None:  # one for the whole episode
        flags = f"[False, {data}[{keys['terminals']!r}]]"
        rows["terminals"] = f"np.repeat({flags}, [len({data}[{keys['actions']!r}]) - 1, 1])"
    taken = {one for names in NAMES.values() for one in names.split()}
    for key, inner in value.items():
        is_plain = (
            isinstance(inner, Array) and inner.dtype != "objects" and inner.shape[:1] == (count,)
        )
        if is_plain and isinstance(key, str) and key.lower() not in taken:
            rows[key] = f"np.asarray({data}[{key!r}])"
    return rows


def _rows_of_each(value: Mapping[Any, Any]) -> dict[str, str]:
    """Return how arrays of an episode are made of a dict whose values have an item for each episode."""
    keys = _keys(value)
    firsts = {role: _first(value[key]) for role, key in keys.items()}
    counts = {role: _length(one) for role, one in firsts.items()}
    told = counts.get("rewards", counts.get("terminals"))
    is_one = told is None or told == 1 or told != counts.get("actions")
    if is_one or not {"observations", "actions"} <= keys.keys():
        return {}
    rows = {
        role: f"np.asarray(data[{key!r}][number])"
        for role, key in keys.items()
        if counts[role] == told
    }
    if told is not None and counts["observations"] == told + 1:
        seen = f"np.asarray(data[{keys['observations']!r}][number])"
        rows |= {"observations": f"{seen}[:-1]", "next_observations": f"{seen}[1:]"}
    return rows if "observations" in rows else {}


def _keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the keys of a dict by our names of what they are."""
    by_name = {str(key).lower(): key for key in reversed(value)}
    spelled = {
        role: [one for one in names.split() if one in by_name] for role, names in NAMES.items()
    }
    return {role: by_name[names[0]] for role, names in spelled.items() if names}


def _order(shapes: Sequence[tuple[int, ...] | None]) -> dict[str, int]:
    """Return which value of a transition is what, by the shapes of all; nothing if that is not clear."""
    numbers = [shape is not None and shape in ((), (1,)) for shape in shapes]
    for roles in ORDERS:
        at = {role: place for place, role in enumerate(roles)}
        if len(roles) > len(shapes) or None in shapes[: at["actions"] + 1]:
            continue
        if not all(
            numbers[at[role]] for role in ("rewards", "terminals", "timeouts") if role in at
        ):
            continue
        after = shapes[at["next_observations"]] if "next_observations" in at else None
        if "next_observations" in at and after != shapes[at["observations"]]:
            continue
        return at
    return {}


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, a number, or a list of these; None for anything else."""
    if isinstance(value, Array):
        return value.shape if value.dtype != "objects" else None
    if isinstance(value, (list, tuple)) and value:
        inner = _shape(value[0])
        return None if inner is None else (len(value), *inner)
    return None


def _length(value: Any) -> int | None:
    shape = _shape(value)
    return shape[0] if shape else None


def _first(value: Any) -> Any:
    """Return the first item of a list, or row of an array."""
    if isinstance(value, Array):
        return Array(value.shape[1:], value.dtype) if value.shape else None
    return value[0] if isinstance(value, (list, tuple)) and value else None
