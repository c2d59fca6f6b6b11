"""What to know beside off-policy estimates, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orlog.algos.fitted_q_evaluation import FQESettings
from orlog.datasets.reading.dataset import Dataset
from orlog.normalize import value_estimates
from orlog.normalize.references import Protocol
from orlog.normalize.value_estimates import Terms
from orlog.scoring.off_policy_results import Estimate, EvaluatedPolicy, estimate_of
from orlog.scoring.policy_values import PolicyValues


def notes_on_ends(protocol: Protocol, discount: float) -> list[str]:
    """Return what to know where episodes are cut off before a discount makes the rest small."""
    limit = protocol.max_episode_steps
    if limit is None:
        return []
    note = (
        f"measured returns end with the episode, after {limit:,} steps at most; fqe, critic, dr and wdr "
        f"go on after a truncation, where rewards weigh {discount**limit:.2g} of the first one at most."
    )
    return [note]


def note_on_steps(values: Sequence[PolicyValues], settings: FQESettings) -> str:
    """Return how far fitted Q evaluation still moved, and what more steps would give."""
    moved = max((one.fits.mean() - one.halfway for one in values), key=abs)
    return (
        f"in the second half of the {settings.steps:,} steps of its fits, fqe moved by {moved:+.3g}; where that is much "
        f"beside the interval, more steps bring it nearer to where it settles: --fqe-steps {5 * settings.steps} "
        "(settings=FQESettings(steps=..) in Python) takes 5 times as long."
    )


def notes_on_estimates(
    policies: Sequence[EvaluatedPolicy], settings: FQESettings, other: Dataset | None
) -> list[str]:
    """Return what intervals hold and what they leave out."""
    spread = "the spread of the fits, each to a resample of the episodes"
    if settings.fits == 1:
        spread = "nothing of how else Q could have been fitted, since there is one fit"
    notes = [
        f"intervals are at 95 %, from a bootstrap over episodes; that of fqe has {spread}.",
        "no interval shows an error that all fits share, nor how else a critic could have been trained.",
    ]
    if any("dr" in one.estimates for one in policies) and other is None:
        notes.append(
            "dr and wdr correct fqe's Q with the episodes that it was fitted to, so their intervals are "
            "too narrow; name other episodes with --on (on= in Python)."
        )
    beyond = [one.beyond_truncations for one in policies]
    if any(beyond):
        notes.append(
            "of fqe, dr and wdr, discount^H times the final value of truncated episodes (H steps), "
            f"{min(beyond):.3g} to {max(beyond):.3g} on average over episodes, stands for steps that were "
            "not recorded: no reward corrects it."
        )
    return notes


def why_no_number(name: str, terms: Terms, step: int) -> str:
    """Return why an estimate is not finite."""
    if not terms.denominators.sum(0).all():
        return f"no episode has any weight under the policy of step {step:,}."
    if name == "dr":
        return (
            f"the weights under the policy of step {step:,} are too large for a number: each is a product "
            "of ratios over a long episode; wdr, which divides by their sum, has no such limit."
        )
    return f"it is no finite number under the policy of step {step:,}."


def estimator_quality(
    estimates: np.ndarray, draws: np.ndarray, values: np.ndarray, measured: np.ndarray
) -> dict[str, Estimate]:
    """Return the measures of an estimator; draws are [policies, resamples]."""
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "absolute_error": value_estimates.absolute_error,
        "rank_correlation": value_estimates.rank_correlation,
        "regret_at_1": value_estimates.regret,
    }
    found = {}
    for name, function in functions.items():
        if len(estimates) > 1 or name == "absolute_error":
            value = float(function(estimates, values))
            resampled = np.full(1, np.nan)
            if np.isfinite(draws).all():
                pairs = zip(draws.T, measured.T, strict=True)
                resampled = np.array([float(function(one, other)) for one, other in pairs])
            if np.isfinite(value):
                found[name] = estimate_of(value, resampled)
    return found
