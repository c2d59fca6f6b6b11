"""The arguments that every kind of sampling takes: written once, described once, and shown in each signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from torch import distributed

from orlog.manifests.names import did_you_mean

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Place(TypedDict, total=False):
    """Where a stream starts, and which part of each batch this process takes: see `StreamOptions`."""

    start: int
    rank: int
    ranks: int


class StreamOptions(Place, total=False):
    """Arguments of every kind of sampling, beside those of its own.

        orlog.transitions(data, 256, seed=0, start=1_000, infos=("cost",), rank=1, ranks=2)

    All of them read the steps of a dataset into RAM first (4 bytes a number): for several streams, call
    `orlog.load_arrays` once and pass them its result. Only `orlog.transitions(.., stream=True)` reads as it goes.

    Attributes:
        data: What to sample from: a dataset, its name or folder, or what `orlog.load_arrays` returned.
        batch_size: Items in a batch, of all ranks together.
        seed: Seed of the stream. Batch `b` is a pure function of the data, the settings, the seed and `b`.
        start: First batch, to continue where a run stopped; 0 by default.
        infos: Other columns of the steps to give as `batch.infos`: names such as ("cost",), or
            "episodes/NAME"; see `Tensors`. None by default.
        rank: Which slice of each batch this process takes; by default that of `torch.distributed`, if it is
            initialised, else 0.
        ranks: Number of slices; by default the number of its processes, else 1.
        to: "torch" for batches of tensors, or "numpy" for batches of arrays with the same fields and values.

    Raises:
        SchemaError: values that are no numbers of a fixed shape, numbers that are not finite, or final
            observations that were never recorded and are asked for.
        NotFoundError: there is no such info.
        IntegrityError: a file is damaged.
        ValueError: a number is out of range.
        TypeError: a number is no integer, or an argument is of the wrong type.
    """

    infos: Sequence[str]
    to: Literal["torch", "numpy"]


_DEFAULTS = {
    "start": ("int", 0),
    "infos": ("Sequence[str]", ()),
    "rank": ("int | None", None),
    "ranks": ("int | None", None),
    "to": ("Literal['torch', 'numpy']", "torch"),
}


def ranks_here() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, as `torch.distributed` has them; else 0 and 1."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def takes_stream_options(
    function: Callable[Given, Result], more: Mapping[str, tuple[str, Any]] = MappingProxyType({})
) -> Callable[Given, Result]:
    """Show `StreamOptions` in the signature of a function that takes them as `**stream`.

    `more` are further ones by name, each with its type and default. A name that is not there is refused before anything
    is read: the TypeError has the nearest one.
    """
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
        for name, (kind, value) in {**more, **_DEFAULTS}.items()
    ]
    shown = signature.replace(parameters=[*own, *shared])

    @functools.wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        for name in kwargs:
            if name not in shown.parameters:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    f"{did_you_mean(name, shown.parameters) or '.'}"
                )
        given = kwargs.get("rank"), kwargs.get("ranks")
        rank, ranks = ranks_here() if given == (None, None) else (0, 1)
        kwargs["rank"] = rank if given[0] is None else given[0]
        kwargs["ranks"] = ranks if given[1] is None else given[1]
        return function(*args, **kwargs)

    vars(checked)["__signature__"] = shown
    return checked
