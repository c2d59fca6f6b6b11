"""Performance profiles: which share of runs scores above each threshold.

These are the score distributions of Agarwal et al. 2021, section 4.2 (after Dolan and Moré 2002). A
curve above another at all thresholds is stochastic dominance.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def performance_profile(
    scores: Float[np.ndarray, "*resamples seeds tasks"],
    thresholds: Float[np.ndarray, " thresholds"],
) -> Float[np.ndarray, "*resamples thresholds"]:
    """Return the share of runs, over all seeds and tasks, with a score above each threshold."""
    runs = np.sort(scores.reshape(-1, scores.shape[-2] * scores.shape[-1]), axis=-1)
    above = [1 - np.searchsorted(one, thresholds, side="right") / len(one) for one in runs]
    return np.array(above).reshape(*scores.shape[:-2], len(thresholds))


def profile_thresholds(
    *scores: Float[np.ndarray, "seeds tasks"], count: int = 201
) -> Float[np.ndarray, " thresholds"]:
    """Return evenly spaced thresholds from the lowest to the highest score, with 0 in any case."""
    low = min(0.0, *(float(one.min()) for one in scores))
    high = max(0.0, *(float(one.max()) for one in scores))
    return np.linspace(low, high, count)
