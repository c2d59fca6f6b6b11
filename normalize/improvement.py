"""How likely a run of one method scores above a run of another (Agarwal et al. 2021, section 4.3)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def probability_of_improvement(
    first: Float[np.ndarray, "*resamples seeds tasks"],
    second: Float[np.ndarray, "*resamples others tasks"],
) -> Float[np.ndarray, "*resamples"]:
    """Return the probability that the first method's run scores above the second's, over all tasks.

    On each task it is the share of pairs of runs in which the first is above, where equal scores
    count half: the statistic of Mann and Whitney (1947) over the number of pairs.
    """
    difference = first[..., :, None, :] - second[..., None, :, :]
    return np.asarray((np.sign(difference).mean((-3, -2, -1)) + 1) / 2)
