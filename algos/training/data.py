"""What a run computes with: its data, the device that they are put on, and the global generators.

Data are all in memory, or streamed block by block where that is asked for. Streamed data come in epochs
(`loaders/streaming.py`), so their batches are others than those of the same data in memory; a run's record says
which of the two it is.

A generator on a GPU draws other numbers than one on the CPU with the same seed, so a run there has
other initial weights and other noise. Its batches are the same.

orlog's own algorithms draw from generators of their own. For others the global generators of torch, NumPy and
Python are seeded while they are made, trained and evaluated, checkpoints hold the states, and afterwards the
process has back the states that it had.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import inspect
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from orlog.algos.algorithms import algorithm_name, is_own
from orlog.algos.training import agents
from orlog.datasets.reading.dataset import Dataset
from orlog.datasets.reading.views import best_positions
from orlog.datasets.store.videos import decoder_version
from orlog.errors import SchemaError
from orlog.loaders.arrays import Arrays
from orlog.loaders.memory import measure_memory
from orlog.loaders.places import load_arrays
from orlog.loaders.statistics import finite_returns, info_sums, step_numbers, stream_statistics
from orlog.loaders.streaming import STREAMED, stream_loader
from orlog.loaders.teams import is_team
from orlog.loaders.transforms import scale_rewards
from orlog.loaders.weights import weighted_by
from orlog.manifests.names import size_text

_BEST = "orlog.loaders.best_episodes:best_transitions"
_INSTEAD = "give stream=False, which reads all of them into memory"
_SHARE = 0.5  # of a GPU's free memory that data may take; networks and other runs need some too
_MIB = 2**20

MAKING, TRAINING, EVALUATING = range(3)
"""What the global generators are seeded for; each has a stream of its own."""

Batches: TypeAlias = Callable[[int], Iterable[Any]]
"""Gives the batches from the one of a number on."""

# --- devices


def find_device(name: str) -> str:
    """Return the device that a name means: `cpu`, or `cuda:0`.

    Names are `cpu`, `cuda` for the current GPU, `cuda:1`, and `auto` for a GPU if there is one.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return "cpu"
    if name in ("cuda", "auto") and count:
        return f"cuda:{torch.cuda.current_device()}"
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise ValueError(f"device must be cpu, cuda, cuda:NUMBER or auto, found {name!r}.")
    if colon and int(number) < count:
        return f"cuda:{int(number)}"
    there = ", ".join(f"cuda:{number}" for number in range(count)) or "no GPU"
    if torch.version.cuda is None:
        there = f"no GPU, as {torch.__version__} was installed without CUDA"
    raise ValueError(f"there is no device {name}: PyTorch finds {there}; choose another, such as cpu.")


def device_versions(device: str) -> dict[str, str]:
    """Return what a record holds of a GPU besides its name: its model, and the version of CUDA."""
    if torch.device(device).type != "cuda":
        return {}
    return {"cuda": str(torch.version.cuda), "gpu": torch.cuda.get_device_name(device)}


def video_versions(dataset: Dataset) -> dict[str, str]:
    """Return what a record holds of the decoder where frames come from videos, since pixels depend on it."""
    return {"decoder": decoder_version()} if dataset.videos else {}


def put_arrays(packed: Arrays, device: str) -> Arrays:
    """Return arrays on a device; where they take more than half of its memory, as they are."""
    if torch.device(device).type == "cpu":
        return packed
    needed = sum(tensor.nbytes for tensor in (packed.rows, *packed.others.values()))
    return packed.to(device) if needed <= _SHARE * measure_memory(gpus=True).gpu_bytes.get(device, 0) else packed


def batches_on(batches: Iterable[Any], device: str, lie_on: str) -> Iterable[Any]:
    """Return batches on a device; those of data that lie on a device of another kind are moved there."""
    if lie_on == torch.device(device).type:
        return batches
    # From page-locked memory, so that the copy waits for nothing.
    return (batch.pin_memory().to(device, non_blocking=True) for batch in batches)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to one thread inside the `with` block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Let this process keep up to 512 MiB of freed memory, half of it in huge pages, with glibc.

    Activations have hundreds of KiB and more. By its defaults glibc may give such memory back to
    the system when it is freed, and the next update then waits for the system to clear it again.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):  # other C libraries have none
        return
    for option, size in ((-3, 32), (-1, 512), (-2, 256)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD
        library.mallopt(option, size * _MIB)
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    # More than is free, so that the heap grows by it and the pad, which is only reserved until used.
    first = library.malloc(ctypes.c_size_t(16 * _MIB))
    start, end = first + -first % (2 * _MIB), library.sbrk(ctypes.c_ssize_t(0))
    library.free(ctypes.c_void_p(first))
    if start < end:
        # MADV_HUGEPAGE: a core finds data in fewer, larger pages faster. Systems without them ignore it.
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 14)


