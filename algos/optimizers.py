"""Steps down losses, and Adam with less work around each: the numbers and the state of `torch.optim.Adam`.

PyTorch's fused Adam changes all parameters in one call, but prepares that call anew in every step
and counts the steps of each parameter by a call of its own, which takes longer than the fused call
where networks are small. Here its lists are kept, and the numbers of steps are views of one tensor.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def parameters_of(*networks: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of some networks, one network after the other."""
    return [one for network in networks for one in network.parameters()]


def descend(
    optimizer: torch.optim.Optimizer, loss: Tensor, *, only: nn.Module | None = None
) -> None:
    """Take one step down a loss.

    With `only`, no gradients but those of its parameters are computed, though the loss may pass
    through other networks.
    """
    optimizer.zero_grad()
    inputs = None if only is None else parameters_of(only)
    loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]  # torch has no types for it
    optimizer.step()


def descend_both(
    optimizer: torch.optim.Optimizer, loss: Tensor, policy_loss: Tensor, policy: nn.Module
) -> None:
    """Take one step down a loss and down that of a policy, which passes through what the first trains.

    Of the policy's loss no gradients but the policy's are computed.
    """
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
    policy_loss.backward(inputs=parameters_of(policy))  # type: ignore[no-untyped-call]  # as above
    optimizer.step()


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
        if closure is not None or not kept or any(one is None for its in gradients for one in its):
            return inspect.unwrap(torch.optim.Adam.step)(self, closure)
        for group, lists, its in zip(self.param_groups, kept, gradients, strict=True):
            lists.all_steps.add_(1)
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                lists.parameters,
                its,
                lists.first_moments,
                lists.second_moments,
                [],
                lists.steps,
                lr=group["lr"],
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
            for one in group["params"]:
                one.grad = None

    def _kept(self) -> list[_Lists]:
        """Return the lists of each group; none before the first step of all parameters."""
        kept = self.__dict__.get("kept")
        if kept is None or kept[0] is not self.state:  # a loaded state is another dict
            if not all(
                self.state.get(one) for group in self.param_groups for one in group["params"]
            ):
                return []
            found = [_lists(group["params"], self.state) for group in self.param_groups]
            kept = self.__dict__["kept"] = self.state, found
        lists: list[_Lists] = kept[1]
        return lists


@dataclasses.dataclass(frozen=True, slots=True)
class _Lists:
    """The parameters of a group and what Adam holds for each."""

    parameters: list[Tensor]
    first_moments: list[Tensor]
    second_moments: list[Tensor]
    steps: list[Tensor]
    all_steps: Tensor


def _lists(parameters: list[Tensor], state: dict[Tensor, dict[str, Tensor]]) -> _Lists:
    """Return the lists of a group, whose numbers of steps become views of one tensor."""
    states = [state[one] for one in parameters]
    all_steps = torch.stack([one["step"] for one in states])
    for one, step in zip(states, all_steps, strict=True):
        one["step"] = step
    first, second, steps = (
        [one[name] for one in states] for name in ("exp_avg", "exp_avg_sq", "step")
    )
    return _Lists(list(parameters), first, second, steps, all_steps)
