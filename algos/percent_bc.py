"""BC-10%: behavior cloning of the best episodes of the data, by their returns.

    L(pi) = E_(s, a) ~ best episodes [ || pi(s) - a ||^2 ]          (%BC in Chen and others 2021,
                                                                     https://arxiv.org/abs/2106.01345)

It shows what learning from rewards adds to choosing the data by them. Defaults are CORL's
(`any_percent_bc.py` with `frac=0.1`; `manifests/recorded/published/hyperparameters.json`, BC-10% / CORL), with
the network and the loss of `bc`.

With `cost_limit` it is BC-Safe of DSRL (Liu and others 2023, https://arxiv.org/abs/2306.09303): only episodes
whose cost is at most the limit are imitated, all of them with `percent=100`.

What differs from CORL, besides what `bc` lists:
- The number of episodes is rounded up. CORL rounds it down.
- Observations are standardized over all episodes, not over the best ones.

What differs from the paper: it chooses the best timesteps, by the returns of their episodes, and
reports 10, 25, 40 and 100 %.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from orlog.algos.bc import BC, BCConfig
from orlog.algos.settings import NotNegative


class PercentBCConfig(BCConfig, frozen=True, kw_only=True):
    """Settings of behavior cloning of the best episodes."""

    percent: Annotated[float, Meta(ge=1, le=100)] = 10.0
    """Percentage of the episodes, by return, that are imitated, in [1, 100]."""
    cost_limit: NotNegative | None = None
    """Cost of an episode up to which it may be imitated; none asks for no costs."""


class PercentBC(BC):
    """Behavior cloning of the best episodes with a deterministic tanh policy."""

    TITLE = "BC-10%"
    TITLE_WITH = ("cost_limit", "BC-Safe")
    TITLE_BY = ("percent", "BC-{:g}%")
    CONFIG = PercentBCConfig
    REWARDS = True

    @staticmethod
    def loader(config: PercentBCConfig) -> tuple[str, dict[str, Any]]:  # type: ignore[override]
        """Return the loader of its batches: transitions of the best episodes."""
        arguments: dict[str, Any] = {"batch_size": config.batch_size, "percent": config.percent}
        if config.cost_limit is not None:
            arguments |= {"infos": ("cost",), "within": ("cost", config.cost_limit)}
        return "orlog.loaders.best_episodes:best_transitions", arguments
