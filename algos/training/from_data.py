"""What a run takes from its data: infos, rewards as they are trained with, settings unless they are set, its tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from orlog.algos.algorithms import ALGORITHMS, takes_goals
from orlog.algos.presets import Rewards
from orlog.algos.training import agents
from orlog.base.files import replace_file
from orlog.datasets.columns.vocabulary import read_vocabulary, train_vocabulary
from orlog.datasets.reading.dataset import Dataset
from orlog.errors import ManifestError, SchemaError
from orlog.loaders.arrays.arrays import Arrays
from orlog.loaders.arrays.places import load_arrays
from orlog.loaders.arrays.statistics import finite_returns
from orlog.loaders.arrays.teams import is_team
from orlog.loaders.sums_to_go import info_sums
from orlog.loaders.token_sequences import spoken_tokens, text_counts
from orlog.loaders.transforms import scale_rewards

TOKENIZER_FILE = "tokenizer.json"
"""The tokenizer of a run, in its folder; its settings have the digest."""


class Totals:
    """What is known of each episode of some data, in the order of the data.

    Attributes:
        name: Name of the dataset, for messages.
        lengths: Number of its steps.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self.name = arrays.name
        self.lengths: np.ndarray = arrays.lengths

    @functools.cached_property
    def returns(self) -> np.ndarray:
        """Sum of its rewards, as they are trained with."""
        return finite_returns(self._arrays)

    def sum_of(self, info: str) -> np.ndarray:
        """Return the sum of an info over its steps."""
        return info_sums(self._arrays, info)


def _best_tenth(_config: Any, packed: Arrays) -> float:
    returns = finite_returns(packed)
    count = math.ceil(len(returns) / 10)
    return float(np.sort(returns)[-count:].mean())


def _one_over_largest(_config: Any, packed: Arrays) -> float:
    returns = finite_returns(packed)
    largest = float(np.abs(returns).max())
    return 1 / largest if largest else 1.0


def _trained_tokenizer(config: Any, packed: Arrays) -> str:
    return train_vocabulary(text_counts(packed), config.vocabulary).digest


def _spoken_tokens(config: Any, packed: Arrays) -> tuple[int, ...]:
    return spoken_tokens(packed, read_vocabulary(config.tokenizer))


SOURCES: dict[str, tuple[str, Callable[[Any, Arrays], Any]]] = {
    "target_return": ("the mean return of the best tenth of the episodes", _best_tenth),
    "return_scale": ("1 / the largest absolute return of an episode", _one_over_largest),
    "episode_length": (
        "the mean length of an episode",
        lambda _config, packed: float(packed.lengths.mean()),
    ),
    "tokenizer": ("a tokenizer that is trained on the texts of the dataset", _trained_tokenizer),
    "spoken": ("the tokens of the actions of the dataset", _spoken_tokens),
}
"""What each setting that an algorithm may name in `FROM_DATA` becomes: in words, from its settings and the data."""


def infos_of(kind: type[Any], config: Any) -> tuple[str, ...]:
    """Return the infos that an algorithm learns from: those that its loader is asked for."""
    return tuple(kind.loader(config)[1].get("infos", ()))


def load_for(kind: type[Any], config: Any, dataset: Dataset, where: str) -> Arrays:
    """Return the arrays that an algorithm's batches are from, with the infos that it asks for."""
    infos = infos_of(kind, config)
    if is_team(dataset):
        return agents.load_for(kind, config, dataset, where, infos)
    return load_arrays(dataset, where, infos=infos)


def statistics_of(packed: Arrays) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each number of observations, as an algorithm sees them."""
    return packed.observation_statistics() if packed.team is None else agents.statistics(packed)


def settings_from_data(kind: type[Any], config: Any, packed: Arrays) -> tuple[Any, list[str]]:
    """Return a configuration without settings that are None, and a line on each that was filled in.

    `FROM_DATA` of the class names these settings, each a key of `SOURCES`; or it has for each what it becomes, in
    words, and a function of the settings and `Totals`. The arrays have the rewards of training. A tokenizer
    that is given becomes its digest.
    """
    if getattr(config, "tokenizer", None) is not None:
        digest = read_vocabulary(config.tokenizer).digest
        config = dataclasses.replace(config, tokenizer=digest)
    named = getattr(kind, "FROM_DATA", ())
    missing = [name for name in named if getattr(config, name) is None]
    if not missing:
        return config, []
    lines = []
    for name in missing:  # later ones may depend on earlier ones
        if isinstance(named, Mapping):
            about, own = named[name]
            value = own(config, Totals(packed))
        else:
            about, source = SOURCES[name]
            value = source(config, packed)
        config = dataclasses.replace(config, **{name: value})
        lines.append(f"{name}={_shown(value)}: {about}")
    return config, lines


def _shown(value: float | str | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} of them"
    return value if isinstance(value, str) else f"{value:g}"


def check_rewards(kind: type[Any], name: str, packed: Arrays) -> None:
    """Refuse data whose rewards are all 0 to an algorithm of orlog's that learns from them."""
    if name not in ALGORITHMS or takes_goals(kind) or not getattr(kind, "REWARDS", True):
        return
    if not bool(packed.rows[:, packed.columns["rewards"]].any()):
        goals = [one for one in ALGORITHMS if takes_goals(ALGORITHMS[one])]
        raise SchemaError(
            f"{packed.name}: every reward is 0, and {name} learns from rewards; imitate the actions "
            f"(bc), learn to reach goals ({', '.join(goals)}), or record the data with rewards."
        )


def reward_numbers(rewards: Rewards, packed: Arrays) -> tuple[float, float]:
    """Return the factor and the shift that rewards of a dataset are trained with.

    A range of returns that is 0 is refused where they depend on it.
    """
    scale = rewards.scale
    if rewards.return_range is not None:
        returns = finite_returns(packed)
        spread = float(returns.max() - returns.min())
        if not spread > 0:
            raise SchemaError(
                f"{packed.name}: rewards are to be scaled by the range of returns, but all "
                f"{len(returns)} episodes have the return {returns[0]:g}; choose another preset, or "
                "the defaults: preset='none'."
            )
        scale *= rewards.return_range / spread
    return scale, rewards.shift


def with_rewards(packed: Arrays, scale: float, shift: float) -> Arrays:
    """Return the arrays with `scale * reward + shift` written into them; the stream stays as it is.

    Only rewards change, in place, so nothing is copied; draws depend on the digest, which is kept.
    """
    if (scale, shift) == (1.0, 0.0):
        return packed
    changed = scale_rewards(packed, scale=scale, shift=shift, in_place=True)
    return dataclasses.replace(changed, digest=packed.digest)


def keep_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the tokenizer that settings name by its digest, if they name one."""
    digest = config.get("tokenizer")
    if isinstance(digest, str):
        replace_file(folder / TOKENIZER_FILE, read_vocabulary(digest).text.encode())


def find_tokenizer(folder: Path, config: Mapping[str, Any]) -> None:
    """Read the tokenizer of a run, so that its digest finds it.

    Raises ManifestError if the file is missing or not the run's; MissingExtraError where the library is not installed.
    """
    digest = config.get("tokenizer")
    if not isinstance(digest, str):
        return
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ManifestError(
            f"{path}: is missing, and without the run's tokenizer its policy cannot read; restore the file, or "
            "train again in another folder.",
            file=str(path),
        )
    found = read_vocabulary(path).digest
    if found != digest:
        raise ManifestError(
            f"{path}: is not the tokenizer of the run, which is {digest[:19]}.., found {found[:19]}..; restore the "
            "file, or train again in another folder.",
            file=str(path),
        )
