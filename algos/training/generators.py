"""The global generators of torch, NumPy and Python, from which algorithms that are not orlog's may draw.

orlog's own algorithms draw from generators of their own, and nothing here touches them. For others the
global generators are seeded while they are made, trained and evaluated, checkpoints hold the states, and
afterwards the process has back the states that it had.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from orlog.algos.algorithms import is_own

MAKING, TRAINING, EVALUATING = range(3)
"""What is drawn for; each has a stream of its own."""
DRAWING = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Generators that an algorithm may have of its own."""


@contextlib.contextmanager
def seeded(kind: type[Any], seed: int, purpose: int) -> Iterator[None]:
    """Seed the global generators inside the `with` block, for an algorithm that is not orlog's."""
    if not is_own(kind):
        yield
        return
    words = np.random.SeedSequence((seed, purpose)).generate_state(3)
    number, torchs, pythons = (int(word) for word in words)
    numpys, before = np.random.get_state(), random.getstate()  # noqa: NPY002 (the global one is meant)
    has_begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types
    devices = [*range(torch.cuda.device_count())] if has_begun else []
    with torch.random.fork_rng(devices):
        try:
            torch.manual_seed(torchs)
            np.random.seed(number)  # noqa: NPY002
            random.seed(pythons)
            yield
        finally:
            np.random.set_state(numpys)  # noqa: NPY002
            random.setstate(before)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators as plain values; of GPUs, that of a device."""
    name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    version, internal, following = random.getstate()
    found = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": [name, np.asarray(keys).tolist(), place, has_gauss, gauss],
        "random": [version, list(internal), following],
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return found


def set_generators(states: dict[str, Any], device: torch.device) -> None:
    """Set the global generators to saved states."""
    try:
        name, keys, place, has_gauss, gauss = states["numpy"]
        version, internal, following = states["random"]
        torch.set_rng_state(_bytes(states["torch"]))
        np.random.set_state((name, np.array(keys, np.uint32), place, has_gauss, gauss))  # noqa: NPY002
        random.setstate((version, tuple(internal), following))
        if device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(_bytes(states["cuda"]), device)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the states of the global generators cannot be read: {error}") from error


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def drawn_state(generator: Any) -> str:
    """Return what one of `DRAWING` draws next from, as text."""
    match generator:
        case torch.Generator():
            state: object = generator.get_state().tolist()
        case np.random.Generator():
            state = generator.bit_generator.state
        case np.random.RandomState():
            state = generator.get_state(legacy=False)["state"]["key"].tolist()
        case random.Random():
            state = generator.getstate()
        case _:
            state = None
    return str(state)
