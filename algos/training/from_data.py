"""What a run takes from its data: rewards as they are trained with, settings unless they are set, its tokenizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orlog.algos.algorithms import ALGORITHMS, takes_goals
from orlog.algos.presets import Rewards
from orlog.algos.training.run_data import RunData
from orlog.base.files import replace_file
from orlog.datasets.columns.vocabulary import read_vocabulary, train_vocabulary
from orlog.errors import ManifestError, SchemaError
from orlog.loaders.token_sequences import parts_without_texts, spoken_with, text_counts

TOKENIZER_FILE = "tokenizer.json"
"""The tokenizer of a run, in its folder; its settings have the digest."""


def _best_tenth(_config: Any, data: RunData) -> float:
    returns = data.returns
    count = math.ceil(len(returns) / 10)
    return float(np.sort(returns)[-count:].mean())


def _one_over_largest(_config: Any, data: RunData) -> float:
    largest = float(np.abs(data.returns).max())
    return 1 / largest if largest else 1.0


def _trained_tokenizer(config: Any, data: RunData) -> str:
    return train_vocabulary(text_counts(data.arrays), config.vocabulary).digest


def _spoken_tokens(config: Any, data: RunData) -> tuple[int, ...]:
    return spoken_with(config, data.arrays)


SOURCES: dict[str, tuple[str, Callable[[Any, RunData], Any]]] = {
    "target_return": ("the mean return of the best tenth of the episodes", _best_tenth),
    "return_scale": ("1 / the largest absolute return of an episode", _one_over_largest),
    "episode_length": ("the mean length of an episode", lambda _config, data: float(data.lengths.mean())),
    "tokenizer": ("a tokenizer that is trained on the texts of the dataset", _trained_tokenizer),
    "spoken": ("the tokens of the actions of the dataset", _spoken_tokens),
}
"""What each setting that an algorithm may name in `FROM_DATA` becomes: in words, from its settings and the data."""


def settings_from_data(kind: type[Any], config: Any, data: RunData) -> tuple[Any, list[str]]:
    """Return a configuration without settings that are None, and a line on each that was filled in.

    `FROM_DATA` of the class names these settings, each a key of `SOURCES`; or it has for each what it becomes, in
    words, and a function of the settings and `RunData`, which has the rewards of training. A tokenizer that is
    given becomes its digest.
    """
    if getattr(config, "tokenizer", None) is not None:
        digest = read_vocabulary(config.tokenizer).digest
        config = msgspec.structs.replace(config, tokenizer=digest)
    named = getattr(kind, "FROM_DATA", ())
    missing = [name for name in named if getattr(config, name) is None]
    lines = []
    if "tokenizer" in named and (unread := parts_without_texts(data.arrays)):
        lines.append(f"observations: only their texts are read; left out: {', '.join(unread)}")
    for name in missing:  # later ones may depend on earlier ones
        if isinstance(named, Mapping):
            about, own = named[name]
            value = own(config, data)
        else:
            about, source = SOURCES[name]
            value = source(config, data)
        config = msgspec.structs.replace(config, **{name: value})
        lines.append(f"{name}={_shown(value)}: {about}")
    return config, lines


def _shown(value: float | str | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} of them"
    return value if isinstance(value, str) else f"{value:g}"


def check_rewards(kind: type[Any], name: str, data: RunData) -> None:
    """Refuse data whose rewards are all 0 to an algorithm of orlog's that learns from them."""
    if name not in ALGORITHMS or takes_goals(kind) or not getattr(kind, "REWARDS", True):
        return
    if not data.has_rewards:
        goals = [one for one in ALGORITHMS if takes_goals(ALGORITHMS[one])]
        raise SchemaError(
            f"{data.name}: every reward is 0, and {name} learns from rewards; imitate the actions "
            f"(bc), learn to reach goals ({', '.join(goals)}), or record the data with rewards."
        )


def reward_numbers(rewards: Rewards, data: RunData) -> tuple[float, float]:
    """Return the factor and the shift that rewards of a dataset are trained with.

    A range of returns that is 0 is refused where they depend on it.
    """
    scale = rewards.scale
    if rewards.return_range is not None:
        returns = data.returns
        spread = float(returns.max() - returns.min())
        if not spread > 0:
            raise SchemaError(
                f"{data.name}: rewards are to be scaled by the range of returns, but all "
                f"{len(returns)} episodes have the return {returns[0]:g}; choose another preset, or "
                "the defaults: preset='none'."
            )
        scale *= rewards.return_range / spread
    return scale, rewards.shift


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
