"""Hands the data of a dataset or a view over to other libraries, in memory.

Where rows are transitions, row t holds the observation before the step and the one after it, so the
final observation of an episode is there too. Files of other tools are written by `orlog export` and `export`.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Columns, Episode
from orlog.errors import MissingExtraError, SchemaError

if TYPE_CHECKING:
    from orlog.datasets.reading.dataset import Dataset


def to_dict(dataset: Dataset, episodes: Iterable[int] | None = None) -> dict[str, Any]:
    """Return all transitions as arrays; see `Dataset.to_dict`."""
    chosen = list(dataset.iterate_episodes(episodes))
    if not chosen:
        raise SchemaError(f"{dataset.name}: there is no episode to hand over.")
    lengths = [len(episode.rewards) for episode in chosen]
    columns: dict[str, Any] = {
        "observations": _joined([_rows(episode.observations, slice(None, -1)) for episode in chosen]),
        "next_observations": _joined([_rows(episode.observations, slice(1, None)) for episode in chosen]),
    }
    for name in ("actions", "rewards", "terminations", "truncations", "infos"):
        columns[name] = _joined([getattr(episode, name) for episode in chosen])
    columns["episodes"] = np.repeat([episode.index for episode in chosen], lengths)
    columns["steps"] = np.concatenate([np.arange(length) for length in lengths])
    return columns


def to_pandas(dataset: Dataset, episodes: Iterable[int] | None = None) -> Any:
    """Return a row for each step; see `Dataset.to_pandas`."""
    pandas = _library("pandas", dataset)
    columns = to_dict(dataset, episodes)
    index = pandas.MultiIndex.from_arrays([columns.pop("episodes"), columns.pop("steps")], names=["episode", "step"])
    flat: dict[str, Any] = {}
    for path, values in _by_path(columns).items():
        if isinstance(values, np.ndarray) and values.ndim == 2:
            flat |= {f"{path}/{number}": values[:, number] for number in range(values.shape[1])}
        else:  # rows of more axes stay arrays
            is_rows = isinstance(values, np.ndarray) and values.ndim > 2
            flat[path] = list(values) if is_rows else values
    return pandas.DataFrame(flat, index=index)


def to_hf(dataset: Dataset) -> Any:
    """Return a dataset of Hugging Face, a row for each step; see `Dataset.to_hf`."""
    library = _library("datasets", dataset, "Dataset")
    return library.Dataset.from_dict(to_rows(dataset)).with_format("numpy")


def to_rows(dataset: Dataset, episodes: Iterable[int] | None = None) -> dict[str, Any]:
    """Return columns with a row for each step, as `to_dict` has them, parts of a space by their path."""
    return _by_path(to_dict(dataset, episodes))


def to_torchrl(dataset: Dataset) -> Any:
    """Return a TensorDict as TorchRL lays it out; see `Dataset.to_torchrl`."""
    tensordict, torch = _library("tensordict", dataset), _library("torch", dataset)
    columns = to_dict(dataset)
    count = len(columns["rewards"])

    def part(values: Columns) -> Any:
        if isinstance(values, tuple):
            values = {str(number): each for number, each in enumerate(values)}
        if isinstance(values, dict):
            parts = {key: part(each) for key, each in values.items()}
            return tensordict.TensorDict(parts, batch_size=[count])
        if isinstance(values, list):
            raise SchemaError(f"{dataset.name}: TorchRL's tensors hold no texts or values of any length.")
        return torch.from_numpy(np.ascontiguousarray(values))

    def ends(terminated: np.ndarray, truncated: np.ndarray) -> dict[str, Any]:
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        return {name: part(values)[:, None] for name, values in flags.items()}

    after = {
        "observation": part(columns["next_observations"]),
        "reward": part(columns["rewards"].astype(np.float32))[:, None],
        **ends(columns["terminations"], columns["truncations"]),
    }
    false = np.zeros(count, bool)
    return tensordict.TensorDict(
        {
            "observation": part(columns["observations"]),
            "action": part(columns["actions"]),
            **ends(false, false),
            "collector": {"traj_ids": part(columns["episodes"])},
            "next": after,
        },
        batch_size=[count],
    )


def to_d3rlpy(dataset: Dataset) -> Any:
    """Return a replay buffer of d3rlpy; see `Dataset.to_d3rlpy`."""
    library = _library("d3rlpy", dataset)
    spaces = gymnasium.spaces
    observations, actions = dataset.observation_space, dataset.action_space
    discrete = isinstance(actions, spaces.Discrete)
    if not isinstance(observations, spaces.Box | spaces.Tuple):
        raise SchemaError(f"{dataset.name}: d3rlpy takes observations that are a Box or a Tuple, found {observations}.")
    if not discrete and not isinstance(actions, spaces.Box):
        raise SchemaError(f"{dataset.name}: d3rlpy takes actions that are a Box or Discrete, found {actions}.")
    return library.dataset.ReplayBuffer(
        library.dataset.InfiniteBuffer(),
        episodes=[_d3rlpy_episode(library, episode, discrete) for episode in dataset],
        action_space=library.ActionSpace.DISCRETE if discrete else library.ActionSpace.CONTINUOUS,
        action_size=int(actions.n) if isinstance(actions, spaces.Discrete) else None,
    )


def _d3rlpy_episode(library: Any, episode: Episode, discrete: bool) -> Any:
    """Return an episode whose transitions are those of ours.

    d3rlpy takes the observation after a step from the next row, and has no transition of the last row
    unless the task ended there. So one that did not end gets one more row, with the final observation.
    """
    terminated = bool(episode.terminations[-1])
    actions, rewards = np.asarray(episode.actions), episode.rewards.astype(np.float32)
    actions = actions[:, None] if discrete else actions
    if not terminated:
        actions, rewards = (np.concatenate((actions, actions[-1:])), np.append(rewards, np.float32(0)))
    observations = _rows(episode.observations, slice(0, len(rewards)))
    return library.dataset.Episode(observations, actions, rewards[:, None], terminated)


def to_minari(dataset: Dataset, dataset_id: str) -> Any:
    """Make a dataset of Minari under its own folder; see `Dataset.to_minari`."""
    library = _library("minari", dataset)
    collector = importlib.import_module("minari.data_collector")
    buffers = [
        collector.EpisodeBuffer(
            id=number,
            seed=episode.seed,
            observations=episode.observations,
            actions=episode.actions,
            rewards=list(episode.rewards),
            terminations=list(episode.terminations),
            truncations=list(episode.truncations),
            infos=dict(episode.infos),
        )
        for number, episode in enumerate(dataset.iterate_episodes())
    ]
    return library.create_dataset_from_buffers(
        dataset_id,
        buffers,
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        description=dataset.manifest.description,
    )


def _library(name: str, dataset: Dataset, needed: str = "") -> Any:
    """Return another library."""
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{dataset.name}: cannot be handed over, since {error.name or name} is not installed", install=name
        ) from error
    if needed and not hasattr(library, needed):
        raise MissingExtraError(f"{dataset.name}: the package {name} that Python finds is another one", install=name)
    return library


def _rows(values: Columns, rows: slice) -> Columns:
    """Return some rows of the values of a space."""
    if isinstance(values, dict):
        return {key: _rows(part, rows) for key, part in values.items()}
    return tuple(_rows(part, rows) for part in values) if isinstance(values, tuple) else values[rows]


def _joined(parts: list[Columns]) -> Columns:
    """Return the values of several episodes as one."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(map(_joined, map(list, zip(*parts, strict=True))))
    return [*itertools.chain(*parts)] if isinstance(first, list) else np.concatenate(parts)


def _by_path(columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns with the parts of a Dict or Tuple side by side, by their paths."""
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, dict | tuple):
            parts = values.items() if isinstance(values, dict) else enumerate(values)
            flat |= _by_path({f"{name}/{key}": part for key, part in parts})
        else:
            flat[name] = values
    return flat
