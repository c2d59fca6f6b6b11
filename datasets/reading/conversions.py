"""Hands the data of a dataset or a view over to other libraries, in memory.

Where rows are transitions, row t holds the observation before the step and the one after it, so the
final observation of an episode is there too. Files of other tools are written by `orlog export` and `export`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np

from orlog.datasets.columns.episode import Columns, Episode
from orlog.errors import MissingExtraError, SchemaError
from orlog.manifests.manifest import Manifest


class Source(Protocol):
    """What is handed over; `Dataset` provides it."""

    @property
    def name(self) -> str:
        """Name without version."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of a version, or of the version that a view is of."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of observations."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Gymnasium space of actions."""

    def iterate_episodes(self, episodes: Iterable[int] | None = None) -> Iterator[Episode]:
        """Yield episodes."""


def to_dict(dataset: Source, episodes: Iterable[int] | None = None) -> dict[str, Any]:
    """Return all transitions as arrays; see `Dataset.to_dict`."""
    chosen = list(dataset.iterate_episodes(episodes))
    if not chosen:
        raise SchemaError(f"{dataset.name}: there is no episode to hand over.")
    lengths = [len(one.rewards) for one in chosen]
    found: dict[str, Any] = {
        "observations": _joined([_rows(one.observations, slice(None, -1)) for one in chosen]),
        "next_observations": _joined([_rows(one.observations, slice(1, None)) for one in chosen]),
    }
    for name in ("actions", "rewards", "terminations", "truncations"):
        found[name] = _joined([getattr(one, name) for one in chosen])
    found["infos"] = {
        name: _joined([one.infos[name] for one in chosen]) for name in chosen[0].infos
    }
    found["episodes"] = np.repeat([one.index for one in chosen], lengths)
    found["steps"] = np.concatenate([np.arange(length) for length in lengths])
    return found


def to_pandas(dataset: Source, episodes: Iterable[int] | None = None) -> Any:
    """Return a row for each step; see `Dataset.to_pandas`."""
    pandas = _library("pandas", dataset)
    columns = to_dict(dataset, episodes)
    index = pandas.MultiIndex.from_arrays(
        [columns.pop("episodes"), columns.pop("steps")], names=["episode", "step"]
    )
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        _flatten(name, values, flat)
    return pandas.DataFrame(flat, index=index)


def to_hf(dataset: Source) -> Any:
    """Return a dataset of Hugging Face, a row for each step; see `Dataset.to_hf`."""
    library = _library("datasets", dataset, "Dataset")
    return library.Dataset.from_dict(to_rows(dataset)).with_format("numpy")


def to_rows(dataset: Source, episodes: Iterable[int] | None = None) -> dict[str, Any]:
    """Return columns with a row for each step, as `to_dict` has them, parts of a space by their path."""
    flat: dict[str, Any] = {}
    for name, values in to_dict(dataset, episodes).items():
        _name_parts(name, values, flat)
    return flat


def to_ray(dataset: Source) -> Any:
    """Return a Ray Dataset that reads in place; see `Dataset.to_ray`."""
    return importlib.import_module("orlog.datasets.to_ray").to_ray(dataset)


def to_torchrl(dataset: Source) -> Any:
    """Return a TensorDict as TorchRL lays it out; see `Dataset.to_torchrl`."""
    tensordict, torch = _library("tensordict", dataset), _library("torch", dataset)
    columns = to_dict(dataset)
    count = len(columns["rewards"])

    def part(values: Columns) -> Any:
        if isinstance(values, dict):
            return tensordict.TensorDict(
                {key: part(one) for key, one in values.items()}, batch_size=[count]
            )
        if isinstance(values, tuple):
            return part({str(number): one for number, one in enumerate(values)})
        if isinstance(values, list):
            raise SchemaError(
                f"{dataset.name}: TorchRL's tensors hold no texts or values of any length."
            )
        return torch.from_numpy(np.ascontiguousarray(values))

    def column(values: np.ndarray) -> Any:
        return part(values)[:, None]

    terminated, truncated = columns["terminations"], columns["truncations"]
    after = {
        "observation": part(columns["next_observations"]),
        "reward": column(columns["rewards"].astype(np.float32)),
        "terminated": column(terminated),
        "truncated": column(truncated),
        "done": column(terminated | truncated),
    }
    false = np.zeros(count, bool)
    return tensordict.TensorDict(
        {
            "observation": part(columns["observations"]),
            "action": part(columns["actions"]),
            "terminated": column(false),
            "truncated": column(false),
            "done": column(false),
            "collector": {"traj_ids": part(columns["episodes"])},
            "next": after,
        },
        batch_size=[count],
    )