# --- global generators


@contextlib.contextmanager
def seeded(kind: type[Any], seed: int, purpose: int) -> Iterator[None]:
    """Seed the global generators inside the `with` block, for an algorithm that is not orlog's."""
    if not is_own(kind):
        yield
        return
    words = np.random.SeedSequence((seed, purpose)).generate_state(3)
    of_numpy, of_torch, of_python = (int(word) for word in words)
    before = np.random.get_state(), random.getstate()  # noqa: NPY002 (the global one is meant)
    has_begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types
    with torch.random.fork_rng([*range(torch.cuda.device_count())] if has_begun else []):
        try:
            torch.manual_seed(of_torch)
            np.random.seed(of_numpy)  # noqa: NPY002
            random.seed(of_python)
            yield
        finally:
            np.random.set_state(before[0])  # noqa: NPY002
            random.setstate(before[1])


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators as plain values; of GPUs, that of a device."""
    name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    version, internal, following = random.getstate()
    states = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": [name, np.asarray(keys).tolist(), place, has_gauss, gauss],
        "random": [version, list(internal), following],
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    return states


def set_generators(states: dict[str, Any], device: torch.device) -> None:
    """Set the global generators to saved states."""

    def read(text: str) -> Tensor:
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)

    try:
        name, keys, place, has_gauss, gauss = states["numpy"]
        version, internal, following = states["random"]
        torch.set_rng_state(read(states["torch"]))
        np.random.set_state((name, np.array(keys, np.uint32), place, has_gauss, gauss))  # noqa: NPY002
        random.setstate((version, tuple(internal), following))
        if device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(read(states["cuda"]), device)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the states of the global generators cannot be read: {error}") from error


def drawn_state(generator: Any) -> object:
    """Return what shows from where a generator of torch, NumPy or Python draws; None for anything else."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, np.random.Generator | np.random.RandomState | random.Random):
        return pickle.dumps(generator)
    return None


# --- data


