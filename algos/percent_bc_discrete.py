"""BC-10% of discrete actions: a classifier of the actions of the best episodes.

    L(pi) = E_(s, a) ~ best episodes [ -log pi(a | s) ] + log_penalty E_s [ mean_a (log pi(a | s))^2 ]

Which episodes are the best is said in `percent_bc`; network, loss and defaults are those of the discrete
form of `bc`, d3rlpy's, which has no choice of episodes.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from orlog.algos.bc_discrete import BCDiscrete, BCDiscreteConfig
from orlog.algos.percent_bc import PercentBC
from orlog.algos.settings import NotNegative


class PercentBCDiscreteConfig(BCDiscreteConfig, frozen=True, kw_only=True):
    """Settings of behavior cloning of the best episodes, for discrete actions."""

    percent: Annotated[float, Meta(ge=1, le=100)] = 10.0
    """Percentage of the episodes, by return, that are imitated, in [1, 100]."""
    cost_limit: NotNegative | None = None
    """Cost of an episode up to which it may be imitated; none asks for no costs."""


class PercentBCDiscrete(BCDiscrete):
    """Behavior cloning of the best episodes with a softmax over discrete actions."""

    CONFIG = PercentBCDiscreteConfig
    REWARDS = True

    loader = PercentBC.loader  # type: ignore[assignment]  # settings of the same names
