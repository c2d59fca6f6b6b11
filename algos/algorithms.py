"""The algorithms by name, and how settings from text or JSON become their configurations."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import msgspec
from jaxtyping import Float32
from torch import Tensor

from orlog.algos.bc import BC, BCConfig
from orlog.algos.cql import CQL, CQLConfig
from orlog.algos.iql import IQL, IQLConfig
from orlog.algos.networks import Scaling
from orlog.loaders.batch import Batch

__all__ = ["ALGORITHMS", "Algorithm", "Config", "make_algorithm", "make_config"]

Config: TypeAlias = BCConfig | CQLConfig | IQLConfig


class Algorithm(Protocol):
    """What the training loop asks of an algorithm."""

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Take one gradient step and return the metrics of the batch."""

    def act(self, observations: Float32[Tensor, "batch obs"]) -> Float32[Tensor, "batch act"]:
        """Return the actions to evaluate, in the environment's unit."""


ALGORITHMS: dict[str, tuple[type[Any], type[Any]]] = {
    "bc": (BC, BCConfig),
    "cql": (CQL, CQLConfig),
    "iql": (IQL, IQLConfig),
}


def make_config(algorithm: str, settings: Mapping[str, object]) -> Config:
    """Return the configuration of an algorithm with some settings changed.

    Text is read as the type that the setting has (`"0.9"`, `"[64, 64]"`, `"none"`).

    Raises:
        ValueError: no such algorithm or setting, or a value that it cannot have.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    config = ALGORITHMS[algorithm][1]
    known = [field.name for field in dataclasses.fields(config)]
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise ValueError(
                f"{algorithm} has no setting {name!r}"
                + (f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}")
            )
    read = {name: _read(value) for name, value in settings.items()}
    try:
        made: Config = msgspec.convert(read, config, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{algorithm}: {error}") from error
    # msgspec leaves defaults to the class, where what encodes an instance would not see them.
    return dataclasses.replace(made)


def make_algorithm(
    name: str, config: Config, scaling: Scaling, *, seed: int, device: str = "cpu"
) -> Algorithm:
    """Return a fresh algorithm with networks drawn from `seed`."""
    made: Algorithm = ALGORITHMS[name][0](config, scaling, seed=seed, device=device)
    return made


def _read(value: object) -> object:
    """Turn the text of a list or of no value into it; other text is left to the conversion."""
    if isinstance(value, str) and value.startswith("["):
        return msgspec.json.decode(value)
    if isinstance(value, str) and value.lower() in ("none", "null"):
        return None
    return value
