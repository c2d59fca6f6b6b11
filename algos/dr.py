"""Doubly robust off-policy learning from logged choices: `ips` with the objective `dr`.

    E[ w (r - q(x, a)) + sum over a of pi(a | x) q(x, a) ]       (Dudik, Langford and Li 2011,
                                                                  https://arxiv.org/abs/1103.4601)

Equations, defaults and differences from the papers are those of `ips`.
"""

from __future__ import annotations

from typing import Literal

from orlog.algos.ips import IPS, IPSConfig


class DRConfig(IPSConfig, frozen=True, kw_only=True):
    """Settings of doubly robust learning from logged choices."""

    objective: Literal["ips", "direct", "dr"] = "dr"
    """The estimate that is maximized: `ips`, `direct`, or doubly robust, `dr`."""


class DR(IPS):
    """A softmax policy that maximizes the doubly robust estimate of its mean reward."""

    CONFIG = DRConfig
