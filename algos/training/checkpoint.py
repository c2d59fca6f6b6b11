"""Checkpoints: an algorithm's state in one safetensors file, written completely or not.

All attributes of an algorithm are saved but its constants, which its arguments determine:

    CONSTANTS = ("config", "scaling")      of an algorithm whose class does not name them

State may be networks, tensors,
optimizers with their groups, schedulers, generators of torch and numpy, plain values (numbers,
text, None, lists and dicts of them), and lists and dicts of all these.

The file holds tensors, named `attribute/key`, and as metadata the plain values in JSON, the format
version, the caller's own metadata, and a SHA-256 of everything. Of algorithms that are not orlog's, the
plain values also hold the states of the global generators. Equal states give equal bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from orlog.algos.training.generators import DRAWING, drawn_state, generator_states, set_generators
from orlog.errors import AlgorithmError, CheckpointError, FormatVersionError

FORMAT = 2
_GENERATORS = "global generators"  # no attribute can have a name with a space
KINDS = (
    nn.Module,
    Tensor,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.Generator,
    np.random.Generator,
)


def check_state(algorithm: Any) -> None:
    """Refuse an algorithm if a checkpoint would lose some of its attributes."""
    _snapshot(algorithm)


def first_not_finite(algorithm: Any) -> str:
    """Return the name of a part of the state that training made NaN or infinite; empty if none is.

    Buffers and tensors that are no parameters may hold infinities, as masks do, but no NaN.
    """
    for part in _parts(algorithm):
        parameters: set[str] = set()
        if isinstance(part.value, nn.Module):
            parameters = {f"{part.name}/{name}" for name, _ in part.value.named_parameters()}
        for name, leaf in _leaves(part):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            is_bounded = name in parameters or isinstance(part.value, torch.optim.Optimizer)
            is_bounded = is_bounded or isinstance(leaf, nn.Parameter)
            if not bool((leaf.isfinite() if is_bounded else ~leaf.isnan()).all()):
                return name
    return ""


def is_of_another_algorithm(algorithm: Any, metadata: dict[str, str]) -> bool:
    """Whether a checkpoint's metadata has plain values under other attributes than an algorithm."""
    try:
        there = json.loads(metadata["state"])
    except (KeyError, ValueError, RecursionError):
        return False
    _, here = _snapshot(algorithm)
    there.pop(_GENERATORS, None)
    return {name.partition("/")[0] for name in there} != {name.partition("/")[0] for name in here}


def save_checkpoint(algorithm: Any, path: Path, *, metadata: dict[str, str], generators: bool = False) -> None:
    """Write an algorithm's state; a file at `path` is replaced only once the new one is durable.

    With `generators` it also holds the states of the global generators (`generators.py`).
    """
    tensors, values = _snapshot(algorithm)
    if generators:
        values[_GENERATORS] = generator_states(_device_of(algorithm))
    metadata = {**metadata, "checkpoint_format": str(FORMAT), "state": json.dumps(values, sort_keys=True)}
    header, body = _encode(tensors, {**metadata, "sha256": _digest(tensors, metadata)})
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(header)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_checkpoint(
    algorithm: Any,
    path: Path,
    *,
    check: Callable[[dict[str, str]], None] = lambda _metadata: None,
    to_act: bool = False,
) -> dict[str, str]:
    """Fill an algorithm of the same configuration with a saved state; return the metadata.

    An algorithm whose checkpoint is refused stays as it was. `check` is called with the caller's
    metadata first, and refuses the checkpoint by raising an error. With `to_act` it is not to go on
    training, so generators of another kind of device stay as they are.
    """
    tensors, metadata = _read(path)
    check(metadata)
    fresh_tensors, fresh_values = _snapshot(algorithm)
    del metadata["checkpoint_format"]
    try:
        values: dict[str, Any] = json.loads(metadata.pop("state"))
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the checkpoint's metadata 'state' cannot be read: {error}.") from error
    states = values.pop(_GENERATORS, None)
    optimizers = {part.name: part.value for part in _parts(algorithm) if isinstance(part.value, torch.optim.Optimizer)}
    expected, found = (
        {**{name: (tuple(one.shape), one.dtype) for name, one in some.items()}, **dict.fromkeys(plain, "a plain value")}
        for some, plain in ((fresh_tensors, fresh_values), (tensors, values))
    )
    if to_act:
        for name in _generators_of_another_device(algorithm, tensors):
            tensors[name] = fresh_tensors[name]
            found[name] = expected[name]
    moments = {name: _moments(name, tensors, values) for name in optimizers}
    for name, optimizer in optimizers.items():
        # What an optimizer holds depends on the steps it took, so whether it fits is checked here.
        of_moments = [one for one in {*expected, *found} if _is_moment(one, name)]
        for one in of_moments:
            expected.pop(one, None)
            found.pop(one, None)
        _check_optimizer(path, name, optimizer, moments[name], values.get(f"{name}/groups", []))
    differ = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if differ:
        raise CheckpointError(
            f"{path}: the checkpoint is of another configuration: {differ[0]} is "
            f"{_in_words(found.get(differ[0]))}, expected {_in_words(expected.get(differ[0]))}."
        )
    if states is not None and not to_act:
        try:
            set_generators(states, _device_of(algorithm))
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}.") from error
    for part in _parts(algorithm):
        _restore(part, tensors, values, moments.get(part.name, {}))
    return metadata