class LoadedData:
    """Data that are all in memory, and what is known of their episodes.

    Attributes:
        arrays: All steps, with the rewards of training.
        name: Name of the dataset, for messages.
        lengths: Number of steps of each episode.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.name, self.lengths = arrays.name, arrays.lengths

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each episode, as they are trained with."""
        return finite_returns(self.arrays)

    @property
    def has_rewards(self) -> bool:
        """Whether any reward is not 0."""
        return bool(self.arrays.rows[:, self.arrays.columns["rewards"]].any())

    def sum_of(self, info: str) -> np.ndarray:
        """Return the sum of an info over the steps of each episode."""
        return info_sums(self.arrays, info)

    def numbers_of(self, info: str) -> np.ndarray:
        """Return an info that is one number, for each step in order, float64."""
        return step_numbers(self.arrays, info)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each number of observations, as an algorithm sees them."""
        return self.arrays.observation_statistics() if self.arrays.team is None else agents.statistics(self.arrays)

    def change_rewards(self, scale: float, shift: float) -> None:
        """Train with `scale * reward + shift`; which steps are drawn stays as it is."""
        self.arrays = with_rewards(self.arrays, scale, shift)

    def batches(self, kind: type[Any], config: Any, seed: int, device: str) -> Batches:
        """Return what gives the batches that an algorithm declares; where the device has room, from there."""
        arrays = put_arrays(self.arrays, device)
        lie_on = arrays.rows.device.type
        return lambda first: batches_on(loaded(kind, config, arrays, seed=seed, start=first), device, lie_on)


class StreamedData:
    """Data that are read block by block, epoch after epoch; for their parts see `LoadedData`."""

    def __init__(self, kind: type[Any], config: Any, dataset: Dataset, note: Callable[[str], None]) -> None:
        """Plan to read; raises SchemaError where an algorithm needs all data in memory, or these have no epochs."""
        if why := _why_in_memory(kind, config, dataset):
            raise SchemaError(f"{dataset.name}: cannot be streamed: {why}; {_INSTEAD}.")
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
        text = f"{self.name}: its statistics are computed once, which reads up to {size}."
        return stream_statistics(self._dataset, lambda: self._note(text))

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each episode, as they are trained with."""
        returns = np.asarray(self._dataset.column("episodes/returns"), np.float64)
        wrong = ~np.isfinite(returns)
        if wrong.any():
            raise SchemaError(
                f"{self.name}: the return of episode {int(wrong.argmax())} is not finite; leave such episodes out "
                "(ds.filter_episodes)."
            )
        scaled: np.ndarray = returns * self._scale + self._shift * self.lengths
        return scaled

    @property
    def has_rewards(self) -> bool:
        """Whether any reward is not 0."""
        rewards = self._statistics.rewards
        return bool(rewards.low[0] or rewards.high[0])

    def sum_of(self, info: str) -> np.ndarray:
        """Not there: SchemaError."""
        raise SchemaError(f"{self.name}: the sum of {info} by episode needs all steps in memory; {_INSTEAD}.")

    def numbers_of(self, info: str) -> np.ndarray:
        """Not there: SchemaError."""
        raise SchemaError(f"{self.name}: {info} of every step needs all steps in memory; {_INSTEAD}.")

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each number of observations."""
        seen = self._statistics.observations
        return torch.from_numpy(seen.mean.astype(np.float32)), torch.from_numpy(seen.std.astype(np.float32))

    def change_rewards(self, scale: float, shift: float) -> None:
        """Change the rewards of each group of blocks when it is read."""
        self._scale, self._shift = scale, shift

    def batches(self, kind: type[Any], config: Any, seed: int, device: str) -> Batches:
        """Return what gives the batches that an algorithm declares."""
        loader, arguments = kind.loader(config)
        dataset = self._dataset
        if loader == _BEST:
            arguments = dict(arguments)
            dataset = dataset[best_positions(self.returns, arguments.pop("percent"))]
            loader = "orlog.loaders.transitions:transitions"

        def change(arrays: Arrays) -> Arrays:
            return with_rewards(arrays, self._scale, self._shift)

        def begin(first: int) -> Iterable[Any]:
            stream = stream_loader(dataset, loader, arguments, seed=seed, start=first, change=change)
            return batches_on(stream, device, "cpu")

        return begin


RunData: TypeAlias = LoadedData | StreamedData


def _why_in_memory(kind: type[Any], config: Any, dataset: Dataset) -> str:
    """Return why a dataset cannot be streamed to an algorithm; nothing if it can."""
    loader, arguments = kind.loader(config)
    name = algorithm_name(kind)
    reasons = {
        "the steps of several agents are put together in memory": is_team(dataset),
        "a weighted mixture has no epochs": dataset.mixture is not None,
        f"{name} mixes the data with steps that it takes in the environment": getattr(kind, "ONLINE", False),
        f"{name} draws from all steps at once (by {loader.rpartition(':')[2]})": loader not in (*STREAMED, _BEST),
        f"{name} chooses episodes by an info": arguments.get("within") is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def streams(kind: type[Any], config: Any, dataset: Dataset) -> bool:
    """Return whether an algorithm can be trained on a dataset that is streamed."""
    return not _why_in_memory(kind, config, dataset)


def infos_of(kind: type[Any], config: Any) -> tuple[str, ...]:
    """Return the infos that an algorithm learns from: those that its loader is asked for."""
    return tuple(kind.loader(config)[1].get("infos", ()))


def load_for(kind: type[Any], config: Any, dataset: Dataset, where: str, weights: str = "") -> LoadedData:
    """Return the data that an algorithm's batches are from, with the infos that it asks for.

    Steps are drawn in proportion to the column `weights`, where it is given (`orlog.loaders.weights`).
    """
    infos = infos_of(kind, config)
    if weights:
        if is_team(dataset) or getattr(kind, "ONLINE", False):
            what = "data of several agents" if is_team(dataset) else "steps taken in the environment"
            raise SchemaError(f"{dataset.name}: weights={weights!r}: {what} are not drawn by weights; leave them out.")
        named = () if weights.startswith("episodes/") else (weights.removeprefix("infos/"),)
        arrays = load_arrays(dataset, where, infos=tuple(dict.fromkeys([*infos, *named])))
        return LoadedData(weighted_by(dataset, weights, arrays=arrays))
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
