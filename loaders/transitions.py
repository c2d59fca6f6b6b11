"""Random transitions in an endless stream of batches: from memory, straight from shards, by weights or priorities."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from orlog.datasets.reading.opening import Given, as_dataset
from orlog.loaders.arguments import as_steps
from orlog.loaders.arrays import Arrays, as_arrays
from orlog.loaders.frames import FrameSampler
from orlog.loaders.options import StreamOptions, takes_stream_options
from orlog.loaders.priorities import Priorities, PrioritizedTransitions
from orlog.loaders.steps import TransitionSampler
from orlog.loaders.streaming import BUFFER_BYTES, StreamedBatches
from orlog.loaders.streams import Batches
from orlog.loaders.sums import info_numbers
from orlog.loaders.weights import weighted


class TransitionOptions(StreamOptions, total=False):
    """Arguments of `orlog.transitions` that choose how steps are drawn and read, beside those of every kind.

    Attributes:
        stacks: Frames in an observation: images become `[batch, stacks, height, width, channels]`, the newest last. A
            stack never reaches into another episode: before its beginning the first frame is repeated. Over single
            steps, observations and next observations share the memory of their common frames, so copy them before
            changing one in place. (DQN: Mnih and others 2015.)
        stacked: Which parts of an observation to stack, all images by default. The part of a space without
            keys has the empty key.
        weights: Steps are drawn in proportion to these: a number >= 0 for each step, or the name of a column that
            holds one, such as "infos/w" or "episodes/w". By default all are as likely, unless the dataset is a
            weighted mixture (`orlog.combine_datasets`), whose weights these multiply.
        prioritized: Draw by priorities, which training updates: True, or a dict of `Priorities`.
        stream: Read straight from the shards as it goes, each step once an epoch, in bounded memory: for datasets
            too large for RAM and for a memory map.
        buffer_bytes: With `stream`, memory for decoded steps, 256 MiB by default. Half of it is mixed at a time;
            another value gives another stream.
        allow_non_finite: With `stream`, take NaN and infinity as they are.
    """

    stacks: int
    stacked: Sequence[str] | None
    weights: np.ndarray | str | None
    prioritized: bool | Priorities
    stream: bool
    buffer_bytes: int
    allow_non_finite: bool


_DEFAULTS: dict[str, tuple[str, Any]] = {
    "stacks": ("int | None", None),
    "stacked": ("Sequence[str] | None", None),
    "weights": ("np.ndarray | str | None", None),
    "prioritized": ("bool | Priorities", False),
    "stream": ("bool", False),
    "buffer_bytes": ("int", BUFFER_BYTES),
    "allow_non_finite": ("bool", False),
}


@functools.partial(takes_stream_options, more=_DEFAULTS)
def transitions(
    data: Given | Arrays,
    batch_size: int = 256,
    *,
    seed: int,
    n_steps: int = 1,
    discount: float = 0.99,
    next_actions: bool = False,
    returns_to_go: bool = False,
    **options: Unpack[TransitionOptions],
) -> Any:
    """Return an endless stream of random transitions, with replacement: batches are `orlog.loaders.batch.Batch`.

    Every step is as likely as any other, unless `weights`, priorities or a weighted mixture say otherwise.
    `TransitionOptions` and `StreamOptions` describe the other arguments, and what is raised.

    Args:
        data: What to sample from; with `stream` a dataset, its name or folder.
        batch_size: Transitions in a batch.
        seed: Seed of the stream.
        n_steps: Steps that an item spans, or as many as its episode has left.
        discount: Discount of a step, for `discounts`, sums of rewards and returns.
        next_actions: Also return the actions that the data took after the last of the steps.
        returns_to_go: Also return the return that the data reached from there.
        options: See `TransitionOptions`.

    Raises:
        SchemaError: no image to stack; with `stream`, a weighted mixture.
        ValueError: a weight for another number of steps; arguments that do not go together.
    """
    rest: dict[str, Any] = dict(options)
    how = {name: rest.pop(name, default) for name, (_, default) in _DEFAULTS.items()}
    prioritized, stream, stacks = how["prioritized"], how["stream"], how["stacks"]
    _check_together(how)

    settings: dict[str, Any] = {"n_steps": as_steps(n_steps, discount), "discount": discount}
    settings |= {"next_actions": next_actions, "returns_to_go": returns_to_go}
    sampler_of: Callable[[Arrays], Any] = functools.partial(
        TransitionSampler, **settings, discounts=prioritized is not False
    )
    if stacks is not None:
        sampler_of = functools.partial(FrameSampler, stack=stacks, keys=how["stacked"], **settings)
    place = {"batch_size": batch_size, "seed": seed, **rest}
    if stream:
        whole: Any = data  # arrays are refused
        return StreamedBatches(
            as_dataset(whole),
            sampler_of=sampler_of,
            n_steps=n_steps,
            buffer_bytes=how["buffer_bytes"],
            allow_non_finite=how["allow_non_finite"],
            **place,
        )
    arrays = _weighted(data, how["weights"], rest.get("infos", ()))
    if prioritized is False:
        return Batches(sampler_of(arrays), arrays.digest, **place)
    priorities = {} if prioritized is True else prioritized
    return PrioritizedTransitions(sampler_of(arrays), **priorities, **place)


def _check_together(how: Mapping[str, Any]) -> None:
    """Refuse arguments that do not go together.

    Raises ValueError.
    """
    given = {name for name, (_, default) in _DEFAULTS.items() if how[name] is not default}
    for one, other in (("stream", "weights"), ("stream", "prioritized"), ("stacks", "prioritized")):
        if {one, other} <= given:
            raise ValueError(f"{one} and {other} cannot be given together; leave one of them out.")
    if "stacked" in given and "stacks" not in given:
        raise ValueError("stacked names what to stack: give stacks, the number of frames, too.")
    only = given & {"buffer_bytes", "allow_non_finite"}
    if only and "stream" not in given:
        raise ValueError(f"{min(only)} is for stream=True; leave it out, or give stream=True.")


def _weighted(data: Given | Arrays, weights: np.ndarray | str | None, infos: Sequence[str]) -> Arrays:
    """Return the steps to draw from, in proportion to weights where they are given."""
    if not isinstance(weights, str):
        arrays = as_arrays(data, infos)
        return arrays if weights is None else weighted(arrays, weights)
    name = weights.removeprefix("infos/")
    arrays = as_arrays(data, tuple(dict.fromkeys([*infos, name])))
    values = info_numbers(arrays, name)[arrays.step_rows()]
    return weighted(arrays, values.double().cpu().numpy())
