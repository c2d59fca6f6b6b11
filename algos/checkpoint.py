"""Checkpoints: every tensor of an algorithm in one safetensors file, written whole or not at all.

Networks, targets, the optimizer's moments, random generators and the step are all in it, so a run
that is resumed gives the same numbers as one that never stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(algorithm: Any, path: Path, *, metadata: dict[str, str]) -> None:
    """Write an algorithm's state; whatever was at `path` is replaced only once this is durable."""
    tensors = {name: tensor.contiguous() for name, tensor in _state(algorithm)}
    unfinished = path.with_name(f".{path.name}.unfinished")
    save_file(tensors, unfinished, {**metadata, "sha256": _digest(tensors, metadata)})
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def load_checkpoint(algorithm: Any, path: Path) -> dict[str, str]:
    """Fill an algorithm of the same configuration with a saved state; return the metadata.

    Raises:
        ValueError: the file is damaged or belongs to another configuration.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable checkpoint: {error}") from error
    if metadata.pop("sha256", None) != _digest(tensors, metadata):
        raise ValueError(f"{path}: the checkpoint is damaged: its numbers are not those written")
    expected = {name: tensor.shape for name, tensor in _state(algorithm)}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if expected != found:
        differ = sorted(
            name for name in {*expected, *found} if expected.get(name) != found.get(name)
        )
        raise ValueError(
            f"{path}: the checkpoint is of another configuration: {differ[0]} has shape "
            f"{found.get(differ[0])}, expected {expected.get(differ[0])}"
        )
    _restore(algorithm, tensors)
    return metadata


def _parts(algorithm: Any) -> Iterator[tuple[str, Any]]:
    """Yield everything an algorithm holds that changes as it trains."""
    for name, value in sorted(vars(algorithm).items()):
        if isinstance(value, nn.Module | Tensor | torch.optim.Optimizer | torch.Generator | int):
            yield name, value


def _digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Return the hex SHA-256 of metadata, names, shapes and numbers: safetensors has no checksum."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _state(algorithm: Any) -> Iterator[tuple[str, Tensor]]:
    _prepare_optimizers(algorithm)
    for name, part in _parts(algorithm):
        match part:
            case nn.Module():
                for key, tensor in part.state_dict().items():
                    yield f"{name}/{key}", tensor.detach().cpu()
            case Tensor():
                yield name, part.detach().cpu()
            case torch.optim.Optimizer():
                for index, state in part.state_dict()["state"].items():
                    for key, tensor in state.items():
                        yield f"{name}/{index}/{key}", tensor.detach().cpu()
            case torch.Generator():
                yield name, part.get_state()
            case int():
                yield name, torch.tensor(part)


def _prepare_optimizers(algorithm: Any) -> None:
    """Give each optimizer the zero moments it makes at its first step, where it has not yet."""
    for _, part in _parts(algorithm):
        if isinstance(part, torch.optim.Adam):
            for group in part.param_groups:
                for parameter in group["params"]:
                    if parameter in part.state:
                        continue
                    part.state[parameter] = {
                        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }


@torch.no_grad()
def _restore(algorithm: Any, tensors: dict[str, Tensor]) -> None:
    for name, part in _parts(algorithm):
        match part:
            case nn.Module():
                part.load_state_dict({key: tensors[f"{name}/{key}"] for key in part.state_dict()})
            case Tensor():
                part.copy_(tensors[name])
            case torch.optim.Optimizer():
                for index, state in part.state_dict()["state"].items():
                    for key, tensor in state.items():
                        tensor.copy_(tensors[f"{name}/{index}/{key}"])
            case torch.Generator():
                part.set_state(tensors[name])
            case int():
                setattr(algorithm, name, int(tensors[name]))
