"""D4RL's arrays and functions (Fu et al. 2020), for results comparable with published ones.

    d4rl_arrays           observations [N, ..], actions, rewards, terminals, timeouts, infos/..
    qlearning_dataset     the same, bit for bit, as D4RL's function of that name
    sequence_dataset      the same, bit for bit, as D4RL's function of that name
    transitions_dataset   the transitions that really happened

D4RL's arrays do not hold the observation after the last step of an episode. `qlearning_dataset`
therefore leaves out the last step of each episode that timed out, even where a file holds that
observation. With `terminate_on_end` it keeps the step, takes the first observation of the next
episode as the next observation, and does not mark the end of the episode. It always leaves out the
last row of the file, and it leaves out terminations at steps that also time out. Rewards become
float32.

A D4RL file without `next_observations` becomes a dataset without the last step of each episode that
timed out; the observation of that step is the episode's final one. From such a dataset,
`qlearning_dataset` returns what D4RL's returns from the file, with two exceptions: episodes of one
step that timed out are not in the dataset, and if a file has no `timeouts`, D4RL counts some
episodes a step short, which is not done here. With `terminate_on_end`, and in `sequence_dataset`,
D4RL has those last steps, which the dataset does not have: they are left out with a warning. A
dataset also does not record whether the end of the file cut off its last episode: D4RL's
`sequence_dataset` leaves out such an episode, here it is yielded.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.opening import Given, as_dataset
from orlog.errors import SchemaError, wrong_type
from orlog.loaders.arrays import MISSING_FINALS
from orlog.loaders.streams import as_integer
from orlog.manifests.columns import is_part
from orlog.manifests.spaces import leaf_spaces

_NEEDED = ("observations", "actions", "rewards", "terminals")


def d4rl_arrays(dataset: Given) -> dict[str, np.ndarray]:
    """Return a dataset as D4RL's flat arrays, one row a step; final observations are left out.

    Values keep their dtypes; parts of Dict spaces are flattened side by side, keys sorted, as
    float32. `timeouts` is true at the last step of an episode that did not terminate, even if the
    data just stop there, since D4RL's arrays mark episodes by their flags only.

    Raises:
        SchemaError: a space whose values are no numbers of a fixed shape.
        IntegrityError: a file is damaged.
    """
    dataset = as_dataset(dataset)
    last = np.zeros(dataset.total_steps, np.bool_)
    last[dataset.episode_starts + dataset.episode_lengths - 1] = True
    terminals = dataset.column("terminations").astype(np.bool_)
    arrays = {
        "observations": _flat(dataset, "observations")[_step_rows(dataset)],
        "actions": _flat(dataset, "actions").copy(),
        "rewards": dataset.column("rewards").copy(),
        "terminals": terminals,
        "timeouts": dataset.column("truncations").astype(np.bool_) | (last & ~terminals),
    }
    infos = {name for name in dataset.columns if name.startswith("infos/") and not is_part(name)}
    return arrays | {name: dataset.column(name).copy() for name in sorted(infos)}


def qlearning_dataset(
    data: Given | Mapping[str, np.ndarray], terminate_on_end: bool = False, *, max_episode_steps: int | None = None
) -> dict[str, np.ndarray]:
    """Return the same as `d4rl.qlearning_dataset` for the same arrays, bit for bit.

    For a dataset that was read from a D4RL file without `next_observations`, this is what D4RL's
    returns for the file. With `terminate_on_end` D4RL keeps steps that such a dataset does not
    have: they are missing, and a warning says how many.

    The result has observations, actions, next_observations and rewards as float32, and terminals as
    bool. The top of this file says what is wrong with them; `transitions_dataset` is right.

    Args:
        data: A dataset, its name or path; or D4RL's arrays (`d4rl_arrays`).
        terminate_on_end: Keep last steps of episodes that timed out. Despite its name in D4RL it
            does not set `terminals` there.
        max_episode_steps: The environment's limit, for arrays without `timeouts`.

    Raises:
        SchemaError: an array is missing, or has another number of rows.
        ValueError: arrays without `timeouts`, and no limit or one below 1.
        TypeError: neither a dataset nor arrays, or a limit that is no integer.
    """
    arrays, is_known = _checked(data)
    rows = max(len(arrays["rewards"]) - 1, 0)
    terminals = arrays["terminals"][:rows].astype(np.bool_)
    ends = _ends(arrays, max_episode_steps, first_after_timeout=1 if terminate_on_end else 0)
    kept = np.arange(rows) if terminate_on_end else np.flatnonzero(~ends[:rows])
    if not is_known[kept].all():
        _warn(int(np.count_nonzero(~is_known[kept])))
        kept = kept[is_known[kept]]
    if not len(kept):  # NumPy makes such an array of D4RL's empty lists
        names = ("observations", "actions", "next_observations", "rewards", "terminals")
        return {name: np.array([]) for name in names}
    return {
        "observations": arrays["observations"][kept].astype(np.float32),
        "actions": arrays["actions"][kept].astype(np.float32),
        "next_observations": arrays["observations"][kept + 1].astype(np.float32),
        "rewards": arrays["rewards"][kept].astype(np.float32),
        "terminals": terminals[kept],
    }


def sequence_dataset(
    data: Given | Mapping[str, np.ndarray], *, max_episode_steps: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yield what `d4rl.sequence_dataset` yields for the same arrays, bit for bit.

    Each item is one episode of all the arrays. Steps after the last flag are left out. A dataset
    that was read from a D4RL file without `next_observations` lacks the last step of each episode
    that timed out; a warning says how many.

    Args:
        data: A dataset, its name or path; or D4RL's arrays (`d4rl_arrays`).
        max_episode_steps: The environment's limit, for arrays without `timeouts`.

    Raises:
        SchemaError: an array is missing, or has another number of rows.
        ValueError: arrays without `timeouts`, and no limit or one below 1.
        TypeError: neither a dataset nor arrays, or a limit that is no integer.
    """
    arrays, is_known = _checked(data)
    if not is_known.all():
        _warn(int(np.count_nonzero(~is_known)))
    ends = _ends(arrays, max_episode_steps, first_after_timeout=1)
    first = 0
    for last in np.flatnonzero(ends | arrays["terminals"].astype(np.bool_)).tolist():
        here = slice(first, last + 1 if is_known[last] else last)
        yield {name: values[here].copy() for name, values in arrays.items()}
        first = last + 1