def first_difference(one: Any, other: Any) -> str:
    """Return the name of what differs first in the states of two algorithms; empty if nothing does.

    Among constants, generators of torch, NumPy and Python are compared.
    """
    (tensors, values), (others, plain) = _snapshot(one), _snapshot(other)
    for attribute, value in vars(one).items():
        there = vars(other).get(attribute)
        if isinstance(value, DRAWING) and drawn_state(value) != drawn_state(there):
            return str(attribute)
    for name in sorted({*tensors} | {*others}):
        first, second = tensors.get(name), others.get(name)
        if first is None or second is None or _digest({name: first}, {}) != _digest({name: second}, {}):
            return name
    for name in sorted({*values} | {*plain}):
        if json.dumps(values.get(name)) != json.dumps(plain.get(name)):
            return name
    return ""


def _device_of(algorithm: Any) -> torch.device:
    """Return the GPU that holds some of an algorithm's state, or the CPU."""
    for part in _parts(algorithm):
        for _, leaf in _leaves(part):
            if isinstance(leaf, Tensor) and leaf.device.type == "cuda":
                return leaf.device
    return torch.device("cpu")


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A piece of state that is saved as one: a network, an optimizer, a number .."""

    name: str
    value: Any
    replace: Callable[[Any], object]


def state_names(algorithm: Any) -> list[str]:
    """Return the attributes that are saved: those that `STATE` names, or all but the constants."""
    constants = getattr(algorithm, "CONSTANTS", ("config", "scaling"))
    return [*getattr(algorithm, "STATE", (name for name in vars(algorithm) if name not in constants))]


def _parts(algorithm: Any) -> Iterator[_Part]:
    """Yield the pieces of the state."""
    kind = type(algorithm).__name__
    for name in state_names(algorithm):
        value = getattr(algorithm, name)
        yield from _inside(kind, name, value, functools.partial(setattr, algorithm, name))


def _inside(kind: str, name: str, value: Any, replace: Callable[[Any], object]) -> Iterator[_Part]:
    if isinstance(value, KINDS) or _is_plain(value):
        yield _Part(name, value, replace)
    elif type(value) is list or (type(value) is dict and all(type(key) is str for key in value)):
        items = enumerate(value) if isinstance(value, list) else value.items()
        for key, item in items:
            setter = functools.partial(value.__setitem__, key)
            yield from _inside(kind, f"{name}/{key}", item, setter)
    else:
        raise AlgorithmError(
            f"{kind}.{name}: checkpoints cannot save a {type(value).__name__}; name it in {kind}.CONSTANTS if "
            f"{kind}'s arguments determine it."
        )


def _is_plain(value: Any) -> bool:
    """Whether a value survives JSON unchanged; Python's JSON keeps every bit of a float."""
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(one) for key, one in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _snapshot(algorithm: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the plain values of an algorithm's state, by name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for part in _parts(algorithm):
        for name, leaf in _leaves(part):
            if name in tensors or name in values:
                raise AlgorithmError(f"{type(algorithm).__name__}.{name}: two parts have this name.")
            if isinstance(leaf, Tensor):
                # A copy: tensors in one file must not share memory, but tied weights do.
                tensors[name] = leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
            elif _is_plain(leaf):
                values[name] = leaf
            else:
                raise AlgorithmError(
                    f"{type(algorithm).__name__}.{name}: checkpoints cannot save a {type(leaf).__name__}."
                )
    return tensors, values


def _leaves(part: _Part) -> Iterator[tuple[str, Any]]:
    name = part.name
    match part.value:
        case nn.Module() as module:
            saved = module.state_dict()
            for key, _ in module.named_buffers():
                if key not in saved:
                    raise AlgorithmError(
                        f"{name}/{key}: checkpoints would not save this buffer; register it with persistent=True."
                    )
            for key, value in saved.items():
                yield f"{name}/{key}", value
        case torch.optim.Optimizer() as optimizer:
            whole = optimizer.state_dict()
            for index, state in whole["state"].items():
                for key, value in state.items():
                    yield f"{name}/{index}/{key}", value
            yield f"{name}/groups", [_group_values(group) for group in whole["param_groups"]]
        case torch.optim.lr_scheduler.LRScheduler() as scheduler:
            for key, value in scheduler.state_dict().items():
                yield f"{name}/{key}", value
        case torch.Generator() as generator:
            yield name, generator.get_state()
        case np.random.Generator() as numbers:
            yield name, numbers.bit_generator.state
        case value:
            yield name, value


def _group_values(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group of parameters, with only the number of its parameters."""
    plain = {key: list(value) if type(value) is tuple else value for key, value in group.items()}
    return {**plain, "params": len(group["params"])}


@torch.no_grad()
def _restore(
    part: _Part, tensors: dict[str, Tensor], values: dict[str, Any], moments: dict[int, dict[str, Any]]
) -> None:
    name = part.name
    match part.value:
        case nn.Module() as module:
            module.load_state_dict({key: tensors[f"{name}/{key}"] for key in module.state_dict()})
        case Tensor() as tensor:
            tensor.copy_(tensors[name])
        case torch.optim.Optimizer() as optimizer:
            groups = optimizer.state_dict()["param_groups"]
            for group, saved in zip(groups, values[f"{name}/groups"], strict=True):
                # Another version of torch may know settings that this one does not.
                for key in ({*group} & {*saved}) - {"params"}:
                    group[key] = tuple(saved[key]) if type(group[key]) is tuple else saved[key]
            optimizer.load_state_dict({"state": moments, "param_groups": groups})
        case torch.optim.lr_scheduler.LRScheduler() as scheduler:
            scheduler.load_state_dict({key: values[f"{name}/{key}"] for key in scheduler.state_dict()})
        case torch.Generator() as generator:
            generator.set_state(tensors[name])
        case np.random.Generator() as numbers:
            numbers.bit_generator.state = values[name]
        case _:
            part.replace(values[name])


def _is_moment(name: str, optimizer: str) -> bool:
    """Whether a name is that of a value that an optimizer holds for one parameter."""
    return name.startswith(f"{optimizer}/") and name[len(optimizer) + 1 :].split("/")[0].isdecimal()


def _moments(optimizer: str, tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return an optimizer's saved values for each parameter."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *values.items()]:
        if _is_moment(name, optimizer):
            index, _, key = name[len(optimizer) + 1 :].partition("/")
            found.setdefault(int(index), {})[key] = value
    return found


def _check_optimizer(
    path: Path,
    name: str,
    optimizer: torch.optim.Optimizer,
    moments: dict[int, dict[str, Any]],
    groups: list[dict[str, Any]],
) -> None:
    """Refuse the saved state of an optimizer with other parameters."""
    expected = [len(group["params"]) for group in optimizer.param_groups]
    found = [group["params"] for group in groups]
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if expected != found or any(index >= len(parameters) for index in moments):
        raise CheckpointError(
            f"{path}: the checkpoint is of another configuration: {name} has groups of {found} "
            f"parameters, expected {expected}."
        )
    for index, state in moments.items():
        for key, value in state.items():
            shapes = (tuple(parameters[index].shape), ())
            if isinstance(value, Tensor) and tuple(value.shape) not in shapes:
                raise CheckpointError(
                    f"{path}: the checkpoint is of another configuration: {name}/{index}/{key} has "
                    f"shape {tuple(value.shape)}, expected {shapes[0]}."
                )


def _generators_of_another_device(algorithm: Any, tensors: dict[str, Tensor]) -> list[str]:
    """Return the names of generators whose saved state is not of the device of the algorithm's."""
    return [
        part.name
        for part in _parts(algorithm)
        if isinstance(part.value, torch.Generator)
        and part.name in tensors
        and tensors[part.name].shape != part.value.get_state().shape
    ]


def checkpoint_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a checkpoint without reading its tensors, so unchecked."""
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable checkpoint: {error}.") from error
    return metadata


def verify_checkpoint(path: Path) -> dict[str, str]:
    """Read all of a checkpoint, and return its metadata once they and its tensors are shown whole."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata of a checkpoint, its checksum checked and removed."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path}: not a readable checkpoint: it is not a file.")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable checkpoint: {error}.") from error
    written = metadata.get("checkpoint_format", "")
    if not written.isdecimal() or int(written) < FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of orlog: its checkpoint_format is {written!r:.40}.")
    if int(written) > FORMAT:
        raise FormatVersionError(
            f"{path}: checkpoint_format {written} is newer than this orlog reads ({FORMAT}); run: "
            "pip install --upgrade orlog"
        )
    if metadata.pop("sha256", None) != _digest(tensors, metadata):
        raise CheckpointError(f"{path}: the checkpoint is damaged: its sha256 does not match its content.")
    return tensors, metadata


def _encode(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, memoryview]:
    """Return header and body of a safetensors file whose bytes depend on the content alone."""
    data = save(tensors, metadata)
    (length,) = struct.unpack_from("<Q", data)
    # safetensors orders the tensors, but writes metadata in an order that varies by process.
    header = json.loads(data[8 : 8 + length])
    header = {**header, "__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, memoryview(data)[8 + length :]


def _digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return the hex SHA-256 of metadata, names, shapes and numbers; safetensors has no hash."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _in_words(what: Any) -> str:
    match what:
        case None:
            return "missing"
        case tuple((shape, dtype)):
            return f"{dtype} {shape}"
        case _:
            return str(what)