def to_d3rlpy(dataset: Source) -> Any:
    """Return a replay buffer of d3rlpy; see `Dataset.to_d3rlpy`."""
    library = _library("d3rlpy", dataset)
    spaces = gymnasium.spaces
    if not isinstance(dataset.observation_space, spaces.Box | spaces.Tuple):
        raise SchemaError(
            f"{dataset.name}: d3rlpy takes observations that are a Box or a Tuple of them, found "
            f"{dataset.observation_space}."
        )
    discrete = isinstance(dataset.action_space, spaces.Discrete)
    if not discrete and not isinstance(dataset.action_space, spaces.Box):
        raise SchemaError(
            f"{dataset.name}: d3rlpy takes actions that are a Box or Discrete, found "
            f"{dataset.action_space}."
        )
    episodes = [
        _d3rlpy_episode(library, episode, discrete) for episode in dataset.iterate_episodes()
    ]
    size = (
        int(dataset.action_space.n) if isinstance(dataset.action_space, spaces.Discrete) else None
    )
    return library.dataset.ReplayBuffer(
        library.dataset.InfiniteBuffer(),
        episodes=episodes,
        action_space=library.ActionSpace.DISCRETE if discrete else library.ActionSpace.CONTINUOUS,
        action_size=size,
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
        actions, rewards = (
            np.concatenate((actions, actions[-1:])),
            np.append(rewards, np.float32(0)),
        )
    observations = _rows(episode.observations, slice(0, len(rewards)))
    return library.dataset.Episode(observations, actions, rewards[:, None], terminated)


def to_minari(dataset: Source, dataset_id: str) -> Any:
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


def export(dataset: Source, folder: str | Path, to: str, options: Mapping[str, Any]) -> Path:
    """Write the files of another tool; see `Dataset.export`."""
    # What writes them builds on datasets, so it is looked up when it is needed.
    exporting = importlib.import_module("orlog.datasets.exporting")
    return exporting.export_dataset(dataset, folder, to=to, **options)  # type: ignore[no-any-return]


def _library(name: str, dataset: Source, needed: str = "") -> Any:
    """Return another library.

    Raises MissingExtraError if it is not installed.
    """
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{dataset.name}: cannot be handed over, since {error.name or name} is not installed",
            install=name,
        ) from error
    if needed and not hasattr(library, needed):
        raise MissingExtraError(
            f"{dataset.name}: the package {name} that Python finds is another one", install=name
        )
    return library


def _rows(values: Columns, rows: slice) -> Columns:
    """Return some rows of the values of a space."""
    return _map(values, lambda one: one[rows])


def _map(values: Columns, change: Callable[[Any], Any]) -> Columns:
    if isinstance(values, dict):
        return {key: _map(one, change) for key, one in values.items()}
    if isinstance(values, tuple):
        return tuple(_map(one, change) for one in values)
    return change(values)


def _joined(parts: list[Columns]) -> Columns:
    """Return the values of several episodes as one."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined([part[number] for part in parts]) for number in range(len(first)))
    if isinstance(first, list):
        return [one for part in parts for one in part]
    return np.concatenate(parts)


def _name_parts(name: str, values: Columns, flat: dict[str, Any]) -> None:
    """Put the parts of a Dict or Tuple side by side, by their paths."""
    if isinstance(values, dict | tuple):
        parts = values.items() if isinstance(values, dict) else enumerate(values)
        for key, one in parts:
            _name_parts(f"{name}/{key}", one, flat)
    else:
        flat[name] = values


def _flatten(name: str, values: Columns, flat: dict[str, Any]) -> None:
    """Put each number of a vector into a column; rows of more axes stay arrays."""
    parts: dict[str, Any] = {}
    _name_parts(name, values, parts)
    for path, one in parts.items():
        if isinstance(one, np.ndarray) and one.ndim == 2:
            flat |= {f"{path}/{number}": one[:, number] for number in range(one.shape[1])}
        else:
            flat[path] = list(one) if isinstance(one, np.ndarray) and one.ndim > 2 else one
