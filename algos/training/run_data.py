"""The data of a run: all in memory, or streamed block by block where that is asked for.

Both give what a run takes from its data (`from_data.py`) and the batches that its algorithm declares. Streamed data
come in epochs (`loaders/streaming.py`), so their batches are others than those of the same data in memory; a
run's record says which of the two it is.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orlog.algos.algorithms import ALGORITHMS, algorithm_forms, algorithm_name
from orlog.algos.training import agents
from orlog.algos.training.devices import batches_on, moved, put_arrays
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.views import best_positions
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.places import load_arrays
from orlog.loaders.statistics import finite_returns, stream_statistics
from orlog.loaders.streaming import STREAMED, stream_loader
from orlog.loaders.sums import info_sums
from orlog.loaders.teams import is_team
from orlog.loaders.transforms import scale_rewards
from orlog.manifests.names import size_text

BEST = "orlog.loaders.best_episodes:best_transitions"
_PLAIN = "orlog.loaders.transitions:transitions"

Batches = Callable[[int], Iterable[Any]]
"""Gives the batches from one on."""


class RunData:
    """What is known of each episode of some data, in the order of the data, and batches of their steps.

    Attributes:
        name: Name of the dataset, for messages.
        lengths: Number of steps of each episode.
    """

    name: str
    lengths: np.ndarray

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each episode, as they are trained with."""
        raise NotImplementedError

    @property
    def arrays(self) -> Arrays:
        """All steps in memory."""
        raise NotImplementedError

    @property
    def has_rewards(self) -> bool:
        """Whether any reward is not 0."""
        raise NotImplementedError

    def sum_of(self, info: str) -> np.ndarray:
        """Return the sum of an info over the steps of each episode."""
        raise NotImplementedError

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each number of observations, as an algorithm sees them."""
        raise NotImplementedError

    def change_rewards(self, scale: float, shift: float) -> None:
        """Train with `scale * reward + shift`; which steps are drawn stays as it is."""
        raise NotImplementedError

    def batches(self, kind: type[Any], config: Any, seed: int, device: str) -> Batches:
        """Return what gives the batches that an algorithm declares."""
        raise NotImplementedError


class LoadedData(RunData):
    """Data that are all in memory."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self.name, self.lengths = arrays.name, arrays.lengths

    @property
    def arrays(self) -> Arrays:
        """All steps in memory, with the rewards of training."""
        return self._arrays

    @functools.cached_property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each episode, as they are trained with."""
        return finite_returns(self._arrays)

    @property
    def has_rewards(self) -> bool:
        """Whether any reward is not 0."""
        return bool(self._arrays.rows[:, self._arrays.columns["rewards"]].any())

    def sum_of(self, info: str) -> np.ndarray:
        """Return the sum of an info over the steps of each episode."""
        return info_sums(self._arrays, info)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each number of observations, as an algorithm sees them."""
        if self._arrays.team is None:
            return self._arrays.observation_statistics()
        return agents.statistics(self._arrays)

    def change_rewards(self, scale: float, shift: float) -> None:
        """Write `scale * reward + shift` into the arrays."""
        self._arrays = with_rewards(self._arrays, scale, shift)
        self.__dict__.pop("returns", None)

    def batches(self, kind: type[Any], config: Any, seed: int, device: str) -> Batches:
        """Return what gives the batches that an algorithm declares; where the device has room, from there."""
        arrays = put_arrays(self._arrays, device)
        return lambda first: batches_on(loaded(kind, config, arrays, seed=seed, start=first), arrays, device)