def transitions_dataset(dataset: Given) -> dict[str, np.ndarray]:
    """Return every transition as plain arrays, with the real next observations, one row a step.

    This holds observations in memory twice; `orlog.transitions` gives the same without that.

    Returns:
        `observations`, `actions`, `rewards`, `next_observations` (the real one, also after the last
        step of an episode), `terminations` and `truncations` (bool), in the dtypes of the dataset.

    Raises:
        SchemaError: a space whose values are no numbers of a fixed shape.
        IntegrityError: a file is damaged.
    """
    dataset = as_dataset(dataset)
    observations, rows = _flat(dataset, "observations"), _step_rows(dataset)
    return {
        "observations": observations[rows],
        "actions": _flat(dataset, "actions").copy(),
        "rewards": dataset.column("rewards").copy(),
        "next_observations": observations[rows + 1],
        "terminations": dataset.column("terminations").astype(np.bool_),
        "truncations": dataset.column("truncations").astype(np.bool_),
    }


def _ends(arrays: Mapping[str, np.ndarray], limit: int | None, *, first_after_timeout: int) -> np.ndarray:
    """Return the steps at which D4RL takes an episode to have timed out."""
    if "timeouts" in arrays:
        return arrays["timeouts"].astype(np.bool_)
    if limit is None:
        raise ValueError("the arrays have no timeouts; give max_episode_steps, the environment's limit.")
    limit = as_integer("max_episode_steps", limit, 1)
    terminals = arrays["terminals"].astype(np.bool_).tolist()
    ends = np.zeros(len(terminals), np.bool_)
    counted = 0
    for row, terminal in enumerate(terminals):
        ends[row] = counted == limit - 1
        # D4RL counts from 1 after an end, and from 0 only after a timeout that it leaves out: an
        # episode that follows the former is taken to time out a step early.
        start = first_after_timeout if ends[row] else 1
        counted = start if ends[row] or terminal else counted + 1
    return ends


