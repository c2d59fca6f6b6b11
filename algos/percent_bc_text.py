"""BC-10% in words: a language model of what the agent says in the best episodes ("filtered BC").

    L(pi) = E_(episode) ~ best episodes [ mean over the agent's own tokens of -log pi(token | all tokens before) ]

Which episodes are the best is said in `percent_bc`; network, loss and defaults are those of the form of `bc` for words.
Snell and others 2022 (https://arxiv.org/abs/2206.11871) filter by the return too, at 10, 30 and 50 %.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from orlog.algos.bc_text import BCText, BCTextConfig


class PercentBCTextConfig(BCTextConfig, frozen=True, kw_only=True):
    """Settings of behavior cloning of the best episodes, in words."""

    percent: Annotated[float, Meta(ge=1, le=100)] = 10.0
    """Percentage of the episodes, by return, that are imitated, in [1, 100]."""


class PercentBCText(BCText):
    """Behavior cloning of the best episodes with a language model."""

    CONFIG = PercentBCTextConfig
    REWARDS = True

    @staticmethod
    def loader(config: PercentBCTextConfig) -> tuple[str, dict[str, Any]]:  # type: ignore[override]
        """Return the loader of its batches: token sequences of the best episodes."""
        _, arguments = BCText.loader(config)
        path = "orlog.loaders.best_episodes:best_token_sequences"
        return path, {**arguments, "percent": config.percent}