class StreamedData(RunData):
    """Data that are read block by block, epoch after epoch."""

    def __init__(self, kind: type[Any], config: Any, dataset: Dataset, note: Callable[[str], None]) -> None:
        """Plan to read; raises SchemaError as `check_streams`."""
        check_streams(kind, config, dataset)
        self._dataset, self._note = dataset, note
        self._scale, self._shift = 1.0, 0.0
        self.name, self.lengths = dataset.name, dataset.episode_lengths

    @property
    def arrays(self) -> Arrays:
        """Not there: SchemaError."""
        raise SchemaError(f"{self.name}: this needs all steps in memory; {_INSTEAD}.")

    @functools.cached_property
    def _statistics(self) -> Any:
        size = size_text(self._dataset.manifest.size_bytes)
        return stream_statistics(
            self._dataset,
            lambda: self._note(f"{self.name}: its statistics are computed once, which reads up to {size}."),
        )

    @functools.cached_property
    def _raw_returns(self) -> np.ndarray:
        returns = np.asarray(self._dataset.column("episodes/returns"), np.float64)
        wrong = ~np.isfinite(returns)
        if wrong.any():
            raise SchemaError(
                f"{self.name}: the return of episode {int(wrong.argmax())} is not finite; leave such episodes out "
                "(ds.filter_episodes)."
            )
        return returns

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each episode, as they are trained with."""
        found: np.ndarray = self._raw_returns * self._scale + self._shift * self.lengths
        return found

    @property
    def has_rewards(self) -> bool:
        """Whether any reward is not 0."""
        rewards = self._statistics.rewards
        return bool(rewards.low[0] or rewards.high[0])

    def sum_of(self, info: str) -> np.ndarray:
        """Not there: SchemaError."""
        raise SchemaError(f"{self.name}: the sum of {info} by episode needs all steps in memory; {_INSTEAD}.")

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each number of observations."""
        found = self._statistics.observations
        mean, std = (torch.from_numpy(one.astype(np.float32)) for one in (found.mean, found.std))
        return mean, std

    def change_rewards(self, scale: float, shift: float) -> None:
        """Change the rewards of each group of blocks when it is read."""
        self._scale, self._shift = scale, shift

    def batches(self, kind: type[Any], config: Any, seed: int, device: str) -> Batches:
        """Return what gives the batches that an algorithm declares."""
        loader, arguments = kind.loader(config)
        dataset = self._dataset
        if loader == BEST:
            arguments = dict(arguments)
            best = best_positions(self.returns, arguments.pop("percent"))
            dataset, loader = dataset[best], _PLAIN

        def begin(first: int) -> Iterable[Any]:
            stream = stream_loader(
                dataset,
                loader,
                arguments,
                seed=seed,
                start=first,
                change=lambda arrays: with_rewards(arrays, self._scale, self._shift),
            )
            return stream if torch.device(device).type == "cpu" else moved(stream, device)

        return begin


_INSTEAD = "give stream=False, which reads all of them into memory"


def check_streams(kind: type[Any], config: Any, dataset: Dataset) -> None:
    """Refuse to stream where an algorithm needs all of the data in memory, or the data have no epochs.

    Raises SchemaError that says why.
    """
    why = _needs_all(kind, config)
    if is_team(dataset):
        why = "the steps of several agents are put together in memory"
    elif dataset.mixture is not None:
        why = "a weighted mixture has no epochs"
    if why:
        forms = {name: algorithm_forms(name)[0] for name in ALGORITHMS}
        able = [name for name, form in forms.items() if not _needs_all(form, form.CONFIG())]
        raise SchemaError(f"{dataset.name}: cannot be streamed: {why}; {_INSTEAD}, or choose one of {', '.join(able)}.")


def _needs_all(kind: type[Any], config: Any) -> str:
    """Return why an algorithm needs all of the data in memory; nothing if it does not."""
    loader, arguments = kind.loader(config)
    name = algorithm_name(kind)
    if getattr(kind, "ONLINE", False):
        return f"{name} mixes the data with steps that it takes in the environment"
    if loader not in (*STREAMED, BEST):
        return f"{name} draws from all steps at once (by {loader.rpartition(':')[2]})"
    return "" if arguments.get("within") is None else f"{name} chooses episodes by an info"


def streams(kind: type[Any], config: Any, dataset: Dataset) -> bool:
    """Return whether an algorithm can be trained on a dataset that is streamed."""
    try:
        check_streams(kind, config, dataset)
    except SchemaError:
        return False
    return True


def infos_of(kind: type[Any], config: Any) -> tuple[str, ...]:
    """Return the infos that an algorithm learns from: those that its loader is asked for."""
    return tuple(kind.loader(config)[1].get("infos", ()))


def load_for(kind: type[Any], config: Any, dataset: Dataset, where: str) -> LoadedData:
    """Return the data that an algorithm's batches are from, with the infos that it asks for."""
    infos = infos_of(kind, config)
    if is_team(dataset):
        return LoadedData(agents.load_for(kind, config, dataset, where, infos))
    return LoadedData(load_arrays(dataset, where, infos=infos))


def with_rewards(packed: Arrays, scale: float, shift: float) -> Arrays:
    """Return the arrays with `scale * reward + shift` written into them; the stream stays as it is.

    Only rewards change, in place, so nothing is copied; draws depend on the digest, which is kept.
    """
    if (scale, shift) == (1.0, 0.0):
        return packed
    changed = scale_rewards(packed, scale=scale, shift=shift, in_place=True)
    return dataclasses.replace(changed, digest=packed.digest)


def loaded(kind: type[Any], config: Any, packed: Arrays, **arguments: Any) -> Iterable[Any]:
    """Return the batches that an algorithm declares."""
    path, declared = kind.loader(config)
    module, _, function = path.partition(":")
    loader = getattr(importlib.import_module(module), function)
    # A run is one process, also where others of its group train too.
    alone = {"rank": 0, "ranks": 1} if "ranks" in inspect.signature(loader).parameters else {}
    batches: Iterable[Any] = loader(packed, **{**declared, **alone, **arguments})
    return batches
