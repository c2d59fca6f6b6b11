"""BC-10%: behavior cloning of the best episodes of the data, by their returns.

    L(pi) = E_(s, a) ~ best episodes [ || pi(s) - a ||^2 ]          (%BC in Chen and others 2021,
                                                                     https://arxiv.org/abs/2106.01345)

Actions of a Discrete space and texts are imitated as the forms of `bc` for them do (d3rlpy's, which has no choice of
episodes, and that of ILQL, whose authors filter by the return too, at 10, 30 and 50 %).

It shows what learning from rewards adds to choosing the data by them. Defaults are CORL's (`any_percent_bc.py` with
`frac=0.1`; `manifests/recorded/published/hyperparameters.json`, BC-10% / CORL), with the network and the loss of
`bc`.

With `cost_limit` it is BC-Safe of DSRL (Liu and others 2023, https://arxiv.org/abs/2306.09303): only episodes whose
cost is at most the limit are imitated, all of them with `percent=100`.

What differs from CORL, besides what `bc` lists:
- The number of episodes is rounded up. CORL rounds it down.
- Observations are standardized over all episodes, not over the best ones.

What differs from the paper: it chooses the best timesteps, by the returns of their episodes, and reports 10, 25, 40
and 100 %.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from orlog.algos.bc import BC, BCConfig
from orlog.algos.bc_discrete import BCDiscrete, BCDiscreteConfig
from orlog.algos.bc_text import BCText, BCTextConfig
from orlog.algos.settings import NotNegative
from orlog.algos.token_policies import token_sequences_of

Percent = Annotated[float, Meta(ge=1, le=100)]


def best_transitions_of(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the loader of batches of transitions of the best episodes."""
    arguments: dict[str, Any] = {"batch_size": config.batch_size, "percent": config.percent}
    if config.cost_limit is not None:
        arguments |= {"infos": ("cost",), "within": ("cost", config.cost_limit)}
    return "orlog.loaders.best_episodes:best_transitions", arguments


def best_token_sequences_of(config: Any) -> tuple[str, dict[str, Any]]:
    """Return the loader of batches of token sequences of the best episodes."""
    _, arguments = token_sequences_of(config)
    return "orlog.loaders.best_episodes:best_token_sequences", {**arguments, "percent": config.percent}


class PercentBCConfig(BCConfig, frozen=True, kw_only=True):
    """Settings of behavior cloning of the best episodes."""

    percent: Percent = 10.0
    """Percentage of the episodes, by return, that are imitated."""
    cost_limit: NotNegative | None = None
    """Cost of an episode up to which it may be imitated; none asks for no costs."""


class PercentBC(BC):
    """Behavior cloning of the best episodes with a deterministic tanh policy."""

    TITLE = "BC-10%"
    TITLE_WITH = ("cost_limit", "BC-Safe")
    TITLE_BY = ("percent", "BC-{:g}%")
    CONFIG = PercentBCConfig
    REWARDS = True
    loader = staticmethod(best_transitions_of)


class PercentBCDiscreteConfig(BCDiscreteConfig, frozen=True, kw_only=True):
    """Settings of behavior cloning of the best episodes, for discrete actions."""

    percent: Percent = 10.0
    cost_limit: NotNegative | None = None


class PercentBCDiscrete(BCDiscrete):
    """Behavior cloning of the best episodes with a softmax over discrete actions."""

    CONFIG = PercentBCDiscreteConfig
    REWARDS = True
    loader = staticmethod(best_transitions_of)


class PercentBCTextConfig(BCTextConfig, frozen=True, kw_only=True):
    """Settings of behavior cloning of the best episodes, in words."""

    percent: Percent = 10.0


class PercentBCText(BCText):
    """Behavior cloning of the best episodes with a language model."""

    CONFIG = PercentBCTextConfig
    REWARDS = True
    loader = staticmethod(best_token_sequences_of)
