"""Networks of linear layers with ReLU between them, each one function to autograd.

    h_0 = x,   h_l = max(h_(l-1) W_l^T + b_l, 0),   y = h_(L-1) W_L^T + b_L

The products are those that a chain of `torch.nn.Linear` and `torch.nn.ReLU` computes, in the same order, so every bit
of outputs and gradients is the same. What is saved lies between the products: a ReLU and its mask are applied in
place, and a network is one node of the graph in place of one for each operation. On a CPU, networks whose hidden
layers all have `WIDE` units save more, by summing gradients of weights in another order, which changes their last
bits: many rows pass them in blocks that fit the cache of a core (`BLOCK`), and the gradient of the first weights is
computed transposed.

`products_in("bf16")` takes the products between hidden layers in bfloat16, as forward as backward; they are nearly
all of the work. The first layer, which sees the observations, the last one, sums, weights and gradients stay in
float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

Precision: TypeAlias = Literal["float32", "bf16"]

BLOCK = 512
"""Rows of a block; 4 blocks and more are split, where all hidden layers have `WIDE` units."""
WIDE = 256

_low: torch.dtype | None = None
_mask = torch.ops.aten.threshold_backward.grad_input  # found once: looking it up takes longer than it


def has_fast_bf16(device: str = "cpu") -> bool:
    """Return whether a device computes products in bfloat16 faster than in float32."""
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def no_fast_bf16(device: str) -> str:
    """Return why a device is left to compute in float32."""
    if torch.device(device).type == "cuda":
        return f"{device} has no units for bfloat16"
    return "this processor has neither AMX nor AVX512_BF16, so bfloat16 would be slower"


@contextlib.contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Within this, networks take the products between their hidden layers in a precision."""
    global _low
    before, _low = _low, torch.bfloat16 if precision == "bf16" else None
    try:
        yield
    finally:
        _low = before


def precision_between_hidden_layers() -> torch.dtype | None:
    """Return the lower precision of products between hidden layers, None where it is the usual."""
    return _low