def _checked(data: Given | Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return D4RL's arrays, and which of their rows are known: all but those a reader left out."""
    if isinstance(data, str | Path | Dataset):
        return _arrays_of_file(as_dataset(data))
    if not isinstance(data, Mapping):
        raise wrong_type("data", "a dataset, its name or path, or D4RL's arrays by name", data)
    arrays = {name: np.asarray(values) for name, values in data.items()}
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise SchemaError(f"D4RL's arrays have {', '.join(_NEEDED)}; found no {missing[0]}.")
    rows = arrays["rewards"].shape[0] if arrays["rewards"].ndim else 0
    for name, values in arrays.items():
        if not values.ndim or len(values) != rows:
            raise SchemaError(
                f"{name} has shape {values.shape}, but rewards have {rows} rows; leave out arrays "
                "that do not have one row for each step (metadata)."
            )
    return arrays, np.ones(rows, np.bool_)


def _arrays_of_file(dataset: Dataset) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the arrays of the file that a dataset was read from, and which rows it still has.

    Of the last step of an episode that timed out, the reader kept the observation alone:

        file     o0 a0 r0   o1 a1 r1   o2 a2 r2     timeouts 0 0 1
        dataset  o0 a0 r0   o1 a1 r1   o2           truncations 0 1
    """
    arrays = d4rl_arrays(dataset)
    if MISSING_FINALS not in dataset.columns:
        return arrays, np.ones(dataset.total_steps, np.bool_)
    lengths = dataset.episode_lengths
    lasts = dataset.episode_starts + lengths - 1
    lost = ~arrays["terminals"][lasts]  # by episode
    ends = np.cumsum(lengths + lost)
    is_known = np.ones(dataset.total_steps + np.count_nonzero(lost), np.bool_)
    is_known[ends[lost] - 1] = False
    # Which observations are rows of the file; the zeros after a terminal step are not.
    finals = np.cumsum(lengths + 1) - 1
    observations = np.delete(_flat(dataset, "observations"), finals[~lost], axis=0)
    columns = {}
    for name, values in arrays.items():
        columns[name] = np.zeros((len(is_known), *values.shape[1:]), values.dtype)
        columns[name][is_known] = values
    truncations = dataset.column("truncations").astype(np.bool_)
    columns["timeouts"][is_known] = truncations & arrays["terminals"]
    columns["timeouts"][~is_known] = True
    return {**columns, "observations": observations}, is_known


def _warn(count: int) -> None:
    warnings.warn(
        f"the last steps of {count:,} episodes that timed out are left out: the file had no "
        "next_observations, so the dataset does not hold these steps. D4RL's own result has them; "
        "to get the same, pass the arrays of the original file.",
        stacklevel=3,
    )


def _step_rows(dataset: Dataset) -> np.ndarray:
    """Return the row of each step's observation among those of all episodes."""
    lengths = dataset.episode_lengths
    return np.arange(dataset.total_steps) + np.repeat(np.arange(len(lengths)), lengths)


def _flat(dataset: Dataset, path: str) -> np.ndarray:
    """Return the values of a space, the parts of a nested one flattened side by side."""
    space = dataset.observation_space if path == "observations" else dataset.action_space
    parts = [name for name, _ in leaf_spaces(space, path)]
    missing = [name for name in parts if name not in dataset.columns]
    if missing:
        raise SchemaError(
            f"{dataset.name}: column {missing[0]} holds no numbers of a fixed shape; take a view "
            "without it (select_columns)."
        )
    columns = [dataset.column(name) for name in parts]
    if parts == [path]:
        return columns[0]
    flat = [values.reshape(len(values), math.prod(values.shape[1:])) for values in columns]
    return np.concatenate([values.astype(np.float32) for values in flat], axis=1)
