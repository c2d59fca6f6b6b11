"""The algorithms by name, and how settings from text or JSON become their configurations."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, get_origin, get_type_hints

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

    Text is read as the type that the setting has (`"0.9"`, `"64,64"`, `"[64, 64]"`, `"none"`).

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
    kinds = get_type_hints(config)
    read = {name: _read(algorithm, name, value, kinds[name]) for name, value in settings.items()}
    try:
        made: Config = config(**read)
    except ValueError as error:
        raise ValueError(f"{algorithm}: {error}") from error
    return made


def make_algorithm(
    name: str, config: Config, scaling: Scaling, *, seed: int, device: str = "cpu"
) -> Algorithm:
    """Return a fresh algorithm with networks drawn from `seed`."""
    made: Algorithm = ALGORITHMS[name][0](config, scaling, seed=seed, device=device)
    return made


def _read(algorithm: str, name: str, value: object, kind: Any) -> object:
    """Return the value of one setting, which may be given as text."""
    is_list = get_origin(kind) is tuple
    parsed = value
    try:
        if isinstance(value, str) and value.startswith("["):
            parsed = msgspec.json.decode(value)
        elif isinstance(value, str) and is_list and "," in value:
            parsed = [item.strip() for item in value.rstrip(", ").split(",")]
        elif isinstance(value, str) and value.lower() in ("none", "null"):
            parsed = None
        return msgspec.convert(parsed, kind, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        example = f"; write a list as {name}=64,64 and a single number as {name}=[64]"
        raise ValueError(
            f"{algorithm}: {name}={value}: {error}{example if is_list else ''}"
        ) from error