def relu_network(inputs: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the outputs [batch, outputs] of a network for inputs [batch, inputs].

    Parameters are weight [outputs of the layer, inputs of the layer] and bias of each layer.
    """
    return _apply(inputs, (), parameters, 1)


def twin_relu_networks(left: Tensor, right: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the single outputs [2, batch] of two networks of the inputs [left, right].

    Parameters are as those of `relu_network`: all of the first network, then of the second.
    """
    return _apply(left, (right,), parameters, 2)


def _apply(inputs: Tensor, more: tuple[Tensor, ...], parameters: Sequence[Tensor], count: int) -> Tensor:
    if torch.is_grad_enabled():
        outputs: Tensor = _Networks.apply(count, len(more) + 1, inputs, *more, *parameters)  # type: ignore[no-untyped-call]  # torch has no types for it
        return outputs
    return _evaluate((inputs, *more), parameters, count, _low)[0]


def _evaluate(
    inputs: Sequence[Tensor], parameters: Sequence[Tensor], count: int, low: torch.dtype | None
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs, and the inputs of each layer, network by network, block by block."""
    rows = torch.cat(list(inputs), -1) if len(inputs) > 1 else inputs[0]
    blocks = _blocks(rows) if _is_split(rows, _networks(parameters, count)[0]) else [rows]
    outputs: list[Tensor] = []
    layers: list[Tensor] = []
    for network in _networks(parameters, count):
        weights = _weights(network, low)
        of_blocks = []
        for block in blocks:
            *its, last = _forward(block, weights, network[1::2], low)
            layers += its
            of_blocks.append(last)
        outputs.append(of_blocks[0] if len(of_blocks) == 1 else torch.cat(of_blocks))
    return outputs[0] if count == 1 else torch.stack([output.squeeze(-1) for output in outputs]), layers


def _is_split(rows: Tensor, network: Sequence[Tensor]) -> bool:
    return len(rows) >= 4 * BLOCK and _is_wide_on_cpu(network[::2])


def _is_wide_on_cpu(weights: Sequence[Tensor]) -> bool:
    return weights[0].device.type == "cpu" and all(len(weight) >= WIDE for weight in weights[:-1])


def _blocks(rows: Tensor) -> list[Tensor]:
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]


def _networks(parameters: Sequence[Tensor], count: int) -> list[Sequence[Tensor]]:
    size = len(parameters) // count
    return [parameters[index * size : (index + 1) * size] for index in range(count)]


def _weights(network: Sequence[Tensor], low: torch.dtype | None) -> list[Tensor]:
    """Return the weights of a network, those between hidden layers in the lower precision."""
    weights = list(network[::2])
    if low is not None:
        weights[1:-1] = [weight.to(low) for weight in weights[1:-1]]
    return weights


def _forward(
    inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], low: torch.dtype | None
) -> list[Tensor]:
    """Return the inputs of each layer and the outputs of the last."""
    layers = [inputs]
    last = len(weights) - 1
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        taken = _as(layers[-1], weight.dtype)
        outputs = nn.functional.linear(taken, weight, _as(bias, weight.dtype))
        if index < last:
            outputs.relu_()
        layers.append(outputs if low is None or index == last else _as(outputs, low))
    return layers


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a dtype; the check takes a fifth of a call of `to` that does nothing."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _backward(
    gradient: Tensor, layers: Sequence[Tensor], weights: Sequence[Tensor], needed: Sequence[bool], needs_inputs: bool
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the gradients of the inputs and of the parameters, None where not needed."""
    gradients: list[Tensor | None] = [None] * len(needed)
    full = gradient.dtype
    for index in range(len(weights) - 1, -1, -1):
        inputs, weight = layers[index], weights[index]
        gradient = _as(gradient, weight.dtype)
        if needed[2 * index]:
            if index == 0 and _is_wide_on_cpu(weights):
                # 1.4 to 1.9 times as fast as the other way, with 17 to 29 inputs
                gradients[0] = torch.mm(inputs.t(), gradient).t().contiguous()
            else:
                gradients[2 * index] = _as(torch.mm(gradient.t(), _as(inputs, weight.dtype)), full)
        if needed[2 * index + 1]:
            gradients[2 * index + 1] = gradient.sum(0, dtype=full)
        if index == 0 and not needs_inputs:
            return None, gradients
        gradient = torch.mm(gradient, weight)
        if index:
            gradient = _as(gradient, inputs.dtype)
            _mask(gradient, inputs, 0, grad_input=gradient)
    return gradient, gradients


class _Networks(torch.autograd.Function):
    """One network of one input, or two of two, next to each other; `_chains` says the same."""

    @staticmethod
    def forward(ctx: Any, count: int, parts: int, *tensors: Tensor) -> Tensor:
        inputs, parameters = tensors[:parts], tensors[parts:]
        outputs, layers = _evaluate(inputs, parameters, count, _low)
        ctx.count, ctx.parts, ctx.low = count, parts, _low
        ctx.save_for_backward(*tensors, *layers)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        count, parts, saved = ctx.count, ctx.parts, ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        size = len(needs)
        tensors, layers = saved[:size], saved[size:]
        needs_inputs, needed = needs[:parts], needs[parts:]
        if torch.is_grad_enabled():
            return None, None, *_differentiable(ctx, gradient, tensors)
        of_inputs: Tensor | None = None
        gradients: list[Tensor | None] = []
        depth = (size - parts) // (2 * count)
        blocks = len(layers) // (count * depth)
        for index, network in enumerate(_networks(tensors[parts:], count)):
            weights = _weights(network, ctx.low)
            its = gradient if count == 1 else gradient[index].unsqueeze(-1)
            wanted = needed[2 * index * depth : 2 * (index + 1) * depth]
            total: list[Tensor | None] = []
            of_rows = []
            for block, part in enumerate(_blocks(its) if blocks > 1 else [its]):
                start = (index * blocks + block) * depth
                of_block, more = _backward(part, layers[start : start + depth], weights, wanted, any(needs_inputs))
                total = _add(total, more) if total else more
                if of_block is not None:
                    of_rows.append(of_block)
            gradients += total
            if of_rows:
                rows = of_rows[0] if blocks == 1 else torch.cat(of_rows)
                of_inputs = rows if of_inputs is None else of_inputs.add_(rows)
        if of_inputs is None:
            return None, None, *[None] * parts, *gradients
        if parts == 1:
            return None, None, of_inputs, *gradients
        parted = of_inputs.split_with_sizes([tensor.shape[-1] for tensor in tensors[:parts]], -1)
        chosen = (piece if need else None for piece, need in zip(parted, needs_inputs, strict=True))
        return None, None, *chosen, *gradients


def _add(total: list[Tensor | None], more: list[Tensor | None]) -> list[Tensor | None]:
    for gradient, other in zip(total, more, strict=True):
        if gradient is not None and other is not None:
            gradient.add_(other)
    return total


def _differentiable(ctx: Any, gradient: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients as functions that can be differentiated once more."""
    is_needed = ctx.needs_input_grad[2:]
    needed = [tensor for tensor, needs in zip(tensors, is_needed, strict=True) if needs]
    outputs = _chains(ctx.count, ctx.parts, *tensors)
    gradients = iter(torch.autograd.grad(outputs, needed, gradient, create_graph=True))
    return tuple(next(gradients) if needs else None for needs in is_needed)


def _chains(count: int, parts: int, *tensors: Tensor) -> Tensor:
    """Return the outputs by one node of the graph for each operation, in float32."""
    rows = torch.cat(tensors[:parts], -1)
    outputs = []
    for network in _networks(tensors[parts:], count):
        values = rows
        for index in range(0, len(network), 2):
            values = torch.addmm(network[index + 1], values, network[index].t())
            values = torch.relu(values) if index < len(network) - 2 else values
        outputs.append(values)
    return outputs[0] if count == 1 else torch.stack([output.squeeze(-1) for output in outputs])
