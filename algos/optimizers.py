"""Steps of training: down losses, of target networks, and Adam with less work around each step.

Adam has the numbers and the state of `torch.optim.Adam`. PyTorch's fused Adam changes all parameters in one call, but
prepares that call anew in every step and counts the steps of each parameter by a call of its own, which takes longer
than the fused call where networks are small. Here its lists are kept, and the numbers of steps are views of one
tensor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


def parameters_of(*networks: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of some networks, one network after the other."""
    return [parameter for network in networks for parameter in network.parameters()]


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, *, only: nn.Module | None = None) -> None:
    """Take one step down a loss.

    With `only`, no gradients but those of its parameters are computed, though the loss may pass
    through other networks.
    """
    optimizer.zero_grad()
    inputs = None if only is None else parameters_of(only)
    loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]  # torch has no types for it
    optimizer.step()


def descend_both(optimizer: torch.optim.Optimizer, loss: Tensor, policy_loss: Tensor, policy: nn.Module) -> None:
    """Take one step down a loss and down that of a policy, which passes through what the first trains.

    Of the policy's loss no gradients but the policy's are computed.
    """
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    policy_loss.backward(inputs=parameters_of(policy))  # type: ignore[no-untyped-call]  # as above
    optimizer.step()


@contextlib.contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Within this, no gradient of the network's parameters is computed, only of its inputs."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@torch.no_grad()
def update_target(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Move every parameter of `target` towards `online` by the fraction `rate` (Polyak)."""
    parameters: list[Tensor] = list(target.parameters())
    if parameters:  # the encoder of vectors has none
        torch._foreach_lerp_(parameters, list(online.parameters()), rate)


def set_cosine_rate(group: dict[str, Any], learning_rate: float, step: int, steps: int | None) -> None:
    """Let the rate of a group of parameters fall to 0 along a cosine over `steps`; None keeps it."""
    progress = 0.0 if steps is None else min(step / steps, 1.0)
    group["lr"] = learning_rate * (1 + math.cos(math.pi * progress)) / 2


class Adam(torch.optim.Adam):
    """Fused Adam. Steps that are not the usual one are left to PyTorch."""

    # PyTorch wraps these for its compiler, whose import by the first call takes as long as PyTorch's.
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *, eps: float = 1e-8) -> None:
        super().__init__(params, lr, eps=eps, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step down the gradients."""
        kept = self._kept()
        gradients: list[list[Any]]
        gradients = [[parameter.grad for parameter in lists.parameters] for lists in kept]
        if closure is not None or not kept or any(gradient is None for its in gradients for gradient in its):
            return inspect.unwrap(torch.optim.Adam.step)(self, closure)
        for group, lists, its in zip(self.param_groups, kept, gradients, strict=True):
            lists.all_steps.add_(1)
            beta1, beta2 = group["betas"]
            rate = group["lr"] if lists.rate is None else lists.rate
            torch._fused_adam_(
                lists.parameters,
                its,
                lists.first_moments,
                lists.second_moments,
                [],
                lists.steps,
                lr=rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Optimize more parameters."""
        self.__dict__.pop("kept", None)
        inspect.unwrap(torch.optim.Adam.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        if not set_to_none:
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def keep_rates(self) -> None:
        """Let steps read the rates, as they are now, from the memory of the parameters' device.

        So they can be changed between the repetitions of a recorded step.
        """
        now = [float(group["lr"]) for group in self.param_groups]
        before, there = self.__dict__.get("rates", ([], []))
        if not there:
            self.__dict__.pop("kept", None)
            groups = zip(now, self.param_groups, strict=True)
            there = [torch.tensor(rate, device=group["params"][0].device) for rate, group in groups]
        for rate, known, tensor in zip(now, before, there, strict=False):
            if rate != known:
                tensor.fill_(rate)
        self.__dict__["rates"] = now, there

    def _kept(self) -> list[_Lists]:
        """Return the lists of each group; none before the first step of all parameters."""
        kept = self.__dict__.get("kept")
        if kept is None or kept[0] is not self.state:  # a loaded state is another dict
            if not all(self.state.get(parameter) for group in self.param_groups for parameter in group["params"]):
                return []
            _, rates = self.__dict__.get("rates", ([], [None] * len(self.param_groups)))
            fresh = [
                _lists(group["params"], self.state, rate) for group, rate in zip(self.param_groups, rates, strict=True)
            ]
            kept = self.__dict__["kept"] = self.state, fresh
        lists: list[_Lists] = kept[1]
        return lists


@dataclasses.dataclass(frozen=True, slots=True)
class _Lists:
    parameters: list[Tensor]
    first_moments: list[Tensor]
    second_moments: list[Tensor]
    steps: list[Tensor]
    all_steps: Tensor
    rate: Tensor | None


def _lists(parameters: list[Tensor], state: dict[Tensor, dict[str, Tensor]], rate: Tensor | None) -> _Lists:
    """Return the lists of a group, whose numbers of steps become views of one tensor."""
    states = [state[parameter] for parameter in parameters]
    all_steps = torch.stack([entry["step"] for entry in states])
    for entry, step in zip(states, all_steps, strict=True):
        entry["step"] = step
    first, second, steps = ([entry[name] for entry in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    return _Lists(list(parameters), first, second, steps, all_steps, rate)
